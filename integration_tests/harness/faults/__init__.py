# SPDX-License-Identifier: Apache-2.0
"""Faults of the network, of disks and of clocks. Kill, pause and restart are methods of `harness.process.Process`."""

from __future__ import annotations

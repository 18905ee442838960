# SPDX-License-Identifier: Apache-2.0
"""Proofs of the log engine against real file systems: corruption, real disks, and the long crash enumeration."""

from __future__ import annotations

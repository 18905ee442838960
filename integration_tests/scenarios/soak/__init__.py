# SPDX-License-Identifier: Apache-2.0
"""Produce at full rate beside voters in the same processes, for minutes: no election, nothing lost, nothing grows."""

from __future__ import annotations

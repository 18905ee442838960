# SPDX-License-Identifier: Apache-2.0
"""Measurements, each beside its ceiling in the same run. Tests import what judges figures, and nothing that measures."""

from __future__ import annotations

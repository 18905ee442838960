# SPDX-License-Identifier: Apache-2.0
"""Measurements, each beside its ceiling in the same run. No test imports this package."""

from __future__ import annotations

# SPDX-License-Identifier: Apache-2.0
"""Measurements, each beside its ceiling in the same run; no test imports this."""

from __future__ import annotations

# SPDX-License-Identifier: Apache-2.0
"""Tests of the demo."""

from __future__ import annotations

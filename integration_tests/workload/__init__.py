# SPDX-License-Identifier: Apache-2.0
"""Histories of producers and consumers on a real cluster: how they are made, written down and judged."""

from __future__ import annotations

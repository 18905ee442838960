# SPDX-License-Identifier: Apache-2.0
"""Seeded simulation of the metadata quorum, and helpers for tests. Production code never imports it."""

from __future__ import annotations

# SPDX-License-Identifier: Apache-2.0
"""Test support for the log engine and everything above it: a disk that crashes, and builders of batches."""

from __future__ import annotations

# SPDX-License-Identifier: Apache-2.0
"""Tests and proofs with whole servers and clients."""

from __future__ import annotations

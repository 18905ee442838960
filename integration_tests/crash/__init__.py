# SPDX-License-Identifier: Apache-2.0
"""Proofs of the log engine: a crash at every disk call (`run`), damage to files (`corrupt`), real devices (`real_disk`)."""

from __future__ import annotations

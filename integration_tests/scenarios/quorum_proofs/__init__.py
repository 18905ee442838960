# SPDX-License-Identifier: Apache-2.0
"""Proofs of the metadata quorum with real processes: kills, pauses, partitions, a lost disk, a rolling restart."""

from __future__ import annotations

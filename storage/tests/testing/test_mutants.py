# SPDX-License-Identifier: Apache-2.0
"""The proofs can fail: the model or the crash points find each wrong decision of the engine.

`integration_tests/tests/crash/test_corruption.py` has those that need real directories.
"""

from __future__ import annotations

import pytest

from storage.log.flush import FlushWork
from storage.testing import model_run
from storage.testing.mutants import MODEL_RUNS, MODEL_STEPS, MUTANTS, Finder, Mutant, applied, find

LATE = (
    "recovery: snapshots beyond the end are kept",
    "recovery: a torn middle is called damage",
    "log start: not synced at the opening that removes because of it",
)
"""Found only near the end of their scenario, or after many seeds."""

FOUND_HERE = [
    pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] if mutant.name in LATE else [])
    for mutant in MUTANTS
    if mutant.finder is not Finder.CORRUPTION
]


@pytest.mark.parametrize("mutant", FOUND_HERE)
def test_mutant_is_found(mutant: Mutant) -> None:
    """The finder in the table reports what is wrong."""
    assert find(mutant) is not None


def test_the_engine_is_right_again_afterwards() -> None:
    """A mutant leaves nothing behind."""
    run = FlushWork.run
    with applied(MUTANTS[0]):
        assert FlushWork.run is not run
    assert FlushWork.run is run


def test_a_mutant_is_found_by_the_same_seed_again() -> None:
    """The model reports the same seed, step and previous operations each time."""
    mutant = next(each for each in MUTANTS if each.name == "compaction: a filler forgets its sequences")
    said = find(mutant)
    assert said is not None
    assert find(mutant) == said


def test_mutants_have_names_of_their_own() -> None:
    """At least twelve, and the focus of a mutant finds nothing without the mutant."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 12
    mutant = next(each for each in MUTANTS if each.name == "compaction: a filler forgets its sequences")
    few = MODEL_RUNS // 50
    run = model_run.run_many(first_seed=0, runs=few, steps=MODEL_STEPS, focus=mutant.focus, compact=mutant.compact)
    assert run is None

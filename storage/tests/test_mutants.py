# SPDX-License-Identifier: Apache-2.0
"""The proofs can fail: each wrong decision of the engine is found by the model or by the crash points.

Those that need real directories stand in `integration_tests/storage_faults/test_corruption.py`.
"""

from __future__ import annotations

import pytest

from storage.flush import FlushWork
from storage.testing.mutants import MUTANTS, Finder, Mutant, applied, find

LATE = ("recovery: snapshots beyond the end are kept", "recovery: a torn middle is called damage")
"""Found only near the end of their scenario."""

FOUND_HERE = [
    pytest.param(mutant, id=mutant.name, marks=[pytest.mark.slow] if mutant.name in LATE else [])
    for mutant in MUTANTS
    if mutant.finder is not Finder.CORRUPTION
]


@pytest.mark.parametrize("mutant", FOUND_HERE)
def test_mutant_is_found(mutant: Mutant) -> None:
    """The finder that the table names says what is wrong."""
    assert find(mutant) is not None


def test_the_engine_is_right_again_afterwards() -> None:
    """A mutant leaves nothing behind."""
    run = FlushWork.run
    with applied(MUTANTS[0]):
        assert FlushWork.run is not run
    assert FlushWork.run is run

# SPDX-License-Identifier: Apache-2.0
"""Short runs of `make sql-proofs` on SQLite, and the faults that they must find."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.scenarios.sql_offsets import kills, two_owners
from integration_tests.scenarios.sql_offsets.mutants import KILLS_FIND, MUTANTS, TWO_OWNERS_FIND

SHORT_KILLS = 3


@pytest.mark.process
@pytest.mark.slow
def test_killed_workers_store_each_record_once(tmp_path: Path) -> None:
    """After kill -9 between two steps, the next worker goes on, and each record is in the database once."""
    outcome = kills.prove(tmp_path, database="sqlite", kills=SHORT_KILLS, seed=1)
    assert outcome.problems == []
    assert int(str(outcome.figures["records"])) > 0


@pytest.mark.process
@pytest.mark.slow
def test_late_worker_is_fenced(tmp_path: Path) -> None:
    """A worker that was replaced while it stood still stores nothing more."""
    assert two_owners.prove(tmp_path, database="sqlite", rounds=2, groups=0, seed=1).problems == []


@pytest.mark.process
@pytest.mark.slow
def test_faults_are_found(tmp_path: Path) -> None:
    """Two transactions instead of one, and a row without a fence."""
    (tmp_path / "kills").mkdir()
    (tmp_path / "owners").mkdir()
    assert kills.prove(tmp_path / "kills", database="sqlite", kills=12, seed=1, mutant="two-transactions").problems
    found = two_owners.prove(tmp_path / "owners", database="sqlite", rounds=1, groups=0, seed=1, mutant="no-epoch")
    assert any("not fenced" in problem for problem in found.problems)


def test_every_mutant_has_a_proof() -> None:
    """Each fault is one that the kills or two owners find."""
    assert {*KILLS_FIND, *TWO_OWNERS_FIND} == set(MUTANTS)

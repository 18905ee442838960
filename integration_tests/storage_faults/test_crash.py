# SPDX-License-Identifier: Apache-2.0
"""`make crash` prints what it did and fails when it must."""

from __future__ import annotations

import pytest

from integration_tests.storage_faults import crash
from storage.testing import crash_points
from storage.testing.mutants import MUTANTS, Finder, applied

FEW = {crash_points.follower: crash_points.SMALL}


def test_enumeration_prints_points_of_each_operation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of points of each operation, and 'all legal'."""
    monkeypatch.setattr(crash, "SCENARIOS", FEW)
    assert crash.enumerate_points(seeds=1, recovery_every=60)
    printed = capsys.readouterr().out
    assert "points in AppendAsFollower" in printed
    assert "points in recovery" in printed
    assert printed.rstrip().endswith("all legal")


def test_enumeration_and_model_fail_on_a_wrong_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flush that syncs nothing: both say so, and where."""
    monkeypatch.setattr(crash, "SCENARIOS", FEW)
    with applied(MUTANTS[0]):
        assert not crash.enumerate_points(seeds=1, recovery_every=60)
        assert not crash.run_model(runs=5, steps=60)
    printed = capsys.readouterr().out
    assert "ILLEGAL in follower" in printed
    assert "FAILED" in printed


def test_every_finder_has_mutants() -> None:
    """At least twelve wrong decisions, and each proof finds some of them."""
    assert len(MUTANTS) >= 12
    assert {mutant.finder for mutant in MUTANTS} == set(Finder)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)

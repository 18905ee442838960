# SPDX-License-Identifier: Apache-2.0
"""`make crash` prints what it did, and fails when it must."""

from __future__ import annotations

import pytest

from integration_tests.crash import run as crash
from storage.testing import crash_points
from storage.testing.mutants import MUTANTS, Finder, applied
from storage.testing.sim_disk import SimDisk

FEW = {crash_points.follower: crash_points.SMALL}


def test_enumeration_prints_points_of_each_operation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of points of each operation, and 'all legal'."""
    monkeypatch.setattr(crash, "SCENARIOS", FEW)
    assert crash.enumerate_points(seeds=1, recovery_every=60, point_every=6)
    printed = capsys.readouterr().out
    assert "points in AppendAsFollower" in printed
    assert "points in recovery" in printed
    assert printed.rstrip().endswith("all legal")


def test_named_operations_are_printed_as_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each operation with its points and crashes, then all of them; False if a law is broken."""
    monkeypatch.setattr(crash, "ALL_OPERATIONS", crash.DIRECTORY_OPERATIONS)
    assert crash.enumerate_operations(seeds=1, recovery_every=5)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed] == [
        "operation",
        *(operation.name for operation in crash.DIRECTORY_OPERATIONS),
        "all",
    ]
    monkeypatch.setattr(SimDisk, "sync_directory", lambda *_: None)
    assert not crash.enumerate_operations(seeds=1, recovery_every=5)
    assert "ILLEGAL: partition deletion: crash before call" in capsys.readouterr().out


def test_enumeration_and_model_fail_on_a_wrong_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Enumeration and model both report a flush that syncs nothing, and where."""
    monkeypatch.setattr(crash, "SCENARIOS", FEW)
    with applied(MUTANTS[0]):
        assert not crash.enumerate_points(seeds=1, recovery_every=60)
        assert not crash.run_model(runs=5, steps=60)
    printed = capsys.readouterr().out
    assert "ILLEGAL in follower" in printed
    assert "FAILED" in printed


def test_every_finder_has_mutants() -> None:
    """There are at least twelve mutants, and each proof finds some of them."""
    assert len(MUTANTS) >= 12
    assert {mutant.finder for mutant in MUTANTS} == set(Finder)
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)

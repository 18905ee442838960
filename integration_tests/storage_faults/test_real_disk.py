# SPDX-License-Identifier: Apache-2.0
"""Short rounds on real devices and with real processes; `python -m integration_tests.storage_faults.real_disk` runs the long ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration_tests.storage_faults import real_disk, worker
from integration_tests.storage_faults.ledger import Ledger

SHORT_ROUNDS = 4


@pytest.mark.process
def test_kill_at_any_moment_loses_no_answer(tmp_path: Path) -> None:
    """After kill -9 the log opens without damage and holds everything that the process was told."""
    kills = real_disk.kill_loop(tmp_path, SHORT_ROUNDS, seed=1)
    assert kills.problems == ()
    assert kills.rounds == SHORT_ROUNDS
    assert kills.lines > SHORT_ROUNDS


@pytest.mark.process
@pytest.mark.skipif(not os.access(real_disk.STRACE, os.X_OK), reason="there is no strace")
def test_failed_fsync_ends_all_writing(tmp_path: Path) -> None:
    """After EIO nothing is written, synced or acknowledged any more, reads go on, and what was acknowledged is there."""
    assert real_disk.failing_fsync(tmp_path, seed=1) == []


@pytest.mark.process
def test_full_disk_refuses_whole_appends_and_recovers(tmp_path: Path) -> None:
    """Without space an append changes nothing, reads go on, and with space again the log does too."""
    with real_disk.small_disk(tmp_path) as mounted:
        if mounted is None:
            pytest.skip("this machine lets nobody mount a tmpfs")
        refused, problems = real_disk.fill_up(mounted[0], seed=1, times=2)
    assert problems == []
    assert refused == 6


def told(*lines: str, generation: int = 1) -> Ledger:
    """Return a ledger that was told these lines."""
    ledger = Ledger()
    for line in lines:
        ledger.take(line, generation)
    return ledger


def values(count: int, generation: int = 1) -> list[bytes]:
    """Return the values of the first records of a generation."""
    return [worker.value_of(generation, offset, 3) for offset in range(count)]


def test_ledger_takes_an_answer_or_a_request_without_one() -> None:
    """An append that was not answered may be there or not, as a whole; an answered one must be."""
    ledger = told("end 0\n", "append 2\n", "end 2\n", "append 3\n")
    assert ledger.compare(values(2), 1, 20) == []
    assert ledger.compare(values(5), 1, 20) == []
    assert ledger.compare(values(1), 1, 20)
    assert ledger.compare(values(4), 1, 20)
    assert ledger.compare(values(2, generation=2), 1, 20)
    assert ledger.compare(values(2)[::-1], 1, 20)


def test_ledger_knows_truncations() -> None:
    """A truncation that was answered is final; one that was not may have cut, or not."""
    before = ("end 0\n", "append 9\n", "end 9\n", "flush\n", "flushed 9\n", "truncate 4\n")
    assert told(*before).compare(values(9), 1, 2) == []
    assert told(*before).compare(values(4), 1, 2) == []
    assert told(*before).compare(values(1), 1, 2)
    assert told(*before, "end 4\n").compare(values(9), 1, 2)
    assert told(*before, "end 4\n").flushed_offset == 4


def test_ledger_passes_over_a_line_that_was_cut() -> None:
    """The last line of a killed process may end anywhere."""
    ledger = told("append 2\n", "end 2\n", "append 1")
    assert (ledger.lines, ledger.announced) == (2, 0)
    ledger.settle(values(2))
    assert ledger.flushed_offset == 2

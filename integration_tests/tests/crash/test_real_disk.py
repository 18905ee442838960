# SPDX-License-Identifier: Apache-2.0
"""Short rounds on real devices and with real processes; `python -m integration_tests.crash.real_disk` runs the long ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from integration_tests.crash import kill_loop, real_disk, worker
from integration_tests.crash.keyed_ledger import Found, KeyedLedger
from integration_tests.crash.ledger import Ledger
from integration_tests.harness.faults.disks import small_disk

SHORT_ROUNDS = 3


@pytest.mark.process
def test_kill_at_any_moment_loses_no_answer(tmp_path: Path) -> None:
    """After kill -9 the logs open without damage and hold what the process was told, with retention and compaction on."""
    kills = kill_loop.kill_loop(tmp_path, SHORT_ROUNDS, seed=1)
    assert kills.problems == ()
    assert kills.rounds == SHORT_ROUNDS
    assert kills.lines > SHORT_ROUNDS
    assert kills.removals > 0
    assert kills.passes > 0


@pytest.mark.process
@pytest.mark.skipif(not os.access(real_disk.STRACE, os.X_OK), reason="there is no strace")
def test_failed_fsync_ends_all_writing(tmp_path: Path) -> None:
    """After EIO nothing is written, synced or acknowledged any more. Reads work, and everything acknowledged exists."""
    assert real_disk.failing_fsync(tmp_path, seed=1) == []


@pytest.mark.process
def test_full_disk_refuses_whole_appends_and_recovers(tmp_path: Path) -> None:
    """Without space an append changes nothing and reads work. With space again the log continues."""
    with small_disk(tmp_path / "small", size_bytes=real_disk.TMPFS_BYTES) as is_mounted:
        if not is_mounted:
            pytest.skip("mounting a tmpfs is not permitted")
        refused, problems = real_disk.fill_up(tmp_path / "small", seed=1, times=2)
    assert problems == []
    assert refused == 6


def told(*lines: str, generation: int = 1) -> Ledger:
    """Return a ledger that has noted these lines."""
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
    """An answered truncation is final. One without an answer may have taken effect or not."""
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


def test_ledger_knows_removals_at_the_front() -> None:
    """A removal that was answered is final, one that was not may have moved the log start; a worker's own finding counts."""
    before = ("end 0\n", "append 9\n", "end 9\n", "delete 4\n")
    assert told(*before).compare(values(9), 1, 20) == []
    assert told(*before).compare(values(9)[4:], 1, 20, start_offset=4) == []
    assert told(*before).compare(values(9)[5:], 1, 20, start_offset=5)
    assert told(*before, "start 4\n").compare(values(9), 1, 20)
    assert told(*before, "start 5\n").compare(values(9)[5:], 1, 20, start_offset=5)
    assert told("problem x\n").compare([], 1, 20) == ["x"]
    ledger = told(*before, "start 4\n")
    ledger.settle(values(9)[4:], start_offset=4)
    assert ledger.compare(values(9)[4:], 1, 20, start_offset=4) == []
    assert (ledger.flushed_offset, ledger.removals) == (9, 1)


def keyed_told(*lines: str) -> KeyedLedger:
    """Return a ledger of the compacted log that has noted these lines of generation 1."""
    ledger = KeyedLedger()
    for line in lines:
        ledger.take(line, 1)
    return ledger


def keyed_records(*records: tuple[int, int]) -> dict[int, Found]:
    """Return records (offset, key) as a worker of generation 1 writes them."""
    return {offset: Found(b"key-%d" % key, b"1/%d/v" % offset) for offset, key in records}


PUTS = ("put 1 2 1\n", "keyed-end 3\n", "flushed 3\n", "put 2-\n", "keyed-end 4\n")


def test_keyed_ledger_wants_the_newest_of_each_key_and_nothing_else() -> None:
    """Replaced records and tombstones may be gone. The newest record may not, and what it deleted must not be back."""
    whole = keyed_records((0, 1), (1, 2), (2, 1)) | {3: Found(b"key-2", None)}
    for gone in ((), (0,), (0, 1), (0, 1, 3)):
        left = {offset: record for offset, record in whole.items() if offset not in gone}
        assert keyed_told(*PUTS).compare(left, start_offset=0, end_offset=4) == [], gone
    for gone in ((2,), (3,), (0, 2)):
        left = {offset: record for offset, record in whole.items() if offset not in gone}
        assert keyed_told(*PUTS).compare(left, start_offset=0, end_offset=4), gone
    for wrong in (keyed_records((1, 1)), keyed_records((2, 1), (3, 2)), keyed_records((2, 2)), keyed_records((9, 1))):
        assert keyed_told(*PUTS).compare(whole | wrong, start_offset=0, end_offset=4), wrong


def test_keyed_ledger_knows_ends_and_what_was_not_answered() -> None:
    """An append or a removal without an answer may have happened or not."""
    left = keyed_records((2, 1))
    assert keyed_told(*PUTS).compare(left, start_offset=0, end_offset=3)
    begun = (*PUTS, "put 5\n", "keyed-delete 2\n", "passes 7\n", "put 8")
    assert keyed_told(*begun).compare(left, start_offset=2, end_offset=4) == []
    assert keyed_told(*begun).compare(left | keyed_records((4, 5)), start_offset=0, end_offset=5) == []
    assert keyed_told(*begun).compare(left, start_offset=0, end_offset=5)
    assert keyed_told(*begun).compare(left, start_offset=3, end_offset=4)
    assert keyed_told("problem x\n").compare({}, start_offset=0, end_offset=0) == ["x"]
    assert keyed_told("put 1\n", "keyed-end 3\n").problems
    ledger = keyed_told(*begun)
    ledger.settle(start_offset=2, end_offset=5)
    assert (ledger.end_offset, ledger.start_offset, ledger.passes, sorted(ledger.puts)) == (5, 2, 1, [2, 3, 4])

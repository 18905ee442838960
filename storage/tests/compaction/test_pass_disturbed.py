# SPDX-License-Identifier: Apache-2.0
"""Passes that cannot complete: full maps, damage, full disks, and logs that change before or during the pass."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import storage.compaction.pass_
from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass, PassOutcome
from storage.errors import CorruptLogError, DataLossError, DiskFullError
from storage.log.partition_log import PartitionLog
from storage.testing.builders import open_log
from storage.testing.sim_disk import Crash, Refusal, SimDisk
from storage.tests.compaction.support import (
    COMPACT,
    LOG,
    Newest,
    begin,
    compact,
    new_log,
    no_pace,
    pairs,
    put,
    records,
    roll,
)


def test_a_full_map_ends_the_pass_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pass by pass everything is compacted. Tombstones wait until all older records of their keys are gone."""
    monkeypatch.setattr("storage.compaction.key_map.MAX_RECORDS_PER_BATCH", 2)
    log = new_log(delete_retention_ms=0)
    for number in range(24):
        put(log, [(b"k%d" % (number % 6), b"%d" % number if number < 18 else None)])
    roll(log)
    offsets = []
    while (outcome := compact(log, max_keys=4)) is not None:
        offsets.append(outcome.dirty_offset)
        assert len(offsets) < 20
        assert Newest.of(records(log)).values == {}
    assert offsets[:5] == [4, 8, 12, 16, 20]
    assert offsets[5] == 24
    assert pairs(log) == {}


def test_a_map_that_cannot_reach_the_dirty_part_begins_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """So every pass makes progress. The log remembers that older records may be left, and no tombstone is removed."""
    monkeypatch.setattr("storage.compaction.key_map.MAX_RECORDS_PER_BATCH", 2)
    log = new_log(delete_retention_ms=0)
    for number in range(20):
        put(log, [(b"k%d" % number, b"x")])
    for number in range(4):
        put(log, [(b"k%d" % (18 + number), None)])
    roll(log)
    found = begin(log, max_keys=4)
    assert found is not None
    task = replace(found._task, map_offset=2, dirty_offset=18)
    for round_number, max_keys in enumerate((4, 4, 100)):
        one = CompactionPass(log.disk, replace(task, max_keys=max_keys, now_ms=200), no_pace)
        one.build()
        for group in one.groups():
            cleaned = one.clean(group)
            assert cleaned is None or log.swap(cleaned, now_ms=0)
        outcome = one.outcome()
        LogCompaction(log).end(outcome)
        task = replace(
            task,
            map_offset=outcome.map_offset,
            dirty_offset=outcome.dirty_offset,
            sealed=LogCompaction(log).facts(24).sealed,
        )
        if round_number == 0:
            assert outcome == PassOutcome(
                map_offset=2, dirty_offset=24, next_horizon_ms=None, read_count=24, kept_count=22
            )
    assert (task.map_offset, task.dirty_offset) == (24, 24)
    assert [offset for offset, (_, value) in pairs(log).items() if value is None] == [20, 21, 22, 23]
    compact(log, now_ms=300)
    assert list(pairs(log)) == list(range(18))


def test_a_full_disk_does_not_stop_the_end_of_a_pass() -> None:
    """The checkpoint is a cache: without it the next pass does more."""
    disk = SimDisk()
    log = new_log(disk)
    for number in range(10):
        put(log, [(b"k", b"%d" % number)])
    roll(log)
    for _ in range(3):
        disk.refuse("create_file", "cleaner-checkpoint", Refusal.FULL)
    compact(log)
    assert list(pairs(log)) == [9]
    assert LogCompaction(log).facts(10).dirty_offset == 10


def test_damage_is_passed_over_and_tombstones_behind_it_stay() -> None:
    """A damaged segment keeps its bytes, and its deleted records do not come back after the repair."""
    disk = SimDisk()
    log = new_log(disk, delete_retention_ms=0, segment_bytes=300)
    put(log, [(b"k", b"old" * 60)])
    put(log, [(b"a", b"1" * 200)])
    put(log, [(b"a", b"2" * 200)])
    put(log, [(b"k", None), (b"pad", b"x" * 200)])
    roll(log)
    first = f"{LOG}/{0:020d}.log"
    good = disk.read_file(first)
    disk.corrupt(first, 100, b"\xff")
    log.close()
    log = open_log(disk, LOG, replace(COMPACT, delete_retention_ms=0, segment_bytes=300)).log
    with pytest.raises(CorruptLogError, match="the CRC does not match"):
        compact(log)
    with pytest.raises(DataLossError):
        log.read(0, 1_000)
    for now_ms in (100, 200, 300):
        compact(log, now_ms=now_ms)
        assert disk.read_file(first) != good
        offset, found = 1, []
        while offset < log.log_end_offset:
            read = log.read(offset, 10**6)
            offset = read.next_offset
            found.append(read)
        assert sum(b"k" in each.data for each in found) == 1
    # Before the repair no pass can do more, and none is tried.
    assert compact(log, now_ms=400) is None
    assert len(log.damaged) == 1
    # The repair: the bytes come back, and the damage is forgotten.
    log.close()
    disk.corrupt(first, 0, good)
    disk.remove(f"{LOG}/damaged-ranges")
    log = open_log(disk, LOG, replace(COMPACT, delete_retention_ms=0, segment_bytes=300)).log
    assert pairs(log)[0] == (b"k", b"old" * 60)
    put(log, [(b"b", b"1" * 300)])
    roll(log)
    compact(log, now_ms=500)
    compact(log, now_ms=600)
    assert b"k" not in Newest.of(records(log)).values
    assert {key for key, _ in pairs(log).values()} == {b"a", b"b", b"pad"}


def test_a_batch_that_cannot_be_rewritten_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays as it is. Tombstones behind it stay too, so that its old records do not come back."""

    def too_large(*args: object, **kwargs: object) -> bytes:
        raise storage.compaction.pass_.BatchTooLargeError("no room for the gaps")

    log = new_log(delete_retention_ms=0)
    put(log, [(b"k", b"old"), (b"other", b"x")])
    put(log, [(b"k", None)])
    roll(log)
    with monkeypatch.context() as patch:
        patch.setattr(storage.compaction.pass_, "rewrite_batch", too_large)
        assert compact(log) == PassOutcome(
            map_offset=0, dirty_offset=3, next_horizon_ms=None, read_count=3, kept_count=3
        )
    assert pairs(log) == {0: (b"k", b"old"), 1: (b"other", b"x"), 2: (b"k", None)}
    assert compact(log) is None
    put(log, [(b"new", b"x")])
    roll(log)
    compact(log, now_ms=200)
    assert pairs(log) == {1: (b"other", b"x"), 2: (b"k", None), 3: (b"new", b"x")}
    compact(log, now_ms=300)
    assert pairs(log) == {1: (b"other", b"x"), 3: (b"new", b"x")}


def test_a_swap_is_refused_when_the_log_changed_meanwhile() -> None:
    """An earlier truncation or removal wins, and the compacted segment is thrown away."""

    def cut(log: PartitionLog) -> None:
        log.truncate_suffix(3)

    def remove(log: PartitionLog) -> None:
        log.truncate_prefix(20, 0)

    for change in (cut, remove):
        disk = SimDisk()
        log = new_log(disk)
        for number in range(30):
            put(log, [(b"k", b"%d" % number)])
        roll(log)
        found = begin(log)
        assert found is not None
        found.build()
        cleaned = found.clean(found.groups()[0])
        assert cleaned is not None
        change(log)
        before = pairs(log)
        assert not log.swap(cleaned, now_ms=0)
        assert pairs(log) == before
        assert not [name for name in disk.list_directory(LOG) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("to_offset", [0, 3])
def test_a_swap_is_refused_when_a_truncated_segment_has_its_size_and_end_again(to_offset: int) -> None:
    """The new records stay. Without the refusal, the truncated records would come back in their place."""
    disk = SimDisk()
    log = new_log(disk)

    def write(value: bytes) -> list[tuple[int, int, int]]:
        for number in range(log.log_end_offset, 30):
            put(log, [(b"k%d" % (number % 7), value + b"%02d" % number)])
        roll(log)
        return [(each.base_offset, each.end_offset, each.size_bytes) for each in log.segments]

    segments = write(b"old")
    found = begin(log)
    assert found is not None
    assert LogCompaction(log).holds(found._task.sealed)
    found.build()
    cleaned = found.clean(found.groups()[0])
    assert cleaned is not None
    log.truncate_suffix(to_offset)
    assert write(b"new") == segments
    before = pairs(log)
    assert not LogCompaction(log).holds(found._task.sealed)
    assert not log.swap(cleaned, now_ms=0)
    assert pairs(log) == before


def test_the_facts_of_a_segment_are_read_again_after_a_truncation() -> None:
    """The segment has the same object, size and end, but newer records."""
    log = new_log()
    compaction = LogCompaction(log)
    for timestamp_ms in (1_000, 2_000):
        log.truncate_suffix(0)
        for number in range(30):
            put(log, [(b"k%02d" % number, b"x")], timestamp_ms=timestamp_ms)
        roll(log)
        first = compaction.facts(30).sealed[0]
        assert (first.first_timestamp_ms, first.max_timestamp_ms) == (timestamp_ms, timestamp_ms)


def test_a_truncation_below_what_was_compacted_makes_it_dirty_again() -> None:
    """New records at these offsets are compacted like any others, even if they have the same number of bytes."""
    log = new_log()
    for number in range(30):
        put(log, [(b"k%d" % (number % 10), b"%02d" % number)])
    roll(log)
    compact(log)
    assert LogCompaction(log).facts(30).dirty_offset == 30
    log.truncate_suffix(25)
    for number in range(25, 30):
        put(log, [(b"k%d" % (number % 5), b"%02d" % number)], leader_epoch=1)
    roll(log)
    assert LogCompaction(log).facts(30).dirty_offset == 0
    compact(log)
    values = list(pairs(log).values())
    assert len(values) == len({key for key, _ in values})


def test_a_lost_or_foreign_checkpoint_costs_only_work() -> None:
    """Without a complete checkpoint everything counts as dirty."""
    disk = SimDisk()
    log = new_log(disk)
    for number in range(30):
        put(log, [(b"k%d" % (number % 10), b"%02d" % number)])
    roll(log)
    compact(log)
    expected = pairs(log)
    log.close()
    path = f"{LOG}/cleaner-checkpoint"
    good = disk.read_file(path)
    for content in (None, good[:-2], good.replace(b"dirty", b"dusty")):
        disk.remove(path)
        if content is not None:
            file = disk.create_file(path)
            file.append([content])
            file.close()
        log = open_log(disk, LOG, COMPACT).log
        assert LogCompaction(log).facts(30).dirty_offset == 0
        compact(log)
        assert LogCompaction(log).facts(30).dirty_offset == 30
        assert pairs(log) == expected
        log.close()


def test_the_log_start_moves_over_compacted_segments() -> None:
    """DeleteRecords into a filler of a compacted log, and beyond it."""
    disk = SimDisk()
    log = new_log(disk)
    for number in range(40):
        put(log, [(b"k%d" % (number % 10), b"%02d" % number)])
    roll(log)
    compact(log)
    log.truncate_prefix(13, 0)
    assert list(pairs(log)) == list(range(30, 40))
    log.close(clean=False)
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    log = open_log(disk, LOG, COMPACT).log
    assert log.log_start_offset == 13
    log.truncate_prefix(35, 0)
    assert list(pairs(log)) == list(range(35, 40))
    put(log, [(b"k9", b"new")])
    roll(log)
    compact(log)
    assert list(pairs(log)) == [35, 36, 37, 38, 40]


@pytest.mark.parametrize("operation", ["create_file", "append"])
def test_a_full_disk_leaves_the_log_as_it_is(operation: str) -> None:
    """The pass leaves no file behind, and the next one succeeds."""
    disk = SimDisk()
    log = new_log(disk)
    for number in range(30):
        put(log, [(b"k", b"%d" % number)])
    roll(log)
    before, names = pairs(log), disk.list_directory(LOG)
    disk.refuse(operation, ".cleaned", Refusal.FULL)
    with pytest.raises(DiskFullError):
        compact(log)
    assert pairs(log) == before
    assert disk.list_directory(LOG) == names
    assert compact(log) is not None
    assert len(pairs(log)) == 1


def test_a_flush_under_way_may_sync_a_replaced_segment() -> None:
    """A log start at its end makes an unflushed segment count as flushed; for lack of space it stays, and is compacted."""
    disk = SimDisk()
    log = new_log(disk)
    for value in (b"v", b"w"):
        put(log, [(b"k", value * 100)])
    work = log.begin_flush()
    assert work is not None
    disk.refuse("create_file", ".log", Refusal.FULL)
    with pytest.raises(DiskFullError):
        log.truncate_prefix(2, 0)
    put(log, [(b"k", b"x" * 600)])
    assert [(segment.base_offset, segment.end_offset) for segment in log.segments] == [(0, 2), (2, 3)]
    replaced = log.segments[0]
    compact(log)
    assert log.segments[0] is not replaced
    work.run()
    assert log.end_flush(work) == 2
    assert not replaced.is_open

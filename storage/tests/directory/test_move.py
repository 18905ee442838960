# SPDX-License-Identifier: Apache-2.0
"""Moves of a log to another directory: what is copied, and what a failure leaves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from storage.directory import move_future
from storage.directory.move_future import COPY_BYTES, MoveFuture
from storage.directory.move_marks import MoveMark, decide, place, read_mark, revoke
from storage.directory.move_plan import SWITCH_BYTES, CopiedSegment, SegmentCopy, SegmentView, plan_round
from storage.directory.move_source import MoveSource
from storage.directory.move_switch import give_up
from storage.directory.move_switch import switch as switch_log
from storage.errors import CorruptLogError, DiskFailedError, DiskFullError, MoveInDoubtError
from storage.files.checkpoints import encode_lines, replace_file
from storage.files.names import FUTURE_SUFFIX, MOVED_FROM_FILE, MOVED_TO_FILE, parse_move_directory_name
from storage.log.partition_log import PartitionLog
from storage.testing.builders import SMALL, ProducerStamp, append, open_log, read_values
from storage.testing.move_ground import IDENTITY, MOVE_ID, NAME, B, Ground, clean_up, copy_all, fill, no_pace, switch
from storage.testing.sim_disk import Crash, Refusal, SimDisk


def view(base_offset: int, size_bytes: int, generation: int = 1) -> SegmentView:
    return SegmentView(base_offset=base_offset, size_bytes=size_bytes, generation=generation)


def held(size_bytes: int, generation: int = 1) -> CopiedSegment:
    return CopiedSegment(size_bytes=size_bytes, generation=generation)


def copy(base_offset: int, from_bytes: int, to_bytes: int, generation: int = 1) -> SegmentCopy:
    return SegmentCopy(base_offset=base_offset, from_bytes=from_bytes, to_bytes=to_bytes, generation=generation)


def test_round_copies_what_is_missing_and_removes_what_changed() -> None:
    """New, longer, truncated, replaced, removed and empty segments; nothing is done for equal ones."""
    first = plan_round([view(0, 100), view(7, 0)], {})
    assert (first.removals, first.copies, first.size_bytes) == ((), (copy(0, 0, 100), copy(7, 0, 0)), 100)
    copied = {0: held(100), 7: held(50), 9: held(10), 20: held(30), 30: held(5)}
    segments = [view(0, 100), view(7, 80), view(9, 10, 2), view(20, 20)]
    later = plan_round(segments, copied)
    assert later.removals == (9, 20, 30)
    assert later.copies == (copy(7, 50, 80), copy(9, 0, 10, 2), copy(20, 0, 20))
    assert later.may_switch
    assert not plan_round([view(0, SWITCH_BYTES + 1)], {}).may_switch
    assert plan_round([view(0, 100)], {0: held(100)}).copies == ()


def test_moved_log_is_the_log() -> None:
    """Records, log start, epochs, producer state, damage, seals and flushed offset are there; nothing of the move is left."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 20)
    log.flush()
    source, future = MoveSource(log), ground.future()
    assert source.size_bytes > 0
    future.create()
    copy_all(source, future)
    future.copy_caches(no_pace)
    fill(log, 30, epoch=4)
    log.truncate_prefix(11, 0)
    copy_all(source, future)
    fill(log, 3, epoch=5)
    log.flush()
    values, end = read_values(log), log.log_end_offset
    moved = switch(ground, log, source, future)
    clean_up(ground)
    assert ground.names() == [f"/b/partitions/{NAME}"]
    assert MOVED_FROM_FILE not in ground.disk.list_directory(moved.directory)
    assert (moved.log_start_offset, moved.flushed_offset, moved.log_end_offset, moved.last_epoch) == (11, end, end, 5)
    assert read_values(moved) == values
    assert moved.epoch_at(20) == 4
    duplicate = append(moved, [b"again"], leader_epoch=5, producer=ProducerStamp(producer_id=7, base_sequence=end - 1))
    assert duplicate.duplicate
    fill(moved, 1, epoch=5)
    assert moved.flush() == end + 1
    moved.close()


def test_caches_go_along_so_that_the_moved_log_opens_clean() -> None:
    """No batch is walked, and the indexes and seals of sealed segments are those of the source."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 40)
    log.flush()
    source, future = MoveSource(log), ground.future()
    future.create()
    copy_all(source, future)
    future.copy_caches(no_pace)
    calls = len(ground.disk.calls)
    future.copy_caches(no_pace)
    assert len(ground.disk.calls) == calls
    source.leave_mark()
    future.finish(plan_round(source.view(), future.copied))
    skipped = {MOVED_FROM_FILE}
    assert set(ground.disk.list_directory(future.path)) - skipped == set(ground.disk.list_directory(log.directory))
    decide(source.disk, source.directory, MoveMark(MOVE_ID, B))
    place(ground.disk, ground.b.partitions_path, NAME, MOVE_ID)
    path = f"{ground.b.partitions_path}/{NAME}"
    assert PartitionLog.open(ground.disk, path, settings=SMALL, now_ms=0, identity=IDENTITY).report.clean


def test_known_damage_goes_along() -> None:
    """A quarantined range raises a data-loss error for the same offsets in the new directory."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 30)
    log.flush()
    log.close()
    ground.disk.corrupt(f"/a/partitions/{NAME}/{0:020d}.log", 150, b"\xff" * 20)
    log = ground.open(ground.a)
    while not log.damaged:
        try:
            log.read(log.log_start_offset, 10_000)
        except Exception:
            break
    damaged = log.damaged
    assert damaged
    source, future = MoveSource(log), ground.future()
    future.create()
    copy_all(source, future)
    moved = switch(ground, log, source, future)
    assert moved.damaged == damaged


def test_truncation_under_a_move_copies_the_segment_anew() -> None:
    """The segment has other batches at the same offsets, and the copy must not keep the old ones."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 24)
    log.flush()
    source, future = MoveSource(log), ground.future()
    future.create()
    copy_all(source, future)
    log.truncate_suffix(6)
    fill(log, 20, epoch=2)
    log.flush()
    values = read_values(log)
    moved = switch(ground, log, source, future)
    assert read_values(moved) == values
    assert moved.last_epoch == 2


def test_source_files_that_vanish_or_shrink_are_taken_up_by_the_next_round() -> None:
    """The view is older than the log, so its files may be missing. Only the last round must find all of them."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 20)
    log.flush()
    source, future = MoveSource(log), ground.future()
    future.create()
    old = plan_round(source.view(), future.copied)
    log.truncate_suffix(9)
    future.carry_out(old, no_pace)
    with pytest.raises(CorruptLogError, match="the move ends"):
        future.finish(old)
    copy_all(source, future)
    assert plan_round(source.view(), future.copied).copies == ()
    future.discard()
    future.discard()
    assert ground.names() == [f"/a/partitions/{NAME}"]


def test_large_segments_are_copied_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece is larger than a MiB, each waits for the rate limit, and the file is synced during the copy."""
    ground = Ground()
    path = f"/a/partitions/{NAME}"
    ground.disk.make_directory(path)
    file = ground.disk.create_file(f"{path}/{0:020d}.log")
    monkeypatch.setattr(move_future, "SYNC_BYTES", 2 * COPY_BYTES)
    size_bytes = 3 * COPY_BYTES + 5
    file.append([bytes(size_bytes)])
    future = ground.future()
    future.create()
    paced: list[int] = []
    ground.disk.calls.clear()
    future.carry_out(plan_round([view(0, size_bytes)], {}), paced.append)
    assert (max(paced), sum(paced)) == (COPY_BYTES, size_bytes)
    assert [call.operation for call in ground.disk.calls].count("sync") == 2


def test_full_target_ends_the_copy_and_leaves_the_log_alone() -> None:
    """The target's error ends the copy; the log continues, and the copy can be removed."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 20)
    log.flush()
    source, future = MoveSource(log), ground.future()
    future.create()
    ground.disk.refuse("append", FUTURE_SUFFIX, Refusal.FULL)
    with pytest.raises(DiskFullError):
        copy_all(source, future)
    future.discard()
    fill(log, 1)
    assert ground.names() == [f"/a/partitions/{NAME}"]


def test_revoked_move_leaves_the_source_as_the_log() -> None:
    """The copy already had its name. The next start removes it, whether or not the rename survived."""
    ground = Ground()
    log = ground.open(ground.a)
    fill(log, 20)
    log.flush()
    source, future = MoveSource(log), ground.future()
    future.create()
    source.leave_mark()
    future.finish(plan_round(source.view(), future.copied))
    decide(ground.disk, source.directory, MoveMark(MOVE_ID, B))
    place(ground.disk, ground.b.partitions_path, NAME, MOVE_ID)
    revoke(ground.disk, source.directory)
    fill(log, 5)
    log.flush()
    values = read_values(log)
    ground.disk.crash(Crash.LOSE_ALL, random.Random(0))
    again = Ground(ground.disk)
    again.directories.scan()
    assert again.names() == [f"/a/partitions/{NAME}"]
    assert read_values(again.open(again.a)) == values


def test_mark_that_is_not_whole_is_no_mark() -> None:
    """A mark that is torn, foreign or missing does not count."""
    disk = SimDisk()
    assert read_mark(disk, "/x") is None
    for content in (b"", b"junk\n"):
        file = disk.create_file("/x")
        file.append([content])
        assert read_mark(disk, "/x") is None
        disk.remove("/x")
    assert parse_move_directory_name(f"{'a' * 32}-99999999999.{'b' * 32}-future") is None


def test_failure_of_the_decision_is_told() -> None:
    """The disk of the source failed, so nothing may write the log."""
    ground = Ground()
    log = ground.open(ground.a)
    ground.disk.refuse("sync_directory", NAME, Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        decide(ground.disk, log.directory, MoveMark(MOVE_ID, B))


def test_open_log_builder_is_unaffected_by_marks() -> None:
    """A log opens beside the files of a move and leaves them alone."""
    disk = SimDisk()
    log = open_log(disk, "/log", replace(SMALL)).log
    decide(disk, "/log", MoveMark(MOVE_ID, B))
    log.close()
    open_log(disk, "/log").log.close()
    assert read_mark(disk, f"/log/{MOVED_TO_FILE}") == MoveMark(MOVE_ID, B)


def test_mark_with_other_lines_is_no_mark() -> None:
    """A complete text checkpoint with other lines does not count."""
    disk = SimDisk()
    for lines in (["one"], ["move_id 1", "directory_id 2"]):
        replace_file(disk, "/x", encode_lines(lines))
        assert read_mark(disk, "/x") is None


def opened(ground: Ground) -> tuple[PartitionLog, MoveSource, MoveFuture]:
    log = ground.open(ground.a)
    fill(log, 9)
    log.flush()
    future = ground.future()
    future.create()
    return log, MoveSource(log), future


def test_switch_whose_copy_does_not_open_is_taken_back() -> None:
    """The log continues where it was, and the copy can be removed."""
    ground = Ground()
    log, source, future = opened(ground)
    other = open_log(ground.disk, "/other").log

    with pytest.raises(CorruptLogError, match="the copy ends at 0, not at 9"):
        switch_log(
            source,
            future,
            ground.b,
            last=plan_round(source.view(), future.copied),
            end_offset=9,
            open_log=lambda _path: other,
        )
    give_up(future, ground.b)
    assert ground.names() == [f"/a/partitions/{NAME}"]
    assert MOVED_TO_FILE not in ground.disk.list_directory(log.directory)
    fill(log, 1)
    assert log.flush() == 10


def test_switch_that_cannot_be_taken_back_is_in_doubt() -> None:
    """The disk of the source fails in the decision."""
    ground = Ground()
    _, source, future = opened(ground)
    ground.disk.refuse("rename", MOVED_TO_FILE, Refusal.IO_ERROR)
    with pytest.raises(MoveInDoubtError, match="restart the broker"):
        switch_log(
            source,
            future,
            ground.b,
            last=plan_round(source.view(), future.copied),
            end_offset=9,
            open_log=lambda _path: ground.open(ground.b),
        )

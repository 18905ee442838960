# SPDX-License-Identifier: Apache-2.0
"""Flush groups, flush threads, closing."""

from __future__ import annotations

import queue
import random
from pathlib import Path

import pytest

from storage.errors import DiskFailedError, DiskFullError
from storage.files.posix import PosixDisk
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.log.recovery_point import SYNC_INTERVAL_FLUSHES
from storage.maintenance.flusher import GroupFlusher
from storage.testing.builders import ProducerStamp, append, open_log, read_values
from storage.testing.sim_disk import Crash, Refusal, SimDisk

DEADLINE_S = 20


def begin(log: PartitionLog) -> FlushWork:
    work = log.begin_flush()
    assert work is not None
    return work


def test_flushed_offset_moves_only_when_the_owner_takes_the_group_back(log: PartitionLog) -> None:
    """Neither making nor running a group changes the flushed offset; the next group has all later appends."""
    append(log, [b"a", b"b"])
    work = begin(log)
    append(log, [b"c"])
    assert log.begin_flush() is None
    work.run()
    assert log.flushed_offset == 0
    assert log.end_flush(work) == 2
    assert log.flushed_offset == 2
    work = begin(log)
    work.run()
    assert log.end_flush(work) == 3
    assert log.begin_flush() is None


def test_group_syncs_old_segments_before_new_ones_and_then_the_names(disk: SimDisk, log: PartitionLog) -> None:
    """Data ascending, then the leader-epoch checkpoint, then the directory."""
    for _ in range(3):
        append(log, [b"x" * 900])
    disk.calls.clear()
    begin(log).run()
    synced = [call.path.removeprefix("/data/log") for call in disk.calls if call.operation.startswith("sync")]
    assert synced == [
        f"/{0:020d}.log",
        f"/{1:020d}.log",
        f"/{2:020d}.log",
        "/leader-epoch-checkpoint.tmp",
        "",
    ]


def test_directory_is_synced_only_after_a_roll_or_a_new_epoch(disk: SimDisk, log: PartitionLog) -> None:
    """A normal group costs one sync, one after a roll two; a fully flushed segment is not synced again."""
    append(log, [b"x"])
    log.flush()
    disk.calls.clear()
    append(log, [b"x"])
    log.flush()
    assert [call.operation for call in disk.calls] == ["append", "sync", "write"]
    append(log, [b"x" * 900])
    disk.calls.clear()
    log.flush()
    assert [call.operation for call in disk.calls] == ["sync", "sync_directory", "write"]


def test_recovery_point_file_is_synced_now_and_then(disk: SimDisk, log: PartitionLog) -> None:
    """After a power failure the recovery point lags by a bounded number of groups."""
    for _ in range(2 * SYNC_INTERVAL_FLUSHES):
        append(log, [b"x"])
        log.flush()
    synced = [call for call in disk.calls if call.operation == "sync" and call.path.endswith("recovery-point")]
    assert len(synced) == 2 + 1
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    report = open_log(disk, "/data/log").report
    assert report.recovery_point is not None
    assert report.recovery_point >= SYNC_INTERVAL_FLUSHES


def test_failed_sync_fails_the_log_and_is_never_retried(disk: SimDisk, log: PartitionLog) -> None:
    """The flushed offset stays, no second fsync happens, and every later write is refused."""
    append(log, [b"a"])
    log.flush()
    append(log, [b"b"])
    work = begin(log)
    disk.refuse("sync", ".log", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        work.run()
    with pytest.raises(DiskFailedError):
        log.end_flush(work)
    assert (log.flushed_offset, log.log_end_offset) == (1, 2)
    syncs = sum(call.operation == "sync" for call in disk.calls)
    with pytest.raises(DiskFailedError):
        log.begin_flush()
    with pytest.raises(DiskFailedError):
        append(log, [b"c"])
    log.close()
    assert sum(call.operation == "sync" for call in disk.calls) == syncs
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    assert read_values(open_log(disk, "/data/log").log) == [b"a"]


def test_flush_in_the_calling_thread_reports_a_failure(disk: SimDisk, log: PartitionLog) -> None:
    """`flush` takes the group back even if it failed."""
    append(log, [b"a"])
    disk.refuse("sync", ".log", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        log.flush()
    assert log.failure is not None


def test_full_disk_for_the_epoch_checkpoint_is_no_failure(disk: SimDisk, log: PartitionLog) -> None:
    """Nothing counts as flushed, and a later group succeeds once there is space."""
    append(log, [b"a"], leader_epoch=3)
    disk.refuse("append", "leader-epoch", Refusal.FULL)
    with pytest.raises(DiskFullError):
        log.flush()
    assert (log.flushed_offset, log.failure) == (0, None)
    assert log.flush() == 1
    assert disk.exists("/data/log/leader-epoch-checkpoint")


def test_unwritable_recovery_point_fails_the_next_write(disk: SimDisk, log: PartitionLog) -> None:
    """The group itself is on stable storage, but the log is failed for good."""
    append(log, [b"a"])
    disk.refuse("write", "recovery-point", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        log.flush()
    assert log.flushed_offset == 1
    with pytest.raises(DiskFailedError):
        append(log, [b"b"])


def test_truncation_during_a_flush_caps_what_the_group_claims(disk: SimDisk, log: PartitionLog) -> None:
    """The group does not claim records that were appended at truncated offsets after it was made."""
    for number in range(4):
        append(log, [b"old-%d" % number])
    work = begin(log)
    log.truncate_suffix(2)
    for number in range(4):
        append(log, [b"new-%d" % number])
    work.run()
    assert log.end_flush(work) == 2
    assert log.flush() == 6
    disk.crash(Crash.LOSE_ALL, random.Random(0))
    assert read_values(open_log(disk, "/data/log").log) == [
        *(b"old-%d" % number for number in range(2)),
        *(b"new-%d" % number for number in range(4)),
    ]


def test_truncated_segments_stay_open_until_the_group_is_back(log: PartitionLog) -> None:
    """A descriptor is never closed under a running sync."""
    for _ in range(5):
        append(log, [b"x" * 900], leader_epoch=1)
    segments = list(log.segments)
    work = begin(log)
    log.truncate_suffix(3)
    log.truncate_suffix(1)
    assert all(segment.is_open for segment in segments)
    work.run()
    assert log.end_flush(work) == 1
    assert [segment.is_open for segment in segments] == [True, True, False, False, False]
    append(log, [b"y"], leader_epoch=2)
    log.flush()
    assert log.epoch_at(1) == 2


def test_file_of_a_group_stays_open_after_an_append_that_failed(disk: SimDisk, log: PartitionLog) -> None:
    """Its segment was truncated to what is flushed and sealed since, and other segments were read: the group may sync it yet."""
    for _ in range(6):
        append(log, [b"x" * 900])
    append(log, [b"a"])
    log.flush()
    append(log, [b"b"])
    work = begin(log)
    log.truncate_suffix(7)
    disk.refuse("append", f"{6:020d}.log", Refusal.FULL)
    with pytest.raises(DiskFullError):
        append(log, [b"c"])
    append(log, [b"x" * 900])
    for offset in range(6):
        log.read(offset, 1)
    work.run()
    assert log.end_flush(work) == 7
    assert log.flush() == 8


def test_close_during_a_flush_closes_the_files_afterwards(log: PartitionLog) -> None:
    """An unclean close leaves the files open for the running group."""
    append(log, [b"a"])
    work = begin(log)
    log.close(clean=False)
    work.run()
    assert log.end_flush(work) == 1
    assert not any(segment.is_open for segment in log.segments)


def test_clean_close_spares_the_next_open_any_walk(disk: SimDisk, log: PartitionLog) -> None:
    """After a clean close no byte of the log file is read, and producers, epochs and end are as before."""
    for number in range(10):
        append(log, [b"x"], leader_epoch=number // 5, producer=ProducerStamp(producer_id=1, base_sequence=number))
    log.close()
    opened = open_log(disk, "/data/log")
    assert opened.report.clean
    assert opened.report.scanned_bytes == 0
    assert append(opened.log, [b"x"], leader_epoch=1, producer=ProducerStamp(producer_id=1, base_sequence=9)).duplicate
    assert [opened.log.epoch_at(offset) for offset in (4, 5)] == [0, 1]
    assert opened.log.flushed_offset == opened.log.log_end_offset == 10


def test_append_after_a_clean_open_makes_the_log_unclean(disk: SimDisk, log: PartitionLog) -> None:
    """The clean mark is valid only for exactly the size that it names."""
    append(log, [b"a"])
    log.close()
    again = open_log(disk, "/data/log").log
    append(again, [b"b"])
    disk.crash(Crash.KEEP_ALL, random.Random(0))
    opened = open_log(disk, "/data/log")
    assert not opened.report.clean
    assert read_values(opened.log) == [b"a", b"b"]


def test_flusher_runs_groups_of_many_logs(tmp_path: Path) -> None:
    """Groups run in threads, one in flight for each log; owners take them back; closing finishes all submitted groups."""
    disk = PosixDisk()
    logs = [open_log(disk, str(tmp_path / f"log-{number}")).log for number in range(5)]
    done: queue.SimpleQueue[tuple[int, FlushWork, BaseException | None]] = queue.SimpleQueue()
    flusher = GroupFlusher(2)
    for round_number in range(3):
        for number, log in enumerate(logs):
            append(log, [b"x"])
            work = flusher.submit(log, lambda work, error, number=number: done.put((number, work, error)))
            assert work is not None
            assert flusher.submit(log, lambda work, error: None) is None
        for _ in logs:
            number, work, error = done.get(timeout=DEADLINE_S)
            assert error is None
            assert logs[number].end_flush(work) == round_number + 1
    for number, log in enumerate(logs):
        append(log, [b"last"])
        flusher.submit(log, lambda work, error, number=number: done.put((number, work, error)))
    flusher.close()
    flusher.close()
    for _ in logs:
        number, work, error = done.get(timeout=DEADLINE_S)
        assert error is None
        logs[number].end_flush(work)
        logs[number].close()


def test_flusher_reports_a_failed_group(disk: SimDisk, log: PartitionLog) -> None:
    """The error comes with the group, and `end_flush` raises it in the owner."""
    flusher = GroupFlusher(1)
    append(log, [b"a"])
    disk.refuse("sync", ".log", Refusal.IO_ERROR)
    done: queue.SimpleQueue[tuple[FlushWork, BaseException | None]] = queue.SimpleQueue()
    flusher.submit(log, lambda work, error: done.put((work, error)))
    work, error = done.get(timeout=DEADLINE_S)
    flusher.close()
    assert isinstance(error, DiskFailedError)
    with pytest.raises(DiskFailedError):
        log.end_flush(work)


def test_flusher_outlives_an_owner_that_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A failed report is logged, and the thread continues with other logs."""
    disk = PosixDisk()
    flusher = GroupFlusher(1)
    first, second = (open_log(disk, f"{tmp_path}/{name}").log for name in ("first", "second"))

    def gone(work: FlushWork, error: BaseException | None) -> None:
        raise RuntimeError("Event loop is closed")

    append(first, [b"a"])
    flusher.submit(first, gone)
    append(second, [b"a"])
    done: queue.SimpleQueue[FlushWork] = queue.SimpleQueue()
    flusher.submit(second, lambda work, error: done.put(work))
    assert second.end_flush(done.get(timeout=DEADLINE_S)) == 1
    flusher.close()
    assert "Event loop is closed" in caplog.text
    first.close(clean=False)
    second.close()

# SPDX-License-Identifier: Apache-2.0
"""Logs under one limit on open files: flush groups keep their descriptors, idle logs release them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage.errors import FileMissingError
from storage.files.descriptor_cache import FileBudget
from storage.files.disk import Disk
from storage.files.posix import PosixDisk
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.log.recovery_point import SYNC_INTERVAL_FLUSHES
from storage.testing.builders import SMALL, append, read_values
from storage.tests.watched_disk import WatchedDisk, disk_of_four, open_all
from storage.types import LogSettings


@pytest.fixture
def disk() -> WatchedDisk:
    """A disk with four synced files a, b, c, d that hold their names."""
    return disk_of_four()


def open_logs(disk: Disk, budget: FileBudget, count: int, settings: LogSettings = SMALL) -> list[PartitionLog]:
    return [
        PartitionLog.open(disk, f"/log-{number}", settings=settings, now_ms=0, files=budget).log
        for number in range(count)
    ]


def groups(logs: Sequence[PartitionLog]) -> list[FlushWork]:
    works = [log.begin_flush() for log in logs]
    return [work for work in works if work is not None]


def test_logs_share_one_budget(disk: WatchedDisk) -> None:
    """Once flushed, the active, sealed and checkpoint files of all logs together keep the limit."""
    budget = FileBudget(3)
    logs = open_logs(disk, budget, 4)
    assert len(disk.open_paths) <= 3
    for number, log in enumerate(logs):
        for part in range(5):
            append(log, [b"%d-%d" % (number, part) * 100])
    assert budget.open_count > 3
    for log in logs:
        log.flush()
    assert budget.open_count <= 3
    for number, log in enumerate(logs):
        assert read_values(log) == [b"%d-%d" % (number, part) * 100 for part in range(5)]
        assert budget.open_count <= 3
        append(log, [b"more"])
    for log in logs:
        log.close()
    assert (disk.open_paths, budget.open_count) == ([], 0)
    assert all(log.log_end_offset == 6 for log in open_logs(disk, budget, 4))


def test_group_in_flight_keeps_its_files(disk: WatchedDisk) -> None:
    """Whatever else is opened, the descriptors with unsynced bytes stay open, and a running group opens no file."""
    budget = FileBudget(1)
    logs = open_logs(disk, budget, 2)
    for log in logs:
        append(log, [b"x" * 900])
        append(log, [b"y" * 900])
    works = groups(logs)
    assert len(works) == 2
    held = list(disk.open_paths)
    open_all(budget, disk, "abcd")
    assert disk.open_paths == held
    for log, work in zip(logs, works, strict=True):
        work.run()
        assert log.end_flush(work) == 2
    assert budget.open_count == 1


def test_group_that_was_synced_with_the_whole_file_system_gives_its_files_free(disk: WatchedDisk) -> None:
    """Appends after the group was made do not count as synced; logs with budgets of their own share a disk."""
    budget = FileBudget(1)
    logs = [*open_logs(disk, budget, 2), PartitionLog.open(disk, "/own", settings=SMALL, now_ms=0).log]
    for log in logs:
        append(log, [b"x"])
        log.flush()
        append(log, [b"y"])
    works = groups(logs)
    append(logs[1], [b"z"])
    assert len({id(work.disk) for work in works}) == 1
    assert works[0].disk.sync_filesystem("/")
    for log, work in zip(logs, works, strict=True):
        work.note_synced()
        assert log.end_flush(work) == 2
    assert not [path for path in disk.open_paths if path.startswith("/log-0/") and path.endswith(".log")]
    assert [path for path in disk.open_paths if path.startswith("/log-1/") and path.endswith(".log")]
    assert logs[1].flush() == 3


def test_file_of_a_synced_segment_is_not_in_the_next_group(disk: WatchedDisk) -> None:
    """The truncation has synced the segment, so the next group does not open it, even if its file was removed since."""
    budget = FileBudget(1)
    (log,) = open_logs(disk, budget, 1)
    for number in range(3):
        append(log, [b"%d" % number * 900])
    log.truncate_suffix(2)
    budget.close_idle()
    (work,) = groups([log])
    log.truncate_suffix(1)
    work.run()
    assert log.end_flush(work) == 1


def test_recovery_point_hint_holds_no_descriptor(disk: WatchedDisk) -> None:
    """A slot may be lost, so the log does not wait for it; a slot that must not be lost is synced."""
    budget = FileBudget(1)
    (log,) = open_logs(disk, budget, 1)
    append(log, [b"x"])
    log.flush()
    assert log.read(0, 100).data
    assert disk.open_paths == ["/log-0/00000000000000000000.log"]


def test_recovery_point_that_cannot_be_opened_leaves_the_old_bound(disk: WatchedDisk) -> None:
    """The flush still counts, and the next opening only verifies more."""
    budget = FileBudget(1)
    (log,) = open_logs(disk, budget, 1)
    for _ in range(SYNC_INTERVAL_FLUSHES + 1):
        append(log, [b"x"])
        assert log.flush() == log.log_end_offset
        budget.close_idle()
        if disk.exists("/log-0/recovery-point"):
            disk.remove("/log-0/recovery-point")
            log._recovery_point.close()
    assert log.failure is None
    with pytest.raises(FileMissingError):
        log.close()
    assert open_logs(disk, budget, 1)[0].log_end_offset == SYNC_INTERVAL_FLUSHES + 1


def test_unclean_close_leaves_a_running_group_the_recovery_point(disk: WatchedDisk) -> None:
    """The group that also syncs the recovery point keeps its file."""
    (log,) = open_logs(disk, FileBudget(), 1)
    for _ in range(SYNC_INTERVAL_FLUSHES - 1):
        append(log, [b"x"])
        log.flush()
    append(log, [b"x"])
    (work,) = groups([log])
    log.close(clean=False)
    work.run()
    assert log.end_flush(work) == SYNC_INTERVAL_FLUSHES
    assert disk.open_paths == []


def test_owners_in_several_threads_share_one_descriptor(tmp_path: Path) -> None:
    """Logs are opened, written, flushed, read and closed in parallel; each reads exactly what it wrote."""
    disk, budget = PosixDisk(), FileBudget(1)
    failures: list[object] = []

    def own(number: int) -> None:
        try:
            written: list[bytes | None] = []
            for turn in range(4):
                log = PartitionLog.open(disk, str(tmp_path / str(number)), settings=SMALL, now_ms=0, files=budget).log
                for part in range(6):
                    value = b"%d-%d-%d" % (number, turn, part) * 30
                    append(log, [value])
                    written.append(value)
                log.flush()
                if read_values(log) != written:
                    failures.append((number, turn))
                log.close()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=own, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert budget.open_count == 0

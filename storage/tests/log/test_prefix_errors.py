# SPDX-License-Identifier: Apache-2.0
"""Errors at the head of a log: a full or failed disk, files changed from outside, a closed log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.errors import DiskFailedError, DiskFullError, LogClosedError
from storage.log.partition_log import PartitionLog
from storage.testing.builders import SMALL, append, read_values
from storage.testing.sim_disk import Refusal, SimDisk

LOG = "/data/log"


def fill(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        append(log, values(log.log_end_offset, log.log_end_offset + 2))


def values(start: int, end: int) -> list[bytes]:
    return [b"%03d" % offset * 16 for offset in range(start, end)]


def names(disk: SimDisk, suffix: str) -> list[str]:
    return [name for name in disk.list_directory(LOG) if name.endswith(suffix)]


def test_a_full_disk_before_the_log_start_is_written_changes_nothing(disk: SimDisk, log: PartitionLog) -> None:
    """The removal can be tried again."""
    fill(log, 30)
    count = log.segment_count
    disk.refuse("append", "log-start", Refusal.FULL)
    with pytest.raises(DiskFullError):
        log.truncate_prefix(20, 0)
    assert (log.log_start_offset, log.segment_count) == (0, count)
    assert log.truncate_prefix(20, 0) == 20


def test_a_full_disk_at_the_roll_leaves_the_rest_to_the_next_removal(disk: SimDisk, log: PartitionLog) -> None:
    """All sealed segments were removed by then, which frees space."""
    fill(log, 30)
    disk.refuse("create_file", f"{60:020d}.log", Refusal.FULL)
    with pytest.raises(DiskFullError):
        log.truncate_prefix(60, 0)
    assert (log.log_start_offset, log.segment_count) == (60, 1)
    assert log.apply_retention(60, 0) == 0
    assert log.truncate_prefix(60, 0) == 60
    assert log.segments.base_offset == 60


def test_a_failed_disk_fails_the_log(disk: SimDisk, log: PartitionLog) -> None:
    """A log start whose sync failed does not count, and nothing more is written; reads continue."""
    fill(log, 5)
    disk.refuse("sync", "log-start", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        log.truncate_prefix(4, 0)
    assert log.failure is not None
    assert read_values(log) == values(0, 10)
    for call in (log.truncate_prefix, log.apply_retention):
        with pytest.raises(DiskFailedError):
            call(4, 0)
    with pytest.raises(DiskFailedError):
        log.roll_if_due(0)


def test_a_closed_log_is_left_alone(log: PartitionLog) -> None:
    """Every call for the head is refused."""
    log.close()
    for call in (log.truncate_prefix, log.apply_retention):
        with pytest.raises(LogClosedError):
            call(0, 0)
    for call in (log.roll_if_due, log.remove_deleted):
        with pytest.raises(LogClosedError):
            call(0)


def test_a_file_somebody_else_took_away_is_no_problem(disk: SimDisk, log: PartitionLog) -> None:
    """The file may be missing at the rename or at the removal."""
    fill(log, 30)
    bases = [segment.base_offset for segment in log.segments]
    disk.remove(f"{LOG}/{bases[0]:020d}.index")
    log.truncate_prefix(bases[1], 0)
    assert f"{bases[0]:020d}.log.deleted" in names(disk, ".deleted")
    disk.remove(f"{LOG}/{bases[0]:020d}.log.deleted")
    assert log.remove_deleted(60_000) == 1


def test_settings_of_the_delay_hold_from_the_next_call(disk: SimDisk, log: PartitionLog) -> None:
    """`file_delete_delay_ms` is read at the removal of files, not at their renaming."""
    fill(log, 30)
    log.truncate_prefix(40, 1_000)
    assert log.remove_deleted(60_999) == 0
    log.apply_settings(replace(SMALL, file_delete_delay_ms=10))
    assert log.remove_deleted(1_009) == 0
    assert log.remove_deleted(1_010) > 0
    assert names(disk, ".deleted") == []

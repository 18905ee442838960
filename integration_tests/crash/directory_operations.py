# SPDX-License-Identifier: Apache-2.0
"""Operations on whole directories for the crash enumeration, with their laws: deletion of a partition, format of a data directory.

Laws
    A deleted partition is either whole under its name, or renamed. After the removal has returned, it never comes back.
    Nothing is deleted before its time. Repeating the operation completes it.
    A data directory is either not formatted and can be formatted, or it is formatted as intended.
"""

from __future__ import annotations

from brokerd.limits import DELETED_PARTITION_KEEP_MS
from brokerd.replica.removed_directories import RemovedDirectories
from integration_tests.crash.history import History, check_opened
from integration_tests.crash.operations import SETTINGS, LogOperation, flushed, nothing
from integration_tests.crash.stage import LOG_DIRECTORY, PARTITION_NAME, PARTITIONS, Stage, open_on
from storage.directory.data_directory import DataDirectory
from storage.testing.sim_disk import SimDisk

REMOVED_MS = 1_000
FORMATTED = "/data/formatted"
DIRECTORY_ID = bytes(range(16))


def delete_partition(stage: Stage) -> None:
    """Remove the partition's directory, wait, and delete it."""
    stage.close(clean=False)
    _removed(stage.disk, at_ms=REMOVED_MS).remove(PARTITION_NAME, is_known=True)
    stage.history.is_set_aside = True
    assert _removed(stage.disk, at_ms=REMOVED_MS + DELETED_PARTITION_KEEP_MS).delete_due() == 1


def _removed(disk: SimDisk, *, at_ms: int) -> RemovedDirectories:
    return RemovedDirectories(disk, PARTITIONS, lambda: at_ms)


def judge_deleted(disk: SimDisk, history: History) -> None:
    """Judge a disk that crashed during the deletion of a partition."""
    if PARTITION_NAME in disk.list_directory(PARTITIONS):
        assert not history.is_set_aside, "the partition is back"
        opened = open_on(disk, SETTINGS, now_ms=0)
        check_opened(opened, disk.list_directory(LOG_DIRECTORY), history, everything_kept=True)
        opened.log.close(clean=False)
    before = _removed(disk, at_ms=REMOVED_MS + DELETED_PARTITION_KEEP_MS - 1)
    assert before.delete_due() == 0, "deleted before its time"
    _removed(disk, at_ms=REMOVED_MS).remove(PARTITION_NAME, is_known=True)
    assert len(disk.list_directory(PARTITIONS)) <= 1, f"{disk.list_directory(PARTITIONS)}"
    _removed(disk, at_ms=REMOVED_MS + DELETED_PARTITION_KEEP_MS).delete_due()
    assert disk.list_directory(PARTITIONS) == [], "something is left"


def format_directory(stage: Stage) -> None:
    """Format a data directory and open it again."""
    _create(stage.disk).close()
    stage.history.is_set_aside = True
    DataDirectory.open(stage.disk, FORMATTED).close()


def _create(disk: SimDisk) -> DataDirectory:
    return DataDirectory.create(disk, FORMATTED, cluster_id="some-cluster", node_id=3, directory_id=DIRECTORY_ID)


def judge_formatted(disk: SimDisk, history: History) -> None:
    """Judge a disk that crashed during the format of a directory."""
    meta = DataDirectory.read_meta(disk, FORMATTED) if disk.exists(FORMATTED) else None
    if meta is None:
        assert not history.is_set_aside, "the directory was formatted"
        _create(disk).close()
    opened = DataDirectory.open(disk, FORMATTED, cluster_id="some-cluster", node_id=3)
    assert opened.directory_id == DIRECTORY_ID, "another directory"
    opened.close()


DIRECTORY_OPERATIONS: tuple[LogOperation, ...] = (
    LogOperation(name="partition deletion", prepare=flushed, act=delete_partition, judge=judge_deleted),
    LogOperation(name="format of a directory", prepare=nothing, act=format_directory, judge=judge_formatted),
)
"""All operations on directories. A new operation is added here."""

# SPDX-License-Identifier: Apache-2.0
"""Empties a log, which then begins anew at any offset, also below its old start; a crash leaves all of the old log, or nothing.

Order (law)
1. the mark `%020d.restart`, an empty file named by the offset, is made, and the directory synced: from here on every opening goes
   on with 2
2. everything that speaks of records goes: segments, indexes, seals, snapshots, leader epochs, damage, cleaner checkpoint; the
   directory is synced, so that nothing of it comes back once the mark is gone
3. the recovery point and the log start are set to the offset, both slots of each, and synced
4. an empty segment is made at the offset, the mark removed, the directory synced: before that nothing is appended, or a mark that
   came back would empty the log again
Steps 2 to 4 may be done again from the start as often as they are interrupted. The name is the whole mark: it has no bytes that
could be torn.

Must not: know what is kept in memory (`PartitionLog.restart_at` does). Source: docs/storage.md section 3a.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import DiskError, DiskFailedError
from storage.files.checkpoints import remove_if_exists
from storage.files.disk import Disk
from storage.files.names import (
    CLEANER_FILE,
    DAMAGE_FILE,
    EPOCH_FILE,
    LOG_START_FILE,
    parse_offset_file_name,
    parse_restart_file_name,
    restart_file_name,
)
from storage.segment.segment import Segment

from .log_start import LogStartFile
from .recovery_point import RecoveryPoint, RecoveryPointFile

_TEXT_FILES = (EPOCH_FILE, DAMAGE_FILE, CLEANER_FILE)


def restart_log(disk: Disk, directory: str, recovery_point: RecoveryPointFile, old: Segment, offset: int) -> Segment:
    """Empty a log on the disk; return the new active segment.

    Args:
        disk: the disk of the log.
        directory: its directory.
        recovery_point: its recovery point.
        old: its active segment.
        offset: where it begins anew.

    Raises:
        DiskFullError, DiskAccessError, TooManyOpenFilesError: nothing changed.
        DiskFailedError: the log can no longer be written; its next opening finishes the restart, or finds the old log.
    """
    mark_path = f"{directory}/{restart_file_name(offset)}"
    disk.create_file(mark_path).close()
    try:
        disk.sync_directory(directory)
        _clear(disk, directory, recovery_point, offset)
        active = Segment.create(
            disk, directory, old.damage, base_offset=offset, created_ms=max(old.created_ms, old.written_ms)
        )
        disk.remove(mark_path)
        disk.sync_directory(directory)
    except DiskFailedError:
        raise
    except DiskError as error:
        raise DiskFailedError(error.path, f"a restart of the log was interrupted, open it again: {error}") from error
    return active


def finish_restart(disk: Disk, directory: str, names: Sequence[str]) -> list[str] | None:
    """Finish a restart that a crash interrupted, up to a directory without a segment.

    Args:
        disk: the disk.
        directory: directory of the log.
        names: all names in the directory.

    Returns:
        The names that are there now; None: no restart was interrupted, and nothing was touched.

    Raises:
        DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError: the next opening goes on.
    """
    marked = [offset for offset in map(parse_restart_file_name, names) if offset is not None]
    if not marked:
        return None
    # A process that ended before its sync left the name in the page cache only; what goes now must not go without it.
    disk.sync_directory(directory)
    recovery_point = RecoveryPointFile.open_or_create(disk, directory)
    try:
        _clear(disk, directory, recovery_point, marked[-1])
    finally:
        recovery_point.close()
    for offset in marked:
        disk.remove(f"{directory}/{restart_file_name(offset)}")
    disk.sync_directory(directory)
    return disk.list_directory(directory)


def _clear(disk: Disk, directory: str, recovery_point: RecoveryPointFile, offset: int) -> None:
    """Carry out steps 2 and 3."""
    for name in disk.list_directory(directory):
        if name in _TEXT_FILES or parse_offset_file_name(name) is not None:
            remove_if_exists(disk, f"{directory}/{name}")
    disk.sync_directory(directory)
    recovery_point.write_synced(RecoveryPoint(flushed_offset=offset))
    if offset > 0 or disk.exists(f"{directory}/{LOG_START_FILE}"):
        # Also if it says so already: that may not be on stable storage.
        LogStartFile.read(disk, directory).write_synced(offset)

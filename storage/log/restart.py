# SPDX-License-Identifier: Apache-2.0
"""Empties a log and restarts it at any offset, also below its old start. A crash leaves the whole old log, or an empty one.

Order (law)
1. Make the mark `%020d.restart`, an empty file named by the offset, and sync the directory. From here on every opening
   continues with step 2.
2. Remove everything that describes records: segments, indexes, seals, snapshots, leader epochs, damage, cleaner
   checkpoint. Sync the directory, so that nothing of it comes back after the mark is removed.
3. Set the recovery point and the log start to the offset, both slots of each, and sync.
4. Make an empty segment at the offset, remove the mark, sync the directory. Append nothing before that, because a mark
   that came back would empty the log again.
Steps 2 to 4 can be repeated from the start after any interruption. The name is the whole mark, so no bytes of it can be
torn.

The module does not know what the log keeps in memory (`PartitionLog.restart_at` does). Source: docs/storage.md section
3a.
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
    """Empty a log on disk, and make its new active segment.

    Args:
        disk: the disk of the log.
        directory: its directory.
        recovery_point: its recovery point.
        old: its active segment.
        offset: where the log restarts.

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
        The remaining names in the directory; None: no restart was interrupted, and nothing was touched.

    Raises:
        DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError: the next opening continues.
    """
    marked = [offset for offset in map(parse_restart_file_name, names) if offset is not None]
    if not marked:
        return None
    # A process that ended before its sync left the name only in the page cache. The records must not go without the
    # mark.
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
        # Also if the file already says so, because that may not be on stable storage.
        LogStartFile.read(disk, directory).write_synced(offset)

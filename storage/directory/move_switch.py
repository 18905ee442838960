# SPDX-License-Identifier: Apache-2.0
"""The last step of a move: the copy becomes the log, or the log stays where it is.

Any thread may run it, while the owner of the log accepts only reads and everything is flushed. A failure before the
copy is open undoes the decision. If that fails too, the partition is in doubt. Then nothing may write it before a
restart has settled the move.

Source: docs/storage.md section 11.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.errors import CorruptLogError, MoveInDoubtError, StorageError
from storage.log.partition_log import PartitionLog

from .move_future import MoveFuture
from .move_marks import MoveEnd, MoveMark, decide, place, remove_directory_with_files, retire, revoke, settle
from .move_plan import CopyRound
from .move_source import MoveSource


def switch(
    source: MoveSource,
    future: MoveFuture,
    target: MoveEnd,
    *,
    last: CopyRound,
    end_offset: int,
    open_log: Callable[[str], PartitionLog],
) -> PartitionLog:
    """Make the copy the log, and return it open.

    Args:
        source: the log.
        future: its copy.
        target: the copy's end of the move.
        last: the last copy round.
        end_offset: log end offset (exclusive), all of it flushed.
        open_log: opens the log in a directory.

    Raises:
        MoveInDoubtError: it is unknown which of the two is the log; neither may be written.
        StorageError: the log stays where it was; the caller must remove the copy (`give_up`).
    """
    source.leave_mark()
    future.finish(last)
    log: PartitionLog | None = None
    try:
        decide(source.disk, source.directory, MoveMark(future.move_id, target.directory_id))
        log = open_log(place(target.disk, target.partitions_path, future.partition_name, future.move_id))
        if (log.log_end_offset, log.flushed_offset) != (end_offset, end_offset):
            raise CorruptLogError(log.directory, f"the copy ends at {log.log_end_offset}, not at {end_offset}")
        return log
    except BaseException as error:
        if log is not None:
            log.close(clean=False)
        try:
            revoke(source.disk, source.directory)
        except StorageError as second:
            raise MoveInDoubtError(source.directory, f"{error}; then {second}") from second
        raise


def clean_up(source: MoveEnd, target: MoveEnd, *, partition_name: str, move_id: bytes) -> None:
    """Remove the old log after a switch. After an error the next start removes the rest.

    Raises:
        DiskFailedError, DiskAccessError: either end.
    """
    retired = retire(source.disk, source.partitions_path, partition_name, move_id)
    settle(target.disk, f"{target.partitions_path}/{partition_name}")
    remove_directory_with_files(source.disk, retired)


def give_up(future: MoveFuture, target: MoveEnd) -> None:
    """Remove a copy that did not become the log, under its future name or the partition's name.

    Raises:
        DiskFailedError, DiskAccessError: the target; the next start removes it.
    """
    path = f"{target.partitions_path}/{future.partition_name}"
    if target.disk.exists(path):
        remove_directory_with_files(
            target.disk, retire(target.disk, target.partitions_path, future.partition_name, future.move_id)
        )
    future.discard()

# SPDX-License-Identifier: Apache-2.0
"""The last step of a move: the copy becomes the log, or the log stays what it was.

Runs in any thread while the owner of the log takes nothing but reads and everything is flushed. Whatever goes wrong before the
copy is open takes the decision back; only if that fails too is the partition in doubt, and must not be written again before a
restart has settled it.

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
    """Make the copy the log; return it, open.

    Args:
        source: the log.
        future: its copy.
        target: where the copy lies.
        last: what is left to copy.
        end_offset: log end offset (exclusive), all of it flushed.
        open_log: opens the log in a directory.

    Raises:
        MoveInDoubtError: nobody knows which of the two is the log; neither may be written.
        StorageError: the log stays where it was; what is left of the copy is to be removed.
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
    """Remove the old log after a switch. What is left after an error is removed by the next start.

    Raises:
        DiskFailedError, DiskAccessError: either end.
    """
    retired = retire(source.disk, source.partitions_path, partition_name, move_id)
    settle(target.disk, f"{target.partitions_path}/{partition_name}")
    remove_directory_with_files(source.disk, retired)


def give_up(future: MoveFuture, target: MoveEnd) -> None:
    """Remove what is left of a copy that did not become the log, whether or not it had its name already.

    Raises:
        DiskFailedError, DiskAccessError: the target; the next start does it.
    """
    path = f"{target.partitions_path}/{future.partition_name}"
    if target.disk.exists(path):
        remove_directory_with_files(
            target.disk, retire(target.disk, target.partitions_path, future.partition_name, future.move_id)
        )
    future.discard()

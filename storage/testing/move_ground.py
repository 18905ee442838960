# SPDX-License-Identifier: Apache-2.0
"""Two log directories on one simulated disk, a log in the first one, and the steps of a move to the second; for tests."""

from __future__ import annotations

from storage.directory.directories import LogDirectories, LogDirectory
from storage.directory.move_future import MoveFuture
from storage.directory.move_marks import MoveEnd, MoveMark, decide, place, remove_directory_with_files, retire, settle
from storage.directory.move_plan import plan_round
from storage.directory.move_source import MoveSource
from storage.files.names import PartitionIdentity, partition_directory_name
from storage.log.partition_log import PartitionLog
from storage.testing.builders import SMALL, ProducerStamp, append
from storage.testing.sim_disk import SimDisk

IDENTITY = PartitionIdentity(b"t" * 16, 3)
"""The partition to move."""

NAME = partition_directory_name(IDENTITY)
"""Name of its directory."""

MOVE_ID = b"m" * 16
"""Id of the move."""

A, B = b"a" * 16, b"b" * 16


def no_pace(_size_bytes: int) -> None:
    """Do not wait."""


class Ground:
    """Directories A and B on one simulated disk.

    Args:
        disk: a disk that has them; None: a new disk.
    """

    def __init__(self, disk: SimDisk | None = None) -> None:
        self.disk = disk or SimDisk()
        if disk is None:
            for path in ("/a", "/a/partitions", "/b", "/b/partitions"):
                self.disk.make_directory(path)
            for path in ("/", "/a", "/b"):
                self.disk.sync_directory(path)
        self.directories = LogDirectories(
            [LogDirectory(self.disk, "/a", directory_id=A), LogDirectory(self.disk, "/b", directory_id=B)]
        )
        self.a, self.b = (directory.move_end for directory in self.directories)

    def open(self, end: MoveEnd) -> PartitionLog:
        """Open the log in one of them."""
        path = f"{end.partitions_path}/{NAME}"
        return PartitionLog.open(self.disk, path, settings=SMALL, now_ms=0, identity=IDENTITY).log

    def future(self) -> MoveFuture:
        """Return a future replica in B that is not created yet."""
        return MoveFuture(self.a, self.b, partition_name=NAME, move_id=MOVE_ID)

    def names(self) -> list[str]:
        """Return the paths of all partition directories in both."""
        return [
            f"{end.partitions_path}/{name}"
            for end in (self.a, self.b)
            for name in self.disk.list_directory(end.partitions_path)
        ]


def copy_all(source: MoveSource, future: MoveFuture) -> None:
    """Carry out one round."""
    future.carry_out(plan_round(source.view(), future.copied), no_pace)


def switch(ground: Ground, log: PartitionLog, source: MoveSource, future: MoveFuture) -> PartitionLog:
    """Do the last step of a move; the log must be flushed."""
    source.leave_mark()
    future.finish(plan_round(source.view(), future.copied))
    decide(source.disk, source.directory, MoveMark(MOVE_ID, B))
    place(ground.disk, ground.b.partitions_path, NAME, MOVE_ID)
    moved = ground.open(ground.b)
    log.close(clean=False)
    return moved


def clean_up(ground: Ground) -> None:
    """Remove the old log."""
    retired = retire(ground.disk, ground.a.partitions_path, NAME, MOVE_ID)
    settle(ground.disk, f"{ground.b.partitions_path}/{NAME}")
    remove_directory_with_files(ground.disk, retired)


def fill(log: PartitionLog, count: int, *, epoch: int = 0) -> None:
    """Append batches of one producer, each with one record whose value contains its offset."""
    for _ in range(count):
        end = log.log_end_offset
        stamp = ProducerStamp(producer_id=7, base_sequence=end)
        append(log, [b"value %d" % end + bytes(50)], leader_epoch=epoch, producer=stamp)

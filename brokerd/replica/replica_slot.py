# SPDX-License-Identifier: Apache-2.0
"""A partition that has a replica on this broker: its log is being opened, is open, or did not open. And one that leaves."""

from __future__ import annotations

import asyncio

from brokerd.replica.replica import HostedReplica
from storage.directory.directories import LogDirectory
from storage.errors import StorageError
from storage.files.names import PartitionIdentity, partition_directory_name


class ReplicaSlot:
    """See the module docstring.

    Args:
        leaving: what sets the directory aside that an earlier replica of the partition had here; None: nothing does.

    Attributes:
        replica: the open replica.
        directory: the log directory that holds its log.
        problem: why the log could not be opened.
        is_removed: True once the replica does not belong here any more.
    """

    __slots__ = ("_leaving", "_opening", "directory", "is_removed", "problem", "replica")

    def __init__(self, leaving: asyncio.Task[None] | None = None) -> None:
        self._leaving = leaving
        self.replica: HostedReplica | None = None
        self.directory: LogDirectory | None = None
        self.problem: StorageError | None = None
        self.is_removed = False
        # Only while it is being opened: an event takes more memory than all the rest of an idle partition's slot.
        self._opening: asyncio.Event | None = asyncio.Event()

    @property
    def is_opening(self) -> bool:
        """True until the log is open, or is known not to open."""
        return self._opening is not None

    async def wait_turn(self) -> None:
        """Wait until the directory of an earlier replica is out of the way."""
        leaving, self._leaving = self._leaving, None
        if leaving is not None:
            await asyncio.wait((leaving,))

    async def wait_opened(self) -> None:
        """Wait until the log is open, or is known not to open."""
        if self._opening is not None:
            await self._opening.wait()

    def end_opening(self) -> None:
        """Wake all who wait."""
        if self._opening is not None:
            self._opening.set()
            self._opening = None


class LeavingReplicas:
    """Replicas that were removed, while their logs are closed and their directories set aside.

    One that comes again meanwhile must wait: its log would be opened in the directory that is about to go.
    """

    def __init__(self) -> None:
        self._tasks: dict[tuple[bytes, int], asyncio.Task[None]] = {}

    def note(self, topic_id: bytes, partition: int, task: asyncio.Task[None]) -> None:
        """Learn what sets the directory of a replica aside."""
        key = topic_id, partition
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._forget(key, task))

    def of(self, topic_id: bytes, partition: int) -> asyncio.Task[None] | None:
        """Return what whoever comes now has to wait for; its failure is not theirs."""
        return self._tasks.get((topic_id, partition))

    def _forget(self, key: tuple[bytes, int], task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]


def directory_name(topic_id: bytes, partition: int) -> str:
    """Name of the directory that holds the log of a replica."""
    return partition_directory_name(PartitionIdentity(topic_id, partition))

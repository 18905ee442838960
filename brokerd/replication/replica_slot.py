# SPDX-License-Identifier: Apache-2.0
"""A partition that has a replica on this broker: its log is being opened, is open, or did not open."""

from __future__ import annotations

import asyncio

from brokerd.replication.hosted_replica import HostedReplica
from storage.directories import LogDirectory
from storage.errors import StorageError


class ReplicaSlot:
    """See the module docstring.

    Attributes:
        replica: the open replica.
        directory: the log directory that holds its log.
        problem: why the log could not be opened.
        is_removed: True once the replica does not belong here any more.
    """

    __slots__ = ("_opening", "directory", "is_removed", "problem", "replica")

    def __init__(self) -> None:
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

    async def wait_opened(self) -> None:
        """Wait until the log is open, or is known not to open."""
        if self._opening is not None:
            await self._opening.wait()

    def end_opening(self) -> None:
        """Wake all who wait."""
        if self._opening is not None:
            self._opening.set()
            self._opening = None

# SPDX-License-Identifier: Apache-2.0
"""Runs steps of other threads on the logs that the event loop owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from brokerd.replica.replica import Replica
from storage.log.partition_log import PartitionLog

_Result = TypeVar("_Result")


class LogCaller:
    """One open log, as another thread calls it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replica: Replica) -> None:
        self._loop = loop
        self._replica = replica
        self.name = str(replica)

    def check_room(self, size_bytes: int) -> None:
        """Check the space for a file that frees more than it takes; any thread may call it.

        Raises:
            DiskSpaceLowError: the log directory has too little space.
        """
        self._replica.check_room(size_bytes)

    def call(self, step: Callable[[PartitionLog, int], _Result]) -> _Result:
        """Run a short step with the log and its high watermark on the event loop, and wait for it.

        Raises:
            StorageError: the error of the step; LogClosedError if the replica is closed.
        """

        async def take() -> _Result:
            # The last step of a move is short, and is not a failure of this log.
            await self._replica.wait_unlocked()
            return self._replica.run_step(step)

        return asyncio.run_coroutine_threadsafe(take(), self._loop).result()


def call_list(
    loop: asyncio.AbstractEventLoop,
    replicas: Callable[[], Iterable[Replica]],
    wanted: Callable[[Replica], bool],
) -> list[LogCaller]:
    """Return callers for the wanted open replicas; to be called from another thread than the event loop's."""

    async def list_them() -> list[LogCaller]:
        return [LogCaller(loop, replica) for replica in replicas() if wanted(replica)]

    return asyncio.run_coroutine_threadsafe(list_them(), loop).result()

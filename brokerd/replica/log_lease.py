# SPDX-License-Identifier: Apache-2.0
"""Who may work on one hosted log: its replica, or, for a while, somebody alone (a move, a cut).

Owns the lease. While the log is lent, its replica appends nothing and takes no step of background work; reads go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from brokerd.replica.log_flushing import LogFlushing
from brokerd.replica.log_front import LogFront


class LogLease:
    """See the module docstring.

    Args:
        front: its steps end before the log is lent, and none begins.
        flushing: the flush under way ends before the log is lent.
    """

    __slots__ = ("_end", "_flushing", "_front")

    def __init__(self, front: LogFront, flushing: LogFlushing) -> None:
        self._front = front
        self._flushing = flushing
        self._end: asyncio.Event | None = None

    @property
    def is_lent(self) -> bool:
        """True while somebody else works on the log."""
        return self._end is not None

    @asynccontextmanager
    async def lent(self) -> AsyncGenerator[None]:
        """Wait until nobody works on the log, and keep everybody from it until the context ends."""
        await self.wait_released()
        self._end = end = asyncio.Event()
        try:
            async with self._front.held():
                await self._flushing.wait_idle()
                yield
        finally:
            self._end = None
            end.set()

    async def wait_released(self) -> None:
        """Wait until the log is not lent."""
        while self._end is not None:
            await self._end.wait()

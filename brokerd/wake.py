# SPDX-License-Identifier: Apache-2.0
"""The cheapest way to wake one waiting task: set now, or remembered for the next wait.

One waiter at a time. Costs one future for a wait that really waits, nothing otherwise.
"""

from __future__ import annotations

import asyncio


class Wake:
    """An event that clears itself when its one waiter takes it."""

    __slots__ = ("_is_set", "_loop", "_waiter")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Wake the waiter, or let the next wait return at once."""
        waiter = self._waiter
        if waiter is None:
            self._is_set = True
        elif not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for `set`; a `set` since the last wait counts."""
        if self._is_set:
            self._is_set = False
            return
        assert self._waiter is None, "two tasks wait on one Wake"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

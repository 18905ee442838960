# SPDX-License-Identifier: Apache-2.0
"""Wakes one waiting task at the least cost. A `set` without a waiter is remembered for the next wait.

Only one task may wait. A wait that has to suspend costs one future; otherwise it costs nothing.
"""

from __future__ import annotations

import asyncio


class Wake:
    """An event that clears itself when its one waiter has seen it."""

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
        """Wait for `set`. A `set` since the last wait returns at once."""
        if self._is_set:
            self._is_set = False
            return
        assert self._waiter is None, "two tasks wait on one Wake"
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

# SPDX-License-Identifier: Apache-2.0
"""Callers that wait until the committed image has reached an offset.

Owns the waiters and their limit. Does not know the image. Everything runs on the event loop thread.
"""

from __future__ import annotations

import asyncio
from heapq import heapify, heappop, heappush
from typing import Final

MAX_OFFSET_WAITERS: Final = 10_000
"""Callers that may wait at the same time. Further ones are refused."""


class OffsetWaiters:
    """Futures of the waiting callers, in a heap by offset."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._count = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def is_full(self) -> bool:
        """True while no further caller may wait."""
        return self._waiting >= MAX_OFFSET_WAITERS

    async def wait(self, metadata_offset: int, *, timeout_ms: int) -> bool:
        """Wait until `reached` reports at least this offset (exclusive).

        Returns:
            False if the time was up, too many callers wait, or `stop` was called.
        """
        if timeout_ms <= 0 or self.is_full:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._count += 1
        self._waiting += 1
        heappush(self._heap, (metadata_offset, self._count, future))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            self._forget_given_up()

    def reached(self, metadata_offset: int) -> None:
        """Wake every caller that waits for an offset up to this one (exclusive)."""
        while self._heap and self._heap[0][0] <= metadata_offset:
            future = heappop(self._heap)[2]
            if not future.done():
                future.set_result(True)

    def stop(self) -> None:
        """Release every caller with False."""
        for _, _, future in self._heap:
            if not future.done():
                future.set_result(False)
        self._heap.clear()

    def _forget_given_up(self) -> None:
        """Bound the entries of callers that gave up by the number of waiting ones: an offset that never comes removes none."""
        if len(self._heap) > 2 * self._waiting:
            self._heap = [entry for entry in self._heap if not entry[2].done()]
            heapify(self._heap)

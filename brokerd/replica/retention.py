# SPDX-License-Identifier: Apache-2.0
"""Applies retention to every open replica, again and again; the background side of retention.

It handles one replica after the other. A step is a few system calls on the event loop; work that waits for the device
runs in a thread (`Replica.apply_retention`). After a few replicas the event loop has its turn, so that a broker with
many partitions keeps answering.
A started step always ends: `stop` waits for it, and begins no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from brokerd.clock import wall_ms
from brokerd.limits import RETENTION_CHECK_MS, RETENTION_STEPS_PER_TURN
from brokerd.replica.replica import Replica


class RetentionTask:
    """The retention task of one broker.

    Args:
        replicas: returns the open replicas.
        interval_ms: milliseconds between the end of one round and the next (`log.retention.check.interval`).
        now_ms: wall clock in milliseconds.
    """

    def __init__(
        self,
        replicas: Callable[[], Iterable[Replica]],
        *,
        interval_ms: int = RETENTION_CHECK_MS,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._replicas = replicas
        self._interval_ms = interval_ms
        self._now_ms = now_ms
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        """Start the task; the first round comes after one interval. Returns the task, which fails only because of a bug."""
        assert self._task is None, "the retention task runs already"
        self._task = asyncio.create_task(self._run(), name="retention")
        return self._task

    async def stop(self) -> None:
        """Begin no other step, and wait for the one under way. Idempotent."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def run_round(self) -> int:
        """Apply retention to every replica once; return the number of removed segments."""
        removed_count = 0
        for number, replica in enumerate(list(self._replicas()), start=1):
            if self._stopping.is_set():
                break
            removed_count += await replica.apply_retention(self._now_ms())
            if number % RETENTION_STEPS_PER_TURN == 0:
                await asyncio.sleep(0)
        return removed_count

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._stopping.wait()
            except TimeoutError:
                await self.run_round()

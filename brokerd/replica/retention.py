# SPDX-License-Identifier: Apache-2.0
"""Looks at every open replica again and again, so that old data goes; the background side of retention.

One replica after the other: a step is a few system calls on the event loop, and whatever waits for the device runs in a
thread (`Replica.apply_retention`). After a few replicas the loop gets its turn, so that a broker with many partitions goes on
answering.
A step that was begun is always ended: `stop` waits for it and begins no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from brokerd.clock import wall_ms
from brokerd.limits import RETENTION_CHECK_MS, RETENTION_STEPS_PER_TURN
from brokerd.replica.replica import Replica


class RetentionTask:
    """The task of one broker.

    Args:
        replicas: gives the replicas that are open now.
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
        """Begin; the first round comes after one interval. Returns the task, whose failure is a fault of ours."""
        assert self._task is None, "the retention task runs already"
        self._task = asyncio.create_task(self._run(), name="retention")
        return self._task

    async def stop(self) -> None:
        """Begin no other step and wait for the one under way. Idempotent."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def run_round(self) -> int:
        """Look at every replica once; return how many segments were removed."""
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

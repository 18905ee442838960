# SPDX-License-Identifier: Apache-2.0
"""Runs the cleaner of the log engine beside the event loop.

The cleaner reads and writes segments in its own thread, at its limited rate. The event loop owns the logs, so every
step on a log runs there. Such a step is short, except the swap of finished segments, which waits for three directory
syncs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.replica.log_calls import LogCaller, call_list
from brokerd.replica.replica import Replica
from storage.compaction.cleaner import Cleaner, CleanerSettings, LogReport


class LogCleaning:
    """The cleaner of one broker.

    Args:
        replicas: returns the open replicas; called on the event loop.
        settings: limits of the cleaner.
    """

    def __init__(self, replicas: Callable[[], Iterable[Replica]], *, settings: CleanerSettings) -> None:
        self._replicas = replicas
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._callers: dict[str, LogCaller] = {}
        self._cleaner = Cleaner(
            self._targets,
            settings=settings,
            wall_ms=wall_ms,
            monotonic_ms=monotonic_ms,
            wait_ms=lambda timeout_ms: self._stopping.wait(timeout_ms / 1000),
            check_room=self._check_room,
        )
        # A daemon thread: a process that is killed during a pass loses nothing.
        self._thread = threading.Thread(target=self._cleaner.run, name="lograft-cleaner", daemon=True)

    def report(self) -> dict[str, LogReport]:
        """Return the report of each log, by topic and partition."""
        return self._cleaner.report()

    def start(self) -> None:
        """Start the thread; to be called once."""
        self._thread.start()

    async def stop(self) -> None:
        """End the cleaner between two steps, and wait for its thread. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _check_room(self, name: str, size_bytes: int) -> None:
        # Compaction frees space only after it has written, so it may use the space between the limits.
        self._callers[name].check_room(size_bytes)

    def _targets(self) -> list[LogCaller]:
        callers = call_list(self._loop, self._replicas, lambda replica: replica.is_compacted and not replica.is_moving)
        self._callers = {caller.name: caller for caller in callers}
        return callers

# SPDX-License-Identifier: Apache-2.0
"""Runs the cleaner of the log engine beside the event loop.

The cleaner reads and writes segments in a thread of its own, at its limited rate; every step on a log goes through the event
loop, which owns the logs. Such a step is short, but for the swap of finished segments, which waits for three
directory syncs.
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
        replicas: gives the replicas that are open now; called on the event loop.
        settings: how the cleaner works.
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
        # A daemon: a process that is killed in the middle of a pass loses nothing by it.
        self._thread = threading.Thread(target=self._cleaner.run, name="lograft-cleaner", daemon=True)

    def report(self) -> dict[str, LogReport]:
        """Return what there is to say about each log, by topic and partition."""
        return self._cleaner.report()

    def start(self) -> None:
        """Begin; to be called once."""
        self._thread.start()

    async def stop(self) -> None:
        """End between two steps, and wait for it. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def _check_room(self, name: str, size_bytes: int) -> None:
        # Compaction frees space, but only after it has written: it may use what lies between the limits.
        self._callers[name].check_room(size_bytes)

    def _targets(self) -> list[LogCaller]:
        callers = call_list(self._loop, self._replicas, lambda replica: replica.is_compacted and not replica.is_moving)
        self._callers = {caller.name: caller for caller in callers}
        return callers

# SPDX-License-Identifier: Apache-2.0
"""Scrubs the sealed segments of all logs again and again, at a limited rate, beside the event loop.

A thread of its own reads and checks. Choosing the next segment and handling damage are short steps on the event loop,
which owns the logs. A log that cannot be checked is reported and tried again in the next round; the others continue.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.replica.log_calls import LogCaller, call_list
from brokerd.replica.replica import Replica
from storage.files.rate_limit import RateLimit, WorkStopped
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import LogScrub, ScrubOutcome, ScrubWork

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubSettings:
    """Settings of the scrub.

    Attributes:
        bytes_per_s: most bytes read in a second, on average.
        interval_ms: time from the last check until a segment is due; after a start all are due.
        idle_ms: pause between two rounds over all logs.
    """

    bytes_per_s: int = 16 * 1024 * 1024
    interval_ms: int = 7 * 24 * 3600 * 1000
    idle_ms: int = 60_000

    def __post_init__(self) -> None:
        assert self.bytes_per_s >= 1, f"bytes_per_s {self.bytes_per_s}"
        assert self.interval_ms >= 1, f"interval_ms {self.interval_ms}"
        assert self.idle_ms >= 1, f"idle_ms {self.idle_ms}"


class LogScrubbing:
    """The scrub of one broker.

    Args:
        replicas: returns the open replicas; called on the event loop.
        settings: its settings.
    """

    def __init__(self, replicas: Callable[[], Iterable[Replica]], *, settings: ScrubSettings) -> None:
        self._replicas = replicas
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._rate = RateLimit(settings.bytes_per_s, now_ms=monotonic_ms, wait_ms=self._wait)
        # Each log and the owner's side of its scrub, by name; only logs with sealed segments are here.
        self._scrubs: dict[str, tuple[PartitionLog, LogScrub]] = {}
        # A daemon thread: nothing is lost if the process ends during a check.
        self._thread = threading.Thread(target=self._run, name="lograft-scrub", daemon=True)

    def start(self) -> None:
        """Start the thread; to be called once. The first round comes after one pause."""
        self._thread.start()

    async def stop(self) -> None:
        """End within one step of at most 1 MiB, and wait for the thread. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def run_round(self) -> int:
        """Check every due segment; return the number of segments read to their end. Not for the event loop's thread.

        Raises:
            WorkStopped: the work must end.
        """
        # Most logs have no sealed segment. They are left out here, because each call into the event loop wakes two threads.
        targets = call_list(self._loop, self._replicas, lambda replica: replica.log.segment_count > 1)
        names = {target.name for target in targets}
        self._scrubs = {name: scrub for name, scrub in self._scrubs.items() if name in names}
        return sum(map(self._scrub_log, targets))

    def _wait(self, timeout_ms: int) -> bool:
        return self._stopping.wait(timeout_ms / 1000)

    def _run(self) -> None:
        while not self._wait(self._settings.idle_ms):
            try:
                self.run_round()
            except WorkStopped:
                return
            except Exception:
                # A bug in one place must not end the scrub of all logs.
                logger.exception("action=scrub problem=round")

    def _scrub_log(self, target: LogCaller) -> int:
        checked = 0
        try:
            while (work := target.call(lambda log, _: self._begin(target.name, log))) is not None:
                work.run(self._rate)
                if self._stopping.is_set():
                    raise WorkStopped
                self._end(target, work)
                checked += work.result is not None
        except WorkStopped:
            raise
        except Exception as error:
            logger.error("log=%s action=scrub error=%r", target.name, str(error))
            self._scrubs.pop(target.name, None)
        return checked

    def _begin(self, name: str, log: PartitionLog) -> ScrubWork | None:
        known, scrub = self._scrubs.get(name, (None, None))
        if scrub is None or known is not log:
            # The log is new or was opened again: after a move, or because the replica left this broker and came back.
            scrub = LogScrub(log)
            self._scrubs[name] = log, scrub
        return scrub.begin(flushed_offset=log.flushed_offset, now_ms=wall_ms(), interval_ms=self._settings.interval_ms)

    def _end(self, target: LogCaller, work: ScrubWork) -> None:
        known, scrub = self._scrubs[target.name]

        def end(log: PartitionLog, _high_watermark: int) -> ScrubOutcome | None:
            is_same = log is known
            return scrub.end(work, flushed_offset=log.flushed_offset, now_ms=wall_ms()) if is_same else None

        outcome = target.call(end)
        if outcome is None:
            # The log was opened again in the meantime; the result says nothing about its present files.
            return
        for damaged in outcome.damaged:
            logger.error(
                "log=%s action=quarantine base_offset=%d end_offset=%d",
                target.name,
                damaged.base_offset,
                damaged.end_offset,
            )
        if work.error is not None:
            logger.error("log=%s action=scrub error=%r", target.name, str(work.error))

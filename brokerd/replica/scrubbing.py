# SPDX-License-Identifier: Apache-2.0
"""Checks the sealed segments of all logs again and again, at a limited rate, beside the event loop.

Reading and checking happen in a thread of its own; which segment is next, and what is done about damage, is a short step on
the event loop, which owns the logs. A log that cannot be checked is reported and tried again in the next round; the
others go on.
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
    """How sealed segments are checked.

    Attributes:
        bytes_per_s: most bytes read in a second, on average.
        interval_ms: a segment is due so long after its last check, and after a start.
        idle_ms: pause between two looks at all logs.
    """

    bytes_per_s: int = 16 * 1024 * 1024
    interval_ms: int = 7 * 24 * 3600 * 1000
    idle_ms: int = 60_000

    def __post_init__(self) -> None:
        assert self.bytes_per_s >= 1, f"bytes_per_s {self.bytes_per_s}"
        assert self.interval_ms >= 1, f"interval_ms {self.interval_ms}"
        assert self.idle_ms >= 1, f"idle_ms {self.idle_ms}"


class LogScrubbing:
    """The checks of one broker.

    Args:
        replicas: gives the replicas that are open now; called on the event loop.
        settings: how to work.
    """

    def __init__(self, replicas: Callable[[], Iterable[Replica]], *, settings: ScrubSettings) -> None:
        self._replicas = replicas
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._rate = RateLimit(settings.bytes_per_s, now_ms=monotonic_ms, wait_ms=self._wait)
        # What each log remembers of its checks, and where it lies; only logs with sealed segments are here.
        self._scrubs: dict[str, tuple[str, LogScrub]] = {}
        # A daemon: nothing is lost when the process ends in the middle of a check.
        self._thread = threading.Thread(target=self._run, name="lograft-scrub", daemon=True)

    def start(self) -> None:
        """Begin; to be called once. The first look comes after one pause."""
        self._thread.start()

    async def stop(self) -> None:
        """End within one step of at most 1 MiB, and wait for it. Idempotent."""
        self._stopping.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)

    def run_round(self) -> int:
        """Check every segment that is due; return how many were read to their end. Not on the event loop's thread.

        Raises:
            WorkStopped: it was told to end.
        """
        targets = call_list(self._loop, self._replicas, lambda _: True)
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
                # A fault of ours in one place must not end the checks of all logs.
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
        if log.segment_count == 1:
            # Nothing is sealed; most logs are like this, and cost no memory here.
            return None
        directory, scrub = self._scrubs.get(name, (None, None))
        if scrub is None or directory != log.directory:
            # New, or moved to another log directory.
            scrub = LogScrub(log)
            self._scrubs[name] = log.directory, scrub
        return scrub.begin(flushed_offset=log.flushed_offset, now_ms=wall_ms(), interval_ms=self._settings.interval_ms)

    def _end(self, target: LogCaller, work: ScrubWork) -> None:
        directory, scrub = self._scrubs[target.name]

        def end(log: PartitionLog, _high_watermark: int) -> ScrubOutcome | None:
            is_there = log.directory == directory
            return scrub.end(work, flushed_offset=log.flushed_offset, now_ms=wall_ms()) if is_there else None

        outcome = target.call(end)
        if outcome is None:
            # The log was moved meanwhile: the work says nothing about where it is now.
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

# SPDX-License-Identifier: Apache-2.0
"""The background cleaner: compacts the logs of a server that are due, one after the other.

Design
    One thread runs `Cleaner.run`. It looks at all logs, chooses the most urgent one (`plan`), makes one pass (`pass_`),
    and looks again. The owner of a log does every step that touches it (`CleanerTarget.call`). The cleaner's thread
    reads and writes segments, within the rate limit.

Laws
    The cleaner reports a log that fails and leaves it alone for 1 s, then twice as long each time, up to 5 min. It
    continues with the others. No exception of a log or its owner ends the cleaner.
    It ends only when `wait_ms` says so, between two steps of at most 1 MiB or one batch.

Source: docs/storage.md section 6; Kafka, LogCleaner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from storage.errors import FileMissingError
from storage.files.rate_limit import RateLimit, WorkStopped
from storage.log.partition_log import PartitionLog

from .key_map import KEY_MEMORY_BYTES
from .owner import LogCompaction
from .pass_ import CompactionPass, PassOutcome, PassTask
from .plan import CompactionRange, find_range, most_urgent

FIRST_BACK_OFF_MS = 1_000
"""Backoff of a log after its first failure, in milliseconds."""

MAX_BACK_OFF_MS = 5 * 60 * 1_000
"""Longest backoff of a log, in milliseconds."""

MIN_KEY_MAP_BYTES = MAX_RECORDS_PER_BATCH * KEY_MEMORY_BYTES
"""Smallest memory of the key map: one batch must fit."""

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class CleanerTarget(Protocol):
    """A log that the cleaner reaches through its owner."""

    @property
    def name(self) -> str:
        """Unique name of the log for reports: topic and partition."""
        ...

    def call(self, step: Callable[[PartitionLog, int], _Result]) -> _Result:
        """Run a step as the owner of the log; wait for it, and return its result or raise its error.

        The step gets the log and its high watermark (exclusive), at or beyond which it touches nothing. It may wait for
        the device.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """Limits of the cleaner.

    Attributes:
        bytes_per_s: most bytes read and written in a second, on average.
        key_map_bytes: most memory of the key map, at least `MIN_KEY_MAP_BYTES`.
        idle_ms: pause before the next look when no log was due.
    """

    bytes_per_s: int = 64 * 1024 * 1024
    key_map_bytes: int = 128 * 1024 * 1024
    idle_ms: int = 15_000

    def __post_init__(self) -> None:
        assert self.bytes_per_s >= 1, f"bytes_per_s {self.bytes_per_s}"
        assert self.key_map_bytes >= MIN_KEY_MAP_BYTES, f"key_map_bytes {self.key_map_bytes}"
        assert self.idle_ms >= 1, f"idle_ms {self.idle_ms}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """What the cleaner reports about one log.

    Attributes:
        pass_count: completed passes since the start.
        stale_count: passes that ended early because the log changed.
        read_count: records read by all passes.
        kept_count: those of `read_count` that stayed.
        failure_count: failures since the last completed pass.
        error: the last failure; None after a completed pass.
        retry_at_ms: time of the next attempt, by the monotonic clock; None: no backoff.
    """

    pass_count: int = 0
    stale_count: int = 0
    read_count: int = 0
    kept_count: int = 0
    failure_count: int = 0
    error: str | None = None
    retry_at_ms: int | None = None


class Cleaner:
    """Compacts the logs of a server in one thread; the module docstring has its laws.

    Args:
        targets: returns the logs of the server, before each look. Logs without the setting `compact` are ignored.
        settings: its limits.
        wall_ms: wall clock in milliseconds since 1970, for lags and tombstones.
        monotonic_ms: monotonic clock in milliseconds, for the rate limit and backoff.
        wait_ms: waits this many milliseconds (0: not at all) and returns True if the cleaner must end.
        check_room: called with the name of a log and the most bytes that the pass is about to write for it. It raises
            if there is no room. That counts as a failure of the log, which backs off.
    """

    def __init__(
        self,
        targets: Callable[[], Iterable[CleanerTarget]],
        *,
        settings: CleanerSettings,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        wait_ms: Callable[[int], bool],
        check_room: Callable[[str, int], None] = lambda _name, _size_bytes: None,
    ) -> None:
        self._targets = targets
        self._check_room = check_room
        self._settings = settings
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._wait_ms = wait_ms
        self._rate = RateLimit(settings.bytes_per_s, now_ms=monotonic_ms, wait_ms=wait_ms)
        self._reports: dict[str, LogReport] = {}
        # What the cleaner knows about the segments of each compacted log; only steps of the owners use it.
        self._sides: dict[str, LogCompaction] = {}

    def report(self) -> dict[str, LogReport]:
        """Return a copy of the reports, by name; any thread may call it."""
        return dict(self._reports)

    def run(self) -> None:
        """Compact until `wait_ms` says to end."""
        while True:
            try:
                made_pass = self.run_once()
            except WorkStopped:
                return
            except Exception:
                # Listing the logs failed. That is a bug elsewhere, and must not end compaction for all logs.
                logger.exception("action=compact problem=list-of-logs")
                made_pass = False
            if self._wait_ms(0 if made_pass else self._pause_ms()):
                return

    def _pause_ms(self) -> int:
        """Return the pause in milliseconds when no log is due: at most until the first retry."""
        retries_ms = [report.retry_at_ms for report in self._reports.values() if report.retry_at_ms is not None]
        first_ms = min(retries_ms, default=self._monotonic_ms() + self._settings.idle_ms) - self._monotonic_ms()
        return max(1, min(first_ms, self._settings.idle_ms))

    def run_once(self) -> bool:
        """Look at all logs, and make one pass over the most urgent one.

        Returns:
            True if the next look may follow at once: the pass completed, or it failed while another log is due.

        Raises:
            WorkStopped: the cleaner must end.
        """
        targets = {target.name: target for target in self._targets()}
        self._reports = {name: report for name, report in self._reports.items() if name in targets}
        self._sides = {name: side for name, side in self._sides.items() if name in targets}
        due: dict[str, CompactionRange] = {}
        for name, target in targets.items():
            if not self._is_backing_off(name):
                self._guard(name, lambda name=name, target=target: self._look(name, target, due))
        chosen = most_urgent(due.items())
        if chosen is None:
            return False
        ended_well = self._guard(chosen, lambda: self._compact(chosen, targets[chosen], due[chosen]))
        return ended_well or (len(due) > 1 and self._is_backing_off(chosen))

    def _is_backing_off(self, name: str) -> bool:
        report = self._reports.get(name)
        return report is not None and report.retry_at_ms is not None and self._monotonic_ms() < report.retry_at_ms

    def _guard(self, name: str, work: Callable[[], bool]) -> bool:
        """Do some work on one log; note a failure, which ends only the turn of this log."""
        try:
            return work()
        except WorkStopped:
            raise
        except Exception as error:
            self._note_failure(name, error)
            return False

    def _look(self, name: str, target: CleanerTarget, due: dict[str, CompactionRange]) -> bool:
        found = target.call(lambda log, high_watermark: self._range_of(name, log, high_watermark))
        if found is not None:
            due[name] = found
        return found is not None

    def _range_of(self, name: str, log: PartitionLog, high_watermark: int) -> CompactionRange | None:
        if not log.settings.compact:
            # Most logs are like this one, and cost no memory here.
            self._sides.pop(name, None)
            return None
        side = self._side(name, log)
        rules = side.rules
        return None if rules is None else find_range(side.facts(high_watermark), rules, self._wall_ms())

    def _side(self, name: str, log: PartitionLog) -> LogCompaction:
        """Return the owner's side of a log's compaction; only a step of the owner may call this."""
        side = self._sides.get(name)
        if side is None or side.log is not log:
            # The log is new, was opened again, or moved to another log directory.
            side = self._sides[name] = LogCompaction(log)
        return side

    def _compact(self, name: str, target: CleanerTarget, chosen: CompactionRange) -> bool:
        """Make one pass; False if the log changed under it."""
        now_ms = self._wall_ms()
        max_keys = self._settings.key_map_bytes // KEY_MEMORY_BYTES

        def begin(log: PartitionLog, high_watermark: int) -> tuple[PassTask, CompactionPass]:
            task = self._side(name, log).begin(chosen, now_ms=now_ms, max_keys=max_keys)
            return task, CompactionPass(log.disk, task, self._rate.take)

        task, work = target.call(begin)
        reading = task.sealed
        try:
            work.build()
            for reading in work.groups():
                # The result is not larger than its sources. The originals stay for a while after the swap.
                self._check_room(name, sum(segment.size_bytes for segment in reading))
                cleaned = work.clean(reading)
                if cleaned is not None and not target.call(
                    lambda log, _, cleaned=cleaned: log.swap(cleaned, now_ms=self._wall_ms())
                ):
                    return self._note_stale(name)
        except FileMissingError:
            # Retention, DeleteRecords or a truncation removed the segment before this thread opened its file.
            if target.call(lambda log, _, reading=reading: self._side(name, log).holds(reading)):
                raise
            return self._note_stale(name)
        outcome = work.outcome()
        target.call(lambda log, _: self._side(name, log).end(outcome))
        self._note_pass(name, task, outcome)
        return True

    def _report_of(self, name: str) -> LogReport:
        return self._reports.get(name, LogReport())

    def _note(self, name: str, **changes: object) -> None:
        # A new dictionary, because `report` may be copying the old one in another thread.
        self._reports = {**self._reports, name: replace(self._report_of(name), **changes)}

    def _note_stale(self, name: str) -> bool:
        """Note that the log changed under a pass; return False for an incomplete pass."""
        self._note(name, stale_count=self._report_of(name).stale_count + 1)
        return False

    def _note_pass(self, name: str, task: PassTask, outcome: PassOutcome) -> None:
        report = self._report_of(name)
        self._note(
            name,
            pass_count=report.pass_count + 1,
            read_count=report.read_count + outcome.read_count,
            kept_count=report.kept_count + outcome.kept_count,
            failure_count=0,
            error=None,
            retry_at_ms=None,
        )
        logger.info(
            "log=%s action=compacted from=%d to=%d records=%d kept=%d",
            name,
            task.dirty_offset,
            outcome.dirty_offset,
            outcome.read_count,
            outcome.kept_count,
        )

    def _note_failure(self, name: str, error: Exception) -> None:
        failure_count = self._report_of(name).failure_count + 1
        back_off_ms = back_off_of(failure_count)
        self._note(
            name,
            failure_count=failure_count,
            error=f"{type(error).__name__}: {error}",
            retry_at_ms=self._monotonic_ms() + back_off_ms,
        )
        logger.error(
            "log=%s action=compact failures=%d retry_after_ms=%d error=%r", name, failure_count, back_off_ms, str(error)
        )


def back_off_of(failure_count: int) -> int:
    """Return the backoff in milliseconds after this many failures in a row (1 or more)."""
    # The exponent is bounded, because failures may continue for years.
    return min(MAX_BACK_OFF_MS, FIRST_BACK_OFF_MS << min(failure_count - 1, 16))

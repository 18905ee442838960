# SPDX-License-Identifier: Apache-2.0
"""The background cleaner: compacts, one after the other, the logs of a server that are due.

Theory
    `Cleaner.run` belongs to one thread. It looks at all logs, takes the most urgent one (`plan`), makes one pass (`pass_`), and
    looks again. What touches a log happens in that log's owner (`CleanerTarget.call`); reading and writing of segments happens
    here, at the pace that the rate limit gives.

Laws
    A log that fails is reported and left alone for 1 s, then twice as long each time, up to 5 min; the others go on. Whatever a
    log, or its owner, raises, the cleaner does not die of it.
    It ends only when `wait_ms` says so, between two steps of at most 1 MiB, or one batch.

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
"""Milliseconds that a log is left alone after its first failure."""

MAX_BACK_OFF_MS = 5 * 60 * 1_000
"""Most milliseconds that a log is left alone after one more failure."""

MIN_KEY_MAP_BYTES = MAX_RECORDS_PER_BATCH * KEY_MEMORY_BYTES
"""Least memory of the key map: one batch must fit."""

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class CleanerTarget(Protocol):
    """One log, behind its owner."""

    @property
    def name(self) -> str:
        """Topic and partition, for reports; unique."""
        ...

    def call(self, step: Callable[[PartitionLog, int], _Result]) -> _Result:
        """Run a step as the owner of the log, wait for it, and return or raise what it does.

        The step gets the log and its high watermark (exclusive): nothing at or beyond it is touched. It may wait for the
        device.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerSettings:
    """How the cleaner works.

    Attributes:
        bytes_per_s: most bytes read and written in a second, on average.
        key_map_bytes: most memory of the key map, at least `MIN_KEY_MAP_BYTES`.
        idle_ms: how long to wait before looking again when nothing was due.
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
    """What the cleaner has to say about one log.

    Attributes:
        pass_count: passes that ended well since the start.
        stale_count: passes that ended early because the log changed under them.
        read_count: records read by all passes.
        kept_count: of these, records that stayed.
        failure_count: failures since the last pass that ended well.
        error: the last of them; None after a pass that ended well.
        retry_at_ms: when it is tried again, by the monotonic clock; None: it is not backing off.
    """

    pass_count: int = 0
    stale_count: int = 0
    read_count: int = 0
    kept_count: int = 0
    failure_count: int = 0
    error: str | None = None
    retry_at_ms: int | None = None


class Cleaner:
    """See the module docstring.

    Args:
        targets: returns the logs of the server; asked before each look. Logs whose settings do not say `compact` are passed over.
        settings: how to work.
        wall_ms: wall clock in milliseconds since 1970: for lags and tombstones.
        monotonic_ms: a clock in milliseconds that never goes back: for the rate limit and back-off.
        wait_ms: waits so many milliseconds (0: not at all) and returns True if the cleaner shall end.
        check_room: called with the name of a log before up to so many bytes are written for it; raises if there is no room:
            that ends the log's turn as any failure does, and it is tried again after its back-off.
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
        # What was read of the segments of each log that is compacted; used in steps of the logs' owners only.
        self._sides: dict[str, LogCompaction] = {}

    def report(self) -> dict[str, LogReport]:
        """Return a copy of what there is to say, by name; may be called from any thread."""
        return dict(self._reports)

    def run(self) -> None:
        """Work until `wait_ms` says to end."""
        while True:
            try:
                made_pass = self.run_once()
            except WorkStopped:
                return
            except Exception:
                # Listing the logs failed: a bug elsewhere, which must not end compaction for all of them.
                logger.exception("action=compact problem=list-of-logs")
                made_pass = False
            if self._wait_ms(0 if made_pass else self._pause_ms()):
                return

    def _pause_ms(self) -> int:
        """Return how long to wait when nothing is due: not longer than until the first retry."""
        retries_ms = [report.retry_at_ms for report in self._reports.values() if report.retry_at_ms is not None]
        first_ms = min(retries_ms, default=self._monotonic_ms() + self._settings.idle_ms) - self._monotonic_ms()
        return max(1, min(first_ms, self._settings.idle_ms))

    def run_once(self) -> bool:
        """Look at all logs and make one pass over the most urgent one.

        Returns:
            True if the next look may follow at once: a pass ended well, or failed while another log is due.

        Raises:
            WorkStopped: the cleaner shall end.
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
        """Do something about one log; a failure is noted, and is the end of that log's turn only."""
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
            # Most logs are like this, and cost no memory here.
            self._sides.pop(name, None)
            return None
        side = self._side(name, log)
        rules = side.rules
        return None if rules is None else find_range(side.facts(high_watermark), rules, self._wall_ms())

    def _side(self, name: str, log: PartitionLog) -> LogCompaction:
        """Return the owner's side of a log's compaction; a step of the owner."""
        side = self._sides.get(name)
        if side is None or side.log is not log:
            # New, opened again, or moved to another log directory.
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
                # What it becomes is not more; the originals stay a while after the swap.
                self._check_room(name, sum(segment.size_bytes for segment in reading))
                cleaned = work.clean(reading)
                if cleaned is not None and not target.call(
                    lambda log, _, cleaned=cleaned: log.swap(cleaned, now_ms=self._wall_ms())
                ):
                    return self._note_stale(name)
        except FileMissingError:
            # Retention, DeleteRecords or a truncation took the segment before this thread had opened its file.
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
        # A new dictionary: `report` may copy the old one in another thread at this moment.
        self._reports = {**self._reports, name: replace(self._report_of(name), **changes)}

    def _note_stale(self, name: str) -> bool:
        """Note that the log changed under a pass; return False, as the pass did not end well."""
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
    """Return how many milliseconds a log is left alone after so many failures in a row, 1 or more."""
    # The exponent is bounded: failures may go on for years.
    return min(MAX_BACK_OFF_MS, FIRST_BACK_OFF_MS << min(failure_count - 1, 16))

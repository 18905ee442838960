# SPDX-License-Identifier: Apache-2.0
"""Maintenance of a log in the calling thread: compaction passes and scrubs. Owns nothing."""

from __future__ import annotations

import time

from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass
from storage.compaction.plan import find_range
from storage.files.rate_limit import RateLimit
from storage.log.partition_log import PartitionLog
from storage.maintenance.scrub import LogScrub

SCRUB_BYTES_PER_S = 2**40
"""Practically no limit: the load is the point."""


def begin_pass(log: PartitionLog, *, now_ms: int) -> CompactionPass:
    """Begin a pass of a log that is due. Its high watermark is its flushed offset.

    Args:
        log: the log.
        now_ms: the clock of the pass in milliseconds.
    """
    rules = LogCompaction(log).rules
    assert rules is not None, "the log is not compacted"
    chosen = find_range(LogCompaction(log).facts(log.log_end_offset), rules, now_ms)
    assert chosen is not None, "nothing is due"
    task = LogCompaction(log).begin(chosen, now_ms=now_ms, max_keys=MAX_RECORDS_PER_BATCH)
    return CompactionPass(log.disk, task, lambda _: None)


def compact_once(log: PartitionLog, *, now_ms: int) -> None:
    """Run one whole pass with its swaps."""
    work = begin_pass(log, now_ms=now_ms)
    work.build()
    for group in work.groups():
        cleaned = work.clean(group)
        if cleaned is not None:
            assert log.swap(cleaned, now_ms=now_ms), "the log changed"
    LogCompaction(log).end(work.outcome())


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def scrub_once(scrub: LogScrub, log: PartitionLog, *, now_ms: int, interval_ms: int) -> str | None:
    """Scrub the segment that is due, if any, and apply the result. Return the problem; None if there is none.

    Args:
        scrub: the log's scrub.
        log: the log.
        now_ms: the owner's clock in milliseconds.
        interval_ms: milliseconds after its last check at which a segment is due.
    """
    work = scrub.begin(flushed_offset=log.flushed_offset, now_ms=now_ms, interval_ms=interval_ms)
    if work is None:
        return None
    work.run(RateLimit(SCRUB_BYTES_PER_S, now_ms=_monotonic_ms, wait_ms=lambda _: False))
    if work.error is not None:
        return f"a scrub cannot read: {work.error}"
    outcome = scrub.end(work, flushed_offset=log.flushed_offset, now_ms=now_ms)
    return f"a scrub invents damage: {outcome.damaged}" if outcome.damaged else None


def scrub_all(log: PartitionLog, *, now_ms: int) -> None:
    """Scrub every sealed segment once. Damaged ranges are quarantined, other segments get a seal."""
    scrub = LogScrub(log)
    for _ in range(log.segment_count - 1):
        scrub_once(scrub, log, now_ms=now_ms, interval_ms=1)

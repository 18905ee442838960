# SPDX-License-Identifier: Apache-2.0
"""One compaction pass in the calling thread. Owns nothing."""

from __future__ import annotations

from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from storage.compaction.owner import LogCompaction
from storage.compaction.pass_ import CompactionPass
from storage.compaction.plan import find_range
from storage.log.partition_log import PartitionLog


def begin_pass(log: PartitionLog, *, now_ms: int) -> CompactionPass:
    """Begin a pass of a log that is due; everything flushed is below its high watermark.

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
    """Make one whole pass with its swaps."""
    work = begin_pass(log, now_ms=now_ms)
    work.build()
    for group in work.groups():
        cleaned = work.clean(group)
        if cleaned is not None:
            assert log.swap(cleaned, now_ms=now_ms), "the log changed"
    LogCompaction(log).end(work.outcome())

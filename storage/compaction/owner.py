# SPDX-License-Identifier: Apache-2.0
"""Owner side of the compaction of one log: what it is like, the task of a pass, and each swap.

Theory
    `facts` -> (`plan.find_range` decides) -> `begin` gives the task of a `CompactionPass`, which works in another thread ->
    `swap` each group that it wrote -> `end`. Every call here is short, but `swap`, which syncs the directory three times.
    Appends, retention and truncation go on in between; a group whose sources changed meanwhile is thrown away, and so is a
    pass under which the log was restarted. One pass of a log is under way at a time.
    All that is written is written by the log (`PartitionLog.swap`, `note_compacted`); what is remembered here is what was read of
    its segments, so that the cleaner looks at each index once.

Belongs to the owner of the log. Source: docs/storage.md section 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from storage.log.partition_log import PartitionLog
from storage.log.swap import CleanedGroup
from storage.segment.segment import Segment
from storage.types import SegmentFacts

from .pass_ import PassOutcome, PassTask
from .plan import CompactionRange, CompactionRules, LogFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownFacts:
    """What was found out about a segment while it was of this size."""

    segment: Segment
    facts: SegmentFacts


class LogCompaction:
    """See the module docstring.

    Attributes:
        log: the log.
    """

    __slots__ = ("_facts", "log")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._facts: dict[int, _KnownFacts] = {}

    @property
    def rules(self) -> CompactionRules | None:
        """When the log is due, as its settings say; None: it is not compacted."""
        settings = self.log.settings
        if not settings.compact:
            return None
        return CompactionRules(
            min_compaction_lag_ms=settings.min_compaction_lag_ms,
            max_compaction_lag_ms=settings.max_compaction_lag_ms,
            min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        )

    def facts(self, high_watermark: int) -> LogFacts:
        """Return what the plan needs to know. Reads the index of each new sealed segment once.

        Args:
            high_watermark: nothing at or beyond it is touched (exclusive). What is not flushed, or
                not below the first open transaction, is not touched either.

        Raises:
            DiskFailedError, LogClosedError: nothing can be compacted.
            DiskReadError, CorruptLogError: a segment cannot be read.
        """
        log = self.log
        log.check_writable()
        return LogFacts(
            sealed=self._sealed(),
            dirty_offset=log.dirty_offset,
            stable_end_offset=log.producers.last_stable_offset(min(high_watermark, log.flushed_offset)),
            next_horizon_ms=log.next_horizon_ms,
        )

    def begin(self, chosen: CompactionRange, *, now_ms: int, max_keys: int) -> PassTask:
        """Describe the log to a pass over the range that was chosen.

        Args:
            chosen: the range.
            now_ms: wall clock in milliseconds since 1970.
            max_keys: most keys of the key map.

        Raises:
            DiskFailedError, LogClosedError, DiskReadError, CorruptLogError: as `facts`.
        """
        log = self.log
        log.check_writable()
        settings, producers = log.settings, log.producers
        map_offset, dirty_offset = log.clean_offsets
        aborted = producers.transactions.aborted_between(0, chosen.end_offset) if producers.has_transactions else ()
        return PassTask(
            directory=log.directory,
            sealed=tuple(each for each in self._sealed() if each.end_offset <= chosen.end_offset),
            map_offset=map_offset,
            dirty_offset=dirty_offset,
            end_offset=chosen.end_offset,
            aborted=tuple(aborted),
            memory_offsets=self._memory_offsets(),
            known_producers=self._known_producers(),
            next_horizon_ms=log.next_horizon_ms,
            now_ms=now_ms,
            delete_retention_ms=settings.delete_retention_ms,
            segment_bytes=settings.segment_bytes,
            interval_bytes=settings.index_interval_bytes,
            max_keys=max_keys,
            restart_count=log.restart_count,
        )

    def _memory_offsets(self) -> frozenset[int]:
        """Return the base offsets of the batches in all idempotence windows, those that a power failure brings back included."""
        return frozenset(
            batch.base_offset
            for each in self.log.possible_producers()
            for _, state in each.states()
            for batch in state.batches()
        )

    def _known_producers(self) -> frozenset[int]:
        """Return the ids of all producers, those that a power failure brings back included; none without a transaction."""
        if not self.log.producers.has_transactions:
            return frozenset()
        return frozenset(producer_id for each in self.log.possible_producers() for producer_id, _ in each.states())

    def holds(self, segments: Iterable[SegmentFacts]) -> bool:
        """Tell whether the log still has these sealed segments, as a pass that is under way was told of them."""
        count = self.log.restart_count
        held = {(each.base_offset, each.end_offset, each.size_bytes, count) for each in self.log.segments}
        return all(
            (each.base_offset, each.end_offset, each.size_bytes, each.restart_count) in held for each in segments
        )

    def swap(self, cleaned: CleanedGroup, *, now_ms: int) -> bool:
        """Put a group in the place of its sources; see `PartitionLog.swap`. If it answers False, the pass must end."""
        return self.log.swap(cleaned, now_ms=now_ms)

    def end(self, outcome: PassOutcome) -> None:
        """Note what a pass did, after its last swap.

        Raises:
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        self.log.note_compacted(
            map_offset=outcome.map_offset,
            dirty_offset=outcome.dirty_offset,
            next_horizon_ms=outcome.next_horizon_ms,
            restart_count=outcome.restart_count,
        )

    def _sealed(self) -> tuple[SegmentFacts, ...]:
        facts = self._facts = {segment.base_offset: self._facts_of(segment) for segment in self.log.segments.sealed()}
        return tuple(replace(known.facts, is_damaged=bool(known.segment.damages())) for known in facts.values())

    def _facts_of(self, segment: Segment) -> _KnownFacts:
        """Return what is known of a sealed segment; its index is read once."""
        known = self._facts.get(segment.base_offset)
        if known is not None and known.segment is segment and known.facts.size_bytes == segment.size_bytes:
            return known
        index = self.log.load_index(segment)
        facts = SegmentFacts(
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            # A filler has no time of its own: 0.
            first_timestamp_ms=index.first_timestamp_ms or index.max_timestamp_ms or None,
            max_timestamp_ms=index.max_timestamp_ms or 0,
            restart_count=self.log.restart_count,
        )
        return _KnownFacts(segment=segment, facts=facts)

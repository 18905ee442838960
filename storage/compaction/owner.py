# SPDX-License-Identifier: Apache-2.0
"""The owner's side of the compaction of one log: its facts, the task of a pass, and each swap.

Design
    `facts` -> (`plan.find_range` decides) -> `begin` makes the task of a `CompactionPass`, which runs in another thread
    -> `swap` for each group that it wrote -> `end`. Every call is short, except `swap`, which syncs the directory three
    times. In between, appends, retention and truncation continue. A group whose sources have changed is thrown away. So
    is a pass under which the log restarted. One pass of a log is under way at a time.
    Only the log writes (`PartitionLog.swap`, `note_compacted`). This module remembers what it read of the segments, so
    that the cleaner reads each index once.

State: the owner of the log writes it. Source: docs/storage.md section 6.
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
    """Facts about a segment, valid while it has this size."""

    segment: Segment
    facts: SegmentFacts


class LogCompaction:
    """The owner's side of one log; the module docstring has the order of calls.

    Attributes:
        log: the log.
    """

    __slots__ = ("_facts", "log")

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self._facts: dict[int, _KnownFacts] = {}

    @property
    def rules(self) -> CompactionRules | None:
        """The settings that decide when the log is due; None: it is not compacted."""
        settings = self.log.settings
        if not settings.compact:
            return None
        return CompactionRules(
            min_compaction_lag_ms=settings.min_compaction_lag_ms,
            max_compaction_lag_ms=settings.max_compaction_lag_ms,
            min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        )

    def facts(self, high_watermark: int) -> LogFacts:
        """Return the facts for the plan. Reads the index of each new sealed segment once.

        Args:
            high_watermark: compaction touches nothing at or beyond it (exclusive), nothing unflushed, and nothing at or
                beyond the first open transaction.

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
        """Make the task of a pass over the chosen range.

        Args:
            chosen: the range.
            now_ms: wall clock in milliseconds since 1970.
            max_keys: most keys of the key map.

        Raises:
            DiskFailedError, LogClosedError, DiskReadError, CorruptLogError: as in `facts`.
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
            sealed_version=log.sealed_version,
        )

    def _memory_offsets(self) -> frozenset[int]:
        """Return the base offsets of all batches in the producer state, including those that a power failure would restore."""
        return frozenset(
            batch.base_offset
            for each in self.log.possible_producers()
            for _, state in each.states()
            for batch in state.batches()
        )

    def _known_producers(self) -> frozenset[int]:
        """Return the ids of all producers, including those that a power failure would restore; none if there was no transaction."""
        if not self.log.producers.has_transactions:
            return frozenset()
        return frozenset(producer_id for each in self.log.possible_producers() for producer_id, _ in each.states())

    def holds(self, segments: Iterable[SegmentFacts]) -> bool:
        """Tell whether the log still has these sealed segments, as they were described to a pass under way."""
        version = self.log.sealed_version
        held = {(each.base_offset, each.end_offset, each.size_bytes, version) for each in self.log.segments}
        return all(
            (each.base_offset, each.end_offset, each.size_bytes, each.sealed_version) in held for each in segments
        )

    def swap(self, cleaned: CleanedGroup, *, now_ms: int) -> bool:
        """Replace the sources of a group (`PartitionLog.swap`). If it returns False, the pass must end."""
        return self.log.swap(cleaned, now_ms=now_ms)

    def end(self, outcome: PassOutcome) -> None:
        """Save the result of a pass, after its last swap.

        Raises:
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        self.log.note_compacted(
            map_offset=outcome.map_offset,
            dirty_offset=outcome.dirty_offset,
            next_horizon_ms=outcome.next_horizon_ms,
            sealed_version=outcome.sealed_version,
        )

    def _sealed(self) -> tuple[SegmentFacts, ...]:
        facts = self._facts = {segment.base_offset: self._facts_of(segment) for segment in self.log.segments.sealed()}
        return tuple(replace(known.facts, is_damaged=bool(known.segment.damages())) for known in facts.values())

    def _facts_of(self, segment: Segment) -> _KnownFacts:
        """Return the facts of a sealed segment; its index is read once."""
        known = self._facts.get(segment.base_offset)
        version = self.log.sealed_version
        if known is not None and known.segment is segment and known.facts.sealed_version == version:
            return known
        index = self.log.load_index(segment)
        facts = SegmentFacts(
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            # A filler has no timestamp of its own: 0.
            first_timestamp_ms=index.first_timestamp_ms or index.max_timestamp_ms or None,
            max_timestamp_ms=index.max_timestamp_ms or 0,
            sealed_version=version,
        )
        return _KnownFacts(segment=segment, facts=facts)

# SPDX-License-Identifier: Apache-2.0
"""Chooses the next log to compact, its range, and its groups of segments. Pure.

Laws
    Compaction touches only sealed segments wholly below `stable_end_offset` (flushed, at or below the high watermark,
    before the first open transaction). Records that may still be truncated must not replace anything.
    The range ends before the first segment with a record younger than `min_compaction_lag_ms`.
    A group is one or more neighbouring segments without damage that fit into one segment file.

Source: docs/storage.md section 6; Kafka, LogCleanerManager.grabFilthiestCompactedLog and Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from lograft.wire.filler import MAX_FILLER_OFFSETS

from storage.types import SegmentFacts

MAX_GROUP_OFFSETS = MAX_FILLER_OFFSETS
"""Most offsets of one group: an index entry holds the distance to the base offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFacts:
    """Facts about one log for the plan.

    Attributes:
        sealed: its sealed segments, ascending.
        dirty_offset: everything below it was compacted (exclusive).
        stable_end_offset: compaction touches nothing at or beyond it (exclusive).
        next_horizon_ms: earliest time when a tombstone or an end of a transaction below `dirty_offset` may be removed;
            None: none waits.
    """

    sealed: Sequence[SegmentFacts]
    dirty_offset: int
    stable_end_offset: int
    next_horizon_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """The configuration of the topic; `LogSettings` describes the fields."""

    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float


class Urgency(IntEnum):
    """Why a log is due; the cleaner takes the largest value first."""

    TOMBSTONES = 1
    DIRTY = 2
    OVERDUE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRange:
    """A due log and its range.

    Attributes:
        dirty_offset: start of the dirty part, inclusive.
        end_offset: end of the dirty part, exclusive; all segments below it are compacted.
        dirty_ratio: dirty bytes / all bytes below `end_offset`, 0 to 1.
        urgency: why the log is due.
    """

    dirty_offset: int
    end_offset: int
    dirty_ratio: float
    urgency: Urgency


def find_range(facts: LogFacts, rules: CompactionRules, now_ms: int) -> CompactionRange | None:
    """Return the range of a log that is due for compaction; None: the log is not due.

    Args:
        facts: the log.
        rules: its topic's configuration.
        now_ms: wall clock in milliseconds since 1970.
    """
    cleanable: list[SegmentFacts] = []
    for segment in facts.sealed:
        if segment.end_offset > facts.stable_end_offset:
            break
        if now_ms - segment.max_timestamp_ms < rules.min_compaction_lag_ms:
            break
        cleanable.append(segment)
    if not cleanable:
        return None
    dirty = [segment for segment in cleanable if segment.end_offset > facts.dirty_offset]
    dirty_bytes = sum(segment.size_bytes for segment in dirty)
    dirty_ratio = dirty_bytes / max(1, sum(segment.size_bytes for segment in cleanable))
    urgency = _urgency(facts, rules, dirty, dirty_ratio, now_ms)
    if urgency is None:
        return None
    return CompactionRange(
        dirty_offset=max(facts.dirty_offset, cleanable[0].base_offset),
        end_offset=cleanable[-1].end_offset,
        dirty_ratio=dirty_ratio,
        urgency=urgency,
    )


def _urgency(
    facts: LogFacts, rules: CompactionRules, dirty: Sequence[SegmentFacts], dirty_ratio: float, now_ms: int
) -> Urgency | None:
    oldest_ms = min((each.first_timestamp_ms for each in dirty if each.first_timestamp_ms is not None), default=now_ms)
    if now_ms - oldest_ms > rules.max_compaction_lag_ms:
        return Urgency.OVERDUE
    if dirty and dirty_ratio > rules.min_cleanable_dirty_ratio:
        return Urgency.DIRTY
    if facts.next_horizon_ms is not None and now_ms >= facts.next_horizon_ms:
        return Urgency.TOMBSTONES
    return None


def most_urgent(due: Iterable[tuple[str, CompactionRange]]) -> str | None:
    """Return the name of the log to compact first: by urgency, then by dirty share, then by name."""
    ordered = sorted(due, key=lambda item: (-item[1].urgency, -item[1].dirty_ratio, item[0]))
    return ordered[0][0] if ordered else None


def group_segments(
    sealed: Sequence[SegmentFacts], *, end_offset: int, segment_bytes: int
) -> list[tuple[SegmentFacts, ...]]:
    """Return the groups of a pass, ascending; each becomes one segment.

    Args:
        sealed: sealed segments, ascending.
        end_offset: segments that begin at or beyond it are left alone (exclusive).
        segment_bytes: largest size of a group of several segments, before compaction.
    """
    groups: list[tuple[SegmentFacts, ...]] = []
    group: list[SegmentFacts] = []
    for segment in sealed:
        if segment.base_offset >= end_offset:
            break
        if group and (segment.is_damaged or not _fits(group, segment, segment_bytes)):
            groups.append(tuple(group))
            group = []
        if not segment.is_damaged:
            group.append(segment)
    if group:
        groups.append(tuple(group))
    return groups


def _fits(group: Sequence[SegmentFacts], segment: SegmentFacts, segment_bytes: int) -> bool:
    group_bytes = sum(each.size_bytes for each in group) + segment.size_bytes
    return group_bytes <= segment_bytes and segment.end_offset - group[0].base_offset <= MAX_GROUP_OFFSETS


def first_damage(sealed: Iterable[SegmentFacts]) -> int | None:
    """Return the base offset of the first damaged segment, behind which an older record may be left; None: no damage."""
    return next((segment.base_offset for segment in sealed if segment.is_damaged), None)

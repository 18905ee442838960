# SPDX-License-Identifier: Apache-2.0
"""The choice of log, range and groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.compaction.plan import (
    MAX_GROUP_OFFSETS,
    CompactionRange,
    CompactionRules,
    LogFacts,
    Urgency,
    find_range,
    first_damage,
    group_segments,
    most_urgent,
)
from storage.types import SegmentFacts

RULES = CompactionRules(min_compaction_lag_ms=0, max_compaction_lag_ms=10**15, min_cleanable_dirty_ratio=0.5)


def segment(number: int, *, size_bytes: int = 100, at_ms: int = 0, is_damaged: bool = False) -> SegmentFacts:
    """Ten offsets from 10 * number on, written around a time."""
    return SegmentFacts(
        base_offset=10 * number,
        end_offset=10 * number + 10,
        size_bytes=size_bytes,
        first_timestamp_ms=at_ms,
        max_timestamp_ms=at_ms + 5,
        is_damaged=is_damaged,
    )


def log_of(*segments: SegmentFacts, dirty_offset: int = 0, stable_end_offset: int = 10**6) -> LogFacts:
    return LogFacts(sealed=segments, dirty_offset=dirty_offset, stable_end_offset=stable_end_offset)


FOUR = log_of(*map(segment, range(4)))


def test_a_log_that_was_never_compacted_is_all_dirty() -> None:
    """The range is every sealed segment."""
    assert find_range(FOUR, RULES, 100) == CompactionRange(
        dirty_offset=0, end_offset=40, dirty_ratio=1.0, urgency=Urgency.DIRTY
    )


@pytest.mark.parametrize(("dirty_offset", "is_due"), [(10, True), (20, False), (30, False), (40, False), (19, True)])
def test_the_dirty_share_must_exceed_the_ratio(dirty_offset: int, is_due: bool) -> None:
    """A share equal to the ratio is not enough; a segment that was compacted in part counts as dirty."""
    found = find_range(replace(FOUR, dirty_offset=dirty_offset), RULES, 100)
    assert (found is not None) == is_due
    if found is not None:
        assert (found.dirty_offset, found.end_offset, found.dirty_ratio) == (dirty_offset, 40, 0.75)


def test_with_a_ratio_of_zero_anything_dirty_is_due() -> None:
    """But a log with nothing dirty is not."""
    rules = replace(RULES, min_cleanable_dirty_ratio=0.0)
    assert find_range(replace(FOUR, dirty_offset=30), rules, 100) is not None
    assert find_range(replace(FOUR, dirty_offset=40), rules, 100) is None


def test_nothing_sealed_nothing_to_do() -> None:
    """The facts exclude the active segment, so a log of one segment is never due."""
    assert find_range(log_of(), RULES, 100) is None


@pytest.mark.parametrize(("stable_end_offset", "end_offset"), [(40, 40), (39, 30), (10, 10), (9, None), (0, None)])
def test_only_segments_wholly_below_the_stable_end_are_touched(stable_end_offset: int, end_offset: int | None) -> None:
    """Records that are unflushed, uncommitted or in an open transaction may still change."""
    found = find_range(replace(FOUR, stable_end_offset=stable_end_offset), RULES, 100)
    assert (found.end_offset if found else None) == end_offset


def test_the_range_ends_before_the_first_young_record() -> None:
    """The largest timestamp decides whether a segment is young; older segments behind it wait."""
    rules = replace(RULES, min_compaction_lag_ms=50)
    facts = log_of(segment(0), segment(1, at_ms=60), segment(2))
    found = find_range(facts, rules, 100)
    assert found is not None
    assert found.end_offset == 10
    found = find_range(facts, rules, 115)
    assert found is not None
    assert found.end_offset == 30
    assert find_range(facts, rules, 54) is None


def test_an_old_dirty_record_makes_a_log_overdue() -> None:
    """The dirty share does not matter; old records that were compacted do not count."""
    rules = replace(RULES, max_compaction_lag_ms=50, min_cleanable_dirty_ratio=0.99)
    facts = log_of(segment(0, size_bytes=10**6), segment(1, at_ms=100), dirty_offset=10)
    assert find_range(facts, rules, 150) is None
    found = find_range(facts, rules, 151)
    assert found is not None
    assert found.urgency is Urgency.OVERDUE


def test_a_tombstone_past_its_horizon_makes_a_log_due() -> None:
    """This also holds without a dirty record; the range is then clean, and empty for the key map."""
    facts = replace(FOUR, dirty_offset=40, next_horizon_ms=100)
    assert find_range(facts, RULES, 99) is None
    assert find_range(facts, RULES, 100) == CompactionRange(
        dirty_offset=40, end_offset=40, dirty_ratio=0.0, urgency=Urgency.TOMBSTONES
    )


def test_a_dirty_offset_below_the_log_start_begins_at_the_first_segment() -> None:
    """Retention has removed the dirty part."""
    found = find_range(log_of(segment(5), segment(6), dirty_offset=20), RULES, 100)
    assert found is not None
    assert found.dirty_offset == 50


def test_the_most_urgent_log_is_chosen() -> None:
    """Overdue before dirty before tombstones; then by dirty share; then by name, so that the choice is repeatable."""
    some = CompactionRange(dirty_offset=0, end_offset=10, dirty_ratio=0.6, urgency=Urgency.DIRTY)
    due = {
        "b": some,
        "a": some,
        "dirtier": replace(some, dirty_ratio=0.7),
        "overdue": replace(some, dirty_ratio=0.1, urgency=Urgency.OVERDUE),
        "tombstones": replace(some, dirty_ratio=0.0, urgency=Urgency.TOMBSTONES),
    }
    order = []
    while due:
        name = most_urgent(due.items())
        assert name is not None
        order.append(name)
        del due[name]
    assert order == ["overdue", "dirtier", "a", "b", "tombstones"]
    assert most_urgent([]) is None


def test_groups_fit_a_segment() -> None:
    """Neighbours are joined while they fit; a larger segment forms its own group."""
    sealed = [segment(0), segment(1), segment(2, size_bytes=500), segment(3), segment(4)]
    groups = group_segments(sealed, end_offset=45, segment_bytes=200)
    assert [[each.base_offset for each in group] for group in groups] == [[0, 10], [20], [30, 40]]
    groups = group_segments(sealed, end_offset=40, segment_bytes=10**6)
    assert [[each.base_offset for each in group] for group in groups] == [[0, 10, 20, 30]]
    assert group_segments(sealed, end_offset=0, segment_bytes=200) == []


def test_a_damaged_segment_is_left_alone() -> None:
    """No group contains it or reaches over it, and its base offset is known."""
    sealed = [segment(0), segment(1, is_damaged=True), segment(2), segment(3, is_damaged=True)]
    groups = group_segments(sealed, end_offset=40, segment_bytes=10**6)
    assert [[each.base_offset for each in group] for group in groups] == [[0], [20]]
    assert first_damage(sealed) == 10
    assert first_damage(sealed[:1]) is None


def test_a_group_spans_no_more_offsets_than_an_index_holds() -> None:
    """Fillers make huge spans possible."""
    first = replace(segment(0), end_offset=MAX_GROUP_OFFSETS - 10)
    second = replace(first, base_offset=first.end_offset, end_offset=first.end_offset + 10)
    third = replace(first, base_offset=second.end_offset, end_offset=second.end_offset + 1)
    groups = group_segments([first, second, third], end_offset=2**40, segment_bytes=10**6)
    assert [len(group) for group in groups] == [2, 1]

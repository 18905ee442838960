# SPDX-License-Identifier: Apache-2.0
"""Decides which segments of a log retention removes, by age and size. Pure.

docs/storage.md section 4 has the rules. The search begins with the oldest segment and ends at the first one that is not
due, so a log never gets a gap. The active segment comes last, and only its age makes it due.
Source: Kafka, UnifiedLog.deleteOldSegments (which does not limit timestamps in the future).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class SegmentExtent(NamedTuple):
    """What retention needs of a segment: its end offset (exclusive), and the size of its log file."""

    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionView:
    """A log at one moment, and its limits.

    Attributes:
        log_start_offset: first readable offset (inclusive).
        high_watermark: retention removes nothing at or beyond it (exclusive).
        log_bytes: bytes of all segments, including the active one.
        now_ms: the caller's clock in milliseconds.
        retention_ms: segments with only older records are due; None: age is no reason.
        retention_bytes: the log keeps at least this many bytes; None: size is no reason.
    """

    log_start_offset: int
    high_watermark: int
    log_bytes: int
    now_ms: int
    retention_ms: int | None
    retention_bytes: int | None


def count_due(segments: Sequence[SegmentExtent], newest_ms: Callable[[int], int], view: RetentionView) -> int:
    """Return how many segments are due, counted from the oldest.

    Args:
        segments: all segments, ascending; the last one is active.
        newest_ms: returns the time of the newest record of the segment with this index (`newest_record_ms`); called
            only where it decides.
        view: the log and its limits.
    """
    left_bytes = view.log_bytes
    for place, segment in enumerate(segments):
        left_bytes -= segment.size_bytes
        if segment.end_offset > view.high_watermark:
            return place
        is_active = place == len(segments) - 1
        if is_active and segment.size_bytes == 0:
            return place
        is_below_start = not is_active and segment.end_offset <= view.log_start_offset
        is_spare = not is_active and view.retention_bytes is not None and left_bytes >= view.retention_bytes
        if not (is_below_start or is_spare or _is_old(newest_ms, place, view)):
            return place
    return len(segments)


def _is_old(newest_ms: Callable[[int], int], place: int, view: RetentionView) -> bool:
    return view.retention_ms is not None and view.now_ms - newest_ms(place) > view.retention_ms


def newest_record_ms(max_timestamp_ms: int | None, written_ms: int) -> int:
    """Return the time of a segment's newest record, at most the clock when it was written.

    Args:
        max_timestamp_ms: largest timestamp of its records; None or negative if they have none.
        written_ms: the clock when the segment was last written, or a later time.
    """
    if max_timestamp_ms is None or max_timestamp_ms < 0:
        return written_ms
    # A record from the future must not keep its segment for ever.
    return min(max_timestamp_ms, written_ms)


def must_roll(active: SegmentExtent, *, created_ms: int, now_ms: int, retention_ms: int | None) -> bool:
    """Tell whether to roll the active segment, so that later records do not keep its oldest ones alive.

    Args:
        active: the active segment.
        created_ms: the clock when it was created; by the clock, no record in it is older.
        now_ms: the caller's clock in milliseconds.
        retention_ms: age from which records are due; None: age is no reason.
    """
    return retention_ms is not None and active.size_bytes > 0 and now_ms - created_ms > retention_ms

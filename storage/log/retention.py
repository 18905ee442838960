# SPDX-License-Identifier: Apache-2.0
"""Which segments of a log are old enough, or too many, and go. Pure.

Rules: docs/storage.md section 4. Segments are asked about from the oldest on, and the first one that is not due ends the search: a
log never gets a hole. The active one comes last, and goes because of its age only.
Source: Kafka, UnifiedLog.deleteOldSegments (which has no bound on records from the future).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class SegmentExtent(NamedTuple):
    """What retention knows of a segment: where it ends (exclusive), and the bytes of its log file."""

    end_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionView:
    """A log at one moment, and what is to be kept of it.

    Attributes:
        log_start_offset: first readable offset (inclusive).
        high_watermark: end of what may go (exclusive).
        log_bytes: bytes of all segments, the active one included.
        now_ms: the caller's clock in milliseconds.
        retention_ms: what is older than this goes; None: nothing goes because of its age.
        retention_bytes: the log keeps at least so many bytes; None: nothing goes because of the size.
    """

    log_start_offset: int
    high_watermark: int
    log_bytes: int
    now_ms: int
    retention_ms: int | None
    retention_bytes: int | None


def count_due(segments: Sequence[SegmentExtent], newest_ms: Callable[[int], int], view: RetentionView) -> int:
    """Return how many segments go, counted from the oldest.

    Args:
        segments: all segments, ascending; the last one is active.
        newest_ms: gives the age of a segment by its place, see `newest_record_ms`; asked only where it decides.
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
    """Return how new a segment's newest record is, by the clock.

    Args:
        max_timestamp_ms: largest timestamp of its records; None or negative if they have none.
        written_ms: the clock when the segment was last written, or a later moment.
    """
    if max_timestamp_ms is None or max_timestamp_ms < 0:
        return written_ms
    # A record from the future must not keep its segment for ever.
    return min(max_timestamp_ms, written_ms)


def must_roll(active: SegmentExtent, *, created_ms: int, now_ms: int, retention_ms: int | None) -> bool:
    """Tell whether the active segment is rolled so that its oldest records can go; later ones would keep them with it.

    Args:
        active: the active segment.
        created_ms: the clock when it was created: no record in it is older by the clock.
        now_ms: the caller's clock in milliseconds.
        retention_ms: what is older than this goes; None: nothing because of its age.
    """
    return retention_ms is not None and active.size_bytes > 0 and now_ms - created_ms > retention_ms

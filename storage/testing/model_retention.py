# SPDX-License-Identifier: Apache-2.0
"""Judges retention by bytes and clock alone: what it may remove of a list of batches, and what it must. Pure.

A segment is as new as its newest record, but not newer than the clock at its last write. So each of its batches, and
everything behind it in the segment, is at least as old as that. Source: docs/storage.md section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from storage.testing.model_batch import ModelBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """The limits of retention; see `LogSettings`.

    Attributes:
        high_watermark: nothing beyond it may be removed (exclusive).
        first_base: base offset of the first segment, which may begin below the log start.
        active_base: base offset of the active segment, which is removed as a whole or not at all.
        now_ms: the clock in milliseconds.
        retention_ms: older records may be removed; None: age is no reason.
        retention_bytes: at least this many bytes stay; None: size is no reason.
    """

    high_watermark: int
    first_base: int
    active_base: int
    now_ms: int
    retention_ms: int | None
    retention_bytes: int | None


def removable_ends(batches: list[ModelBatch], rule: RetentionRule) -> list[int]:
    """Return all log starts that retention may set, ascending; the present one is legal too."""
    ends: list[int] = []
    for count, batch in enumerate(batches, start=1):
        if batch.header.next_offset > rule.high_watermark:
            break
        if rule.active_base < batch.header.next_offset and count < len(batches):
            continue
        if _may_go(batches, count, rule):
            ends.append(batch.header.next_offset)
    return ends


def _may_go(batches: list[ModelBatch], count: int, rule: RetentionRule) -> bool:
    """Tell whether the first `count` batches may be removed."""
    removed = batches[:count]
    left_bytes = sum(len(batch.data) for batch in batches[count:])
    if rule.retention_bytes is not None and left_bytes >= rule.retention_bytes:
        return True
    if rule.retention_ms is None:
        return False
    # Backwards: the clock at the last write of the segment is that of this batch or a later one.
    written_ms = list(accumulate((batch.appended_ms for batch in reversed(removed)), min))[::-1]
    after_bytes = list(accumulate((len(batch.data) for batch in reversed(batches)), initial=0))[::-1][1:]
    return all(
        rule.now_ms - min(batch.header.max_timestamp_ms, latest_ms) > rule.retention_ms
        or (rule.retention_bytes is not None and after_bytes[at] >= rule.retention_bytes)
        for at, (batch, latest_ms) in enumerate(zip(removed, written_ms, strict=True))
    )


def is_too_old(batches: list[ModelBatch], rule: RetentionRule) -> bool:
    """Tell whether the log still has records although all of it is below the high watermark and too old by its timestamps.

    The answer is False if its first segment begins below the log start: a record there, which the model has forgotten, may be newer.
    """
    retention_ms = rule.retention_ms
    if retention_ms is None or not batches or rule.high_watermark < batches[-1].header.next_offset:
        return False
    if rule.first_base < batches[0].header.base_offset:
        return False
    newest_ms = max(batch.header.max_timestamp_ms for batch in batches)
    return min(batch.header.max_timestamp_ms for batch in batches) >= 0 and rule.now_ms - newest_ms > retention_ms


def is_too_large(batches: list[ModelBatch], rule: RetentionRule, *, segment_bytes: int) -> bool:
    """Tell whether the log still has one sealed segment too many, although all of it is below the high watermark."""
    if rule.retention_bytes is None or not batches or rule.high_watermark < batches[-1].header.next_offset:
        return False
    largest_bytes = max(segment_bytes, *(len(batch.data) for batch in batches))
    return sum(len(batch.data) for batch in batches) >= rule.retention_bytes + 2 * largest_bytes

# SPDX-License-Identifier: Apache-2.0
"""Drops the tail of a log, in an order that no crash can turn into old records behind new ones.

Order (law):
1. the recovery point is lowered, a clean mark taken off, and that synced: from here on a crash leaves a log that
   recovery walks from the cut
2. files of later segments, and snapshots that reach beyond the cut, are removed, last first; the directory is synced
3. the segment that holds the cut is truncated and synced
4. damage beyond the cut is forgotten, epochs and producers go back, in memory; their files follow with the next flush
A crash before the end may leave the old tail, or part of it, as a legal log; after the end nothing of it can come back.
Source: ALICE rule 7 (sync between truncate and append); Kafka, UnifiedLog.truncateTo.
"""

from __future__ import annotations

from storage.files.checkpoints import remove_if_exists
from storage.files.disk import Disk
from storage.segment.scan import BadBatch
from storage.segment.segment import Segment
from storage.types import Boundary

from .recovery import LogParts
from .recovery_caches import restore_producers
from .recovery_point import RecoveryPoint

MAX_LOOKUPS = 2
"""Searches for the cut; the second one knows the damage that stopped the first."""


def truncate_suffix(
    disk: Disk, directory: str, parts: LogParts, *, to_offset: int, flushed_offset: int, interval_bytes: int
) -> list[Segment]:
    """Drop every batch that reaches beyond `to_offset` (exclusive), which is inside the log.

    If the log start lies inside the batch with the cut, the log begins again, empty, at its log start.

    Returns:
        The segments taken out; the caller closes their files once no flush uses them.

    Raises:
        DiskFailedError: the disk is failed for good.
        DiskFullError: before anything was dropped.
    """
    segments = parts.segments
    end = find_cut(parts, to_offset, interval_bytes)
    point = parts.recovery_point.point
    # A clean mark would stand again once the file has its old size, before that is synced.
    has_clean_mark = point is not None and point.clean_end is not None
    if end.offset < flushed_offset or has_clean_mark:
        # Never up: what a removal of the front only calls flushed, below the log start, was not synced.
        known_offset = flushed_offset if point is None else min(flushed_offset, point.flushed_offset)
        parts.recovery_point.write_synced(RecoveryPoint(flushed_offset=min(end.offset, known_offset)))
    dropped: list[Segment] = []
    while segments.active.base_offset > end.offset:
        dropped.append(segments.pop())
    for segment in dropped:
        for path in segment.file_names():
            remove_if_exists(disk, path)
    names_changed = parts.snapshots.remove_above(end.offset) or bool(dropped)
    active = segments.active
    for path in active.file_names()[:-1]:
        # The indexes of a segment that is active again would be found stale anyway; do not leave them.
        names_changed = remove_if_exists(disk, path) or names_changed
    if names_changed:
        disk.sync_directory(directory)
    parts.damage.truncate_suffix(end.offset)
    active.truncate(end, interval_bytes)
    parts.damage.save()
    if parts.epochs.truncate_suffix(end.offset):
        parts.epochs_saved = False
    if parts.producers.has_batch_from(end.offset):
        parts.producers, _ = restore_producers(
            parts.snapshots, list(segments), newest_at=end.offset, interval_bytes=interval_bytes
        )
    if end.offset < parts.log_start_offset:
        dropped += restart_empty(disk, directory, parts)
    return dropped


def restart_empty(disk: Disk, directory: str, parts: LogParts) -> list[Segment]:
    """Put one empty segment at the log start in the place of all, which end below it (on stable storage).

    A crash in between leaves what the next open drops, or begins again without.

    Returns:
        The segments taken out; the caller closes their files once no flush uses them.

    Raises:
        DiskFullError, DiskFailedError: the log ends below its start; it is to be opened again.
    """
    old, start_offset = parts.segments.active, parts.log_start_offset
    for segment in parts.segments:
        for path in segment.file_names():
            remove_if_exists(disk, path)
    parts.snapshots.remove_below(start_offset)
    active = Segment.create(
        disk, directory, parts.damage, base_offset=start_offset, created_ms=max(old.created_ms, old.written_ms)
    )
    dropped = parts.segments.restart(active)
    disk.sync_directory(directory)
    parts.damage.truncate_prefix(start_offset)
    parts.damage.save()
    return dropped


def find_cut(parts: LogParts, to_offset: int, interval_bytes: int) -> Boundary:
    """Return the last batch boundary at or below an offset; damage is dropped as a whole."""
    damaged = parts.damage.covering(to_offset)
    if damaged is not None:
        return Boundary(damaged.base_offset, damaged.position)
    segment = parts.segments.holding(to_offset)
    for _ in range(MAX_LOOKUPS - 1):
        try:
            return segment.locate(to_offset, interval_bytes)
        except BadBatch:
            segment.reindex(interval_bytes)
            damaged = parts.damage.covering(to_offset)
            if damaged is not None:
                return Boundary(damaged.base_offset, damaged.position)
    return segment.locate(to_offset, interval_bytes)

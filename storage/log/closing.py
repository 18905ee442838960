# SPDX-License-Identifier: Apache-2.0
"""Leaves the mark of a clean stop, which spares the next open any walk.

Law: the mark is written last, when everything it speaks for is on stable storage.
Source: docs/storage_format.md section 2.5.
"""

from __future__ import annotations

from storage.files.checkpoints import encode_lines, replace_file
from storage.files.disk import Disk
from storage.files.names import EPOCH_FILE
from storage.segment.segment import Segment

from .recovery import LogParts
from .recovery_point import CleanEnd, RecoveryPoint


def has_clean_mark(parts: LogParts) -> bool:
    """Tell whether the mark on the disk speaks for the log as it is, as after an open that found it and no append since."""
    active = parts.segments.active
    return parts.epochs_saved and active.is_index_saved and parts.recovery_point.point == _clean_point(active)


def leave_clean_mark(disk: Disk, directory: str, parts: LogParts) -> None:
    """Save the caches of a log whose batches are all flushed, then mark it clean.

    Raises:
        DiskFullError, DiskFailedError: there is no mark; the next open recovers.
    """
    active = parts.segments.active
    if not parts.epochs_saved:
        replace_file(disk, f"{directory}/{EPOCH_FILE}", encode_lines(parts.epochs.encode_entries()))
        parts.epochs_saved = True
    active.save_index()
    parts.snapshots.take(parts.producers, active.end_offset)
    disk.sync_directory(directory)
    parts.recovery_point.write_synced(_clean_point(active))


def _clean_point(active: Segment) -> RecoveryPoint:
    end = CleanEnd(segment_base_offset=active.base_offset, segment_bytes=active.size_bytes)
    return RecoveryPoint(flushed_offset=active.end_offset, clean_end=end)

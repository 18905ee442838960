# SPDX-License-Identifier: Apache-2.0
"""Leaves the mark of a clean stop, which spares the next open any walk.

Law: the mark is written last, when everything it speaks for is on stable storage.
Source: docs/storage_format.md section 2.5.
"""

from __future__ import annotations

from .checkpoints import encode_lines, replace_file
from .env import Disk
from .names import EPOCH_FILE
from .recovery import LogParts
from .recovery_point import CleanEnd, RecoveryPoint


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
    end = CleanEnd(segment_base_offset=active.base_offset, segment_bytes=active.size_bytes)
    disk.sync_directory(directory)
    parts.recovery_point.write_synced(RecoveryPoint(flushed_offset=active.end_offset, clean_end=end))

# SPDX-License-Identifier: Apache-2.0
"""The owner's side of a move of a log to another directory: a view of the log, and the clean mark.

Design
    `view` is a short step of the owner, before each copy round. The owner calls `leave_mark` once it refuses everything
    but reads and the log is flushed to its end. It saves every cache and marks the log clean, as a close does, so that
    the copy opens without a walk. If the log is written again after all, the mark is only stale.

Laws
    A generation stays the same only while the bytes of the segment below its size do.
    Nothing here changes a record.

Source: docs/storage.md section 11.
"""

from __future__ import annotations

from storage.files.descriptor_cache import disk_under
from storage.files.disk import Disk
from storage.log.partition_log import PartitionLog
from storage.segment.segment import Segment

from .move_plan import SegmentView


class MoveSource:
    """The log of one move, for its owner.

    Args:
        log: the log.
    """

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._seen: dict[int, tuple[Segment, int, int]] = {}
        self._next_generation = 0

    @property
    def directory(self) -> str:
        """Path of the log's directory."""
        return self._log.directory

    @property
    def disk(self) -> Disk:
        """The disk of the log, for the thread that copies."""
        return disk_under(self._log.disk)

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self._log.segments)

    def view(self) -> tuple[SegmentView, ...]:
        """Return the current segments, ascending. A step of the owner; does not touch the disk."""
        seen: dict[int, tuple[Segment, int, int]] = {}
        views: list[SegmentView] = []
        for segment in self._log.segments:
            known = self._seen.get(segment.base_offset)
            if known is None or known[0] is not segment or known[1] != segment.cut_count:
                self._next_generation += 1
                known = (segment, segment.cut_count, self._next_generation)
            seen[segment.base_offset] = known
            views.append(
                SegmentView(base_offset=segment.base_offset, size_bytes=segment.size_bytes, generation=known[2])
            )
        self._seen = seen
        return tuple(views)

    def leave_mark(self) -> None:
        """Save damage, epochs, indexes and producers, and mark the log clean. Blocks; nothing else may write in the meantime.

        Raises:
            DiskFullError, DiskFailedError: the log continues as it is.
        """
        self._log.save_damage()
        self._log.leave_clean_mark()

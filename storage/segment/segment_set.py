# SPDX-License-Identifier: Apache-2.0
"""The segments of one log, ascending: look-up by offset, the active segment, and a limit on open files.

Law: base offsets increase strictly, each segment ends where the next begins, and only the last (active) one accepts
appends.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from storage.files.descriptor_cache import needs_sync

from .segment import Segment

MAX_OPEN_SEALED_SEGMENTS = 4
"""Most sealed segments of one log whose files and indexes stay open after a read."""


class SegmentSet:
    """The segments of a log, at least one. `PartitionLog` changes the set; the reader only notes reads."""

    __slots__ = ("_bases", "_recently_read", "_segments", "active")

    def __init__(self, segments: list[Segment]) -> None:
        assert segments, "a log has at least one segment"
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        # Made at the first read of a sealed segment, because an idle log needs none.
        self._recently_read: dict[int, Segment] | None = None
        self.active = segments[-1]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, slot: int) -> Segment:
        return self._segments[slot]

    @property
    def base_offset(self) -> int:
        """Base offset of the first segment."""
        return self._bases[0]

    def sealed(self) -> list[Segment]:
        """Return all segments except the active one, ascending."""
        return self._segments[:-1]

    def slot_of(self, offset: int) -> int:
        """Return the index of the segment that contains an offset; that of the last one at and beyond the log end."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def holding(self, offset: int) -> Segment:
        """Return the segment that contains an offset; the last one at and beyond the log end."""
        return self._segments[self.slot_of(offset)]

    def add(self, segment: Segment) -> None:
        """Add a new active segment."""
        assert segment.base_offset > self._bases[-1], f"{segment.base_offset} after {self._bases[-1]}"
        self._segments.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def pop(self) -> Segment:
        """Remove and return the last segment; the one before becomes active."""
        segment = self._segments.pop()
        self._bases.pop()
        self._forget_read([segment])
        self.active = self._segments[-1]
        return segment

    def take_first(self, count: int) -> list[Segment]:
        """Remove and return the first segments, never the active one."""
        assert count < len(self._segments), f"{count} of {len(self._segments)} segments: the active one stays"
        taken = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        self._forget_read(taken)
        return taken

    def replace(self, slot: int, count: int, segment: Segment) -> list[Segment]:
        """Replace neighbouring sealed segments by one; return the replaced ones.

        Args:
            slot: index of the first one.
            count: number of segments; never the active one.
            segment: covers exactly their offsets.
        """
        taken = self._segments[slot : slot + count]
        assert slot + count < len(self._segments), f"{slot} and {count} more of {len(self._segments)} segments"
        assert (segment.base_offset, segment.end_offset) == (taken[0].base_offset, taken[-1].end_offset), segment.path
        self._segments[slot : slot + count] = [segment]
        self._bases[slot : slot + count] = [segment.base_offset]
        self._forget_read(taken)
        return taken

    def restart(self, active: Segment) -> list[Segment]:
        """Replace all segments by an empty one; return the others."""
        taken = self._segments[:]
        self._segments[:] = [active]
        self._bases[:] = [active.base_offset]
        self.active = active
        self._forget_read(taken)
        return taken

    def _forget_read(self, taken: list[Segment]) -> None:
        if self._recently_read is not None:
            for segment in taken:
                self._recently_read.pop(segment.base_offset, None)

    def note_read(self, segment: Segment, flushed_offset: int) -> None:
        """Note that a segment was read; if too many are open, close the least recently read one that is sealed and flushed.

        A segment with unflushed data stays open, because its descriptor is the one that will report a write error. So does one with
        unsynced bytes, as a failed append leaves them: a flush that began before may still sync its file.
        """
        if segment is self.active:
            return
        recent = self._recently_read
        if recent is None:
            recent = self._recently_read = {}
        recent.pop(segment.base_offset, None)
        recent[segment.base_offset] = segment
        if len(recent) <= MAX_OPEN_SEALED_SEGMENTS:
            return
        for base_offset, candidate in list(recent.items()):
            is_flushed = candidate is not self.active and candidate.end_offset <= flushed_offset
            if is_flushed and not (candidate.is_open and needs_sync(candidate.file)):
                candidate.close()
                del recent[base_offset]
                return

# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of a partition lie, estimated from samples of its records.

Spark limits and splits reads by bytes, and a log only tells offsets. Records are unevenly large, and compaction leaves offsets
without one, so that offsets alone split badly. This module decides which places to look at, and concludes from the windows of
records seen there. Pure: `lookups` reads the windows.

Size of a record: the bytes of its key, its value and its headers, and `RECORD_BYTES` for the rest of the row.

Two estimates:
* `Profile` covers a whole range from windows that are spread evenly over it. It weighs partitions and finds equal parts.
* `ByteWalk` finds how far a number of bytes reaches from a start. It looks at a window, passes over at most `1 / WALK_STEPS` of
  the bytes as if they were like that window, and looks again. A walk that needs no such step is exact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

RECORD_BYTES: Final = 16
"""Bytes that a record counts in addition to its key, value and headers."""
WINDOW_RECORDS: Final = 256
"""Most records of a window."""
WINDOW_BYTES: Final = 256 * 1024
"""Bytes after which a window ends. Its last record may be larger."""
RANGE_WINDOWS: Final = 16
"""Windows for one range."""
WALK_STEPS: Final = 16
"""A walk looks at the log at least once in so many equal parts of its bytes; fewer with many partitions."""
MAX_WALK_WINDOWS: Final = 64
"""Windows after which a walk ends where it is, within its bytes."""


@dataclass(frozen=True, slots=True)
class Window:
    """Records that follow one another.

    Attributes:
        start_offset: where the look began. The first record may come later, if offsets without a record lie before it.
        ends: for each record the offset after it, ascending.
        sizes: for each record its bytes.
        end_offset: offset to go on from. There is nothing to read before it but these records.
    """

    start_offset: int
    ends: tuple[int, ...]
    sizes: tuple[int, ...]
    end_offset: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all records."""
        return sum(self.sizes)

    def joined(self, following: Window) -> Window:
        """Return the window with the one that begins at its end."""
        return Window(self.start_offset, self.ends + following.ends, self.sizes + following.sizes, following.end_offset)

    def within(self, end_offset: int) -> Window:
        """Return the window without the records from an offset on."""
        if self.end_offset <= end_offset:
            return self
        count = bisect_right(self.ends, end_offset)
        return Window(self.start_offset, self.ends[:count], self.sizes[:count], end_offset)


def window_offsets(start_offset: int, end_offset: int, count: int) -> list[int]:
    """Return the offsets at which windows of a range begin: the start, and others evenly spread."""
    size = end_offset - start_offset
    return sorted({start_offset + size * index // count for index in range(count)}) if size > 0 else []


def windows_per_range(range_count: int, most_each: int, most: int) -> int:
    """Return how many windows each of so many ranges gets: at most `most_each`, and `most` in all, but at least one."""
    return max(1, min(most_each, most // max(1, range_count)))


class Profile:
    """Estimated bytes over the offsets of one range. An offset counts at least one byte, so that parts are never empty of weight."""

    def __init__(self, start_offset: int, end_offset: int, windows: Sequence[Window]) -> None:
        """Conclude from windows of the range, ascending by start. Without any, all offsets weigh the same."""
        edges = [start_offset, *(each.start_offset for each in windows[1:]), end_offset]
        spans = list(pairwise(edges))
        weights = [_weight(each.within(end), start, end) for each, (start, end) in zip(windows, spans, strict=False)]
        self._edges = edges
        self._before = [0, *accumulate(weights)] if windows else [0, end_offset - start_offset]
        self.total_bytes: int = self._before[-1]

    def bytes_before(self, offset: int) -> int:
        """Return the estimated bytes from the start of the range to an offset of it."""
        index = min(max(bisect_right(self._edges, offset) - 1, 0), len(self._edges) - 2)
        start, end = self._edges[index], self._edges[index + 1]
        done = self._before[index + 1] - self._before[index]
        return self._before[index] + (done * (min(offset, end) - start) // (end - start) if end > start else 0)

    def offset_at(self, size_bytes: int) -> int:
        """Return the offset before which so many of the estimated bytes lie."""
        index = min(max(bisect_left(self._before, size_bytes) - 1, 0), len(self._edges) - 2)
        start, end = self._edges[index], self._edges[index + 1]
        weight = self._before[index + 1] - self._before[index]
        return start + ((size_bytes - self._before[index]) * (end - start) // weight if weight else 0)

    def parts(self, count: int) -> list[int]:
        """Return the `count` + 1 edges of parts with about equal bytes. The range must have so many offsets."""
        start, end = self._edges[0], self._edges[-1]
        edges = [start]
        for part in range(1, count):
            wanted = self.offset_at(self.total_bytes * part // count)
            edges.append(min(max(wanted, edges[-1] + 1), end - (count - part)))
        return [*edges, end]


def _weight(window: Window, start: int, end: int) -> int:
    """Return the bytes from `start` to `end` if they are all like a window at the start."""
    seen = window.end_offset - start
    if seen <= 0 or window.end_offset >= end:
        return window.size_bytes + (end - start)
    return window.size_bytes * (end - start) // seen + (end - start)


class ByteWalk:
    """Finds how far a number of bytes reaches in one partition.

    Attributes:
        position: everything before it fits, as far as is known.
        is_done: True when there is nothing more to look at.
        used_bytes: bytes before `position`, in part estimated.
        start_offset: where it began.
        first: the offset after the first record and the bytes of that record; None until it was seen.
    """

    def __init__(
        self, start_offset: int, end_offset: int, size_bytes: int, *, expected_end: int, steps: int = WALK_STEPS
    ) -> None:
        """Begin a walk.

        Args:
            start_offset: where it begins.
            end_offset: it goes no further.
            size_bytes: the bytes.
            expected_end: about where it ends. A step passes over a part of these offsets at most, because small records may
                be followed by large ones.
            steps: number of such parts.
        """
        self.position: int = start_offset
        self.is_done: bool = start_offset >= end_offset
        self.used_bytes: int = 0
        self.start_offset = start_offset
        self.first: tuple[int, int] | None = None
        self._end_offset = end_offset
        self._limit_bytes = size_bytes
        self._step_bytes = size_bytes // steps
        self._step_offsets = max(1, (expected_end - start_offset) // steps)
        self._window_count = 0

    def take(self, window: Window) -> None:
        """Go on with the window that was read at `position`."""
        window = window.within(self._end_offset)
        started = self.position
        self._window_count += 1
        if self.first is None and window.ends:
            self.first = window.ends[0], window.sizes[0]
        for end, size in zip(window.ends, window.sizes, strict=True):
            if self.used_bytes + size > self._limit_bytes:
                self.is_done = True
                return
            self.used_bytes += size
            self.position = end
        self.position = window.end_offset
        if self.position <= started or self.position >= self._end_offset or self._window_count >= MAX_WALK_WINDOWS:
            self.is_done = True
            return
        step = min(self._step_bytes - window.size_bytes, self._limit_bytes - self.used_bytes)
        if step > 0 and window.sizes:
            span = min(
                step * (self.position - started) // window.size_bytes,
                self._step_offsets,
                self._end_offset - self.position,
            )
            self.used_bytes += span * window.size_bytes // (self.position - started)
            self.position += span
            self.is_done = self.position >= self._end_offset


def byte_shares(limit_bytes: int, sizes: Sequence[int], turn: int) -> list[int]:
    """Divide bytes in proportion to estimated sizes; see `shares`. If all fits, what is left is divided too: sizes are estimates."""
    total = sum(sizes)
    if 0 < total <= limit_bytes:
        return [size * limit_bytes // total for size in sizes]
    return shares(limit_bytes, sizes, turn)


def walked(walks: Sequence[ByteWalk], limit_bytes: int, turn: int) -> list[int]:
    """Return how far each walk goes.

    What the walks left of the limit goes to those whose first record is larger than their share, in turn. The one whose turn it
    is gets its first record in any case, because a micro-batch must advance.
    """
    ends = [walk.position for walk in walks]
    left_bytes = limit_bytes - sum(walk.used_bytes for walk in walks)
    for step in range(len(walks)):
        index = (turn + step) % len(walks)
        walk = walks[index]
        if walk.position > walk.start_offset or walk.first is None:
            continue
        first_end, first_bytes = walk.first
        if first_bytes <= left_bytes or step == 0:
            ends[index] = first_end
            left_bytes -= first_bytes
    return ends


def shares(limit: int, wanted: Sequence[int], turn: int) -> list[int]:
    """Divide `limit` in proportion to what is wanted, at least one for each that wants any.

    If the limit is less than that, those get one whose turn it is: a number that changes from micro-batch to micro-batch.
    Nobody gets more than it wants, and nothing of the limit is left unless everybody has all.
    """
    total = sum(wanted)
    if total <= limit:
        return list(wanted)
    eager = [index for index, each in enumerate(wanted) if each > 0]
    given = [0] * len(wanted)
    if limit <= len(eager):
        for step in range(limit):
            given[eager[(turn + step) % len(eager)]] = 1
        return given
    for index in eager:
        given[index] = max(1, limit * wanted[index] // total)
    # Rounding leaves a few over, or the ones that were rounded up to 1 took too many: the largest pay and gain.
    by_size = sorted(eager, key=lambda index: (-wanted[index], index))
    left = limit - sum(given)
    while left:
        for index in by_size:
            if left > 0 and given[index] < wanted[index]:
                given[index] += 1
                left -= 1
            elif left < 0 and given[index] > 1:
                given[index] -= 1
                left += 1
    return given

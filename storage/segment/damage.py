# SPDX-License-Identifier: Apache-2.0
"""The damaged ranges of one log: quarantined bytes that are never served and never truncated by recovery.

File `damaged-ranges` is a text checkpoint with one line for each range: `<segment base offset> <base offset> <end
offset> <position> <end position>`. Without the file there is no known damage.
The bytes stay in place until a repair from a replica (`repair`) replaces the segment. If the file is lost, the first
read finds the damage again.
Source: Alagappan et al. (FAST 2018), "faulty" entries.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from storage.files.checkpoints import (
    MalformedTextError,
    encode_lines,
    numbers_of,
    read_lines,
    remove_if_exists,
    replace_file,
)
from storage.files.disk import Disk
from storage.files.names import DAMAGE_FILE
from storage.types import DamagedRange

_FIELDS = 5


class DamagedRanges:
    """All damaged ranges of one log, ascending, without overlaps.

    A walk over a segment (`Segment.rebuild`, `LogReader`, recovery) adds what it finds. `PartitionLog` forgets ranges
    that were truncated, removed or repaired.
    """

    __slots__ = ("_directory", "_disk", "_ranges", "_saved")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        # A tuple: all logs share the empty one.
        self._ranges: tuple[DamagedRange, ...] = ()
        self._saved = True

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def _path(self) -> str:
        return f"{self._directory}/{DAMAGE_FILE}"

    def all(self) -> tuple[DamagedRange, ...]:
        """Return all ranges."""
        return self._ranges

    def of_segment(self, segment_base_offset: int) -> list[DamagedRange]:
        """Return the ranges of one segment, ascending."""
        return [damaged for damaged in self._ranges if damaged.segment_base_offset == segment_base_offset]

    def covering(self, offset: int) -> DamagedRange | None:
        """Return the range that contains an offset, or None."""
        for damaged in self._ranges:
            if damaged.base_offset <= offset < damaged.end_offset:
                return damaged
        return None

    def run_base(self, end_offset: int) -> int | None:
        """Return the start of the run of touching ranges that ends at an offset; None: no damage ends there.

        If a leader epoch begins at that offset, its first records may have been in the damage, and whole epochs before
        it too.
        """
        base_offset = None
        for damaged in reversed(self._ranges):
            if damaged.end_offset == end_offset:
                base_offset = end_offset = damaged.base_offset
        return base_offset

    def run_end(self, end_offset: int) -> int:
        """Return the end of the run of touching ranges that begins at an offset; the offset itself if no damage begins there."""
        for damaged in self._ranges:
            if damaged.base_offset == end_offset:
                end_offset = damaged.end_offset
        return end_offset

    def add(self, damaged: DamagedRange) -> None:
        """Add a range in memory; `save` makes it durable."""
        assert damaged.base_offset < damaged.end_offset, f"{damaged}"
        if damaged not in self._ranges:
            self._ranges = tuple(sorted((*self._ranges, damaged), key=lambda item: item.base_offset))
            self._saved = False

    def widen(self, known: DamagedRange, position: int) -> None:
        """Let a known range begin at an earlier byte (inclusive), in memory; its offsets stay the same."""
        assert position <= known.position, f"{known} from {position}"
        self._ranges = tuple(replace(each, position=position) if each == known else each for each in self._ranges)
        self._saved = False

    def truncate_suffix(self, to_offset: int) -> None:
        """Forget ranges that begin at `to_offset` or beyond."""
        kept = tuple(damaged for damaged in self._ranges if damaged.base_offset < to_offset)
        if len(kept) != len(self._ranges):
            self._ranges = kept
            self._saved = False

    def truncate_prefix(self, first_base_offset: int) -> None:
        """Forget the ranges of segments below the one with this base offset, because their bytes were removed."""
        kept = tuple(damaged for damaged in self._ranges if damaged.segment_base_offset >= first_base_offset)
        if len(kept) != len(self._ranges):
            self._ranges = kept
            self._saved = False

    def forget_between(self, first_base_offset: int, end_offset: int) -> None:
        """Forget, in memory, the ranges of replaced segments: those based at `first_base_offset` or above, and below `end_offset`."""
        kept = tuple(each for each in self._ranges if not first_base_offset <= each.segment_base_offset < end_offset)
        if len(kept) != len(self._ranges):
            self._ranges = kept
            self._saved = False

    def save(self) -> None:
        """Make the ranges durable if they changed.

        Raises:
            DiskFullError, DiskFailedError.
        """
        if self._saved:
            return
        if self._ranges:
            replace_file(self._disk, self._path, encode_lines([_encode(damaged) for damaged in self._ranges]))
        else:
            remove_if_exists(self._disk, self._path)
        self._saved = True

    @classmethod
    def load(cls, disk: Disk, directory: str) -> DamagedRanges:
        """Read the file; if it is missing or damaged, there is no known damage."""
        ranges = cls(disk, directory)
        for line in read_lines(disk, ranges._path) or []:
            with suppress(MalformedTextError):
                ranges.add(decode_damage(line))
        ranges._saved = True
        return ranges


def _encode(damaged: DamagedRange) -> str:
    numbers = (
        damaged.segment_base_offset,
        damaged.base_offset,
        damaged.end_offset,
        damaged.position,
        damaged.end_position,
    )
    return " ".join(map(str, numbers))


def decode_damage(line: str) -> DamagedRange:
    """Decode one line of the file.

    Raises:
        MalformedTextError: it is not such a line.
    """
    segment_base_offset, base_offset, end_offset, position, end_position = numbers_of(line, _FIELDS)
    return DamagedRange(
        segment_base_offset=segment_base_offset,
        base_offset=base_offset,
        end_offset=end_offset,
        position=position,
        end_position=end_position,
    )

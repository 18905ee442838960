# SPDX-License-Identifier: Apache-2.0
"""The sparse offset index of one segment: maps base offsets of batches to byte positions, and back.

Two parallel arrays of uint32, searched by bisection: 8 bytes for each entry, no memory map. The index is only a hint,
and the log is the truth. A missing or damaged file is rebuilt, and every look-up ends at the header of the batch that
it found.

File `%020d.index` (big-endian): entries, then a footer.

    entry   0  4  uint32  batch base offset - segment base offset
            4  4  uint32  position of the batch in the .log file
    footer  0  4  bytes   "LGIX"
            4  2  uint16  version, 1
            6  2  uint16  0
            8  4  uint32  entry count
            12 8  uint64  bytes of the .log file that the index covers
            20 8  int64   end offset of these bytes (exclusive)
            28 4  uint32  CRC-32C of everything before it

Source: Kafka, OffsetIndex (which stores the *last* offset of a batch). With the base offset each entry is an exact
batch boundary in both directions, so a read of n bytes ends at one without a walk.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right

from lograft.wire.checksum import crc32c

from storage.types import INT32_MAX, Boundary

ENTRY_BYTES = 8
_MAGIC = b"LGIX"
_VERSION = 1
_FOOTER = struct.Struct(">4sHHIQqI")
_CRC_BYTES = 4


class OffsetIndex:
    """The index of one segment in memory. Entries are strictly increasing in offset and in position."""

    __slots__ = ("_offsets", "_positions", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def entry_bytes(self) -> int:
        """Bytes that the entries take in the file."""
        return len(self._offsets) * ENTRY_BYTES

    def add(self, offset: int, position: int) -> None:
        """Add a batch with this base offset at this position; both must be above those of the last entry."""
        relative = offset - self.base_offset
        assert 0 <= relative <= INT32_MAX, f"offset {offset} in a segment that starts at {self.base_offset}"
        assert not self._offsets or (relative > self._offsets[-1] and position > self._positions[-1]), (
            f"entry ({relative}, {position}) after ({self._offsets[-1]}, {self._positions[-1]})"
        )
        self._offsets.append(relative)
        self._positions.append(position)

    def floor_offset(self, offset: int) -> Boundary:
        """Return the last indexed batch start at or below an offset; the segment's start if there is none."""
        slot = bisect_right(self._offsets, max(0, offset - self.base_offset)) - 1
        return self._boundary(slot)

    def floor_position(self, position: int) -> Boundary:
        """Return the last indexed batch start at or below a byte position; the segment's start if there is none."""
        slot = bisect_right(self._positions, position) - 1
        return self._boundary(slot)

    def _boundary(self, slot: int) -> Boundary:
        if slot < 0:
            return Boundary(self.base_offset, 0)
        return Boundary(self.base_offset + self._offsets[slot], self._positions[slot])

    def truncate(self, position: int) -> None:
        """Drop the entries of batches that start at `position` or beyond."""
        slot = bisect_left(self._positions, position)
        del self._offsets[slot:]
        del self._positions[slot:]

    def encode(self, *, log_bytes: int, end_offset: int) -> bytes:
        """Return the content of the index file for a log of `log_bytes` bytes that ends at `end_offset`."""
        count = len(self._offsets)
        flat = array("I", bytes(ENTRY_BYTES * count))
        flat[0::2] = self._offsets
        flat[1::2] = self._positions
        to_big_endian(flat)
        footer = _FOOTER.pack(_MAGIC, _VERSION, 0, count, log_bytes, end_offset, 0)
        body = flat.tobytes() + footer[:-_CRC_BYTES]
        return body + crc32c(body).to_bytes(_CRC_BYTES, "big")

    @classmethod
    def decode(cls, data: bytes, *, base_offset: int, log_bytes: int, end_offset: int) -> OffsetIndex | None:
        """Decode an index file; None unless it is undamaged and covers exactly this log.

        Args:
            data: content of the file.
            base_offset: base offset of the segment.
            log_bytes: size of the segment's log file.
            end_offset: end of the segment, exclusive.
        """
        entries_end = len(data) - _FOOTER.size
        if entries_end < 0:
            return None
        magic, version, _, count, covered_bytes, covered_end, crc = _FOOTER.unpack_from(data, entries_end)
        if (magic, version, covered_bytes, covered_end) != (_MAGIC, _VERSION, log_bytes, end_offset):
            return None
        if count * ENTRY_BYTES != entries_end or crc32c(memoryview(data)[:-_CRC_BYTES]) != crc:
            return None
        flat = array("I", data[:entries_end])
        to_big_endian(flat)
        index = cls(base_offset)
        index._offsets = flat[0::2]
        index._positions = flat[1::2]
        return index


def to_big_endian(values: array[int]) -> None:
    """Swap between this machine's byte order and big-endian, in place; a second call converts back."""
    if sys.byteorder == "little":
        values.byteswap()

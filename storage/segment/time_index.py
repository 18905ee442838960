# SPDX-License-Identifier: Apache-2.0
"""The sparse time index of one segment: up to which offset no record is later than a timestamp.

An entry (timestamp, offset) says that no batch of the segment with a base offset at or below `offset` has a record with
a larger timestamp. Timestamps increase strictly, although record timestamps need not. Like the offset index, it is only
a hint.

File `%020d.timeindex` (big-endian): n timestamps, n offsets (two columns, read as arrays), then a footer.

    columns 0  8n int64   timestamps in milliseconds
            8n 4n uint32  batch base offset - segment base offset
    footer  0  4  bytes   "LGTX"
            4  2  uint16  version, 1
            6  2  uint16  0
            8  4  uint32  entry count
            12 8  uint64  bytes of the .log file that the index covers
            20 8  int64   largest timestamp of the first batch (rolling by age counts from it)
            28 8  int64   largest timestamp of the segment
            36 4  uint32  CRC-32C of everything before it

Source: Kafka, TimeIndex.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from dataclasses import dataclass

from lograft.wire.checksum import crc32c

from storage.types import INT32_MAX

from .offset_index import to_big_endian

ENTRY_BYTES = 12
_MAGIC = b"LGTX"
_VERSION = 1
_FOOTER = struct.Struct(">4sHHIQqqI")
_CRC_BYTES = 4
_TIMESTAMP_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTimeIndex:
    """A decoded time index file; the two timestamps belong to a segment that is not empty."""

    index: TimeIndex
    first_timestamp_ms: int
    max_timestamp_ms: int


class TimeIndex:
    """The time index of one segment in memory."""

    __slots__ = ("_offsets", "_timestamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._timestamps = array("q")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def entry_bytes(self) -> int:
        """Bytes that the entries take in the file."""
        return len(self._timestamps) * ENTRY_BYTES

    def note(self, timestamp_ms: int, offset: int) -> None:
        """Note that no batch up to the one with this base offset has a record later than this timestamp.

        Args:
            timestamp_ms: largest timestamp so far; never below that of the last entry.
            offset: base offset of the last batch that it covers (inclusive).
        """
        relative = offset - self.base_offset
        assert 0 <= relative <= INT32_MAX, f"offset {offset} in a segment that starts at {self.base_offset}"
        if self._timestamps and timestamp_ms <= self._timestamps[-1]:
            assert timestamp_ms == self._timestamps[-1], f"timestamp {timestamp_ms} after {self._timestamps[-1]}"
            # The same timestamp covers more batches now: the look-up skips more, without another entry.
            self._offsets[-1] = relative
            return
        self._timestamps.append(timestamp_ms)
        self._offsets.append(relative)

    def skip_to(self, timestamp_ms: int) -> int | None:
        """Return the base offset of the last batch that, with all before it, is known to be earlier than a timestamp.

        None if nothing is known; then the search begins at the segment's start.
        """
        slot = bisect_left(self._timestamps, timestamp_ms) - 1
        return None if slot < 0 else self.base_offset + self._offsets[slot]

    def truncate(self, offset: int) -> None:
        """Drop the entries that cover batches at `offset` or beyond."""
        slot = bisect_left(self._offsets, max(0, offset - self.base_offset))
        del self._offsets[slot:]
        del self._timestamps[slot:]

    def encode(self, *, log_bytes: int, first_timestamp_ms: int, max_timestamp_ms: int) -> bytes:
        """Return the content of the time index file for a log of `log_bytes` bytes."""
        count = len(self._timestamps)
        timestamps = self._timestamps[:]
        offsets = self._offsets[:]
        to_big_endian(timestamps)
        to_big_endian(offsets)
        footer = _FOOTER.pack(_MAGIC, _VERSION, 0, count, log_bytes, first_timestamp_ms, max_timestamp_ms, 0)
        body = timestamps.tobytes() + offsets.tobytes() + footer[:-_CRC_BYTES]
        return body + crc32c(body).to_bytes(_CRC_BYTES, "big")

    @classmethod
    def decode(cls, data: bytes, *, base_offset: int, log_bytes: int) -> DecodedTimeIndex | None:
        """Decode a time index file; None unless it is undamaged and covers exactly this log."""
        entries_end = len(data) - _FOOTER.size
        if entries_end < 0:
            return None
        magic, version, _, count, covered_bytes, first_ms, max_ms, crc = _FOOTER.unpack_from(data, entries_end)
        if (magic, version, covered_bytes) != (_MAGIC, _VERSION, log_bytes):
            return None
        if count * ENTRY_BYTES != entries_end or crc32c(memoryview(data)[:-_CRC_BYTES]) != crc:
            return None
        index = cls(base_offset)
        index._timestamps = array("q", data[: count * _TIMESTAMP_BYTES])
        index._offsets = array("I", data[count * _TIMESTAMP_BYTES : entries_end])
        to_big_endian(index._timestamps)
        to_big_endian(index._offsets)
        return DecodedTimeIndex(index=index, first_timestamp_ms=first_ms, max_timestamp_ms=max_ms)

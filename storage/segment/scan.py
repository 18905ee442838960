# SPDX-License-Identifier: Apache-2.0
"""Walks the batches of a segment file, and judges bytes that should be a batch.

`find_batch` looks up an offset. `Walk` yields (position, header) of contiguous batches; with `verify_from_offset` it
checks CRCs from that offset on. It raises `BadBatch` where the next batch is not the expected one. Then
`find_valid_after` looks for the next whole batch. `shows_unwritten_sector` tells whether bytes were never written (a
torn append) or changed afterwards (damage).

Law: a batch is accepted only at exactly the expected offset; nothing between two accepted batches is ever guessed.
Source: Alagappan et al., "Protocol-Aware Recovery" (FAST 2018), section 3.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from lograft.wire.checksum import crc32c
from lograft.wire.header import CRC_START, LENGTH_END, BatchHeader, read_header
from lograft.wire.limits import HEADER_BYTES, MAGIC, MAX_BATCH_BYTES

from storage.files.disk import SECTOR_BYTES, File
from storage.types import Boundary

HEADER_CHUNK_BYTES = 16 * 1024
"""Bytes of one read when only headers are needed: cheap for large batches, and enough for many small ones."""

VERIFY_CHUNK_BYTES = 1024 * 1024
"""Bytes of one read when whole batches are needed."""

TRUSTED_RUN_BYTES = 64 * 1024
"""A run of this many bytes of whole batches behind damage is trusted; misplaced sectors hold less."""

_BASE_OFFSET_BYTES = 8

_PLACE = struct.Struct(">qi4xb6xi30xi")
"""Base offset, batch length, magic, last offset delta and record count of a header."""

assert _PLACE.size == HEADER_BYTES, _PLACE.size


class BadBatch(Exception):
    """The bytes at a position are not the expected batch.

    Attributes:
        start: where the batch must be.
        reason: what is wrong, for log lines.
    """

    def __init__(self, start: Boundary, reason: str) -> None:
        super().__init__(f"offset {start.offset} at byte {start.position}: {reason}")
        self.start = start
        self.reason = reason


class _Window:
    """A sliding window over the file; counts what it read."""

    __slots__ = ("_data", "_end_position", "_file", "_start", "read_bytes")

    def __init__(self, file: File, end_position: int) -> None:
        self._file = file
        self._end_position = end_position
        self._data = b""
        self._start = 0
        self.read_bytes = 0

    def view(self, position: int, size_bytes: int, chunk_bytes: int) -> memoryview:
        """Return up to `size_bytes` bytes at a position, fewer only at the end; reads `chunk_bytes` ahead."""
        at = position - self._start
        if at < 0 or at + size_bytes > len(self._data):
            wanted_bytes = min(max(size_bytes, chunk_bytes), self._end_position - position)
            self._data = self._file.pread(wanted_bytes, position)
            self.read_bytes += len(self._data)
            self._start = position
            at = 0
        return memoryview(self._data)[at : at + size_bytes]


class Walk:
    """One walk over a segment file; iterate once.

    Args:
        file: the segment's log file.
        start: first batch to visit.
        end_position: end of the bytes to visit, exclusive.
        verify_from_offset: check the CRC of batches from this offset on (inclusive); None: check none.
        look_ahead: True: also check the CRC of a batch that the next header does not continue. Then the batch with the
            damaged length or count is found bad, not its neighbour.
    """

    __slots__ = ("_end_position", "_look_ahead", "_start", "_verify_from_offset", "_window")

    def __init__(
        self,
        file: File,
        *,
        start: Boundary,
        end_position: int,
        verify_from_offset: int | None = None,
        look_ahead: bool = False,
    ) -> None:
        self._window = _Window(file, end_position)
        self._start = start
        self._end_position = end_position
        self._verify_from_offset = verify_from_offset
        self._look_ahead = look_ahead

    @property
    def read_bytes(self) -> int:
        """Bytes read from the file so far."""
        return self._window.read_bytes

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch.

        Raises:
            BadBatch: the bytes are not the next batch.
        """
        expected_offset, position = self._start
        while position < self._end_position:
            header = self._check(expected_offset, position)
            yield position, header
            position += header.size_bytes
            expected_offset = header.next_offset

    def _check(self, expected_offset: int, position: int) -> BatchHeader:
        start = Boundary(expected_offset, position)
        verify = self._verify_from_offset is not None and expected_offset >= self._verify_from_offset
        chunk_bytes = VERIFY_CHUNK_BYTES if verify else HEADER_CHUNK_BYTES
        view = self._window.view(position, HEADER_BYTES, chunk_bytes)
        if len(view) < HEADER_BYTES:
            raise BadBatch(start, f"{len(view)} bytes are no header")
        header = read_header(view)
        reason = header_fault(header, expected_offset=expected_offset, room_bytes=self._end_position - position)
        if reason is not None:
            raise BadBatch(start, reason)
        if verify or not self._is_plausible(position, header):
            whole = self._window.view(position, header.size_bytes, chunk_bytes)
            if crc32c(whole[CRC_START:]) != header.crc:
                raise BadBatch(start, "the CRC does not match")
        return header

    def _is_plausible(self, position: int, header: BatchHeader) -> bool:
        """Tell whether a header agrees with itself and with the next one, so that the walk may trust it."""
        if header.record_count != header.last_offset_delta + 1:
            # Caused by compaction or by damage.
            return False
        if not self._look_ahead:
            return True
        after = position + header.size_bytes
        if after == self._end_position:
            return True
        view = self._window.view(after, HEADER_BYTES, HEADER_CHUNK_BYTES)
        if len(view) < HEADER_BYTES:
            return False
        following = read_header(view)
        return following.magic == MAGIC and following.base_offset == header.next_offset


def find_batch(file: File, *, floor: Boundary, end_position: int, offset: int) -> Boundary:
    """Return the start of the batch that contains an offset, by the headers from an earlier batch start on.

    Reads only the fields that locate batches, as long as they agree; otherwise a `Walk` decides.

    Args:
        file: the segment's log file.
        floor: start of the search.
        end_position: end of the readable bytes, exclusive.
        offset: the offset.

    Raises:
        BadBatch: a batch on the way is not the expected one, or the bytes end before the offset.
    """
    expected_offset, position = floor
    data = file.pread(max(0, min(HEADER_CHUNK_BYTES, end_position - position)), position)
    at = 0
    while at + HEADER_BYTES <= len(data):
        base_offset, batch_length, magic, last_offset_delta, record_count = _PLACE.unpack_from(data, at)
        size_bytes = LENGTH_END + batch_length
        if base_offset != expected_offset or magic != MAGIC or not 0 <= last_offset_delta == record_count - 1:
            break
        if not HEADER_BYTES <= size_bytes <= min(MAX_BATCH_BYTES, end_position - position - at):
            break
        if offset < base_offset + record_count:
            return Boundary(base_offset, position + at)
        expected_offset = base_offset + record_count
        at += size_bytes
    for found_position, header in Walk(file, start=Boundary(expected_offset, position + at), end_position=end_position):
        if header.next_offset > offset:
            return Boundary(header.base_offset, found_position)
    raise BadBatch(Boundary(offset, end_position), "the file ends before this offset")


def header_fault(header: BatchHeader, *, expected_offset: int, room_bytes: int) -> str | None:
    """Return why a header is impossible at this place; None if it is possible."""
    if header.magic != MAGIC:
        return f"magic {header.magic}"
    if header.base_offset != expected_offset:
        return f"base offset {header.base_offset}"
    if not HEADER_BYTES <= header.size_bytes <= MAX_BATCH_BYTES:
        return f"batch of {header.size_bytes} bytes"
    if header.size_bytes > room_bytes:
        return f"batch of {header.size_bytes} bytes, {room_bytes} are left"
    if header.last_offset_delta < 0:
        return f"last offset delta {header.last_offset_delta}"
    return None


def find_valid_after(file: File, *, bad: Boundary, end_position: int, end_offset: int | None) -> Boundary | None:
    """Find the first whole batch after a bad one.

    A candidate must have a matching CRC and offsets above the bad one's. It must end at the end of the segment, or
    where the header of the following batch is. So a batch that a user stored as a *value* does not count. If a run of
    whole batches is followed by more batches with lower offsets, the run is in the wrong place (a misdirected write, or
    a sector read from elsewhere). Offsets only grow, and the run would hide what lies between.

    Args:
        file: the segment's log file.
        bad: where the bad batch should be.
        end_position: end of the file.
        end_offset: end of the segment (exclusive), if a later segment gives it.

    Returns:
        Start of the next whole batch, or None.
    """
    following = _after_intact_header(file, bad, end_position, end_offset)
    if following is not None:
        return following
    candidate = _first_valid(file, bad, bad.position + 1, end_position, end_offset)
    while candidate is not None:
        run_end = _end_of_run(file, candidate, end_position)
        run_bytes = run_end.position - candidate.position
        if run_end.position == end_position or run_bytes >= TRUSTED_RUN_BYTES:
            return candidate
        # Batches behind it with lower offsets, which the run would hide.
        hidden_bytes = 0
        first_hidden = hidden = _first_valid(file, bad, run_end.position, end_position, end_offset)
        while hidden is not None and hidden.offset < run_end.offset and hidden_bytes <= run_bytes:
            hidden_end = _end_of_run(file, hidden, end_position)
            hidden_bytes += hidden_end.position - hidden.position
            hidden = _first_valid(file, bad, hidden_end.position, end_position, end_offset)
        if hidden_bytes <= run_bytes:
            return candidate
        candidate = first_hidden
    return None


def _end_of_run(file: File, start: Boundary, end_position: int) -> Boundary:
    """Return the end of the run of whole batches at a boundary; looks no further than `TRUSTED_RUN_BYTES`."""
    end = start
    limit = start.position + TRUSTED_RUN_BYTES
    try:
        for position, header in Walk(file, start=start, end_position=end_position, verify_from_offset=start.offset):
            end = Boundary(header.next_offset, position + header.size_bytes)
            if end.position >= limit:
                break
    except BadBatch:
        pass
    return end


def _first_valid(
    file: File, bad: Boundary, position: int, end_position: int, end_offset: int | None
) -> Boundary | None:
    """Return the first whole batch at or after a position that can belong to this log behind the bad one."""
    # In a segment only the last four bytes of the base offset, the length and the epoch vary.
    high = (
        re.escape((bad.offset >> 32).to_bytes(4, "big")) + b"|" + re.escape(((bad.offset >> 32) + 1).to_bytes(4, "big"))
    )
    pattern = re.compile(
        b"(?=(?:" + high + b").{4}\\x00[\\x00-\\x80].{6}" + re.escape(bytes([MAGIC])) + b")", re.DOTALL
    )
    while position < end_position:
        data = file.pread(min(VERIFY_CHUNK_BYTES, end_position - position), position)
        for match in pattern.finditer(data):
            candidate = _valid_at(file, position + match.start(), bad, end_position, end_offset)
            if candidate is not None:
                return candidate
        if position + len(data) >= end_position or len(data) < HEADER_BYTES:
            return None
        position += len(data) - HEADER_BYTES + 1
    return None


def _after_intact_header(file: File, bad: Boundary, end_position: int, end_offset: int | None) -> Boundary | None:
    """Return the next batch if the bad one's header still locates it correctly (damage inside the payload)."""
    header = _header_at(file, bad.position)
    if header is None:
        return None
    if header_fault(header, expected_offset=bad.offset, room_bytes=end_position - bad.position) is not None:
        return None
    following = _valid_at(file, bad.position + header.size_bytes, bad, end_position, end_offset)
    return following if following is not None and following.offset == header.next_offset else None


def _valid_at(file: File, position: int, bad: Boundary, end_position: int, end_offset: int | None) -> Boundary | None:
    """Return the boundary at `position` if a whole batch of this log is there."""
    header = _header_at(file, position)
    if header is None or header.base_offset <= bad.offset:
        return None
    if header_fault(header, expected_offset=header.base_offset, room_bytes=end_position - position) is not None:
        return None
    if end_offset is not None and header.next_offset > end_offset:
        return None
    if crc32c(memoryview(file.pread(header.size_bytes, position))[CRC_START:]) != header.crc:
        return None
    end = position + header.size_bytes
    after = _header_at(file, end)
    if end != end_position and after is not None and after.base_offset != header.next_offset:
        return None
    return Boundary(header.base_offset, position)


def _header_at(file: File, position: int) -> BatchHeader | None:
    data = file.pread(HEADER_BYTES, position)
    return read_header(data) if len(data) == HEADER_BYTES else None


def shows_unwritten_sector(file: File, *, bad: Boundary, end_position: int) -> bool:
    """Tell whether bytes of a bad batch were never written, as after an append that a power failure tore.

    A device writes whole sectors. A sector of an append-only file holds a prefix of what was appended to it, then
    zeros. So after a torn append, some sector is zero from the batch's start (or the sector's start) to the sector's
    end. Other damage looks different.

    Args:
        file: the segment's log file.
        bad: the bad batch.
        end_position: end of the bad bytes (start of the next valid batch), exclusive.
    """
    position = bad.position
    while position < end_position:
        sector_end = (position // SECTOR_BYTES + 1) * SECTOR_BYTES
        data = file.pread(sector_end - position, position)
        if not any(data) and (position != bad.position or _proves_loss(data, bad.offset)):
            return True
        position = sector_end
    return False


def _proves_loss(zeros: bytes, expected_offset: int) -> bool:
    """Tell whether zeros at the start of a batch differ from the bytes that the batch must begin with."""
    if len(zeros) >= LENGTH_END:
        # A batch length is never zero.
        return True
    return any(expected_offset.to_bytes(_BASE_OFFSET_BYTES, "big")[: len(zeros)])

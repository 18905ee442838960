# SPDX-License-Identifier: Apache-2.0
"""Reads of one log: whole batches by offset, and one record by timestamp.

A chunk is one pread of exactly the batches that it returns. Its start comes from the read before, or from the index and
a few headers. Its end comes from the index and the headers of the batches around the limit. The batches between are not
parsed. The first read of bytes that are older than this opening checks their CRC. A batch that fails is quarantined,
and the reader raises `DataLossError` for exactly its range.

The reader writes nothing but the list of damaged ranges. Source: Kafka, UnifiedLog.read.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from lograft.wire.checksum import crc32c
from lograft.wire.errors import BatchError
from lograft.wire.header import CRC_START, BatchHeader, iter_batches, read_header
from lograft.wire.limits import HEADER_BYTES
from lograft.wire.reader import RecordBatch

from storage.errors import CorruptLogError, DataLossError, DiskError
from storage.files.descriptor_cache import pread_if_open
from storage.files.disk import File
from storage.segment.damage import DamagedRanges
from storage.segment.scan import BadBatch, Walk, find_valid_after, header_fault
from storage.segment.segment import Segment
from storage.segment.segment_set import SegmentSet
from storage.types import Boundary, DamagedRange, HeadersRead, LogRead, LogSettings, TimestampAndOffset

CURSORS = 64
"""Positions that a log remembers for its readers and the flushed offset; the oldest is dropped first."""

MAX_ATTEMPTS = 8
"""Most look-ups of one call. Each one that fails has found another damaged range, or replaced a wrong index."""

HEADERS_MAX = 1_024
"""Most headers that one call returns: some milliseconds."""

logger = logging.getLogger(__name__)


class _Cursor(NamedTuple):
    segment: Segment
    position: int


class ReadWork:
    """A read of which only the bytes are missing. The owner of the log makes it (`PartitionLog.begin_read`); any thread runs it.

    It checks nothing: the log may have changed since, so the caller compares the batches with those that it expects, and their CRCs.

    Attributes:
        size_bytes: bytes of the batches.
    """

    __slots__ = ("_file", "_position", "size_bytes")

    def __init__(self, file: File, position: int, size_bytes: int) -> None:
        self._file = file
        self._position = position
        self.size_bytes = size_bytes

    def run(self) -> bytes | None:
        """Return the bytes; None if they are not there any more. Blocks for as long as the disk takes.

        Raises:
            StorageError: the disk cannot return them.
        """
        data = pread_if_open(self._file, self.size_bytes, self._position)
        return data if data is not None and len(data) == self.size_bytes else None


class LogReader:
    """The read side of one log; only the owner of the log calls it."""

    __slots__ = ("_cursors", "_damage", "_highest_ms", "_segments", "interval_bytes", "verify")

    def __init__(self, segments: SegmentSet, damage: DamagedRanges, settings: LogSettings) -> None:
        self._segments = segments
        self._damage = damage
        self.interval_bytes = settings.index_interval_bytes
        self.verify = settings.verify_first_read
        # Both are made at first use, because an idle log needs neither.
        self._cursors: dict[int, _Cursor] | None = None
        self._highest_ms: list[int] | None = None

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Remember where the batch with this base offset starts in its segment."""
        cursors = self._cursors
        if cursors is None:
            cursors = self._cursors = {}
        cursors[offset] = _Cursor(segment, position)
        if len(cursors) > CURSORS:
            del cursors[next(iter(cursors))]

    def forget_all(self) -> None:
        """Forget remembered positions and timestamps, after a truncation or new damage."""
        self._cursors = None
        self._highest_ms = None

    def read(self, offset: int, max_bytes: int, *, end_offset: int, flushed_offset: int) -> LogRead:
        """Return whole batches from the one that holds `offset` on.

        Args:
            offset: where to start, inside the log.
            max_bytes: most bytes; the first batch is returned even if it is larger.
            end_offset: no returned batch reaches beyond it (exclusive).
            flushed_offset: the call may close sealed segments that end at or below it.

        Raises:
            DataLossError: `offset` is damaged.
            CorruptLogError: the segment keeps changing during the read.
        """
        if offset >= end_offset:
            return LogRead(b"", offset)
        segment = self._segments.holding(offset)
        for _ in range(MAX_ATTEMPTS):
            if self._damage:
                self._refuse_damaged(offset)
            try:
                read = self._read_segment(segment, offset, max_bytes, end_offset)
            except BadBatch as bad:
                self._reindex(segment, bad)
                continue
            if read is not None:
                self._segments.note_read(segment, flushed_offset)
                return read
        raise CorruptLogError(segment.path, f"offset {offset} cannot be found although its segment was walked")

    def begin_read(self, offset: int, *, end_offset: int, flushed_offset: int) -> ReadWork | None:
        """Begin a read of the batches from the one that holds `offset` on, to `end_offset` (exclusive).

        Returns:
            None if a whole segment does not hold them, if bytes there are damaged or have to be checked first, or if the index does not
            fit: `read` knows what to do then.
        """
        if self._damage or offset >= end_offset:
            return None
        segment = self._segments.holding(offset)
        if end_offset > segment.end_offset:
            return None
        try:
            start, end = self._boundary(segment, offset), self._boundary(segment, end_offset)
        except BadBatch:
            return None
        if end.offset != end_offset or end.position <= start.position:
            return None
        if self.verify and not segment.is_verified(start.position, end.position):
            return None
        self.remember(end.offset, segment, end.position)
        self._segments.note_read(segment, flushed_offset)
        return ReadWork(segment.file, start.position, end.position - start.position)

    def read_headers(self, offset: int, max_bytes: int, *, end_offset: int, flushed_offset: int) -> HeadersRead:
        """Return the headers of the batches that `read` would return, and read little else.

        Bytes that are older than this opening are read whole the first time, so damage is found here as it is by `read`. Arguments and
        errors are those of `read`.
        """
        if offset >= end_offset:
            return HeadersRead([], offset)
        segment = self._segments.holding(offset)
        for _ in range(MAX_ATTEMPTS):
            if self._damage:
                self._refuse_damaged(offset)
            try:
                found = self._read_headers(segment, offset, max_bytes, end_offset)
            except BadBatch as bad:
                self._reindex(segment, bad)
                continue
            if found is not None:
                self._segments.note_read(segment, flushed_offset)
                return found
        raise CorruptLogError(segment.path, f"offset {offset} cannot be found although its segment was walked")

    def _read_headers(self, segment: Segment, offset: int, max_bytes: int, end_offset: int) -> HeadersRead | None:
        """Read the headers of one chunk; None if its first batch failed its CRC and was quarantined."""
        start = self._boundary(segment, offset)
        end = self._readable_end(segment, start, end_offset)
        if self.verify and not segment.is_verified(start.position, end.position):
            read = self._read_segment(segment, offset, max_bytes, end_offset)
            if read is None:
                return None
            return HeadersRead([header for _, header in iter_batches(read.data)], read.next_offset)
        if end.offset <= start.offset:
            return HeadersRead([], offset)
        if end.position <= start.position:
            # The index is older than the damage. An empty read inside the log would stop a reader for ever.
            raise BadBatch(start, "the index does not fit the damage")
        headers: list[BatchHeader] = []
        for position, header in Walk(segment.file, start=start, end_position=end.position):
            if headers and position + header.size_bytes - start.position > max_bytes:
                break
            headers.append(header)
            if len(headers) == HEADERS_MAX:
                break
        return HeadersRead(headers, headers[-1].next_offset)

    def _refuse_damaged(self, offset: int) -> None:
        damaged = self._damage.covering(offset)
        if damaged is not None:
            path = self._segments.holding(damaged.segment_base_offset).path
            raise DataLossError(path, base_offset=damaged.base_offset, end_offset=damaged.end_offset)

    def _read_segment(self, segment: Segment, offset: int, max_bytes: int, end_offset: int) -> LogRead | None:
        """Read one chunk; None if its first batch failed its CRC and was quarantined."""
        start = self._boundary(segment, offset)
        end = self._readable_end(segment, start, end_offset)
        if end.offset <= start.offset:
            return LogRead(b"", offset)
        if end.position <= start.position:
            # The index is older than the damage. An empty read inside the log would stop a reader for ever.
            raise BadBatch(start, "the index does not fit the damage")
        limit_offset = end.offset
        if end.position - start.position > max_bytes:
            end = segment.boundary_within(start, start.position + max_bytes, self.interval_bytes)
        data = segment.file.pread(end.position - start.position, start.position)
        if len(data) < end.position - start.position:
            raise BadBatch(start, "the file is shorter than its segment")
        if read_header(data).base_offset != start.offset:
            raise BadBatch(start, "another batch stands here")
        if self.verify and not segment.is_verified(start.position, end.position):
            verified = self._verify(segment, start, data, limit_offset)
            if verified.position == start.position:
                return None
            if verified.position != end.position:
                data = data[: verified.position - start.position]
                end = verified
        self.remember(end.offset, segment, end.position)
        return LogRead(data, end.offset)

    def _boundary(self, segment: Segment, offset: int) -> Boundary:
        """Return the start of the batch that holds an offset."""
        if self._cursors is not None:
            cursor = self._cursors.get(offset)
            if cursor is not None and cursor.segment is segment:
                return Boundary(offset, cursor.position)
        return segment.locate(offset, self.interval_bytes)

    def _readable_end(self, segment: Segment, start: Boundary, end_offset: int) -> Boundary:
        """Return where a read from `start` must end: at damage, at the end offset, or at the end of the segment."""
        end = Boundary(segment.end_offset, segment.size_bytes)
        if self._damage:
            for damaged in segment.damages():
                if damaged.base_offset > start.offset:
                    end = Boundary(damaged.base_offset, damaged.position)
                    break
        return end if end.offset <= end_offset else self._boundary(segment, end_offset)

    def _verify(self, segment: Segment, start: Boundary, data: bytes, end_offset: int) -> Boundary:
        """Check the CRCs of a chunk up to an offset; quarantine the first bad batch, and return where the good ones end."""
        view = memoryview(data)
        at = 0
        offset = start.offset
        while at < len(data):
            header = _whole_header(view[at:], offset)
            reaches_over = header is not None and header.next_offset > end_offset
            if header is None or reaches_over or crc32c(view[at + CRC_START : at + header.size_bytes]) != header.crc:
                self._quarantine(segment, Boundary(offset, start.position + at))
                break
            at += header.size_bytes
            offset = header.next_offset
        segment.mark_verified(start.position, start.position + at)
        return Boundary(offset, start.position + at)

    def _quarantine(self, segment: Segment, bad: Boundary) -> None:
        """Quarantine a batch that failed its CRC: exactly its bytes, up to the next whole batch."""
        known = next((each for each in segment.damages() if each.base_offset >= bad.offset), None)
        limit = Boundary(segment.end_offset, segment.size_bytes)
        if known is not None:
            limit = Boundary(known.base_offset, max(known.position, bad.position))
        following = find_valid_after(segment.file, bad=bad, end_position=limit.position, end_offset=limit.offset)
        end = following if following is not None else limit
        if bad.offset < end.offset:
            # Otherwise the segment is complete, and the bytes that follow belong to no record.
            self._damage.add(
                DamagedRange(
                    segment_base_offset=segment.base_offset,
                    base_offset=bad.offset,
                    end_offset=end.offset,
                    position=bad.position,
                    end_position=end.position,
                )
            )
        self._reindex(segment, BadBatch(bad, "the CRC does not match"))

    def quarantine(self, segment: Segment, ranges: Sequence[DamagedRange], *, flushed_offset: int) -> None:
        """Quarantine ranges that a scrub found damaged: ascending, not overlapping, none known before."""
        for damaged in ranges:
            self._damage.add(damaged)
        self._reindex(segment, BadBatch(Boundary(ranges[0].base_offset, ranges[0].position), "a scrub found damage"))
        self._segments.note_read(segment, flushed_offset)

    def _reindex(self, segment: Segment, bad: BadBatch) -> None:
        """Index the segment again: either its index was wrong, or the walk finds and notes the damage."""
        rebuilt = segment.reindex(self.interval_bytes)
        self.forget_all()
        logger.error(
            "segment=%s problem=%r damaged=%s action=reindexed", segment.path, str(bad), len(segment.damages())
        )
        if not rebuilt.damaged and not self._damage:
            return
        try:
            self._damage.save()
        except DiskError as error:
            # Reads must not depend on writes: the range stays known in memory, and is found again after a restart.
            logger.error("segment=%s action=save-damage error=%r", segment.path, str(error))

    def find_timestamp(
        self, timestamp_ms: int, *, start_offset: int, end_offset: int, flushed_offset: int
    ) -> TimestampAndOffset | None:
        """Return the first record by offset, from `start_offset` on, whose timestamp is `timestamp_ms` or later.

        Skips control records and damaged ranges. None if there is no such record below `end_offset`.
        """
        for slot in range(self._first_slot_reaching(timestamp_ms, flushed_offset), len(self._segments)):
            segment = self._segments[slot]
            if segment.base_offset >= end_offset:
                return None
            found = self._find_in(segment, timestamp_ms, start_offset, end_offset)
            self._segments.note_read(segment, flushed_offset)
            if found is not None:
                return found if found.offset < end_offset else None
        return None

    def _first_slot_reaching(self, timestamp_ms: int, flushed_offset: int) -> int:
        """Return the index of the first segment that can hold such a late record; bisects the running maximum of sealed segments."""
        highest = self._highest_ms
        if highest is None:
            highest = self._highest_ms = []
        for slot in range(len(highest), len(self._segments) - 1):
            if highest and highest[-1] >= timestamp_ms:
                break
            segment = self._segments[slot]
            segment_ms = segment.load_index(self.interval_bytes).max_timestamp_ms
            self._segments.note_read(segment, flushed_offset)
            before_ms = highest[-1] if highest else -1
            highest.append(before_ms if segment_ms is None else max(before_ms, segment_ms))
        return bisect_left(highest, timestamp_ms)

    def _find_in(
        self, segment: Segment, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> TimestampAndOffset | None:
        for _ in range(MAX_ATTEMPTS):
            index = segment.load_index(self.interval_bytes)
            if index.max_timestamp_ms is None or index.max_timestamp_ms < timestamp_ms:
                return None
            skipped = index.times.skip_to(timestamp_ms)
            try:
                start = (
                    Boundary(segment.base_offset, 0)
                    if skipped is None
                    else segment.locate(skipped, self.interval_bytes)
                )
                return self._search(segment, start, timestamp_ms, start_offset, end_offset)
            except BadBatch as bad:
                self._reindex(segment, bad)
            except _CrcMismatch as mismatch:
                self._quarantine(segment, mismatch.start)
        raise CorruptLogError(
            segment.path, f"timestamp {timestamp_ms} cannot be looked up although the segment was walked"
        )

    def _search(
        self, segment: Segment, start: Boundary, timestamp_ms: int, start_offset: int, end_offset: int
    ) -> TimestampAndOffset | None:
        for span_start, span_end in segment.spans(start):
            for position, header in Walk(segment.file, start=span_start, end_position=span_end):
                if header.base_offset >= end_offset:
                    return None
                if header.max_timestamp_ms < timestamp_ms or header.is_control or header.next_offset <= start_offset:
                    continue
                found = _first_record(segment, position, header, timestamp_ms, start_offset)
                if found is not None:
                    return found
        return None


class _CrcMismatch(Exception):
    def __init__(self, start: Boundary) -> None:
        super().__init__(str(start))
        self.start = start


def _first_record(
    segment: Segment, position: int, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> TimestampAndOffset | None:
    """Return the first record of one batch, from `start_offset` on, with a timestamp of `timestamp_ms` or later."""
    data = segment.file.pread(header.size_bytes, position)
    try:
        batch = RecordBatch(data)
        timestamps_ms = batch.timestamps_ms()
    except BatchError as error:
        raise _CrcMismatch(Boundary(header.base_offset, position)) from error
    for slot, record_ms in enumerate(timestamps_ms):
        if record_ms >= timestamp_ms and (offset := batch.offsets()[slot]) >= start_offset:
            return TimestampAndOffset(record_ms, offset)
    return None


def _whole_header(data: memoryview, offset: int) -> BatchHeader | None:
    """Return the header at the start of the bytes if a batch with this base offset may be there."""
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data)
    return header if header_fault(header, expected_offset=offset, room_bytes=len(data)) is None else None

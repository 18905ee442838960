# SPDX-License-Identifier: Apache-2.0
"""Reads record batches lazily: a cheap object first, then lists, records or Arrow columns on demand.

The first access decompresses and parses the payload, and the object keeps it. Bytes are never trusted: whatever they are, an
accessor returns `record_count` entries or raises a `BatchError`. Source: docs/storage_format.md section 2.1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, islice, repeat
from operator import add
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from lograft.wire.checker import check_crc, check_offsets, check_timestamps, open_payload
from lograft.wire.checksum import BytesLike
from lograft.wire.columns import HeaderColumns, Payload
from lograft.wire.errors import CorruptBatchError, UnsupportedBatchError
from lograft.wire.filler import filler_fault
from lograft.wire.header import BatchHeader, iter_batches, read_header
from lograft.wire.limits import HEADER_BYTES, MAGIC, MAX_OFFSET, MAX_RECORDS_PER_BATCH

if TYPE_CHECKING:
    from lograft.wire.arrow import ArrowRecordBatch

HeaderTuple: TypeAlias = tuple[tuple[str, bytes | None], ...]

_new_tuple = cast("Callable[[type[BatchRecord], tuple[object, ...]], BatchRecord]", tuple.__dict__["__new__"])


class BatchRecord(NamedTuple):
    """One record of a batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: HeaderTuple


class RecordBatch:
    """One record batch inside a buffer. The buffer must not change while this object lives.

    Args:
        buffer: bytes that hold the batch.
        position: where the batch starts.
        verify_crc: check the CRC-32C now.

    Raises:
        CorruptBatchError: the batch is cut off, has an impossible size or count, or its CRC does not match.
        UnsupportedBatchError: the batch has another magic number.
    """

    __slots__ = ("_are_timestamps_checked", "_batch", "_payload", "header")

    header: BatchHeader

    def __init__(self, buffer: BytesLike, position: int = 0, *, verify_crc: bool = True) -> None:
        header = read_header(buffer, position)
        if header.magic != MAGIC:
            raise UnsupportedBatchError(f"the batch has magic {header.magic}, this version reads {MAGIC}")
        size_bytes = header.size_bytes
        if not HEADER_BYTES <= size_bytes <= len(buffer) - position:
            raise CorruptBatchError(f"the batch claims {size_bytes} bytes, {len(buffer) - position} are there")
        self._batch = memoryview(buffer)[position : position + size_bytes]
        if verify_crc:
            check_crc(self._batch, header)
        if header.is_filler:
            fault = filler_fault(header)
            if fault is not None:
                raise CorruptBatchError(f"the batch claims 0 records, but has {fault}")
        elif not 1 <= header.record_count <= MAX_RECORDS_PER_BATCH:
            raise CorruptBatchError(f"the batch claims {header.record_count} records")
        if not 0 <= header.base_offset <= MAX_OFFSET - max(0, header.last_offset_delta):
            raise CorruptBatchError(f"the batch claims offsets from {header.base_offset} on")
        self.header = header
        self._payload: Payload | None = None
        self._are_timestamps_checked = False

    @property
    def record_count(self) -> int:
        """Number of records; 0 for a filler, whose records compaction removed."""
        return self.header.record_count

    @property
    def base_offset(self) -> int:
        """Offset of the first record, or of an earlier one that compaction removed."""
        return self.header.base_offset

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self.header.next_offset

    @property
    def payload(self) -> Payload:
        """The columns of the batch."""
        payload = self._payload
        if payload is None:
            payload = open_payload(self._batch, self.header)
            check_offsets(self.header, payload.offset_deltas)
            self._payload = payload
        return payload

    def values(self) -> list[bytes | None]:
        """Return the values; None is a null."""
        return self.payload.values.to_list()

    def keys(self) -> list[bytes | None]:
        """Return the keys; None for a record without a key."""
        keys = self.payload.keys
        return [None] * self.record_count if keys is None else keys.to_list()

    def timestamps_ms(self) -> list[int]:
        """Return the timestamps in milliseconds since 1970-01-01 UTC."""
        deltas_ms = self.payload.timestamp_deltas_ms
        base_ms = self.header.base_timestamp_ms
        check_timestamps(self.header, deltas_ms)
        return [base_ms + delta_ms for delta_ms in deltas_ms] if deltas_ms else [base_ms] * self.record_count

    def offsets(self) -> Sequence[int]:
        """Return the offsets: a range unless compaction left gaps."""
        deltas = self.payload.offset_deltas
        base_offset = self.header.base_offset
        return (
            [base_offset + delta for delta in deltas] if deltas else range(base_offset, base_offset + self.record_count)
        )

    def headers(self) -> list[HeaderTuple]:
        """Return the headers of each record as (key, value) pairs in order. A value of None is a null."""
        headers = self.payload.headers
        return [()] * self.record_count if headers is None else _group_headers(headers)

    def records(self) -> list[BatchRecord]:
        """Return each record as one tuple. This is the slowest form (about 200 ns a record)."""
        columns = zip(self.offsets(), self.timestamps_ms(), self.keys(), self.values(), self.headers(), strict=True)
        # tuple.__new__ through map keeps the loop in C. BatchRecord(...) would cost a Python call for each record.
        return list(map(_new_tuple, repeat(BatchRecord), columns))

    def index_of(self, offset: int) -> int:
        """Return the index of the first record at or after this offset; `record_count` if none exists."""
        deltas = self.payload.offset_deltas
        delta = max(0, offset - self.header.base_offset)
        return bisect_left(deltas, delta) if deltas else min(delta, self.record_count)

    def count_within(self, first: int, *, max_records: int, max_bytes: int) -> int:
        """Return how many records from index `first` on stay within the limits with their keys and values. Both limits are inclusive.

        The result is 0 if the first of them is larger. The method reads only lengths.
        """
        count = min(max_records, self.record_count - first)
        payload = self.payload
        sizes: Iterable[int] = payload.values.lengths_of(first, count)
        if payload.keys is not None:
            sizes = map(add, sizes, payload.keys.lengths_of(first, count))
        return bisect_right(list(accumulate(sizes)), max_bytes)

    def piece(self, first: int, count: int) -> list[BatchRecord]:
        """Return records `first` to `first + count` (exclusive), which must exist. Nothing of the other records is copied."""
        if not self._are_timestamps_checked:
            check_timestamps(self.header, self.payload.timestamp_deltas_ms)
            self._are_timestamps_checked = True
        piece = self.payload.piece(first, count)
        base_offset, base_ms = self.header.base_offset, self.header.base_timestamp_ms
        keys = repeat(None, count) if piece.keys is None else piece.keys.to_list()
        headers = repeat((), count) if piece.headers is None else _group_headers(piece.headers)
        columns = zip(
            [base_offset + delta for delta in piece.offset_deltas],
            [base_ms + delta_ms for delta_ms in piece.timestamp_deltas_ms or repeat(0, count)],
            keys,
            piece.values.to_list(),
            headers,
            strict=True,
        )
        return list(map(_new_tuple, repeat(BatchRecord), columns))

    def to_arrow(self, *, include_headers: bool = False, columns: Collection[str] | None = None) -> ArrowRecordBatch:
        """Return the columns as a `pyarrow.RecordBatch`, nearly without a copy. `arrow.py` has the schema.

        Args:
            include_headers: add the column `headers`.
            columns: names of the columns to build, at least one; None builds all.

        Raises:
            ImportError: pyarrow is not installed.
        """
        from lograft.wire.arrow import columns_to_arrow

        return columns_to_arrow(self.header, self.payload, include_headers=include_headers, columns=columns)


def read_batches(region: BytesLike, *, verify_crc: bool = True) -> Iterator[RecordBatch]:
    """Read whole batches that follow one another, such as the body of a fetch chunk.

    Raises:
        BatchError: as `RecordBatch` and `iter_batches`.
    """
    for position, _ in iter_batches(region):
        yield RecordBatch(region, position, verify_crc=verify_crc)


def _group_headers(headers: HeaderColumns) -> list[HeaderTuple]:
    pairs = zip(headers.keys, headers.values_with_nulls(), strict=True)
    return [tuple(islice(pairs, count)) for count in headers.counts]

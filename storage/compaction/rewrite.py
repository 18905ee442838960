# SPDX-License-Identifier: Apache-2.0
"""Rewrites one batch with the records that stay. Pure.

Laws
    A batch that loses nothing stays the same, byte for byte. A batch that loses records keeps its base offset, last
    offset, sequence numbers, leader epoch and codec. Every record that stays keeps its key, value, headers, timestamp
    and offset. A batch that loses all records becomes a filler. Fillers cover exactly the offsets of the batches that
    they replace.
    Neighbouring fillers become one if they have the same leader epoch (so that batch headers still show where an epoch
    begins) and none of them remembers the sequence numbers of a producer.

Design
    The code works on columns. Items of one length are rows of a table, and numpy copies those that stay. Items of
    several lengths are copied in runs of neighbouring records, each run one slice of the column. No value becomes an
    object. The delete horizon replaces the base timestamp (attribute bit 6), and the timestamp deltas are relative to
    it, so that readers need not know about it.

Source: docs/storage.md section 6; KIP-534; Kafka, MemoryRecords.filterTo.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, compress, repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from lograft.v1.records_pb2 import Records
from lograft.wire.checksum import BytesLike
from lograft.wire.columns import BytesColumn, Payload
from lograft.wire.encoded import EncodedBatch
from lograft.wire.encoder import (
    KEY_FIELDS,
    VALUE_FIELDS,
    ColumnFields,
    append_column,
    append_header_columns,
    append_timestamps,
    compose,
)
from lograft.wire.filler import MAX_FILLER_OFFSETS, encode_filler
from lograft.wire.header import DELETE_HORIZON_BIT, BatchHeader

_Flags = npt.NDArray[np.bool_]
"""True for each record that stays."""


def rewrite_batch(
    header: BatchHeader, payload: Payload, stays: bytearray, *, delete_horizon_ms: int | None
) -> EncodedBatch | None:
    """Return a batch with only some of its records; None if nothing changes.

    Args:
        header: the header of a batch whose CRC was checked.
        payload: its columns.
        stays: 1 for each record that stays (at least one), 0 for each other; one entry for each record.
        delete_horizon_ms: time from which its tombstones may be removed; None: no horizon.

    Raises:
        BatchTooLargeError: the column of offset deltas makes the batch larger than the limit.
    """
    assert len(stays) == header.record_count, f"{len(stays)} decisions for {header.record_count} records"
    record_count = stays.count(1)
    assert record_count > 0, f"no record of the batch at {header.base_offset} stays: it becomes a filler"
    if record_count == header.record_count and delete_horizon_ms == header.delete_horizon_ms:
        return None
    parts: list[BytesLike] = []
    is_left = np.frombuffer(stays, np.bool_)
    _append_column(parts, VALUE_FIELDS, payload.values, is_left)
    # If no remaining record has a key, there is no column of keys.
    if payload.keys is not None and len(_nulls_of(payload.keys, is_left)) < record_count:
        _append_column(parts, KEY_FIELDS, payload.keys, is_left)
    base_ms = header.base_timestamp_ms if delete_horizon_ms is None else delete_horizon_ms
    max_ms = _append_timestamps(parts, header, payload, stays, base_ms)
    if record_count != header.last_offset_delta + 1:
        deltas = compress(payload.offset_deltas, stays) if payload.offset_deltas else np.flatnonzero(is_left).tolist()
        parts.append(Records(offset_deltas=deltas).SerializeToString())
    _append_headers(parts, payload, stays)
    attributes = header.attributes & ~DELETE_HORIZON_BIT
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    rewritten = header._replace(
        attributes=attributes, base_timestamp_ms=base_ms, max_timestamp_ms=max_ms, record_count=record_count
    )
    return compose(parts, rewritten)


def _append_column(parts: list[BytesLike], fields: ColumnFields, column: BytesColumn, is_left: _Flags) -> None:
    """Append the remaining items of a column of byte strings."""
    blob, lengths, length = column.blob, column.lengths, column.uniform_length
    left: BytesLike
    if lengths is None:
        assert length is not None
        packed_lengths = length.to_bytes(4, "little") * int(np.count_nonzero(is_left))
        left = _rows_left(blob, length, is_left) if length else b""
    else:
        each = np.frombuffer(lengths, np.dtype("<u4"))
        packed_lengths = each[is_left].tobytes()
        left = _runs_left(blob, each, is_left)
    append_column(parts, fields, left, packed_lengths, _nulls_of(column, is_left))


def _rows_left(blob: memoryview, length: int, is_left: _Flags) -> memoryview:
    """Return the remaining items, all of one length."""
    rows = np.frombuffer(blob, _row_of(length))
    return rows.compress(is_left).view(np.uint8).data


@lru_cache(maxsize=64)
def _row_of(length: int) -> np.dtype[np.void]:
    return np.dtype(f"V{length}")


def _runs_left(blob: memoryview, lengths: npt.NDArray[np.uint32], is_left: _Flags) -> bytes:
    """Return the remaining items, of several lengths."""
    edges = np.flatnonzero(np.diff(is_left, prepend=False, append=False))
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    positions = ends[edges].tolist()
    return b"".join([blob[start:end] for start, end in zip(positions[::2], positions[1::2], strict=True)])


def _nulls_of(column: BytesColumn, is_left: _Flags) -> list[int]:
    """Return the indexes of a column's nulls among the remaining records, ascending."""
    if not column.nulls:
        return []
    is_null = np.zeros(len(is_left), np.bool_)
    is_null[column.nulls] = True
    return np.flatnonzero(is_null[is_left]).tolist()


def _append_timestamps(
    parts: list[BytesLike], header: BatchHeader, payload: Payload, stays: bytearray, base_ms: int
) -> int:
    """Append the timestamps relative to another base; return the largest one."""
    moved_ms = header.base_timestamp_ms - base_ms
    if not payload.timestamp_deltas_ms and moved_ms == 0:
        return base_ms
    if payload.timestamp_deltas_ms:
        deltas_ms = [delta_ms + moved_ms for delta_ms in compress(payload.timestamp_deltas_ms, stays)]
    else:
        deltas_ms = [moved_ms] * stays.count(1)
    if any(deltas_ms):
        append_timestamps(parts, deltas_ms)
    return base_ms + max(deltas_ms)


def _append_headers(parts: list[BytesLike], payload: Payload, stays: bytearray) -> None:
    """Append the headers of the remaining records."""
    headers = payload.headers
    if headers is None:
        return
    header_stays = list(chain.from_iterable(map(repeat, stays, headers.counts)))
    append_header_columns(
        parts,
        list(compress(headers.counts, stays)),
        list(compress(headers.keys, header_stays)),
        list(compress(headers.values_with_nulls(), header_stays)),
    )


def memory_filler(header: BatchHeader) -> bytearray:
    """Return the filler that keeps producer, sequences and largest timestamp of a batch without remaining records."""
    return encode_filler(
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        leader_epoch=header.leader_epoch,
        timestamp_ms=header.max_timestamp_ms,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


class Filled(NamedTuple):
    """A filler for a gap, and whether the source already has exactly these bytes."""

    filler: bytearray
    is_unchanged: bool


class GapFiller:
    """Collects neighbouring batches without records, and makes one filler for as many of them as possible."""

    __slots__ = ("_end_offset", "_first", "_is_unchanged")

    def __init__(self) -> None:
        self._first: BatchHeader | None = None
        self._end_offset = 0
        self._is_unchanged = False

    def add(self, header: BatchHeader) -> Filled | None:
        """Add a batch to the gap; if it does not fit, start a new gap and return the filler of the previous one."""
        first = self._first
        if first is not None:
            assert header.base_offset == self._end_offset, f"{header.base_offset} after {self._end_offset}"
            fits = header.next_offset - first.base_offset <= MAX_FILLER_OFFSETS
            if header.leader_epoch == first.leader_epoch and fits:
                self._end_offset = header.next_offset
                self._is_unchanged = False
                return None
        filled = self.take()
        self._first = header
        self._end_offset = header.next_offset
        self._is_unchanged = header.is_filler and not header.has_producer and header.max_timestamp_ms == 0
        return filled

    def take(self) -> Filled | None:
        """Return the filler of the gap so far, or None, and start a new gap."""
        first = self._first
        if first is None:
            return None
        self._first = None
        filler = encode_filler(
            base_offset=first.base_offset,
            last_offset_delta=self._end_offset - 1 - first.base_offset,
            leader_epoch=first.leader_epoch,
        )
        return Filled(filler, self._is_unchanged)

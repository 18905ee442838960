# SPDX-License-Identifier: Apache-2.0
"""One batch and which of its records stay -> the bytes that take its place. Pure.

Laws
    A batch that loses nothing is given back byte for byte. One that loses records keeps its base offset, last offset, sequence
    numbers, leader epoch, codec, and key, value, headers, timestamp and offset of every record that stays. What loses all
    becomes a filler; the fillers cover exactly the offsets of the batches that they replace.
    Neighbouring fillers are one, if they have one leader epoch (so that batch headers alone still tell where an epoch begins)
    and none of them is the memory of a producer's sequence numbers.

Theory
    Works on columns, and in runs of neighbouring records that stay: one run is one slice of a column, whatever its records
    are, so that no object is made of any value. The delete horizon takes the place of the base timestamp (attribute bit 6), and
    the timestamp deltas are laid out relative to it, so that a reader needs to know nothing of it.

Source: docs/storage.md section 6; KIP-534; Kafka, MemoryRecords.filterTo.
"""

from __future__ import annotations

import re
from itertools import accumulate, chain, compress, repeat
from typing import NamedTuple

from lograft.v1.records_pb2 import Records
from lograft.wire.checksum import BytesLike
from lograft.wire.columns import BytesColumn, Payload
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

_RUN = re.compile(b"\x01+")
"""Neighbouring records that stay."""


def rewrite_batch(
    batch: BytesLike, header: BatchHeader, payload: Payload, stays: bytearray, *, delete_horizon_ms: int | None
) -> BytesLike:
    """Return the bytes of a batch that keeps some of its records.

    Args:
        batch: its bytes, with a CRC that was checked.
        header: its header.
        payload: its columns.
        stays: 1 for each record that stays, at least one, 0 for each other; as long as the batch has records.
        delete_horizon_ms: time from which its tombstones may go; None: it has none any more.

    Returns:
        `batch` itself if nothing changes.

    Raises:
        BatchTooLargeError: the columns that record the gaps make it larger than a batch may be.
    """
    assert len(stays) == header.record_count, f"{len(stays)} decisions for {header.record_count} records"
    record_count = stays.count(1)
    assert record_count > 0, f"no record of the batch at {header.base_offset} stays: it becomes a filler"
    if record_count == header.record_count and delete_horizon_ms == header.delete_horizon_ms:
        return batch
    parts: list[BytesLike] = []
    runs = [found.span() for found in _RUN.finditer(stays)]
    _append_column(parts, VALUE_FIELDS, payload.values, stays, runs)
    # Every record that is left may be one without a key: then there is no column of keys.
    if payload.keys is not None and len(_nulls_of(payload.keys, stays)) < record_count:
        _append_column(parts, KEY_FIELDS, payload.keys, stays, runs)
    base_ms = header.base_timestamp_ms if delete_horizon_ms is None else delete_horizon_ms
    max_ms = _append_timestamps(parts, header, payload, stays, base_ms)
    if record_count != header.last_offset_delta + 1:
        deltas = payload.offset_deltas or range(header.record_count)
        parts.append(Records(offset_deltas=compress(deltas, stays)).SerializeToString())
    _append_headers(parts, payload, stays)
    attributes = header.attributes & ~DELETE_HORIZON_BIT
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
    rewritten = header._replace(
        attributes=attributes, base_timestamp_ms=base_ms, max_timestamp_ms=max_ms, record_count=record_count
    )
    return compose(parts, rewritten).join()


def _append_column(
    parts: list[BytesLike], fields: ColumnFields, column: BytesColumn, stays: bytearray, runs: list[tuple[int, int]]
) -> None:
    """Append what stays of a column of byte strings."""
    blob, lengths, length = column.blob, column.lengths, column.uniform_length
    if lengths is None:
        assert length is not None
        packed_lengths = length.to_bytes(4, "little") * stays.count(1)
        pieces = [blob[start * length : end * length] for start, end in runs]
    else:
        packed_lengths = b"".join([lengths[start:end] for start, end in runs])
        positions = list(accumulate(lengths, initial=0))
        pieces = [blob[positions[start] : positions[end]] for start, end in runs]
    append_column(parts, fields, b"".join(pieces), packed_lengths, _nulls_of(column, stays))


def _nulls_of(column: BytesColumn, stays: bytearray) -> list[int]:
    """Return the indexes that the nulls of a column have among the records that stay, ascending."""
    if not column.nulls:
        return []
    nulls = set(column.nulls)
    return [new for new, old in enumerate(compress(range(len(stays)), stays)) if old in nulls]


def _append_timestamps(
    parts: list[BytesLike], header: BatchHeader, payload: Payload, stays: bytearray, base_ms: int
) -> int:
    """Append the timestamps relative to another base, and return the largest one."""
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
    """Append the headers of the records that stay."""
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
    """Return the filler that keeps producer, sequences and largest timestamp of a batch whose records all go."""
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
    """A filler for a gap, and whether exactly these bytes stood there before."""

    filler: bytearray
    is_unchanged: bool


class GapFiller:
    """Collects neighbouring batches without records, and gives one filler for as many of them as possible."""

    __slots__ = ("_end_offset", "_first", "_is_unchanged")

    def __init__(self) -> None:
        self._first: BatchHeader | None = None
        self._end_offset = 0
        self._is_unchanged = False

    def add(self, header: BatchHeader) -> Filled | None:
        """Take up a batch that becomes a gap; return the filler of the gap before it if the two cannot be one."""
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
        """Return the filler of the gap so far, if there is one, and begin anew."""
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

# SPDX-License-Identifier: Apache-2.0
"""Batches of the log to pieces with records, and records to batches. Bytes only: no log, no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lograft.wire.batch import RecordBatch, encode_batch, read_batches
from lograft.wire.checksum import BytesLike

from brokerd.coordinator.core import Record
from brokerd.coordinator.prefix import LogPiece


def encode_append(records: Sequence[Record], *, timestamp_ms: int) -> bytearray:
    """Encode the records of one append as a batch.

    Args:
        records: at least one.
        timestamp_ms: time of the append in milliseconds since 1970, for all of them.

    Raises:
        BatchError: they do not fit into a batch.
    """
    return encode_batch(
        [record.value for record in records], keys=[record.key for record in records], timestamps_ms=timestamp_ms
    )


def read_pieces(region: BytesLike) -> Iterator[LogPiece]:
    """Yield each batch of a region as a piece.

    Records without a key, and control records, are not a coordinator's. They are left out, so they count as gaps.

    Raises:
        BatchError: the bytes are not whole, valid batches.
    """
    for batch in read_batches(region):
        yield _piece(batch)


def _piece(batch: RecordBatch) -> LogPiece:
    header = batch.header
    base_offset, next_offset = header.base_offset, header.next_offset
    if header.is_filler or header.is_control:
        return LogPiece(base_offset, next_offset, (), ())
    offsets, keys, values = batch.offsets(), batch.keys(), batch.values()
    if None not in keys:
        return LogPiece(base_offset, next_offset, offsets, list(map(Record, keys, values)))  # type: ignore[arg-type]
    kept = [
        (offset, Record(key, value))
        for offset, key, value in zip(offsets, keys, values, strict=True)
        if key is not None
    ]
    return LogPiece(base_offset, next_offset, [each[0] for each in kept], [each[1] for each in kept])

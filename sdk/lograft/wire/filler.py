# SPDX-License-Identifier: Apache-2.0
"""Fillers: batches without records that cover offsets whose records compaction removed.

A filler is a header with `record_count` 0, no payload and no attributes. A reader continues at its next offset. If it has a
producer, it also keeps that producer's sequence numbers. Its two timestamps are equal: the largest one of its former records,
or 0.

Law: clients never send fillers (`check_batch` refuses them without `allow_compacted`).
Source: docs/storage.md section 6; docs/storage_format.md section 2.1.
"""

from __future__ import annotations

from lograft.wire.checksum import crc32c
from lograft.wire.header import CRC_START, LENGTH_END, BatchHeader, write_header
from lograft.wire.limits import HEADER_BYTES, MAGIC, MAX_TIMESTAMP_MS

MAX_FILLER_OFFSETS = 2**31 - 1
"""Most offsets that one filler covers."""


def encode_filler(
    *,
    base_offset: int,
    last_offset_delta: int,
    leader_epoch: int,
    timestamp_ms: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Encode a filler.

    Args:
        base_offset: first offset that the filler covers, inclusive.
        last_offset_delta: last offset that it covers, inclusive, minus `base_offset`; at most `MAX_FILLER_OFFSETS` - 1.
        leader_epoch: leader epoch of all the removed records.
        timestamp_ms: largest timestamp of these records in milliseconds, or 0.
        producer_id: producer whose sequence numbers the filler keeps; -1, like the next two, for none.
        producer_epoch: see `producer_id`.
        base_sequence: see `producer_id`.
    """
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_BYTES - LENGTH_END,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=0,
    )
    fault = filler_fault(header)
    assert fault is None, f"a filler with {fault}"
    filler = bytearray(HEADER_BYTES)
    write_header(filler, header)
    write_header(filler, header._replace(crc=crc32c(memoryview(filler)[CRC_START:])))
    return filler


def filler_fault(header: BatchHeader) -> str | None:
    """Return what makes a header with `record_count` 0 no filler; None if it is a filler."""
    if header.size_bytes != HEADER_BYTES:
        return f"a payload of {header.size_bytes - HEADER_BYTES} bytes"
    if header.attributes:
        return f"attributes {header.attributes & 0xFFFF:#06x}"
    if not 0 <= header.last_offset_delta < MAX_FILLER_OFFSETS:
        return f"last offset delta {header.last_offset_delta}"
    if header.base_timestamp_ms != header.max_timestamp_ms:
        return f"timestamps {header.base_timestamp_ms} and {header.max_timestamp_ms}"
    if not 0 <= header.max_timestamp_ms <= MAX_TIMESTAMP_MS:
        return f"timestamp {header.max_timestamp_ms}"
    return None

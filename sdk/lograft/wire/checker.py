# SPDX-License-Identifier: Apache-2.0
"""Checks a record batch from a client before anything of it is kept.

Law: a batch that passes cannot break a reader. Every accessor of `RecordBatch` works on it and returns `record_count` entries,
and the batch covers exactly the offsets of its header. Whatever the bytes are, the result is a header or a `BatchError`, within
bounded memory.
Cost: about 40 us for 256 KB of 100-byte records. It loops over records in Python only if timestamps or record headers differ.
Source: docs/storage_format.md section 2.1; Kafka, LogValidator.
"""

from __future__ import annotations

from collections.abc import Sequence

from lograft.wire.checksum import BytesLike, crc32c
from lograft.wire.columns import BytesColumn, Payload, empty_payload, parse_keys, parse_payload
from lograft.wire.compression import Codec, inflate
from lograft.wire.errors import (
    BatchTooLargeError,
    CorruptBatchError,
    InvalidBatchError,
    UnsupportedBatchError,
)
from lograft.wire.filler import filler_fault
from lograft.wire.header import CODEC_MASK, CONTROL_BIT, CRC_START, DELETE_HORIZON_BIT, BatchHeader, read_header
from lograft.wire.limits import (
    HEADER_BYTES,
    KAFKA_MAGIC,
    MAGIC,
    MAX_INFLATED_BYTES,
    MAX_OFFSET,
    MAX_RECORDS_PER_BATCH,
    MAX_TIMESTAMP_MS,
)

_KNOWN_ATTRIBUTES = CODEC_MASK | CONTROL_BIT


def check_batch(
    batch: BytesLike,
    *,
    max_bytes: int,
    max_inflated_bytes: int = MAX_INFLATED_BYTES,
    allow_control: bool = False,
    allow_compacted: bool = False,
) -> BatchHeader:
    """Check that the bytes are exactly one whole, valid batch.

    Args:
        batch: the bytes.
        max_bytes: largest batch with its header, inclusive (the topic's `max.message.bytes`).
        max_inflated_bytes: largest payload after decompression, inclusive.
        allow_control: accept batches with the control bit, which clients must not send.
        allow_compacted: accept the results of compaction (offset deltas, a delete horizon, fillers), which clients must not
            send.

    Returns:
        The header.

    Raises:
        BatchTooLargeError: the batch exceeds `max_bytes`, or its payload `max_inflated_bytes`.
        CorruptBatchError: the CRC does not match.
        UnsupportedBatchError: this version does not support the magic, the codec, an attribute or a payload field.
        InvalidBatchError: the batch breaks another rule; the message says which.
    """
    if len(batch) > max_bytes:
        raise BatchTooLargeError(f"the batch has {len(batch)} bytes, the limit is {max_bytes}: send smaller batches")
    header = _check_envelope(batch)
    check_crc(batch, header)
    _check_attributes(header, allow_control, allow_compacted)
    _check_counts(header, allow_compacted)
    _check_producer(header)
    payload = open_payload(batch, header, max_inflated_bytes=max_inflated_bytes)
    if payload.offset_deltas and not allow_compacted:
        raise InvalidBatchError("clients may not send offset deltas: offsets of a new batch have no gaps")
    check_offsets(header, payload.offset_deltas)
    check_timestamps(header, payload.timestamp_deltas_ms)
    return header


def check_crc(batch: BytesLike, header: BatchHeader) -> None:
    """Check the CRC-32C of one whole batch.

    Raises:
        CorruptBatchError: the bytes from the attributes on do not match the CRC in the header.
    """
    computed = crc32c(memoryview(batch)[CRC_START : header.size_bytes])
    if computed != header.crc:
        raise CorruptBatchError(f"the CRC-32C of the batch is {computed:#010x}, its header says {header.crc:#010x}")


def open_payload(batch: BytesLike, header: BatchHeader, *, max_inflated_bytes: int = MAX_INFLATED_BYTES) -> Payload:
    """Decompress and parse the payload of one whole batch. A filler gives empty columns.

    Raises:
        BatchError: the payload does not match the header.
    """
    if header.is_filler:
        return empty_payload()
    return parse_payload(_inflated(batch, header, max_inflated_bytes), header.record_count)


def open_keys(
    batch: BytesLike, header: BatchHeader, *, max_inflated_bytes: int = MAX_INFLATED_BYTES
) -> BytesColumn | None:
    """Decompress the payload of one whole batch of records and parse only its keys; None when no record has a key.

    Raises:
        BatchError: the payload does not match the header, as far as the keys show.
    """
    return parse_keys(_inflated(batch, header, max_inflated_bytes), header.record_count)


def _inflated(batch: BytesLike, header: BatchHeader, max_inflated_bytes: int) -> BytesLike:
    view = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return view if header.codec is Codec.NONE else inflate(view, max_inflated_bytes)


def check_timestamps(header: BatchHeader, deltas_ms: Sequence[int]) -> None:
    """Check that all timestamps are in range and that the largest equals the one in the header.

    Raises:
        InvalidBatchError: a timestamp is out of range, or the largest differs.
    """
    smallest, largest = (min(deltas_ms), max(deltas_ms)) if deltas_ms else (0, 0)
    base_ms = header.base_timestamp_ms
    # The base is checked separately, because it need not be the timestamp of a record.
    if not 0 <= base_ms <= MAX_TIMESTAMP_MS or base_ms + smallest < 0 or base_ms + largest > MAX_TIMESTAMP_MS:
        raise InvalidBatchError(
            f"timestamps {base_ms + smallest} to {base_ms + largest} (base {base_ms}) "
            f"are not within 0 to {MAX_TIMESTAMP_MS} ms"
        )
    if base_ms + largest != header.max_timestamp_ms:
        raise InvalidBatchError(
            f"the largest timestamp is {base_ms + largest}, the header says {header.max_timestamp_ms}"
        )


def check_offsets(header: BatchHeader, offset_deltas: Sequence[int]) -> None:
    """Check that offset deltas, which are strictly ascending if there are any, match the last offset delta of the header.

    Raises:
        InvalidBatchError: they do not match.
    """
    last = header.last_offset_delta
    if header.is_filler:
        # A filler covers any number of offsets.
        return
    if offset_deltas:
        if offset_deltas[-1] > last:
            raise InvalidBatchError(f"offset delta {offset_deltas[-1]} is beyond the last offset delta {last}")
    elif last != header.record_count - 1:
        raise InvalidBatchError(f"last offset delta {last} does not fit {header.record_count} records without gaps")


def _check_envelope(batch: BytesLike) -> BatchHeader:
    """Check by size and magic that the bytes are one batch of Lograft's format."""
    if len(batch) < HEADER_BYTES:
        raise InvalidBatchError(f"a batch has at least {HEADER_BYTES} bytes, this one {len(batch)}")
    header = read_header(batch)
    if header.magic == KAFKA_MAGIC:
        raise UnsupportedBatchError(f"magic {KAFKA_MAGIC} (Kafka's row payload) is not supported: send magic {MAGIC}")
    if header.magic != MAGIC:
        raise UnsupportedBatchError(f"magic {header.magic} is not supported: send magic {MAGIC}")
    if header.size_bytes != len(batch):
        raise InvalidBatchError(f"the header claims a batch of {header.size_bytes} bytes, {len(batch)} came")
    return header


def _check_attributes(header: BatchHeader, allow_control: bool, allow_compacted: bool) -> None:
    known = _KNOWN_ATTRIBUTES | DELETE_HORIZON_BIT if allow_compacted else _KNOWN_ATTRIBUTES
    unknown_bits = header.attributes & ~known
    if unknown_bits:
        raise UnsupportedBatchError(f"attribute bits {unknown_bits & 0xFFFF:#06x} are not supported: leave them zero")
    if header.is_control and not allow_control:
        raise InvalidBatchError("clients may not send control batches")


def _check_counts(header: BatchHeader, allow_compacted: bool) -> None:
    if header.is_filler and allow_compacted:
        fault = filler_fault(header)
        if fault is not None:
            raise InvalidBatchError(f"a batch without records has {fault}")
    elif not 1 <= header.record_count <= MAX_RECORDS_PER_BATCH:
        raise InvalidBatchError(
            f"a batch has 1 to {MAX_RECORDS_PER_BATCH} records, this one claims {header.record_count}"
        )
    if not 0 <= header.base_offset <= MAX_OFFSET - max(0, header.last_offset_delta):
        raise InvalidBatchError(f"offsets from {header.base_offset} on are not within 0 to {MAX_OFFSET}")


def _check_producer(header: BatchHeader) -> None:
    identity = (header.producer_id, header.producer_epoch, header.base_sequence)
    if min(identity) < 0 and identity != (-1, -1, -1):
        raise InvalidBatchError(
            f"producer id, epoch and base sequence are {identity}: they must be all 0 or more, or all -1"
        )

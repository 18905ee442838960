# SPDX-License-Identifier: Apache-2.0
"""Encodes record batches.

The large columns are written by hand (tag, length, bytes), so that blobs are copied once. The varint columns go through the
generated encoder. Fields ascend, so that every reader takes its fast path, and the generated code parses the result in the same
way. The encoder reads no clock: callers give the timestamps. Cost: 20-50 ns a record without keys. Source:
proto/lograft/v1/records.proto.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias, cast

from lograft.v1.records_pb2 import Records
from lograft.wire import columns
from lograft.wire.checksum import BytesLike
from lograft.wire.compression import Codec, compress
from lograft.wire.encoded import EncodedBatch
from lograft.wire.errors import BatchTooLargeError, InvalidBatchError
from lograft.wire.header import CONTROL_BIT, BatchHeader
from lograft.wire.limits import (
    MAGIC,
    MAX_BATCH_BYTES,
    MAX_GENERIC_PAYLOAD_BYTES,
    MAX_INFLATED_BYTES,
    MAX_RECORDS_PER_BATCH,
    MAX_TIMESTAMP_MS,
)
from lograft.wire.varint import encode_varint

RecordHeaders: TypeAlias = Sequence[tuple[str, bytes | None]]
"""Headers of one record, in order. Keys may repeat; a value of None is a null."""

_UINT32 = struct.Struct("<I")

assert array("I").itemsize == 4, array("I").itemsize


class ColumnFields(NamedTuple):
    """Tags of the fields of one column of byte strings."""

    blob_tag: bytes
    lengths_tag: bytes
    uniform_tag: bytes
    nulls_tag: bytes


def _tag(field: int, wire_type: int) -> bytes:
    return encode_varint(field << 3 | wire_type)


VALUE_FIELDS: Final = ColumnFields(
    _tag(columns.VALUES, 2), _tag(columns.VALUE_LENGTHS, 2), _tag(columns.VALUE_LENGTH, 5), _tag(columns.NULL_VALUES, 2)
)
KEY_FIELDS: Final = ColumnFields(
    _tag(columns.KEYS, 2), _tag(columns.KEY_LENGTHS, 2), _tag(columns.KEY_LENGTH, 5), _tag(columns.NULL_KEYS, 2)
)


def compose_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_ms: int | Sequence[int] | None = None,
    headers: Sequence[RecordHeaders] | None = None,
    offset_deltas: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    control: bool = False,
    base_offset: int = 0,
    leader_epoch: int = 0,
    value_lengths: Sequence[int] | None = None,
    key_lengths: Sequence[int] | None = None,
) -> EncodedBatch:
    """Encode records into one batch that is still in pieces.

    Args:
        values: one value for each record. None is a null (a tombstone), which differs from an empty value.
        keys: one key for each record, None for a record without a key. Without `keys`, no record has a key.
        timestamps_ms: milliseconds since 1970-01-01 UTC, 0 to `MAX_TIMESTAMP_MS`: one for all records, or one for each. None
            stands for 0, because this function reads no clock.
        headers: headers of each record; None when no record has any.
        offset_deltas: offset of each record minus `base_offset`, ascending; only for compacted batches. None means no gaps.
        codec: compression of the payload.
        producer_id: producer of the batch, at least 0; -1, like the next two, for none. `stamp_producer` can set all three
            later.
        producer_epoch: see `producer_id`.
        base_sequence: see `producer_id`.
        control: set the control bit.
        base_offset: offset of the first record. The leader writes another one, and its epoch.
        leader_epoch: see `base_offset`.
        value_lengths: length of each value, if the caller knows them. No value may be None then.
        key_lengths: the same for the keys.

    Raises:
        InvalidBatchError: no or too many records, columns of different length, a timestamp out of range, or a header key that
            is not valid Unicode.
        BatchTooLargeError: the batch exceeds `MAX_BATCH_BYTES`, or its payload a limit before compression.
        TypeError: an item is not bytes.
    """
    record_count = len(values)
    check_record_count(record_count)
    parts: list[BytesLike] = []
    append_items(parts, VALUE_FIELDS, values, lengths=value_lengths)
    if keys is not None:
        _check_length("keys", keys, record_count)
        append_items(parts, KEY_FIELDS, keys, lengths=key_lengths, absent_when_all_null=True)
    base_ms, max_ms = _append_timestamps(parts, timestamps_ms, record_count)
    if offset_deltas is not None:
        _check_length("offset deltas", offset_deltas, record_count)
        parts.append(Records(offset_deltas=offset_deltas).SerializeToString())
    if headers is not None:
        _check_length("header lists", headers, record_count)
        append_headers(parts, headers)
    return compose(
        parts,
        new_header(
            record_count=record_count,
            last_offset_delta=offset_deltas[-1] if offset_deltas else record_count - 1,
            base_timestamp_ms=base_ms,
            max_timestamp_ms=max_ms,
            codec=codec,
            control=control,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
        ),
    )


def encode_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_ms: int | Sequence[int] | None = None,
    headers: Sequence[RecordHeaders] | None = None,
    offset_deltas: Sequence[int] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    control: bool = False,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> bytearray:
    """Encode records into one batch. Arguments and errors are those of `compose_batch`.

    Returns:
        Header and payload.
    """
    batch = compose_batch(
        values,
        keys=keys,
        timestamps_ms=timestamps_ms,
        headers=headers,
        offset_deltas=offset_deltas,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        control=control,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )
    return batch.join()


def new_header(
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    codec: Codec,
    control: bool,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    base_offset: int,
    leader_epoch: int,
) -> BatchHeader:
    """Return a header for `compose`, which fills in length and CRC."""
    return BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=codec | (CONTROL_BIT if control else 0),
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )


def compose(payload: list[BytesLike], header: BatchHeader) -> EncodedBatch:
    """Put a batch together.

    Args:
        payload: the pieces of the payload before compression.
        header: the header. This function applies its codec and computes its `batch_length` and `crc`.

    Raises:
        BatchTooLargeError: the batch exceeds a limit.
    """
    payload_bytes = sum(map(len, payload))
    if payload_bytes > MAX_INFLATED_BYTES:
        raise BatchTooLargeError(
            f"the payload has {payload_bytes} bytes before compression, the limit is {MAX_INFLATED_BYTES}"
        )
    if header.codec is Codec.ZSTD:
        payload = [compress(b"".join(payload))]
    batch = EncodedBatch(header, payload)
    if len(batch) > MAX_BATCH_BYTES:
        raise BatchTooLargeError(
            f"the batch has {len(batch)} bytes, the limit is {MAX_BATCH_BYTES}: use smaller batches"
        )
    return batch


def check_record_count(record_count: int) -> None:
    """Check the number of records in a batch.

    Raises:
        InvalidBatchError: the number is not within 1 to `MAX_RECORDS_PER_BATCH`.
    """
    if not 1 <= record_count <= MAX_RECORDS_PER_BATCH:
        raise InvalidBatchError(f"a batch has 1 to {MAX_RECORDS_PER_BATCH} records, not {record_count}")


def append_items(
    parts: list[BytesLike],
    fields: ColumnFields,
    items: Sequence[bytes | None],
    *,
    lengths: Sequence[int] | None = None,
    absent_when_all_null: bool = False,
) -> None:
    """Append one column of byte strings.

    Raises:
        TypeError: an item is neither bytes nor None, or `lengths` does not match the items.
    """
    nulls: list[int] = []
    present = cast("Sequence[bytes]", items)
    try:
        found = list(map(len, present)) if lengths is None else lengths
        blob = b"".join(present)
    except TypeError:
        nulls = [index for index, item in enumerate(items) if item is None]
        if absent_when_all_null and len(nulls) == len(items):
            return
        present = [b"" if item is None else item for item in items]
        found = list(map(len, present))
        blob = b"".join(present)
    is_uniform = found.count(found[0]) == len(found)
    # `len` of a view with items larger than a byte is not its size in bytes. The records would run into each other.
    if (found[0] * len(found) if is_uniform else sum(found)) != len(blob):
        raise TypeError("an item is not bytes: it has another length than its bytes")
    if is_uniform:
        _append_column(parts, fields, blob, fields.uniform_tag + _UINT32.pack(found[0]), nulls)
    else:
        packed = array("I", found).tobytes()
        _append_column(parts, fields, blob, fields.lengths_tag + encode_varint(len(packed)) + packed, nulls)


def append_column(
    parts: list[BytesLike], fields: ColumnFields, blob: BytesLike, packed_lengths: bytes, nulls: Sequence[int]
) -> None:
    """Append one column whose lengths are already packed.

    Args:
        parts: the payload so far.
        fields: tags of the column.
        blob: all items, one after the other.
        packed_lengths: length of each item as little-endian uint32, at least one.
        nulls: indexes of the null items, ascending. Their lengths are 0.
    """
    first_length = packed_lengths[:4]
    if first_length * (len(packed_lengths) // 4) == packed_lengths:
        lengths = fields.uniform_tag + first_length
    else:
        lengths = fields.lengths_tag + encode_varint(len(packed_lengths)) + packed_lengths
    _append_column(parts, fields, blob, lengths, nulls)


def _append_column(
    parts: list[BytesLike], fields: ColumnFields, blob: BytesLike, length_field: bytes, nulls: Sequence[int]
) -> None:
    # Keep the pieces few: each costs one call for the CRC.
    if blob:
        parts += (fields.blob_tag + encode_varint(len(blob)), blob, length_field)
    else:
        parts.append(length_field)
    if nulls:
        packed_nulls = b"".join(map(encode_varint, nulls))
        parts += (fields.nulls_tag, encode_varint(len(packed_nulls)), packed_nulls)


def check_timestamp_range(smallest_ms: int, largest_ms: int) -> None:
    """Check the smallest and the largest timestamp of a batch.

    Raises:
        InvalidBatchError: a timestamp is not within 0 to `MAX_TIMESTAMP_MS`.
    """
    if smallest_ms < 0 or largest_ms > MAX_TIMESTAMP_MS:
        raise InvalidBatchError(f"timestamps {smallest_ms} to {largest_ms} are not within 0 to {MAX_TIMESTAMP_MS} ms")


def append_timestamps(parts: list[BytesLike], deltas_ms: Sequence[int]) -> None:
    """Append the deltas of timestamps to the base timestamp."""
    parts.append(Records(timestamp_deltas_ms=deltas_ms).SerializeToString())


def _append_timestamps(
    parts: list[BytesLike], timestamps_ms: int | Sequence[int] | None, record_count: int
) -> tuple[int, int]:
    """Check timestamps, and append their deltas if they differ.

    Returns:
        (base timestamp, largest timestamp).
    """
    if timestamps_ms is None:
        return 0, 0
    if isinstance(timestamps_ms, int):
        check_timestamp_range(timestamps_ms, timestamps_ms)
        return timestamps_ms, timestamps_ms
    _check_length("timestamps", timestamps_ms, record_count)
    smallest_ms, largest_ms, base_ms = min(timestamps_ms), max(timestamps_ms), timestamps_ms[0]
    check_timestamp_range(smallest_ms, largest_ms)
    if smallest_ms != largest_ms:
        append_timestamps(parts, [timestamp_ms - base_ms for timestamp_ms in timestamps_ms])
    return base_ms, largest_ms


def append_headers(parts: list[BytesLike], headers: Sequence[RecordHeaders]) -> None:
    """Append the header columns; see `append_header_columns`."""
    flat = list(chain.from_iterable(headers))
    append_header_columns(parts, list(map(len, headers)), [key for key, _ in flat], [value for _, value in flat])


def append_header_columns(
    parts: list[BytesLike], counts: Sequence[int], keys: Sequence[str], values: Sequence[bytes | None]
) -> None:
    """Append the header columns, unless no record has a header.

    Args:
        parts: the payload so far.
        counts: number of headers of each record.
        keys: keys of the headers of all records, in order.
        values: values, parallel to `keys`; None is a null.

    Raises:
        InvalidBatchError: a key is not valid Unicode.
        BatchTooLargeError: the payload exceeds the limit for record headers.
    """
    if not keys:
        return
    try:
        message = Records(
            header_counts=counts,
            header_keys=keys,
            header_values=[b"" if value is None else value for value in values],
            null_header_values=[index for index, value in enumerate(values) if value is None],
        )
    except UnicodeEncodeError as error:
        raise InvalidBatchError(f"a header key is not valid Unicode: {error}") from None
    parts.append(message.SerializeToString())
    payload_bytes = sum(map(len, parts))
    if payload_bytes > MAX_GENERIC_PAYLOAD_BYTES:
        raise BatchTooLargeError(
            f"a payload with record headers has {payload_bytes} bytes before compression, "
            f"the limit is {MAX_GENERIC_PAYLOAD_BYTES}"
        )


def _check_length(name: str, column: Sequence[object], record_count: int) -> None:
    if len(column) != record_count:
        raise InvalidBatchError(f"{len(column)} {name} for {record_count} records")

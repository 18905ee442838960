# SPDX-License-Identifier: Apache-2.0
"""Encoding: decoding returns the same records, and the generated code reads the same bytes."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.v1.records_pb2 import Records
from lograft.wire.batch import (
    BatchRecord,
    Codec,
    EncodedBatch,
    RecordBatch,
    check_batch,
    compose_batch,
    encode_batch,
    read_header,
)
from lograft.wire.compression import inflate
from lograft.wire.errors import BatchError, BatchTooLargeError, InvalidBatchError
from lograft.wire.limits import (
    BATCH_OVERHEAD_BYTES,
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    MAX_GENERIC_PAYLOAD_BYTES,
    MAX_INFLATED_BYTES,
    MAX_RECORDS_PER_BATCH,
    MAX_TIMESTAMP_MS,
    RECORD_HEADER_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
)
from tests.wire.batches import Rows, examples, put, read_everything, rows, with_payload

LIMIT = MAX_BATCH_BYTES


def generated_payload(batch: bytes | bytearray) -> Records:
    """Parse the payload with only zstd and the generated code, as any language does."""
    header = read_header(batch)
    payload = bytes(batch[HEADER_BYTES:])
    return Records.FromString(inflate(payload, 1 << 26) if header.codec is Codec.ZSTD else payload)


def split(blob: bytes, lengths: Any, uniform: int | None, nulls: Any, count: int) -> list[bytes | None]:
    """Split a column in the slow, obvious way."""
    sizes = list(lengths) if uniform is None else [uniform] * count
    assert len(sizes) == count
    ends = list(accumulate(sizes))
    assert (ends[-1] if ends else 0) == len(blob)
    found: list[bytes | None] = [blob[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    for index in nulls:
        found[index] = None
    return found


@examples(300)
@given(rows())
def test_batches_round_trip(given_rows: Rows) -> None:
    """Every combination of columns and codecs passes the check and comes back through every accessor."""
    batch = encode_batch(given_rows.values, **given_rows.arguments())
    header = check_batch(batch, max_bytes=LIMIT)
    count = len(given_rows.values)
    assert (header.record_count, header.last_offset_delta, header.codec) == (count, count - 1, given_rows.codec)
    reader = RecordBatch(bytes(batch))
    keys = given_rows.keys or [None] * count
    assert reader.values() == given_rows.values
    assert reader.keys() == keys
    assert reader.timestamps_ms() == given_rows.expected_timestamps()
    assert header.max_timestamp_ms == max(reader.timestamps_ms())
    assert reader.headers() == given_rows.expected_headers()
    columns = zip(
        range(count), reader.timestamps_ms(), keys, given_rows.values, given_rows.expected_headers(), strict=True
    )
    assert reader.records() == [BatchRecord(*row) for row in columns]
    read_everything(batch)


@examples(200)
@given(rows())
def test_generated_code_reads_what_we_encode(given_rows: Rows) -> None:
    """A client in any language decodes our batches with the generated message alone."""
    count = len(given_rows.values)
    message = generated_payload(encode_batch(given_rows.values, **given_rows.arguments()))
    uniform = message.value_length if message.HasField("value_length") else None
    assert split(message.values, message.value_lengths, uniform, message.null_values, count) == given_rows.values
    if given_rows.keys is None or not any(key is not None for key in given_rows.keys):
        assert not {field.name for field, _ in message.ListFields()} & {
            "keys",
            "key_lengths",
            "key_length",
            "null_keys",
        }
    else:
        uniform = message.key_length if message.HasField("key_length") else None
        assert split(message.keys, message.key_lengths, uniform, message.null_keys, count) == given_rows.keys
    deltas = message.timestamp_deltas_ms or [0] * count
    first = given_rows.expected_timestamps()[0]
    assert [first + delta for delta in deltas] == given_rows.expected_timestamps()
    assert not message.offset_deltas
    flat = [pair for pairs in given_rows.expected_headers() for pair in pairs]
    assert list(message.header_keys) == [key for key, _ in flat]
    assert split_headers(message) == [value for _, value in flat]


def split_headers(message: Records) -> list[bytes | None]:
    """Return header values; None is a null."""
    values: list[bytes | None] = list(message.header_values)
    for index in message.null_header_values:
        values[index] = None
    return values


@examples(200)
@given(rows(), st.booleans())
def test_what_generated_code_encodes_is_read_by_us(given_rows: Rows, uniform: bool) -> None:
    """A batch whose payload the generated encoder wrote, with explicit or uniform lengths, is read with the same meaning."""
    ours = encode_batch(given_rows.values, **given_rows.arguments())
    message = generated_payload(ours)
    if not uniform:
        for name in ("value", "key"):
            if message.HasField(f"{name}_length"):
                lengths = getattr(message, f"{name}_lengths")
                lengths.extend([getattr(message, f"{name}_length")] * len(given_rows.values))
                message.ClearField(f"{name}_length")
    payload = message.SerializeToString()
    parsed = RecordBatch(encode_batch(given_rows.values, **{**given_rows.arguments(), "codec": Codec.NONE}))
    theirs = with_payload(put(ours, ">h", 21, 0), payload)
    check_batch(theirs, max_bytes=LIMIT)
    assert RecordBatch(theirs).records() == parsed.records()


@examples(100)
@given(rows())
def test_encoding_is_the_generated_one_byte_for_byte(given_rows: Rows) -> None:
    """The payload equals the generated encoder's output for the same message, so one batch has one form."""
    batch = encode_batch(given_rows.values, **{**given_rows.arguments(), "codec": Codec.NONE})
    assert generated_payload(batch).SerializeToString(deterministic=True) == batch[HEADER_BYTES:]


@examples(100)
@given(rows())
def test_size_is_bounded_by_the_stated_overheads(given_rows: Rows) -> None:
    """A client that adds up the overhead constants never seals a larger batch."""
    batch = encode_batch(given_rows.values, **{**given_rows.arguments(), "codec": Codec.NONE})
    content = sum(len(item or b"") for item in [*given_rows.values, *(given_rows.keys or [])])
    pairs = [pair for pairs in given_rows.expected_headers() for pair in pairs]
    content += sum(len(key.encode()) + len(value or b"") + RECORD_HEADER_OVERHEAD_BYTES for key, value in pairs)
    assert len(batch) <= BATCH_OVERHEAD_BYTES + content + RECORD_OVERHEAD_BYTES * len(given_rows.values)


@pytest.mark.parametrize("length", [0, 1, 100, 65_536, 65_537])
@pytest.mark.parametrize("count", [1, 255, 256, 257, 600])
def test_equal_lengths_of_any_size_are_split(length: int, count: int) -> None:
    """Equal lengths are split just below, at and above the sizes at which the method changes."""
    count = min(count, 8_000_000 // max(length, 1))
    values = [bytes([n % 251]) * length for n in range(count)]
    assert RecordBatch(encode_batch(values)).values() == values


def test_largest_record_count_passes() -> None:
    """100,000 records are one batch, with timestamps, keys and offsets."""
    count = MAX_RECORDS_PER_BATCH
    batch = encode_batch([b"v"] * count, keys=[b"%d" % n for n in range(count)], timestamps_ms=range(count))
    assert check_batch(batch, max_bytes=LIMIT).record_count == count
    assert RecordBatch(batch).timestamps_ms() == list(range(count))


@pytest.mark.parametrize("count", [0, MAX_RECORDS_PER_BATCH + 1])
def test_record_count_out_of_range_is_refused(count: int) -> None:
    """No batch has no record, or more than the limit."""
    with pytest.raises(InvalidBatchError, match="1 to 100000 records"):
        encode_batch([b""] * count)


@pytest.mark.parametrize(
    "arguments",
    [
        {"keys": [b"k"]},
        {"timestamps_ms": [1]},
        {"headers": [[]]},
        {"offset_deltas": [0]},
        {"offset_deltas": []},
    ],
)
def test_columns_of_another_length_are_refused(arguments: dict[str, Any]) -> None:
    """Every column has one entry for each value."""
    with pytest.raises(InvalidBatchError, match="for 2 records"):
        encode_batch([b"a", b"b"], **arguments)


@pytest.mark.parametrize("timestamps_ms", [-1, MAX_TIMESTAMP_MS + 1, [0, -1], [5, MAX_TIMESTAMP_MS + 1]])
def test_timestamps_out_of_range_are_refused(timestamps_ms: Any) -> None:
    """Timestamps are between 1970 and 9999, so that every reader can represent them."""
    with pytest.raises(InvalidBatchError, match="timestamps"):
        encode_batch([b"a", b"b"], timestamps_ms=timestamps_ms)


@pytest.mark.parametrize("timestamps_ms", [0, MAX_TIMESTAMP_MS, [MAX_TIMESTAMP_MS, 0]])
def test_timestamps_at_the_bounds_pass(timestamps_ms: Any) -> None:
    """Both bounds are inclusive."""
    read_everything(encode_batch([b"a", b"b"], timestamps_ms=timestamps_ms))


@pytest.mark.parametrize("values", [["text"], [1], [None, "text"]])
def test_items_that_are_not_bytes_are_a_type_error(values: Any) -> None:
    """A mistake of the caller is not a BatchError."""
    with pytest.raises(TypeError):
        encode_batch(values)


def test_header_keys_that_are_not_unicode_are_refused() -> None:
    """A lone surrogate cannot be encoded and is reported as such."""
    with pytest.raises(InvalidBatchError, match="Unicode"):
        encode_batch([b"a"], headers=[[("\ud800", b"")]])


def test_batches_over_the_hard_limit_are_refused() -> None:
    """No batch is larger than 8 MiB, or than 64 MiB before compression, or 8 MiB with headers."""
    with pytest.raises(BatchTooLargeError, match=str(MAX_BATCH_BYTES)):
        encode_batch([bytes(MAX_BATCH_BYTES)])
    piece = bytes(1 << 20)
    with pytest.raises(BatchTooLargeError, match=str(MAX_INFLATED_BYTES)):
        encode_batch([piece] * 64, codec=Codec.ZSTD)
    with pytest.raises(BatchTooLargeError, match=str(MAX_GENERIC_PAYLOAD_BYTES)):
        encode_batch([piece] * 16, headers=[[("a", b"")]] * 16, codec=Codec.ZSTD)
    largest = encode_batch([piece] * 63, codec=Codec.ZSTD)
    assert check_batch(largest, max_bytes=LIMIT).record_count == 63
    assert RecordBatch(largest).values() == [piece] * 63


def test_offset_deltas_make_a_compacted_batch() -> None:
    """Gaps of compaction are kept, and readers see the original offsets."""
    batch = encode_batch([b"a", b"b"], offset_deltas=[3, 7], base_offset=100)
    header = check_batch(batch, max_bytes=LIMIT, allow_compacted=True)
    assert (header.record_count, header.last_offset, header.next_offset) == (2, 107, 108)
    assert RecordBatch(batch).offsets() == [103, 107]
    read_everything(batch)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_stamp_producer_keeps_the_batch_valid(codec: Codec, is_wrapped: bool) -> None:
    """A batch in pieces gets identity and sequence later, more than once, as if it had been encoded with them."""
    values = [b"a", b"bc"]
    batch = EncodedBatch.wrap(encode_batch(values, codec=codec)) if is_wrapped else compose_batch(values, codec=codec)
    assert batch.join() == encode_batch(values, codec=codec)
    batch.stamp_producer(producer_id=3, producer_epoch=0, base_sequence=5)
    assert check_batch(batch.join(), max_bytes=LIMIT).base_sequence == 5
    batch.stamp_producer(producer_id=1 << 40, producer_epoch=7, base_sequence=2**31 - 1)
    identity = {"producer_id": 1 << 40, "producer_epoch": 7, "base_sequence": 2**31 - 1}
    whole = encode_batch(values, codec=codec, **identity)
    assert b"".join(batch.pieces()) == batch.join() == whole
    assert len(batch) == len(whole)
    assert check_batch(whole, max_bytes=LIMIT).last_sequence == 0


def test_known_lengths_save_a_look_and_wrong_ones_are_noticed() -> None:
    """Lengths of the caller are used. Wrong lengths would shift the records, so they are refused."""
    values = [b"a", b"bcd", b""]
    assert compose_batch(values, value_lengths=[1, 3, 0]).join() == encode_batch(values)
    with pytest.raises(TypeError, match="another length"):
        compose_batch(values, value_lengths=[1, 3, 1])
    with pytest.raises(TypeError, match="another length"):
        encode_batch([memoryview(array("I", [1, 2]))])  # type: ignore[list-item]


@examples(100)
@given(rows())
def test_the_same_records_give_the_same_bytes(given_rows: Rows) -> None:
    """Encoding is deterministic: a retry after a lost buffer sends the same batch."""
    first = encode_batch(given_rows.values, **given_rows.arguments())
    assert first == encode_batch(tuple(given_rows.values), **given_rows.arguments())


def test_batch_errors_are_not_value_errors() -> None:
    """Callers catch BatchError; nothing else is meant to be caught."""
    assert not issubclass(BatchError, ValueError)

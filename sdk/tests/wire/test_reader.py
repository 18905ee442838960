# SPDX-License-Identifier: Apache-2.0
"""The lazy reader: positions, laziness, and damaged bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.wire.batch import Codec, RecordBatch, encode_batch, read_batches
from lograft.wire.compression import compress
from lograft.wire.errors import BatchTooLargeError, CorruptBatchError, InvalidBatchError, UnsupportedBatchError
from tests.wire.batches import Rows, examples, put, read_everything, rows, with_payload

BATCH = bytes(
    encode_batch([b"a", None], keys=[b"k", None], headers=[[("h", None)], []], base_offset=5, timestamps_ms=9)
)


def test_reader_finds_a_batch_inside_a_buffer() -> None:
    """A batch is read at its position, with any bytes before and after it."""
    reader = RecordBatch(b"before" + BATCH + b"after", 6)
    assert (reader.record_count, reader.base_offset, reader.next_offset) == (2, 5, 7)
    assert reader.offsets() == range(5, 7)
    assert reader.values() == [b"a", None]
    assert reader.headers() == [(("h", None),), ()]


def test_reader_parses_once() -> None:
    """The payload is parsed at the first access and kept."""
    reader = RecordBatch(BATCH)
    assert reader.payload is reader.payload


def test_records_are_named_tuples() -> None:
    """A record has its fields by name and equals the plain tuple."""
    first, second = RecordBatch(BATCH).records()
    assert (first.offset, first.timestamp_ms, first.key, first.value, first.headers) == (
        5,
        9,
        b"k",
        b"a",
        (("h", None),),
    )
    assert second == (6, 9, None, None, ())
    assert type(first).__name__ == "BatchRecord"


def test_reader_checks_the_crc_unless_told_not_to() -> None:
    """Damage is found at once. A caller that has already checked can skip this."""
    damaged = BATCH[:17] + bytes(4) + BATCH[21:]
    with pytest.raises(CorruptBatchError, match="CRC"):
        RecordBatch(damaged)
    assert RecordBatch(damaged, verify_crc=False).values() == [b"a", None]
    with pytest.raises(CorruptBatchError, match="CRC"):
        list(read_batches(damaged))
    assert len(list(read_batches(damaged, verify_crc=False))) == 1


@pytest.mark.parametrize("left", [0, 60, 61, len(BATCH) - 1])
def test_reader_refuses_a_torn_batch(left: int) -> None:
    """A batch that is cut off is corrupt."""
    with pytest.raises(CorruptBatchError, match=r"left|are there"):
        RecordBatch(BATCH[:left])


@pytest.mark.parametrize("batch_length", [-(2**31), -1, 0, 48])
def test_reader_refuses_an_impossible_length(batch_length: int) -> None:
    """A batch cannot be smaller than its header."""
    damaged = bytearray(BATCH)
    struct.pack_into(">i", damaged, 8, batch_length)
    with pytest.raises(CorruptBatchError, match="claims"):
        RecordBatch(damaged)


def test_reader_refuses_another_magic() -> None:
    """Kafka's format shares the header, but not the payload."""
    with pytest.raises(UnsupportedBatchError, match="magic 2"):
        RecordBatch(put(BATCH, ">b", 16, 2))


@pytest.mark.parametrize("count", [-1, 0, 100_001])
def test_reader_refuses_an_impossible_count(count: int) -> None:
    """A reader allocates nothing for a count that no batch may have."""
    with pytest.raises(CorruptBatchError, match=f"claims {count} records"):
        RecordBatch(put(BATCH, ">i", 57, count))


@pytest.mark.parametrize("base_offset", [-1, 2**63 - 1])
def test_reader_refuses_impossible_offsets(base_offset: int) -> None:
    """Offsets fit int64 and are not negative."""
    with pytest.raises(CorruptBatchError, match="claims offsets"):
        RecordBatch(put(BATCH, ">q", 0, base_offset))


def test_reader_checks_what_the_check_would() -> None:
    """Columns that contradict the header are an error, not wrong records."""
    with pytest.raises(InvalidBatchError, match="last offset delta"):
        RecordBatch(put(BATCH, ">i", 23, 7)).values()
    with pytest.raises(InvalidBatchError, match="timestamp"):
        RecordBatch(put(BATCH, ">q", 35, 7)).timestamps_ms()
    with pytest.raises(InvalidBatchError, match="timestamp"):
        RecordBatch(put(BATCH, ">q", 35, 7)).to_arrow()
    bomb = RecordBatch(with_payload(encode_batch([b"a"], codec=Codec.ZSTD), compress(bytes(65 << 20))))
    with pytest.raises(BatchTooLargeError):
        bomb.values()


def test_values_do_not_depend_on_the_buffer_afterwards() -> None:
    """Values are copies: the chunk that they came in can be dropped or reused."""
    for values in ([b"a", b"bb"], [b"aa", b"bb"] * 200):
        buffer = bytearray(encode_batch(values))
        found = RecordBatch(buffer).values()
        buffer[:] = bytes(len(buffer))
        assert found == values


def test_reader_reads_control_batches() -> None:
    """A reader that replays a log sees control batches and skips them."""
    batch = encode_batch([b"x"], control=True)
    assert RecordBatch(batch).header.is_control
    read_everything(batch)


@examples(200)
@given(rows(max_records=6), st.integers(0, 6), st.integers(0, 6))
def test_a_piece_is_a_slice_of_all_records(given_rows: Rows, first: int, count: int) -> None:
    """Some records of a batch equal those of the whole batch, without decoding the others."""
    reader = RecordBatch(bytes(encode_batch(given_rows.values, **given_rows.arguments())))
    first = min(first, reader.record_count)
    count = min(count, reader.record_count - first)
    assert reader.piece(first, count) == reader.records()[first : first + count]
    for record in reader.records():
        assert reader.records()[reader.index_of(record.offset)] == record
    assert reader.index_of(reader.next_offset) == reader.record_count
    assert reader.index_of(0) == 0


@pytest.mark.parametrize(("max_records", "max_bytes", "count"), [(9, 9, 3), (2, 9, 2), (9, 6, 2), (9, 5, 1), (9, 2, 0)])
def test_records_within_limits_are_counted_by_their_lengths(max_records: int, max_bytes: int, count: int) -> None:
    """Keys and values count, both limits are inclusive, and 0 means that the first record alone is too large."""
    reader = RecordBatch(encode_batch([b"0", b"11", b"222", b""], keys=[None, b"k", None, b"k"]))
    assert reader.count_within(1, max_records=max_records, max_bytes=max_bytes) == count

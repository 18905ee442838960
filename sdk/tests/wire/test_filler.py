# SPDX-License-Identifier: Apache-2.0
"""Fillers: read as batches without records, refused from clients, skipped by consumers."""

from __future__ import annotations

import pytest
from lograft._consumer.collector import FetchCollector
from lograft._consumer.fetch_buffer import Chunk
from lograft.settings import ConsumerSettings
from lograft.types import TopicPartition
from lograft.wire.arrow import arrow_schema
from lograft.wire.batch import RecordBatch, check_batch, encode_batch, read_batches, read_header
from lograft.wire.errors import CorruptBatchError, InvalidBatchError, UnsupportedBatchError
from lograft.wire.filler import MAX_FILLER_OFFSETS, encode_filler
from lograft.wire.limits import MAX_OFFSET
from tests.wire.batches import put, repair

FILLER = bytes(encode_filler(base_offset=7, last_offset_delta=9, leader_epoch=3, timestamp_ms=5_000))
TP = TopicPartition("t", 0)

BAD = {
    "payload": (bytes(repair(FILLER + b"x")), "a payload of 1 bytes"),
    "codec": (bytes(put(FILLER, ">h", 21, 4)), "attributes 0x0004"),
    "control": (bytes(put(FILLER, ">h", 21, 32)), "attributes 0x0020"),
    "negative delta": (bytes(put(FILLER, ">i", 23, -1)), "last offset delta -1"),
    "too many offsets": (bytes(put(FILLER, ">i", 23, MAX_FILLER_OFFSETS)), "last offset delta 2147483647"),
    "two timestamps": (bytes(put(FILLER, ">q", 27, 4_999)), "timestamps 4999 and 5000"),
    "impossible timestamp": (bytes(put(FILLER, ">qq", 27, -1, -1)), "timestamp -1"),
}


def test_a_filler_reads_as_a_batch_without_records() -> None:
    """Every accessor returns an empty result, and the offsets continue after the last covered one."""
    batch = RecordBatch(FILLER)
    assert batch.header.is_filler
    assert (batch.record_count, batch.base_offset, batch.next_offset) == (0, 7, 17)
    assert (batch.values(), batch.keys(), batch.timestamps_ms(), list(batch.offsets())) == ([], [], [], [])
    assert (batch.headers(), batch.records()) == ([], [])
    table = batch.to_arrow(include_headers=True)
    table.validate(full=True)
    assert table.num_rows == 0
    assert table.schema == arrow_schema(include_headers=True)


def test_a_filler_covers_at_most_its_limit() -> None:
    """The largest filler, at the end of the offsets, is valid."""
    base_offset = MAX_OFFSET - (MAX_FILLER_OFFSETS - 1)
    largest = encode_filler(base_offset=base_offset, last_offset_delta=MAX_FILLER_OFFSETS - 1, leader_epoch=0)
    header = check_batch(largest, max_bytes=100, allow_compacted=True)
    assert header.next_offset == MAX_OFFSET + 1
    assert RecordBatch(largest).next_offset == MAX_OFFSET + 1
    with pytest.raises(AssertionError, match="last offset delta 2147483647"):
        encode_filler(base_offset=0, last_offset_delta=MAX_FILLER_OFFSETS, leader_epoch=0)


def test_a_filler_keeps_a_producer() -> None:
    """Identity and sequences of the former batch are kept."""
    filler = encode_filler(
        base_offset=0, last_offset_delta=2, leader_epoch=0, producer_id=5, producer_epoch=1, base_sequence=2**31 - 1
    )
    header = check_batch(filler, max_bytes=100, allow_compacted=True)
    assert (header.has_producer, header.producer_epoch, header.base_sequence, header.last_sequence) == (
        True,
        1,
        2**31 - 1,
        1,
    )


def test_clients_may_not_send_a_filler_or_a_delete_horizon() -> None:
    """Batches that only compaction makes are refused unless the caller allows them."""
    with pytest.raises(InvalidBatchError, match="this one claims 0"):
        check_batch(FILLER, max_bytes=100)
    assert check_batch(FILLER, max_bytes=100, allow_compacted=True) == read_header(FILLER)
    horizon = put(encode_batch([b"x"], timestamps_ms=[5]), ">h", 21, 64)
    with pytest.raises(UnsupportedBatchError, match="bits 0x0040"):
        check_batch(horizon, max_bytes=100)
    assert check_batch(horizon, max_bytes=100, allow_compacted=True).delete_horizon_ms == 5
    assert read_header(FILLER).delete_horizon_ms is None


@pytest.mark.parametrize("name", BAD)
def test_a_batch_without_records_that_is_no_filler_is_refused(name: str) -> None:
    """A header without records must have nothing else either."""
    batch, fault = BAD[name]
    with pytest.raises(InvalidBatchError, match=fault):
        check_batch(batch, max_bytes=100, allow_control=True, allow_compacted=True)
    with pytest.raises(CorruptBatchError, match=fault):
        RecordBatch(batch)


def compacted_log() -> bytes:
    """Return offsets 0 to 39: two records, a filler, a batch without its middle and its end, a last filler."""
    parts = [
        encode_batch([b"0", b"1"]),
        encode_filler(base_offset=2, last_offset_delta=7, leader_epoch=0),
        put(encode_batch([b"10", b"13"], offset_deltas=[0, 3], base_offset=10), ">i", 23, 9),
        encode_filler(base_offset=20, last_offset_delta=19, leader_epoch=0),
    ]
    return b"".join(parts)


def consumer_at(position: int, body: bytes, *, next_offset: int) -> FetchCollector:
    collector = FetchCollector(ConsumerSettings(), lambda source, count: None)
    (cursor,) = collector.assign({TP: position})
    chunk = Chunk(
        cursor=cursor,
        generation=cursor.generation,
        body=body,
        next_offset=next_offset,
        high_watermark=next_offset,
        source=object(),
    )
    collector.put(chunk)
    return collector


def test_batches_of_a_compacted_log_join() -> None:
    """A walk over fillers skips no offset."""
    offset = 0
    for batch in read_batches(compacted_log()):
        assert batch.base_offset == offset
        offset = batch.next_offset
    assert offset == 40


@pytest.mark.parametrize("position", [0, 1, 2, 5, 10, 11, 13, 14, 20, 33])
def test_a_consumer_passes_over_fillers(position: int) -> None:
    """The consumer hands out the records from any position on, and ends after the last filler."""
    collector = consumer_at(position, compacted_log(), next_offset=40)
    expected = [(0, b"0"), (1, b"1"), (10, b"10"), (13, b"13")]
    records = collector.next_records(100)
    assert [(record.offset, record.value) for record in records] == [each for each in expected if each[0] >= position]
    assert collector.next_batch() is None
    assert collector.cursor(TP).position == 40
    assert not collector.has_arrivals


def test_a_consumer_gets_batch_by_batch_what_is_left() -> None:
    """Batches without records are never handed out."""
    collector = consumer_at(1, compacted_log(), next_offset=40)
    found = []
    while (fetched := collector.next_batch()) is not None:
        found.append((fetched.base_offset, fetched.next_offset, list(fetched.offsets()), fetched.values()))
    assert found == [(1, 2, [1], [b"1"]), (10, 20, [10, 13], [b"10", b"13"])]

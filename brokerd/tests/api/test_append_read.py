# SPDX-License-Identifier: Apache-2.0
"""Append, Read and ListOffsets over real gRPC: the plain form for any language."""

from __future__ import annotations

import asyncio

from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.partitioner import partition_for_key

from brokerd.tests.support import WAIT_S, Client, refusal


async def test_records_come_back_as_they_were_sent(client: Client) -> None:
    """Keys, values, nulls, headers and timestamps survive the way through a batch."""
    await client.create_topic("t")
    records = [
        log_pb2.Record(key=b"k", value=b"v", timestamp_ms=5, headers=[log_pb2.Header(key="h", value=b"1")]),
        log_pb2.Record(key=b"k", timestamp_ms=6, headers=[log_pb2.Header(key="h"), log_pb2.Header(key="h", value=b"")]),
        log_pb2.Record(value=b"", timestamp_ms=7),
    ]
    request = log_pb2.AppendRequest(topic="t", partition=0, records=records)
    response = await client.log.Append(request, timeout=WAIT_S)
    (appended,) = response.ranges
    assert (appended.partition, appended.base_offset, list(appended.record_indexes)) == (0, 0, [0, 1, 2])
    assert appended.durability == log_pb2.DURABILITY_FLUSHED
    read = await client.read("t")
    for offset, record in enumerate(records):
        record.offset = offset
    assert list(read.records) == records
    assert (read.next_offset, read.high_watermark, read.log_start_offset) == (3, 3, 0)


async def test_keys_choose_partitions_and_records_without_key_stay_together(client: Client) -> None:
    """Each key lands where CRC-32C says; keyless records of a call share one partition; indexes cover all records."""
    await client.create_topic("t", 4)
    records = [log_pb2.Record(key=b"k%d" % number, value=b"%d" % number) for number in range(40)]
    records += [log_pb2.Record(value=b"no key") for _ in range(5)]
    response = await client.log.Append(log_pb2.AppendRequest(topic="t", records=records), timeout=WAIT_S)
    assert [found.partition for found in response.ranges] == sorted(found.partition for found in response.ranges)
    indexes = sorted(index for found in response.ranges for index in found.record_indexes)
    assert indexes == list(range(45))
    without_key = [found for found in response.ranges if any(index >= 40 for index in found.record_indexes)]
    assert len(without_key) == 1
    for found in response.ranges:
        read = await client.read("t", found.partition, found.base_offset)
        assert [record.value for record in read.records] == [records[index].value for index in found.record_indexes]
        for index in found.record_indexes:
            if index < 40:
                assert partition_for_key(records[index].key, 4) == found.partition


async def test_append_with_sequence_is_dropped_when_it_comes_again(client: Client) -> None:
    """A retry with the same sequence answers with the first offsets and appends nothing."""
    await client.create_topic("t")
    producer = (await client.log.InitProducer(log_pb2.InitProducerRequest())).producer
    sequence = log_pb2.AppendSequence(producer=producer, base_sequence=0)
    first = await client.append("t", [b"a", b"b"], partition=0, sequence=sequence)
    again = await client.append("t", [b"a", b"b"], partition=0, sequence=sequence)
    assert not first.ranges[0].duplicate
    assert again.ranges[0].duplicate
    assert again.ranges[0].base_offset == first.ranges[0].base_offset
    sequence.base_sequence = 2
    third = await client.append("t", [b"c"], partition=0, sequence=sequence)
    assert third.ranges[0].base_offset == 2
    sequence.base_sequence = 7
    status = await refusal(client.append("t", [b"gap"], partition=0, sequence=sequence))
    assert status.code is ErrorCode.OUT_OF_ORDER_SEQUENCE


async def test_read_limits_records_and_bytes(client: Client) -> None:
    """Limits may end inside a batch. The first record comes whatever its size is. The next read continues at `next_offset`."""
    await client.create_topic("t")
    await client.append("t", [b"%03d" % number * 100 for number in range(20)], partition=0)
    read = await client.read("t", offset=3, max_records=4)
    assert [record.offset for record in read.records] == [3, 4, 5, 6]
    assert read.next_offset == 7
    read = await client.read("t", offset=7, max_bytes=1)
    assert [record.offset for record in read.records] == [7]
    read = await client.read("t", offset=8, max_bytes=700)
    assert [record.offset for record in read.records] == [8, 9]


async def test_read_large_batches_in_parts(client: Client) -> None:
    """A batch of many records is read over several calls without a loss."""
    await client.create_topic("t")
    await client.append("t", [b"%06d" % number for number in range(5_000)], partition=0)
    seen: list[bytes] = []
    while len(seen) < 5_000:
        read = await client.read("t", offset=len(seen), max_records=1_700)
        seen += [record.value for record in read.records]
        assert read.next_offset == len(seen)
    assert seen == [b"%06d" % number for number in range(5_000)]


async def test_read_waits_for_a_record(client: Client) -> None:
    """A read at the end answers when a record comes, or empty when its time has passed."""
    await client.create_topic("t")
    empty = await client.read("t", max_wait_ms=20)
    assert not empty.records
    assert empty.next_offset == 0
    waiting = asyncio.create_task(client.read("t", max_wait_ms=10_000))
    await client.append("t", [b"x"], partition=0)
    assert [record.value for record in (await waiting).records] == [b"x"]


async def test_read_wait_gives_its_answer_before_the_deadline(client: Client) -> None:
    """A long poll under a shorter deadline answers empty instead of running into it."""
    await client.create_topic("t")
    request = log_pb2.ReadRequest(topic="t", max_wait_ms=30_000)
    response = await client.log.Read(request, timeout=2)
    assert not response.records


async def test_offsets_by_position_and_time(client: Client) -> None:
    """Earliest, latest, and the first record at or after a timestamp; no record gives no offset and no error."""
    await client.create_topic("t")
    for timestamp_ms in (1_000, 2_000, 3_000):
        records = [log_pb2.Record(value=b"x", timestamp_ms=timestamp_ms + step) for step in range(3)]
        await client.log.Append(log_pb2.AppendRequest(topic="t", partition=0, records=records), timeout=WAIT_S)
    queries = [
        log_pb2.OffsetQuery(topic="t", position=log_pb2.OFFSET_POSITION_EARLIEST),
        log_pb2.OffsetQuery(topic="t", position=log_pb2.OFFSET_POSITION_LATEST),
        log_pb2.OffsetQuery(topic="t", timestamp_ms=0),
        log_pb2.OffsetQuery(topic="t", timestamp_ms=2_001),
        log_pb2.OffsetQuery(topic="t", timestamp_ms=2_500),
        log_pb2.OffsetQuery(topic="t", timestamp_ms=9_000),
    ]
    response = await client.log.ListOffsets(log_pb2.ListOffsetsRequest(queries=queries))
    assert [
        (result.offset if result.HasField("offset") else None, result.timestamp_ms) for result in response.results
    ] == [(0, 0), (9, 0), (0, 1_000), (4, 2_001), (6, 3_000), (None, 0)]
    assert not any(result.HasField("error") for result in response.results)


async def test_failed_query_does_not_fail_the_others(client: Client) -> None:
    """Each query has its own answer, in the order asked."""
    await client.create_topic("t")
    queries = [
        log_pb2.OffsetQuery(topic="t", position=log_pb2.OFFSET_POSITION_LATEST),
        log_pb2.OffsetQuery(topic="missing", position=log_pb2.OFFSET_POSITION_LATEST),
        log_pb2.OffsetQuery(topic="t", partition=9, position=log_pb2.OFFSET_POSITION_LATEST),
        log_pb2.OffsetQuery(topic="t"),
        log_pb2.OffsetQuery(topic="t", position=77),
        log_pb2.OffsetQuery(topic="a/b", position=log_pb2.OFFSET_POSITION_LATEST),
        log_pb2.OffsetQuery(topic="t", position=log_pb2.OFFSET_POSITION_EARLIEST),
    ]
    response = await client.log.ListOffsets(log_pb2.ListOffsetsRequest(queries=queries))
    assert [ErrorCode.from_number(result.error.code) for result in response.results] == [
        ErrorCode.UNSPECIFIED,
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_TOPIC_NAME,
        ErrorCode.UNSPECIFIED,
    ]

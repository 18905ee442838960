# SPDX-License-Identifier: Apache-2.0
"""The asyncio clients, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pyarrow as pa
import pytest
from lograft import BatchReceipt, ConsumerRecord, DeliveryError, ErrorCode, OffsetQuery, TopicPartition, aio
from lograft._client.cluster import Attempt, Cluster
from lograft.errors import (
    BufferTimeoutError,
    ClientClosedError,
    NotAssignedError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    RequestTimeoutError,
    RetriableError,
    TopicAlreadyExistsError,
    UnknownPartitionError,
    UnknownTopicError,
    UsageError,
)
from lograft.settings import parse_bootstrap
from lograft.types import Position
from lograft.wire.batch import encode_batch
from tests.client.reading import DEADLINE_MS, read_all

MakeTopic = Callable[..., str]


async def refused_once(bootstrap: str, *, may_repeat: bool) -> int:
    """Make a call of one second that is refused until 100 ms before its end, and return the number of attempts."""
    cluster = Cluster(parse_bootstrap(bootstrap, None))
    tries = 0

    async def work(attempt: Attempt) -> None:
        nonlocal tries
        tries += 1
        raise RetriableError(
            "not yet", code=ErrorCode.BROKER_FENCED, retry_after_ms=round(attempt.timeout_s * 1000) - 100
        )

    try:
        with pytest.raises(RetriableError, match="not yet"):
            await cluster.call(work, timeout_ms=1_000, may_repeat=may_repeat)
    finally:
        await cluster.close()
    return tries


async def test_refused_call_says_why_rather_than_try_again_at_the_last_moment(bootstrap: str) -> None:
    """An attempt that its deadline ends would leave the outcome unknown. A call that may be repeated has no such limit."""
    assert await refused_once(bootstrap, may_repeat=False) == 1
    assert await refused_once(bootstrap, may_repeat=True) > 1


async def poll_all(consumer: aio.Consumer, count: int) -> list[ConsumerRecord]:
    """Poll until `count` records have come."""
    found: list[ConsumerRecord] = []
    while len(found) < count:
        records = await consumer.poll(count - len(found), timeout_ms=DEADLINE_MS)
        assert records, f"only {len(found)} of {count} came"
        found += records
    return found


async def test_records_go_in_and_come_out_in_every_way(bootstrap: str, make_topic: MakeTopic) -> None:
    """Single records, many at once, Arrow and encoded batches of one partition come out in the order sent."""
    topic = make_topic()
    tp = TopicPartition(topic, 0)
    receipts: list[BatchReceipt] = []
    async with aio.Producer(bootstrap, on_batch=receipts.append) as producer, aio.Consumer(bootstrap) as consumer:
        await producer.send(topic, b"0")
        await producer.send(topic, b"1", key=b"k")
        await producer.send(topic, b"2", key=b"k")
        await producer.send(topic, b"3")
        await producer.send(topic, b"4", headers=[("h", b"v")], timestamp_ms=5)
        await producer.send_many(topic, [b"5", b"6"], keys=[None, b"k"])
        await producer.send_many(topic, [b"7", None], timestamps_ms=[1, 2])  # pyright: ignore[reportArgumentType]
        await producer.send_arrow(topic, pa.table({"value": pa.array([b"8", b"9"])}))
        await producer.send_batch(topic, 0, encode_batch([b"10"]), 1)
        await producer.flush()
        await consumer.assign([tp])
        records = await poll_all(consumer, 11)
        assert [record.value for record in records] == [*(b"%d" % number for number in range(8)), None, b"8", b"9"]
        assert consumer.position(tp) == 11
        assert consumer.assignment == [tp]
    assert sum(receipt.record_count for receipt in receipts) == 12


async def test_positions_seeks_and_look_ups(bootstrap: str, make_topic: MakeTopic) -> None:
    """Seeks by offset, time, beginning and end, and the lookups behind them, work as in the blocking client."""
    topic = make_topic()
    tp = TopicPartition(topic, 0)
    async with aio.Producer(bootstrap) as producer:
        await producer.send_many(topic, [b"%d" % n for n in range(100)], timestamps_ms=[10 * n for n in range(100)])
    async with aio.Consumer(bootstrap) as consumer:
        await consumer.assign([tp], offsets={tp: 90})
        fetched = await consumer.poll_batch(DEADLINE_MS)
        assert fetched is not None
        assert (fetched.base_offset, fetched.values()[0]) == (90, b"90")
        assert consumer.high_watermark(tp) == 100
        await consumer.seek(tp, 7)
        assert (await poll_all(consumer, 1))[0].offset == 7
        await consumer.seek_to_time(tp, 495)
        assert (await poll_all(consumer, 1))[0].offset == 50
        await consumer.seek_to_time(tp, 10**9)
        assert consumer.position(tp) == 100
        await consumer.seek_to_beginning()
        assert (await poll_all(consumer, 1))[0].offset == 0
        await consumer.seek_to_end(tp)
        assert await consumer.poll(timeout_ms=30) == []
        assert await consumer.poll_batch(timeout_ms=0) is None
        assert await consumer.beginning_offsets([tp]) == {tp: 0}
        assert await consumer.end_offsets([tp]) == {tp: 100}
        assert await consumer.offsets_for_times({tp: 15}) == {tp: 2}
        await consumer.seek(tp, 98)
        seen: list[int] = []
        async for record in consumer:
            seen.append(record.offset)
            if record.offset == 99:
                await consumer.close()
        assert seen == [98, 99]
        with pytest.raises(ClientClosedError):
            await consumer.poll()


async def test_failures_are_the_same_as_in_the_blocking_clients(bootstrap: str, make_topic: MakeTopic) -> None:
    """Unknown topics, positions out of range, large records and wrong arguments are typed errors."""
    topic = make_topic(configs={"max.message.bytes": "4096"})
    tp = TopicPartition(topic, 0)
    producer = aio.Producer(bootstrap)
    with pytest.raises(UnknownTopicError):
        await producer.send("no-such-topic", b"v")
    with pytest.raises(UnknownPartitionError):
        await producer.send(topic, b"v", partition=5)
    with pytest.raises(UsageError):
        await producer.send(topic, "text")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError):
        await producer.send("", b"v")
    await producer.send(topic, b"x" * 5_000)
    with pytest.raises(DeliveryError):
        await producer.flush()
    with pytest.raises(RecordTooLargeError):
        await producer.send(topic, b"x" * 5_000)
    with pytest.raises(RecordTooLargeError):
        await producer.send_batch(topic, 0, encode_batch([b"x" * 5_000]), 1)
    await producer.send_many(topic, [b"y" * 1_000] * 10)
    await producer.send_many(topic, [b"z" * 3_500] * 2)
    await producer.close()
    await producer.close()
    with pytest.raises(ClientClosedError):
        await producer.send(topic, b"v")
    with pytest.raises(ClientClosedError):
        await producer.flush()
    assert len(read_all(bootstrap, topic)) == 12
    async with aio.Consumer(bootstrap) as consumer:
        with pytest.raises(NotAssignedError):
            await consumer.seek(tp, 0)
        await consumer.assign([tp], offsets={tp: 50})
        with pytest.raises(OffsetOutOfRangeError):
            await consumer.poll(timeout_ms=DEADLINE_MS)


async def test_full_buffer_makes_send_wait(bootstrap: str, make_topic: MakeTopic) -> None:
    """Several tasks send far more than the buffer holds. The order within each task is kept."""
    topic = make_topic(2)
    async with aio.Producer(bootstrap, batch_bytes=2_048, buffer_bytes=8_192) as producer:

        async def work(number: int) -> None:
            for index in range(1_000):
                await producer.send(topic, b"%d" % index, key=b"%d" % number)
            await producer.send_many(topic, [b"m" * 500] * 50)
            await producer.send_arrow(topic, pa.table({"value": pa.array([b"a" * 500] * 50)}))

        await asyncio.gather(*(work(number) for number in range(4)))
    records = read_all(bootstrap, topic, 2)
    assert len(records) == 4 * 1_100
    for number in range(4):
        mine = [record.value for record in records if record.key == b"%d" % number]
        assert mine == [b"%d" % index for index in range(1_000)]


async def test_time_runs_out_as_typed_errors(bootstrap: str, make_topic: MakeTopic) -> None:
    """Flush has its own timeout, a buffer that stays full is an error, and close fails the remaining records."""
    topic = make_topic()
    producer = aio.Producer(bootstrap, batch_bytes=1_024, buffer_bytes=2_048, delivery_timeout_ms=300)
    await producer.send(topic, b"first")
    await producer.flush()
    # The leader moves to an address without a listener.
    sender = producer._sender  # pyright: ignore[reportPrivateUsage]
    assert sender is not None
    await sender._engine.close()  # pyright: ignore[reportPrivateUsage]

    async def fill() -> None:
        for _ in range(10):
            await producer.send(topic, b"x" * 500)

    with pytest.raises(BufferTimeoutError):
        await fill()
    with pytest.raises(RequestTimeoutError):
        await producer.flush(timeout_ms=10)
    with pytest.raises(DeliveryError):
        await producer.close(timeout_ms=10)


async def test_admin_makes_finds_and_deletes_topics(bootstrap: str) -> None:
    """Topics are created with configs, listed, described and deleted; quorum and cluster are described."""
    async with aio.Admin(bootstrap) as admin:
        created = await admin.create_topic("aio-topic", partition_count=2, configs={"flush.policy": "none"})
        assert (created.partition_count, created.replication_factor) == (2, 1)
        assert created.configs["flush.policy"] == "none"
        assert "flush.policy" in created.overridden
        with pytest.raises(TopicAlreadyExistsError):
            await admin.create_topic("aio-topic")
        assert "aio-topic" in [topic.topic for topic in await admin.list_topics()]
        assert (await admin.describe_topic("aio-topic")).topic_id == created.topic_id
        answers = await admin.list_offsets(
            [
                OffsetQuery(topic="aio-topic", partition=1, position=Position.LATEST),
                OffsetQuery(topic="aio-topic", partition=0, timestamp_ms=5),
                OffsetQuery(topic="no-such-topic", partition=0, position=Position.EARLIEST),
            ]
        )
        assert [answer.offset for answer in answers] == [0, None, None]
        assert isinstance(answers[2].error, UnknownTopicError)
        with pytest.raises(UsageError):
            await admin.list_offsets([OffsetQuery(topic="aio-topic", partition=0)])
        quorum = await admin.describe_quorum()
        cluster = await admin.describe_cluster()
        assert quorum.leader_id == cluster.controller_id
        assert quorum.cluster_id == cluster.cluster_id
        assert [broker.fenced for broker in cluster.brokers] == [False]
        await admin.delete_topic("aio-topic")
        with pytest.raises(UnknownTopicError):
            await admin.describe_topic("aio-topic")
    with pytest.raises(ClientClosedError):
        await admin.list_topics()


def test_loop_after_loop_leaves_nothing_behind(bootstrap: str, make_topic: MakeTopic) -> None:
    """Closed clients owe gRPC nothing, so later event loops see no errors of earlier ones."""
    topic = make_topic()
    troubles: list[object] = []

    async def session(number: int) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
        async with aio.Producer(bootstrap, linger_ms=0) as producer, aio.Consumer(bootstrap) as consumer:
            await consumer.assign([TopicPartition(topic, 0)], start="latest")
            await producer.send(topic, b"%d" % number)
            assert [record.value for record in await poll_all(consumer, 1)] == [b"%d" % number]

    for number in range(10):
        asyncio.run(session(number))
    assert troubles == []

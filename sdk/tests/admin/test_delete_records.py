# SPDX-License-Identifier: Apache-2.0
"""Removal of records by the admin clients, against a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lograft import Admin, Consumer, ErrorCode, Producer, aio
from lograft.errors import OffsetOutOfRangeError, UsageError
from lograft.types import DeletedRecords, OffsetQuery, Position, TopicPartition

MakeTopic = Callable[..., str]


def fill(bootstrap: str, topic: str, partition: int, count: int) -> None:
    """Produce records and wait for them."""
    with Producer(bootstrap) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)
        producer.flush()


def earliest(admin: Admin, topic: str, partition: int = 0) -> int | None:
    (answer,) = admin.list_offsets([OffsetQuery(topic=topic, partition=partition, position=Position.EARLIEST)])
    return answer.offset


def test_records_below_the_offset_are_gone(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """The log starts at the given offset, for ListOffsets and for a reader. A second call changes nothing."""
    topic = make_topic()
    fill(bootstrap, topic, 0, 5)
    place = TopicPartition(topic, 0)
    for _ in range(2):
        assert admin.delete_records({place: 3}) == [DeletedRecords(topic=topic, partition=0, log_start_offset=3)]
    assert admin.delete_records({place: 1})[0].log_start_offset == 3
    assert earliest(admin, topic) == 3
    with Consumer(bootstrap) as consumer:
        consumer.assign({place: Position.EARLIEST})
        records = []
        while len(records) < 2:
            records += consumer.poll(timeout_ms=5_000)
    assert [(record.offset, record.value) for record in records] == [(3, b"3"), (4, b"4")]


def test_none_removes_all_that_is_readable(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """None deletes up to the high watermark of each partition. Offsets continue."""
    topic = make_topic(partition_count=3)
    fill(bootstrap, topic, 0, 2)
    fill(bootstrap, topic, 2, 4)
    results = admin.delete_records({TopicPartition(topic, partition): None for partition in range(3)})
    assert [result.log_start_offset for result in results] == [2, 0, 4]
    fill(bootstrap, topic, 2, 1)
    assert earliest(admin, topic, 2) == 4
    assert admin.delete_records({}) == []


def test_a_refused_partition_does_not_fail_the_others(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """An offset above the high watermark, an unknown partition and an unknown topic each have their own error."""
    topic = make_topic()
    fill(bootstrap, topic, 0, 2)
    results = admin.delete_records(
        {
            TopicPartition(topic, 0): 3,
            TopicPartition(topic, 1): 0,
            TopicPartition("no-such-topic", 0): None,
        }
    )
    assert [result.error.code for result in results if result.error is not None] == [
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.UNKNOWN_TOPIC,
    ]
    error = results[0].error
    assert isinstance(error, OffsetOutOfRangeError)
    assert all(result.log_start_offset is None for result in results)
    assert admin.delete_records({TopicPartition(topic, 0): 2})[0].log_start_offset == 2


@pytest.mark.parametrize("offset", [-1, 2**63, "3", True, 1.5])
def test_offsets_that_are_none_are_refused_here(admin: Admin, offset: object) -> None:
    """A wrong argument must not delete anything, so nothing is sent."""
    with pytest.raises(UsageError, match="whole number"):
        admin.delete_records({TopicPartition("t", 0): offset})  # pyright: ignore[reportArgumentType]


async def test_asyncio_client(bootstrap: str, make_topic: MakeTopic) -> None:
    """The same call for asyncio."""
    topic = make_topic()
    async with aio.Admin(bootstrap) as admin:
        (result,) = await admin.delete_records({TopicPartition(topic, 0): None})
    assert result == DeletedRecords(topic=topic, partition=0, log_start_offset=0)

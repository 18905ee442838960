# SPDX-License-Identifier: Apache-2.0
"""Producers of partitions by the admin clients, against a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from lograft import Admin, Producer, TopicPartition, aio
from lograft._admin import producers
from lograft.errors import UnknownPartitionError, UnknownTopicError, UsageError

MakeTopic = Callable[..., str]


def test_producers_of_partitions(bootstrap: str, admin: Admin, make_topic: MakeTopic) -> None:
    """Two programs in one partition, none in another; a partition that does not exist hides no other."""
    topic = make_topic(partition_count=2)
    for count in (3, 5):
        with Producer(bootstrap) as producer:
            for _ in range(count):
                producer.send(topic, b"v", partition=0)
            producer.flush()
    found = admin.describe_producers([topic, TopicPartition(topic, 7)])
    assert [(each.partition, each.producer_count, type(each.error)) for each in found] == [
        (0, 2, type(None)),
        (1, 0, type(None)),
        (7, 0, UnknownPartitionError),
    ]
    first, second = found[0].producers
    assert (first.last_sequence, second.last_sequence) == (2, 4)
    assert (first.last_base_offset, second.last_base_offset) == (0, 3)
    assert first.producer_id < second.producer_id
    assert (first.last_append_ms or 0) > 1_700_000_000_000
    assert first.open_transaction_offset is None


async def test_pages_and_the_asyncio_client(
    bootstrap: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many partitions go in several requests."""
    monkeypatch.setattr(producers, "PAGE_PARTITIONS", 2)
    topic = make_topic(partition_count=5)
    async with aio.Admin(bootstrap) as admin:
        assert [each.partition for each in await admin.describe_producers([topic])] == list(range(5))
        with pytest.raises(UnknownTopicError):
            await admin.describe_producers(["no-such-topic"])
        with pytest.raises(UsageError):
            await admin.describe_producers(topic)

# SPDX-License-Identifier: Apache-2.0
"""What a consumer reads ahead is bounded in bytes over all partitions and brokers, and the bound stops nothing."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition
from lograft._client.clock import monotonic_ms
from lograft._consumer.fetch_buffer import Chunk
from lograft.testing import ProcessCluster
from tests.client.reading import DEADLINE_MS

MakeTopic = Callable[..., str]

PARTITION_COUNT = 60
BATCH_BYTES = 16_384
BATCHES = 8
"""Batches in each partition, each of one record."""

PREFETCH_BYTES = 512 * 1024
"""A sixteenth of what the topic holds."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """Three brokers, each of which leads about twenty of sixty partitions."""
    with ProcessCluster() as cluster:
        yield cluster.bootstrap


def fill(bootstrap: str, topic: str) -> list[TopicPartition]:
    """Write `BATCHES` batches of one record to each partition; return the partitions."""
    noise = random.Random(1)
    with Producer(bootstrap, batch_bytes=1_024, linger_ms=0) as producer:
        for number in range(BATCHES):
            for partition in range(PARTITION_COUNT):
                value = b"%d " % number + noise.randbytes(BATCH_BYTES)
                producer.send(topic, value, partition=partition)
    return [TopicPartition(topic, partition) for partition in range(PARTITION_COUNT)]


def held_bytes(consumer: Consumer) -> int:
    """Return the bytes that have arrived and were not handed out."""
    with consumer._lock:
        collector = consumer._shared.collector
        return sum(len(each.body) for each in list(collector._buffer._arrivals) if isinstance(each, Chunk))


def free_bytes(consumer: Consumer) -> int:
    """Return the bytes that no broker has as credit and that have not arrived either."""
    fetcher = consumer._shared._fetcher
    assert fetcher is not None
    return fetcher.engine._budget.free_bytes


def read_all_within(consumer: Consumer, tps: list[TopicPartition], *, broker_count: int) -> int:
    """Read everything, and return the largest number of bytes that waited for the application."""
    # One batch for each broker may be larger than the rest of its credit.
    limit_bytes = PREFETCH_BYTES + broker_count * 2 * BATCH_BYTES
    consumer.assign(tps)
    assert consumer.poll(max_records=1, timeout_ms=DEADLINE_MS)
    # The application stops. The brokers send until their credit is used up, and then no more.
    deadline_ms = monotonic_ms() + DEADLINE_MS
    largest = 0
    while largest < PREFETCH_BYTES // 4:
        largest = max(largest, held_bytes(consumer))
        assert largest <= limit_bytes
        assert monotonic_ms() < deadline_ms, f"only {largest} bytes came"
    seen: Counter[TopicPartition] = Counter()
    seen[next(tp for tp in tps if consumer.position(tp) == 1)] = 1
    while sum(seen.values()) < PARTITION_COUNT * BATCHES:
        records = consumer.poll(max_records=10, timeout_ms=DEADLINE_MS)
        assert records, f"only {sum(seen.values())} records came"
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            assert record.offset == seen[tp]
            seen[tp] += 1
        largest = max(largest, held_bytes(consumer))
        assert largest <= limit_bytes
        assert free_bytes(consumer) >= PREFETCH_BYTES - limit_bytes
    return largest


def test_sixty_partitions_of_one_broker_stay_within_prefetch_bytes(bootstrap: str, make_topic: MakeTopic) -> None:
    """The bound is for all partitions together; every record comes, in order."""
    tps = fill(bootstrap, make_topic(PARTITION_COUNT))
    with Consumer(bootstrap, prefetch_bytes=PREFETCH_BYTES, max_chunk_bytes=65_536) as consumer:
        assert read_all_within(consumer, tps, broker_count=1) > PREFETCH_BYTES // 4


@pytest.mark.process
@pytest.mark.slow
def test_sixty_partitions_of_three_brokers_stay_within_prefetch_bytes(brokers: str) -> None:
    """The brokers share the bound."""
    with Admin(brokers) as admin:
        admin.create_topic("wide", partition_count=PARTITION_COUNT)
    tps = fill(brokers, "wide")
    with Consumer(brokers, prefetch_bytes=PREFETCH_BYTES, max_chunk_bytes=65_536) as consumer:
        assert read_all_within(consumer, tps, broker_count=3) > PREFETCH_BYTES // 4

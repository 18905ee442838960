# SPDX-License-Identifier: Apache-2.0
"""The SDK's consumer in a rack, over three brokers: it reads from its follower, leaves it and comes back, and misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft import TopicPartition, aio
from lograft._consumer import engine as fetch_engine

from brokerd.replica.replica import Replica
from brokerd.tests.support import connected
from brokerd.tests.three_brokers import LONG_S, PARTITIONS, Cluster, append_to_all, three_brokers
from metaquorum.tests.quorum_cluster import until

TPS = [TopicPartition("t", number) for number in range(PARTITIONS)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three brokers, each in a rack of its own: r2 is that of broker 2."""
    async with three_brokers(tmp_path) as made:
        yield made


async def next_values(consumer: aio.Consumer, count: int) -> list[bytes | None]:
    """Poll until so many records have come; each partition's come in the order of their offsets, without gaps."""
    found: list[bytes | None] = []
    async with asyncio.timeout(LONG_S):
        while len(found) < count:
            found += [record.value for record in await consumer.poll()]
    return found


def reader_counts(replicas: list[Replica]) -> list[int]:
    """Return the number of readers of each replica as a follower."""
    return [len(replica.follower_listeners) for replica in replicas]


async def test_consumer_reads_in_its_rack_leaves_and_comes_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three partitions are read from broker 2, whoever leads. While it is down the leaders are read, then broker 2 again."""
    monkeypatch.setattr(fetch_engine, "FOLLOWER_RETRY_MS", 500)
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client)
        await append_to_all(client, b"0")
        replicas = [await cluster.committed(2, number, 1) for number in range(PARTITIONS)]
        followed = [int(not replica.is_leader) for replica in replicas]
        assert sum(followed) == PARTITIONS - 1
        async with aio.Consumer(client.address, client_rack="r2") as consumer:
            await consumer.assign(TPS)
            assert await next_values(consumer, 3) == [b"0"] * 3
            await until(lambda: reader_counts(replicas) == followed, what="the routes at the followers")
            for count in range(1, 4):
                await append_to_all(client, b"%d" % count)
                assert await next_values(consumer, 3) == [b"%d" % count] * 3
            await cluster.stop(2)
            await append_to_all(client, b"away")
            assert await next_values(consumer, 3) == [b"away"] * 3
            await cluster.start(2)
            await cluster.wait(lambda: all(2 in cluster.partition(number).isr for number in range(PARTITIONS)))
            await append_to_all(client, b"back")
            assert await next_values(consumer, 3) == [b"back"] * 3
            replicas = [await cluster.replica(2, number) for number in range(PARTITIONS)]
            await until(
                lambda: reader_counts(replicas) == [int(not replica.is_leader) for replica in replicas],
                what="the return to the followers",
            )
            await append_to_all(client, b"last")
            assert await next_values(consumer, 3) == [b"last"] * 3
            assert [consumer.position(tp) for tp in TPS] == [7] * 3


async def test_consumer_without_a_rack_and_in_a_strange_one_reads_from_leaders(cluster: Cluster) -> None:
    """A consumer that does not ask for it, or has no follower near, never reads from a follower."""
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client)
        await append_to_all(client, b"0")
        replicas = [await cluster.committed(node, number, 1) for node in (1, 2, 3) for number in range(PARTITIONS)]
        for rack in (None, "r9"):
            async with aio.Consumer(client.address, client_rack=rack) as consumer:
                await consumer.assign(TPS)
                assert await next_values(consumer, 3) == [b"0"] * 3
                assert reader_counts(replicas) == [0] * len(replicas)

# SPDX-License-Identifier: Apache-2.0
"""Two brokers in one event loop: a leader keeps the configured rates of catch-up and of moves, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2

from brokerd.clock import monotonic_ms
from brokerd.tests.support import WAIT_S, Client, connected, running_broker
from brokerd.tests.three_brokers import Cluster, log_bytes
from metaquorum.metadata.topic_configs import CATCH_UP_RATE, MIN_RATE, MOVE_RATE

BATCHES = 200
BATCH_BYTES = 2_200
"""Maximum bytes of a batch of one record of 2,000 bytes."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Two brokers."""
    async with running_broker(tmp_path / "1") as first:
        made = Cluster(first, tmp_path)
        try:
            await made.start(2)
            yield made
        finally:
            if 2 in made.brokers:
                await made.stop(2)


async def set_rate(cluster: Cluster, client: Client, name: str, value: int | None, *, node_id: int | None) -> None:
    """Set a rate for one broker, or for the cluster, and wait until every broker's metadata has it."""
    kind = admin_pb2.CONFIG_RESOURCE_TYPE_CLUSTER if node_id is None else admin_pb2.CONFIG_RESOURCE_TYPE_BROKER
    resource = admin_pb2.ConfigResource(type=kind, name="" if node_id is None else str(node_id))
    change = admin_pb2.ConfigChange(name=name, value=None if value is None else str(value))
    changes = admin_pb2.ResourceConfigChanges(resource=resource, changes=[change])
    altered = await client.admin.AlterConfigs(admin_pb2.AlterConfigsRequest(resources=[changes]), timeout=WAIT_S)
    for broker in cluster.brokers.values():
        assert await broker.observer.wait_for(altered.metadata_offset, timeout_ms=int(WAIT_S * 1000))


async def create_topic(client: Client, *, partition_count: int, replication_factor: int) -> None:
    """Create topic `t`, whose appends do not wait for a disk."""
    request = admin_pb2.CreateTopicRequest(
        topic="t",
        partition_count=partition_count,
        replication_factor=replication_factor,
        configs={"flush.policy": "none"},
    )
    await client.admin.CreateTopic(request, timeout=WAIT_S)


async def fill(client: Client, partition: int) -> None:
    """Append as many batches as take minutes at the lowest rate."""
    await asyncio.gather(*(client.append("t", [bytes(2_000)], partition=partition) for _ in range(BATCHES)))


async def assert_held_back(cluster: Cluster, node_id: int, begin_ms: int) -> None:
    """Check that a replica of partition 0 copies, and since `begin_ms` has got no more than the lowest rate allows."""
    replica = await cluster.committed(node_id, 0, 2)
    held_bytes = len(log_bytes(replica))
    elapsed_ms = monotonic_ms() - begin_ms
    assert BATCH_BYTES < held_bytes <= MIN_RATE * (1_000 + elapsed_ms) / 1_000 + BATCH_BYTES


async def test_a_follower_out_of_sync_is_sent_no_more_than_the_limit(cluster: Cluster) -> None:
    """The cluster's limit holds until the broker has its own. Traffic to in-sync followers is not counted."""
    async with connected(cluster.brokers[1]) as client:
        await create_topic(client, partition_count=2, replication_factor=2)
        await set_rate(cluster, client, CATCH_UP_RATE, MIN_RATE, node_id=None)
        await cluster.stop(2)
        await cluster.wait(lambda: cluster.partition(0).leader_id == 1 == cluster.partition(1).leader_id)
        await fill(client, 0)
        begin_ms = monotonic_ms()
        await cluster.start(2)
        await assert_held_back(cluster, 2, begin_ms)
        await cluster.wait(lambda: 2 in cluster.partition(1).isr)
        await fill(client, 1)  # acknowledged when broker 2 has it
        assert len(log_bytes(await cluster.committed(2, 1, BATCHES))) > BATCHES * 2_000
        follower = await cluster.replica(2, 0)
        assert follower.high_watermark < BATCHES
        await set_rate(cluster, client, CATCH_UP_RATE, -1, node_id=1)
        await cluster.wait(lambda: 2 in cluster.partition(0).isr)
        assert log_bytes(await cluster.committed(2, 0, BATCHES)) == log_bytes(await cluster.replica(1, 0))


async def test_a_replica_that_a_reassignment_adds_is_sent_no_more_than_its_limit(cluster: Cluster) -> None:
    """The limit of moves holds for it until it is lifted. Then it copies the rest and replaces the other replica."""
    async with connected(cluster.brokers[1]) as client:
        await create_topic(client, partition_count=1, replication_factor=1)
        await fill(client, 0)
        await set_rate(cluster, client, MOVE_RATE, MIN_RATE, node_id=None)
        source = cluster.partition(0).replicas[0]
        target = 3 - source
        begin_ms = monotonic_ms()
        move = admin_pb2.PartitionReassignment(topic="t", partition=0, replicas=[target])
        answer = await client.admin.AlterPartitionReassignments(
            admin_pb2.AlterPartitionReassignmentsRequest(reassignments=[move]), timeout=WAIT_S
        )
        assert not any(result.HasField("error") for result in answer.results), answer
        await cluster.wait(lambda: target in cluster.partition(0, target).adding, target)
        await assert_held_back(cluster, target, begin_ms)
        assert cluster.partition(0).adding == (target,)
        await set_rate(cluster, client, MOVE_RATE, None, node_id=None)
        await cluster.wait(lambda: cluster.partition(0).replicas == (target,))
        assert len(log_bytes(await cluster.committed(target, 0, BATCHES))) > BATCHES * 2_000

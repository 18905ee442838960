# SPDX-License-Identifier: Apache-2.0
"""Three brokers in one event loop, with topics of three replicas: records reach every log, leaders move, brokers return."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2, log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.tests.support import WAIT_S, connected
from brokerd.tests.three_brokers import (
    PARTITIONS,
    Cluster,
    append_to_all,
    assert_equal,
    attempt,
    log_bytes,
    three_brokers,
)
from metaquorum.tests.quorum_cluster import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three brokers."""
    async with three_brokers(tmp_path) as made:
        yield made


@pytest.mark.parametrize("policy", ["ack", "none"])
async def test_acknowledged_records_are_in_every_log(cluster: Cluster, policy: str) -> None:
    """The receipt says replicated or flushed, and each replica has the same bytes."""
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client, flush_policy=policy)
        for partition in range(PARTITIONS):
            for number in range(5):
                response = await client.append("t", [b"%d" % number] * 3, partition=partition)
                wanted = log_pb2.DURABILITY_FLUSHED if policy == "ack" else log_pb2.DURABILITY_REPLICATED
                assert response.ranges[0].durability == wanted
            await assert_equal(cluster, partition, 15)
            read = await client.read("t", partition, 0)
            assert [record.value for record in read.records] == [b"%d" % (number // 3) for number in range(15)]


async def test_orderly_stop_moves_the_leaders_and_the_broker_comes_back(cluster: Cluster) -> None:
    """The stopped broker leads nothing and is in no ISR. When it is back, it copies what it missed, and is in every ISR."""
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client)
        await append_to_all(client, b"before")
        await cluster.stop(3)
        partitions = [cluster.partition(number) for number in range(PARTITIONS)]
        assert all(partition.leader_id in (1, 2) for partition in partitions), partitions
        assert all(3 not in partition.isr for partition in partitions), partitions
        await append_to_all(client, b"meanwhile")
        await cluster.start(3)
        await append_to_all(client, b"after")
        await cluster.wait(lambda: all(3 in cluster.partition(number).isr for number in range(PARTITIONS)))
        for number in range(PARTITIONS):
            await assert_equal(cluster, number, 3)
            read = await client.read("t", number, 0)
            assert [record.value for record in read.records] == [b"before", b"meanwhile", b"after"]


async def test_append_below_min_isr_is_refused_before_the_log(cluster: Cluster) -> None:
    """With one broker of three left and two required, nothing reaches the log. With the second one back, appends work."""
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client, min_insync_replicas="2")
        await append_to_all(client, b"before")
        await cluster.stop(2)
        await cluster.stop(3)
        await cluster.wait(lambda: all(cluster.partition(number).leader_id == 1 for number in range(PARTITIONS)))
        for number in range(PARTITIONS):
            status = await attempt(client, b"refused", number)
            assert status is not None
            assert status.code is ErrorCode.NOT_ENOUGH_REPLICAS
            response = await client.append("t", [b"leader"], partition=number, acks=log_pb2.ACKS_LEADER)
            assert response.ranges[0].durability == log_pb2.DURABILITY_APPENDED
        await cluster.start(2)
        await append_to_all(client, b"after")
        for number in range(PARTITIONS):
            await cluster.committed(1, number, 3)
            read = await client.read("t", number, 0)
            assert [record.value for record in read.records] == [b"before", b"leader", b"after"]


async def test_reassignment_moves_the_records(cluster: Cluster) -> None:
    """The added replicas copy the log while it is served. Then they replace the removed ones."""
    async with connected(cluster.brokers[1]) as client:
        await client.create_topic("t", PARTITIONS)
        await append_to_all(client, b"before")
        sources = [cluster.partition(number).replicas[0] for number in range(PARTITIONS)]
        moves = [
            admin_pb2.PartitionReassignment(
                topic="t", partition=number, replicas=[node for node in (1, 2, 3) if node != source]
            )
            for number, source in enumerate(sources)
        ]
        answer = await client.admin.AlterPartitionReassignments(
            admin_pb2.AlterPartitionReassignmentsRequest(reassignments=moves), timeout=WAIT_S
        )
        assert not any(result.HasField("error") for result in answer.results), answer
        await append_to_all(client, b"meanwhile")

        def is_done() -> bool:
            partitions = [cluster.partition(number) for number in range(PARTITIONS)]
            return all(
                source not in partition.replicas and not partition.adding and not partition.removing
                for source, partition in zip(sources, partitions, strict=True)
            )

        await cluster.wait(is_done)
        await append_to_all(client, b"after")
        for number in range(PARTITIONS):
            logs = [
                log_bytes(await cluster.committed(node_id, number, 3)) for node_id in cluster.partition(number).replicas
            ]
            assert len(logs) == 2
            assert logs[0] == logs[1]
            read = await client.read("t", number, 0)
            assert [record.value for record in read.records] == [b"before", b"meanwhile", b"after"]


def damage(path: Path, record: bytes) -> None:
    """Change one bit of a record in the only segment file below a directory that has it."""
    (found,) = [each for each in path.glob("partitions/*/*.log") if record in each.read_bytes()]
    content = bytearray(found.read_bytes())
    content[content.index(record)] ^= 1
    found.write_bytes(content)


async def test_damage_is_repaired_while_another_replica_serves(cluster: Cluster, tmp_path: Path) -> None:
    """A leader that meets damage resigns; readers get every record from the next one, and the log is whole again."""
    values = [b"record %d" % number for number in range(9)]
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client)
        (number,) = [each for each in range(PARTITIONS) if cluster.partition(each).replicas[0] == 2]
        for value in values:
            await client.append("t", [value], partition=number)
        await cluster.stop(2)
        damage(tmp_path / "2", values[4])
        await cluster.start(2)
        await cluster.wait(lambda: 2 in cluster.partition(number).isr)
        replica = await cluster.committed(2, number, len(values))
        targets = [admin_pb2.TopicPartitions(topic="t", partitions=[number])]
        preferred = admin_pb2.ElectLeadersRequest(type=admin_pb2.ELECTION_TYPE_PREFERRED, topics=targets)
        await client.admin.ElectLeaders(preferred, timeout=WAIT_S)
        await until(lambda: replica.is_leader, what="the leadership")
        leader_epoch = cluster.partition(number, 2).leader_epoch
        with pytest.raises(RefusedError) as caught:
            replica.read(4, 1, end_offset=len(values))
        assert caught.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
        await cluster.wait(lambda: cluster.partition(number).leader_id != 2)
        assert cluster.partition(number).leader_epoch == leader_epoch + 1
        assert 2 in cluster.partition(number).isr
        read = await client.read("t", number, 0)
        assert [record.value for record in read.records] == values
        await until(lambda: not replica.log.damaged, what="the repair")
        await assert_equal(cluster, number, len(values))

# SPDX-License-Identifier: Apache-2.0
"""Reassignments through the real service: begun, listed, completed by the leader, cancelled, refused, after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.quorum_cluster import CLUSTER, BrokerStub, QuorumCluster, quorum_cluster, refused


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """One voter whose lists have a page for each partition; brokers 7, 8 and 9; topic "t" with three partitions on 7."""
    async with quorum_cluster(tmp_path, 1, controller=ControllerSettings(max_sweep_partitions=1)) as running:
        await BrokerStub(running, 7).join(1)
        await running.admin(1).CreateTopic(admin_pb2.CreateTopicRequest(topic="t", partition_count=3))
        for broker_id in (8, 9):
            await BrokerStub(running, broker_id).join(1)
        yield running


def partition_of(cluster: QuorumCluster, number: int) -> PartitionImage:
    """Return a committed partition."""
    topic = cluster.servers[1].image.topic_by_name("t")
    assert topic is not None
    return topic.partitions[number]


def move(number: int, *replicas: int, topic: str = "t") -> admin_pb2.PartitionReassignment:
    """Return a reassignment of a partition; without replicas it cancels."""
    return admin_pb2.PartitionReassignment(topic=topic, partition=number, replicas=replicas, cancel=not replicas)


async def alter(
    cluster: QuorumCluster, *moves: admin_pb2.PartitionReassignment, check: bool = False
) -> admin_pb2.AlterPartitionReassignmentsResponse:
    """Ask for reassignments."""
    request = admin_pb2.AlterPartitionReassignmentsRequest(reassignments=moves, validate_only=check)
    return await cluster.admin(1).AlterPartitionReassignments(request)


async def listed(cluster: QuorumCluster, *topics: str) -> list[tuple[int, list[int], list[int]]]:
    """Return partition, adding and removing of each reassignment, over all pages."""
    found: list[tuple[int, list[int], list[int]]] = []
    token = ""
    while True:
        request = admin_pb2.ListPartitionReassignmentsRequest(topics=topics, page_token=token)
        answer = await cluster.admin(1).ListPartitionReassignments(request)
        for each in answer.reassignments:
            assert each.topic == "t"
            found.append((each.partition, list(each.state.adding), list(each.state.removing)))
        token = answer.next_page_token
        if not token:
            return found


async def test_reassignment_is_listed_until_the_leader_has_the_new_replicas(cluster: QuorumCluster) -> None:
    """Checked, begun, visible after a restart, completed by AlterPartition of the old leader, and gone from the list."""
    checked = await alter(cluster, move(0, 8, 9), move(2, 7, 9), check=True)
    assert (checked.metadata_offset, await listed(cluster)) == (0, [])
    begun = await alter(cluster, move(0, 8, 9), move(2, 7, 9))
    assert begun.results == checked.results
    first = begun.results[0]
    assert (list(first.replicas_before), list(first.state.replicas)) == ([7], [8, 9, 7])
    assert (list(first.state.isr), first.state.leader_id) == ([7], 7)
    under_way = [(0, [8, 9], [7]), (2, [9], [])]
    assert await listed(cluster) == under_way
    assert (await listed(cluster, "t"), await listed(cluster, "other")) == (under_way, [])
    await cluster.stop(1)
    await cluster.start(1)
    await cluster.active()
    assert await listed(cluster) == under_way
    topic = cluster.servers[1].image.topic_by_name("t")
    assert topic is not None
    partition = topic.partitions[0]
    proposal = controller_pb2.IsrProposal(
        topic_id=topic.topic_id,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=[controller_pb2.IsrMember(node_id=node_id) for node_id in (7, 8, 9)],
    )
    completed = await cluster.controllers(1).alter_partition(
        controller_pb2.AlterPartitionRequest(
            cluster_id=CLUSTER,
            broker_id=7,
            broker_epoch=cluster.servers[1].image.brokers[7].broker_epoch,
            proposals=[proposal],
        )
    )
    assert list(completed.results[0].state.replicas) == [8, 9]
    assert partition_of(cluster, 0).leader_id == 8
    assert await listed(cluster) == under_way[1:]


async def test_cancelled_reassignment_leaves_the_partition_as_it_was(cluster: QuorumCluster) -> None:
    """The original replicas return; a partition without a reassignment has nothing to cancel."""
    before = partition_of(cluster, 0)
    await alter(cluster, move(0, 8))
    answer = await alter(cluster, move(0), move(1))
    good, bad = answer.results
    assert (list(good.state.replicas), list(good.replicas_before)) == ([7], [7])
    assert bad.error.code == ErrorCode.INVALID_REQUEST.value
    assert list(bad.replicas_before) == [7]
    now = partition_of(cluster, 0)
    assert (now.replicas, now.isr, now.leader_id) == (before.replicas, before.isr, before.leader_id)
    assert await listed(cluster) == []


async def test_each_reassignment_is_refused_alone(cluster: QuorumCluster) -> None:
    """Unknown partitions and brokers, no replicas: the valid reassignment beside them begins."""
    empty = admin_pb2.PartitionReassignment(topic="t", partition=2)
    moves = (move(0, 5), move(9, 8), move(0, 8, topic="none"), empty, move(-1, 8), move(1, 8))
    answer = await alter(cluster, *moves)
    assert [each.error.code for each in answer.results] == [
        ErrorCode.INVALID_REQUEST.value,
        ErrorCode.UNKNOWN_PARTITION.value,
        ErrorCode.UNKNOWN_TOPIC.value,
        ErrorCode.INVALID_REQUEST.value,
        ErrorCode.UNKNOWN_PARTITION.value,
        0,
    ]
    assert await listed(cluster) == [(1, [8], [7])]


async def test_requests_of_no_use_are_refused_as_a_whole(cluster: QuorumCluster) -> None:
    """An empty request, a partition twice, a cancel with replicas, invalid page tokens and topics."""
    both = admin_pb2.PartitionReassignment(topic="t", replicas=[8], cancel=True)
    for moves in ((), (move(0, 8), move(0, 9)), (both,)):
        await refused(alter(cluster, *moves), ErrorCode.INVALID_REQUEST)
    for bad in (
        admin_pb2.ListPartitionReassignmentsRequest(page_token="t"),
        admin_pb2.ListPartitionReassignmentsRequest(page_token="x:t"),
        admin_pb2.ListPartitionReassignmentsRequest(page_token="9" * 11 + ":t"),
        admin_pb2.ListPartitionReassignmentsRequest(topics=["t"] * 1_001),
    ):
        await refused(cluster.admin(1).ListPartitionReassignments(bad), ErrorCode.INVALID_REQUEST)
    assert await listed(cluster) == []

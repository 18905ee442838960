# SPDX-License-Identifier: Apache-2.0
"""AlterPartition through the real service: accepted proposals are committed, and every fence has its own error code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import FenceBroker, Reassignment, ReassignPartitions
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.quorum_cluster import CLUSTER, BrokerStub, QuorumCluster, quorum_cluster, refused

WAIT_MS = 10_000

MOST = ControllerSettings().max_altered_partitions


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """One voter; brokers 7 and 8; the partitions of topic "t" are led by 7 and get a replica on 8."""
    async with quorum_cluster(tmp_path, 1) as running:
        await BrokerStub(running, 7).join(1)
        await running.admin(1).CreateTopic(admin_pb2.CreateTopicRequest(topic="t", partition_count=2))
        await BrokerStub(running, 8).join(1)
        moves = tuple(Reassignment(topic="t", partition=number, replicas=(7, 8)) for number in (0, 1))
        await running.servers[1].host.submit(ReassignPartitions(reassignments=moves), timeout_ms=WAIT_MS)
        yield running


def partition_of(cluster: QuorumCluster, number: int = 0) -> PartitionImage:
    """Return a committed partition."""
    topic = cluster.servers[1].image.topic_by_name("t")
    assert topic is not None
    return topic.partitions[number]


def proposal(cluster: QuorumCluster, number: int, *members: controller_pb2.IsrMember) -> controller_pb2.IsrProposal:
    """Return a proposal of the leader for the present state of a partition."""
    topic = cluster.servers[1].image.topic_by_name("t")
    assert topic is not None
    partition = topic.partitions[number]
    return controller_pb2.IsrProposal(
        topic_id=topic.topic_id,
        partition=number,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=members,
    )


def member(node_id: int, broker_epoch: int | None = None) -> controller_pb2.IsrMember:
    """Return a member of the in-sync replicas; by default without its epoch, as from a leader that does not know it."""
    return controller_pb2.IsrMember(node_id=node_id, broker_epoch=broker_epoch)


def request(
    cluster: QuorumCluster, *proposals: controller_pb2.IsrProposal, broker_id: int = 7
) -> controller_pb2.AlterPartitionRequest:
    """Return the request of a broker with its current epoch."""
    return controller_pb2.AlterPartitionRequest(
        cluster_id=CLUSTER,
        broker_id=broker_id,
        broker_epoch=cluster.servers[1].image.brokers[broker_id].broker_epoch,
        proposals=proposals,
    )


async def test_growth_is_committed_and_completes_the_reassignment(cluster: QuorumCluster) -> None:
    """One request for two partitions: the new replica is in sync, which completes the reassignment."""
    epoch = cluster.servers[1].image.brokers[8].broker_epoch
    before = partition_of(cluster)
    assert before.adding == (8,)
    answer = await cluster.controllers(1).alter_partition(
        request(
            cluster,
            proposal(cluster, 0, member(8, epoch), member(7)),
            proposal(cluster, 1, member(7)),
        )
    )
    grown, same = answer.results
    assert (grown.partition, list(grown.state.isr), list(grown.state.replicas)) == (0, [7, 8], [7, 8])
    assert (list(grown.state.adding), grown.state.leader_id) == ([], 7)
    assert grown.state.partition_epoch == before.partition_epoch + 1
    assert (same.partition, list(same.state.isr), list(same.state.adding)) == (1, [7], [8])
    now = partition_of(cluster)
    assert (now.isr, now.adding, now.leader_epoch) == ((7, 8), (), grown.state.leader_epoch)
    assert answer.metadata_offset <= cluster.servers[1].image.metadata_offset


async def test_each_partition_is_refused_alone_with_its_reason(cluster: QuorumCluster) -> None:
    """The body has the refusal of the bad partition; the good one beside it is accepted."""
    stale = proposal(cluster, 0, member(7))
    stale.leader_epoch -= 1
    ahead = proposal(cluster, 0, member(7))
    ahead.partition_epoch += 1
    unknown = proposal(cluster, 0, member(7))
    unknown.topic_id = bytes(16)
    missing = proposal(cluster, 0, member(7))
    missing.partition = 9
    for bad, code in (
        (stale, ErrorCode.FENCED_EPOCH),
        (ahead, ErrorCode.NOT_CONTROLLER),
        (unknown, ErrorCode.UNKNOWN_TOPIC),
        (missing, ErrorCode.UNKNOWN_PARTITION),
        (proposal(cluster, 0, member(8)), ErrorCode.INVALID_REQUEST),
        (proposal(cluster, 0, member(7), member(9)), ErrorCode.INVALID_REQUEST),
        (proposal(cluster, 0, member(7), member(8, 1)), ErrorCode.STALE_BROKER_EPOCH),
    ):
        before = partition_of(cluster)
        answer = await cluster.controllers(1).alter_partition(request(cluster, bad, proposal(cluster, 1, member(7))))
        failed, accepted = answer.results
        assert (failed.topic_id, failed.partition) == (bad.topic_id, bad.partition)
        assert failed.error.code == code.value, failed
        assert failed.error.message
        assert accepted.WhichOneof("outcome") == "state"
        assert partition_of(cluster) == before


async def test_fenced_replica_is_no_member(cluster: QuorumCluster) -> None:
    """The controller does not accept a replica whose process is gone as in sync, even if it has every record."""
    epoch = cluster.servers[1].image.brokers[8].broker_epoch
    await cluster.servers[1].host.submit(FenceBroker(broker_id=8, broker_epoch=epoch), timeout_ms=WAIT_MS)
    answer = await cluster.controllers(1).alter_partition(request(cluster, proposal(cluster, 0, member(7), member(8))))
    assert answer.results[0].error.code == ErrorCode.BROKER_FENCED.value


async def test_request_as_a_whole_is_fenced_by_cluster_broker_and_epoch(cluster: QuorumCluster) -> None:
    """Another cluster, an unknown broker, an old epoch, no or too many proposals: no partition changes."""
    good = request(cluster, proposal(cluster, 0, member(7), member(8)))
    for changes, code in (
        ({"cluster_id": "other"}, ErrorCode.WRONG_CLUSTER),
        ({"cluster_id": ""}, ErrorCode.WRONG_CLUSTER),
        ({"broker_id": 5}, ErrorCode.BROKER_FENCED),
        ({"broker_epoch": 1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"proposals": []}, ErrorCode.INVALID_REQUEST),
        ({"proposals": [proposal(cluster, 0, member(7))] * 2}, ErrorCode.INVALID_REQUEST),
        (
            {"proposals": [proposal(cluster, 0, member(7))] * (MOST + 1)},
            ErrorCode.INVALID_REQUEST,
        ),
    ):
        bad = controller_pb2.AlterPartitionRequest()
        bad.CopyFrom(good)
        for name, value in changes.items():
            bad.ClearField(name)
            bad.MergeFrom(controller_pb2.AlterPartitionRequest(**{name: value}))
        await refused(cluster.controllers(1).alter_partition(bad), code)
    assert partition_of(cluster).isr == (7,)


async def test_voter_that_is_not_the_controller_names_it(tmp_path: Path) -> None:
    """A follower refuses with a hint, so that the partition leader turns to the controller."""
    async with quorum_cluster(tmp_path, 3) as cluster:
        active = await cluster.active()
        other = next(node_id for node_id in cluster.voters if node_id != active)
        bad = controller_pb2.AlterPartitionRequest(cluster_id=CLUSTER, broker_id=7)
        status = await refused(cluster.controllers(other).alter_partition(bad), ErrorCode.NOT_CONTROLLER)
        assert status.leader is not None
        assert status.leader.leader_id == active

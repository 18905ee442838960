# SPDX-License-Identifier: Apache-2.0
"""Requested elections through the real service: the answer is the committed state."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import FenceBroker, Reassignment, ReassignPartitions
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.quorum_cluster import CLUSTER, BrokerStub, QuorumCluster, quorum_cluster, refused

WAIT_MS = 10_000
PREFERRED = admin_pb2.ELECTION_TYPE_PREFERRED
UNCLEAN = admin_pb2.ELECTION_TYPE_UNCLEAN


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """One voter; topic "t" with one partition on 8 and 7, both in sync, led by 7."""
    async with quorum_cluster(tmp_path, 1) as running:
        first = BrokerStub(running, 7)
        await first.join(1)
        await running.admin(1).CreateTopic(admin_pb2.CreateTopicRequest(topic="t"))
        second = BrokerStub(running, 8)
        await second.join(1)
        host = running.servers[1].host
        moves = (Reassignment(topic="t", partition=0, replicas=(8, 7)),)
        await host.submit(ReassignPartitions(reassignments=moves), timeout_ms=WAIT_MS)
        topic = host.image.topic_by_name("t")
        assert topic is not None
        partition = topic.partitions[0]
        proposal = controller_pb2.IsrProposal(
            topic_id=topic.topic_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=[controller_pb2.IsrMember(node_id=node_id) for node_id in (7, 8)],
        )
        await running.controllers(1).alter_partition(
            controller_pb2.AlterPartitionRequest(
                cluster_id=CLUSTER, broker_id=7, broker_epoch=first.broker_epoch, proposals=[proposal]
            )
        )
        yield running


def partition_of(cluster: QuorumCluster) -> PartitionImage:
    """Return the committed partition."""
    topic = cluster.servers[1].image.topic_by_name("t")
    assert topic is not None
    return topic.partitions[0]


def ask(kind: admin_pb2.ElectionType, *partitions: int, check: bool = False) -> admin_pb2.ElectLeadersRequest:
    """Return a request for partitions of "t"."""
    topics = [admin_pb2.TopicPartitions(topic="t", partitions=partitions)]
    return admin_pb2.ElectLeadersRequest(type=kind, topics=topics, validate_only=check)


async def test_preferred_leader_is_elected_when_it_is_asked_for(cluster: QuorumCluster) -> None:
    """The dry run announces it, the election does it, and a second request has nothing to do."""
    assert partition_of(cluster).leader_id == 7
    checked = await cluster.admin(1).ElectLeaders(ask(PREFERRED, check=True))
    assert (checked.metadata_offset, checked.results[0].elected) == (0, True)
    assert partition_of(cluster).leader_id == 7
    done = await cluster.admin(1).ElectLeaders(ask(PREFERRED, 0))
    assert done.results == checked.results
    assert done.results[0].state.leader_id == 8
    now = partition_of(cluster)
    assert (now.leader_id, now.leader_epoch) == (8, done.results[0].state.leader_epoch)
    again = await cluster.admin(1).ElectLeaders(ask(PREFERRED))
    assert [(each.elected, each.state.leader_id) for each in again.results] == [(False, 8)]


async def test_unclean_leader_is_elected_when_nobody_else_can_lead(cluster: QuorumCluster) -> None:
    """The two in-sync replicas stop one after the other; the first to stop leads again only on request."""
    host = cluster.servers[1].host
    for broker_id in (8, 7):
        epoch = host.image.brokers[broker_id].broker_epoch
        await host.submit(FenceBroker(broker_id=broker_id, broker_epoch=epoch), timeout_ms=WAIT_MS)
    failed = (await cluster.admin(1).ElectLeaders(ask(UNCLEAN, 0, 5))).results
    codes = [each.error.code for each in failed]
    assert codes == [ErrorCode.LEADER_NOT_AVAILABLE.value, ErrorCode.UNKNOWN_PARTITION.value]
    assert failed[0].error.retry_after_ms > 0
    back = BrokerStub(cluster, 8)
    back.broker_epoch = host.image.brokers[8].broker_epoch
    await back.beat(1)
    assert (partition_of(cluster).leader_id, partition_of(cluster).isr) == (None, (7,))
    (elected,) = (await cluster.admin(1).ElectLeaders(ask(UNCLEAN, 0))).results
    assert (elected.elected, elected.state.leader_id, list(elected.state.isr)) == (True, 8, [8])
    assert partition_of(cluster).leader_id == 8


async def test_requests_of_no_use_are_refused(cluster: QuorumCluster) -> None:
    """No type, no partition, no such topic, another cluster."""
    admin = cluster.admin(1)
    await refused(admin.ElectLeaders(ask(admin_pb2.ELECTION_TYPE_UNSPECIFIED, 0)), ErrorCode.INVALID_REQUEST)
    await refused(admin.ElectLeaders(admin_pb2.ElectLeadersRequest(type=PREFERRED)), ErrorCode.INVALID_REQUEST)
    unknown = [admin_pb2.TopicPartitions(topic="none")]
    await refused(
        admin.ElectLeaders(admin_pb2.ElectLeadersRequest(type=PREFERRED, topics=unknown)), ErrorCode.UNKNOWN_TOPIC
    )
    other = ask(PREFERRED)
    other.cluster_id = "other"
    await refused(admin.ElectLeaders(other), ErrorCode.WRONG_CLUSTER)

# SPDX-License-Identifier: Apache-2.0
"""ResignLeadership through the real service: another replica leads once it is committed, and every fence has its own code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import AlterPartition, IsrProposal, Reassignment, ReassignPartitions
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.state import PartitionImage, TopicImage
from metaquorum.tests.quorum_cluster import CLUSTER, BrokerStub, QuorumCluster, quorum_cluster, refused

WAIT_MS = 10_000


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """One voter; brokers 7 and 8; both have the partitions of topic "t", which 7 leads; 8 is in sync in the first two of three."""
    async with quorum_cluster(tmp_path, 1) as running:
        await BrokerStub(running, 7).join(1)
        await running.admin(1).CreateTopic(admin_pb2.CreateTopicRequest(topic="t", partition_count=3))
        await BrokerStub(running, 8).join(1)
        host = running.servers[1].host
        moves = tuple(Reassignment(topic="t", partition=number, replicas=(7, 8)) for number in range(3))
        await host.submit(ReassignPartitions(reassignments=moves), timeout_ms=WAIT_MS)
        proposals = tuple(
            IsrProposal(
                topic_id=topic_of(running).topic_id,
                partition=number,
                leader_epoch=partition_of(running, number).leader_epoch,
                partition_epoch=partition_of(running, number).partition_epoch,
                isr=((7, None), (8, None)),
            )
            for number in range(2)
        )
        epoch = running.servers[1].image.brokers[7].broker_epoch
        await host.submit(AlterPartition(broker_id=7, broker_epoch=epoch, proposals=proposals), timeout_ms=WAIT_MS)
        yield running


def topic_of(cluster: QuorumCluster) -> TopicImage:
    """Return the committed topic."""
    topic = cluster.servers[1].image.topic_by_name("t")
    assert topic is not None
    return topic


def partition_of(cluster: QuorumCluster, number: int = 0) -> PartitionImage:
    """Return a committed partition."""
    return topic_of(cluster).partitions[number]


def led(cluster: QuorumCluster, number: int = 0) -> controller_pb2.LedPartition:
    """Return a partition as its leader names it."""
    return controller_pb2.LedPartition(
        topic_id=topic_of(cluster).topic_id,
        partition=number,
        leader_epoch=partition_of(cluster, number).leader_epoch,
    )


def request(
    cluster: QuorumCluster, *partitions: controller_pb2.LedPartition, broker_id: int = 7
) -> controller_pb2.ResignLeadershipRequest:
    """Return the request of a broker with its current epoch."""
    return controller_pb2.ResignLeadershipRequest(
        cluster_id=CLUSTER,
        broker_id=broker_id,
        broker_epoch=cluster.servers[1].image.brokers[broker_id].broker_epoch,
        partitions=partitions,
    )


async def test_other_replica_leads_and_the_broker_stays_in_sync(cluster: QuorumCluster) -> None:
    """One request for two partitions: both get another leader, visible at the offset of the answer."""
    before = partition_of(cluster)
    assert (before.leader_id, before.isr) == (7, (7, 8))
    answer = await cluster.controllers(1).resign_leadership(request(cluster, led(cluster, 1), led(cluster)))
    assert [result.partition for result in answer.results] == [1, 0]
    state = answer.results[1].state
    assert (state.leader_id, list(state.isr), list(state.replicas)) == (8, [7, 8], [7, 8])
    assert (state.leader_epoch, state.partition_epoch) == (before.leader_epoch + 1, before.partition_epoch + 1)
    now = partition_of(cluster)
    assert (now.leader_id, now.isr, now.leader_epoch) == (8, (7, 8), state.leader_epoch)
    assert partition_of(cluster, 1).leader_id == 8
    assert answer.metadata_offset <= cluster.servers[1].image.metadata_offset


async def test_each_partition_is_refused_alone_with_its_reason(cluster: QuorumCluster) -> None:
    """The body has the refusal of the bad partition; the good one beside it gets another leader."""
    stale, ahead, unknown, missing = (led(cluster) for _ in range(4))
    stale.leader_epoch -= 1
    ahead.leader_epoch += 1
    unknown.topic_id = bytes(16)
    missing.partition = 9
    cases = (
        (stale, ErrorCode.FENCED_EPOCH),
        (ahead, ErrorCode.NOT_CONTROLLER),
        (unknown, ErrorCode.UNKNOWN_TOPIC),
        (missing, ErrorCode.UNKNOWN_PARTITION),
        (led(cluster, 2), ErrorCode.LEADER_NOT_AVAILABLE),
    )
    before = partition_of(cluster)
    for turn, (bad, code) in enumerate(cases):
        # The second partition alternates between brokers 7 and 8; 7, which leads the third one, has the last turn.
        broker_id, heir = (8, 7) if turn % 2 else (7, 8)
        good = led(cluster, 1)
        answer = await cluster.controllers(1).resign_leadership(request(cluster, bad, good, broker_id=broker_id))
        failed, given_up = answer.results
        assert (failed.topic_id, failed.partition) == (bad.topic_id, bad.partition)
        assert failed.error.code == code.value, failed
        assert failed.error.message
        assert given_up.state.leader_id == heir
        assert partition_of(cluster) == before


async def test_broker_that_does_not_lead_is_refused(cluster: QuorumCluster) -> None:
    """A follower has no leadership to give up."""
    answer = await cluster.controllers(1).resign_leadership(request(cluster, led(cluster), broker_id=8))
    assert answer.results[0].error.code == ErrorCode.INVALID_REQUEST.value
    assert partition_of(cluster).leader_id == 7


async def test_request_as_a_whole_is_fenced_by_cluster_broker_and_epoch(cluster: QuorumCluster) -> None:
    """Another cluster, an unknown broker, an old epoch, no or too many partitions, or one twice: no partition changes."""
    good = request(cluster, led(cluster))
    for changes, code in (
        ({"cluster_id": "other"}, ErrorCode.WRONG_CLUSTER),
        ({"cluster_id": ""}, ErrorCode.WRONG_CLUSTER),
        ({"broker_id": 5}, ErrorCode.BROKER_FENCED),
        ({"broker_epoch": 1}, ErrorCode.STALE_BROKER_EPOCH),
        ({"partitions": []}, ErrorCode.INVALID_REQUEST),
        ({"partitions": [led(cluster)] * 2}, ErrorCode.INVALID_REQUEST),
        ({"partitions": [led(cluster)] * (ControllerSettings().max_altered_partitions + 1)}, ErrorCode.INVALID_REQUEST),
    ):
        bad = controller_pb2.ResignLeadershipRequest()
        bad.CopyFrom(good)
        for name, value in changes.items():
            bad.ClearField(name)
            bad.MergeFrom(controller_pb2.ResignLeadershipRequest(**{name: value}))
        await refused(cluster.controllers(1).resign_leadership(bad), code)
    assert partition_of(cluster).leader_id == 7


async def test_voter_that_is_not_the_controller_names_it(tmp_path: Path) -> None:
    """A follower refuses with a hint, so that the broker turns to the controller."""
    async with quorum_cluster(tmp_path, 3) as cluster:
        active = await cluster.active()
        other = next(node_id for node_id in cluster.voters if node_id != active)
        bad = controller_pb2.ResignLeadershipRequest(cluster_id=CLUSTER, broker_id=7)
        status = await refused(cluster.controllers(other).resign_leadership(bad), ErrorCode.NOT_CONTROLLER)
        assert status.leader is not None
        assert status.leader.leader_id == active

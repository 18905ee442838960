# SPDX-License-Identifier: Apache-2.0
"""Three real quorum servers in one process: take-over, refusals of non-leaders, lost majority, first start."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from metaquorum.metadata.image import MetadataImage
from metaquorum.process.server import QuorumServer
from metaquorum.testing.ports import free_ports
from metaquorum.tests.controller_world import view
from metaquorum.tests.quorum_cluster import (
    DEADLINE_S,
    HOST,
    POLL_S,
    BrokerStub,
    QuorumCluster,
    quorum_cluster,
    refused,
    settings_for,
    until,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    async with quorum_cluster(tmp_path, 3) as running:
        yield running


def create(topic: str) -> admin_pb2.CreateTopicRequest:
    """Return a request to create a topic of two partitions."""
    return admin_pb2.CreateTopicRequest(topic=topic, partition_count=2)


async def create_somewhere(cluster: QuorumCluster, topic: str) -> admin_pb2.CreateTopicResponse | None:
    """Create a topic as a client does: follow hints and retry within a deadline; return None if it already exists."""
    deadline = time.monotonic() + DEADLINE_S
    unsure = False
    while True:
        for node_id in sorted(cluster.servers):
            try:
                return await cluster.admin(node_id).CreateTopic(create(topic), timeout=3)
            except grpc.aio.AioRpcError as error:
                status = parse_rpc_error(error)
                if status.code is ErrorCode.TOPIC_ALREADY_EXISTS and unsure:
                    return None
                unsure = unsure or status.code in (None, ErrorCode.OUTCOME_UNKNOWN)
                retriable = status.code is None or status.code.retriable or status.code is ErrorCode.OUTCOME_UNKNOWN
                assert retriable, status
        assert time.monotonic() < deadline, f"topic {topic} could not be created"
        await asyncio.sleep(POLL_S)


async def same_images(cluster: QuorumCluster) -> MetadataImage:
    """Wait until all running voters have the same image; return one."""
    images = [server.image for server in cluster.servers.values()]

    def equal() -> bool:
        return len({image.metadata_offset for image in images}) == 1

    await until(equal, what="equal offsets")
    assert all(view(image) == view(images[0]) for image in images)
    return images[0]


async def test_topics_survive_the_stop_of_the_leader_and_creation_goes_on(cluster: QuorumCluster) -> None:
    """Create, stop the leader, create again, start it again: every acknowledged topic is on every voter."""
    leader = await cluster.active()
    broker = BrokerStub(cluster, 7)
    await broker.join(leader)
    for number in range(5):
        assert await create_somewhere(cluster, f"before-{number}") is not None
    epoch = broker.broker_epoch
    await cluster.stop(leader)
    second = await cluster.active()
    assert second != leader
    survivor = BrokerStub(cluster, 7)
    survivor.broker_epoch = epoch
    # The registration outlives the leadership, and the new controller does not fence for heartbeats it never got.
    assert not (await survivor.beat(second)).fenced
    for number in range(5):
        await create_somewhere(cluster, f"after-{number}")
    await cluster.start(leader)
    await cluster.active()
    image = await same_images(cluster)
    expected = sorted([f"before-{n}" for n in range(5)] + [f"after-{n}" for n in range(5)])
    assert image.topic_names == expected
    assert all([p.leader_id for p in topic.partitions] == [7, 7] for topic in image.topics())


async def test_non_leaders_refuse_with_a_hint_at_the_leaders_quorum_listener(cluster: QuorumCluster) -> None:
    """A voter that does not lead answers with the leader's id, epoch and address."""
    leader = await cluster.active()
    server = cluster.servers[leader]
    for node_id in cluster.voters:
        if node_id == leader:
            continue
        await until(
            lambda node_id=node_id: cluster.servers[node_id].node.leader().leader_id == leader, what="a known leader"
        )
        admin = cluster.admin(node_id)
        for call in (
            admin.CreateTopic(create("t")),
            admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t")),
            admin.ListTopics(admin_pb2.ListTopicsRequest()),
            admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="t")),
            admin.DescribeQuorum(admin_pb2.DescribeQuorumRequest()),
        ):
            status = await refused(call, ErrorCode.NOT_CONTROLLER)
            assert status.leader is not None
            hint = (status.leader.leader_id, status.leader.leader_epoch, status.leader.host, status.leader.port)
            assert hint == (leader, server.node.leader().quorum_epoch, HOST, cluster.ports[leader])
        status = await refused(BrokerStub(cluster, 7).register(node_id), ErrorCode.NOT_CONTROLLER)
        assert status.leader is not None
        status = await refused(BrokerStub(cluster, 7).beat(node_id), ErrorCode.NOT_CONTROLLER)
        assert status.leader is not None


async def test_quorum_leader_describes_all_voters(cluster: QuorumCluster) -> None:
    """DescribeQuorum shows every voter with its progress."""
    leader = await cluster.active()
    admin = cluster.admin(leader)

    async def described() -> admin_pb2.DescribeQuorumResponse:
        return await admin.DescribeQuorum(admin_pb2.DescribeQuorumRequest())

    deadline = time.monotonic() + DEADLINE_S
    while not all(voter.HasField("last_caught_up_age_ms") for voter in (await described()).voters):
        assert time.monotonic() < deadline, "followers never caught up"
        await asyncio.sleep(POLL_S)
    answer = await described()
    assert answer.leader_id == leader
    assert [(voter.node_id, voter.address) for voter in answer.voters] == sorted(cluster.voters.items())
    followers = [voter for voter in answer.voters if voter.node_id != leader]
    assert all(voter.HasField("last_fetch_age_ms") for voter in followers)


async def test_without_a_majority_nothing_is_claimed(cluster: QuorumCluster) -> None:
    """A leader that lost its majority first answers that the outcome is unknown, then that the quorum is unavailable."""
    leader = await cluster.active()
    await BrokerStub(cluster, 7).join(leader)
    assert await create_somewhere(cluster, "kept") is not None
    others = [node_id for node_id in cluster.voters if node_id != leader]
    for node_id in others:
        await cluster.stop(node_id)
    admin = cluster.admin(leader)
    asking = asyncio.ensure_future(
        refused(admin.ListTopics(admin_pb2.ListTopicsRequest(), timeout=20), ErrorCode.QUORUM_UNAVAILABLE)
    )
    await refused(admin.CreateTopic(create("unsure"), timeout=2), ErrorCode.OUTCOME_UNKNOWN)
    # Another leader may have committed more by now: a read is not answered either.
    await asking
    assert cluster.servers[leader].image.topic_by_name("unsure") is None
    await until(lambda: not cluster.servers[leader].host.is_active, what="the leader to resign")
    status = await refused(admin.CreateTopic(create("refused")), ErrorCode.QUORUM_UNAVAILABLE)
    assert status.retry_after_ms is not None
    await cluster.start(others[0])
    await cluster.active()
    await create_somewhere(cluster, "after")
    await cluster.start(others[1])
    image = await same_images(cluster)
    assert {"kept", "after"} <= set(image.topic_names)
    assert "refused" not in image.topic_names


async def test_creations_in_flight_when_the_leader_stops_have_a_clear_outcome(cluster: QuorumCluster) -> None:
    """Creations under way while the leader stops succeed, fail or are of unknown outcome; the confirmed stay."""
    leader = await cluster.active()
    await BrokerStub(cluster, 7).join(leader)
    admin = cluster.admin(leader)
    confirmed: list[str] = []
    failures: list[ErrorCode | None] = []

    async def one(number: int) -> None:
        name = f"t{number}"
        try:
            await admin.CreateTopic(create(name), timeout=10)
        except grpc.aio.AioRpcError as error:
            failures.append(parse_rpc_error(error).code)
        else:
            confirmed.append(name)

    calls = [asyncio.ensure_future(one(number)) for number in range(60)]
    await until(lambda: len(confirmed) > 3, what="the first confirmations")
    await cluster.stop(leader)
    await asyncio.gather(*calls)
    # None: the connection went before an answer.
    allowed = {None, ErrorCode.OUTCOME_UNKNOWN, ErrorCode.NOT_CONTROLLER, ErrorCode.SHUTTING_DOWN}
    assert set(failures) <= {*allowed, ErrorCode.QUORUM_UNAVAILABLE}
    await cluster.active()
    await create_somewhere(cluster, "last")
    image = await same_images(cluster)
    assert set(confirmed) <= set(image.topic_names)


async def test_first_start_forms_a_cluster_and_a_wiped_voter_comes_back_as_observer(tmp_path: Path) -> None:
    """Empty directories format themselves once all voters agree; a wiped disk never votes as the old voter."""
    ports = dict(enumerate(free_ports(3), start=1))
    voters = {node_id: f"{HOST}:{port}" for node_id, port in ports.items()}

    def server(node_id: int) -> QuorumServer:
        settings = settings_for(node_id, ports[node_id], voters, first_start=True)
        return QuorumServer(settings, tmp_path / f"voter-{node_id}")

    servers = {node_id: server(node_id) for node_id in voters}
    first = asyncio.ensure_future(servers[1].start())
    second = asyncio.ensure_future(servers[2].start())
    # A silent peer means wait: two of three do not start without the third.
    done, _ = await asyncio.wait((first, second), timeout=1.0)
    assert not done
    await servers[3].start()
    await asyncio.gather(first, second)

    def active() -> int | None:
        return next((node_id for node_id, one in servers.items() if one.host.is_active), None)

    try:
        leader = await until(active, what="an active controller")
        assert all(status.node_id in voters for status in servers[leader].node.status().voters)
        wiped = next(node_id for node_id in voters if node_id != leader)
        await servers[wiped].stop()
        shutil.rmtree(tmp_path / f"voter-{wiped}")
        servers[wiped] = server(wiped)
        await servers[wiped].start()
        await until(
            lambda: servers[wiped].image.metadata_offset >= 3, what="the wiped node to follow the log as an observer"
        )
        assert not servers[wiped].node.status().is_voter
    finally:
        await asyncio.gather(*(one.stop() for one in servers.values()))


async def test_stop_while_waiting_for_the_first_start_ends_it(tmp_path: Path) -> None:
    """A server that waits for its peers can be stopped, and leaves its port and an unformatted directory."""
    ports = dict(enumerate(free_ports(2), start=1))
    voters = {node_id: f"{HOST}:{port}" for node_id, port in ports.items()}
    server = QuorumServer(settings_for(1, ports[1], voters, first_start=True), tmp_path / "d")
    starting = asyncio.ensure_future(server.start())
    done, _ = await asyncio.wait((starting,), timeout=0.5)
    assert not done
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await server.stop()
    assert not (tmp_path / "d" / "meta.json").exists()

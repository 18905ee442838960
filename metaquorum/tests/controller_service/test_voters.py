# SPDX-License-Identifier: Apache-2.0
"""Real quorum servers in one process: voters are added and removed, a wiped one is replaced, leadership is handed over."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.process.server import QuorumServer
from metaquorum.raft.voters import Voter
from metaquorum.replica.auto_join import AutoJoin
from metaquorum.replica.first_start import format_observer
from metaquorum.testing.ports import free_ports
from metaquorum.tests.quorum_cluster import (
    CLUSTER,
    HOST,
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


def voters_of(server: QuorumServer) -> dict[int, bytes]:
    """Directory ids of the voters by node id, as a server has them."""
    return {voter.node_id: voter.directory_id for voter in server.node.status().voters}


def raft_voters(server: QuorumServer) -> tuple[Voter, ...]:
    """Return the voters in the log, without the configured addresses."""
    raft = server.node._raft  # pyright: ignore[reportPrivateUsage]
    assert raft is not None, "the server runs"
    return raft.state.voter_set.voters


async def caught_up(server: QuorumServer, node_id: int, directory_id: bytes) -> None:
    """Wait until the leader knows that an observer has caught up."""
    await until(
        lambda: any(
            each.directory_id == directory_id and each.last_caught_up_age_ms is not None
            for each in server.node.status().observers
            if each.node_id == node_id
        ),
        what=f"node {node_id} to catch up",
    )


async def all_caught_up(server: QuorumServer) -> None:
    """Wait until the leader knows that every voter has caught up: one with a slow disk may not have fetched yet."""
    await until(
        lambda: all(voter.last_caught_up_age_ms is not None for voter in server.node.status().voters),
        what="everybody to have everything",
    )


async def join(
    cluster: QuorumCluster, node_id: int, port: int, *, first_start: bool, auto_join: bool = False
) -> QuorumServer:
    """Start a server that joins as an observer: at a first start that lists all voters and itself, or formatted without voters."""
    addresses = {**cluster.voters, node_id: f"{HOST}:{port}"}
    if not first_start:
        format_observer(cluster.path(node_id), node_id=node_id, cluster_id=CLUSTER)
    configured = addresses if first_start else cluster.voters
    settings = settings_for(node_id, port, configured, first_start=first_start, auto_join=auto_join)
    server = QuorumServer(settings, cluster.path(node_id))
    await server.start()
    cluster.servers[node_id] = server
    cluster.ports[node_id] = port
    cluster.voters[node_id] = addresses[node_id]
    return server


async def create(cluster: QuorumCluster, topic: str) -> int:
    """Create a topic at the active controller; the metadata offset at which it is visible."""
    request = admin_pb2.CreateTopicRequest(topic=topic, partition_count=1)
    answer = await cluster.admin(await cluster.active()).CreateTopic(request)
    return answer.metadata_offset


async def test_wiped_voter_is_replaced_and_takes_part_in_commits(cluster: QuorumCluster) -> None:
    """Its old key is removed and its new one added; then it is needed for a majority, and is a voter after a restart."""
    leader = await cluster.active()
    await BrokerStub(cluster, 7).join(leader)
    await create(cluster, "before")
    wiped, other = (node_id for node_id in cluster.voters if node_id != leader)
    await all_caught_up(cluster.servers[leader])
    old_id = voters_of(cluster.servers[leader])[wiped]
    await cluster.stop(wiped)
    shutil.rmtree(cluster.path(wiped))
    fresh = await join(cluster, wiped, cluster.ports[wiped], first_start=True)
    new_id = fresh.node.directory_id
    assert new_id != old_id
    await caught_up(cluster.servers[leader], wiped, new_id)
    admin = cluster.admin(leader)
    await refused(admin.AddVoter(admin_pb2.AddVoterRequest(node_id=wiped)), ErrorCode.INVALID_REQUEST)
    removed = await admin.RemoveVoter(admin_pb2.RemoveVoterRequest(node_id=wiped))
    assert removed.directory_id == old_id
    assert list(voters_of(cluster.servers[leader])) == sorted((leader, other))
    added = await admin.AddVoter(admin_pb2.AddVoterRequest(node_id=wiped))
    assert added.directory_id == new_id
    assert added.metadata_offset > removed.metadata_offset
    assert voters_of(cluster.servers[leader])[wiped] == new_id
    # With this voter stopped, only the new one makes a majority.
    await cluster.stop(other)
    offset = await create(cluster, "after")
    await until(lambda: fresh.image.metadata_offset >= offset, what="the new voter to have the topic")
    await until(lambda: fresh.node.status().is_voter, what="the new voter to know that it votes")
    await cluster.stop(wiped)
    again = await cluster.start(wiped)
    assert again.node.status().is_voter
    assert voters_of(again)[wiped] == new_id
    await create(cluster, "last")


async def test_fourth_voter_is_added_and_the_leader_removed(cluster: QuorumCluster) -> None:
    """From three to four, and back to three without the old leader, which continues as an observer."""
    leader = await cluster.active()
    await BrokerStub(cluster, 7).join(leader)
    (port,) = free_ports(1)
    fourth = await join(cluster, 4, port, first_start=False)
    assert not fourth.node.status().is_voter
    await caught_up(cluster.servers[leader], 4, fourth.node.directory_id)
    await cluster.admin(leader).AddVoter(admin_pb2.AddVoterRequest(node_id=4))
    assert list(voters_of(cluster.servers[leader])) == [1, 2, 3, 4]
    await all_caught_up(cluster.servers[leader])
    answer = await cluster.admin(leader).RemoveVoter(admin_pb2.RemoveVoterRequest(node_id=leader))
    assert answer.metadata_offset > 0
    await until(lambda: not cluster.servers[leader].host.is_active, what="the removed leader to resign")
    second = await cluster.active()
    assert second != leader
    assert leader not in voters_of(cluster.servers[second])
    offset = await create(cluster, "after")
    await until(lambda: cluster.servers[leader].image.metadata_offset >= offset, what="the observer to follow")
    assert not cluster.servers[leader].node.status().is_voter
    described = await cluster.admin(second).DescribeQuorum(admin_pb2.DescribeQuorumRequest())
    assert [observer.node_id for observer in described.observers] == [leader]


async def test_leadership_goes_to_the_voter_that_is_named_and_nothing_is_lost(cluster: QuorumCluster) -> None:
    """The answer names the next leader; repeated when that node leads, the request has nothing to do."""
    leader = await cluster.active()
    await BrokerStub(cluster, 7).join(leader)
    await create(cluster, "before")
    target = next(node_id for node_id in cluster.voters if node_id != leader)
    await all_caught_up(cluster.servers[leader])
    request = admin_pb2.TransferLeadershipRequest(node_id=target)
    answer = await cluster.admin(leader).TransferLeadership(request)
    assert answer.leader_id == target
    assert answer.quorum_epoch > 1
    assert await cluster.active() == target
    again = await cluster.admin(target).TransferLeadership(request)
    assert again == answer
    status = await refused(cluster.admin(leader).TransferLeadership(request), ErrorCode.NOT_CONTROLLER)
    assert status.leader is not None
    assert cluster.servers[target].image.topic_by_name("before") is not None


async def test_what_cannot_be_done_is_refused_and_changes_nothing(cluster: QuorumCluster) -> None:
    """Each refusal has a reason and says what to do."""
    leader = await cluster.active()
    admin = cluster.admin(leader)
    before = voters_of(cluster.servers[leader])
    for call, word in (
        (admin.AddVoter(admin_pb2.AddVoterRequest(node_id=2)), "DUPLICATE_VOTER"),
        (admin.AddVoter(admin_pb2.AddVoterRequest(node_id=9)), "NOT_CAUGHT_UP"),
        (admin.AddVoter(admin_pb2.AddVoterRequest(node_id=9, directory_id=b"d" * 16)), "NOT_CAUGHT_UP"),
        (admin.AddVoter(admin_pb2.AddVoterRequest(node_id=9, directory_id=b"short")), "16 bytes"),
        (admin.RemoveVoter(admin_pb2.RemoveVoterRequest(node_id=9)), "VOTER_NOT_FOUND"),
        (admin.RemoveVoter(admin_pb2.RemoveVoterRequest(node_id=2, directory_id=b"d" * 16)), "VOTER_NOT_FOUND"),
        (admin.TransferLeadership(admin_pb2.TransferLeadershipRequest(node_id=9)), "VOTER_NOT_FOUND"),
    ):
        status = await refused(call, ErrorCode.INVALID_REQUEST)
        assert word in status.message
    await refused(admin.RemoveVoter(admin_pb2.RemoveVoterRequest(cluster_id="x", node_id=2)), ErrorCode.WRONG_CLUSTER)
    assert voters_of(cluster.servers[leader]) == before


async def test_change_without_a_majority_has_an_unknown_outcome(cluster: QuorumCluster) -> None:
    """The record is appended and cannot be committed."""
    leader = await cluster.active()
    admin = cluster.admin(leader)
    others = [node_id for node_id in cluster.voters if node_id != leader]
    await all_caught_up(cluster.servers[leader])
    await asyncio.gather(*(cluster.stop(node_id) for node_id in others))
    call = admin.RemoveVoter(admin_pb2.RemoveVoterRequest(node_id=others[0]), timeout=5)
    await refused(call, ErrorCode.OUTCOME_UNKNOWN)


async def test_voter_that_moved_tells_the_leader_its_new_address(cluster: QuorumCluster) -> None:
    """The voter set has the new address, for servers that have none configured for this voter."""
    leader = await cluster.active()
    moved = next(node_id for node_id in cluster.voters if node_id != leader)
    await cluster.stop(moved)
    (port,) = free_ports(1)
    cluster.ports[moved] = port
    cluster.voters[moved] = f"{HOST}:{port}"
    await cluster.start(moved)
    # The two others still have the old address configured, which wins for their calls; the set has the new one.
    await until(
        lambda: (
            {voter.key.node_id: voter.address for voter in raft_voters(cluster.servers[moved])}[moved]
            == cluster.voters[moved]
        ),
        what="the set of voters to have the new address",
    )


async def test_wiped_voter_with_auto_join_replaces_itself(cluster: QuorumCluster) -> None:
    """The old key, silent for long, is removed and the new one added, without an operator."""
    leader = await cluster.active()
    wiped = next(node_id for node_id in cluster.voters if node_id != leader)
    old_id = voters_of(cluster.servers[leader])[wiped]
    await cluster.stop(wiped)
    shutil.rmtree(cluster.path(wiped))
    fresh = await join(cluster, wiped, cluster.ports[wiped], first_start=True, auto_join=True)
    await until(lambda: fresh.node.status().is_voter, what="the wiped node to vote again")
    assert voters_of(cluster.servers[leader])[wiped] == fresh.node.directory_id != old_id
    assert list(voters_of(cluster.servers[leader])) == [1, 2, 3]


async def test_auto_join_does_not_push_out_a_living_voter(cluster: QuorumCluster) -> None:
    """A second process with a voter's node id is a mistake: it waits as long as the first one fetches."""
    leader = await cluster.active()
    before = voters_of(cluster.servers[leader])
    twin = next(node_id for node_id in cluster.voters if node_id != leader)
    (port,) = free_ports(1)
    path = cluster.directory / "twin"
    format_observer(path, node_id=twin, cluster_id=CLUSTER)
    server = QuorumServer(settings_for(twin, port, cluster.voters, auto_join=True), path)
    await server.start()
    try:
        await caught_up(cluster.servers[leader], twin, server.node.directory_id)
        joining = AutoJoin(server.node, server.peers)
        assert not await joining._attempt()  # pyright: ignore[reportPrivateUsage]
    finally:
        await server.stop()
    assert voters_of(cluster.servers[leader]) == before

# SPDX-License-Identifier: Apache-2.0
"""Real quorum servers whose versions support different feature levels: which may vote, and when the level may rise."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from metaquorum.controller.settings import ControllerSettings
from metaquorum.process.server import QuorumServer
from metaquorum.replica.auto_join import STALE_VOTER_MS, AutoJoin
from metaquorum.replica.first_start import format_observer
from metaquorum.testing.ports import free_ports
from metaquorum.tests.quorum_cluster import (
    CLUSTER,
    DEADLINE_S,
    HOST,
    POLL_S,
    QuorumCluster,
    quorum_cluster,
    refused,
    settings_for,
    until,
)

OLD, NEW = ControllerSettings(max_feature_level=1), ControllerSettings(max_feature_level=2)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """Three voters of the new version."""
    async with quorum_cluster(tmp_path, 3, controller=NEW) as running:
        yield running


def voters_of(server: QuorumServer) -> dict[int, bytes]:
    """Directory ids of the voters by node id, as a server has them."""
    return {voter.node_id: voter.directory_id for voter in server.node.status().voters}


async def observe(cluster: QuorumCluster, node_id: int, path: Path, version: ControllerSettings) -> QuorumServer:
    """Start a server of some version as an observer and wait until the leader knows that it has caught up."""
    if not path.exists():
        format_observer(path, node_id=node_id, cluster_id=CLUSTER)
    (port,) = free_ports(1)
    server = QuorumServer(settings_for(node_id, port, cluster.voters, controller=version), path)
    await server.start()
    leader = cluster.servers[await cluster.active()]
    await until(
        lambda: any(
            each.directory_id == server.node.directory_id and each.last_caught_up_age_ms is not None
            for each in leader.node.status().observers
        ),
        what=f"node {node_id} to catch up",
    )
    return server


async def raise_level(cluster: QuorumCluster, leader: int) -> None:
    """Raise the level to 2, once the leader knows the levels of all voters."""
    await until(
        lambda: all(voter.levels is not None for voter in cluster.servers[leader].node.status().voters),
        what="all voters to fetch",
    )
    await cluster.admin(leader).UpdateFeatureLevel(admin_pb2.UpdateFeatureLevelRequest(level=2))


async def test_replica_of_an_old_version_becomes_no_voter(cluster: QuorumCluster) -> None:
    """The refusal says what to do; after the upgrade the same replica votes."""
    leader = await cluster.active()
    await raise_level(cluster, leader)
    old = await observe(cluster, 4, cluster.path(4), OLD)
    try:
        status = await refused(
            cluster.admin(leader).AddVoter(admin_pb2.AddVoterRequest(node_id=4)), ErrorCode.INVALID_REQUEST
        )
        assert "LEVEL_NOT_SUPPORTED" in status.message
        assert "install a version" in status.message
        assert list(voters_of(cluster.servers[leader])) == [1, 2, 3]
    finally:
        await old.stop()
    new = await observe(cluster, 4, cluster.path(4), NEW)
    try:
        await until(
            lambda: any(
                each.levels is not None and each.levels.max_level == 2
                for each in cluster.servers[leader].node.status().observers
            ),
            what="the leader to hear of the new version",
        )
        added = await cluster.admin(leader).AddVoter(admin_pb2.AddVoterRequest(node_id=4))
        assert added.directory_id == new.node.directory_id
        assert list(voters_of(cluster.servers[leader])) == [1, 2, 3, 4]
    finally:
        await new.stop()


async def test_level_waits_for_the_voters(cluster: QuorumCluster) -> None:
    """A voter of an old version holds the level back, and so does one whose level is unknown; its upgrade allows the rise."""
    leader = await cluster.active()
    admin = cluster.admin(leader)
    request = admin_pb2.UpdateFeatureLevelRequest(level=2)
    (port,) = free_ports(1)
    format_observer(cluster.path(4), node_id=4, cluster_id=CLUSTER)
    cluster.ports[4], cluster.voters[4] = port, f"{HOST}:{port}"
    cluster.controller = OLD
    old = await cluster.start(4)
    status_of = cluster.servers[leader].node.status
    await until(
        lambda: any(
            each.directory_id == old.node.directory_id and each.last_caught_up_age_ms is not None
            for each in status_of().observers
        ),
        what="node 4 to catch up",
    )
    await admin.AddVoter(admin_pb2.AddVoterRequest(node_id=4))
    status = await refused(admin.UpdateFeatureLevel(request), ErrorCode.INVALID_REQUEST)
    assert "voters [4] of the quorum cannot run at feature level 2; upgrade them first" in status.message
    await cluster.stop(4)
    cluster.controller = NEW
    await cluster.start(4)
    # The leader has to hear of the new version first. A busy machine may elect another leader, which must hear of all of them.
    raised: admin_pb2.UpdateFeatureLevelResponse | None = None
    async with asyncio.timeout(DEADLINE_S):
        while raised is None:
            try:
                raised = await cluster.admin(await cluster.active()).UpdateFeatureLevel(request)
            except grpc.aio.AioRpcError as error:
                status = parse_rpc_error(error)
                assert status.code in (
                    ErrorCode.INVALID_REQUEST,
                    ErrorCode.QUORUM_UNAVAILABLE,
                    ErrorCode.NOT_CONTROLLER,
                )
                await asyncio.sleep(POLL_S)
    assert raised.metadata_offset > 0


async def test_level_is_not_raised_over_a_voter_that_has_not_been_heard(cluster: QuorumCluster) -> None:
    """The level of a voter that is away is unknown until it returns."""
    leader = await cluster.active()
    second, away = (node_id for node_id in cluster.voters if node_id != leader)
    await cluster.stop(away)
    await until(
        lambda: all(
            voter.last_caught_up_age_ms is not None
            for voter in cluster.servers[leader].node.status().voters
            if voter.node_id != away
        ),
        what="the other voter to have everything",
    )
    await cluster.admin(leader).TransferLeadership(admin_pb2.TransferLeadershipRequest(node_id=second))
    await until(lambda: cluster.servers[second].host.is_active, what="the other voter to lead")
    status_of = cluster.servers[second].node.status
    await until(
        lambda: all(voter.levels is not None for voter in status_of().voters if voter.node_id != away),
        what="the former leader to fetch",
    )
    request = admin_pb2.UpdateFeatureLevelRequest(level=2)
    status = await refused(cluster.admin(second).UpdateFeatureLevel(request), ErrorCode.INVALID_REQUEST)
    assert f"voters [{away}] of the quorum have not said" in status.message
    await cluster.start(away)
    await raise_level(cluster, second)


async def test_voter_is_not_taken_out_for_a_replica_of_an_old_version(cluster: QuorumCluster) -> None:
    """Neither the one-command replacement nor automatic joining does it: the quorum would have a voter less."""
    leader = await cluster.active()
    await raise_level(cluster, leader)
    wiped = next(node_id for node_id in cluster.voters if node_id != leader)
    await cluster.stop(wiped)
    shutil.rmtree(cluster.path(wiped))
    before = voters_of(cluster.servers[leader])
    old = await observe(cluster, wiped, cluster.path(wiped), OLD)
    try:
        request = admin_pb2.RemoveVoterRequest(node_id=wiped, replacement_directory_id=old.node.directory_id)
        status = await refused(cluster.admin(leader).RemoveVoter(request), ErrorCode.INVALID_REQUEST)
        assert "LEVEL_NOT_SUPPORTED" in status.message
        request.replacement_directory_id = b"short"
        await refused(cluster.admin(leader).RemoveVoter(request), ErrorCode.INVALID_REQUEST)
        joining = AutoJoin(old.node, old.peers)
        await until(
            lambda: all(
                (voter.last_fetch_age_ms or 0) > STALE_VOTER_MS
                for voter in cluster.servers[leader].node.status().voters
                if voter.node_id == wiped
            ),
            what="the lost voter to count as lost",
        )
        assert not await asyncio.wait_for(joining._attempt(), 20)  # pyright: ignore[reportPrivateUsage]
        assert "LEVEL_NOT_SUPPORTED" in joining._last_reason  # pyright: ignore[reportPrivateUsage]
        assert voters_of(cluster.servers[leader]) == before
    finally:
        await old.stop()

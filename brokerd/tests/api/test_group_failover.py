# SPDX-License-Identifier: Apache-2.0
"""Groups on three real brokers: who coordinates, lists over all of them, and coordinators that move with everything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest
from lograft.v1 import errors_pb2
from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.coordinator.internal_topics import GROUPS
from brokerd.coordinator.partition import CoordinatorPartition
from brokerd.process.server import BrokerServer
from brokerd.tests.api.group_clients import (
    GroupsStream,
    Member,
    coordinator_of,
    fetch_offsets,
    make_topic,
    served,
    settle,
)
from brokerd.tests.support import WAIT_S, Client, connected, refusal
from brokerd.tests.three_brokers import LONG_S, Cluster, three_brokers


async def group_at(cluster: Cluster, client: Client, node_id: int) -> str:
    """Return the id of a group that a broker coordinates."""
    await coordinator_of(client, "g0")
    for number in range(200):
        if (await coordinator_of(client, f"g{number}")).broker_id == node_id:
            return f"g{number}"
    raise AssertionError(f"broker {node_id} coordinates nothing")


def server_of(cluster: Cluster, coordinator: pb.GroupCoordinator) -> BrokerServer:
    """Return a coordinator, whose address a client was told."""
    server = cluster.brokers[coordinator.broker_id]
    assert (coordinator.host, coordinator.port) == (server.address.host, server.address.port)
    return server


@pytest.mark.slow
async def test_wrong_broker_names_the_coordinator(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster, connected(cluster.brokers[1]) as client:
        topic_id = await make_topic(client, "t", 1)
        group_id = await group_at(cluster, client, 2)
        await served(client.groups.FindCoordinator, pb.FindCoordinatorRequest(group_ids=[group_id]))
        join = Member(group_id, "m", ["t"])
        offset = pb.OffsetToCommit(topic_id=topic_id, partition=0, offset=1)
        for call in (
            client.groups.Heartbeat(pb.HeartbeatRequest(beat=join.beat())),
            client.groups.FetchOffsets(pb.FetchOffsetsRequest(group_id=group_id)),
            client.groups.CommitOffsets(
                pb.CommitOffsetsRequest(commitment=pb.OffsetCommitment(group_id=group_id, offsets=[offset]))
            ),
            client.groups.AlterOffsets(pb.AlterOffsetsRequest(group_id=group_id, offsets=[offset])),
            client.groups.DescribeGroup(pb.DescribeGroupRequest(group_id=group_id)),
            client.groups.DeleteGroup(pb.DeleteGroupRequest(group_id=group_id)),
        ):
            status = await refusal(call)
            assert status.code is ErrorCode.NOT_COORDINATOR
            assert status.leader is not None
            assert (status.leader.leader_id, status.leader.port) == (2, cluster.brokers[2].address.port)
        stream = GroupsStream(client)
        await stream.open()
        await stream.send(beat=pb.GroupsBeat(members=[join.beat(1)]))
        response = await stream.receive()
        assert response is not None
        error = response.states.members[0].error
        assert (error.code, error.leader.leader_id) == (errors_pb2.ERROR_CODE_NOT_COORDINATOR, 2)
        stream.call.cancel()


@pytest.mark.slow
async def test_list_has_the_groups_of_all_coordinators_and_names_the_missing(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster, connected(cluster.brokers[1]) as client:
        topic_id = await make_topic(client, "t", 1)
        offset = pb.OffsetToCommit(topic_id=topic_id, partition=0, offset=1)
        coordinators: dict[str, int] = {}
        for number in range(100):
            if number >= 12 and len(set(coordinators.values())) == 3:
                break
            name = f"g{number:02}"
            found = await coordinator_of(client, name)
            coordinators[name] = found.broker_id
            async with connected(server_of(cluster, found)) as there:
                await served(there.groups.AlterOffsets, pb.AlterOffsetsRequest(group_id=name, offsets=[offset]))
        assert set(coordinators.values()) == {1, 2, 3}
        listed = await client.groups.ListGroups(pb.ListGroupsRequest())
        assert {each.group_id: each.coordinator_id for each in listed.groups} == coordinators
        assert not listed.missing_coordinator_ids
        names: list[str] = []
        while True:
            request = pb.ListGroupsRequest(limit=5, after_group_id=names[-1] if names else "")
            page = await client.groups.ListGroups(request)
            names += [each.group_id for each in page.groups]
            if not page.has_more:
                break
        assert names == sorted(coordinators)
        local = await client.groups.ListGroups(pb.ListGroupsRequest(is_local=True))
        assert {each.group_id for each in local.groups} == {name for name, node in coordinators.items() if node == 1}

        third = cluster.brokers[3]
        assert third._forwarded is not None
        third._forwarded.attach({})
        partial = await client.groups.ListGroups(pb.ListGroupsRequest())
        assert {each.group_id for each in partial.groups} == {name for name, node in coordinators.items() if node != 3}
        assert list(partial.missing_coordinator_ids) == [3]


@pytest.mark.slow
async def test_coordinator_stops_and_its_members_go_on_with_their_ids_and_epochs(tmp_path: Path) -> None:
    """The stream says who takes over; members, epochs, assignments and offsets are the same there, and again after the way back."""
    async with three_brokers(tmp_path) as cluster, connected(cluster.brokers[1]) as client:
        topic_id = await make_topic(client, "t", 4, replication_factor=3)
        group_id = await group_at(cluster, client, 2)
        first, second = Member(group_id, "m1", ["t"]), Member(group_id, "m2", ["t"])
        async with connected(cluster.brokers[2]) as there:
            stream = GroupsStream(there)
            await stream.open()
            await stream.add(first)
            await stream.add(second)
            await stream.shares(2, 2)
            for handle, member in stream.members.items():
                commit = pb.GroupsCommit(request_id=handle, commitment=member.commitment(100, handle=handle))
                await stream.send(commit=commit)
            await stream.until(lambda: {1, 2} <= stream.committed.keys())
            before = [(each.epoch, dict(each.owned)) for each in (first, second)]
            stopping = asyncio.create_task(cluster.stop(2))
            await stream.until(lambda: bool(stream.moved))
            moved = stream.moved[0]
            assert sorted(moved.handles) == [1, 2]
            await stopping
        next_one = moved.coordinator if moved.HasField("coordinator") else await coordinator_of(client, group_id)
        assert next_one.broker_id in (1, 3)
        async with connected(server_of(cluster, next_one)) as there:
            again = GroupsStream(there)
            await again.open()
            await again.add(first)
            await again.add(second)
            await again.until(lambda: not again.errors and first.assignment_number and second.assignment_number)
            await again.step()
            assert [(each.epoch, dict(each.owned)) for each in (first, second)] == before
            wanted = {(topic_id, number): 100 + number for number in range(4)}
            assert await fetch_offsets(there, group_id) == wanted
            again.call.cancel()
        await cluster.start(2)
        async with asyncio.timeout(LONG_S), connected(cluster.brokers[2]) as there:
            # It has the group's partition as a follower now; it answers, or names who does.
            found = await coordinator_of(there, group_id)
        async with connected(server_of(cluster, found)) as there:
            await settle(there, [first, second], [2, 2])
            assert [(each.epoch, dict(each.owned)) for each in (first, second)] == before


@pytest.mark.slow
async def test_loading_coordinator_says_come_back(tmp_path: Path) -> None:
    """While the next coordinator loads, beats and fetches get COORDINATOR_LOADING, never "no offset"."""
    async with three_brokers(tmp_path) as cluster, connected(cluster.brokers[1]) as client:
        topic_id = await make_topic(client, "t", 1, replication_factor=3)
        group_id = await group_at(cluster, client, 2)
        offset = pb.OffsetToCommit(topic_id=topic_id, partition=0, offset=7)
        async with connected(cluster.brokers[2]) as there:
            await served(there.groups.AlterOffsets, pb.AlterOffsetsRequest(group_id=group_id, offsets=[offset]))
        go_on = asyncio.Event()
        load = CoordinatorPartition._load_log

        async def load_later(self: CoordinatorPartition[object, object, object], reader: object) -> bool:
            await go_on.wait()
            return await load(self, reader)  # type: ignore[arg-type]

        with mock.patch.object(CoordinatorPartition, "_load_log", load_later):
            await cluster.stop(2)
            found = await coordinator_of(client, group_id)
            async with connected(server_of(cluster, found)) as there:
                status = await refusal(there.groups.FetchOffsets(pb.FetchOffsetsRequest(group_id=group_id)))
                assert status.code is ErrorCode.COORDINATOR_LOADING
                assert status.retry_after_ms
                beat = Member(group_id, "m", ["t"]).beat()
                status = await refusal(there.groups.Heartbeat(pb.HeartbeatRequest(beat=beat)))
                assert status.code is ErrorCode.COORDINATOR_LOADING
                listed = await there.groups.ListGroups(pb.ListGroupsRequest(is_local=True))
                assert list(listed.missing_coordinator_ids) == [found.broker_id]
                go_on.set()
                assert await fetch_offsets(there, group_id) == {(topic_id, 0): 7}


@pytest.mark.slow
async def test_topic_of_groups_is_made_once_with_replicas_on_all_brokers(tmp_path: Path) -> None:
    """All brokers are asked at the same time, and each finds coordinators; nobody fails because another was faster."""
    async with three_brokers(tmp_path) as cluster:
        found: list[pb.GroupCoordinator] = []
        for server in cluster.brokers.values():
            assert server.observer.image.topic_by_name(GROUPS.name) is None

        async def ask(server: BrokerServer) -> None:
            async with connected(server) as client:
                found.append(await coordinator_of(client, "g"))

        async with asyncio.timeout(WAIT_S):
            await asyncio.gather(*map(ask, cluster.brokers.values()))
        assert len({each.broker_id for each in found}) == 1
        topic = cluster.brokers[1].observer.image.topic_by_name(GROUPS.name)
        assert topic is not None
        assert {len(each.replicas) for each in topic.partitions} == {3}
        assert topic.configs["cleanup.policy"] == "compact"

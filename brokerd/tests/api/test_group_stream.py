# SPDX-License-Identifier: Apache-2.0
"""The Groups stream with a real broker: pushes, commits, ends that are no leaves, limits, and slow readers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest import mock

import grpc.aio
import pytest
from lograft.v1 import errors_pb2, group_pb2_grpc
from lograft.v1 import group_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from brokerd.api.group_service import stream as stream_module
from brokerd.process.server import BrokerServer
from brokerd.tests.api.group_clients import (
    GroupsStream,
    Member,
    coordinator_of,
    disjoint,
    fetch_offsets,
    make_topic,
    settle,
)
from brokerd.tests.support import WAIT_S, Client, connected, running_broker


async def ended(stream: GroupsStream) -> ErrorCode | None:
    """Read to the end of a stream, and return the code of its status; None: it ended well."""
    try:
        while await stream.receive() is not None:
            pass
    except grpc.aio.AioRpcError as error:
        return parse_rpc_error(error).code
    assert await stream.call.code() is grpc.StatusCode.OK
    return None


async def until_streams(server: BrokerServer, count: int) -> None:
    """Wait until the broker has a number of Groups streams; gRPC tells it of an end a moment later."""
    async with asyncio.timeout(WAIT_S):
        while server.stream_count != count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def is_streaming(client: Client, group_id: str) -> list[bool]:
    """Return which members of a group beat over an open stream."""
    described = await client.groups.DescribeGroup(pb.DescribeGroupRequest(group_id=group_id))
    return [each.is_streaming for each in described.members]


async def test_two_members_share_over_one_stream(tmp_path: Path) -> None:
    """The second member joins; the first hears of its revocation by a push, without waiting for its interval."""
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 4)
        await coordinator_of(client, "g")
        stream = GroupsStream(client)
        opened = await stream.open()
        assert (opened.cluster_id, opened.node_id) == (server.cluster_id, 1)
        assert opened.server_beat_interval_ms * 3 <= opened.client_silence_limit_ms
        first, second = Member("g", "m1", ["t"]), Member("g", "m2", ["t"])
        await stream.add(first)
        await stream.shares(4)
        await stream.add(second)
        await stream.shares(2, 2)
        assert disjoint([first, second])
        assert stream.pushes > 0
        assert await is_streaming(client, "g") == [True, True]

        await stream.send(commit=pb.GroupsCommit(request_id=9, commitment=first.commitment(100, handle=1)))
        bare = second.commitment(300, handle=2)
        bare.group_id = bare.member_id = ""
        await stream.send(commit=pb.GroupsCommit(request_id=10, commitment=bare))
        await stream.until(lambda: {9, 10} <= stream.committed.keys())
        assert not any(each.HasField("error") for each in stream.committed[9].outcomes)
        assert len(stream.committed[10].outcomes) == 2
        wanted = {(topic_id, number): 100 + number for number in first.owned[topic_id]}
        wanted |= {(topic_id, number): 300 + number for number in second.owned[topic_id]}
        assert await fetch_offsets(client, "g") == wanted

        await stream.send(beat=pb.GroupsBeat(members=[first.leave(handle=1)]))
        await stream.until(lambda: second.count == 4)
        assert await fetch_offsets(client, "g") == wanted
        await stream.call.done_writing()
        assert await ended(stream) is None


async def test_groups_of_a_process_share_one_stream(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        await coordinator_of(client, "g0")
        stream = GroupsStream(client)
        await stream.open()
        for number in range(5):
            await stream.add(Member(f"g{number}", "m", ["t"]))
        await stream.shares(2, 2, 2, 2, 2)
        assert {tuple(each.owned) for each in stream.members.values()} == {(topic_id,)}


async def test_broken_stream_is_resumed_with_the_same_ids_and_epochs(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        await coordinator_of(client, "g")
        stream = GroupsStream(client)
        await stream.open()
        member = Member("g", "m", ["t"])
        await stream.add(member)
        await stream.shares(2)
        epoch, owned = member.epoch, member.owned
        stream.call.cancel()
        await until_streams(server, 0)
        async with asyncio.timeout(WAIT_S):
            while await is_streaming(client, "g") != [False]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        again = GroupsStream(client)
        await again.open()
        await again.add(member)
        assert await again.step() is not None
        assert (member.epoch, member.owned) == (epoch, owned) == (epoch, {topic_id: (0, 1)})
        assert await is_streaming(client, "g") == [True]


async def test_static_member_takes_over_when_the_stream_of_the_old_process_is_closed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server, connected(server) as client:
        topic_id = await make_topic(client, "t", 2)
        await coordinator_of(client, "g")
        stream = GroupsStream(client)
        await stream.open()
        old = Member("g", "m1", ["t"], instance_id="i")
        await stream.add(old)
        await stream.shares(2)
        stream.call.cancel()
        await until_streams(server, 0)
        new = Member("g", "m2", ["t"], instance_id="i")
        await settle(client, [new], [2])
        assert new.owned == {topic_id: (0, 1)}


async def test_wrong_use_of_handles_is_refused_for_the_member_alone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server, connected(server) as client:
        await make_topic(client, "t", 1)
        await coordinator_of(client, "g")
        stream = GroupsStream(client)
        await stream.open()
        good = Member("g", "m", ["t"])
        await stream.add(good)
        await stream.shares(1)
        wrong = {
            0: Member("g", "x", ["t"]).beat(0),
            1: Member("g", "x", ["t"]).beat(1),
            2: Member("g", "m", ["t"]).beat(2),
            3: Member("", "x", ["t"]).beat(3),
            4: Member("g", "x", ["t"]).beat(4, member_epoch=-7),
        }
        await stream.send(beat=pb.GroupsBeat(members=list(wrong.values())))
        await stream.until(lambda: stream.errors.keys() >= wrong.keys())
        assert {each.code for each in stream.errors.values()} == {errors_pb2.ERROR_CODE_INVALID_REQUEST}
        await stream.send(commit=pb.GroupsCommit(request_id=5, commitment=pb.OffsetCommitment(handle=77)))
        await stream.until(lambda: 5 in stream.committed)
        assert stream.committed[5].error.code == errors_pb2.ERROR_CODE_INVALID_REQUEST
        stream.errors.clear()
        await stream.beat(1)
        assert await stream.step() is not None
        assert not stream.errors


@pytest.mark.parametrize(
    ("requests", "code"),
    [
        ([pb.GroupsRequest(beat=pb.GroupsBeat())], ErrorCode.INVALID_REQUEST),
        ([pb.GroupsRequest(open=pb.GroupsOpen())] * 2, ErrorCode.INVALID_REQUEST),
        ([pb.GroupsRequest(open=pb.GroupsOpen()), pb.GroupsRequest()], ErrorCode.INVALID_REQUEST),
        ([pb.GroupsRequest(open=pb.GroupsOpen(cluster_id="other"))], ErrorCode.WRONG_CLUSTER),
        (
            [
                pb.GroupsRequest(open=pb.GroupsOpen()),
                pb.GroupsRequest(beat=pb.GroupsBeat(members=[pb.MemberBeat()] * 1_001)),
            ],
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
async def test_stream_that_breaks_the_protocol_ends(
    tmp_path: Path, requests: list[pb.GroupsRequest], code: ErrorCode
) -> None:
    async with running_broker(tmp_path) as server, connected(server) as client:
        stream = GroupsStream(client)
        for request in requests:
            await stream.call.write(request)
        assert await ended(stream) is code
        await until_streams(server, 0)


async def test_both_sides_beat(tmp_path: Path) -> None:
    """The server says that it lives; a client that says nothing loses the stream, and nothing else."""
    with mock.patch.multiple(stream_module, SERVER_BEAT_MS=50, CLIENT_SILENCE_MS=600):
        async with running_broker(tmp_path) as server, connected(server) as client:
            stream = GroupsStream(client)
            await stream.open()
            for _ in range(3):
                response = await stream.receive()
                assert response is not None
                assert response.WhichOneof("message") == "states"
                assert not response.states.members
            for _ in range(8):
                await asyncio.sleep(0.1)
                await stream.send(beat=pb.GroupsBeat())
            assert server.stream_count == 1
            assert await ended(stream) is ErrorCode.TIMED_OUT
            await until_streams(server, 0)


async def test_streams_of_a_connection_are_bounded(tmp_path: Path) -> None:
    with mock.patch.object(stream_module, "MAX_GROUP_STREAMS_PER_CONNECTION", 2):
        async with running_broker(tmp_path) as server, connected(server) as client:
            first, second = GroupsStream(client), GroupsStream(client)
            await first.open()
            await second.open()
            assert await ended(GroupsStream(client)) is ErrorCode.LIMIT_EXCEEDED
            first.call.cancel()
            await until_streams(server, 1)
            await GroupsStream(client).open()
            # Channels of a process share connections, unless they are told not to.
            channel = grpc.aio.insecure_channel(client.address, options=(("grpc.use_local_subchannel_pool", 1),))
            other = Client(client.address)
            other.groups = group_pb2_grpc.GroupServiceStub(channel)
            await GroupsStream(other).open()
            await channel.close()


async def test_handles_are_bounded(tmp_path: Path) -> None:
    with mock.patch.object(stream_module, "MAX_STREAM_HANDLES", 2):
        async with running_broker(tmp_path) as server, connected(server) as client:
            await make_topic(client, "t", 1)
            await coordinator_of(client, "g")
            stream = GroupsStream(client)
            await stream.open()
            for number in range(3):
                await stream.add(Member(f"g{number}", "m", ["t"]))
            await stream.until(lambda: 3 in stream.errors)
            assert stream.errors[3].code == errors_pb2.ERROR_CODE_LIMIT_EXCEEDED


async def test_slow_reader_loses_the_stream_and_its_member_lives_on(tmp_path: Path) -> None:
    """A client sends commits and reads no answer: the broker holds a bounded number of bytes, and the member goes on elsewhere."""
    with mock.patch.object(stream_module, "MAX_STREAM_OUTBOX_BYTES", 256 * 1024):
        async with running_broker(tmp_path) as server, connected(server) as client, connected(server) as other:
            topic_id = await make_topic(client, "t", 1)
            await coordinator_of(client, "g")
            stream = GroupsStream(client)
            await stream.open()
            member = Member("g", "m", ["t"])
            await stream.add(member)
            await stream.shares(1)
            wrong = [pb.OffsetToCommit(topic_id=bytes(16), partition=number, offset=1) for number in range(1_000)]

            async def flood() -> None:
                for number in range(100_000):
                    commitment = pb.OffsetCommitment(
                        group_id="g", member_id="m", member_epoch=member.epoch, offsets=wrong
                    )
                    await stream.send(commit=pb.GroupsCommit(request_id=number, commitment=commitment))

            flooding = asyncio.create_task(flood())
            await until_streams(server, 0)
            flooding.cancel()
            await asyncio.wait((flooding,))
            groups = server.groups
            assert groups is not None
            assert groups.totals.ended_slow_streams == 1
            again = GroupsStream(other)
            await again.open()
            epoch = member.epoch
            await again.add(member)
            assert await again.step() is not None
            assert (member.epoch, member.owned, again.errors) == (epoch, {topic_id: (0,)}, {})


async def test_requests_under_way_are_bounded(tmp_path: Path) -> None:
    """With its limit of requests under way, the broker stops reading, and goes on when answers come."""
    with mock.patch.object(stream_module, "MAX_STREAM_REQUESTS", 2):
        async with running_broker(tmp_path) as server, connected(server) as client:
            topic_id = await make_topic(client, "t", 1)
            await coordinator_of(client, "g")
            stream = GroupsStream(client)
            await stream.open()
            offsets = [pb.OffsetToCommit(topic_id=topic_id, partition=0, offset=1)]
            for number in range(1, 41):
                commitment = pb.OffsetCommitment(group_id="g", offsets=offsets)
                await stream.send(commit=pb.GroupsCommit(request_id=number, commitment=commitment))
            await stream.until(lambda: len(stream.committed) == 40)
            assert list(stream.committed) == sorted(stream.committed)


async def test_stop_tells_that_the_groups_move_and_ends_the_stream(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as server, connected(server) as client:
        await make_topic(client, "t", 1)
        await coordinator_of(client, "g")
        stream = GroupsStream(client)
        await stream.open()
        await stream.add(Member("g", "m", ["t"]))
        await stream.shares(1)
        stopping = asyncio.create_task(server.stop())
        moved: list[Any] = []
        while (response := await stream.receive()) is not None:
            if response.WhichOneof("message") == "moved":
                moved.append(response.moved)
        assert len(moved) == 1
        assert not moved[0].handles
        assert await stream.call.code() is grpc.StatusCode.OK
        await stopping

# SPDX-License-Identifier: Apache-2.0
"""Which way a follower's stream goes: over a plain connection where the leader's port answers, else over gRPC."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.following import codec, connecting
from brokerd.following.connecting import LeaderConnections, MessageStream, StreamError, StreamRefusedError
from brokerd.frame_stream import FrameStream
from brokerd.limits import PLAIN_RETRY_MS
from brokerd.rpc.replicate_listener import MAX_REQUEST_BYTES
from brokerd.tests.leading_replica import LEADER_ID
from brokerd.tests.replicate_support import GRPC, INCARNATION_ID, PLAIN, LeaderWorld, be_patient, leader_world
from brokerd.tests.support import WAIT_S
from brokerd.tests.test_leader_link import Follower, dialled, wanted
from metaquorum.tests.quorum_cluster import until


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LeaderWorld]:
    """A leader that takes plain connections."""
    be_patient(monkeypatch)
    async with leader_world(tmp_path, PLAIN) as made:
        yield made


def opening(cluster_id: str = "c") -> bytes:
    """The first message of broker 2."""
    return codec.encode_open(
        cluster_id=cluster_id, follower_id=2, broker_epoch=20, incarnation_id=INCARNATION_ID, leader_id=LEADER_ID
    )


async def way(connections: LeaderConnections, world: LeaderWorld) -> str:
    """Open a stream, and return which way it goes."""
    async with asyncio.timeout(WAIT_S), connections.open(world.address, opening()) as (stream, opened):
        assert opened.broker_epoch == world.own_epoch
        return _kind(stream)


def _kind(stream: MessageStream) -> str:
    return PLAIN if isinstance(stream, FrameStream) else GRPC


@asynccontextmanager
async def other_program(said: bytes | None) -> AsyncIterator[int]:
    """A port where somebody says something else, closes at once (nothing), or takes the connection and is silent (None)."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if said is not None:
            writer.write(said)
        if said != b"":
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the test say how late it is."""
    now = [1_000]
    monkeypatch.setattr(connecting, "monotonic_ms", lambda: now[0])
    return now


async def test_the_first_stream_finds_the_port_and_all_take_it(world: LeaderWorld) -> None:
    """It is named in the answer over gRPC; from then on nobody asks there."""
    connections = LeaderConnections()
    assert [await way(connections, world) for _ in range(3)] == [PLAIN] * 3
    await until(lambda: len(world.streams) == 0, what="the end of all streams")


async def test_a_leader_without_a_port_is_followed_over_grpc(world: LeaderWorld) -> None:
    """An older version, or one that was told so."""
    await world.listener.close()
    world.listener.port = 0
    connections = LeaderConnections()
    assert [await way(connections, world) for _ in range(2)] == [GRPC] * 2


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None], ids=["another", "closes", "silent"])
async def test_a_port_that_does_not_answer_is_passed_over_for_a_while(
    world: LeaderWorld, clock: list[int], monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """One attempt is lost; the leader is followed over gRPC, and the port tried again later."""
    monkeypatch.setattr(connecting, "REPLICATE_CONNECT_MS", 200 if said is None else WAIT_S * 1_000)
    connections = LeaderConnections()
    right = world.listener.port
    async with other_program(said) as world.listener.port:
        with pytest.raises(StreamError, match="cannot be reached"):
            await way(connections, world)
        assert await way(connections, world) == GRPC
        clock[0] += PLAIN_RETRY_MS - 1
        assert await way(connections, world) == GRPC
        clock[0] += 1
        with pytest.raises(StreamError, match="cannot be reached"):
            await way(connections, world)
        assert await way(connections, world) == GRPC
        # Another port is another matter.
        world.listener.port = right
        assert await way(connections, world) == PLAIN


async def test_a_leader_that_comes_back_is_found_at_its_new_port(world: LeaderWorld) -> None:
    """Its old one answers nobody; gRPC says the new one, in the attempt after that."""
    connections = LeaderConnections()
    assert await way(connections, world) == PLAIN
    await world.listener.close()
    await world.listener.open("127.0.0.1", 0)
    with pytest.raises(StreamError, match="cannot be reached"):
        await way(connections, world)
    assert await way(connections, world) == PLAIN


async def test_a_leader_that_nothing_reaches_is_not_blamed_on_its_port(
    world: LeaderWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is down both ways fail in turn; when it is back at the same ports its port is tried before gRPC is preferred."""
    connections = LeaderConnections()
    assert await way(connections, world) == PLAIN
    right = world.listener.port
    await world.listener.close()

    async def never(_channel: grpc.aio.Channel, _timeout_ms: int) -> bool:
        return False

    with monkeypatch.context() as down:
        down.setattr(connecting, "is_ready_within", never)
        for _ in range(4):
            with pytest.raises(StreamError, match="cannot be reached"):
                await way(connections, world)
    await world.listener.open("127.0.0.1", right)
    assert await way(connections, world) == PLAIN


async def test_a_refusal_says_why_on_either_way(world: LeaderWorld) -> None:
    """The reason is the one that gRPC has in its status."""
    connections = LeaderConnections()
    with pytest.raises(grpc.aio.AioRpcError, match="this is cluster"):
        async with connections.open(world.address, opening("other")):
            raise AssertionError("another cluster let it in")
    assert await way(connections, world) == PLAIN
    with pytest.raises(StreamRefusedError, match="this is cluster 'c', not 'other'") as refusal:
        async with connections.open(world.address, opening("other")):
            raise AssertionError("another cluster let it in")
    assert refusal.value.code is ErrorCode.WRONG_CLUSTER
    assert await way(connections, world) == PLAIN


async def test_a_link_goes_over_a_plain_connection_and_survives_its_end(
    world: LeaderWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Subscriptions are accepted; when the leader refuses the stream, the link says why and opens another one."""
    caplog.set_level(logging.INFO)
    for partition in (0, 1):
        world.lead(partition)
    async with dialled(world.address) as dial, asyncio.timeout(WAIT_S):
        first, second = Follower(0), Follower(1)
        dial.link.subscribe(first, wanted())
        await first.accepted.wait()
        assert caplog.text.count("is_plain=True") == 1
        other = await world.follow(2, broker_epoch=20)
        await until(lambda: "has opened another stream" in caplog.text, what="the refusal")
        dial.link.subscribe(second, wanted())
        await second.accepted.wait()
        assert await other.refusal() is ErrorCode.STALE_BROKER_EPOCH
    assert caplog.text.count("is_plain=True") == 2
    assert "is_plain=False" not in caplog.text


async def test_what_is_no_message_of_a_leader_ends_the_attempt(world: LeaderWorld) -> None:
    """The greeting is right, and nothing else."""
    connections = LeaderConnections()
    said = connecting.REPLICATE_GREETING + (3).to_bytes(4, "big") + b"\xff\xff\xff"
    right = world.listener.port
    async with other_program(said) as world.listener.port:
        with pytest.raises(StreamError, match="cannot be decoded"):
            await way(connections, world)
    world.listener.port = right
    heartbeat = pb.ReplicateResponse(heartbeat=pb.LeaderHeartbeat()).SerializeToString()
    said = connecting.REPLICATE_GREETING + len(heartbeat).to_bytes(4, "big") + heartbeat
    connections = LeaderConnections()
    async with other_program(said) as world.listener.port:
        with pytest.raises(StreamError, match="not `opened`"):
            await way(connections, world)


async def test_hostile_connections_harm_nobody(world: LeaderWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever says nonsense is disconnected; a follower goes on."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(0)
    await stream.part("accepted")
    for said in (b"\x16\x03\x01", connecting.REPLICATE_GREETING + (MAX_REQUEST_BYTES + 1).to_bytes(4, "big"), b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.listener.port)
        writer.write(said)
        writer.write_eof()
        async with asyncio.timeout(WAIT_S):
            assert (await reader.read()).startswith(connecting.REPLICATE_GREETING)
        writer.close()
    await until(lambda: len(world.streams) == 1, what="the end of their streams")
    replica.append(b"a")
    assert (await stream.batches()).route == 0
    assert "fault of this broker" not in caplog.text


async def test_a_taken_port_is_named(world: LeaderWorld) -> None:
    """The error says which option chooses another one."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Exception, match="--replication-port"):
        await world.listener.open("127.0.0.1", taken.getsockname()[1])

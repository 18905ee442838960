# SPDX-License-Identifier: Apache-2.0
"""Connections to the replication port of a leader: what is refused, what harms nobody, what is tried again."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from brokerd.rpc.replicate_listener import MAX_REQUEST_BYTES
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.following import codec, connecting
from brokerd.following.connecting import StreamError, StreamRefusedError
from brokerd.tests.leading_replica import LEADER_ID
from brokerd.tests.replicate_support import INCARNATION_ID, LeaderWorld, be_patient, leader_world
from brokerd.tests.support import WAIT_S
from brokerd.tests.test_leader_link import Follower, dialled, wanted
from metaquorum.settings import Address
from metaquorum.tests.quorum_cluster import until


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LeaderWorld]:
    """A leader that listens."""
    be_patient(monkeypatch)
    async with leader_world(tmp_path) as made:
        yield made


def opening(cluster_id: str = "c") -> bytes:
    """The first message of broker 2."""
    return codec.encode_open(
        cluster_id=cluster_id, follower_id=2, broker_epoch=20, incarnation_id=INCARNATION_ID, leader_id=LEADER_ID
    )


async def opened(world: LeaderWorld, port: int | None = None) -> None:
    """Open a stream at a port, or that of the leader."""
    address = Address(host="127.0.0.1", port=world.listener.port if port is None else port)
    async with asyncio.timeout(WAIT_S), connecting.opened_stream(address, opening()) as (_, answer):
        assert answer.broker_epoch == world.own_epoch


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


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None], ids=["another", "closes", "silent"])
async def test_a_port_that_does_not_answer_is_given_up_soon(
    world: LeaderWorld, monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """Another program has it, or nobody speaks: the attempt ends, and the next one finds the leader where it is."""
    monkeypatch.setattr(connecting, "REPLICATE_CONNECT_MS", 200 if said is None else WAIT_S * 1_000)
    async with other_program(said) as port:
        with pytest.raises(StreamError, match="cannot be reached"):
            await opened(world, port)
    await opened(world)
    await until(lambda: len(world.streams) == 0, what="the end of all streams")


async def test_a_refusal_says_why(world: LeaderWorld) -> None:
    """The reason is the last message of the connection."""
    with pytest.raises(StreamRefusedError, match="this is cluster 'c', not 'other'") as refusal:
        async with connecting.opened_stream(world.address, opening("other")):
            raise AssertionError("another cluster let it in")
    assert refusal.value.code is ErrorCode.WRONG_CLUSTER
    await opened(world)


async def test_a_range_is_asked_for_over_a_connection_of_its_own(world: LeaderWorld) -> None:
    """What the leader has not is refused with its code, before any stream was opened; streams go on."""
    stream = await world.follow()
    request = pb.FetchRangeRequest(
        cluster_id="c",
        broker_id=LEADER_ID,
        topic_id=b"t" * 16,
        end_offset=1,
        replica_id=2,
        broker_epoch=20,
        incarnation_id=INCARNATION_ID,
    )
    with pytest.raises(StreamRefusedError) as refusal:
        await connecting.fetch_range(world.address, request)
    assert refusal.value.code is ErrorCode.UNKNOWN_PARTITION
    world.lead()
    await stream.subscribe(0)
    await stream.part("accepted")


async def test_a_link_survives_the_end_of_its_stream(world: LeaderWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Subscriptions are accepted; when the leader refuses the stream, the link says why and opens another one."""
    caplog.set_level(logging.INFO)
    for partition in (0, 1):
        world.lead(partition)
    async with dialled(world.address) as dial, asyncio.timeout(WAIT_S):
        first, second = Follower(0), Follower(1)
        dial.link.subscribe(first, wanted())
        await first.accepted.wait()
        assert caplog.text.count("replication stream open") == 1
        other = await world.follow(2, broker_epoch=20)
        await until(lambda: "has opened another stream" in caplog.text, what="the refusal")
        dial.link.subscribe(second, wanted())
        await second.accepted.wait()
        assert await other.refusal() is ErrorCode.STALE_BROKER_EPOCH
    assert caplog.text.count("replication stream open") == 2


async def test_what_is_no_message_of_a_leader_ends_the_attempt(world: LeaderWorld) -> None:
    """The greeting is right, and nothing else."""
    said = connecting.REPLICATE_GREETING + (3).to_bytes(4, "big") + b"\xff\xff\xff"
    async with other_program(said) as port:
        with pytest.raises(StreamError, match="cannot be decoded"):
            await opened(world, port)
    heartbeat = pb.ReplicateResponse(heartbeat=pb.LeaderHeartbeat()).SerializeToString()
    said = connecting.REPLICATE_GREETING + len(heartbeat).to_bytes(4, "big") + heartbeat
    async with other_program(said) as port:
        with pytest.raises(StreamError, match="not `opened`"):
            await opened(world, port)


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

# SPDX-License-Identifier: Apache-2.0
"""Streams to a leader and ranges of it over the carrier: what is refused, what ends an attempt, what harms nobody."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.replication import connecting
from brokerd.replication import follower_codec as codec
from brokerd.replication.connecting import LeaderStream, StreamError, StreamRefusedError
from brokerd.tests.leading_replica import LEADER_ID
from brokerd.tests.replicate_support import CLUSTER_ID, INCARNATION_ID, LeaderWorld, be_patient, leader_world
from brokerd.tests.support import WAIT_S
from brokerd.tests.test_leader_link import Follower, dialled, wanted
from metaquorum.net.carrier import Carrier
from metaquorum.net.frames import GREETING
from metaquorum.net.link import Stream
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address
from metaquorum.testing.peer_client import PeerClient
from metaquorum.tests.quorum_cluster import until

OPENED: Final = pb.ReplicateResponse(opened=pb.ReplicateOpened(broker_epoch=10)).SerializeToString()
HEARTBEAT: Final = pb.ReplicateResponse(heartbeat=pb.LeaderHeartbeat()).SerializeToString()
NONSENSE: Final = b"\xff\xff\xff"


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LeaderWorld]:
    """A leader that listens."""
    be_patient(monkeypatch)
    async with leader_world(tmp_path) as made:
        yield made


def opening(cluster_id: str = CLUSTER_ID) -> bytes:
    """The first message of broker 2."""
    return codec.encode_open(
        cluster_id=cluster_id, follower_id=2, broker_epoch=20, incarnation_id=INCARNATION_ID, leader_id=LEADER_ID
    )


def local(port: int) -> Address:
    """The address of a port of this machine."""
    return Address(host="127.0.0.1", port=port)


async def opened(world: LeaderWorld, address: Address | None = None, *, leader_id: int | None = LEADER_ID) -> None:
    """Open a stream at an address, or that of the leader."""
    peers = await world.peers()
    async with (
        asyncio.timeout(WAIT_S),
        connecting.opened_stream(peers, address or world.address, opening(), leader_id=leader_id) as stream,
    ):
        assert stream.opened.broker_epoch == world.own_epoch


@asynccontextmanager
async def other_program(said: bytes | None) -> AsyncIterator[Address]:
    """A port where somebody says something else, closes at once (nothing), or takes the connection and is silent (None)."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if said is not None:
            writer.write(said)
        if said != b"":
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield local(server.sockets[0].getsockname()[1])
    finally:
        server.close()


@asynccontextmanager
async def false_leader(*messages: bytes, answers: bool = True) -> AsyncIterator[Address]:
    """A server of the cluster whose stream has these messages and then ends, or goes on without a word."""
    carrier = Carrier(cluster_id=CLUSTER_ID, node_id=LEADER_ID)

    async def say(_opening: pb.ReplicateRequest, stream: Stream) -> None:
        for message in messages:
            await stream.write(message)
        if not answers:
            await stream.read()

    carrier.table.add_stream(Method.REPLICATE, pb.ReplicateRequest, say, window_bytes=1_000)
    address = local(carrier.bind("127.0.0.1", 0))
    await carrier.start(str(address))
    try:
        yield address
    finally:
        await carrier.close()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None], ids=["another", "closes", "silent"])
async def test_port_that_does_not_answer_is_given_up_soon(
    world: LeaderWorld, monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """Another program has it, or nobody speaks: the attempt ends, and the next one finds the leader where it is."""
    with monkeypatch.context() as patch:
        patch.setattr(connecting, "REPLICATE_CONNECT_MS", 200 if said is None else int(WAIT_S * 1_000))
        async with other_program(said) as address:
            with pytest.raises(StreamError, match="no connection in time" if said is None else "cannot be reached"):
                await opened(world, address)
    await opened(world)
    await until(lambda: len(world.streams) == 0, what="the end of all streams")


async def test_refusal_says_why(world: LeaderWorld) -> None:
    """The reason is how the stream ends; the connection is there for the next one."""
    with pytest.raises(StreamRefusedError, match="this is cluster 'c', not 'other'") as refusal:
        async with connecting.opened_stream(await world.peers(), world.address, opening("other")):
            raise AssertionError("another cluster let it in")
    assert refusal.value.code is ErrorCode.WRONG_CLUSTER
    await opened(world)


async def test_server_of_another_cluster_is_a_refusal_for_good(world: LeaderWorld) -> None:
    """Before anything is asked of it."""
    async with PeerClient("other", node_id=2) as client:
        with pytest.raises(StreamRefusedError, match="cluster") as refusal:
            async with connecting.opened_stream(client.peers, world.address, opening("other")):
                raise AssertionError("another cluster let it in")
    assert refusal.value.code is ErrorCode.WRONG_CLUSTER


@pytest.mark.parametrize("is_connected", [False, True])
async def test_broker_that_is_not_the_leader_is_not_asked(world: LeaderWorld, *, is_connected: bool) -> None:
    """The address is of another time; whether there is a connection or not."""
    if is_connected:
        await opened(world)
    with pytest.raises(StreamRefusedError, match=f"node {LEADER_ID} answers where node 7 is wanted") as refusal:
        await opened(world, leader_id=7)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    await until(lambda: len(world.streams) == 0, what="the end of all streams")


def range_request() -> pb.FetchRangeRequest:
    """Ask the leader for a partition that it has not."""
    return pb.FetchRangeRequest(
        cluster_id=CLUSTER_ID,
        broker_id=LEADER_ID,
        topic_id=b"t" * 16,
        end_offset=1,
        replica_id=2,
        broker_epoch=20,
        incarnation_id=INCARNATION_ID,
    )


async def test_range_is_asked_for_beside_a_stream(world: LeaderWorld) -> None:
    """What the leader has not is refused with its code; the stream over the same connection goes on."""
    stream = await world.follow()
    with pytest.raises(StreamRefusedError) as refusal:
        await connecting.fetch_range(await world.peers(), world.address, range_request())
    assert refusal.value.code is ErrorCode.UNKNOWN_PARTITION
    world.lead()
    await stream.subscribe(0)
    await stream.part("accepted")


async def test_link_survives_the_end_of_its_stream(world: LeaderWorld, caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize(
    ("messages", "why"),
    [((NONSENSE,), "cannot be decoded"), ((HEARTBEAT,), "not `opened`"), ((), "not `opened`")],
    ids=["no message", "another message", "the end"],
)
async def test_what_no_leader_says_first_ends_the_attempt(
    world: LeaderWorld, messages: tuple[bytes, ...], why: str
) -> None:
    """A server of the cluster that does not follow the protocol."""
    async with false_leader(*messages) as address:
        with pytest.raises(StreamError, match=why):
            await opened(world, address)


async def test_leader_that_does_not_answer_the_opening_is_given_up(
    world: LeaderWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the stream and says nothing; the connection stays, for others use it."""
    monkeypatch.setattr(connecting, "REPLICATE_OPEN_MS", 50)
    async with false_leader(answers=False) as address:
        with pytest.raises(TimeoutError):
            await opened(world, address)
        link = await (await world.peers()).connected(str(address), timeout_ms=int(WAIT_S * 1_000))
        await until(lambda: link.open_count == 0, what="the end of the stream")
        assert link.is_usable


@asynccontextmanager
async def stream_of(peers: Peers, address: Address) -> AsyncIterator[LeaderStream]:
    """A stream that is open."""
    async with asyncio.timeout(WAIT_S), connecting.opened_stream(peers, address, opening()) as stream:
        yield stream


async def test_end_of_a_stream_that_is_open_is_told_to_reader_and_writer(world: LeaderWorld) -> None:
    """The leader ends it in good order, its process ends, or this side gives it up."""
    async with false_leader(OPENED, HEARTBEAT) as address, stream_of(await world.peers(), address) as stream:
        assert (await stream.read(), await stream.read()) == (HEARTBEAT, None)
    async with false_leader(OPENED, answers=False) as address, stream_of(await world.peers(), address) as stream:
        reading = asyncio.create_task(stream.read())
        stream.cancel()
        with pytest.raises(StreamError, match="gave the stream up"):
            await reading
    async with stream_of(await world.peers(), world.address) as stream:
        await world.service.close()
        await world.carrier.close()
        with pytest.raises(StreamError):
            await stream.read()
        with pytest.raises(StreamError):
            await stream.write(b"")


async def test_hostile_connections_harm_nobody(world: LeaderWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever says nonsense is disconnected; a follower goes on."""
    replica = world.lead()
    stream = await world.follow()
    await stream.subscribe(0)
    await stream.part("accepted")
    for said in (b"\x16\x03\x01", GREETING + b"\xff\xff\xff\xff", b""):
        reader, writer = await asyncio.open_connection(world.address.host, world.address.port)
        writer.write(said)
        writer.write_eof()
        async with asyncio.timeout(WAIT_S):
            assert (await reader.read()).startswith(GREETING)
        writer.close()
    assert len(world.streams) == 1
    replica.append(b"a")
    assert (await stream.batches()).route == 0
    assert not [record for record in caplog.records if record.exc_info]

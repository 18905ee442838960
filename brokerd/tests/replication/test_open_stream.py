# SPDX-License-Identifier: Apache-2.0
"""Opening a stream to a leader, and requesting a range: refusals, failed attempts, and no harm to other streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import Credit, Open
from brokerd.replication.follower_stream import open_stream
from brokerd.replication.peer_errors import PeerError
from brokerd.replication.repair import fetch_range
from brokerd.tests.leading_replica import LEADER_ID
from brokerd.tests.replication.fetchers import HEARTBEAT, false_leader, local
from brokerd.tests.replication.leader_world import CLUSTER_ID, INCARNATION_ID, PATIENT, LeaderWorld
from brokerd.tests.support import WAIT_S
from metaquorum.net.frames import GREETING
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address
from metaquorum.testing.peer_client import PeerClient
from metaquorum.tests.quorum_cluster import until

NONSENSE = b"\xff\xff\xff"


async def opened(
    world: LeaderWorld,
    *,
    peers: Peers | None = None,
    address: Address | None = None,
    limits: StreamLimits = PATIENT,
    cluster_id: str = CLUSTER_ID,
    leader_id: int = LEADER_ID,
) -> None:
    """Open a stream as broker 2, at an address or at that of the leader."""
    opening = Open(
        cluster_id=cluster_id,
        follower_id=2,
        broker_epoch=20,
        incarnation_id=INCARNATION_ID,
        leader_id=leader_id,
        formats=(16,),
        credit=Credit(1, 1),
    )
    async with asyncio.timeout(WAIT_S):
        stream, answer = await open_stream(peers or await world.peers(), address or world.address, opening, limits)
    stream.give_up()
    assert answer.broker_epoch == world.own_epoch


@asynccontextmanager
async def other_program(said: bytes | None) -> AsyncIterator[Address]:
    """Run a port that sends something else, closes at once (nothing), or accepts the connection and stays silent (None)."""

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


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None], ids=["another", "closes", "silent"])
async def test_port_that_does_not_answer_is_given_up_soon(world: LeaderWorld, said: bytes | None) -> None:
    """Another program has the port, or nothing answers. The attempt ends, and the next one finds the leader at its new address."""
    limits = replace(PATIENT, connect_ms=200 if said is None else int(WAIT_S * 1_000))
    async with other_program(said) as address:
        with pytest.raises(
            PeerError, match="no connection in time" if said is None else "cannot be reached"
        ) as failure:
            await opened(world, address=address, limits=limits)
    assert failure.value.code is None
    await opened(world)
    await until(lambda: len(world.streams) == 0, what="the end of all streams")


async def test_refusal_says_why(world: LeaderWorld) -> None:
    """The stream ends with the reason, and the connection stays usable for the next one."""
    with pytest.raises(PeerError, match="this is cluster 'c', not 'other'") as refusal:
        await opened(world, cluster_id="other")
    assert refusal.value.code is ErrorCode.WRONG_CLUSTER
    await opened(world)


async def test_server_of_another_cluster_is_a_refusal_for_good(world: LeaderWorld) -> None:
    """It is refused before any request."""
    async with PeerClient("other", node_id=2) as client:
        with pytest.raises(PeerError, match="cluster") as refusal:
            await opened(world, peers=client.peers, cluster_id="other")
    assert refusal.value.code is ErrorCode.WRONG_CLUSTER


@pytest.mark.parametrize("is_connected", [False, True])
async def test_broker_that_is_not_the_leader_is_not_asked(world: LeaderWorld, *, is_connected: bool) -> None:
    """The address is outdated, whether there is a connection or not."""
    if is_connected:
        await opened(world)
    with pytest.raises(PeerError, match=f"node {LEADER_ID} answers where node 7 is wanted") as refusal:
        await opened(world, leader_id=7)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    await until(lambda: len(world.streams) == 0, what="the end of all streams")


def range_request() -> pb.FetchRangeRequest:
    """Return a request for a partition that the leader does not have."""
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
    """What the leader does not have is refused with its code. The stream over the same connection continues."""
    stream = await world.follow()
    with pytest.raises(PeerError) as refusal:
        await fetch_range(await world.peers(), world.address, range_request())
    assert refusal.value.code is ErrorCode.UNKNOWN_PARTITION
    world.lead()
    await stream.subscribe(0)
    await stream.part("accepted")


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
        with pytest.raises(PeerError, match=why):
            await opened(world, address=address)


async def test_leader_that_does_not_answer_the_opening_is_given_up(world: LeaderWorld) -> None:
    """It accepts the stream and stays silent. The connection stays, because others use it."""
    async with false_leader(ends=False) as address:
        with pytest.raises(PeerError, match="was not answered within 50 ms"):
            await opened(world, address=address, limits=replace(PATIENT, open_ms=50))
        link = await (await world.peers()).connected(str(address), timeout_ms=int(WAIT_S * 1_000))
        await until(lambda: link.open_count == 0, what="the end of the stream")
        assert link.is_usable


async def test_hostile_connections_harm_nobody(world: LeaderWorld, caplog: pytest.LogCaptureFixture) -> None:
    """A peer that sends nonsense is disconnected; a follower continues."""
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

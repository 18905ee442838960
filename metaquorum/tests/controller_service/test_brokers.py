# SPDX-License-Identifier: Apache-2.0
"""Life and death of brokers at a real quorum server: sessions, broken streams, killed processes, limits."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.settings import ControllerSettings
from metaquorum.controller_service import controller_service
from metaquorum.controller_service.controller_service import is_gone
from metaquorum.testing.ports import free_ports
from metaquorum.tests.quorum_cluster import HOST, BrokerStub, QuorumCluster, quorum_cluster, refused, until

ROOT = Path(__file__).parents[3]
FAST = ControllerSettings(heartbeat_interval_ms=50, session_timeout_ms=400)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    async with quorum_cluster(tmp_path, 1) as running:
        yield running


async def test_broker_that_stops_beating_is_fenced_after_its_session(tmp_path: Path) -> None:
    """After a session timeout without heartbeats the broker loses its leaderships; a heartbeat returns them."""
    async with quorum_cluster(tmp_path, 1, controller=FAST) as cluster:
        broker = BrokerStub(cluster, 7)
        await broker.join(1)
        await cluster.admin(1).CreateTopic(admin_pb2.CreateTopicRequest(topic="t"))
        image = cluster.servers[1].image

        def leader_id() -> int | None:
            topic = image.topic_by_name("t")
            assert topic is not None
            return topic.partitions[0].leader_id

        assert leader_id() == 7
        await until(lambda: image.brokers[7].fenced and leader_id() is None, what="the session to end")
        assert not (await broker.beat(1)).fenced
        await until(lambda: leader_id() == 7, what="the leader to come back")


async def test_broker_whose_process_died_is_fenced_at_once(cluster: QuorumCluster) -> None:
    """A broken heartbeat stream and a refused connection prove its death: the controller does not wait for the session."""
    (port,) = free_ports(1)
    broker = BrokerStub(cluster, 7, port=port)
    await broker.join(1)
    image = cluster.servers[1].image
    loop = asyncio.get_running_loop()
    broken_at = loop.time()
    await broker.break_connection()
    await until(lambda: image.brokers[7].fenced, what="the broker to be fenced")
    assert loop.time() - broken_at < 2.0, "it took a session"


async def test_broker_whose_stream_broke_but_that_lives_is_not_fenced(cluster: QuorumCluster) -> None:
    """A heartbeat proves that the broker lives: it keeps its leaderships and opens another stream."""
    dialled = 0

    async def speak(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        writer.write(b"settings")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(speak, HOST, 0)
    async with listener:
        broker = BrokerStub(cluster, 7, port=listener.sockets[0].getsockname()[1])
        await broker.join(1)
        offset = cluster.servers[1].image.metadata_offset
        for number in range(1, 4):
            await broker.break_connection()
            await until(lambda number=number: dialled == number, what="the controller to look")
            assert not (await broker.beat(1)).fenced
        assert cluster.servers[1].image.metadata_offset == offset


async def test_port_that_closes_connections_is_dialled_again_until_it_refuses() -> None:
    """A dying process may accept for a moment: a closed connection proves nothing, and a refused one proves its death."""
    closed = 0

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal closed
        closed += 1
        if closed == 3:
            listener.close()
        writer.close()

    listener = await asyncio.start_server(close, HOST, 0)
    assert await is_gone(HOST, listener.sockets[0].getsockname()[1])
    assert closed == 3


async def test_port_that_only_closes_or_is_silent_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a refusal the session timeout decides; the probe itself is bounded."""
    monkeypatch.setattr(controller_service, "REDIAL_TIMEOUT_MS", 50)

    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A reset instead of an orderly end.
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    async with await asyncio.start_server(close, HOST, 0) as listener:
        assert not await is_gone(HOST, listener.sockets[0].getsockname()[1])
    with socket.socket() as silent:
        silent.bind((HOST, 0))
        silent.listen()
        assert not await is_gone(HOST, silent.getsockname()[1])
    assert not await is_gone("256.256.256.256", 1)


async def test_heartbeat_beyond_the_log_is_refused_and_not_counted(cluster: QuorumCluster) -> None:
    """No broker can have applied what no controller has appended: the broker stays fenced and does not count as caught up."""
    broker = BrokerStub(cluster, 5)
    await broker.register(1)
    end_offset = cluster.servers[1].host.image.metadata_offset
    for offset in (end_offset + 1_000, 1 << 40, 2**63 - 1):
        status = await refused(broker.beat(1, metadata_offset=offset), ErrorCode.INVALID_REQUEST)
        assert "log ends" in status.message
    assert cluster.servers[1].host.image.brokers[5].fenced
    assert not (await broker.beat(1, metadata_offset=end_offset)).fenced


BROKER_PROCESS = """
import asyncio, sys
import grpc.aio
from lograft.internal.v1 import controller_pb2
from metaquorum.testing.peer_client import ControllerCalls, PeerClient
from metaquorum.tests.quorum_cluster import CLUSTER, registration

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with PeerClient(CLUSTER, node_id=7) as client:
        controller = ControllerCalls(client, sys.argv[1])
        epoch = (await controller.register(registration(7, port=port))).broker_epoch
        answer = await controller.heartbeat(controller_pb2.HeartbeatRequest(
            cluster_id=CLUSTER, broker_id=7, broker_epoch=epoch, metadata_offset=epoch + 1))
        print("fenced", answer.fenced, flush=True)
        await server.wait_for_termination()

asyncio.run(main())
"""


@pytest.mark.process
async def test_killed_broker_process_is_fenced_in_milliseconds(cluster: QuorumCluster) -> None:
    """Kill -9 of a real process with a real listener and stream: fenced long before its session ends."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BROKER_PROCESS, cluster.voters[1], stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"fenced False\n"
    image = cluster.servers[1].image
    assert not image.brokers[7].fenced
    loop = asyncio.get_running_loop()
    killed_at = loop.time()
    child.kill()
    await until(lambda: image.brokers[7].fenced, what="the broker to be fenced")
    assert loop.time() - killed_at < 1.5, "it took a session"
    await child.wait()

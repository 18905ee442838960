# SPDX-License-Identifier: Apache-2.0
"""Real quorum servers in this process, on loopback, and clients of them, for tests."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc.aio
from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2, admin_pb2_grpc
from lograft.wire.codes import ErrorCode
from lograft.wire.status import RemoteStatus, parse_rpc_error

from metaquorum.controller.settings import ControllerSettings
from metaquorum.net.service import RefusalError
from metaquorum.process.server import QuorumServer
from metaquorum.process.settings import Address, QuorumServerSettings
from metaquorum.replica.first_start import InitialVoter, format_with_voters
from metaquorum.replica.quorum_node import SnapshotSettings
from metaquorum.testing.peer_client import ControllerCalls, PeerClient, QuorumCalls
from metaquorum.testing.ports import free_ports

HOST = "127.0.0.1"
CLUSTER = "test-cluster"
DEADLINE_S = 20.0
POLL_S = 0.01

T = TypeVar("T")


async def until(condition: Callable[[], T | None], *, what: str) -> T:
    """Wait until a condition returns a true value, and return it."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s for {what}"
        await asyncio.sleep(POLL_S)


def settings_for(
    node_id: int,
    port: int,
    voters: Mapping[int, str],
    *,
    controller: ControllerSettings | None = None,
    snapshots: SnapshotSettings | None = None,
    **changes: bool,
) -> QuorumServerSettings:
    """Return the settings of a voter on loopback."""
    return QuorumServerSettings(
        node_id=node_id,
        cluster_id=CLUSTER,
        listen=Address(host=HOST, port=port),
        admin_listen=Address(host=HOST, port=0),
        voters=voters,
        controller=controller or ControllerSettings(),
        snapshots=snapshots or SnapshotSettings(),
        **changes,
    )


class QuorumCluster:
    """Several voters in one process; each can be stopped and started again on its directory.

    Args:
        directory: where the data directories lie.
        count: number of voters, with the node ids from 1 on.
        controller: times and limits of the controller.
        snapshots: when snapshots are made.
    """

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        controller: ControllerSettings | None = None,
        snapshots: SnapshotSettings | None = None,
    ) -> None:
        self.directory = directory
        self.controller = controller
        self.snapshots = snapshots
        self.ports = dict(enumerate(free_ports(count), start=1))
        self.voters = {node_id: f"{HOST}:{port}" for node_id, port in self.ports.items()}
        self.servers: dict[int, QuorumServer] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.client = PeerClient(CLUSTER)
        self.clients: list[PeerClient] = []
        self._initial = [
            InitialVoter(node_id=node_id, address=address, directory_id=node_id.to_bytes(16, "big"))
            for node_id, address in self.voters.items()
        ]
        for node_id in self.voters:
            format_with_voters(self.path(node_id), node_id=node_id, cluster_id=CLUSTER, voters=self._initial)

    def format_again(self, node_id: int) -> None:
        """Give a stopped voter an empty directory with its old identity, as if it had only been formatted."""
        shutil.rmtree(self.path(node_id))
        format_with_voters(self.path(node_id), node_id=node_id, cluster_id=CLUSTER, voters=self._initial)

    def path(self, node_id: int) -> Path:
        """Return the data directory of a voter."""
        return self.directory / f"voter-{node_id}"

    async def start(self, node_id: int) -> QuorumServer:
        """Start a voter."""
        await self.client.open()
        server = QuorumServer(
            settings_for(
                node_id, self.ports[node_id], self.voters, controller=self.controller, snapshots=self.snapshots
            ),
            self.path(node_id),
        )
        await server.start()
        self.servers[node_id] = server
        return server

    async def stop(self, node_id: int) -> None:
        """Stop a voter in an orderly way."""
        await self.servers.pop(node_id).stop()

    async def active(self) -> int:
        """Wait for the active controller and return its node id."""
        return await until(
            lambda: next((node_id for node_id, server in self.servers.items() if server.host.is_active), None),
            what="an active controller",
        )

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return a channel, one for each address."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address)
        return self._channels[address]

    def admin(self, node_id: int) -> admin_pb2_grpc.AdminServiceAsyncStub:
        """Return a client of a voter's AdminService."""
        return admin_pb2_grpc.AdminServiceStub(self.channel(str(self.servers[node_id].admin_address)))

    async def create_topics(self, first: int, count: int) -> int:
        """Create topics of five partitions; return the metadata offset of the last one.

        On a slow machine, three voters in one process may lose their leader. A creation that fails for that reason is repeated under
        another name, because the first topic may exist.
        """
        offset = 0
        for number in range(first, first + count):
            give_up_s = time.monotonic() + DEADLINE_S
            attempt = 0
            while True:
                request = admin_pb2.CreateTopicRequest(
                    topic=f"topic-{number:04d}-{attempt}", partition_count=5, replication_factor=1
                )
                try:
                    offset = (await self.admin(await self.active()).CreateTopic(request)).metadata_offset
                    break
                except grpc.aio.AioRpcError as error:
                    code = parse_rpc_error(error).code
                    may_pass = code is not None and (code.retriable or code is ErrorCode.OUTCOME_UNKNOWN)
                    if not may_pass or time.monotonic() > give_up_s:
                        raise
                    attempt += 1
                    await asyncio.sleep(POLL_S)
        return offset

    def controllers(self, node_id: int) -> ControllerCalls:
        """Return the calls of a broker to a voter."""
        return ControllerCalls(self.client, self.voters[node_id])

    def quorum(self, node_id: int) -> QuorumCalls:
        """Return the calls of a peer to a voter."""
        return QuorumCalls(self.client, self.voters[node_id])

    async def close(self) -> None:
        """Stop everything."""
        for channel in self._channels.values():
            await channel.close()
        for client in (self.client, *self.clients):
            await client.close()
        results = await asyncio.gather(*(self.stop(node_id) for node_id in list(self.servers)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


@asynccontextmanager
async def quorum_cluster(
    directory: Path, count: int, *, controller: ControllerSettings | None = None
) -> AsyncIterator[QuorumCluster]:
    """Run a cluster of `count` voters, with an active controller at the start."""
    cluster = QuorumCluster(directory, count, controller=controller)
    try:
        await asyncio.gather(*(cluster.start(node_id) for node_id in cluster.voters))
        await cluster.active()
        yield cluster
    finally:
        await cluster.close()


async def refused(call: Awaitable[object], code: ErrorCode) -> RemoteStatus | RefusalError:
    """Await a call that must fail with a code; return the refusal's message."""
    said: RemoteStatus | RefusalError
    try:
        answer = await call
    except RefusalError as error:
        said = error
    except grpc.aio.AioRpcError as error:
        said = parse_rpc_error(error)
    else:
        raise AssertionError(f"{answer} instead of {code.name}")
    assert said.code is code, f"{said} instead of {code.name}"
    assert said.message
    return said


def registration(broker_id: int, *, process: int | None = None, port: int = 9) -> controller_pb2.RegisterBrokerRequest:
    """Return the registration of a broker process."""
    return controller_pb2.RegisterBrokerRequest(
        cluster_id=CLUSTER,
        broker_id=broker_id,
        incarnation_id=(broker_id if process is None else process).to_bytes(16, "big"),
        host=HOST,
        port=port,
        log_directory_ids=[bytes(16)],
        feature_level=controller_pb2.FeatureRange(min_level=1, max_level=1),
    )


class BrokerStub:
    """The broker's side of the controller protocol: registers, and sends a heartbeat when the test calls it.

    The real broker lives in another package; this is its protocol over real connections, under the test's control.
    """

    def __init__(self, cluster: QuorumCluster, broker_id: int, *, port: int = 9) -> None:
        self._cluster = cluster
        self.broker_id = broker_id
        self.port = port
        self.broker_epoch = 0
        self._client: PeerClient | None = None

    async def register(self, node_id: int, *, process: int | None = None) -> controller_pb2.RegisterBrokerResponse:
        """Register at a voter."""
        request = registration(self.broker_id, process=process, port=self.port)
        response = await self._cluster.controllers(node_id).register(request)
        self.broker_epoch = response.broker_epoch
        return response

    async def beat(
        self, node_id: int, *, metadata_offset: int | None = None, want_shutdown: bool = False
    ) -> controller_pb2.HeartbeatResponse:
        """Send one heartbeat over a connection of its own, and return its answer.

        Without `metadata_offset` the broker reports the offset that the voter has applied.
        """
        if metadata_offset is None:
            metadata_offset = self._cluster.servers[node_id].image.metadata_offset
        if self._client is None:
            self._client = PeerClient(CLUSTER, node_id=self.broker_id)
            await self._client.open()
            self._cluster.clients.append(self._client)
        request = controller_pb2.HeartbeatRequest(
            cluster_id=CLUSTER,
            broker_id=self.broker_id,
            broker_epoch=self.broker_epoch,
            metadata_offset=metadata_offset,
            want_shutdown=want_shutdown,
        )
        return await ControllerCalls(self._client, self._cluster.voters[node_id]).heartbeat(request)

    async def break_connection(self) -> None:
        """End its connection, as the death of its process does."""
        assert self._client is not None
        client, self._client = self._client, None
        await client.close()

    async def join(self, node_id: int) -> int:
        """Register and get unfenced; return the epoch."""
        await self.register(node_id)
        answer = await self.beat(node_id)
        assert not answer.fenced
        return self.broker_epoch

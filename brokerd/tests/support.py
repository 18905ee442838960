# SPDX-License-Identifier: Apache-2.0
"""What the tests over real gRPC share: a broker in the test's event loop, and clients made of generated code only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
from lograft.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    group_pb2_grpc,
    ingest_pb2_grpc,
    log_pb2,
    log_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
)
from lograft.wire.batch import encode_batch
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES
from lograft.wire.status import RemoteStatus, parse_rpc_error

from brokerd.api.log_service.batch_check import BatchThreads
from brokerd.api.log_service.fetch_buffer import FetchBuffer
from brokerd.api.parts import BrokerParts
from brokerd.controller_client.controller_calls import ControllerCalls
from brokerd.controller_client.lifecycle import BrokerIdentity, BrokerLifecycle
from brokerd.controller_client.producer_ids import ProducerIds
from brokerd.limits import MIN_BUDGET_BYTES
from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from brokerd.process.standalone import standalone_settings
from brokerd.publishing.quota import StagingQuota
from brokerd.replica.locator import Locator
from brokerd.replica.manager import ReplicaManager
from brokerd.replica.metadata_view import OwnBroker
from brokerd.stream_register import StreamRegister
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.hello import Identity
from metaquorum.net.link import Services
from metaquorum.net.peers import Peers
from metaquorum.process.settings import Address
from storage.directory.directories import LogDirectories, LogDirectory
from storage.testing.sim_disk import SimDisk

WAIT_S = 30.0
"""Seconds after which a wait of a test fails."""


class Client:
    """Stubs over one channel to one broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(
            address,
            options=(
                ("grpc.max_send_message_length", 2 * MAX_GRPC_MESSAGE_BYTES),
                ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
                ("grpc.enable_http_proxy", 0),
            ),
        )
        self.log: Any = log_pb2_grpc.LogServiceStub(self.channel)
        self.metadata: Any = metadata_pb2_grpc.MetadataServiceStub(self.channel)
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(self.channel)
        self.groups: Any = group_pb2_grpc.GroupServiceStub(self.channel)
        self.ingests: Any = ingest_pb2_grpc.IngestServiceStub(self.channel)

    async def create_topic(self, topic: str, partition_count: int = 1, **configs: str) -> admin_pb2.CreateTopicResponse:
        request = admin_pb2.CreateTopicRequest(
            topic=topic,
            partition_count=partition_count,
            configs={name.replace("_", "."): value for name, value in configs.items()},
        )
        return await self.admin.CreateTopic(request, timeout=WAIT_S)

    async def append(self, topic: str, values: Sequence[bytes], **fields: Any) -> log_pb2.AppendResponse:
        request = log_pb2.AppendRequest(
            topic=topic, records=[log_pb2.Record(value=value) for value in values], **fields
        )
        return await self.log.Append(request, timeout=WAIT_S)

    async def read(self, topic: str, partition: int = 0, offset: int = 0, **fields: Any) -> log_pb2.ReadResponse:
        request = log_pb2.ReadRequest(topic=topic, partition=partition, offset=offset, **fields)
        return await self.log.Read(request, timeout=WAIT_S)


class Stream:
    """One bidirectional stream with waits that end."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def send(self, request: Any) -> None:
        await self.call.write(request)

    async def receive(self) -> Any:
        async with asyncio.timeout(WAIT_S):
            response = await self.call.read()
        assert response is not grpc.aio.EOF, "the stream ended"
        return response

    async def failure(self) -> RemoteStatus:
        """Read until the stream ends, and return its status."""
        async with asyncio.timeout(WAIT_S):
            try:
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            except grpc.aio.AioRpcError as error:
                return parse_rpc_error(error)
        raise AssertionError("the stream ended without a failure")


class ProduceStream(Stream):
    """A produce stream of one route or more, numbered from 0."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.log.Produce())
        self.producer: tuple[int, int] = (-1, -1)
        self.sequences: dict[int, int] = {}
        self.numbers: dict[int, int] = {}

    async def open(self, *partitions: tuple[str, int], **fields: Any) -> log_pb2.ProduceOpened:
        routes = [
            log_pb2.ProduceRoute(route=route, topic=topic, partition=partition)
            for route, (topic, partition) in enumerate(partitions)
        ]
        await self.send(log_pb2.ProduceRequest(open=log_pb2.ProduceOpen(routes=routes, **fields)))
        opened = (await self.receive()).opened
        if opened.HasField("producer"):
            self.producer = (opened.producer.producer_id, opened.producer.producer_epoch)
        return opened

    def encode(self, values: Sequence[bytes], sequence: int) -> bytes:
        producer_id, producer_epoch = self.producer
        return bytes(
            encode_batch(
                values,
                timestamps_ms=1_700_000_000_000,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=sequence if producer_id >= 0 else -1,
            )
        )

    async def produce(self, values: Sequence[bytes], route: int = 0) -> None:
        sequence = self.sequences.get(route, 0)
        self.sequences[route] = sequence + len(values)
        await self.send_body(self.encode(values, sequence), route)

    async def send_body(self, body: bytes, route: int = 0) -> None:
        number = self.numbers[route] = self.numbers.get(route, 0) + 1
        batch = log_pb2.ProduceBatch(route=route, batch_number=number, body=body)
        await self.send(log_pb2.ProduceRequest(batch=batch))

    async def receipts(self, last_batch_number: int, route: int = 0) -> list[log_pb2.ProduceReceipt]:
        """Read receipts until one covers the batch; anything else fails the test."""
        found: list[log_pb2.ProduceReceipt] = []
        while not found or found[-1].last_batch_number < last_batch_number:
            response = await self.receive()
            assert response.WhichOneof("message") == "receipt", response
            assert response.receipt.route == route, response
            found.append(response.receipt)
        return found

    async def route_end(self, route: int = 0) -> log_pb2.RouteEnd:
        response = await self.receive()
        assert response.WhichOneof("message") == "route_end", response
        assert response.route_end.route == route, response
        return response.route_end

    async def finish(self) -> None:
        """Close this side and wait for the clean end."""
        await self.call.done_writing()
        async with asyncio.timeout(WAIT_S):
            while await self.call.read() is not grpc.aio.EOF:
                pass
            assert await self.call.code() is grpc.StatusCode.OK


class FetchStream(Stream):
    """A fetch stream; routes are numbered from 0."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.log.Fetch())

    async def open(self, *places: tuple[str, int, int], **fields: Any) -> log_pb2.FetchOpened:
        routes = [
            log_pb2.FetchRoute(route=route, topic=topic, partition=partition, offset=offset)
            for route, (topic, partition, offset) in enumerate(places)
        ]
        fields.setdefault("credit_bytes", 1 << 30)
        await self.send(log_pb2.FetchRequest(open=log_pb2.FetchOpen(routes=routes, **fields)))
        return (await self.receive()).opened

    async def credit(self, credit_bytes: int) -> None:
        await self.send(log_pb2.FetchRequest(credit=log_pb2.FetchCredit(bytes=credit_bytes)))

    async def chunk(self) -> log_pb2.FetchChunk:
        """Return the next chunk. Marks before it are skipped."""
        while True:
            response = await self.receive()
            kind = response.WhichOneof("message")
            if kind == "chunk":
                return response.chunk
            assert kind == "mark", response

    async def mark(self) -> log_pb2.FetchMark:
        response = await self.receive()
        assert response.WhichOneof("message") == "mark", response
        return response.mark

    async def route_end(self, route: int = 0) -> log_pb2.RouteEnd:
        while True:
            response = await self.receive()
            if response.WhichOneof("message") == "route_end":
                assert response.route_end.route == route, response
                return response.route_end


@asynccontextmanager
async def running_broker(data_directory: Path, *more: Path) -> AsyncIterator[BrokerServer]:
    """A cluster of one node in the loop of the test, with more data directories or without."""
    server = BrokerServer(standalone_settings(data_directory, port=0, more_data_directories=more))
    await server.start()
    try:
        await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def second_broker(first: BrokerServer, data_directory: Path) -> AsyncIterator[BrokerServer]:
    """Run a second broker that follows the quorum of the first."""
    settings = BrokerSettings(
        data_directory=data_directory,
        node_id=2,
        cluster_id=first.cluster_id,
        listen=Address(host="127.0.0.1", port=0),
        quorum_addresses=(first.quorum_address or "",),
        rack="r2",
    )
    server = BrokerServer(settings)
    await server.start()
    try:
        await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def connected(server: BrokerServer) -> AsyncIterator[Client]:
    """A client of a broker."""
    client = Client(str(server.address))
    try:
        yield client
    finally:
        await client.channel.close()


async def leaders(client: Client) -> dict[int, int]:
    """Return the leader of each partition of topic `t`."""
    cluster = await client.metadata.GetCluster(metadata_pb2.GetClusterRequest(topics=["t"]))
    return {partition.partition: partition.leader_id for partition in cluster.topics[0].partitions}


async def refusal(call: Any) -> RemoteStatus:
    """Return the status with which a call failed."""
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return parse_rpc_error(error)
    raise AssertionError(f"the call was answered: {response}")


def offline_parts(observer: MetadataLoader, manager: ReplicaManager | None = None) -> BrokerParts:
    """Parts of a broker without a network: for services that need metadata and replicas only."""
    own = Identity(cluster_id="c", node_id=1, incarnation_id=bytes(16), address=None)
    peers = Peers(own, Services(requests={}, streams={}))
    calls = ControllerCalls(observer, peers, ())
    identity = BrokerIdentity(cluster_id="c", broker_id=1, rack="", log_directory_ids=())
    if manager is None:
        directories = LogDirectories([LogDirectory(SimDisk(), "/p")])
        manager = ReplicaManager(directories=directories, own=OwnBroker(1, identity.incarnation_id), observer=observer)
    lifecycle = BrokerLifecycle(identity, observer, calls, on_state=lambda _: None)
    lifecycle.session.begin(asked_s=time.monotonic(), timeout_ms=3_600_000)
    return BrokerParts(
        cluster_id="c",
        node_id=1,
        observer=observer,
        locator=Locator(node_id=1, observer=observer, manager=manager),
        peers=peers,
        producer_ids=ProducerIds(calls, lifecycle),
        produce_streams=StreamRegister("produce", 1),
        fetch_streams=StreamRegister("fetch", 1),
        watch_streams=StreamRegister("watch", 1),
        group_streams=StreamRegister("groups", 1),
        fetch_buffer=FetchBuffer(MIN_BUDGET_BYTES, end_connections=len),
        batch_threads=BatchThreads(MIN_BUDGET_BYTES),
        session=lifecycle.session,
        staging_quota=StagingQuota(1 << 40, manager.replicas),
    )

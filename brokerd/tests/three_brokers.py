# SPDX-License-Identifier: Apache-2.0
"""Three brokers in one event loop, with topics of three replicas, and helpers for tests of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
from lograft import aio
from lograft.v1 import admin_pb2, metadata_pb2
from lograft.wire.status import RemoteStatus, parse_rpc_error

from brokerd.process.server import BrokerServer
from brokerd.process.settings import BrokerSettings
from brokerd.replica.replica import Replica
from brokerd.tests.support import WAIT_S, Client, connected, running_broker
from metaquorum.metadata.state import PartitionImage
from metaquorum.process.settings import Address

PARTITIONS = 3
LONG_S = 3 * WAIT_S
"""Seconds for waits that span several timers of the cluster."""


class Cluster:
    """Broker 1 with the only voter, and others beside it."""

    def __init__(self, first: BrokerServer, root: Path) -> None:
        self.brokers = {1: first}
        self._root = root

    async def start(self, node_id: int, *more: Path) -> BrokerServer:
        """Start a broker that follows the quorum of the first, for the first time or with its old data.

        Args:
            node_id: its id.
            more: its further log directories.
        """
        first = self.brokers[1]
        server = BrokerServer(
            BrokerSettings(
                data_directory=self._root / str(node_id),
                more_data_directories=more,
                node_id=node_id,
                cluster_id=first.cluster_id,
                listen=Address(host="127.0.0.1", port=0),
                quorum_addresses=(first.quorum_address or "",),
                rack=f"r{node_id}",
            )
        )
        await server.start()
        self.brokers[node_id] = server
        await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
        return server

    async def stop(self, node_id: int) -> None:
        """Shut a broker down cleanly."""
        await self.brokers.pop(node_id).stop()

    async def create_topic(self, client: Client, **configs: str) -> None:
        """Create topic `t` with replicas on all three brokers, and wait until all have opened their logs."""
        request = admin_pb2.CreateTopicRequest(
            topic="t",
            partition_count=PARTITIONS,
            replication_factor=3,
            configs={name.replace("_", "."): value for name, value in configs.items()},
        )
        created = await client.admin.CreateTopic(request, timeout=WAIT_S)
        for node_id in self.brokers:
            async with connected(self.brokers[node_id]) as other:
                wanted = metadata_pb2.GetClusterRequest(min_metadata_offset=created.metadata_offset)
                await other.metadata.GetCluster(wanted, timeout=WAIT_S)
            for partition in range(PARTITIONS):
                assert await self.replica(node_id, partition) is not None

    async def replica(self, node_id: int, partition: int) -> Replica:
        """Return the replica of a partition on a broker."""
        server = self.brokers[node_id]
        manager = server.replica_manager
        topic = server.observer.image.topic_by_name("t")
        assert manager is not None
        assert topic is not None
        replica = await manager.wait_open(topic.topic_id, partition, timeout_ms=int(WAIT_S * 1000))
        assert replica is not None
        return replica

    def partition(self, partition: int, node_id: int = 1) -> PartitionImage:
        """Return a partition as a broker's metadata has it."""
        topic = self.brokers[node_id].observer.image.topic_by_name("t")
        assert topic is not None
        return topic.partitions[partition]

    async def wait(self, condition: Callable[[], bool], node_id: int = 1) -> None:
        """Wait until a change of a broker's metadata makes the condition true."""
        changed = asyncio.Event()
        stop = self.brokers[node_id].observer.on_change(lambda _: changed.set())
        try:
            async with asyncio.timeout(LONG_S):
                while not condition():
                    changed.clear()
                    await changed.wait()
        finally:
            stop()

    async def committed(self, node_id: int, partition: int, high_watermark: int) -> Replica:
        """Wait until a replica knows that its records up to there are committed."""
        replica = await self.replica(node_id, partition)
        reached = asyncio.Event()

        class Reader:
            def on_high_watermark(self, high_watermark_now: int) -> None:
                if high_watermark_now >= high_watermark:
                    reached.set()

            def on_service_end(self, failure: object) -> None:
                del failure  # a follower serves no readers here

        reader = Reader()
        replica.listeners.add_read(reader)
        try:
            if replica.high_watermark < high_watermark:
                async with asyncio.timeout(LONG_S):
                    await reached.wait()
        finally:
            replica.listeners.remove(reader)
        return replica


@asynccontextmanager
async def three_brokers(root: Path) -> AsyncIterator[Cluster]:
    """Run brokers 1 to 3 with their data below a directory. The last two have the racks r2 and r3."""
    async with running_broker(root / "1") as first:
        made = Cluster(first, root)
        try:
            for node_id in (2, 3):
                await made.start(node_id)
            yield made
        finally:
            for node_id in tuple(made.brokers):
                if node_id != 1:
                    await made.stop(node_id)


def log_bytes(replica: Replica) -> bytes:
    """Return everything that a replica has committed."""
    found: list[bytes] = []
    offset = replica.log_start_offset
    while offset < replica.high_watermark:
        read = replica.read(offset, 1 << 20, end_offset=replica.high_watermark)
        found.append(bytes(read.data))
        offset = read.next_offset
    return b"".join(found)


async def assert_equal(cluster: Cluster, partition: int, high_watermark: int) -> None:
    """Check that every replica has the same committed bytes."""
    logs = [log_bytes(await cluster.committed(node_id, partition, high_watermark)) for node_id in cluster.brokers]
    assert logs[0]
    assert all(log == logs[0] for log in logs)


async def append_to_all(client: Client, value: bytes) -> None:
    """Send one record to each partition with an idempotent producer, so that the log has it once even if the leader moves.

    A plain Append has no sequence number: its outcome is unknown when the leader moves before it answers.
    """
    async with asyncio.timeout(LONG_S), aio.Producer(client.address) as producer:
        for partition in range(PARTITIONS):
            await producer.send("t", value, partition=partition)
        await producer.flush()


async def attempt(client: Client, value: bytes, partition: int) -> RemoteStatus | None:
    """Append once, and return the refusal, if any."""
    try:
        await client.append("t", [value], partition=partition)
    except grpc.aio.AioRpcError as error:
        return parse_rpc_error(error)
    return None

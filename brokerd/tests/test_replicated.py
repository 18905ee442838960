# SPDX-License-Identifier: Apache-2.0
"""Three brokers in one loop, with topics of three replicas: records reach every log, leaders move, brokers come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from lograft import aio
from lograft.v1 import admin_pb2, log_pb2, metadata_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import RemoteStatus, parse_rpc_error

from brokerd.failure import RefusedError
from brokerd.replication.hosted_replica import HostedReplica
from brokerd.server import BrokerServer
from brokerd.settings import BrokerSettings
from brokerd.tests.support import WAIT_S, Client, connected, running_broker
from metaquorum.controller.state import PartitionImage
from metaquorum.settings import Address
from metaquorum.tests.quorum_cluster import until

PARTITIONS = 3
LONG_S = 3 * WAIT_S
"""Seconds for what takes several timers of the cluster."""


class Cluster:
    """Broker 1 with the only voter, and others beside it."""

    def __init__(self, first: BrokerServer, root: Path) -> None:
        self.brokers = {1: first}
        self._root = root

    async def start(self, node_id: int, *more: Path) -> BrokerServer:
        """Start a broker of its own that follows the quorum of the first, anew or with the data that it had.

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
        """Stop a broker in an orderly way."""
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

    async def replica(self, node_id: int, partition: int) -> HostedReplica:
        """The replica of a partition on a broker."""
        server = self.brokers[node_id]
        host = server.replica_host
        topic = server.observer.image.topic_by_name("t")
        assert host is not None
        assert topic is not None
        replica = await host.wait_open(topic.topic_id, partition, timeout_ms=int(WAIT_S * 1000))
        assert replica is not None
        return replica

    def partition(self, partition: int, node_id: int = 1) -> PartitionImage:
        """A partition, as a broker's metadata has it."""
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

    async def committed(self, node_id: int, partition: int, high_watermark: int) -> HostedReplica:
        """Wait until a replica knows that its records up to there are committed."""
        replica = await self.replica(node_id, partition)
        reached = asyncio.Event()

        class Reader:
            def on_high_watermark(self, high_watermark_now: int) -> None:
                if high_watermark_now >= high_watermark:
                    reached.set()

            def on_service_end(self, failure: object) -> None:
                del failure  # a follower serves nobody

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
    """Run brokers 1 to 3 with their data below a directory, the last two in racks of their own, r2 and r3."""
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


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three brokers."""
    async with three_brokers(tmp_path) as made:
        yield made


def log_bytes(replica: HostedReplica) -> bytes:
    """Everything that a replica has committed."""
    found: list[bytes] = []
    offset = replica.log_start_offset
    while offset < replica.high_watermark:
        read = replica.read(offset, 1 << 20, end_offset=replica.high_watermark)
        found.append(bytes(read.data))
        offset = read.next_offset
    return b"".join(found)


async def assert_equal(cluster: Cluster, partition: int, high_watermark: int) -> None:
    """Every replica has the same committed bytes."""
    logs = [log_bytes(await cluster.committed(node_id, partition, high_watermark)) for node_id in cluster.brokers]
    assert logs[0]
    assert all(log == logs[0] for log in logs)


@pytest.mark.parametrize("policy", ["ack", "none"])
async def test_acknowledged_records_are_in_every_log(cluster: Cluster, policy: str) -> None:
    """The receipt says replicated or flushed, and each replica has the same bytes."""
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client, flush_policy=policy)
        for partition in range(PARTITIONS):
            for number in range(5):
                response = await client.append("t", [b"%d" % number] * 3, partition=partition)
                wanted = log_pb2.DURABILITY_FLUSHED if policy == "ack" else log_pb2.DURABILITY_REPLICATED
                assert response.ranges[0].durability == wanted
            await assert_equal(cluster, partition, 15)
            read = await client.read("t", partition, 0)
            assert [record.value for record in read.records] == [b"%d" % (number // 3) for number in range(15)]


async def append_to_all(client: Client, value: bytes) -> None:
    """Send one record to each partition with an idempotent producer, so that the log has it once even if the leader moves.

    A plain Append has no sequence number: its outcome is unknown when the leader moves before it answers.
    """
    async with asyncio.timeout(LONG_S), aio.Producer(client.address) as producer:
        for partition in range(PARTITIONS):
            await producer.send("t", value, partition=partition)
        await producer.flush()


async def attempt(client: Client, value: bytes, partition: int) -> RemoteStatus | None:
    """Append once; return the refusal."""
    try:
        await client.append("t", [value], partition=partition)
    except grpc.aio.AioRpcError as error:
        return parse_rpc_error(error)
    return None


async def test_orderly_stop_moves_the_leaders_and_the_broker_comes_back(cluster: Cluster) -> None:
    """The stopped broker leads nothing and is in no set of in-sync replicas; back, it copies what it missed, and is in all."""
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client)
        await append_to_all(client, b"before")
        await cluster.stop(3)
        partitions = [cluster.partition(number) for number in range(PARTITIONS)]
        assert all(partition.leader_id in (1, 2) for partition in partitions), partitions
        assert all(3 not in partition.isr for partition in partitions), partitions
        await append_to_all(client, b"meanwhile")
        await cluster.start(3)
        await append_to_all(client, b"after")
        await cluster.wait(lambda: all(3 in cluster.partition(number).isr for number in range(PARTITIONS)))
        for number in range(PARTITIONS):
            await assert_equal(cluster, number, 3)
            read = await client.read("t", number, 0)
            assert [record.value for record in read.records] == [b"before", b"meanwhile", b"after"]


async def test_append_below_min_isr_is_refused_before_the_log(cluster: Cluster) -> None:
    """With one broker of three left and two demanded, nothing reaches the log; with the second back it goes on."""
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client, min_insync_replicas="2")
        await append_to_all(client, b"before")
        await cluster.stop(2)
        await cluster.stop(3)
        await cluster.wait(lambda: all(cluster.partition(number).leader_id == 1 for number in range(PARTITIONS)))
        for number in range(PARTITIONS):
            status = await attempt(client, b"refused", number)
            assert status is not None
            assert status.code is ErrorCode.NOT_ENOUGH_REPLICAS
            response = await client.append("t", [b"leader"], partition=number, acks=log_pb2.ACKS_LEADER)
            assert response.ranges[0].durability == log_pb2.DURABILITY_APPENDED
        await cluster.start(2)
        await append_to_all(client, b"after")
        for number in range(PARTITIONS):
            await cluster.committed(1, number, 3)
            read = await client.read("t", number, 0)
            assert [record.value for record in read.records] == [b"before", b"leader", b"after"]


async def test_reassignment_moves_the_records(cluster: Cluster) -> None:
    """The added replicas copy the log while it is served; then they take the place of those that go."""
    async with connected(cluster.brokers[1]) as client:
        await client.create_topic("t", PARTITIONS)
        await append_to_all(client, b"before")
        sources = [cluster.partition(number).replicas[0] for number in range(PARTITIONS)]
        moves = [
            admin_pb2.PartitionReassignment(
                topic="t", partition=number, replicas=[node for node in (1, 2, 3) if node != source]
            )
            for number, source in enumerate(sources)
        ]
        answer = await client.admin.AlterPartitionReassignments(
            admin_pb2.AlterPartitionReassignmentsRequest(reassignments=moves), timeout=WAIT_S
        )
        assert not any(result.HasField("error") for result in answer.results), answer
        await append_to_all(client, b"meanwhile")

        def is_done() -> bool:
            partitions = [cluster.partition(number) for number in range(PARTITIONS)]
            return all(
                source not in partition.replicas and not partition.adding and not partition.removing
                for source, partition in zip(sources, partitions, strict=True)
            )

        await cluster.wait(is_done)
        await append_to_all(client, b"after")
        for number in range(PARTITIONS):
            logs = [
                log_bytes(await cluster.committed(node_id, number, 3)) for node_id in cluster.partition(number).replicas
            ]
            assert len(logs) == 2
            assert logs[0] == logs[1]
            read = await client.read("t", number, 0)
            assert [record.value for record in read.records] == [b"before", b"meanwhile", b"after"]


def damage(path: Path, record: bytes) -> None:
    """Change one bit of a record in the only segment file below a directory that has it."""
    (found,) = [each for each in path.glob("partitions/*/*.log") if record in each.read_bytes()]
    content = bytearray(found.read_bytes())
    content[content.index(record)] ^= 1
    found.write_bytes(content)


async def test_damage_is_repaired_while_another_replica_serves(cluster: Cluster, tmp_path: Path) -> None:
    """A leader that meets damage gives way; readers get every record from the next one, and the log is whole again."""
    values = [b"record %d" % number for number in range(9)]
    async with connected(cluster.brokers[1]) as client:
        await cluster.create_topic(client)
        (number,) = [each for each in range(PARTITIONS) if cluster.partition(each).replicas[0] == 2]
        for value in values:
            await client.append("t", [value], partition=number)
        await cluster.stop(2)
        damage(tmp_path / "2", values[4])
        await cluster.start(2)
        await cluster.wait(lambda: 2 in cluster.partition(number).isr)
        replica = await cluster.committed(2, number, len(values))
        targets = [admin_pb2.TopicPartitions(topic="t", partitions=[number])]
        preferred = admin_pb2.ElectLeadersRequest(type=admin_pb2.ELECTION_TYPE_PREFERRED, topics=targets)
        await client.admin.ElectLeaders(preferred, timeout=WAIT_S)
        await until(lambda: replica.is_leader, what="the leadership")
        leader_epoch = cluster.partition(number, 2).leader_epoch
        with pytest.raises(RefusedError) as caught:
            replica.read(4, 1, end_offset=len(values))
        assert caught.value.failure.code is ErrorCode.LEADER_NOT_AVAILABLE
        await cluster.wait(lambda: cluster.partition(number).leader_id != 2)
        assert cluster.partition(number).leader_epoch == leader_epoch + 1
        assert 2 in cluster.partition(number).isr
        read = await client.read("t", number, 0)
        assert [record.value for record in read.records] == values
        await until(lambda: not replica.log.damaged, what="the repair")
        await assert_equal(cluster, number, len(values))

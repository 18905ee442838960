# SPDX-License-Identifier: Apache-2.0
"""One log directory of a broker fails: other brokers take over its replicas there, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from brokerd.process.server import BrokerServer
from brokerd.tests.support import WAIT_S, Client, connected, running_broker
from brokerd.tests.three_brokers import LONG_S, PARTITIONS, Cluster, append_to_all, assert_equal, attempt
from metaquorum.tests.quorum_cluster import until
from storage.directory.directories import LogDirectory
from storage.errors import DiskFailedError
from storage.files.names import LOG_DIRECTORIES_FILE
from storage.files.posix import PosixDisk

BROKER = 2
"""The broker that has a second directory."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three brokers, the second one with two log directories."""
    async with running_broker(tmp_path / "1") as first:
        made = Cluster(first, tmp_path)
        try:
            await made.start(BROKER, tmp_path / "second")
            await made.start(3)
            yield made
        finally:
            for node_id in tuple(made.brokers):
                if node_id != 1:
                    await made.stop(node_id)


def second_of(server: BrokerServer) -> LogDirectory:
    """Return the directory that will fail."""
    assert server.replica_manager is not None
    _, second = server.replica_manager.directories
    return second


def break_disk(directory: LogDirectory) -> DiskFailedError:
    """Make every write and sync of a directory fail from now on, as after a failed fsync."""
    assert isinstance(directory.disk, PosixDisk)
    return directory.disk.fail(directory.path, OSError(errno.EIO, "gone"), "fsync")


async def make_topic(cluster: Cluster, client: Client, leader_id: int) -> list[int]:
    """Create topic `t` with a broker as leader of the partitions in broker 2's second directory. Return these partitions."""
    await cluster.create_topic(client)
    hurt = sorted(int(name.rpartition("-")[2]) for name in second_of(cluster.brokers[BROKER]).partition_names())
    assert hurt
    replicas = [leader_id, *(node_id for node_id in (1, 2, 3) if node_id != leader_id)]
    moves = [admin_pb2.PartitionReassignment(topic="t", partition=number, replicas=replicas) for number in hurt]
    request = admin_pb2.AlterPartitionReassignmentsRequest(reassignments=moves)
    await client.admin.AlterPartitionReassignments(request, timeout=WAIT_S)
    targets = [admin_pb2.TopicPartitions(topic="t", partitions=hurt)]
    preferred = admin_pb2.ElectLeadersRequest(type=admin_pb2.ELECTION_TYPE_PREFERRED, topics=targets)
    await client.admin.ElectLeaders(preferred, timeout=WAIT_S)
    await cluster.wait(lambda: all(cluster.partition(number).leader_id == leader_id for number in hurt))
    await cluster.wait(lambda: all(len(cluster.partition(number).isr) == 3 for number in hurt))
    return hurt


async def keep_appending(client: Client, number: int, acknowledged: list[bytes], stop: asyncio.Event) -> None:
    """Append one record after the other, each until all in-sync replicas have acknowledged it."""
    while not stop.is_set():
        value = b"%d" % len(acknowledged)
        async with asyncio.timeout(LONG_S):
            while (status := await attempt(client, value, number)) is not None:
                assert status.code is not None, status
                # The next leader may have it or not. It is sent again, and may exist twice.
                assert status.code.retriable or status.code is ErrorCode.OUTCOME_UNKNOWN, status
        acknowledged.append(value)


async def test_leaders_in_a_failed_directory_are_handed_over(cluster: Cluster) -> None:
    """Producers with acks=all continue at the next leader within moments, and every acknowledged record exists."""
    async with connected(cluster.brokers[1]) as client:
        hurt = await make_topic(cluster, client, BROKER)
        stop = asyncio.Event()
        acknowledged: dict[int, list[bytes]] = {number: [] for number in hurt}
        writers = [asyncio.create_task(keep_appending(client, number, acknowledged[number], stop)) for number in hurt]
        await until(lambda: all(len(values) >= 5 for values in acknowledged.values()), what="the first records")
        break_disk(second_of(cluster.brokers[BROKER]))
        await cluster.wait(lambda: all(cluster.partition(number).leader_id != BROKER for number in hurt))
        counts = {number: len(values) for number, values in acknowledged.items()}
        await until(lambda: all(len(acknowledged[n]) >= counts[n] + 5 for n in hurt), what="records after the loss")
        stop.set()
        await asyncio.gather(*writers)
        for number in hurt:
            partition = cluster.partition(number)
            assert sorted(partition.isr) == [1, 3]
            read = await client.read("t", number, 0)
            values = [record.value for record in read.records]
            # Duplicates are allowed, missing records are not.
            assert [value for index, value in enumerate(values) if value not in values[:index]] == acknowledged[number]
        whole = [number for number in range(PARTITIONS) if number not in hurt]
        assert all(BROKER in cluster.partition(number).isr for number in whole)
        assert cluster.brokers[BROKER].is_serving


@pytest.mark.parametrize("directory", ["repaired", "replaced"])
async def test_followers_in_a_failed_directory_leave_and_come_back_after_a_repair(
    cluster: Cluster, tmp_path: Path, directory: str
) -> None:
    """An idle follower leaves at once, although it does not lag. A new process copies what its directory lacks, and is in sync."""
    async with connected(cluster.brokers[1]) as client:
        hurt = await make_topic(cluster, client, 1)
        await append_to_all(client, b"before")
        epochs = [cluster.partition(number).leader_epoch for number in hurt]
        server = cluster.brokers[BROKER]
        second = second_of(server)
        assert server.replica_manager is not None
        # As the directory maintenance does when it meets the failure.
        server.replica_manager.note_disk_failure(second, break_disk(second))
        await cluster.wait(lambda: all(sorted(cluster.partition(number).isr) == [1, 3] for number in hurt))
        assert [cluster.partition(number).leader_epoch for number in hurt] == epochs
        await append_to_all(client, b"meanwhile")
        await cluster.stop(BROKER)
        if directory == "replaced":
            shutil.rmtree(tmp_path / "second")
            (tmp_path / str(BROKER) / LOG_DIRECTORIES_FILE).unlink()
        await cluster.start(BROKER, tmp_path / "second")
        await append_to_all(client, b"after")
        await cluster.wait(lambda: all(BROKER in cluster.partition(n).isr for n in range(PARTITIONS)))
        for number in range(PARTITIONS):
            await assert_equal(cluster, number, 3)
            read = await client.read("t", number, 0)
            assert [record.value for record in read.records] == [b"before", b"meanwhile", b"after"]

# SPDX-License-Identifier: Apache-2.0
"""The last in-sync replica of a partition comes back without its log directory, then with it: nothing acknowledged is lost."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2

from brokerd.tests.support import WAIT_S, Client, connected
from brokerd.tests.three_brokers import Cluster, three_brokers
from storage.files.names import LOG_DIRECTORIES_FILE

RECORDS = 3_000
LAST, OTHER = 2, 3
"""The broker with the last in-sync replica, and the other replica."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Broker 1 with the voter, and two brokers that will stop."""
    async with three_brokers(tmp_path) as made:
        yield made


async def fill(cluster: Cluster, client: Client, *replicas: int) -> list[bytes]:
    """Create topic `t` with these replicas and one partition, and append records that all of them have. Return their values."""
    created = admin_pb2.CreateTopicRequest(
        topic="t", partition_count=1, replication_factor=3, configs={"min.insync.replicas": "1"}
    )
    await client.admin.CreateTopic(created, timeout=WAIT_S)
    move = admin_pb2.PartitionReassignment(topic="t", partition=0, replicas=list(replicas))
    request = admin_pb2.AlterPartitionReassignmentsRequest(reassignments=[move])
    await client.admin.AlterPartitionReassignments(request, timeout=WAIT_S)
    await cluster.wait(lambda: cluster.partition(0).replicas == replicas)
    await cluster.wait(lambda: set(cluster.partition(0).isr) == set(replicas))
    # A record that the leader appends before its last epoch begins has an unknown outcome.
    for node_id in (1, *replicas):
        await cluster.wait(partial(has_last_epoch, cluster, node_id), node_id)
    values = [b"%d" % number for number in range(RECORDS)]
    await client.append("t", values)
    return values


def has_last_epoch(cluster: Cluster, node_id: int) -> bool:
    """Tell whether a broker has the same epochs of partition 0 of `t` as the first one."""
    topic = cluster.brokers[node_id].observer.image.topic_by_name("t")
    if topic is None:
        return False
    image, first = topic.partitions[0], cluster.partition(0)
    return (image.leader_epoch, image.partition_epoch) == (first.leader_epoch, first.partition_epoch)


async def read_all(client: Client) -> list[bytes]:
    """Read the partition to its end."""
    values: list[bytes] = []
    while records := (await client.read("t", offset=len(values), max_records=1_000)).records:
        values += (record.value for record in records)
    return values


async def is_active(cluster: Cluster, *node_ids: int) -> None:
    """Wait until brokers are unfenced."""
    brokers = cluster.brokers[1].observer.image.brokers
    await cluster.wait(lambda: all(brokers[node_id].can_lead for node_id in node_ids))


@pytest.mark.parametrize("order", [(LAST, OTHER), (OTHER, LAST)])
@pytest.mark.parametrize("replicas", [(LAST, OTHER), (LAST,)])
async def test_wiped_last_replica_leads_nothing_until_its_directory_is_back(
    cluster: Cluster, tmp_path: Path, order: tuple[int, ...], replicas: tuple[int, ...]
) -> None:
    """Earlier it led with an empty log, in any order of starts, and the other replica was truncated to that."""
    async with connected(cluster.brokers[1]) as client:
        values = await fill(cluster, client, *replicas)
        await cluster.stop(OTHER)
        await cluster.wait(lambda: cluster.partition(0).isr == (LAST,))
        await cluster.stop(LAST)
        shutil.move(tmp_path / str(LAST), tmp_path / "old")
        for node_id in order:
            await cluster.start(node_id)
        await is_active(cluster, LAST, OTHER)
        assert (cluster.partition(0).leader_id, cluster.partition(0).isr) == (None, (LAST,))
        await cluster.stop(LAST)
        shutil.rmtree(tmp_path / str(LAST))
        shutil.move(tmp_path / "old", tmp_path / str(LAST))
        await cluster.start(LAST)
        await cluster.wait(lambda: cluster.partition(0).leader_id == LAST)
        await cluster.wait(lambda: set(cluster.partition(0).isr) == set(replicas))
        assert await read_all(client) == values


def is_moved(cluster: Cluster, node_id: int) -> bool:
    """Tell whether a broker knows that the last broker alone has and leads all six partitions."""
    topic = cluster.brokers[node_id].observer.image.topic_by_name("t")
    if topic is None:
        return False
    images = [topic.partitions[each] for each in range(6)]
    return all((image.replicas, image.leader_id) == ((LAST,), LAST) for image in images)


async def test_partitions_on_the_healthy_directory_come_back_by_themselves(cluster: Cluster, tmp_path: Path) -> None:
    """One of two disks is lost. Partitions on the other disk get their leaders back, and only the rest waits."""
    async with connected(cluster.brokers[1]) as client:
        await cluster.stop(LAST)
        await cluster.start(LAST, tmp_path / "second")
        await is_active(cluster, LAST)
        created = admin_pb2.CreateTopicRequest(topic="t", partition_count=6, replication_factor=3)
        await client.admin.CreateTopic(created, timeout=WAIT_S)
        moves = [admin_pb2.PartitionReassignment(topic="t", partition=each, replicas=[LAST]) for each in range(6)]
        request = admin_pb2.AlterPartitionReassignmentsRequest(reassignments=moves)
        await client.admin.AlterPartitionReassignments(request, timeout=WAIT_S)
        # Both the broker that is asked and the new leader must know the end of the moves: a record that the leader appends before its
        # last epoch begins has an unknown outcome.
        for node_id in (1, LAST):
            await cluster.wait(partial(is_moved, cluster, node_id), node_id)
        for each in range(6):
            await client.append("t", [b"kept"], partition=each)
        manager = cluster.brokers[LAST].replica_manager
        assert manager is not None
        first, second = manager.directories
        lost = {int(name.rpartition("-")[2]) for name in second.partition_names()}
        kept = {int(name.rpartition("-")[2]) for name in first.partition_names()}
        assert lost
        assert kept
        await cluster.stop(LAST)
        shutil.rmtree(tmp_path / "second")
        (tmp_path / str(LAST) / LOG_DIRECTORIES_FILE).unlink()
        await cluster.start(LAST, tmp_path / "second")
        await cluster.wait(lambda: all(cluster.partition(each).leader_id == LAST for each in kept))
        assert [cluster.partition(each).leader_id for each in sorted(lost)] == [None] * len(lost)
        for each in kept:
            assert [record.value for record in (await client.read("t", each)).records] == [b"kept"]


async def test_unclean_election_gives_up_what_was_lost(cluster: Cluster, tmp_path: Path) -> None:
    """After the operator's decision the remaining replica leads with what it has, and the wiped one copies that."""
    async with connected(cluster.brokers[1]) as client:
        values = await fill(cluster, client, LAST, OTHER)
        await cluster.stop(OTHER)
        await cluster.wait(lambda: cluster.partition(0).isr == (LAST,))
        await client.append("t", [b"only on the last one"])
        await cluster.stop(LAST)
        shutil.rmtree(tmp_path / str(LAST))
        await cluster.start(LAST)
        await cluster.start(OTHER)
        await is_active(cluster, LAST, OTHER)
        assert cluster.partition(0).leader_id is None
        targets = [admin_pb2.TopicPartitions(topic="t", partitions=[0])]
        unclean = admin_pb2.ElectLeadersRequest(type=admin_pb2.ELECTION_TYPE_UNCLEAN, topics=targets)
        await client.admin.ElectLeaders(unclean, timeout=WAIT_S)
        await cluster.wait(lambda: cluster.partition(0).leader_id == OTHER)
        await cluster.wait(lambda: set(cluster.partition(0).isr) == {LAST, OTHER})
        assert await read_all(client) == values

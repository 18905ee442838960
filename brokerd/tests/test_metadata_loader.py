# SPDX-License-Identifier: Apache-2.0
"""A broker's metadata and snapshots: it catches up by a snapshot, keeps it on disk, and starts from the disk the next time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2

from brokerd.process.quorum import open_quorum_member
from brokerd.process.settings import BrokerSettings
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.listener import CommittedBatch
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.process.server import QuorumServer
from metaquorum.process.settings import Address
from metaquorum.replica.quorum_node import SnapshotSettings
from metaquorum.tests.controller_world import view
from metaquorum.tests.quorum_cluster import CLUSTER, HOST, BrokerStub, QuorumCluster, settings_for, until

PATIENT = ControllerSettings(session_timeout_ms=600_000)


class Delivered(MetadataLoader):
    """Notes the batches that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.base_offsets: list[int] = []

    def on_commit(self, batch: CommittedBatch) -> None:
        """Note a batch and apply it."""
        self.base_offsets.append(batch.base_offset)
        super().on_commit(batch)


@pytest.fixture
async def voter(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """A quorum of one that makes a snapshot every few topics, with a broker on which topics can be placed."""
    cluster = QuorumCluster(tmp_path, 1, controller=PATIENT, snapshots=SnapshotSettings(log_bytes=1_000))
    try:
        await cluster.start(1)
        await cluster.active()
        await BrokerStub(cluster, 100).join(1)
        yield cluster
    finally:
        await cluster.close()


async def create_topics(cluster: QuorumCluster, first: int, count: int) -> int:
    """Create topics; return the metadata offset of the last one."""
    offset = 0
    for number in range(first, first + count):
        request = admin_pb2.CreateTopicRequest(topic=f"topic-{number:04d}", partition_count=5, replication_factor=1)
        offset = (await cluster.admin(1).CreateTopic(request)).metadata_offset
    return offset


def broker_settings(cluster: QuorumCluster, directory: Path) -> BrokerSettings:
    """Settings of a broker beside the quorum."""
    return BrokerSettings(
        data_directory=directory,
        node_id=7,
        cluster_id=CLUSTER,
        listen=Address(host=HOST, port=0),
        quorum_addresses=(cluster.voters[1],),
    )


async def trimmed(cluster: QuorumCluster, beyond: int) -> None:
    """Wait until the voter's log begins beyond an offset."""
    await until(lambda: cluster.servers[1].node.log_start_offset > beyond, what=f"log trimmed beyond {beyond}")


async def test_a_broker_catches_up_by_snapshot_and_begins_from_its_disk(voter: QuorumCluster, tmp_path: Path) -> None:
    """First from a snapshot, then from its image, and after a trim from a snapshot again, which every listener hears of."""
    offset = await create_topics(voter, 0, 40)
    await trimmed(voter, 0)
    settings = broker_settings(voter, tmp_path / "broker")
    observer = MetadataLoader()
    member = await open_quorum_member(settings, observer, lambda _: None)
    assert await observer.wait_for(offset, timeout_ms=20_000)
    assert view(observer.image) == view(voter.servers[1].image)
    await member.stop()

    second = Delivered()
    member = await open_quorum_member(settings, second, lambda _: None)
    assert second.metadata_offset == observer.metadata_offset, "its image is on its disk"
    assert view(second.image) == view(observer.image)
    assert await second.wait_for(await create_topics(voter, 40, 1), timeout_ms=20_000)
    assert second.base_offsets[0] == observer.metadata_offset, "nothing is delivered again"
    await member.stop()

    end = await create_topics(voter, 41, 39)
    await trimmed(voter, second.metadata_offset)
    third = MetadataLoader()
    changes: list[MetadataChange] = []
    third.on_change(changes.append)
    member = await open_quorum_member(settings, third, lambda _: None)
    assert third.metadata_offset < end
    assert await third.wait_for(end, timeout_ms=20_000)
    assert view(third.image) == view(voter.servers[1].image)
    assert {f"topic-{number:04d}" for number in range(80)} <= frozenset().union(*(change.topics for change in changes))
    assert third.history.since(0) is None, "a watcher from before gets everything"
    await member.stop()


async def test_a_broker_in_a_voter_has_the_same_image(voter: QuorumCluster) -> None:
    """A combined node has one image, which starts from the disk, and the controller decides on it."""
    offset = await create_topics(voter, 0, 40)
    await trimmed(voter, 0)
    await voter.stop(1)
    loader = MetadataLoader()
    server = QuorumServer(
        settings_for(1, voter.ports[1], voter.voters, controller=PATIENT), voter.path(1), loader=loader
    )
    await server.start()
    assert loader.metadata_offset >= offset
    assert loader.image is server.image is server.host.image
    await until(lambda: server.host.is_active or None, what="leadership")
    await server.stop()

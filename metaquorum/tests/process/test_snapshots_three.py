# SPDX-License-Identifier: Apache-2.0
"""Snapshots with real servers in this process: voters that were away, empty ones, brokers, restarts without replay."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.image_store import ImageStore
from metaquorum.metadata.snapshot_files import SnapshotFiles, parse_name
from metaquorum.metadata.snapshot_rows import snapshot_digest
from metaquorum.replica.log_store import LogStore
from metaquorum.replica.quorum_node import SnapshotSettings
from metaquorum.tests.controller_world import view
from metaquorum.tests.quorum_cluster import BrokerStub, QuorumCluster, until
from metaquorum.tests.snapshot_clusters import equal, trimmed

OFTEN = SnapshotSettings(log_bytes=1_000)
PATIENT = ControllerSettings(session_timeout_ms=600_000)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """Three voters that make a snapshot every few topics."""
    made = QuorumCluster(tmp_path, 3, controller=PATIENT, snapshots=OFTEN)
    try:
        for node_id in made.voters:
            await made.start(node_id)
        await made.active()
        yield made
    finally:
        await made.close()


async def with_broker(cluster: QuorumCluster) -> None:
    """Let a broker in, so that topics can be placed."""
    broker = BrokerStub(cluster, 100)
    await broker.join(await cluster.active())


def snapshot_names(cluster: QuorumCluster, node_id: int) -> set[str]:
    """Names in a voter's directory of snapshots."""
    return {path.name for path in (cluster.path(node_id) / "metadata" / "snapshots").iterdir()}


async def test_a_voter_that_was_away_while_the_log_was_trimmed_catches_up(cluster: QuorumCluster) -> None:
    """It installs the leader's snapshot, fetches the rest, and serves the same image; its disk has it as well."""
    await with_broker(cluster)
    await cluster.create_topics(0, 2)
    away = next(node_id for node_id in cluster.voters if not cluster.servers[node_id].host.is_active)
    end_offset = cluster.servers[away].image.metadata_offset
    await cluster.stop(away)
    await cluster.create_topics(2, 40)
    await trimmed(cluster, end_offset)
    server = await cluster.start(away)
    offset = await cluster.create_topics(42, 3)
    rows = await equal(cluster, offset)
    assert server.node.log_start_offset > end_offset, "it did not replay the log"
    numbers = {name.rpartition("-")[0] for name in server.image.topic_names}
    assert len(numbers) == 45
    await cluster.stop(away)
    again = await cluster.start(away)
    assert view(again.image) == rows, "the image on its disk is the one that it installed"


async def test_an_empty_voter_catches_up_by_snapshot(cluster: QuorumCluster) -> None:
    """A voter that is only formatted gets the snapshot first."""
    empty = next(node_id for node_id in cluster.voters if not cluster.servers[node_id].host.is_active)
    await cluster.stop(empty)
    await with_broker(cluster)
    await cluster.create_topics(0, 40)
    await trimmed(cluster, 0)
    cluster.format_again(empty)
    server = await cluster.start(empty)
    offset = await cluster.create_topics(40, 1)
    await equal(cluster, offset)
    assert server.node.log_start_offset > 0


async def test_snapshots_of_one_id_have_one_digest_on_every_node(cluster: QuorumCluster) -> None:
    """Each node makes its own; snapshots with the same id have the same rows."""
    await with_broker(cluster)
    offset = await cluster.create_topics(0, 30)
    await equal(cluster, offset)
    await trimmed(cluster, 0)
    for node_id in cluster.voters:
        # So that none is removed while it is read.
        await cluster.stop(node_id)
    digests: dict[str, set[bytes]] = {}
    for node_id in cluster.voters:
        for name in snapshot_names(cluster, node_id):
            snapshot = parse_name(name)
            if snapshot is not None:
                path = cluster.path(node_id) / "metadata" / "snapshots" / name
                digests.setdefault(name, set()).add(snapshot_digest(path, snapshot))
    assert digests
    assert all(len(values) == 1 for values in digests.values())
    assert all(len([n for n in snapshot_names(cluster, node) if parse_name(n)]) <= 3 for node in cluster.voters)


async def test_a_restart_reads_only_the_tail_of_the_log(cluster: QuorumCluster) -> None:
    """Records in the image are not read again, neither for the image nor for voters or epochs."""
    await with_broker(cluster)
    offset = await cluster.create_topics(0, 60)
    await equal(cluster, offset)
    node_id = next(node_id for node_id in cluster.voters if not cluster.servers[node_id].host.is_active)
    before = cluster.servers[node_id]
    image_offset = before.image.metadata_offset
    await cluster.stop(node_id)
    server = await cluster.start(node_id)
    assert server.image.metadata_offset >= image_offset
    assert server.node.log_read_bytes == 0, "nothing was appended since"
    end = await cluster.create_topics(60, 2)
    await until(lambda: server.image.metadata_offset >= end or None, what="the tail")
    # Two topics with five partitions each are a few hundred bytes, and still in memory; sixty would be tens of thousands.
    assert server.node.log_read_bytes < 3_000
    status = server.node.status()
    assert [voter.node_id for voter in status.voters] == [1, 2, 3], "voters come from the image"


@pytest.mark.parametrize(
    ("owner", "function"),
    [
        (LogStore, "truncate_fully"),
        (ImageStore, "replace"),
        (SnapshotFiles, "remove_below"),
    ],
)
async def test_an_install_that_stops_half_way_is_finished_by_the_next_start(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch, owner: type, function: str
) -> None:
    """The node stops before it replaces the log, the image or the old snapshots; the next start finishes the install."""
    await with_broker(cluster)
    await cluster.create_topics(0, 2)
    away = next(node_id for node_id in cluster.voters if not cluster.servers[node_id].host.is_active)
    end_offset = cluster.servers[away].image.metadata_offset
    await cluster.stop(away)
    await cluster.create_topics(2, 40)
    await trimmed(cluster, end_offset)
    directory = str(cluster.path(away))
    original = getattr(owner, function)

    def stop_here(self: object, *arguments: object) -> object:
        path = str(getattr(self, "_directory", ""))
        calls = [frame.function for frame in inspect.stack()[1:3]]
        if path.startswith(directory) and "_install" in calls:
            raise OSError(f"power lost before {function}")
        return original(self, *arguments)

    monkeypatch.setattr(owner, function, stop_here)
    server = await cluster.start(away)
    with pytest.raises(OSError, match="power lost"):
        await server.wait_stopped()
    await cluster.stop(away)
    monkeypatch.undo()
    server = await cluster.start(away)
    assert server.node.log_start_offset > end_offset
    assert server.image.metadata_offset >= server.node.log_start_offset
    offset = await cluster.create_topics(42, 1)
    await equal(cluster, offset)


async def test_a_snapshot_that_cannot_be_made_stops_nothing(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full: the voter logs it, trims nothing, leaves nothing incomplete, and makes the next snapshot."""

    def full(self: ImageStore, directory: Path) -> None:
        directory.mkdir()
        raise OSError("no space left")

    monkeypatch.setattr(ImageStore, "checkpoint", full)
    await with_broker(cluster)
    offset = await cluster.create_topics(0, 30)
    await equal(cluster, offset)
    await until(lambda: "event=snapshot_failed" in caplog.text or None, what="the report")
    assert all(server.node.log_start_offset == 0 for server in cluster.servers.values())
    monkeypatch.undo()
    await cluster.create_topics(30, 40)
    await trimmed(cluster, 0)
    for node_id in cluster.voters:
        await cluster.stop(node_id)
    assert not any(name.endswith(".part") for node_id in cluster.voters for name in snapshot_names(cluster, node_id))


async def test_a_quiet_log_gets_its_snapshot_by_the_clock(tmp_path: Path) -> None:
    """There are few records, far below the size limit: the time since the first of them counts."""
    settings = SnapshotSettings(log_bytes=1 << 40, interval_ms=1, kept=1)
    cluster = QuorumCluster(tmp_path, 1, controller=PATIENT, snapshots=settings)
    try:
        server = await cluster.start(1)
        await until(lambda: server.node.log_start_offset > 0 or None, what="a trimmed log")
        assert len(snapshot_names(cluster, 1)) == 1
    finally:
        await cluster.close()

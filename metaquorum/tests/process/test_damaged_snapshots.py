# SPDX-License-Identifier: Apache-2.0
"""A start that needs a snapshot and finds the newest one damaged: it uses an older one, or the log, if they have the records."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.metadata_files import open_metadata
from metaquorum.metadata.snapshot_files import SnapshotFiles
from metaquorum.process.server import QuorumServer
from metaquorum.raft.types import SnapshotId
from metaquorum.replica.first_start import format_standalone
from metaquorum.replica.log_store import DamagedLogError
from metaquorum.replica.quorum_node import SnapshotSettings
from metaquorum.tests.controller_world import view
from metaquorum.tests.quorum_cluster import BrokerStub, QuorumCluster, until

ROOT = Path(__file__).parents[3]
OFTEN = SnapshotSettings(log_bytes=1_000)
PATIENT = ControllerSettings(session_timeout_ms=600_000)


def damage(snapshot: Path) -> None:
    """Flip a bit in every table file of a snapshot; while the image is gone, no other database shares these files."""
    for table in snapshot.glob("*.sst"):
        data = bytearray(table.read_bytes())
        data[len(data) // 3] ^= 0x10
        table.unlink()
        table.write_bytes(bytes(data))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    """Three voters that make a snapshot every few topics."""
    made = QuorumCluster(tmp_path, 3, controller=PATIENT, snapshots=OFTEN)
    try:
        await asyncio.gather(*(made.start(node_id) for node_id in made.voters))
        await BrokerStub(made, 100).join(await made.active())
        yield made
    finally:
        await made.close()


async def stopped_with_two_snapshots(cluster: QuorumCluster) -> tuple[int, Path, list[SnapshotId]]:
    """Stop a follower that has two snapshots and a trimmed log, and take its image away; ids of the snapshots."""
    node_id = next(each for each in cluster.voters if not cluster.servers[each].host.is_active)
    node = cluster.servers[node_id].node
    number = 0
    while len(node.kept_snapshots) < 2 or node.log_start_offset == 0:
        offset = await cluster.create_topics(number, 10)
        number += 10
        await until(
            lambda wanted=offset: cluster.servers[node_id].image.metadata_offset >= wanted,
            what="the follower to have it",
        )
    await cluster.stop(node_id)
    metadata = cluster.path(node_id) / "metadata"
    shutil.rmtree(metadata / "image")
    return node_id, metadata, list(SnapshotFiles(metadata / "snapshots").ids)


async def test_start_uses_an_older_snapshot_when_the_newest_is_damaged(cluster: QuorumCluster) -> None:
    """The log begins at the older one, so no record is missing: the voter has the same image, and completes a majority."""
    node_id, metadata, ids = await stopped_with_two_snapshots(cluster)
    damage(SnapshotFiles(metadata / "snapshots").path(ids[-1]))
    server = await cluster.start(node_id)
    assert ids[-1] not in server.node.kept_snapshots, "a damaged one is served to nobody"
    assert ids[-2] in server.node.kept_snapshots
    assert server.node.status().is_voter
    other = next(each for each in cluster.voters if each != node_id and not cluster.servers[each].host.is_active)
    await cluster.stop(other)
    offset = await cluster.create_topics(1_000, 3)
    leader = cluster.servers[await cluster.active()]
    await until(lambda: server.image.metadata_offset >= offset, what="the voter to have everything")
    await until(lambda: view(server.image) == view(leader.image), what="equal images")


async def test_what_read_a_damaged_snapshot_does_not_lock_the_next_one(cluster: QuorumCluster) -> None:
    """The older snapshot is used at once; no database waits for the garbage collector to release a lock."""
    _, metadata, ids = await stopped_with_two_snapshots(cluster)
    path = SnapshotFiles(metadata / "snapshots").path(ids[-1])
    table = max(path.glob("*.sst"), key=lambda each: each.stat().st_size)
    content = bytearray(table.read_bytes())
    content[10] ^= 0xFF  # in the first block of rows: the database opens, but its rows cannot be read
    table.unlink()
    table.write_bytes(content)
    gc.collect()
    gc.disable()
    try:
        opened = open_metadata(metadata)
    finally:
        gc.enable()
    opened.store.close()
    assert opened.snapshots.ids[-1] == ids[-2]


async def test_damaged_snapshot_gives_way_to_the_next_ones(cluster: QuorumCluster) -> None:
    """Its directory is deleted once the log begins beyond it and the node starts again."""
    node_id, metadata, ids = await stopped_with_two_snapshots(cluster)
    path = SnapshotFiles(metadata / "snapshots").path(ids[-1])
    damage(path)
    server = await cluster.start(node_id)
    number = 1_000
    while server.node.log_start_offset <= ids[-1].end_offset:
        offset = await cluster.create_topics(number, 10)
        number += 10
        await until(lambda wanted=offset: server.image.metadata_offset >= wanted, what="the voter to have it")
    await cluster.stop(node_id)
    assert not path.exists()
    again = await cluster.start(node_id)
    await until(lambda: again.image.metadata_offset >= offset, what="the voter to have everything again")


async def test_start_refuses_when_the_log_begins_at_a_damaged_snapshot(cluster: QuorumCluster) -> None:
    """The records below are not on this disk; the error says what to do, and nothing was changed."""
    node_id, metadata, ids = await stopped_with_two_snapshots(cluster)
    for snapshot in ids:
        damage(SnapshotFiles(metadata / "snapshots").path(snapshot))
    for _ in range(2):
        with pytest.raises(DamagedLogError, match="Wipe the data directory"):
            await cluster.start(node_id)
    assert list(SnapshotFiles(metadata / "snapshots").ids) == ids


async def test_start_without_a_readable_snapshot_replays_a_log_that_has_everything(tmp_path: Path) -> None:
    """The log is trimmed only when two snapshots exist: with one, the log begins at offset 0 and replaces it."""
    patient = SnapshotSettings(log_bytes=1_000, kept=1_000)
    cluster = QuorumCluster(tmp_path, 1, controller=PATIENT, snapshots=patient)
    try:
        server = await cluster.start(1)
        await BrokerStub(cluster, 100).join(await cluster.active())
        number = 0
        while not server.node.kept_snapshots:
            await cluster.create_topics(number, 10)
            number += 10
        rows = view(server.image)
        await cluster.stop(1)
        metadata = cluster.path(1) / "metadata"
        shutil.rmtree(metadata / "image")
        files = SnapshotFiles(metadata / "snapshots")
        for snapshot in files.ids:
            damage(files.path(snapshot))
        again: QuorumServer = await cluster.start(1)
        assert again.node.kept_snapshots == ()
        await cluster.active()
        assert view(again.image) == rows
    finally:
        await cluster.close()


def test_damage_is_found_by_what_a_snapshot_says(tmp_path: Path) -> None:
    """A directory that is no database at all is damage too, and leaves a newer image than the older snapshot alone."""
    names = ["00000000000000000010-0000000001", "00000000000000000020-0000000001"]
    for name in names:
        (tmp_path / "snapshots" / name).mkdir(parents=True)
        (tmp_path / "snapshots" / name / "CURRENT").write_bytes(random.Random(1).randbytes(20))
    opened = open_metadata(tmp_path)
    opened.store.close()
    assert opened.snapshots.ids == ()
    assert [snapshot.end_offset for snapshot in opened.snapshots.damaged] == [10, 20]
    assert not opened.image_part.exists()
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == names, "nothing is removed"


@pytest.mark.process
@pytest.mark.parametrize(
    "program",
    [["metaquorum", "run"], ["brokerd", "run", "--combined", "--quorum-listen", "127.0.0.1:0"]],
    ids=["voter", "combined"],
)
def test_refusal_is_one_line_for_who_starts_the_server(tmp_path: Path, program: list[str]) -> None:
    """A damaged snapshot that the log does not cover: status 1 and what to do, without a traceback."""
    format_standalone(tmp_path, node_id=1, cluster_id="c", address="127.0.0.1:1")
    (tmp_path / "metadata" / "snapshots" / "00000000000000000020-0000000001").mkdir(parents=True)
    identity = ["--data-dir", str(tmp_path), "--node-id", "1", "--cluster-id", "c", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        [sys.executable, "-m", *program, *identity],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Wipe the data directory" in done.stderr
    assert "event=snapshot_damaged" in done.stderr
    assert "Traceback" not in done.stderr

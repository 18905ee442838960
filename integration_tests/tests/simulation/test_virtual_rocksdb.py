# SPDX-License-Identifier: Apache-2.0
"""The replacement for RocksDB in a simulated world behaves as RocksDB, and loses what a machine may lose."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from integration_tests.simulation.virtual_rocksdb import Databases, in_place
from metaquorum.controller.commands import Bootstrap
from metaquorum.metadata import image_store, metadata_files
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import ImageUnreadableError
from metaquorum.metadata.image_store import ImageStore
from metaquorum.metadata.snapshot_files import link_tree
from metaquorum.metadata.snapshot_rows import PIECE_BYTES, SnapshotReader, SnapshotWriter, snapshot_digest
from metaquorum.raft.types import NodeId, Offset, QuorumEpoch, ReplicaKey, SnapshotId
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.tests.controller_world import World, create_topic
from metaquorum.tests.image_samples import EPOCH, write

VOTERS = voter_set([Voter(key=ReplicaKey(node_id=NodeId(1), directory_id=b"d" * 16), address="voter-1:9640")])

Scenario = Callable[[Path], Any]


def same(scenario: Scenario, path: Path) -> Any:
    """Run a scenario with RocksDB and with its replacement, check that both agree, and return the result."""
    (path / "real").mkdir()
    real = scenario(path / "real")
    databases = Databases(random.Random(1))
    databases.begin(path / "virtual")
    with in_place(databases):
        databases.directory("broker-1").mkdir(parents=True)
        virtual = scenario(databases.directory("broker-1"))
    assert virtual == real
    return real


def worked() -> World:
    """Return a controller that has done some work, with everything that it committed."""
    world = World()
    world.run(Bootstrap())
    for broker_id in (1, 2, 3):
        world.start_broker(broker_id)
    world.run(create_topic("orders", partition_count=5))
    return world


def filled(path: Path, world: World) -> ImageStore:
    """Return a store with all of it, and the voters."""
    store = ImageStore(path / "image")
    image = MetadataImage()
    write(store, image, world.log)
    store.note(image, [], quorum_epoch=EPOCH, voters=VOTERS)
    store.write()
    return store


def test_an_image_is_written_read_and_opened_again(tmp_path: Path) -> None:
    """Rows, offset, epoch and voters are the same after a close. Only one writer has the image at a time."""

    def scenario(path: Path) -> Any:
        store = filled(path, worked())
        with pytest.raises(ImageUnreadableError):
            ImageStore(path / "image")
        before = store.rows()
        store.close()
        store = ImageStore(path / "image")
        loaded = store.load()
        after = store.rows()
        store.close()
        return before, after, loaded.snapshot_id, loaded.voters

    before, after, _, voters = same(scenario, tmp_path)
    assert len(before) > 3
    assert after == before
    assert voters == VOTERS


def test_a_checkpoint_stays_as_it_was_and_can_be_sent_and_installed(tmp_path: Path) -> None:
    """A checkpoint has one offset, is read row by row, is written elsewhere with the same digest, and replaces an image."""

    def scenario(path: Path) -> Any:
        world = worked()
        store = filled(path, world)
        snapshot = filled_id()
        store.checkpoint(path / "snapshot")
        world.run(create_topic("later", partition_count=2))
        image = MetadataImage()
        write(store, image, world.log)
        reader = SnapshotReader(path / "snapshot", snapshot)
        writer = SnapshotWriter(path / "copy", snapshot, reader.voters_record)
        pieces = [writer.add(piece, crc32c(piece)) for piece in reader.pieces(PIECE_BYTES)]
        loaded = writer.finish(row_count=reader.digest.row_count, digest=reader.digest.value())
        reader.close()
        link_tree(path / "copy", path / "image.part")
        store.replace(path / "image.part")
        rows = store.rows()
        store.close()
        digests = [snapshot_digest(path / name, snapshot) for name in ("snapshot", "copy", "image")]
        return len(pieces), loaded.snapshot_id, rows, digests

    _, _, _, digests = same(scenario, tmp_path)
    assert len(set(digests)) == 1


def filled_id() -> SnapshotId:
    """Return the id of a snapshot of a `filled` store."""
    return SnapshotId(end_offset=Offset(worked().log_end_offset), epoch=QuorumEpoch(EPOCH))


def test_what_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    """A removed snapshot is refused, and so is one with another id."""

    def scenario(path: Path) -> Any:
        with pytest.raises(ImageUnreadableError):
            image_store.open_read_only(path / "nothing")
        store = filled(path, worked())
        store.checkpoint(path / "snapshot")
        store.close()
        with pytest.raises(ImageUnreadableError):
            SnapshotReader(path / "snapshot", SnapshotId(end_offset=Offset(1), epoch=QuorumEpoch(1)))
        return snapshot_digest(path / "snapshot", filled_id())

    assert len(same(scenario, tmp_path)) == 32


@pytest.mark.parametrize("seed", range(6))
def test_a_kill_keeps_what_was_written_and_a_loss_of_power_an_older_offset(tmp_path: Path, seed: int) -> None:
    """After `kill -9` the image is the last one. After power loss it is that one or the last flushed one; on a wiped disk none."""
    databases = Databases(random.Random(seed))
    databases.begin(tmp_path)
    with in_place(databases):
        directory = databases.directory("broker-1")

        def offset() -> int:
            files = metadata_files.open_metadata(directory)
            files.store.close()
            return files.loaded.image.metadata_offset

        files = metadata_files.open_metadata(directory)
        world, image = worked(), MetadataImage()
        write(files.store, image, world.log)
        flushed_offset = image.metadata_offset
        files.store.checkpoint(directory / "snapshots" / "000001.part")
        image.advance(flushed_offset + 5)
        files.store.note(image, [], quorum_epoch=EPOCH)
        files.store.write()
        databases.end_process("broker-1", has_power=seed % 2 == 0)
        assert offset() in ({flushed_offset + 5} if seed % 2 == 0 else {flushed_offset, flushed_offset + 5})
        databases.wipe("broker-1")
        assert offset() == 0


def test_a_loss_of_power_leaves_both_in_some_seeds(tmp_path: Path) -> None:
    """Both outcomes of a power loss occur."""
    ends: set[int] = set()
    for seed in range(12):
        databases = Databases(random.Random(seed))
        databases.begin(tmp_path / str(seed))
        with in_place(databases):
            store = filled(databases.directory("broker-1"), worked())
            databases.end_process("broker-1", has_power=False)
            assert store.directory.exists()
            again = ImageStore(store.directory)
            ends.add(len(again.rows()))
            again.close()
    assert len(ends) == 2
    assert 0 in ends


def test_full_disk_of_a_machine_refuses_writes_and_is_read(tmp_path: Path) -> None:
    """A full disk also refuses writes of the replacement. Other machines continue to write."""
    databases = Databases(random.Random(1))
    databases.begin(tmp_path)
    world = worked()
    with in_place(databases):
        mine, other = (databases.directory(name) for name in ("broker-1", "broker-2"))
        filled(mine, world).close()
        databases.fill("broker-1")
        assert filled(other, world).is_writable
        store = ImageStore(mine / "image")
        assert not store.is_writable
        loaded = store.load()
        assert loaded.voters == VOTERS
        done = len(world.log)
        world.run(create_topic("later", partition_count=2))
        write(store, loaded.image, world.log[done:-1])
        databases.make_room("broker-1")
        write(store, loaded.image, world.log[-1:])
        assert store.is_writable
        store.close()
        store = ImageStore(mine / "image")
        assert store.load().image.metadata_offset == loaded.image.metadata_offset
        store.close()

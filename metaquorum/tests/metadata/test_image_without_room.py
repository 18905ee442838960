# SPDX-License-Identifier: Apache-2.0
"""The image on a full disk: it is read, its owner works on in memory, and pending rows are written once there is room."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict, WriteBatch

from metaquorum.controller.commands import DeleteTopic
from metaquorum.metadata import image_rows, image_store
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import ImageUnreadableError
from metaquorum.metadata.image_store import ImageStore, open_image
from metaquorum.metadata.metadata_files import MetadataFiles, open_metadata
from metaquorum.raft.types import NodeId, Offset, QuorumEpoch, ReplicaKey, SnapshotId
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.tests.controller_world import create_topic, view
from metaquorum.tests.image_samples import EPOCH, as_format_2, sample_world, write

VOTERS = voter_set([Voter(key=ReplicaKey(node_id=NodeId(1), directory_id=b"d" * 16), address="voter-1:9640")])


class Disk:
    """Raises RocksDB's error for a full disk while `is_full` is set."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused = 0

    def require_room(self) -> None:
        """Raise the exception that rocksdict raises."""
        if self.is_full:
            self.refused += 1
            raise Exception(f"IO error: {os.strerror(errno.ENOSPC)}: While appending to file: 000008.sst")


@pytest.fixture(name="disk")
def _disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Have every database on a disk that can be full."""
    disk = Disk()

    class OnDisk:
        """The part of RocksDB that the image uses."""

        def __init__(self, path: str, options: Any, access_type: Any = None) -> None:
            if access_type is None:
                disk.require_room()
                self.inner = Rdict(path, options=options)
            else:
                self.inner = Rdict(path, options=options, access_type=access_type)
            self.is_writer = access_type is None

        def write(self, batch: WriteBatch) -> None:
            """Write, if there is room."""
            disk.require_room()
            self.inner.write(batch)

        def flush(self) -> None:
            """Flush, if there is room."""
            disk.require_room()
            self.inner.flush()

        def close(self) -> None:
            """Close; without room it fails as well, but frees the lock."""
            self.inner.close()
            if self.is_writer:
                disk.require_room()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    def room(_directory: Path) -> bool:
        return not disk.is_full

    def checkpoint(database: OnDisk) -> Any:
        return rocksdb_checkpoint(database.inner)

    rocksdb_checkpoint: Any = image_store.Checkpoint
    monkeypatch.setattr(image_store, "Rdict", OnDisk)
    monkeypatch.setattr(image_store, "Checkpoint", checkpoint)
    monkeypatch.setattr(image_store, "has_room", room)
    return disk


def stored(directory: Path) -> tuple[MetadataImage, SnapshotId]:
    """Read the image on the disk."""
    store, loaded = open_image(directory)
    try:
        assert store.rows() == list(image_rows.all_rows(loaded.image)), "rows of no image"
        return loaded.image, loaded.snapshot_id
    finally:
        store.close()


def test_full_disk_is_no_damage(tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    """A start without room reads and keeps the image, and logs that it does."""
    world, image = sample_world(), MetadataImage()
    store, _ = open_image(tmp_path / "image")
    write(store, image, world.log)
    store.close()
    disk.is_full = True
    with caplog.at_level(logging.WARNING):
        store, loaded = open_image(tmp_path / "image")
    assert view(loaded.image) == view(image)
    assert view(store.load().image) == view(image)
    assert not store.is_writable
    assert "event=image_unwritable action=go_on_in_memory" in caplog.text
    store.close()
    disk.is_full = False
    assert view(stored(tmp_path / "image")[0]) == view(image)


def test_what_was_owed_is_written_when_there_is_room(tmp_path: Path, disk: Disk) -> None:
    """Rows that were changed or removed without room are written, and the state row has the newest offset."""
    world, image = sample_world(), MetadataImage()
    store, _ = open_image(tmp_path / "image")
    write(store, image, world.log[:20])
    store.close()
    disk.is_full = True
    store, _ = open_image(tmp_path / "image")
    write(store, image, world.log[20:])
    done = len(world.log)
    world.run(DeleteTopic(topic="a"))
    write(store, image, world.log[done:])
    assert not store.is_writable
    done = len(world.log)
    world.run(create_topic("later", partition_count=2))
    disk.is_full = False
    write(store, image, world.log[done:])
    assert store.is_writable
    store.close()
    found, snapshot = stored(tmp_path / "image")
    assert view(found) == view(image)
    assert snapshot.end_offset == image.metadata_offset


def test_disk_that_fills_up_under_the_image_stops_nobody(tmp_path: Path, disk: Disk) -> None:
    """Rows stay pending while there is no room; the database is opened again once there is, and a close before that is quiet."""
    world, image = sample_world(), MetadataImage()
    store, _ = open_image(tmp_path / "image")
    write(store, image, world.log[:10])
    before = image.metadata_offset
    disk.is_full = True
    write(store, image, world.log[10:20])
    assert not store.is_writable
    with pytest.raises(OSError, match="waits for room") as raised:
        store.checkpoint(tmp_path / "snapshot")
    assert raised.value.errno == errno.ENOSPC
    store.close()
    disk.is_full = False
    assert stored(tmp_path / "image")[1].end_offset == before
    store, loaded = open_image(tmp_path / "image")
    image = loaded.image
    disk.is_full = True
    rest = [entry for entry in world.log if entry[0] >= before]
    write(store, image, rest[:5])
    disk.is_full = False
    write(store, image, rest[5:])
    store.checkpoint(tmp_path / "snapshot")
    store.close()
    assert view(stored(tmp_path / "image")[0]) == view(image) == view(stored(tmp_path / "snapshot")[0])


def test_new_image_on_a_full_disk_begins_in_memory(tmp_path: Path, disk: Disk) -> None:
    """Without an image and without room, the whole log is replayed, and written once there is room."""
    disk.is_full = True
    store, loaded = open_image(tmp_path / "metadata" / "image")
    assert loaded.image.metadata_offset == 0
    world = sample_world()
    write(store, loaded.image, world.log[:-1])
    disk.is_full = False
    write(store, loaded.image, world.log[-1:])
    store.close()
    assert view(stored(tmp_path / "metadata" / "image")[0]) == view(loaded.image)


def with_snapshot(tmp_path: Path) -> tuple[Any, MetadataImage, MetadataFiles]:
    """Return a world, its image, and open files whose newest snapshot is newer than the image on the disk."""
    world, image = sample_world(), MetadataImage()
    files = open_metadata(tmp_path)
    write(files.store, image, world.log[:10])
    files.store.close()
    ahead, _ = open_image(tmp_path / "ahead")
    newer = MetadataImage()
    write(ahead, newer, world.log)
    ahead.note(newer, [], quorum_epoch=EPOCH, voters=VOTERS)
    ahead.write()
    part = files.snapshots.part()
    ahead.checkpoint(part)
    files.snapshots.publish(part, SnapshotId(end_offset=Offset(newer.metadata_offset), epoch=QuorumEpoch(EPOCH)))
    ahead.close()
    return world, newer, files


def test_snapshot_that_has_no_room_to_be_copied_is_read_where_it_lies(tmp_path: Path, disk: Disk) -> None:
    """A start behind its newest snapshot uses the snapshot, and writes the whole image once there is room."""
    world, newer, _ = with_snapshot(tmp_path)
    disk.is_full = True
    files = open_metadata(tmp_path)
    assert view(files.loaded.image) == view(newer)
    assert view(files.store.load().image) == view(newer)
    assert files.loaded.voters == VOTERS
    done = len(world.log)
    world.run(create_topic("later", partition_count=2))
    image = files.loaded.image
    write(files.store, image, world.log[done:-1])
    disk.is_full = False
    write(files.store, image, world.log[-1:])
    assert files.store.is_writable
    files.store.close()
    assert view(stored(tmp_path / "image")[0]) == view(image)
    again = open_metadata(tmp_path)
    assert again.loaded.voters == VOTERS
    again.store.close()


def test_damage_is_found_without_room_too(tmp_path: Path, disk: Disk) -> None:
    """An image that is damaged is removed though the disk is full; a damaged snapshot is set aside."""
    _, _, files = with_snapshot(tmp_path)
    newest = files.snapshots.newest
    assert newest is not None
    for directory in (tmp_path / "image", files.snapshots.path(newest)):
        (directory / image_store.CURRENT_FILE).write_bytes(b"MANIFEST-009999\n")
    disk.is_full = True
    opened = open_metadata(tmp_path)
    assert opened.loaded.image.metadata_offset == 0
    assert opened.snapshots.ids == ()
    assert opened.snapshots.damaged == (newest,)
    opened.store.close()


def test_more_rows_than_are_remembered_are_written_as_a_whole(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of pending rows is bounded; beyond the bound the database is created again, without the removed rows."""
    monkeypatch.setattr(image_store, "MAX_OWED_ROWS", 5)
    world, image = sample_world(), MetadataImage()
    store, _ = open_image(tmp_path / "image")
    write(store, image, world.log)
    done = len(world.log)
    world.run(DeleteTopic(topic="a"))
    world.run(create_topic("later", partition_count=9))
    disk.is_full = True
    write(store, image, world.log[done:-1])
    disk.is_full = False
    write(store, image, world.log[-1:])
    store.close()
    assert view(stored(tmp_path / "image")[0]) == view(image)


def test_rows_of_an_older_format_are_replaced_when_there_is_room(tmp_path: Path, disk: Disk) -> None:
    """A start reads them without a write; afterwards none of them is left."""
    world, image = sample_world(), MetadataImage()
    store, _ = open_image(tmp_path / "image")
    write(store, image, world.log)
    as_format_2(store, image)
    store.close()
    disk.is_full = True
    store, loaded = open_image(tmp_path / "image")
    assert view(loaded.image) == view(image)
    done = len(world.log)
    world.run(create_topic("later"))
    disk.is_full = False
    write(store, loaded.image, world.log[done:])
    store.close()
    assert view(stored(tmp_path / "image")[0]) == view(loaded.image)


def test_attempts_in_vain_become_rare(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk reports room and has none: the waits between attempts double, up to a limit."""
    store, loaded = open_image(tmp_path / "image")
    disk.is_full = True

    def room(_directory: Path) -> bool:
        return True

    monkeypatch.setattr(image_store, "has_room", room)
    monkeypatch.setattr(image_store, "MAX_RETRY_AFTER_APPLIES", 8)
    store.note(loaded.image, [], quorum_epoch=EPOCH)
    store.write()
    attempts: list[int] = []
    for number in range(40):
        before = disk.refused
        store.note(loaded.image, [], quorum_epoch=EPOCH)
        store.write()
        if disk.refused > before:
            attempts.append(number)
    assert attempts == [0, 2, 6, 14, 22, 30, 38]
    store.close()


def test_database_that_is_in_use_elsewhere_is_still_refused(tmp_path: Path, disk: Disk) -> None:
    """Only a want of room is met in memory."""
    store, _ = open_image(tmp_path / "image")
    with pytest.raises(ImageUnreadableError):
        ImageStore(tmp_path / "image")
    assert disk.refused == 0
    store.close()

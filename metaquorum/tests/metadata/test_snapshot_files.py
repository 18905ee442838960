# SPDX-License-Identifier: Apache-2.0
"""Snapshots on disk and on the wire: names, incomplete ones, pins, digests, and what a receiver refuses."""

from __future__ import annotations

import contextlib
import shutil
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from rocksdict import Rdict

from metaquorum.metadata import image_rows, image_store
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import ImageUnreadableError, LoadedImage, encode_voters
from metaquorum.metadata.image_store import ImageStore, open_image, open_read_only, read_image
from metaquorum.metadata.metadata_files import open_metadata
from metaquorum.metadata.snapshot_files import SnapshotFiles, link_tree, parse_name, snapshot_name, sync_tree
from metaquorum.metadata.snapshot_rows import (
    InvalidSnapshotError,
    SnapshotReader,
    SnapshotWriter,
    snapshot_digest,
    split_rows,
)
from metaquorum.raft.effects import LeaderChange
from metaquorum.raft.types import NodeId, ReplicaKey, SnapshotId
from metaquorum.raft.voters import Voter, voter_set
from metaquorum.raft_codec.control_codec import encode_control_record
from metaquorum.testing.scripted_node import snapshot_id
from metaquorum.tests.controller_world import view
from metaquorum.tests.image_samples import EPOCH, as_format_2, sample_world, write

VOTERS = voter_set(
    [
        Voter(key=ReplicaKey(node_id=NodeId(number), directory_id=bytes([number]) * 16), address=f"n{number}:1")
        for number in (1, 2)
    ]
)
RECORD = encode_voters(VOTERS)


def filled(directory: Path) -> tuple[ImageStore, MetadataImage]:
    """Return an open store with every kind of row, and voters."""
    world = sample_world()
    store, loaded = open_image(directory)
    write(store, loaded.image, world.log)
    store.note(loaded.image, [], quorum_epoch=EPOCH, voters=VOTERS)
    store.write()
    return store, loaded.image


def made(files: SnapshotFiles, store: ImageStore, image: MetadataImage) -> SnapshotId:
    """Make a snapshot as the node does."""
    snapshot = snapshot_id(image.metadata_offset, EPOCH)
    part = files.part()
    store.checkpoint(part)
    sync_tree(part)
    files.publish(part, snapshot)
    return snapshot


def test_names_say_the_id_and_sort_by_offset() -> None:
    """Both ways; other names are no snapshots."""
    name = snapshot_name(snapshot_id(1_234, 5))
    assert name == "00000000000000001234-0000000005"
    assert parse_name(name) == snapshot_id(1_234, 5)
    for other in ("000001.part", name + ".part", name[:-1], "x" + name):
        assert parse_name(other) is None


def test_half_made_ones_are_removed_at_the_start_and_whole_ones_found(tmp_path: Path) -> None:
    """A crash during a checkpoint or a download leaves a directory whose name is not that of a snapshot."""
    directory = tmp_path / "snapshots"
    for name in ("000007.part", snapshot_name(snapshot_id(20, 3)), snapshot_name(snapshot_id(10, 3))):
        (directory / name).mkdir(parents=True)
    files = SnapshotFiles(directory)
    assert files.ids == (snapshot_id(10, 3), snapshot_id(20, 3))
    assert files.newest == snapshot_id(20, 3)
    assert not (directory / "000007.part").exists()


def test_a_pinned_snapshot_stays_until_it_was_sent(tmp_path: Path) -> None:
    """The snapshot is dropped from the list at once; its files are deleted after its last reader."""
    directory = tmp_path / "snapshots"
    for end in (10, 20, 30):
        (directory / snapshot_name(snapshot_id(end, 1))).mkdir(parents=True)
    files = SnapshotFiles(directory)
    with files.pinned(snapshot_id(10, 1)) as path, files.pinned(snapshot_id(10, 1)):
        assert files.remove_below(30) == [files.path(snapshot_id(20, 1))]
        assert files.ids == (snapshot_id(30, 1),)
        assert path.exists()
    assert not path.exists()
    with files.pinned(snapshot_id(30, 1)) as path:
        pass
    assert path.exists()


def test_a_snapshot_published_twice_is_kept_once(tmp_path: Path) -> None:
    """The same id has the same content; the second copy is deleted."""
    files = SnapshotFiles(tmp_path / "snapshots")
    for _ in range(2):
        part = files.part()
        part.mkdir()
        files.publish(part, snapshot_id(10, 1))
    assert files.ids == (snapshot_id(10, 1),)
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [snapshot_name(snapshot_id(10, 1))]


def test_a_checkpoint_is_the_image_of_one_offset_whatever_is_written_afterwards(tmp_path: Path) -> None:
    """Rows, offset, epoch and voters are those at the time of the checkpoint."""
    store, image = filled(tmp_path / "image")
    files = SnapshotFiles(tmp_path / "snapshots")
    snapshot = made(files, store, image)
    rows = store.rows()
    image.advance(image.metadata_offset + 5)
    store.note(image, [], quorum_epoch=EPOCH + 1)
    store.write()
    store.close()
    link_tree(files.path(snapshot), tmp_path / "copy")
    copy, loaded = open_image(tmp_path / "copy")
    assert loaded.snapshot_id == snapshot
    assert loaded.voters == VOTERS
    assert copy.rows() == rows
    copy.close()


def transferred(source: Path, target: Path, snapshot: SnapshotId, *, max_bytes: int) -> MetadataImage:
    """Send a snapshot from one directory to another; return the image that the receiver builds."""
    reader = SnapshotReader(source, snapshot)
    writer = SnapshotWriter(target, snapshot, reader.voters_record)
    for piece in reader.pieces(max_bytes):
        writer.add(piece, crc32c(piece))
    loaded = writer.finish(row_count=reader.digest.row_count, digest=reader.digest.value())
    reader.close()
    assert (loaded.voters, loaded.snapshot_id) == (VOTERS, snapshot)
    return loaded.image


@pytest.mark.parametrize("max_bytes", [1, 200, 1 << 20])
def test_a_sent_snapshot_is_the_same_whatever_the_pieces(tmp_path: Path, max_bytes: int) -> None:
    """Rows, digest and images equal the sender's; two receivers' digests equal each other."""
    store, image = filled(tmp_path / "image")
    files = SnapshotFiles(tmp_path / "snapshots")
    snapshot = made(files, store, image)
    store.close()
    received = transferred(files.path(snapshot), tmp_path / "received", snapshot, max_bytes=max_bytes)
    assert view(received) == view(image)
    assert snapshot_digest(tmp_path / "received", snapshot) == snapshot_digest(files.path(snapshot), snapshot)
    received, loaded = open_image(tmp_path / "received")
    assert loaded.snapshot_id == snapshot
    assert received.rows() == view(image)
    received.close()


def test_a_snapshot_of_format_2_is_received_as_blocks(tmp_path: Path) -> None:
    """A sender with rows of single partitions serves receivers that write blocks."""
    store, image = filled(tmp_path / "image")
    as_format_2(store, image)
    files = SnapshotFiles(tmp_path / "snapshots")
    snapshot = made(files, store, image)
    store.close()
    received = transferred(files.path(snapshot), tmp_path / "received", snapshot, max_bytes=200)
    assert view(received) == view(image)
    received, loaded = open_image(tmp_path / "received")
    assert received.rows() == view(image)
    assert loaded.voters == VOTERS
    received.close()


def test_a_snapshot_under_a_wrong_name_is_not_sent(tmp_path: Path) -> None:
    """The state row decides which snapshot it is."""
    store, image = filled(tmp_path / "image")
    files = SnapshotFiles(tmp_path / "snapshots")
    snapshot = made(files, store, image)
    store.close()
    with pytest.raises(ImageUnreadableError, match="holds the image at"):
        SnapshotReader(files.path(snapshot), snapshot_id(snapshot.end_offset + 1, EPOCH))
    with pytest.raises(ImageUnreadableError, match="cannot open"):
        open_read_only(tmp_path / "nowhere")


def row(key: bytes, value: bytes = b"") -> bytes:
    """One row as it is sent."""
    return struct.pack(">II", len(key), len(value)) + key + value


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (b"\x00" * 7, "inside the lengths"),
        (row(b"\x01a", b"xyz")[:-1], "inside a row"),
        (row(b"\x00"), "after 00"),
        (row(b"\x03" + bytes(16), b"\xff\xff"), "no part of an image"),
    ],
)
def test_rows_that_no_image_has_are_refused(tmp_path: Path, piece: bytes, words: str) -> None:
    """Torn rows, a row where the state row belongs, rows out of order, bytes that are not a record."""
    writer = SnapshotWriter(tmp_path / "part", snapshot_id(9, 1), RECORD)
    with pytest.raises(InvalidSnapshotError, match=words):
        writer.add(piece, crc32c(piece))
    writer.close()
    writer.close()


def test_rows_must_ascend_over_pieces(tmp_path: Path) -> None:
    """A piece that comes twice is noticed."""
    store, image = filled(tmp_path / "image")
    files = SnapshotFiles(tmp_path / "snapshots")
    snapshot = made(files, store, image)
    store.close()
    reader = SnapshotReader(files.path(snapshot), snapshot)
    piece = next(reader.pieces(1))
    writer = SnapshotWriter(tmp_path / "part", snapshot, RECORD)
    writer.add(piece, crc32c(piece))
    assert len(list(split_rows(piece))) == 1
    with pytest.raises(InvalidSnapshotError, match="after"):
        writer.add(piece, crc32c(piece))
    writer.close()
    reader.close()


def test_a_wrong_crc_digest_or_count_is_refused(tmp_path: Path) -> None:
    """Damage on the way, a row too few, another history: none becomes a snapshot."""
    store, image = filled(tmp_path / "image")
    files = SnapshotFiles(tmp_path / "snapshots")
    snapshot = made(files, store, image)
    store.close()
    reader = SnapshotReader(files.path(snapshot), snapshot)
    pieces = list(reader.pieces(200))
    writer = SnapshotWriter(tmp_path / "part", snapshot, reader.voters_record)
    with pytest.raises(InvalidSnapshotError, match="wrong CRC"):
        writer.add(pieces[0], 1)
    for piece in pieces[:-1]:
        writer.add(piece, crc32c(piece))
    count, digest = reader.digest.row_count, reader.digest.value()
    with pytest.raises(InvalidSnapshotError, match="rows came"):
        writer.finish(row_count=count, digest=digest)
    writer.add(pieces[-1], crc32c(pieces[-1]))
    with pytest.raises(InvalidSnapshotError, match="digest differs"):
        writer.finish(row_count=count, digest=bytes(32))
    writer.close()
    reader.close()


@pytest.mark.parametrize(("record", "words"), [(b"", "names no voters"), (b"\xff\xff", "voters of the image")])
def test_a_snapshot_without_voters_is_refused(tmp_path: Path, record: bytes, words: str) -> None:
    """A node that installed it would not know the voters."""
    with pytest.raises(InvalidSnapshotError, match=words):
        SnapshotWriter(tmp_path / "part", snapshot_id(9, 1), record)


# What a start does with the files.


def test_an_image_that_is_older_than_the_newest_snapshot_is_replaced(tmp_path: Path) -> None:
    """After a power failure, or a crash between the new log start and the new image."""
    store, image = filled(tmp_path / "image")
    snapshot = made(SnapshotFiles(tmp_path / "snapshots"), store, image)
    store.close()
    shutil.rmtree(tmp_path / "image")
    # A half-prepared image of the install that was interrupted.
    (tmp_path / "image.part").mkdir()
    opened = open_metadata(tmp_path)
    assert opened.loaded.snapshot_id == snapshot
    assert opened.loaded.voters == VOTERS
    assert view(opened.loaded.image) == view(image)
    assert not opened.image_part.exists()
    # Records that are applied from now on keep the voters, and do not change the snapshot.
    digest = snapshot_digest(opened.snapshots.path(snapshot), snapshot)
    opened.loaded.image.advance(snapshot.end_offset + 4)
    opened.store.note(opened.loaded.image, [], quorum_epoch=EPOCH + 1)
    opened.store.write()
    opened.store.close()
    again = open_metadata(tmp_path)
    assert again.loaded.snapshot_id == snapshot_id(snapshot.end_offset + 4, EPOCH + 1)
    assert again.loaded.voters == VOTERS
    assert snapshot_digest(again.snapshots.path(snapshot), snapshot) == digest
    again.store.close()


def uncompacted(directory: Path) -> tuple[ImageStore, MetadataImage]:
    """Return an open store as `filled` does, that has three table files with the same keys once it is flushed.

    With a fourth, RocksDB would compact them by itself, perhaps between the flush and the checkpoint of a snapshot.
    """
    store, image = filled(directory)
    for _ in range(2):
        store.close()
        store, _ = open_image(directory)
        store.note(image, image_rows.all_keys(image), quorum_epoch=EPOCH)
        store.write()
    return store, image


def damage_tables(directory: Path) -> None:
    """Flip a byte in the first block of each table file, in files of their own: the ones of a snapshot are hard links."""
    for table in directory.glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[10] ^= 0xFF
        table.unlink()
        table.write_bytes(content)


@pytest.fixture
def compaction_meets_damage_first(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list of databases that are read only when a compaction of theirs has failed, an error that their close repeats."""
    late: list[Path] = []

    def read(database: Rdict, directory: Path) -> tuple[LoadedImage, list[bytes]]:
        if directory in late:
            late.remove(directory)
            # The opening begins no compaction of three files.
            with contextlib.suppress(Exception):
                database.compact_range(None, None)
            assert database.property_int_value("rocksdb.background-errors"), "no compaction failed"
        return read_image(database, directory)

    monkeypatch.setattr(image_store, "read_image", read)
    return late


def test_damage_that_a_compaction_meets_first_does_not_stop_the_start(
    tmp_path: Path, compaction_meets_damage_first: list[Path]
) -> None:
    """A damaged image, and a damaged copy of a snapshot, are closed and left; their errors at close end nothing."""
    store, image = uncompacted(tmp_path / "image")
    files = SnapshotFiles(tmp_path / "snapshots")
    snapshot = made(files, store, image)
    store.close()
    damage_tables(files.path(snapshot))
    shutil.rmtree(tmp_path / "image")
    link_tree(files.path(snapshot), tmp_path / "image")
    compaction_meets_damage_first += [tmp_path / "image", tmp_path / "image.part"]
    opened = open_metadata(tmp_path)
    assert compaction_meets_damage_first == [], "both were read, after their compactions"
    assert opened.loaded.image.metadata_offset == 0
    assert snapshot not in opened.snapshots.ids
    opened.store.close()


def test_an_image_that_is_newer_than_every_snapshot_stays(tmp_path: Path) -> None:
    """The usual start: the snapshots are not even opened."""
    store, image = filled(tmp_path / "image")
    files = SnapshotFiles(tmp_path / "snapshots")
    (tmp_path / "snapshots" / snapshot_name(snapshot_id(image.metadata_offset, EPOCH))).mkdir()
    del files
    store.close()
    opened = open_metadata(tmp_path)
    assert opened.loaded.image.metadata_offset == image.metadata_offset
    opened.store.close()


def test_a_snapshot_that_is_not_what_its_name_says_is_set_aside(tmp_path: Path) -> None:
    """The snapshot does not count and the image stays; the log has to cover the offsets up to the snapshot's name."""
    store, image = filled(tmp_path / "image")
    files = SnapshotFiles(tmp_path / "snapshots")
    made(files, store, image)
    store.close()
    files.path(snapshot_id(image.metadata_offset, EPOCH)).rename(files.path(snapshot_id(9_999, EPOCH)))
    opened = open_metadata(tmp_path)
    assert opened.loaded.image.metadata_offset == image.metadata_offset
    assert view(opened.loaded.image) == view(image)
    assert (opened.snapshots.ids, opened.snapshots.damaged) == ((), (snapshot_id(9_999, EPOCH),))
    opened.store.close()


def test_a_damaged_snapshot_gives_way_to_a_good_one_and_goes_with_the_log(tmp_path: Path) -> None:
    """A good snapshot of the same name replaces it. Below the log start it is removed like any other."""
    for end in (10, 20, 30):
        (tmp_path / snapshot_name(snapshot_id(end, 1))).mkdir()
    files = SnapshotFiles(tmp_path)
    for end in (30, 10):
        files.set_aside(snapshot_id(end, 1))
    assert (files.ids, files.damaged) == ((snapshot_id(20, 1),), (snapshot_id(10, 1), snapshot_id(30, 1)))
    part = files.part()
    part.mkdir()
    (part / "new").touch()
    files.publish(part, snapshot_id(30, 1))
    assert (files.ids, files.damaged) == ((snapshot_id(20, 1), snapshot_id(30, 1)), (snapshot_id(10, 1),))
    assert (files.path(snapshot_id(30, 1)) / "new").exists()
    assert files.remove_below(30) == [files.path(snapshot_id(10, 1)), files.path(snapshot_id(20, 1))]
    assert (files.ids, files.damaged) == ((snapshot_id(30, 1),), ())


def test_other_records_than_voters_in_the_state_row_are_refused(tmp_path: Path) -> None:
    """Damage that still parses."""
    record = encode_control_record(LeaderChange(leader_id=NodeId(1), granting_voters=()))
    with pytest.raises(InvalidSnapshotError, match="another record"):
        SnapshotWriter(tmp_path / "part", snapshot_id(9, 1), record)

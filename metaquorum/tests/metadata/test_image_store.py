# SPDX-License-Identifier: Apache-2.0
"""The image in RocksDB: it reads back what was applied, a crash leaves one offset, and damage is found and dropped."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from metaquorum.metadata import image_format, image_rows, image_store
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import ImageUnreadableError
from metaquorum.metadata.image_store import ImageStore, open_image
from metaquorum.tests.controller_steps import STEPS, prepared, step
from metaquorum.tests.controller_world import World, create_topic, topic_id, view
from metaquorum.tests.image_samples import EPOCH, as_format_2, note, sample_world, write


def test_empty_store_gives_an_empty_image_at_offset_zero(tmp_path: Path) -> None:
    """A new node has replayed no record."""
    store, loaded = open_image(tmp_path / "metadata" / "image")
    assert loaded.image.metadata_offset == 0
    assert loaded.quorum_epoch == 0
    assert store.rows() == []
    store.close()
    store.close()


def test_image_is_read_back_with_offset_and_epoch(tmp_path: Path) -> None:
    """After close and open the image is the same, row by row, and replay continues where it ended."""
    world = sample_world()
    image = MetadataImage()
    store, _ = open_image(tmp_path / "image")
    write(store, image, world.log)
    image.advance(world.log_end_offset + 2)
    store.note(image, [], quorum_epoch=EPOCH + 1)
    store.write()
    assert store.rows() == view(image)
    store.close()
    store, loaded = open_image(tmp_path / "image")
    assert view(loaded.image) == view(world.image)
    assert loaded.image.metadata_offset == world.log_end_offset + 2
    assert loaded.quorum_epoch == EPOCH + 1
    assert loaded.image.counts == world.image.counts
    assert loaded.image.topic_names == ["a", "b"]
    assert loaded.image.brokers[2].in_controlled_shutdown
    store.close()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(STEPS)
def test_image_from_replay_equals_image_from_reload(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int, bool]]
) -> None:
    """Property: over random histories, reloading from RocksDB at any point and replaying the rest is a full replay."""
    world = prepared()
    for kind, which, number, switch in steps:
        step(world, kind, which, number, switch)
    world.commit()
    directory = tmp_path_factory.mktemp("store") / "image"
    half = len(world.log) // 2
    image = MetadataImage()
    store, _ = open_image(directory)
    write(store, image, world.log[:half])
    store.close()
    store, loaded = open_image(directory)
    assert view(loaded.image) == view(image)
    write(store, loaded.image, world.log[half:])
    assert store.rows() == view(world.image)
    assert loaded.image.counts == world.image.counts
    store.close()


CHILD = """
import sys
from pathlib import Path
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_store import open_image
from metaquorum.tests.image_samples import sample_world, write

world = sample_world()
store, loaded = open_image(Path(sys.argv[1]))
write(store, loaded.image, world.log, batch=1)
print("written", loaded.image.metadata_offset, flush=True)
sys.stdin.read()
"""


@pytest.mark.process
def test_image_of_a_killed_process_is_whole_at_one_offset(tmp_path: Path) -> None:
    """Kill -9 without close: the next process reads the whole image at one offset."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "image")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        text=True,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    line = child.stdout.readline()
    assert line.startswith("written"), line
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    child.stdin.close()
    store, loaded = open_image(tmp_path / "image")
    expected = MetadataImage()
    for offset, record in sample_world().log:
        if offset < loaded.image.metadata_offset:
            expected.replay(record, offset)
    assert loaded.image.metadata_offset == int(line.split()[1])
    assert view(loaded.image) == view(expected)
    store.close()


def test_lost_end_of_the_write_ahead_log_leaves_an_older_whole_image(tmp_path: Path) -> None:
    """A power failure may lose the end of the unsynced log: whatever is cut off, one offset's image is left."""
    world = sample_world()
    live, loaded = open_image(tmp_path / "live")
    write(live, loaded.image, world.log, batch=2)
    offsets: set[int] = set()
    for cut in range(0, 4_000, 371):
        # A copy of the running store's files is what a crash leaves; closing the store would flush.
        directory = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "live", directory)
        wal = max(directory.glob("*.log"), key=lambda path: path.stat().st_size)
        os.truncate(wal, max(0, wal.stat().st_size - cut))
        store, loaded = open_image(directory)
        expected = MetadataImage()
        for offset, record in world.log:
            if offset < loaded.image.metadata_offset:
                expected.replay(record, offset)
        assert view(loaded.image) == view(expected)
        offsets.add(loaded.image.metadata_offset)
        store.close()
    live.close()
    assert len(offsets) > 3, "the cuts lost nothing, so nothing was tested"


def _filled(directory: Path, *, topics: int = 60) -> World:
    """Fill a store whose rows lie in a table file, and return the world of it."""
    world = World()
    world.start_broker(1)
    for number in range(topics):
        world.run(create_topic(f"topic-{number}", topic_id=topic_id(os.urandom(8).hex()), partition_count=20))
    store, loaded = open_image(directory)
    write(store, loaded.image, world.log, batch=50)
    store._database.flush()
    store.close()
    return world


def test_damaged_block_is_found_and_the_image_is_thrown_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A flipped byte in a table file never yields half an image: it is reported, removed, and rebuilt from offset 0."""
    directory = tmp_path / "image"
    world = _filled(directory)
    table = max(directory.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(table.read_bytes())
    data[len(data) // 3] ^= 0xFF
    table.write_bytes(data)
    store = ImageStore(directory)
    with pytest.raises(ImageUnreadableError, match="cannot be read"):
        store.load()
    store.close()
    with caplog.at_level(logging.WARNING):
        store, loaded = open_image(directory)
    assert "action=rebuild_from_log" in caplog.text
    assert loaded.image.metadata_offset == 0
    write(store, loaded.image, world.log)
    store.close()
    store, loaded = open_image(directory)
    assert view(loaded.image) == view(world.image)
    store.close()


def test_unreadable_database_is_thrown_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A database that RocksDB refuses to open is rebuilt as well."""
    directory = tmp_path / "image"
    _filled(directory, topics=2)
    for manifest in directory.glob("MANIFEST-*"):
        manifest.unlink()
    with caplog.at_level(logging.WARNING):
        store, loaded = open_image(directory)
    assert "event=image_unreadable" in caplog.text
    assert loaded.image.metadata_offset == 0
    store.close()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (b"\x00", image_format._STATE.pack(1, 5, 1), "image format 1"),
        (b"\x00", image_format._STATE.pack(image_format.FORMAT_VERSION + 1, 5, 1), "image format"),
        (b"\x00", image_format._STATE.pack(2, -5, 1), "offset -5"),
        (b"\x00", b"short", "5 bytes"),
        (b"\x03" + bytes(16), b"\xff\xff", "cannot be read"),
        (b"\x04" + bytes(20), b"", "cannot be read"),
        (image_rows.block_key(bytes(16), 0), b"", "unknown topic"),
        (b"\x08" + bytes(3), b"", "cannot be read"),
        (b"\x0a", b"", "cannot be read"),
        (b"\x0a\x09t", bytes(8), "cannot be read"),
        (b"\x0a\x01t", bytes(7), "cannot be read"),
    ],
)
def test_rows_that_cannot_be_are_refused(tmp_path: Path, key: bytes, value: bytes, words: str) -> None:
    """Another format, a negative offset, a short state, bytes that are no record: each is an unreadable image."""
    store, _ = open_image(tmp_path / "image")
    store._database.put(b"\x00", image_format._STATE.pack(2, 5, 1))
    store._database.put(key, value)
    with pytest.raises(ImageUnreadableError, match=words):
        store.load()
    store.close()


def test_image_of_format_2_is_read_and_written_anew(tmp_path: Path) -> None:
    """Rows of single partitions give the same image, and are replaced by blocks from then on."""
    world = sample_world()
    store, loaded = open_image(tmp_path / "image")
    write(store, loaded.image, world.log)
    as_format_2(store, loaded.image)
    assert [key[0] for key, _ in store.rows()].count(4) == 7
    store.close()
    store, loaded = open_image(tmp_path / "image")
    assert view(loaded.image) == view(world.image)
    assert store.rows() == view(world.image)
    store.close()
    store, loaded = open_image(tmp_path / "image")
    assert loaded.image.counts == world.image.counts
    state = store._database.get(b"\x00")
    assert isinstance(state, bytes)
    assert state[:4] == image_format.FORMAT_VERSION.to_bytes(4, "big")
    store.close()


def test_rows_without_a_state_row_are_refused(tmp_path: Path) -> None:
    """Rows of an unknown offset have no use."""
    world = sample_world()
    store, loaded = open_image(tmp_path / "image")
    write(store, loaded.image, world.log)
    store._database.delete(b"\x00")
    with pytest.raises(ImageUnreadableError, match="no state row"):
        store.load()
    store.close()


def test_place_where_no_database_can_be_is_an_error(tmp_path: Path) -> None:
    """If not even an empty image can be opened, the caller gets an error with the path."""
    (tmp_path / "image").write_text("a file, not a directory")
    with pytest.raises(ImageUnreadableError, match="image"):
        open_image(tmp_path / "image")


def test_close_releases_the_lock_and_later_writes_are_refused(tmp_path: Path) -> None:
    """After close another store can open the directory; the closed one says that it is closed."""
    first, loaded = open_image(tmp_path / "image")
    with pytest.raises(ImageUnreadableError, match="cannot open"):
        ImageStore(tmp_path / "image")
    first.close()
    second = ImageStore(tmp_path / "image")
    with pytest.raises(AssertionError, match="closed"):
        first.note(loaded.image, [], quorum_epoch=1)
    second.close()
    gc.collect()


def test_noted_batches_are_written_together_and_only_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the write, the database is the image of an older offset; many rows do not wait for it."""
    world = sample_world()
    image = MetadataImage()
    store, _ = open_image(tmp_path / "image")
    half = len(world.log) // 2
    note(store, image, world.log[:half])
    assert store.rows() == []
    store.write()
    assert store.rows() == view(image)
    before, before_offset = view(image), image.metadata_offset
    note(store, image, world.log[half:])
    assert store.rows() == before != view(image)
    store.close()
    store, loaded = open_image(tmp_path / "image")
    assert (view(loaded.image), loaded.image.metadata_offset) == (before, before_offset)
    monkeypatch.setattr(image_store, "MAX_UNWRITTEN_ROWS", 1)
    note(store, loaded.image, world.log[half:])
    assert store.rows() == view(loaded.image) == view(image)
    store.close()


def test_write_that_fails_is_due_again(tmp_path: Path) -> None:
    """An export or a snapshot may meet the error first. The owner must meet it too, and nothing of the batch is forgotten."""

    class Broken:
        def write(self, _batch: object) -> None:
            raise OSError("input/output error")

    image = MetadataImage()
    store, _ = open_image(tmp_path / "image")
    note(store, image, sample_world().log)
    database, store._database = store._database, Broken()
    for _ in range(2):
        with pytest.raises(OSError, match="input/output"):
            store.write()
    store._database = database
    store.write()
    assert store.rows() == view(image)
    store.close()


def test_rows_of_what_is_not_there_are_none() -> None:
    """An absent object has no row; a key of an unknown kind stops the process."""
    image = sample_world().image
    for key in (
        image_rows.feature_key("none"),
        *image_rows.broker_keys(99),
        image_rows.topic_key(bytes(16)),
        image_rows.block_key(bytes(16), 0),
        image_rows.block_key(topic_id("a"), 1),
        b"\x05" + bytes(16) + b"segment.ms",
        b"\x06\x02" + b"7\x00x",
    ):
        assert image_rows.row(image, key) is None
    with pytest.raises(AssertionError, match="no row"):
        image_rows.row(image, b"\x63")

# SPDX-License-Identifier: Apache-2.0
"""Durable copy of the committed metadata image, in RocksDB.

Owns the database below `<data>/metadata/image`. Laws:

* Each write batch carries the rows of committed batches *and* the offset, epoch and voters after them. So the database that survives
  a crash is the image of exactly one offset. The owner reports each commit (`note`) and writes several of them together (`write`),
  because no caller waits for the database. The write-ahead log is not synced: after a power failure the image is only older, and a
  replay of the quorum log fills the gap.
* The image is never the truth: an unreadable one is discarded, and rebuilt from the newest snapshot and the log above it.
* A full disk is not damage: the image is read without a write, its owner continues in memory, and the store remembers the keys of all
  unwritten rows (*owed* rows). It writes them in one batch once there is room again.

A checkpoint of the database is a snapshot of the image: rows and state row of one offset (`snapshot_files` keeps them).

Source: docs/controller.md section "Image store".
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from rocksdict import AccessType, Checkpoint, DBCompressionType, Options, Rdict, ReadOptions, WriteBatch

from metaquorum.collector import collector_off
from metaquorum.metadata import image_rows
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import (
    FORMAT_VERSION,
    STATE_KEY,
    ImageState,
    ImageUnreadableError,
    LoadedImage,
    encode_voters,
)
from metaquorum.metadata.image_rows import Row
from metaquorum.metadata.row_codec import decode_row, encode_row
from metaquorum.raft.voters import VoterSet

logger = logging.getLogger(__name__)

WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Bytes at which RocksDB writes its table in memory to a file. At most two such tables exist."""

MAX_WAL_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the write-ahead log at which RocksDB flushes, to keep it short."""

MAX_OPEN_FILES: Final = 64
"""Table files that RocksDB may keep open."""

REOPEN_ROOM_BYTES: Final = 32 * 1024 * 1024
"""Free bytes on the disk at which a store without room tries to write again: tables, logs and reserves of RocksDB fit."""

MAX_RETRY_AFTER_APPLIES: Final = 1_024
"""Largest number of writes between two attempts to write again; the first attempt comes with the next write."""

MAX_UNWRITTEN_ROWS: Final = 10_000
"""Number of owed rows at which a store with room writes them without waiting for `write`."""

MAX_OWED_ROWS: Final = 100_000
"""Largest number of owed rows whose keys are kept; beyond it, the whole image is written once there is room."""

CURRENT_FILE: Final = "CURRENT"
"""File of RocksDB without which the directory holds no database."""

_NO_ROOM: Final = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))


class ImageStore:
    """The database of one image. One owner calls it from one thread; only `checkpoint` may run in another.

    Args:
        directory: place of the database; created if absent.

    Raises:
        ImageUnreadableError: RocksDB cannot open it, although the disk is not full.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._source = directory
        self._voters_record = b""
        self._owed: dict[bytes, None] = {}
        # The image, and its epoch, that the database does not have yet; None: it has everything, or owes it until there is room.
        self._noted: tuple[MetadataImage, int] | None = None
        # True if the database is useless: the whole image is owed.
        self._is_stale = False
        self._applies_until_retry = 0
        self._retry_after_applies = 1
        # Held while another thread uses the database, so that it is not closed in that time.
        self._in_use = Lock()
        self._is_failed = False
        self._closed = False
        self._database = self._open_if_room()

    @property
    def directory(self) -> Path:
        """Place of the database."""
        return self._directory

    @property
    def is_writable(self) -> bool:
        """True while batches are written at once. False if the disk was full: rows are owed."""
        return self._database is not None and not self._is_failed

    def load(self) -> LoadedImage:
        """Read the whole image, and rewrite rows of an older format. An empty database gives an empty image at offset 0.

        Raises:
            ImageUnreadableError: a row is damaged, contradicts the others, or has an unknown format.
        """
        database = self._database
        if database is None:
            return self._load_without_room()
        loaded, old_keys = read_image(database, self._directory)
        self._voters_record = encode_voters(loaded.voters)
        if old_keys:
            logger.info("event=image_converted format=%d rows=%d", FORMAT_VERSION, len(old_keys))
            database.write(conversion(loaded, old_keys))
        return loaded

    def stand_for(self, source: Path, loaded: LoadedImage) -> None:
        """Use a snapshot as the image without a copy, because the disk is full. The whole image is owed from here on.

        Args:
            source: directory of the snapshot, which does not change.
            loaded: the image in it.
        """
        self._lose_room("a snapshot has no room to be copied")
        self._close_database()
        self._source = source
        self._is_stale = True
        self._noted = None
        self._voters_record = encode_voters(loaded.voters)

    def note(
        self, image: MetadataImage, keys: Sequence[bytes], *, quorum_epoch: int, voters: VoterSet | None = None
    ) -> None:
        """Owe rows of the image until the next `write`. One write for several committed batches is cheaper.

        Args:
            image: the committed image after a committed batch.
            keys: keys of all rows that the batch touched (`image_rows.touched_keys`); repetitions are harmless.
            quorum_epoch: epoch of the batch.
            voters: voters that the batch names; None if it names none.
        """
        assert not self._closed, f"{self._directory}: the image store is closed"
        self._noted = (image, quorum_epoch)
        self._owe(keys)
        if voters is not None:
            self._voters_record = encode_voters(voters)
        if len(self._owed) >= MAX_UNWRITTEN_ROWS and self.is_writable:
            self.write()

    def write(self) -> None:
        """Write the rows that are owed, and the offset of the image, as one atomic batch. While the disk is full, they stay owed."""
        if self._noted is None:
            return
        image, quorum_epoch = self._noted
        database = self._database if self.is_writable else self._reopen(image)
        if database is None:
            self._noted = None
            return
        batch = WriteBatch(raw_mode=True)
        for key in self._owed:
            row = image_rows.row(image, key)
            if row is None:
                batch.delete(key)
            else:
                batch.put(key, encode_row(row))
        state = ImageState(
            metadata_offset=image.metadata_offset, quorum_epoch=quorum_epoch, voters_record=self._voters_record
        )
        batch.put(STATE_KEY, state.encode())
        try:
            database.write(batch)
        except Exception as error:
            if not is_out_of_room(error):
                raise
            self._lose_room(error)
        else:
            self._owed.clear()
            self._is_stale = False
        # After another error it stays, so that the next `write` of the owner meets the error too.
        self._noted = None

    def rows(self) -> list[tuple[bytes, Row]]:
        """Return every row except the state row, in key order; for tests."""
        assert self._database is not None, "there is no room"
        return [(key, decode_row(key, value)) for key, value in items(self._database) if key != STATE_KEY]

    def checkpoint(self, directory: Path) -> None:
        """Make a copy of the database at its current offset. Nothing of it is synced. May run in any thread, after `write`.

        Args:
            directory: place of the copy; must not exist. Table files are hard links.

        Raises:
            OSError: ENOSPC: the database lacks owed rows because the disk was full.
        """
        with self._in_use:
            if self._database is None or self._is_failed:
                raise OSError(errno.ENOSPC, "the image waits for room", str(self._directory))
            # A checkpoint writes the table in memory to a file while it holds the interpreter's lock, which blocks the event loop. A
            # flush releases the lock, and leaves the checkpoint almost nothing to write.
            self._database.flush()
            checkpoint = Checkpoint(self._database)
            checkpoint.create_checkpoint(str(directory))

    def replace(self, directory: Path) -> None:
        """Replace this database by another, closed one. A crash in the middle may leave no database.

        Args:
            directory: the other database; it is renamed.

        Raises:
            ImageUnreadableError: the other database cannot be opened.
        """
        self._close_database()
        shutil.rmtree(self._directory, ignore_errors=True)
        directory.rename(self._directory)
        self._source = self._directory
        self._owed.clear()
        self._noted = None
        self._is_failed = self._is_stale = False
        self._database = self._open_if_room()
        database = self._database or open_read_only(self._directory)
        value = database.get(STATE_KEY)
        if self._database is None:
            database.close()
        self._voters_record = ImageState.decode(value if isinstance(value, bytes) else b"").voters_record

    def close(self) -> None:
        """Close the database and release its lock. Idempotent."""
        if not self._closed:
            self._closed = True
            self._close_database()

    def discard(self) -> None:
        """Close a database whose content cannot be read, and release its lock. Idempotent.

        A compaction in the background may have met the damage as well. RocksDB then reports it once more when the database
        closes; that error is logged only, because nothing in this database is used any more.
        """
        try:
            self.close()
        except Exception as error:  # rocksdict has no other class
            logger.warning("event=damaged_image_closed directory=%s reason=%r", self._directory, str(error))

    def _open_if_room(self) -> Rdict | None:
        try:
            return _open(self._directory)
        except ImageUnreadableError as error:
            if not is_out_of_room(error):
                raise
            logger.warning("event=image_unwritable action=go_on_in_memory reason=%r", str(error))
            return None

    def _load_without_room(self) -> LoadedImage:
        if self._source == self._directory and not (self._directory / CURRENT_FILE).exists():
            return LoadedImage(image=MetadataImage(), quorum_epoch=0)
        loaded, old_keys = read_only_image(self._source)
        self._voters_record = encode_voters(loaded.voters)
        self._is_stale = self._is_stale or bool(old_keys)
        return loaded

    def _owe(self, keys: Sequence[bytes]) -> None:
        if self._is_stale:
            return
        self._owed.update(dict.fromkeys(keys))
        if len(self._owed) > MAX_OWED_ROWS and not self.is_writable:
            self._owed.clear()
            self._is_stale = True

    def _lose_room(self, reason: object) -> None:
        self._is_failed = True
        self._applies_until_retry = self._retry_after_applies = 1
        logger.warning("event=image_unwritable action=go_on_in_memory reason=%r", str(reason))

    def _reopen(self, image: MetadataImage) -> Rdict | None:
        """Open the database again if there is room now. Each failed attempt doubles the wait for the next one."""
        self._applies_until_retry -= 1
        if self._applies_until_retry > 0 or not has_room(self._directory) or not self._in_use.acquire(blocking=False):
            return None
        try:
            self._close_database()
            if self._is_stale:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._database = self._open_if_room()
        finally:
            self._in_use.release()
        self._is_failed = False
        if self._database is None:
            self._retry_after_applies = min(2 * self._retry_after_applies, MAX_RETRY_AFTER_APPLIES)
            self._applies_until_retry = self._retry_after_applies
        else:
            self._retry_after_applies = 1
            if self._is_stale:
                self._owed = dict.fromkeys(image_rows.all_keys(image))
            self._source = self._directory
            logger.warning(
                "event=image_writable owed_rows=%d metadata_offset=%d", len(self._owed), image.metadata_offset
            )
        return self._database

    def _close_database(self) -> None:
        database, self._database = self._database, None
        if database is None:
            return
        try:
            database.close()
        except Exception as error:
            if not self._is_failed and not is_out_of_room(error):
                raise
            # The data is in the write-ahead log, or owed.
            logger.warning("event=image_closed_without_room reason=%r", str(error))


def open_image(directory: Path) -> tuple[ImageStore, LoadedImage]:
    """Open the store and read its image. An unreadable image is removed and replaced by an empty one.

    The caller replays the quorum log from the image's offset; after a removal that is 0, the start of the log.

    Raises:
        ImageUnreadableError: not even an empty database can be opened here (permissions, already in use).
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    store: ImageStore | None = None
    try:
        store = ImageStore(directory)
        return store, store.load()
    except ImageUnreadableError as error:
        if store is not None:
            store.discard()
        logger.warning("event=image_unreadable action=rebuild_from_log directory=%s reason=%r", directory, str(error))
    shutil.rmtree(directory, ignore_errors=True)
    store = ImageStore(directory)
    return store, store.load()


def is_out_of_room(error: BaseException) -> bool:
    """Return True if RocksDB reports a full disk, which only its message text shows."""
    return any(text in str(error) for text in _NO_ROOM)


def has_room(directory: Path) -> bool:
    """Return True if the disk has enough room to open and write a database again."""
    return shutil.disk_usage(directory.parent).free >= REOPEN_ROOM_BYTES


def read_image(database: Rdict, directory: Path) -> tuple[LoadedImage, list[bytes]]:
    """Read the whole image from an open database. An empty database gives an empty image at offset 0.

    Returns:
        The image, and the keys of its rows of an older format (`conversion` replaces them).

    Raises:
        ImageUnreadableError: a row is damaged, contradicts the others, or has an unknown format.
    """
    image = MetadataImage()
    state: ImageState | None = None
    rows = 0
    old_keys: list[bytes] = []
    try:
        with collector_off():
            for key, value in items(database):
                if key == STATE_KEY:
                    state = ImageState.decode(value)
                    continue
                image_rows.add_row(image, decode_row(key, value))
                rows += 1
                if image_rows.is_old(key):
                    old_keys.append(key)
        voters = None if state is None else state.voters
    except Exception as error:
        # Damage shows as an exception of RocksDB or of the codec, or as a record that contradicts the image.
        reason = str(error) if isinstance(error, ImageUnreadableError) else repr(error)
        raise ImageUnreadableError(f"{directory}: the image cannot be read: {reason}") from error
    if state is None:
        if rows:
            raise ImageUnreadableError(f"{directory}: {rows} rows and no state row")
        return LoadedImage(image=image, quorum_epoch=0), old_keys
    image.reset_offset(state.metadata_offset)
    return LoadedImage(image=image, quorum_epoch=state.quorum_epoch, voters=voters), old_keys


def conversion(loaded: LoadedImage, old_keys: Sequence[bytes]) -> WriteBatch:
    """Return a batch that replaces rows of an older format by current ones, and updates the version in the state row."""
    batch = WriteBatch(raw_mode=True)
    for key in old_keys:
        batch.delete(key)
    for topic in loaded.image.topics_by_id():
        for key, data in zip(image_rows.block_keys(topic), topic.partitions.blocks(), strict=True):
            batch.put(key, data)
    state = ImageState(
        metadata_offset=loaded.image.metadata_offset,
        quorum_epoch=loaded.quorum_epoch,
        voters_record=encode_voters(loaded.voters),
    )
    batch.put(STATE_KEY, state.encode())
    return batch


def items(database: Rdict) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over all rows in key order, the state row first."""
    # Every row is read once, so that the block cache would only hold memory.
    options = ReadOptions()
    options.fill_cache(False)  # pyright: ignore[reportCallIssue]  # The stub of rocksdict lacks the argument.
    # Not `Rdict.items()`: it ends silently at a damaged block, and half an image would look whole.
    iterator = database.iter(options)
    iterator.seek_to_first()
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()
    iterator.status()


def open_read_only(directory: Path) -> Rdict:
    """Open a database that no process writes. Several readers may open it at once.

    Raises:
        ImageUnreadableError: RocksDB cannot open it.
    """
    try:
        return Rdict(str(directory), options=Options(raw_mode=True), access_type=AccessType.read_only(False))
    except Exception as error:
        raise ImageUnreadableError(f"{directory}: RocksDB cannot open the snapshot: {error}") from error


def read_only_image(directory: Path) -> tuple[LoadedImage, list[bytes]]:
    """Read an image from a database that no process writes; see `read_image` for result and errors."""
    database = open_read_only(directory)
    try:
        return read_image(database, directory)
    finally:
        database.close()


def _open(directory: Path) -> Rdict:
    try:
        return Rdict(str(directory), options=image_options())
    except Exception as error:
        # rocksdict raises a plain Exception for every error of RocksDB.
        raise ImageUnreadableError(f"{directory}: RocksDB cannot open the image: {error}") from error


def image_options() -> Options:
    """Return the options of every image database."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(MAX_WAL_BYTES)
    options.set_max_open_files(MAX_OPEN_FILES)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(2)
    options.set_compression_type(DBCompressionType.zstd())
    return options

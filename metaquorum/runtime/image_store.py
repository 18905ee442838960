# SPDX-License-Identifier: Apache-2.0
"""Durable copy of the committed metadata image, in RocksDB.

Owns the database below `<data>/metadata/image`. Law: each write batch carries the rows of one committed batch *and* the
offset, epoch and voters behind it, so that whatever survives a crash is the image of exactly one offset. The write-ahead log is
not synced: after a power failure the image is merely older, and the quorum log replays the gap. The image is never the
truth: one that cannot be read is thrown away and rebuilt from the newest snapshot and the log above it.

Rows are those of `metaquorum.controller.image_rows`; the state row has the key 00 and this value, big-endian:

    | offset | size | field                                                           |
    |--------|------|-----------------------------------------------------------------|
    | 0      | 4    | format version, 3                                               |
    | 4      | 8    | metadata offset (exclusive): every committed record below is in |
    | 12     | 4    | quorum epoch of the last batch                                  |
    | 16     | rest | voters in force there: a `QuorumControlRecord` with `voters`;   |
    |        |      | empty while no record has named any                             |

A checkpoint of the database is a snapshot of the image: rows and state row of one offset (`snapshot_files` keeps them).

Source: architecture section 7.
"""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocksdict import AccessType, Checkpoint, DBCompressionType, Options, Rdict, WriteBatch

from metaquorum.controller import image_rows
from metaquorum.controller.image import MetadataImage
from metaquorum.controller.image_rows import Row
from metaquorum.raft.effects import VotersChange
from metaquorum.raft.types import Offset, QuorumEpoch, SnapshotId
from metaquorum.raft.voters import VoterSet
from metaquorum.runtime.collector import collector_off
from metaquorum.runtime.control_codec import decode_control_record, encode_control_record
from metaquorum.runtime.row_codec import decode_row, encode_row
from metaquorum.runtime.wire_fields import InvalidMessageError

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 3
"""Format of rows and state row. One of `READABLE_VERSIONS` is read too; another is rebuilt from the newest snapshot and the log."""

READABLE_VERSIONS: Final = frozenset({2, FORMAT_VERSION})
"""Format 2 had a row for each partition; reading an image or a snapshot of it replaces them by blocks."""

WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Size at which RocksDB writes its table in memory to a file; two of them exist at most."""

MAX_WAL_BYTES: Final = 32 * 1024 * 1024
"""Size of the write-ahead log at which RocksDB flushes, so that it stays short."""

MAX_OPEN_FILES: Final = 64
"""Table files that RocksDB keeps open."""

STATE_KEY: Final = b"\x00"
_STATE: Final = struct.Struct(">IqI")


class ImageUnreadableError(Exception):
    """The stored image is damaged or of another format; it must be thrown away and rebuilt from the newest snapshot and the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedImage:
    """An image off the disk.

    Attributes:
        image: the image, with its offset.
        quorum_epoch: quorum epoch of the last batch in it (0 when it is empty).
        voters: voters in force at its offset; None when no record below it names any.
    """

    image: MetadataImage
    quorum_epoch: int
    voters: VoterSet | None = None

    @property
    def snapshot_id(self) -> SnapshotId:
        """Id of a snapshot of this image."""
        return SnapshotId(end_offset=Offset(self.image.metadata_offset), epoch=QuorumEpoch(self.quorum_epoch))


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageState:
    """The state row.

    Attributes:
        metadata_offset: every committed record below (exclusive) is in.
        quorum_epoch: epoch of the last batch.
        voters_record: the voters in force there as they are stored; empty when there are none.
    """

    metadata_offset: int
    quorum_epoch: int
    voters_record: bytes

    def encode(self) -> bytes:
        """The value of the state row."""
        return _STATE.pack(FORMAT_VERSION, self.metadata_offset, self.quorum_epoch) + self.voters_record

    @classmethod
    def decode(cls, value: bytes) -> ImageState:
        """Read a state row.

        Raises:
            ImageUnreadableError: it is not one of this format.
        """
        if len(value) < _STATE.size:
            raise ImageUnreadableError(f"the state row has {len(value)} bytes")
        version, offset, epoch = _STATE.unpack_from(value)
        if version not in READABLE_VERSIONS or offset < 0:
            raise ImageUnreadableError(f"image format {version} at offset {offset} is not known")
        return cls(metadata_offset=offset, quorum_epoch=epoch, voters_record=value[_STATE.size :])

    @property
    def voters(self) -> VoterSet | None:
        """The voters.

        Raises:
            ImageUnreadableError: the record is damaged.
        """
        if not self.voters_record:
            return None
        try:
            change = decode_control_record(self.voters_record)
        except InvalidMessageError as error:
            raise ImageUnreadableError(f"voters of the image: {error}") from error
        if not isinstance(change, VotersChange):
            raise ImageUnreadableError("the state row has another record in the place of voters")
        return change.voters


class ImageStore:
    """The database. One owner; every call from one thread.

    Args:
        directory: where the database lives; created when absent.

    Raises:
        ImageUnreadableError: RocksDB cannot open it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._database = _open(directory)
        self._voters_record = b""
        self._closed = False

    @property
    def directory(self) -> Path:
        """Where the database lives."""
        return self._directory

    def load(self) -> LoadedImage:
        """Read the whole image; an empty database gives an empty image at offset 0. Rows of an older format are written anew.

        Raises:
            ImageUnreadableError: a row is damaged, does not fit the others, or has another format.
        """
        loaded, old_keys = read_image(self._database, self._directory)
        self._voters_record = encode_voters(loaded.voters)
        if old_keys:
            logger.info("event=image_converted format=%d rows=%d", FORMAT_VERSION, len(old_keys))
            self._database.write(conversion(loaded, old_keys))
        return loaded

    def apply(
        self, image: MetadataImage, keys: Sequence[bytes], *, quorum_epoch: int, voters: VoterSet | None = None
    ) -> None:
        """Write the rows at `keys` as they are in `image` now, with its offset, as one atomic batch.

        Args:
            image: the committed image after a committed batch.
            keys: keys of all rows that the batch touched (`image_rows.touched_keys`); repetitions are harmless.
            quorum_epoch: epoch of the batch.
            voters: voters that the batch names; None when it names none.
        """
        assert not self._closed, f"{self._directory}: the image store is closed"
        batch = WriteBatch(raw_mode=True)
        for key in dict.fromkeys(keys):
            row = image_rows.row(image, key)
            if row is None:
                batch.delete(key)
            else:
                batch.put(key, encode_row(row))
        if voters is not None:
            self._voters_record = encode_voters(voters)
        state = ImageState(
            metadata_offset=image.metadata_offset, quorum_epoch=quorum_epoch, voters_record=self._voters_record
        )
        batch.put(STATE_KEY, state.encode())
        self._database.write(batch)

    def rows(self) -> list[tuple[bytes, Row]]:
        """Return every row in key order, the state row left out."""
        return [(key, decode_row(key, value)) for key, value in items(self._database) if key != STATE_KEY]

    def checkpoint(self, directory: Path) -> None:
        """Make a copy of the database as it is now, of one offset; nothing of it is synced yet. From any thread.

        Args:
            directory: where; must not exist. Table files are hard links.
        """
        # A checkpoint writes the table in memory out while it holds the interpreter's lock, and the event loop with it;
        # a flush lets go of the lock, and leaves the checkpoint next to nothing to write.
        self._database.flush()
        checkpoint = Checkpoint(self._database)
        checkpoint.create_checkpoint(str(directory))

    def replace(self, directory: Path) -> None:
        """Put a whole database, closed, in the place of this one; a crash in between leaves none.

        Args:
            directory: the other database; it is renamed.

        Raises:
            ImageUnreadableError: it cannot be opened.
        """
        self._database.close()
        shutil.rmtree(self._directory)
        directory.rename(self._directory)
        self._database = _open(self._directory)
        value = self._database.get(STATE_KEY)
        self._voters_record = ImageState.decode(value if isinstance(value, bytes) else b"").voters_record

    def close(self) -> None:
        """Close the database and release its lock. Closing twice is allowed."""
        if not self._closed:
            self._closed = True
            self._database.close()


def open_image(directory: Path) -> tuple[ImageStore, LoadedImage]:
    """Open the store and read its image; one that cannot be read is removed, and an empty one takes its place.

    The caller replays the quorum log from the image's offset; after a removal that is 0, the start of the log.

    Raises:
        ImageUnreadableError: not even an empty database can be opened here (permissions, full disk, in use).
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    store: ImageStore | None = None
    try:
        store = ImageStore(directory)
        return store, store.load()
    except ImageUnreadableError as error:
        if store is not None:
            store.close()
        logger.warning("event=image_unreadable action=rebuild_from_log directory=%s reason=%r", directory, str(error))
    shutil.rmtree(directory, ignore_errors=True)
    store = ImageStore(directory)
    return store, store.load()


def encode_voters(voters: VoterSet | None) -> bytes:
    """Voters as the state row has them."""
    return b"" if voters is None else encode_control_record(VotersChange(voters=voters))


def read_image(database: Rdict, directory: Path) -> tuple[LoadedImage, list[bytes]]:
    """Read the whole image out of an open database; an empty one gives an empty image at offset 0.

    Returns:
        The image, and the keys of its rows of an older format (`conversion` replaces them).

    Raises:
        ImageUnreadableError: a row is damaged, does not fit the others, or has another format.
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
        # Damage shows as an exception of RocksDB, of the codec, or as a record that contradicts the image.
        reason = error if isinstance(error, ImageUnreadableError) else repr(error)
        raise ImageUnreadableError(f"{directory}: the image cannot be read: {reason}") from error
    if state is None:
        if rows:
            raise ImageUnreadableError(f"{directory}: {rows} rows and no state row")
        return LoadedImage(image=image, quorum_epoch=0), old_keys
    image.reset_offset(state.metadata_offset)
    return LoadedImage(image=image, quorum_epoch=state.quorum_epoch, voters=voters), old_keys


def conversion(loaded: LoadedImage, old_keys: Sequence[bytes]) -> WriteBatch:
    """Return the batch that puts the rows of this format in the place of older ones, and the state row with its version."""
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
    # Not `Rdict.items()`: that one ends without a word at a damaged block, and half an image would look whole.
    iterator = database.iter()
    iterator.seek_to_first()
    while iterator.valid():
        yield iterator.key(), iterator.value()
        iterator.next()
    iterator.status()


def open_read_only(directory: Path) -> Rdict:
    """Open a database that nobody writes, any number of times at once.

    Raises:
        ImageUnreadableError: RocksDB cannot open it.
    """
    try:
        return Rdict(str(directory), options=Options(raw_mode=True), access_type=AccessType.read_only(False))
    except Exception as error:
        raise ImageUnreadableError(f"{directory}: RocksDB cannot open the snapshot: {error}") from error


def _open(directory: Path) -> Rdict:
    try:
        return Rdict(str(directory), options=image_options())
    except Exception as error:
        # rocksdict raises plain Exception for whatever RocksDB refuses.
        raise ImageUnreadableError(f"{directory}: RocksDB cannot open the image: {error}") from error


def image_options() -> Options:
    """Options of every database of images."""
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

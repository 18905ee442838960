# SPDX-License-Identifier: Apache-2.0
"""Durable copy of the committed metadata image, in RocksDB.

Owns the database below `<data>/metadata/image`. Law: each write batch carries the rows of one committed batch *and* the
offset and epoch behind it, so that whatever survives a crash is the image of exactly one offset. The write-ahead log is
not synced: after a power failure the image is merely older, and the quorum log replays the gap. The image is never the
truth: one that cannot be read is thrown away and rebuilt from the log.

Rows are those of `metaquorum.controller.image_rows`; the state row has the key 00 and this value, big-endian:

    | offset | size | field                                                           |
    |--------|------|-----------------------------------------------------------------|
    | 0      | 4    | format version, 1                                               |
    | 4      | 8    | metadata offset (exclusive): every committed record below is in |
    | 12     | 4    | quorum epoch of the last batch                                  |

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

from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from metaquorum.controller import image_rows
from metaquorum.controller.image import MetadataImage
from metaquorum.controller.records import MetadataRecord
from metaquorum.runtime import record_codec

logger = logging.getLogger(__name__)

FORMAT_VERSION: Final = 1
"""Format of rows and state row; an image of another format is rebuilt from the log."""

WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024
"""Size at which RocksDB writes its table in memory to a file; two of them exist at most."""

MAX_WAL_BYTES: Final = 32 * 1024 * 1024
"""Size of the write-ahead log at which RocksDB flushes, so that it stays short."""

MAX_OPEN_FILES: Final = 64
"""Table files that RocksDB keeps open."""

_STATE_KEY: Final = b"\x00"
_STATE: Final = struct.Struct(">IqI")


class ImageUnreadableError(Exception):
    """The stored image is damaged or of another format; it must be thrown away and rebuilt from the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedImage:
    """An image off the disk, and the quorum epoch of the last batch in it (0 when it is empty)."""

    image: MetadataImage
    quorum_epoch: int


class ImageStore:
    """The database. One owner; every call from one thread.

    Args:
        directory: where the database lives; created when absent.

    Raises:
        ImageUnreadableError: RocksDB cannot open it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            self._database = Rdict(str(directory), options=_options())
        except Exception as error:
            # rocksdict raises plain Exception for whatever RocksDB refuses.
            raise ImageUnreadableError(f"{directory}: RocksDB cannot open the image: {error}") from error
        self._closed = False

    def load(self) -> LoadedImage:
        """Read the whole image; an empty database gives an empty image at offset 0.

        Raises:
            ImageUnreadableError: a row is damaged, does not fit the others, or has another format.
        """
        image = MetadataImage()
        state: tuple[int, int] | None = None
        rows = 0
        try:
            for key, value in self._items():
                if key == _STATE_KEY:
                    state = self._parse_state(value)
                else:
                    # Rows are states, not facts in time: the offset is set once, at the end.
                    image.replay(record_codec.decode(value), image.metadata_offset)
                    rows += 1
        except ImageUnreadableError:
            raise
        except Exception as error:
            # Damage shows as an exception of RocksDB, of the codec, or as a record that contradicts the image.
            raise ImageUnreadableError(f"{self._directory}: the image cannot be read: {error!r}") from error
        if state is None:
            if rows:
                raise ImageUnreadableError(f"{self._directory}: {rows} rows and no state row")
            return LoadedImage(image=image, quorum_epoch=0)
        image.reset_offset(state[0])
        return LoadedImage(image=image, quorum_epoch=state[1])

    def _parse_state(self, value: bytes) -> tuple[int, int]:
        if len(value) != _STATE.size:
            raise ImageUnreadableError(f"{self._directory}: the state row has {len(value)} bytes")
        version, offset, epoch = _STATE.unpack(value)
        if version != FORMAT_VERSION or offset < 0:
            raise ImageUnreadableError(f"{self._directory}: image format {version} at offset {offset} is not known")
        return offset, epoch

    def apply(self, image: MetadataImage, keys: Sequence[bytes], *, quorum_epoch: int) -> None:
        """Write the rows at `keys` as they are in `image` now, with its offset, as one atomic batch.

        Args:
            image: the committed image after a committed batch.
            keys: keys of all rows that the batch touched (`image_rows.touched_keys`); repetitions are harmless.
            quorum_epoch: epoch of the batch.
        """
        assert not self._closed, f"{self._directory}: the image store is closed"
        batch = WriteBatch(raw_mode=True)
        for key in dict.fromkeys(keys):
            record = image_rows.row(image, key)
            if record is None:
                batch.delete(key)
            else:
                batch.put(key, record_codec.encode(record))
        batch.put(_STATE_KEY, _STATE.pack(FORMAT_VERSION, image.metadata_offset, quorum_epoch))
        self._database.write(batch)

    def rows(self) -> list[tuple[bytes, MetadataRecord]]:
        """Return every row in key order, the state row left out."""
        return [(key, record_codec.decode(value)) for key, value in self._items() if key != _STATE_KEY]

    def _items(self) -> Iterator[tuple[bytes, bytes]]:
        # Not `Rdict.items()`: that one ends without a word at a damaged block, and half an image would look whole.
        iterator = self._database.iter()
        iterator.seek_to_first()
        while iterator.valid():
            yield iterator.key(), iterator.value()
            iterator.next()
        iterator.status()

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


def _options() -> Options:
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

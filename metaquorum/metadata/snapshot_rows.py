# SPDX-License-Identifier: Apache-2.0
"""A snapshot as a stream of rows: the sender reads it, the receiver checks and writes it.

Owns the canonical form (rows in key order, each after its lengths), its digest, and the checks of received rows. Blocking: both ends
run in a thread. Law: a snapshot that the receiver accepts has the sender's digest over id, voters and every row.
Source: `FetchSnapshot` in `proto/lograft/internal/v1/quorum.proto`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from crc32c import crc32c
from rocksdict import Rdict, WriteBatch

from metaquorum.metadata import image_rows
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import STATE_KEY, ImageState, ImageUnreadableError, LoadedImage
from metaquorum.metadata.image_store import conversion, image_options, items, open_read_only
from metaquorum.metadata.row_codec import decode_row
from metaquorum.raft.types import SnapshotId

PIECE_BYTES: Final = 256 * 1024
"""Bytes of rows in one message. A single row may be larger."""

_LENGTHS: Final = struct.Struct(">II")
_ID: Final = struct.Struct(">qI")
_LENGTH: Final = struct.Struct(">I")


class InvalidSnapshotError(Exception):
    """The received rows are not the requested snapshot, whole and undamaged; fetch it again."""


class SnapshotDigest:
    """Digest of id, voters and rows of a snapshot, whatever the pieces that carry the rows."""

    def __init__(self, snapshot: SnapshotId, voters_record: bytes) -> None:
        self._hash = hashlib.blake2b(_ID.pack(snapshot.end_offset, snapshot.epoch), digest_size=32)
        self._hash.update(_LENGTH.pack(len(voters_record)))
        self._hash.update(voters_record)
        self.row_count = 0

    def add(self, piece: bytes, row_count: int) -> None:
        """Add rows to the digest."""
        self._hash.update(piece)
        self.row_count += row_count

    def value(self) -> bytes:
        """Return the digest of everything added, 32 bytes."""
        return self._hash.digest()


class SnapshotReader:
    """Reads a snapshot on disk in pieces.

    Args:
        directory: directory of the snapshot.
        snapshot: its id; the state row must have the same.

    Raises:
        ImageUnreadableError: the snapshot cannot be opened, or is another one.
    """

    def __init__(self, directory: Path, snapshot: SnapshotId) -> None:
        self._database = open_read_only(directory)
        try:
            value = self._database.get(STATE_KEY)
            state = ImageState.decode(value if isinstance(value, bytes) else b"")
            if (state.metadata_offset, state.quorum_epoch) != (snapshot.end_offset, snapshot.epoch):
                raise ImageUnreadableError(f"{directory} holds the image at {state.metadata_offset}, not {snapshot}")
        except BaseException:
            self._database.close()
            raise
        self.voters_record = state.voters_record
        self.digest = SnapshotDigest(snapshot, state.voters_record)
        self._rows = items(self._database)

    def pieces(self, max_bytes: int) -> Iterator[bytes]:
        """Yield all rows in pieces of at most `max_bytes`, but at least one row.

        Raises:
            Exception: an error of RocksDB, for a damaged block.
        """
        parts: list[bytes] = []
        size_bytes = row_count = 0
        for key, value in self._rows:
            if key == STATE_KEY:
                continue
            row = b"".join((_LENGTHS.pack(len(key), len(value)), key, value))
            if parts and size_bytes + len(row) > max_bytes:
                piece = b"".join(parts)
                self.digest.add(piece, row_count)
                yield piece
                parts, size_bytes, row_count = [], 0, 0
            parts.append(row)
            size_bytes += len(row)
            row_count += 1
        if parts:
            piece = b"".join(parts)
            self.digest.add(piece, row_count)
            yield piece

    def close(self) -> None:
        """Close the database."""
        del self._rows
        self._database.close()


class SnapshotWriter:
    """Writes received rows into a new database, and replays them into an image.

    Args:
        directory: directory of the new database; must not exist.
        snapshot: id of the requested snapshot.
        voters_record: encoded voters from the sender.

    Raises:
        InvalidSnapshotError: the voters are damaged or missing.
    """

    def __init__(self, directory: Path, snapshot: SnapshotId, voters_record: bytes) -> None:
        self._snapshot = snapshot
        self._state = ImageState(
            metadata_offset=snapshot.end_offset, quorum_epoch=snapshot.epoch, voters_record=voters_record
        )
        try:
            voters = self._state.voters
        except ImageUnreadableError as error:
            raise InvalidSnapshotError(str(error)) from error
        if voters is None:
            raise InvalidSnapshotError(f"{snapshot} names no voters")
        self.voters = voters
        self._image = MetadataImage()
        self._digest = SnapshotDigest(snapshot, voters_record)
        self._last_key = STATE_KEY
        self._old_keys: list[bytes] = []
        self._database: Rdict | None = Rdict(str(directory), options=image_options())

    def add(self, piece: bytes, crc: int) -> None:
        """Check and write the next rows.

        Raises:
            InvalidSnapshotError: the rows are damaged, out of order, or not rows of an image.
        """
        assert self._database is not None, "the writer is closed"
        if crc32c(piece) != crc:
            raise InvalidSnapshotError(f"a piece of {len(piece)} bytes has the wrong CRC")
        batch = WriteBatch(raw_mode=True)
        rows = list(split_rows(piece))
        try:
            for key, value in rows:
                if key <= self._last_key:
                    raise InvalidSnapshotError(f"row {key.hex()} after {self._last_key.hex()}")
                row = decode_row(key, value)
                image_rows.add_row(self._image, row)
                if image_rows.is_old(key):
                    self._old_keys.append(key)
                batch.put(key, value)
                self._last_key = key
        except InvalidSnapshotError:
            raise
        except Exception as error:
            # The codec or the image refuses a record; both have many ways to do so.
            raise InvalidSnapshotError(f"a row is no part of an image: {error!r}") from error
        self._digest.add(piece, len(rows))
        self._database.write(batch)

    def finish(self, *, row_count: int, digest: bytes) -> LoadedImage:
        """Compare the digest, write the state row, close the database, and return the image. Nothing is synced.

        Returns:
            The image.

        Raises:
            InvalidSnapshotError: rows are missing or differ.
        """
        assert self._database is not None, "the writer is closed"
        if row_count != self._digest.row_count or digest != self._digest.value():
            raise InvalidSnapshotError(
                f"{self._snapshot}: {self._digest.row_count} rows came and {row_count} were sent, or the digest differs"
            )
        self._image.reset_offset(self._snapshot.end_offset)
        loaded = LoadedImage(image=self._image, quorum_epoch=self._snapshot.epoch, voters=self.voters)
        if self._old_keys:
            self._database.write(conversion(loaded, self._old_keys))
        self._database.put(STATE_KEY, self._state.encode())
        self._database.flush()
        self.close()
        return loaded

    def close(self) -> None:
        """Close the database. Idempotent."""
        if self._database is not None:
            self._database.close()
            self._database = None


def split_rows(piece: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Split a piece into rows (key, value).

    Raises:
        InvalidSnapshotError: the piece ends inside a row.
    """
    position, size_bytes = 0, len(piece)
    while position < size_bytes:
        if size_bytes - position < _LENGTHS.size:
            raise InvalidSnapshotError("a piece ends inside the lengths of a row")
        key_bytes, value_bytes = _LENGTHS.unpack_from(piece, position)
        begin = position + _LENGTHS.size
        position = begin + key_bytes + value_bytes
        if position > size_bytes:
            raise InvalidSnapshotError("a piece ends inside a row")
        yield piece[begin : begin + key_bytes], piece[begin + key_bytes : position]


def snapshot_digest(directory: Path, snapshot: SnapshotId) -> bytes:
    """Return the digest of a snapshot on disk, for comparisons between nodes.

    Raises:
        ImageUnreadableError: the snapshot cannot be opened, or is another one.
    """
    reader = SnapshotReader(directory, snapshot)
    try:
        for _ in reader.pieces(PIECE_BYTES):
            pass
        return reader.digest.value()
    finally:
        reader.close()

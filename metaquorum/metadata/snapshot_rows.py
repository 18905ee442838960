# SPDX-License-Identifier: Apache-2.0
"""A snapshot as a stream of rows: read on the sending side, checked and written on the receiving one.

Owns the canonical form (rows in key order, lengths before each), its digest, and the checks of what comes. Blocking:
both ends run in a thread. Law: what a receiver calls whole has the sender's digest over id, voters and every row.
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
"""Bytes of rows in one message; one row is sent whatever its size."""

_LENGTHS: Final = struct.Struct(">II")
_ID: Final = struct.Struct(">qI")
_LENGTH: Final = struct.Struct(">I")


class InvalidSnapshotError(Exception):
    """What was sent is not the snapshot that was asked for, whole and undamaged; fetch again."""


class SnapshotDigest:
    """Digest of id, voters and rows, independent of how the rows are cut into pieces."""

    def __init__(self, snapshot: SnapshotId, voters_record: bytes) -> None:
        self._hash = hashlib.blake2b(_ID.pack(snapshot.end_offset, snapshot.epoch), digest_size=32)
        self._hash.update(_LENGTH.pack(len(voters_record)))
        self._hash.update(voters_record)
        self.row_count = 0

    def add(self, piece: bytes, row_count: int) -> None:
        """Add rows."""
        self._hash.update(piece)
        self.row_count += row_count

    def value(self) -> bytes:
        """The digest of what was added, 32 bytes."""
        return self._hash.digest()


class SnapshotReader:
    """A snapshot on disk as pieces.

    Args:
        directory: of the snapshot.
        snapshot: its id, which its state row must confirm.

    Raises:
        ImageUnreadableError: it cannot be opened, or is another snapshot.
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
        """All rows, in pieces of at most max_bytes (at least one row).

        Raises:
            Exception: of RocksDB, for a damaged block.
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
    """Writes what comes into a database of its own, and replays it into an image on the way.

    Args:
        directory: of the new database; must not exist.
        snapshot: what was asked for.
        voters_record: voters as sent.

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
        """Take the next rows.

        Raises:
            InvalidSnapshotError: damaged, out of order, or no rows of an image.
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
            # A record that the codec or the image refuses; both have many ways to say so.
            raise InvalidSnapshotError(f"a row is no part of an image: {error!r}") from error
        self._digest.add(piece, len(rows))
        self._database.write(batch)

    def finish(self, *, row_count: int, digest: bytes) -> LoadedImage:
        """Compare the digest, write the state row and close; nothing is synced yet.

        Returns:
            The image.

        Raises:
            InvalidSnapshotError: rows are missing or others.
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
        """Close the database. Closing twice is allowed."""
        if self._database is not None:
            self._database.close()
            self._database = None


def split_rows(piece: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Cut a piece into (key, value).

    Raises:
        InvalidSnapshotError: it does not end with a row.
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
    """Digest of a snapshot on disk: what nodes compare.

    Raises:
        ImageUnreadableError: it cannot be opened, or is another snapshot.
    """
    reader = SnapshotReader(directory, snapshot)
    try:
        for _ in reader.pieces(PIECE_BYTES):
            pass
        return reader.digest.value()
    finally:
        reader.close()

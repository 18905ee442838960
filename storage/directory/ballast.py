# SPDX-License-Identifier: Apache-2.0
"""The ballast file of a log directory: it holds disk space, so that deleting it makes room when the disk is full.

File `<data>/ballast` has the size that the limits say. Its bytes have no meaning, and are made so that no file system
can compress them or share their blocks. Only the existence of the file counts.
Every method blocks; one call at a time. Source: docs/storage.md section 8.
"""

from __future__ import annotations

import hashlib

from storage.errors import DiskFullError, FileMissingError
from storage.files.checkpoints import parent_of, remove_if_exists
from storage.files.disk import Disk
from storage.files.names import TEMPORARY_SUFFIX

PIECE_BYTES = 1024 * 1024
"""Bytes that are made and written at once."""


class Ballast:
    """One ballast file.

    Args:
        disk: the disk.
        path: path of the file.
        size_bytes: its size.
    """

    def __init__(self, disk: Disk, path: str, size_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._size_bytes

    def is_there(self) -> bool:
        """Tell whether the file exists with its full size.

        Raises:
            DiskAccessError: the disk refuses the question.
        """
        try:
            return self._disk.size_bytes(self._path) == self._size_bytes
        except FileMissingError:
            return False

    def take(self) -> bool:
        """Write the file; False if there is no room for it (then nothing of it is left).

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        temporary = self._path + TEMPORARY_SUFFIX
        self.give_back()
        try:
            file = self._disk.create_file(temporary)
            try:
                for start in range(0, self._size_bytes, PIECE_BYTES):
                    file.append([_piece(start, min(PIECE_BYTES, self._size_bytes - start))])
                file.sync()
            finally:
                file.close()
            self._disk.rename(temporary, self._path)
        except DiskFullError:
            remove_if_exists(self._disk, temporary)
            return False
        self._disk.sync_directory(parent_of(self._path))
        return True

    def give_back(self) -> None:
        """Delete the file, and what an interrupted `take` left.

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        removed = remove_if_exists(self._disk, self._path + TEMPORARY_SUFFIX)
        if remove_if_exists(self._disk, self._path) or removed:
            self._disk.sync_directory(parent_of(self._path))


def _piece(start: int, size_bytes: int) -> bytes:
    """Return bytes that do not compress, different for each position."""
    return hashlib.shake_128(start.to_bytes(8, "big")).digest(size_bytes)

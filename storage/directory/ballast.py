# SPDX-License-Identifier: Apache-2.0
"""The ballast file of a log directory: room that is held so that it can be given back when the disk is full.

File `<data>/ballast`: bytes without a meaning, of the size that the limits say. They are made so that no file system can
compress them or share their blocks; nobody ever reads them. Whether the file is there is all that it says.
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
        size_bytes: how large it is to be.
    """

    def __init__(self, disk: Disk, path: str, size_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        """How large the file is to be."""
        return self._size_bytes

    def is_there(self) -> bool:
        """Tell whether the file is there with its whole size.

        Raises:
            DiskAccessError: the disk does not tell.
        """
        try:
            return self._disk.size_bytes(self._path) == self._size_bytes
        except FileMissingError:
            return False

    def take(self) -> bool:
        """Write the file; False if there is no room for it (nothing of it is left then).

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
        """Remove the file, and what an interrupted `take` left.

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        removed = remove_if_exists(self._disk, self._path + TEMPORARY_SUFFIX)
        if remove_if_exists(self._disk, self._path) or removed:
            self._disk.sync_directory(parent_of(self._path))


def _piece(start: int, size_bytes: int) -> bytes:
    """Return bytes that do not compress and differ for each position."""
    return hashlib.shake_128(start.to_bytes(8, "big")).digest(size_bytes)

# SPDX-License-Identifier: Apache-2.0
"""A `File` that can only be read, for the scrub and for the tools that inspect a copy.

Law: every call that would change the file is refused before it reaches the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from storage.errors import DiskAccessError

from .disk import Buffer


class ReadOnlyFile:
    """Base of read-only files; a subclass implements `pread`.

    Args:
        path: path of the file.
        size_bytes: number of readable bytes.
    """

    def __init__(self, path: str, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    @property
    def path(self) -> str:
        """See `File.path`."""
        return self._path

    @property
    def size(self) -> int:
        """See `File.size`."""
        return self._size_bytes

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `File.pread`."""
        raise NotImplementedError

    def append(self, parts: Sequence[Buffer]) -> None:
        """Raise `DiskAccessError`."""
        self._refuse("append")

    def write(self, data: Buffer, position: int) -> None:
        """Raise `DiskAccessError`."""
        self._refuse("write")

    def truncate(self, size_bytes: int) -> None:
        """Raise `DiskAccessError`."""
        self._refuse("truncate")

    def sync(self) -> None:
        """Raise `DiskAccessError`."""
        self._refuse("sync")

    def close(self) -> None:
        """Do nothing; a subclass that holds a resource releases it."""

    def _refuse(self, action: str) -> NoReturn:
        raise DiskAccessError(self._path, f"{action}: it is opened for reading only")

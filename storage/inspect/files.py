# SPDX-License-Identifier: Apache-2.0
"""Reads files and lists directories of a copy; never opens anything for writing.

An `OSError` never leaves this module: it becomes a `DiskError` that names the path.
"""

from __future__ import annotations

import errno
from pathlib import Path

from storage.errors import DiskAccessError, DiskError, DiskReadError, FileMissingError
from storage.files.read_only import ReadOnlyFile


class InspectedFile(ReadOnlyFile):
    """One open file, readable by position.

    Raises:
        FileMissingError, DiskAccessError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - `close` gives it back
            size_bytes = self._file.seek(0, 2)
        except OSError as error:
            raise _typed(path, error) from error
        super().__init__(path, size_bytes)

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `File.pread`."""
        pieces: list[bytes] = []
        try:
            self._file.seek(position)
            while size_bytes > 0 and (piece := self._file.read(size_bytes)):
                pieces.append(piece)
                size_bytes -= len(piece)
        except OSError as error:
            raise _typed(self.path, error) from error
        return b"".join(pieces)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_small(path: str) -> bytes | None:
    """Return the content of a file that fits into memory; None if it does not exist.

    Raises:
        DiskAccessError, DiskReadError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _typed(path, error) from error


def list_files(path: str) -> dict[str, int]:
    """Return the names and sizes in bytes of the files in a directory, ascending by name, without subdirectories.

    Raises:
        FileMissingError, DiskAccessError: it cannot be listed.
    """
    try:
        found = {entry.name: entry.stat().st_size for entry in Path(path).iterdir() if entry.is_file()}
    except OSError as error:
        raise _typed(path, error) from error
    return dict(sorted(found.items()))


def list_directories(path: str) -> list[str]:
    """Return the names of the subdirectories of a directory, ascending; none if it does not exist.

    Raises:
        DiskAccessError: it cannot be listed.
    """
    try:
        return sorted(entry.name for entry in Path(path).iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _typed(path, error) from error


def _typed(path: str, error: OSError) -> DiskError:
    if error.errno == errno.ENOENT:
        return FileMissingError(path, "no such file or directory")
    if error.errno == errno.EIO:
        return DiskReadError(path, f"the device cannot read it: {error.strerror}")
    return DiskAccessError(path, f"it cannot be read: {error.strerror}")

# SPDX-License-Identifier: Apache-2.0
"""The interface to the operating system: every system call of the log engine goes through `Disk` and `File`.

Two implementations pass one conformance suite (`storage.testing.conformance`): `storage.files.posix.PosixDisk`, and
`storage.testing.sim_disk.SimDisk`, which loses, tears, reorders and refuses.

A caller may rely on these guarantees only (rules of ALICE, OSDI 2014, as reliability practice states them):

1. While the process lives, `File.append` takes effect as a whole or not at all. After a power failure any subset of
   unsynced 512-byte sectors may survive, and the file may have grown without its data (which then reads as zeros).
2. Bytes are on stable storage once `File.sync` has returned. Names (create, rename, remove, make_directory) are on
   stable storage once `sync_directory` of their parent has returned. A new file needs both.
3. Nothing orders two unsynced operations, not even on one file.
4. After a `DiskFailedError` every later call of this disk that would change something raises it again: a failed fsync
   is never retried. Reads continue.

Threads: calls on different files may run in different threads. `File.sync` may run while the owner appends or reads.
Implementations hold no policy and know no file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from storage.errors import DiskFailedError

Buffer = bytes | bytearray | memoryview
"""Bytes that can be written without a copy."""

SECTOR_BYTES = 512
"""Unit that a device writes as a whole; a torn write ends at a multiple of it."""


class File(Protocol):
    """One open file, read by position and appended at its end. The object that appends is the only writer of the file."""

    @property
    def path(self) -> str:
        """Path under which the file was opened; it does not follow a later rename."""
        ...

    @property
    def size(self) -> int:
        """Size in bytes, including unsynced appends of this object."""
        ...

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Return up to `size_bytes` bytes from `position`; fewer only at the end of the file.

        Raises:
            DiskReadError: the device failed to return them.
        """
        ...

    def append(self, parts: Sequence[Buffer]) -> None:
        """Write all parts, one after the other, at the end of the file.

        Raises:
            DiskFullError: no space; the file has its former size again.
            DiskFailedError: the write failed; the disk is failed for good.
        """
        ...

    def write(self, data: Buffer, position: int) -> None:
        """Overwrite bytes inside the file in place; `position + len(data)` must not exceed `size`.

        Raises:
            DiskFullError: no space (copy-on-write file systems); the old bytes may be half overwritten.
            DiskFailedError: the write failed; the disk is failed for good.
        """
        ...

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file to `size_bytes`, at most its size. Sync before the next append; otherwise old bytes may reappear.

        Raises:
            DiskFailedError: it failed; the disk is failed for good.
        """
        ...

    def sync(self) -> None:
        """Put everything written to this file so far on stable storage (fdatasync).

        Raises:
            DiskFailedError: it failed; the disk is failed for good, and the caller must not retry.
        """
        ...

    def close(self) -> None:
        """Close the file; does not sync. Closing twice is allowed."""
        ...


class FileLock(Protocol):
    """An exclusive lock, held until `release` or the end of the process."""

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        ...


class Disk(Protocol):
    """The file system of one log directory. Paths are absolute strings with `/`."""

    @property
    def failure(self) -> DiskFailedError | None:
        """The error after which this disk can no longer be written, if any."""
        ...

    def create_file(self, path: str) -> File:
        """Create an empty file that must not exist.

        Raises:
            FileExistsInDiskError, FileMissingError (no such parent), DiskFullError, DiskAccessError, DiskFailedError,
            TooManyOpenFilesError.
        """
        ...

    def open_file(self, path: str) -> File:
        """Open an existing file for reading and writing.

        Raises:
            FileMissingError, DiskAccessError, TooManyOpenFilesError.
        """
        ...

    def read_file(self, path: str) -> bytes:
        """Return the whole content of a small file.

        Raises:
            FileMissingError, DiskAccessError, DiskReadError, TooManyOpenFilesError.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, replacing `target` if it exists; both must be in one directory."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file.

        Raises:
            FileMissingError, DiskAccessError, DiskFailedError.
        """
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory.

        Raises:
            FileMissingError, DiskAccessError (also: not empty), DiskFailedError.
        """
        ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted.

        Raises:
            FileMissingError, DiskAccessError.
        """
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory if it does not exist; its parent must exist.

        Raises:
            FileMissingError (no parent), DiskFullError, DiskAccessError, DiskFailedError.
        """
        ...

    def sync_directory(self, path: str) -> None:
        """Put the names in this directory on stable storage.

        Raises:
            FileMissingError, DiskFailedError.
        """
        ...

    def sync_filesystem(self, path: str) -> bool:
        """Put everything written so far to the file system of `path`, data and names, on stable storage.

        Returns:
            False if the operating system has no such call; then nothing was done.

        Raises:
            FileMissingError, DiskFailedError: as in `sync_directory`; any write error since the last call counts.
        """
        ...

    def exists(self, path: str) -> bool:
        """Tell whether a file or directory of this name exists."""
        ...

    def size_bytes(self, path: str) -> int:
        """Return the size of a file.

        Raises:
            FileMissingError.
        """
        ...

    def lock(self, path: str) -> FileLock:
        """Take the exclusive lock of a lock file, creating the file if needed; does not wait.

        Raises:
            LockHeldError: another process or object holds it.
            FileMissingError (no parent), DiskAccessError.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Return how many bytes an unprivileged process can still write below `path`."""
        ...

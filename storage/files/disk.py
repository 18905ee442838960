# SPDX-License-Identifier: Apache-2.0
"""The seam to the operating system: every system call of the log engine goes through `Disk` and `File`.

Two implementations pass one conformance suite (`storage.testing.conformance`): `storage.files.posix.PosixDisk` and
`storage.testing.sim_disk.SimDisk`, which loses, tears, reorders and refuses.

What a caller may rely on, and nothing more (rules of ALICE, OSDI 2014, as reliability practice states them):

1. `File.append` takes effect as a whole or not at all *while the process lives*. Across a power failure any subset of
   unsynced 512-byte sectors may survive, and the file size may have grown without its data (it then reads as zeros).
2. Bytes are on stable storage after `File.sync` returned. Names (create, rename, remove, make_directory) are on stable
   storage after `sync_directory` of their parent returned; a new file needs both.
3. Nothing orders two unsynced operations, not even on one file.
4. After `DiskFailedError` every later call of this disk that would change something raises it again: a failed fsync is
   never retried. Reads go on.

Threads: calls on different files may run in different threads. `File.sync` may run while the owner appends or reads.
Must not: hold any policy, or know a file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from storage.errors import DiskFailedError

Buffer = bytes | bytearray | memoryview
"""What can be written without a copy."""

SECTOR_BYTES = 512
"""Unit that a device writes as a whole; a torn write shows at multiples of it."""


class File(Protocol):
    """One open file, read by position and grown at its end. The object that appends is the only writer of the file."""

    @property
    def path(self) -> str:
        """Path under which it was opened; a later rename is not followed."""
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
        """Write all the parts, one after the other, at the end of the file.

        Raises:
            DiskFullError: no space; the file was cut back to its former size.
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
        """Cut the file to `size_bytes`, at most its size. Sync before appending again, else old bytes may re-appear.

        Raises:
            DiskFailedError: it failed; the disk is failed for good.
        """
        ...

    def sync(self) -> None:
        """Put everything written to this file so far on stable storage (fdatasync).

        Raises:
            DiskFailedError: it failed; the disk is failed for good and this must not be tried again.
        """
        ...

    def close(self) -> None:
        """Close the file; does not sync. Closing twice is allowed."""
        ...


class FileLock(Protocol):
    """An exclusive lock held until `release` or the end of the process."""

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        ...


class Disk(Protocol):
    """One log directory's file system. Paths are absolute strings with `/`."""

    @property
    def failure(self) -> DiskFailedError | None:
        """The error that made this disk unusable for writing, if any."""
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
        """Rename atomically, replacing `target` if it exists; both in one directory."""
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
        """Put everything written so far to the file system that holds `path`, data and names, on stable storage.

        Returns:
            False if the operating system offers no such call; nothing was done then.

        Raises:
            FileMissingError, DiskFailedError: as `sync_directory`; any write that failed since the last call counts.
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
            LockHeldError: somebody else holds it.
            FileMissingError (no parent), DiskAccessError.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Return how many bytes an unprivileged process may still write below `path`."""
        ...

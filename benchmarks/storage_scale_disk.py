# SPDX-License-Identifier: Apache-2.0
"""A real disk that counts the bytes that the engine reads through it."""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import DiskFailedError
from storage.files.disk import Buffer, Disk, File, FileLock


class ReadCountingDisk:
    """A `Disk` that passes everything to the disk under it.

    Attributes:
        read_bytes: bytes read so far, from files of any kind.
    """

    def __init__(self, under: Disk) -> None:
        self._under = under
        self.read_bytes = 0

    @property
    def failure(self) -> DiskFailedError | None:
        """See `Disk.failure`."""
        return self._under.failure

    def create_file(self, path: str) -> File:
        """See `Disk.create_file`."""
        return ReadCountingFile(self, self._under.create_file(path))

    def open_file(self, path: str) -> File:
        """See `Disk.open_file`."""
        return ReadCountingFile(self, self._under.open_file(path))

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        data = self._under.read_file(path)
        self.read_bytes += len(data)
        return data

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self._under.rename(source, target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self._under.remove(path)

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self._under.remove_directory(path)

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        return self._under.list_directory(path)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self._under.make_directory(path)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self._under.sync_directory(path)

    def sync_filesystem(self, path: str) -> bool:
        """See `Disk.sync_filesystem`."""
        return self._under.sync_filesystem(path)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return self._under.exists(path)

    def size_bytes(self, path: str) -> int:
        """See `Disk.size_bytes`."""
        return self._under.size_bytes(path)

    def lock(self, path: str) -> FileLock:
        """See `Disk.lock`."""
        return self._under.lock(path)

    def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        return self._under.free_bytes(path)


class ReadCountingFile:
    """A `File` of a `ReadCountingDisk`."""

    def __init__(self, disk: ReadCountingDisk, under: File) -> None:
        self._disk = disk
        self._under = under

    @property
    def path(self) -> str:
        """See `File.path`."""
        return self._under.path

    @property
    def size(self) -> int:
        """See `File.size`."""
        return self._under.size

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `File.pread`."""
        data = self._under.pread(size_bytes, position)
        self._disk.read_bytes += len(data)
        return data

    def append(self, parts: Sequence[Buffer]) -> None:
        """See `File.append`."""
        self._under.append(parts)

    def write(self, data: Buffer, position: int) -> None:
        """See `File.write`."""
        self._under.write(data, position)

    def truncate(self, size_bytes: int) -> None:
        """See `File.truncate`."""
        self._under.truncate(size_bytes)

    def sync(self) -> None:
        """See `File.sync`."""
        self._under.sync()

    def close(self) -> None:
        """See `File.close`."""
        self._under.close()

# SPDX-License-Identifier: Apache-2.0
"""A simulated disk that knows which files are open, for the tests of the file budget."""

from __future__ import annotations

import threading
from collections.abc import Callable

from storage.errors import DiskFailedError, TooManyOpenFilesError
from storage.files.descriptor_cache import BudgetedFile, FileBudget
from storage.files.disk import Disk
from storage.testing.sim_disk import SimDisk, SimFile


class WatchedFile(SimFile):
    """A file that counts as open, and can be told to wait inside a read."""

    disk: WatchedDisk

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Signal that a read is inside, and wait for permission to continue."""
        disk = self.disk
        if disk.gate is not None:
            disk.inside.set()
            assert disk.gate.wait(10)
        return super().pread(size_bytes, position)

    def sync(self) -> None:
        """Run the test's callback while a sync is under way."""
        if self.disk.during_sync is not None:
            self.disk.during_sync()
        super().sync()

    def close(self) -> None:
        """Count the file as closed."""
        self.disk.open_paths.remove(self.path)
        super().close()
        if self.path == self.disk.bad_close:
            raise DiskFailedError(self.path, "close failed")


class WatchedDisk(SimDisk):
    """A simulated disk that knows which files are open, and how many may be.

    Attributes:
        open_paths: paths of the open files, in the order of opening.
        limit: most open files; one more is refused, as by the process limit.
        gate: if set, reads wait for it; the first one sets `inside`.
        during_sync: runs inside every sync.
        bad_close: path of the file that fails to close.
        before_open: runs before each `open_file`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open_paths: list[str] = []
        self.limit = 1_000
        self.gate: threading.Event | None = None
        self.inside = threading.Event()
        self.during_sync: Callable[[], None] | None = None
        self.bad_close = ""
        self.before_open: Callable[[], None] | None = None

    def open_file(self, path: str) -> SimFile:
        """See `Disk.open_file`."""
        if self.before_open is not None:
            self.before_open()
        return self._watch(super().open_file(path))

    def create_file(self, path: str) -> SimFile:
        """See `Disk.create_file`."""
        return self._watch(super().create_file(path))

    def _watch(self, file: SimFile) -> SimFile:
        if len(self.open_paths) >= self.limit:
            raise TooManyOpenFilesError(file.path, "raise the limit")
        watched = WatchedFile(self, file._boot, file.path, file._inode)
        watched.disk = self
        self.open_paths.append(file.path)
        return watched


def disk_of_four() -> WatchedDisk:
    """Return a disk with four synced files a, b, c, d whose content is their name."""
    made = WatchedDisk()
    for name in "abcd":
        file = made.create_file(f"/{name}")
        file.append([name.encode()])
        file.sync()
        file.close()
    return made


def open_all(budget: FileBudget, disk: Disk, names: str) -> list[BudgetedFile]:
    files = [budget.disk(disk).open_file(f"/{name}") for name in names]
    assert all(isinstance(file, BudgetedFile) for file in files)
    return [file for file in files if isinstance(file, BudgetedFile)]

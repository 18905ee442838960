# SPDX-License-Identifier: Apache-2.0
"""One limit on the open files of many logs: files open at first use, and the least recently used one is closed.

`FileBudget.disk` wraps a `Disk`. The wrapped disk opens `BudgetedFile`s, which behave like any other `File` but hold a
descriptor only while the budget allows it. Logs need not know this: `PartitionLog.open` wraps the disk, and all parts
of the log share the budget.

Laws
    1. The budget closes a file only while no call is inside it and all its bytes are synced, because its descriptor is
       the one that will report a write error. The files of a flush group are unsynced until they are synced, so a group
       in flight keeps its descriptors. A created file counts as unsynced. `may_close` and `write_hint` are the only
       exceptions: for bytes whose loss is legal, and whose write error does not matter.
    2. Every call enters the file first and leaves it at its end, both under the budget's lock. The budget chooses a
       victim and takes its descriptor under the same lock, and only while no call is inside. So no thread can close a
       descriptor under the pread of another. (The kernel could give its number to another file at once.)
    3. The lock is never held over a call to the disk: it is held for microseconds. No two locks are ever held together.
    4. The limit is soft: files that law 1 keeps open may exceed it. Each of them closes as soon as it may.
    5. A file is opened again by its path. Code that removes or renames a file closes the object first, or never reads
       it again.

Threads: any thread may call everything here; one writer for each file, as `File` says.
Source: docs/storage.md section 8.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from storage.errors import DiskError, DiskFailedError, TooManyOpenFilesError

from .disk import Buffer, Disk, File, FileLock

DEFAULT_OPEN_FILES = 6
"""Open files of a log with a budget of its own: four sealed segments, the active one and a checkpoint."""

logger = logging.getLogger(__name__)

_Opened = TypeVar("_Opened")


class FileBudget:
    """A limit on open files, for all logs that were opened with it.

    Args:
        max_open_files: most open files, at least 1; unsynced files and those in use may exceed it.
    """

    def __init__(self, max_open_files: int = DEFAULT_OPEN_FILES) -> None:
        assert max_open_files >= 1, f"max_open_files {max_open_files}"
        self.max_open_files = max_open_files
        self._lock = threading.Lock()
        self._open_count = 0
        # Open files without unsynced bytes, in use or not. A first file that was used since gets a second round before
        # it is closed (CLOCK). That is cheaper than keeping the order at every call, and has the same effect.
        self._closable: dict[BudgetedFile, None] = {}
        self._disks: dict[Disk, BudgetedDisk] = {}

    @property
    def open_count(self) -> int:
        """Number of files that are open now."""
        return self._open_count

    def disk(self, disk: Disk) -> Disk:
        """Return a disk whose files share this budget: the same object for the same disk, and a wrapped disk unchanged."""
        if isinstance(disk, BudgetedDisk):
            return disk
        known = self._disks.get(disk)
        return known if known is not None else self._disks.setdefault(disk, BudgetedDisk(disk, self))

    def close_idle(self) -> int:
        """Close every file that may be closed; return their number."""
        with self._lock:
            files = [self._detach(file) for file in list(self._closable) if file.users == 0]
        _close_all(files)
        return len(files)

    def with_room(self, call: Callable[[], _Opened]) -> _Opened:
        """Make a call that needs a descriptor; if the process has none left, close idle files and try once more.

        Raises:
            TooManyOpenFilesError: the second attempt found none either.
        """
        try:
            return call()
        except TooManyOpenFilesError:
            if not self.close_idle():
                raise
            return call()

    def take_in(self, disk: Disk, inner: File, *, is_new: bool = False) -> BudgetedFile:
        """Add a file that was just opened, or created (`is_new`)."""
        file = BudgetedFile(self, disk, inner)
        file.is_unsynced = is_new
        with self._lock:
            surplus = self._note_open(file)
        _close_all(surplus)
        return file

    def enter(self, file: BudgetedFile) -> File:
        """Begin a call on a file, and return the open file inside it; `leave` must follow."""
        inner = self.enter_if_open(file)
        assert inner is not None, f"{file.path}: the file is closed"
        return inner

    def enter_if_open(self, file: BudgetedFile) -> File | None:
        """As `enter`, for a thread that does not know whether the owner has closed the file for good; then None."""
        with self._lock:
            if file.is_closed:
                return None
            inner = file.inner
            if inner is not None:
                file.users += 1
                file.is_recent = True
                return inner
        opened = self.with_room(file.open_again)
        with self._lock:
            file.users += 1
            file.is_recent = True
            if file.inner is None:
                file.inner = inner = opened
                surplus = self._note_open(file)
            else:
                # Another thread has opened it in the meantime.
                inner = file.inner
                surplus = [opened]
        _close_all(surplus)
        return inner

    def leave(self, file: BudgetedFile, *, wrote: bool = False, synced_writes: int | None = None) -> None:
        """End a call on a file.

        Args:
            file: the file.
            wrote: True if the call changed it, or may have.
            synced_writes: `file.writes` at the beginning of a successful sync; None for any other call.
        """
        with self._lock:
            file.users -= 1
            if wrote:
                file.writes += 1
                if not file.is_unsynced:
                    file.is_unsynced = True
                    self._closable.pop(file, None)
            elif synced_writes is not None:
                self._note_writes(file, synced_writes)
            if not file.is_closed and self._open_count <= self.max_open_files:
                return
            surplus = self._settle(file)
        _close_all(surplus)

    def note_synced(self, file: BudgetedFile, writes: int) -> None:
        """Note that the first `writes` writes of a file no longer need a sync."""
        with self._lock:
            self._note_writes(file, writes)
            surplus = self._settle(file)
        _close_all(surplus)

    def close(self, file: BudgetedFile) -> None:
        """Close a file for good: now, or when the last call inside it ends."""
        with self._lock:
            file.is_closed = True
            inner = self._detach(file) if file.inner is not None and file.users == 0 else None
        if inner is not None:
            inner.close()

    def _note_open(self, file: BudgetedFile) -> list[File]:
        """Count an open file; return the files to close. The caller holds the lock."""
        self._open_count += 1
        if not file.is_unsynced:
            self._closable[file] = None
        return self._surplus()

    def _note_writes(self, file: BudgetedFile, synced_writes: int) -> None:
        """Note a sync. The caller holds the lock."""
        if file.writes == synced_writes:
            file.is_unsynced = False
            if file.inner is not None:
                self._closable[file] = None

    def _settle(self, file: BudgetedFile) -> list[File]:
        """Return the files to close after a call on a file. The caller holds the lock."""
        if file.is_closed and file.inner is not None and file.users == 0:
            return [self._detach(file)]
        return self._surplus()

    def _surplus(self) -> list[File]:
        """Take the descriptors of the least recently used files while there are too many. The caller holds the lock."""
        surplus: list[File] = []
        # The loop sees each file at most twice: once because it was used or is in use.
        for _ in range(2 * len(self._closable)):
            if self._open_count <= self.max_open_files or not self._closable:
                break
            file = next(iter(self._closable))
            if file.users > 0 or file.is_recent:
                file.is_recent = False
                del self._closable[file]
                self._closable[file] = None
            else:
                surplus.append(self._detach(file))
        return surplus

    def _detach(self, file: BudgetedFile) -> File:
        """Take the descriptor from a file. The caller holds the lock, and no call is inside the file."""
        inner = file.inner
        assert inner is not None, f"{file.path}: taken away twice"
        assert file.users == 0, f"{file.path}: taken away while {file.users} use it"
        self._closable.pop(file, None)
        file.size_when_closed = inner.size
        file.inner = None
        self._open_count -= 1
        return inner


class BudgetedFile:
    """A `File` whose descriptor the budget may close and open again. Only a `FileBudget` makes it.

    Only the budget changes these attributes, under its lock.

    Attributes:
        inner: the open file; None while it is closed.
        size_when_closed: its size in bytes when the budget closed it.
        users: number of calls inside it now.
        is_recent: True if it was used since the budget last looked at it.
        writes: number of calls so far that changed it.
        is_unsynced: True if it has bytes that no sync has covered.
        is_closed: True once its owner has closed it.
    """

    __slots__ = (
        "_budget",
        "_disk",
        "_path",
        "inner",
        "is_closed",
        "is_recent",
        "is_unsynced",
        "size_when_closed",
        "users",
        "writes",
    )

    def __init__(self, budget: FileBudget, disk: Disk, inner: File) -> None:
        self._budget = budget
        self._disk = disk
        self._path = inner.path
        self.inner: File | None = inner
        self.size_when_closed = 0
        self.users = 0
        self.is_recent = False
        self.writes = 0
        self.is_unsynced = False
        self.is_closed = False

    @property
    def path(self) -> str:
        """See `File.path`."""
        return self._path

    @property
    def size(self) -> int:
        """See `File.size`."""
        inner = self.inner
        return self.size_when_closed if inner is None else inner.size

    def open_again(self) -> File:
        """Open the file again, for the budget."""
        return self._disk.open_file(self._path)

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `File.pread`; also raises the errors of opening."""
        inner = self._budget.enter(self)
        try:
            return inner.pread(size_bytes, position)
        finally:
            self._budget.leave(self)

    def pread_if_open(self, size_bytes: int, position: int) -> bytes | None:
        """As `pread`, for a thread that does not own the file; None once its owner has closed it."""
        inner = self._budget.enter_if_open(self)
        if inner is None:
            return None
        try:
            return inner.pread(size_bytes, position)
        finally:
            self._budget.leave(self)

    def append(self, parts: Sequence[Buffer]) -> None:
        """See `File.append`; also raises the errors of opening."""
        inner = self._budget.enter(self)
        try:
            inner.append(parts)
        finally:
            self._budget.leave(self, wrote=True)

    def write(self, data: Buffer, position: int) -> None:
        """See `File.write`; also raises the errors of opening."""
        inner = self._budget.enter(self)
        try:
            inner.write(data, position)
        finally:
            self._budget.leave(self, wrote=True)

    def write_hint(self, data: Buffer, position: int) -> None:
        """Overwrite like `write`, but without a need to sync the bytes."""
        inner = self._budget.enter(self)
        try:
            inner.write(data, position)
        finally:
            self._budget.leave(self)

    def truncate(self, size_bytes: int) -> None:
        """See `File.truncate`; also raises the errors of opening."""
        inner = self._budget.enter(self)
        try:
            inner.truncate(size_bytes)
        finally:
            self._budget.leave(self, wrote=True)

    def sync(self) -> None:
        """See `File.sync`. After a failed sync the file stays open, because only its descriptor knows of the error."""
        inner = self._budget.enter(self)
        writes = self.writes
        try:
            inner.sync()
        except BaseException:
            self._budget.leave(self)
            raise
        self._budget.leave(self, synced_writes=writes)

    def note_synced(self, writes: int) -> None:
        """Note that the first `writes` writes no longer need a sync."""
        self._budget.note_synced(self, writes)

    def close(self) -> None:
        """See `File.close`. While a call of another thread is inside, the descriptor closes at its end."""
        self._budget.close(self)


class BudgetedDisk:
    """A `Disk` whose files share a budget; all other calls go to the disk that it wraps."""

    __slots__ = ("_budget", "_disk")

    def __init__(self, disk: Disk, budget: FileBudget) -> None:
        self._disk = disk
        self._budget = budget

    @property
    def under(self) -> Disk:
        """The wrapped disk."""
        return self._disk

    @property
    def failure(self) -> DiskFailedError | None:
        """See `Disk.failure`."""
        return self._disk.failure

    def create_file(self, path: str) -> File:
        """See `Disk.create_file`."""
        created = self._budget.with_room(lambda: self._disk.create_file(path))
        return self._budget.take_in(self._disk, created, is_new=True)

    def open_file(self, path: str) -> File:
        """See `Disk.open_file`."""
        return self._budget.take_in(self._disk, self._budget.with_room(lambda: self._disk.open_file(path)))

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        try:
            return self._disk.read_file(path)
        except TooManyOpenFilesError:
            return self._budget.with_room(lambda: self._disk.read_file(path))

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self._disk.remove(path)

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self._disk.remove_directory(path)

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        try:
            return self._disk.list_directory(path)
        except TooManyOpenFilesError:
            return self._budget.with_room(lambda: self._disk.list_directory(path))

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self._disk.make_directory(path)

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self._budget.with_room(lambda: self._disk.sync_directory(path))

    def sync_filesystem(self, path: str) -> bool:
        """See `Disk.sync_filesystem`. The flush groups then report which files it has synced (`note_synced`)."""
        return self._budget.with_room(lambda: self._disk.sync_filesystem(path))

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return self._disk.exists(path)

    def size_bytes(self, path: str) -> int:
        """See `Disk.size_bytes`."""
        return self._disk.size_bytes(path)

    def lock(self, path: str) -> FileLock:
        """See `Disk.lock`."""
        return self._budget.with_room(lambda: self._disk.lock(path))

    def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        return self._disk.free_bytes(path)


def may_close(file: File) -> None:
    """Let a budget close a file although its last bytes are not synced.

    Only for bytes whose loss is legal and whose write error does not matter: the slots of a recovery point.
    """
    if isinstance(file, BudgetedFile):
        file.note_synced(file.writes)


def write_hint(file: File, data: Buffer, position: int) -> None:
    """Overwrite bytes whose loss is legal; they do not keep the file open (see `may_close`). Raises like `File.write`."""
    if isinstance(file, BudgetedFile):
        file.write_hint(data, position)
    else:
        file.write(data, position)


def needs_sync(file: File) -> bool:
    """Tell whether a file may have bytes that no sync has covered; True for a file without a budget."""
    return not isinstance(file, BudgetedFile) or file.is_unsynced


def write_mark(file: File) -> int:
    """Return a mark for everything written to a file so far, for `note_synced`."""
    return file.writes if isinstance(file, BudgetedFile) else 0


def note_synced(file: File, mark: int) -> None:
    """Note that everything up to a mark was synced together with the whole file system, not by `File.sync`."""
    if isinstance(file, BudgetedFile):
        file.note_synced(mark)


def pread_if_open(file: File, size_bytes: int, position: int) -> bytes | None:
    """Read in a thread that does not own the file; None once its owner has closed it. Raises as `File.pread`, and as opening does."""
    return (
        file.pread_if_open(size_bytes, position) if isinstance(file, BudgetedFile) else file.pread(size_bytes, position)
    )


def disk_under(disk: Disk) -> Disk:
    """Return the wrapped disk of a budgeted one, and any other disk unchanged. Two logs share a disk if this is the same object."""
    return disk.under if isinstance(disk, BudgetedDisk) else disk


def _close_all(files: Sequence[File]) -> None:
    """Close descriptors that the budget took; a failure belongs to their disk, not to the caller that needed room."""
    for file in files:
        try:
            file.close()
        except DiskError as error:
            # The error has marked the disk as failed, so the next writer there sees it.
            logger.error("file=%s action=close-idle error=%r", file.path, str(error))

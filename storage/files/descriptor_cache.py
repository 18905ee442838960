# SPDX-License-Identifier: Apache-2.0
"""One bound on the open files of many logs: files open at their first use, and the one used longest ago closes.

`FileBudget.disk` wraps a `Disk`; what it opens are `BudgetedFile`s, which look like any other `File` but hold a descriptor
only while the budget lets them. Logs need not know: `PartitionLog.open` wraps the disk, and every part of the log that
opens a file shares the budget.

Laws
    1. A file is closed by the budget only while nobody is inside one of its calls and all its bytes are synced: its
       descriptor is the one that will report a write error. The files of a flush group hold unsynced bytes until they are
       synced, so a group in flight keeps its descriptors. A file that was created counts as unsynced. The one exception
       is asked for by name, `may_close` and `write_hint`: bytes whose loss is legal, and for whose write error nobody waits.
    2. Every call first enters the file and leaves it at its end, both under the lock of the budget; a victim is chosen and
       its descriptor taken away under the same lock, and only while the count of those inside is 0. So no thread
       can close a descriptor under a pread of another one (whose number the kernel could give to another file at once).
    3. The lock is never held over a call to the disk: it is held for microseconds, and no two locks are ever held together.
    4. The bound is soft: files that law 1 keeps open may exceed it. Each one that comes free then closes at once.
    5. A file is opened again by its path: who removes or renames it closes the object first, or never reads it again.

Threads: everything here may be called from any thread; one writer a file, as `File` says.
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
"""Open files of a log that has a budget of its own: four sealed segments, the active one and a checkpoint."""

logger = logging.getLogger(__name__)

_Opened = TypeVar("_Opened")


class FileBudget:
    """A bound on open files, for all logs that were opened with it.

    Args:
        max_open_files: files that may be open, at least 1; unsynced ones and those in use may exceed it.
    """

    def __init__(self, max_open_files: int = DEFAULT_OPEN_FILES) -> None:
        assert max_open_files >= 1, f"max_open_files {max_open_files}"
        self.max_open_files = max_open_files
        self._lock = threading.Lock()
        self._open_count = 0
        # Open files without unsynced bytes, in use or not. Those at the front that were used meanwhile get a second round
        # before they are closed: that is cheaper than to keep the order at every call, and comes to the same.
        self._closable: dict[BudgetedFile, None] = {}
        self._disks: dict[Disk, BudgetedDisk] = {}

    @property
    def open_count(self) -> int:
        """Files that are open now."""
        return self._open_count

    def disk(self, disk: Disk) -> Disk:
        """Return a disk whose files share this budget; the same object for the same disk, and a wrapped one as it is."""
        if isinstance(disk, BudgetedDisk):
            return disk
        known = self._disks.get(disk)
        return known if known is not None else self._disks.setdefault(disk, BudgetedDisk(disk, self))

    def close_idle(self) -> int:
        """Close every file that may be closed; return how many there were."""
        with self._lock:
            files = [self._detach(file) for file in list(self._closable) if file.users == 0]
        _close_all(files)
        return len(files)

    def with_room(self, call: Callable[[], _Opened]) -> _Opened:
        """Make a call that needs a descriptor; when the process has none left, close idle files and try once more.

        Raises:
            TooManyOpenFilesError: there is none left all the same.
        """
        try:
            return call()
        except TooManyOpenFilesError:
            if not self.close_idle():
                raise
            return call()

    def take_in(self, disk: Disk, inner: File, *, is_new: bool = False) -> BudgetedFile:
        """Count a file that was just opened, or created (`is_new`)."""
        file = BudgetedFile(self, disk, inner)
        file.is_unsynced = is_new
        with self._lock:
            surplus = self._note_open(file)
        _close_all(surplus)
        return file

    def enter(self, file: BudgetedFile) -> File:
        """Begin a call on a file and return what is open under it; `leave` must follow."""
        with self._lock:
            assert not file.is_closed, f"{file.path}: the file is closed"
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
                # Another thread opened it meanwhile.
                inner = file.inner
                surplus = [opened]
        _close_all(surplus)
        return inner

    def leave(self, file: BudgetedFile, *, wrote: bool = False, synced_writes: int | None = None) -> None:
        """End a call on a file.

        Args:
            file: the file.
            wrote: the call changed it, or may have.
            synced_writes: what `file.writes` was when a sync that has succeeded began; None for another call.
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
        """Note that the first `writes` writes of a file need no sync any more."""
        with self._lock:
            self._note_writes(file, writes)
            surplus = self._settle(file)
        _close_all(surplus)

    def close(self, file: BudgetedFile) -> None:
        """Close a file for good: now, or when the last one inside leaves it."""
        with self._lock:
            file.is_closed = True
            inner = self._detach(file) if file.inner is not None and file.users == 0 else None
        if inner is not None:
            inner.close()

    def _note_open(self, file: BudgetedFile) -> list[File]:
        """Count a file that is open now; return what is to be closed. The lock is held."""
        self._open_count += 1
        if not file.is_unsynced:
            self._closable[file] = None
        return self._surplus()

    def _note_writes(self, file: BudgetedFile, synced_writes: int) -> None:
        """Take note of a sync. The lock is held."""
        if file.writes == synced_writes:
            file.is_unsynced = False
            if file.inner is not None:
                self._closable[file] = None

    def _settle(self, file: BudgetedFile) -> list[File]:
        """Return what is to be closed after a call on a file. The lock is held."""
        if file.is_closed and file.inner is not None and file.users == 0:
            return [self._detach(file)]
        return self._surplus()

    def _surplus(self) -> list[File]:
        """Take the files used longest ago away while there are too many. The lock is held."""
        surplus: list[File] = []
        # Each one is looked at twice at most: it was used, or it is in use.
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
        """Take the descriptor away from a file. The lock is held, and nobody is inside."""
        inner = file.inner
        assert inner is not None, f"{file.path}: taken away twice"
        assert file.users == 0, f"{file.path}: taken away while {file.users} use it"
        self._closable.pop(file, None)
        file.size_when_closed = inner.size
        file.inner = None
        self._open_count -= 1
        return inner


class BudgetedFile:
    """A `File` whose descriptor the budget may close and open again. Made by the disks of a `FileBudget`.

    Attributes (the budget's, under its lock):
        inner: the open file; None while it is closed.
        size_when_closed: its size in bytes when the budget closed it.
        users: calls that are inside now.
        is_recent: it was used since the budget looked at it last.
        writes: calls so far that changed it.
        is_unsynced: bytes were written that no sync has covered.
        is_closed: its owner closed it.
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
        """Open the file once more; for the budget."""
        return self._disk.open_file(self._path)

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `File.pread`; raises also what opening raises."""
        inner = self._budget.enter(self)
        try:
            return inner.pread(size_bytes, position)
        finally:
            self._budget.leave(self)

    def append(self, parts: Sequence[Buffer]) -> None:
        """See `File.append`; raises also what opening raises."""
        inner = self._budget.enter(self)
        try:
            inner.append(parts)
        finally:
            self._budget.leave(self, wrote=True)

    def write(self, data: Buffer, position: int) -> None:
        """See `File.write`; raises also what opening raises."""
        inner = self._budget.enter(self)
        try:
            inner.write(data, position)
        finally:
            self._budget.leave(self, wrote=True)

    def write_hint(self, data: Buffer, position: int) -> None:
        """As `write`, but the bytes need no sync."""
        inner = self._budget.enter(self)
        try:
            inner.write(data, position)
        finally:
            self._budget.leave(self)

    def truncate(self, size_bytes: int) -> None:
        """See `File.truncate`; raises also what opening raises."""
        inner = self._budget.enter(self)
        try:
            inner.truncate(size_bytes)
        finally:
            self._budget.leave(self, wrote=True)

    def sync(self) -> None:
        """See `File.sync`. After one that failed the file stays open: the descriptor will not claim success."""
        inner = self._budget.enter(self)
        writes = self.writes
        try:
            inner.sync()
        except BaseException:
            self._budget.leave(self)
            raise
        self._budget.leave(self, synced_writes=writes)

    def note_synced(self, writes: int) -> None:
        """Note that the first `writes` writes need no sync any more."""
        self._budget.note_synced(self, writes)

    def close(self) -> None:
        """See `File.close`. While another thread is inside a call the descriptor closes when that one leaves."""
        self._budget.close(self)


class BudgetedDisk:
    """A `Disk` whose files share a budget; everything else goes to the disk under it."""

    __slots__ = ("_budget", "_disk")

    def __init__(self, disk: Disk, budget: FileBudget) -> None:
        self._disk = disk
        self._budget = budget

    @property
    def under(self) -> Disk:
        """The disk under it."""
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
        """See `Disk.sync_filesystem`. Which files are synced by it their flush group tells (`note_synced`)."""
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

    Only for bytes whose loss is legal and for whose write error nobody waits: the hints of a recovery point.
    """
    if isinstance(file, BudgetedFile):
        file.note_synced(file.writes)


def write_hint(file: File, data: Buffer, position: int) -> None:
    """Overwrite bytes whose loss is legal, as `may_close` has it: they do not keep a file open. See `File.write`."""
    if isinstance(file, BudgetedFile):
        file.write_hint(data, position)
    else:
        file.write(data, position)


def needs_sync(file: File) -> bool:
    """Tell whether a file may hold bytes that no sync has covered; True for a file that no budget watches."""
    return not isinstance(file, BudgetedFile) or file.is_unsynced


def write_mark(file: File) -> int:
    """Return a mark of everything written to a file so far, for `note_synced`."""
    return file.writes if isinstance(file, BudgetedFile) else 0


def note_synced(file: File, mark: int) -> None:
    """Note that everything up to a mark was synced by other means than `File.sync`: with the whole file system."""
    if isinstance(file, BudgetedFile):
        file.note_synced(mark)


def disk_under(disk: Disk) -> Disk:
    """Return the disk under a budgeted one; any other as it is. Two logs lie on one disk if this is the same object."""
    return disk.under if isinstance(disk, BudgetedDisk) else disk


def _close_all(files: Sequence[File]) -> None:
    """Close descriptors that were taken away; a failure belongs to their disk, not to whoever needed the room."""
    for file in files:
        try:
            file.close()
        except DiskError as error:
            # The disk is marked failed by it: whoever writes there next is told.
            logger.error("file=%s action=close-idle error=%r", file.path, str(error))

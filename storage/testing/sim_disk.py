# SPDX-License-Identifier: Apache-2.0
"""A disk in memory that loses, tears, reorders and refuses.

`storage.testing.sim_tree` describes what a crash does to unsynced data and names. A living process sees this:

* Nothing is lost: appends are whole, and reads see everything.
* Any operation can be told to fail (`refuse`). A failed write or sync marks the disk as failed for good, as `Disk`
  guarantees. With `capacity_bytes` the disk fills up.

`calls` records every call that changes something, and `on_call` runs before each one takes effect: this gives the crash
points. `fork` copies the disk, so that one run can be crashed at every point in many ways.
Source: docs/storage.md section 10.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from storage.errors import (
    DiskAccessError,
    DiskError,
    DiskFailedError,
    DiskFullError,
    DiskReadError,
    FileExistsInDiskError,
    FileMissingError,
    LockHeldError,
)
from storage.files.disk import Buffer
from storage.testing.sim_tree import Crash, Directory, Inode, NameChange, has_unsynced, sync_below, used_bytes

__all__ = ["Crash", "Refusal", "SimCall", "SimDisk", "SimFile", "SimFileLock"]


class Refusal(Enum):
    """How a refused operation fails."""

    FULL = "no space"
    IO_ERROR = "input/output error"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCall:
    """One recorded call that changes something: name, path and number of bytes."""

    operation: str
    path: str
    size_bytes: int = 0


@dataclass(slots=True)
class _Refused:
    operation: str
    path_part: str
    refusal: Refusal


@dataclass(slots=True)
class _Boot:
    """One life of the process; handles and locks end with it."""

    locks: set[str] = field(default_factory=set[str])
    failure: DiskFailedError | None = None
    is_over: bool = False


class SimDisk:
    """A `Disk` in memory; the module docstring has its rules. For one thread at a time.

    Args:
        capacity_bytes: most bytes of file content; None: no limit.

    Attributes:
        calls: all calls that changed something, in order.
        on_call: runs before each such call takes effect.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.calls: list[SimCall] = []
        self.on_call: Callable[[SimCall], None] | None = None
        self._root = Directory()
        self._boot = _Boot()
        self._refused: list[_Refused] = []

    @property
    def failure(self) -> DiskFailedError | None:
        """See `Disk.failure`."""
        return self._boot.failure

    def fork(self) -> SimDisk:
        """Return a copy that shares nothing: the same unsynced operations, no open files, locks or refusals."""
        copied = SimDisk(capacity_bytes=self.capacity_bytes)
        copied._root = self._root.copy()
        return copied

    def crash(self, how: Crash, rng: random.Random) -> None:
        """Lose power (or with `KEEP_ALL` the process): files and locks end, unsynced operations survive or not."""
        self._boot.is_over = True
        self._boot = _Boot()
        self._refused.clear()
        self._root.crash(how, rng)

    def refuse(self, operation: str, path_part: str, refusal: Refusal) -> None:
        """Make the next call of this name on a path that contains `path_part` fail, once."""
        self._refused.append(_Refused(operation, path_part, refusal))

    def forgive(self) -> None:
        """Drop the refusals that no call has used."""
        self._refused.clear()

    def corrupt(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes without a recorded call, on the device and in the page cache."""
        inode = self._inode(path)
        content = bytearray(inode.current)
        content[position : position + len(data)] = data
        inode.versions.clear()
        inode.durable = bytes(content)

    def cut(self, path: str, size_bytes: int) -> None:
        """Truncate a file without a recorded call."""
        inode = self._inode(path)
        inode.durable = inode.current[:size_bytes]
        inode.versions.clear()

    def has_unsynced(self) -> bool:
        """Tell whether a power failure could lose content of a file."""
        return has_unsynced(self._root)

    def used_bytes(self) -> int:
        """Return the bytes of all files."""
        return used_bytes(self._root)

    def begin(self, operation: str, path: str, size_bytes: int = 0) -> None:
        """Record a call that changes something; fail it if it is refused, or if the disk has failed."""
        if self._boot.failure is not None:
            raise DiskFailedError(path, f"the disk failed before: {self._boot.failure}")
        call = SimCall(operation=operation, path=path, size_bytes=size_bytes)
        if self.on_call is not None:
            self.on_call(call)
        self.calls.append(call)
        for refused in self._refused:
            if refused.operation == operation and refused.path_part in path:
                self._refused.remove(refused)
                raise self._refusal(operation, path, refused.refusal)

    def _refusal(self, operation: str, path: str, refusal: Refusal) -> DiskError:
        if refusal is Refusal.FULL and operation not in ("sync", "truncate"):
            return DiskFullError(path, f"{operation}: no space; free space")
        self._boot.failure = DiskFailedError(path, f"{operation} failed: {refusal.value}")
        return self._boot.failure

    def check_space(self, path: str, size_bytes: int) -> None:
        """Refuse to grow beyond the capacity."""
        if self.capacity_bytes is not None and self.used_bytes() + size_bytes > self.capacity_bytes:
            raise DiskFullError(path, "append: no space; free space")

    def check_read(self, path: str) -> None:
        """Fail a read that is refused."""
        for refused in self._refused:
            if refused.operation == "pread" and refused.path_part in path:
                self._refused.remove(refused)
                raise DiskReadError(path, "read: input/output error")

    def _find(self, path: str) -> Inode | Directory:
        node: Inode | Directory = self._root
        for name in path.split("/"):
            if not name:
                continue
            if isinstance(node, Inode):
                raise DiskAccessError(path, "a part of the path is a file")
            if name not in node.current:
                raise FileMissingError(path, "no such file or directory")
            node = node.current[name]
        return node

    def _inode(self, path: str) -> Inode:
        node = self._find(path)
        if isinstance(node, Directory):
            raise DiskAccessError(path, "it is a directory")
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        node = self._find(parent)
        if isinstance(node, Inode):
            raise DiskAccessError(path, "a part of the path is a file")
        return node, name

    def create_file(self, path: str) -> SimFile:
        """See `Disk.create_file`."""
        self.begin("create_file", path)
        parent, name = self._parent(path)
        if name in parent.current:
            raise FileExistsInDiskError(path, "it exists already")
        inode = Inode()
        parent.change(NameChange({name: inode}))
        return SimFile(self, self._boot, path, inode)

    def open_file(self, path: str) -> SimFile:
        """See `Disk.open_file`."""
        return SimFile(self, self._boot, path, self._inode(path))

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        content = self._inode(path).current
        self.check_read(path)
        return content

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self.begin("rename", source)
        parent, source_name = self._parent(source)
        target_parent, target_name = self._parent(target)
        assert parent is target_parent, f"{source} and {target} are not in one directory"
        if source_name not in parent.current:
            raise FileMissingError(source, "no such file or directory")
        parent.change(NameChange({target_name: parent.current[source_name]}, unlink=(source_name,)))

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self.begin("remove", path)
        parent, name = self._parent(path)
        self._inode(path)
        parent.change(NameChange({}, unlink=(name,)))

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self.begin("remove_directory", path)
        parent, name = self._parent(path)
        node = self._find(path)
        if isinstance(node, Inode) or node.current:
            raise DiskAccessError(path, "not an empty directory")
        parent.change(NameChange({}, unlink=(name,)))

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        node = self._find(path)
        if isinstance(node, Inode):
            raise DiskAccessError(path, "not a directory")
        return sorted(node.current)

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self.begin("make_directory", path)
        parent, name = self._parent(path)
        existing = parent.current.get(name)
        if isinstance(existing, Inode):
            raise DiskAccessError(path, "a file of this name exists")
        if existing is None:
            parent.change(NameChange({name: Directory()}))

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        node = self._find(path)
        if isinstance(node, Inode):
            raise DiskAccessError(path, "not a directory")
        self.begin("sync_directory", path)
        node.sync()

    def sync_filesystem(self, path: str) -> bool:
        """See `Disk.sync_filesystem`."""
        self._find(path)
        self.begin("sync_filesystem", path)
        sync_below(self._root)
        return True

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        try:
            self._find(path)
        except (FileMissingError, DiskAccessError):
            return False
        return True

    def size_bytes(self, path: str) -> int:
        """See `Disk.size_bytes`."""
        return len(self._inode(path).current)

    def lock(self, path: str) -> SimFileLock:
        """See `Disk.lock`."""
        self.begin("lock", path)
        parent, name = self._parent(path)
        if name not in parent.current:
            parent.change(NameChange({name: Inode()}))
        if path in self._boot.locks:
            raise LockHeldError(path, "another process holds this lock; stop it first")
        self._boot.locks.add(path)
        return SimFileLock(self._boot, path)

    def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        self._find(path)
        return (self.capacity_bytes or 2**40) - self.used_bytes()


class SimFileLock:
    """See `FileLock`."""

    def __init__(self, boot: _Boot, path: str) -> None:
        self._boot = boot
        self._path = path

    def release(self) -> None:
        """See `FileLock.release`."""
        self._boot.locks.discard(self._path)


class SimFile:
    """See `File`."""

    def __init__(self, disk: SimDisk, boot: _Boot, path: str, inode: Inode) -> None:
        self._disk = disk
        self._boot = boot
        self._path = path
        self._inode = inode
        self._is_closed = False

    def _check_open(self) -> None:
        assert not self._boot.is_over, f"{self._path}: the file was opened before the crash"
        assert not self._is_closed, f"{self._path}: the file is closed"

    @property
    def path(self) -> str:
        """See `File.path`."""
        return self._path

    @property
    def size(self) -> int:
        """See `File.size`."""
        return len(self._inode.current)

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `File.pread`."""
        self._check_open()
        assert size_bytes >= 0, f"{self._path}: a read of {size_bytes} bytes at {position}"
        self._disk.check_read(self._path)
        return self._inode.current[position : position + size_bytes]

    def append(self, parts: Sequence[Buffer]) -> None:
        """See `File.append`."""
        self._check_open()
        data = b"".join(parts)
        self._disk.begin("append", self._path, len(data))
        self._disk.check_space(self._path, len(data))
        self._inode.versions.append(self._inode.current + data)

    def write(self, data: Buffer, position: int) -> None:
        """See `File.write`."""
        self._check_open()
        content = bytearray(self._inode.current)
        assert position + len(data) <= len(content), f"{self._path}: {position} + {len(data)} > {len(content)}"
        self._disk.begin("write", self._path, len(data))
        content[position : position + len(data)] = data
        self._inode.versions.append(bytes(content))

    def truncate(self, size_bytes: int) -> None:
        """See `File.truncate`."""
        self._check_open()
        assert size_bytes <= self.size, f"{self._path}: {size_bytes} > {self.size}"
        self._disk.begin("truncate", self._path)
        self._inode.versions.append(self._inode.current[:size_bytes])

    def sync(self) -> None:
        """See `File.sync`."""
        self._check_open()
        self._disk.begin("sync", self._path)
        self._inode.sync()

    def close(self) -> None:
        """See `File.close`."""
        self._is_closed = True

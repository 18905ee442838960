# SPDX-License-Identifier: Apache-2.0
"""`Disk` and `File` on a POSIX file system. The only module of the log engine that imports `os` and `fcntl`.

Law: an `OSError` never leaves this module. A failed fsync, or a write error other than "no space", marks the disk as
failed for good. The kernel may have dropped the dirty pages, and a second attempt would then report success although
data is lost.
Source: Rebello et al. (ATC 2020); `storage.files.disk` for the guarantees.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from storage.errors import (
    DiskAccessError,
    DiskError,
    DiskFailedError,
    DiskFullError,
    DiskReadError,
    FileExistsInDiskError,
    FileMissingError,
    LockHeldError,
    TooManyOpenFilesError,
)

from .disk import Buffer

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ACCESS = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOTEMPTY,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    }
)
_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


SMALL_FILE_BYTES = 4_096
"""A file smaller than this (exclusive) is read with two calls: one for its bytes, one that confirms its end."""

MAX_PARTS = 1_024
"""Most parts that one call writes (IOV_MAX of Linux); more parts are joined first."""

WRITE_BYTES = 1024 * 1024
"""Most bytes that one call writes. On a virtual machine, writes of 4 MiB took 0.8 to 2.4 ms for each mebibyte, writes of 1 MiB 0.19.
Probably Linux takes page-cache memory for the larger ones in blocks of 2 MiB, which the host has reclaimed and must provide again."""

WRITE_BACK_BYTES = 1024 * 1024
"""An append of at least this many bytes goes to the device at once, in the background."""

_HAS_FADVISE = hasattr(os, "posix_fadvise")

ALLOCATE_FROM_BYTES = 256 * 1024
"""Size from which blocks are allocated ahead of a file's appends. Writes into allocated blocks take the kernel a third less time, and
syncs a fifth less."""

ALLOCATE_SHARE = 4
"""A file gets its size divided by this ahead, so that space is not wasted on many small files."""

ALLOCATE_MAX_BYTES = 16 * 1024 * 1024
"""Most bytes that a file gets ahead."""

_KEEP_SIZE = 1
"""Flag of `fallocate`."""

SYNCFS_KERNEL = (5, 8)
"""First version of Linux whose `syncfs` reports write errors."""


def find_syncfs(system: str, release: str) -> Callable[[int], int] | None:
    """Return `syncfs` of the C library, which Python does not offer; None if there is none that reports errors.

    Args:
        system: name of the operating system, as `os.uname` returns it.
        release: its version, as `os.uname` returns it.
    """
    version = re.match(r"(\d+)\.(\d+)", release)
    if system != "Linux" or version is None or (int(version[1]), int(version[2])) < SYNCFS_KERNEL:
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int,)
    function.restype = ctypes.c_int
    return function


_syncfs = find_syncfs(os.uname().sysname, os.uname().release)


def find_fallocate(system: str) -> Callable[[int, int, int, int], int] | None:
    """Return `fallocate` of the C library, which Python offers without flags only; None if this system has none.

    Args:
        system: name of the operating system, as `os.uname` returns it.
    """
    if system != "Linux":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate64
    except (AttributeError, OSError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function


_fallocate = find_fallocate(os.uname().sysname)


def _text(error: OSError) -> str:
    return f"{os.strerror(error.errno or 0)} ({errno.errorcode.get(error.errno or 0, '?')})"


class PosixDisk:
    """The file system as one log directory sees it; a process has one object for each data directory."""

    def __init__(self) -> None:
        self._failure: DiskFailedError | None = None
        self._filesystem = -1

    @property
    def failure(self) -> DiskFailedError | None:
        """The error after which this disk can no longer be written, if any."""
        return self._failure

    def fail(self, path: str, error: OSError, action: str) -> DiskFailedError:
        """Mark the disk as failed for good, and return the error to raise; the first failure is kept."""
        failure = DiskFailedError(path, f"{action} failed: {_text(error)}; restart once the disk is repaired")
        if self._failure is None:
            self._failure = failure
        return failure

    def check(self) -> None:
        """Raise if the disk has failed, before a call that changes something.

        Raises:
            DiskFailedError: the disk has failed.
        """
        if self._failure is not None:
            raise DiskFailedError(self._failure.path, f"the disk failed before: {self._failure}")

    def _named(self, path: str, error: OSError, action: str) -> DiskError:
        """Return the typed error for a failed call on names (open, rename, ...)."""
        code = error.errno or 0
        if code == errno.ENOENT:
            return FileMissingError(path, f"{action}: no such file or directory")
        if code == errno.EEXIST:
            return FileExistsInDiskError(path, f"{action}: it exists already")
        if code in _FULL:
            return DiskFullError(path, f"{action}: {_text(error)}; free space")
        if code in _ACCESS:
            return DiskAccessError(path, f"{action}: {_text(error)}")
        if code in _DESCRIPTORS:
            return TooManyOpenFilesError(path, f"{action}: {_text(error)}; raise the limit of open files")
        return self.fail(path, error, action)

    def create_file(self, path: str) -> PosixFile:
        """See `Disk.create_file`."""
        self.check()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise self._named(path, error, "create") from error
        return PosixFile(self, path, descriptor, 0)

    def open_file(self, path: str) -> PosixFile:
        """See `Disk.open_file`."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            size_bytes = os.fstat(descriptor).st_size
        except OSError as error:
            raise self._named(path, error, "open") from error
        return PosixFile(self, path, descriptor, size_bytes)

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        try:
            # Most files that the opening of a log reads are small. This takes half the time of a buffered file object.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(descriptor, SMALL_FILE_BYTES)
                if len(data) < SMALL_FILE_BYTES and not os.read(descriptor, 1):
                    return data
                with open(descriptor, "rb", closefd=False) as file:
                    file.seek(0)
                    return file.read()
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno == errno.EIO:
                raise DiskReadError(path, f"read: {_text(error)}") from error
            raise self._named(path, error, "read") from error

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        self.check()
        try:
            os.rename(source, target)
        except OSError as error:
            raise self._named(source, error, f"rename to {target}") from error

    def remove(self, path: str) -> None:
        """See `Disk.remove`."""
        self.check()
        try:
            os.unlink(path)
        except OSError as error:
            raise self._named(path, error, "remove") from error

    def remove_directory(self, path: str) -> None:
        """See `Disk.remove_directory`."""
        self.check()
        try:
            os.rmdir(path)
        except FileExistsError as error:
            # POSIX allows rmdir to return EEXIST for a directory that is not empty.
            raise DiskAccessError(path, f"remove directory: {_text(error)}") from error
        except OSError as error:
            raise self._named(path, error, "remove directory") from error

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            raise self._named(path, error, "list") from error

    def make_directory(self, path: str) -> None:
        """See `Disk.make_directory`."""
        self.check()
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError as error:
            if not os.path.isdir(path):
                raise DiskAccessError(path, "make directory: a file of this name exists") from error
        except OSError as error:
            raise self._named(path, error, "make directory") from error

    def sync_directory(self, path: str) -> None:
        """See `Disk.sync_directory`."""
        self.check()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._named(path, error, "open directory") from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise self.fail(path, error, "fsync of the directory") from error
        finally:
            os.close(descriptor)

    def sync_filesystem(self, path: str) -> bool:
        """See `Disk.sync_filesystem`.

        All calls use one descriptor. Linux reports to each descriptor the write errors since its own last call, so a
        new descriptor could miss an error that another one has seen.
        """
        self.check()
        if _syncfs is None:
            return False
        try:
            if self._filesystem < 0:
                self._filesystem = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._named(path, error, "open directory") from error
        if _syncfs(self._filesystem) != 0:
            code = ctypes.get_errno()
            raise self.fail(path, OSError(code, os.strerror(code)), "syncfs")
        return True

    def close(self) -> None:
        """Close the descriptor of `sync_filesystem`; a second call does nothing."""
        if self._filesystem >= 0:
            descriptor, self._filesystem = self._filesystem, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        return os.path.exists(path)

    def size_bytes(self, path: str) -> int:
        """See `Disk.size_bytes`."""
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise self._named(path, error, "stat") from error

    def lock(self, path: str) -> PosixFileLock:
        """See `Disk.lock`."""
        self.check()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise self._named(path, error, "open lock file") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise LockHeldError(path, "another process holds this lock; stop it first") from error
            raise DiskAccessError(path, f"flock: {_text(error)}") from error
        return PosixFileLock(descriptor)

    def free_bytes(self, path: str) -> int:
        """See `Disk.free_bytes`."""
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise self._named(path, error, "statvfs") from error
        return status.f_bavail * status.f_frsize


class PosixFileLock:
    """An flock; the kernel releases it when the process ends, in whatever way."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """See `FileLock.release`."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class PosixFile:
    """One open file descriptor. The appending object keeps the size, so that an append needs no fstat."""

    __slots__ = ("_allocated_end", "_descriptor", "_disk", "_path", "_size")

    def __init__(self, disk: PosixDisk, path: str, descriptor: int, size_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._descriptor = descriptor
        self._size = size_bytes
        # Below this, blocks were allocated, or an attempt to allocate them failed.
        self._allocated_end = size_bytes

    @property
    def path(self) -> str:
        """See `File.path`."""
        return self._path

    @property
    def size(self) -> int:
        """See `File.size`."""
        return self._size

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `File.pread`."""
        try:
            data = os.pread(self._descriptor, size_bytes, position)
            if len(data) == size_bytes or position + len(data) >= self._size:
                return data
            # Linux returns at most 2 GiB at once; network file systems sometimes return less.
            pieces = [data]
            left_bytes = size_bytes - len(data)
            while data and left_bytes:
                position += len(data)
                data = os.pread(self._descriptor, left_bytes, position)
                left_bytes -= len(data)
                pieces.append(data)
            return b"".join(pieces)
        except OSError as error:
            raise DiskReadError(self._path, f"read of {size_bytes} bytes at {position}: {_text(error)}") from error

    def append(self, parts: Sequence[Buffer]) -> None:
        """See `File.append`."""
        self._disk.check()
        size_bytes = self._size
        if len(parts) > MAX_PARTS:
            parts = [b"".join(parts)]
        wanted_bytes = sum(map(len, parts))
        if size_bytes + wanted_bytes > self._allocated_end and size_bytes >= ALLOCATE_FROM_BYTES:
            self._allocate(size_bytes + wanted_bytes)
        try:
            if wanted_bytes <= WRITE_BYTES:
                self._write_parts(parts, size_bytes, wanted_bytes)
            else:
                self._write_pieces(parts, size_bytes)
        except OSError as error:
            raise self._cut_back(error, size_bytes) from error
        self._size = size_bytes + wanted_bytes
        if wanted_bytes >= WRITE_BACK_BYTES and _HAS_FADVISE:
            self._begin_write_back(size_bytes, wanted_bytes)

    def _allocate(self, end: int) -> None:
        """Allocate disk blocks up to `end` and beyond. The file's size does not change, so a crash adds no unwritten bytes to it.

        Errors are ignored: the write that follows allocates its own blocks, and raises if there is no space.
        """
        start, self._allocated_end = self._size, end + min(end // ALLOCATE_SHARE, ALLOCATE_MAX_BYTES)
        if _fallocate is not None:
            _fallocate(self._descriptor, _KEEP_SIZE, start, self._allocated_end - start)

    def _begin_write_back(self, position: int, size_bytes: int) -> None:
        """Start writing a large append to the device now, so that the sync at the end of a new segment waits for less.

        The advice says that the pages are not needed. Linux then starts to write dirty pages, and keeps them (it drops
        only clean ones). An error here says nothing about the data; a failed write shows at the sync.
        """
        with suppress(OSError):
            os.posix_fadvise(self._descriptor, position, size_bytes, os.POSIX_FADV_DONTNEED)

    def _write_parts(self, parts: Sequence[Buffer], position: int, wanted_bytes: int) -> None:
        written_bytes = os.pwritev(self._descriptor, parts, position)
        if written_bytes != wanted_bytes:
            self._write_rest(parts, position, written_bytes)

    def _write_pieces(self, parts: Sequence[Buffer], position: int) -> None:
        """Write parts in pieces of at most `WRITE_BYTES`."""
        piece: list[Buffer] = []
        piece_bytes = 0
        for part in parts:
            rest = memoryview(part)
            while rest:
                taken = rest[: WRITE_BYTES - piece_bytes]
                rest = rest[len(taken) :]
                piece.append(taken)
                piece_bytes += len(taken)
                if piece_bytes == WRITE_BYTES:
                    self._write_parts(piece, position, piece_bytes)
                    position += piece_bytes
                    piece, piece_bytes = [], 0
        if piece:
            self._write_parts(piece, position, piece_bytes)

    def _write_rest(self, parts: Sequence[Buffer], start: int, written_bytes: int) -> None:
        """Finish an append of which the kernel accepted only the first part (nearly full disk, signal)."""
        rest = memoryview(b"".join(parts))[written_bytes:]
        position = start + written_bytes
        while rest:
            count = os.pwrite(self._descriptor, rest, position)
            position += count
            rest = rest[count:]

    def _cut_back(self, error: OSError, size_bytes: int) -> DiskError:
        """Undo a partial append. A full disk stays usable; any other error fails the disk for good."""
        if error.errno not in _FULL:
            return self._disk.fail(self._path, error, "append")
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as second:
            return self._disk.fail(self._path, second, "cut back after a partial append")
        self._allocated_end = size_bytes
        return DiskFullError(self._path, f"append: {_text(error)}; free space")

    def write(self, data: Buffer, position: int) -> None:
        """See `File.write`."""
        assert position + len(data) <= self._size, f"{self._path}: {position} + {len(data)} > {self._size}"
        self._disk.check()
        rest = memoryview(data)
        try:
            while rest:
                count = os.pwrite(self._descriptor, rest, position)
                position += count
                rest = rest[count:]
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFullError(self._path, f"write: {_text(error)}; free space") from error
            raise self._disk.fail(self._path, error, "write") from error

    def truncate(self, size_bytes: int) -> None:
        """See `File.truncate`."""
        assert size_bytes <= self._size, f"{self._path}: {size_bytes} > {self._size}"
        self._disk.check()
        try:
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise self._disk.fail(self._path, error, "truncate") from error
        self._size = self._allocated_end = size_bytes

    def sync(self) -> None:
        """See `File.sync`. Any error is final, even "no space": with delayed allocation it comes after the data is lost."""
        self._disk.check()
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._disk.fail(self._path, error, "fdatasync") from error

    def close(self) -> None:
        """See `File.close`."""
        if self._descriptor >= 0:
            if self._allocated_end > self._size and self._disk.failure is None:
                # Only the object that appends has space ahead, so it knows the size. A killed process leaves the space to the next one
                # that appends, or until the file is removed.
                with suppress(OSError):
                    os.ftruncate(self._descriptor, self._size)
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.close(descriptor)
            except OSError as error:
                raise self._disk.fail(self._path, error, "close") from error

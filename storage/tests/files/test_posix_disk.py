# SPDX-License-Identifier: Apache-2.0
"""What only a real file system can show: partial writes, exhausted descriptors, real locks, real logs."""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.errors import (
    DiskAccessError,
    DiskFailedError,
    DiskFullError,
    DiskReadError,
    LockHeldError,
    TooManyOpenFilesError,
)
from storage.files import posix
from storage.files.disk import Buffer
from storage.files.posix import (
    ALLOCATE_FROM_BYTES,
    ALLOCATE_MAX_BYTES,
    ALLOCATE_SHARE,
    MAX_PARTS,
    SMALL_FILE_BYTES,
    WRITE_BACK_BYTES,
    WRITE_BYTES,
    PosixDisk,
    find_fallocate,
    find_syncfs,
)
from storage.testing.builders import append, open_log, read_values
from storage.tests.log.test_idle_memory import open_below
from storage.types import LogSettings


@pytest.mark.parametrize(
    ("system", "release", "is_offered"),
    [
        ("Linux", "5.8.0-1", True),
        ("Linux", "6.1", True),
        ("Linux", "5.7.19", False),
        ("Linux", "odd", False),
        ("Darwin", "24.1.0", False),
    ],
)
def test_syncfs_is_used_only_where_it_reports_errors(system: str, release: str, is_offered: bool) -> None:
    """Before Linux 5.8 it would hide a write error; other systems do not have it."""
    assert (find_syncfs(system, release) is not None) is is_offered


def allocated_bytes(path: str) -> int:
    return os.stat(path).st_blocks * 512


def test_growing_file_has_space_ahead_until_it_is_closed(tmp_path: Path) -> None:
    """The blocks are a share of the file's size and do not change it. Closing the file frees them. Small files get none."""
    assert find_fallocate("Darwin") is None
    path = str(tmp_path / "a")
    file = PosixDisk().create_file(path)
    piece = random.Random(1).randbytes(ALLOCATE_FROM_BYTES // 4)
    for _ in range(4):
        file.append([piece])
    assert allocated_bytes(path) <= ALLOCATE_FROM_BYTES + 65_536
    file.append([piece])
    ahead = (5 * len(piece)) // ALLOCATE_SHARE
    assert 5 * len(piece) + ahead <= allocated_bytes(path) <= 5 * len(piece) + ahead + 65_536
    assert os.stat(path).st_size == file.size == 5 * len(piece)
    for _ in range(400):
        file.append([piece])
    assert file.size < allocated_bytes(path) <= file.size + ALLOCATE_MAX_BYTES + 65_536
    file.sync()
    file.truncate(3 * len(piece))
    assert allocated_bytes(path) <= 3 * len(piece) + 65_536
    for _ in range(9):
        file.append([piece])
    assert allocated_bytes(path) > file.size + 65_536
    file.close()
    assert allocated_bytes(path) <= 12 * len(piece) + 65_536
    again = PosixDisk().open_file(path)
    assert again.pread(13 * len(piece), 0) == 12 * piece
    again.close()


def test_reader_that_closes_takes_nothing_from_the_file(tmp_path: Path) -> None:
    """The object that appends may have grown the file since another one opened it."""
    path = str(tmp_path / "a")
    disk = PosixDisk()
    file = disk.create_file(path)
    piece = bytes(ALLOCATE_FROM_BYTES)
    for _ in range(2):
        file.append([piece])
    reader = disk.open_file(path)
    file.append([piece])
    before = allocated_bytes(path)
    reader.close()
    assert (os.stat(path).st_size, allocated_bytes(path)) == (3 * len(piece), before)
    file.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_file_without_space_ahead_grows_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    """Where the system or the file system has no such call, or no space: only the write itself tells."""
    calls: list[tuple[int, ...]] = []

    def refuse(*arguments: int) -> int:
        calls.append(arguments)
        return -1

    monkeypatch.setattr(posix, "_fallocate", refuse if is_there else None)
    file = PosixDisk().create_file(str(tmp_path / "a"))
    piece = bytes(ALLOCATE_FROM_BYTES)
    for _ in range(40):
        file.append([piece])
    assert file.size == 40 * len(piece)
    # Not for each append.
    assert len(calls) < 20 if is_there else not calls
    file.close()


def test_disk_without_syncfs_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller then syncs file by file."""
    monkeypatch.setattr(posix, "_syncfs", None)
    assert not PosixDisk().sync_filesystem(str(tmp_path))


def test_failed_syncfs_fails_the_disk_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a failed fdatasync: there is no retry, and no further write."""
    disk = PosixDisk()
    calls: list[int] = []
    monkeypatch.setattr(posix, "_syncfs", lambda descriptor: calls.append(descriptor) or -1)
    with pytest.raises(DiskFailedError, match="syncfs"):
        disk.sync_filesystem(str(tmp_path))
    with pytest.raises(DiskFailedError, match="before"):
        disk.sync_filesystem(str(tmp_path))
    assert len(calls) == 1
    with pytest.raises(DiskFailedError):
        disk.create_file(f"{tmp_path}/a")
    disk.close()
    disk.close()


@contextmanager
def limit(what: int, value: int) -> Iterator[None]:
    """Lower a resource limit of this process for a moment."""
    soft, hard = resource.getrlimit(what)
    resource.setrlimit(what, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(what, (soft, hard))


def test_partial_append_is_cut_back(tmp_path: Path) -> None:
    """If the kernel writes only a part of an append, the file gets its former size and works again afterwards."""
    disk = PosixDisk()
    file = disk.create_file(f"{tmp_path}/a")
    file.append([b"x" * 5_000])
    with limit(resource.RLIMIT_FSIZE, 8_192):
        with pytest.raises(DiskFullError, match="free space"):
            file.append([b"y" * 3_000, b"z" * 3_000])
        assert file.size == os.path.getsize(f"{tmp_path}/a") == 5_000
        with pytest.raises(DiskFullError):
            disk.create_file(f"{tmp_path}/b").append([b"y" * 9_000])
    assert disk.failure is None
    file.append([b"y" * 6_000])
    assert file.pread(100, 4_950) == b"x" * 50 + b"y" * 50
    file.close()


def test_log_survives_a_full_disk(tmp_path: Path) -> None:
    """A log whose append finds no space refuses it, serves reads, and continues when there is space again."""
    disk = PosixDisk()
    log = open_log(disk, f"{tmp_path}/log", LogSettings()).log
    append(log, [b"a" * 3_000])
    with limit(resource.RLIMIT_FSIZE, 4_096), pytest.raises(DiskFullError):
        append(log, [b"b" * 3_000])
    assert read_values(log) == [b"a" * 3_000]
    append(log, [b"c" * 3_000])
    log.close()
    again = open_log(disk, f"{tmp_path}/log", LogSettings())
    assert again.report.clean
    assert read_values(again.log) == [b"a" * 3_000, b"c" * 3_000]
    again.log.close()


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that returns less than requested (2 GiB at most, network file systems) does not shorten a read."""
    file = PosixDisk().create_file(f"{tmp_path}/a")
    file.append([b"0123456789"])
    pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda descriptor, size_bytes, position: pread(descriptor, min(3, size_bytes), position)
    )
    assert file.pread(8, 1) == b"12345678"
    assert file.pread(20, 4) == b"456789"
    file.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that writes only a part of an append or a write gets the rest."""
    file = PosixDisk().create_file(f"{tmp_path}/a")
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda descriptor, parts, position: pwrite(descriptor, parts[0][:2], position))
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, position: pwrite(descriptor, data[:2], position))
    file.append([b"01234", b"56789"])
    file.write(b"abcde", 3)
    assert file.pread(20, 0) == b"012abcde89"
    assert file.size == 10
    file.close()


def test_an_append_may_have_any_number_of_parts(tmp_path: Path) -> None:
    """The kernel accepts 1,024 parts at once and refuses more; compaction of small batches has thousands."""
    file = PosixDisk().create_file(f"{tmp_path}/a")
    for count in (MAX_PARTS, MAX_PARTS + 1, 5 * MAX_PARTS):
        size = file.size
        file.append([b"%d," % number for number in range(count)])
        expected = b"".join(b"%d," % number for number in range(count))
        assert file.pread(len(expected) + 1, size) == expected
        assert file.size == size + len(expected)
    file.close()


def test_a_large_append_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No write is larger than the limit, whatever the parts; and a disk that fills up in the middle keeps nothing of them."""
    written: list[int] = []
    pwritev = os.pwritev

    def counted(descriptor: int, parts: Sequence[Buffer], position: int) -> int:
        written.append(sum(map(len, parts)))
        if len(written) == fails_at:
            raise OSError(errno.ENOSPC, "full")
        return pwritev(descriptor, parts, position)

    monkeypatch.setattr(os, "pwritev", counted)
    file = PosixDisk().create_file(f"{tmp_path}/a")
    parts = [b"head", os.urandom(WRITE_BYTES - 4), b"b", os.urandom(2 * WRITE_BYTES), b"", os.urandom(7)]
    expected = b"".join(parts)
    fails_at = 3
    with pytest.raises(DiskFullError):
        file.append(parts)
    assert (file.size, (tmp_path / "a").stat().st_size) == (0, 0)
    written.clear()
    fails_at = 0
    file.append(parts)
    assert written == [WRITE_BYTES, WRITE_BYTES, WRITE_BYTES, 8]
    assert (file.size, file.pread(len(expected) + 1, 0)) == (len(expected), expected)
    file.close()


def test_a_large_append_goes_to_the_device_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small appends wait for the kernel or for a sync; a refused advice changes nothing."""
    advised: list[tuple[int, int]] = []

    def advise(descriptor: int, position: int, size_bytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        advised.append((position, size_bytes))
        raise OSError(errno.EINVAL, "no advice taken")

    monkeypatch.setattr(os, "posix_fadvise", advise)
    disk = PosixDisk()
    file = disk.create_file(f"{tmp_path}/a")
    large = b"x" * WRITE_BACK_BYTES
    file.append([large[1:]])
    file.append([b"y", large])
    assert advised == [(len(large) - 1, len(large) + 1)]
    monkeypatch.setattr(posix, "_HAS_FADVISE", False)
    file.append([large])
    assert len(advised) == 1
    assert file.pread(3 * len(large) + 1, 0) == large[1:] + b"y" + large + large
    assert disk.failure is None
    file.close()


def test_exhausted_descriptors_are_typed(tmp_path: Path) -> None:
    """Running out of descriptors is no failure of the disk."""
    disk = PosixDisk()
    disk.create_file(f"{tmp_path}/a").close()
    with limit(resource.RLIMIT_NOFILE, 3), pytest.raises(TooManyOpenFilesError, match="limit of open files"):
        disk.open_file(f"{tmp_path}/a")
    assert disk.failure is None


def test_failed_sync_fails_the_whole_disk_for_writing(tmp_path: Path) -> None:
    """After one failed fdatasync nothing in the directory is written, reads continue, and nothing is retried."""
    disk = PosixDisk()
    healthy = disk.create_file(f"{tmp_path}/healthy")
    healthy.append([b"kept"])
    # fdatasync on a pipe end fails with EINVAL: a real error from a real call.
    reading, writing = os.pipe()
    broken = disk.create_file(f"{tmp_path}/broken")
    os.dup2(writing, broken._descriptor)
    with pytest.raises(DiskFailedError, match="EINVAL"):
        broken.sync()
    assert disk.failure is not None
    for call in (
        lambda: healthy.append([b"more"]),
        lambda: healthy.write(b"K", 0),
        lambda: healthy.truncate(0),
        healthy.sync,
        lambda: disk.create_file(f"{tmp_path}/new"),
        lambda: disk.rename(f"{tmp_path}/healthy", f"{tmp_path}/other"),
        lambda: disk.remove(f"{tmp_path}/healthy"),
        lambda: disk.make_directory(f"{tmp_path}/d"),
        lambda: disk.sync_directory(str(tmp_path)),
        lambda: disk.lock(f"{tmp_path}/lock"),
    ):
        with pytest.raises(DiskFailedError, match="failed before"):
            call()
    assert healthy.pread(4, 0) == b"kept"
    for descriptor in (reading, writing):
        os.close(descriptor)
    broken.close()
    healthy.close()


@pytest.mark.parametrize("call", ["append", "write", "truncate"])
def test_write_errors_fail_the_disk(tmp_path: Path, call: str) -> None:
    """A write error that is not "no space" is final."""
    disk = PosixDisk()
    file = disk.create_file(f"{tmp_path}/a")
    file.append([b"0123456789"])
    with open(f"{tmp_path}/a", "rb") as read_only:
        os.dup2(read_only.fileno(), file._descriptor)
    with pytest.raises(DiskFailedError):
        {
            "append": lambda: file.append([b"x"]),
            "write": lambda: file.write(b"x", 0),
            "truncate": lambda: file.truncate(1),
        }[call]()
    assert disk.failure is not None
    file.close()


def test_read_error_is_typed_and_no_failure(tmp_path: Path) -> None:
    """A read error of the device concerns only this range."""
    disk = PosixDisk()
    file = disk.create_file(f"{tmp_path}/a")
    file.append([b"0123456789"])
    reading, writing = os.pipe()
    os.dup2(reading, file._descriptor)
    with pytest.raises(DiskReadError):
        file.pread(4, 0)
    assert disk.failure is None
    for descriptor in (reading, writing):
        os.close(descriptor)
    file.close()


def test_unexpected_error_of_a_name_fails_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error without a rule of its own (EIO on a rename, for example) is final."""
    disk = PosixDisk()
    disk.create_file(f"{tmp_path}/a").close()

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(DiskFailedError, match="EIO"):
        disk.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    assert disk.failure is not None


def test_lock_of_another_process_is_seen_and_ends_with_it(tmp_path: Path) -> None:
    """Flock keeps two processes apart; the kernel releases it when the holder is killed."""
    program = (
        "import sys, time\n"
        "from storage.files.posix import PosixDisk\n"
        "lock = PosixDisk().lock(sys.argv[1])\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    path = f"{tmp_path}/lock"
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError):
            PosixDisk().lock(path)
        holder.kill()
        holder.wait()
        PosixDisk().lock(path).release()


def test_path_with_a_file_in_the_way_is_an_access_error(tmp_path: Path) -> None:
    """ENOTDIR and its like are refusals, not failures."""
    disk = PosixDisk()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiskAccessError):
        disk.open_file(f"{tmp_path}/file/inside")
    with pytest.raises(DiskAccessError):
        disk.create_file(f"{tmp_path}/{'n' * 300}")
    assert disk.failure is None


@pytest.mark.parametrize("size_bytes", [0, 1, SMALL_FILE_BYTES - 1, SMALL_FILE_BYTES, SMALL_FILE_BYTES + 1, 100_000])
def test_whole_files_are_read_whatever_their_size(tmp_path: Path, size_bytes: int) -> None:
    """Small files are read with one call; no descriptor is left open."""
    content = os.urandom(size_bytes)
    (tmp_path / "file").write_bytes(content)
    assert PosixDisk().read_file(str(tmp_path / "file")) == content
    assert open_below(tmp_path) == []


def test_short_reads_of_a_small_file_are_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may return less than the file has."""
    (tmp_path / "file").write_bytes(b"0123456789")
    whole_read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size_bytes: whole_read(descriptor, min(4, size_bytes)))
    assert PosixDisk().read_file(str(tmp_path / "file")) == b"0123456789"

# SPDX-License-Identifier: Apache-2.0
"""The limit on open files: what is closed, what never is, and that no thread loses a file during a call."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from storage.errors import DiskError, DiskFailedError, DiskReadError, TooManyOpenFilesError
from storage.files.descriptor_cache import (
    FileBudget,
    may_close,
    needs_sync,
    note_synced,
    pread_if_open,
    write_hint,
    write_mark,
)
from storage.files.disk import Disk
from storage.files.posix import PosixDisk
from storage.testing.conformance import DiskConformance
from storage.testing.sim_disk import Refusal, SimDisk
from storage.tests.watched_disk import WatchedDisk, disk_of_four, open_all


class TestBudgetedDisk(DiskConformance):
    """A disk under a budget of one file keeps every guarantee of a disk."""

    @pytest.fixture
    def disk(self) -> Disk:
        """A budgeted disk."""
        return FileBudget(1).disk(SimDisk())

    @pytest.fixture
    def root(self, disk: Disk) -> str:
        """An empty directory on it."""
        disk.make_directory("/root")
        return "/root"


@pytest.fixture
def disk() -> WatchedDisk:
    """A disk with four synced files a, b, c, d that hold their names."""
    return disk_of_four()


def test_file_used_longest_ago_closes_and_opens_again_at_its_next_use(disk: WatchedDisk) -> None:
    """Never more files than the limit are open, and every file can still be read."""
    budget = FileBudget(2)
    a, b, c = open_all(budget, disk, "abc")
    assert disk.open_paths == ["/b", "/c"]
    assert (budget.open_count, budget.max_open_files) == (2, 2)
    assert b.pread(1, 0) == b"b"
    assert a.pread(1, 0) == b"a"
    assert disk.open_paths == ["/b", "/a"]
    assert (c.size, c.pread(1, 0)) == (1, b"c")
    assert disk.open_paths == ["/a", "/c"]
    assert budget.close_idle() == 2
    assert (disk.open_paths, budget.open_count, budget.close_idle()) == ([], 0, 0)
    assert a.path == "/a"


def test_unsynced_file_stays_open_beyond_the_bound(disk: WatchedDisk) -> None:
    """Its descriptor is the one that will report a write error; once synced, it closes."""
    budget = FileBudget(1)
    a, b, c = open_all(budget, disk, "abc")
    a.append([b"x"])
    b.write(b"y", 0)
    c.truncate(0)
    assert disk.open_paths == ["/a", "/b", "/c"]
    assert [needs_sync(file) for file in (a, b, c)] == [True, True, True]
    c.sync()
    assert disk.open_paths == ["/a", "/b"]
    a.sync()
    assert disk.open_paths == ["/b"]
    b.sync()
    assert disk.open_paths == ["/b"]
    assert (a.size, a.pread(9, 0), b.pread(9, 0), c.size) == (2, b"ax", b"y", 0)


def test_bytes_written_while_a_sync_runs_are_unsynced(disk: WatchedDisk) -> None:
    """A sync covers only bytes written before it began."""
    budget = FileBudget(1)
    (a,) = open_all(budget, disk, "a")
    a.append([b"1"])
    disk.during_sync = lambda: a.append([b"2"])
    a.sync()
    assert needs_sync(a)
    disk.during_sync = None
    a.sync()
    assert not needs_sync(a)


def test_failed_sync_keeps_the_file_open(disk: WatchedDisk) -> None:
    """The budget never closes the descriptor that knows about the lost bytes."""
    budget = FileBudget(1)
    a, _ = open_all(budget, disk, "ab")
    a.append([b"1"])
    disk.refuse("sync", "/a", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        a.sync()
    budget.close_idle()
    assert disk.open_paths == ["/a"]


def test_refused_append_may_have_left_something(disk: WatchedDisk) -> None:
    """A file whose append failed counts as written."""
    (a,) = open_all(FileBudget(1), disk, "a")
    disk.refuse("append", "/a", Refusal.FULL)
    with pytest.raises(DiskError):
        a.append([b"1"])
    assert needs_sync(a)


def test_created_file_is_unsynced_until_its_owner_says_otherwise(disk: WatchedDisk) -> None:
    """`may_close` releases the descriptor; it leaves a file without a budget alone."""
    budget = FileBudget(1)
    created = budget.disk(disk).create_file("/new")
    open_all(budget, disk, "a")
    assert disk.open_paths == ["/new"]
    may_close(created)
    open_all(budget, disk, "a")
    assert disk.open_paths == ["/a"]
    plain = disk.open_file("/b")
    may_close(plain)
    assert needs_sync(plain)


def test_hint_keeps_no_file_open(disk: WatchedDisk) -> None:
    """Bytes of `write_hint` need no sync: the file may close at once, even after a failed write."""
    budget = FileBudget(1)
    (a,) = open_all(budget, disk, "a")
    write_hint(a, b"A", 0)
    assert not needs_sync(a)
    assert (budget.close_idle(), disk.open_paths) == (1, [])
    assert a.pread(1, 0) == b"A"
    disk.refuse("write", "/a", Refusal.FULL)
    with pytest.raises(DiskError):
        write_hint(a, b"B", 0)
    assert (budget.close_idle(), disk.open_paths) == (1, [])
    plain = disk.open_file("/c")
    write_hint(plain, b"C", 0)
    assert plain.pread(1, 0) == b"C"


def test_file_is_not_closed_under_a_read_of_another_thread(disk: WatchedDisk) -> None:
    """The reader keeps its descriptor; another file is closed, or this one later."""
    budget = FileBudget(1)
    (a,) = open_all(budget, disk, "a")
    found: list[bytes] = []
    disk.gate = threading.Event()
    reader = threading.Thread(target=lambda: found.append(a.pread(1, 0)))
    reader.start()
    assert disk.inside.wait(10)
    open_all(budget, disk, "bc")
    assert disk.open_paths == ["/a"]
    disk.gate.set()
    reader.join(10)
    assert found == [b"a"]
    open_all(budget, disk, "d")
    assert disk.open_paths == ["/d"]


def test_close_waits_for_a_read_inside(disk: WatchedDisk) -> None:
    """An owner closes a file during a read of another thread: the read completes, and no later call enters the file."""
    budget = FileBudget(1)
    (a,) = open_all(budget, disk, "a")
    found: list[bytes] = []
    disk.gate = threading.Event()
    reader = threading.Thread(target=lambda: found.append(a.pread(1, 0)))
    reader.start()
    assert disk.inside.wait(10)
    a.close()
    assert disk.open_paths == ["/a"]
    disk.gate.set()
    reader.join(10)
    assert (found, disk.open_paths, budget.open_count) == ([b"a"], [], 0)
    a.close()
    with pytest.raises(AssertionError, match="is closed"):
        a.pread(1, 0)


def test_thread_that_reads_a_closed_file_gets_nothing(disk: WatchedDisk) -> None:
    """A file that the budget has closed is opened again; one that its owner has closed is not."""
    budget = FileBudget(1)
    a, _ = open_all(budget, disk, "ab")
    assert disk.open_paths == ["/b"]
    assert pread_if_open(a, 1, 0) == b"a"
    assert disk.open_paths == ["/a"]
    a.close()
    assert pread_if_open(a, 1, 0) is None
    assert (disk.open_paths, budget.open_count) == ([], 0)
    plain = disk.open_file("/c")
    assert pread_if_open(plain, 1, 0) == b"c"


def test_two_threads_that_open_one_file_share_it(disk: WatchedDisk) -> None:
    """The second descriptor is closed."""
    budget = FileBudget(1)
    (a,) = open_all(budget, disk, "a")
    budget.close_idle()

    def open_first() -> None:
        disk.before_open = None
        assert a.pread(1, 0) == b"a"

    disk.before_open = open_first
    assert a.pread(1, 0) == b"a"
    assert (disk.open_paths, budget.open_count) == (["/a"], 1)


def test_process_limit_is_met_by_closing_idle_files(disk: WatchedDisk) -> None:
    """A new file opens after idle ones were closed; the error comes only if none may be closed."""
    disk.limit = 2
    budget = FileBudget(100)
    a, _ = open_all(budget, disk, "ab")
    open_all(budget, disk, "c")
    assert disk.open_paths == ["/c"]
    a.append([b"1"])
    (b,) = open_all(budget, disk, "b")
    b.append([b"1"])
    with pytest.raises(TooManyOpenFilesError):
        open_all(budget, disk, "d")
    assert (disk.open_paths, budget.open_count) == (["/a", "/b"], 2)


class ShortOfDescriptors(WatchedDisk):
    """A disk that briefly needs a descriptor to read a whole file or to list a directory, like a real one."""

    def read_file(self, path: str) -> bytes:
        """See `Disk.read_file`."""
        self._need_one(path)
        return super().read_file(path)

    def list_directory(self, path: str) -> list[str]:
        """See `Disk.list_directory`."""
        self._need_one(path)
        return super().list_directory(path)

    def _need_one(self, path: str) -> None:
        if len(self.open_paths) >= self.limit:
            raise TooManyOpenFilesError(path, "raise the limit")


def test_reading_a_file_and_listing_meet_the_process_limit_too() -> None:
    """Idle files release their descriptors; without any the error comes."""
    disk = ShortOfDescriptors()
    for name in "ab":
        file = disk.create_file(f"/{name}")
        file.append([name.encode()])
        file.sync()
        file.close()
    disk.limit = 1
    budget = FileBudget(100)
    open_all(budget, disk, "a")
    assert budget.disk(disk).read_file("/b") == b"b"
    assert budget.open_count == 0
    (a,) = open_all(budget, disk, "a")
    assert budget.disk(disk).list_directory("/") == ["a", "b"]
    assert budget.open_count == 0
    a.append([b"1"])
    with pytest.raises(TooManyOpenFilesError):
        budget.disk(disk).read_file("/b")
    with pytest.raises(TooManyOpenFilesError):
        budget.disk(disk).list_directory("/")


def test_failed_close_does_not_hurt_who_needed_the_room(disk: WatchedDisk) -> None:
    """The failure belongs to the disk of the closed file, whose owner sees it at its own close."""
    budget = FileBudget(1)
    open_all(budget, disk, "a")
    disk.bad_close = "/a"
    open_all(budget, disk, "b")
    (a,) = open_all(budget, disk, "a")
    with pytest.raises(DiskFailedError):
        a.close()


def test_wrapping_is_idempotent(disk: WatchedDisk) -> None:
    """The same disk gives the same wrapped disk; a wrapped one gives itself."""
    budget = FileBudget(1)
    wrapped = budget.disk(disk)
    assert budget.disk(disk) is wrapped
    assert budget.disk(wrapped) is wrapped
    assert FileBudget(1).disk(wrapped) is wrapped


def test_many_threads_read_many_files_through_one_descriptor(tmp_path: Path) -> None:
    """Every read returns the bytes of its own file, whatever is closed in the meantime."""
    disk, budget = PosixDisk(), FileBudget(1)
    files = []
    for number in range(6):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 64)
        files.append(budget.disk(disk).open_file(str(tmp_path / str(number))))
    wrong: list[object] = []

    def read(start: int) -> None:
        for turn in range(300):
            number = (start + turn) % len(files)
            try:
                if files[number].pread(64, 0) != bytes([number]) * 64:
                    wrong.append(number)
            except DiskReadError as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert budget.open_count == 1


def test_files_without_a_budget_need_no_marks(disk: WatchedDisk) -> None:
    """A plain file accepts the same calls as a budgeted one."""
    plain = disk.open_file("/a")
    note_synced(plain, write_mark(plain))
    assert needs_sync(plain)


def test_file_that_its_owner_closed_is_not_counted_by_a_late_sync(disk: WatchedDisk) -> None:
    """A truncation closed it during a sync of the whole file system."""
    budget = FileBudget(1)
    (a,) = open_all(budget, disk, "a")
    a.append([b"1"])
    mark = write_mark(a)
    a.close()
    note_synced(a, mark)
    assert (budget.open_count, budget.close_idle(), disk.open_paths) == (0, 0, [])

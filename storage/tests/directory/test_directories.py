# SPDX-License-Identifier: Apache-2.0
"""Several log directories: where partitions are, where new ones are placed, and the effect of a failed directory."""

from __future__ import annotations

import pytest

from storage.directory.directories import (
    MEASURE_INTERVAL_MS,
    MIN_PARTITION_BYTES,
    DirectoryLoad,
    LogDirectories,
    LogDirectory,
    choose_directory,
)
from storage.directory.space import SpaceLimits
from storage.errors import DiskFailedError, DuplicatePartitionError, FileMissingError
from storage.files.names import PartitionIdentity, partition_directory_name
from storage.testing.sim_disk import Refusal, SimDisk

MIB = 1024 * 1024
LIMITS = SpaceLimits(soft_bytes=MIB, hard_bytes=MIB // 4, ballast_bytes=0)


def name_of(number: int) -> str:
    return partition_directory_name(PartitionIdentity(bytes(16), number))


def load(log_bytes: int, free_bytes: int, *, partition_count: int = 0, is_free: bool = True) -> DirectoryLoad:
    return DirectoryLoad(log_bytes=log_bytes, free_bytes=free_bytes, partition_count=partition_count, is_free=is_free)


def test_choice_is_the_least_bytes_for_each_free_byte() -> None:
    """A larger disk takes more; ties go to fewer partitions, then to the first directory; unusable ones are skipped."""
    assert choose_directory([load(100, 1_000), load(150, 2_000)]) == 1
    assert choose_directory([load(100, 1_000), load(250, 2_000)]) == 0
    assert choose_directory([load(0, 10, partition_count=2), load(0, 10, partition_count=1)]) == 1
    assert choose_directory([load(0, 10), load(0, 10)]) == 0
    assert choose_directory([None, load(100, 1)]) == 1
    assert choose_directory([load(0, 0), load(1, 1)]) == 0
    assert choose_directory([None, None]) is None


def test_tight_directory_is_chosen_only_when_all_are() -> None:
    """A new partition is not placed where appends are refused."""
    assert choose_directory([load(0, 1_000, is_free=False), load(10**9, 1_000)]) == 1
    assert choose_directory([load(0, 1_000, is_free=False), load(10**9, 1_000, is_free=False)]) == 0


def make(*capacities: int) -> LogDirectories:
    made: list[LogDirectory] = []
    for number, capacity_bytes in enumerate(capacities):
        disk = SimDisk(capacity_bytes=capacity_bytes)
        disk.make_directory(f"/{number}")
        disk.make_directory(f"/{number}/partitions")
        made.append(LogDirectory(disk, f"/{number}", directory_id=bytes([number]) * 16, limits=LIMITS))
    return LogDirectories(made)


def write(directory: LogDirectory, name: str, size_bytes: int) -> None:
    directory.disk.make_directory(f"{directory.partitions_path}/{name}")
    file = directory.disk.create_file(f"{directory.partitions_path}/{name}/file")
    file.append([bytes(size_bytes)])
    file.close()


def places(directories: LogDirectories, count: int, *, now_ms: int = 0, start: int = 0) -> list[str]:
    return [directories.place(name_of(start + number), now_ms=now_ms).path for number in range(count)]


def test_new_partitions_spread_by_free_space() -> None:
    """Empty partitions count too: a disk with three times the space takes three times as many."""
    directories = make(100 * MIB, 300 * MIB)
    placed = places(directories, 40)
    assert placed.count("/1") == 3 * placed.count("/0") == 30
    assert places(directories, 40) == placed
    assert [directory.path for directory in directories] == ["/0", "/1"]
    assert (len(directories), directories.first.path, str(directories.first)) == (2, "/0", "/0")
    assert directories.ids == (bytes(16), b"\1" * 16)


def test_used_disk_waits_until_the_others_have_as_much() -> None:
    """Existing bytes count."""
    directories = make(100 * MIB, 100 * MIB)
    write(directories.first, name_of(99), 10 * MIB)
    assert places(directories, 13) == ["/1"] * 12 + ["/0"]


def test_sizes_are_measured_again_after_a_while() -> None:
    """The free space is read every time, but the files are not scanned for each new partition."""
    first = make(100 * MIB).first
    write(first, name_of(0), 10 * MIB)
    measured = [first.load(now_ms=0)]
    write(first, name_of(1), 20 * MIB)
    measured += [first.load(now_ms=MEASURE_INTERVAL_MS - 1), first.load(now_ms=MEASURE_INTERVAL_MS)]
    assert [load.log_bytes // MIB for load in measured if load] == [10, 10, 30]
    assert [load.free_bytes // MIB for load in measured if load] == [90, 70, 70]


def test_partition_is_found_where_it_lies() -> None:
    """After a scan a partition stays in its directory, whatever the load; other names are ignored."""
    directories = make(100 * MIB, 100 * MIB)
    _, second = directories
    write(second, name_of(0), 50 * MIB)
    write(second, f"{name_of(1)}.123.removed", 1)
    assert directories.find(name_of(0)) is None
    directories.scan()
    assert directories.find(name_of(0)) is second
    assert directories.find(name_of(1)) is None
    assert directories.place(name_of(0), now_ms=0) is second
    directories.forget(name_of(0))
    directories.forget(name_of(0))
    assert directories.find(name_of(0)) is None


def test_partition_in_two_directories_is_an_error_that_names_both() -> None:
    """It is unknown which copy is newer."""
    directories = make(MIB, MIB, MIB)
    first, _, third = directories
    write(first, name_of(5), 1)
    write(third, name_of(5), 1)
    with pytest.raises(DuplicatePartitionError, match="move the other away") as caught:
        directories.scan()
    assert caught.value.path == f"/0/partitions/{name_of(5)}"
    assert caught.value.other_path == f"/2/partitions/{name_of(5)}"
    assert caught.value.other_path in str(caught.value)


def test_directory_that_cannot_be_listed_is_told() -> None:
    """A start must not treat a missing directory as empty."""
    directories = LogDirectories([LogDirectory(SimDisk(), "/nothing", limits=LIMITS)])
    with pytest.raises(FileMissingError):
        directories.scan()


def test_failed_directory_takes_no_new_partition_and_keeps_its_own() -> None:
    """The others continue; when all have failed, the error says so."""
    directories = make(100 * MIB, 100 * MIB)
    first, second = directories
    write(first, name_of(0), 1)
    directories.scan()
    first.note_failure(DiskFailedError("/0/x", "fsync failed"))
    first.note_failure(DiskFailedError("/0/y", "later"))
    assert first.failure is not None
    assert first.failure.path == "/0/x"
    assert places(directories, 3, start=1) == ["/1"] * 3
    assert directories.place(name_of(0), now_ms=0) is first
    assert isinstance(second.disk, SimDisk)
    second.disk.refuse("sync_directory", "/1", Refusal.IO_ERROR)
    with pytest.raises(DiskFailedError):
        second.disk.sync_directory("/1")
    assert second.failure is second.disk.failure
    with pytest.raises(DiskFailedError, match="repair the disks"):
        directories.place(name_of(9), now_ms=0)


def test_one_directory_is_not_measured() -> None:
    """The usual case reads no file sizes; a failed directory is still refused."""
    directories = LogDirectories([LogDirectory(SimDisk(), "/nothing", limits=LIMITS)])
    assert directories.place(name_of(0), now_ms=0) is directories.first
    directories.first.note_failure(DiskFailedError("/0", "gone"))
    with pytest.raises(DiskFailedError):
        directories.place(name_of(1), now_ms=0)


def test_directory_that_does_not_answer_takes_no_new_partition() -> None:
    """A disk that was removed is skipped before any write to it has failed."""
    lost = LogDirectory(SimDisk(), "/nothing", limits=LIMITS)
    there = next(iter(make(MIB)))
    assert LogDirectories([lost, there]).place(name_of(0), now_ms=0) is there


class VanishingDisk(SimDisk):
    """A disk whose files disappear between listing and measuring."""

    def size_bytes(self, path: str) -> int:
        """See `Disk.size_bytes`."""
        raise FileMissingError(path, "no such file")


def test_files_that_go_away_while_they_are_measured_count_nothing() -> None:
    """Retention continues while a partition is placed."""
    disk = VanishingDisk()
    disk.make_directory("/d")
    disk.make_directory("/d/partitions")
    directory = LogDirectory(disk, "/d", limits=LIMITS)
    write(directory, name_of(0), 7)
    measured = directory.load(now_ms=0)
    assert measured is not None
    assert (measured.log_bytes, measured.partition_count) == (MIN_PARTITION_BYTES, 1)


def test_default_limits_keep_a_reserve() -> None:
    """A directory without limits of its own has the default ones, including the ballast."""
    disk = SimDisk()
    disk.make_directory("/d")
    directory = LogDirectory(disk, "/d")
    directory.space.tend(0)
    assert disk.exists("/d/ballast")

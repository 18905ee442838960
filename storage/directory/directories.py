# SPDX-License-Identifier: Apache-2.0
"""The log directories of one broker: which one holds a partition, where a new partition is placed, and which have failed.

Each directory has its own disk, id, space state (`space_guard`) and failure. What happens to one affects only its
partitions.

Laws
    A partition is in exactly one directory. If it is found in two, the error names both, because it is unknown which
    copy is newer.
    A partition that exists in a directory is never placed again, even if that directory failed.

Placement: a new partition goes to the directory with the fewest bytes of logs for each free byte, among the free ones.
If none is free, it goes to one of all that have not failed. An empty partition counts as `MIN_PARTITION_BYTES`, so that
many new ones spread although none has bytes yet.

Threads: any thread may call everything. `place` and `scan` block for file access, one at a time.
Source: docs/storage.md section 8; KIP-112.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from storage.errors import DiskError, DiskFailedError, DuplicatePartitionError, FileMissingError
from storage.files.disk import Disk
from storage.files.names import PARTITIONS_DIRECTORY, parse_partition_directory_name

from .move_marks import MoveEnd
from .move_recovery import settle_moves
from .space import SpaceLimits, SpaceState
from .space_guard import SpaceGuard

MIN_PARTITION_BYTES = 1024 * 1024
"""Smallest size that a partition counts with in a placement, because it will grow."""

MEASURE_INTERVAL_MS = 60_000
"""Milliseconds for which measured partition sizes are valid for placements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLoad:
    """The load of one directory.

    Attributes:
        log_bytes: bytes of its partitions, each counted as at least `MIN_PARTITION_BYTES`.
        free_bytes: bytes that can still be written.
        partition_count: number of its partitions.
        is_free: True if its space state is free.
    """

    log_bytes: int
    free_bytes: int
    partition_count: int
    is_free: bool


def choose_directory(loads: Sequence[DirectoryLoad | None]) -> int | None:
    """Return the index of the directory for a new partition; None if there is none.

    Args:
        loads: the load of each directory; None for an unusable one.
    """
    usable = [(slot, load) for slot, load in enumerate(loads) if load is not None]
    roomy = [(slot, load) for slot, load in usable if load.is_free] or usable
    if not roomy:
        return None
    return min(roomy, key=lambda item: (_share(item[1]), item[1].partition_count, item[0]))[0]


def _share(load: DirectoryLoad) -> float:
    return load.log_bytes / max(1, load.free_bytes)


class LogDirectory:
    """One log directory of a broker.

    Args:
        disk: its disk, which no other directory shares.
        path: absolute path of the data directory; the partitions are below it in `partitions/`.
        directory_id: its 16-byte id.
        limits: its space limits.

    Raises:
        DiskAccessError: it cannot be used.
    """

    def __init__(
        self, disk: Disk, path: str, *, directory_id: bytes = bytes(16), limits: SpaceLimits | None = None
    ) -> None:
        self.disk = disk
        self.path = path
        self.directory_id = directory_id
        self.space = SpaceGuard(disk, path, limits if limits is not None else SpaceLimits.from_soft())
        self._failure: DiskFailedError | None = None
        self._partition_bytes: dict[str, int] = {}
        self._measured_ms: int | None = None

    def __str__(self) -> str:
        return self.path

    @property
    def partitions_path(self) -> str:
        """Directory of the partition logs."""
        return f"{self.path}/{PARTITIONS_DIRECTORY}"

    @property
    def move_end(self) -> MoveEnd:
        """This directory as one end of a move."""
        return MoveEnd(self.disk, self.partitions_path, self.directory_id)

    @property
    def failure(self) -> DiskFailedError | None:
        """The error after which the directory can no longer be written; None: it can."""
        return self._failure if self._failure is not None else self.disk.failure

    def note_failure(self, error: DiskFailedError) -> None:
        """Note a failure: no partition is placed here any more. The first failure is kept."""
        if self._failure is None:
            self._failure = error

    def partition_names(self) -> list[str]:
        """Return the names of the partition directories.

        Raises:
            FileMissingError, DiskAccessError: the directory cannot be listed.
        """
        names = self.disk.list_directory(self.partitions_path)
        return [name for name in names if parse_partition_directory_name(name) is not None]

    def load(self, *, now_ms: int) -> DirectoryLoad | None:
        """Return the load of the directory, measured again if the last one is old; None if the directory cannot be used."""
        if self.failure is not None:
            return None
        try:
            if self._measured_ms is None or now_ms - self._measured_ms >= MEASURE_INTERVAL_MS:
                self._partition_bytes = {name: self._measure(name) for name in self.partition_names()}
                self._measured_ms = now_ms
            free_bytes = self.disk.free_bytes(self.path)
        except DiskError:
            return None
        return DirectoryLoad(
            log_bytes=sum(max(MIN_PARTITION_BYTES, size) for size in self._partition_bytes.values()),
            free_bytes=free_bytes,
            partition_count=len(self._partition_bytes),
            is_free=self.space.look(now_ms) is SpaceState.FREE,
        )

    def add(self, name: str) -> None:
        """Count a partition that was placed here."""
        self._partition_bytes.setdefault(name, 0)

    def drop(self, name: str) -> None:
        """Stop counting a partition."""
        self._partition_bytes.pop(name, None)

    def _measure(self, name: str) -> int:
        """Return the bytes of a partition; files that disappear in the meantime do not count."""
        size_bytes = 0
        path = f"{self.partitions_path}/{name}"
        try:
            for file_name in self.disk.list_directory(path):
                size_bytes += self.disk.size_bytes(f"{path}/{file_name}")
        except FileMissingError:
            pass
        return size_bytes


class LogDirectories:
    """All log directories of one broker; the first one holds the metadata too.

    Args:
        directories: at least one.
    """

    def __init__(self, directories: Sequence[LogDirectory]) -> None:
        assert directories, "a broker has at least one log directory"
        self._directories = tuple(directories)
        self._by_name: dict[str, LogDirectory] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[LogDirectory]:
        return iter(self._directories)

    def __len__(self) -> int:
        return len(self._directories)

    @property
    def first(self) -> LogDirectory:
        """The directory that also holds the metadata."""
        return self._directories[0]

    @property
    def ids(self) -> tuple[bytes, ...]:
        """The ids of all directories."""
        return tuple(directory.directory_id for directory in self._directories)

    def scan(self) -> None:
        """Settle interrupted moves, and find out which directory holds which partition; to be called before any log is open.

        Afterwards the names are on stable storage, including those that a killed process had not synced.

        Raises:
            DuplicatePartitionError: a partition is in two directories.
            DiskError: a directory cannot be listed or synced.
        """
        with self._lock:
            settle_moves([directory.move_end for directory in self._directories])
            found: dict[str, LogDirectory] = {}
            for directory in self._directories:
                for name in directory.partition_names():
                    other = found.setdefault(name, directory)
                    if other is not directory:
                        raise DuplicatePartitionError(
                            f"{other.partitions_path}/{name}", f"{directory.partitions_path}/{name}"
                        )
            self._by_name = found

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the partition directories in all log directories."""
        with self._lock:
            return tuple(self._by_name)

    @property
    def failed_ids(self) -> tuple[bytes, ...]:
        """Ids of the failed directories, ascending."""
        return tuple(sorted(each.directory_id for each in self._directories if each.failure is not None))

    def by_id(self, directory_id: bytes) -> LogDirectory | None:
        """Return the directory with this id, or None."""
        return next((each for each in self._directories if each.directory_id == directory_id), None)

    def relocate(self, name: str, directory: LogDirectory) -> None:
        """Note that a partition moved to another directory."""
        with self._lock:
            before = self._by_name.get(name)
            if before is not None:
                before.drop(name)
            directory.add(name)
            self._by_name[name] = directory

    def find(self, name: str) -> LogDirectory | None:
        """Return the log directory that holds a partition, given by its directory name, or None."""
        return self._by_name.get(name)

    def place(self, name: str, *, now_ms: int) -> LogDirectory:
        """Return the directory that holds a partition, or choose one for a new partition. Blocks for file access.

        Args:
            name: name of the partition's directory.
            now_ms: monotonic clock in milliseconds.

        Raises:
            DiskFailedError: every directory has failed.
        """
        with self._lock:
            known = self._by_name.get(name)
            if known is not None:
                return known
            # A single directory needs no measuring.
            is_only = len(self._directories) == 1 and self.first.failure is None
            loads = [] if is_only else [directory.load(now_ms=now_ms) for directory in self._directories]
            slot = 0 if is_only else choose_directory(loads)
            if slot is None:
                raise DiskFailedError(self.first.path, "no log directory can take a new partition: repair the disks")
            chosen = self._directories[slot]
            chosen.add(name)
            self._by_name[name] = chosen
            return chosen

    def forget(self, name: str) -> None:
        """Forget a partition whose directory was renamed for removal, or never made."""
        with self._lock:
            directory = self._by_name.pop(name, None)
            if directory is not None:
                directory.drop(name)

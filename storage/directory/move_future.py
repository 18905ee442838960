# SPDX-License-Identifier: Apache-2.0
"""The future replica of a move: the copy of a log in another directory, `<partition>.<move id>-future`.

Laws
    When `finish` returns, the copy has all bytes of segments and all files that are not caches on stable storage.
    Caches (indexes, seals, producer snapshots) have their own checksums and are copied without a sync, as they were
    written.
    At most `COPY_BYTES` of a log are in memory, and two files are open. Every piece first waits for `pace`.
    Nothing opens an unfinished copy as a log. The next start removes its remains (`move_recovery`).

Every method blocks; one call at a time, from any thread. Source: docs/storage.md section 11.
"""

from __future__ import annotations

from collections.abc import Callable

from storage.errors import CorruptLogError, FileMissingError
from storage.files.checkpoints import encode_lines, replace_file, take_replacement, write_replacement
from storage.files.disk import File
from storage.files.names import (
    CLEANED_SUFFIX,
    CLEANER_FILE,
    DELETED_SUFFIX,
    FUTURE_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    MOVED_FROM_FILE,
    MOVED_TO_FILE,
    SEAL_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    move_directory_name,
    offset_file_name,
    parse_offset_file_name,
)

from .move_marks import MoveEnd, MoveMark, remove_directory_with_files
from .move_plan import CopiedSegment, CopyRound, SegmentCopy

COPY_BYTES = 1024 * 1024
"""Bytes that are read and written at once."""

SYNC_BYTES = 32 * 1024 * 1024
"""Bytes after which a file is synced during the copy, so that the last sync is short."""

_CACHE_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SEAL_SUFFIX)
_PASSING_SUFFIXES = (LOG_SUFFIX, TEMPORARY_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)

Pace = Callable[[int], None]
"""Called with a number of bytes before they are copied; waits, and raises to end the copy."""


class MoveFuture:
    """The future replica of one move; the move's thread calls it.

    Args:
        source: the log's end of the move.
        target: the copy's end of the move.
        partition_name: name of the partition's directory.
        move_id: 16 random bytes that identify the move.

    Attributes:
        partition_name: name of the partition's directory.
        move_id: id of the move.
        path: path of the copy.
        copied: what the copy holds, by base offset of the segment.
    """

    def __init__(self, source: MoveEnd, target: MoveEnd, *, partition_name: str, move_id: bytes) -> None:
        self._source = source
        self._target = target
        self.partition_name = partition_name
        self.move_id = move_id
        self._source_path = f"{source.partitions_path}/{partition_name}"
        self.path = f"{target.partitions_path}/{move_directory_name(partition_name, move_id, FUTURE_SUFFIX)}"
        self.copied: dict[int, CopiedSegment] = {}
        self._cached: dict[int, CopiedSegment] = {}

    def create(self) -> None:
        """Make the empty copy, with the mark `moved-from`.

        Raises:
            DiskFullError, DiskFailedError, DiskAccessError: the target.
        """
        disk = self._target.disk
        disk.make_directory(self.path)
        disk.sync_directory(self._target.partitions_path)
        mark = MoveMark(self.move_id, self._source.directory_id)
        replace_file(disk, f"{self.path}/{MOVED_FROM_FILE}", encode_lines(mark.encode()))

    def carry_out(self, work: CopyRound, pace: Pace) -> None:
        """Carry out a copy round.

        Skips a source file that is missing or shorter than the view says. The log has changed then, and the next view
        shows how.

        Raises:
            DiskFullError, DiskFailedError, DiskReadError, DiskAccessError, TooManyOpenFilesError: either end.
        """
        for base_offset in work.removals:
            self._remove(base_offset)
        for copy in work.copies:
            self._copy_segment(copy, pace)

    def copy_caches(self, pace: Pace) -> None:
        """Copy the caches of the segments whose bytes changed since the last call.

        Raises:
            DiskFullError, DiskFailedError, DiskReadError, DiskAccessError, TooManyOpenFilesError: either end.
        """
        for base_offset, copied in self.copied.items():
            if self._cached.get(base_offset) == copied:
                continue
            for suffix in _CACHE_SUFFIXES:
                self._copy_file(offset_file_name(base_offset, suffix), pace, durable=False)
            self._cached[base_offset] = copied

    def finish(self, last: CopyRound) -> None:
        """Complete the copy of a log that is no longer written; afterwards it is on stable storage.

        Args:
            last: the last round.

        Raises:
            CorruptLogError: the log changed under the last round.
            DiskFullError, DiskFailedError, DiskReadError, DiskAccessError, TooManyOpenFilesError: either end.
        """
        self.carry_out(last, _at_once)
        for copy in last.copies:
            known = self.copied.get(copy.base_offset)
            if known != CopiedSegment(size_bytes=copy.to_bytes, generation=copy.generation):
                raise CorruptLogError(
                    self._source_path, "a segment is not what its owner says; the move ends, the log stays"
                )
        # The clean mark wrote the indexes of the active segment.
        self._cached.pop(max(self.copied), None)
        self.copy_caches(_at_once)
        for name in self._source.disk.list_directory(self._source_path):
            if name.endswith(SNAPSHOT_SUFFIX) or name == CLEANER_FILE:
                self._copy_file(name, _at_once, durable=False)
            elif _is_truth(name):
                self._copy_file(name, _at_once, durable=True)
        self._target.disk.sync_directory(self.path)

    def discard(self) -> None:
        """Remove the copy.

        Raises:
            DiskFailedError, DiskAccessError: the target; the next start removes it.
        """
        remove_directory_with_files(self._target.disk, self.path)

    def _remove(self, base_offset: int) -> None:
        disk = self._target.disk
        for suffix in (*_CACHE_SUFFIXES, LOG_SUFFIX):
            path = f"{self.path}/{offset_file_name(base_offset, suffix)}"
            if disk.exists(path):
                disk.remove(path)
        # No sync: after a crash the whole copy is removed anyway, and otherwise `finish` syncs the directory.
        self.copied.pop(base_offset, None)
        self._cached.pop(base_offset, None)

    def _copy_segment(self, copy: SegmentCopy, pace: Pace) -> None:
        name = offset_file_name(copy.base_offset, LOG_SUFFIX)
        try:
            source = self._source.disk.open_file(f"{self._source_path}/{name}")
        except FileMissingError:
            return
        try:
            disk, path = self._target.disk, f"{self.path}/{name}"
            target = disk.open_file(path) if copy.base_offset in self.copied else disk.create_file(path)
            try:
                self._copy_bytes(copy, source, target, pace)
                target.sync()
            finally:
                target.close()
        finally:
            source.close()

    def _copy_bytes(self, copy: SegmentCopy, source: File, target: File, pace: Pace) -> None:
        self.copied[copy.base_offset] = CopiedSegment(size_bytes=copy.from_bytes, generation=copy.generation)
        unsynced_bytes = 0
        for position in range(copy.from_bytes, copy.to_bytes, COPY_BYTES):
            size_bytes = min(COPY_BYTES, copy.to_bytes - position)
            pace(size_bytes)
            data = source.pread(size_bytes, position)
            if len(data) < size_bytes:
                return
            target.append([data])
            self.copied[copy.base_offset] = CopiedSegment(size_bytes=position + size_bytes, generation=copy.generation)
            unsynced_bytes += size_bytes
            if unsynced_bytes >= SYNC_BYTES:
                target.sync()
                unsynced_bytes = 0

    def _copy_file(self, name: str, pace: Pace, *, durable: bool) -> None:
        """Copy a small file as a whole; skip it if it does not exist."""
        try:
            content = self._source.disk.read_file(f"{self._source_path}/{name}")
        except FileMissingError:
            return
        pace(len(content))
        path = f"{self.path}/{name}"
        write_replacement(self._target.disk, path, content, durable=durable)
        take_replacement(self._target.disk, path)


def _at_once(_size_bytes: int) -> None:
    """Do not wait: the last step is short."""


def _is_truth(name: str) -> bool:
    """Tell whether a file is neither a segment, nor a cache, nor temporary."""
    if name in (MOVED_TO_FILE, MOVED_FROM_FILE) or name.endswith(_PASSING_SUFFIXES):
        return False
    return parse_offset_file_name(name) is None

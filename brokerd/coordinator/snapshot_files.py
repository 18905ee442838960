# SPDX-License-Identifier: Apache-2.0
"""The file `coordinator.snapshot` in the directory of a partition. Every call waits for the device: they run in threads.

Law: under the name there is a whole snapshot or none, also after a crash: a new one is written beside it, synced and renamed, and the
directory is synced. The opening of a log removes what a crash left of the temporary file.
Source: ALICE (OSDI 2014), rule "replace"; `storage.files.checkpoints`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from lograft.wire.errors import BatchError
from lograft.wire.header import read_header
from lograft.wire.limits import HEADER_BYTES, MAX_BATCH_BYTES

from brokerd.coordinator.core import Record
from brokerd.coordinator.prefix import SnapshotId
from brokerd.coordinator.snapshot_format import (
    END_BYTES,
    HEAD_BYTES,
    DamagedSnapshotError,
    SnapshotEnd,
    decode_chunk,
    decode_end,
    decode_head,
    encode_chunks,
    encode_end,
    encode_head,
)
from storage.errors import FileMissingError
from storage.files.checkpoints import remove_if_exists, take_replacement
from storage.files.disk import Disk, File
from storage.files.names import TEMPORARY_SUFFIX, PartitionIdentity

SNAPSHOT_FILE: Final = "coordinator.snapshot"
"""Name of the file."""


class AbandonedError(Exception):
    """The caller no longer wants the snapshot that is being written."""


class SnapshotFile:
    """The snapshot file of one partition.

    Args:
        disk: the disk of its log directory. Not that of the log: the file stays open while it is replaced.
        directory: the directory of the partition.
        identity: the partition.
    """

    def __init__(self, disk: Disk, directory: str, identity: PartitionIdentity) -> None:
        self._disk = disk
        self._directory = directory
        self._identity = identity

    @property
    def path(self) -> str:
        """Path of the file."""
        return f"{self._directory}/{SNAPSHOT_FILE}"

    def open(self) -> SnapshotReader | None:
        """Open the file for reading; None: there is none.

        Raises:
            DamagedSnapshotError: its head or its end is damaged, or it is not of this partition.
            StorageError: it cannot be read.
        """
        try:
            file = self._disk.open_file(self.path)
        except FileMissingError:
            return None
        try:
            return SnapshotReader(file, self._identity)
        except BaseException:
            file.close()
            raise

    def write(self, snapshot: SnapshotId, records: Iterable[Record], *, is_wanted: Callable[[], bool]) -> int:
        """Write and sync the temporary file; `put_in_place` gives it its name. Return its size in bytes.

        Args:
            snapshot: which snapshot.
            records: of each key one, without tombstones.
            is_wanted: asked before each chunk.

        Raises:
            AbandonedError: it is no longer wanted; nothing is left.
            DiskFullError: no space; nothing is left.
            StorageError: the disk.
        """
        temporary = self.path + TEMPORARY_SUFFIX
        remove_if_exists(self._disk, temporary)
        file = self._disk.create_file(temporary)
        try:
            size_bytes = self._write(file, snapshot, records, is_wanted)
            file.sync()
        except BaseException:
            file.close()
            if self._disk.failure is None:
                remove_if_exists(self._disk, temporary)
            raise
        file.close()
        return size_bytes

    def _write(self, file: File, snapshot: SnapshotId, records: Iterable[Record], is_wanted: Callable[[], bool]) -> int:
        topic_id, partition = self._identity
        file.append((encode_head(snapshot, topic_id=topic_id, partition=partition),))
        record_count = chunk_count = 0
        for chunk, count in encode_chunks(records):
            if not is_wanted():
                raise AbandonedError
            file.append((chunk,))
            record_count += count
            chunk_count += 1
        file.append((encode_end(SnapshotEnd(record_count, chunk_count)),))
        return file.size

    def put_in_place(self) -> None:
        """Give the temporary file its name, in place of the last snapshot.

        Raises:
            StorageError: the disk.
        """
        take_replacement(self._disk, self.path)
        self._disk.sync_directory(self._directory)

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._disk.failure is None:
            remove_if_exists(self._disk, self.path + TEMPORARY_SUFFIX)


class SnapshotReader:
    """An open snapshot. One thread at a time reads it; any may close it.

    Attributes:
        snapshot: which snapshot it is.
        size_bytes: size of the file.
        record_count: number of its records.
    """

    def __init__(self, file: File, identity: PartitionIdentity) -> None:
        self._file = file
        # A cancelled reader's thread may still read while the event loop closes the file.
        self._lock = threading.Lock()
        self.size_bytes = file.size
        self.snapshot = decode_head(file.pread(HEAD_BYTES, 0), topic_id=identity.topic_id, partition=identity.partition)
        if self.size_bytes < HEAD_BYTES + END_BYTES:
            raise DamagedSnapshotError(f"it has {self.size_bytes} bytes")
        self._chunks_end = self.size_bytes - END_BYTES
        self._end = decode_end(file.pread(END_BYTES, self._chunks_end))
        self.record_count = self._end.record_count
        self._position = HEAD_BYTES
        self._read = SnapshotEnd(0, 0)

    def next_chunk(self) -> list[Record] | None:
        """Return the records of the next chunk; None after the last one.

        Raises:
            DamagedSnapshotError: the bytes are damaged; what was returned before is from whole chunks, but may not be all.
            DiskError: they cannot be read.
        """
        with self._lock:
            return self._next_chunk()

    def _next_chunk(self) -> list[Record] | None:
        read = self._read
        if self._position == self._chunks_end:
            if read != self._end:
                raise DamagedSnapshotError(f"it has {read}, its end says {self._end}")
            return None
        try:
            size_bytes = read_header(self._file.pread(HEADER_BYTES, self._position)).size_bytes
        except BatchError as error:
            raise DamagedSnapshotError(f"its chunk behind record {read.record_count} is damaged: {error}") from error
        if not HEADER_BYTES <= size_bytes <= min(self._chunks_end - self._position, MAX_BATCH_BYTES):
            raise DamagedSnapshotError(f"its chunk behind record {read.record_count} claims {size_bytes} bytes")
        records = decode_chunk(self._file.pread(size_bytes, self._position), base=read.record_count)
        self._position += size_bytes
        self._read = SnapshotEnd(read.record_count + len(records), read.chunk_count + 1)
        return records

    def records(self) -> Iterator[Record]:
        """Yield all records that are left; raises as `next_chunk`."""
        while (records := self.next_chunk()) is not None:
            yield from records

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

# SPDX-License-Identifier: Apache-2.0
"""All errors of the log engine.

    StorageError
    +-- DiskError                      the environment failed
    |   +-- DiskFailedError            fatal for the log directory: write or fsync failed; never retried
    |   +-- DiskFullError              nothing was written; reads, deletes and retention continue
    |   +-- DiskSpaceLowError          appends are refused before the disk is full
    |   +-- DiskReadError              one range cannot be read
    |   +-- DiskAccessError            permission denied, read-only file system, not a directory
    |   +-- FileMissingError
    |   +-- FileExistsInDiskError
    |   +-- TooManyOpenFilesError
    |   +-- LockHeldError              another process holds the lock file
    +-- LogError                       one log refused a call or is damaged
    |   +-- LogClosedError
    |   +-- OffsetOutOfRangeError
    |   +-- DataLossError              the records of exactly this range are damaged here
    |   +-- CorruptLogError            the files of a log contradict each other; it cannot be opened
    |   +-- MoveInDoubtError           a move to another directory failed, and it is unknown which copy is the log
    |   +-- WrongPartitionError        partition.metadata names another partition
    |   +-- OutOfOrderOffsetError      a follower append does not continue the log
    |   +-- OutOfOrderSequenceError
    |   +-- ProducerFencedError
    |   +-- CoordinatorFencedError     a replaced coordinator tried to end a transaction
    +-- DataDirectoryError
        +-- UnformattedDirectoryError
        +-- AlreadyFormattedError
        +-- CorruptDirectoryError
        +-- WrongClusterError
        +-- WrongNodeError
        +-- DirectoryLockedError
        +-- DirectoryMissingError
        +-- DuplicatePartitionError
        +-- DirectoryNotWritableError

Every error says what to do and carries the path or the offsets. `code` is the wire code that a broker answers with.
The module must not import `os`, and knows no file format.
"""

from __future__ import annotations

from typing import ClassVar

from lograft.wire.codes import ErrorCode


class StorageError(Exception):
    """Base of every error of the storage package."""

    code: ClassVar[ErrorCode] = ErrorCode.STORAGE_FAILED


class DiskError(StorageError):
    """The disk under a log failed, or refused a call.

    Attributes:
        path: file or directory that the call was about.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class DiskFailedError(DiskError):
    """A write, truncate, rename or fsync failed; this process must not write to the log directory again.

    After a failed fsync the kernel marks the pages clean. A second fsync then succeeds although data is lost. Repair
    the disk and restart the process; recovery then decides what survived.

    Source: Rebello et al., "Can Applications Recover from fsync Failures?" (ATC 2020).
    """


class DiskFullError(DiskError):
    """No space, quota or file size is left: nothing of the call took effect. Free space and try again."""


class DiskSpaceLowError(DiskError):
    """The log directory has too little free space: nothing was written. Reads, deletes and retention continue.

    Attributes:
        free_bytes: bytes that are free.
        needed_bytes: bytes that must be free, plus an eighth, before the directory accepts writes again.
        size_bytes: bytes that a background task was about to write; 0: the refused write was an append.
    """

    def __init__(self, path: str, *, free_bytes: int, needed_bytes: int, size_bytes: int = 0) -> None:
        refused = f"{size_bytes} bytes were not begun to be written" if size_bytes else "nothing was appended"
        super().__init__(
            path,
            f"the disk of the broker has {free_bytes} bytes free and keeps {needed_bytes} in reserve, {refused}; "
            "reads and deletes still work, delete records or topics, shorten their retention, or add space",
        )
        self.size_bytes = size_bytes
        self.free_bytes = free_bytes
        self.needed_bytes = needed_bytes


class DiskReadError(DiskError):
    """The device could not return these bytes."""


class DiskAccessError(DiskError):
    """Permission denied, read-only file system, or a path component that is not a directory."""


class FileMissingError(DiskError):
    """The file or directory does not exist."""


class FileExistsInDiskError(DiskError):
    """The file to be created already exists."""


class TooManyOpenFilesError(DiskError):
    """The process has no file descriptor left: raise its limit (`ulimit -n`)."""


class LockHeldError(DiskError):
    """Another process, or another object of this process, holds the lock file."""


class LogError(StorageError):
    """One log refused a call or is damaged; the other logs of the directory are not affected."""


class LogClosedError(LogError):
    """The log was closed.

    Attributes:
        directory: directory of the log.
    """

    def __init__(self, directory: str) -> None:
        super().__init__(f"{directory}: the log is closed")
        self.directory = directory


class OffsetOutOfRangeError(LogError):
    """The offset is below the log start or above the log end.

    Attributes:
        offset: the requested offset.
        log_start_offset: first readable offset, inclusive.
        log_end_offset: end of the log, exclusive. A read at this offset returns nothing and raises no error.
    """

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, offset: int, *, log_start_offset: int, log_end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside [{log_start_offset}, {log_end_offset}]")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class DataLossError(LogError):
    """The records of [base_offset, end_offset) are damaged in this replica; all others can be read.

    Attributes:
        path: the segment file, or the directory if the bytes are missing.
        base_offset: first damaged offset, inclusive.
        end_offset: end of the damage, exclusive; a reader that accepts the loss continues here.
    """

    code = ErrorCode.DATA_LOSS

    def __init__(self, path: str, *, base_offset: int, end_offset: int) -> None:
        super().__init__(
            f"{path}: records [{base_offset}, {end_offset}) are damaged; "
            f"repair them from a replica or go on at {end_offset}"
        )
        self.path = path
        self.base_offset = base_offset
        self.end_offset = end_offset


class CorruptLogError(LogError):
    """The files of a log contradict each other in a way that no crash leaves behind; the log stays closed.

    Attributes:
        directory: directory of the log.
    """

    code = ErrorCode.DATA_LOSS

    def __init__(self, directory: str, message: str) -> None:
        super().__init__(f"{directory}: {message}")
        self.directory = directory


class MoveInDoubtError(LogError):
    """A move to another log directory could be neither finished nor undone; neither copy may be written.

    Repair the disk and restart the process; its start finds out which copy is the log.
    """

    def __init__(self, directory: str, problem: str) -> None:
        super().__init__(f"{directory}: the move to another directory is in doubt, restart the broker: {problem}")
        self.directory = directory


class WrongPartitionError(LogError):
    """`partition.metadata` names another partition than the one to be opened."""

    def __init__(self, directory: str, *, expected: str, found: str) -> None:
        super().__init__(f"{directory}: the files belong to partition {found}, not to {expected}")
        self.directory = directory
        self.expected = expected
        self.found = found


class OutOfOrderOffsetError(LogError):
    """An append does not continue the log: offsets or epochs go back, or leave a gap. Nothing was written.

    Attributes:
        expected_offset: log end offset, where the batch should start.
        base_offset: offset where the batch starts.
    """

    code = ErrorCode.INVALID_BATCH

    def __init__(self, message: str, *, expected_offset: int, base_offset: int) -> None:
        super().__init__(f"{message} (expected base offset {expected_offset}, got {base_offset})")
        self.expected_offset = expected_offset
        self.base_offset = base_offset


class OutOfOrderSequenceError(LogError):
    """The sequence leaves a gap, or repeats a batch older than the kept producer state. Nothing was written.

    Attributes:
        producer_id: the producer.
        expected_sequence: the sequence that continues this producer's batches.
        base_sequence: the sequence of the refused batch.
    """

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE

    def __init__(self, *, producer_id: int, expected_sequence: int, base_sequence: int) -> None:
        super().__init__(
            f"producer {producer_id}: expected sequence {expected_sequence}, got {base_sequence}; "
            "a batch is missing or repeats one that left the idempotence window"
        )
        self.producer_id = producer_id
        self.expected_sequence = expected_sequence
        self.base_sequence = base_sequence


class ProducerFencedError(LogError):
    """The log knows a higher epoch of this producer id. Nothing was written; the producer needs a new epoch.

    Attributes:
        producer_id: the producer.
        current_epoch: epoch that the log knows.
        producer_epoch: epoch of the refused batch.
    """

    code = ErrorCode.PRODUCER_FENCED

    def __init__(self, *, producer_id: int, current_epoch: int, producer_epoch: int) -> None:
        super().__init__(
            f"producer {producer_id}: epoch {producer_epoch} is fenced by epoch {current_epoch}; "
            "ask for a new producer id"
        )
        self.producer_id = producer_id
        self.current_epoch = current_epoch
        self.producer_epoch = producer_epoch


class CoordinatorFencedError(LogError):
    """A coordinator with a higher epoch has already ended a transaction of this producer. Nothing was written.

    The coordinator that sent this batch was replaced and must stop; its successor decides.

    Attributes:
        producer_id: the producer whose transaction the batch would end.
        current_epoch: coordinator epoch that the log knows.
        coordinator_epoch: epoch of the refused batch; -1: it carries none.
    """

    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED

    def __init__(self, *, producer_id: int, current_epoch: int, coordinator_epoch: int) -> None:
        super().__init__(
            f"producer {producer_id}: a transaction coordinator of epoch {coordinator_epoch} is fenced by epoch "
            f"{current_epoch}: it was replaced and must stop"
        )
        self.producer_id = producer_id
        self.current_epoch = current_epoch
        self.coordinator_epoch = coordinator_epoch


class DataDirectoryError(StorageError):
    """A data directory cannot be used.

    Attributes:
        path: the data directory.
    """

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class UnformattedDirectoryError(DataDirectoryError):
    """The directory has no `meta.json`: format it first."""


class AlreadyFormattedError(DataDirectoryError):
    """`create` was called on a directory that already has a `meta.json`."""


class CorruptDirectoryError(DataDirectoryError):
    """`meta.json` cannot be read, or its format version is unknown to this server."""


class WrongClusterError(DataDirectoryError):
    """The directory belongs to another cluster."""

    code = ErrorCode.WRONG_CLUSTER


class WrongNodeError(DataDirectoryError):
    """The directory belongs to another node of the cluster."""


class DirectoryLockedError(DataDirectoryError):
    """Another server is running on this directory."""


class DirectoryMissingError(DataDirectoryError):
    """A log directory that this server had is empty or not configured now; its partitions would start empty."""


class DuplicatePartitionError(DataDirectoryError):
    """The same partition is in two log directories.

    Attributes:
        other_path: the second directory.
    """

    def __init__(self, path: str, other_path: str) -> None:
        super().__init__(
            path,
            f"the same partition lies in {other_path} too: find out which one is the right one, move the other away, and start "
            "again",
        )
        self.other_path = other_path


class DirectoryNotWritableError(DataDirectoryError):
    """The directory cannot be created or written."""

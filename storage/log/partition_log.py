# SPDX-License-Identifier: Apache-2.0
"""One partition log: append, read, truncate, flush. The Raft log of the metadata quorum is one of these too.

Rules of use
    One owner (thread or event loop) calls everything; only `FlushWork.run` may run elsewhere. Nothing here waits
    for the device except `truncate_suffix`, `truncate_prefix`, `restart_at`, `apply_retention`, `close` and opening; a read
    may wait for the device if the page cache misses.

Laws
    log_start_offset <= flushed_offset <= log_end_offset; offsets are contiguous; leader epochs never go back.
    A refused append leaves everything as it was. After `DiskFailedError` nothing is written any more; reads go on.
    `flushed_offset` moves only in `end_flush` (up), `truncate_suffix` (down) and with the log start: never claim what may be lost.

Theory
    `PartitionLog` decides what may be called when, and remembers a failure; `tail` appends, `reader` reads,
    `flush_state` knows what is on stable storage. Indexes, epochs and producers are memory; the log is their truth.
    `begin_flush` collects everything dirty into one `FlushWork`; meanwhile appends go on and make the next group.
    See docs/storage_format.md for files and recovery.

Source: architecture sections 4 and 6; Kafka, UnifiedLog.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from lograft.wire.header import BatchHeader

from storage.compaction.owner import LogCompaction
from storage.directory.move_source import MoveSource
from storage.errors import DiskFailedError, LogClosedError, OffsetOutOfRangeError, StorageError
from storage.files.descriptor_cache import FileBudget
from storage.files.disk import Buffer, Disk
from storage.files.names import PartitionIdentity
from storage.maintenance.repair_owner import LogRepair
from storage.maintenance.scrub_owner import LogScrub
from storage.types import Appended, DamagedRange, EpochEnd, LogRead, LogSettings, RecoveryReport, TimestampAndOffset

from .closing import has_clean_mark, leave_clean_mark
from .flush import FlushWork
from .flush_state import FlushState
from .prefix import LogPrefix
from .producers import ProducerWindows
from .reader import LogReader
from .recovery import LogParts, open_log
from .suffix import LogSuffix
from .tail import LogTail


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """A log and what opening it found."""

    log: PartitionLog
    report: RecoveryReport


class PartitionLog:
    """An open log; made by `open`.

    Attributes:
        prefix: its front side, for an owner that has a thread wait for the disk; the methods below wait themselves.
        compaction: puts compacted segments in the place of others (`compaction.cleaner` does the work).
    """

    def __init__(self, disk: Disk, directory: str, parts: LogParts, settings: LogSettings) -> None:
        self._disk = disk
        self._directory = directory
        self._parts = parts
        self._segments = parts.segments
        self._reader = LogReader(parts.segments, parts.damage, settings)
        self._flush_state = FlushState(disk, directory, parts, parts.segments.active.end_offset)
        self._tail = LogTail(disk, directory, parts, self._flush_state, settings)
        self._failure: DiskFailedError | None = None
        self._closed = False
        sides = (disk, directory, parts, self._tail, self._flush_state, self._reader, self._writing)
        self.prefix, self.compaction = LogPrefix(*sides), LogCompaction(*sides)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        settings: LogSettings,
        now_ms: int,
        identity: PartitionIdentity | None = None,
        files: FileBudget | None = None,
    ) -> OpenedLog:
        """Open the log in a directory and flush its content; create it if there is none (its parent must exist).

        Args:
            disk: the disk that holds it.
            directory: absolute path.
            settings: how to keep it.
            now_ms: the caller's clock in milliseconds, the same one as in later calls.
            identity: whose records these are; checked against `partition.metadata`, which is written if missing.
            files: bound on open files, shared with other logs; None: one of its own.

        Raises:
            CorruptLogError: the files contradict each other in a way that no crash leaves behind.
            WrongPartitionError: the directory belongs to another partition.
            DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError: the disk.
        """
        path = str(directory)
        disk = (files or FileBudget()).disk(disk)
        parts, report = open_log(disk, path, settings=settings, now_ms=now_ms, identity=identity)
        return OpenedLog(log=cls(disk, path, parts, settings), report=report)

    @property
    def directory(self) -> str:
        """Path of the log's directory."""
        return self._directory

    @property
    def settings(self) -> LogSettings:
        """The settings in force."""
        return self._tail.settings

    @property
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self._parts.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets (exclusive end)."""
        return self._tail.end_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is on stable storage (exclusive)."""
        return self._flush_state.flushed_offset

    @property
    def last_epoch(self) -> int | None:
        """Largest leader epoch of the log, or None for a log that never had one."""
        return self._tail.leader_epoch

    @property
    def last_record_epoch(self) -> int | None:
        """Leader epoch of the last record, or None for a log without records, wherever it begins."""
        end_offset = self._tail.end_offset
        return self._parts.epochs.epoch_at(end_offset - 1) if end_offset > self._parts.log_start_offset else None

    @property
    def producers(self) -> ProducerWindows:
        """Idempotence windows and transactions; to look at."""
        return self._parts.producers

    @property
    def damaged(self) -> tuple[DamagedRange, ...]:
        """Ranges that are known to be damaged, as far as they reach above the log start."""
        return tuple(found for found in self._parts.damage.all() if found.end_offset > self._parts.log_start_offset)

    @property
    def segment_count(self) -> int:
        """Number of segments, the active one included."""
        return len(self._segments)

    @property
    def failure(self) -> DiskFailedError | None:
        """Why nothing can be written any more, if so."""
        return self._failure

    def apply_settings(self, settings: LogSettings) -> None:
        """Replace the settings; they hold from the next call on."""
        self._tail.settings = settings
        self._reader.interval_bytes = settings.index_interval_bytes
        self._reader.verify = settings.verify_first_read
        self._parts.producers.evict_idlest(settings.max_producers)

    def append_as_leader(self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> Appended:
        """Append one batch, stamping base offset and leader epoch; or find that it is here already.

        The caller has checked the bytes (`lograft.wire.batch.check_batch`); `header` is theirs. They are not copied.

        Returns:
            Where the batch stands. For a duplicate, the original's offsets.

        Raises:
            OutOfOrderSequenceError, ProducerFencedError: see `storage.log.producers`; nothing changed.
            OutOfOrderOffsetError: `leader_epoch` is below that of the last record; nothing changed.
            DiskFullError: nothing was appended; free space and try again.
            DiskFailedError: the log directory failed for good.
            LogClosedError: the log is closed.
        """
        if self._failure is not None or self._closed:
            self._refuse_write()
        try:
            return self._tail.append_as_leader(batch, header, leader_epoch=leader_epoch, now_ms=now_ms)
        except DiskFailedError as error:
            self._failure = error
            raise

    def append_as_follower(self, batches: Buffer, *, now_ms: int) -> Appended:
        """Append whole batches that a leader sent, byte for byte; all are checked before the first is written.

        Returns:
            The range that was appended (empty for empty `batches`).

        Raises:
            BatchError: torn or damaged bytes; nothing changed.
            OutOfOrderOffsetError: they do not continue the log; nothing changed.
            DiskFullError: batches may be missing at the end: `log_end_offset` tells what was appended.
            DiskFailedError, LogClosedError: as in `append_as_leader`.
        """
        with self._writing():
            return self._tail.append_as_follower(batches, now_ms=now_ms)

    def assign_epoch(self, leader_epoch: int) -> None:
        """Note, in memory only, that a leader epoch begins at the log end, before it has any record; nothing for the last epoch."""
        self._tail.assign_epoch(leader_epoch)

    def _refuse_write(self) -> None:
        """Raise why nothing can be written."""
        if self._closed:
            raise LogClosedError(self._directory)
        failure = self._failure
        assert failure is not None, "nothing stands against writing"
        raise DiskFailedError(failure.path, f"the log failed before: {failure}")

    @contextmanager
    def _writing(self) -> Generator[None]:
        """Refuse a log that cannot be written; remember why the disk fails meanwhile."""
        if self._failure is not None or self._closed:
            self._refuse_write()
        try:
            yield
        except DiskFailedError as error:
            self._failure = error
            raise

    def read(self, offset: int, max_bytes: int, *, end_offset: int | None = None) -> LogRead:
        """Return whole batches from the one that holds `offset` on, of one segment at most.

        Args:
            offset: first record wanted (inclusive); the first batch may begin below it.
            max_bytes: most bytes; the first batch is returned even if it is larger.
            end_offset: no batch that reaches beyond it is returned (exclusive): the high watermark, say. None: log end.

        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
            DataLossError: the record at `offset` is damaged; the error says where reading can go on.
            DiskReadError: the device failed to return the bytes.
            LogClosedError: the log is closed.
        """
        if self._closed:
            raise LogClosedError(self._directory)
        log_start_offset, log_end_offset = self._parts.log_start_offset, self._tail.end_offset
        if not log_start_offset <= offset <= log_end_offset:
            raise OffsetOutOfRangeError(offset, log_start_offset=log_start_offset, log_end_offset=log_end_offset)
        limit = log_end_offset if end_offset is None or end_offset > log_end_offset else end_offset
        return self._reader.read(offset, max_bytes, end_offset=limit, flushed_offset=self.flushed_offset)

    def find_timestamp(self, timestamp_ms: int, *, end_offset: int) -> TimestampAndOffset | None:
        """Return the first user record whose timestamp is `timestamp_ms` or later.

        Args:
            timestamp_ms: milliseconds since 1970.
            end_offset: only records below count (exclusive).

        Raises:
            DiskReadError, LogClosedError: as `read`.
        """
        if self._closed:
            raise LogClosedError(self._directory)
        limit = min(end_offset, self._tail.end_offset)
        return self._reader.find_timestamp(
            timestamp_ms, start_offset=self.log_start_offset, end_offset=limit, flushed_offset=self.flushed_offset
        )

    @property
    def oldest_timestamp_ms(self) -> int | None:
        """Timestamp of the first user record that is left (milliseconds since 1970); None without one.

        Raises:
            DiskReadError, LogClosedError: as `read`.
        """
        found = self.find_timestamp(0, end_offset=self._tail.end_offset)
        return None if found is None else found.timestamp_ms

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd | None:
        """Return the largest known leader epoch at or below `epoch`, and where it ends (exclusive).

        None if `epoch` is above all known ones. For an epoch below all known ones: (epoch, start of the first known one); KIP-279.
        """
        return self._parts.epochs.end_offset_for(epoch, self._tail.end_offset)

    def hidden_from(self, epoch_end_offset: int) -> int | None:
        """Return from where on damage hides the end that `end_offset_for_epoch` gave: the last possible one; None: it is known."""
        return self._parts.damage.run_base(epoch_end_offset)

    def epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch of the record at an offset; None below the first one."""
        return self._parts.epochs.epoch_at(offset)

    def epoch_end_at(self, offset: int) -> int:
        """Return the end (exclusive) of the run of records with the leader epoch of the one at `offset`; at the log end, that.

        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
        """
        start_offset, end_offset = self.log_start_offset, self._tail.end_offset
        if not start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, log_start_offset=start_offset, log_end_offset=end_offset)
        return self._parts.epochs.end_at(offset, end_offset)

    def divergence(self, *, last_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Compare the end of a follower's log with this one; see `LeaderEpochs.divergence`.

        Raises:
            OffsetOutOfRangeError: `last_epoch` is not known here, or the offset is below the log start.
        """
        known, start_offset, end_offset = self._tail.leader_epoch, self.log_start_offset, self._tail.end_offset
        if known is None or last_epoch > known or fetch_offset < start_offset:
            raise OffsetOutOfRangeError(fetch_offset, log_start_offset=start_offset, log_end_offset=end_offset)
        epochs = self._parts.epochs
        return epochs.divergence(last_epoch=last_epoch, fetch_offset=fetch_offset, log_end_offset=end_offset)

    def truncate_suffix(self, to_offset: int) -> int:
        """Drop all records at `to_offset` and beyond; see `LogSuffix.truncate`. Waits for the device. Returns the new log end."""
        with self._writing():
            return self._suffix().truncate(to_offset)

    def restart_at(self, offset: int) -> None:
        """Drop everything, and begin anew, empty, at any offset: for a follower that has nothing in common with its leader.

        A crash leaves the old log or the empty one. Waits for the device; see `LogSuffix.restart` for errors, and what may not
        be in flight.
        """
        with self._writing():
            self._suffix().restart(offset)

    def _suffix(self) -> LogSuffix:
        sides = (self._tail, self._flush_state, self._reader, self.prefix, self.compaction)
        return LogSuffix(self._disk, self._directory, self._parts, *sides)

    def truncate_prefix(self, to_offset: int, now_ms: int) -> int:
        """Let the log begin at `to_offset` (inclusive); see `LogPrefix.truncate`. Waits for the device."""
        return self.prefix.truncate(to_offset, now_ms)

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll a segment that is old by the clock; see `LogPrefix.roll_if_due`."""
        return self.prefix.roll_if_due(now_ms)

    def apply_retention(self, high_watermark: int, now_ms: int) -> int:
        """Remove what is due; return how many segments. See `LogPrefix.apply_retention`. Waits for the device."""
        return self.prefix.apply_retention(high_watermark, now_ms)

    def remove_deleted(self, now_ms: int) -> int:
        """Remove the files of segments removed long ago; return how many. See `LogPrefix.remove_deleted`."""
        return self.prefix.remove_deleted(now_ms)

    def begin_flush(self) -> FlushWork | None:
        """Collect everything that is not on stable storage into one group; at most one is in flight.

        Returns:
            The group to `run` in any thread and to give to `end_flush`; None: nothing to do, or one is in flight.

        Raises:
            DiskFailedError, LogClosedError: nothing can be flushed any more.
        """
        if self._failure is not None or self._closed:
            self._refuse_write()
        work = self._flush_state.begin(self._tail.end_offset)
        if work is not None:
            # The next high watermark, where readers will stop.
            active = self._tail.active
            self._reader.remember(self._tail.end_offset, active, active.size_bytes)
        return work

    def end_flush(self, work: FlushWork) -> int:
        """Take back a group after its `run`.

        Returns:
            The flushed offset (exclusive).

        Raises:
            DiskFailedError: the group (or writing the recovery point) failed: the log is failed for good.
            DiskFullError, TooManyOpenFilesError: a part could not be done; the flushed offset stays, flush again later.
        """
        try:
            return self._flush_state.end(work, write_point=not self._closed)
        except DiskFailedError as error:
            self._failure = error
            raise

    def new_scrub(self) -> LogScrub:
        """Make the owner's side of a check of all sealed segments; it remembers what it checked."""
        return LogScrub(self._disk, self._directory, self._parts, self._reader)

    def new_repair(self) -> LogRepair:
        """Make the owner's side of repairs from other replicas."""
        parts, flush_state = self._parts, self._flush_state
        return LogRepair(self._disk, self._directory, parts, self._tail, flush_state, self.compaction, self._writing)

    def new_move(self) -> MoveSource:
        """Make the owner's side of a move to another directory."""
        return MoveSource(self._disk, self._directory, self._parts)

    def flush(self) -> int:
        """Flush everything in the calling thread: for tests, tools and closing; no group may be in flight.

        Raises:
            DiskFailedError, DiskFullError, LogClosedError: as `begin_flush` and `end_flush`.
        """
        assert not self._flush_state.is_in_flight, "a flush group is in flight"
        work = self.begin_flush()
        if work is None:
            return self.flushed_offset
        with suppress(StorageError):  # `end_flush` raises it
            work.run()
        return self.end_flush(work)

    @property
    def has_unsaved(self) -> bool:
        """True if a clean close has something to write; otherwise it does not wait for the disk."""
        return self._failure is None and (self.flushed_offset < self.log_end_offset or not has_clean_mark(self._parts))

    def close(self, *, clean: bool = True) -> None:
        """Close the log; a second call does nothing.

        Args:
            clean: flush everything and leave the mark that spares the next open any walk. False, or a failed log: only
                close the files, as a crash would leave them.

        Raises:
            DiskFailedError, DiskFullError: the clean close did not succeed; the files are closed, the next open recovers.
        """
        if self._closed:
            return
        try:
            if clean and self._failure is None:
                self.flush()
                if not has_clean_mark(self._parts):
                    leave_clean_mark(self._disk, self._directory, self._parts)
        finally:
            self._closed = True
            # A descriptor must not be closed under a running sync: then `end_flush` does it.
            self._flush_state.close_all()

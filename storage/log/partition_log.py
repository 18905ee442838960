# SPDX-License-Identifier: Apache-2.0
"""One partition log: append, read, truncate, flush. The Raft log of the metadata quorum is one of these too.

Rules of use
    One owner (thread or event loop) calls everything; only `FlushWork.run`, `LogStartWork.run` and `RemovalWork.run` may run
    elsewhere. Nothing here waits for the device except `truncate_suffix`, `truncate_prefix`, `restart_at`, `apply_retention`,
    `swap`, `learn_epochs`, `leave_clean_mark`, `close` and opening; a read may wait for the device if the page cache misses.

Laws
    log_start_offset <= flushed_offset <= log_end_offset; offsets are contiguous; leader epochs never go back.
    A refused append leaves everything as it was. After `DiskFailedError` nothing is written any more; reads go on.
    `flushed_offset` moves only in `end_flush` (up), `truncate_suffix` (down) and with the log start: never claim what may be lost.
    Nothing that was cut is found by any look-up afterwards: positions, ages, epochs, windows and damage go with it.

Theory
    `PartitionLog` is the only writer of what a log is: segments, epochs, producers, snapshots, recovery point, log start, removed
    files, and what is flushed of them. What it uses knows nothing of it: `reader` reads, `recovery` opens, `retention` and
    `follower_append` decide, `restart` and `swap` are the steps on the disk whose order a crash must not break.
    Work that waits for the device is made here (`begin_...`), run by any thread, and taken back here (`end_...`).
    `begin_flush` collects everything dirty into one `FlushWork`; meanwhile appends go on and make the next group.
    Indexes, epochs and producers are memory; the log is their truth. See docs/storage_format.md for files and recovery.

Order of a truncation of the suffix (law)
    1. the recovery point is lowered, a clean mark taken off, and that synced: from here on a crash leaves a log that recovery walks
       from the cut
    2. files of later segments, and snapshots that reach beyond the cut, are removed, last first; the directory is synced
    3. the segment that holds the cut is truncated and synced
    4. damage beyond the cut is forgotten, epochs and producers go back, in memory; their files follow with the next flush
    A crash before the end may leave the old tail, or part of it, as a legal log; after the end nothing of it can come back.

Order of a truncation of the prefix (law)
    The log start is written and synced; from here on nothing below it is ever served again. Then segments wholly below it leave the
    list and their files are renamed to `<name>.deleted`, log file last; epochs are trimmed, damage below is forgotten, in memory. A
    crash in between leaves segments that the next open removes (`recovery_prefix`). Nothing is cut below where a `LogStartWork` in
    flight will put the log start. The active segment is never removed: one that is wholly below the log start, or old enough to go,
    is rolled first.

Flush groups (law)
    At most one is in flight; `flushed_offset` moves up only when a finished group is taken back, and never beyond what was cut
    meanwhile; a descriptor is not closed while a group may be syncing it; the recovery point is written after the flush that it
    reports. A group holds only files with unsynced bytes, which the descriptor cache does not close.

Source: architecture sections 4 and 6; docs/storage.md; ALICE rule 7 (sync between truncate and append); Kafka, UnifiedLog.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain

from lograft.wire.header import PREFIX_BYTES, BatchHeader, stamped_prefix

from storage.errors import (
    DiskError,
    DiskFailedError,
    LogClosedError,
    OffsetOutOfRangeError,
    OutOfOrderOffsetError,
    StorageError,
)
from storage.files.checkpoints import encode_lines, remove_if_exists, replace_file
from storage.files.descriptor_cache import FileBudget, may_close, needs_sync
from storage.files.disk import Buffer, Disk, File
from storage.files.names import EPOCH_FILE, PartitionIdentity
from storage.segment.damage import DamagedRanges
from storage.segment.scan import BadBatch
from storage.segment.segment import Segment
from storage.segment.segment_index import SegmentIndex
from storage.segment.segment_set import SegmentSet
from storage.types import (
    Appended,
    Boundary,
    DamagedRange,
    EpochEnd,
    LogRead,
    LogSettings,
    PlacedBatch,
    RecoveryReport,
    TimestampAndOffset,
)

from .cleaner_checkpoint import CleanerCheckpoint, CleanState, SegmentSize
from .deleted import DeletedFiles, RemovalWork
from .epochs import EpochStart, LeaderEpochs, may_begin_earlier
from .flush import FlushWork
from .follower_append import check_follower_batches
from .log_start import LogStartWork
from .producer_snapshots import ProducerSnapshots
from .producers import ProducerWindows
from .reader import LogReader
from .recovery import RecoveredLog, open_log
from .recovery_caches import restore_producers
from .recovery_point import SYNC_INTERVAL_FLUSHES, CleanEnd, RecoveryPoint
from .restart import restart_log
from .retention import RetentionView, SegmentExtent, count_due, must_roll, newest_record_ms
from .swap import CleanedGroup, put_in_place

MAX_START_OFFSET = 2**63 - 1
"""Largest offset at which a log can begin, inclusive."""

MAX_LOOKUPS = 2
"""Searches for a cut; the second one knows the damage that stopped the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """A log and what opening it found."""

    log: PartitionLog
    report: RecoveryReport


class PartitionLog:
    """An open log; made by `open`. It alone writes every fact below."""

    __slots__ = (
        "_active",
        "_cleaner_checkpoint",
        "_close_later",
        "_closed",
        "_closes_point",
        "_damage",
        "_deleted",
        "_directory",
        "_disk",
        "_end_offset",
        "_epochs",
        "_epochs_saved",
        "_failure",
        "_flush_cap",
        "_flush_count",
        "_flush_in_flight",
        "_flushed_offset",
        "_leader_epoch",
        "_log_start_offset",
        "_max_timestamps_ms",
        "_names_saved",
        "_prefix_in_flight",
        "_producers",
        "_reader",
        "_recovery_point",
        "_restart_count",
        "_segments",
        "_settings",
        "_snapshots",
    )

    def __init__(self, disk: Disk, directory: str, found: RecoveredLog, settings: LogSettings) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._segments = found.segments
        self._epochs = found.epochs
        # False: the checkpoint of the epochs is to be written with the next flush group.
        self._epochs_saved = found.epochs_saved
        self._producers = found.producers
        self._snapshots = found.snapshots
        self._damage = found.damage
        self._recovery_point = found.recovery_point
        self._log_start_offset = found.log_start_offset
        self._deleted = DeletedFiles(disk)
        self._reader = LogReader(found.segments, found.damage, settings)
        self._cleaner_checkpoint = CleanerCheckpoint(disk, directory)
        # What every append asks for: the last segment of the set, its end, and the last leader epoch.
        self._active = found.segments.active
        self._end_offset = self._active.end_offset
        self._leader_epoch = found.epochs.last_epoch
        self._flushed_offset = self._end_offset
        # False: a segment's name is not on stable storage yet.
        self._names_saved = True
        self._flush_count = 0
        self._flush_in_flight: FlushWork | None = None
        # Where the log was cut under the group in flight: what is appended from there on is not what it syncs.
        self._flush_cap: int | None = None
        self._close_later: list[Segment] = []
        self._closes_point = False
        self._prefix_in_flight: LogStartWork | None = None
        # By base offset: the segment, where it ended then, and its largest timestamp. Made at the first look.
        self._max_timestamps_ms: dict[int, tuple[Segment, int, int | None]] | None = None
        self._restart_count = 0
        self._failure: DiskFailedError | None = None
        self._closed = False
        if self._active.is_open and self._active.size_bytes == 0:
            # Just created, and its name is on stable storage: an idle log needs no descriptor.
            may_close(self._active.file)

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
        found = open_log(disk, path, settings=settings, now_ms=now_ms, identity=identity)
        return OpenedLog(log=cls(disk, path, found, settings), report=found.report)

    # What the log is.

    @property
    def disk(self) -> Disk:
        """The disk of the log, under its bound on open files."""
        return self._disk

    @property
    def directory(self) -> str:
        """Path of the log's directory."""
        return self._directory

    @property
    def settings(self) -> LogSettings:
        """The settings in force."""
        return self._settings

    @property
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record gets (exclusive end)."""
        return self._end_offset

    @property
    def flushed_offset(self) -> int:
        """Everything below is on stable storage (exclusive)."""
        return self._flushed_offset

    @property
    def last_epoch(self) -> int | None:
        """Largest leader epoch of the log, or None for a log that never had one."""
        return self._leader_epoch

    @property
    def last_record_epoch(self) -> int | None:
        """Leader epoch of the last record, or None for a log without records, wherever it begins."""
        return self._epochs.epoch_at(self._end_offset - 1) if self._end_offset > self._log_start_offset else None

    @property
    def segments(self) -> SegmentSet:
        """The segments, ascending; to look at."""
        return self._segments

    @property
    def epochs(self) -> LeaderEpochs:
        """Where leader epochs begin; to look at."""
        return self._epochs

    @property
    def producers(self) -> ProducerWindows:
        """Idempotence windows and transactions; to look at."""
        return self._producers

    @property
    def damage(self) -> DamagedRanges:
        """All damaged ranges, also those of records below the log start; to look at."""
        return self._damage

    @property
    def damaged(self) -> tuple[DamagedRange, ...]:
        """Ranges that are known to be damaged, as far as they reach above the log start."""
        return tuple(found for found in self._damage.all() if found.end_offset > self._log_start_offset)

    @property
    def segment_count(self) -> int:
        """Number of segments, the active one included."""
        return len(self._segments)

    @property
    def restart_count(self) -> int:
        """How often this object's log began anew: a segment that was seen under another count is of another history."""
        return self._restart_count

    @property
    def failure(self) -> DiskFailedError | None:
        """Why nothing can be written any more, if so."""
        return self._failure

    def apply_settings(self, settings: LogSettings) -> None:
        """Replace the settings; they hold from the next call on."""
        self._settings = settings
        self._reader.interval_bytes = settings.index_interval_bytes
        self._reader.verify = settings.verify_first_read
        self._producers.evict_idlest(settings.max_producers)

    def check_writable(self) -> None:
        """Raise why nothing can be written, if so.

        Raises:
            DiskFailedError: the log directory failed for good.
            LogClosedError: the log is closed.
        """
        if self._failure is not None or self._closed:
            self._refuse_write()

    def _refuse_write(self) -> None:
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

    # Append.

    def append_as_leader(self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> Appended:
        """Append one batch, stamping base offset and leader epoch; or find that it is here already.

        The caller has checked the bytes (`lograft.wire.batch.check_batch`); `header` is theirs. They are not copied: one writev
        takes a stamped 16-byte prefix and the client's bytes.

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
        base_offset, known_epoch = self._end_offset, self._leader_epoch
        if known_epoch is not None and leader_epoch < known_epoch:
            raise OutOfOrderOffsetError(
                f"leader epoch {leader_epoch} after {known_epoch}", expected_offset=base_offset, base_offset=base_offset
            )
        has_producer = header.producer_id >= 0
        if has_producer:
            original = self._producers.check(header)
            if original is not None:
                return Appended(original.base_offset, original.next_offset, True)
        next_offset = base_offset + header.last_offset_delta + 1
        size_bytes = len(batch)
        segment = self._active
        settings = self._settings
        try:
            if segment.must_roll(
                last_offset=next_offset - 1,
                size_bytes=size_bytes,
                max_timestamp_ms=header.max_timestamp_ms,
                now_ms=now_ms,
                settings=settings,
            ):
                segment = self._roll(now_ms)
            segment.append(
                (stamped_prefix(base_offset, header.batch_length, leader_epoch), memoryview(batch)[PREFIX_BYTES:]),
                base_offset=base_offset,
                next_offset=next_offset,
                size_bytes=size_bytes,
                max_timestamp_ms=header.max_timestamp_ms,
                interval_bytes=settings.index_interval_bytes,
            )
        except DiskFailedError as error:
            self._failure = error
            raise
        segment.written_ms = now_ms
        self._end_offset = next_offset
        if leader_epoch != known_epoch:
            self._assign_epoch(leader_epoch, base_offset)
        if has_producer:
            self._note_producer(header, base_offset, now_ms)
        return Appended(base_offset, next_offset, False)

    def append_as_follower(self, batches: Buffer, *, now_ms: int) -> Appended:
        """Append whole batches that a leader sent, byte for byte; all are checked before the first is written.

        Neighbouring batches of one segment are written with one call.

        Returns:
            The range that was appended (empty for empty `batches`).

        Raises:
            BatchError: torn or damaged bytes; nothing changed.
            OutOfOrderOffsetError: they do not continue the log; nothing changed.
            DiskFullError: batches may be missing at the end: `log_end_offset` tells what was appended.
            DiskFailedError, LogClosedError: as in `append_as_leader`.
        """
        with self._writing():
            base_offset = self._end_offset
            placed = check_follower_batches(batches, log_end_offset=base_offset, last_epoch=self._leader_epoch)
            while placed:
                header = placed[0].header
                if self._active.must_roll(
                    last_offset=header.last_offset,
                    size_bytes=header.size_bytes,
                    max_timestamp_ms=header.max_timestamp_ms,
                    now_ms=now_ms,
                    settings=self._settings,
                ):
                    self._roll(now_ms)
                count = self._active.count_fitting(placed, self._settings)
                self._append_run(batches, placed[:count], now_ms)
                self._active.written_ms = now_ms
                del placed[:count]
            return Appended(base_offset, self._end_offset, False)

    def _append_run(self, batches: Buffer, run: list[PlacedBatch], now_ms: int) -> None:
        """Write neighbouring batches of one region with one call."""
        active = self._active
        last = run[-1]
        active.append_bytes((memoryview(batches)[run[0].position : last.position + last.header.size_bytes],))
        for _, header in run:
            active.note_batch(
                base_offset=header.base_offset,
                next_offset=header.next_offset,
                size_bytes=header.size_bytes,
                max_timestamp_ms=header.max_timestamp_ms,
                interval_bytes=self._settings.index_interval_bytes,
            )
            if header.leader_epoch != self._leader_epoch:
                self._assign_epoch(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                self._note_producer(header, header.base_offset, now_ms)
        self._end_offset = active.end_offset

    def assign_epoch(self, leader_epoch: int) -> None:
        """Note, in memory only, that a leader epoch begins at the log end, before it has any record; nothing for the last epoch."""
        if leader_epoch != self._leader_epoch:
            self._assign_epoch(leader_epoch, self._end_offset)

    def _assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        self._epochs.assign(leader_epoch, start_offset)
        self._epochs_saved = False
        self._leader_epoch = leader_epoch

    def _note_producer(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        producers = self._producers
        producers.update(header, base_offset, now_ms=now_ms)
        if len(producers) > self._settings.max_producers:
            producers.evict_idlest(self._settings.max_producers)

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log end, whatever the active one is like.

        Raises:
            DiskFullError: nothing changed.
            DiskFailedError, LogClosedError: as in `append_as_leader`.
        """
        with self._writing():
            self._roll(now_ms)

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll the active segment, without an append, if it is not empty and older than `segment_ms` by the clock.

        Raises:
            DiskFullError: nothing changed.
            DiskFailedError, LogClosedError: as in `append_as_leader`.
        """
        with self._writing():
            active = self._active
            is_due = active.size_bytes > 0 and now_ms - active.created_ms > self._settings.segment_ms
            if is_due:
                self._roll(now_ms)
            return is_due

    def _roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log end.

        Nothing is synced here: the next flush group syncs the old file first, then the new one, then the directory,
        before anything in the new segment counts as flushed. Index and snapshot are caches and need no sync at all.
        """
        old = self._active
        new = Segment.create(self._disk, self._directory, self._damage, base_offset=self._end_offset, created_ms=now_ms)
        self._segments.add(new)
        self._active = new
        self._names_saved = False
        old.save_index()
        self._segments.note_read(old, self._flushed_offset)
        self._snapshots.take(self._producers, self._end_offset)
        return new

    # Read.

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
        log_start_offset, log_end_offset = self._log_start_offset, self._end_offset
        if not log_start_offset <= offset <= log_end_offset:
            raise OffsetOutOfRangeError(offset, log_start_offset=log_start_offset, log_end_offset=log_end_offset)
        limit = log_end_offset if end_offset is None or end_offset > log_end_offset else end_offset
        return self._reader.read(offset, max_bytes, end_offset=limit, flushed_offset=self._flushed_offset)

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
        limit = min(end_offset, self._end_offset)
        return self._reader.find_timestamp(
            timestamp_ms, start_offset=self._log_start_offset, end_offset=limit, flushed_offset=self._flushed_offset
        )

    @property
    def oldest_timestamp_ms(self) -> int | None:
        """Timestamp of the first user record that is left (milliseconds since 1970); None without one.

        Raises:
            DiskReadError, LogClosedError: as `read`.
        """
        found = self.find_timestamp(0, end_offset=self._end_offset)
        return None if found is None else found.timestamp_ms

    def load_index(self, segment: Segment) -> SegmentIndex:
        """Return the indexes of a segment, which is closed again like after a read.

        Raises:
            DiskReadError, CorruptLogError: it cannot be read.
        """
        index = segment.load_index(self._settings.index_interval_bytes)
        self._segments.note_read(segment, self._flushed_offset)
        return index

    def quarantine(self, segment: Segment, ranges: Sequence[DamagedRange], *, flushed_offset: int) -> None:
        """Take ranges of a segment that a scrub found out of service: ascending, not overlapping, none known before."""
        self._reader.quarantine(segment, ranges, flushed_offset=flushed_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd | None:
        """Return the largest known leader epoch at or below `epoch`, and where it ends (exclusive).

        None if `epoch` is above all known ones. For an epoch below all known ones: (epoch, start of the first known one); KIP-279.
        """
        return self._epochs.end_offset_for(epoch, self._end_offset)

    def hidden_from(self, epoch_end_offset: int) -> int | None:
        """Return from where on damage hides the end that `end_offset_for_epoch` gave: the last possible one; None: it is known."""
        return self._damage.run_base(epoch_end_offset)

    def epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch of the record at an offset; None below the first one."""
        return self._epochs.epoch_at(offset)

    def epoch_end_at(self, offset: int) -> int:
        """Return the end (exclusive) of the run of records with the leader epoch of the one at `offset`; at the log end, that.

        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
        """
        start_offset, end_offset = self._log_start_offset, self._end_offset
        if not start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, log_start_offset=start_offset, log_end_offset=end_offset)
        return self._epochs.end_at(offset, end_offset)

    def divergence(self, *, last_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Compare the end of a follower's log with this one; see `LeaderEpochs.divergence`.

        Raises:
            OffsetOutOfRangeError: `last_epoch` is not known here, or the offset is below the log start.
        """
        known, start_offset, end_offset = self._leader_epoch, self._log_start_offset, self._end_offset
        if known is None or last_epoch > known or fetch_offset < start_offset:
            raise OffsetOutOfRangeError(fetch_offset, log_start_offset=start_offset, log_end_offset=end_offset)
        return self._epochs.divergence(last_epoch=last_epoch, fetch_offset=fetch_offset, log_end_offset=end_offset)

    # Flush.

    def begin_flush(self) -> FlushWork | None:
        """Collect everything that is not on stable storage into one group; at most one is in flight.

        Returns:
            The group to `run` in any thread and to give to `end_flush`; None: nothing to do, or one is in flight.

        Raises:
            DiskFailedError, LogClosedError: nothing can be flushed any more.
        """
        if self._failure is not None or self._closed:
            self._refuse_write()
        flushed_offset, end_offset, active = self._flushed_offset, self._end_offset, self._active
        if self._flush_in_flight is not None or flushed_offset >= end_offset:
            return None
        if flushed_offset >= active.base_offset:
            files = [active.file] if needs_sync(active.file) else []
        else:
            segments = self._segments
            unflushed = (segments[slot].file for slot in range(segments.slot_of(flushed_offset), len(segments)))
            files = [file for file in unflushed if needs_sync(file)]
        self._flush_count += 1
        if self._flush_count % SYNC_INTERVAL_FLUSHES == 0:
            files.extend(self._recovery_point_file())
        work = self._flush_in_flight = FlushWork(
            self._disk,
            self._directory,
            end_offset=end_offset,
            files=files,
            sync_directory=not self._names_saved,
            epoch_checkpoint=None if self._epochs_saved else encode_lines(self._epochs.encode_entries()),
        )
        self._flush_cap = None
        self._names_saved = True
        self._epochs_saved = True
        # The next high watermark, where readers will stop.
        self._reader.remember(end_offset, active, active.size_bytes)
        return work

    def _recovery_point_file(self) -> list[File]:
        """Return the file for the group to sync; none if it cannot be opened: then the bound stays behind a while longer."""
        try:
            return [self._recovery_point.file]
        except DiskError:
            return []

    def end_flush(self, work: FlushWork) -> int:
        """Take back a group after its `run`.

        Returns:
            The flushed offset (exclusive).

        Raises:
            DiskFailedError: the group (or writing the recovery point) failed: the log is failed for good.
            DiskFullError, TooManyOpenFilesError: the epoch checkpoint or the directory could not be synced; nothing is
                claimed, flush again later.
        """
        assert work is self._flush_in_flight, "another group than the one in flight"
        cap, self._flush_in_flight, self._flush_cap = self._flush_cap, None, None
        try:
            if self._close_later or self._closes_point:
                self._close_segments(())
            if work.covers_names:
                self._names_saved = self._names_saved and work.is_done
            if work.covers_epochs:
                # A truncation meanwhile made the saved epochs stale.
                self._epochs_saved = self._epochs_saved and work.is_done and cap is None
            if work.error is not None:
                raise work.error
            assert work.is_done, "the group was not run"
            end_offset = work.end_offset if cap is None else min(cap, work.end_offset)
            if end_offset > self._flushed_offset:
                self._flushed_offset = end_offset
                if not self._closed:
                    self._recovery_point.write(RecoveryPoint(flushed_offset=end_offset))
        except DiskFailedError as error:
            self._failure = error
            raise
        return self._flushed_offset

    def flush(self) -> int:
        """Flush everything in the calling thread: for tests, tools and closing; no group may be in flight.

        Raises:
            DiskFailedError, DiskFullError, LogClosedError: as `begin_flush` and `end_flush`.
        """
        assert self._flush_in_flight is None, "a flush group is in flight"
        work = self.begin_flush()
        if work is None:
            return self._flushed_offset
        with suppress(StorageError):  # `end_flush` raises it
            work.run()
        return self.end_flush(work)

    def _note_truncation(self, dropped: Iterable[Segment]) -> None:
        """Take up the active segment, end and leader epoch that a truncation left, durably; close dropped segments soon."""
        self._take_active()
        end_offset = self._end_offset
        self._flushed_offset = min(self._flushed_offset, end_offset)
        if self._flush_in_flight is not None:
            self._flush_cap = end_offset if self._flush_cap is None else min(self._flush_cap, end_offset)
        self._close_segments(dropped)

    def _take_active(self) -> None:
        self._active = self._segments.active
        self._end_offset = self._active.end_offset
        self._leader_epoch = self._epochs.last_epoch

    def _close_segments(self, segments: Iterable[Segment]) -> None:
        """Close files now, or when the group in flight is back (it may be syncing any of them)."""
        self._close_later.extend(segments)
        if self._flush_in_flight is not None:
            return
        for segment in self._close_later:
            segment.close()
        self._close_later.clear()
        if self._closes_point:
            self._recovery_point.close()

    # Truncation of the suffix.

    def truncate_suffix(self, to_offset: int) -> int:
        """Drop all records at an offset and beyond, and the leader epochs that begin there; return the new log end offset.

        Whole batches go, so that the log may end a little lower. If the log start lies inside the batch with the cut, the log begins
        again, empty, at its log start. A flush group in flight stays valid for what is below. At the log end only a leader epoch
        without a record goes. Waits for the device.

        Raises:
            OffsetOutOfRangeError: below the log start, or where a `LogStartWork` in flight puts it; nothing changed.
            DiskFullError: nothing was dropped.
            DiskFailedError: the log directory failed for good.
            LogClosedError: the log is closed.
        """
        with self._writing():
            end_offset, floor_offset = self._end_offset, self._floor_offset
            if to_offset < floor_offset:
                raise OffsetOutOfRangeError(to_offset, log_start_offset=floor_offset, log_end_offset=end_offset)
            if to_offset >= end_offset:
                self._forget_empty_epoch(to_offset)
                return end_offset
            self._reader.forget_all()
            self._forget_ages()
            self._note_truncation(self._cut(to_offset))
            return self._end_offset

    @property
    def _floor_offset(self) -> int:
        """Nothing may be cut below (inclusive): the log start, or where the work in flight puts it."""
        return self._log_start_offset if self._prefix_in_flight is None else self._prefix_in_flight.to_offset

    def _forget_empty_epoch(self, to_offset: int) -> None:
        """Forget a leader epoch that was assigned at the log end and has no record.

        A crash needs no care: an opening forgets what begins at the log end, and the checkpoint that still has it is replaced
        before the recovery point passes it.
        """
        if self._epochs.truncate_suffix(to_offset):
            self._epochs_saved = False
            self._take_active()

    def _cut(self, to_offset: int) -> list[Segment]:
        """Drop every batch that reaches beyond an offset (exclusive), which is inside the log; see the order in the module.

        Returns:
            The segments taken out; their files are closed once no flush uses them.
        """
        segments = self._segments
        end = self._find_cut(to_offset)
        point = self._recovery_point.point
        # A clean mark would stand again once the file has its old size, before that is synced.
        has_clean_mark = point is not None and point.clean_end is not None
        if end.offset < self._flushed_offset or has_clean_mark:
            # Never up: what a removal of the front only calls flushed, below the log start, was not synced.
            known_offset = self._flushed_offset if point is None else min(self._flushed_offset, point.flushed_offset)
            self._recovery_point.write_synced(RecoveryPoint(flushed_offset=min(end.offset, known_offset)))
        dropped: list[Segment] = []
        while segments.active.base_offset > end.offset:
            dropped.append(segments.pop())
        for segment in dropped:
            for path in segment.file_names():
                remove_if_exists(self._disk, path)
        names_changed = self._snapshots.remove_above(end.offset) or bool(dropped)
        active = segments.active
        for path in active.file_names()[:-1]:
            # The indexes of a segment that is active again would be found stale anyway; do not leave them.
            names_changed = remove_if_exists(self._disk, path) or names_changed
        if names_changed:
            self._disk.sync_directory(self._directory)
        self._damage.truncate_suffix(end.offset)
        active.truncate(end, self._settings.index_interval_bytes)
        self._damage.save()
        if self._epochs.truncate_suffix(end.offset):
            self._epochs_saved = False
        if self._producers.has_batch_from(end.offset):
            self._producers, _ = restore_producers(
                self._snapshots,
                list(segments),
                newest_at=end.offset,
                interval_bytes=self._settings.index_interval_bytes,
            )
        if end.offset < self._log_start_offset:
            dropped += self._begin_empty()
        return dropped

    def _find_cut(self, to_offset: int) -> Boundary:
        """Return the last batch boundary at or below an offset; damage is dropped as a whole."""
        interval_bytes = self._settings.index_interval_bytes
        damaged = self._damage.covering(to_offset)
        if damaged is not None:
            return Boundary(damaged.base_offset, damaged.position)
        segment = self._segments.holding(to_offset)
        for _ in range(MAX_LOOKUPS - 1):
            try:
                return segment.locate(to_offset, interval_bytes)
            except BadBatch:
                segment.reindex(interval_bytes)
                damaged = self._damage.covering(to_offset)
                if damaged is not None:
                    return Boundary(damaged.base_offset, damaged.position)
        return segment.locate(to_offset, interval_bytes)

    def _begin_empty(self) -> list[Segment]:
        """Put one empty segment at the log start in the place of all, which end below it (on stable storage).

        A crash in between leaves what the next open drops, or begins again without.

        Returns:
            The segments taken out; their files are closed once no flush uses them.

        Raises:
            DiskFullError, DiskFailedError: the log ends below its start; it is to be opened again.
        """
        old, start_offset = self._segments.active, self._log_start_offset
        for segment in self._segments:
            for path in segment.file_names():
                remove_if_exists(self._disk, path)
        self._snapshots.remove_below(start_offset)
        active = Segment.create(
            self._disk,
            self._directory,
            self._damage,
            base_offset=start_offset,
            created_ms=max(old.created_ms, old.written_ms),
        )
        dropped = self._segments.restart(active)
        self._disk.sync_directory(self._directory)
        self._damage.truncate_prefix(start_offset)
        self._damage.save()
        return dropped

    # A new beginning.

    def restart_at(self, offset: int) -> None:
        """Drop everything, and begin anew, empty, at any offset: for a follower that has nothing in common with its leader.

        A crash leaves the old log or the empty one; see `restart`. Waits for the device. No flush group and no `LogStartWork` may be
        in flight. A pass of compaction under way is void: segments of another history may have the offsets and sizes of those that
        it read.

        Raises:
            OffsetOutOfRangeError: no log can begin there; nothing changed.
            DiskFullError, DiskAccessError, TooManyOpenFilesError: nothing changed.
            DiskFailedError: the log can no longer be written; its next opening finishes the restart, or finds the old log.
            LogClosedError: the log is closed.
        """
        with self._writing():
            assert self._flush_in_flight is None, "a flush group is in flight"
            assert self._prefix_in_flight is None, "a log start is in flight"
            if not 0 <= offset <= MAX_START_OFFSET:
                raise OffsetOutOfRangeError(offset, log_start_offset=0, log_end_offset=MAX_START_OFFSET)
            active = restart_log(self._disk, self._directory, self._recovery_point, self._segments.active, offset)
            self._reader.forget_all()
            self._forget_ages()
            self._cleaner_checkpoint.forget()
            self._restart_count += 1
            dropped = self._segments.restart(active)
            self._log_start_offset = offset
            self._epochs, self._epochs_saved = LeaderEpochs(), True
            self._producers = ProducerWindows()
            self._snapshots = ProducerSnapshots(self._disk, self._directory, [])
            self._damage.truncate_suffix(0)
            self._damage.save()
            self._take_active()
            self._flushed_offset = offset
            self._names_saved = True
            self._close_segments(dropped)
            may_close(self._active.file)

    # Truncation of the prefix, and retention.

    def truncate_prefix(self, to_offset: int, now_ms: int) -> int:
        """Let the log begin at an offset (inclusive), and remove the segments wholly below; return the log start.

        Waits for the device.

        Raises:
            OffsetOutOfRangeError: beyond the log end; nothing changed.
            DiskFullError: the log start may have moved; what is below then goes with the next removal.
            DiskFailedError, LogClosedError: nothing can be removed.
        """
        self._run_here(self.begin_prefix(to_offset), now_ms)
        return self._log_start_offset

    def apply_retention(self, high_watermark: int, now_ms: int) -> int:
        """Remove the segments that are due; return how many. Waits for the device.

        Raises:
            DiskFullError, DiskFailedError, LogClosedError: as in `truncate_prefix`.
            DiskReadError, CorruptLogError: the age of a segment cannot be read.
        """
        work = self.begin_retention(high_watermark, now_ms)
        return 0 if work is None else self._run_here(work, now_ms)

    def _run_here(self, work: LogStartWork, now_ms: int) -> int:
        with suppress(StorageError):  # `end_prefix` raises it
            work.run()
        return self.end_prefix(work, now_ms)

    def begin_prefix(self, to_offset: int) -> LogStartWork:
        """Make the work that moves the log start to an offset; an offset below the log start leaves it there.

        At most one is in flight; any thread may run it.

        Raises:
            OffsetOutOfRangeError: beyond the log end.
            DiskFailedError, LogClosedError: nothing can be removed.
        """
        assert self._prefix_in_flight is None, "another log start is in flight"
        with self._writing():
            log_start_offset = self._log_start_offset
            if to_offset > self._end_offset:
                raise OffsetOutOfRangeError(
                    to_offset, log_start_offset=log_start_offset, log_end_offset=self._end_offset
                )
            work = LogStartWork(self._disk, self._directory, max(to_offset, log_start_offset))
            self._prefix_in_flight = work
            return work

    def begin_retention(self, high_watermark: int, now_ms: int) -> LogStartWork | None:
        """Make the work for the segments that are due now; None if there are none. `retention` decides.

        Args:
            high_watermark: nothing at or beyond it goes (exclusive).
            now_ms: wall clock in milliseconds.

        Raises:
            DiskFailedError, LogClosedError, DiskReadError, CorruptLogError: as in `apply_retention`.
        """
        with self._writing():
            self._roll_for_age(now_ms)
            due_count = self._count_due(high_watermark, now_ms)
        return self.begin_prefix(self._segments[due_count - 1].end_offset) if due_count > 0 else None

    def end_prefix(self, work: LogStartWork, now_ms: int) -> int:
        """Take a work back after its `run` and remove what lies wholly below the log start; return how many segments.

        Raises:
            DiskFullError: the log start did not move; or it did, but the active segment could not be rolled.
            DiskFailedError, DiskAccessError, TooManyOpenFilesError, LogClosedError: the disk, or a closed log.
        """
        assert work is self._prefix_in_flight, "another work than the one in flight"
        self._prefix_in_flight = None
        with self._writing():
            if work.error is not None:
                raise work.error
            assert work.is_done, "the work was not run"
            self._log_start_offset = work.to_offset
            if self._epochs.truncate_prefix(work.to_offset):
                self._epochs_saved = False
            self._producers.forget_aborted_below(work.to_offset)
            if self._end_offset < work.to_offset:
                # Cut meanwhile, and the batch with the cut reaches over the new log start.
                self._note_truncation(self._begin_empty())
            removed_count = self._remove_below(now_ms)
            active = self._active
            if active.base_offset < active.end_offset <= work.to_offset:
                self._roll(now_ms)
                removed_count += self._remove_below(now_ms)
            return removed_count

    def _remove_below(self, now_ms: int) -> int:
        """Take the segments wholly below the log start out; return how many.

        The recovery point follows with the next flush only: a batch that reaches over the log start may not be flushed.
        """
        segments = self._segments
        removed = segments.take_first(segments.slot_of(self._log_start_offset))
        # Positions are remembered by segment, timestamps by the place of the segment.
        self._reader.forget_all()
        for segment in removed:
            if self._max_timestamps_ms is not None:
                self._max_timestamps_ms.pop(segment.base_offset, None)
            self._deleted.rename(segment.file_names(), now_ms=now_ms)
        self._flushed_offset = max(self._flushed_offset, self._log_start_offset)
        self._close_segments(removed)
        self._snapshots.remove_below(segments.base_offset)
        self._damage.truncate_prefix(segments.base_offset)
        return len(removed)

    def begin_removal(self, now_ms: int) -> RemovalWork | None:
        """Hand over the `.deleted` files whose delay is over, for any thread to remove; None if there are none."""
        return self._deleted.take_due(now_ms=now_ms, delay_ms=self._settings.file_delete_delay_ms)

    def remove_deleted(self, now_ms: int) -> int:
        """Remove the `.deleted` files whose delay is over; return how many.

        Raises:
            DiskFailedError, LogClosedError: nothing can be removed.
        """
        with self._writing():
            work = self.begin_removal(now_ms)
            return 0 if work is None else work.run()

    def _count_due(self, high_watermark: int, now_ms: int) -> int:
        settings = self._settings
        view = RetentionView(
            log_start_offset=self._log_start_offset,
            high_watermark=high_watermark,
            log_bytes=sum(segment.size_bytes for segment in self._segments),
            now_ms=now_ms,
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
        )
        segments = list(self._segments)
        facts = [SegmentExtent(segment.end_offset, segment.size_bytes) for segment in segments]
        return count_due(facts, lambda place: self._newest_ms(segments[place]), view)

    def _roll_for_age(self, now_ms: int) -> None:
        active = self._active
        facts = SegmentExtent(active.end_offset, active.size_bytes)
        if must_roll(facts, created_ms=active.created_ms, now_ms=now_ms, retention_ms=self._settings.retention_ms):
            self._roll(now_ms)

    def _forget_ages(self) -> None:
        """Forget what was read of sealed segments, before one of them becomes the active one again."""
        self._max_timestamps_ms = None

    def _newest_ms(self, segment: Segment) -> int:
        """Return how new a segment is; its index is read once for as long as it does not grow."""
        if self._max_timestamps_ms is None:
            self._max_timestamps_ms = {}
        known = self._max_timestamps_ms.get(segment.base_offset)
        if known is None or known[0] is not segment or known[1] != segment.end_offset:
            max_timestamp_ms = self.load_index(segment).max_timestamp_ms
            known = self._max_timestamps_ms[segment.base_offset] = (segment, segment.end_offset, max_timestamp_ms)
        return newest_record_ms(known[2], segment.written_ms)

    # Compacted and repaired segments.

    def swap(self, cleaned: CleanedGroup, *, now_ms: int) -> bool:
        """Put a compacted, or repaired, segment in the place of its sources; waits for the device. See `swap` for the order.

        Args:
            cleaned: the segment, which is on stable storage.
            now_ms: the owner's clock in milliseconds.

        Returns:
            False if the log changed since its sources were read: the segment is thrown away.

        Raises:
            DiskFullError, DiskAccessError: nothing changed.
            DiskFailedError, LogClosedError: the log can no longer be written; its next opening completes the swap.
        """
        with self._writing():
            slot = self._find_sources(cleaned)
            if slot is None:
                remove_if_exists(self._disk, cleaned.path)
                return False
            old = [self._segments[at] for at in range(slot, slot + len(cleaned.sources))]
            new = self._segment_in_place_of(old, cleaned.size_bytes)
            put_in_place(
                self._disk,
                self._directory,
                cleaned,
                old=old,
                new=new,
                deleted=self._deleted,
                damage=self._damage,
                now_ms=now_ms,
            )
            self._segments.replace(slot, len(old), new)
            cleaned.index.save(self._disk, self._directory, log_bytes=new.size_bytes, end_offset=new.end_offset)
            # Positions are remembered by segment, timestamps by the place of the segment.
            self._reader.forget_all()
            # What was compacted already has another size now; without this the whole of it would count as dirty.
            self._cleaner_checkpoint.follow_swap(
                [SegmentSize(each.base_offset, each.size_bytes) for each in cleaned.sources],
                SegmentSize(new.base_offset, new.size_bytes),
            )
            return True

    def _find_sources(self, cleaned: CleanedGroup) -> int | None:
        """Return the place of the first source if all are still there, sealed and unchanged, with the damage that was repaired."""
        segments = self._segments
        slot = segments.slot_of(cleaned.sources[0].base_offset)
        found = [segments[at] for at in range(slot, min(slot + len(cleaned.sources), len(segments)))]
        same = [(each.base_offset, each.end_offset, each.size_bytes, self._restart_count) for each in found] == [
            (each.base_offset, each.end_offset, each.size_bytes, each.restart_count) for each in cleaned.sources
        ]
        damages = tuple(chain.from_iterable(each.damages() for each in found))
        is_usable = same and found[-1] is not segments.active and damages == cleaned.repaired
        return slot if is_usable else None

    def _segment_in_place_of(self, old: Sequence[Segment], size_bytes: int) -> Segment:
        """Make the segment that takes the place of others."""
        segment = Segment(
            self._disk,
            self._directory,
            self._damage,
            base_offset=old[0].base_offset,
            end_offset=old[-1].end_offset,
            size_bytes=size_bytes,
            created_ms=old[0].created_ms,
        )
        segment.written_ms = max(each.written_ms for each in old)
        # Every byte was checked, or computed, by this process.
        segment.unverified_bytes = 0
        return segment

    @property
    def dirty_offset(self) -> int:
        """Nothing at or beyond it was ever compacted: there, every replica has the bytes that the leader appended (inclusive).

        Raises:
            DiskReadError, DiskAccessError, TooManyOpenFilesError: the checkpoint cannot be read.
        """
        return self.clean_offsets[1]

    @property
    def clean_offsets(self) -> tuple[int, int]:
        """(Map offset, dirty offset), both within the log; see `cleaner_checkpoint`.

        Raises:
            DiskReadError, DiskAccessError, TooManyOpenFilesError: the checkpoint cannot be read.
        """
        state = self._cleaner_checkpoint.state
        segments = self._segments
        map_offset, dirty_offset = state.offsets_of(
            leader_epoch=self._epoch_below(state.dirty_offset),
            sealed=[SegmentSize(each.base_offset, each.size_bytes) for each in segments.sealed()],
            sealed_end=segments.active.base_offset,
        )
        first_offset = segments.base_offset
        return max(map_offset, first_offset), max(dirty_offset, first_offset)

    @property
    def next_horizon_ms(self) -> int | None:
        """The earliest time at which a tombstone, or the end of a transaction, may go, as of the last pass; None: none waits."""
        return self._cleaner_checkpoint.state.next_horizon_ms

    def note_compacted(
        self, *, map_offset: int, dirty_offset: int, next_horizon_ms: int | None, restart_count: int
    ) -> None:
        """Note what a pass of compaction did, after its last swap; nothing if the log began anew since.

        Args:
            map_offset: below it no record is left that a newer one replaces (exclusive); at most `dirty_offset`.
            dirty_offset: below it everything was compacted as far as possible (exclusive).
            next_horizon_ms: see the property.
            restart_count: the log's when the pass began.

        Raises:
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        with self._writing():
            if restart_count != self._restart_count:
                return
            sizes = (SegmentSize(each.base_offset, each.size_bytes) for each in self._segments)
            state = CleanState.after(
                dirty_offset=dirty_offset,
                map_offset=map_offset,
                next_horizon_ms=next_horizon_ms,
                leader_epoch=self._epoch_below(dirty_offset),
                segments=sizes,
            )
            self._cleaner_checkpoint.save(state)

    def _epoch_below(self, offset: int) -> int | None:
        return self._epochs.epoch_at(offset - 1) if offset > 0 else None

    def possible_producers(self) -> list[ProducerWindows]:
        """Return the idempotence windows, as they are and, if they differ, as they would be after a power failure.

        Raises:
            DiskFailedError, LogClosedError, DiskReadError: a snapshot cannot be read, or the log not be written.
        """
        with self._writing():
            windows = [self._producers]
            if self._producers.has_batch_from(self._flushed_offset):
                # Without what is not flushed the windows reach further back.
                newest = self._snapshots.newest(self._flushed_offset)
                windows += [newest[1]] if newest is not None else []
            return windows

    def learn_epochs(self, found_epochs: Sequence[EpochStart], *, repaired: Sequence[DamagedRange]) -> bool:
        """Take up where epochs begin in damage, on stable storage before the damage goes that says how little is known of it.

        Args:
            found_epochs: what the batches of another replica show, ascending.
            repaired: the damage that they are to replace.

        Returns:
            False if the damage is another one now, or a flush is in flight that could save the epochs of before: nothing was done.

        Raises:
            DiskFullError, DiskAccessError: nothing changed.
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        with self._writing():
            known = set(self._damage.all())
            if self._flush_in_flight is not None or not known.issuperset(repaired):
                return False
            epochs = LeaderEpochs(self._epochs.entries())
            for epoch, start_offset in found_epochs:
                if epochs.epoch_at(start_offset) == epoch:
                    # Taken up before, by an end that found no room for the segment.
                    continue
                damaged = self._damage.covering(start_offset)
                if damaged is None:
                    return False
                damage_end = self._damage.run_end(damaged.end_offset)
                if not may_begin_earlier(epochs, epoch, start_offset, damage_end=damage_end):
                    return False
                epochs.begin_earlier(epoch, start_offset)
            self._write_epochs(epochs)
            self._epochs, self._epochs_saved = epochs, True
            return True

    def _write_epochs(self, epochs: LeaderEpochs) -> None:
        replace_file(self._disk, f"{self._directory}/{EPOCH_FILE}", encode_lines(epochs.encode_entries()))

    # Closing.

    @property
    def has_unsaved(self) -> bool:
        """True if a clean close has something to write; otherwise it does not wait for the disk."""
        return self._failure is None and (self._flushed_offset < self._end_offset or not self._has_clean_mark)

    @property
    def _has_clean_mark(self) -> bool:
        """True if the mark on the disk speaks for the log as it is, as after an open that found it and no append since."""
        return (
            self._epochs_saved
            and self._active.is_index_saved
            and self._recovery_point.point == _clean_point(self._active)
        )

    def leave_clean_mark(self) -> None:
        """Save the caches of a log whose batches are all flushed, then mark it clean, which spares the next open any walk.

        Law: the mark is written last, when everything it speaks for is on stable storage. A log that is written again after all only
        finds the mark stale. Waits for the device; nothing is appended meanwhile.

        Raises:
            DiskFullError, DiskFailedError: there is no mark; the log goes on as it is, and its next open recovers.
        """
        active = self._active
        if not self._epochs_saved:
            self._write_epochs(self._epochs)
            self._epochs_saved = True
        active.save_index()
        self._snapshots.take(self._producers, active.end_offset)
        self._disk.sync_directory(self._directory)
        self._recovery_point.write_synced(_clean_point(active))

    def save_damage(self) -> None:
        """Put the damaged ranges that are known on stable storage, if they are not there yet. Waits for the device.

        Raises:
            DiskFullError, DiskFailedError: the log goes on as it is.
        """
        self._damage.save()

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
                if not self._has_clean_mark:
                    self.leave_clean_mark()
        finally:
            self._closed = True
            # A descriptor must not be closed under a running sync: then `end_flush` does it.
            self._closes_point = True
            self._close_segments(self._segments)


def _clean_point(active: Segment) -> RecoveryPoint:
    end = CleanEnd(segment_base_offset=active.base_offset, segment_bytes=active.size_bytes)
    return RecoveryPoint(flushed_offset=active.end_offset, clean_end=end)

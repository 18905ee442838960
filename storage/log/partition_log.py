# SPDX-License-Identifier: Apache-2.0
"""One partition log: append, read, truncate, flush. The Raft log of the metadata quorum is one too.

Rules of use
    One owner (a thread or an event loop) calls everything. Only `FlushWork.run`, `LogStartWork.run` and
    `RemovalWork.run` may run elsewhere.
    Only `truncate_suffix`, `truncate_prefix`, `restart_at`, `apply_retention`, `swap`, `learn_epochs`,
    `leave_clean_mark`, `save_damage`, `flush`, `close` and opening wait for the device. A read may wait if the page
    cache misses.

Laws
    log_start_offset <= flushed_offset <= log_end_offset. Offsets are contiguous. Leader epochs never go back.
    A refused append leaves everything as it was. After a `DiskFailedError` the log writes nothing; reads continue.
    `flushed_offset` moves only in `end_flush` (up), in `truncate_suffix` (down), and with the log start. It never
    claims what a crash may lose.
    After a truncation no look-up finds anything that was truncated: positions, ages, epochs, producer state and damage
    are dropped with the records.

Design
    `PartitionLog` is the only writer of a log's state: segments, epochs, producers, snapshots, recovery point, log
    start, removed files, and the flushed offset. The modules that it uses do not know it: `reader` reads, `recovery`
    opens, `retention` and `follower_append` decide, `restart` and `swap` do the disk steps whose order a crash must not
    break.
    The owner makes work that waits for the device (`begin_...`), any thread runs it, and the owner takes it back
    (`end_...`).
    `begin_flush` collects everything unsynced into one `FlushWork`. In the meantime appends continue and form the next
    group.
    Indexes, epochs and producers are in memory; the log files are their truth. docs/storage_format.md describes files
    and recovery.

Order of a truncation of the suffix (law)
    1. Lower the recovery point, remove a clean mark, and sync. From here on a crash leaves a log that recovery walks
       from the new end.
    2. Remove the files of later segments, and the snapshots beyond the new end, last first; sync the directory.
    3. Truncate the segment that holds the new end, and sync it.
    4. Forget damage beyond the new end, and set epochs and producers back, in memory. Their files follow with the next
       flush.
    A crash before the last step may leave the old tail, or a part of it, as a legal log. After the last step nothing of
    it can come back.

Order of a truncation of the prefix (law)
    1. Write and sync the log start. From here on the log serves nothing below it.
    2. Take the segments wholly below it out of the list, and rename their files to `<name>.deleted`, the log file last.
    3. Trim the epochs and forget damage below, in memory.
    A crash in between leaves segments that the next opening removes (`recovery_prefix`). While a `LogStartWork` is in
    flight, the log truncates nothing below its offset. The log never removes the active segment. It first rolls one
    that is wholly below the log start or old enough to be removed.

Flush groups (law)
    At most one group is in flight. `flushed_offset` moves up only when the owner takes back a finished group, and never
    beyond a truncation that happened since. The log closes no descriptor that a group may be syncing. It writes the
    recovery point after the flush that it reports. A group holds only files with unsynced bytes; the descriptor cache
    does not close those.

Source: docs/storage.md; ALICE rule 7 (sync between truncate and append); Kafka,
UnifiedLog.
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
    HeadedBatch,
    HeadersRead,
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
from .producers import SEQUENCE_MASK, ProducerWindows
from .reader import LogReader, ReadWork
from .recovery import RecoveredLog, open_log
from .recovery_caches import restore_producers
from .recovery_point import SYNC_INTERVAL_FLUSHES, CleanEnd, RecoveryPoint
from .restart import restart_log
from .retention import RetentionView, SegmentExtent, count_due, must_roll, newest_record_ms
from .swap import CleanedGroup, put_in_place

MAX_START_OFFSET = 2**63 - 1
"""Largest offset at which a log can begin, inclusive."""

MAX_LOOKUPS = 2
"""Most searches for the end of a truncation; the second search knows the damage that stopped the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedLog:
    """An opened log, and what the opening found."""

    log: PartitionLog
    report: RecoveryReport


class PartitionLog:
    """An open log, made by `open`; the only writer of the state below."""

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
        "_sealed_version",
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
        # False: the next flush group must write the epoch checkpoint.
        self._epochs_saved = found.epochs_saved
        self._producers = found.producers
        self._snapshots = found.snapshots
        self._damage = found.damage
        self._recovery_point = found.recovery_point
        self._log_start_offset = found.log_start_offset
        self._deleted = DeletedFiles(disk)
        self._reader = LogReader(found.segments, found.damage, settings)
        self._cleaner_checkpoint = CleanerCheckpoint(disk, directory)
        # Every append needs these: the last segment of the set, its end, and the last leader epoch.
        self._active = found.segments.active
        self._end_offset = self._active.end_offset
        self._leader_epoch = found.epochs.last_epoch
        self._flushed_offset = self._end_offset
        # False: the name of a segment is not on stable storage yet.
        self._names_saved = True
        self._flush_count = 0
        self._flush_in_flight: FlushWork | None = None
        # New log end of a truncation under the group in flight: the group does not sync what is appended from there on.
        self._flush_cap: int | None = None
        self._close_later: list[Segment] = []
        self._closes_point = False
        self._prefix_in_flight: LogStartWork | None = None
        # By base offset: the segment, its end at the time of reading, and its largest timestamp. Made at first use.
        self._max_timestamps_ms: dict[int, tuple[Segment, int, int | None]] | None = None
        self._sealed_version = 0
        self._failure: DiskFailedError | None = None
        self._closed = False
        if self._active.is_open and self._active.size_bytes == 0:
            # The segment is new and its name is on stable storage. An idle log needs no descriptor.
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
        """Open the log in a directory and flush its content; create the log if it does not exist (its parent must exist).

        Args:
            disk: the disk that holds it.
            directory: absolute path.
            settings: the settings of the log.
            now_ms: the caller's clock in milliseconds, the same one as in later calls.
            identity: the partition that owns the records. Checked against `partition.metadata`, which is written if it
                is missing.
            files: limit on open files, shared with other logs; None: a limit of its own.

        Raises:
            CorruptLogError: the files contradict each other in a way that no crash leaves behind.
            WrongPartitionError: the directory belongs to another partition.
            DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError: the disk.
        """
        path = str(directory)
        disk = (files or FileBudget()).disk(disk)
        found = open_log(disk, path, settings=settings, now_ms=now_ms, identity=identity)
        return OpenedLog(log=cls(disk, path, found, settings), report=found.report)

    # State of the log.

    @property
    def disk(self) -> Disk:
        """The disk of the log, wrapped by the limit on open files."""
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
        """Everything below it is on stable storage (exclusive)."""
        return self._flushed_offset

    @property
    def last_epoch(self) -> int | None:
        """The largest leader epoch of the log, or None if the log never had one."""
        return self._leader_epoch

    @property
    def last_record_epoch(self) -> int | None:
        """Leader epoch of the last record, or None if the log holds no record."""
        return self._epochs.epoch_at(self._end_offset - 1) if self._end_offset > self._log_start_offset else None

    @property
    def segments(self) -> SegmentSet:
        """The segments, ascending; only for reading."""
        return self._segments

    @property
    def epochs(self) -> LeaderEpochs:
        """Where leader epochs begin; only for reading."""
        return self._epochs

    @property
    def producers(self) -> ProducerWindows:
        """Producer state and transactions; only for reading."""
        return self._producers

    @property
    def damage(self) -> DamagedRanges:
        """All damaged ranges, including those below the log start; only for reading."""
        return self._damage

    @property
    def damaged(self) -> tuple[DamagedRange, ...]:
        """The known damaged ranges that reach above the log start."""
        return tuple(found for found in self._damage.all() if found.end_offset > self._log_start_offset)

    @property
    def segment_count(self) -> int:
        """Number of segments, the active one included."""
        return len(self._segments)

    @property
    def sealed_version(self) -> int:
        """Changes whenever the log restarts, or a truncation drops the active segment.

        After such a truncation, the last segment that is left accepts appends again. Later appends can bring it back to its
        old offsets and size with other records. A new segment can also get the offsets and size of a dropped one. So a
        reader of sealed segments compares the version before and after, and discards what it read if the two differ.
        """
        return self._sealed_version

    @property
    def failure(self) -> DiskFailedError | None:
        """The error after which the log can no longer be written; None: it can."""
        return self._failure

    def apply_settings(self, settings: LogSettings) -> None:
        """Replace the settings; the next call uses them."""
        self._settings = settings
        self._reader.interval_bytes = settings.index_interval_bytes
        self._reader.verify = settings.verify_first_read
        self._producers.evict_idlest(settings.max_producers)

    def check_writable(self) -> None:
        """Raise the error that prevents writing, if there is one."""
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
        """Refuse to write a failed or closed log; remember the error if the disk fails inside."""
        if self._failure is not None or self._closed:
            self._refuse_write()
        try:
            yield
        except DiskFailedError as error:
            self._failure = error
            raise

    # Append.

    def append_as_leader(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        leader_epoch: int,
        now_ms: int,
    ) -> Appended:
        """Append one batch and stamp its base offset and leader epoch, unless the log already holds it.

        The caller has checked the bytes (`lograft.wire.batch.check_batch`); `header` is their header. The log does not
        copy them: one writev takes a stamped 16-byte prefix and the client's bytes.

        Args:
            batch: the batch.
            header: its header.
            leader_epoch: leader epoch to stamp.
            now_ms: wall clock in milliseconds.

        Returns:
            Where the batch is. For a duplicate, the offsets of the original.

        Raises:
            OutOfOrderSequenceError, ProducerFencedError, CoordinatorFencedError: see `storage.log.producers`; nothing
                changed.
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
        prefix = stamped_prefix(base_offset, header.batch_length, leader_epoch)
        rest = memoryview(batch)[PREFIX_BYTES:]
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
                (prefix, rest),
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

    def append_run_as_leader(
        self, run: Sequence[HeadedBatch], *, leader_epoch: int, now_ms: int, may_skip: bool = False
    ) -> list[Appended]:
        """Append batches of one producer that continue each other, and stamp them, with one write.

        Args:
            run: the batches, at least one.
            leader_epoch: leader epoch to stamp.
            now_ms: wall clock in milliseconds.
            may_skip: True: the first batch may leave out sequences of its producer; see `storage.log.producers`.

        Returns:
            Where the first batches are: as many as continue each other and fit into the segment, at least one. The caller
            appends the rest with another call. A duplicate comes alone, with the offsets of the original.

        Raises:
            As `append_as_leader`; nothing was appended then.
        """
        with self._writing():
            base_offset, known_epoch = self._end_offset, self._leader_epoch
            if known_epoch is not None and leader_epoch < known_epoch:
                raise OutOfOrderOffsetError(
                    f"leader epoch {leader_epoch} after {known_epoch}",
                    expected_offset=base_offset,
                    base_offset=base_offset,
                )
            first = run[0].header
            original = self._producers.check(first, may_skip=may_skip)
            if original is not None:
                return [Appended(original.base_offset, original.next_offset, True)]
            placed, parts = self._placed_run(run, base_offset, leader_epoch)
            if self._active.must_roll(
                last_offset=placed[0].header.last_offset,
                size_bytes=first.size_bytes,
                max_timestamp_ms=first.max_timestamp_ms,
                now_ms=now_ms,
                settings=self._settings,
            ):
                self._roll(now_ms)
            count = self._active.count_fitting(placed, self._settings)
            self._append_placed(parts[: 2 * count], placed[:count], now_ms)
            self._active.written_ms = now_ms
            return [Appended(header.base_offset, header.next_offset, False) for _, header in placed[:count]]

    @staticmethod
    def _placed_run(
        run: Sequence[HeadedBatch], base_offset: int, leader_epoch: int
    ) -> tuple[list[PlacedBatch], list[Buffer]]:
        """Return the first batches of a run that continue each other, as the log will hold them, and two buffers for each."""
        placed: list[PlacedBatch] = []
        parts: list[Buffer] = []
        position = 0
        producer = (run[0].header.producer_id, run[0].header.producer_epoch, run[0].header.base_sequence)
        for head, header, payload in run:
            if (header.producer_id, header.producer_epoch, header.base_sequence) != producer:
                break
            stamped = header._replace(base_offset=base_offset, leader_epoch=leader_epoch)
            placed.append(PlacedBatch(position, stamped))
            parts += (stamped_prefix(base_offset, header.batch_length, leader_epoch) + head[PREFIX_BYTES:], payload)
            position += header.size_bytes
            base_offset = stamped.next_offset
            producer = (header.producer_id, header.producer_epoch, (header.last_sequence + 1) & SEQUENCE_MASK)
        return placed, parts

    def append_as_follower(self, batches: Buffer, *, now_ms: int) -> Appended:
        """Append whole batches from a leader, byte for byte; check all of them before writing the first.

        One call writes neighbouring batches of one segment.

        Returns:
            The range that was appended (empty for empty `batches`).

        Raises:
            BatchError: torn or damaged bytes; nothing changed.
            OutOfOrderOffsetError: the batches do not continue the log; nothing changed.
            DiskFullError: batches may be missing at the end; `log_end_offset` says what was appended.
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
        last = run[-1]
        region = memoryview(batches)[run[0].position : last.position + last.header.size_bytes]
        self._append_placed((region,), run, now_ms)

    def _append_placed(self, parts: Sequence[Buffer], run: list[PlacedBatch], now_ms: int) -> None:
        """Write the bytes of batches with one call, and note them."""
        active = self._active
        active.append_bytes(parts)
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
        """Note in memory that a leader epoch begins at the log end, without a record yet; does nothing for the last epoch."""
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
        """Start a new segment at the log end, even if the active one has room. The active one must not be empty."""
        with self._writing():
            self._roll(now_ms)

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll the active segment if it is not empty and older than `segment_ms` by the clock; tell whether it did."""
        with self._writing():
            active = self._active
            is_due = active.size_bytes > 0 and now_ms - active.created_ms > self._settings.segment_ms
            if is_due:
                self._roll(now_ms)
            return is_due

    def _roll(self, now_ms: int) -> Segment:
        """Start a new segment at the log end.

        A roll syncs nothing. The next flush group syncs the old file, then the new one, then the directory, before
        anything in the new segment counts as flushed. Index and snapshot are caches and need no sync.
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
        """Return whole batches of at most one segment, from the one that holds `offset` on.

        Args:
            offset: first wanted record (inclusive); the first batch may begin below it.
            max_bytes: most bytes; the first batch is returned even if it is larger.
            end_offset: no returned batch reaches beyond it (exclusive), for example the high watermark. None: the log
                end.

        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
            DataLossError: the record at `offset` is damaged; the error says where reading can continue.
            DiskReadError: the device failed to return the bytes.
            LogClosedError: the log is closed.
        """
        limit = self._limit(offset, end_offset)
        return self._reader.read(offset, max_bytes, end_offset=limit, flushed_offset=self._flushed_offset)

    def begin_read(self, offset: int, *, end_offset: int) -> ReadWork | None:
        """Begin a read of the batches from the one that holds `offset` on, to `end_offset` (exclusive), for a thread to carry out.

        Returns:
            None if that takes more than to fetch the bytes; then call `read`.

        Raises:
            OffsetOutOfRangeError, LogClosedError: as `read`.
        """
        limit = self._limit(offset, end_offset)
        if limit != end_offset:
            return None
        return self._reader.begin_read(offset, end_offset=end_offset, flushed_offset=self._flushed_offset)

    def read_headers(self, offset: int, max_bytes: int, *, end_offset: int | None = None) -> HeadersRead:
        """Return the headers of the batches that `read` would return, at most `HEADERS_MAX`; of large batches little else is read.

        Arguments and errors are those of `read`.
        """
        limit = self._limit(offset, end_offset)
        return self._reader.read_headers(offset, max_bytes, end_offset=limit, flushed_offset=self._flushed_offset)

    def _limit(self, offset: int, end_offset: int | None) -> int:
        """Return the offset at which a read from `offset` must end (exclusive), at most the log end. Raises as `read`."""
        if self._closed:
            raise LogClosedError(self._directory)
        log_start_offset, log_end_offset = self._log_start_offset, self._end_offset
        if not log_start_offset <= offset <= log_end_offset:
            raise OffsetOutOfRangeError(offset, log_start_offset=log_start_offset, log_end_offset=log_end_offset)
        return log_end_offset if end_offset is None or end_offset > log_end_offset else end_offset

    def find_timestamp(self, timestamp_ms: int, *, end_offset: int) -> TimestampAndOffset | None:
        """Return the first user record whose timestamp is `timestamp_ms` or later.

        Args:
            timestamp_ms: milliseconds since 1970.
            end_offset: only records below it count (exclusive).

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
        """Timestamp of the first user record (milliseconds since 1970), or None if the log has none."""
        found = self.find_timestamp(0, end_offset=self._end_offset)
        return None if found is None else found.timestamp_ms

    def load_index(self, segment: Segment) -> SegmentIndex:
        """Return the indexes of a segment; the segment file may be closed afterwards, as after a read."""
        index = segment.load_index(self._settings.index_interval_bytes)
        self._segments.note_read(segment, self._flushed_offset)
        return index

    def quarantine(self, segment: Segment, ranges: Sequence[DamagedRange], *, flushed_offset: int) -> None:
        """Quarantine ranges of a segment that a scrub found damaged: ascending, not overlapping, none known before."""
        self._reader.quarantine(segment, ranges, flushed_offset=flushed_offset)

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd | None:
        """Return the largest known leader epoch at or below `epoch`, and where it ends (exclusive).

        None if `epoch` is above all known ones. If it is below all known ones: `epoch` itself, and the start of the
        first known one. Source: KIP-279.
        """
        return self._epochs.end_offset_for(epoch, self._end_offset)

    def hidden_from(self, epoch_end_offset: int) -> int | None:
        """Return the first offset where the epoch may really end, if damage hides the end given by `end_offset_for_epoch`; else None.

        The epoch then ends at that offset at the earliest, and at `epoch_end_offset` at the latest.
        """
        return self._damage.run_base(epoch_end_offset)

    def epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch of the record at an offset; None below the first one."""
        return self._epochs.epoch_at(offset)

    def epoch_end_at(self, offset: int) -> int:
        """Return the end (exclusive) of the run of records that have the leader epoch of the record at `offset`.

        At the log end, and in the last epoch, this is the log end.
        """
        start_offset, end_offset = self._log_start_offset, self._end_offset
        if not start_offset <= offset <= end_offset:
            raise OffsetOutOfRangeError(offset, log_start_offset=start_offset, log_end_offset=end_offset)
        return self._epochs.end_at(offset, end_offset)

    def divergence(self, *, last_epoch: int, fetch_offset: int) -> EpochEnd | None:
        """Compare the end of a follower's log with this one; `LeaderEpochs.divergence` describes the result.

        Raises:
            OffsetOutOfRangeError: `last_epoch` is above all epochs of this log, or the offset is below the log start.
        """
        known, start_offset, end_offset = self._leader_epoch, self._log_start_offset, self._end_offset
        if known is None or last_epoch > known or fetch_offset < start_offset:
            raise OffsetOutOfRangeError(fetch_offset, log_start_offset=start_offset, log_end_offset=end_offset)
        return self._epochs.divergence(last_epoch=last_epoch, fetch_offset=fetch_offset, log_end_offset=end_offset)

    # Flush.

    def begin_flush(self) -> FlushWork | None:
        """Collect everything that is not on stable storage into one group; at most one is in flight.

        Returns:
            The group, to `run` in any thread and then to pass to `end_flush`; None: everything is flushed, or a group
            is in flight.

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
        # Readers will stop here: this is the next high watermark.
        self._reader.remember(end_offset, active, active.size_bytes)
        return work

    def _recovery_point_file(self) -> list[File]:
        """Return the recovery point file for the group to sync; nothing if it cannot be opened, so that a later group syncs it."""
        try:
            return [self._recovery_point.file]
        except DiskError:
            return []

    def end_flush(self, work: FlushWork) -> int:
        """Take back a group after its `run`, and count its records as flushed.

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
                # The log was truncated since, so that the saved epochs are stale.
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
        """Flush everything in the calling thread, with no group in flight; for tests, tools and closing. Return the flushed offset."""
        assert self._flush_in_flight is None, "a flush group is in flight"
        work = self.begin_flush()
        if work is None:
            return self._flushed_offset
        with suppress(StorageError):  # `end_flush` raises it
            work.run()
        return self.end_flush(work)

    def _note_truncation(self, dropped: Iterable[Segment]) -> None:
        """Adopt the active segment, end and leader epoch that a durable truncation left; close the dropped segments."""
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
        """Close the files now, or after the group in flight, which may be syncing them."""
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

        The log drops whole batches, so it may end a little below `to_offset`. If the log start is inside a dropped
        batch, the log restarts empty at its log start. A flush group in flight stays valid for what is below. If
        `to_offset` is the log end, the log only forgets a leader epoch without a record. Waits for the device.

        Raises:
            OffsetOutOfRangeError: below the log start, or below where a `LogStartWork` in flight puts it; nothing
                changed.
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
        """The lowest legal end of a truncation (inclusive): the log start, or where the work in flight puts it."""
        return self._log_start_offset if self._prefix_in_flight is None else self._prefix_in_flight.to_offset

    def _forget_empty_epoch(self, to_offset: int) -> None:
        """Forget a leader epoch that was assigned at the log end and has no record.

        A crash is harmless: an opening forgets what begins at the log end, and the log replaces the checkpoint that
        still has it before the recovery point passes it.
        """
        if self._epochs.truncate_suffix(to_offset):
            self._epochs_saved = False
            self._take_active()

    def _cut(self, to_offset: int) -> list[Segment]:
        """Drop every batch that reaches beyond an offset inside the log (exclusive); the module docstring gives the order.

        Returns:
            The segments that were taken out; the caller closes their files once no flush uses them.
        """
        segments = self._segments
        end = self._find_cut(to_offset)
        point = self._recovery_point.point
        # Once the file has its old size again, before a sync, a clean mark would be valid again.
        has_clean_mark = point is not None and point.clean_end is not None
        if end.offset < self._flushed_offset or has_clean_mark:
            # Never raise it: records below the log start may count as flushed after a truncation of the prefix although
            # they were not synced.
            known_offset = self._flushed_offset if point is None else min(self._flushed_offset, point.flushed_offset)
            self._recovery_point.write_synced(RecoveryPoint(flushed_offset=min(end.offset, known_offset)))
        dropped: list[Segment] = []
        while segments.active.base_offset > end.offset:
            dropped.append(segments.pop())
        if dropped:
            self._sealed_version += 1
        for segment in dropped:
            for path in segment.file_names():
                remove_if_exists(self._disk, path)
        names_changed = self._snapshots.remove_above(end.offset) or bool(dropped)
        active = segments.active
        for path in active.file_names()[:-1]:
            # An opening would find the indexes of a segment that is active again stale; do not leave them.
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
        """Return the last batch boundary at or below an offset; a damaged range is dropped as a whole."""
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
        """Replace all segments, which end below the log start (on stable storage), by an empty one at the log start.

        A crash in between leaves segments that the next opening drops, or none; then the next opening restarts the log
        there.

        Returns:
            The segments that were taken out; the caller closes their files once no flush uses them.

        Raises:
            DiskFullError, DiskFailedError: the log ends below its start and must be opened again.
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

    # Restart.

    def restart_at(self, offset: int) -> None:
        """Drop everything and restart the log empty at any offset: for a follower that has nothing in common with its leader.

        A crash leaves the whole old log or the empty one; see `restart`. No flush group and no `LogStartWork` may be in
        flight. A compaction pass under way becomes void (`sealed_version`). Waits for the device.

        Raises:
            OffsetOutOfRangeError: no log can begin at `offset`; nothing changed.
            DiskFullError, DiskAccessError, TooManyOpenFilesError: nothing changed.
            DiskFailedError: the log can no longer be written; its next opening finishes the restart, or finds the old
                log.
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
            self._sealed_version += 1
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
        """Move the log start to an offset (inclusive) and remove the segments wholly below it; return the log start.

        Waits for the device.

        Raises:
            OffsetOutOfRangeError: beyond the log end; nothing changed.
            DiskFullError: the log start may have moved; then a later call removes what is below it.
            DiskFailedError, LogClosedError: nothing can be removed.
        """
        self._run_here(self.begin_prefix(to_offset), now_ms)
        return self._log_start_offset

    def apply_retention(self, high_watermark: int, now_ms: int) -> int:
        """Remove the segments that are due; return their number. Waits for the device.

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
        """Make the work that moves the log start to an offset; an offset below the log start leaves it unchanged.

        At most one work is in flight. Any thread may run it.

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
        """Make the work that removes the segments that are due now; None if no segment is due. `retention` decides.

        Args:
            high_watermark: retention removes nothing at or beyond it (exclusive).
            now_ms: wall clock in milliseconds.

        Raises:
            DiskFailedError, LogClosedError, DiskReadError, CorruptLogError: as in `apply_retention`.
        """
        with self._writing():
            self._roll_for_age(now_ms)
            due_count = self._count_due(high_watermark, now_ms)
        return self.begin_prefix(self._segments[due_count - 1].end_offset) if due_count > 0 else None

    def end_prefix(self, work: LogStartWork, now_ms: int) -> int:
        """Take a work back after its `run`, and remove what is wholly below the log start; return the number of removed segments.

        Raises:
            DiskFullError: the log start did not move; or it moved, but the active segment could not be rolled.
            DiskFailedError, DiskAccessError, TooManyOpenFilesError, LogClosedError: the disk failed, or the log is
                closed.
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
                # A truncation came first, and its last batch reaches over the new log start.
                self._note_truncation(self._begin_empty())
            removed_count = self._remove_below(now_ms)
            active = self._active
            if active.base_offset < active.end_offset <= work.to_offset:
                self._roll(now_ms)
                removed_count += self._remove_below(now_ms)
            return removed_count

    def _remove_below(self, now_ms: int) -> int:
        """Take out the segments wholly below the log start; return their number.

        Only the next flush moves the recovery point, because a batch that reaches over the log start may not be
        flushed.
        """
        segments = self._segments
        removed = segments.take_first(segments.slot_of(self._log_start_offset))
        # The reader remembers positions by segment, and timestamps by the index of the segment in the list.
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
        """Return the work that removes the `.deleted` files whose delay is over, for any thread; None if there are none."""
        return self._deleted.take_due(now_ms=now_ms, delay_ms=self._settings.file_delete_delay_ms)

    def remove_deleted(self, now_ms: int) -> int:
        """Remove the `.deleted` files whose delay is over; return their number.

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
        """Forget the ages of sealed segments, before one of them becomes active again."""
        self._max_timestamps_ms = None

    def _newest_ms(self, segment: Segment) -> int:
        """Return the time of a segment's newest record; read its index once until it grows."""
        if self._max_timestamps_ms is None:
            self._max_timestamps_ms = {}
        known = self._max_timestamps_ms.get(segment.base_offset)
        if known is None or known[0] is not segment or known[1] != segment.end_offset:
            max_timestamp_ms = self.load_index(segment).max_timestamp_ms
            known = self._max_timestamps_ms[segment.base_offset] = (segment, segment.end_offset, max_timestamp_ms)
        return newest_record_ms(known[2], segment.written_ms)

    # Compacted and repaired segments.

    def swap(self, cleaned: CleanedGroup, *, now_ms: int) -> bool:
        """Replace segments by a compacted or repaired one; `storage.log.swap` has the order. Waits for the device.

        Args:
            cleaned: the new segment, which is on stable storage.
            now_ms: the owner's clock in milliseconds.

        Returns:
            False if the log changed since the pass read its sources; then the new segment is deleted.

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
            self._close_segments(old)
            cleaned.index.save(self._disk, self._directory, log_bytes=new.size_bytes, end_offset=new.end_offset)
            # The reader remembers positions by segment, and timestamps by the index of the segment in the list.
            self._reader.forget_all()
            # The compacted part has another size now. Without this call all of it would count as dirty.
            self._cleaner_checkpoint.follow_swap(
                [SegmentSize(each.base_offset, each.size_bytes) for each in cleaned.sources],
                SegmentSize(new.base_offset, new.size_bytes),
            )
            return True

    def _find_sources(self, cleaned: CleanedGroup) -> int | None:
        """Return the index of the first source, or None unless all are still there, sealed, unchanged, with the repaired damage."""
        segments = self._segments
        slot = segments.slot_of(cleaned.sources[0].base_offset)
        found = [segments[at] for at in range(slot, min(slot + len(cleaned.sources), len(segments)))]
        same = [(each.base_offset, each.end_offset, each.size_bytes, self._sealed_version) for each in found] == [
            (each.base_offset, each.end_offset, each.size_bytes, each.sealed_version) for each in cleaned.sources
        ]
        damages = tuple(chain.from_iterable(each.damages() for each in found))
        is_usable = same and found[-1] is not segments.active and damages == cleaned.repaired
        return slot if is_usable else None

    def _segment_in_place_of(self, old: Sequence[Segment], size_bytes: int) -> Segment:
        """Make the segment that replaces others."""
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
        # This process has checked or computed every byte.
        segment.unverified_bytes = 0
        return segment

    @property
    def dirty_offset(self) -> int:
        """Nothing at or beyond it was ever compacted (inclusive): there every replica has the bytes that the leader appended.

        Raises:
            DiskReadError, DiskAccessError, TooManyOpenFilesError: the checkpoint cannot be read.
        """
        return self.clean_offsets[1]

    @property
    def clean_offsets(self) -> tuple[int, int]:
        """The pair (map offset, dirty offset), both within the log; see `cleaner_checkpoint`.

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
        """Earliest time when compaction may remove a tombstone or an end of a transaction, as of the last pass; None: none waits."""
        return self._cleaner_checkpoint.state.next_horizon_ms

    def note_compacted(
        self, *, map_offset: int, dirty_offset: int, next_horizon_ms: int | None, sealed_version: int
    ) -> None:
        """Save the result of a compaction pass, after its last swap, unless a truncation reached sealed segments since it began.

        Args:
            map_offset: below it no record is left that a newer one replaces (exclusive); at most `dirty_offset`.
            dirty_offset: below it everything was compacted as far as possible (exclusive).
            next_horizon_ms: the value for the property `next_horizon_ms`.
            sealed_version: `sealed_version` of the log when the pass began.

        Raises:
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        with self._writing():
            if sealed_version != self._sealed_version:
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
        """Return the producer state as it is and, if it differs, as it would be after a power failure.

        Raises:
            DiskFailedError, LogClosedError: the log cannot be written.
            DiskReadError: a snapshot cannot be read.
        """
        with self._writing():
            windows = [self._producers]
            if self._producers.has_batch_from(self._flushed_offset):
                # Without the unflushed batches, the producer state reaches further back.
                newest = self._snapshots.newest(self._flushed_offset)
                windows += [newest[1]] if newest is not None else []
            return windows

    def learn_epochs(self, found_epochs: Sequence[EpochStart], *, repaired: Sequence[DamagedRange]) -> bool:
        """Record where epochs begin inside damage, on stable storage, before a repair removes the damage.

        Until then the damage says that the epochs around it are uncertain.

        Args:
            found_epochs: epoch starts that the batches of another replica show, ascending.
            repaired: the damage that these batches will replace.

        Returns:
            False if the damage has changed, or a flush is in flight that could save the old epochs; then nothing was
            done.

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
                    # An earlier attempt recorded it, and then had no room for the segment.
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
        """True if a clean close has something to write; otherwise a close does not wait for the disk."""
        return self._failure is None and (self._flushed_offset < self._end_offset or not self._has_clean_mark)

    @property
    def _has_clean_mark(self) -> bool:
        """True if the mark on disk describes the log as it is, as after a clean opening without an append since."""
        return (
            self._epochs_saved
            and self._active.is_index_saved
            and self._recovery_point.point == _clean_point(self._active)
        )

    def leave_clean_mark(self) -> None:
        """Save the caches of a log whose batches are all flushed, then mark it clean, so that the next opening walks nothing.

        Law: the log writes the mark last, when everything that the mark describes is on stable storage. If something is
        appended later, the mark is only stale. The owner appends nothing during the call. Waits for the device.

        Raises:
            DiskFullError, DiskFailedError: there is no mark; the log continues as it is, and its next opening recovers.
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
        """Put the known damaged ranges on stable storage, unless they are there already. Waits for the device.

        Raises:
            DiskFullError, DiskFailedError: the log continues as it is.
        """
        self._damage.save()

    def close(self, *, clean: bool = True) -> None:
        """Close the log; a second call does nothing.

        Args:
            clean: True: flush everything and leave the clean mark (`leave_clean_mark`). False, or a failed log: only
                close the files, as a crash would leave them.

        Raises:
            DiskFailedError, DiskFullError: the clean close failed. The files are closed, and the next opening recovers.
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
            # No descriptor may be closed under a running sync: then `end_flush` closes it.
            self._closes_point = True
            self._close_segments(self._segments)


def _clean_point(active: Segment) -> RecoveryPoint:
    end = CleanEnd(segment_base_offset=active.base_offset, segment_bytes=active.size_bytes)
    return RecoveryPoint(flushed_offset=active.end_offset, clean_end=end)

# SPDX-License-Identifier: Apache-2.0
"""The front of a log: where it begins, and the segments that go because they are old, too many, or asked to.

Order of a removal (law): the log start is written and synced; from here on nothing below it is ever served again. Then
segments wholly below it leave the list and their files are renamed to `<name>.deleted`, log file last; epochs are trimmed,
damage below is forgotten, in memory. A crash in between leaves segments that the next open removes (`recovery_prefix`).

Theory
    A `PrefixWork` is the one step that waits for the device. As with a flush group, the owner makes it (`begin`), any thread
    runs it, and the owner takes it back (`end`); at most one is out. Nothing is cut below where it will put the log start.
    The active segment is never removed: one that is wholly below the log start, or old enough to go, is rolled first.

Must not: decide what is due (`retention` does).
Source: docs/storage.md sections 3 and 4; Kafka, UnifiedLog.maybeIncrementLogStartOffset and deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from storage.errors import OffsetOutOfRangeError, StorageError
from storage.files.disk import Disk
from storage.segment.segment import Segment

from .deleted import RemovalWork
from .flush_state import FlushState
from .log_start import LogStartFile
from .reader import LogReader
from .recovery import LogParts
from .retention import RetentionView, SegmentFacts, count_due, must_roll, newest_record_ms
from .tail import LogTail
from .truncation import restart_empty


class PrefixWork:
    """Puts a log start on stable storage.

    Attributes:
        to_offset: the new log start (inclusive).
        error: why `run` failed; None before and after a good run.
        is_done: True once `run` has returned.
    """

    __slots__ = ("_directory", "_disk", "error", "is_done", "to_offset")

    def __init__(self, disk: Disk, directory: str, to_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self.to_offset = to_offset
        self.error: StorageError | None = None
        self.is_done = False

    def run(self) -> None:
        """Do it; blocks for as long as the disk takes. Call once, from any thread.

        Raises:
            DiskFullError: the log start stays.
            DiskFailedError, DiskAccessError, TooManyOpenFilesError: the disk.
        """
        try:
            file = LogStartFile.read(self._disk, self._directory)
            if self.to_offset > file.offset:
                file.write_synced(self.to_offset)
        except StorageError as error:
            self.error = error
            raise
        self.is_done = True


class LogPrefix:
    """Front side of one log.

    Args:
        disk: the disk.
        directory: directory of the log.
        parts: the log.
        tail: its append side, which rolls.
        flush_state: its flush side, which closes files.
        reader: its read side, which forgets positions.
        writing: refuses a log that cannot be written, and notes a failure of the disk.
    """

    __slots__ = (
        "_directory",
        "_disk",
        "_flush_state",
        "_in_flight",
        "_max_timestamps_ms",
        "_parts",
        "_reader",
        "_tail",
        "_writing",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        parts: LogParts,
        tail: LogTail,
        flush_state: FlushState,
        reader: LogReader,
        writing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._parts = parts
        self._tail = tail
        self._flush_state = flush_state
        self._reader = reader
        self._writing = writing
        self._in_flight: PrefixWork | None = None
        # By base offset: the segment, where it ended then, and its largest timestamp. Made at the first look.
        self._max_timestamps_ms: dict[int, tuple[Segment, int, int | None]] | None = None

    @property
    def floor_offset(self) -> int:
        """Nothing may be cut below (inclusive): the log start, or where the work in flight puts it."""
        return self._parts.log_start_offset if self._in_flight is None else self._in_flight.to_offset

    @property
    def is_in_flight(self) -> bool:
        """True between `begin` and `end`."""
        return self._in_flight is not None

    def truncate(self, to_offset: int, now_ms: int) -> int:
        """Let the log begin at an offset, and remove the segments wholly below; return the log start.

        Raises:
            OffsetOutOfRangeError: beyond the log end; nothing changed.
            DiskFullError: the log start may have moved; what is below then goes with the next removal.
            DiskFailedError, LogClosedError: nothing can be removed.
        """
        self.run_here(self.begin(to_offset), now_ms)
        return self._parts.log_start_offset

    def apply_retention(self, high_watermark: int, now_ms: int) -> int:
        """Remove the segments that are due; return how many.

        Raises:
            DiskFullError, DiskFailedError, LogClosedError: as in `truncate`.
            DiskReadError, CorruptLogError: the age of a segment cannot be read.
        """
        work = self.begin_retention(high_watermark, now_ms)
        return 0 if work is None else self.run_here(work, now_ms)

    def run_here(self, work: PrefixWork, now_ms: int) -> int:
        """Run a work in the calling thread and take it back; return the number of removed segments."""
        with suppress(StorageError):  # `end` raises it
            work.run()
        return self.end(work, now_ms)

    def begin(self, to_offset: int) -> PrefixWork:
        """Make the work that moves the log start to an offset; an offset below the log start leaves it there.

        Raises:
            OffsetOutOfRangeError: beyond the log end.
            DiskFailedError, LogClosedError: nothing can be removed.
        """
        assert self._in_flight is None, "another prefix work is in flight"
        with self._writing():
            log_start_offset = self._parts.log_start_offset
            if to_offset > self._tail.end_offset:
                raise OffsetOutOfRangeError(
                    to_offset, log_start_offset=log_start_offset, log_end_offset=self._tail.end_offset
                )
            self._in_flight = PrefixWork(self._disk, self._directory, max(to_offset, log_start_offset))
            return self._in_flight

    def begin_retention(self, high_watermark: int, now_ms: int) -> PrefixWork | None:
        """Make the work for the segments that are due now; None if there are none.

        Args:
            high_watermark: nothing at or beyond it goes (exclusive).
            now_ms: wall clock in milliseconds.

        Raises:
            DiskFailedError, LogClosedError, DiskReadError, CorruptLogError: as in `apply_retention`.
        """
        with self._writing():
            self._roll_for_age(now_ms)
            due_count = self._count_due(high_watermark, now_ms)
        return self.begin(self._parts.segments[due_count - 1].end_offset) if due_count > 0 else None

    def end(self, work: PrefixWork, now_ms: int) -> int:
        """Take a work back after its `run` and remove what lies wholly below the log start; return how many segments.

        Raises:
            DiskFullError: the log start did not move; or it did, but the active segment could not be rolled.
            DiskFailedError, DiskAccessError, TooManyOpenFilesError, LogClosedError: the disk, or a closed log.
        """
        assert work is self._in_flight, "another work than the one in flight"
        self._in_flight = None
        with self._writing():
            if work.error is not None:
                raise work.error
            assert work.is_done, "the work was not run"
            parts = self._parts
            parts.log_start_offset = work.to_offset
            if parts.epochs.truncate_prefix(work.to_offset):
                parts.epochs_saved = False
            parts.producers.forget_aborted_below(work.to_offset)
            if self._tail.end_offset < work.to_offset:
                # Cut meanwhile, and the batch with the cut reaches over the new log start.
                dropped = restart_empty(self._disk, self._directory, parts)
                self._tail.follow_truncation()
                self._flush_state.note_truncation(self._tail.end_offset, dropped)
            removed_count = self._remove_below(now_ms)
            active = self._tail.active
            if active.base_offset < active.end_offset <= work.to_offset:
                self._tail.roll(now_ms)
                removed_count += self._remove_below(now_ms)
            return removed_count

    def _remove_below(self, now_ms: int) -> int:
        """Take the segments wholly below the log start out; return how many."""
        parts = self._parts
        segments = parts.segments
        removed = segments.take_first(segments.slot_of(parts.log_start_offset))
        # Positions are remembered by segment, timestamps by the place of the segment.
        self._reader.forget_all()
        for segment in removed:
            if self._max_timestamps_ms is not None:
                self._max_timestamps_ms.pop(segment.base_offset, None)
            parts.deleted.rename(segment.file_names(), now_ms=now_ms)
        self._flush_state.note_prefix(parts.log_start_offset, removed)
        parts.snapshots.remove_below(segments.base_offset)
        parts.damage.truncate_prefix(segments.base_offset)
        return len(removed)

    def roll_if_due(self, now_ms: int) -> bool:
        """Roll the active segment, without an append, if it is not empty and older than `segment_ms` by the clock.

        Raises:
            DiskFullError: nothing changed.
            DiskFailedError, LogClosedError: as in `truncate`.
        """
        with self._writing():
            active = self._tail.active
            is_due = active.size_bytes > 0 and now_ms - active.created_ms > self._tail.settings.segment_ms
            if is_due:
                self._tail.roll(now_ms)
            return is_due

    def begin_removal(self, now_ms: int) -> RemovalWork | None:
        """Hand over the `.deleted` files whose delay is over, for any thread to remove; None if there are none."""
        return self._parts.deleted.take_due(now_ms=now_ms, delay_ms=self._tail.settings.file_delete_delay_ms)

    def remove_deleted(self, now_ms: int) -> int:
        """Remove the `.deleted` files whose delay is over; return how many.

        Raises:
            DiskFailedError, LogClosedError: nothing can be removed.
        """
        with self._writing():
            work = self.begin_removal(now_ms)
            return 0 if work is None else work.run()

    def _count_due(self, high_watermark: int, now_ms: int) -> int:
        parts = self._parts
        settings = self._tail.settings
        view = RetentionView(
            log_start_offset=parts.log_start_offset,
            high_watermark=high_watermark,
            log_bytes=sum(segment.size_bytes for segment in parts.segments),
            now_ms=now_ms,
            retention_ms=settings.retention_ms,
            retention_bytes=settings.retention_bytes,
        )
        segments = list(parts.segments)
        facts = [SegmentFacts(segment.end_offset, segment.size_bytes) for segment in segments]
        return count_due(facts, lambda place: self._newest_ms(segments[place]), view)

    def _roll_for_age(self, now_ms: int) -> None:
        active = self._tail.active
        facts = SegmentFacts(active.end_offset, active.size_bytes)
        retention_ms = self._tail.settings.retention_ms
        if must_roll(facts, created_ms=active.created_ms, now_ms=now_ms, retention_ms=retention_ms):
            self._tail.roll(now_ms)

    def forget_ages(self) -> None:
        """Forget what was read of sealed segments, before one of them becomes the active one again."""
        self._max_timestamps_ms = None

    def _newest_ms(self, segment: Segment) -> int:
        """Return how new a segment is; its index is read once for as long as it does not grow, and closed again like after a read."""
        if self._max_timestamps_ms is None:
            self._max_timestamps_ms = {}
        known = self._max_timestamps_ms.get(segment.base_offset)
        if known is None or known[0] is not segment or known[1] != segment.end_offset:
            max_timestamp_ms = segment.load_index(self._tail.settings.index_interval_bytes).max_timestamp_ms
            self._parts.segments.note_read(segment, self._flush_state.flushed_offset)
            known = self._max_timestamps_ms[segment.base_offset] = (segment, segment.end_offset, max_timestamp_ms)
        return newest_record_ms(known[2], segment.written_ms)

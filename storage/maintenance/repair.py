# SPDX-License-Identifier: Apache-2.0
"""Writes a segment anew with the damaged ranges replaced by the batches that another replica has.

Theory
    All damage of one segment is repaired at once. `start` copies what stands before the first damaged range; then `wanted` says
    which offsets are missing, `put` takes batches for them, and goes on copying behind each range that is whole; `finish` puts the
    file on stable storage. The owner then swaps it in (`LogRepair.end`), as a compacted segment, so that a crash leaves the damaged
    segment or the whole one. Every step of `SegmentRepair` blocks; any thread may take it, one at a time.

Laws
    Nothing gets into the file but batches whose CRC matches, which continue the one before, and whose leader epoch is the one that
    this log knows for their offsets: a batch of the same offsets and epoch is the same batch on every replica (KIP-101).
    Damage that ends where an epoch begins may hide its beginning, if the epochs were read from the headers of the batches that
    are left. There an epoch above the one before the damage and not above the one behind it is taken, and tells where it begins
    (`found_epochs`). Only committed batches are asked for and given, and those are the same on every replica whatever their epoch.
    What `put` refuses has changed nothing: batches of another replica can be tried.
    Only what is committed is repaired, and only where no replica can have compacted it: below `PartitionLog.dirty_offset` a
    batch of another replica may lack a tombstone whose record this log still has.
    A segment in which anything changed while it was written anew stays as it is.

`LogRepair` belongs to the owner of the log; only `SegmentRepair` works elsewhere.

Source: docs/storage.md section 6a; Alagappan et al., "Protocol-aware recovery" (FAST 2018).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lograft.wire.errors import InvalidBatchError

from storage.compaction.group_writer import GroupWriter
from storage.compaction.source import Pace, log_path, read_span
from storage.errors import OutOfOrderOffsetError
from storage.files.descriptor_cache import disk_under
from storage.files.disk import Buffer, Disk
from storage.files.names import REPAIRED_SUFFIX
from storage.log.epochs import EpochStart, LeaderEpochs, epoch_fits, may_begin_earlier
from storage.log.follower_append import check_follower_batches
from storage.log.partition_log import PartitionLog
from storage.log.swap import CleanedGroup
from storage.segment.segment import Segment
from storage.types import Boundary, DamagedRange, SegmentFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairTask:
    """A damaged segment as it was when the repair began; a value, so that a thread shares nothing with the owner.

    Attributes:
        directory: directory of the log.
        segment: the segment, which is sealed and flushed.
        damaged: all of its damaged ranges, ascending; at least one.
        damage_ends: for each of them where it ends with all damage that touches it, also in the next segments (exclusive).
        epochs: leader epochs of the log.
        interval_bytes: index interval.
    """

    directory: str
    segment: SegmentFacts
    damaged: tuple[DamagedRange, ...]
    damage_ends: tuple[int, ...]
    epochs: LeaderEpochs
    interval_bytes: int


class SegmentRepair:
    """One repair; `finish` or `discard` ends it.

    Args:
        disk: the disk of the log.
        task: the segment.
        pace: waits as long as a rate limit asks for.
    """

    def __init__(self, disk: Disk, task: RepairTask, pace: Pace) -> None:
        self._disk = disk
        self._pace = pace
        self._left = list(task.damaged)
        self._damage_ends = list(task.damage_ends)
        self._epochs = LeaderEpochs(task.epochs.entries())
        self._found: tuple[EpochStart, ...] = ()
        # Where what was written ends in the damaged file, and the offset there.
        self._copied = Boundary(task.segment.base_offset, 0)
        self._offset = task.segment.base_offset
        self.task = task
        self._writer = GroupWriter(
            disk,
            task.directory,
            (task.segment,),
            interval_bytes=task.interval_bytes,
            pace=pace,
            suffix=REPAIRED_SUFFIX,
        )

    @property
    def wanted(self) -> range | None:
        """The offsets that must come next; None: all are there."""
        return range(self._offset, self._left[0].end_offset) if self._left else None

    @property
    def found_epochs(self) -> tuple[EpochStart, ...]:
        """Leader epochs that the batches show to begin earlier than was known, ascending."""
        return self._found

    def start(self) -> None:
        """Copy what stands before the first damaged range.

        Raises:
            CorruptLogError: more is damaged than was known.
            FileMissingError: the segment was removed meanwhile.
            DiskFullError, DiskFailedError, DiskReadError, DiskAccessError, TooManyOpenFilesError: the disk.
        """
        self._copy()

    def put(self, batches: Buffer) -> None:
        """Take whole batches that begin at the first offset of `wanted` and do not reach beyond it.

        Raises:
            BatchError: damaged bytes, or batches of another range; nothing changed.
            OutOfOrderOffsetError: they do not begin there, or are of another history than this log; nothing changed.
            Others as `start`: `discard` then.
        """
        wanted = self.wanted
        assert wanted is not None, f"{self.task.directory}: batches for a segment that is whole"
        placed = check_follower_batches(batches, log_end_offset=wanted.start, last_epoch=None)
        if not placed:
            raise InvalidBatchError("no batch came")
        epochs = LeaderEpochs(self._epochs.entries())
        found: list[EpochStart] = []
        for _, header in placed:
            if header.next_offset > wanted.stop:
                raise InvalidBatchError(f"a batch ends at {header.next_offset}, the damage at {wanted.stop}")
            # Below the first known epoch every one up to it fits, and is news.
            is_known = epochs.last_epoch is None or epochs.epoch_at(header.base_offset) is not None
            if is_known and epoch_fits(epochs, header):
                continue
            if not may_begin_earlier(epochs, header.leader_epoch, header.base_offset, damage_end=self._damage_ends[0]):
                raise OutOfOrderOffsetError(
                    f"leader epoch {header.leader_epoch} is of another history",
                    expected_offset=wanted.start,
                    base_offset=header.base_offset,
                )
            epochs.begin_earlier(header.leader_epoch, header.base_offset)
            found.append(EpochStart(header.leader_epoch, header.base_offset))
        self._epochs, self._found = epochs, (*self._found, *found)
        view = memoryview(batches)
        for position, header in placed:
            self._writer.put(view[position : position + header.size_bytes], is_unchanged=False)
            self._offset = header.next_offset
        if self._offset == wanted.stop:
            self._copied = Boundary(self._offset, self._left.pop(0).end_position)
            self._damage_ends.pop(0)
            self._copy()

    def finish(self) -> CleanedGroup:
        """Put the file on stable storage.

        Raises:
            DiskFullError, DiskFailedError, TooManyOpenFilesError: the disk; `discard` then.
        """
        assert self.wanted is None, f"{self.task.directory}: {self.wanted} is missing"
        cleaned = self._writer.finish(repaired=self.task.damaged)
        assert cleaned is not None, "a repair changes something"
        return cleaned

    def discard(self) -> None:
        """Give up: remove what was written, if the disk lets us; else the next opening of the log does."""
        self._writer.discard()

    def _copy(self) -> None:
        """Copy the batches up to the next damaged range, or to the end."""
        segment = self.task.segment
        end = Boundary(segment.end_offset, segment.size_bytes)
        if self._left:
            end = Boundary(self._left[0].base_offset, self._left[0].position)
        if end.offset == self._copied.offset:
            # Between two ranges that touch stands no batch, whatever the bytes are.
            return
        file = disk_under(self._disk).open_file(log_path(self.task.directory, segment.base_offset))
        try:
            for header, batch in read_span(file, self._copied, end, self._pace):
                self._writer.put(batch, is_unchanged=True)
                self._offset = header.next_offset
        finally:
            file.close()


class LogRepair:
    """Owner side of the repair of one log: which damaged segment is next, and the swap.

    Args:
        log: the log.
    """

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def begin(self, *, high_watermark: int, now_ms: int, passed_over: Collection[int] = ()) -> RepairTask | None:
        """Describe the first damaged segment that can be repaired; None if there is none.

        A damaged segment that is still appended to is rolled; it is due once it is flushed.

        Args:
            high_watermark: only damage below it is repaired (exclusive).
            now_ms: the owner's clock in milliseconds.
            passed_over: base offsets of segments that are not to be looked at now.

        Raises:
            DiskFullError, DiskFailedError, LogClosedError: a new segment cannot be begun.
            DiskReadError: it cannot be read how far the log was compacted.
        """
        log = self._log
        if not log.damage:
            return None
        dirty_offset = log.dirty_offset
        for segment in tuple(log.segments):
            damaged = tuple(segment.damages())
            if not damaged or segment.base_offset in passed_over:
                continue
            if damaged[0].base_offset < dirty_offset or not self._is_committed(damaged, high_watermark):
                continue
            if segment is log.segments.active:
                log.roll(now_ms)
            if segment.end_offset <= log.flushed_offset:
                return self._task(segment, damaged)
        return None

    def _is_committed(self, damaged: tuple[DamagedRange, ...], high_watermark: int) -> bool:
        """Tell whether others must have all of it: below the high watermark, and not below the log start."""
        return damaged[0].base_offset >= self._log.log_start_offset and damaged[-1].end_offset <= high_watermark

    def _task(self, segment: Segment, damaged: tuple[DamagedRange, ...]) -> RepairTask:
        log = self._log
        return RepairTask(
            directory=log.directory,
            segment=SegmentFacts(
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                size_bytes=segment.size_bytes,
                first_timestamp_ms=None,
                max_timestamp_ms=0,
                is_damaged=True,
                restart_count=log.restart_count,
            ),
            damaged=damaged,
            damage_ends=tuple(log.damage.run_end(each.end_offset) for each in damaged),
            # A copy: the owner's one goes on.
            epochs=LeaderEpochs(log.epochs.entries()),
            interval_bytes=log.settings.index_interval_bytes,
        )

    def end(self, repaired: CleanedGroup, *, found_epochs: Sequence[EpochStart] = (), now_ms: int) -> bool:
        """Put a repaired segment in the place of the damaged one; waits for the device.

        Args:
            repaired: what `SegmentRepair.finish` gave.
            found_epochs: `SegmentRepair.found_epochs`.
            now_ms: the owner's clock in milliseconds.

        Returns:
            False if the segment changed meanwhile, or a flush is in flight that could save older epochs than those found: nothing
            was done.

        Raises:
            DiskFullError, DiskAccessError: the damaged segment stays.
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        if found_epochs and not self._log.learn_epochs(found_epochs, repaired=repaired.repaired):
            return False
        return self._log.swap(repaired, now_ms=now_ms)

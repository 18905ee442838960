# SPDX-License-Identifier: Apache-2.0
"""Rewrites a segment, with the damaged ranges replaced by batches of another replica.

Design
    A repair covers all damage of one segment. `start` copies everything before the first damaged range. `wanted` then
    names the missing offsets, and `put` takes batches for them. When a range is complete, `put` continues the copy
    behind it. `finish` puts the file on stable storage. The owner swaps it in (`LogRepair.end`) like a compacted
    segment, so that a crash leaves either the damaged segment or the repaired one. Every step of `SegmentRepair`
    blocks; any thread may call it, one at a time.

Laws
    The file gets only batches with a matching CRC that continue the batch before and have the leader epoch that this
    log knows for their offsets. A batch of the same offsets and epoch is the same batch on every replica (KIP-101).
    Damage that ends where an epoch begins may hide the beginning of that epoch, if the epochs were read from the
    remaining batch headers. There, `put` accepts an epoch above the one before the damage and not above the one behind
    it. Such a batch shows where its epoch begins (`found_epochs`). Replicas request and send only committed batches,
    and those are the same on every replica, whatever their epoch.
    A batch that `put` refuses changes nothing, so that the caller can try batches of another replica.
    Only committed records are repaired, and only where no replica can have compacted them. Below
    `PartitionLog.dirty_offset`, a batch of another replica may lack a tombstone whose record this log still has.
    A segment that changed during the repair stays as it is.

State: the owner of the log calls `LogRepair`; only `SegmentRepair` runs elsewhere.

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
        segment: the segment, sealed and flushed.
        damaged: all its damaged ranges, ascending; at least one.
        damage_ends: for each range, the end of the damage that touches it, also in later segments (exclusive).
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
        pace: waits as long as the rate limit requires.
    """

    def __init__(self, disk: Disk, task: RepairTask, pace: Pace) -> None:
        self._disk = disk
        self._pace = pace
        self._left = list(task.damaged)
        self._damage_ends = list(task.damage_ends)
        self._epochs = LeaderEpochs(task.epochs.entries())
        self._found: tuple[EpochStart, ...] = ()
        # End of the copied part in the damaged file, and the next offset to write.
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
        """The next missing offsets; None: the segment is complete."""
        return range(self._offset, self._left[0].end_offset) if self._left else None

    @property
    def found_epochs(self) -> tuple[EpochStart, ...]:
        """Leader epochs that, as the batches show, begin earlier than was known, ascending."""
        return self._found

    def start(self) -> None:
        """Copy everything before the first damaged range.

        Raises:
            CorruptLogError: the copy finds more damage than was known.
            FileMissingError: the segment was removed in the meantime.
            DiskFullError, DiskFailedError, DiskReadError, DiskAccessError, TooManyOpenFilesError: the disk.
        """
        self._copy()

    def put(self, batches: Buffer) -> None:
        """Take whole batches that begin at the first offset of `wanted` and end within it.

        Raises:
            BatchError: damaged bytes, or batches of another range; nothing changed.
            OutOfOrderOffsetError: they begin elsewhere, or belong to another history than this log; nothing changed.
            Others as in `start`; the caller must then call `discard`.
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
            # Below the first known epoch every epoch up to it fits, so the batch shows a new epoch start.
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
            DiskFullError, DiskFailedError, TooManyOpenFilesError: the disk; the caller must then call `discard`.
        """
        assert self.wanted is None, f"{self.task.directory}: {self.wanted} is missing"
        cleaned = self._writer.finish(repaired=self.task.damaged)
        assert cleaned is not None, "a repair changes something"
        return cleaned

    def discard(self) -> None:
        """End the repair and remove its file. If the disk has failed, the next opening of the log removes it."""
        self._writer.discard()

    def _copy(self) -> None:
        """Copy the batches up to the next damaged range, or to the end."""
        segment = self.task.segment
        end = Boundary(segment.end_offset, segment.size_bytes)
        if self._left:
            end = Boundary(self._left[0].base_offset, self._left[0].position)
        if end.offset == self._copied.offset:
            # There is no batch between two ranges that touch, whatever the bytes are.
            return
        file = disk_under(self._disk).open_file(log_path(self.task.directory, segment.base_offset))
        try:
            for header, batch in read_span(file, self._copied, end, self._pace):
                self._writer.put(batch, is_unchanged=True)
                self._offset = header.next_offset
        finally:
            file.close()


class LogRepair:
    """The owner's side of the repair of one log: chooses the next damaged segment, and swaps.

    Args:
        log: the log.
    """

    __slots__ = ("_log",)

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def begin(self, *, high_watermark: int, now_ms: int, passed_over: Collection[int] = ()) -> RepairTask | None:
        """Make the task for the first damaged segment that can be repaired; None if there is none.

        Rolls a damaged active segment, which becomes due once it is flushed.

        Args:
            high_watermark: only damage below it is repaired (exclusive).
            now_ms: the owner's clock in milliseconds.
            passed_over: base offsets of segments to skip.

        Raises:
            DiskFullError, DiskFailedError, LogClosedError: the active segment cannot be rolled.
            DiskReadError: the cleaner checkpoint cannot be read.
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
        """Tell whether all of the damage is committed and served: below the high watermark, not below the log start."""
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
                sealed_version=log.sealed_version,
            ),
            damaged=damaged,
            damage_ends=tuple(log.damage.run_end(each.end_offset) for each in damaged),
            # A copy, because the owner's epochs change.
            epochs=LeaderEpochs(log.epochs.entries()),
            interval_bytes=log.settings.index_interval_bytes,
        )

    def end(self, repaired: CleanedGroup, *, found_epochs: Sequence[EpochStart] = (), now_ms: int) -> bool:
        """Replace the damaged segment by the repaired one. Waits for the device.

        Args:
            repaired: the result of `SegmentRepair.finish`.
            found_epochs: `SegmentRepair.found_epochs`.
            now_ms: the owner's clock in milliseconds.

        Returns:
            False if the segment has changed, or a flush is in flight that could save older epochs than those found; the
            damaged segment stays.

        Raises:
            DiskFullError, DiskAccessError: the damaged segment stays.
            DiskFailedError, LogClosedError: the log can no longer be written.
        """
        if found_epochs and not self._log.learn_epochs(found_epochs, repaired=repaired.repaired):
            return False
        return self._log.swap(repaired, now_ms=now_ms)

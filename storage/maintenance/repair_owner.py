# SPDX-License-Identifier: Apache-2.0
"""Owner side of the repair of one log: which damaged segment is next, and the swap.

Laws
    Only what is committed is repaired, and only where no replica can have compacted it: below `LogCompaction.dirty_offset` a
    batch of another replica may lack a tombstone whose record this log still has.
    A segment in which anything changed while it was written anew stays as it is.

Belongs to the owner of the log; only `SegmentRepair` works elsewhere.
Source: docs/storage.md section 6a.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

from storage.compaction.group_writer import CleanedGroup
from storage.compaction.owner import LogCompaction
from storage.compaction.plan import SegmentFacts
from storage.files.checkpoints import encode_lines, replace_file
from storage.files.disk import Disk
from storage.files.names import EPOCH_FILE
from storage.log.epochs import EpochStart, LeaderEpochs, may_begin_earlier
from storage.log.flush_state import FlushState
from storage.log.recovery import LogParts
from storage.log.tail import LogTail
from storage.segment.segment import Segment
from storage.types import DamagedRange

from .repair import RepairTask


class LogRepair:
    """See the module docstring.

    Args:
        disk: the disk of the log.
        directory: directory of the log.
        parts: what it consists of.
        tail: its append side, which rolls.
        flush_state: its flush side.
        compaction: swaps segments, and knows what was compacted.
        writing: refuses a log that cannot be written, and notes a failure of the disk.
    """

    __slots__ = ("_compaction", "_directory", "_disk", "_flush_state", "_parts", "_tail", "_writing")

    def __init__(
        self,
        disk: Disk,
        directory: str,
        parts: LogParts,
        tail: LogTail,
        flush_state: FlushState,
        compaction: LogCompaction,
        writing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._parts = parts
        self._tail = tail
        self._flush_state = flush_state
        self._compaction = compaction
        self._writing = writing

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
        if not self._parts.damage:
            return None
        dirty_offset = self._compaction.dirty_offset
        for segment in tuple(self._parts.segments):
            damaged = tuple(segment.damages())
            if not damaged or segment.base_offset in passed_over:
                continue
            if damaged[0].base_offset < dirty_offset or not self._is_committed(damaged, high_watermark):
                continue
            if segment is self._parts.segments.active:
                with self._writing():
                    self._tail.roll(now_ms)
            if segment.end_offset <= self._flush_state.flushed_offset:
                return self._task(segment, damaged)
        return None

    def _is_committed(self, damaged: tuple[DamagedRange, ...], high_watermark: int) -> bool:
        """Tell whether others must have all of it: below the high watermark, and not below the log start."""
        return damaged[0].base_offset >= self._parts.log_start_offset and damaged[-1].end_offset <= high_watermark

    def _task(self, segment: Segment, damaged: tuple[DamagedRange, ...]) -> RepairTask:
        return RepairTask(
            directory=self._directory,
            segment=SegmentFacts(
                base_offset=segment.base_offset,
                end_offset=segment.end_offset,
                size_bytes=segment.size_bytes,
                first_timestamp_ms=None,
                max_timestamp_ms=0,
                is_damaged=True,
            ),
            damaged=damaged,
            damage_ends=tuple(self._parts.damage.run_end(each.end_offset) for each in damaged),
            # A copy: the owner's one goes on.
            epochs=LeaderEpochs(self._parts.epochs.entries()),
            interval_bytes=self._tail.settings.index_interval_bytes,
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
        if found_epochs:
            with self._writing():
                if not self._learn_epochs(repaired, found_epochs):
                    return False
        return self._compaction.swap_repaired(repaired, now_ms=now_ms)

    def _learn_epochs(self, repaired: CleanedGroup, found_epochs: Sequence[EpochStart]) -> bool:
        """Take up where epochs begin, on stable storage before the damage goes that says how little is known of it."""
        parts = self._parts
        known = set(parts.damage.all())
        if self._flush_state.is_in_flight or not known.issuperset(repaired.repaired):
            return False
        epochs = LeaderEpochs(parts.epochs.entries())
        for epoch, start_offset in found_epochs:
            if epochs.epoch_at(start_offset) == epoch:
                # Taken up before, by an end that found no room for the segment.
                continue
            damaged = parts.damage.covering(start_offset)
            if damaged is None:
                return False
            damage_end = parts.damage.run_end(damaged.end_offset)
            if not may_begin_earlier(epochs, epoch, start_offset, damage_end=damage_end):
                return False
            epochs.begin_earlier(epoch, start_offset)
        replace_file(self._disk, f"{self._directory}/{EPOCH_FILE}", encode_lines(epochs.encode_entries()))
        parts.epochs, parts.epochs_saved = epochs, True
        return True

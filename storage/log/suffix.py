# SPDX-License-Identifier: Apache-2.0
"""The tail side of a log: what is asked for when records at its end are to go.

Laws
    Nothing that was cut is found by any look-up afterwards: positions, ages, epochs, windows and damage go with it.
    A flush group in flight stays valid for what is below the cut.

Theory
    `PartitionLog` makes one for a single call, inside its own check that the log can be written; so it holds nothing. What
    happens on the disk, and in which order, stands in `truncation`.

Source: docs/storage.md section 2; Kafka, UnifiedLog.truncateTo.
"""

from __future__ import annotations

from typing import NamedTuple

from storage.compaction.owner import LogCompaction
from storage.errors import OffsetOutOfRangeError
from storage.files.disk import Disk

from .epochs import LeaderEpochs
from .flush_state import FlushState
from .prefix import LogPrefix
from .producer_snapshots import ProducerSnapshots
from .producers import ProducerWindows
from .reader import LogReader
from .recovery import LogParts
from .restart import restart_log
from .tail import LogTail
from .truncation import truncate_suffix

MAX_START_OFFSET = 2**63 - 1
"""Largest offset at which a log can begin, inclusive."""


class LogSuffix(NamedTuple):
    """What a log consists of, for one cut."""

    disk: Disk
    directory: str
    parts: LogParts
    tail: LogTail
    flush_state: FlushState
    reader: LogReader
    prefix: LogPrefix
    compaction: LogCompaction

    def truncate(self, to_offset: int) -> int:
        """Drop all records at an offset and beyond, and the leader epochs that begin there; return the new log end offset.

        Whole batches go, so that the log may end a little lower. A flush group in flight stays valid for what is below. At the log end
        only a leader epoch without a record goes.

        Raises:
            OffsetOutOfRangeError: below the log start; nothing changed.
            DiskFullError: nothing was dropped.
            DiskFailedError: the log directory failed for good.
        """
        end_offset, floor_offset = self.tail.end_offset, self.prefix.floor_offset
        if to_offset < floor_offset:
            raise OffsetOutOfRangeError(to_offset, log_start_offset=floor_offset, log_end_offset=end_offset)
        if to_offset >= end_offset:
            self._forget_empty_epoch(to_offset)
            return end_offset
        self.reader.forget_all()
        self.prefix.forget_ages()
        dropped = truncate_suffix(
            self.disk,
            self.directory,
            self.parts,
            to_offset=to_offset,
            flushed_offset=self.flush_state.flushed_offset,
            interval_bytes=self.tail.settings.index_interval_bytes,
        )
        self.tail.follow_truncation()
        self.flush_state.note_truncation(self.tail.end_offset, dropped)
        return self.tail.end_offset

    def restart(self, offset: int) -> None:
        """Drop everything and let the log begin anew, empty, at an offset, which may lie anywhere; see `restart`.

        No flush group and no prefix work may be in flight.

        Raises:
            OffsetOutOfRangeError: no log can begin there; nothing changed.
            DiskFullError, DiskAccessError, TooManyOpenFilesError: nothing changed.
            DiskFailedError: the log can no longer be written; its next opening finishes the restart, or finds the old log.
        """
        assert not self.flush_state.is_in_flight, "a flush group is in flight"
        assert not self.prefix.is_in_flight, "a prefix work is in flight"
        if not 0 <= offset <= MAX_START_OFFSET:
            raise OffsetOutOfRangeError(offset, log_start_offset=0, log_end_offset=MAX_START_OFFSET)
        parts = self.parts
        active = restart_log(self.disk, self.directory, parts.recovery_point, parts.segments.active, offset)
        self.reader.forget_all()
        self.prefix.forget_ages()
        self.compaction.forget()
        dropped = parts.segments.restart(active)
        parts.log_start_offset = offset
        parts.epochs, parts.epochs_saved = LeaderEpochs(), True
        parts.producers = ProducerWindows()
        parts.snapshots = ProducerSnapshots(self.disk, self.directory, [])
        parts.damage.truncate_suffix(0)
        parts.damage.save()
        self.tail.follow_truncation()
        self.flush_state.note_restart(offset, dropped)

    def _forget_empty_epoch(self, to_offset: int) -> None:
        """Forget a leader epoch that was assigned at the log end and has no record.

        A crash needs no care: an opening forgets what begins at the log end, and the checkpoint that still has it is replaced
        before the recovery point passes it.
        """
        if self.parts.epochs.truncate_suffix(to_offset):
            self.parts.epochs_saved = False
            self.tail.follow_truncation()

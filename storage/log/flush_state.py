# SPDX-License-Identifier: Apache-2.0
"""What of a log is on stable storage, and the flush group in flight.

Laws: at most one group is in flight; `flushed_offset` moves up only when the owner takes a finished group back, and never
beyond what was cut meanwhile; a descriptor is not closed while a group may be syncing it; the recovery point is written after
the flush that it reports. A group holds only files with unsynced bytes, which no file budget closes.
Belongs to the owner of the log; only `FlushWork.run` happens elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage.errors import DiskError
from storage.files.checkpoints import encode_lines
from storage.files.descriptor_cache import may_close, needs_sync
from storage.files.disk import Disk, File
from storage.segment.segment import Segment

from .flush import FlushWork
from .recovery import LogParts
from .recovery_point import SYNC_INTERVAL_FLUSHES, RecoveryPoint


class FlushState:
    """Flush side of one log.

    Attributes:
        flushed_offset: everything below is on stable storage (exclusive).
    """

    __slots__ = (
        "_cap",
        "_close_later",
        "_closes_point",
        "_directory",
        "_disk",
        "_group_count",
        "_in_flight",
        "_names_saved",
        "_parts",
        "flushed_offset",
    )

    def __init__(self, disk: Disk, directory: str, parts: LogParts, flushed_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._parts = parts
        self.flushed_offset = flushed_offset
        self._names_saved = True
        self._group_count = 0
        self._in_flight: FlushWork | None = None
        self._cap: int | None = None
        self._close_later: list[Segment] = []
        self._closes_point = False
        active = parts.segments.active
        if active.is_open and active.size_bytes == 0:
            # Just created, and its name is on stable storage: an idle log needs no descriptor.
            may_close(active.file)

    @property
    def is_in_flight(self) -> bool:
        """True between `begin` and `end`."""
        return self._in_flight is not None

    def note_new_file(self) -> None:
        """Note that a segment was created: its name is not on stable storage yet."""
        self._names_saved = False

    def note_truncation(self, end_offset: int, dropped: Iterable[Segment]) -> None:
        """Note that the log was cut to `end_offset` (durably), and close the files of dropped segments as soon as possible."""
        self.flushed_offset = min(self.flushed_offset, end_offset)
        if self._in_flight is not None:
            # What is appended at these offsets from now on is not what the group in flight syncs.
            self._cap = end_offset if self._cap is None else min(self._cap, end_offset)
        self.close_segments(dropped)

    def note_prefix(self, log_start_offset: int, dropped: Iterable[Segment]) -> None:
        """Note that the log begins at an offset now; the files of dropped segments are closed as soon as possible.

        The recovery point follows with the next flush only: a batch that reaches over the log start may not be flushed.
        """
        self.flushed_offset = max(self.flushed_offset, log_start_offset)
        self.close_segments(dropped)

    def note_restart(self, offset: int, dropped: Iterable[Segment]) -> None:
        """Note that the log is empty and begins at an offset (durably); no group is in flight."""
        assert self._in_flight is None, "a group is in flight"
        self.flushed_offset = offset
        self._names_saved = True
        self.close_segments(dropped)
        may_close(self._parts.segments.active.file)

    def close_segments(self, segments: Iterable[Segment]) -> None:
        """Close files now, or when the group in flight is back."""
        self._close_later.extend(segments)
        if self._in_flight is not None:
            return
        for segment in self._close_later:
            segment.close()
        self._close_later.clear()
        if self._closes_point:
            self._parts.recovery_point.close()

    def close_all(self) -> None:
        """Close every file of the log now, or when the group in flight is back (it may be syncing any of them)."""
        self._closes_point = True
        self.close_segments(self._parts.segments)

    def begin(self, log_end_offset: int) -> FlushWork | None:
        """Collect everything that is not on stable storage; None if there is nothing, or a group is in flight."""
        if self._in_flight is not None or self.flushed_offset >= log_end_offset:
            return None
        parts = self._parts
        segments = parts.segments
        active = segments.active
        if self.flushed_offset >= active.base_offset:
            files = [active.file] if needs_sync(active.file) else []
        else:
            unflushed = (segments[slot].file for slot in range(segments.slot_of(self.flushed_offset), len(segments)))
            files = [file for file in unflushed if needs_sync(file)]
        self._group_count += 1
        if self._group_count % SYNC_INTERVAL_FLUSHES == 0:
            files.extend(self._recovery_point_file())
        self._in_flight = FlushWork(
            self._disk,
            self._directory,
            end_offset=log_end_offset,
            files=files,
            sync_directory=not self._names_saved,
            epoch_checkpoint=None if parts.epochs_saved else encode_lines(parts.epochs.encode_entries()),
        )
        self._cap = None
        self._names_saved = True
        parts.epochs_saved = True
        return self._in_flight

    def _recovery_point_file(self) -> list[File]:
        """Return the file for the group to sync; none if it cannot be opened: then the bound stays behind a while longer."""
        try:
            return [self._parts.recovery_point.file]
        except DiskError:
            return []

    def end(self, work: FlushWork, *, write_point: bool) -> int:
        """Take a group back and return the flushed offset (exclusive).

        Args:
            work: the group in flight, after its `run`.
            write_point: also write the recovery point (not for a closed log).

        Raises:
            DiskFailedError: the group failed, or the recovery point could not be written: the log is failed for good.
            DiskFullError, TooManyOpenFilesError: the epoch checkpoint or the directory could not be synced; nothing is
                claimed, flush again later.
        """
        assert work is self._in_flight, "another group than the one in flight"
        cap, self._in_flight, self._cap = self._cap, None, None
        if self._close_later or self._closes_point:
            self.close_segments(())
        if work.covers_names:
            self._names_saved = self._names_saved and work.is_done
        if work.covers_epochs:
            # A truncation meanwhile made the saved epochs stale.
            self._parts.epochs_saved = self._parts.epochs_saved and work.is_done and cap is None
        if work.error is not None:
            raise work.error
        assert work.is_done, "the group was not run"
        end_offset = work.end_offset if cap is None else min(cap, work.end_offset)
        if end_offset > self.flushed_offset:
            self.flushed_offset = end_offset
            if write_point:
                self._parts.recovery_point.write(RecoveryPoint(flushed_offset=end_offset))
        return self.flushed_offset

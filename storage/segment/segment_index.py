# SPDX-License-Identifier: Apache-2.0
"""The offset index and the time index of one segment: filled batch by batch, written at a roll, loaded at first use.

Law: both come from the log only. A missing, damaged or stale file, or one for another log size, is not used. Then
`load` returns None, and the segment walks its batches.
"""

from __future__ import annotations

from storage.errors import DiskFullError, FileMissingError
from storage.files.checkpoints import replace_file
from storage.files.disk import Disk
from storage.files.names import INDEX_SUFFIX, TIME_INDEX_SUFFIX, offset_file_name

from .offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from .offset_index import OffsetIndex
from .time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from .time_index import TimeIndex


class SegmentIndex:
    """Both indexes of one segment, and the timestamps for rolling and look-ups.

    Attributes:
        offsets: offset index.
        times: time index.
        first_timestamp_ms: largest timestamp of the first batch; None while the segment is empty.
        max_timestamp_ms: largest timestamp of the segment; None while it is empty.
    """

    __slots__ = (
        "_bytes_since_entry",
        "_last_batch_offset",
        "base_offset",
        "first_timestamp_ms",
        "max_timestamp_ms",
        "offsets",
        "times",
    )

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offsets = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self.first_timestamp_ms: int | None = None
        self.max_timestamp_ms: int | None = None
        self._bytes_since_entry = 0
        self._last_batch_offset: int | None = None

    def note_batch(
        self, *, base_offset: int, position: int, size_bytes: int, max_timestamp_ms: int, interval_bytes: int
    ) -> None:
        """Add the batch that was just appended, or walked over, at a position."""
        if self._bytes_since_entry > interval_bytes:
            self.add_entry(base_offset, position)
        self._bytes_since_entry += size_bytes
        known_ms = self.max_timestamp_ms
        if known_ms is None:
            self.first_timestamp_ms = self.max_timestamp_ms = max_timestamp_ms
        elif max_timestamp_ms > known_ms:
            self.max_timestamp_ms = max_timestamp_ms
        self._last_batch_offset = base_offset

    def add_entry(self, base_offset: int, position: int) -> None:
        """Add an entry for a batch: at each interval, and after a damaged range, so that no walk crosses it."""
        self.offsets.add(base_offset, position)
        self._note_time()
        self._bytes_since_entry = 0

    def _note_time(self) -> None:
        if self.max_timestamp_ms is not None and self._last_batch_offset is not None:
            self.times.note(self.max_timestamp_ms, self._last_batch_offset)

    def is_full(self, index_bytes: int) -> bool:
        """Tell whether another entry would make an index file larger than `index_bytes`.

        The time index keeps one slot for the entry that `save` adds.
        """
        return (
            self.offsets.entry_bytes + OFFSET_ENTRY_BYTES > index_bytes
            or self.times.entry_bytes + 2 * TIME_ENTRY_BYTES > index_bytes
        )

    def save(self, disk: Disk, directory: str, *, log_bytes: int, end_offset: int) -> None:
        """Write both files without a sync; a full disk is ignored.

        Raises:
            DiskFailedError: the disk is failed for good.
        """
        if self.first_timestamp_ms is None or self.max_timestamp_ms is None:
            return
        self._note_time()
        base = f"{directory}/"
        offsets = self.offsets.encode(log_bytes=log_bytes, end_offset=end_offset)
        times = self.times.encode(
            log_bytes=log_bytes, first_timestamp_ms=self.first_timestamp_ms, max_timestamp_ms=self.max_timestamp_ms
        )
        try:
            replace_file(disk, base + offset_file_name(self.base_offset, INDEX_SUFFIX), offsets, durable=False)
            replace_file(disk, base + offset_file_name(self.base_offset, TIME_INDEX_SUFFIX), times, durable=False)
        except DiskFullError:
            return

    @classmethod
    def load(
        cls,
        disk: Disk,
        directory: str,
        *,
        base_offset: int,
        log_bytes: int,
        end_offset: int,
        offsets: OffsetIndex | None = None,
    ) -> SegmentIndex | None:
        """Load both files, or only the time index if `offsets` is given; None unless both cover exactly this log."""
        index = cls(base_offset)
        if log_bytes == 0:
            return index
        if offsets is None:
            offsets = cls.load_offsets(
                disk, directory, base_offset=base_offset, log_bytes=log_bytes, end_offset=end_offset
            )
        if offsets is None:
            return None
        try:
            data = disk.read_file(f"{directory}/{offset_file_name(base_offset, TIME_INDEX_SUFFIX)}")
        except FileMissingError:
            return None
        times = TimeIndex.decode(data, base_offset=base_offset, log_bytes=log_bytes)
        if times is None:
            return None
        index.offsets = offsets
        index.times = times.index
        index.first_timestamp_ms = times.first_timestamp_ms
        index.max_timestamp_ms = times.max_timestamp_ms
        index._bytes_since_entry = log_bytes - offsets.floor_position(log_bytes).position
        return index

    @staticmethod
    def load_offsets(
        disk: Disk, directory: str, *, base_offset: int, log_bytes: int, end_offset: int
    ) -> OffsetIndex | None:
        """Load the offset index alone; None unless it is undamaged and covers exactly this log."""
        if log_bytes == 0:
            return OffsetIndex(base_offset)
        try:
            data = disk.read_file(f"{directory}/{offset_file_name(base_offset, INDEX_SUFFIX)}")
        except FileMissingError:
            return None
        return OffsetIndex.decode(data, base_offset=base_offset, log_bytes=log_bytes, end_offset=end_offset)

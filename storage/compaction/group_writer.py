# SPDX-License-Identifier: Apache-2.0
"""Writes the segment that replaces a group, as a `.cleaned` file, and builds its indexes.

Law: the file is on stable storage before `finish` returns. If a writer is not finished, `discard` or the next opening
of the log removes its file.
For a group of one segment, the writer makes a file only at the first changed batch. A segment that loses nothing costs
no write.
"""

from __future__ import annotations

from collections.abc import Sequence

from lograft.wire.checksum import BytesLike
from lograft.wire.encoded import EncodedBatch
from lograft.wire.header import read_header

from storage.files.checkpoints import remove_if_exists
from storage.files.descriptor_cache import disk_under
from storage.files.disk import Disk, File
from storage.files.names import CLEANED_SUFFIX
from storage.log.swap import CleanedGroup
from storage.segment.segment_index import SegmentIndex
from storage.types import DamagedRange, SegmentFacts

from .source import READ_BYTES, Pace, log_path

PIECES_FROM_BYTES = 32 * 1024
"""Batches of at least this size are written in the pieces that they consist of, because copying them would cost more."""


class GroupWriter:
    """Writes one group; `finish` or `discard` ends it."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sources: tuple[SegmentFacts, ...],
        *,
        interval_bytes: int,
        pace: Pace,
        suffix: str = CLEANED_SUFFIX,
    ) -> None:
        self._disk = disk
        self._source_path = log_path(directory, sources[0].base_offset)
        self._path = self._source_path + suffix
        self._sources = sources
        self._interval_bytes = interval_bytes
        self._pace = pace
        self._index = SegmentIndex(sources[0].base_offset)
        self._file: File | None = None
        self._waiting: list[BytesLike] = []
        self._waiting_bytes = 0
        self._end_position = 0
        self._next_offset = sources[0].base_offset
        if len(sources) > 1:
            self._start()

    def put(self, batch: BytesLike | EncodedBatch, *, is_unchanged: bool) -> None:
        """Add the next batch.

        Args:
            batch: its bytes.
            is_unchanged: True if the source has exactly these bytes.
        """
        pieces = _pieces_of(batch)
        header = read_header(pieces[0])
        assert header.base_offset == self._next_offset, f"a batch at {header.base_offset}, not {self._next_offset}"
        if self._file is None and not is_unchanged:
            self._start()
        self._index.note_batch(
            base_offset=header.base_offset,
            position=self._end_position,
            size_bytes=header.size_bytes,
            max_timestamp_ms=header.max_timestamp_ms,
            interval_bytes=self._interval_bytes,
        )
        self._end_position += header.size_bytes
        self._next_offset = header.next_offset
        if self._file is not None:
            self._waiting += pieces
            self._waiting_bytes += header.size_bytes
            if self._waiting_bytes >= READ_BYTES:
                self._write(self._file)

    def finish(self, *, repaired: tuple[DamagedRange, ...] = ()) -> CleanedGroup | None:
        """Put the file on stable storage; None if nothing changed.

        Args:
            repaired: see `CleanedGroup`.

        Raises:
            DiskFullError, DiskFailedError, TooManyOpenFilesError: the disk; the caller must call `discard`.
        """
        end_offset = self._sources[-1].end_offset
        assert self._next_offset == end_offset, f"the group ends at {self._next_offset}, not at {end_offset}"
        if self._file is None:
            return None
        self._write(self._file)
        self._file.sync()
        self._file.close()
        return CleanedGroup(
            path=self._path,
            sources=self._sources,
            size_bytes=self._end_position,
            index=self._index,
            repaired=repaired,
        )

    def discard(self) -> None:
        """Close and remove the file. If the disk has failed, the next opening of the log removes it."""
        if self._file is not None:
            self._file.close()
            if self._disk.failure is None:
                remove_if_exists(self._disk, self._path)

    def _start(self) -> None:
        """Create the file, and copy everything before the first change."""
        remove_if_exists(self._disk, self._path)
        self._file = self._disk.create_file(self._path)
        if self._end_position == 0:
            return
        # This descriptor stays open: the path could name another file later.
        source = disk_under(self._disk).open_file(self._source_path)
        try:
            for position in range(0, self._end_position, READ_BYTES):
                size_bytes = min(READ_BYTES, self._end_position - position)
                self._pace(2 * size_bytes)
                self._file.append([source.pread(size_bytes, position)])
        finally:
            source.close()

    def _write(self, file: File) -> None:
        self._pace(self._waiting_bytes)
        file.append(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0


def _pieces_of(batch: BytesLike | EncodedBatch) -> Sequence[BytesLike]:
    """Return the pieces of a batch in order; the first one has the whole header."""
    if not isinstance(batch, EncodedBatch):
        return (batch,)
    return batch.pieces() if len(batch) >= PIECES_FROM_BYTES else (batch.join(),)

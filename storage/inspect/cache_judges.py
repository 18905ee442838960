# SPDX-License-Identifier: Apache-2.0
"""Judges the caches of one segment by its batches: offset index, time index and seal.

A judge gets the batches and the opaque ranges (damage) of the segment in order, then its end. A cache for another size
or end of the segment is stale: it is not used, and is a note, not a failure. Entries that point into an opaque range
cannot be judged.
Source: docs/storage_format.md, sections on the offset index, the time index and the seal.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lograft.wire.checksum import crc32c
from lograft.wire.header import BatchHeader

from storage.files.disk import File
from storage.inspect.findings import LogReport, Severity
from storage.inspect.formats import OffsetIndexFile, TimeIndexFile
from storage.segment.seal import NO_TIMESTAMP_MS, SEAL_CHUNK_BYTES, Seal, differing_chunks
from storage.types import Boundary

STALE = "it was made for another size or end of the segment: not used, and built again"


class OffsetIndexJudge:
    """Judges one offset index."""

    def __init__(self, index: OffsetIndexFile, *, base_offset: int) -> None:
        self._index = index
        self._base_offset = base_offset
        self._next = 0
        self._wrong: list[int] = []

    def batch(self, position: int, header: BatchHeader) -> None:
        """Add a complete batch."""
        self._pass_below(position)
        positions, slot = self._index.positions, self._next
        if slot < len(positions) and positions[slot] == position:
            if self._index.offsets[slot] != header.base_offset - self._base_offset or position == 0:
                self._wrong.append(slot)
            self._next += 1

    def opaque(self, start: Boundary, end: Boundary) -> None:
        """Add a range where no batch is readable."""
        self._pass_below(start.position)
        positions = self._index.positions
        while self._next < len(positions) and positions[self._next] < end.position:
            self._next += 1

    def _pass_below(self, position: int) -> None:
        positions = self._index.positions
        while self._next < len(positions) and positions[self._next] < position:
            self._wrong.append(self._next)
            self._next += 1

    def end(self, name: str, end: Boundary, report: LogReport) -> None:
        """Report what is wrong with the index, at the end of the segment."""
        index = self._index
        if (index.log_bytes, index.end_offset) != (end.position, end.offset):
            report.add(Severity.NOTE, name, STALE)
            return
        if not _ascends(index.offsets) or not _ascends(index.positions):
            report.add(Severity.CACHE, name, "its entries do not ascend")
            return
        wrong = [*self._wrong, *range(self._next, len(index.positions))]
        if wrong:
            offset, position = index.offsets[wrong[0]] + self._base_offset, index.positions[wrong[0]]
            report.add(
                Severity.CACHE,
                name,
                f"{len(wrong)} of {len(index.positions)} entries are no batch boundaries behind the first batch, first: "
                f"offset {offset} at byte {position}",
            )


class TimeIndexJudge:
    """Judges one time index."""

    def __init__(self, index: TimeIndexFile, *, base_offset: int) -> None:
        self._index = index
        self._base_offset = base_offset
        self._next = 0
        self._wrong: list[int] = []
        self._first_ms: int | None = None
        self._max_ms: int | None = None
        self._has_opaque = False

    def batch(self, position: int, header: BatchHeader) -> None:
        """Add a complete batch."""
        del position
        if self._first_ms is None:
            self._first_ms = header.max_timestamp_ms
        self._max_ms = max(self._max_ms or 0, header.max_timestamp_ms)
        relative = header.base_offset - self._base_offset
        self._pass_below(relative)
        offsets, slot = self._index.offsets, self._next
        if slot < len(offsets) and offsets[slot] == relative:
            if self._index.timestamps_ms[slot] < self._max_ms:
                self._wrong.append(slot)
            self._next += 1

    def opaque(self, start: Boundary, end: Boundary) -> None:
        """Add a range where no batch is readable."""
        self._has_opaque = True
        self._pass_below(start.offset - self._base_offset)
        offsets = self._index.offsets
        while self._next < len(offsets) and offsets[self._next] < end.offset - self._base_offset:
            self._next += 1

    def _pass_below(self, relative: int) -> None:
        offsets = self._index.offsets
        while self._next < len(offsets) and offsets[self._next] < relative:
            self._wrong.append(self._next)
            self._next += 1

    def end(self, name: str, end: Boundary, report: LogReport) -> None:
        """Report what is wrong with the index, at the end of the segment."""
        index = self._index
        if index.log_bytes != end.position:
            report.add(Severity.NOTE, name, STALE)
            return
        if not _ascends(index.timestamps_ms) or not _ascends(index.offsets):
            report.add(Severity.CACHE, name, "its entries do not ascend")
            return
        wrong = [*self._wrong, *range(self._next, len(index.offsets))]
        if wrong:
            timestamp_ms, offset = index.timestamps_ms[wrong[0]], index.offsets[wrong[0]] + self._base_offset
            report.add(
                Severity.CACHE,
                name,
                f"{len(wrong)} of {len(index.offsets)} entries are not true, first: nothing up to offset {offset} is later "
                f"than {timestamp_ms} ms",
            )
        if self._max_ms is not None and not self._footer_agrees(self._max_ms):
            report.add(
                Severity.CACHE,
                name,
                f"its footer says first {index.first_timestamp_ms} ms, largest {index.max_timestamp_ms} ms; "
                f"the batches say {self._first_ms} and {self._max_ms}",
            )

    def _footer_agrees(self, max_ms: int) -> bool:
        """Compare the footer; it may count batches that are not readable."""
        index = self._index
        if self._has_opaque:
            return index.max_timestamp_ms >= max_ms
        return (index.first_timestamp_ms, index.max_timestamp_ms) == (self._first_ms, max_ms)


class SealJudge:
    """Judges one seal."""

    def __init__(self, seal: Seal, file: File) -> None:
        self._seal = seal
        self._file = file
        self._max_ms = NO_TIMESTAMP_MS
        self._opaque: list[tuple[int, int]] = []

    def batch(self, position: int, header: BatchHeader) -> None:
        """Add a complete batch."""
        del position
        self._max_ms = max(self._max_ms, header.max_timestamp_ms)

    def opaque(self, start: Boundary, end: Boundary) -> None:
        """Add a range where no batch is readable."""
        self._opaque.append((start.position, end.position))

    def explain(self, position: int, end_position: int) -> None:
        """Note bytes that a finding already covers, so that a changed chunk there is not reported again."""
        self._opaque.append((position, end_position))

    def end(self, name: str, end: Boundary, report: LogReport) -> None:
        """Report what is wrong with the seal, at the end of the segment."""
        seal = self._seal
        if not seal.fits(log_bytes=self._file.size, end_offset=end.offset):
            report.add(Severity.NOTE, name, STALE)
            return
        crcs = [
            crc32c(self._file.pread(SEAL_CHUNK_BYTES, number * SEAL_CHUNK_BYTES))
            for number in range(len(seal.chunk_crcs))
        ]
        for number in differing_chunks(seal, crcs):
            position = number * SEAL_CHUNK_BYTES
            end_position = min(position + SEAL_CHUNK_BYTES, self._file.size)
            if not any(start < end_position and position < stop for start, stop in self._opaque):
                report.add(
                    Severity.CACHE,
                    name,
                    f"chunk {number} (bytes {position} to {end_position}) is not what was sealed, although every batch "
                    "in it checks out",
                )
        if not self._opaque and seal.max_timestamp_ms != self._max_ms:
            report.add(
                Severity.CACHE,
                name,
                f"it says largest timestamp {seal.max_timestamp_ms} ms, the batches {self._max_ms}",
            )


def _ascends(numbers: Sequence[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))

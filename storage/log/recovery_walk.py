# SPDX-License-Identifier: Apache-2.0
"""Walks the segments of a log after an unclean stop, and tells torn tails from damage.

The decisions (steps 4 and 5 of `recovery`) rest on what the log knows. Everything below the recovery point was on
stable storage, so bad bytes there are damage. Above it a torn append is likely, and shows as bytes that were never
written. Bad bytes that were written, before good ones, are damage. Only `settle` changes anything on disk.
Source: Alagappan et al. (FAST 2018), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from lograft.wire.header import BatchHeader, read_header
from lograft.wire.limits import HEADER_BYTES, MAGIC

from storage.errors import CorruptLogError
from storage.files.checkpoints import remove_if_exists
from storage.files.disk import Disk
from storage.segment.damage import DamagedRanges
from storage.segment.rebuild import RebuildPlan
from storage.segment.scan import shows_unwritten_sector
from storage.segment.segment import Segment
from storage.types import Boundary


@dataclass(slots=True, kw_only=True)
class WalkFindings:
    """What the walk found; the fields are those of `RecoveryReport`."""

    scanned_bytes: int = 0
    cut_offset: int | None = None
    cut_bytes: int = 0
    undecidable_bytes: int = 0
    rebuilt_segments: list[int] = field(default_factory=list[int])


class UncleanWalk:
    """One recovery: `run`, then `settle`.

    Args:
        disk: the disk.
        directory: directory of the log.
        damage: damaged ranges of the log; the walk adds new ones.
        segments: all segments; `settle` takes truncated ones out of this list.
        first: index of the first segment to walk.
        flushed_offset: everything below it is known to have been on stable storage.
        verify_from: check CRCs from this offset on.
        interval_bytes: index interval.
        visit: gets each accepted header, ascending.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        damage: DamagedRanges,
        segments: list[Segment],
        *,
        first: int,
        flushed_offset: int,
        verify_from: int,
        interval_bytes: int,
        visit: Callable[[BatchHeader], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._damage = damage
        self._segments = segments
        self._first = first
        self._flushed_offset = flushed_offset
        self._verify_from = verify_from
        self._interval_bytes = interval_bytes
        self._visit = visit
        self._torn_inside = False
        self.findings = WalkFindings()

    def run(self, before_segment: Callable[[Segment], None]) -> None:
        """Walk the segments; call `before_segment` before each one.

        Raises:
            CorruptLogError: a segment reaches into the next one.
        """
        for slot in range(self._first, len(self._segments)):
            segment = self._segments[slot]
            before_segment(segment)
            size_bytes = segment.size_bytes
            is_last = slot + 1 == len(self._segments)
            end_offset = None if is_last else self._segments[slot + 1].base_offset
            plan = RebuildPlan(
                interval_bytes=self._interval_bytes,
                verify_from_offset=self._verify_from,
                end_offset=end_offset,
                flushed_offset=self._flushed_offset,
                judge=partial(self._judge, slot),
                visit=self._visit,
            )
            rebuilt = segment.rebuild(plan)
            self.findings.scanned_bytes += rebuilt.read_bytes
            self.findings.rebuilt_segments.append(segment.base_offset)
            self._note_verified(segment)
            if rebuilt.cut:
                self._note_cut(slot, size_bytes)
                return
            if end_offset is not None and segment.end_offset > end_offset:
                raise CorruptLogError(
                    self._directory,
                    f"segment {segment.base_offset} reaches to {segment.end_offset}, "
                    f"the next one starts at {end_offset}",
                )

    def _note_verified(self, segment: Segment) -> None:
        if segment.base_offset >= self._verify_from:
            segment.unverified_bytes = 0
        elif segment.end_offset > self._verify_from and not segment.damages():
            segment.unverified_bytes = segment.locate(self._verify_from, self._interval_bytes).position

    def _judge(self, slot: int, bad: Boundary, following: Boundary | None) -> bool:
        """Return True for damage, False for a torn tail; the module `recovery` has the table."""
        if bad.offset < self._flushed_offset:
            return True
        segment = self._segments[slot]
        has_later = any(later.size_bytes > 0 for later in self._segments[slot + 1 :])
        if following is None and not has_later:
            return False
        if following is None:
            torn = self._misses_bytes(segment, bad) or shows_unwritten_sector(
                segment.file, bad=bad, end_position=segment.size_bytes
            )
        else:
            torn = shows_unwritten_sector(segment.file, bad=bad, end_position=following.position)
        self._torn_inside = torn
        return not torn

    def _misses_bytes(self, segment: Segment, bad: Boundary) -> bool:
        """Tell whether the file ends inside the batch at this place."""
        room_bytes = segment.size_bytes - bad.position
        if room_bytes < HEADER_BYTES:
            return True
        header = read_header(segment.file.pread(HEADER_BYTES, bad.position))
        return header.magic == MAGIC and header.base_offset == bad.offset and header.size_bytes > room_bytes

    def _note_cut(self, slot: int, size_bytes: int) -> None:
        segment = self._segments[slot]
        later_bytes = sum(later.size_bytes for later in self._segments[slot + 1 :])
        self.findings.cut_offset = segment.end_offset
        self.findings.cut_bytes = size_bytes - segment.size_bytes + later_bytes
        if self._torn_inside:
            self.findings.undecidable_bytes = self.findings.cut_bytes

    def settle(self, *, now_ms: int) -> None:
        """Carry out the decisions on disk: remove, truncate, sync. The caller then moves the recovery point.

        Afterwards the last segment of the list accepts appends.
        """
        # What the walk read may be only in the page cache, unless all of it lies below the recovery point. At exactly
        # that point, a truncation may be only in the page cache: the process was killed before it synced.
        changed = self._segments[-1].end_offset >= self._verify_from
        if self.findings.cut_offset is not None:
            changed = True
            while self._segments[-1].base_offset > self.findings.cut_offset:
                self._remove(self._segments.pop())
            last = self._segments[-1]
            if last.file.size > last.size_bytes:
                last.file.truncate(last.size_bytes)
        last = self._segments[-1]
        if any(damaged.end_offset == last.end_offset for damaged in last.damages()):
            # Quarantined bytes end the file, so new batches go to a new file.
            changed = True
            self._segments.append(
                Segment.create(
                    self._disk, self._directory, self._damage, base_offset=last.end_offset, created_ms=now_ms
                )
            )
        self._damage.save()
        for path in self._segments[-1].file_names()[:-1]:
            # The segment was sealed before, and these files describe it as it was. It may get that size and end again, with other
            # batches. If a crash then undoes their replacement, they would count as right.
            changed = remove_if_exists(self._disk, path) or changed
        for segment in self._segments[self._first : -1]:
            segment.save_index()
        if changed:
            for segment in self._segments[self._first :]:
                segment.file.sync()
            self._disk.sync_directory(self._directory)

    def _remove(self, segment: Segment) -> None:
        segment.close()
        for path in segment.file_names():
            remove_if_exists(self._disk, path)

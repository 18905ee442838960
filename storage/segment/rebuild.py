# SPDX-License-Identifier: Apache-2.0
"""Walks one segment from its start, builds its indexes and finds its damage.

Recovery uses it, and so does a log in use when a segment does not match its index or its batches. The caller decides on
a bad batch (`Judge`): recovery may end the log there; a log in use never truncates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lograft.wire.header import BatchHeader

from storage.files.disk import File
from storage.types import Boundary, DamagedRange

from .scan import BadBatch, Walk, find_valid_after
from .segment_index import SegmentIndex

Judge = Callable[[Boundary, Boundary | None], bool]
"""(bad batch, next whole batch if any) -> True: damage, continue after it; False: torn tail, end the segment."""

Visit = Callable[[BatchHeader], None]
"""Called with the header of each accepted batch, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """Parameters of a walk.

    Attributes:
        interval_bytes: index interval.
        verify_from_offset: check CRCs from this offset on (inclusive); None: check none.
        end_offset: offset where the segment must end, exclusive; None if only the walk can tell.
        flushed_offset: end of trailing damage in a segment without `end_offset`, if no whole batch follows it.
        judge: decides on a bad batch.
        visit: gets each accepted header.
    """

    interval_bytes: int
    verify_from_offset: int | None = None
    end_offset: int | None = None
    flushed_offset: int = 0
    judge: Judge
    visit: Visit


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The result of a walk.

    Attributes:
        index: the new indexes.
        end: end of the batches.
        cut: True if the judge ended the segment there.
        damaged: damaged ranges that were unknown before.
        widened: known ranges with their new first byte (inclusive), because the batches before them end earlier than
            before.
        read_bytes: bytes read.
    """

    index: SegmentIndex
    end: Boundary
    cut: bool
    damaged: tuple[DamagedRange, ...]
    widened: tuple[tuple[DamagedRange, int], ...]
    read_bytes: int


class SegmentRebuild:
    """One walk; `run` once."""

    def __init__(
        self, file: File, *, base_offset: int, size_bytes: int, known: Iterable[DamagedRange], plan: RebuildPlan
    ):
        self._file = file
        self._base_offset = base_offset
        self._size_bytes = size_bytes
        self._damaged = list(known)
        self._found: list[DamagedRange] = []
        self._widened: list[tuple[DamagedRange, int]] = []
        self._plan = plan
        self._index = SegmentIndex(base_offset)
        self._at = Boundary(base_offset, 0)
        self._read_bytes = 0
        self._required_end = plan.end_offset if plan.end_offset is not None else plan.flushed_offset

    def run(self) -> Rebuilt:
        """Walk to the end, or to the place where the judge ends the segment."""
        cut = False
        while not cut:
            known = next((d for d in self._damaged if d.base_offset >= self._at.offset), None)
            if known is not None and known.base_offset == self._at.offset:
                if self._at.position < known.position:
                    # The bytes between belong to no record; no reader may walk into them.
                    self._widened.append((known, self._at.position))
                self._at = Boundary(known.end_offset, min(known.end_position, self._size_bytes))
                continue
            end = self._end_of_span(known)
            bad = self._walk_to(end)
            if bad is not None and known is None and self._is_complete():
                # The bytes that follow belong to no record.
                break
            if known is not None and self._at.offset == known.base_offset:
                continue
            if bad is None and self._at.offset >= end.offset:
                break
            # Without a bad batch, the bytes end too early: the rest was lost, or never written.
            cut = not self._pass_over(bad or Boundary(self._at.offset, min(self._at.position, end.position)), known)
        return Rebuilt(
            index=self._index,
            end=self._at,
            cut=cut,
            damaged=tuple(self._found),
            widened=tuple(self._widened),
            read_bytes=self._read_bytes,
        )

    def _is_complete(self) -> bool:
        """Tell whether the segment has all its offsets. It may have more, which only the caller can judge."""
        return self._plan.end_offset is not None and self._at.offset >= self._plan.end_offset

    def _end_of_span(self, known: DamagedRange | None) -> Boundary:
        """Return where the batches from here on must end: at known damage, or at the end of the segment."""
        if known is not None:
            return Boundary(known.base_offset, min(known.position, self._size_bytes))
        return Boundary(self._required_end, self._size_bytes)

    def _walk_to(self, end: Boundary) -> Boundary | None:
        """Accept batches up to a position; return where a bad one is, or None."""
        plan = self._plan
        # A walk of recovery shows its caller that a segment reaches into the next one; a segment in use keeps its end.
        keeps_end = plan.verify_from_offset is None and plan.end_offset is not None
        end_offset = end.offset if keeps_end or end.position < self._size_bytes else None
        walk = Walk(
            self._file,
            start=self._at,
            end_position=end.position,
            verify_from_offset=plan.verify_from_offset,
            look_ahead=True,
        )
        first = True
        bad = None
        try:
            for position, header in walk:
                if end_offset is not None and header.next_offset > end_offset:
                    # It reaches into the next segment or known damage. No batch of this segment does, whatever its CRC
                    # says.
                    bad = self._at
                    break
                if first and position > 0:
                    # Every run after damage begins with an entry, so that no look-up walks across damage.
                    self._index.add_entry(header.base_offset, position)
                first = False
                self._index.note_batch(
                    base_offset=header.base_offset,
                    position=position,
                    size_bytes=header.size_bytes,
                    max_timestamp_ms=header.max_timestamp_ms,
                    interval_bytes=plan.interval_bytes,
                )
                self._at = Boundary(header.next_offset, position + header.size_bytes)
                plan.visit(header)
        except BadBatch as found:
            bad = found.start
        self._read_bytes += walk.read_bytes
        return bad

    def _pass_over(self, bad: Boundary, known: DamagedRange | None) -> bool:
        """Ask the judge; note the damage and continue after it, or return False."""
        plan = self._plan
        end = self._end_of_span(known)
        following = find_valid_after(
            self._file,
            bad=bad,
            end_position=end.position,
            end_offset=plan.end_offset if known is None else known.base_offset,
        )
        if following is None and known is not None:
            following = end
        if not plan.judge(bad, following):
            return False
        if following is None:
            # Trailing damage keeps its offsets, because they may have been acknowledged.
            following = end
        damaged = DamagedRange(
            segment_base_offset=self._base_offset,
            base_offset=bad.offset,
            end_offset=following.offset,
            position=bad.position,
            end_position=following.position,
        )
        self._found.append(damaged)
        self._at = following
        return True

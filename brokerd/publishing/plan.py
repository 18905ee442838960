# SPDX-License-Identifier: Apache-2.0
"""Which staged batches make a part, and in which order. Pure.

    planner = Planner(slices)
    for batch in staged:          # those of `scan_ranges(slices)`, ascending by offset; others do no harm
        planner.add(batch)
    found = planner.plan()        # a `Plan`, or the first `MissingSlice`

Laws
    A plan holds every record of every slice once: the batches of a slice continue each other in sequence, begin with its first record and
    end with its last one.
    Batches of other producers between those of a slice do not count, nor does a copy of a batch that was taken.
    The plan depends on slices and batches only, so every leader makes the same one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from brokerd.publishing.limits import PART_BATCHES_MAX, SEQUENCE_COUNT
from brokerd.publishing.parts import Gap, MissingSlice, Slice

_FIELDS = 3
"""Numbers that a plan keeps of each batch: base offset, size in bytes, records."""


class StagedBatch(NamedTuple):
    """The header of a staged batch. `next_offset` is exclusive."""

    base_offset: int
    next_offset: int
    size_bytes: int
    producer_id: int
    base_sequence: int
    records: int


class PlannedBatch(NamedTuple):
    """A staged batch that is published. `first_record` is its place in the part: the number of records before it."""

    base_offset: int
    size_bytes: int
    records: int
    first_record: int

    @property
    def next_offset(self) -> int:
        """Offset after the batch at the staging partition."""
        return self.base_offset + self.records


class Run(NamedTuple):
    """Planned batches that follow each other in the staging partition, from `base_offset` to `end_offset` (exclusive)."""

    base_offset: int
    end_offset: int
    batches: tuple[PlannedBatch, ...]


def scan_ranges(slices: Sequence[Slice]) -> list[tuple[int, int]]:
    """Return the offsets that the slices cover, as ascending ranges (begin, exclusive end) that do not touch each other."""
    ranges: list[tuple[int, int]] = []
    for first_offset, end_offset in sorted((each.first_offset, each.end_offset) for each in slices):
        if ranges and first_offset <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end_offset))
        else:
            ranges.append((first_offset, end_offset))
    return ranges


class _Filling:
    """One slice while its batches are being found."""

    __slots__ = ("batches", "gap", "index", "next_offset", "slice", "taken")

    def __init__(self, index: int, wanted: Slice) -> None:
        self.index = index
        self.slice = wanted
        self.taken = 0
        self.next_offset = wanted.first_offset
        self.batches = array("q")
        self.gap: Gap | None = None

    def add(self, batch: StagedBatch) -> bool:
        """Take a batch that overlaps the slice; return False if it is not taken."""
        wanted = self.slice
        if batch.base_offset < wanted.first_offset:
            self.gap = Gap.BEGIN
        elif batch.next_offset > wanted.end_offset:
            self.gap = Gap.END
        if self.gap is not None:
            return False
        behind = (wanted.first_sequence + self.taken - batch.base_sequence) % SEQUENCE_COUNT
        if behind:
            # A whole batch from before is a copy. Everything else leaves a hole, or overlaps.
            if not batch.records <= behind < SEQUENCE_COUNT // 2:
                self.gap = Gap.SEQUENCE
            return False
        if batch.records != batch.next_offset - batch.base_offset:
            self.gap = Gap.HOLES
        elif self.taken == 0 and batch.base_offset != wanted.first_offset:
            self.gap = Gap.BEGIN
        elif self.taken + batch.records > wanted.records:
            self.gap = Gap.END
        if self.gap is not None:
            return False
        self.taken += batch.records
        self.next_offset = batch.next_offset
        self.batches.extend((batch.base_offset, batch.size_bytes, batch.records))
        return True

    def end(self) -> Gap | None:
        """Return why the slice is not complete; None: it is."""
        if self.gap is not None:
            return self.gap
        if self.taken < self.slice.records:
            return Gap.NOT_STAGED if self.taken else Gap.BEGIN
        return None if self.next_offset == self.slice.end_offset else Gap.END


class Planner:
    """Finds the batches of slices that `slices_problem` has accepted; only `add` changes it."""

    def __init__(self, slices: Sequence[Slice], *, max_batches: int = PART_BATCHES_MAX) -> None:
        self._fillings = [_Filling(index, each) for index, each in enumerate(slices)]
        self._left = max_batches
        self._overflow: _Filling | None = None
        by_producer: dict[int, list[_Filling]] = {}
        for filling in self._fillings:
            by_producer.setdefault(filling.slice.producer_id, []).append(filling)
        for fillings in by_producer.values():
            fillings.sort(key=lambda each: each.slice.first_offset)
        self._by_producer = by_producer
        self._ends = {
            producer_id: [each.slice.end_offset for each in fillings] for producer_id, fillings in by_producer.items()
        }

    def add(self, batch: StagedBatch) -> None:
        """Note a batch of the staging partition; batches come ascending by offset."""
        fillings = self._by_producer.get(batch.producer_id)
        if fillings is None or self._overflow is not None:
            return
        # Slices of a producer do not overlap, so the first one that ends behind the begin of the batch is the one.
        at = bisect_left(self._ends[batch.producer_id], batch.base_offset + 1)
        if at == len(fillings) or fillings[at].slice.first_offset >= batch.next_offset:
            return
        if self._left == 0:
            self._overflow = fillings[at]
            return
        if fillings[at].add(batch):
            self._left -= 1

    def plan(self) -> Plan | MissingSlice:
        """Return the plan, or the first slice that is not complete."""
        if self._overflow is not None:
            return MissingSlice(self._overflow.index, self._overflow.slice.producer_id, Gap.TOO_MANY)
        for missing in self.missing():
            return missing
        return Plan([filling.batches for filling in self._fillings])

    def missing(self) -> Iterator[MissingSlice]:
        """Yield the slices that are not complete, in their order."""
        for filling in self._fillings:
            gap = filling.end()
            if gap is not None:
                yield MissingSlice(filling.index, filling.slice.producer_id, gap)


class Plan:
    """The batches of a part in the order of their publication. It does not change."""

    __slots__ = ("_batches", "_starts")

    def __init__(self, batches: Sequence[array[int]]) -> None:
        self._batches = batches
        # Records before each slice, and after the last one.
        self._starts = list(accumulate((sum(each[2::_FIELDS]) for each in batches), initial=0))

    @property
    def records(self) -> int:
        """Number of records."""
        return self._starts[-1]

    def batches(self) -> Iterator[PlannedBatch]:
        """Yield all batches in order."""
        first_record = 0
        for each in self._batches:
            for at in range(0, len(each), _FIELDS):
                base_offset, size_bytes, records = each[at : at + _FIELDS]
                yield PlannedBatch(base_offset, size_bytes, records, first_record)
                first_record += records

    def is_border(self, record: int) -> bool:
        """Tell whether a batch ends where `record` records are published, or nothing is."""
        if record == 0:
            return True
        return any(each.first_record + each.records == record for each in self.batches())

    def runs(self, done_records: int, *, max_bytes: int) -> Iterator[Run]:
        """Yield what is left once `done_records` are published, which is a border.

        Args:
            done_records: records from the begin of the part on that are published already.
            max_bytes: most bytes of a run of several batches.
        """
        run: list[PlannedBatch] = []
        size_bytes = 0
        for batch in self.batches():
            if batch.first_record < done_records:
                continue
            if run and (run[-1].next_offset != batch.base_offset or size_bytes + batch.size_bytes > max_bytes):
                yield Run(run[0].base_offset, run[-1].next_offset, tuple(run))
                run, size_bytes = [], 0
            run.append(batch)
            size_bytes += batch.size_bytes
        if run:
            yield Run(run[0].base_offset, run[-1].next_offset, tuple(run))

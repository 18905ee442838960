# SPDX-License-Identifier: Apache-2.0
"""Which staged batches make a part, and in which order. Pure.

    planner = Planner(slices, done_records=done_records)
    for batch in staged:          # those of `planner.ranges`, ascending by offset; others do no harm
        planner.add(batch)
    found = planner.plan()        # a `Plan`, or the first `MissingSlice`

A plan has a bounded number of batches. Beyond it, it covers the next records of the part only; once they are published, the next plan
covers what follows. Whether all slices are complete is known before the first record is published.

Laws
    Plans hold every record of every slice once: the batches of a slice continue each other in sequence, begin with its first record and
    end with its last one.
    Batches of other producers between those of a slice do not count, nor does a copy of a batch that was taken.
    The plan depends on slices and batches only, so every leader makes the same one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from brokerd.publishing.limits import PART_BATCHES_MAX, SEQUENCE_COUNT
from brokerd.publishing.parts import Gap, KnownBatch, MissingSlice, Slice

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

    @property
    def size_bytes(self) -> int:
        """Bytes of its batches."""
        return sum(each.size_bytes for each in self.batches)


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
    """One slice while its batches are being found. `skipped` of its records are published already."""

    __slots__ = ("batches", "gap", "index", "is_kept", "next_offset", "skipped", "slice", "taken")

    def __init__(self, index: int, wanted: Slice, *, skipped: int, is_kept: bool) -> None:
        self.index = index
        self.slice = wanted
        self.skipped = skipped
        self.is_kept = is_kept
        self.taken = 0
        self.next_offset = wanted.first_offset
        self.batches = array("q")
        self.gap: Gap | None = None

    def add(self, batch: StagedBatch) -> bool:
        """Look at a batch that overlaps the slice; return True if it is in `batches` now."""
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
        before, after = self.taken, self.taken + batch.records
        if batch.records != batch.next_offset - batch.base_offset:
            self.gap = Gap.HOLES
        elif before == 0 and batch.base_offset != wanted.first_offset:
            self.gap = Gap.BEGIN
        elif after > wanted.records:
            self.gap = Gap.END
        elif before < self.skipped < after:
            self.gap = Gap.PUBLISHED
        if self.gap is not None:
            return False
        self.taken = after
        self.next_offset = batch.next_offset
        if not self.is_kept or before < self.skipped:
            return False
        self.batches.extend((batch.base_offset, batch.size_bytes, batch.records))
        return True

    def end(self) -> Gap | None:
        """Return why the slice is not complete; None: it is."""
        if self.gap is not None:
            return self.gap
        if self.taken < self.slice.records:
            return Gap.END if self.taken else Gap.BEGIN
        return None if self.next_offset == self.slice.end_offset else Gap.END


class Planner:
    """Finds the batches of slices that `slices_problem` has accepted; only `add` changes it.

    Args:
        slices: the slices of the part, in its order.
        done_records: records from the begin of the part on that are published already.
        max_batches: most batches of the plan; 0: none is needed, only whether the slices are complete.

    Attributes:
        ranges: the offsets to look at: ascending ranges (begin, exclusive end).
    """

    def __init__(self, slices: Sequence[Slice], *, done_records: int = 0, max_batches: int = PART_BATCHES_MAX) -> None:
        self._done_records = done_records
        self._max_batches = max_batches
        self._count = 0
        self._fillings: list[_Filling] = []
        left = done_records
        for index, each in enumerate(slices):
            if left < each.records:
                self._fillings.append(_Filling(index, each, skipped=left, is_kept=max_batches > 0))
            left = max(left - each.records, 0)
        self.ranges = scan_ranges([filling.slice for filling in self._fillings])
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
        if fillings is None:
            return
        # Slices of a producer do not overlap, so the first one that ends behind the begin of the batch is the one.
        at = bisect_left(self._ends[batch.producer_id], batch.base_offset + 1)
        if at == len(fillings) or fillings[at].slice.first_offset >= batch.next_offset:
            return
        if fillings[at].add(batch):
            self._count += 1
            if self._count > self._max_batches:
                self._shed()

    def _shed(self) -> None:
        """Leave the last slices to a later plan; if there is only one, its rest."""
        kept = [filling for filling in self._fillings if filling.is_kept]
        while self._count > self._max_batches:
            last = kept.pop()
            last.is_kept = False
            if not kept:
                # Its batches so far are the next ones of the part.
                return
            self._count -= len(last.batches) // _FIELDS
            last.batches = array("q")

    def plan(self) -> Plan | MissingSlice:
        """Return the plan, or the first slice that is not complete."""
        for missing in self.missing():
            return missing
        # What is left to later plans has no batches here, and nothing follows it.
        return Plan([filling.batches for filling in self._fillings], first_record=self._done_records)

    def missing(self) -> Iterator[MissingSlice]:
        """Yield the slices that are not complete, in their order."""
        for filling in self._fillings:
            gap = filling.end()
            if gap is not None:
                yield MissingSlice(filling.index, filling.slice.producer_id, gap)


class Plan:
    """The next batches of a part in the order of their publication. It does not change.

    Attributes:
        first_record: records of the part before the first batch.
        end_record: records of the part up to the end of the last batch.
    """

    __slots__ = ("_batches", "end_record", "first_record")

    def __init__(self, batches: Sequence[array[int]], *, first_record: int) -> None:
        self._batches = batches
        self.first_record = first_record
        self.end_record = first_record + sum(sum(each[_FIELDS - 1 :: _FIELDS]) for each in batches)

    def batches(self) -> Iterator[PlannedBatch]:
        """Yield all batches in order."""
        first_record = self.first_record
        for each in self._batches:
            for at in range(0, len(each), _FIELDS):
                base_offset, size_bytes, records = each[at : at + _FIELDS]
                yield PlannedBatch(base_offset, size_bytes, records, first_record)
                first_record += records

    def runs(self, *, max_bytes: int) -> Iterator[Run]:
        """Yield the batches in runs of at most `max_bytes`; a larger batch is a run of its own."""
        run: list[PlannedBatch] = []
        size_bytes = 0
        for batch in self.batches():
            if run and (run[-1].next_offset != batch.base_offset or size_bytes + batch.size_bytes > max_bytes):
                yield Run(run[0].base_offset, run[-1].next_offset, tuple(run))
                run, size_bytes = [], 0
            run.append(batch)
            size_bytes += batch.size_bytes
        if run:
            yield Run(run[0].base_offset, run[-1].next_offset, tuple(run))

    def pieces(self, *, max_bytes: int) -> Iterator[list[Run]]:
        """Yield the runs in groups of at most `max_bytes`; a larger run, which is a single batch, is a group of its own."""
        piece: list[Run] = []
        size_bytes = 0
        for run in self.runs(max_bytes=max_bytes):
            if piece and size_bytes + run.size_bytes > max_bytes:
                yield piece
                piece, size_bytes = [], 0
            piece.append(run)
            size_bytes += run.size_bytes
        if piece:
            yield piece


def is_shown(wanted: Slice, known: Sequence[KnownBatch], *, begin: KnownBatch | None) -> bool:
    """Tell whether a slice is complete, as far as the producer state of the log and its first batch show.

    The log takes the batches of a producer only in sequence, so what begins and ends where the slice does is the slice.

    Args:
        wanted: the slice.
        known: the newest batches of its producer, ascending by offset.
        begin: the batch of its producer at the begin of the slice, where `known` does not go back that far; None: there is none.
    """
    inside = [each for each in known if wanted.first_offset <= each.base_offset < wanted.end_offset]
    if not inside:
        return False
    first, last = inside[0], inside[-1]
    if first.base_offset != wanted.first_offset:
        if known[0].base_offset < wanted.first_offset or begin is None:
            return False
        first = begin
    end_sequence = last.base_sequence + last.next_offset - last.base_offset
    return (
        first.base_offset == wanted.first_offset
        and first.base_sequence == wanted.first_sequence
        and last.next_offset == wanted.end_offset
        and (end_sequence - wanted.first_sequence - wanted.records) % SEQUENCE_COUNT == 0
    )

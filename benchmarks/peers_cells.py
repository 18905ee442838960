# SPDX-License-Identifier: Apache-2.0
"""The cells of `make bench-peers` as data: what is measured, beside whom, and the bound. And the verdicts on what was measured.

A cell compares one figure of a measure of ours with the same figure of another measure. Some compare Lograft with itself. Cells of one
turn are measured one right after the other.
"""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from benchmarks.peers_task import Sample

FALL = 0.05
"""The share by which no cell may be worse than the checkout before."""


class Side(StrEnum):
    """Who is measured."""

    OURS = "Lograft"
    BEFORE = "Lograft before"
    PEER = "confluent-kafka"
    PROTOTYPE = "bare gRPC"


class Work(StrEnum):
    """What a client process does, by the names that the clients know."""

    SEND = "send"
    SEND_MANY = "send_many"
    POLL = "poll"
    VALUES = "values"
    LISTS = "lists"
    TO_ARROW = "to_arrow"
    BLOCKING = "latency, blocking"
    ASYNCIO = "latency, asyncio"
    UVLOOP = "latency, uvloop"
    ONE_BY_ONE = "one by one"
    CROWD = "crowd writer"


READS = frozenset({Work.POLL, Work.VALUES, Work.LISTS, Work.TO_ARROW})
"""They read a topic that was filled for them."""
PACED = frozenset({Work.BLOCKING, Work.ASYNCIO, Work.UVLOOP, Work.CROWD})
"""Their rate is given, and is not a result."""
LATENCIES = frozenset({*PACED, Work.ONE_BY_ONE})
READ_RECORDS = {100: 3_000_000, 1_000: 800_000}
"""Records that are read, by the size of their values."""


class Figure(StrEnum):
    """A figure of a sample, by the name of its attribute."""

    RATE = "rate"
    P50 = "p50_ms"
    P99 = "p99_ms"
    CLIENT = "client_us"
    SERVER = "server_us"

    @property
    def unit(self) -> str:
        """The unit, for people."""
        return "k/s" if self is Figure.RATE else self.value.rsplit("_", 1)[1]

    @property
    def is_better_high(self) -> bool:
        """True if more is better."""
        return self is Figure.RATE

    def of(self, sample: Sample) -> float:
        """Return the figure of a sample, which must have it."""
        found: float | None = getattr(sample, self.value)
        assert found is not None, f"{sample} has no {self.value}"
        return found


class Relation(StrEnum):
    """What the bound of a cell is about."""

    RATIO = "ratio"
    DIFFERENCE = "difference"
    ABSOLUTE = "absolute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What is measured on one side.

    Attributes:
        work: what the client does.
        records: records that count, at scale 1.
        value_bytes: size of each value.
        partitions: partitions of the topic.
        replicas: replicas of each partition.
        is_flushed: whether an acknowledgement waits for an fsync.
        rate: records per second of paced work; of a crowd: of each process.
    """

    work: Work
    records: int
    value_bytes: int = 100
    partitions: int = 1
    replicas: int = 1
    is_flushed: bool = False
    rate: int = 0

    def __str__(self) -> str:
        parts = [self.work.value, "100 B" if self.value_bytes == 100 else f"{self.value_bytes / 1000:g} KB"]
        if self.work not in LATENCIES:
            parts.append(f"{self.partitions:,} partition{'s' * (self.partitions > 1)}")
        if self.work in PACED:
            parts.append(f"{self.rate:,}/s")
        if self.replicas > 1:
            parts.append(f"{self.replicas} replicas")
        if self.is_flushed:
            parts.append("fsync")
        return ", ".join(parts)


Step = tuple[Measure, Side]
Samples = Mapping[Step, Mapping[int, Sample]]
"""Samples by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the table.

    Attributes:
        name: what it compares.
        turn: cells of one turn are measured together.
        figure: the figure that is compared.
        ours: our measure.
        other: the measure beside it.
        other_side: who does the other measure.
        bound: a sign and a number, such as `>= 1.2`; "": none.
        relation: what the bound is about.
    """

    name: str
    turn: str
    figure: Figure
    ours: Measure
    other: Measure
    other_side: Side = Side.PEER
    bound: str = ""
    relation: Relation = Relation.RATIO

    def steps(self, *, has_before: bool) -> Iterator[Step]:
        """Yield what must be measured for it."""
        yield self.ours, Side.OURS
        if has_before:
            yield self.ours, Side.BEFORE
        yield self.other, self.other_side

    @property
    def is_kept(self) -> bool:
        """True if the figure may not fall. Of the 99th percentile only the bound counts: between two runs it differs by more."""
        return self.figure is not Figure.P99


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cell with its figures: a value for each round in which both sides were measured.

    Attributes:
        cell: the cell.
        ours: our figures.
        others: the figures beside them, of the same rounds.
        pairs_before: our figure and that of the checkout before, of the rounds that have both.
    """

    cell: Cell
    ours: tuple[float, ...]
    others: tuple[float, ...]
    pairs_before: tuple[tuple[float, float], ...]

    @property
    def compared(self) -> tuple[float, ...]:
        """The ratio in each round, or the difference where the bound is about it."""
        pairs = zip(self.ours, self.others, strict=True)
        if self.cell.relation is Relation.DIFFERENCE:
            return tuple(mine - other for mine, other in pairs)
        return tuple(mine / other for mine, other in pairs)

    @property
    def ratios_before(self) -> tuple[float, ...]:
        """Our figure over the one before, in each round."""
        return tuple(mine / old for mine, old in self.pairs_before)

    @property
    def is_met(self) -> bool:
        """True if the median keeps the bound. A cell without figures misses its bound."""
        if not self.cell.bound:
            return True
        judged = self.ours if self.cell.relation is Relation.ABSOLUTE else self.compared
        return bool(judged) and _keeps(statistics.median(judged), self.cell.bound)

    @property
    def has_fallen(self) -> bool:
        """True if the cell is worse than before by more than `FALL`."""
        if not self.ratios_before or not self.cell.is_kept:
            return False
        ratio = statistics.median(self.ratios_before)
        return ratio < 1 - FALL if self.cell.figure.is_better_high else ratio > 1 + FALL


_SIGNS: Mapping[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


def _keeps(value: float, bound: str) -> bool:
    sign, number = bound.split()
    return _SIGNS[sign](value, float(number))


def _rate_cells() -> Iterator[Cell]:
    def cell(bound: str, ours: Measure, other: Work | None = None) -> Cell:
        theirs = replace(ours, work=other or ours.work)
        return Cell(name=str(ours), turn=str(theirs), figure=Figure.RATE, ours=ours, other=theirs, bound=bound)

    def send(records: int, value_bytes: int, partitions: int, *, replicas: int = 1) -> Measure:
        return Measure(
            work=Work.SEND, records=records, value_bytes=value_bytes, partitions=partitions, replicas=replicas
        )

    def send_many(records: int, value_bytes: int, partitions: int, *, is_flushed: bool = False) -> Measure:
        return Measure(
            work=Work.SEND_MANY,
            records=records,
            value_bytes=value_bytes,
            partitions=partitions,
            is_flushed=is_flushed,
        )

    def read(work: Work, value_bytes: int, partitions: int) -> Measure:
        return Measure(work=work, records=READ_RECORDS[value_bytes], value_bytes=value_bytes, partitions=partitions)

    yield cell(">= 1.2", send(800_000, 1_000, 1))
    yield cell(">= 1.2", send(800_000, 1_000, 6))
    yield cell(">= 1.5", send(2_000_000, 100, 1))
    yield cell(">= 1.5", send(2_000_000, 100, 6))
    yield cell("", send(1_000_000, 100, 100))
    yield cell(">= 1.5", send(500_000, 100, 1_000))
    yield cell(">= 1.5", send_many(1_000_000, 1_000, 1))
    yield cell(">= 1.5", send_many(1_000_000, 1_000, 6))
    yield cell("", send_many(4_000_000, 100, 1))
    yield cell("", send_many(2_000_000, 100, 1, is_flushed=True))
    yield cell(">= 1.3", send(400_000, 1_000, 1, replicas=3))
    for value_bytes in READ_RECORDS:
        for partitions in (1, 6):
            yield cell(">= 1.2", read(Work.POLL, value_bytes, partitions))
    yield cell(">= 1.5", read(Work.VALUES, 1_000, 6), Work.POLL)
    yield cell("", read(Work.VALUES, 100, 1), Work.POLL)


def _arrow_cells() -> Iterator[Cell]:
    for value_bytes, bound in ((100, ">= 2.0"), (1_000, ">= 1.3")):
        records = READ_RECORDS[value_bytes]
        arrow = Measure(work=Work.TO_ARROW, records=records, value_bytes=value_bytes)
        lists = Measure(work=Work.LISTS, records=records, value_bytes=value_bytes)
        yield Cell(
            name=f"{arrow} : values()",
            turn=str(Measure(work=Work.POLL, records=records, value_bytes=value_bytes)),
            figure=Figure.RATE,
            ours=arrow,
            other=lists,
            other_side=Side.OURS,
            bound=bound,
        )


def _latency_cells() -> Iterator[Cell]:
    works = {Work.BLOCKING: "blocking", Work.ASYNCIO: "asyncio", Work.UVLOOP: "asyncio with uvloop"}

    def p99(name: str, ours: Measure, turn: str) -> Cell:
        peer = Measure(work=Work.BLOCKING, records=ours.records, rate=ours.rate, is_flushed=ours.is_flushed)
        return Cell(name=f"{name}, p99", turn=turn, figure=Figure.P99, ours=ours, other=peer, bound="< 1.0")

    for rate, records, bound in ((1_000, 8_000, "<= 1.3"), (10_000, 40_000, "<= 1.5")):
        turn = f"latency at {rate:,}/s"
        prototype = Measure(work=Work.UVLOOP, records=records, rate=rate)
        for work, who in works.items():
            if rate > 1_000 and work is Work.UVLOOP:
                continue
            ours = Measure(work=work, records=records, rate=rate)
            name = f"send to value in hand, {rate:,}/s, {who}"
            yield Cell(
                name=f"{name}, p50 : prototype",
                turn=turn,
                figure=Figure.P50,
                ours=ours,
                other=prototype,
                other_side=Side.PROTOTYPE,
                bound=bound,
            )
            yield p99(name, ours, turn)
    for work in (Work.BLOCKING, Work.ASYNCIO):
        cache = Measure(work=work, records=8_000, rate=1_000)
        fsync = Measure(work=work, records=8_000, rate=1_000, is_flushed=True)
        name, turn = f"send to value in hand, 1,000/s, {works[work]}, fsync", "latency at 1,000/s, fsync"
        yield Cell(
            name=f"{name}, p50 above page cache",
            turn=turn,
            figure=Figure.P50,
            ours=fsync,
            other=cache,
            other_side=Side.OURS,
            bound="<= 0.4",
            relation=Relation.DIFFERENCE,
        )
        yield p99(name, fsync, turn)


def _single_cells() -> Iterator[Cell]:
    one = Measure(work=Work.ONE_BY_ONE, records=4_000)
    for name, figure, bound in (
        ("p50", Figure.P50, "<= 0.65"),
        ("CPU of the client", Figure.CLIENT, "<= 300"),
        ("CPU of the broker", Figure.SERVER, "<= 400"),
    ):
        yield Cell(
            name=f"one record sent and waited for, {name}",
            turn="one by one",
            figure=figure,
            ours=one,
            other=one,
            bound=bound,
            relation=Relation.ABSOLUTE,
        )
    crowd = Measure(work=Work.CROWD, records=120, partitions=6, rate=10)
    for name, figure in (("p50", Figure.P50), ("p99", Figure.P99)):
        yield Cell(
            name=f"60 processes that send at the same moment every 100 ms, {name}",
            turn="crowd",
            figure=figure,
            ours=crowd,
            other=crowd,
            bound="<= 1.2",
        )


CELLS: Sequence[Cell] = (*_rate_cells(), *_arrow_cells(), *_latency_cells(), *_single_cells())


def chosen(cells: Iterable[Cell], only: str) -> list[Cell]:
    """Return the cells whose name has a text in it."""
    return [cell for cell in cells if only in cell.name]


def turns(cells: Iterable[Cell], *, has_before: bool) -> list[list[Step]]:
    """Return the steps of a round: a list for each turn, and no step twice."""
    found: dict[str, list[Step]] = {}
    seen: set[Step] = set()
    for cell in cells:
        steps = found.setdefault(cell.turn, [])
        for step in cell.steps(has_before=has_before):
            if step not in seen:
                seen.add(step)
                steps.append(step)
    return [steps for steps in found.values() if steps]


def rows(cells: Iterable[Cell], samples: Samples) -> list[Row]:
    """Return the cells with what was measured."""
    return [_row(cell, samples) for cell in cells]


def _row(cell: Cell, samples: Samples) -> Row:
    ours = samples.get((cell.ours, Side.OURS), {})
    others = samples.get((cell.other, cell.other_side), {})
    before = samples.get((cell.ours, Side.BEFORE), {})
    both = sorted(ours.keys() & others.keys())
    kept = sorted(ours.keys() & before.keys())
    figure = cell.figure.of
    return Row(
        cell=cell,
        ours=tuple(figure(ours[number]) for number in both),
        others=tuple(figure(others[number]) for number in both),
        pairs_before=tuple((figure(ours[number]), figure(before[number])) for number in kept),
    )

# SPDX-License-Identifier: Apache-2.0
"""The cells of `make bench-peers`: what is measured in a round, the verdicts on it, and the page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.peers_cells import CELLS, Cell, Figure, Measure, Relation, Row, Side, Step, Work, chosen, rows, turns
from benchmarks.peers_page import SparkRow, missed, page
from benchmarks.peers_task import Latencies, Meter, Sample, percentiles_ms

SEND = Measure(work=Work.SEND, records=1_000)
CELL = Cell(name="send", turn="send", figure=Figure.RATE, ours=SEND, other=SEND, bound=">= 1.2")
Rounds = dict[Step, dict[int, Sample]]


def sample(rate: float, *, p50_ms: float | None = None, p99_ms: float | None = None) -> Sample:
    """Return a sample of a rate in thousands of records per second."""
    return Sample(records=1_000, seconds=1 / rate, client_s=0.001, server_s=0.002, p50_ms=p50_ms, p99_ms=p99_ms)


def rates(ours: list[float], other: list[float], before: list[float] | None = None) -> Rounds:
    """Return the samples of `CELL` in rounds 1, 2 and so on."""
    sides = {Side.OURS: ours, Side.PEER: other, Side.BEFORE: before or []}
    return {
        (SEND, side): {number: sample(rate) for number, rate in enumerate(found, 1)} for side, found in sides.items()
    }


def latencies(measure: Measure, side: Side, p50_ms: list[float]) -> Rounds:
    """Return samples with medians, and with five times as much as 99th percentile."""
    return {(measure, side): {n: sample(1.0, p50_ms=each, p99_ms=5 * each) for n, each in enumerate(p50_ms, 1)}}


def row_of(cell: Cell, samples: Rounds) -> Row:
    """Return the row of one cell."""
    return rows([cell], samples)[0]


def test_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians() -> None:
    """Each round gives a ratio, so a round on a slow machine counts as much as one on a fast machine."""
    row = row_of(CELL, rates([100.0, 300.0, 120.0], [50.0, 300.0, 100.0]))
    assert row.compared == pytest.approx((2.0, 1.0, 1.2))
    assert row.is_met


def test_rounds_that_only_one_side_has_do_not_count() -> None:
    """A measurement that failed takes the other one of its round with it."""
    samples = rates([100.0, 200.0, 300.0], [100.0, 100.0, 100.0])
    del samples[SEND, Side.PEER][2]
    assert row_of(CELL, samples).compared == pytest.approx((1.0, 3.0))


def test_cell_without_figures_misses_its_bound() -> None:
    """A cell that was not measured is not met, but one without a bound is no miss."""
    assert not row_of(CELL, {}).is_met
    assert row_of(replace(CELL, bound=""), {}).is_met


@pytest.mark.parametrize(
    ("relation", "bound", "is_met"),
    [
        (Relation.RATIO, "<= 1.5", True),
        (Relation.RATIO, "<= 1.4", False),
        (Relation.RATIO, "< 1.5", False),
        (Relation.DIFFERENCE, "<= 0.5", True),
        (Relation.DIFFERENCE, "<= 0.4", False),
        (Relation.ABSOLUTE, "<= 1.5", True),
        (Relation.ABSOLUTE, "<= 1.4", False),
    ],
)
def test_bound_is_about_a_ratio_a_difference_or_the_figure_itself(relation: Relation, bound: str, is_met: bool) -> None:
    """With 1.5 ms of ours beside 1.0 ms, each kind of bound is judged by its own number."""
    cell = replace(CELL, figure=Figure.P50, relation=relation, bound=bound)
    samples = {**latencies(SEND, Side.OURS, [1.5]), **latencies(SEND, Side.PEER, [1.0])}
    assert row_of(cell, samples).is_met == is_met


def test_fall_is_less_of_a_rate_and_more_of_a_time() -> None:
    """More than 5 % is a fall; of the 99th percentile, which differs by more from run to run, only the bound counts."""
    assert row_of(CELL, rates([94.0], [50.0], [100.0])).has_fallen
    assert not row_of(CELL, rates([96.0], [50.0], [100.0])).has_fallen
    times = {**latencies(SEND, Side.OURS, [1.06]), **latencies(SEND, Side.BEFORE, [1.0])}
    assert row_of(replace(CELL, figure=Figure.P50), times).has_fallen
    assert not row_of(replace(CELL, figure=Figure.P99), times).has_fallen


def test_no_step_is_measured_twice_in_a_round() -> None:
    """Cells share their measurements, and a turn has what its cells compare."""
    found = turns(CELLS, has_before=True)
    steps = [step for turn in found for step in turn]
    assert len(steps) == len(set(steps))
    assert set(steps) == {step for cell in CELLS for step in cell.steps(has_before=True)}


def test_without_a_checkout_before_nothing_of_it_is_measured() -> None:
    """The third side is there only when asked for."""
    assert all(side is not Side.BEFORE for turn in turns(CELLS, has_before=False) for _, side in turn)


def test_names_of_cells_are_unique_and_choose_them() -> None:
    """A part of a name chooses cells."""
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert [cell.ours.partitions for cell in chosen(CELLS, "send, 1 KB")] == [1, 6, 1]


def test_cells_have_the_bounds_of_the_table_of_speed() -> None:
    """Each kind of cell has its number of bounds."""
    bounds = [cell.bound for cell in CELLS if cell.figure is Figure.RATE and cell.bound]
    assert sorted(bounds) == sorted(
        [*[">= 1.2"] * 2, *[">= 1.5"] * 3, *[">= 1.5"] * 2, ">= 1.3", *[">= 1.2"] * 4, ">= 1.5", ">= 2.0", ">= 1.3"]
    )
    assert sum(cell.bound == "< 1.0" for cell in CELLS) == 7
    assert sum(cell.other_side is Side.PROTOTYPE for cell in CELLS) == 5


def test_page_shows_verdicts_facts_and_failures() -> None:
    """The page has a line for each cell, the facts of the run, and what failed."""
    samples = rates([110.0, 120.0], [100.0, 100.0], [200.0, 200.0])
    spark = SparkRow(name="Spark, ingest", ours=10.0, other=20.0, ratios=(0.5,), bound=">= 1.5", is_met=False)
    found = rows([CELL, replace(CELL, name="lost", ours=replace(SEND, value_bytes=1_000))], samples)
    text = page(
        "How it is measured.",
        found,
        samples,
        facts=["two cores"],
        spark=[spark],
        spark_facts=["then"],
        failures=["why"],
    )
    assert "| send | 115 k/s | 100 k/s | 1.15 | 1.10 to 1.20 | 0.57 FALLEN | >= 1.2 | NO |" in text
    assert "| lost | not measured | | | |  | >= 1.2 | NO |" in text
    assert "| Spark, ingest | 10 | 20 | 0.50 | 0.50 to 0.50 | >= 1.5 | NO |" in text
    assert "| send, 100 B, 1 partition | Lograft | 115 | 110 to 120 | 11.5 |  |  | 1.00 | 2.00 | 0.00 | 0.00 |" in text
    assert "* two cores" in text
    assert "* then" in text
    assert "* why" in text
    assert missed(found, [spark]) == ["send", "lost", "Spark, ingest"]


def test_page_shows_a_difference_with_its_unit() -> None:
    """A difference has a sign and milliseconds, as its bound has."""
    cell = replace(CELL, figure=Figure.P50, relation=Relation.DIFFERENCE, bound="<= 0.4")
    samples = {**latencies(SEND, Side.OURS, [1.5]), **latencies(SEND, Side.PEER, [1.25])}
    line = "| send | 1.50 ms | 1.25 ms | +0.25 ms | +0.25 to +0.25 ms |  | <= 0.4 ms | yes |"
    assert line in page("How.", rows([cell], samples), samples, facts=[])


def test_latencies_leave_out_the_warm_up() -> None:
    """Records that warm the path have latencies, which do not count."""
    found = Latencies(Meter(()), warm_up=2, records=3)
    for _ in range(found.total):
        found.send()
    found.receive(4)
    assert not found.is_complete
    found.receive(1)
    assert found.is_complete
    assert len(found.counted_ms) == 3


def test_percentiles_are_values_that_were_measured() -> None:
    """The median and the 99th percentile of a hundred values are the 51st and the 100th."""
    assert percentiles_ms([float(each) for each in range(100, 0, -1)]) == (51.0, 100.0)

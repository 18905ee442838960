# SPDX-License-Identifier: Apache-2.0
"""The page of `make bench-peers`: the cells with their verdicts, what a record costs, and the facts of the run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers_cells import FALL, Figure, Relation, Row, Samples, Side, Step
from benchmarks.peers_task import Sample

NOTHING = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRow:
    """A cell of `make bench-spark`, whose bound is that of the table of speed."""

    name: str
    ours: float
    other: float
    ratios: tuple[float, ...]
    bound: str
    is_met: bool


def missed(rows: Sequence[Row], spark: Sequence[SparkRow]) -> list[str]:
    """Return the names of the cells that miss their bound or have fallen."""
    found = [row.cell.name for row in rows if not row.is_met or row.has_fallen]
    return found + [row.name for row in spark if not row.is_met]


def page(
    description: str,
    rows: Sequence[Row],
    samples: Samples,
    *,
    facts: Sequence[str],
    spark: Sequence[SparkRow] = (),
    spark_facts: Sequence[str] = (),
    failures: Sequence[str] = (),
) -> str:
    """Return the page of results.

    Args:
        description: how it is measured.
        rows: the cells.
        samples: what was measured.
        facts: what the machine and the versions were.
        spark: cells that `make bench-spark` measured.
        spark_facts: the same of that run.
        failures: measurements that failed, with their messages.
    """
    lines = ["# Lograft beside Apache Kafka and its Python client", "", *description.strip().split("\n"), ""]
    lines += [f"* {fact}" for fact in facts]
    lines += [
        "",
        "## Cells",
        "",
        "The ratio is that of our figure to the other one: the median of the rounds, then their smallest and largest. `before` is the "
        f"ratio of our figure to that of the checkout before; one that is worse by more than {FALL * 100:g} % is marked.",
        "",
        "| | ours | other | ratio | of the rounds | before | bound | met |",
        "|---|---:|---:|---:|---|---:|---|---|",
    ]
    lines += map(_cell_line, rows)
    if spark:
        lines += [
            "",
            "## Spark",
            "",
            "What `make bench-spark` measured, in thousands of records per second ([all of it](spark.md)).",
            "",
            *(f"* {fact}" for fact in spark_facts),
            "",
            "| | ours | other | ratio | of the rounds | bound | met |",
            "|---|---:|---:|---:|---|---|---|",
        ]
        lines += map(_spark_line, spark)
    lines += [
        "",
        "## What a record costs",
        "",
        "Medians of the rounds. CPU times are microseconds for a record, user and system, of all threads. Load and busy cores are "
        "those of the machine right before.",
        "",
        "| | by | k records/s | of the rounds | MB/s | p50 ms | p99 ms | client us | servers us | load | busy cores |",
        "|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    measures = list(dict.fromkeys(measure for measure, _ in samples))
    for step in ((measure, side) for measure in measures for side in Side):
        if by_round := samples.get(step):
            lines.append(_cost_line(step, list(by_round.values())))
    if failures:
        lines += ["", "## What failed", "", *(f"* {failure}" for failure in failures)]
    return "\n".join(lines) + "\n"


def _cell_line(row: Row) -> str:
    cell = row.cell
    met = "" if not cell.bound else "yes" if row.is_met else "NO"
    if not row.ours:
        return f"| {cell.name} | {NOTHING} | | | | {_before(row)} | {_bound(row)} | {met} |"
    ours, other = (
        f"{_number(cell.figure, statistics.median(each))} {cell.figure.unit}" for each in (row.ours, row.others)
    )
    compared = row.compared
    sign = "+" if cell.relation is Relation.DIFFERENCE else ""
    spread = f"{min(compared):{sign}.2f} to {max(compared):{sign}.2f}"
    ratio = f"{statistics.median(compared):{sign}.2f}"
    unit = f" {cell.figure.unit}" if cell.relation is Relation.DIFFERENCE else ""
    return (
        f"| {cell.name} | {ours} | {other} | {ratio}{unit} | {spread}{unit} | {_before(row)} | {_bound(row)} | {met} |"
    )


def _bound(row: Row) -> str:
    has_unit = row.cell.bound and row.cell.relation is not Relation.RATIO
    return f"{row.cell.bound} {row.cell.figure.unit}" if has_unit else row.cell.bound


def _before(row: Row) -> str:
    if not row.ratios_before:
        return ""
    return f"{statistics.median(row.ratios_before):.2f}{' FALLEN' if row.has_fallen else ''}"


def _spark_line(row: SparkRow) -> str:
    spread = f"{min(row.ratios):.2f} to {max(row.ratios):.2f}"
    met = "yes" if row.is_met else "NO"
    ratio = statistics.median(row.ratios)
    return f"| {row.name} | {row.ours:,.0f} | {row.other:,.0f} | {ratio:.2f} | {spread} | {row.bound} | {met} |"


def _cost_line(step: Step, found: Sequence[Sample]) -> str:
    measure, side = step
    rates = [sample.rate for sample in found]
    latencies = [
        _number(figure, statistics.median(map(figure.of, found))) if found[0].p50_ms is not None else ""
        for figure in (Figure.P50, Figure.P99)
    ]
    rate = statistics.median(rates)
    spread = f"{_number(Figure.RATE, min(rates))} to {_number(Figure.RATE, max(rates))}"
    speed = [_number(Figure.RATE, rate), spread, f"{rate * measure.value_bytes / 1e3:,.1f}"]
    costs = [f"{statistics.median(map(figure.of, found)):.2f}" for figure in (Figure.CLIENT, Figure.SERVER)]
    machine = [
        f"{statistics.median(values):.2f}" for values in zip(*((each.load, each.others) for each in found), strict=True)
    ]
    return f"| {' | '.join([str(measure), side.value, *speed, *latencies, *costs, *machine])} |"


def _number(figure: Figure, value: float) -> str:
    if figure is Figure.RATE:
        return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
    return f"{value:.2f}" if figure in (Figure.P50, Figure.P99) else f"{value:.0f}"

# SPDX-License-Identifier: Apache-2.0
"""The fault matrix of exactly-once ingest from Spark: each row so many times, on one cluster, with a table at the end.

A run in which the fault met another point than the row is about does not count: it is repeated, and the table says how often.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from integration_tests.harness.outcome import Outcome
from integration_tests.scenarios.exactly_once.matrix_rows import ROWS
from integration_tests.scenarios.exactly_once.matrix_runs import MissedError, Run, Stage, begin
from integration_tests.scenarios.exactly_once.scene import running_scene

DEFAULT_RUNS: Final = 20
RECORDS: Final = 20_000
TASKS: Final = 4
MISSED_SHARE_MAX: Final = 2
"""A row may miss its point so many times for each run that counts."""

HEADERS: Final = (
    "row",
    "runs",
    "hit",
    "missed",
    "reruns",
    "missing",
    "doubled",
    "foreign",
    "dropped",
    "staged s",
    "s/run",
)


@dataclass(slots=True)
class Tally:
    """What the runs of a row came to.

    Attributes:
        wanted: runs that must count.
        hits: runs in which the fault met its point.
        missed: runs in which it did not.
        reruns: jobs that were submitted again.
        missing: records that were missing, over all runs.
        doubled: records that were there twice.
        foreign: records that nobody sent.
        dropped: attempts that were not published.
        staged_s: longest time until nothing was staged.
        seconds: of all runs.
    """

    wanted: int
    hits: int = 0
    missed: int = 0
    reruns: int = 0
    missing: int = 0
    doubled: int = 0
    foreign: int = 0
    dropped: int = 0
    staged_s: float = 0.0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list[str])

    def cells(self, row: str) -> list[str]:
        """Return a line of the table."""
        runs = max(1, self.hits + self.missed)
        counts = (
            self.wanted,
            self.hits,
            self.missed,
            self.reruns,
            self.missing,
            self.doubled,
            self.foreign,
            self.dropped,
        )
        return [row, *map(str, counts), f"{self.staged_s:.1f}", f"{self.seconds / runs:.1f}"]


def run_once(stage: Stage, row: str, number: int, tally: Tally) -> str:
    """Do one run of a row, judge it, and return what to print."""
    began_s = time.monotonic()
    run = begin(stage, row, number)
    missed = ""
    try:
        ROWS[row].work(run)
    except MissedError as error:
        missed = str(error)
    # What the fault met or not: the records must be right in any case.
    problems = _judge(run, tally)
    tally.problems += [f"{run.topic}: {problem}" for problem in problems]
    tally.reruns += run.reruns
    if missed:
        tally.missed += 1
    else:
        tally.hits += 1
    stage.scene.admin.delete_topic(run.topic)
    took_s = time.monotonic() - began_s
    tally.seconds += took_s
    what = f"MISSED: {missed}" if missed else run.text
    again = f", {run.reruns} reruns" if run.reruns else ""
    return f"{what}{again}, {took_s:.1f} s{f', PROBLEMS {problems}' if problems else ''}"


def _judge(run: Run, tally: Tally) -> list[str]:
    difference, problems, staged_s = run.judge()
    tally.missing += difference.missing
    tally.doubled += difference.doubled
    tally.foreign += difference.foreign
    tally.dropped += run.facts["dropped_attempts"]
    tally.staged_s = max(tally.staged_s, staged_s)
    return problems if difference.is_none else [*problems, f"the topic differs from the source: {difference}"]


def table(tallies: dict[str, Tally]) -> str:
    """Return the table of all rows."""
    lines = [list(HEADERS), *(tally.cells(row) for row, tally in tallies.items())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADERS))]
    return "\n".join(
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )


def prove(
    directory: Path,
    *,
    rows: Sequence[str],
    runs: int,
    seed: int,
    budget_s: float,
    records: int = RECORDS,
    tasks: int = TASKS,
    has_spark: bool = True,
) -> Outcome:
    """Run rows of the matrix.

    Args:
        directory: directory for everything.
        rows: names of rows.
        runs: runs of each that must count.
        seed: seed of all random choices.
        budget_s: seconds after which no run begins; what is left out is a problem.
        records: records of an ingest.
        tasks: tasks of an ingest.
        has_spark: False runs the jobs with the SDK alone; rows that are about Spark are left out then.
    """
    rows = [row for row in ROWS if row in rows and (has_spark or not ROWS[row].needs_spark)]
    outcome = Outcome(proof="matrix", figures={"runs": runs, "seed": seed, "records": records})
    deadline_s = time.monotonic() + budget_s
    tallies: dict[str, Tally] = {}
    with running_scene(directory, seed=seed) as scene:
        stage = Stage(scene=scene, records=records, tasks=tasks, has_spark=has_spark)
        try:
            for row in rows:
                stage.close(but=ROWS[row].drivers)
                tally = tallies[row] = Tally(runs)
                _run_row(stage, row, tally, deadline_s)
                outcome.problems += tally.problems
        finally:
            stage.close()
        outcome.problems += scene.still_open()
    print(table(tallies), flush=True)
    for row in rows:
        tally = tallies.get(row, Tally(runs))
        outcome.figures[row] = {"hit": tally.hits, "missed": tally.missed, "reruns": tally.reruns}
        if tally.hits < runs:
            outcome.problems.append(f"{row}: {tally.hits} of {runs} runs, {tally.missed} missed their point")
    return outcome


def _run_row(stage: Stage, row: str, tally: Tally, deadline_s: float) -> None:
    while tally.hits < tally.wanted and time.monotonic() < deadline_s:
        if tally.missed > MISSED_SHARE_MAX * tally.wanted:
            return
        number = tally.hits + tally.missed
        try:
            line = run_once(stage, row, tally.hits, tally)
        except Exception as error:
            # A row whose run ends in an error is a failure; the other rows go on, with new drivers.
            tally.problems.append(f"{row}, run {number + 1}: {error!r:.2000}")
            print(f"  {row} {number + 1:3d}: FAILED {error!r:.600}", flush=True)
            stage.close()
            stage.scene.heal()
            return
        print(f"  {row} {number + 1:3d}: {line}", flush=True)

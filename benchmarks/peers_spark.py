# SPDX-License-Identifier: Apache-2.0
"""The Spark cells of `make bench-peers`: what `make bench-spark` stored, with the bounds of the table of speed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers_page import SparkRow
from benchmarks.spark_cells import Sample
from benchmarks.spark_run import FEW_RECORDS, Cell, Size, comparisons

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkResults:
    """The cells that have a bound, and the facts of their run."""

    rows: Sequence[SparkRow]
    facts: Sequence[str]


def stored_results(directory: Path) -> SparkResults | None:
    """Return what `bench-spark` stored in a directory; None if nothing."""
    stored, page = directory / "spark.json", directory / "spark.md"
    if not stored.exists() or not page.exists():
        return None
    found: list[dict[str, Any]] = json.loads(stored.read_text())
    samples = {_cell(each): [Sample(**sample) for sample in each["samples"]] for each in found}
    sizes = list(dict.fromkeys(_size(cell) for cell in samples))
    rows = [
        SparkRow(
            name=f"Spark, {row.name}",
            ours=row.ours,
            other=row.other,
            ratios=row.ratios,
            bound=row.wanted,
            is_met=row.verdict(row.wanted).endswith("yes"),
        )
        for size in sizes
        if size.records >= FEW_RECORDS
        for row in comparisons(samples, size)
        if row.wanted
    ]
    facts = [line.removeprefix("* ") for line in page.read_text().splitlines() if line.startswith("* ")]
    return SparkResults(rows=rows, facts=[*_commit(stored), *facts])


def _cell(stored: dict[str, Any]) -> Cell:
    return Cell(size=stored["size"], policy=stored["policy"], what=stored["what"], who=stored["who"])


def _size(cell: Cell) -> Size:
    return Size.parse(cell.size.replace(",", "").replace(" ", "").removesuffix("B"))


def _commit(stored: Path) -> list[str]:
    """Return the commit that has the results, if one has them as they are."""
    git = ["git", "-C", str(stored.parent)]
    changed = subprocess.run([*git, "status", "--porcelain", stored.name], capture_output=True, text=True)
    last = subprocess.run([*git, "log", "-1", "--format=%h of %cs", "--", stored.name], capture_output=True, text=True)
    if changed.returncode or changed.stdout.strip() or not last.stdout.strip():
        return ["measured with the files as they are now, in no commit yet"]
    return [f"stored by commit {last.stdout.strip()}"]

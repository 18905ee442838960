# SPDX-License-Identifier: Apache-2.0
"""Results of a benchmark run: medians of interleaved rounds, as JSON and as a Markdown table."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One figure, its ceiling in the same rounds, and the ratio. `target` is the demanded ratio or value."""

    name: str
    value: float
    unit: str
    ceiling: float | None
    ratio: float | None
    target: str
    met: bool
    note: str = ""


def compare(
    name: str,
    unit: str,
    values: list[float],
    ceilings: list[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    note: str = "",
) -> Result:
    """Return a result from rounds taken in turns. The ratio is the median of the pairwise ratios."""
    ratio = statistics.median(value / ceiling for value, ceiling in zip(values, ceilings, strict=True))
    met = (at_least is None or ratio >= at_least) and (at_most is None or ratio <= at_most)
    bounds = [f">= {at_least}" if at_least is not None else "", f"<= {at_most}" if at_most is not None else ""]
    return Result(
        name=name,
        value=round(statistics.median(values), 3),
        unit=unit,
        ceiling=round(statistics.median(ceilings), 3),
        ratio=round(ratio, 3),
        target=" ".join(bound for bound in bounds if bound),
        met=met,
        note=note,
    )


def absolute(
    name: str,
    unit: str,
    values: list[float],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    note: str = "",
) -> Result:
    """Return a result without a ceiling from several rounds."""
    value = statistics.median(values)
    bounds = [f">= {at_least:g}" if at_least is not None else "", f"<= {at_most:g}" if at_most is not None else ""]
    return Result(
        name=name,
        value=round(value, 3),
        unit=unit,
        ceiling=None,
        ratio=None,
        target=" ".join(bound for bound in bounds if bound),
        met=(at_least is None or value >= at_least) and (at_most is None or value <= at_most),
        note=note,
    )


def markdown(results: list[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| name | value | unit | ceiling | ratio | target | met | note |",
        "|---|---:|---|---:|---:|---|---|---|",
    ]
    for r in results:
        ceiling = "" if r.ceiling is None else f"{r.ceiling:g}"
        ratio = "" if r.ratio is None else f"{r.ratio:.2f}"
        met = ("yes" if r.met else "NO") if r.target else ""
        lines.append(f"| {r.name} | {r.value:g} | {r.unit} | {ceiling} | {ratio} | {r.target} | {met} | {r.note} |")
    return "\n".join(lines) + "\n"


def write(results: list[Result], directory: Path, name: str = "latest") -> None:
    """Write `<name>.json` and `<name>.md`."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [asdict(result) for result in results]
    (directory / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
    (directory / f"{name}.md").write_text(markdown(results))

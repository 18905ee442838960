# SPDX-License-Identifier: Apache-2.0
"""The outcome of one proof: figures, problems, and how they are printed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

Figure = str | int | float | dict[str, int] | list[int]

PRINTED_MAX = 20
"""Problems that are printed."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a proof found. It has passed when it ran and there is no problem."""

    proof: str
    figures: dict[str, Figure] = field(default_factory=dict[str, Figure])
    problems: list[str] = field(default_factory=list[str])
    not_run: str = ""

    @property
    def verdict(self) -> str:
        """PASSED, FAILED or NOT RUN."""
        if self.problems:
            return "FAILED"
        return "NOT RUN" if self.not_run else "PASSED"

    def to_json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "proof": self.proof,
                "verdict": self.verdict,
                **self.figures,
                "problem_count": len(self.problems),
                **({"not_run": self.not_run} if self.not_run else {}),
            }
        )

    def print(self) -> None:
        """Print the problems, the verdict and the JSON line."""
        for problem in self.problems[:PRINTED_MAX]:
            print(f"  PROBLEM {problem}")
        print(f"{self.proof}: {self.verdict}{': ' + self.not_run if self.not_run else ''}")
        print(self.to_json(), flush=True)


def report(outcomes: Sequence[Outcome]) -> int:
    """Print a line for each proof.

    Returns:
        Exit status: 0 all passed, 1 one failed, 2 none failed and one could not run here.
    """
    print("summary:")
    for outcome in outcomes:
        voters = outcome.figures.get("voters")
        print(f"  {outcome.verdict:7s} {outcome.proof}{'' if voters is None else f', {voters} voters'}")
    if any(outcome.problems for outcome in outcomes):
        return 1
    return 2 if any(outcome.not_run for outcome in outcomes) else 0


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, rounded up."""
    return math.ceil(seconds * 1e3)


def median_and_max(name: str, seconds: Sequence[float]) -> dict[str, Figure]:
    """Figures `<name>_p50_ms` and `<name>_max_ms`; nothing for no values."""
    if not seconds:
        return {}
    return {
        f"{name}_p50_ms": milliseconds(statistics.median(seconds)),
        f"{name}_max_ms": milliseconds(max(seconds)),
    }

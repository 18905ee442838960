# SPDX-License-Identifier: Apache-2.0
"""The outcome of one proof: its figures and problems, their output, and the evidence that is kept of a failed run."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from integration_tests.harness.history.events import HISTORY_FILE

Figure = str | int | float | dict[str, int] | list[int]

PRINTED_MAX = 20
"""Maximum number of problems that are printed."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The result of a proof. It has passed if it ran and found no problem."""

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
        """Return the outcome as one line of JSON."""
        return json.dumps(
            {
                "proof": self.proof,
                "verdict": self.verdict,
                **self.figures,
                "problem_count": len(self.problems),
                **({"not_run": self.not_run} if self.not_run else {}),
            }
        )

    def write(self, path: Path) -> None:
        """Write it to a file for the process that started this one."""
        path.write_text(json.dumps(dataclasses.asdict(self)))

    def print(self) -> None:
        """Print the problems, the verdict and the JSON line."""
        for problem in self.problems[:PRINTED_MAX]:
            print(f"  PROBLEM {problem}")
        print(f"{self.proof}: {self.verdict}{': ' + self.not_run if self.not_run else ''}")
        print(self.to_json(), flush=True)


def read_outcome(path: Path) -> Outcome:
    """Read a file that `Outcome.write` wrote."""
    return Outcome(**json.loads(path.read_text()))


def run_in_directory(
    proof: str, work: Callable[[Path], Outcome], *, figures: Mapping[str, Figure] | None = None
) -> Outcome:
    """Run a proof in a temporary directory. An exception is a failure, and the evidence of a failure is kept.

    Args:
        proof: name of the proof.
        work: runs the proof in a directory.
        figures: figures of the outcome if the proof raises.
    """
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"lograft-{proof}-") as name:
        directory = Path(name)
        try:
            outcome = work(directory)
        except Exception as error:
            traceback.print_exc()
            outcome = Outcome(proof=proof, figures=dict(figures or {}), problems=[repr(error)])
        if outcome.problems:
            print("\n".join(keep_evidence(directory, proof)), flush=True)
    outcome.figures["took_s"] = round(time.monotonic() - started_s)
    return outcome


def keep_evidence(directory: Path, name: str) -> list[str]:
    """Copy logs and history of a run to a permanent directory. Return lines that say where it is and what to do with it."""
    kept = Path(tempfile.mkdtemp(prefix=f"lograft-{name}-kept-"))
    for file in (*directory.glob("*.log"), *directory.glob("*.jsonl")):
        shutil.copy(file, kept)
    lines = [f"logs of the servers, and the history if there is one: {kept}"]
    if (kept / HISTORY_FILE).exists():
        lines.append(f"judge it again: python -m integration_tests.harness.history.check {kept / HISTORY_FILE}")
    return lines


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
    """Return whole milliseconds, rounded up."""
    return math.ceil(seconds * 1e3)


def median_and_max(name: str, seconds: Sequence[float]) -> dict[str, Figure]:
    """Return the figures `<name>_p50_ms` and `<name>_max_ms`; none without values."""
    if not seconds:
        return {}
    return {
        f"{name}_p50_ms": milliseconds(statistics.median(seconds)),
        f"{name}_max_ms": milliseconds(max(seconds)),
    }

# SPDX-License-Identifier: Apache-2.0
"""`make crash`: every crash point of every operation and scenario, the long model run, and the mutants that these proofs must find.

Prints a table with operation, points, crashes and crashes of the openings after them, the points of the scenarios, runs and seconds of
the model, and one line for each mutant with its finder. Exit status 1: a crash left an illegal log, a run broke a law, or a mutant was
not found.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

from integration_tests.crash import corrupt
from integration_tests.crash.directory_operations import DIRECTORY_OPERATIONS
from integration_tests.crash.enumeration import IllegalStateError, crash_operation
from integration_tests.crash.operations import OPERATIONS
from integration_tests.crash.repair_operations import REPAIR_OPERATIONS
from integration_tests.crash.restart_operations import RESTART_OPERATIONS
from storage.testing import model_run, mutants
from storage.testing.crash_points import SCENARIOS, IllegalLogError, crash_everywhere
from storage.testing.mutants import MUTANTS, Finder

SEEDS = 4
RECOVERY_EVERY = 10
OPERATION_SEEDS = 2
OPERATION_RECOVERY_EVERY = 7
"""The opening after every n-th crash of a named operation is crashed too."""
ALL_OPERATIONS = (*OPERATIONS, *RESTART_OPERATIONS, *REPAIR_OPERATIONS, *DIRECTORY_OPERATIONS)
RUNS = 2_000
STEPS = 200


def enumerate_points(*, seeds: int, recovery_every: int, point_every: int = 1) -> bool:
    """Crash at every point and print the points of each operation. Return True if all logs were legal."""
    points: Counter[str] = Counter()
    crashes = 0
    started_s = time.monotonic()
    for scenario, settings in SCENARIOS.items():
        try:
            enumerated = crash_everywhere(
                scenario, settings, seeds=seeds, recovery_every=recovery_every, point_every=point_every
            )
        except IllegalLogError as error:
            print(f"crash points: ILLEGAL in {scenario.__name__}: {error}")
            return False
        points += enumerated.points
        crashes += enumerated.crashes
        print(
            f"crash points: {scenario.__name__:24} {enumerated.points.total():6d} points, {enumerated.crashes} crashes"
        )
    for operation, count in sorted(points.items()):
        print(f"  {count:6d} points in {operation}")
    seconds = time.monotonic() - started_s
    print(f"crash points: {points.total()} points, {crashes} crashes, {seconds:.1f} s: all legal")
    return True


def enumerate_operations(*, seeds: int, recovery_every: int, point_every: int = 1) -> bool:
    """Crash every named operation at every point and print the table. Return True if all logs were legal."""
    totals = [0, 0, 0]
    is_legal = True
    started_s = time.monotonic()
    print(f"{'operation':30} {'points':>7} {'crashes':>8} {'openings crashed':>17}  legal")
    for operation in ALL_OPERATIONS:
        try:
            counted = crash_operation(operation, seeds=seeds, recovery_every=recovery_every, point_every=point_every)
        except IllegalStateError as error:
            print(f"{operation.name:30} {'':34}  ILLEGAL: {error}", flush=True)
            is_legal = False
            continue
        counts = (counted.points, counted.crashes, counted.second_crashes)
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        print(f"{operation.name:30} {counts[0]:7d} {counts[1]:8d} {counts[2]:17d}  all", flush=True)
    seconds = time.monotonic() - started_s
    print(
        f"{'all':30} {totals[0]:7d} {totals[1]:8d} {totals[2]:17d}  {'all' if is_legal else 'NOT ALL'}, {seconds:.1f} s"
    )
    return is_legal


def run_model(*, runs: int, steps: int) -> bool:
    """Run the model and print the result. Return True if no law was broken."""
    started_s = time.monotonic()
    failure = model_run.run_many(first_seed=0, runs=runs, steps=steps)
    verdict = "clean" if failure is None else f"FAILED\n{failure}"
    print(f"model: {runs} runs x {steps} steps, {time.monotonic() - started_s:.1f} s: {verdict}")
    return failure is None


def find_mutants(root: Path) -> bool:
    """Hunt every mutant and print its finder. Return True if all were found."""
    templates = corrupt.build_templates(root)
    missed = 0
    for mutant in MUTANTS:
        is_for_corruption = mutant.finder is Finder.CORRUPTION
        found = corrupt.find(mutant, root, templates) if is_for_corruption else mutants.find(mutant)
        missed += found is None
        said = "NOT FOUND" if found is None else found.splitlines()[0][:90]
        print(f"  {mutant.name:58} {mutant.finder.value:13} {said}")
    print(f"mutants: {len(MUTANTS) - missed} of {len(MUTANTS)} found")
    return missed == 0


def main() -> int:
    """Run everything and print. Return 1 if a part failed."""
    parser = argparse.ArgumentParser(description="crash points, model and mutants of the log engine")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="crashes of each random kind at each point")
    parser.add_argument("--recovery-every", type=int, default=RECOVERY_EVERY, help="crash the recovery of every n-th")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    logging.disable(logging.ERROR)
    legal = enumerate_operations(seeds=OPERATION_SEEDS, recovery_every=OPERATION_RECOVERY_EVERY)
    legal &= enumerate_points(seeds=arguments.seeds, recovery_every=arguments.recovery_every)
    clean = run_model(runs=arguments.runs, steps=arguments.steps)
    with tempfile.TemporaryDirectory(prefix="lograft-mutants-") as root:
        found = find_mutants(Path(root))
    return int(not (legal and clean and found))


if __name__ == "__main__":
    raise SystemExit(main())

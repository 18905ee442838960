# SPDX-License-Identifier: Apache-2.0
"""Runs seeds of the quorum simulation: `python -m metaquorum.testing.run --seeds 200`. Hunts mutants with `--mutants`.

Prints the events per seed, how often each fault and each step of the protocol occurred, and for a failing seed the last steps and the
command that repeats it. The exit code is 1 if a seed failed, or if the seeds missed a demand of `coverage`. With `--jobs` several
processes run seeds; the output stays in the order of the seeds.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TypeVar

from metaquorum.testing.controller_mutants import CONTROLLER_MUTANTS
from metaquorum.testing.coverage import Coverage, SeedResult
from metaquorum.testing.disk_mutants import DISK_MUTANTS
from metaquorum.testing.invariants import InvariantViolation
from metaquorum.testing.mutants import MUTANTS, Mutant, apply
from metaquorum.testing.sim_quorum import SimulatedQuorum

DEFAULT_EVENTS = 20_000

ALL_MUTANTS = (*MUTANTS, *DISK_MUTANTS, *CONTROLLER_MUTANTS)
"""Every known mistake."""

T = TypeVar("T")


def run_seed(seed: int, event_count: int) -> SimulatedQuorum:
    """Run one seed to its end.

    Raises:
        AssertionError: a law was broken; the message has the report.
    """
    quorum = SimulatedQuorum(seed)
    try:
        quorum.run(event_count)
    except Exception as error:
        # Real code of the shell runs in the simulation, so any exception that it lets through is a bug, too.
        failure = error if isinstance(error, AssertionError) else InvariantViolation(f"{type(error).__name__}: {error}")
        failure.add_note(quorum.describe())
        failure.add_note(
            f"repeat: python -m metaquorum.testing.run --first-seed {seed} --seeds 1 --events {event_count}"
        )
        if failure is error:
            raise
        raise failure from error
    return quorum


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="metaquorum.testing.run", description="Seeded simulation of the quorum")
    parser.add_argument("--seeds", type=int, default=200, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="first seed")
    parser.add_argument("--events", type=int, default=DEFAULT_EVENTS, help="events with faults in each seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds, or the mutants")
    parser.add_argument("--digest", action="store_true", help="print the digest of each trace")
    parser.add_argument("--mutants", action="store_true", help="make each known mistake and find it within the seeds")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.mutants:
        return hunt_mutants(seeds, options.events, jobs=options.jobs)
    return run_seeds(
        partial(_run_one, event_count=options.events),
        seeds,
        Coverage(),
        event_count=options.events,
        jobs=options.jobs,
        with_digests=options.digest,
    )


def in_order(work: Callable[[int], T], numbers: Sequence[int], jobs: int) -> Iterator[T]:
    """Yield the results of the work on each number, in order, computed by `jobs` processes; with 1 in this process."""
    if jobs == 1:
        yield from map(work, numbers)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=be_quiet) as pool:
        yield from pool.map(work, numbers)


def be_quiet() -> None:
    """Disable logging: the real files would warn of simulated faults thousands of times."""
    logging.disable(logging.CRITICAL)


def hunt_mutants(seeds: range, event_count: int, *, jobs: int = 1) -> int:
    """Apply each known mistake in turn. Return 1 if the seeds do not find one of them."""
    missed = 0
    hunt = partial(_hunt_mutant, seeds=seeds, event_count=event_count)
    for mutant, seed in zip(ALL_MUTANTS, in_order(hunt, range(len(ALL_MUTANTS)), jobs), strict=True):
        missed += seed is None
        result = "NOT FOUND" if seed is None else f"found by seed {seed}"
        sys.stdout.write(f"{mutant.name:62} {result}\n")
        sys.stdout.flush()
    return 1 if missed else 0


def _hunt_mutant(index: int, *, seeds: range, event_count: int) -> int | None:
    return find_mutant(ALL_MUTANTS[index], seeds, event_count)


def find_mutant(mutant: Mutant, seeds: Sequence[int], event_count: int) -> int | None:
    """Return the first seed that finds the mistake, or None."""
    with apply(mutant):
        for seed in seeds:
            try:
                SimulatedQuorum(seed, mutant.options(seed)).run(event_count)
            except AssertionError:
                return seed
    return None


def run_seeds(
    run_one: Callable[[int], SeedResult],
    seeds: range,
    coverage: Coverage,
    *,
    event_count: int,
    jobs: int = 1,
    with_digests: bool = False,
) -> int:
    """Run seeds and print what happened.

    Args:
        run_one: runs one seed; sent to other processes.
        seeds: the seeds.
        coverage: sums up the results.
        event_count: events with faults in each seed.
        jobs: processes that share the seeds.
        with_digests: print the digest of each trace.

    Returns:
        1 if a seed failed, or if the seeds missed a demand; else 0.
    """
    write = sys.stdout.write
    started = time.monotonic()
    for result in in_order(run_one, seeds, jobs):
        coverage.add(result)
        if result.failure is not None:
            write(f"seed {result.seed} FAILED: {result.failure}\n")
            sys.stdout.flush()
        elif with_digests:
            write(f"seed {result.seed} {result.digest}\n")
    write(coverage.report(time.monotonic() - started))
    shortfalls = coverage.shortfalls(event_count=event_count)
    for shortfall in shortfalls:
        write(f"NOT ENOUGH: {shortfall}\n")
    return 1 if coverage.failed_count or shortfalls else 0


def _run_one(seed: int, *, event_count: int) -> SeedResult:
    try:
        quorum = run_seed(seed, event_count)
    except AssertionError as error:
        notes = "\n".join(error.__notes__)
        return SeedResult(seed=seed, failure=f"{error}\n{notes}")
    scheduler = quorum.scheduler
    return SeedResult(seed=seed, event_count=scheduler.event_count, counts=quorum.counts, digest=scheduler.digest())


if __name__ == "__main__":
    be_quiet()
    sys.exit(main())

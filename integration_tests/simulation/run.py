# SPDX-License-Identifier: Apache-2.0
"""Runs seeds of the world simulator: `make sim WORLD=1 SEEDS=200`. Hunts mutants with `--mutants`.

    python -m integration_tests.simulation.run --first-seed 17 --seeds 1 --log

Prints what happened in the seeds. For a failing seed it prints the state of all machines, and the command that repeats the seed. Exit
status 1: a seed failed, a mutant was not found, or the demanded events were too rare.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Final

from integration_tests.simulation.mutants import MUTANTS
from integration_tests.simulation.world import World
from metaquorum.testing.coverage import Coverage, SeedResult
from metaquorum.testing.invariants import InvariantViolation
from metaquorum.testing.mutants import apply
from metaquorum.testing.run import in_order, run_seeds

DEFAULT_EVENTS: Final = 20_000

DEMANDED: Final = (
    "partition leader change",
    "leader moved by wish",
    "ISR shrink",
    "ISR growth",
    "truncation",
    "snapshot install",
    "voter change",
    "crash that loses unflushed data",
    "torn write",
    "all brokers stopped at once",
    "cut",
    "batch deduplicated",
    "quarantine",
    "reader at a follower",
    "power lost everywhere at the end",
    "absurd epoch forged in a request of the quorum",
    "absurd epoch forged in an answer",
    "half-open connection of gRPC",
    "coordinator loaded",
    "coordinator loaded from a snapshot",
    "coordinator moved",
    "compaction of __groups",
    "group partition revoked",
    "group partition lost",
    "ingest decided",
    "ingest record published",
    "ingest fenced by an open",
)
"""Events that must occur in at least a fifth of the seeds."""

SHOWN: Final = (
    *DEMANDED,
    "last disk in sync lost and awaited",
    "awaited disk came back",
    "another disk lost while one is awaited",
    "leadership of a full disk handed over",
    "switch of flush.policy",
    "half-open link",
    "dead connection found by a ping",
    "group record delivered",
    "group record delivered again",
    "group commit refused: STALE_MEMBER_EPOCH",
    "group member killed",
    "group member paused",
    "group application stalled",
    "coordinator killed",
    "coordinator paused",
    "ingest coordinator loaded from a snapshot",
    "transform round",
    "transform round without a commit",
    "ingest commit answered again",
    "ingest commit refused: INGEST_CONFLICT",
    "ingest offset committed",
    "ingest aborted",
    "topic of ingests deleted",
)
"""Events that are shown first, even if they did not occur."""


def run_seed(seed: int, event_count: int) -> World:
    """Run one seed to its end.

    Raises:
        InvariantViolation: a law was broken; its notes have the report.
    """
    world = World(seed)
    try:
        world.run(event_count)
    except InvariantViolation as failure:
        failure.add_note(
            f"repeat: python -m integration_tests.simulation.run --first-seed {seed} --seeds 1 --events {event_count}"
        )
        raise
    return world


def _run_one(seed: int, *, event_count: int) -> SeedResult:
    be_quiet()
    try:
        world = run_seed(seed, event_count)
    except InvariantViolation as error:
        notes = "\n".join(error.__notes__)
        return SeedResult(seed=seed, failure=f"{error}\n{notes}")
    counts = +world.counts
    return SeedResult(
        seed=seed, event_count=world.scheduler.event_count, counts=counts, digest=world.scheduler.digest()
    )


def hunt_mutants(seeds: range, event_count: int, *, jobs: int = 1, only: str = "") -> int:
    """Make each known mistake in turn, or those whose names contain `only`. Return 1 if the seeds do not find one."""
    missed = 0
    hunt = partial(_hunt, seeds=seeds, event_count=event_count)
    chosen = [index for index, mutant in enumerate(MUTANTS) if only in mutant.name]
    for index, found in zip(chosen, in_order(hunt, chosen, jobs), strict=True):
        missed += found is None
        result = "NOT FOUND" if found is None else f"found by seed {found[0]}: {found[1]}"
        sys.stdout.write(f"{MUTANTS[index].name:70} {result}\n")
        sys.stdout.flush()
    sys.stdout.write(f"mutants: {len(chosen) - missed} of {len(chosen)} found\n")
    return 1 if missed else 0


def _hunt(index: int, *, seeds: range, event_count: int) -> tuple[int, str] | None:
    be_quiet()
    mutant = MUTANTS[index]
    with apply(mutant):
        for seed in seeds:
            try:
                World(seed, mutant.storm(seed)).run(event_count)
            except InvariantViolation as error:
                return seed, str(error).splitlines()[0][:100]
    return None


def be_quiet() -> None:
    """Silence the logs of servers that are killed a thousand times, and the complaints of their remains at garbage collection."""
    # Only the world reads the errors, through `logged_faults`.
    logging.disable(logging.WARNING)
    logging.getLogger().addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description="simulation of whole clusters in virtual time")
    parser.add_argument("--seeds", type=int, default=200, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="first seed")
    parser.add_argument("--events", type=int, default=DEFAULT_EVENTS, help="events with faults in each seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the seeds, or the mutants")
    parser.add_argument("--digest", action="store_true", help="print the digest of each trace")
    parser.add_argument(
        "--log", action="store_true", help="print what the servers of the first seed log, and nothing else"
    )
    parser.add_argument("--only", default="", help="with --mutants: those with this text in their names")
    parser.add_argument("--mutants", action="store_true", help="make each known mistake and find it within the seeds")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.log:
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
        run_seed(options.first_seed, options.events)
        return 0
    if options.mutants:
        return hunt_mutants(seeds, options.events, jobs=options.jobs, only=options.only)
    return run_seeds(
        partial(_run_one, event_count=options.events),
        seeds,
        Coverage(demanded=DEMANDED, shown=SHOWN),
        event_count=options.events,
        jobs=options.jobs,
        with_digests=options.digest,
    )


if __name__ == "__main__":
    sys.exit(main())

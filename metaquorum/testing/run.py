# SPDX-License-Identifier: Apache-2.0
"""Runs seeds of the quorum simulation: `python -m metaquorum.testing.run --seeds 200`; hunts mutants with `--mutants`.

Prints events per seed, how often each fault and each turn of the protocol occurred, and for a failing seed the last
steps and the command that repeats it. Exit code 1 when a seed failed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence

from metaquorum.testing.mutants import MUTANTS, Mutant, apply
from metaquorum.testing.sim_quorum import SimulatedQuorum

DEFAULT_EVENTS = 20_000


def run_seed(seed: int, event_count: int) -> SimulatedQuorum:
    """Run one seed to its end.

    Raises:
        AssertionError: a law was broken; the message has the report.
    """
    quorum = SimulatedQuorum(seed)
    try:
        quorum.run(event_count)
    except AssertionError as error:
        error.add_note(quorum.describe())
        error.add_note(f"repeat: python -m metaquorum.testing.run --first-seed {seed} --seeds 1 --events {event_count}")
        raise
    return quorum


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="metaquorum.testing.run", description="Seeded simulation of the quorum")
    parser.add_argument("--seeds", type=int, default=200, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0, help="first seed")
    parser.add_argument("--events", type=int, default=DEFAULT_EVENTS, help="events with faults in each seed")
    parser.add_argument("--digest", action="store_true", help="print the digest of each trace")
    parser.add_argument("--mutants", action="store_true", help="make each known mistake and find it within the seeds")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    if options.mutants:
        return hunt_mutants(seeds, options.events)
    return run_seeds(seeds, options.events, with_digests=options.digest)


def hunt_mutants(seeds: Sequence[int], event_count: int) -> int:
    """Make each known mistake in turn; returns 1 when a seed range does not find one of them."""
    missed = 0
    for mutant in MUTANTS:
        seed = find_mutant(mutant, seeds, event_count)
        missed += seed is None
        result = "NOT FOUND" if seed is None else f"found by seed {seed}"
        sys.stdout.write(f"{mutant.name:55} {result}\n")
        sys.stdout.flush()
    return 1 if missed else 0


def find_mutant(mutant: Mutant, seeds: Sequence[int], event_count: int) -> int | None:
    """Return the first seed that finds the mistake, or None."""
    with apply(mutant):
        for seed in seeds:
            try:
                SimulatedQuorum(seed, mutant.storm(seed)).run(event_count)
            except AssertionError:
                return seed
    return None


def run_seeds(seeds: Sequence[int], event_count: int, *, with_digests: bool) -> int:
    """Run seeds and print what happened; returns 1 when one failed."""
    write = sys.stdout.write
    events: list[int] = []
    total: Counter[str] = Counter()
    seeds_with: Counter[str] = Counter()
    failures = 0
    started = time.monotonic()
    for seed in seeds:
        try:
            quorum = run_seed(seed, event_count)
        except AssertionError as error:
            failures += 1
            notes = "\n".join(error.__notes__)
            write(f"seed {seed} FAILED: {error}\n{notes}\n")
            continue
        events.append(quorum.scheduler.event_count)
        total.update(quorum.counts)
        seeds_with.update(quorum.counts.keys())
        if with_digests:
            write(f"seed {seed} {quorum.scheduler.digest()}\n")
    seconds = time.monotonic() - started
    if events:
        write(f"{len(events)} seeds clean, {failures} failed; events per seed: median {statistics.median(events):.0f}")
        write(f", least {min(events)}; {sum(events) / seconds:.0f} events/s\n")
        for name in sorted(total):
            share = 100 * seeds_with[name] / len(events)
            write(f"  {name:34} {total[name]:9}   in {share:5.1f} % of the seeds\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The long run of the model test: `python -m storage.testing.model_run --runs 2000 --steps 200`.

The seed names each run. A failing run prints its last operations and the command that replays it.
`storage/tests/testing/test_log_model.py` is the short form, with shrinking.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from storage.testing.log_faults import EVERYTHING
from storage.testing.log_world import Operation, World

RUNS = 2_000
STEPS = 200
FOCUS = 6
"""Factor by which operations in the focus of a run are drawn more often."""
STEPS_SHOWN = 12
"""Number of operations printed before a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A run that broke a law.

    Attributes:
        seed: seed of the run.
        step: index of the failed operation, from 0; -1: creating the log failed.
        error: the error.
        last_operations: the operations up to it.
    """

    seed: int
    step: int
    error: BaseException
    last_operations: tuple[Operation, ...]

    def __str__(self) -> str:
        shown = "\n".join(f"  {operation}" for operation in self.last_operations)
        return f"seed {self.seed}, step {self.step}: {type(self.error).__name__}: {self.error}\n{shown}"


def run_one(
    seed: int, steps: int, *, focus: Collection[type[Operation]] = (), compact: bool | None = None
) -> Failure | None:
    """Perform drawn operations on a new log; return the failure, or None.

    Args:
        seed: seed of the run.
        steps: number of operations.
        focus: operations that are drawn `FOCUS` times as often.
        compact: True or False: the log is compacted or not; None: drawn at random.
    """
    rng = random.Random(seed)
    last_operations: deque[Operation] = deque(maxlen=STEPS_SHOWN)
    step = -1
    try:
        world = World.drawn(rng, compact=compact)
        while step + 1 < steps:
            step += 1
            possible = [each for each in EVERYTHING if each.is_possible(world)]
            (kind,) = rng.choices(
                possible, weights=[each.weight * (FOCUS if each in focus else 1) for each in possible]
            )
            world.now_ms += rng.randrange(50)
            operation = kind.draw(world, rng)
            last_operations.append(operation)
            world.perform(operation, rng)
    except Exception as error:
        return Failure(seed=seed, step=step, error=error, last_operations=tuple(last_operations))
    return None


def run_many(
    *,
    first_seed: int,
    runs: int,
    steps: int,
    focus: Collection[type[Operation]] = (),
    compact: bool | None = None,
) -> Failure | None:
    """Run seeds one after the other until one fails; see `run_one`."""
    for seed in range(first_seed, first_seed + runs):
        failure = run_one(seed, steps, focus=focus, compact=compact)
        if failure is not None:
            return failure
    return None


def main() -> int:
    """Run and print; return 1 if the log broke a law."""
    parser = argparse.ArgumentParser(description="random operations and crashes on a log beside its model")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0, help="first seed; with --runs 1 it replays one run")
    arguments = parser.parse_args()
    started_s = time.monotonic()
    failure = run_many(first_seed=arguments.seed, runs=arguments.runs, steps=arguments.steps)
    seconds = time.monotonic() - started_s
    verdict = "clean" if failure is None else f"FAILED\n{failure}"
    sys.stdout.write(f"model: {arguments.runs} runs x {arguments.steps} steps, {seconds:.1f} s: {verdict}\n")
    if failure is not None:
        replay = f"--runs 1 --steps {arguments.steps} --seed {failure.seed}"
        sys.stdout.write(f"replay: python -m storage.testing.model_run {replay}\n")
    return int(failure is not None)


if __name__ == "__main__":
    raise SystemExit(main())

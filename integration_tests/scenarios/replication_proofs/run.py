# SPDX-License-Identifier: Apache-2.0
"""`make replication-proofs`: every proof of the replication of partitions with real processes; a verdict and one JSON line for each.

    python -m integration_tests.scenarios.replication_proofs.run --rounds 100 --only kill-leader

Exit status: 0 all passed, 1 one failed, 2 none failed and one could not run here.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable

from integration_tests.harness.outcome import Outcome, report, run_in_directory
from integration_tests.harness.scene import Shape
from integration_tests.scenarios.replication_proofs import (
    full_disk,
    isolate_leader,
    kill_all,
    kill_leader,
    lost_last_disk,
    pause_follower,
    pause_leader,
    rolling_restart,
    wiped_directory,
)

DEFAULT_ROUNDS = 100

PROOFS: dict[str, tuple[Callable[..., Outcome], int]] = {
    "kill-leader": (kill_leader.run, 1),
    "pause-leader": (pause_leader.run, 10),
    "pause-follower": (pause_follower.run, 10),
    "isolate-leader": (isolate_leader.run, 5),
    "kill-all": (kill_all.run, 10),
    "rolling-restart": (rolling_restart.run, 20),
    "wiped-directory": (wiped_directory.run, 20),
    "full-disk": (full_disk.run, 5),
    "lost-last-disk": (lost_last_disk.run, 100),
}
"""Each proof, and the divisor of the rounds asked for: rounds of some proofs take longer."""


def run_one(name: str, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run a proof in its own directory. An error that ends it is a failure of the proof."""
    prove, share = PROOFS[name]
    own_rounds = max(1, rounds // share)
    print(f"{name}, {shape.replicas} replicas, {own_rounds} rounds, seed {seed}", flush=True)
    return run_in_directory(
        name,
        lambda directory: prove(directory, shape=shape, rounds=own_rounds, seed=seed),
        figures={"rounds": own_rounds, "replicas": shape.replicas, "seed": seed},
    )


def main() -> int:
    """Run the command line and print the outcomes."""
    default = Shape()
    parser = argparse.ArgumentParser(description="proofs of the replication of partitions with real processes")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="kills; the other proofs take a share of it")
    parser.add_argument("--only", nargs="+", choices=list(PROOFS), default=list(PROOFS), help="proofs to run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=default.replicas, help="of each partition")
    parser.add_argument("--partitions", type=int, default=default.partitions)
    parser.add_argument(
        "--rate", type=float, default=default.rate_per_s, help="values a second, all partitions together"
    )
    arguments = parser.parse_args()
    shape = dataclasses.replace(
        default, replicas=arguments.replicas, partitions=arguments.partitions, rate_per_s=arguments.rate
    )
    outcomes: list[Outcome] = []
    for name in arguments.only:
        outcome = run_one(name, shape=shape, rounds=arguments.rounds, seed=arguments.seed)
        outcome.print()
        outcomes.append(outcome)
    return report(outcomes)


if __name__ == "__main__":
    raise SystemExit(main())

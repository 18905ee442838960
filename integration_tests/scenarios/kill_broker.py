# SPDX-License-Identifier: Apache-2.0
"""`make kill-broker`: kill -9 of the broker under a producer with acks=all.

One voter, one broker, one idempotent producer that lives through all rounds, and a consumer that reads along. The history must pass:
every acknowledged record is there once, at the offset of its receipt, with the body that was sent, in the order of sending.

kill -9 keeps the page cache: this shows recovery, deduplication and resends, not power loss (the simulated disk shows that).
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from integration_tests.harness.cluster import BROKER_ID_FIRST, START_TIMEOUT_S
from integration_tests.harness.outcome import Outcome, median_and_max, run_in_directory
from integration_tests.harness.scene import Scene, Shape, scene_under_load
from integration_tests.harness.wait import wait_for

SHAPE = Shape(
    voters=1,
    brokers=1,
    partitions=3,
    replicas=1,
    senders=1,
    pollers=1,
    rate_per_s=4_000,
    value_bytes=213,
    configs={"segment.bytes": str(1024 * 1024)},
)
RECORDS_BEFORE_KILL = 2_000
PROGRESS_TIMEOUT_S = 60.0


def wait_acknowledged(scene: Scene, count: int, *, timeout_s: float, what: str) -> None:
    """Wait until `count` records are acknowledged. Raises the error that ended a client, if any."""

    def are_acknowledged() -> bool:
        scene.load.check_alive()
        return scene.load.acknowledged_count >= count

    wait_for(are_acknowledged, timeout_s=timeout_s, what=what)


def prove(directory: Path, *, rounds: int, seed: int) -> Outcome:
    """Kill and restart the broker `rounds` times under load, and judge the history."""
    outcome = Outcome(proof="kill-broker", figures={"rounds": rounds, "seed": seed})
    rng = random.Random(seed)
    recoveries_s: list[float] = []
    with scene_under_load(directory, SHAPE, seed=seed) as scene:
        broker, load = scene.cluster.brokers[BROKER_ID_FIRST], scene.load
        for number in range(rounds):
            goal = load.acknowledged_count + RECORDS_BEFORE_KILL + rng.randrange(RECORDS_BEFORE_KILL)
            wait_acknowledged(scene, goal, timeout_s=PROGRESS_TIMEOUT_S, what="receipts")
            load.history.note_fault(f"kill {number + 1}")
            broker.kill()
            killed_s = time.monotonic()
            before = load.acknowledged_count
            broker.start()
            wait_acknowledged(scene, before + 1, timeout_s=START_TIMEOUT_S, what="receipts after a restart")
            recoveries_s.append(time.monotonic() - killed_s)
        scene.judge(outcome)
    outcome.figures |= median_and_max("kill_to_receipt", recoveries_s)
    return outcome


def main() -> int:
    """Print the summary. Return 1 if a record is lost, moved or repeated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outcome = run_in_directory(
        "kill-broker", lambda directory: prove(directory, rounds=arguments.rounds, seed=arguments.seed)
    )
    outcome.print()
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

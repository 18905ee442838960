# SPDX-License-Identifier: Apache-2.0
"""Proof: kill -9 of all brokers at once loses nothing that was acknowledged.

The page cache outlives the processes, so this shows recovery, elections without a living leader, and resends; not power loss.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import Scene, Shape
from integration_tests.scenarios.replication_proofs.rounds import Round, prove


def run_round(scene: Scene, rng: random.Random, number: int) -> Round:
    """Kill all brokers and start them in a random order. Every other round kills the voters too."""
    processes = list(scene.cluster.brokers.values())
    if number % 2:
        processes += scene.cluster.voters.values()
    started_s = time.monotonic()
    for process in processes:
        process.kill()
    rng.shuffle(processes)
    for process in processes:
        process.start()
    scene.wait_in_sync()
    scene.load.wait_acknowledged(scene.partitions, time.monotonic())
    ended_s = time.monotonic()
    return Round(
        text=f"{len(processes)} processes killed",
        started_s=started_s,
        ended_s=ended_s,
        times_s={"unavailable": scene.load.longest_gaps_s(scene.partitions, started_s, ended_s)},
    )


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run all rounds and judge them. The time without writes is stated only."""
    return prove("kill-all", directory, run_round, shape=shape, rounds=rounds, seed=seed, limits={})

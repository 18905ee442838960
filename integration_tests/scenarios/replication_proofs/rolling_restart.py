# SPDX-License-Identifier: Apache-2.0
"""Proof: all brokers are restarted one after the other, and producers hardly notice: no send fails, no value waits over half a second.

A broker gets SIGTERM and shuts down cleanly (other brokers lead first). The same command starts it again. When all replicas are in
sync, the next broker follows. The judgement is on how long each value waits from `send()` to its receipt. An equally long period
without a fault follows in each round, and its waits are stated for comparison.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from integration_tests.harness.load.times import Span
from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import Scene, Shape
from integration_tests.scenarios.replication_proofs.rounds import Limits, Round, prove

LIMITS = {"restart_wait": Limits(max_s=0.5)}


def run_round(scene: Scene, rng: random.Random, number: int) -> Round:
    """Restart every broker once."""
    started_s = time.monotonic()
    problems: list[str] = []
    gaps_s: list[float] = []
    restarts: list[Span] = []
    for broker_id, process in scene.cluster.brokers.items():
        scene.wait_in_sync()
        stopped_s = time.monotonic()
        scene.hurt.add(broker_id)
        status = process.stop()
        if status != 0:
            problems.append(f"broker {broker_id} ended with {status}: {process.log_tail()}")
        process.start()
        scene.hurt.discard(broker_id)
        scene.wait_in_sync()
        scene.load.wait_acknowledged(scene.partitions, time.monotonic())
        restarts.append((stopped_s, time.monotonic()))
        gaps_s += scene.load.longest_gaps_s(scene.partitions, *restarts[-1])
    calm_s = time.monotonic()
    scene.load.hold(calm_s + sum(end_s - start_s for start_s, end_s in restarts))
    return Round(
        text="all restarted",
        started_s=started_s,
        ended_s=time.monotonic(),
        times_s={"unavailable": gaps_s},
        spans={"restart": restarts, "calm": [(calm_s, time.monotonic())]},
        problems=problems,
    )


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run all rounds and judge them."""
    limits = LIMITS if shape.is_redundant else {}
    return prove("rolling-restart", directory, run_round, shape=shape, rounds=rounds, seed=seed, limits=limits)

# SPDX-License-Identifier: Apache-2.0
"""Proof: repeated kill -9 of the leader of a random partition.

A round kills the broker and waits until all its partitions have other leaders and acknowledge again. Then it starts the broker and
waits until all replicas are in sync. Unavailability covers all of that, including the return.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import Scene, Shape
from integration_tests.scenarios.replication_proofs.rounds import Limits, Round, prove

LIMITS = {"unavailable": Limits(median_s=1.0, max_s=3.0)}


def run_round(scene: Scene, rng: random.Random, number: int) -> Round:
    """Kill one leader and bring it back."""
    leaders = scene.leaders()
    broker_id = leaders[rng.choice(scene.partitions)]
    led = scene.led_by(leaders, broker_id)
    process = scene.cluster.brokers[broker_id]
    started_s = time.monotonic()
    process.kill()
    scene.hurt.add(broker_id)
    late = scene.served_despite(f"without broker {broker_id}") if scene.shape.is_redundant else []
    process.start()
    scene.hurt.discard(broker_id)
    scene.wait_in_sync()
    scene.load.wait_acknowledged(scene.partitions, time.monotonic())
    ended_s = time.monotonic()
    others = [partition for partition in scene.partitions if partition not in led]
    return Round(
        text=f"broker {broker_id} killed, leader of {len(led)}",
        started_s=started_s,
        ended_s=ended_s,
        times_s={
            "unavailable": scene.load.longest_gaps_s(led, started_s, ended_s),
            "others": scene.load.longest_gaps_s(others, started_s, ended_s),
        },
        late=late,
    )


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run all rounds and judge them."""
    return prove("kill-leader", directory, run_round, shape=shape, rounds=rounds, seed=seed, limits=LIMITS)

# SPDX-License-Identifier: Apache-2.0
"""Proof: a leader that stops (SIGSTOP) is replaced, and when it wakes (SIGCONT) its outdated beliefs do no harm.

A round stops the leader of a random partition. It waits until the broker leads nothing and is in no ISR, and until all partitions
acknowledge again. Then the broker wakes and must get back in sync.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import Scene, Shape
from integration_tests.scenarios.replication_proofs.rounds import Limits, Round, prove

LIMITS = {"unavailable": Limits(max_s=6.0)}


def run_round(scene: Scene, rng: random.Random, number: int) -> Round:
    """Stop one leader and wake it."""
    leaders = scene.leaders()
    broker_id = leaders[rng.choice(scene.partitions)]
    led = scene.led_by(leaders, broker_id)
    process = scene.cluster.brokers[broker_id]
    started_s = time.monotonic()
    process.pause()
    scene.hurt.add(broker_id)
    late: list[str] = []
    try:
        if scene.shape.is_redundant:
            scene.wait_removed(broker_id)
            late = scene.served_despite(f"broker {broker_id} stopped")
        served_s = time.monotonic()
    finally:
        process.resume()
        scene.hurt.discard(broker_id)
    scene.wait_in_sync()
    scene.load.wait_acknowledged(scene.partitions, time.monotonic())
    ended_s = time.monotonic()
    return Round(
        text=f"broker {broker_id} stopped, leader of {len(led)}",
        started_s=started_s,
        ended_s=ended_s,
        times_s={
            "unavailable": scene.load.longest_gaps_s(led, started_s, served_s),
            "unavailable_after_waking": scene.load.longest_gaps_s(scene.partitions, served_s, ended_s),
        },
        late=late,
    )


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run all rounds and judge them."""
    return prove("pause-leader", directory, run_round, shape=shape, rounds=rounds, seed=seed, limits=LIMITS)

# SPDX-License-Identifier: Apache-2.0
"""Proof: a follower that stops (SIGSTOP) delays acknowledgements once, until it has left the ISR, and never again.

A round stops a broker and watches the partitions that it follows: until it has left their ISR, for a while after that, and while it
wakes (SIGCONT), catches up and joins again.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import Scene, Shape
from integration_tests.scenarios.replication_proofs.rounds import Limits, Round, prove

LIMITS = {"stalled": Limits(max_s=6.0)}
STALL_S_MIN = 2.5
"""Seconds without an acknowledgement that count as a stall: half the lag time."""
HOLD_S = 10.0
"""Seconds for which the follower stays stopped after it has left: twice the lag time."""


def run_round(scene: Scene, rng: random.Random, number: int) -> Round:
    """Stop one follower and wake it."""
    leaders = scene.leaders()
    broker_id = rng.choice(sorted(scene.cluster.brokers))
    led = scene.led_by(leaders, broker_id)
    followed = [partition for partition in scene.partitions if partition not in led]
    process = scene.cluster.brokers[broker_id]
    started_s = time.monotonic()
    process.pause()
    scene.hurt.add(broker_id)
    try:
        scene.wait_removed(broker_id)
        late = scene.served_despite(f"broker {broker_id} stopped", followed)
        scene.load.hold(time.monotonic() + HOLD_S)
    finally:
        process.resume()
        scene.hurt.discard(broker_id)
    scene.wait_in_sync()
    scene.load.wait_acknowledged(scene.partitions, time.monotonic())
    ended_s = time.monotonic()
    for partition in followed:
        gaps_s = scene.load.acknowledgements.gaps_s(partition, started_s, ended_s)
        stalls_s = [round(gap_s, 2) for gap_s in gaps_s if gap_s >= STALL_S_MIN]
        if len(stalls_s) > 1:
            late.append(f"partition {partition} stalled {len(stalls_s)} times: {stalls_s} s")
    return Round(
        text=f"broker {broker_id} stopped, follower of {len(followed)}",
        started_s=started_s,
        ended_s=ended_s,
        times_s={"stalled": scene.load.longest_gaps_s(followed, started_s, ended_s)},
        late=late,
    )


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run all rounds and judge them."""
    if not shape.is_redundant:
        return Outcome(proof="pause-follower", figures={"rounds": rounds}, not_run="one replica has no follower")
    return prove("pause-follower", directory, run_round, shape=shape, rounds=rounds, seed=seed, limits=LIMITS)

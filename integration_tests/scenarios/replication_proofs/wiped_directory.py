# SPDX-License-Identifier: Apache-2.0
"""Proof: a broker that lost its data directory returns under the same id, copies everything, and is needed at once.

It is killed with -9, its directory is removed, and the same command starts it again. When it is in every ISR, another broker is killed,
so that nothing is acknowledged without the copies. At the end the files of all replicas are compared.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import Scene, Shape
from integration_tests.scenarios.replication_proofs.rounds import Limits, Round, prove

LIMITS = {"unavailable": Limits(max_s=3.0)}


def run_round(scene: Scene, rng: random.Random, number: int) -> Round:
    """Wipe one broker, let it copy, and kill another one."""
    leaders = scene.leaders()
    broker_id, other_id = rng.sample(sorted(scene.cluster.brokers), 2)
    led = scene.led_by(leaders, broker_id)
    process, other = scene.cluster.brokers[broker_id], scene.cluster.brokers[other_id]
    started_s = time.monotonic()
    process.kill()
    scene.hurt.add(broker_id)
    shutil.rmtree(scene.cluster.data_directory(process))
    late = scene.served_despite(f"without broker {broker_id}")
    served_s = time.monotonic()
    process.start()
    scene.hurt.discard(broker_id)
    scene.wait_in_sync()
    copied_s = time.monotonic()
    other.kill()
    scene.hurt.add(other_id)
    late += scene.served_despite(f"without broker {other_id}, and {broker_id} wiped before")
    other.start()
    scene.hurt.discard(other_id)
    scene.wait_in_sync()
    return Round(
        text=f"broker {broker_id} wiped, leader of {len(led)}, then {other_id} killed",
        started_s=started_s,
        ended_s=time.monotonic(),
        times_s={
            "unavailable": scene.load.longest_gaps_s(led, started_s, served_s),
            "copied": [copied_s - served_s],
        },
        late=late,
    )


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run all rounds and judge them."""
    if shape.replicas < 3:
        return Outcome(proof="wiped-directory", figures={"rounds": rounds}, not_run="it needs three replicas")
    return prove("wiped-directory", directory, run_round, shape=shape, rounds=rounds, seed=seed, limits=LIMITS)

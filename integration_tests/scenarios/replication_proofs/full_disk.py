# SPDX-License-Identifier: Apache-2.0
"""Proof: a leader whose disk becomes full hands its partitions over at once, and leads them again when there is space.

The disk of one broker is a small tmpfs. A file leaves less free space on it than the soft limit while clients write. When the broker
leads nothing any more, the file is removed.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from lograft import ConfigResource

from integration_tests.harness.cluster import BROKER_ID_FIRST, broker_name
from integration_tests.harness.faults.disks import empty_disk, fill_disk, small_disk
from integration_tests.harness.outcome import Outcome
from integration_tests.harness.scene import HEAL_TIMEOUT_S, Scene, Shape
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.replication_proofs.rounds import Limits, Round, prove

MIN_FREE_BYTES = 32 * 1024 * 1024
"""Soft limit of the brokers."""
DISK_BYTES = 1024 * 1024 * 1024
"""Bytes of the small disk: the limit, and what a run of many rounds writes."""
HELD_S = 5.0
"""Seconds for which the disk stays full after the hand-over. Its broker follows during that time."""
REBALANCE_S = 1
"""Seconds between two checks of the controller for leaders that are not preferred."""
LIMITS = {"unavailable": Limits(median_s=1.0, max_s=3.0)}


def run_round(scene: Scene, rng: random.Random, number: int) -> Round:
    """Fill the disk of the first broker, measure how long its partitions stop, free it, and wait until it leads them again."""
    del rng
    broker_id = BROKER_ID_FIRST
    if number == 0:
        look = {"leader.imbalance.check.interval.seconds": str(REBALANCE_S)}
        scene.admin.alter_configs({ConfigResource.cluster(): look})
    scene.wait_for_state(
        lambda partitions: any(each.leader_id == broker_id for each in partitions), f"broker {broker_id} to lead"
    )
    led = scene.led_by(scene.leaders(), broker_id)
    path = scene.cluster.data_directory(scene.cluster.brokers[broker_id])
    started_s = time.monotonic()
    fill_disk(path, keep_bytes=MIN_FREE_BYTES // 2)
    scene.wait_for_state(
        lambda partitions: all(each.leader_id not in (None, broker_id) for each in partitions),
        f"broker {broker_id} to hand over",
    )
    late = scene.served_despite("with a full disk")
    served_s = time.monotonic()
    scene.load.hold(served_s + HELD_S)
    returned = scene.led_by(scene.leaders(), broker_id)
    problems = [f"broker {broker_id} leads {returned} again although its disk is full"] if returned else []
    empty_disk(path)
    freed_s = time.monotonic()

    def leads_again() -> bool:
        leaders = scene.leaders()
        return all(leaders[partition] == broker_id for partition in led)

    wait_for(leads_again, timeout_s=HEAL_TIMEOUT_S, what=f"broker {broker_id} to lead again")
    back_s = time.monotonic()
    return Round(
        text=f"disk of broker {broker_id} full, leader of {len(led)}",
        started_s=started_s,
        ended_s=back_s,
        times_s={
            "unavailable": scene.load.longest_gaps_s(led, started_s, served_s),
            "returned": [back_s - freed_s],
        },
        problems=problems,
        late=late,
    )


def run(directory: Path, *, shape: Shape, rounds: int, seed: int) -> Outcome:
    """Run all rounds and judge them."""
    if not shape.is_redundant:
        return Outcome(proof="full-disk", figures={"rounds": rounds}, not_run="it needs several replicas")
    with small_disk(directory / broker_name(BROKER_ID_FIRST), size_bytes=DISK_BYTES) as is_mounted:
        if not is_mounted:
            return Outcome(proof="full-disk", figures={"rounds": rounds}, not_run="mounting a tmpfs is not permitted")
        return prove(
            "full-disk",
            directory,
            run_round,
            shape=shape,
            rounds=rounds,
            seed=seed,
            limits=LIMITS,
            broker_arguments=("--min-free-bytes", str(MIN_FREE_BYTES)),
        )

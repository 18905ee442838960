# SPDX-License-Identifier: Apache-2.0
"""Proof: repeated kill -9 of the quorum leader under a paced load.

Each round waits until all voters have everything, kills the leader, and waits for another leader and for an acknowledged operation.
Then it starts the killed voter again and waits until it has everything. *Unavailability* of a round is the longest time without an
acknowledged operation, from just before the kill to the end of the round: the election, and the cost of the return. A round with a
process pause (see `load`) is not measured but repeated, and counted as disturbed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from integration_tests.harness.cluster import Cluster
from integration_tests.harness.outcome import Outcome, median_and_max
from integration_tests.scenarios.quorum_proofs.scene import Scene, scene_under_load

UNAVAILABLE_S_MAX = 3.0
RATE_PER_S = 200
DISTURBED_ROUNDS_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One kill."""

    killed: int
    elected: int
    new_leader_s: float
    unavailable_s: float
    round_s: float
    is_disturbed: bool


def run_round(scene: Scene) -> Round:
    """Kill the leader, wait for the next one and for an acknowledged operation, and bring the old one back."""
    scene.wait_caught_up()
    leader_id, epoch = scene.leader()
    killed_s = time.monotonic()
    scene.cluster.voters[leader_id].kill()
    elected, _ = scene.leader(above_epoch=epoch)
    elected_s = time.monotonic()
    scene.wait_acknowledged(time.monotonic())
    scene.cluster.voters[leader_id].start()
    scene.wait_caught_up(leader_id)
    scene.wait_acknowledged(time.monotonic())
    ended_s = time.monotonic()
    return Round(
        killed=leader_id,
        elected=elected,
        new_leader_s=elected_s - killed_s,
        unavailable_s=scene.load.longest_gap_s(killed_s, ended_s),
        round_s=ended_s - killed_s,
        is_disturbed=scene.load.stood_still(killed_s, ended_s),
    )


def prove(
    directory: Path,
    *,
    voters: int,
    rounds: int,
    rate_per_s: int = RATE_PER_S,
    unavailable_s_max: float = UNAVAILABLE_S_MAX,
) -> Outcome:
    """Run all rounds and judge them."""
    outcome = Outcome(proof="kill-leader", figures={"voters": voters, "rounds": rounds, "asked_per_s": rate_per_s})
    with scene_under_load(Cluster(directory, voter_count=voters, broker_count=1), rate_per_s=rate_per_s) as scene:
        done: list[Round] = []
        disturbed = 0
        while len(done) < rounds and disturbed <= DISTURBED_ROUNDS_MAX:
            this = run_round(scene)
            if this.is_disturbed:
                disturbed += 1
            else:
                done.append(this)
            print(
                f"  round {len(done):3d}: voter {this.killed} killed, {this.elected} leads, unavailable for "
                f"{this.unavailable_s * 1e3:5.0f} ms, round {this.round_s:4.1f} s, "
                f"{scene.load.ledger.acknowledged_count} acknowledged{', DISTURBED' if this.is_disturbed else ''}",
                flush=True,
            )
        scene.finish(outcome)
    outcome.figures["disturbed_rounds"] = disturbed
    if len(done) < rounds:
        outcome.problems.append(f"the machine stood still in {disturbed} rounds: only {len(done)} were measured")
    outcome.figures |= median_and_max("unavailable", [each.unavailable_s for each in done])
    outcome.problems += [
        f"round {number}: unavailable for {each.unavailable_s:.2f} s, over {unavailable_s_max} s"
        for number, each in enumerate(done, 1)
        if each.unavailable_s > unavailable_s_max
    ]
    return outcome

# SPDX-License-Identifier: Apache-2.0
"""Proof: a voter loses its disk under load, and one command replaces it; leaders and followers alternate.

The voter is killed with -9, its directory is removed, and the same command starts it again. It joins as an observer with a new
directory id. `lograft quorum replace-voter ID` is the one command. Then another voter is stopped, so that (with three voters) nothing
is committed without the replacement, and is started again.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from integration_tests.harness.cli import run_lograft
from integration_tests.harness.cluster import Cluster
from integration_tests.harness.outcome import Outcome, median_and_max
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.quorum_proofs.scene import (
    CHECK_INTERVAL_S,
    RECOVERY_TIMEOUT_S,
    Scene,
    scene_under_load,
)

RATE_PER_S = 100
UNAVAILABLE_S_MAX = 3.0
CAUGHT_UP_AGE_MS_MAX = 2_000


def wait_observed(scene: Scene, voter_id: int, old_directory: bytes | None) -> None:
    """Wait until a replica of this node with another directory id follows and has caught up."""

    def observed() -> bool:
        quorum = scene.quorum()
        return quorum is not None and any(
            each.node_id == voter_id
            and each.directory_id != old_directory
            and each.last_caught_up_age_ms is not None
            and each.last_caught_up_age_ms <= CAUGHT_UP_AGE_MS_MAX
            for each in quorum.observers
        )

    what = f"the new replica of node {voter_id} to follow"
    wait_for(observed, timeout_s=RECOVERY_TIMEOUT_S, what=what, interval_s=CHECK_INTERVAL_S)


def replace(scene: Scene, voter_id: int) -> str:
    """Run the one command. Return its problem, or an empty text."""
    done = run_lograft("quorum", "replace-voter", str(voter_id), "--bootstrap", scene.cluster.bootstrap)
    return "" if done.returncode == 0 else f"replace-voter {voter_id} ended with {done.returncode}: {done.stderr}"


def wipe_and_replace(scene: Scene, voter_id: int, outcome: Outcome) -> tuple[float, bool]:
    """Remove the disk of a voter, replace the voter, and make the quorum need it.

    Returns:
        The unavailability in seconds, and whether a process pause touched it.
    """
    scene.wait_caught_up()
    quorum = scene.admin.describe_quorum()
    before = {each.node_id: each.directory_id for each in quorum.voters}
    process = scene.cluster.voters[voter_id]
    killed_s = time.monotonic()
    process.kill()
    shutil.rmtree(scene.cluster.data_directory(process))
    process.start()
    scene.leader(above_epoch=quorum.quorum_epoch if quorum.leader_id == voter_id else 0)
    wait_observed(scene, voter_id, before[voter_id])
    problem = replace(scene, voter_id)
    if problem:
        outcome.problems.append(problem)
        return 0.0, False
    after = {each.node_id: each.directory_id for each in scene.admin.describe_quorum().voters}
    kept = {node: directory for node, directory in before.items() if node != voter_id}
    if after.keys() != before.keys() or after[voter_id] == before[voter_id]:
        outcome.problems.append(f"voters {before} became {after}")
    if any(after.get(node) != directory for node, directory in kept.items()):
        outcome.problems.append(f"replacing voter {voter_id} changed another one: {before} became {after}")
    scene.wait_caught_up()
    scene.wait_acknowledged(time.monotonic())
    ended_s = time.monotonic()
    unavailable_s = scene.load.longest_gap_s(killed_s, ended_s)
    is_disturbed = scene.load.stood_still(killed_s, ended_s)
    other = scene.cluster.voters[next(node for node in before if node != voter_id)]
    other.kill()
    scene.leader()
    scene.wait_acknowledged(time.monotonic())
    other.start()
    scene.wait_caught_up()
    return unavailable_s, is_disturbed


def prove(
    directory: Path,
    *,
    voters: int,
    rounds: int,
    rate_per_s: int = RATE_PER_S,
    unavailable_s_max: float = UNAVAILABLE_S_MAX,
) -> Outcome:
    """Replace a leader, then a follower, and so on: `rounds` replacements in all."""
    outcome = Outcome(proof="wiped-voter", figures={"voters": voters, "rounds": rounds, "asked_per_s": rate_per_s})
    with scene_under_load(Cluster(directory, voter_count=voters, broker_count=1), rate_per_s=rate_per_s) as scene:
        times: list[float] = []
        for number in range(rounds):
            leader_id, _ = scene.leader()
            follower_ids = [each for each in scene.cluster.voters if each != leader_id]
            voter_id = leader_id if number % 2 == 0 else follower_ids[number // 2 % len(follower_ids)]
            unavailable_s, is_disturbed = wipe_and_replace(scene, voter_id, outcome)
            if not is_disturbed:
                times.append(unavailable_s)
            role = "leader" if voter_id == leader_id else "follower"
            print(
                f"  round {number + 1:3d}: {role} {voter_id} wiped and replaced, longest time without an acknowledgement "
                f"{unavailable_s * 1e3:5.0f} ms{', DISTURBED' if is_disturbed else ''}",
                flush=True,
            )
            if outcome.problems:
                break
        scene.finish(outcome)
    outcome.figures |= median_and_max("unavailable", times)
    if any(each > unavailable_s_max for each in times):
        outcome.problems.append(f"unavailable for {max(times):.2f} s, over {unavailable_s_max} s")
    return outcome

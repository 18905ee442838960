# SPDX-License-Identifier: Apache-2.0
"""Proof: a quorum leader that is stopped (SIGSTOP) and wakes again shows nothing stale and acknowledges nothing as an old leader.

Under the load, each round stops the leader, waits for a new one, and lets it change registers of the proof. Then reads and writes are
sent straight to the stopped process, so that it finds them first when it wakes. They continue until a while after that. Each read must
be refused or show at least what was acknowledged before it was sent. An acknowledged write must exist at the end, and a refused one
must not. No node may acknowledge while another one leads a newer epoch. The values show that: the registers end at numbers that the
ledger allows.
"""

from __future__ import annotations

import time
from pathlib import Path

from integration_tests.harness.cluster import Cluster
from integration_tests.harness.outcome import Outcome, median_and_max
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.quorum_proofs.direct import Voter
from integration_tests.scenarios.quorum_proofs.probes import Probes, adopt, send, take
from integration_tests.scenarios.quorum_proofs.scene import RECOVERY_TIMEOUT_S, Scene, scene_under_load

RATE_PER_S = 100
PROBES = 20
"""Number of reads, and of writes, that wait for a stopped leader when it wakes."""


def run_round(scene: Scene, probes: Probes) -> tuple[float, bool]:
    """Stop the leader, let another one lead and change registers, and wake the old one.

    Returns:
        The unavailability in seconds, and whether a process pause touched the round.
    """
    scene.wait_caught_up()
    leader_id, epoch = scene.leader()
    readers, writers = probes.create(scene, PROBES), probes.create(scene, PROBES)
    process = scene.cluster.voters[leader_id]
    with Voter(scene.cluster.admin_addresses[leader_id]) as old:
        old.connect()
        paused_s = time.monotonic()
        process.pause()
        try:
            scene.leader(above_epoch=epoch)
            scene.wait_acknowledged(time.monotonic())
            ended_s = time.monotonic()
            unavailable_s = scene.load.longest_gap_s(paused_s, ended_s)
            is_disturbed = scene.load.stood_still(paused_s, ended_s)
            probes.write_by_leader(scene, (*readers, *writers))
            calls = send(probes, old, readers, writers)
        finally:
            process.resume()
        take(probes, calls)

        def knows_better() -> bool:
            return "NOT_CONTROLLER" in take(probes, send(probes, old, readers[:2], writers[:2]))

        wait_for(knows_better, timeout_s=RECOVERY_TIMEOUT_S, what="the old leader to name the new one")
    scene.wait_caught_up(leader_id)
    return unavailable_s, is_disturbed


def prove(directory: Path, *, voters: int, rounds: int, rate_per_s: int = RATE_PER_S) -> Outcome:
    """Run all rounds and judge them."""
    outcome = Outcome(proof="pause-leader", figures={"voters": voters, "rounds": rounds, "asked_per_s": rate_per_s})
    probes = Probes()
    with scene_under_load(Cluster(directory, voter_count=voters, broker_count=1), rate_per_s=rate_per_s) as scene:
        times: list[float] = []
        for number in range(1, rounds + 1):
            unavailable_s, is_disturbed = run_round(scene, probes)
            if not is_disturbed:
                times.append(unavailable_s)
            print(
                f"  round {number:3d}: unavailable for {unavailable_s * 1e3:5.0f} ms{', DISTURBED' if is_disturbed else ''}",
                flush=True,
            )
        adopt(scene, probes)
        scene.finish(outcome)
    outcome.figures |= median_and_max("unavailable", times)
    outcome.figures |= {"old_leader_reads": dict(probes.reads), "old_leader_writes": dict(probes.writes)}
    if not probes.reads or not probes.writes:
        outcome.problems.append("no call reached an old leader: nothing was proved")
    return outcome

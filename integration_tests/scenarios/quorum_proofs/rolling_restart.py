# SPDX-License-Identifier: Apache-2.0
"""Proof: all voters are restarted one after the other under load, and no client call fails.

A voter gets SIGTERM and shuts down cleanly (a leader first transfers its leadership). The same command starts it again. When it has
everything, the next voter follows. Clients have the SDK's own timeouts and retries. One failed or unknown call fails the proof; the
longest call is stated. If a process pause (see `load`) touched the round, a failed call proves nothing and the round is repeated. After
`DISTURBED_ROUNDS_MAX` such rounds the proof says NOT RUN.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from integration_tests.harness.cluster import Cluster
from integration_tests.harness.outcome import Outcome, median_and_max
from integration_tests.scenarios.quorum_proofs.scene import Scene, scene_under_load

RATE_PER_S = 100
DISTURBED_ROUNDS_MAX = 3
"""Rounds repeated because calls failed during a process pause."""


def restart_all(scene: Scene, outcome: Outcome) -> list[float]:
    """Restart every voter once. Return the longest time without an acknowledgement around each restart, in seconds."""
    times: list[float] = []
    for voter_id, process in scene.cluster.voters.items():
        scene.wait_caught_up()
        started_s = time.monotonic()
        status = process.stop()
        if status != 0:
            outcome.problems.append(f"voter {voter_id} ended with {status}: {process.log_tail()}")
        process.start()
        scene.wait_caught_up()
        scene.wait_acknowledged(time.monotonic())
        times.append(scene.load.longest_gap_s(started_s, time.monotonic()))
    return times


def prove(directory: Path, *, voters: int, rounds: int, rate_per_s: int = RATE_PER_S) -> Outcome:
    """Restart all voters `rounds` times and judge the calls."""
    outcome = Outcome(proof="rolling-restart", figures={"voters": voters, "rounds": rounds, "asked_per_s": rate_per_s})
    with scene_under_load(Cluster(directory, voter_count=voters, broker_count=1), rate_per_s=rate_per_s) as scene:
        times: list[float] = []
        forgiven: Counter[str] = Counter()
        done = disturbed = 0
        while done < rounds:
            failed, stood_s = scene.load.failures.copy(), scene.load.standstill_s()
            found = restart_all(scene, outcome)
            failed = scene.load.failures - failed
            if failed and scene.load.standstill_s() > stood_s and disturbed < DISTURBED_ROUNDS_MAX:
                disturbed += 1
                forgiven += failed
                continue
            times += found
            done += 1
            print(
                f"  round {done:3d}: all restarted, longest call so far {scene.load.longest_call_s * 1e3:5.0f} ms, "
                f"failed {dict(scene.load.failures)}",
                flush=True,
            )
        scene.finish(outcome)
        failures, standstill_s = scene.load.failures - forgiven, scene.load.standstill_s()
    outcome.figures |= median_and_max("unavailable", times) | {"disturbed": disturbed}
    if failures and standstill_s:
        outcome.not_run = f"calls failed while the machine stood still for {standstill_s:.1f} s"
        return outcome
    outcome.problems += [f"{count} failed calls: {what}" for what, count in failures.items()]
    return outcome

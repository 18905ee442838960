# SPDX-License-Identifier: Apache-2.0
"""`make kill-quorum`: kill -9 of the quorum leader under topic creations.

Rounds are those of `quorum_proofs.kill_leader`; the load creates topics alone, and demanded is the time until another voter leads. At
the end every acknowledged topic is there, with the id that was acknowledged, none was created twice, and all images are equal.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from integration_tests.harness.cluster import Cluster
from integration_tests.harness.outcome import Outcome, median_and_max, run_in_directory
from integration_tests.scenarios.quorum_proofs.kill_leader import DISTURBED_ROUNDS_MAX, Round, run_round
from integration_tests.scenarios.quorum_proofs.scene import scene_under_load

NEW_LEADER_S_MAX = 3.0
RATE_PER_S = 10


def prove(directory: Path, *, rounds: int) -> Outcome:
    """Kill the leader `rounds` times and judge it. A round with a process pause is repeated."""
    outcome = Outcome(proof="kill-quorum", figures={"rounds": rounds, "asked_per_s": RATE_PER_S})
    done: list[Round] = []
    disturbed = 0
    cluster = Cluster(directory, voter_count=3, broker_count=1)
    with scene_under_load(cluster, rate_per_s=RATE_PER_S, creation_every=1) as scene:
        while len(done) < rounds and disturbed <= DISTURBED_ROUNDS_MAX:
            this = run_round(scene)
            if this.is_disturbed:
                disturbed += 1
            else:
                done.append(this)
            print(
                f"  round {len(done):3d}: killed voter {this.killed}, voter {this.elected} leads after "
                f"{this.new_leader_s * 1e3:5.0f} ms, no creation acknowledged for {this.unavailable_s * 1e3:5.0f} ms, "
                f"{len(scene.load.ledger.topics)} topics{', DISTURBED' if this.is_disturbed else ''}",
                flush=True,
            )
        scene.finish(outcome)
    outcome.figures["disturbed_rounds"] = disturbed
    if len(done) < rounds:
        outcome.problems.append(f"the machine stood still in {disturbed} rounds: only {len(done)} were measured")
    outcome.figures |= median_and_max("new_leader", [each.new_leader_s for each in done])
    outcome.figures |= median_and_max("unavailable", [each.unavailable_s for each in done])
    outcome.problems += [
        f"round {number}: another voter leads after {each.new_leader_s:.2f} s, over {NEW_LEADER_S_MAX} s"
        for number, each in enumerate(done, 1)
        if each.new_leader_s > NEW_LEADER_S_MAX
    ]
    return outcome


def main() -> int:
    """Print one line per round and the summary. Return 1 if a topic is lost or an election took too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    outcome = run_in_directory("kill-quorum", lambda directory: prove(directory, rounds=arguments.rounds))
    outcome.print()
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

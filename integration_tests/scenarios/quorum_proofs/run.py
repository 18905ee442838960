# SPDX-License-Identifier: Apache-2.0
"""`make quorum-proofs`: every proof of the quorum with real processes; a verdict and one JSON line for each.

    python -m integration_tests.scenarios.quorum_proofs.run --rounds 100 --voters 3 5 --only kill-leader

Exit status: 0 all passed, 1 one failed, 2 none failed and one could not run here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from integration_tests.harness.outcome import Outcome, report, run_in_directory
from integration_tests.scenarios.quorum_proofs import (
    kill_calls,
    kill_leader,
    partition,
    pause_leader,
    rolling_restart,
    wiped_voter,
)

DEFAULT_ROUNDS = 100

PROOFS: dict[str, tuple[Callable[..., Outcome], int]] = {
    "kill-leader": (kill_leader.prove, 1),
    "kill-calls": (kill_calls.prove, 4),
    "pause-leader": (pause_leader.prove, 10),
    "partition": (partition.prove, 50),
    "wiped-voter": (wiped_voter.prove, 10),
    "rolling-restart": (rolling_restart.prove, 20),
}
"""Each proof, and the divisor of the rounds asked for: rounds of some proofs take longer."""


def run_one(name: str, *, voters: int, rounds: int) -> Outcome:
    """Run a proof in its own directory. An error that ends it is a failure of the proof."""
    prove, share = PROOFS[name]
    own_rounds = max(1, rounds // share)
    print(f"{name}, {voters} voters, {own_rounds} rounds", flush=True)
    return run_in_directory(
        name,
        lambda directory: prove(directory, voters=voters, rounds=own_rounds),
        figures={"voters": voters, "rounds": own_rounds},
    )


def main() -> int:
    """Run the command line and print the outcomes."""
    parser = argparse.ArgumentParser(description="proofs of the metadata quorum with real processes")
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS, help="kills; the other proofs take a share of it")
    parser.add_argument("--voters", type=int, nargs="+", default=[3, 5], help="numbers of voters")
    parser.add_argument("--only", nargs="+", choices=list(PROOFS), default=list(PROOFS), help="proofs to run")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    for name in arguments.only:
        for voters in arguments.voters:
            outcome = run_one(name, voters=voters, rounds=arguments.rounds)
            outcome.print()
            outcomes.append(outcome)
    return report(outcomes)


if __name__ == "__main__":
    raise SystemExit(main())

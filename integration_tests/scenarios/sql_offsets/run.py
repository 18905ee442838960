# SPDX-License-Identifier: Apache-2.0
"""`make sql-proofs`: kills and two owners on each database; a verdict and one JSON line for each.

    python -m integration_tests.scenarios.sql_offsets.run --kills 100 --databases sqlite postgresql mariadb

Exit status: 0 all passed, 1 one failed, 2 none failed and one could not run here.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from integration_tests.harness.databases import DATABASES, why_missing
from integration_tests.harness.outcome import Outcome, report, run_in_directory
from integration_tests.scenarios.sql_offsets import kills, two_owners
from integration_tests.scenarios.sql_offsets.mutants import KILLS_FIND, MUTANTS

DEFAULT_KILLS = 100
KILLS_PER_ROUND = 10
"""Kills for each round of two owners."""


def run_one(proof: str, database: str, work: Callable[..., Outcome], **settings: object) -> Outcome:
    """Run a proof in its own directory. A database that is missing, and an error that ends the proof, are part of the outcome."""
    name = f"{proof}-{database}"
    missing = why_missing(database)
    if missing:
        return Outcome(proof=name, not_run=missing)
    print(f"{name}: {settings}", flush=True)
    return run_in_directory(name, lambda directory: work(directory, database=database, **settings))


def main() -> int:
    """Run the command line and print the outcomes."""
    parser = argparse.ArgumentParser(description="records and offsets in one SQL transaction")
    parser.add_argument("--kills", type=int, default=DEFAULT_KILLS, help="on each database")
    parser.add_argument("--databases", nargs="+", choices=DATABASES, default=list(DATABASES))
    parser.add_argument("--only", nargs="+", choices=("kills", "two-owners"), default=["kills", "two-owners"])
    parser.add_argument("--mutant", choices=list(MUTANTS), default="", help="a fault that must be found")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    proofs = arguments.only
    if arguments.mutant:
        proofs = ["kills"] if arguments.mutant in KILLS_FIND else ["two-owners"]
    outcomes: list[Outcome] = []
    for database in arguments.databases:
        settings = {"seed": arguments.seed, "mutant": arguments.mutant}
        if "kills" in proofs:
            outcomes.append(run_one("kills", database, kills.prove, kills=arguments.kills, **settings))
            outcomes[-1].print()
        if "two-owners" in proofs:
            rounds = max(2, arguments.kills // KILLS_PER_ROUND)
            groups = 2 if arguments.mutant in ("", "late-claim") else 0
            outcomes.append(run_one("two-owners", database, two_owners.prove, rounds=rounds, groups=groups, **settings))
            outcomes[-1].print()
    return report(outcomes)


if __name__ == "__main__":
    raise SystemExit(main())

# SPDX-License-Identifier: Apache-2.0
"""`make transform-proofs` and its kind: exactly once on real brokers. A verdict and one JSON line for each proof.

    python -m integration_tests.scenarios.exactly_once.run transform --kills 100

Exit status: 0 passed; 1 a record is missing or doubled, something is left, or a fault did not hit as often as it must.
"""

from __future__ import annotations

import argparse

from integration_tests.harness.outcome import Outcome, report, run_in_directory
from integration_tests.scenarios.exactly_once import matrix, replay, streaming, transform
from integration_tests.scenarios.exactly_once.matrix_rows import ROWS
from integration_tests.scenarios.exactly_once.stream_program import RATE

DEFAULT_KILLS = 100
DEFAULT_PAIRS = 5
DEFAULT_BUDGET_S = 4 * 3_600.0


def run_transform(arguments: argparse.Namespace) -> Outcome:
    """Run the proof of the transform program."""
    return run_in_directory(
        "transform",
        lambda directory: transform.prove(
            directory,
            kills=arguments.kills,
            seed=arguments.seed,
            pairs=arguments.pairs,
            budget_s=arguments.budget_s,
            mutant=arguments.mutant,
        ),
    )


def run_matrix(arguments: argparse.Namespace) -> Outcome:
    """Run rows of the fault matrix."""
    return run_in_directory(
        "matrix",
        lambda directory: matrix.prove(
            directory,
            rows=arguments.only,
            runs=arguments.runs,
            seed=arguments.seed,
            budget_s=arguments.budget_s,
            records=arguments.records,
            has_spark=not arguments.sdk,
        ),
    )


def run_streaming(arguments: argparse.Namespace) -> Outcome:
    """Run the proof of the streaming query."""
    return run_in_directory(
        "streaming",
        lambda directory: streaming.prove(
            directory,
            batches=arguments.batches,
            driver_kills=arguments.driver_kills,
            broker_kills=arguments.broker_kills,
            seed=arguments.seed,
            budget_s=arguments.budget_s,
            source=arguments.source,
        ),
    )


def run_replay(arguments: argparse.Namespace) -> Outcome:
    """Run the proofs of replays."""
    return run_in_directory(
        "replay",
        lambda directory: replay.prove(directory, records=arguments.records, many=arguments.many, seed=arguments.seed),
    )


def main() -> int:
    """Run the command line and print the outcome."""
    parser = argparse.ArgumentParser(description="exactly once on real brokers")
    proofs = parser.add_subparsers(dest="proof", required=True)
    one = proofs.add_parser("transform", help="a consume-transform-produce program is killed")
    one.add_argument("--kills", type=int, default=DEFAULT_KILLS)
    one.add_argument("--pairs", type=int, default=DEFAULT_PAIRS, help="rounds of two instances, of each kind")
    one.add_argument("--mutant", choices=("offsets-apart",), default="", help="a fault that must be found")
    one.set_defaults(run=run_transform)
    one = proofs.add_parser("matrix", help="the fault matrix of ingest from Spark")
    one.add_argument("--runs", type=int, default=matrix.DEFAULT_RUNS, help="of each row")
    one.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    one.add_argument("--records", type=int, default=matrix.RECORDS, help="of an ingest")
    one.add_argument("--sdk", action="store_true", help="jobs of the SDK alone; without the rows about Spark")
    one.set_defaults(run=run_matrix)
    one = proofs.add_parser("streaming", help="a streaming query, its driver and brokers are killed")
    one.add_argument("--batches", type=int, default=streaming.DEFAULT_BATCHES)
    one.add_argument("--driver-kills", type=int, default=streaming.DEFAULT_DRIVER_KILLS)
    one.add_argument("--broker-kills", type=int, default=streaming.DEFAULT_BROKER_KILLS)
    one.add_argument("--source", default="source", help=f"topic to read; {RATE}: Spark's own source")
    one.set_defaults(run=run_streaming)
    one = proofs.add_parser("replay", help="replays by time and key, and one of many records")
    one.add_argument("--records", type=int, default=replay.DEFAULT_RECORDS)
    one.add_argument("--many", type=int, default=replay.DEFAULT_MANY, help="0: leave that replay out")
    one.set_defaults(run=run_replay)
    for each in proofs.choices.values():
        each.add_argument("--seed", type=int, default=1)
        each.add_argument("--budget-s", type=float, default=DEFAULT_BUDGET_S, help="no round begins after this time")
    arguments = parser.parse_args()
    outcome = arguments.run(arguments)
    outcome.print()
    return report([outcome])


if __name__ == "__main__":
    raise SystemExit(main())

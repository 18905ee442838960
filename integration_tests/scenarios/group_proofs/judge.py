# SPDX-License-Identifier: Apache-2.0
"""Judges the journals of a group proof: laws, times, bounds.

    python -m integration_tests.scenarios.group_proofs.judge DIRECTORY [--partitions 60]

Exit status: 0 passed, 1 a law or a bound is broken.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

from integration_tests.harness.load.times import summarize
from integration_tests.harness.outcome import Outcome, milliseconds
from integration_tests.scenarios.group_proofs.journal import Entry, Kind, read_journals
from integration_tests.scenarios.group_proofs.laws import GroupLaws
from integration_tests.scenarios.group_proofs.times import GroupTimes

JOIN_P50_S = 1.0
"""Most seconds of the median rebalance after a join."""
PAUSE_P99_S = 0.1
"""Most seconds of the 99th percentile of the pauses of partitions that keep their owner."""
LONGEST_SHOWN = 3
COUNTED = ("records", "assigned", "revoked", "lost", "committed", "refused", "error")


def judge(entries: Iterable[Entry], outcome: Outcome, *, partition_count: int, is_timed: bool = True) -> None:
    """Add problems and figures of the merged journals to an outcome.

    Args:
        entries: all lines, in the order of their times.
        outcome: gets problems and figures.
        partition_count: number of partitions.
        is_timed: False: times are stated and not compared with their bounds, and members may lose partitions without a fault.
    """
    laws, times = GroupLaws(partition_count), GroupTimes(partition_count)
    rounds: dict[str, int] = {}
    for entry in entries:
        laws.take(entry)
        times.take(entry)
        if entry.kind is Kind.ROUND:
            rounds[entry.fields["text"]] = rounds.get(entry.fields["text"], 0) + 1
    outcome.problems += laws.problems
    if laws.problem_count > len(laws.problems):
        outcome.problems.append(f"{laws.problem_count - len(laws.problems)} further problems")
    if not laws.counts["ends"]:
        outcome.problems.append("the journals have no end: nothing shows that everything was delivered")
    pauses, calm, latencies = (summarize(each) for each in (times.pauses_s(), times.calm_s(), times.latencies_s()))
    join_p50_s = statistics.median(times.joins_s) if times.joins_s else 0.0
    outcome.figures |= {
        "rounds": rounds,
        **{f"{name}_count": laws.counts[name] for name in COUNTED},
        "duplicates": dict(laws.duplicates),
        "late_deliveries": laws.late_deliveries,
        "losses_without_fault": len(laws.bounds),
        "joins": len(times.joins_s),
        "join_p50_ms": milliseconds(join_p50_s),
        "join_max_ms": milliseconds(max(times.joins_s, default=0.0)),
        "join_first_partition_p50_ms": milliseconds(statistics.median(times.first_s) if times.first_s else 0.0),
        "rebalances": times.rebalances,
        "pauses": pauses.count,
        "pause_p50_ms": milliseconds(pauses.p50_s),
        "pause_p99_ms": milliseconds(pauses.p99_s),
        "pause_max_ms": milliseconds(pauses.max_s),
        "calm_pause_p50_ms": milliseconds(calm.p50_s),
        "calm_pause_p99_ms": milliseconds(calm.p99_s),
        "calm_pause_max_ms": milliseconds(calm.max_s),
        "delivery_p50_ms": milliseconds(latencies.p50_s),
        "delivery_p99_ms": milliseconds(latencies.p99_s),
        "failover_p50_ms": milliseconds(statistics.median(times.failovers_s) if times.failovers_s else 0.0),
        "failover_max_ms": milliseconds(max(times.failovers_s, default=0.0)),
    }
    print(f"  rebalance after a join: p50 {join_p50_s:.2f} s of {len(times.joins_s)}, bound {JOIN_P50_S} s")
    print(
        f"  pause of unaffected partitions: p99 {pauses.p99_s * 1e3:.0f} ms of {pauses.count} in {times.rebalances} rebalances, "
        f"bound {PAUSE_P99_S * 1e3:.0f} ms; calm p99 {calm.p99_s * 1e3:.0f} ms"
    )
    for pause_s, at_s, number in times.longest_pauses(LONGEST_SHOWN):
        print(f"    partition {number}: {pause_s * 1e3:.0f} ms in the rebalance at {at_s:.1f} s")
    if not is_timed:
        return
    outcome.problems += laws.bounds
    if not times.joins_s or not pauses.count:
        outcome.problems.append(f"{len(times.joins_s)} joins and {pauses.count} pauses show nothing about the bounds")
    if join_p50_s > JOIN_P50_S:
        outcome.problems.append(f"BOUND rebalance after a join: p50 is {join_p50_s:.2f} s, over {JOIN_P50_S} s")
    if pauses.p99_s > PAUSE_P99_S:
        outcome.problems.append(
            f"BOUND pause of unaffected partitions: p99 is {pauses.p99_s:.3f} s, over {PAUSE_P99_S} s"
        )


def main() -> int:
    """Judge kept journals again."""
    parser = argparse.ArgumentParser(description="judge the journals of a group proof")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--partitions", type=int, default=60)
    arguments = parser.parse_args()
    outcome = Outcome(proof="group-proofs")
    judge(read_journals(arguments.directory), outcome, partition_count=arguments.partitions)
    outcome.print()
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

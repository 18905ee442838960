# SPDX-License-Identifier: Apache-2.0
"""Proof: repeated kill -9 of the quorum leader, and how long the clients' calls take that meet it.

A round is that of `kill_leader`, but this proof measures the calls, not the silence between them. *There was no leader* lasts from the
kill until a voter writes `event=controller_active` of a higher epoch in its log; both times come from the same wall clock. *Worst less
the gap* is the longest call that touches a round, minus that time. What remains is the client, the broker, and the first work of the
new leader. The figures are stated only. The demands are those of docs/sdk.md, that every call ends within its time limit, and those
of all proofs on the ledger.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lograft.settings import REQUEST_TIMEOUT_MS

from integration_tests.harness.cluster import Cluster
from integration_tests.harness.load.metadata_load import Operation
from integration_tests.harness.load.pace import STANDSTILL_S_MIN
from integration_tests.harness.load.times import quantile
from integration_tests.harness.outcome import Figure, Outcome, median_and_max, milliseconds
from integration_tests.scenarios.quorum_proofs.scene import Scene, scene_under_load

RATE_PER_S = 100
DISTURBED_ROUNDS_MAX = 25
LIMIT_SLACK_S = 0.25 + STANDSTILL_S_MIN
"""Seconds by which a call may exceed its limit. A client may try addresses that do not answer for 250 ms (docs/sdk.md), and a shorter
pause of this process does not count as a process pause."""

ACTIVE = re.compile(r"^time=(\S+ \S+),(\d{3}) .*event=controller_active quorum_epoch=(\d+)", re.MULTILINE)
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One kill; times are monotonic."""

    killed_s: float
    active_s: float
    ended_s: float
    is_disturbed: bool

    @property
    def gap_s(self) -> float:
        """Seconds without a leader."""
        return self.active_s - self.killed_s

    def touched(self, spans: Sequence[Operation]) -> list[Operation]:
        """Return the operations that were under way between the kill and the end of the round."""
        return [span for span in spans if span.ended_s > self.killed_s and span.began_s < self.ended_s]

    def met(self, spans: Sequence[Operation]) -> list[Operation]:
        """Return the operations that were under way while there was no leader."""
        return [span for span in spans if span.ended_s > self.killed_s and span.began_s < self.active_s]


def activations(log: str) -> list[tuple[float, int]]:
    """Return when controllers became active by a voter's log, in seconds of the wall clock, and in which quorum epoch."""
    return [
        (time.mktime(time.strptime(second, TIME_FORMAT)) + int(millisecond) / 1000, int(epoch))
        for second, millisecond, epoch in ACTIVE.findall(log)
    ]


def first_activation(scene: Scene, *, above_epoch: int) -> float:
    """Return the first activation of a controller above the epoch, in seconds of the wall clock. There must be one."""
    found = [
        when_s
        for voter in scene.cluster.voters.values()
        for when_s, epoch in activations(voter.log_text())
        if epoch > above_epoch
    ]
    return min(found)


def run_round(scene: Scene) -> Round:
    """Kill the leader, wait for the next one and for an acknowledged operation, and bring the old one back."""
    scene.wait_caught_up()
    leader_id, epoch = scene.leader()
    killed_s, wall_s = time.monotonic(), time.time()
    scene.cluster.voters[leader_id].kill()
    scene.leader(above_epoch=epoch)
    scene.wait_acknowledged(time.monotonic())
    scene.cluster.voters[leader_id].start()
    scene.wait_caught_up(leader_id)
    scene.wait_acknowledged(time.monotonic())
    ended_s = time.monotonic()
    return Round(
        killed_s=killed_s,
        active_s=killed_s + max(0.0, first_activation(scene, above_epoch=epoch) - wall_s),
        ended_s=ended_s,
        is_disturbed=scene.load.stood_still(killed_s, ended_s),
    )


def prove(directory: Path, *, voters: int, rounds: int, rate_per_s: int = RATE_PER_S) -> Outcome:
    """Run all rounds, state the figures and judge the calls."""
    outcome = Outcome(proof="kill-calls", figures={"voters": voters, "rounds": rounds, "asked_per_s": rate_per_s})
    done: list[Round] = []
    disturbed = 0
    with scene_under_load(Cluster(directory, voter_count=voters, broker_count=1), rate_per_s=rate_per_s) as scene:
        while len(done) < rounds and disturbed <= DISTURBED_ROUNDS_MAX:
            this = run_round(scene)
            if this.is_disturbed:
                disturbed += 1
            else:
                done.append(this)
            worst_s = max(span.took_s for span in this.touched(scene.load.operations))
            print(
                f"  round {len(done):3d}: no leader for {this.gap_s * 1e3:5.0f} ms, longest call that has ended "
                f"{worst_s * 1e3:5.0f} ms{', DISTURBED' if this.is_disturbed else ''}",
                flush=True,
            )
        scene.finish(outcome)
        spans, failures, standstill_s = scene.load.operations, scene.load.failures, scene.load.standstill_s()
    outcome.figures |= {"disturbed_rounds": disturbed, "failed": dict(failures)}
    outcome.figures |= call_figures(done, spans)
    if len(done) < rounds:
        outcome.not_run = f"the machine stood still in {disturbed} rounds: only {len(done)} were measured"
    late = late_calls(spans, standstill_s=standstill_s)
    outcome.problems += [f"a call of {each.took_s:.2f} s, over its time limit" for each in late]
    return outcome


def call_figures(rounds: Sequence[Round], spans: Sequence[Operation]) -> dict[str, Figure]:
    """Return the figures of the calls that touch the rounds, in milliseconds."""
    if not rounds:
        return {}
    touched = [each.touched(spans) for each in rounds]
    met_s = sorted(span.took_s for each in rounds for span in each.met(spans))
    every_s = sorted({span: span.took_s for found in touched for span in found}.values())
    worst = [
        (max((span.took_s for span in found), default=0.0), this) for found, this in zip(touched, rounds, strict=True)
    ]
    return {
        **median_and_max("gap", [each.gap_s for each in rounds]),
        "calls": len(every_s),
        **quantiles("call", every_s),
        "met_calls": len(met_s),
        **quantiles("met", met_s),
        "worst_less_gap_ms": max(milliseconds(took_s - this.gap_s) for took_s, this in worst),
    }


def quantiles(name: str, sorted_s: Sequence[float]) -> dict[str, Figure]:
    """Return median, 99th percentile and maximum of sorted seconds, in milliseconds; nothing without values."""
    if not sorted_s:
        return {}
    return {
        f"{name}_p50_ms": milliseconds(statistics.median(sorted_s)),
        f"{name}_p99_ms": milliseconds(quantile(sorted_s, 0.99)),
        f"{name}_worst_ms": milliseconds(sorted_s[-1]),
    }


def late_calls(spans: Sequence[Operation], *, standstill_s: float) -> list[Operation]:
    """Return the operations that exceeded the time limits of their calls, even with all process pauses added."""
    limit_s = REQUEST_TIMEOUT_MS / 1000
    return [span for span in spans if span.took_s > span.calls * limit_s + LIMIT_SLACK_S + standstill_s]

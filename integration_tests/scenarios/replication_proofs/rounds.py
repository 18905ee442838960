# SPDX-License-Identifier: Apache-2.0
"""What all replication proofs share: rounds of faults under a load, their times, and the judgement at the end.

Owns the repetition of rounds with a process pause, the figures, and the comparison with the limits. A proof supplies the code of one
round. This module does not know the faults.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from integration_tests.harness.cluster import Place
from integration_tests.harness.load.times import Span, Wait, longest, summarize, touching
from integration_tests.harness.outcome import Outcome, median_and_max, milliseconds
from integration_tests.harness.scene import Scene, Shape, scene_under_load

DISTURBED_ROUNDS_MAX = 20
LONGEST_SHOWN = 3
"""Number of longest waits that are printed one by one."""
CALM_S = 2.0
"""Seconds before each fault in which gaps are measured too, as the baseline of machine and pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the unavailability of partitions, in seconds. With infinity it is stated only."""

    median_s: float = math.inf
    max_s: float = math.inf

    def check(self, name: str, times_s: Sequence[float]) -> list[str]:
        """Compare times with the limits."""
        if not times_s:
            return []
        median_s = sorted(times_s)[len(times_s) // 2]
        found = [f"{name}: p50 is {median_s:.2f} s, over {self.median_s} s"] if median_s > self.median_s else []
        worst_s = max(times_s)
        return found + ([f"{name}: max is {worst_s:.2f} s, over {self.max_s} s"] if worst_s > self.max_s else [])


@dataclass(slots=True, kw_only=True)
class Round:
    """The result of one round.

    Attributes:
        times_s: times by name, such as `unavailable` for each concerned partition.
        spans: spans by name. The waits of values that touch them are judged when all values have results.
        text: the fault, for the printed line.
        problems: problems that count even with a process pause.
        late: what took too long. It does not count with a process pause.
        started_s: monotonic start of the measurement.
        ended_s: its monotonic end.
    """

    text: str
    started_s: float
    ended_s: float
    times_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    spans: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    problems: list[str] = field(default_factory=list[str])
    late: list[str] = field(default_factory=list[str])


RunRound = Callable[[Scene, random.Random, int], Round]
"""One round. Gets the scene, the seed's random generator, and the number of the round from 0."""


def prove(
    name: str,
    directory: Path,
    run_round: RunRound,
    *,
    shape: Shape,
    rounds: int,
    seed: int,
    limits: Mapping[str, Limits],
    place: Place | None = None,
    broker_arguments: Sequence[str] = (),
) -> Outcome:
    """Run rounds under a load and judge everything.

    Args:
        name: name of the proof.
        directory: directory for data, logs and history.
        run_round: one round.
        shape: shape of the scene.
        rounds: number of rounds that count.
        seed: seed of all random choices.
        limits: limits by name of the times.
        place: where the processes run.
        broker_arguments: further arguments of every broker.
    """
    outcome = Outcome(
        proof=name,
        figures={"rounds": rounds, "seed": seed, "replicas": shape.replicas, "partitions": shape.partitions},
    )
    rng = random.Random(seed)
    times_s: dict[str, list[float]] = {}
    spans: dict[str, list[Span]] = {}
    done = disturbed = 0
    with scene_under_load(directory, shape, place=place, broker_arguments=broker_arguments, seed=seed) as scene:
        forgiven: Counter[str] = Counter()
        while done < rounds and disturbed <= DISTURBED_ROUNDS_MAX:
            scene.wait_in_sync()
            began_s, failed = time.monotonic(), scene.load.failures()
            calm_s = calm_gaps_s(scene)
            scene.load.history.note_fault(f"round {done} begins")
            this = run_round(scene, rng, done)
            this.times_s["calm"] = calm_s
            scene.load.history.note_fault(f"round {done} ended: {this.text}")
            outcome.problems += [f"round {done + 1}: {problem}" for problem in this.problems]
            is_disturbed = scene.load.stood_still(began_s, this.ended_s)
            if is_disturbed:
                disturbed += 1
                forgiven += scene.load.failures() - failed
            else:
                done += 1
                outcome.problems += [f"round {done}: {problem}" for problem in this.late]
                for what, values_s in this.times_s.items():
                    times_s.setdefault(what, []).extend(values_s)
                for what, found in this.spans.items():
                    spans.setdefault(what, []).extend(found)
            print(f"  round {done:3d}: {line_of(this)}{', DISTURBED' if is_disturbed else ''}", flush=True)
        scene.judge(outcome, forgiven=forgiven)
        outcome.problems += scene.compare_files()
        judge_waits(scene.load.acknowledgements.waits, spans, limits, outcome)
    outcome.figures["disturbed_rounds"] = disturbed
    if done < rounds:
        outcome.problems.append(f"the machine stood still in {disturbed} rounds: only {done} were measured")
    for what, values_s in times_s.items():
        outcome.figures |= median_and_max(what, values_s)
        outcome.problems += limits.get(what, Limits()).check(what, values_s)
    return outcome


def judge_waits(
    waits: Sequence[Wait], spans: Mapping[str, Sequence[Span]], limits: Mapping[str, Limits], outcome: Outcome
) -> None:
    """Add the waits of the values that touch the spans to the figures, and compare them with the limits.

    Args:
        waits: waits of all values.
        spans: spans by name. Their figures and limits have the name `<name>_wait`.
        limits: limits by name.
        outcome: gets figures and problems.
    """
    for name, found in spans.items():
        what = f"{name}_wait"
        touched = list(touching(waits, found))
        times_s = [wait.seconds for wait in touched]
        figures = summarize(times_s)
        print(f"  {what}: {figures} in {sum(end_s - start_s for start_s, end_s in found):.1f} s", flush=True)
        for wait in longest(touched, LONGEST_SHOWN):
            print(f"    partition {wait.partition}: {wait.seconds * 1e3:.0f} ms until {time_of_day(wait.received_s)}")
        outcome.figures |= {
            f"{what}_values": figures.count,
            f"{what}_p50_ms": milliseconds(figures.p50_s),
            f"{what}_p99_ms": milliseconds(figures.p99_s),
            f"{what}_max_ms": milliseconds(figures.max_s),
        }
        outcome.problems += limits.get(what, Limits()).check(what, times_s) if times_s else [f"{what}: no values"]


def time_of_day(monotonic_s: float) -> str:
    """Return a monotonic time in the form of the servers' log lines."""
    wall_s = time.time() - time.monotonic() + monotonic_s
    return f"{time.strftime('%H:%M:%S', time.localtime(wall_s))},{int(wall_s % 1 * 1e3):03d}"


def calm_gaps_s(scene: Scene) -> list[float]:
    """Return the longest gap of each partition in a period without a fault."""
    started_s = time.monotonic()
    scene.load.hold(started_s + CALM_S)
    return scene.load.longest_gaps_s(scene.partitions, started_s, time.monotonic())


def line_of(this: Round) -> str:
    """Return a round as one line."""
    times = [f"{what} max {max(values) * 1e3:.0f} ms" for what, values in this.times_s.items() if values]
    return ", ".join([this.text, *times, f"round {this.ended_s - this.started_s:.1f} s"])

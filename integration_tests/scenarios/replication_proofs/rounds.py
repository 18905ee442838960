# SPDX-License-Identifier: Apache-2.0
"""What all proofs of replication share: rounds of faults under a load, their times, and the judgement at the end.

Owns the repetition of rounds in which this machine stood still, the figures, and the comparison with the demands. A proof gives what
one round does. Must not know what is hurt.
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
"""Longest waits of values that are printed one by one."""
CALM_S = 2.0
"""Seconds before each fault in which gaps are measured too: what the machine and the pace cost without a fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the unavailability of partitions may be, in seconds; infinite: it is only stated."""

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
    """What one round showed.

    Attributes:
        times_s: times by name, as `unavailable` of each concerned partition.
        spans: spans by name in which the waits of values are looked at, once the fates of all of them are known.
        text: what was done, for the line that is printed.
        problems: what must not be, whether this machine stood still or not.
        late: what took too long: no problem when it did.
        started_s: when the measuring began, of the monotonic clock.
        ended_s: when it ended.
    """

    text: str
    started_s: float
    ended_s: float
    times_s: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    spans: dict[str, list[Span]] = field(default_factory=dict[str, list[Span]])
    problems: list[str] = field(default_factory=list[str])
    late: list[str] = field(default_factory=list[str])


RunRound = Callable[[Scene, random.Random, int], Round]
"""One round: the scene, randomness of the seed, and the number of the round from 0."""


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
        name: of the proof.
        directory: for the data, the logs and the history.
        run_round: one round.
        shape: of the scene.
        rounds: rounds that count.
        seed: of what is chosen at random.
        limits: demands by name of the times.
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
    """Put the waits of the values that touch the spans into the figures, and compare them with the demands.

    Args:
        waits: of all values.
        spans: by name; the figures and the demands are those of `<name>_wait`.
        limits: demands by name.
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
    """A time of the monotonic clock as the logs of the servers would say it."""
    wall_s = time.time() - time.monotonic() + monotonic_s
    return f"{time.strftime('%H:%M:%S', time.localtime(wall_s))},{int(wall_s % 1 * 1e3):03d}"


def calm_gaps_s(scene: Scene) -> list[float]:
    """Longest gap of each partition in a while without a fault."""
    started_s = time.monotonic()
    scene.load.hold(started_s + CALM_S)
    return scene.load.longest_gaps_s(scene.partitions, started_s, time.monotonic())


def line_of(this: Round) -> str:
    """A round on one line."""
    times = [f"{what} max {max(values) * 1e3:.0f} ms" for what, values in this.times_s.items() if values]
    return ", ".join([this.text, *times, f"round {this.ended_s - this.started_s:.1f} s"])

# SPDX-License-Identifier: Apache-2.0
"""A consume-transform-produce program that is killed at random points, beside kills of brokers. Each input is once in the output.

A round starts the program, waits until it has come to a random step a random number of times, waits a moment more, and kills it. Rounds
of two instances start a second program with the same transaction id: one of them is fenced, and the other one goes on.
"""

from __future__ import annotations

import collections
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lograft import Producer
from lograft.types import ConfigResource

from integration_tests.harness.background import Repeated
from integration_tests.harness.outcome import Outcome
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.exactly_once.compare import compare, sequences
from integration_tests.scenarios.exactly_once.processes import Program
from integration_tests.scenarios.exactly_once.scene import Scene, running_scene
from integration_tests.scenarios.exactly_once.transform_program import (
    AGAIN,
    COMMITTED,
    COMMITTING,
    FENCED,
    STARTED,
    STEPS,
    STYLES,
    Transform,
    made_of,
)

MODULE: Final = "integration_tests.scenarios.exactly_once.transform_program"
SOURCE: Final = "clicks"
TARGET: Final = "counts"
GROUP: Final = "counter"
TRANSACTION_ID: Final = "counter-1"
INSTANCE_ID: Final = "counter-1"
SOURCE_PARTITIONS: Final = 4
TARGET_PARTITIONS: Final = 3
KEYS: Final = 50
BATCH_RECORDS: Final = (1, 10, 50)
FEED_INTERVAL_S: Final = 0.1
FEED_RECORDS: Final = 5
"""Records of one interval."""

REPEATS_MAX: Final = 4
"""A program is killed when it has come to a step once to so many times."""
DELAY_S: Final = 0.03
"""Longest time from a step to the kill."""
START_DELAY_S: Final = 1.5
"""Longest time from the start of a program to the kill that is to meet it before it is ready."""
BROKER_EVERY: Final = 8
"""In every so-manyth round a broker is killed as well."""
SESSION_MS: Final = 20_000
"""Session of the group. A program that is killed is followed by one with its name, which need not wait for that; a pair waits."""

STEP_TIMEOUT_S: Final = 120.0
DRAIN_TIMEOUT_S: Final = 240.0
CHECK_INTERVAL_S: Final = 0.2
PAIR_TIMEOUT_S: Final = 120.0
PAIRS: Final = ("together", "later", "stopped")
"""How the second instance of an id comes: in the same moment, while the first one works, or while the first one is stopped."""

BEFORE_READY: Final = "before it was ready"


class Feed(Repeated):
    """Sends records to the source all the time. Its thread writes `sent`."""

    def __init__(self, producer: Producer) -> None:
        super().__init__("feed", self._send, FEED_INTERVAL_S, join_timeout_s=DRAIN_TIMEOUT_S)
        self.sent = 0
        self._producer = producer

    def _send(self) -> None:
        for _ in range(FEED_RECORDS):
            key = self.sent % KEYS
            self._producer.send(SOURCE, b"%d" % (self.sent // KEYS), key=b"key-%d" % key)
            self.sent += 1


@dataclass(slots=True, kw_only=True)
class Hits:
    """What the faults really met.

    Attributes:
        steps: kills by the last step that the program had come to.
        brokers: kills of brokers.
        pairs: pairs of instances of which one was fenced.
        errors: errors after which a program began anew, by their names.
        late: programs that did not come to their step in time; not counted as kills.
    """

    steps: collections.Counter[str] = field(default_factory=collections.Counter[str])
    brokers: int = 0
    pairs: int = 0
    errors: collections.Counter[str] = field(default_factory=collections.Counter[str])
    late: int = 0

    def note(self, program: Program) -> None:
        """Note the errors of a program that has ended."""
        for line in program.words:
            if line.startswith(AGAIN):
                self.errors[line.split()[1].split("(")[0]] += 1


def start(scene: Scene, *, style: str, batch_records: int, instance_id: str | None, mutant: str = "") -> Program:
    """Start the program."""
    job = Transform(
        bootstrap=scene.bootstrap,
        group=GROUP,
        instance_id=instance_id,
        transaction_id=TRANSACTION_ID,
        source=SOURCE,
        target=TARGET,
        style=style,
        batch_records=batch_records,
        mutant=mutant,
    )
    return Program(MODULE, [job.to_json()], scene.directory / "programs.log")


def kill_round(scene: Scene, number: int, hits: Hits, *, mutant: str = "") -> str:
    """Start a program, kill it somewhere, in some rounds a broker too, and return what was hit."""
    rng = scene.rng
    style = STYLES[0] if mutant else STYLES[number % len(STYLES)]
    program = start(scene, style=style, batch_records=rng.choice(BATCH_RECORDS), instance_id=INSTANCE_ID, mutant=mutant)
    broker_id, pause = 0, threading.Event()
    try:
        if number % BROKER_EVERY == BROKER_EVERY - 1:
            wait_for_step(program, COMMITTED, 1)
            broker_id = rng.choice([scene.coordinator(TRANSACTION_ID), *scene.cluster.brokers])
            scene.kill(broker_id)
            hits.brokers += 1
        target = rng.choice(STEPS)
        if target == STARTED:
            pause.wait(rng.uniform(0, START_DELAY_S))
        elif not wait_for_step(program, target, rng.randint(1, REPEATS_MAX)):
            hits.late += 1
            return f"{style}: it did not come to {target!r} in time: {program.log_tail()[-300:]}"
        else:
            pause.wait(rng.uniform(0, DELAY_S))
        if not program.is_running:
            raise RuntimeError(f"a program ended by itself: {program.words[-3:]} {program.log_tail()}")
    finally:
        program.kill()
        hits.note(program)
    step = next((word for word in reversed(program.words) if word in STEPS), BEFORE_READY)
    hits.steps[step] += 1
    if broker_id:
        scene.heal()
    return f"{style}: killed after {step!r}{f', broker {broker_id} killed' if broker_id else ''}"


def wait_for_step(program: Program, step: str, times: int) -> bool:
    """Wait until a program has come to a step so many times."""
    deadline_s = time.monotonic() + STEP_TIMEOUT_S
    while times:
        line = program.hear(deadline_s - time.monotonic())
        if line is None:
            return False
        times -= line == step
    return True


def pair_round(scene: Scene, how: str, number: int, hits: Hits) -> list[str]:
    """Run two instances with one transaction id, and return the problems: one of them must be fenced, and the other one go on."""
    # Each is a member of its own: the group lets both work, and only the transaction id tells them apart.
    styles = STYLES if number % 2 else STYLES[::-1]
    first = start(scene, style=styles[0], batch_records=BATCH_RECORDS[1], instance_id=None)
    second: Program | None = None
    programs = [first]
    try:
        if how != "together":
            wait_for_step(first, COMMITTED if how == "later" else COMMITTING, 1)
        if how == "stopped":
            first.stop_all()
        second = start(scene, style=styles[1], batch_records=BATCH_RECORDS[1], instance_id=None)
        programs.append(second)
        if how == "stopped":
            # The stopped one keeps its partitions until its session ends; the other one needs records of its own to open the id.
            wait_for_step(second, COMMITTED, 1)
            first.go_on()
        ended = wait_for(
            lambda: [each for each in programs if _has_ended(each)],
            timeout_s=PAIR_TIMEOUT_S,
            what="one of two instances to be fenced",
            interval_s=CHECK_INTERVAL_S,
        )
        problems = [
            f"{how}: an instance ended with {each.process.poll()} and not fenced: {each.words[-2:]} {each.log_tail()}"
            for each in ended
            if each.process.poll() != FENCED
        ]
        stays = [each for each in programs if each not in ended]
        if not stays:
            return [*problems, f"{how}: both instances were fenced: {[each.words[-1] for each in programs]}"]
        # It goes on with the partitions of both.
        if not wait_for_step(stays[0], COMMITTED, 1):
            problems.append(f"{how}: the instance that was not fenced does not go on: {stays[0].words[-3:]}")
        if how != "together" and stays[0] is not second:
            problems.append(f"{how}: the newer instance was fenced")
        stays[0].ask_to_stop()
        status = stays[0].wait(PAIR_TIMEOUT_S)
        problems += [] if status == 0 else [f"{how}: the other instance ended with {status}: {stays[0].log_tail()}"]
        hits.pairs += not problems
        return problems
    finally:
        for each in programs:
            each.kill()
            hits.note(each)


def _has_ended(program: Program) -> bool:
    """Read on, so that a program never waits for its reader, and return True if it has ended."""
    while program.hear(0.0) is not None:
        pass
    return not program.is_running


def drain(scene: Scene, hits: Hits) -> list[str]:
    """Let a last program do what is left, and return the problems: it must come to the end, and the offsets must be there."""
    ends = scene.end_offsets(SOURCE)
    last = start(scene, style=STYLES[0], batch_records=BATCH_RECORDS[-1], instance_id=INSTANCE_ID)
    try:
        try:
            wait_for(
                lambda: not _has_ended(last) and scene.committed_offsets(GROUP, SOURCE) == ends,
                timeout_s=DRAIN_TIMEOUT_S,
                what="the group to be at the end",
                interval_s=CHECK_INTERVAL_S,
            )
        except TimeoutError as error:
            return [f"{error}: {scene.committed_offsets(GROUP, SOURCE)} of {ends}; {last.words[-3:]} {last.log_tail()}"]
        last.ask_to_stop()
        status = last.wait(PAIR_TIMEOUT_S)
        return [] if status == 0 else [f"the last program ended with {status}: {last.log_tail()}"]
    finally:
        last.kill()
        hits.note(last)


def judge(scene: Scene) -> tuple[list[str], int]:
    """Compare the target with the source, and return the problems and the number of records."""
    source = scene.read(SOURCE)
    wanted: dict[bytes, list[bytes]] = {}
    for record in sorted(source, key=lambda each: (each.partition, each.offset)):
        wanted.setdefault(record.key or b"", []).append(made_of(record))
    difference = compare(wanted, sequences(scene.read(TARGET)))
    problems = [] if difference.is_none else [f"the output differs from the input: {difference}"]
    ends, committed = scene.end_offsets(SOURCE), scene.committed_offsets(GROUP, SOURCE)
    if committed != ends:
        problems.append(f"the offsets of the group are {committed}, the source ends at {ends}")
    return problems, len(source)


def prove(
    directory: Path, *, kills: int, seed: int, pairs: int = 1, budget_s: float = 7_200.0, mutant: str = ""
) -> Outcome:
    """Kill programs, then run pairs of instances, and judge the output.

    Args:
        directory: directory for everything.
        kills: kills of programs.
        seed: seed of all random choices.
        pairs: rounds of two instances of each kind.
        budget_s: seconds after which no round begins; what is left out is a problem.
        mutant: the fault of the program to put in place; empty: none.
    """
    outcome = Outcome(proof="transform", figures={"kills": kills, "seed": seed})
    deadline_s = time.monotonic() + budget_s
    hits = Hits()
    with running_scene(directory, seed=seed) as scene, Producer(scene.bootstrap) as producer:
        scene.create_topic(SOURCE, partitions=SOURCE_PARTITIONS)
        scene.create_topic(TARGET, partitions=TARGET_PARTITIONS)
        scene.admin.alter_configs({ConfigResource.group(GROUP): {"group.session.timeout.ms": str(SESSION_MS)}})
        feed = Feed(producer)
        feed.start()
        done = 0
        while hits.steps.total() < kills and time.monotonic() < deadline_s:
            line = kill_round(scene, done, hits, mutant=mutant)
            done += 1
            print(f"  kill {hits.steps.total():3d}: {line}", flush=True)
        for number in range(pairs):
            for how in PAIRS:
                if time.monotonic() < deadline_s:
                    found = pair_round(scene, how, number, hits)
                    outcome.problems += found
                    print(f"  two instances, {how}: {found or 'one was fenced'}", flush=True)
        feed.join()
        producer.flush()
        began_s = time.monotonic()
        outcome.problems += drain(scene, hits)
        drained_s = time.monotonic()
        problems, records = judge(scene)
        outcome.problems += problems
        scene.heal()
        judged_s = time.monotonic()
        outcome.problems += scene.wait_unstaged([TARGET])
        outcome.figures |= {
            "drain_s": round(drained_s - began_s, 1),
            "unstaged_s": round(time.monotonic() - judged_s, 1),
        }
        outcome.problems += scene.still_open()
    if hits.steps.total() < kills or hits.pairs < pairs * len(PAIRS):
        outcome.problems.append(f"{hits.steps.total()} of {kills} kills and {hits.pairs} of {pairs * len(PAIRS)} pairs")
    outcome.figures |= {
        "records": records,
        "kills_by_step": {step: hits.steps[step] for step in (BEFORE_READY, *STEPS)},
        "broker_kills": hits.brokers,
        "pairs_with_one_fenced": hits.pairs,
        "rounds_without_a_kill": hits.late,
        "errors": dict(hits.errors),
    }
    return outcome

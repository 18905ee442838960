# SPDX-License-Identifier: Apache-2.0
"""A streaming query from one topic to another, whose driver and brokers are killed. The sink equals the source.

The checkpoint says where a kill has hit: a batch that is in its log of offsets and not in its log of commits was under way.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lograft import IngestState, Producer

from integration_tests.harness.outcome import Outcome
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.exactly_once.compare import compare, sequences
from integration_tests.scenarios.exactly_once.processes import END_TIMEOUT_S, Program
from integration_tests.scenarios.exactly_once.scene import Scene, running_scene
from integration_tests.scenarios.exactly_once.stream_program import FAILED, RATE, Stream, key_of

MODULE: Final = "integration_tests.scenarios.exactly_once.stream_program"
DEFAULT_BATCHES: Final = 100
DEFAULT_DRIVER_KILLS: Final = 10
DEFAULT_BROKER_KILLS: Final = 5
BATCH_RECORDS: Final = 1_000
PARTITIONS: Final = 4
KEYS: Final = 200
BATCH_TIMEOUT_S: Final = 600.0
CHECK_INTERVAL_S: Final = 0.05
DELAY_S: Final = 1.5
"""Longest time from the end of a batch to a kill: about as long as a batch takes."""
FAILURES_MAX: Final = 10
"""Most queries that may fail by themselves while brokers are killed. Each is started again."""

UNDER_WAY: Final = "in a batch"
BETWEEN: Final = "between batches"


@dataclass(slots=True, kw_only=True)
class Query:
    """The query over all its drivers. One thread uses it.

    Attributes:
        stream: what it does.
        log_path: log of all drivers.
        failures: errors of queries that failed by themselves.
    """

    stream: Stream
    log_path: Path
    failures: list[str] = field(default_factory=list[str])
    _program: Program | None = None

    def begun(self) -> int:
        """Return how many batches have begun."""
        return _logged(Path(self.stream.checkpoint) / "offsets")

    def done(self) -> int:
        """Return how many batches are done."""
        return _logged(Path(self.stream.checkpoint) / "commits")

    def wait_done(self, count: int) -> None:
        """Wait until so many batches are done. A query that has failed is started again."""
        self.wait(lambda: self.done() >= count, f"{count} batches")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Run the query until a condition holds. A query that has failed is started again."""

        def holds() -> bool:
            self.run()
            return condition()

        try:
            wait_for(holds, timeout_s=BATCH_TIMEOUT_S, what=what, interval_s=CHECK_INTERVAL_S)
        except TimeoutError as error:
            tail = "" if self._program is None else self._program.log_tail()
            raise TimeoutError(f"{error}: {self.done()} are done: {tail}") from None

    def run(self) -> None:
        """Start a driver, unless one runs."""
        program = self._program
        if program is not None:
            while (line := program.hear(0.0)) is not None:
                if line.startswith(FAILED):
                    self.failures.append(line.removeprefix(FAILED).strip())
            if program.is_running:
                return
            if not self.failures or len(self.failures) > FAILURES_MAX:
                raise RuntimeError(f"the query ended: {self.failures[-1:]} {program.log_tail()}")
            program.kill()
        self._program = Program(MODULE, [self.stream.to_json()], self.log_path)

    def kill(self) -> str:
        """Kill the driver, and return what it was in."""
        assert self._program is not None, "a driver runs"
        self._program.kill()
        self._program = None
        return UNDER_WAY if self.begun() > self.done() else BETWEEN

    def stop(self) -> None:
        """End the driver cleanly, or kill it."""
        if self._program is not None:
            self._program.end_input()
            try:
                self._program.wait(END_TIMEOUT_S)
            finally:
                self._program.kill()


def _logged(directory: Path) -> int:
    """Return the number after the last batch in a log of a checkpoint."""
    return max((int(each.name) for each in directory.glob("*") if each.name.isdigit()), default=-1) + 1


def prove(
    directory: Path,
    *,
    batches: int,
    driver_kills: int,
    broker_kills: int,
    seed: int,
    budget_s: float,
    source: str = "source",
) -> Outcome:
    """Run the query over so many micro-batches, kill drivers and brokers on the way, and compare.

    Args:
        directory: directory for everything.
        batches: micro-batches.
        driver_kills: kills of drivers, evenly spread.
        broker_kills: kills of brokers, evenly spread.
        seed: seed of all random choices.
        budget_s: seconds after which nothing is waited for any more; that is a problem.
        source: name of the topic to read; RATE: Spark's own source instead of a topic.
    """
    outcome = Outcome(proof="streaming", figures={"batches": batches, "seed": seed})
    deadline_s = time.monotonic() + budget_s
    where: collections.Counter[str] = collections.Counter()
    brokers = 0
    with running_scene(directory, seed=seed) as scene:
        wanted = _fill(scene, source, batches)
        scene.create_topic("sink", partitions=PARTITIONS)
        query = Query(
            stream=Stream(
                bootstrap=scene.bootstrap,
                source=source,
                sink="sink",
                checkpoint=str(directory / "checkpoint"),
                batch_records=BATCH_RECORDS,
                directory=str(directory / "spark"),
            ),
            log_path=directory / "stream.log",
        )
        plan = sorted(
            [((number + 1) * batches // (driver_kills + 1), "driver") for number in range(driver_kills)]
            + [((2 * number + 1) * batches // (2 * broker_kills), "broker") for number in range(broker_kills)]
        )
        try:
            for batch, what in plan:
                if time.monotonic() > deadline_s or query.done() + 2 > batches:
                    break
                query.wait_done(max(batch, query.done() + 1))
                threading.Event().wait(scene.rng.uniform(0, DELAY_S))
                if what == "driver":
                    hit = query.kill()
                    where[hit] += 1
                else:
                    hit = _kill_broker(scene, query)
                    brokers += 1
                print(f"  batch {query.done():3d}: {what} killed, {hit}", flush=True)
            query.wait_done(batches)
            if source != RATE:
                total = sum(map(len, wanted.values()))
                query.wait(lambda: sum(scene.end_offsets("sink").values()) >= total, f"{total} records in the sink")
            done = query.done()
        finally:
            query.stop()
        found = sequences(scene.read("sink"))
        if source == RATE:
            # It goes on until it is stopped: a prefix of the numbers.
            wanted = {key_of(number): [b"%d" % number] for number in range(query.done() * BATCH_RECORDS)}
        difference = compare(wanted, found)
        outcome.problems += [] if difference.is_none else [f"the sink differs from the source: {difference}"]
        scene.heal()
        outcome.problems += scene.wait_unstaged(["sink"])
        outcome.problems += scene.still_open()
        committed = scene.admin.list_ingests([IngestState.COMMITTED]).ingests
    if where.total() < driver_kills or brokers < broker_kills:
        outcome.problems.append(
            f"{where.total()} of {driver_kills} drivers and {brokers} of {broker_kills} brokers killed"
        )
    outcome.figures |= {
        "batches_done": done,
        "records": sum(map(len, found.values())),
        "driver_kills": dict(where),
        "broker_kills": brokers,
        "failed_queries": len(query.failures),
        "committed_ingests": len(committed),
    }
    return outcome


def _fill(scene: Scene, source: str, batches: int) -> dict[bytes, list[bytes]]:
    """Make the source, and return what the sink must have."""
    wanted: dict[bytes, list[bytes]] = {}
    if source == RATE:
        return wanted
    scene.create_topic(source, partitions=PARTITIONS)
    with Producer(scene.bootstrap) as producer:
        for number in range(batches * BATCH_RECORDS):
            key, value = b"key-%d" % (number % KEYS), b"%d" % number
            producer.send(source, value, key=key)
            wanted.setdefault(key, []).append(value)
    return wanted


def _kill_broker(scene: Scene, query: Query) -> str:
    """Kill a broker, let the query go on without it, and start it again."""
    broker_id = scene.rng.choice(list(scene.cluster.brokers))
    scene.kill(broker_id)
    query.wait_done(query.done() + 1)
    scene.heal()
    return f"broker {broker_id}"

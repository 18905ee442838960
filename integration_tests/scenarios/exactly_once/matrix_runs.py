# SPDX-License-Identifier: Apache-2.0
"""One run of a row of the fault matrix: a fresh topic and ingest id, jobs, holds at exact points, and the judgement at the end.

A row of `matrix_rows` says what happens in a run. This module owns how a run is held at a point on real processes:

* *while staging*: first attempts wait when they have given away most of their rows; something of the run is staged then.
* *between seal and commit*: the driver is stopped as soon as the coordinator has all attempts sealed. If the ingest is open then,
  nobody has committed it.
* *between decision and publish*: one broker is down, and before the driver goes on, the topic is told to need all three replicas. So
  its leaders refuse to publish, and the ingest is decided, with no part published, until the topic is told otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lograft import Ingest, IngestState
from lograft.types import IngestDescription

from brokerd.coordinator.internal_topics import INGESTS
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.exactly_once.compare import Difference, compare, sequences
from integration_tests.scenarios.exactly_once.drivers import (
    WORKERS,
    Answer,
    Driver,
    Standalone,
    local_driver,
    sdk_driver,
)
from integration_tests.scenarios.exactly_once.processes import INGEST
from integration_tests.scenarios.exactly_once.scene import MIN_IN_SYNC, REPLICAS, Scene
from integration_tests.scenarios.exactly_once.spark_tasks import (
    PART_WAY,
    SEALED,
    Notes,
    Script,
    fields_of,
    records_wanted,
)
from metaquorum.metadata.topic_names import staging_topic

PARTITIONS: Final = 4
JOB_TIMEOUT_S: Final = 900.0
POINT_TIMEOUT_S: Final = 300.0
CHECK_INTERVAL_S: Final = 0.05
WATCH_INTERVAL_S: Final = 0.001
RERUNS_MAX: Final = 3
DELIVERY_TIMEOUT_MS: Final = 120_000


class MissedError(Exception):
    """The fault of a run did not meet the point that it is about. The run does not count, and is repeated."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """What the runs work on. It starts drivers when a row needs them, and keeps them for the next runs.

    Attributes:
        scene: the cluster.
        records: records of an ingest.
        tasks: tasks of an ingest.
        has_spark: False if the drivers are those of the SDK alone.
        standalone: Spark's servers; started when a row needs them.
    """

    scene: Scene
    records: int
    tasks: int
    has_spark: bool = True
    standalone: Standalone | None = None
    drivers: dict[str, Driver] = field(default_factory=dict[str, Driver])

    def local(self, name: str = "local") -> Driver:
        """Return a running driver whose tasks run in its own process."""
        if name not in self.drivers:
            directory = self.scene.directory
            self.drivers[name] = (
                local_driver(directory, name, tasks=self.tasks) if self.has_spark else sdk_driver(directory, name)
            )
        return self._running(name)

    def on_workers(self, name: str, settings: dict[str, str] | None = None, *, workers: int = WORKERS) -> Driver:
        """Return a running driver whose tasks run in executors, of at least so many workers."""
        if self.standalone is None:
            self.standalone = Standalone(self.scene.directory)
            self.standalone.start()
        self.standalone.start_workers(workers)
        if name not in self.drivers:
            self.drivers[name] = self.standalone.driver(name, settings)
        return self._running(name)

    def make_coordinators(self, topic: str) -> None:
        """Make the topic of ingests while all brokers are there; the first ingest does."""
        if any(each.topic == INGESTS.name for each in self.scene.admin.list_topics(include_internal=True)):
            return
        with Ingest.open(self.scene.bootstrap, self.scene.new_name("first"), topics=[topic]) as first:
            first.abort()

    def close(self, *, but: Sequence[str] = ()) -> None:
        """End the drivers, but for some, and with the last one Spark's servers."""
        for name in [each for each in self.drivers if each not in but]:
            self.drivers.pop(name).close()
        if self.standalone is not None and not but:
            self.standalone.stop()
            self.standalone = None

    def _running(self, name: str) -> Driver:
        self.drivers[name].start()
        return self.drivers[name]


@dataclass(slots=True, kw_only=True)
class Run:
    """One run. The row writes it through its methods.

    Attributes:
        stage: what it works on.
        number: its number in the row, from 0.
        topic: its topic.
        ingest_id: its ingest.
        notes: where its tasks leave notes.
        reruns: jobs that were submitted again, with the same id, after one that had failed.
        absent: the broker that is down while publications are held back; None: all are there.
        errors: why jobs have failed.
        text: what was hit, for the printed line.
        facts: figures of the run, by name.
    """

    stage: Stage
    number: int
    topic: str
    ingest_id: str
    notes: Notes
    reruns: int = 0
    absent: int | None = None
    errors: list[str] = field(default_factory=list[str])
    text: str = ""
    facts: dict[str, int] = field(default_factory=dict[str, int])

    # -- jobs

    def script(self, **faults: Any) -> Script:
        """Return what goes wrong in the tasks."""
        return Script(directory=str(self.notes.directory), **faults)

    def submit(self, driver: Driver, script: Script) -> None:
        """Begin a job of the run's ingest."""
        driver.submit(
            {
                "kind": INGEST,
                "records": self.stage.records,
                "tasks": self.stage.tasks,
                "script": fields_of(script),
                "options": {
                    "kafka.bootstrap.servers": self.stage.scene.bootstrap,
                    "kafka.delivery.timeout.ms": str(DELIVERY_TIMEOUT_MS),
                    "topic": self.topic,
                    "ingest.id": self.ingest_id,
                },
            }
        )

    def answer(self, driver: Driver) -> Answer:
        """Wait for the end of a job."""
        found = driver.answer(JOB_TIMEOUT_S)
        if found is None:
            raise TimeoutError(f"a job did not end within {JOB_TIMEOUT_S:.0f} s: {driver.program.log_tail()}")
        if found.error is not None:
            self.errors.append(found.error)
        return found

    def finish(self, driver: Driver) -> None:
        """Wait for the end of a job. After a failure do what a user does: run it again with the same id."""
        while self.answer(driver).error is not None:
            if self.reruns == RERUNS_MAX:
                raise RuntimeError(f"the job failed {RERUNS_MAX + 1} times: {self.errors[-1]}")
            self.rerun(driver)

    def rerun(self, driver: Driver) -> None:
        """Begin the job again, with the same id and without a fault in its tasks."""
        self.reruns += 1
        self.submit(driver, self.script())

    # -- points

    def wait_noted(self, what: str, count: int) -> list[tuple[int, int]]:
        """Wait until so many attempts have noted something."""

        def found() -> list[tuple[int, int]] | None:
            notes = self.notes.of(what)
            return notes if len(notes) >= count else None

        return wait_for(found, timeout_s=POINT_TIMEOUT_S, what=f"{count} tasks {what}", interval_s=CHECK_INTERVAL_S)

    def hold_staging(self, driver: Driver, script: Script | None = None) -> None:
        """Submit a job, and return when all first attempts wait and something is staged. `notes.open_gate` lets them go on."""
        self.submit(driver, script or self.script(waits_at=PART_WAY))
        self.wait_noted(PART_WAY, self.stage.tasks)
        scene = self.stage.scene
        try:
            wait_for(
                lambda: scene.staged_records(self.topic),
                timeout_s=POINT_TIMEOUT_S / 4,
                what="staged records",
                interval_s=CHECK_INTERVAL_S,
            )
        except TimeoutError:
            self.notes.open_gate()
            self.finish(driver)
            raise MissedError("nothing was staged when all attempts had given away most of their rows") from None
        self.facts["staged_at_fault"] = scene.staged_records(self.topic)

    def hold_sealed(self, driver: Driver) -> None:
        """Submit a job, and stop its driver when all attempts are sealed and nothing is committed. `driver.go_on` lets it go on.

        Raises:
            MissedError: it was committed before the driver stood still.
        """
        self.submit(driver, self.script(waits_at=SEALED))

        def is_sealed() -> bool:
            found = self.stage.scene.ingest(self.ingest_id)
            return found is not None and (
                found.state is not IngestState.OPEN or found.sealed_attempts == self.stage.tasks
            )

        wait_for(is_sealed, timeout_s=POINT_TIMEOUT_S, what="sealed attempts", interval_s=WATCH_INTERVAL_S)
        driver.stop_all()
        # Whoever waited for it goes on when the driver does.
        self.notes.open_gate()
        found = self.described()
        if found.state is not IngestState.OPEN or found.sealed_attempts != self.stage.tasks:
            driver.go_on()
            self.stage.scene.heal()
            self.finish(driver)
            raise MissedError(f"the ingest was {found.state.value} when the driver stood still")

    def hold_decided(self, driver: Driver) -> None:
        """Submit a job, and return when it is decided and nothing is published. `publish` ends that.

        One broker is down then, neither the coordinator nor all that the topic has: `return_absent` or `Scene.heal` starts it.
        """
        scene = self.stage.scene
        self.stage.make_coordinators(self.topic)
        coordinator = scene.coordinator(self.ingest_id)
        self.absent = scene.rng.choice([each for each in scene.cluster.brokers if each != coordinator])
        scene.take_out(self.absent, [self.topic])
        self.hold_sealed(driver)
        scene.set_min_in_sync(self.topic, REPLICAS)
        driver.go_on()

        def is_decided() -> bool:
            found = scene.ingest(self.ingest_id)
            return found is not None and found.state in (IngestState.DECIDED, IngestState.COMMITTED)

        wait_for(is_decided, timeout_s=POINT_TIMEOUT_S, what="a decision", interval_s=CHECK_INTERVAL_S)
        self.must_be_unpublished(driver)

    def return_absent(self) -> None:
        """Start the broker that is down."""
        assert self.absent is not None, "a broker is down"
        self.stage.scene.cluster.brokers[self.absent].start()

    def must_be_unpublished(self, driver: Driver) -> None:
        """Demand that the ingest is decided and no part of it is published. Raises MissedError."""
        found = self.described()
        if found.state is not IngestState.DECIDED or found.published_parts:
            self.publish()
            self.stage.scene.heal()
            self.finish(driver)
            raise MissedError(f"the ingest was {found.state.value}, {found.published_parts} parts published")

    def must_be_sealed(self, driver: Driver) -> None:
        """Demand that the ingest is still open, with all attempts sealed. Raises MissedError."""
        found = self.described()
        if found.state is not IngestState.OPEN or found.sealed_attempts != self.stage.tasks:
            driver.go_on()
            self.stage.scene.heal()
            self.finish(driver)
            raise MissedError(f"the ingest was {found.state.value} after the kill")

    def publish(self) -> None:
        """Let the leaders of the topic publish."""
        self.stage.scene.wait(self._allow, "the topic's config")

    def described(self) -> IngestDescription:
        """Wait until the ingest's coordinator says how it stands."""
        return wait_for(
            lambda: self.stage.scene.ingest(self.ingest_id),
            timeout_s=POINT_TIMEOUT_S,
            what="a description of the ingest",
            interval_s=CHECK_INTERVAL_S,
        )

    def leader(self, *, of_staging: bool = False, but: int | None = None) -> int:
        """Return a leader of the topic, or of its staging topic: the one of most partitions, but for one broker if there is another."""
        scene = self.stage.scene
        described = scene.admin.describe_topic(self.topic)
        name = staging_topic(described.topic_id) if of_staging else self.topic
        leaders = [scene.leader(name, number) for number in range(len(described.partitions))]
        others = [each for each in leaders if each != but]
        return max(others or leaders, key=(others or leaders).count)

    def _allow(self) -> bool:
        self.stage.scene.set_min_in_sync(self.topic, MIN_IN_SYNC)
        return True

    # -- judgement

    def judge(self) -> tuple[Difference, list[str], float]:
        """Compare the topic with the source, and wait for empty staging space.

        Returns:
            The difference, the other problems, and the seconds until nothing was staged.
        """
        scene, problems = self.stage.scene, list[str]()
        difference = compare(records_wanted(self.stage.records), sequences(scene.read(self.topic)))
        found = self.described()
        self.facts["dropped_attempts"] = 0 if found.result is None else found.result.dropped_attempts
        if found.state is not IngestState.COMMITTED or found.result is None:
            problems.append(f"the ingest is {found.state.value}")
        elif found.result.records != self.stage.records:
            problems.append(f"the ingest says {found.result.records} records")
        began_s = time.monotonic()
        problems += scene.wait_unstaged([self.topic])
        return difference, problems, time.monotonic() - began_s


Row = Callable[[Run], None]
"""One run of a row: it does everything up to the end of the last job, and raises MissedError if the fault met another point."""


def begin(stage: Stage, row: str, number: int) -> Run:
    """Return a run with a fresh topic, ingest id and directory."""
    scene = stage.scene
    name = scene.new_name(row)
    directory = scene.directory / "notes" / name
    directory.mkdir(parents=True)
    scene.create_topic(name, partitions=PARTITIONS)
    return Run(stage=stage, number=number, topic=name, ingest_id=f"{row}/{name}", notes=Notes(Path(directory)))

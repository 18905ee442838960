# SPDX-License-Identifier: Apache-2.0
"""The rows of the fault matrix of exactly-once ingest from Spark. docs/testing.md has them as a table.

A row does one run: it submits jobs, brings the fault, and checks that the fault met the point that the row is about. It knows nothing
of the judgement of the records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lograft import IngestState

from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.exactly_once.drivers import TASK_ATTEMPTS, Driver, executor_of, kill_process
from integration_tests.scenarios.exactly_once.matrix_runs import (
    CHECK_INTERVAL_S,
    JOB_TIMEOUT_S,
    POINT_TIMEOUT_S,
    MissedError,
    Row,
    Run,
)
from integration_tests.scenarios.exactly_once.spark_tasks import BEGAN, END, ENDED, FAILED, PART_WAY

ALWAYS: Final = 1_000
"""More attempts than a task ever has."""

LOSERS: Final = 4
"""Denied commits after which Spark fails a job: its `spark.task.maxFailures`."""

ALL_WORKERS: Final = LOSERS + 1
"""Spark starts no copy of a task on a machine that has had an attempt of it."""

SETTLE_S: Final = 2.0
"""Seconds in which an executor has asked its stopped driver whether it may commit."""

SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}


ONE_EACH: Final = {"spark.cores.max": str(ALL_WORKERS), "spark.executor.cores": "1"}
"""An executor of one core on each worker."""


def first_attempts_fail(run: Run) -> None:
    """Every first attempt stages most of its rows, and fails; the second one has the rows in the same order."""
    _fail_first(run, shuffles=False)


def other_row_order(run: Run) -> None:
    """Every first attempt fails, and the second one has the rows in another order."""
    _fail_first(run, shuffles=True)


def _fail_first(run: Run, *, shuffles: bool) -> None:
    driver = run.stage.local()
    run.submit(driver, run.script(fails_below=1, shuffles=shuffles))
    run.finish(driver)
    failed = [task for task, attempt in run.notes.of(FAILED) if attempt == 0]
    if len(failed) != run.stage.tasks:
        raise MissedError(f"only {len(failed)} first attempts failed")
    run.text = f"{len(failed)} first attempts failed"


def executor_killed(run: Run) -> None:
    """An executor's JVM is killed while its tasks stage; others do them again."""
    driver = run.stage.on_workers("cluster")
    run.hold_staging(driver)
    executor = executor_of(run.notes.process_id(PART_WAY, 0, 0))
    kill_process(executor)
    run.notes.open_gate()
    run.finish(driver)
    again = [task for task, attempt in run.notes.of(BEGAN) if attempt]
    if not again:
        raise MissedError("no task was done again")
    run.text = f"executor {executor.pid} killed, {len(again)} tasks done again"


def speculation(run: Run) -> None:
    """A first attempt hangs when it has staged most of its rows; its speculative copy wins, and the first one goes on or is killed."""
    driver = run.stage.on_workers("speculative", SPECULATION)
    run.submit(driver, run.script(waits_at=PART_WAY, waiting=(0,)))
    try:
        wait_for(
            lambda: (0, 1) in run.notes.of(ENDED),
            timeout_s=POINT_TIMEOUT_S,
            what="a speculative copy",
            interval_s=CHECK_INTERVAL_S,
        )
    finally:
        run.notes.open_gate()
    run.finish(driver)
    if (0, 0) not in run.notes.of(PART_WAY):
        raise MissedError("the first attempt had not staged anything")
    run.text = "a speculative copy won"


def four_losers(run: Run) -> None:
    """Spark lets one attempt commit, and its executor stands still; four other attempts are denied, and the job fails. A rerun commits.

    The driver is stopped while the first attempt asks it for permission. Then the executor is stopped, and the driver goes on: it
    permits an attempt that cannot answer (SPARK-56564).
    """
    driver = run.stage.on_workers("losers", {**SPECULATION, **ONE_EACH}, workers=ALL_WORKERS)
    run.submit(driver, run.script(waits_at=END, waiting=(0,)))
    wait_for(
        lambda: (0, 0) in run.notes.of(END) and len(run.notes.of(ENDED)) >= run.stage.tasks - 1,
        timeout_s=POINT_TIMEOUT_S,
        what="one task that waits at its end, and others that have ended",
        interval_s=CHECK_INTERVAL_S / 5,
    )
    driver.stop_all()
    executor = executor_of(run.notes.process_id(END, 0, 0))
    copies = [attempt for task, attempt in run.notes.of(BEGAN) if task == 0 and attempt]
    sealed = run.described().sealed_attempts
    run.notes.open_gate()
    wait_for(
        lambda: run.described().sealed_attempts > sealed,
        timeout_s=POINT_TIMEOUT_S,
        what="the sealed attempt",
        interval_s=CHECK_INTERVAL_S,
    )
    threading.Event().wait(SETTLE_S)
    executor.suspend()
    try:
        driver.go_on()
        answer = driver.answer(JOB_TIMEOUT_S)
    finally:
        executor.resume()
    if answer is None:
        raise TimeoutError(f"the job did not end within {JOB_TIMEOUT_S:.0f} s")
    losers = sorted(attempt for task, attempt in run.notes.of(ENDED) if task == 0 and attempt)
    if answer.error is not None:
        run.errors.append(answer.error)
        run.rerun(driver)
        run.finish(driver)
    if len(losers) < LOSERS:
        raise MissedError(f"attempts {losers} of a task lost ({copies} had begun early); {run.errors[-1:]}")
    run.text = f"{len(losers)} losers, the job {'went on' if answer.error is None else 'failed and ran again'}"


def permanent_failure(run: Run) -> None:
    """One task fails in every attempt, so the job fails: nothing is published, and nothing stays staged. A rerun commits."""
    driver = run.stage.local()
    last = run.stage.tasks - 1
    run.submit(driver, run.script(fails_below=ALWAYS, failing=(last,)))
    if run.answer(driver).error is None:
        raise RuntimeError("a job with a task that always fails has succeeded")
    failed = [attempt for task, attempt in run.notes.of(FAILED) if task == last]
    published = len(run.stage.scene.read(run.topic))
    state = run.described().state
    if published or state is not IngestState.ABORTED:
        raise RuntimeError(f"after a failed job {published} records are published, and the ingest is {state.value}")
    left = run.stage.scene.wait_unstaged([run.topic])
    if left:
        raise RuntimeError(f"after a failed job: {left}")
    run.rerun(driver)
    run.finish(driver)
    if len(failed) != TASK_ATTEMPTS:
        raise MissedError(f"the job failed after {len(failed)} failed attempts of the task: {run.errors[0]:.200}")
    run.text = f"{len(failed)} attempts of a task failed, the ingest was aborted, a rerun committed"


def lost_reply(run: Run) -> None:
    """The process that commits is killed when the ingest is decided: the job fails although it is committed. A rerun does nothing."""
    driver = run.stage.local()
    run.hold_decided(driver)
    killed = driver.kill_commit()
    answer = run.answer(driver)
    run.publish()
    run.stage.scene.wait(lambda: run.described().state is IngestState.COMMITTED, "the publication")
    if not killed or answer.error is None:
        raise MissedError(f"{killed} processes were killed, the job says {answer.error}")
    run.notes.clear()
    run.stage.scene.heal()
    run.rerun(driver)
    run.finish(driver)
    run.facts["tasks_of_rerun"] = len(run.notes.of(ENDED))
    run.text = f"decided, the committing process was killed, the job failed, a rerun made {run.facts['tasks_of_rerun']} tasks' rows"


def zombie_driver(run: Run) -> None:
    """A driver stands still while it stages; another one does the whole job with the same id; the first one wakes, and must fail."""
    old, new = run.stage.local("old"), run.stage.local()
    run.hold_staging(old)
    epoch = run.described().epoch
    old.stop_all()
    run.submit(new, run.script())
    run.finish(new)
    found = run.described()
    old.go_on()
    run.notes.open_gate()
    answer = run.answer(old)
    if found.epoch <= epoch:
        raise MissedError(f"the second driver had epoch {found.epoch}, the first one {epoch}")
    if answer.error is None:
        raise RuntimeError("a driver that was replaced says that its job has succeeded")
    run.text = f"epoch {epoch} woke after epoch {found.epoch} had committed, and failed"


def driver_killed(run: Run) -> None:
    """The driver is killed: while it stages, or when the ingest is decided. A new one runs the job again with the same id."""
    old, new = run.stage.local("old"), run.stage.local()
    if run.number % 2:
        run.hold_decided(old)
        old.kill()
        found = run.described()
        run.publish()
        point = f"{found.state.value}, {found.published_parts} parts published"
        run.stage.scene.heal()
    else:
        run.hold_staging(old)
        old.kill()
        point = "while staging"
    run.notes.clear()
    run.rerun(new)
    run.finish(new)
    run.text = f"driver killed {point}"


def leader_killed_staging(run: Run) -> None:
    """The leader of staging partitions is killed while the tasks stage."""
    driver, scene = run.stage.local(), run.stage.scene
    run.hold_staging(driver)
    broker_id = run.leader(of_staging=True)
    scene.kill(broker_id)
    run.notes.open_gate()
    run.finish(driver)
    scene.heal()
    run.text = f"broker {broker_id} killed, {run.facts['staged_at_fault']} records staged"


def leader_killed_sealed(run: Run) -> None:
    """The leader of staging partitions is killed between the last seal and the commit."""
    driver, scene = run.stage.local(), run.stage.scene
    run.hold_sealed(driver)
    broker_id = run.leader(of_staging=True)
    scene.kill(broker_id)
    run.must_be_sealed(driver)
    driver.go_on()
    run.finish(driver)
    scene.heal()
    run.text = f"broker {broker_id} killed, all attempts sealed"


def leader_killed_decided(run: Run) -> None:
    """The leader of the topic is killed between decision and publication."""
    driver, scene = run.stage.local(), run.stage.scene
    run.hold_decided(driver)
    broker_id = run.leader(but=scene.coordinator(run.ingest_id))
    scene.kill(broker_id)
    run.return_absent()
    run.must_be_unpublished(driver)
    run.publish()
    run.finish(driver)
    scene.heal()
    run.text = f"broker {broker_id} killed, decided, nothing published"


def coordinator_killed(run: Run) -> None:
    """The coordinator of the ingest is killed: while tasks stage, when all is sealed, or when it is decided, in turns."""
    driver, scene = run.stage.local(), run.stage.scene
    point = ("while staging", "all sealed", "decided")[run.number % 3]
    hold: Callable[[Driver], None] = (run.hold_staging, run.hold_sealed, run.hold_decided)[run.number % 3]
    hold(driver)
    broker_id = scene.coordinator(run.ingest_id)
    scene.kill(broker_id)
    if point == "decided":
        run.return_absent()
        run.must_be_unpublished(driver)
        run.publish()
    elif point == "all sealed":
        run.must_be_sealed(driver)
    run.notes.open_gate()
    driver.go_on()
    run.finish(driver)
    scene.heal()
    run.text = f"coordinator {broker_id} killed {point}"


def cluster_restarted(run: Run) -> None:
    """All brokers and voters are killed and started again: while tasks stage, or when the ingest is decided, in turns."""
    driver, scene = run.stage.local(), run.stage.scene
    is_decided = run.number % 2 == 1
    if is_decided:
        run.hold_decided(driver)
    else:
        run.hold_staging(driver)
    scene.restart_all()
    if is_decided:
        run.must_be_unpublished(driver)
        run.publish()
    run.notes.open_gate()
    run.finish(driver)
    scene.heal()
    run.text = f"all servers killed {'when it was decided' if is_decided else 'while staging'}"


@dataclass(frozen=True, slots=True)
class RowOfMatrix:
    """A row.

    Attributes:
        work: one run of it.
        drivers: names of the drivers that it uses; the others are closed before it.
        needs_spark: True if it is about what Spark does.
    """

    work: Row
    drivers: tuple[str, ...]
    needs_spark: bool = False


ROWS: dict[str, RowOfMatrix] = {
    "first-attempts-fail": RowOfMatrix(first_attempts_fail, ("local",)),
    "other-row-order": RowOfMatrix(other_row_order, ("local",)),
    "permanent-failure": RowOfMatrix(permanent_failure, ("local",)),
    "lost-reply": RowOfMatrix(lost_reply, ("local",), needs_spark=True),
    "leader-killed-staging": RowOfMatrix(leader_killed_staging, ("local",)),
    "leader-killed-sealed": RowOfMatrix(leader_killed_sealed, ("local",)),
    "leader-killed-decided": RowOfMatrix(leader_killed_decided, ("local",)),
    "coordinator-killed": RowOfMatrix(coordinator_killed, ("local",)),
    "cluster-restarted": RowOfMatrix(cluster_restarted, ("local",)),
    "zombie-driver": RowOfMatrix(zombie_driver, ("local", "old")),
    "driver-killed": RowOfMatrix(driver_killed, ("local", "old")),
    "executor-killed": RowOfMatrix(executor_killed, ("cluster",), needs_spark=True),
    "speculation": RowOfMatrix(speculation, ("speculative",), needs_spark=True),
    "four-losers": RowOfMatrix(four_losers, ("losers",), needs_spark=True),
}
"""Each row by its name, in an order that keeps drivers for as long as possible."""

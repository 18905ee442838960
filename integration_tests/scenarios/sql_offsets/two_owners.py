# SPDX-License-Identifier: Apache-2.0
"""Two owners at once: a worker is stopped in the middle of its work, another one takes over, and the first one goes on.

Its transaction comes late, so the database must refuse it, whether its successor has stored something in the meantime or not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

from integration_tests.harness.outcome import Outcome
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.sql_offsets.scene import Scene, WorkerProcess, sql_scene
from integration_tests.scenarios.sql_offsets.worker import FENCED, STAYS

STOP_TIMEOUT_S: Final = 120.0
NOT_CLAIMED: Final = "not claimed yet"
"""What the library logs when the coordinator does not confirm a claim."""

RECORDS_PER_ROUND: Final = 100
BATCH_RECORDS: Final = 10

STOPS: Final = {
    # In SQLite a transaction with changes has the whole database, so that nobody can take over.
    "sqlite": ("after poll",),
    "postgresql": ("after poll", "after insert of records", "before update of offsets"),
    "mariadb": ("after poll", "after insert of records", "before update of offsets"),
}
"""Steps at which the first worker stops."""


def prove(directory: Path, *, database: str, rounds: int, seed: int, mutant: str = "", groups: int = 1) -> Outcome:
    """Replace stopped workers, and judge the database.

    Args:
        directory: directory for everything.
        database: name of the database.
        rounds: number of rounds with own partitions.
        seed: unused: the rounds differ by their number.
        mutant: the fault to put in place; empty: none.
        groups: number of further rounds with a static member of a group, which wait until its coordinator gives it up (15 s or
            more). In every second of them it stops before it claims the partitions.
    """
    outcome = Outcome(proof=f"two-owners-{database}", figures={"rounds": rounds + groups, "seed": seed})
    with sql_scene(directory, database) as scene:
        for number in range(rounds + groups):
            if number < rounds:
                stop = STOPS[database][number % len(STOPS[database])]
                outcome.problems += one_round(scene, number, mode="assign", stop=stop, mutant=mutant)
            else:
                is_early = (number - rounds) % 2 == 1
                stop = "before update of offsets" if is_early else STOPS[database][0]
                outcome.problems += one_round(scene, number, mode="group", stop=stop, is_early=is_early, mutant=mutant)
        last = scene.start(scene.job(mode="assign"))
        if last.wait() != 0:
            outcome.problems.append(f"the last worker failed: {last.output()}")
        outcome.problems += scene.problems()
        outcome.figures["records"] = scene.sent
    return outcome


def one_round(scene: Scene, number: int, *, mode: str, stop: str, is_early: bool = False, mutant: str) -> list[str]:
    """Stop a worker, replace it, let it go on, and return the problems."""
    scene.send(RECORDS_PER_ROUND)
    # The successor stores nothing in every second round: its claim alone must keep the first worker out.
    stored = 0 if number % 2 == 0 else 2
    first = scene.start(
        scene.job(mode=mode, batch_records=BATCH_RECORDS, stop_at=stop, stop_early=is_early, mutant=mutant)
    )
    second: WorkerProcess | None = None
    try:
        wait_for(lambda: _is_stopped(first), timeout_s=STOP_TIMEOUT_S, what="the first worker to stop")
        second = scene.start(
            scene.job(mode=mode, batch_records=BATCH_RECORDS, transactions=stored, stays=True, mutant=mutant)
        )
        _wait_for_words(second, STAYS, "the second worker to take over")
        epochs = scene.epochs()
        psutil.Process(first.process.pid).resume()
        if is_early:
            # The coordinator may let it wait for its successor's end, so that it need not end.
            _wait_for_words(first, NOT_CLAIMED, "the first worker to be refused")
            status = FENCED
        else:
            status = first.wait()
    finally:
        for worker in (first, second):
            if worker is not None and worker.process.poll() is None:
                worker.kill()
    problems: list[str] = []
    if status != FENCED:
        problems.append(
            f"round {number}, {mode}: the late worker was not fenced, status {status}: {first.last_words()}"
        )
    if scene.epochs() != epochs:
        problems.append(f"round {number}, {mode}: the late worker took partitions back, {epochs} to {scene.epochs()}")
    return problems


def _wait_for_words(worker: WorkerProcess, words: str, what: str) -> None:
    """Wait until a worker has said something, or has been fenced."""

    def have_come() -> bool:
        if worker.process.poll() not in (None, FENCED):
            raise RuntimeError(f"a worker ended before {what}: {worker.output()}")
        return words in worker.output() or worker.process.poll() == FENCED

    wait_for(have_come, timeout_s=STOP_TIMEOUT_S, what=what)


def _is_stopped(worker: WorkerProcess) -> bool:
    if worker.process.poll() is not None:
        raise RuntimeError(f"a worker ended before its stop: {worker.output()}")
    return psutil.Process(worker.process.pid).status() == psutil.STATUS_STOPPED

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
from integration_tests.scenarios.sql_offsets.worker import FENCED

STOP_TIMEOUT_S: Final = 120.0
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
    try:
        wait_for(lambda: _is_stopped(first), timeout_s=STOP_TIMEOUT_S, what="the first worker to stop")
        second = scene.start(scene.job(mode=mode, batch_records=BATCH_RECORDS, transactions=stored, mutant=mutant))
        if second.wait() != 0:
            return [f"round {number}: the second worker failed: {second.output()}"]
        epochs = scene.epochs()
        psutil.Process(first.process.pid).resume()
        status = first.wait()
    finally:
        if first.process.poll() is None:
            first.kill()
    problems: list[str] = []
    if status != FENCED:
        problems.append(
            f"round {number}, {mode}: the late worker was not fenced, status {status}: {first.last_words()}"
        )
    if scene.epochs() != epochs:
        problems.append(f"round {number}, {mode}: the late worker took partitions back, {epochs} to {scene.epochs()}")
    return problems


def _is_stopped(worker: WorkerProcess) -> bool:
    if worker.process.poll() is not None:
        raise RuntimeError(f"a worker ended before its stop: {worker.output()}")
    return psutil.Process(worker.process.pid).status() == psutil.STATUS_STOPPED

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
        groups: number of further rounds with a static member of a group. Each waits for the end of a silent stream, 15 s.
    """
    outcome = Outcome(proof=f"two-owners-{database}", figures={"rounds": rounds + groups, "seed": seed})
    with sql_scene(directory, database) as scene:
        for number in range(rounds + groups):
            mode = "assign" if number < rounds else "group"
            outcome.problems += one_round(scene, number, mode=mode, mutant=mutant)
        last = scene.start(scene.job(mode="assign"))
        if last.wait() != 0:
            outcome.problems.append(f"the last worker failed: {last.output()}")
        outcome.problems += scene.problems()
        outcome.figures["records"] = scene.sent
    return outcome


def one_round(scene: Scene, number: int, *, mode: str, mutant: str) -> list[str]:
    """Stop a worker, replace it, let it go on, and return the problems."""
    scene.send(RECORDS_PER_ROUND)
    stops = STOPS[scene.database]
    # The successor stores nothing in every second round: its claim alone must keep the first worker out.
    stored = 0 if number % 2 == 0 else 2
    first = scene.start(
        scene.job(mode=mode, batch_records=BATCH_RECORDS, stop_at=stops[number % len(stops)], mutant=mutant)
    )
    try:
        wait_for(lambda: _is_stopped(first), timeout_s=STOP_TIMEOUT_S, what="the first worker to stop")
        second = scene.start(scene.job(mode=mode, batch_records=BATCH_RECORDS, transactions=stored, mutant=mutant))
        if second.wait() != 0:
            return [f"round {number}: the second worker failed: {second.output()}"]
        psutil.Process(first.process.pid).resume()
        status = first.wait()
    finally:
        if first.process.poll() is None:
            first.kill()
    if status != FENCED:
        return [f"round {number}, {mode}: the late worker was not fenced, status {status}: {first.last_words()}"]
    return []


def _is_stopped(worker: WorkerProcess) -> bool:
    if worker.process.poll() is not None:
        raise RuntimeError(f"a worker ended before its stop: {worker.output()}")
    return psutil.Process(worker.process.pid).status() == psutil.STATUS_STOPPED

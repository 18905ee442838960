# SPDX-License-Identifier: Apache-2.0
"""Workers that die of SIGKILL between any two steps. At the end each record is in the database once."""

from __future__ import annotations

import collections
import random
import signal
from pathlib import Path
from typing import Final

from integration_tests.harness.outcome import Outcome
from integration_tests.scenarios.sql_offsets.scene import Scene, sql_scene
from integration_tests.scenarios.sql_offsets.worker import MODES

FIRST_RECORDS: Final = 500
RECORDS_PER_KILL: Final = 25
LAST_STEP: Final = 70
"""The last step at which a worker is killed: some transactions after it has begun to read."""

BATCH_RECORDS: Final = (1, 7, 20)


def prove(directory: Path, *, database: str, kills: int, seed: int, mutant: str = "") -> Outcome:
    """Kill workers, one after the other, then let one read to the end, and judge the database."""
    outcome = Outcome(proof=f"kills-{database}", figures={"kills": kills, "seed": seed})
    with sql_scene(directory, database) as scene:
        scene.send(FIRST_RECORDS)
        places = kill_workers(scene, kills=kills, seed=seed, mutant=mutant)
        last = scene.start(scene.job(mode="assign"))
        if last.wait() != 0:
            outcome.problems.append(f"the last worker failed: {last.output()}")
        outcome.problems += scene.problems()
        outcome.figures |= {"records": scene.sent, "kills_by_step": dict(sorted(places.items()))}
    return outcome


def kill_workers(scene: Scene, *, kills: int, seed: int, mutant: str) -> collections.Counter[str]:
    """Start workers that kill themselves, and return at which steps they did."""
    rng = random.Random(seed)
    modes = MODES if scene.database != "mariadb" else tuple(mode for mode in MODES if mode != "aio")
    if mutant:
        # The mutants are of the blocking client.
        modes = ("assign",)
    places: collections.Counter[str] = collections.Counter()
    while places.total() < kills:
        scene.send(RECORDS_PER_KILL)
        worker = scene.start(
            scene.job(
                mode=modes[places.total() % len(modes)],
                batch_records=rng.choice(BATCH_RECORDS),
                kill_at=rng.randint(1, LAST_STEP),
                mutant=mutant,
            )
        )
        status = worker.wait()
        if status == -signal.SIGKILL:
            places[worker.last_words().removeprefix("killed ")] += 1
        elif status != 0:
            raise RuntimeError(f"a worker failed with {status}: {worker.output()}")
    return places

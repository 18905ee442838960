# SPDX-License-Identifier: Apache-2.0
"""A driver without Spark: it carries out the jobs of `spark_program` with the SDK alone, one thread for each task.

    python -m integration_tests.scenarios.exactly_once.ingest_program

It starts in a second, so that the rows of the matrix that are about the cluster can be run often, and by the tests.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from lograft import Ingest, IngestState
from lograft.types import SealedAttempt

from integration_tests.scenarios.exactly_once.processes import DONE, ERROR_CHARACTERS_MAX, FAILED, READY, say
from integration_tests.scenarios.exactly_once.spark_tasks import SEALED, Notes, Script, batches, script_of

TASK_ATTEMPTS: Final = 4
COMMIT_TIMEOUT_MS: Final = 600_000


def ingest(job: Mapping[str, Any]) -> None:
    """Carry out one ingest, as a job of Spark does."""
    options, script, tasks = job["options"], script_of(job["script"]), job["tasks"]
    topic = options["topic"]
    with Ingest.open(options["kafka.bootstrap.servers"], options["ingest.id"], topics=[topic]) as opened:
        if opened.state is IngestState.COMMITTED:
            return

        def run(task: int) -> SealedAttempt:
            rows = range(job["records"] * task // tasks, job["records"] * (task + 1) // tasks)
            return run_task(opened, topic, rows, script, task, int(options["kafka.delivery.timeout.ms"]))

        with ThreadPoolExecutor(tasks) as pool:
            sealed = list(pool.map(run, range(tasks)))
        if script.waits_at == SEALED:
            # Spark takes a while from the last task to the commit, in which the proof stops it. This program would be too quick.
            notes = Notes(Path(script.directory))
            notes.write(SEALED, 0, 0)
            notes.wait_gate()
        opened.commit(sealed, timeout_ms=COMMIT_TIMEOUT_MS)


def run_task(
    opened: Ingest, topic: str, rows: range, script: Script, task: int, delivery_timeout_ms: int
) -> SealedAttempt:
    """Try a task until an attempt of it is sealed, at most four times."""
    for number in range(TASK_ATTEMPTS):
        try:
            with opened.attempt(task, delivery_timeout_ms=delivery_timeout_ms) as attempt:
                for batch in batches(rows, script, task, number):
                    keys, values = (batch.column(column).to_pylist() for column in (0, 1))
                    attempt.send_many(topic, values, keys=keys)
            assert attempt.sealed is not None, "an attempt whose block has ended well is sealed"
        except Exception:
            logging.exception("attempt %d of task %d failed", number, task)
            if number == TASK_ATTEMPTS - 1:
                raise
        else:
            return attempt.sealed
    raise AssertionError("a task has at least one attempt")


def main() -> int:
    """Carry out jobs until standard input ends."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    say(READY)
    for line in sys.stdin:
        try:
            ingest(json.loads(line))
        except Exception as error:
            # The error of a job is its answer.
            say(f"{FAILED} {json.dumps(f'{type(error).__name__}: {error}'[:ERROR_CHARACTERS_MAX])}")
        else:
            say(DONE)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

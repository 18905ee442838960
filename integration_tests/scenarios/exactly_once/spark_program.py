# SPDX-License-Identifier: Apache-2.0
"""A Spark driver: one session, which carries out jobs that it reads from standard input, one JSON object a line, and answers each.

python -m integration_tests.scenarios.exactly_once.spark_program '{"spark.master": "local[4,4]"}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from lograft.spark import local_session

from integration_tests.scenarios.exactly_once.processes import (
    DONE,
    ERROR_CHARACTERS_MAX,
    FAILED,
    READ,
    READY,
    say,
)
from integration_tests.scenarios.exactly_once.spark_tasks import SCHEMA, make_rows

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
DIRECTORY: Final = "directory"
"""Name of the setting that is no setting of Spark: the directory for its temporary files."""


DIGEST: Final = (
    "count(*)",
    "coalesce(sum(crc32(value)), 0)",
    "coalesce(sum(cast(xxhash64(partition, offset, key, value, timestamp) as decimal(38, 0))), 0)",
)
"""What is said of the records of a read: their number, a sum that the sender knows too, and one over everything that a record has."""


def ingest(session: Any, job: dict[str, Any]) -> str:
    """Carry out one ingest."""
    rows = session.range(0, job["records"], 1, job["tasks"]).mapInArrow(make_rows(job["script"]), SCHEMA)
    rows.write.format("lograft").mode("append").options(**job["options"]).save()
    return ""


def read(session: Any, job: dict[str, Any]) -> str:
    """Read records, and return their digest."""
    session.conf.set(PUSHDOWN, str(job["pushdown"]).lower())
    rows = session.read.format("lograft").options(**job["options"]).load()
    if job["filter"]:
        rows = rows.filter(job["filter"])
    return json.dumps([int(each) for each in rows.selectExpr(*DIGEST).head()])


def main(argument: str) -> int:
    """Run a session until standard input ends."""
    settings = json.loads(argument)
    directory = Path(settings.pop(DIRECTORY))
    directory.mkdir(parents=True, exist_ok=True)
    session = local_session("exactly-once", directory=directory, settings=settings)
    say(READY)
    for line in sys.stdin:
        try:
            job = json.loads(line)
            found = (read if job["kind"] == READ else ingest)(session, job)
        except Exception as error:
            # The error of a job is its answer; the beginning names the cause of Python, the end that of the JVM.
            text = f"{type(error).__name__}: {error}"
            say(f"{FAILED} {json.dumps(text[:ERROR_CHARACTERS_MAX])}")
        else:
            say(f"{DONE} {found}".rstrip())
    session.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

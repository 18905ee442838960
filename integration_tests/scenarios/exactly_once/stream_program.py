# SPDX-License-Identifier: Apache-2.0
"""A streaming query from one topic to another, exactly once. It runs until its standard input ends, or until it is killed.

python -m integration_tests.scenarios.exactly_once.stream_program '{"bootstrap": ..., "source": ..., "sink": ..., "checkpoint": ...}'
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lograft.spark import local_session

from integration_tests.scenarios.exactly_once.processes import say

STARTED: Final = "@started"
FAILED: Final = "@failed"
ERROR_CHARACTERS_MAX: Final = 4_000
TASKS: Final = 2
TASK_ATTEMPTS: Final = 4
CHECK_INTERVAL_S: Final = 0.2

RATE: Final = "rate"
"""The source that needs no topic: Spark's own, whose records are numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A query.

    Attributes:
        bootstrap: the cluster.
        source: topic that it reads; RATE: Spark's own source.
        sink: topic that it writes.
        checkpoint: directory of its checkpoint.
        batch_records: records of a micro-batch.
        directory: directory for Spark's files.
    """

    bootstrap: str
    source: str
    sink: str
    checkpoint: str
    batch_records: int
    directory: str

    def to_json(self) -> str:
        """Return the argument of the program."""
        return json.dumps(dataclasses.asdict(self))


def key_of(number: int) -> bytes:
    """Return the key of a record of Spark's own source."""
    return b"k%d" % number


def rows_of(session: Any, stream: Stream) -> Any:
    """Return the records of the source, with key and value."""
    if stream.source == RATE:
        rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", stream.batch_records)
        rows = rows.option("numPartitions", TASKS).load()
        return rows.selectExpr("cast(concat('k', value) as binary) as key", "cast(value as string) as value")
    return (
        session.readStream.format("lograft")
        .option("kafka.bootstrap.servers", stream.bootstrap)
        .option("subscribe", stream.source)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", stream.batch_records)
        .load()
        .selectExpr("key", "value")
    )


def main(argument: str) -> int:
    """Run the query, and return the exit status."""
    stream = Stream(**json.loads(argument))
    Path(stream.directory).mkdir(parents=True, exist_ok=True)
    session = local_session("stream", threads=TASKS, task_attempts=TASK_ATTEMPTS, directory=stream.directory)
    query = (
        rows_of(session, stream)
        .writeStream.format("lograft")
        .option("kafka.bootstrap.servers", stream.bootstrap)
        .option("topic", stream.sink)
        .option("checkpointLocation", stream.checkpoint)
        .start()
    )
    say(STARTED)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while query.isActive and not ended.wait(CHECK_INTERVAL_S):
        pass
    error = query.exception()
    if error is not None:
        say(f"{FAILED} {json.dumps(str(error)[:ERROR_CHARACTERS_MAX])}")
        return 1
    query.stop()
    session.stop()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

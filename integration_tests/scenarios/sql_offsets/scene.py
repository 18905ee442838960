# SPDX-License-Identifier: Apache-2.0
"""A cluster, a database, a topic with records, and workers; and the question whether each record is in the database once."""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lograft import Admin, Consumer, Producer, TopicPartition
from lograft.offsets import offsets_table
from sqlalchemy import Engine, MetaData, create_engine, select

from integration_tests.harness.cluster import DevServer
from integration_tests.harness.databases import running_database
from integration_tests.scenarios.sql_offsets.worker import RECORDS, Job

PARTITIONS: Final = 2
TOPIC: Final = "events"
WORKER_TIMEOUT_S: Final = 300.0
READ_TIMEOUT_MS: Final = 30_000
SHOWN_MAX: Final = 5
"""Maximum number of records that a problem lists."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """Everything that a proof needs.

    Attributes:
        database: name of the database.
        url: its URL.
        engine: its engine, for the judge.
        bootstrap: the cluster.
        producer: sends records.
        topic: the topic.
        directory: directory for the logs of workers.
        sent: number of records that were sent.
    """

    database: str
    url: str
    engine: Engine
    bootstrap: str
    producer: Producer
    directory: Path
    topic: str = TOPIC
    sent: int = 0
    started: int = field(default=0)

    def send(self, count: int) -> None:
        """Send records, numbered without gaps over all partitions."""
        for number in range(self.sent, self.sent + count):
            self.producer.send(self.topic, b"%d" % number, partition=number % PARTITIONS)
        self.producer.flush()
        self.sent += count

    def job(self, **settings: object) -> Job:
        """Return a job in this scene."""
        facts: dict[str, object] = {
            "url": self.url,
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "partition_count": PARTITIONS,
            **settings,
        }
        return Job(**facts)  # type: ignore[arg-type]

    def start(self, job: Job) -> WorkerProcess:
        """Start a worker."""
        self.started += 1
        return WorkerProcess(job, self.directory / f"worker-{self.started}.log")

    def problems(self) -> list[str]:
        """Return what is wrong in the database: records that are missing, there twice, or not those of the topic."""
        with self.engine.connect() as connection:
            rows = connection.execute(select(RECORDS.c.partition_id, RECORDS.c.record_offset, RECORDS.c.value)).all()
        stored = collections.Counter((partition, offset, bytes(value)) for partition, offset, value in rows)
        wanted = self._read()
        twice = sorted(each for each, count in stored.items() if count > 1)
        missing, foreign = sorted(wanted - set(stored)), sorted(set(stored) - wanted)
        found: list[str] = []
        for what, records in (("twice", twice), ("missing", missing), ("not in the topic", foreign)):
            found += [f"{len(records)} records {what}: {records[:SHOWN_MAX]}"] if records else []
        found += [] if len(wanted) == self.sent else [f"the topic has {len(wanted)} records, {self.sent} were sent"]
        return found

    def epochs(self) -> dict[int, int]:
        """Return the epoch of each partition in the table of offsets."""
        columns = offsets_table(MetaData()).c
        with self.engine.connect() as connection:
            rows = connection.execute(select(columns.partition_id, columns.epoch).order_by(columns.partition_id)).all()
        return {int(number): int(epoch) for number, epoch in rows}

    def _read(self) -> set[tuple[int, int, bytes]]:
        tps = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
        found: set[tuple[int, int, bytes]] = set()
        with Consumer(self.bootstrap) as consumer:
            consumer.assign(tps)
            ends = consumer.end_offsets(tps)
            while any(consumer.position(tp) < end for tp, end in ends.items()):
                records = consumer.poll(10_000, timeout_ms=READ_TIMEOUT_MS)
                assert records, f"no record came within {READ_TIMEOUT_MS} ms"
                found |= {(each.partition, each.offset, each.value or b"") for each in records}
        return found


class WorkerProcess:
    """A worker in its own process."""

    def __init__(self, job: Job, log_path: Path) -> None:
        self.job = job
        self._log_path = log_path
        command = [sys.executable, "-m", "integration_tests.scenarios.sql_offsets.worker", job.to_json()]
        with log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self) -> int:
        """Wait for its end, and return the exit status (negative: the signal that ended it)."""
        try:
            return self.process.wait(WORKER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(f"a worker did not end within {WORKER_TIMEOUT_S} s: {self.output()}") from None

    def kill(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()

    def output(self) -> str:
        """Return what it has printed."""
        return self._log_path.read_text(errors="replace")

    def last_words(self) -> str:
        """Return the last line that it has printed."""
        return (self.output().strip().splitlines() or [""])[-1]


@contextmanager
def sql_scene(directory: Path, database: str) -> Iterator[Scene]:
    """Run a cluster and a database with a topic and the tables, until the end of the block."""
    with (
        DevServer(directory) as cluster,
        running_database(database) as url,
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap) as producer,
    ):
        admin.create_topic(TOPIC, partition_count=PARTITIONS)
        engine = create_engine(url)
        tables = MetaData()
        offsets_table(tables)
        RECORDS.metadata.create_all(engine)
        tables.create_all(engine)
        try:
            yield Scene(
                database=database,
                url=url,
                engine=engine,
                bootstrap=cluster.bootstrap,
                producer=producer,
                directory=directory,
            )
        finally:
            engine.dispose()

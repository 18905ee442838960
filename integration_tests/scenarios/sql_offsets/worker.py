# SPDX-License-Identifier: Apache-2.0
"""The program under test: reads a topic and writes each record into a table, in one transaction with the offsets.

    python -m integration_tests.scenarios.sql_offsets.worker '{"url": ..., "bootstrap": ..., "topic": ...}'

The table has no key over the records, so that a record that is written twice is there twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Final

from lograft import Consumer, ConsumerRecord, TopicPartition, aio
from lograft.errors import MembershipLostError
from lograft.offsets import OffsetsFencedError, SqlOffsets, TransactionFailedError
from lograft.offsets import aio as aio_offsets
from sqlalchemy import BigInteger, Column, Engine, Integer, LargeBinary, MetaData, Table, create_engine, insert
from sqlalchemy.ext.asyncio import create_async_engine

from integration_tests.scenarios.sql_offsets.mutants import MUTANTS
from integration_tests.scenarios.sql_offsets.steps import Steps, say

MODES: Final = ("assign", "group", "aio")
"""Own partitions, a static member of a group, and own partitions in asyncio."""

FENCED: Final = 3
"""Exit status of a worker whose partition has another owner by now."""

STAYS: Final = "stays"
"""What a worker says that has done its job and stays."""

POLL_MS: Final = 200
LOCK_WAIT_S: Final = 5
METADATA: Final = MetaData()

RECORDS: Final = Table(
    "records",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("partition_id", Integer, nullable=False),
    Column("record_offset", BigInteger, nullable=False),
    Column("value", LargeBinary, nullable=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)
"""What the worker makes of the records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a worker does.

    Attributes:
        url: the database.
        bootstrap: the cluster.
        topic: the topic.
        partition_count: number of its partitions.
        mode: one of MODES.
        batch_records: largest number of records in a transaction.
        transactions: number of transactions after which it ends; -1: when it has caught up.
        stays: True if it stores nothing more then, but goes on polling, so that it keeps its partitions, until it is killed.
        kill_at: see `Steps`.
        stop_at: see `Steps`. Only steps after the first poll with records count, unless `stop_early`.
        stop_early: True if it may stop from its start on: while it claims.
        mutant: the fault to put in place; empty: none.
    """

    url: str
    bootstrap: str
    topic: str
    partition_count: int
    mode: str = "assign"
    batch_records: int = 20
    transactions: int = -1
    stays: bool = False
    kill_at: int = 0
    stop_at: str = ""
    stop_early: bool = False
    mutant: str = ""

    @property
    def name(self) -> str:
        """The name under which the offsets are kept."""
        return "proof"

    @property
    def tps(self) -> list[TopicPartition]:
        """All partitions."""
        return [TopicPartition(self.topic, number) for number in range(self.partition_count)]

    def to_json(self) -> str:
        """Return the argument of the program."""
        return json.dumps(dataclasses.asdict(self))


def rows_of(records: list[ConsumerRecord]) -> list[dict[str, object]]:
    """Return the rows of records."""
    return [{"partition_id": each.partition, "record_offset": each.offset, "value": each.value} for each in records]


class Worker:
    """Runs one job.

    Attributes:
        stored: number of transactions.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.steps = Steps(kill_at=job.kill_at, stop_at=job.stop_at, is_armed=job.stop_early)
        self.stored = 0

    def is_done(self, *, is_caught_up: bool) -> bool:
        """Return True if the worker has done its job."""
        if self.job.transactions >= 0:
            return self.stored >= self.job.transactions
        return is_caught_up

    def got(self, records: list[ConsumerRecord]) -> None:
        """Note what a poll gave."""
        if records:
            self.steps.is_armed = True
            self.steps.reach("after poll")

    def run_blocking(self, engine: Engine) -> None:
        """Read and write with the blocking client."""
        job, steps = self.job, self.steps
        group = {"group": "proof", "instance_id": "worker", "auto_commit": False} if job.mode == "group" else {}
        with Consumer(job.bootstrap, **group) as consumer:
            offsets = SqlOffsets(engine, consumer, name=job.name)
            if job.mode == "group":
                offsets.subscribe([job.topic])
            else:
                offsets.assign(job.tps)
            while not (self.is_done(is_caught_up=consumer.is_caught_up) and consumer.assignment):
                records = consumer.poll(job.batch_records, timeout_ms=POLL_MS)
                self.got(records)
                if records:
                    try:
                        with offsets.transaction(records) as connection:
                            connection.execute(insert(RECORDS), rows_of(records))
                    except TransactionFailedError as error:
                        say(f"again: {error}")
                        continue
                    self.stored += 1
                    steps.reach("after the transaction")
            if job.stays:
                say(STAYS)
                while True:
                    consumer.poll(timeout_ms=POLL_MS)

    async def run_asyncio(self) -> None:
        """Read and write with the asyncio client."""
        job, steps = self.job, self.steps
        engine = create_async_engine(job.url.replace("sqlite://", "sqlite+aiosqlite://"))
        steps.watch(engine.sync_engine)
        async with aio.Consumer(job.bootstrap) as consumer:
            offsets = aio_offsets.SqlOffsets(engine, consumer, name=job.name)
            await offsets.assign(job.tps)
            while not self.is_done(is_caught_up=consumer.is_caught_up):
                records = await consumer.poll(job.batch_records, timeout_ms=POLL_MS)
                self.got(records)
                if records:
                    try:
                        async with offsets.transaction(records) as connection:
                            await connection.execute(insert(RECORDS), rows_of(records))
                    except TransactionFailedError as error:
                        say(f"again: {error}")
                        continue
                    self.stored += 1
                    steps.reach("after the transaction")
        await engine.dispose()


def main(argument: str) -> int:
    """Run a job, and return the exit status."""
    job = Job(**json.loads(argument))
    if job.mutant:
        MUTANTS[job.mutant]()
    worker = Worker(job)
    try:
        if job.mode == "aio":
            asyncio.run(worker.run_asyncio())
        else:
            engine = create_engine(job.url)
            worker.steps.watch(engine)
            worker.run_blocking(engine)
            engine.dispose()
    except (OffsetsFencedError, MembershipLostError) as error:
        say(f"fenced: {error}")
        return FENCED
    say(f"done after {worker.stored} transactions and {worker.steps.count} steps")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

# SPDX-License-Identifier: Apache-2.0
"""The program under test: reads a topic, makes one record of each, and writes them to another topic, exactly once.

    python -m integration_tests.scenarios.exactly_once.transform_program '{"bootstrap": ..., "source": ..., "target": ...}'

It is what an application would write. It says before and after each step where it is, so that the proof knows where a kill hit it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Final

from lograft import Consumer, ConsumerRecord, Producer, aio
from lograft.errors import IngestFencedError, InstanceFencedError, LograftError

from integration_tests.scenarios.exactly_once.processes import say

STYLES: Final = ("blocking", "aio")

STARTED: Final = "started"
POLLED: Final = "polled"
SENT: Final = "sent"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
STEPS: Final = (STARTED, POLLED, SENT, COMMITTING, COMMITTED)
"""What the program says: each word when that has happened, `committing` just before the end of a transaction's block."""

AGAIN: Final = "again"
"""Begin of the line about an error after which the program begins anew."""

FENCED: Final = 3
"""Exit status of a program that was replaced."""

POLL_MS: Final = 200
AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """What the program does.

    Attributes:
        bootstrap: the cluster.
        group: its group.
        instance_id: its name in the group; None: another one in each process.
        transaction_id: id of its transactions.
        source: the topic that it reads.
        target: the topic that it writes.
        style: one of STYLES.
        batch_records: largest number of records in a transaction.
        mutant: "offsets-apart" commits the offsets before the transaction, which must be found; empty: as it should be.
    """

    bootstrap: str
    group: str
    instance_id: str | None
    transaction_id: str
    source: str
    target: str
    style: str
    batch_records: int
    mutant: str = ""

    def to_json(self) -> str:
        """Return the argument of the program."""
        return json.dumps(dataclasses.asdict(self))


def made_of(record: ConsumerRecord) -> bytes:
    """Return the value that the program makes of a record. It names where the record was, so that it has one origin."""
    return b"%d/%d " % (record.partition, record.offset) + (record.value or b"")


class BlockingTransform:
    """The program with the blocking clients."""

    def __init__(self, job: Transform) -> None:
        self.job = job
        self.stopping = threading.Event()

    def run(self) -> None:
        """Work until it is asked to stop. After an error that may pass, begin anew at the committed offsets."""
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        while not self.stopping.is_set():
            try:
                self._work()
            except (IngestFencedError, InstanceFencedError):
                raise
            except LograftError as error:
                say(f"{AGAIN} {error!r}")
                self.stopping.wait(AGAIN_S)

    def _work(self) -> None:
        job = self.job
        with (
            Producer(job.bootstrap) as producer,
            Consumer(job.bootstrap, group=job.group, instance_id=job.instance_id, auto_commit=False) as consumer,
        ):
            consumer.subscribe([job.source])
            say(STARTED)
            while not self.stopping.is_set():
                records = consumer.poll(job.batch_records, timeout_ms=POLL_MS)
                if not records:
                    continue
                say(POLLED)
                if job.mutant == "offsets-apart":
                    consumer.commit()
                with producer.transaction(job.transaction_id, topics=[job.target]) as transaction:
                    for record in records:
                        transaction.send(job.target, made_of(record), key=record.key)
                    say(SENT)
                    if job.mutant != "offsets-apart":
                        transaction.send_offsets(consumer)
                    say(COMMITTING)
                say(COMMITTED)


class AioTransform:
    """The program with the asyncio clients."""

    def __init__(self, job: Transform) -> None:
        self.job = job
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Work until it is asked to stop; see `BlockingTransform.run`."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopping.set)
        while not self.stopping.is_set():
            try:
                await self._work()
            except (IngestFencedError, InstanceFencedError):
                raise
            except LograftError as error:
                say(f"{AGAIN} {error!r}")
                await asyncio.sleep(AGAIN_S)

    async def _work(self) -> None:
        job = self.job
        async with (
            aio.Producer(job.bootstrap) as producer,
            aio.Consumer(job.bootstrap, group=job.group, instance_id=job.instance_id, auto_commit=False) as consumer,
        ):
            await consumer.subscribe([job.source])
            say(STARTED)
            while not self.stopping.is_set():
                records = await consumer.poll(job.batch_records, timeout_ms=POLL_MS)
                if not records:
                    continue
                say(POLLED)
                async with producer.transaction(job.transaction_id, topics=[job.target]) as transaction:
                    for record in records:
                        await transaction.send(job.target, made_of(record), key=record.key)
                    say(SENT)
                    await transaction.send_offsets(consumer)
                    say(COMMITTING)
                say(COMMITTED)


def main(argument: str) -> int:
    """Run the program, and return the exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    job = Transform(**json.loads(argument))
    try:
        if job.style == "aio":
            asyncio.run(AioTransform(job).run())
        else:
            BlockingTransform(job).run()
    except (IngestFencedError, InstanceFencedError) as error:
        say(f"fenced {type(error).__name__}: {error}")
        return FENCED
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

# SPDX-License-Identifier: Apache-2.0
"""One member of the group in its own process, with the blocking or the asyncio consumer. Its journal has all it is told and does.

    python -m integration_tests.scenarios.group_proofs.member --bootstrap 127.0.0.1:9640 --directory DIR --name m01 --style aio

SIGTERM: close the consumer and end with 0. SIGUSR1: ask for no records for one and a half processing limits.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from lograft import Consumer, OffsetAndMetadata, RebalanceListener, TopicPartition, aio
from lograft.errors import LograftError
from lograft.types import ConsumerRecord

from integration_tests.harness.load.values import decode_value
from integration_tests.scenarios.group_proofs.journal import Journal, Kind

TOPIC = "shared"
GROUP = "group-proofs"
POLL_RECORDS = 500
POLL_TIMEOUT_MS = 200
COMMIT_INTERVAL_S = 0.5
REVOCATION_COMMIT_MS = 5_000
REQUEST_TIMEOUT_MS = 30_000
AFTER_ERROR_S = 0.2
BUSY_SHARE = 1.5
"""Processing limits for which the application is busy."""
STYLES = ("blocking", "aio")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def value_of(partition: int, offset: int) -> str:
    """Return what the record at an offset of a partition says."""
    return f"{partition}:{offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """How a member is.

    Attributes:
        bootstrap: addresses of brokers.
        instance_id: name of a static member; None: a dynamic one.
        limit_ms: processing limit.
    """

    bootstrap: str
    instance_id: str | None
    limit_ms: int

    def settings(self) -> dict[str, object]:
        """Return the settings of its consumer."""
        return {
            "group": GROUP,
            "instance_id": self.instance_id,
            "auto_commit": False,
            "processing_limit_ms": self.limit_ms,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
        }


class Notes:
    """What a member writes into its journal, for both styles, and the checks of what it reads."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._next_commit_s = 0.0
        self._committed: dict[TopicPartition, int] = {}

    def assigned(self, starts: Mapping[TopicPartition, int]) -> None:
        """Note partitions that came."""
        self.journal.write(Kind.ASSIGNED, starts={tp.partition: offset for tp, offset in starts.items()})

    def revoked(self, tps: Iterable[TopicPartition], error: LograftError | None) -> None:
        """Note partitions that go. It is the last thing that their callback does."""
        partitions = self._forget(tps)
        text = "" if error is None else repr(error)
        self.journal.write(Kind.REVOKED, partitions=partitions, is_committed=error is None, text=text)

    def lost(self, tps: Iterable[TopicPartition]) -> None:
        """Note partitions that are lost."""
        self.journal.write(Kind.LOST, partitions=self._forget(tps))

    def polled(self, records: Sequence[ConsumerRecord], began_ns: int) -> None:
        """Note and check what a poll returned."""
        if not records:
            return
        time_ns = time.monotonic_ns()
        ranges: dict[int, list[int]] = {}
        for record in records:
            span = ranges.setdefault(record.partition, [record.offset, record.offset])
            if span[1] not in (record.offset, record.offset - 1):
                self.journal.write(
                    Kind.WRONG, text=f"{record.partition}: {record.offset} follows {span[1]} in one poll"
                )
            span[1] = record.offset
        self.journal.write(Kind.POLLED, time_ns, began_ns=began_ns, records=ranges)
        for record in records:
            expected, found = value_of(record.partition, record.offset), decode_value(record.value)
            if found != expected:
                self.journal.write(Kind.WRONG, text=f"{expected} is {found}")

    def due(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return what to commit now: positions that have moved, twice a second."""
        if time.monotonic() < self._next_commit_s:
            return {}
        self._next_commit_s = time.monotonic() + COMMIT_INTERVAL_S
        return {tp: offset for tp, offset in positions.items() if self._committed.get(tp) != offset}

    def committing(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note a commit that is about to be sent."""
        self._committed |= offsets
        self.journal.write(Kind.COMMITTING, offsets={tp.partition: offset for tp, offset in offsets.items()})

    def commit_ended(self, offsets: Mapping[TopicPartition, int], error: LograftError | None) -> None:
        """Note how a commit ended."""
        by_partition = {tp.partition: offset for tp, offset in offsets.items()}
        if error is None:
            self.journal.write(Kind.COMMITTED, offsets=by_partition)
            return
        for tp in offsets:
            self._committed.pop(tp, None)
        self.journal.write(Kind.REFUSED, offsets=by_partition, text=repr(error))

    def on_done(self, offsets: Offsets, error: LograftError | None) -> None:
        """Note how a commit in the background ended."""
        self.commit_ended({tp: each.offset for tp, each in offsets.items()}, error)

    def _forget(self, tps: Iterable[TopicPartition]) -> list[int]:
        partitions: list[int] = []
        for tp in tps:
            self._committed.pop(tp, None)
            partitions.append(tp.partition)
        return partitions


class BlockingListener(RebalanceListener):
    """Commits what is given up, and notes everything."""

    def __init__(self, consumer: Consumer, notes: Notes) -> None:
        self._consumer, self._notes = consumer, notes

    def on_assigned(self, tps: Sequence[TopicPartition]) -> None:
        """Partitions came."""
        self._notes.assigned({tp: self._consumer.position(tp) for tp in tps})

    def on_revoked(self, tps: Sequence[TopicPartition]) -> None:
        """Partitions go."""
        offsets = {tp: self._consumer.position(tp) for tp in tps}
        self._notes.committing(offsets)
        failure: LograftError | None = None
        try:
            self._consumer.commit(offsets, timeout_ms=REVOCATION_COMMIT_MS)
        except LograftError as error:
            failure = error
        self._notes.commit_ended(offsets, failure)
        self._notes.revoked(tps, failure)

    def on_lost(self, tps: Sequence[TopicPartition]) -> None:
        """Partitions are lost."""
        self._notes.lost(tps)


class AioListener(RebalanceListener):
    """The same for the asyncio consumer."""

    def __init__(self, consumer: aio.Consumer, notes: Notes) -> None:
        self._consumer, self._notes = consumer, notes

    async def on_assigned(self, tps: Sequence[TopicPartition]) -> None:
        """Partitions came."""
        self._notes.assigned({tp: self._consumer.position(tp) for tp in tps})

    async def on_revoked(self, tps: Sequence[TopicPartition]) -> None:
        """Partitions go."""
        offsets = {tp: self._consumer.position(tp) for tp in tps}
        self._notes.committing(offsets)
        failure: LograftError | None = None
        try:
            await self._consumer.commit(offsets, timeout_ms=REVOCATION_COMMIT_MS)
        except LograftError as error:
            failure = error
        self._notes.commit_ended(offsets, failure)
        self._notes.revoked(tps, failure)

    async def on_lost(self, tps: Sequence[TopicPartition]) -> None:
        """Partitions are lost."""
        self._notes.lost(tps)


def run_blocking(options: MemberOptions, journal: Journal) -> None:
    """Be a member until SIGTERM, with the blocking consumer."""
    stopping, busy, pause = threading.Event(), threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGUSR1, lambda *_: busy.set())
    notes = Notes(journal)
    with Consumer(options.bootstrap, **options.settings()) as consumer:
        journal.write(Kind.SUBSCRIBING, instance=options.instance_id)
        consumer.subscribe([TOPIC], listener=BlockingListener(consumer, notes))
        while not stopping.is_set():
            if busy.is_set():
                busy.clear()
                busy_ms = int(options.limit_ms * BUSY_SHARE)
                journal.write(Kind.BUSY, busy_ms=busy_ms)
                pause.wait(busy_ms / 1e3)
            began_ns = time.monotonic_ns()
            try:
                records = consumer.poll(POLL_RECORDS, POLL_TIMEOUT_MS)
            except LograftError as error:
                journal.write(Kind.ERROR, text=repr(error))
                pause.wait(AFTER_ERROR_S)
                continue
            notes.polled(records, began_ns)
            if offsets := notes.due({tp: consumer.position(tp) for tp in consumer.assignment}):
                notes.committing(offsets)
                consumer.commit_async(offsets, notes.on_done)
    journal.write(Kind.LEFT)


async def run_aio(options: MemberOptions, journal: Journal) -> None:
    """Be a member until SIGTERM, with the asyncio consumer."""
    stopping, busy = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    loop.add_signal_handler(signal.SIGUSR1, busy.set)
    notes = Notes(journal)
    async with aio.Consumer(options.bootstrap, **options.settings()) as consumer:
        journal.write(Kind.SUBSCRIBING, instance=options.instance_id)
        await consumer.subscribe([TOPIC], listener=AioListener(consumer, notes))
        while not stopping.is_set():
            if busy.is_set():
                busy.clear()
                busy_ms = int(options.limit_ms * BUSY_SHARE)
                journal.write(Kind.BUSY, busy_ms=busy_ms)
                await asyncio.sleep(busy_ms / 1e3)
            began_ns = time.monotonic_ns()
            try:
                records = await consumer.poll(POLL_RECORDS, POLL_TIMEOUT_MS)
            except LograftError as error:
                journal.write(Kind.ERROR, text=repr(error))
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            notes.polled(records, began_ns)
            if offsets := notes.due({tp: consumer.position(tp) for tp in consumer.assignment}):
                notes.committing(offsets)
                consumer.commit_async(offsets, notes.on_done)
    journal.write(Kind.LEFT)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="one member of the group of a proof")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--directory", type=Path, required=True, help="directory of the journals")
    parser.add_argument("--name", required=True, help="name of its journal")
    parser.add_argument("--style", choices=STYLES, required=True)
    parser.add_argument("--instance-id", default=None)
    parser.add_argument("--limit-ms", type=int, required=True, help="processing limit")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    journal = Journal(arguments.directory, arguments.name)
    options = MemberOptions(
        bootstrap=arguments.bootstrap, instance_id=arguments.instance_id, limit_ms=arguments.limit_ms
    )
    if arguments.style == "aio":
        uvloop.run(run_aio(options, journal))
    else:
        run_blocking(options, journal)


if __name__ == "__main__":
    main()

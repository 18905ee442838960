# SPDX-License-Identifier: Apache-2.0
"""How long clients and brokers take to go on when their connections die without a word.

Everybody connects through a proxy that forgets all connections at one moment, in one direction or both, and takes new ones
(`integration_tests.harness.faults.forgetful_proxy`). A row is the time from that moment to the first success after it: a flush that
returns, a record read that was stored later, an answer, and for the broker's heartbeats the time for which it is fenced.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from lograft import Admin, Consumer, Producer, TopicPartition, aio
from lograft.errors import LograftError
from lograft.types import ConsumerRecord

from integration_tests.harness.cluster import BROKER_ID_FIRST, Cluster
from integration_tests.harness.faults.forgetful_proxy import ForgetfulProxy, Way

LIMIT_S: Final = 150.0
"""Seconds after which a row is given up."""
QUIET_S: Final = 7.0
"""Seconds without a record before the connections die, so that idle consumers hear only marks."""
FENCED_LOOK_S: Final = 60.0
"""Seconds for which the broker is watched."""
FEED_S: Final = 0.05
LOOK_S: Final = 0.02
STEP_MS: Final = 500
"""Milliseconds of one poll."""
DIRECTIONS: Final = {"both ways": Way.BOTH, "to the server": Way.TO_SERVER, "to the client": Way.TO_CLIENT}
BUSY: Final = ("busy-blocking", "busy-asyncio")
IDLE: Final = ("idle-blocking", "idle-asyncio")


class Moment:
    """The moment at which the connections die. All parties wait for it."""

    def __init__(self, party_count: int) -> None:
        self.ready = threading.Barrier(party_count + 1)
        self.passed = threading.Event()
        self.at_s = float("inf")

    def wait(self) -> None:
        """Note that this party is ready, and wait for the moment."""
        self.ready.wait()
        self.passed.wait()

    def has_news(self, records: Sequence[ConsumerRecord]) -> bool:
        """Return True if one of the records was stored after the moment."""
        return any(float(record.value or b"0") > self.at_s for record in records)

    @property
    def is_over(self) -> bool:
        """True after `LIMIT_S`, when a row is given up."""
        return time.monotonic() - self.at_s > LIMIT_S


def produce(bootstrap: str, moment: Moment) -> None:
    """Send and flush with the blocking client until that works."""
    with Producer(bootstrap) as producer:
        producer.send("sent", b"before")
        producer.flush()
        moment.wait()
        while not moment.is_over:
            try:
                producer.send("sent", b"after")
                producer.flush()
            except LograftError as error:
                print(f"  producer: {error}", file=sys.stderr)
            else:
                return
    raise TimeoutError


async def produce_aio(bootstrap: str, moment: Moment) -> None:
    """Send and flush with the asyncio client until that works."""
    async with aio.Producer(bootstrap) as producer:
        await producer.send("sent", b"before")
        await producer.flush()
        await asyncio.to_thread(moment.wait)
        while not moment.is_over:
            try:
                await producer.send("sent", b"after")
                await producer.flush()
            except LograftError as error:
                print(f"  aio producer: {error}", file=sys.stderr)
            else:
                return
    raise TimeoutError


def consume(bootstrap: str, topic: str, moment: Moment) -> None:
    """Poll with the blocking client until a record comes that was stored after the moment."""
    with Consumer(bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert consumer.poll(timeout_ms=20_000)
        moment.ready.wait()
        while not moment.is_over:
            try:
                if moment.has_news(consumer.poll(1_000, timeout_ms=STEP_MS)):
                    return
            except LograftError:
                continue
    raise TimeoutError


async def consume_aio(bootstrap: str, topic: str, moment: Moment) -> None:
    """Poll with the asyncio client until a record comes that was stored after the moment."""
    async with aio.Consumer(bootstrap) as consumer:
        await consumer.assign([TopicPartition(topic, 0)])
        assert await consumer.poll(timeout_ms=20_000)
        await asyncio.to_thread(moment.ready.wait)
        while not moment.is_over:
            try:
                if moment.has_news(await consumer.poll(1_000, timeout_ms=STEP_MS)):
                    return
            except LograftError:
                continue
    raise TimeoutError


def ask(bootstrap: str, moment: Moment) -> None:
    """List the topics with the blocking client until that works."""
    with Admin(bootstrap) as admin:
        admin.list_topics()
        moment.wait()
        while not moment.is_over:
            try:
                admin.list_topics()
            except LograftError as error:
                print(f"  admin: {error}", file=sys.stderr)
            else:
                return
    raise TimeoutError


async def ask_aio(bootstrap: str, moment: Moment) -> None:
    """List the topics with the asyncio client until that works."""
    async with aio.Admin(bootstrap) as admin:
        await admin.list_topics()
        await asyncio.to_thread(moment.wait)
        while not moment.is_over:
            try:
                await admin.list_topics()
            except LograftError as error:
                print(f"  aio admin: {error}", file=sys.stderr)
            else:
                return
    raise TimeoutError


ROWS: Final[dict[str, Callable[[str, Moment], object]]] = {
    "producer, blocking": produce,
    "producer, asyncio": lambda bootstrap, moment: asyncio.run(produce_aio(bootstrap, moment)),
    "busy consumer, blocking": lambda bootstrap, moment: consume(bootstrap, BUSY[0], moment),
    "busy consumer, asyncio": lambda bootstrap, moment: asyncio.run(consume_aio(bootstrap, BUSY[1], moment)),
    "idle consumer, blocking": lambda bootstrap, moment: consume(bootstrap, IDLE[0], moment),
    "idle consumer, asyncio": lambda bootstrap, moment: asyncio.run(consume_aio(bootstrap, IDLE[1], moment)),
    "admin, blocking": ask,
    "admin, asyncio": lambda bootstrap, moment: asyncio.run(ask_aio(bootstrap, moment)),
}


def feed(bootstrap: str, topics: Sequence[str], stop: threading.Event) -> None:
    """Store the time as a record in each topic, repeatedly."""
    with Producer(bootstrap, delivery_timeout_ms=1_000) as producer:
        while not stop.wait(FEED_S):
            try:
                for topic in topics:
                    producer.send(topic, b"%f" % time.monotonic())
                producer.flush()
            except LograftError:
                continue


@contextmanager
def feeding(bootstrap: str, topics: Sequence[str]) -> Iterator[None]:
    """Feed the topics while the context runs."""
    stop = threading.Event()
    thread = threading.Thread(target=feed, args=(bootstrap, topics, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()


@contextmanager
def stage(directory: Path) -> Iterator[tuple[Cluster, ForgetfulProxy, ForgetfulProxy]]:
    """Run a voter and a broker, each behind a proxy."""
    with ForgetfulProxy() as front, ForgetfulProxy() as back:
        cluster = Cluster(
            directory,
            voter_count=1,
            broker_count=1,
            voter_arguments=["--advertise", back.address],
            broker_arguments=["--advertise", front.address, "--quorum", back.address],
        )
        front.target = cluster.broker_addresses[BROKER_ID_FIRST]
        back.target = cluster.voter_addresses[1]
        with cluster:
            yield cluster, front, back


def clients(way: Way) -> dict[str, float]:
    """Return the seconds of each row; infinite if it took longer than `LIMIT_S`."""
    found: dict[str, float] = {}
    moment = Moment(len(ROWS))
    with tempfile.TemporaryDirectory() as directory, stage(Path(directory)) as (_, front, _):
        with Admin(front.address) as admin, Producer(front.address) as producer:
            for topic in ("sent", *BUSY, *IDLE):
                admin.create_topic(topic)
                producer.send(topic, b"0")
            producer.flush()

        def run(name: str) -> None:
            try:
                ROWS[name](front.address, moment)
                found[name] = time.monotonic() - moment.at_s
            except TimeoutError:
                found[name] = float("inf")

        threads = [threading.Thread(target=run, args=(name,)) for name in ROWS]
        with feeding(front.address, BUSY):
            for thread in threads:
                thread.start()
            moment.ready.wait()
            threading.Event().wait(QUIET_S)
            front.forget(way)
            moment.at_s = time.monotonic()
            moment.passed.set()
        with feeding(front.address, BUSY):
            with Producer(front.address) as producer:
                for topic in IDLE:
                    producer.send(topic, b"%f" % time.monotonic())
            for thread in threads:
                thread.join()
    return found


def heartbeats(way: Way) -> float:
    """Return the seconds within the first `FENCED_LOOK_S` for which the controller has the broker fenced."""
    fenced_s = 0.0
    with (
        tempfile.TemporaryDirectory() as directory,
        stage(Path(directory)) as (cluster, _, back),
        Admin(cluster.admin_addresses[1]) as admin,
    ):
        admin.describe_brokers()
        back.forget(way)
        last_s = begun_s = time.monotonic()
        while last_s - begun_s < FENCED_LOOK_S:
            (broker,) = admin.describe_brokers()
            threading.Event().wait(LOOK_S)
            now_s = time.monotonic()
            if broker.state.value != "active":
                fenced_s += now_s - last_s
            last_s = now_s
    return fenced_s


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", choices=DIRECTIONS, default=list(DIRECTIONS), help="directions that are lost"
    )
    chosen: list[str] = parser.parse_args().only
    table: dict[str, dict[str, str]] = {}
    for name in chosen:
        for row, took_s in clients(DIRECTIONS[name]).items():
            shown = f"{took_s:.1f} s" if took_s <= LIMIT_S else f"not within {LIMIT_S:.0f} s"
            table.setdefault(row, {})[name] = shown
        shown = f"{heartbeats(DIRECTIONS[name]):.1f} of {FENCED_LOOK_S:.0f} s"
        table.setdefault("broker to controller: fenced for", {})[name] = shown
    print("| goes on after | " + " | ".join(chosen) + " |")
    print("|---" * (len(chosen) + 1) + "|")
    for row in (*ROWS, "broker to controller: fenced for"):
        print(f"| {row} | " + " | ".join(table[row][name] for name in chosen) + " |")


if __name__ == "__main__":
    main()

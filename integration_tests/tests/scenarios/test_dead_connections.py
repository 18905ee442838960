# SPDX-License-Identifier: Apache-2.0
"""Connections that died without a sign: every client continues over new ones, with every record there once and in order.

Real servers are behind proxies that forget connections (`harness.faults.forgetful_proxy`): one before the broker, one before
the voter.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition, aio
from lograft._client.cluster import Cluster as ClientCluster
from lograft.errors import LograftError, OutcomeUnknownError, RequestTimeoutError, UnreachableError
from lograft.settings import parse_bootstrap
from lograft.types import BrokerState, ConsumerRecord

from integration_tests.harness.cli import LOGRAFT
from integration_tests.harness.cluster import BROKER_ID_FIRST, Cluster
from integration_tests.harness.faults.forgetful_proxy import ForgetfulProxy, Way
from integration_tests.harness.wait import wait_for

pytestmark = [pytest.mark.process, pytest.mark.slow]

GIVE_UP_S = 60.0
"""Seconds after which a client that has not continued has failed. Without pings it took 73 s, or for ever."""
DELIVERY_MS = 60_000
LIVENESS_MS = 4_000
SILENT_LIMIT_S = 3.0
"""Seconds of silence that a proxy tolerates: three times the ping interval with `LIVENESS_MS`."""
RECORDS = 100
BIG_BYTES = 1_000
WAYS = (Way.BOTH, Way.TO_SERVER, Way.TO_CLIENT)


class Stage:
    """A voter and a broker, each behind a proxy, and unused topic names."""

    def __init__(self, directory: Path, front: ForgetfulProxy, back: ForgetfulProxy) -> None:
        self.front = front
        self.back = back
        self.cluster = Cluster(
            directory,
            voter_count=1,
            broker_count=1,
            # As a voter from the beginning: a broker that met the voter's own address first would stay there, beside the proxy.
            voter_arguments=["--voters", f"1@{back.address}", "--advertise", back.address],
            broker_arguments=["--advertise", front.address, "--quorum", back.address],
        )
        front.target = self.cluster.broker_addresses[BROKER_ID_FIRST]
        back.target = self.cluster.voter_addresses[1]
        self._topic_count = 0

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return self.front.address

    def new_topic(self) -> str:
        """Return a new topic with one partition."""
        self._topic_count += 1
        name = f"topic-{self._topic_count}"
        with Admin(self.bootstrap) as admin:
            admin.create_topic(name)
        return name

    def send(self, topic: str, start: int, end: int) -> None:
        """Store records with the numbers as values, through a new client with a new connection."""
        with Producer(self.bootstrap) as producer:
            producer.send_many(topic, [b"%d" % number for number in range(start, end)])

    def read(self, topic: str, count: int) -> list[int]:
        """Read the numbers of a topic from its beginning, through a new client."""
        with Consumer(self.bootstrap) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            seen: list[int] = []
            while len(seen) < count:
                records = consumer.poll(count + 1, timeout_ms=DELIVERY_MS)
                assert records, f"{len(seen)} of {count} records"
                seen += numbers(records)
            return seen + numbers(consumer.poll(count + 1, timeout_ms=0))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One stage for all tests. A forgotten connection belongs to one test only."""
    with ForgetfulProxy() as front, ForgetfulProxy() as back:
        made = Stage(tmp_path_factory.mktemp("dead-connections"), front, back)
        with made.cluster:
            yield made


def numbers(records: list[ConsumerRecord]) -> list[int]:
    """Return the numbers at the beginning of the records."""
    return [int((record.value or b"").split(b" ")[0]) for record in records]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_producer_delivers_everything_once_and_in_order(stage: Stage, way: Way) -> None:
    """Records are sent before, at and after the death of the connection. Their answers, or the batches themselves, are lost."""
    topic = stage.new_topic()
    with Producer(stage.bootstrap, delivery_timeout_ms=DELIVERY_MS, linger_ms=0) as producer:
        for number in range(3 * RECORDS):
            if number == RECORDS:
                producer.flush()
            if number == 2 * RECORDS:
                stage.front.forget(way)
            producer.send(topic, b"%d" % number)
        producer.flush()
    assert stage.read(topic, 3 * RECORDS) == list(range(3 * RECORDS))


def test_asyncio_producer_delivers_everything_once_and_in_order(stage: Stage) -> None:
    """The same for asyncio."""
    topic = stage.new_topic()

    async def send() -> None:
        async with aio.Producer(stage.bootstrap, delivery_timeout_ms=DELIVERY_MS, linger_ms=0) as producer:
            for number in range(3 * RECORDS):
                if number == RECORDS:
                    await producer.flush()
                if number == 2 * RECORDS:
                    stage.front.forget()
                await producer.send(topic, b"%d" % number)
            await producer.flush()

    asyncio.run(send())
    assert stage.read(topic, 3 * RECORDS) == list(range(3 * RECORDS))


@pytest.mark.parametrize("way", [Way.BOTH, Way.TO_CLIENT], ids=lambda way: way.name)
def test_idle_consumer_hears_of_new_records(stage: Stage, way: Way) -> None:
    """The consumer has read everything and waits when its connection dies. Another client sends the records."""
    topic = stage.new_topic()
    stage.send(topic, 0, 1)
    with Consumer(stage.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        seen = numbers(consumer.poll(timeout_ms=DELIVERY_MS))
        stage.front.forget(way)
        stage.send(topic, 1, RECORDS)
        deadline_s = time.monotonic() + GIVE_UP_S
        while len(seen) < RECORDS and time.monotonic() < deadline_s:
            seen += poll(consumer)
    assert seen == list(range(RECORDS))


def test_asyncio_consumer_hears_of_new_records(stage: Stage) -> None:
    """The same for asyncio."""
    topic = stage.new_topic()
    stage.send(topic, 0, 1)

    async def read() -> list[int]:
        async with aio.Consumer(stage.bootstrap) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            seen = numbers(await consumer.poll(timeout_ms=DELIVERY_MS))
            stage.front.forget()
            await asyncio.to_thread(stage.send, topic, 1, RECORDS)
            deadline_s = time.monotonic() + GIVE_UP_S
            while len(seen) < RECORDS and time.monotonic() < deadline_s:
                try:
                    seen += numbers(await consumer.poll(timeout_ms=500))
                except UnreachableError:
                    continue
        return seen

    assert asyncio.run(read()) == list(range(RECORDS))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_busy_consumer_reads_everything_once(stage: Stage, way: Way) -> None:
    """The connection dies while many records are left, and the consumer has credit for only a part of them."""
    topic, count = stage.new_topic(), 20_000
    padding = b" " * BIG_BYTES
    with Producer(stage.bootstrap) as producer:
        producer.send_many(topic, [b"%d" % number + padding for number in range(count)])
    with Consumer(stage.bootstrap, prefetch_bytes=1 << 20) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        seen: list[int] = []
        while len(seen) < 1_000:
            seen += numbers(consumer.poll(100, timeout_ms=DELIVERY_MS))
        stage.front.forget(way)
        deadline_s = time.monotonic() + GIVE_UP_S
        while len(seen) < count and time.monotonic() < deadline_s:
            seen += poll(consumer)
    assert seen == list(range(count))


def poll(consumer: Consumer) -> list[int]:
    """Poll through an outage."""
    try:
        return numbers(consumer.poll(10_000, timeout_ms=500))
    except UnreachableError:
        return []


def test_calls_are_made_again_over_a_new_connection(stage: Stage) -> None:
    """A read is repeated within its own time. A change whose answer was lost raises that, and the next one works."""
    with Admin(stage.bootstrap, request_timeout_ms=30_000) as admin:
        admin.list_topics()
        stage.front.forget()
        admin.list_topics()
        stage.front.forget()
        with pytest.raises(OutcomeUnknownError):
            admin.create_topic("swallowed")
        admin.create_topic("heard")
        assert "heard" in [topic.topic for topic in admin.list_topics()]


def test_asyncio_calls_are_made_again_over_a_new_connection(stage: Stage) -> None:
    """The same for asyncio."""

    async def ask() -> None:
        async with aio.Admin(stage.bootstrap, request_timeout_ms=30_000) as admin:
            await admin.list_topics()
            stage.front.forget()
            await admin.list_topics()

    asyncio.run(ask())


def test_an_answer_that_does_not_come_costs_the_connection(stage: Stage) -> None:
    """The time is shorter than any ping interval: the call after the unanswered one uses a new connection."""
    with Admin(stage.bootstrap, request_timeout_ms=2_000, connection_liveness_ms=60_000) as admin:
        admin.list_topics()
        stage.front.forget()
        with pytest.raises(RequestTimeoutError):
            admin.list_topics()
        admin.list_topics()


def test_watch_of_the_metadata_goes_on(stage: Stage) -> None:
    """A client that only watches learns of a topic's growth, although its connections died before."""
    topic = stage.new_topic()

    async def watch() -> int:
        grown = asyncio.Event()
        cluster = ClientCluster(parse_bootstrap(stage.bootstrap, None))

        def look() -> None:
            state = cluster.view.topic(topic)
            if state is not None and len(state.partitions) == 2:
                grown.set()

        cluster.add_listener(look)
        try:
            assert len((await cluster.topic(topic, timeout_ms=DELIVERY_MS)).partitions) == 1
            await asyncio.to_thread(wait_for, lambda: cluster._watch_call, timeout_s=GIVE_UP_S, what="the watch")
            stage.front.forget()
            await asyncio.to_thread(grow)
            async with asyncio.timeout(GIVE_UP_S):
                await grown.wait()
            state = cluster.view.topic(topic)
            return 0 if state is None else len(state.partitions)
        finally:
            await cluster.close()

    def grow() -> None:
        with Admin(stage.bootstrap) as admin:
            admin.create_partitions(topic, 2)

    assert asyncio.run(watch()) == 2


def test_command_that_follows_hears_of_new_records(stage: Stage) -> None:
    """`lograft consume --follow` continues."""
    topic = stage.new_topic()
    stage.send(topic, 0, 1)
    follower = subprocess.Popen(
        [*LOGRAFT, "consume", topic, "--follow", "--from-beginning", "-n", "2", "--bootstrap", stage.bootstrap],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    with follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "0\n"
        stage.front.forget()
        stage.send(topic, 1, 2)
        try:
            assert follower.wait(GIVE_UP_S) == 0
        finally:
            follower.kill()
        assert follower.stdout.readline() == "1\n"


def test_idle_connections_are_not_forgotten_for_their_silence(stage: Stage) -> None:
    """The test lasts ten times as long as a connection without pings lives behind a proxy that forgets silent ones."""
    with (
        ForgetfulProxy(stage.front.target, silent_limit_s=SILENT_LIMIT_S) as proxy,
        Admin(proxy.address, connection_liveness_ms=LIVENESS_MS) as admin,
    ):
        admin.describe_quorum()
        used_count = proxy.accepted_count
        for lives in range(1, 11):
            host, _, port = proxy.address.rpartition(":")
            with socket.create_connection((host, int(port))):
                wait_for(
                    lambda count=lives: proxy.forgotten_count >= count,
                    timeout_s=GIVE_UP_S,
                    what="a silent connection to be forgotten",
                )
        # The proxy forgot only the bare connections, and the client still has the same connection.
        assert proxy.forgotten_count == 10
        admin.describe_quorum()
        assert proxy.accepted_count == used_count + 10


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_heartbeats_go_over_a_new_connection(stage: Stage, way: Way) -> None:
    """An unanswered heartbeat costs the connection. The controller hears the broker again long before pings would find it dead."""
    with Admin(stage.cluster.admin_addresses[1]) as admin:
        accepted_count = stage.back.accepted_count
        stage.back.forget(way)

        def is_heard_again() -> bool:
            try:
                (broker,) = admin.describe_brokers()
            except LograftError:
                return False
            is_fresh = broker.last_heard_age_ms is not None and broker.last_heard_age_ms < 1_000
            return is_fresh and broker.state is BrokerState.ACTIVE and stage.back.accepted_count > accepted_count

        wait_for(is_heard_again, timeout_s=30.0, what="a heartbeat over a new connection")

# SPDX-License-Identifier: Apache-2.0
"""Consumers whose brokers are down: polls raise an error after the stated time, and continue when the brokers are back."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lograft import Admin, Consumer, Producer, TopicPartition, aio
from lograft._consumer import engine as fetch_engine
from lograft.errors import InvalidSettingError, LograftError, NoBrokerError, UnreachableError
from lograft.types import ConsumerRecord
from tests.client.processes import DevProcess
from tests.client.reading import DEADLINE_MS
from tests.client.scripted_broker import Leaders, Log, ScriptedBroker, fill

from metaquorum.testing.ports import free_port

TIMEOUT_MS = 1_000
TP = TopicPartition("t", 0)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def poll_until_error(poll: Callable[[], object]) -> UnreachableError:
    """Poll in steps, as programs do, until a poll reports the outage."""
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while time.monotonic() < deadline_s:
        try:
            assert not poll()
        except UnreachableError as error:
            return error
    raise AssertionError("no poll said anything")


def numbers(records: list[ConsumerRecord]) -> list[int]:
    """Return the numbers in the records."""
    return [int(record.value or b"") for record in records]


def read_up_to(consumer: Consumer, end: int, seen: list[int]) -> None:
    """Poll through any outage until record `end - 1` has come."""
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while len(seen) < end and time.monotonic() < deadline_s:
        try:
            seen += numbers(consumer.poll(30, timeout_ms=500))
        except UnreachableError:
            continue


@pytest.mark.process
def test_killed_brokers_are_told_and_reading_goes_on_when_they_are_back(tmp_path: Path) -> None:
    """Two outages skip and double nothing. The error names partition, leader, address and the last failure."""
    seen: list[int] = []
    tp = TopicPartition("topic", 0)
    with DevProcess(tmp_path / "data") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("topic")
        with Consumer(broker.bootstrap, unreachable_timeout_ms=TIMEOUT_MS) as consumer:
            consumer.assign([tp])
            for end in (100, 200, 300):
                with Producer(broker.bootstrap) as producer:
                    producer.send_many("topic", [b"%d" % number for number in range(end - 100, end)])
                read_up_to(consumer, end, seen)
                assert seen == list(range(end))
                health = consumer.health()
                assert health.partitions[tp].trouble is None
                assert (health.partitions[tp].position, health.partitions[tp].address) == (end, broker.bootstrap)
                assert (health.partitions[tp].leader_id, health.unreachable_ms, health.troubles) == (1, None, [])
                if end == 300:
                    break
                broker.kill()
                error = poll_until_error(lambda: consumer.poll(timeout_ms=200))
                assert f"topic-0 waits for its leader, broker 1 at {broker.bootstrap}" in str(error)
                (trouble,) = error.troubles
                assert (trouble.leader_id, trouble.address) == (1, broker.bootstrap)
                assert isinstance(trouble.error, NoBrokerError)
                assert trouble.duration_ms >= TIMEOUT_MS
                for _ in range(2):  # as long as it lasts
                    with pytest.raises(UnreachableError):
                        consumer.poll_batch(timeout_ms=50)
                    with pytest.raises(UnreachableError):
                        next(iter(consumer))
                health = consumer.health()
                assert health.partitions[tp].trouble is not None
                assert (health.partitions[tp].position, health.unreachable_ms or 0) > (end - 1, TIMEOUT_MS)
                broker.start()


@pytest.mark.process
def test_asyncio_consumer_is_told_in_the_same_way(tmp_path: Path) -> None:
    """Polls, batches and iteration raise the error; then reading continues."""
    tp = TopicPartition("topic", 0)

    async def read(broker: DevProcess) -> list[int]:
        async with aio.Consumer(broker.bootstrap, unreachable_timeout_ms=TIMEOUT_MS) as consumer:
            await consumer.assign([tp])
            seen = numbers(await consumer.poll(10, timeout_ms=DEADLINE_MS))
            broker.kill()
            with pytest.raises(UnreachableError, match=f"broker 1 at {broker.bootstrap}"):
                await consumer.poll(timeout_ms=DEADLINE_MS)
            with pytest.raises(UnreachableError):
                await consumer.poll_batch(timeout_ms=50)
            with pytest.raises(UnreachableError):
                await anext(aiter(consumer))
            assert [trouble.topic for trouble in consumer.health().troubles] == ["topic"]
            await asyncio.to_thread(broker.start)
            await asyncio.to_thread(send_numbers, broker.bootstrap, 10, 20)
            deadline_s = time.monotonic() + DEADLINE_MS / 1000
            while len(seen) < 20 and time.monotonic() < deadline_s:
                try:
                    seen += numbers(await consumer.poll(timeout_ms=500))
                except UnreachableError:
                    continue
            assert consumer.health().unreachable_ms is None
        return seen

    with DevProcess(tmp_path / "data") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("topic")
        send_numbers(broker.bootstrap, 0, 10)
        assert asyncio.run(read(broker)) == list(range(20))


@pytest.mark.process
def test_command_that_follows_tells_an_outage_and_goes_on(tmp_path: Path) -> None:
    """The command prints a note on standard error while the broker is down, and then the later records."""
    with DevProcess(tmp_path / "data") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("topic")
        send_numbers(broker.bootstrap, 0, 1)
        command = [sys.executable, "-c", "from lograft.cli import main; main()", "consume", "topic"]
        follower = subprocess.Popen(
            [
                *command,
                "--follow",
                "--from-beginning",
                "-n",
                "2",
                "--timeout-ms",
                "1000",
                "--bootstrap",
                broker.bootstrap,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        with follower:
            assert follower.stdout is not None
            assert follower.stderr is not None
            assert follower.stdout.readline() == "0\n"
            broker.kill()
            note = follower.stderr.readline()
            assert note.startswith("lograft: note: nothing could be fetched for ")
            assert f"topic-0 waits for its leader, broker 1 at {broker.bootstrap}" in note
            broker.start()
            send_numbers(broker.bootstrap, 1, 2)
            assert follower.stdout.readline() == "1\n"
            assert follower.wait(DEADLINE_MS / 1000) == 0


def send_numbers(bootstrap: str, start: int, end: int) -> None:
    """Store records with the numbers as values."""
    with Producer(bootstrap) as producer:
        producer.send_many("topic", [b"%d" % number for number in range(start, end)])


@pytest.mark.parametrize("kind", ["dead", "silent"])
def test_leader_that_was_never_there_is_told(kind: str, silent_port: int) -> None:
    """A broker names a leader at a port without a listener, or at one that sends nothing."""
    leaders = Leaders()
    with ScriptedBroker(leaders) as broker:
        port = silent_port if kind == "silent" else free_port()
        leaders.brokers[2] = port
        leaders.leader_id = 2
        with Consumer(broker.bootstrap, unreachable_timeout_ms=TIMEOUT_MS) as consumer:
            consumer.assign([TP], offsets={TP: 0})
            error = poll_until_error(lambda: consumer.poll(timeout_ms=100))
            assert f"t-0 waits for its leader, broker 2 at 127.0.0.1:{port}" in str(error)
            assert (error.troubles[0].leader_id, error.troubles[0].address) == (2, f"127.0.0.1:{port}")
            started_s = time.monotonic()
            with pytest.raises(UnreachableError):
                consumer.poll(timeout_ms=DEADLINE_MS * 10)  # a long one does not wait much longer than the stated time
            assert time.monotonic() - started_s < DEADLINE_MS / 1000


def test_partition_without_a_leader_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers answer, but no replica leads. The log has one line for it, not one for each attempt."""
    leaders = Leaders()
    leaders.leader_id = 9
    with ScriptedBroker(leaders) as broker, Consumer(broker.bootstrap, unreachable_timeout_ms=TIMEOUT_MS) as consumer:
        fill(broker.logs[0], 10)
        with caplog.at_level(logging.WARNING, logger=fetch_engine.__name__):
            consumer.assign([TP], offsets={TP: 0})
            error = poll_until_error(lambda: consumer.poll(timeout_ms=100))
            assert "t-0 waits for a leader" in str(error)
            for _ in range(3):
                with pytest.raises(UnreachableError):
                    consumer.poll(timeout_ms=800)
        assert [record.message[:29] for record in caplog.records] == ["1 of 1 partitions give nothing"[:29]]
        leaders.leader_id = 1
        seen: list[int] = []
        read_up_to(consumer, 10, seen)
        assert seen == list(range(10))


def test_partition_in_trouble_does_not_stop_the_others(silent_port: int) -> None:
    """The readable records come without an error. `health` says which partition waits, since when, and why."""
    leaders = Leaders(partition_count=2)
    with ScriptedBroker(leaders) as broker, ScriptedBroker(leaders, 2, {0: Log(), 1: Log()}):
        leaders.leaders = {0: 1, 1: 3}
        leaders.brokers[3] = silent_port
        other = TopicPartition("t", 1)
        with Consumer(broker.bootstrap, unreachable_timeout_ms=2_000) as consumer:
            fill(broker.logs[0], 10)
            consumer.assign([TP, other], offsets={TP: 0, other: 0})
            seen: list[int] = []
            deadline_s = time.monotonic() + DEADLINE_MS / 1000
            while time.monotonic() < deadline_s:
                seen += numbers(consumer.poll(timeout_ms=100))
                troubles = consumer.health().troubles
                if len(seen) == 10 and troubles and troubles[0].error is not None:
                    break
            assert seen == list(range(10))
            (trouble,) = consumer.health().troubles
            assert (trouble.topic, trouble.partition, trouble.leader_id) == ("t", 1, 3)
            assert f"127.0.0.1:{silent_port}" in str(trouble)
            assert consumer.health().unreachable_ms is None
            assert consumer.health().partitions[TP].trouble is None
            # Without the flowing partition, all partitions are in trouble.
            consumer.assign([other], offsets={other: 0})
            poll_until_error(lambda: consumer.poll(timeout_ms=100))


def test_frozen_leader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that opens the route and then sends not even marks counts as unreachable."""
    monkeypatch.setattr(fetch_engine, "TICK_S", 0.05)
    monkeypatch.setattr("lograft._consumer.stream.FETCH_STALLED_MS", 200)
    with ScriptedBroker(Leaders()) as broker:
        fill(broker.logs[0], 10)
        with Consumer(broker.bootstrap, unreachable_timeout_ms=TIMEOUT_MS) as consumer:
            consumer.assign([TP])
            seen: list[int] = []
            read_up_to(consumer, 10, seen)
            error = poll_until_error(lambda: consumer.poll(timeout_ms=100))
            assert "t-0 waits for its leader, broker 1" in str(error)


@pytest.mark.parametrize("kind", ["dead", "silent"])
def test_addresses_at_which_nobody_is_are_told_by_assign(kind: str, silent_port: int) -> None:
    """Before the first assignment, the lookup itself fails within its time."""
    port = silent_port if kind == "silent" else free_port()
    with Consumer(f"127.0.0.1:{port}", request_timeout_ms=300) as consumer:
        assert consumer.health().partitions == {}
        with pytest.raises(NoBrokerError):
            consumer.assign([TP], offsets={TP: 0})
        assert consumer.poll(timeout_ms=0) == []


@pytest.mark.parametrize("value", [99, 86_400_001, True, "1"])
def test_setting_out_of_range_is_refused(value: object) -> None:
    """The message has the range."""
    with pytest.raises(InvalidSettingError, match="unreachable_timeout_ms"):
        Consumer("127.0.0.1:1", unreachable_timeout_ms=value)  # pyright: ignore[reportArgumentType]


def test_error_survives_a_pickle() -> None:
    """Frameworks carry exceptions between processes."""
    leaders = Leaders()
    leaders.leader_id = 9
    with ScriptedBroker(leaders) as broker, Consumer(broker.bootstrap, unreachable_timeout_ms=100) as consumer:
        consumer.assign([TP], offsets={TP: 0})
        error = poll_until_error(lambda: consumer.poll(timeout_ms=100))
    again: LograftError = pickle.loads(pickle.dumps(error))  # noqa: S301 (its own)
    assert isinstance(again, UnreachableError)
    assert again.troubles[0].topic == "t"

# SPDX-License-Identifier: Apache-2.0
"""A client learns of a new leader while the old one is silent: frozen, cut off, or not reached yet."""

from __future__ import annotations

import socket
import threading

import pytest
from lograft import Consumer, Producer, TopicPartition
from lograft._consumer import stream as fetch_stream
from lograft._producer import stream as produce_stream
from lograft.v1 import log_pb2
from lograft.wire.batch import RecordBatch, encode_batch
from tests.client.scripted_broker import Leaders, Log, ScriptedBroker, fetch_opened

WAIT_S = 30.0
COUNT = 20


def numbers_in(log: Log) -> list[int]:
    """Return the numbers in the log, in order."""
    return [int(value or b"") for batch in log.batches for value in RecordBatch(batch).values()]


def send_numbers(producer: Producer, numbers: range) -> None:
    """Send each number as a record."""
    for number in numbers:
        producer.send("t", b"%d" % number, partition=0)


def test_producer_leaves_a_leader_that_froze() -> None:
    """The producer resends its batches to the next leader, once and in order, without waiting for the frozen one's silence."""
    leaders = Leaders()
    frozen = threading.Event()
    with ScriptedBroker(leaders, 2) as new, ScriptedBroker(leaders, 1, new.logs) as old:

        def script(stream: int, request: log_pb2.ProduceRequest) -> list[log_pb2.ProduceResponse] | None:
            if not request.HasField("batch"):
                return None
            old.logs[0].append(request.batch.body)
            frozen.set()
            return []

        old.on_produce = script
        with Producer(new.bootstrap, linger_ms=1) as producer:
            send_numbers(producer, range(COUNT))
            assert frozen.wait(WAIT_S)
            new.announce(2)
            send_numbers(producer, range(COUNT, 2 * COUNT))
            producer.flush(timeout_ms=int(WAIT_S * 1000))
    assert numbers_in(new.logs[0]) == list(range(2 * COUNT))


@pytest.mark.parametrize("acks", ["all", "leader"])
def test_producer_does_not_wait_for_an_old_leader_that_is_not_reached(
    acks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to the old leader never opens. The news of the next leader is enough."""
    monkeypatch.setattr(produce_stream, "CONNECT_TIMEOUT_MS", 10 * int(WAIT_S * 1000))
    leaders = Leaders()
    with socket.create_server(("127.0.0.1", 0)) as mute, ScriptedBroker(leaders, 2) as new:
        leaders.brokers[1] = mute.getsockname()[1]
        with Producer(new.bootstrap, linger_ms=1, acks=acks) as producer:
            send_numbers(producer, range(COUNT))
            mute.settimeout(WAIT_S)
            connection, _ = mute.accept()
            with connection:
                new.announce(2)
                producer.flush(timeout_ms=int(WAIT_S * 1000))
    assert numbers_in(new.logs[0]) == list(range(COUNT))


def test_consumer_leaves_a_leader_that_froze() -> None:
    """The consumer continues at the next leader from its position."""
    leaders = Leaders()
    frozen = threading.Event()
    with ScriptedBroker(leaders, 2) as new, ScriptedBroker(leaders, 1, new.logs) as old:

        def script(stream: int, request: log_pb2.FetchRequest) -> list[log_pb2.FetchResponse]:
            frozen.set()
            return []

        old.on_fetch = script
        new.logs[0].append(bytes(encode_batch([b"0", b"1"], timestamps_ms=1)))
        with Consumer(new.bootstrap) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert frozen.wait(WAIT_S)
            new.announce(2)
            records = consumer.poll(timeout_ms=int(WAIT_S * 1000))
    assert [record.value for record in records] == [b"0", b"1"]


def test_producer_asks_others_when_a_leader_stalls_and_its_watch_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen broker also carries the watch and would be asked first. Another broker knows the leader."""
    monkeypatch.setattr(produce_stream, "STALLED_MS", 50)
    leaders, later = Leaders(), Leaders()
    later.leader_id, later.leader_epoch = 2, 2
    with ScriptedBroker(later, 2) as new, ScriptedBroker(leaders, 1, new.logs) as old:
        leaders.brokers.update(later.brokers)
        later.brokers.update(leaders.brokers)

        def script(stream: int, request: log_pb2.ProduceRequest) -> list[log_pb2.ProduceResponse] | None:
            return [] if request.HasField("batch") else None

        old.on_produce = script
        with Producer(old.bootstrap, linger_ms=1) as producer:
            send_numbers(producer, range(COUNT))
            producer.flush(timeout_ms=int(WAIT_S * 1000))
    assert numbers_in(new.logs[0]) == list(range(COUNT))


def test_consumer_asks_others_when_a_leader_stalls_and_its_watch_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frozen broker also carries the watch and would be asked first. Another broker knows the leader."""
    monkeypatch.setattr(fetch_stream, "FETCH_STALLED_MS", 50)
    leaders, later = Leaders(), Leaders()
    later.leader_id, later.leader_epoch = 2, 2
    with ScriptedBroker(later, 2) as new, ScriptedBroker(leaders, 1, new.logs) as old:
        leaders.brokers.update(later.brokers)
        later.brokers.update(leaders.brokers)
        old.on_fetch = lambda stream, request: [fetch_opened(request)] if request.HasField("open") else []
        with Consumer(old.bootstrap) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            assert consumer.poll(timeout_ms=1) == []
            new.logs[0].append(bytes(encode_batch([b"0", b"1"], timestamps_ms=1)))
            records = consumer.poll(timeout_ms=int(WAIT_S * 1000))
    assert [record.value for record in records] == [b"0", b"1"]

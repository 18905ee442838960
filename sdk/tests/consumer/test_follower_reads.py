# SPDX-License-Identifier: Apache-2.0
"""A consumer with a rack reads from a follower there. For any behaviour of the follower, records come once and in order."""

from __future__ import annotations

import socket
import threading

import grpc
import pytest
from lograft import Consumer, TopicPartition
from lograft._consumer import engine as fetch_engine
from lograft.errors import InvalidSettingError, OffsetOutOfRangeError
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.batch import encode_batch
from tests.client.reading import DEADLINE_MS
from tests.client.scripted_broker import Leaders, Log, ScriptedBroker, chunk, fetch_end, fetch_opened

TP = TopicPartition("t", 0)
COUNT = 10
Answer = list[log_pb2.FetchResponse | grpc.StatusCode | None]


def racks() -> Leaders:
    """Broker 1 leads in rack a; broker 2 is an in-sync follower in rack b."""
    leaders = Leaders()
    leaders.racks = {1: "a", 2: "b"}
    leaders.isr = (1, 2)
    return leaders


def filled(log: Log) -> None:
    """Append batches of one number each."""
    for number in range(COUNT):
        log.append(bytes(encode_batch([b"%d" % number])))


def read(consumer: Consumer, count: int) -> list[int]:
    """Poll until `count` records have come."""
    numbers: list[int] = []
    while len(numbers) < count:
        records = consumer.poll(count - len(numbers), timeout_ms=DEADLINE_MS)
        assert records, f"only {numbers} came"
        numbers += [int(record.value or b"") for record in records]
    return numbers


def routes_of(request: log_pb2.FetchRequest) -> list[log_pb2.FetchRoute]:
    """Return the routes that a request binds."""
    return list(request.open.routes if request.HasField("open") else request.bind.routes)


def refusal(code: errors_pb2.ErrorCode) -> Answer:
    """Return the end of route 0."""
    return [fetch_end(0, errors_pb2.PartitionError(code=code, message="scripted"))]


def test_a_follower_is_read_while_the_leader_is_not_reached() -> None:
    """With a rack the leader is not needed. The route allows a follower."""
    leaders = racks()
    asked: list[log_pb2.FetchRoute] = []
    with socket.create_server(("127.0.0.1", 0)) as mute, ScriptedBroker(leaders, 2) as follower:
        leaders.brokers[1] = mute.getsockname()[1]
        filled(follower.logs[0])

        def script(stream: int, request: log_pb2.FetchRequest) -> None:
            asked.extend(routes_of(request))

        follower.on_fetch = script
        with Consumer(follower.bootstrap, client_rack="b") as consumer:
            consumer.assign([TP], offsets={TP: 0})
            assert read(consumer, COUNT) == list(range(COUNT))
    assert [route.allow_follower for route in asked] == [True]


@pytest.mark.parametrize(
    "end",
    [
        refusal(errors_pb2.ERROR_CODE_NOT_LEADER),
        refusal(errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE),
        refusal(errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE),
        refusal(errors_pb2.ERROR_CODE_DATA_LOSS),
        refusal(errors_pb2.ERROR_CODE_UNKNOWN_TOPIC),
        refusal(errors_pb2.ERROR_CODE_STORAGE_FAILED),
        [None],
        [grpc.StatusCode.UNAVAILABLE],
        [grpc.StatusCode.INVALID_ARGUMENT],
        [log_pb2.FetchResponse(go_away=log_pb2.GoAway(message="restart"))],
    ],
)
@pytest.mark.parametrize("given", [0, 4])
def test_the_leader_is_asked_whatever_the_follower_answers(end: Answer, given: int) -> None:
    """Before the first record or after some, the consumer continues at the leader with the next record."""
    leaders = racks()
    asked: list[log_pb2.FetchRoute] = []
    with ScriptedBroker(leaders, 1) as leader, ScriptedBroker(leaders, 2) as follower:
        filled(leader.logs[0])

        def at_follower(stream: int, request: log_pb2.FetchRequest) -> Answer:
            some = chunk(0, b"".join(leader.logs[0].batches[:given]), given)
            return [fetch_opened(request), some, *end] if routes_of(request) else []

        def at_leader(stream: int, request: log_pb2.FetchRequest) -> None:
            asked.extend(routes_of(request))

        follower.on_fetch, leader.on_fetch = at_follower, at_leader
        with Consumer(leader.bootstrap, client_rack="b") as consumer:
            consumer.assign([TP], offsets={TP: 0})
            assert read(consumer, COUNT) == list(range(COUNT))
    assert [(route.offset, route.allow_follower) for route in asked] == [(given, False)]
    assert follower.fetch_streams == 1


@pytest.mark.parametrize(
    ("topic_id", "leader_epoch"), [(b"another topic id", 2), (bytes(16), 1)], ids=["topic id", "leader epoch"]
)
def test_a_follower_that_is_behind_is_left(topic_id: bytes, leader_epoch: int) -> None:
    """A follower with an older topic of the same name, or with an older leader epoch, proves nothing about the topic."""
    leaders = racks()
    with ScriptedBroker(leaders, 1) as leader, ScriptedBroker(leaders, 2) as follower:
        filled(leader.logs[0])
        follower.on_fetch = lambda stream, request: (
            [fetch_opened(request, topic_id, leader_epoch)] if routes_of(request) else []
        )
        with Consumer(leader.bootstrap, client_rack="a") as consumer:
            consumer.assign([TP], offsets={TP: 0})
            assert read(consumer, COUNT) == list(range(COUNT)), "from the leader, which is in its rack"
            leaders.racks = {1: "b", 2: "a"}
            leader.logs[0].append(bytes(encode_batch([b"10"])))
            leader.announce(1)
            assert read(consumer, 1) == [10]
            assert follower.fetch_streams == 1


def test_an_offset_is_out_of_range_only_by_the_leader() -> None:
    """The follower may be wrong; only the leader's answer counts."""
    leaders = racks()
    with ScriptedBroker(leaders, 1) as leader, ScriptedBroker(leaders, 2) as follower:
        for broker in (leader, follower):
            broker.on_fetch = lambda stream, request: (
                [fetch_opened(request), *refusal(errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE)]
                if routes_of(request)
                else []
            )
        with Consumer(leader.bootstrap, client_rack="b") as consumer:
            consumer.assign([TP], offsets={TP: 99})
            with pytest.raises(OffsetOutOfRangeError):
                consumer.poll(timeout_ms=DEADLINE_MS)
        assert (follower.fetch_streams, leader.fetch_streams) == (1, 1)


def test_a_follower_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `FOLLOWER_RETRY_MS`, the consumer returns from the leader, and continues from its position."""
    monkeypatch.setattr(fetch_engine, "FOLLOWER_RETRY_MS", 100)
    monkeypatch.setattr(fetch_engine, "TICK_S", 0.02)
    leaders = racks()
    again = threading.Event()
    offsets: list[int] = []
    with ScriptedBroker(leaders, 1) as leader, ScriptedBroker(leaders, 2, leader.logs) as follower:
        filled(leader.logs[0])

        def script(stream: int, request: log_pb2.FetchRequest) -> Answer | None:
            for route in routes_of(request):
                offsets.append(route.offset)
                # On a busy machine the follower is tried again before the leader has sent everything.
                if route.offset < COUNT:
                    return [None]
                again.set()
            return None

        follower.on_fetch = script
        with Consumer(leader.bootstrap, client_rack="b") as consumer:
            consumer.assign([TP], offsets={TP: 0})
            assert read(consumer, COUNT) == list(range(COUNT))
            assert again.wait(DEADLINE_MS / 1000)
            assert (offsets[0], offsets[-1]) == (0, COUNT)


def test_metadata_sends_the_consumer_away_from_a_follower_that_says_nothing() -> None:
    """The follower is frozen, and the metadata shows it out of sync."""
    leaders = racks()
    frozen = threading.Event()
    with ScriptedBroker(leaders, 1) as leader, ScriptedBroker(leaders, 2) as follower:
        filled(leader.logs[0])

        def script(stream: int, request: log_pb2.FetchRequest) -> Answer:
            frozen.set()
            return []

        follower.on_fetch = script
        with Consumer(leader.bootstrap, client_rack="b") as consumer:
            consumer.assign([TP], offsets={TP: 0})
            assert frozen.wait(DEADLINE_MS / 1000)
            leaders.isr = (1,)
            leader.announce(1)
            assert read(consumer, COUNT) == list(range(COUNT))


@pytest.mark.parametrize("rack", ["", "x" * 250])
def test_a_rack_has_1_to_249_characters(rack: str) -> None:
    """An empty string is not a rack; the setting must be left out."""
    with pytest.raises(InvalidSettingError, match="client_rack"):
        Consumer("localhost", client_rack=rack)

# SPDX-License-Identifier: Apache-2.0
"""The consumer against a broker that misbehaves: every record once and in order, or a typed error, never silence."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from lograft import Consumer, TopicPartition
from lograft._consumer import stream as fetch_stream
from lograft.errors import CorruptDataError, DataLossError, OffsetOutOfRangeError, ProtocolError, UnknownTopicError
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.batch import encode_batch
from tests.client.reading import DEADLINE_MS
from tests.client.scripted_broker import Leaders, Log, ScriptedBroker, chunk, fetch_end, fetch_opened, fill

TP = TopicPartition("t", 0)
Answer = list[log_pb2.FetchResponse | grpc.StatusCode | None] | None


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    """A broker with ten batches."""
    with ScriptedBroker(Leaders()) as scripted:
        fill(scripted.logs[0], 10)
        yield scripted


def read(consumer: Consumer, count: int) -> list[int]:
    """Poll until `count` records have come."""
    numbers: list[int] = []
    while len(numbers) < count:
        records = consumer.poll(count - len(numbers), timeout_ms=DEADLINE_MS)
        assert records, f"only {numbers} came"
        numbers += [int(record.value or b"") for record in records]
    return numbers


def first_route(request: log_pb2.FetchRequest) -> log_pb2.FetchRoute:
    """Return the route that a request binds."""
    return (request.open.routes if request.HasField("open") else request.bind.routes)[0]


@pytest.mark.parametrize(
    "end",
    [
        [None],
        [log_pb2.FetchResponse(go_away=log_pb2.GoAway(message="restart"))],
        [fetch_end(0, errors_pb2.PartitionError(code=errors_pb2.ERROR_CODE_SHUTTING_DOWN, message="stopping"))],
        [fetch_end(0, errors_pb2.PartitionError(code=errors_pb2.ERROR_CODE_NOT_LEADER, message="elsewhere"))],
        [grpc.StatusCode.CANCELLED],
    ],
    ids=["end of stream", "go away", "shutting down", "not leader", "cancelled"],
)
def test_ends_are_passed_over_without_loss_or_repeat(
    broker: ScriptedBroker, end: list[log_pb2.FetchResponse | grpc.StatusCode | None]
) -> None:
    """After half of the records the stream or route ends. The next one continues with the following record."""
    seen: list[int] = []

    def script(stream: int, request: log_pb2.FetchRequest) -> Answer:
        if seen or not request.HasField("open"):
            return None
        seen.append(stream)
        return [fetch_opened(request), chunk(0, b"".join(broker.logs[0].batches[:5]), 5), *end]

    broker.on_fetch = script
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        assert read(consumer, 10) == list(range(10))
        assert consumer.position(TP) == 10


def test_hint_leads_to_the_new_leader(broker: ScriptedBroker) -> None:
    """NOT_LEADER with a hint makes the consumer read from the other broker."""
    with ScriptedBroker(broker.leaders, 2, broker.logs) as new:
        hint = errors_pb2.LeaderHint(leader_id=2, leader_epoch=2, host="127.0.0.1", port=broker.leaders.brokers[2])
        error = errors_pb2.PartitionError(code=errors_pb2.ERROR_CODE_NOT_LEADER, message="moved", leader=hint)
        broker.on_fetch = lambda stream, request: (
            [fetch_opened(request), fetch_end(0, error)] if request.HasField("open") else None
        )
        new.on_fetch = lambda stream, request: (
            [fetch_opened(request, leader_epoch=2), new.chunk(request.open.routes[0])]
            if request.HasField("open")
            else None
        )
        with Consumer(broker.bootstrap) as consumer:
            consumer.assign([TP], offsets={TP: 3})
            assert read(consumer, 7) == list(range(3, 10))
        assert (broker.fetch_streams, new.fetch_streams) == (1, 1)


def test_deposed_leader_is_not_believed(broker: ScriptedBroker) -> None:
    """The consumer leaves a broker that opens a route under a lower leader epoch than the known one, and drops its chunks."""
    broker.leaders.leader_epoch = 5
    epochs = [3, 5]

    def script(stream: int, request: log_pb2.FetchRequest) -> Answer:
        if not request.HasField("open") and not request.HasField("bind"):
            return []
        epoch = epochs.pop(0)
        route = first_route(request)
        if epoch == 5:
            return [fetch_opened(request, leader_epoch=5), broker.chunk(route)]
        stale = Log()
        fill(stale, 10, start=500)
        return [fetch_opened(request, leader_epoch=3), chunk(route.route, b"".join(stale.batches), 10)]

    broker.on_fetch = script
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        assert read(consumer, 10) == list(range(10))


def test_topic_made_anew_is_not_read_with_old_offsets(broker: ScriptedBroker) -> None:
    """When another topic takes over the name, the consumer raises an error instead of using a meaningless offset."""

    def script(stream: int, request: log_pb2.FetchRequest) -> Answer:
        if stream == 0:
            return [fetch_opened(request), chunk(0, b"".join(broker.logs[0].batches[:5]), 5), None]
        return [fetch_opened(request, topic_id=bytes([1] * 16))]

    broker.on_fetch = script
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        assert read(consumer, 5) == list(range(5))
        with pytest.raises(UnknownTopicError, match="created again"):
            consumer.poll(timeout_ms=DEADLINE_MS)


def test_damaged_batch_is_an_error_until_a_seek(broker: ScriptedBroker) -> None:
    """The records before the damage come. Then every poll raises a typed error, until a seek moves past the damage."""
    batches = [bytearray(batch) for batch in broker.logs[0].batches]
    batches[4][-1] ^= 0xFF
    broker.logs[0].batches = [bytes(batch) for batch in batches]
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        assert read(consumer, 4) == [0, 1, 2, 3]
        for _ in range(2):
            with pytest.raises(CorruptDataError, match="offset 4"):
                consumer.poll(timeout_ms=DEADLINE_MS)
        consumer.seek(TP, 5)
        assert read(consumer, 5) == [5, 6, 7, 8, 9]
    with Consumer(broker.bootstrap, check_crcs=False) as consumer:
        consumer.assign([TP])
        fetched = consumer.poll_batch(DEADLINE_MS)
        assert fetched is not None


def test_torn_chunk_is_an_error(broker: ScriptedBroker) -> None:
    """A chunk that ends inside a batch is damaged; it is not the end of the log."""
    broker.on_fetch = lambda stream, request: (
        [fetch_opened(request), chunk(0, broker.logs[0].batches[0][:-3], 1)] if request.HasField("open") else None
    )
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        with pytest.raises(CorruptDataError):
            consumer.poll(timeout_ms=DEADLINE_MS)


def test_gaps_control_batches_and_marks_move_the_position(broker: ScriptedBroker) -> None:
    """Control batches are hidden, compacted batches keep their offsets, and a mark skips offsets without records."""
    first = encode_batch([b"1", b"2", b"3"], offset_deltas=[0, 4, 9], base_offset=0)
    control = encode_batch([b"marker"], control=True, base_offset=10)
    last = encode_batch([b"4"], base_offset=20)
    body = bytes(first + control + last)

    def script(stream: int, request: log_pb2.FetchRequest) -> Answer:
        if not request.HasField("open"):
            return []
        mark = log_pb2.FetchMark(route=0, next_offset=40, high_watermark=40, caught_up=True)
        return [fetch_opened(request), chunk(0, body, 30), log_pb2.FetchResponse(mark=mark)]

    broker.on_fetch = script
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP], offsets={TP: 3})
        records = consumer.poll(2, timeout_ms=DEADLINE_MS)
        assert [(record.offset, record.value) for record in records] == [(4, b"2"), (9, b"3")]
        assert consumer.position(TP) == 10
        records = consumer.poll(timeout_ms=DEADLINE_MS)
        assert [(record.offset, record.value) for record in records] == [(20, b"4")]
        assert consumer.poll(timeout_ms=100) == []
        assert consumer.position(TP) == 40
        assert consumer.high_watermark(TP) == 40


def test_silent_broker_is_asked_anew(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that sends not even marks loses its stream. The next stream delivers."""
    monkeypatch.setattr(fetch_stream, "STREAM_SILENCE_MS", 200)
    broker.on_fetch = lambda stream, request: [fetch_opened(request)] if stream == 0 else None
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        assert read(consumer, 10) == list(range(10))
        assert broker.fetch_streams == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ([fetch_end(0, errors_pb2.PartitionError(code=errors_pb2.ERROR_CODE_OVERLOADED))], ProtocolError),
        ([chunk(0, b"x", 1)], ProtocolError),
        ([log_pb2.FetchResponse()], ProtocolError),
    ],
    ids=["route end first", "chunk first", "empty"],
)
def test_broken_handshake_is_an_error(
    broker: ScriptedBroker, answer: list[log_pb2.FetchResponse | None], kind: type[Exception]
) -> None:
    """`poll` raises a typed error for a server that does not speak the protocol."""
    broker.on_fetch = lambda stream, request: answer
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        with pytest.raises(kind):
            consumer.poll(timeout_ms=DEADLINE_MS)


def test_lost_data_is_an_error(broker: ScriptedBroker) -> None:
    """DATA_LOSS reaches the application."""
    error = errors_pb2.PartitionError(code=errors_pb2.ERROR_CODE_DATA_LOSS, message="offsets 3 to 9 are lost")
    broker.on_fetch = lambda stream, request: [fetch_opened(request), fetch_end(0, error)]
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        with pytest.raises(DataLossError, match="3 to 9"):
            consumer.poll(timeout_ms=DEADLINE_MS)


@pytest.mark.parametrize(("policy", "start"), [("earliest", 0), ("latest", 10)])
def test_reset_without_a_range_looks_the_offset_up(broker: ScriptedBroker, policy: str, start: int) -> None:
    """When the broker does not report the readable range, a reset policy looks it up."""
    error = errors_pb2.PartitionError(code=errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE, message="out of range")

    def script(stream: int, request: log_pb2.FetchRequest) -> Answer:
        if not request.HasField("open") and not request.HasField("bind"):
            return []
        route = first_route(request)
        if route.offset == 77:
            return [fetch_opened(request), fetch_end(route.route, error)]
        fill(broker.logs[0], 1, start=10)
        return None

    broker.on_fetch = script
    with Consumer(broker.bootstrap, on_out_of_range=policy) as consumer:
        consumer.assign([TP], offsets={TP: 77})
        assert read(consumer, 1) == [start]
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP], offsets={TP: 77})
        with pytest.raises(OffsetOutOfRangeError) as caught:
            consumer.poll(timeout_ms=DEADLINE_MS)
        assert caught.value.log_start_offset is None


def test_broker_that_moved_is_found_at_its_new_address(broker: ScriptedBroker) -> None:
    """When a broker comes back at another address, the consumer reads its partitions there from the same positions."""
    with ScriptedBroker(broker.leaders, 2, broker.logs) as moved:
        broker.leaders.brokers.pop(2)
        error = errors_pb2.PartitionError(code=errors_pb2.ERROR_CODE_NOT_LEADER, message="moved")

        def script(stream: int, request: log_pb2.FetchRequest) -> Answer:
            if request.HasField("bind"):
                route = first_route(request)
                return [fetch_opened(request), fetch_end(route.route, error)]
            if not request.HasField("open"):
                return []
            broker.leaders.brokers[1] = moved.port
            return [fetch_opened(request), chunk(0, b"".join(broker.logs[0].batches[:4]), 4), fetch_end(0, error)]

        broker.on_fetch = script
        with Consumer(broker.bootstrap) as consumer:
            consumer.assign([TP])
            assert read(consumer, 10) == list(range(10))
        assert moved.fetch_streams == 1


def test_partition_without_a_leader_waits_for_one(broker: ScriptedBroker) -> None:
    """Without a leader, poll returns nothing. It continues when the metadata names a leader."""
    broker.leaders.leader_id = 9
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TP])
        assert consumer.poll(timeout_ms=100) == []
        broker.leaders.leader_id = 1
        assert read(consumer, 10) == list(range(10))

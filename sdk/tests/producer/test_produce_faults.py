# SPDX-License-Identifier: Apache-2.0
"""The producer against a broker that misbehaves: nothing lost, nothing doubled, order kept, failures reported correctly."""

from __future__ import annotations

import grpc
import pytest
from lograft import BatchReceipt, DeliveryError, Producer
from lograft._producer import stream as produce_stream
from lograft.errors import (
    BatchRefusedError,
    FatalError,
    LograftError,
    OutcomeUnknownError,
    ProtocolError,
    RefusedError,
    RequestTimeoutError,
    WrongClusterError,
)
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.batch import RecordBatch
from tests.client.scripted_broker import Leaders, Log, ScriptedBroker, produce_end, receipt

Answer = list[log_pb2.ProduceResponse | grpc.StatusCode | None] | None


def send_numbers(producer: Producer, count: int, *, start: int = 0) -> None:
    """Send each number as its own batch, in order, with as many in flight as the window allows."""
    for number in range(start, start + count):
        producer.send("t", b"%d" % number, partition=0)
        with producer._lock:  # pyright: ignore[reportPrivateUsage]
            producer._deliveries.accumulator.seal_all()  # pyright: ignore[reportPrivateUsage]


def numbers_in(log: Log) -> list[int]:
    """Return the numbers in the log, in order."""
    return [int(value or b"") for batch in log.batches for value in RecordBatch(batch).values()]


@pytest.mark.parametrize("broken_streams", [1, 3])
def test_lost_receipts_cost_nothing(broken_streams: int) -> None:
    """Streams break after the append and before the receipt. The broker recognises the resent batches."""
    receipts: list[BatchReceipt] = []
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap, on_batch=receipts.append) as producer:

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if stream < broken_streams and request.HasField("batch") and request.batch.batch_number == 3 + stream:
                broker.logs[0].append(request.batch.body)
                return [None]
            return None

        broker.on_produce = script
        send_numbers(producer, 40)
        producer.flush(timeout_ms=20_000)
        assert numbers_in(broker.logs[0]) == list(range(40))
        assert broker.produce_streams == broken_streams + 1
        assert len({open_.producer.producer_id for open_ in broker.opens[1:]}) == 1
    assert [each.base_offset for each in receipts] == list(range(40))
    assert sum(each.duplicate for each in receipts) >= broken_streams


def test_moved_leader_is_followed_by_its_hint() -> None:
    """NOT_LEADER with a hint moves the partition to the other broker under the same identity, in order."""
    leaders = Leaders()
    with ScriptedBroker(leaders) as old, ScriptedBroker(leaders, 2, old.logs) as new:

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if request.HasField("batch") and request.batch.batch_number == 5:
                hint = errors_pb2.LeaderHint(leader_id=2, leader_epoch=2, host="127.0.0.1", port=leaders.brokers[2])
                return [produce_end(request.batch.route, errors_pb2.ERROR_CODE_NOT_LEADER, hint=hint)]
            return [] if request.HasField("batch") and request.batch.batch_number > 5 else None

        old.on_produce = script
        with Producer(old.bootstrap) as producer:
            send_numbers(producer, 30)
            producer.flush(timeout_ms=20_000)
        assert numbers_in(old.logs[0]) == list(range(30))
        assert new.opens[0].producer.producer_id == 1_001


def test_leader_without_hint_is_found_by_metadata() -> None:
    """After NOT_LEADER without a hint, the client asks for the leader again."""
    leaders = Leaders()
    with ScriptedBroker(leaders) as old, ScriptedBroker(leaders, 2, old.logs):

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if not request.HasField("batch"):
                return None
            leaders.leader_id, leaders.leader_epoch = 2, 2
            return [produce_end(request.batch.route, errors_pb2.ERROR_CODE_NOT_LEADER)]

        old.on_produce = script
        with Producer(old.bootstrap, max_in_flight=1) as producer:
            send_numbers(producer, 5)
            producer.flush(timeout_ms=20_000)
        assert numbers_in(old.logs[0]) == list(range(5))


def test_refused_batch_is_found_among_unknown_ones() -> None:
    """When the broker cannot say which batch it refused, only that batch fails, and the others are there once."""
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap) as producer:
        ended: set[tuple[int, int]] = set()

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if not request.HasField("batch"):
                return None
            route = request.batch.route
            if (stream, route) in ended:
                return []
            if RecordBatch(request.batch.body).values() == [b"7"]:
                is_alone = bool(ended)
                ended.add((stream, route))
                return [produce_end(route, errors_pb2.ERROR_CODE_INVALID_BATCH, unknown=not is_alone)]
            if not ended and RecordBatch(request.batch.body).values() in ([b"5"], [b"6"]):
                # The batch is in the log, but has no receipt when the route ends.
                broker.logs[0].append(request.batch.body)
                return []
            return None

        broker.on_produce = script
        send_numbers(producer, 20)
        with pytest.raises(DeliveryError) as caught:
            producer.flush(timeout_ms=20_000)
        assert [failure.record_count for failure in caught.value.failures] == [1]
        assert isinstance(caught.value.failures[0].error, BatchRefusedError | OutcomeUnknownError)
        assert numbers_in(broker.logs[0]) == [number for number in range(20) if number != 7]


def test_too_few_replicas_are_waited_for() -> None:
    """NOT_ENOUGH_REPLICAS costs no batch and no identity: nothing was appended, and later attempts deliver in order."""
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap) as producer:
        ended: list[int] = []

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if not request.HasField("batch") or (len(ended) >= 3 and request.batch.route not in ended):
                return None
            if request.batch.route in ended:
                return []
            ended.append(request.batch.route)
            return [produce_end(request.batch.route, errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS)]

        broker.on_produce = script
        send_numbers(producer, 20)
        producer.flush(timeout_ms=20_000)
        assert len(ended) == 3
        assert numbers_in(broker.logs[0]) == list(range(20))
        assert broker.identities == 1


@pytest.mark.parametrize("idempotent", [True, False])
def test_batches_left_in_the_log_are_sent_again_only_where_they_are_recognised(idempotent: bool) -> None:
    """After NOT_ENOUGH_REPLICAS_AFTER_APPEND the broker recognises an idempotent producer's batches. Others fail as unknown."""
    receipts: list[BatchReceipt] = []
    with (
        ScriptedBroker(Leaders()) as broker,
        Producer(broker.bootstrap, idempotent=idempotent, max_in_flight=4, on_batch=receipts.append) as producer,
    ):
        left_in_log: list[int] = []

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if not request.HasField("batch") or len(left_in_log) == 4:
                return None
            broker.logs[0].append(request.batch.body)
            left_in_log.append(request.batch.batch_number)
            code = errors_pb2.ERROR_CODE_NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return [produce_end(request.batch.route, code, unknown=True)] if len(left_in_log) == 4 else []

        broker.on_produce = script
        send_numbers(producer, 10)
        if idempotent:
            producer.flush(timeout_ms=20_000)
            assert [each.duplicate for each in receipts] == [True] * 4 + [False] * 6
        else:
            with pytest.raises(DeliveryError) as caught:
                producer.flush(timeout_ms=20_000)
            assert caught.value.failed_record_count == 4
            assert all(isinstance(failure.error, OutcomeUnknownError) for failure in caught.value.failures)
        assert numbers_in(broker.logs[0]) == list(range(10))
        assert broker.identities == (1 if idempotent else 0)


def test_lost_identity_is_replaced() -> None:
    """After OUT_OF_ORDER_SEQUENCE one batch fails, and the others continue under another identity, from sequence 0."""
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap) as producer:
        ended: list[int] = []

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if not request.HasField("batch") or stream > 0:
                return None
            if request.batch.batch_number == 4:
                ended.append(request.batch.route)
                return [produce_end(request.batch.route, errors_pb2.ERROR_CODE_OUT_OF_ORDER_SEQUENCE)]
            return [] if ended else None

        broker.on_produce = script
        send_numbers(producer, 20)
        with pytest.raises(DeliveryError) as caught:
            producer.flush(timeout_ms=20_000)
        assert caught.value.failed_record_count == 1
        assert isinstance(caught.value.failures[0].error, RefusedError)
        assert numbers_in(broker.logs[0]) == [0, 1, 2, *range(4, 20)]
        assert broker.identities == 2
        headers = [RecordBatch(batch).header for batch in broker.logs[0].batches]
        assert {header.producer_id for header in headers} == {1_001, 1_002}
        assert headers[3].base_sequence == 0


def test_expired_batches_are_reported_and_later_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches without a receipt fail at the delivery timeout with an unknown outcome. Later batches are delivered."""
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap, delivery_timeout_ms=500) as producer:
        broker.on_produce = lambda stream, request: [] if request.HasField("batch") and broker.identities == 1 else None
        send_numbers(producer, 3)
        with pytest.raises(DeliveryError) as caught:
            producer.flush(timeout_ms=20_000)
        assert caught.value.failed_record_count == 3
        assert isinstance(caught.value.failures[0].error, RequestTimeoutError)
        assert all(isinstance(each.error, OutcomeUnknownError) for each in caught.value.failures[1:])
        send_numbers(producer, 3, start=10)
        producer.flush(timeout_ms=20_000)
        assert numbers_in(broker.logs[0]) == [10, 11, 12]
        assert broker.identities == 2


def test_silent_broker_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that owes receipts and sends nothing loses its stream. The next stream delivers."""
    monkeypatch.setattr(produce_stream, "STREAM_SILENCE_MS", 200)
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap) as producer:
        broker.on_produce = lambda stream, request: [] if stream == 0 and request.HasField("batch") else None
        send_numbers(producer, 5)
        producer.flush(timeout_ms=20_000)
        assert numbers_in(broker.logs[0]) == list(range(5))
        assert broker.produce_streams == 2


def test_broker_that_goes_away_is_left_after_its_receipts() -> None:
    """After GoAway nothing more is sent on the stream, but batches in flight are still acknowledged on it."""
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap) as producer:
        on_first: list[int] = []

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if stream > 0 or not request.HasField("batch"):
                return None
            on_first.append(request.batch.batch_number)
            if request.batch.batch_number != 2:
                return None
            base_offset, _ = broker.logs[0].append(request.batch.body)
            go_away = log_pb2.ProduceResponse(go_away=log_pb2.GoAway(message="restart", drain_ms=1_000))
            return [go_away, receipt(request.batch.route, 2, base_offset)]

        broker.on_produce = script
        send_numbers(producer, 30)
        producer.flush(timeout_ms=20_000)
        assert numbers_in(broker.logs[0]) == list(range(30))
        assert broker.produce_streams == 2


@pytest.mark.parametrize(
    "answer",
    [
        [receipt(0, 9, 5)],
        [log_pb2.ProduceResponse()],
        [None],
        [produce_end(0, errors_pb2.ERROR_CODE_OVERLOADED)],
        [receipt(77, 1, 5), log_pb2.ProduceResponse(), None],
        [grpc.StatusCode.CANCELLED],
        [grpc.StatusCode.UNKNOWN],
        [grpc.StatusCode.RESOURCE_EXHAUSTED],
        [grpc.StatusCode.PERMISSION_DENIED],
    ],
    ids=[
        "wrong receipt",
        "unknown message",
        "end of stream",
        "overloaded",
        "foreign route",
        "cancelled",
        "unknown",
        "exhausted",
        "denied",
    ],
)
def test_odd_answers_end_the_stream_and_not_the_delivery(
    answer: list[log_pb2.ProduceResponse | grpc.StatusCode | None],
) -> None:
    """For any answer of the broker to a batch, the next attempt delivers it once."""
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap) as producer:
        answered: list[int] = []

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if request.HasField("batch") and not answered:
                answered.append(stream)
                return answer
            return None

        broker.on_produce = script
        producer.send("t", b"1", partition=0)
        producer.flush(timeout_ms=20_000)
        assert numbers_in(broker.logs[0]) == [1]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ([receipt(0, 1, 0)], ProtocolError),
        ([log_pb2.ProduceResponse(opened=log_pb2.ProduceOpened(cluster_id="scripted"))], ProtocolError),
        ([produce_end(0, errors_pb2.ERROR_CODE_INVALID_REQUEST)], ProtocolError),
    ],
    ids=["no opened", "no identity", "route end first"],
)
def test_broken_handshake_fails_what_was_never_sent(
    answer: list[log_pb2.ProduceResponse | None], kind: type[LograftError]
) -> None:
    """For a server that does not speak the protocol, the records fail with a fatal error instead of waiting for ever."""
    with ScriptedBroker(Leaders()) as broker, Producer(broker.bootstrap) as producer:
        broker.on_produce = lambda stream, request: answer
        producer.send("t", b"1", partition=0)
        with pytest.raises(DeliveryError) as caught:
            producer.flush(timeout_ms=20_000)
        assert isinstance(caught.value.failures[0].error, kind)


def test_refused_binding_fails_its_partition_only() -> None:
    """A route that is refused for good fails the records of its partition. Others on the same stream are delivered."""
    with ScriptedBroker(Leaders(2)) as broker, Producer(broker.bootstrap) as producer:

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            if request.HasField("batch"):
                return None
            opened = broker.opened(request)
            wanted = request.open.routes if request.HasField("open") else request.bind.routes
            bad = [route.route for route in wanted if route.partition == 1]
            kept = [route for route in opened.opened.routes if route.route not in bad]
            del opened.opened.routes[:]
            opened.opened.routes.extend(kept)
            return [opened, *(produce_end(route, errors_pb2.ERROR_CODE_INVALID_REQUEST) for route in bad)]

        broker.on_produce = script
        producer.send("t", b"0", partition=0)
        producer.send("t", b"1", partition=1)
        with pytest.raises(DeliveryError) as caught:
            producer.flush(timeout_ms=20_000)
        assert [failure.partition for failure in caught.value.failures] == [1]
        assert isinstance(caught.value.failures[0].error, FatalError)
        assert numbers_in(broker.logs[0]) == [0]


def test_bytes_in_flight_keep_to_the_brokers_limit() -> None:
    """The stream never has more unacknowledged bytes than the broker allows, except by a single batch."""
    with ScriptedBroker(Leaders(4)) as broker, Producer(broker.bootstrap, linger_ms=0) as producer:
        broker.max_in_flight_bytes = 2_500
        held: list[log_pb2.ProduceRequest] = []
        most = 0

        def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
            nonlocal most
            if not request.HasField("batch"):
                return None
            held.append(request)
            most = max(most, sum(len(each.batch.body) for each in held))
            # Answer late: only when two batches are here, or the limit of bytes is reached.
            if len(held) < 2:
                return []
            answers: list[log_pb2.ProduceResponse | None] = []
            for each in held:
                base_offset, _ = broker.logs[each.batch.route].append(each.batch.body)
                answers.append(receipt(each.batch.route, each.batch.batch_number, base_offset))
            held.clear()
            return answers

        broker.on_produce = script
        for number in range(20):
            producer.send("t", b"x" * 1_000, partition=number % 4)
            with producer._lock:  # pyright: ignore[reportPrivateUsage]
                producer._deliveries.accumulator.seal_all()  # pyright: ignore[reportPrivateUsage]
        producer.flush(timeout_ms=20_000)
        assert sum(log.end_offset for log in broker.logs.values()) == 20
        assert most <= 2_500 + 1_200


def test_broker_that_moved_is_found_at_its_new_address() -> None:
    """When a broker comes back at another address, all its partitions follow, including those without an error."""
    leaders = Leaders(2)
    with ScriptedBroker(leaders) as old, ScriptedBroker(leaders, 2, old.logs) as moved:
        leaders.brokers.pop(2)
        with Producer(old.bootstrap) as producer:
            for partition in (0, 1):
                producer.send("t", b"0", partition=partition)
            producer.flush(timeout_ms=20_000)

            def script(stream: int, request: log_pb2.ProduceRequest) -> Answer:
                # Route 1 belongs to partition 1, which has no error at the old address.
                if not request.HasField("batch") or request.batch.route == 1:
                    return None
                leaders.brokers[1] = moved.port
                return [produce_end(request.batch.route, errors_pb2.ERROR_CODE_NOT_LEADER)]

            old.on_produce = script
            for number in (1, 2, 3):
                for partition in (0, 1):
                    producer.send("t", b"%d" % number, partition=partition)
                producer.flush(timeout_ms=20_000)
        assert [numbers_in(log) for log in old.logs.values()] == [[0, 1, 2, 3]] * 2
        assert moved.produce_streams == 1
        assert moved.opens[0].producer.producer_id == 1_001


def test_partition_without_a_leader_waits_for_one() -> None:
    """Without a leader, records wait. They go out when the metadata names a leader."""
    leaders = Leaders()
    leaders.leader_id = 9
    with ScriptedBroker(leaders) as broker, Producer(broker.bootstrap) as producer:
        producer.send("t", b"1", partition=0)
        with pytest.raises(RequestTimeoutError):
            producer.flush(timeout_ms=200)
        leaders.leader_id = 1
        leaders.leader_epoch = 2
        producer.flush(timeout_ms=20_000)
        assert numbers_in(broker.logs[0]) == [1]


def test_other_cluster_behind_the_address_is_not_believed() -> None:
    """A client that has seen one cluster refuses another cluster at the same address."""
    leaders = Leaders()
    with ScriptedBroker(leaders) as broker, Producer(broker.bootstrap) as producer:
        producer.send("t", b"1", partition=0)
        producer.flush(timeout_ms=20_000)
        leaders.cluster_id = "another"
        with pytest.raises(WrongClusterError, match="another"):
            producer.send("other-topic", b"1")

# SPDX-License-Identifier: Apache-2.0
"""Bad input over real gRPC: every case gets a typed answer, and everything else keeps working.

After each case the same broker must still append and read; the topic fixture checks that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from lograft.v1 import admin_pb2, log_pb2, metadata_pb2
from lograft.wire.batch import encode_batch
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.limits import MAX_OFFSET_QUERIES, MAX_ROUTES_PER_STREAM
from brokerd.process.server import BrokerServer
from brokerd.tests.api.bad_batches import BATCHES
from brokerd.tests.support import WAIT_S, Client, FetchStream, ProduceStream, Stream, connected, refusal, running_broker

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerServer]:
    """One cluster for all cases, so that damage by one case shows in the next."""
    async with running_broker(tmp_path_factory.mktemp("broker")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(broker: BrokerServer) -> AsyncIterator[Client]:
    """A client of that cluster."""
    async with connected(broker) as connection:
        yield connection


@pytest_asyncio.fixture(loop_scope="module")
async def topic(client: Client) -> AsyncIterator[str]:
    """A topic that must work before and after the case, with nothing of the case in it."""
    await client.create_topic("t", 2, max_message_bytes="100000")
    await client.append("t", [b"before"], partition=0)
    yield "t"
    await client.append("t", [b"after"], partition=0)
    assert [record.value for record in (await client.read("t")).records] == [b"before", b"after"]
    await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"))


@pytest.mark.parametrize("name", BATCHES)
async def test_bad_batch_ends_its_route_and_nothing_else(client: Client, topic: str, name: str) -> None:
    """A refused batch ends its route with a typed error before anything is stored. The other route keeps working."""
    code, damage = BATCHES[name]
    stream = ProduceStream(client)
    await stream.open((topic, 1), (topic, 1))
    body = damage(stream.encode([b"a", b"b"], 0))
    await stream.send_body(body, route=0)
    end = await stream.route_end(0)
    assert ErrorCode.from_number(end.error.code) is code, end.error.message
    assert end.error.message
    assert (end.first_failed_batch_number, end.outcome_unknown) == (1, False)
    await stream.produce([b"fine"], route=1)
    await stream.receipts(1, route=1)
    assert [record.value for record in (await client.read(topic, 1)).records] == [b"fine"]


ROUTES: dict[str, tuple[ErrorCode, log_pb2.ProduceRoute]] = {
    "unknown topic": (ErrorCode.UNKNOWN_TOPIC, log_pb2.ProduceRoute(topic="missing")),
    "empty name": (ErrorCode.INVALID_TOPIC_NAME, log_pb2.ProduceRoute(topic="")),
    "dot dot": (ErrorCode.INVALID_TOPIC_NAME, log_pb2.ProduceRoute(topic="..")),
    "250 characters": (ErrorCode.INVALID_TOPIC_NAME, log_pb2.ProduceRoute(topic="x" * 250)),
    "slash": (ErrorCode.INVALID_TOPIC_NAME, log_pb2.ProduceRoute(topic="a/b")),
    "NUL": (ErrorCode.INVALID_TOPIC_NAME, log_pb2.ProduceRoute(topic="a\0b")),
    "unknown partition": (ErrorCode.UNKNOWN_PARTITION, log_pb2.ProduceRoute(topic="t", partition=2)),
    "negative partition": (ErrorCode.UNKNOWN_PARTITION, log_pb2.ProduceRoute(topic="t", partition=-1)),
}


@pytest.mark.parametrize("name", ROUTES)
async def test_bad_route_is_refused_and_the_stream_goes_on(client: Client, topic: str, name: str) -> None:
    """Both kinds of streams refuse a route that names nothing, each with the same code, and serve the others."""
    code, route = ROUTES[name]
    produce = ProduceStream(client)
    opened = await produce.open((route.topic, route.partition), (topic, 1))
    assert [found.route for found in opened.routes] == [1]
    assert ErrorCode.from_number((await produce.route_end(0)).error.code) is code
    await produce.produce([b"x"], route=1)
    await produce.receipts(1, route=1)
    fetch = FetchStream(client)
    await fetch.open((route.topic, route.partition, 0), (topic, 1, 0))
    assert ErrorCode.from_number((await fetch.route_end(0)).error.code) is code
    assert (await fetch.chunk()).route == 1
    status = await refusal(client.append(route.topic, [b"x"], partition=route.partition))
    assert status.code is code
    status = await refusal(client.read(route.topic, route.partition))
    assert status.code is code


async def test_sequence_with_a_gap_ends_the_route(client: Client, topic: str) -> None:
    """A lost batch shows as a gap in the sequence: nothing is appended after it, and the earlier batches are acknowledged."""
    stream = ProduceStream(client)
    await stream.open((topic, 1))
    await stream.produce([b"a", b"b"])
    await stream.receipts(1)
    await stream.send_body(stream.encode([b"d"], 3))
    end = await stream.route_end(0)
    assert ErrorCode.from_number(end.error.code) is ErrorCode.OUT_OF_ORDER_SEQUENCE
    assert (end.first_failed_batch_number, end.outcome_unknown) == (2, False)
    assert len((await client.read(topic, 1)).records) == 2


def produce_open(**fields: Any) -> log_pb2.ProduceRequest:
    return log_pb2.ProduceRequest(open=log_pb2.ProduceOpen(**fields))


def fetch_open(**fields: Any) -> log_pb2.FetchRequest:
    return log_pb2.FetchRequest(open=log_pb2.FetchOpen(**fields))


BATCH = log_pb2.ProduceRequest(batch=log_pb2.ProduceBatch(route=0, batch_number=1, body=b"x"))
OLD_PRODUCER = log_pb2.ProducerIdentity(producer_id=10**15)
MANY_ROUTES = [log_pb2.ProduceRoute(route=number) for number in range(MAX_ROUTES_PER_STREAM + 1)]

PRODUCE_STREAMS: dict[str, tuple[ErrorCode, list[log_pb2.ProduceRequest]]] = {
    "wrong cluster": (ErrorCode.WRONG_CLUSTER, [produce_open(cluster_id="elsewhere")]),
    "unknown acks": (ErrorCode.INVALID_ACKS, [produce_open(acks=7)]),
    "negative acks": (ErrorCode.INVALID_ACKS, [produce_open(acks=-1)]),
    "unsupported format": (ErrorCode.UNSUPPORTED_FORMAT, [produce_open(formats=[2, 17])]),
    "batch before open": (ErrorCode.INVALID_REQUEST, [BATCH]),
    "bind before open": (ErrorCode.INVALID_REQUEST, [log_pb2.ProduceRequest(bind=log_pb2.ProduceBind())]),
    "empty message": (ErrorCode.INVALID_REQUEST, [log_pb2.ProduceRequest()]),
    "open twice": (ErrorCode.INVALID_REQUEST, [produce_open(), produce_open()]),
    "identity never heard of": (ErrorCode.METADATA_NOT_REACHED, [produce_open(producer=OLD_PRODUCER)]),
    "identity that cannot be": (
        ErrorCode.INVALID_REQUEST,
        [produce_open(producer=log_pb2.ProducerIdentity(producer_id=1, producer_epoch=2**15))],
    ),
    "identity and none": (ErrorCode.INVALID_REQUEST, [produce_open(producer=OLD_PRODUCER, without_idempotence=True)]),
    "route too high": (ErrorCode.INVALID_REQUEST, [produce_open(routes=[log_pb2.ProduceRoute(route=2**20)])]),
    "route negative": (ErrorCode.INVALID_REQUEST, [produce_open(routes=[log_pb2.ProduceRoute(route=-1)])]),
    "huge route count": (ErrorCode.LIMIT_EXCEEDED, [produce_open(routes=MANY_ROUTES)]),
}


@pytest.mark.parametrize("name", PRODUCE_STREAMS)
@pytest.mark.usefixtures("topic")
async def test_bad_produce_stream_ends_typed(client: Client, name: str) -> None:
    """An error that the end of a route cannot express ends the produce stream with a typed status."""
    code, requests = PRODUCE_STREAMS[name]
    stream = ProduceStream(client)
    for request in requests:
        await stream.send(request)
    assert (await stream.failure()).code is code


FETCH_STREAMS: dict[str, tuple[ErrorCode, list[log_pb2.FetchRequest]]] = {
    "wrong cluster": (ErrorCode.WRONG_CLUSTER, [fetch_open(cluster_id="elsewhere")]),
    "unsupported format": (ErrorCode.UNSUPPORTED_FORMAT, [fetch_open(formats=[2])]),
    "credit before open": (ErrorCode.INVALID_REQUEST, [log_pb2.FetchRequest(credit=log_pb2.FetchCredit(bytes=1))]),
    "empty message": (ErrorCode.INVALID_REQUEST, [log_pb2.FetchRequest()]),
    "negative credit": (ErrorCode.INVALID_REQUEST, [fetch_open(credit_bytes=-1)]),
    "endless credit": (ErrorCode.INVALID_REQUEST, [fetch_open(credit_bytes=2**63 - 1)]),
    "huge chunks": (ErrorCode.INVALID_REQUEST, [fetch_open(max_chunk_bytes=2**31 - 1)]),
    "huge route count": (
        ErrorCode.LIMIT_EXCEEDED,
        [fetch_open(routes=[log_pb2.FetchRoute(route=number) for number in range(MAX_ROUTES_PER_STREAM + 1)])],
    ),
}


@pytest.mark.parametrize("name", FETCH_STREAMS)
@pytest.mark.usefixtures("topic")
async def test_bad_fetch_stream_ends_typed(client: Client, name: str) -> None:
    """An error that the end of a route cannot express ends the fetch stream with a typed status."""
    code, requests = FETCH_STREAMS[name]
    stream = FetchStream(client)
    for request in requests:
        await stream.send(request)
    assert (await stream.failure()).code is code


@pytest.mark.parametrize(
    "method",
    ["Produce", "Fetch", "Append", "Read", "ListOffsets", "DeleteRecords", "DescribeProducers", "InitProducer"],
)
@pytest.mark.usefixtures("topic")
async def test_bytes_that_are_no_message_are_refused(client: Client, method: str) -> None:
    """Bytes that no parser takes get INVALID_REQUEST on streams and calls alike."""
    path = f"/lograft.v1.LogService/{method}"
    garbage = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    if method in ("Produce", "Fetch"):
        call = client.channel.stream_stream(path)()
        await call.write(garbage)
        status = await Stream(call).failure()
    else:
        status = await refusal(client.channel.unary_unary(path)(garbage, timeout=WAIT_S))
    assert status.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("offset", "code"),
    [(-1, ErrorCode.INVALID_REQUEST), (2, ErrorCode.OFFSET_OUT_OF_RANGE), (2**63 - 1, ErrorCode.OFFSET_OUT_OF_RANGE)],
)
async def test_offset_that_cannot_be_read_names_the_range(
    client: Client, topic: str, offset: int, code: ErrorCode
) -> None:
    """A negative offset is invalid. An offset beyond the log end is out of range, and the answer has the readable range."""
    fetch = FetchStream(client)
    await fetch.open((topic, 0, offset))
    end = await fetch.route_end(0)
    status = await refusal(client.read(topic, offset=offset))
    assert ErrorCode.from_number(end.error.code) is status.code is code
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        assert status.readable_range is not None
        for found in (end.error.readable_range, status.readable_range):
            assert (found.log_start_offset, found.high_watermark) == (0, 1)


def append_request(**fields: Any) -> log_pb2.AppendRequest:
    fields.setdefault("topic", "t")
    fields.setdefault("records", [log_pb2.Record(value=b"x")])
    return log_pb2.AppendRequest(**fields)


SEQUENCE = log_pb2.AppendSequence(producer=OLD_PRODUCER)
CALLS: dict[str, tuple[ErrorCode, str, Any]] = {
    "append: wrong cluster": (ErrorCode.WRONG_CLUSTER, "Append", append_request(cluster_id="elsewhere")),
    "append: no records": (ErrorCode.INVALID_REQUEST, "Append", append_request(records=[])),
    "append: too many records": (
        ErrorCode.INVALID_REQUEST,
        "Append",
        append_request(records=[log_pb2.Record()] * 100_001),
    ),
    "append: acks none": (ErrorCode.INVALID_ACKS, "Append", append_request(acks=log_pb2.ACKS_NONE)),
    "append: unknown acks": (ErrorCode.INVALID_ACKS, "Append", append_request(acks=9)),
    "append: over the topic's limit": (
        ErrorCode.MESSAGE_TOO_LARGE,
        "Append",
        append_request(records=[log_pb2.Record(value=bytes(100_001))]),
    ),
    "append: timestamp": (
        ErrorCode.INVALID_BATCH,
        "Append",
        append_request(records=[log_pb2.Record(timestamp_ms=-1)]),
    ),
    "append: sequence without partition": (ErrorCode.INVALID_REQUEST, "Append", append_request(sequence=SEQUENCE)),
    "append: identity never heard of": (
        ErrorCode.METADATA_NOT_REACHED,
        "Append",
        append_request(partition=0, sequence=SEQUENCE),
    ),
    "read: wrong cluster": (ErrorCode.WRONG_CLUSTER, "Read", log_pb2.ReadRequest(cluster_id="elsewhere")),
    "read: records": (ErrorCode.INVALID_REQUEST, "Read", log_pb2.ReadRequest(topic="t", max_records=100_001)),
    "read: negative records": (ErrorCode.INVALID_REQUEST, "Read", log_pb2.ReadRequest(topic="t", max_records=-1)),
    "read: bytes": (ErrorCode.INVALID_REQUEST, "Read", log_pb2.ReadRequest(topic="t", max_bytes=2**31 - 1)),
    "read: wait": (ErrorCode.INVALID_REQUEST, "Read", log_pb2.ReadRequest(topic="t", max_wait_ms=30_001)),
    "offsets: too many": (
        ErrorCode.INVALID_REQUEST,
        "ListOffsets",
        log_pb2.ListOffsetsRequest(queries=[log_pb2.OffsetQuery()] * (MAX_OFFSET_QUERIES + 1)),
    ),
    "delete: too many": (
        ErrorCode.INVALID_REQUEST,
        "DeleteRecords",
        log_pb2.DeleteRecordsRequest(partitions=[log_pb2.RecordsBefore()] * (MAX_OFFSET_QUERIES + 1)),
    ),
    "delete: wrong cluster": (
        ErrorCode.WRONG_CLUSTER,
        "DeleteRecords",
        log_pb2.DeleteRecordsRequest(cluster_id="elsewhere"),
    ),
    "producers: wrong cluster": (
        ErrorCode.WRONG_CLUSTER,
        "DescribeProducers",
        log_pb2.DescribeProducersRequest(cluster_id="elsewhere"),
    ),
    "producer: wrong cluster": (
        ErrorCode.WRONG_CLUSTER,
        "InitProducer",
        log_pb2.InitProducerRequest(cluster_id="elsewhere"),
    ),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.usefixtures("topic")
async def test_bad_call_is_refused(client: Client, name: str) -> None:
    """A plain call with a bad field gets a typed status with a text."""
    code, method, request = CALLS[name]
    status = await refusal(getattr(client.log, method)(request, timeout=WAIT_S))
    assert status.code is code, status
    assert status.message


@pytest.mark.usefixtures("topic")
async def test_message_over_the_grpc_limit_is_refused(client: Client) -> None:
    """A message over the transport's limit is refused by the transport and kills nothing."""
    request = append_request(records=[log_pb2.Record(value=bytes(MAX_GRPC_MESSAGE_BYTES + 1))])
    status = await refusal(client.log.Append(request, timeout=WAIT_S))
    assert status.grpc_code.name == "RESOURCE_EXHAUSTED"


@pytest.mark.usefixtures("topic")
async def test_metadata_calls_refuse_bad_requests(client: Client) -> None:
    """Wrong cluster and too many names are refused by both metadata calls."""
    names = [f"n{number}" for number in range(10_001)]
    for fields, code in (
        ({"cluster_id": "elsewhere"}, ErrorCode.WRONG_CLUSTER),
        ({"topics": names}, ErrorCode.INVALID_REQUEST),
    ):
        request = metadata_pb2.GetClusterRequest(**fields)  # type: ignore[arg-type]
        assert (await refusal(client.metadata.GetCluster(request, timeout=WAIT_S))).code is code
        watch = client.metadata.WatchCluster(metadata_pb2.WatchClusterRequest(**fields))  # type: ignore[arg-type]
        assert (await Stream(watch).failure()).code is code


async def test_stream_that_floods_one_route_is_ended(client: Client, topic: str) -> None:
    """More batches in flight than `opened` allows end the route; what was acknowledged stays."""
    stream = ProduceStream(client)
    opened = await stream.open((topic, 1), without_idempotence=True)
    body = bytes(encode_batch([b"x"], timestamps_ms=1))
    for _ in range(opened.max_in_flight_batches * 8):
        await stream.send_body(body)
    await stream.call.done_writing()
    acknowledged = 0
    while True:
        response = await stream.call.read()
        if not response:
            break
        if response.WhichOneof("message") == "receipt":
            acknowledged += len(response.receipt.base_offsets)
        else:
            assert ErrorCode.from_number(response.route_end.error.code) is ErrorCode.OVERLOADED
            assert response.route_end.first_failed_batch_number == acknowledged + 1
    assert len((await client.read(topic, 1)).records) == acknowledged

# SPDX-License-Identifier: Apache-2.0
"""Produce over real gRPC: receipts, durability, duplicates, reconnects."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from lograft.v1 import admin_pb2, errors_pb2, log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_IN_FLIGHT_BATCHES
from lograft.wire.status import parse_rpc_error

from brokerd.process.server import BrokerServer
from brokerd.tests.support import WAIT_S, Client, ProduceStream


@pytest.mark.parametrize(
    ("policy", "acks", "durability"),
    [
        ("ack", log_pb2.ACKS_ALL, log_pb2.DURABILITY_FLUSHED),
        ("ack", log_pb2.ACKS_UNSPECIFIED, log_pb2.DURABILITY_FLUSHED),
        ("ack", log_pb2.ACKS_LEADER, log_pb2.DURABILITY_APPENDED),
        ("none", log_pb2.ACKS_ALL, log_pb2.DURABILITY_REPLICATED),
        ("none", log_pb2.ACKS_LEADER, log_pb2.DURABILITY_REPLICATED),
        ("interval", log_pb2.ACKS_ALL, log_pb2.DURABILITY_REPLICATED),
    ],
)
async def test_receipts_say_what_was_reached(client: Client, policy: str, acks: int, durability: int) -> None:
    """Every batch gets its base offset and the durability that its flush policy and acks give."""
    await client.create_topic("t", flush_policy=policy)
    stream = ProduceStream(client)
    opened = await stream.open(("t", 0), acks=acks)
    assert [route.route for route in opened.routes] == [0]
    assert opened.max_in_flight_batches == MAX_IN_FLIGHT_BATCHES
    assert list(opened.formats) == [16]
    for number in range(4):
        await stream.produce([b"a", b"b", b"c"])
        (receipt,) = await stream.receipts(number + 1)
        assert list(receipt.base_offsets) == [number * 3]
        assert receipt.durability == durability
        assert not receipt.duplicates
    await stream.finish()


async def test_pipelined_batches_of_many_routes_get_receipts_in_order(client: Client) -> None:
    """Routes are independent; each lists its base offsets in batch order without a gap."""
    await client.create_topic("t", 3)
    stream = ProduceStream(client)
    await stream.open(*(("t", partition) for partition in range(3)))
    for _ in range(8):
        for route in range(3):
            await stream.produce([b"x"] * (route + 1), route)
    offsets: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while any(len(found) < 8 for found in offsets.values()):
        receipt = (await stream.receive()).receipt
        offsets[receipt.route] += receipt.base_offsets
        assert receipt.last_batch_number == len(offsets[receipt.route])
    assert offsets == {route: [number * (route + 1) for number in range(8)] for route in range(3)}


async def test_resent_batches_on_a_new_stream_are_duplicates(client: Client) -> None:
    """A producer that reconnects with its identity and sends again gets the first offsets, and nothing is appended."""
    await client.create_topic("t")
    first = ProduceStream(client)
    await first.open(("t", 0))
    await first.produce([b"a", b"b"])
    await first.produce([b"c"])
    await first.receipts(2)
    first.call.cancel()

    second = ProduceStream(client)
    identity = log_pb2.ProducerIdentity(producer_id=first.producer[0], producer_epoch=first.producer[1])
    opened = await second.open(("t", 0), producer=identity)
    assert (opened.producer.producer_id, opened.producer.producer_epoch) == first.producer
    await second.produce([b"a", b"b"])
    await second.produce([b"c"])
    await second.produce([b"d"])
    receipts = await second.receipts(3)
    assert [offset for receipt in receipts for offset in receipt.base_offsets] == [0, 2, 3]
    flags = [position in receipt.duplicates for receipt in receipts for position in range(len(receipt.base_offsets))]
    assert flags == [True, True, False]
    assert [record.value for record in (await client.read("t")).records] == [b"a", b"b", b"c", b"d"]


async def test_every_handshake_gives_another_producer_id(client: Client) -> None:
    """Ids come from the quorum and are never given twice, also over the end of a block."""
    seen = set()
    for _ in range(5):
        stream = ProduceStream(client)
        await stream.open()
        seen.add(stream.producer[0])
        stream.call.cancel()
    for _ in range(1_100):
        answer = await client.log.InitProducer(log_pb2.InitProducerRequest())
        seen.add(answer.producer.producer_id)
    assert len(seen) == 1_105


async def test_without_idempotence_nothing_is_dropped(client: Client) -> None:
    """A stream without an identity appends the same bytes as often as they come."""
    await client.create_topic("t")
    stream = ProduceStream(client)
    opened = await stream.open(("t", 0), without_idempotence=True)
    assert not opened.HasField("producer")
    for number in range(3):
        await stream.produce([b"same"])
        (receipt,) = await stream.receipts(number + 1)
        assert list(receipt.base_offsets) == [number]


async def test_acks_none_appends_and_sends_no_receipt(client: Client) -> None:
    """With ACKS_NONE the stream ends quietly, and the records are in the log."""
    await client.create_topic("t")
    stream = ProduceStream(client)
    await stream.open(("t", 0), acks=log_pb2.ACKS_NONE)
    for _ in range(20):
        await stream.produce([b"x"])
    await stream.finish()
    response = await client.read("t", max_wait_ms=5_000, offset=19)
    assert len(response.records) == 1


async def test_routes_may_be_bound_later(client: Client) -> None:
    """A bind is answered by `opened` with just its routes, and both kinds work side by side."""
    await client.create_topic("t", 2)
    stream = ProduceStream(client)
    await stream.open(("t", 0))
    bind = log_pb2.ProduceBind(routes=[log_pb2.ProduceRoute(route=1, topic="t", partition=1)])
    await stream.send(log_pb2.ProduceRequest(bind=bind))
    opened = (await stream.receive()).opened
    assert [route.route for route in opened.routes] == [1]
    await stream.produce([b"x"], route=1)
    await stream.receipts(1, route=1)
    await stream.produce([b"x"], route=0)
    await stream.receipts(1, route=0)


async def test_deleted_topic_ends_its_route_and_no_other(client: Client) -> None:
    """Routes of a deleted topic end with UNKNOWN_TOPIC. The stream continues with the others."""
    await client.create_topic("gone")
    await client.create_topic("kept")
    stream = ProduceStream(client)
    await stream.open(("gone", 0), ("kept", 0))
    await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="gone"))
    end = await stream.route_end(0)
    assert end.error.code == errors_pb2.ERROR_CODE_UNKNOWN_TOPIC
    await stream.produce([b"x"], route=1)
    await stream.receipts(1, route=1)


async def test_cancelled_streams_leave_nothing_behind(broker: BrokerServer, client: Client) -> None:
    """A broker forgets a stream whose client went away, with batches in flight."""
    await client.create_topic("t")
    streams = [ProduceStream(client) for _ in range(5)]
    for stream in streams:
        await stream.open(("t", 0))
        await stream.produce([b"x" * 1000])
        stream.call.cancel()
    async with asyncio.timeout(WAIT_S):
        await broker.wait_drained()


async def test_stop_refuses_streams_that_are_not_open_yet(broker: BrokerServer, client: Client) -> None:
    """The first answer that a client expects is `opened`. A stream that is not open yet is refused, and the client tries elsewhere."""
    await client.create_topic("t")
    stream = ProduceStream(client)
    unheard_of = log_pb2.ProducerIdentity(producer_id=10**15)
    await stream.send(log_pb2.ProduceRequest(open=log_pb2.ProduceOpen(producer=unheard_of)))
    async with asyncio.timeout(WAIT_S):
        while broker.stream_count == 0:  # noqa: ASYNC110 -- the server tells nobody
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(broker.stop())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stream.call.read()
        await stopping
    assert parse_rpc_error(refused.value).code is ErrorCode.SHUTTING_DOWN


async def test_stop_tells_open_streams_to_go(broker: BrokerServer, client: Client) -> None:
    """A clean shutdown sends GoAway, lets the stream finish, and keeps everything acknowledged."""
    await client.create_topic("t")
    stream = ProduceStream(client)
    await stream.open(("t", 0))
    await stream.produce([b"x"])
    await stream.receipts(1)
    stopping = asyncio.create_task(broker.stop())
    response = await stream.receive()
    assert response.WhichOneof("message") == "go_away"
    assert response.go_away.drain_ms > 0
    await stream.finish()
    await stopping

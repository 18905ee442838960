# SPDX-License-Identifier: Apache-2.0
"""Fetch over real gRPC: chunks, credit, marks, push, unbinding."""

from __future__ import annotations

from lograft.v1 import admin_pb2, errors_pb2, log_pb2
from lograft.wire.batch import read_batches

from brokerd.tests.support import Client, FetchStream, ProduceStream


def values(chunk: log_pb2.FetchChunk) -> list[bytes | None]:
    return [value for batch in read_batches(chunk.body) for value in batch.values()]


async def produce(client: Client, topic: str, batches: int, size_bytes: int = 1_000, partition: int = 0) -> None:
    stream = ProduceStream(client)
    await stream.open((topic, partition))
    for number in range(batches):
        await stream.produce([number.to_bytes(4, "big") + bytes(size_bytes - 4)])
        await stream.receipts(number + 1)
    await stream.finish()


async def test_reads_everything_from_the_start(client: Client) -> None:
    """Chunks hold whole batches in order; the last one says that the route has caught up, and so does a mark."""
    await client.create_topic("t")
    await produce(client, "t", 50)
    stream = FetchStream(client)
    opened = await stream.open(("t", 0, 0), max_chunk_bytes=5_000)
    assert opened.routes[0].high_watermark == 50
    seen: list[bytes] = []
    next_offset = 0
    while next_offset < 50:
        chunk = await stream.chunk()
        assert len(chunk.body) <= 5_000
        seen += [value[:4] for value in values(chunk) if value is not None]
        next_offset = chunk.next_offset
        assert chunk.high_watermark == 50
    assert seen == [number.to_bytes(4, "big") for number in range(50)]
    mark = await stream.mark()
    assert (mark.next_offset, mark.high_watermark, mark.caught_up) == (50, 50, True)


async def test_offset_inside_a_batch_starts_with_that_batch(client: Client) -> None:
    """The first chunk begins with the batch that holds the offset; the client skips the records before."""
    await client.create_topic("t")
    await client.append("t", [b"a", b"b", b"c"], partition=0)
    await client.append("t", [b"d"], partition=0)
    stream = FetchStream(client)
    await stream.open(("t", 0, 2))
    chunk = await stream.chunk()
    assert next(iter(read_batches(chunk.body))).base_offset == 0
    assert values(chunk) == [b"a", b"b", b"c", b"d"]
    assert chunk.next_offset == 4


async def test_new_records_are_pushed(client: Client) -> None:
    """A route at the high watermark gets a record as soon as it is readable, without asking."""
    await client.create_topic("t")
    fetch = FetchStream(client)
    await fetch.open(("t", 0, 0))
    mark = await fetch.mark()
    assert mark.caught_up
    stream = ProduceStream(client)
    await stream.open(("t", 0))
    for number in range(5):
        await stream.produce([b"v%d" % number])
        chunk = await fetch.chunk()
        assert values(chunk) == [b"v%d" % number]
        assert chunk.next_offset == chunk.high_watermark == number + 1


async def test_credit_bounds_what_is_sent(client: Client) -> None:
    """The broker stops when the credit is spent, sends a larger batch whole, and continues with new credit."""
    await client.create_topic("t")
    await produce(client, "t", 10, size_bytes=2_000)
    fetch = FetchStream(client)
    await fetch.open(("t", 0, 0), credit_bytes=1, max_chunk_bytes=100_000)
    first = await fetch.chunk()
    assert first.next_offset == 1
    await fetch.credit(len(first.body) - 1)
    # The debt is paid and not a byte more: nothing may come. A new bind is answered, so the order shows that.
    bind = log_pb2.FetchBind(routes=[log_pb2.FetchRoute(route=1, topic="t", partition=0, offset=10)])
    await fetch.send(log_pb2.FetchRequest(bind=bind))
    assert (await fetch.receive()).WhichOneof("message") == "opened"
    assert (await fetch.mark()).route == 1
    await fetch.credit(10**6)
    assert (await fetch.chunk()).next_offset == 10


async def test_many_routes_share_one_stream(client: Client) -> None:
    """Every route of a stream gets its own records."""
    await client.create_topic("t", 6)
    for partition in range(6):
        await client.append("t", [b"p%d" % partition], partition=partition)
    fetch = FetchStream(client)
    await fetch.open(*(("t", partition, 0) for partition in range(6)))
    seen = {}
    while len(seen) < 6:
        chunk = await fetch.chunk()
        seen[chunk.route] = values(chunk)
    assert seen == {partition: [b"p%d" % partition] for partition in range(6)}


async def test_unbound_route_is_silent(client: Client) -> None:
    """After the end of an unbound route none of its records comes; the number cannot be used again."""
    await client.create_topic("t")
    fetch = FetchStream(client)
    await fetch.open(("t", 0, 0))
    await fetch.send(log_pb2.FetchRequest(unbind=log_pb2.FetchUnbind(routes=[0])))
    end = await fetch.route_end(0)
    assert not end.HasField("error")
    await client.append("t", [b"x"], partition=0)
    bind = log_pb2.FetchBind(
        routes=[
            log_pb2.FetchRoute(route=0, topic="t", partition=0, offset=0),
            log_pb2.FetchRoute(route=1, topic="t", partition=0, offset=0),
        ]
    )
    await fetch.send(log_pb2.FetchRequest(bind=bind))
    end = await fetch.route_end(0)
    assert end.error.code == errors_pb2.ERROR_CODE_INVALID_ROUTE
    assert [route.route for route in (await fetch.receive()).opened.routes] == [1]
    assert (await fetch.chunk()).route == 1


async def test_route_may_name_the_topic_id(client: Client) -> None:
    """Another topic of the name is refused, whatever its offsets are; what is no id is refused, too."""
    old_id = (await client.create_topic("t")).topic.topic_id
    await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"))
    new_id = (await client.create_topic("t")).topic.topic_id
    fetch = FetchStream(client)
    await fetch.open(("t", 0, 0))
    ids = (old_id, old_id, b"short", new_id)
    routes = [
        log_pb2.FetchRoute(route=number, topic="t", partition=0, offset=7 if number == 1 else 0, topic_id=topic_id)
        for number, topic_id in enumerate(ids, start=1)
    ]
    await fetch.send(log_pb2.FetchRequest(bind=log_pb2.FetchBind(routes=routes)))
    codes = [(await fetch.route_end(number)).error.code for number in (1, 2, 3)]
    unknown, invalid = errors_pb2.ERROR_CODE_UNKNOWN_TOPIC, errors_pb2.ERROR_CODE_INVALID_REQUEST
    assert codes == [unknown, unknown, invalid]
    assert [route.topic_id for route in (await fetch.receive()).opened.routes] == [new_id]


async def test_deleted_topic_ends_its_route(client: Client) -> None:
    """A route whose topic is deleted ends with UNKNOWN_TOPIC."""
    await client.create_topic("t")
    fetch = FetchStream(client)
    await fetch.open(("t", 0, 0))
    await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"))
    end = await fetch.route_end(0)
    assert end.error.code == errors_pb2.ERROR_CODE_UNKNOWN_TOPIC


async def test_half_closed_stream_ends_when_the_credit_is_spent(client: Client) -> None:
    """A client that has closed its side still gets what its credit covers, then a clean end."""
    await client.create_topic("t")
    await produce(client, "t", 5)
    fetch = FetchStream(client)
    await fetch.open(("t", 0, 0), credit_bytes=1)
    await fetch.call.done_writing()
    assert (await fetch.chunk()).next_offset == 1
    await ProduceStream.finish(fetch)  # type: ignore[arg-type]

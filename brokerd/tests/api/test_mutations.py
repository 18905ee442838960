# SPDX-License-Identifier: Apache-2.0
"""Mutated bytes through the real port: the broker answers typed, lives, and stores nothing that a reader refuses."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
from lograft.v1 import log_pb2
from lograft.wire.batch import encode_batch, read_batches
from lograft.wire.codes import ErrorCode
from lograft.wire.compression import Codec
from lograft.wire.frames import FetchFrame, decode_fetch_response, encode_produce_frame
from lograft.wire.status import parse_rpc_error

from brokerd.tests.support import WAIT_S, Client, ProduceStream, connected, running_broker

STREAMS = 200
MESSAGES = 20


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change a few bytes, or truncate, double or splice the data."""
    copy = bytearray(data)
    match rng.randrange(5):
        case 0:
            for _ in range(rng.randrange(1, 4)):
                copy[rng.randrange(len(copy))] = rng.randrange(256)
        case 1:
            del copy[rng.randrange(len(copy)) :]
        case 2:
            start = rng.randrange(len(copy))
            copy[start:start] = rng.randbytes(rng.randrange(1, 9))
        case 3:
            copy += copy[rng.randrange(len(copy)) :]
        case _:
            position = rng.randrange(len(copy))
            copy[position] ^= 1 << rng.randrange(8)
    return bytes(copy)


def seeds() -> list[bytearray]:
    """Good batches of every shape."""
    values = [b"value %d" % number for number in range(20)]
    return [
        encode_batch(values, timestamps_ms=5),
        encode_batch(values, timestamps_ms=list(range(20)), keys=[None, b"k"] * 10),
        encode_batch([None, b"v"], timestamps_ms=5, headers=[[("h", b"1")], []]),
        encode_batch(values * 50, timestamps_ms=5, codec=Codec.ZSTD),
    ]


async def read_to_end(call: Any) -> None:
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass


async def one_stream(client: Client, rng: random.Random, good: list[bytearray]) -> None:
    call = client.channel.stream_stream("/lograft.v1.LogService/Produce")()
    opening = log_pb2.ProduceRequest(
        open=log_pb2.ProduceOpen(
            without_idempotence=True,
            routes=[log_pb2.ProduceRoute(route=route, topic="t") for route in range(MESSAGES)],
        )
    ).SerializeToString()
    # Reads run beside the writes, because grpc.aio frees a stream only when its answers are read.
    reader = asyncio.create_task(read_to_end(call))
    # A stream that the broker has ended refuses our writes in several ways; its status says what happened.
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
        await call.write(mutate(opening, rng) if rng.random() < 0.2 else opening)
        for route in range(MESSAGES):
            await call.write(mutate(encode_produce_frame(route, 1, rng.choice(good)), rng))
        await call.done_writing()
    async with asyncio.timeout(WAIT_S):
        await reader
    async with asyncio.timeout(WAIT_S):
        code, details, trailers = await call.code(), await call.details(), await call.trailing_metadata()
    if code is grpc.StatusCode.OK or details == "Internal error from Core":
        return  # the second: a write met the end of the stream, and this client library then hides the status
    status = parse_rpc_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details=details))
    assert status.code not in (None, ErrorCode.INTERNAL), details


async def read_everything(client: Client) -> int:
    """Read the log as a consumer would; every stored batch must decode."""
    call = client.channel.stream_stream("/lograft.v1.LogService/Fetch")()
    routes = [log_pb2.FetchRoute(route=0, topic="t", partition=0, offset=0)]
    request = log_pb2.FetchRequest(open=log_pb2.FetchOpen(routes=routes, credit_bytes=1 << 30))
    await call.write(request.SerializeToString())
    next_offset, records = 0, 0
    while True:
        response = decode_fetch_response(await call.read())
        if isinstance(response, FetchFrame):
            for batch in read_batches(response.body):
                assert batch.base_offset == next_offset
                records += len(batch.records())
                next_offset = batch.next_offset
            continue
        if response.WhichOneof("message") == "mark":
            assert response.mark.next_offset == next_offset
            call.cancel()
            return records


async def test_mutated_messages_leave_the_broker_and_the_log_sound(tmp_path: Path) -> None:
    """Whatever the bytes, the stream ends typed, the next one works, and the log holds whole readable batches."""
    rng = random.Random(20261121)
    good = seeds()
    async with running_broker(tmp_path) as server, connected(server) as client:
        await client.create_topic("t")
        for _ in range(STREAMS):
            await one_stream(client, rng, good)
        stream = ProduceStream(client)
        await stream.open(("t", 0))
        await stream.produce([b"still here"])
        await stream.receipts(1)
        assert await read_everything(client) >= 1

# SPDX-License-Identifier: Apache-2.0
"""The channel of forked processes, against servers that are not brokers. `test_virtual_grpc` compares it with gRPC's."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from lograft._client.python_channel import PythonChannel
from lograft.wire.keepalive import MAX_FRAME_BYTES, RECEIVE_WINDOW_BYTES
from tests.grpc_python.http2_frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    PREFACE,
    SETTINGS,
    WINDOW_UPDATE,
    encode_headers,
    frame,
)

WAIT_S = 20
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send settings, and answer no call."""
    writer.write(frame(SETTINGS, 0, 0))
    with suppress(ConnectionError):
        await reader.read()
    writer.close()


async def mute(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Send nothing at all."""
    await reader.read()


def answering(*frames: bytes, until_eof: bool = True) -> Serve:
    """Send settings, and answer the first call."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(SETTINGS, 0, 0))
        await reader.readexactly(len(PREFACE))
        head = bytes(HEAD_BYTES)
        while head[3] != HEADERS:
            head = await reader.readexactly(HEAD_BYTES)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
        for each in frames:
            writer.write(each)
        if until_eof:
            await reader.read()

    return serve


async def status_of(serve: Serve, *, liveness_ms: int = 12_000, timeout_s: float | None = WAIT_S) -> grpc.StatusCode:
    """Make one unary call at a server, and return its status."""
    ended = asyncio.Event()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        ended.set()

    async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(WAIT_S), PythonChannel(f"localhost:{port}", liveness_ms=liveness_ms) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/a/b")(b"", timeout=timeout_s)
            await channel.close()
            await ended.wait()
            return caught.value.code()


async def test_silent_connection_is_given_up() -> None:
    """An unanswered ping fails the calls. Without settings no connection exists, and the call waits for its deadline."""
    assert await status_of(silent, liveness_ms=100, timeout_s=None) is grpc.StatusCode.UNAVAILABLE
    assert await status_of(mute, timeout_s=0.2) is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_server_that_breaks_the_protocol_costs_the_call_alone() -> None:
    """HTTP/1, frames that are too large, invalid statuses: each call ends."""

    async def http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    assert await status_of(http1) is grpc.StatusCode.UNAVAILABLE
    assert await status_of(answering(b"\xff" * 9)) is grpc.StatusCode.UNAVAILABLE
    assert await status_of(answering(frame(GOAWAY, 0, 0, bytes(8)))) is grpc.StatusCode.UNAVAILABLE
    end = END_HEADERS | END_STREAM
    html = encode_headers([(":status", "404"), ("content-type", "text/html")])
    assert await status_of(answering(frame(HEADERS, end, 1, html))) is grpc.StatusCode.UNIMPLEMENTED
    start = encode_headers([(":status", "200"), ("content-type", "application/grpc")])
    nothing = encode_headers([("grpc-status", "0")])
    empty = answering(frame(HEADERS, END_HEADERS, 1, start), frame(HEADERS, end, 1, nothing))
    assert await status_of(empty) is grpc.StatusCode.INTERNAL
    large = answering(frame(HEADERS, END_HEADERS, 1, start), frame(DATA, 0, 1, b"\0\xff\xff\xff\xff"))
    assert await status_of(large) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_long_messages_are_whole_however_they_come() -> None:
    """Long and short ones in turn, in frames that end anywhere, and more than a stream's window of them."""
    chance = random.Random(1)
    sizes = [chance.choice((0, 3, 70_000, 300_000, 1_500_000)) for _ in range(12)] + [RECEIVE_WINDOW_BYTES + 1]
    messages = [chance.randbytes(size) for size in sizes]
    stream = b"".join(b"\0" + len(each).to_bytes(4, "big") + each for each in messages)
    start = encode_headers([(":status", "200"), ("content-type", "application/grpc")])
    ending = frame(HEADERS, END_HEADERS | END_STREAM, 1, encode_headers([("grpc-status", "0")]))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answering(frame(HEADERS, END_HEADERS, 1, start), until_eof=False)(reader, writer)
        window, position = RECEIVE_WINDOW_BYTES, 0
        while position < len(stream):
            size = min(chance.choice((1, 5, 1_000, 100_000, MAX_FRAME_BYTES)), len(stream) - position, window)
            writer.write(frame(DATA, 0, 1, stream[position : position + size]))
            await writer.drain()
            position, window = position + size, window - size
            while window == 0 or (window < RECEIVE_WINDOW_BYTES // 2 and position < len(stream)):
                head = await reader.readexactly(HEAD_BYTES)
                body = await reader.readexactly(int.from_bytes(head[:3], "big"))
                if head[3] == WINDOW_UPDATE and head[-1] == 1:
                    window += int.from_bytes(body, "big")
        writer.write(ending)
        await reader.read()
        writer.close()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(WAIT_S), PythonChannel(f"127.0.0.1:{port}", liveness_ms=12_000) as channel:
            call = channel.unary_stream("/a/b")(b"")
            assert [bytes(each) async for each in call] == messages
            await channel.close()
            await ended.wait()


async def test_channel_finds_a_server_that_comes_later() -> None:
    """The channel fails calls in the meantime, and keeps trying."""
    ended = asyncio.Event()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent(reader, writer)
        ended.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(WAIT_S), PythonChannel(f"127.0.0.1:{port}", liveness_ms=12_000) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/a/b")(b"")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        async with await asyncio.start_server(served, "127.0.0.1", port):
            await channel.channel_ready()
            await channel.close()
            await ended.wait()

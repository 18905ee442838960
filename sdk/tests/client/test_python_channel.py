# SPDX-License-Identifier: Apache-2.0
"""The channel of forked processes, against servers that are not brokers. `test_virtual_grpc` compares it with gRPC's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc
import grpc.aio
import pytest
from lograft._client.python_channel import PythonChannel
from tests.client.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEAD_BYTES,
    HEADERS,
    PREFACE,
    SETTINGS,
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


def answering(*frames: bytes) -> Serve:
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

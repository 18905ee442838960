# SPDX-License-Identifier: Apache-2.0
"""Client side of the ceiling: the window, message sizes and rates of the Lograft side, over a bare stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc

from benchmarks.ceiling_server import FETCH, MAX_MESSAGE_BYTES, SERVICE, identity

IN_FLIGHT = 8


def connect(address: str) -> grpc.aio.Channel:
    """Open a channel with the message limits of both sides."""
    return grpc.aio.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ],
    )


async def produce(address: str, message: bytes, count: int, *, method: str, service: str = SERVICE) -> float:
    """Send `count` messages with 8 in flight, and return the seconds until the last answer."""
    async with connect(address) as channel:
        call = channel.stream_stream(f"/{service}/{method}", identity, identity)()
        await call.wait_for_connection()
        window = asyncio.Semaphore(IN_FLIGHT)

        async def send() -> None:
            for _ in range(count):
                await window.acquire()
                await call.write(message)
            await call.done_writing()

        started = time.perf_counter()
        sending = asyncio.create_task(send())
        async for _ in call:
            window.release()
        await sending
        return time.perf_counter() - started


async def fetch(address: str, chunk_bytes: int, limit_bytes: int) -> float:
    """Receive the first `limit_bytes` of the server's file, and return the seconds."""
    async with connect(address) as channel:
        call = channel.unary_stream(f"/{SERVICE}/Fetch", identity, identity)(FETCH.pack(chunk_bytes, limit_bytes))
        await call.wait_for_connection()
        started = time.perf_counter()
        received = 0
        async for chunk in call:
            received += len(chunk)
        if received != limit_bytes:
            raise RuntimeError(f"fetched {received} of {limit_bytes} bytes")
        return time.perf_counter() - started


async def relay_latencies_ms(address: str, message: bytes, count: int, rate: int) -> list[float]:
    """Send `count` messages at `rate` per second. Return for each the milliseconds until the subscriber had it."""
    async with connect(address) as up, connect(address) as down:
        subscription = down.unary_stream(f"/{SERVICE}/Subscribe", identity, identity)(b"")
        received: AsyncIterator[bytes] = subscription.__aiter__()
        await anext(received)
        call = up.stream_stream(f"/{SERVICE}/Relay", identity, identity)()
        await call.wait_for_connection()
        sent: list[float] = []
        latencies: list[float] = []

        async def receive() -> None:
            for index in range(count):
                await anext(received)
                latencies.append((time.perf_counter() - sent[index]) * 1e3)

        async def drain_answers() -> None:
            async for _ in call:
                pass

        tasks = [asyncio.create_task(receive()), asyncio.create_task(drain_answers())]
        started = time.perf_counter()
        for index in range(count):
            delay = started + index / rate - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            sent.append(time.perf_counter())
            await call.write(message)
        await call.done_writing()
        await asyncio.gather(*tasks)
        subscription.cancel()
        return latencies

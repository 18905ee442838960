# SPDX-License-Identifier: Apache-2.0
"""The budget of fetched chunks: how large the next one may be, and readers that never take theirs, over real gRPC."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from lograft.v1 import log_pb2

import brokerd.api.log_service.fetch_buffer
from brokerd.api.log_service.fetch_buffer import COPIES, SHARE, FetchBuffer
from brokerd.limits import FETCH_TAKE_MS, MIN_BUDGET_BYTES, UNCOUNTED_CHUNK_BYTES
from brokerd.memory.budget import MemoryBudget
from brokerd.process.server import BrokerServer
from brokerd.process.standalone import standalone_settings
from brokerd.tests.support import Client, FetchStream, ProduceStream, connected

WAIT_S = 60.0
CHUNK_BYTES = 1_000_000
LIMIT_BYTES = 64 * 1024 * 1024
# A connection of its own with windows of 64 KiB that do not grow, so that a chunk larger than that stays at the broker.
STUCK_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
FETCH = "/lograft.v1.LogService/Fetch"


def buffer_of(limit_bytes: int) -> FetchBuffer:
    """Return a buffer that ends no connections."""

    def end_connections(peers: Collection[str]) -> int:
        return len(peers)

    return FetchBuffer(limit_bytes, end_connections=end_connections)


async def test_the_first_chunk_is_as_large_as_wanted() -> None:
    """With nothing or little held, the budget does not limit the next chunk."""
    buffer = buffer_of(LIMIT_BYTES)
    assert buffer.chunk_bytes(CHUNK_BYTES) == CHUNK_BYTES
    assert buffer.try_hold(CHUNK_BYTES, "ipv4:1.2.3.4:5") is not None
    assert buffer.chunk_bytes(CHUNK_BYTES) == CHUNK_BYTES


async def test_shares_shrink_and_never_use_the_budget_up() -> None:
    """200 streams that take their full share and never release it are all served, and there is room for another one."""
    buffer = buffer_of(LIMIT_BYTES)
    sizes: list[int] = []
    for _ in range(200):
        sizes.append(buffer.chunk_bytes(4 * CHUNK_BYTES))
        if sizes[-1] > UNCOUNTED_CHUNK_BYTES:
            assert buffer.try_hold(sizes[-1], "ipv4:1.2.3.4:5") is not None
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 4 * CHUNK_BYTES
    assert sizes[-1] >= UNCOUNTED_CHUNK_BYTES
    assert sizes[9] == LIMIT_BYTES // (SHARE * 10) // COPIES
    assert buffer.budget.held_bytes < LIMIT_BYTES * 0.9


async def test_while_others_wait_chunks_are_small() -> None:
    """A stream with small batches continues without the memory for which others wait."""
    buffer = buffer_of(LIMIT_BYTES)
    held = buffer.try_hold(LIMIT_BYTES // COPIES, "ipv4:1.2.3.4:5")
    assert held is not None
    waiting = asyncio.create_task(buffer.hold(CHUNK_BYTES, "ipv4:1.2.3.4:6"))
    await until(lambda: buffer.budget.waiter_count == 1)
    assert buffer.chunk_bytes(CHUNK_BYTES) == UNCOUNTED_CHUNK_BYTES
    buffer.give_back(held)
    buffer.give_back(await waiting)
    assert buffer.chunk_bytes(CHUNK_BYTES) == CHUNK_BYTES
    buffer.close()


@asynccontextmanager
async def small_broker(directory: Path) -> AsyncIterator[BrokerServer]:
    """A cluster of one node with the smallest possible budget."""
    settings = replace(standalone_settings(directory, port=0), fetch_buffer_max_bytes=MIN_BUDGET_BYTES)
    server = BrokerServer(settings)
    await server.start()
    try:
        await server.wait_serving(timeout_ms=int(WAIT_S * 1000))
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def stuck_readers(address: str, topic: str, count: int) -> AsyncIterator[list[Any]]:
    """Streams that grant credit and never read, each on a connection of its own."""
    channels = [grpc.aio.insecure_channel(address, options=STUCK_OPTIONS) for _ in range(count)]
    route = log_pb2.FetchRoute(route=0, topic=topic, partition=0, offset=0)
    opening = log_pb2.FetchOpen(routes=[route], credit_bytes=1 << 30)
    calls: list[Any] = []
    try:
        for channel in channels:
            call: Any = channel.stream_stream(FETCH, log_pb2.FetchRequest.SerializeToString, bytes)()
            await call.write(log_pb2.FetchRequest(open=opening))
            calls.append(call)
        yield calls
    finally:
        for channel in channels:
            await channel.close()


async def write_batches(client: Client, topic: str, count: int, size_bytes: int) -> None:
    """Write records that are a batch each."""
    await client.create_topic(topic)
    stream = ProduceStream(client)
    await stream.open((topic, 0))
    for number in range(count):
        await stream.produce([bytes(size_bytes)])
        await stream.receipts(number + 1)
    await stream.finish()


def budget_of(server: BrokerServer) -> MemoryBudget:
    """The bytes of chunks that a broker holds."""
    return server._fetch_buffer.budget  # pyright: ignore[reportPrivateUsage]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def turned_until(condition: Callable[[], bool]) -> None:
    """Let the event loop run turns until a condition holds, even if its clock stands still."""
    give_up_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {WAIT_S} s"
        await asyncio.sleep(0)


async def test_timer_that_comes_a_little_early_is_early_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop may call a timer too early, by less than its clock's resolution. Nothing spins until the time has come."""
    loop = asyncio.get_running_loop()
    now_s = 100.0
    monkeypatch.setattr(loop, "time", lambda: now_s)
    buffer = buffer_of(LIMIT_BYTES)
    assert buffer.try_hold(LIMIT_BYTES // COPIES, "ipv4:1.2.3.4:5") is not None
    waiting = asyncio.create_task(buffer.hold(CHUNK_BYTES, "ipv4:1.2.3.4:6"))
    await turned_until(lambda: buffer.budget.waiter_count == 1)
    now_s += FETCH_TAKE_MS / 1000 - 1e-10
    await turned_until(lambda: buffer.ended_connections == 1)
    waiting.cancel()
    buffer.close()


async def test_readers_that_never_read_hold_no_more_than_the_budget(tmp_path: Path) -> None:
    """Beyond the budget they wait in a queue, a stream with small batches reads on, and all memory is free when they are gone."""
    async with small_broker(tmp_path / "data") as server, connected(server) as client:
        # With two copies of a batch, eight of them fit.
        await write_batches(client, "large", 4, MIN_BUDGET_BYTES // COPIES // 8 - 1_000)
        await write_batches(client, "small", 50, 1_000)
        budget = budget_of(server)
        async with stuck_readers(str(server.address), "large", 20):
            await until(lambda: budget.waiter_count == 12)
            assert budget.holder_count == 8
            assert MIN_BUDGET_BYTES * 0.9 < budget.held_bytes <= MIN_BUDGET_BYTES
            beside = FetchStream(client)
            await beside.open(("small", 0, 0))
            next_offset = 0
            while next_offset < 50:
                chunk = await beside.chunk()
                assert len(chunk.body) <= UNCOUNTED_CHUNK_BYTES
                next_offset = chunk.next_offset
            beside.call.cancel()
        await until(lambda: not budget.held_bytes and not budget.waiter_count)


async def test_connections_that_take_nothing_end_for_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stream whose batch does not fit gets it in the end, because the holder of the memory has lost its connection."""
    monkeypatch.setattr(brokerd.api.log_service.fetch_buffer, "FETCH_TAKE_MS", 200)
    async with small_broker(tmp_path / "data") as server, connected(server) as client:
        await write_batches(client, "large", 1, MIN_BUDGET_BYTES // COPIES // 8 - 1_000)
        async with stuck_readers(str(server.address), "large", 8) as calls:
            await until(lambda: budget_of(server).holder_count == 8)
            assert not any(call.done() for call in calls)
            reader = FetchStream(client)
            with caplog.at_level(logging.WARNING, "brokerd.api.log_service.fetch_buffer"):
                await reader.open(("large", 0, 0))
                assert (await reader.chunk()).next_offset == 1
                assert "event=connections_ended" in caplog.text
            assert "brokerd.api.calls" not in {record.name for record in caplog.records}
            async with asyncio.timeout(WAIT_S):
                assert await calls[0].code() is grpc.StatusCode.UNAVAILABLE


async def test_a_reader_that_goes_away_is_no_fault_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that breaks under a chunk ends its stream without a trace in the log."""
    async with small_broker(tmp_path / "data") as server, connected(server) as client:
        await write_batches(client, "large", 1, 400_000)
        for _ in range(5):
            async with stuck_readers(str(server.address), "large", 4):
                await until(lambda: budget_of(server).holder_count == 4)
                peers = {peer for _, peer in server._fetch_buffer._since_s.values()}  # pyright: ignore[reportPrivateUsage]
                assert server._listener.end_connections(peers) == 4  # pyright: ignore[reportPrivateUsage]
                await until(lambda: budget_of(server).holder_count == 0)
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

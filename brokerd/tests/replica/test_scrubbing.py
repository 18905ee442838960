# SPDX-License-Identifier: Apache-2.0
"""A real broker checks its sealed segments in the background: damaged ranges are quarantined, everything else is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.process.server import BrokerServer
from brokerd.replica.log_calls import LogCaller
from brokerd.replica.scrubbing import LogScrubbing, ScrubSettings
from brokerd.tests.support import WAIT_S, Client, connected, refusal, running_broker

RECORDS = 60
FAST = ScrubSettings(bytes_per_s=1 << 30, idle_ms=1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """One broker."""
    async with running_broker(tmp_path / "1") as running:
        yield running


@pytest.fixture
async def client(server: BrokerServer) -> AsyncIterator[Client]:
    """A client of it, and a topic with several sealed segments."""
    async with connected(server) as connection:
        await connection.create_topic("t", segment_bytes="16384")
        for number in range(RECORDS):
            await connection.append("t", [b"%d" % number + bytes(1_000)], partition=0)
        yield connection


def make_scrubbing(server: BrokerServer) -> LogScrubbing:
    """Return a scrub of the test, beside the idle one of the broker."""
    manager = server.replica_manager
    assert manager is not None
    return LogScrubbing(manager.replicas, settings=FAST)


def segments(path: Path) -> list[Path]:
    """Return the log files of the one partition, ascending. The last one is active."""
    return sorted(path.glob("1/partitions/*/*.log"))


async def test_good_segments_are_sealed_once(server: BrokerServer, client: Client, tmp_path: Path) -> None:
    """Every sealed segment gets its seal. A checked segment is not due again."""
    scrubbing = make_scrubbing(server)
    sealed = len(segments(tmp_path)) - 1
    assert sealed >= 2
    assert await asyncio.to_thread(scrubbing.run_round) == sealed
    assert len(list(tmp_path.glob("1/partitions/*/*.seal"))) == sealed
    assert await asyncio.to_thread(scrubbing.run_round) == 0
    response = await client.read("t", offset=RECORDS - 1)
    assert response.records[0].offset == RECORDS - 1


async def test_a_log_without_sealed_segments_costs_no_call(
    server: BrokerServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call wakes two threads, so a broker with many small partitions makes none for them."""
    await client.create_topic("idle")
    await client.append("idle", [b"1"], partition=0)
    called: set[str] = set()
    call = LogCaller.call

    def note(self: LogCaller, *arguments: Any) -> Any:
        called.add(self.name)
        return call(self, *arguments)

    monkeypatch.setattr(LogCaller, "call", note)
    assert await asyncio.to_thread(make_scrubbing(server).run_round) >= 2
    assert called == {"t-0"}


async def test_rotten_bytes_are_put_out_of_service_and_nothing_else(
    server: BrokerServer, client: Client, tmp_path: Path
) -> None:
    """A flipped bit in a sealed segment that no client has read: readers are told exactly which offsets are lost."""
    path = segments(tmp_path)[1]
    base_offset = int(path.stem)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    await asyncio.to_thread(make_scrubbing(server).run_round)
    status = await refusal(client.read("t", offset=base_offset))
    assert status.code is ErrorCode.DATA_LOSS
    for offset in (base_offset - 1, base_offset + 1):
        assert (await client.read("t", offset=offset)).records[0].offset == offset


async def test_the_thread_checks_by_itself_and_stops(server: BrokerServer, client: Client, tmp_path: Path) -> None:
    """Once started, it seals segments by itself. Once stopped, its thread is gone, even if it is stopped twice."""
    scrubbing = make_scrubbing(server)
    checked = asyncio.Event()
    loop = asyncio.get_running_loop()
    run_round = scrubbing.run_round

    def noted() -> int:
        count = run_round()
        loop.call_soon_threadsafe(checked.set)
        return count

    scrubbing.run_round = noted  # type: ignore[method-assign]
    scrubbing.start()
    async with asyncio.timeout(WAIT_S):
        await checked.wait()
    await scrubbing.stop()
    await scrubbing.stop()
    assert list(tmp_path.glob("1/partitions/*/*.seal"))

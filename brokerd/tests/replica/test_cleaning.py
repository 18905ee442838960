# SPDX-License-Identifier: Apache-2.0
"""Compacted topics on a real broker: which records they accept, which records stay, and which code does the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.clock import wall_ms
from brokerd.process.server import BrokerServer
from brokerd.replica.cleaning import LogCleaning
from brokerd.tests.support import WAIT_S, Client, ProduceStream, connected, refusal, running_broker
from storage.compaction.cleaner import CleanerSettings

KEYS = 5
RECORDS = 120
VALUE_BYTES = 1_000
CONFIGS = {"cleanup_policy": "compact", "segment_bytes": "16384", "min_cleanable_dirty_ratio": "0.1"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """One broker."""
    async with running_broker(tmp_path / "1") as running:
        yield running


@pytest.fixture
async def client(server: BrokerServer) -> AsyncIterator[Client]:
    """A client of it."""
    async with connected(server) as connection:
        yield connection


def value_of(number: int) -> bytes:
    return b"%d" % number + bytes(VALUE_BYTES)


async def fill(client: Client, topic: str) -> None:
    """Append records with few keys, a batch each, so that several segments are sealed."""
    for number in range(RECORDS):
        record = log_pb2.Record(key=b"%d" % (number % KEYS), value=value_of(number))
        await client.log.Append(log_pb2.AppendRequest(topic=topic, partition=0, records=[record]), timeout=WAIT_S)


async def read_all(client: Client, topic: str) -> dict[int, bytes]:
    """Read every record there is, by offset."""
    found: dict[int, bytes] = {}
    offset = 0
    while offset < RECORDS:
        response = await client.read(topic, offset=offset)
        found.update({record.offset: record.value for record in response.records})
        assert response.next_offset > offset
        offset = response.next_offset
    return found


async def clean(server: BrokerServer) -> bool:
    """Run one pass now, in a thread, with a cleaner of the test beside the idle one of the broker."""
    manager = server.replica_manager
    assert manager is not None
    cleaning = LogCleaning(manager.replicas, settings=CleanerSettings())
    return await asyncio.to_thread(cleaning._cleaner.run_once)


async def test_only_the_newest_record_of_each_key_stays_at_its_offset(server: BrokerServer, client: Client) -> None:
    """Readers get the newest records at their offsets and skip the removed ones. A restart changes nothing."""
    await client.create_topic("t", **CONFIGS)
    await fill(client, "t")
    before = await read_all(client, "t")
    assert len(before) == RECORDS
    assert await clean(server)
    after = await read_all(client, "t")
    assert after.items() <= before.items()
    assert set(range(RECORDS - KEYS, RECORDS)) <= set(after)
    assert len(after) < RECORDS // 2
    assert not await clean(server), "nothing is left to do"


async def test_a_compacted_topic_survives_a_restart(tmp_path: Path) -> None:
    """The remaining records exist again, and appends continue behind them."""
    async with running_broker(tmp_path / "1") as server, connected(server) as client:
        await client.create_topic("t", **CONFIGS)
        await fill(client, "t")
        assert await clean(server)
        before = await read_all(client, "t")
    async with running_broker(tmp_path / "1") as server, connected(server) as client:
        assert await read_all(client, "t") == before
        record = log_pb2.Record(key=b"0", value=b"next")
        response = await client.log.Append(
            log_pb2.AppendRequest(topic="t", partition=0, records=[record]), timeout=WAIT_S
        )
        assert response.ranges[0].base_offset == RECORDS


async def test_other_topics_are_left_alone(server: BrokerServer, client: Client) -> None:
    """Without `compact` in its cleanup policy, a topic keeps every record."""
    await client.create_topic("t", segment_bytes="16384")
    await fill(client, "t")
    assert not await clean(server)
    assert len(await read_all(client, "t")) == RECORDS


async def test_records_without_a_key_are_refused_by_index_and_disturb_nobody(client: Client) -> None:
    """The whole batch is refused, by stream and by simple call, because nothing could replace them. Other topics accept them."""
    await client.create_topic("t", cleanup_policy="compact")
    await client.create_topic("plain")
    status = await refusal(client.append("t", [b"a", b"b"], partition=0))
    assert status.code is ErrorCode.INVALID_BATCH
    assert "0, 1" in status.message
    stream = ProduceStream(client)
    await stream.open(("t", 0), ("plain", 0))
    await stream.produce([b"a"], route=0)
    ended = await stream.route_end(0)
    assert ErrorCode.from_number(ended.error.code) is ErrorCode.INVALID_BATCH
    await stream.produce([b"a"], route=1)
    assert (await stream.receipts(1, route=1))[-1].base_offsets[-1] == 0


async def test_configs_of_compaction_are_checked(client: Client) -> None:
    """An invalid share is refused, and the refusal names the valid ones."""
    for wrong in ("1.5", "-0.1", "half", "", "0.5.5", "1e-3"):
        status = await refusal(client.create_topic("t", min_cleanable_dirty_ratio=wrong))
        assert status.code is ErrorCode.INVALID_CONFIG
        assert "from 0 to 1" in status.message
    for right in ("0", "1", "1.0", "0.25"):
        await client.create_topic(f"t-{right}", min_cleanable_dirty_ratio=right)


async def test_10_records_with_a_future_timestamp_are_rejected(client: Client) -> None:
    """Kafka behaviour 10: three records an hour and five minutes ahead are refused, all three named; with a longer limit not."""
    now_ms = wall_ms()
    times = [now_ms, now_ms + 65 * 60_000, now_ms + 66 * 60_000, now_ms, now_ms + 67 * 60_000]
    records = [log_pb2.Record(value=b"v", timestamp_ms=time_ms) for time_ms in times]
    request = log_pb2.AppendRequest(topic="t", partition=0, records=records)
    await client.create_topic("t")
    status = await refusal(client.log.Append(request, timeout=WAIT_S))
    assert status.code is ErrorCode.INVALID_BATCH
    assert "records 1, 2, 4 of" in status.message
    assert not (await client.read("t")).records
    request.topic = "patient"
    await client.create_topic("patient", message_timestamp_after_max_ms=str(70 * 60_000))
    response = await client.log.Append(request, timeout=WAIT_S)
    assert response.ranges[0].base_offset == 0

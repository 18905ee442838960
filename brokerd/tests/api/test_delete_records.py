# SPDX-License-Identifier: Apache-2.0
"""DeleteRecords over real gRPC: at any broker, over restarts, and with a disk that refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode

from brokerd.process.server import BrokerServer
from brokerd.tests.api.forwarding import passing_on
from brokerd.tests.support import WAIT_S, Client, connected, leaders, refusal, running_broker, second_broker
from storage.errors import DiskFullError
from storage.log.log_start import LogStartWork

PARTITIONS = 8


def request(before_offset: int, *partitions: int, topic: str = "t") -> log_pb2.DeleteRecordsRequest:
    return log_pb2.DeleteRecordsRequest(
        partitions=[
            log_pb2.RecordsBefore(topic=topic, partition=partition, before_offset=before_offset)
            for partition in partitions
        ]
    )


async def delete(client: Client, before_offset: int, *partitions: int) -> list[log_pb2.DeletedRecords]:
    response = await client.log.DeleteRecords(request(before_offset, *partitions), timeout=WAIT_S)
    return list(response.results)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[BrokerServer]:
    """One broker."""
    async with running_broker(tmp_path / "1") as running:
        yield running


@pytest.fixture
async def client(server: BrokerServer) -> AsyncIterator[Client]:
    """A client of it, and a topic with three records."""
    async with connected(server) as connection:
        await connection.create_topic("t")
        await connection.append("t", [b"a", b"b", b"c"])
        yield connection


async def test_removed_records_stay_removed_after_a_restart(tmp_path: Path) -> None:
    """An answered removal is on stable storage, also from the middle of a batch."""
    async with running_broker(tmp_path / "1") as server, connected(server) as client:
        await client.create_topic("t")
        await client.append("t", [b"a", b"b", b"c"])
        assert [result.log_start_offset for result in await delete(client, 2, 0)] == [2]
    async with running_broker(tmp_path / "1") as server, connected(server) as client:
        status = await refusal(client.read("t", offset=1))
        assert status.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert status.readable_range is not None
        assert (status.readable_range.log_start_offset, status.readable_range.high_watermark) == (2, 3)
        assert [record.value for record in (await client.read("t", offset=2)).records] == [b"c"]


async def test_offsets_that_make_no_sense_are_refused_for_their_partition(client: Client) -> None:
    """Below -1 and above the high watermark; nothing is removed."""
    for before_offset, code in ((-2, ErrorCode.INVALID_REQUEST), (4, ErrorCode.OFFSET_OUT_OF_RANGE)):
        (result,) = await delete(client, before_offset, 0)
        assert ErrorCode.from_number(result.error.code) is code
        assert result.error.message
        assert not result.HasField("log_start_offset")
    (result,) = await delete(client, 0, 0)
    assert result.log_start_offset == 0


async def test_a_full_disk_says_so_and_advises_to_come_back(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log start stays, and the partition keeps working."""
    run = LogStartWork.run

    def full(work: LogStartWork) -> None:
        work.error = DiskFullError("/data/t/log-start", "no space; free space")
        raise work.error

    monkeypatch.setattr(LogStartWork, "run", full)
    (result,) = await delete(client, -1, 0)
    assert ErrorCode.from_number(result.error.code) is ErrorCode.STORAGE_FAILED
    assert result.error.retry_after_ms
    assert "/data" not in result.error.message
    monkeypatch.setattr(LogStartWork, "run", run)
    assert (await delete(client, -1, 0))[0].log_start_offset == 3


async def test_calls_of_one_partition_come_one_after_the_other(client: Client) -> None:
    """Several at once are no fault; the log start is the largest asked for."""
    async with asyncio.timeout(WAIT_S):
        found = await asyncio.gather(*(delete(client, before_offset, 0) for before_offset in (1, 3, 2, -1, 0)))
    starts = [result.log_start_offset for results in found for result in results]
    assert max(starts) == 3
    assert (await delete(client, 0, 0))[0].log_start_offset == 3


async def test_any_broker_takes_the_call(tmp_path: Path) -> None:
    """Each partition is answered by its leader, in the order asked; a forwarded call goes no further."""
    async with (
        running_broker(tmp_path / "1") as first,
        second_broker(first, tmp_path / "2") as second,
        connected(first) as client,
        connected(second) as other,
    ):
        await client.create_topic("t", PARTITIONS)
        for partition in range(PARTITIONS):
            await client.append("t", [b"x"] * (partition + 1), partition=partition)
        order = list(reversed(range(PARTITIONS)))
        for asked in (client, other):
            results = await delete(asked, -1, *order)
            assert [(result.partition, result.log_start_offset) for result in results] == [
                (partition, partition + 1) for partition in order
            ]
        partition = next(number for number, leader in (await leaders(client)).items() if leader == 2)
        async with passing_on(first, 1) as passer:
            response = await passer.call("DeleteRecords", request(-1, partition), log_pb2.DeleteRecordsResponse)
        assert ErrorCode.from_number(response.results[0].error.code) is ErrorCode.NOT_LEADER
        assert response.results[0].error.leader.leader_id == 2

# SPDX-License-Identifier: Apache-2.0
"""The calls about log directories on a real broker with two of them: their answers, and a move under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc.aio
import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import parse_rpc_error

from brokerd.process.server import BrokerServer
from brokerd.tests.support import WAIT_S, Client, connected, refusal, running_broker

VALUE_BYTES = 2_000
"""Enough for a few segments in a hundred records."""


def two_directories(tmp_path: Path) -> AbstractAsyncContextManager[BrokerServer]:
    """A broker with two log directories."""
    return running_broker(tmp_path / "first", tmp_path / "second")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a broker with two log directories."""
    async with two_directories(tmp_path) as server, connected(server) as connection:
        yield connection


async def describe(client: Client) -> admin_pb2.DescribeLogDirectoriesResponse:
    request = admin_pb2.DescribeLogDirectoriesRequest(with_replicas=True)
    return await client.admin.DescribeLogDirectories(request, timeout=WAIT_S)


async def move(client: Client, directory_id: bytes, *, topic: str = "t", cluster_id: str = "") -> None:
    request = admin_pb2.MoveReplicaRequest(cluster_id=cluster_id, topic=topic, partition=0, directory_id=directory_id)
    await client.admin.MoveReplica(request, timeout=WAIT_S)


async def append(client: Client, number: int) -> bool:
    """Append one record. Return False if it came during the switch."""
    try:
        await client.append("t", [b"%d" % number + bytes(VALUE_BYTES)], partition=0)
    except grpc.aio.AioRpcError as error:
        if parse_rpc_error(error).code is not ErrorCode.LEADER_NOT_AVAILABLE:
            raise
        return False
    return True


async def values(client: Client, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        found += [record.value for record in (await client.read("t", 0, len(found))).records]
    return found


async def test_replica_is_moved_while_it_is_written(client: Client) -> None:
    """Every acknowledged record is in the new place, in order, and the old place is empty."""
    await client.create_topic("t", 1, segment_bytes="65536")
    count = 0
    while count < 100:
        count += await append(client, count)
    before = await describe(client)
    assert before.broker_id == 1
    assert [directory.state for directory in before.directories] == [admin_pb2.LOG_DIRECTORY_STATE_FREE] * 2
    assert not before.moves
    source, target = sorted(before.directories, key=lambda directory: -directory.replica_count)
    assert [(name.topic, name.partition) for name in source.replicas] == [("t", 0)]
    await move(client, target.directory_id)
    await move(client, target.directory_id)
    async with asyncio.timeout(WAIT_S):
        while True:
            count += await append(client, count)
            after = await describe(client)
            if after.moves[0].state >= admin_pb2.REPLICA_MOVE_STATE_DONE:
                break
    count += await append(client, count)
    (done,) = after.moves
    assert (done.topic, done.partition, done.problem) == ("t", 0, "")
    assert done.state == admin_pb2.REPLICA_MOVE_STATE_DONE
    assert (done.source_directory_id, done.target_directory_id) == (source.directory_id, target.directory_id)
    assert done.copied_bytes >= done.size_bytes > 100 * VALUE_BYTES
    assert {directory.path: directory.replica_count for directory in after.directories} == {
        source.path: 0,
        target.path: 1,
    }
    assert await values(client, count) == [b"%d" % number + bytes(VALUE_BYTES) for number in range(count)]


async def test_moves_of_what_is_not_there_are_refused(client: Client) -> None:
    """Unknown topic, directory and cluster, and an id that is none."""
    await client.create_topic("t", 1)
    directory_id = (await describe(client)).directories[0].directory_id
    assert (await refusal(move(client, directory_id, topic="u"))).code is ErrorCode.UNKNOWN_TOPIC
    assert (await refusal(move(client, bytes(16)))).code is ErrorCode.INVALID_REQUEST
    assert (await refusal(move(client, b"short"))).code is ErrorCode.INVALID_REQUEST
    assert (await refusal(move(client, directory_id, cluster_id="other"))).code is ErrorCode.WRONG_CLUSTER


async def test_unknown_partitions_are_counted_and_deleted_when_asked(tmp_path: Path) -> None:
    """Directories that the metadata never knew are shown with their bytes in each log directory, and one call removes all of them."""
    async with two_directories(tmp_path) as server, connected(server) as client:
        await client.create_topic("t", 1)
        await client.append("t", [b"stays"], partition=0)
        first, second = (Path(directory.path) / "partitions" for directory in (await describe(client)).directories)
    for number, place in enumerate((first, first, second)):
        stranger = place / f"{number:032x}-0"
        stranger.mkdir()
        (stranger / "00000000000000000000.log").write_bytes(bytes(100))
    async with two_directories(tmp_path) as server, connected(server) as client:
        shown = (await describe(client)).directories
        assert [each.unknown_partition_count for each in shown] == [2, 1]
        assert [each.unknown_partition_bytes for each in shown] == [200, 100]
        wrong = admin_pb2.DeleteUnknownPartitionsRequest(cluster_id="another")
        with pytest.raises(grpc.aio.AioRpcError):
            await client.admin.DeleteUnknownPartitions(wrong, timeout=WAIT_S)
        deleted = await client.admin.DeleteUnknownPartitions(admin_pb2.DeleteUnknownPartitionsRequest(), timeout=WAIT_S)
        assert (deleted.partition_count, deleted.size_bytes) == (3, 300)
        again = await client.admin.DeleteUnknownPartitions(admin_pb2.DeleteUnknownPartitionsRequest(), timeout=WAIT_S)
        assert (again.partition_count, again.size_bytes) == (0, 0)
        assert [each.unknown_partition_count for each in (await describe(client)).directories] == [0, 0]
        assert await values(client, 1) == [b"stays"]

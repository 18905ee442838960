# SPDX-License-Identifier: Apache-2.0
"""Three brokers: in-sync followers serve readers that allow it, and no broker shows uncommitted records. R15."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2, errors_pb2, log_pb2
from lograft.wire.batch import read_batches
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.partition.events import PartitionChanged
from brokerd.tests.api.forwarding import passing_on
from brokerd.tests.support import WAIT_S, Client, FetchStream, connected, refusal
from brokerd.tests.three_brokers import Cluster, append_to_all, three_brokers
from metaquorum.tests.quorum_cluster import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Three brokers."""
    async with three_brokers(tmp_path) as made:
        yield made


def led_by(cluster: Cluster, node_id: int) -> int:
    """Return a partition that a broker leads."""
    return next(number for number in range(3) if cluster.partition(number).leader_id == node_id)


async def open_at(
    client: Client, partition: int, offset: int, *, allow_follower: bool = True
) -> tuple[FetchStream, log_pb2.FetchOpened]:
    """Open a stream with one route, number 0."""
    stream = FetchStream(client)
    route = log_pb2.FetchRoute(route=0, topic="t", partition=partition, offset=offset, allow_follower=allow_follower)
    await stream.send(log_pb2.FetchRequest(open=log_pb2.FetchOpen(routes=[route], credit_bytes=1 << 30)))
    return stream, (await stream.receive()).opened


async def values(stream: FetchStream, next_offset: int) -> list[bytes | None]:
    """Read chunks up to an offset."""
    found: list[bytes | None] = []
    while True:
        chunk = await stream.chunk()
        found += [record.value for batch in read_batches(chunk.body) for record in batch.records()]
        if chunk.next_offset >= next_offset:
            assert chunk.next_offset == next_offset
            return found


async def test_follower_serves_who_allows_it_and_nobody_else(cluster: Cluster) -> None:
    """The stream at the follower has the leader's records and gets new ones as they are committed."""
    async with connected(cluster.brokers[1]) as client, connected(cluster.brokers[2]) as other:
        await cluster.create_topic(client)
        number = led_by(cluster, 1)
        await append_to_all(client, b"first")
        await cluster.committed(2, number, 1)
        stream, opened = await open_at(other, number, 0)
        (route,) = opened.routes
        assert route.from_follower
        assert (route.leader_epoch, route.log_start_offset, route.high_watermark) == (
            cluster.partition(number).leader_epoch,
            0,
            1,
        )
        assert await values(stream, 1) == [b"first"]
        for count in range(2, 6):
            await append_to_all(client, b"%d" % count)
            assert await values(stream, count) == [b"%d" % count]
        refused, opened = await open_at(other, number, 0, allow_follower=False)
        assert not opened.routes
        error = (await refused.route_end()).error
        assert error.code == errors_pb2.ERROR_CODE_NOT_LEADER
        assert error.leader.leader_id == 1
        at_leader, opened = await open_at(client, number, 0)
        assert not opened.routes[0].from_follower
        assert len(await values(at_leader, 5)) == 5


async def test_read_call_is_answered_where_it_is_asked(cluster: Cluster) -> None:
    """A call that must not be forwarded again is answered by the follower, if the reader allows it. A wait ends with a record."""
    async with (
        connected(cluster.brokers[1]) as client,
        connected(cluster.brokers[2]) as other,
        passing_on(cluster.brokers[2], 2) as passer,
    ):
        await cluster.create_topic(client)
        number = led_by(cluster, 1)
        await append_to_all(client, b"first")
        await cluster.committed(2, number, 1)
        request = log_pb2.ReadRequest(topic="t", partition=number)
        with pytest.raises(RefusedError) as caught:
            await passer.call("Read", request, log_pb2.ReadResponse)
        assert caught.value.failure.code is ErrorCode.NOT_LEADER
        request.allow_follower = True
        response = await passer.call("Read", request, log_pb2.ReadResponse)
        assert [record.value for record in response.records] == [b"first"]
        assert (response.next_offset, response.high_watermark) == (1, 1)
        request.offset, request.max_wait_ms = 1, int(WAIT_S * 1000)
        waiting = asyncio.create_task(passer.call("Read", request, log_pb2.ReadResponse))
        replica = await cluster.replica(2, number)
        await until(lambda: len(replica.follower_listeners) == 1, what="the wait at the follower")
        await append_to_all(client, b"second")
        assert [record.value for record in (await waiting).records] == [b"second"]
        assert len(replica.follower_listeners) == 0
        beyond = log_pb2.ReadRequest(topic="t", partition=number, offset=99, allow_follower=True)
        assert (await refusal(other.log.Read(beyond, timeout=WAIT_S))).code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_nothing_uncommitted_is_read_and_the_reader_waits_for_it(cluster: Cluster) -> None:
    """While too few replicas are in sync, the follower has an uncommitted record. Its reader gets it once it is committed."""
    async with connected(cluster.brokers[1]) as client, connected(cluster.brokers[2]) as other:
        await cluster.create_topic(client, min_insync_replicas="3")
        number = led_by(cluster, 1)
        await append_to_all(client, b"first")
        await cluster.stop(3)
        await cluster.wait(lambda: 3 not in cluster.partition(number).isr)
        replica = await cluster.committed(2, number, 1)
        await client.append("t", [b"second"], partition=number, acks=log_pb2.ACKS_LEADER)
        await until(lambda: replica.log_end_offset == 2, what="the copy")
        stream, opened = await open_at(other, number, 1)
        assert opened.routes[0].high_watermark == 1
        mark = await stream.mark()
        assert (mark.next_offset, mark.high_watermark, mark.caught_up) == (1, 1, True)
        second, opened = await open_at(other, number, 2)
        assert opened.routes, "not above the log end: it waits"
        assert not (await other.read("t", number, 1, allow_follower=True)).records
        await cluster.start(3)
        assert await values(stream, 2) == [b"second"]
        await append_to_all(client, b"third")
        assert await values(second, 3) == [b"third"]


async def test_offsets_that_the_follower_does_not_have(cluster: Cluster) -> None:
    """Beyond its log end it refers to the leader. Below its log start it names the readable range."""
    async with connected(cluster.brokers[1]) as client, connected(cluster.brokers[2]) as other:
        await cluster.create_topic(client)
        number = led_by(cluster, 1)
        for _ in range(3):
            await append_to_all(client, b"x")
        replica = await cluster.committed(2, number, 3)
        stream, _ = await open_at(other, number, 4)
        error = (await stream.route_end()).error
        assert (error.code, error.leader.leader_id) == (errors_pb2.ERROR_CODE_NOT_LEADER, 1)
        stream, _ = await open_at(other, number, -1)
        assert (await stream.route_end()).error.code == errors_pb2.ERROR_CODE_INVALID_REQUEST
        before = log_pb2.RecordsBefore(topic="t", partition=number, before_offset=2)
        await client.log.DeleteRecords(log_pb2.DeleteRecordsRequest(partitions=[before]), timeout=WAIT_S)
        await until(lambda: replica.log_start_offset == 2, what="the log start of the follower")
        stream, _ = await open_at(other, number, 1)
        error = (await stream.route_end()).error
        assert error.code == errors_pb2.ERROR_CODE_OFFSET_OUT_OF_RANGE
        assert (error.readable_range.log_start_offset, error.readable_range.high_watermark) == (2, 3)


async def test_a_new_leader_ends_the_routes_at_followers(cluster: Cluster) -> None:
    """Routes end at the follower that leads now and at the one that follows again. Bound again, they have every record."""
    async with connected(cluster.brokers[1]) as client, connected(cluster.brokers[2]) as other:
        await cluster.create_topic(client)
        number = led_by(cluster, 3)
        await append_to_all(client, b"first")
        streams: list[FetchStream] = []
        for node_id, asked in ((1, client), (2, other)):
            await cluster.committed(node_id, number, 1)
            stream, opened = await open_at(asked, number, 0)
            assert opened.routes[0].from_follower
            assert await values(stream, 1) == [b"first"]
            streams.append(stream)
        await cluster.stop(3)
        for stream in streams:
            code = (await stream.route_end()).error.code
            assert code in (errors_pb2.ERROR_CODE_NOT_LEADER, errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE)
        await append_to_all(client, b"second")
        for node_id, asked in ((1, client), (2, other)):
            replica = await cluster.committed(node_id, number, 2)
            await until(lambda: replica.is_leader or replica.followed_end == 2, what="service")  # noqa: B023
            stream, opened = await open_at(asked, number, 1)
            assert opened.routes[0].from_follower is (cluster.partition(number).leader_id != node_id)
            assert await values(stream, 2) == [b"second"]


async def test_a_follower_out_of_sync_serves_nobody(cluster: Cluster) -> None:
    """Once the metadata has it outside the in-sync replicas, its routes end, and new ones are referred to the leader."""
    async with connected(cluster.brokers[1]) as client, connected(cluster.brokers[2]) as other:
        await cluster.create_topic(client)
        number = led_by(cluster, 1)
        await append_to_all(client, b"first")
        replica = await cluster.committed(2, number, 1)
        stream, _ = await open_at(other, number, 1)
        known = cluster.partition(number, 2)
        without = known._replace(isr=(1, 3), partition_epoch=known.partition_epoch + 1)
        replica.take_partition(PartitionChanged(partition=without, min_isr=1, brokers=()))
        for ended in (stream, (await open_at(other, number, 1))[0]):
            error = (await ended.route_end()).error
            assert (error.code, error.leader.leader_id) == (errors_pb2.ERROR_CODE_NOT_LEADER, 1)


async def test_a_deleted_topic_ends_the_routes_at_followers(cluster: Cluster) -> None:
    """The reader is told to ask again, and any broker then says that the topic is unknown."""
    async with connected(cluster.brokers[1]) as client, connected(cluster.brokers[2]) as other:
        await cluster.create_topic(client)
        number = led_by(cluster, 1)
        replica = await cluster.replica(2, number)
        await until(lambda: replica.followed_end == 0, what="the subscription")
        stream, opened = await open_at(other, number, 0)
        assert opened.routes[0].from_follower
        await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="t"), timeout=WAIT_S)
        code = (await stream.route_end()).error.code
        assert code in (errors_pb2.ERROR_CODE_NOT_LEADER, errors_pb2.ERROR_CODE_LEADER_NOT_AVAILABLE)
        observer = cluster.brokers[2].observer
        await until(lambda: observer.image.topic_by_name("t") is None, what="the deletion")
        stream, _ = await open_at(other, number, 0)
        assert (await stream.route_end()).error.code == errors_pb2.ERROR_CODE_UNKNOWN_TOPIC

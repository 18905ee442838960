# SPDX-License-Identifier: Apache-2.0
"""Two brokers on one quorum: forwarding, leader hints, fencing, return after a stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import errors_pb2, log_pb2, metadata_pb2
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.process.server import BrokerServer
from brokerd.tests.api.forwarding import passing_on
from brokerd.tests.support import (
    WAIT_S,
    Client,
    FetchStream,
    ProduceStream,
    connected,
    leaders,
    refusal,
    running_broker,
    second_broker,
)

PARTITIONS = 8


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[tuple[BrokerServer, BrokerServer]]:
    """A combined node and a broker beside it."""
    async with running_broker(tmp_path / "1") as first, second_broker(first, tmp_path / "2") as second:
        yield first, second


@pytest.fixture
async def clients(brokers: tuple[BrokerServer, BrokerServer]) -> AsyncIterator[tuple[Client, Client]]:
    """A client of each, and a topic spread over both that both know."""
    async with connected(brokers[0]) as first, connected(brokers[1]) as second:
        created = await first.create_topic("t", PARTITIONS)
        for client in (first, second):
            request = metadata_pb2.GetClusterRequest(min_metadata_offset=created.metadata_offset)
            cluster = await client.metadata.GetCluster(request, timeout=WAIT_S)
            assert {partition.leader_id for partition in cluster.topics[0].partitions} == {1, 2}
        yield first, second


async def test_any_broker_takes_plain_calls(clients: tuple[Client, Client]) -> None:
    """Append, Read and ListOffsets give the same answers at both brokers, whoever leads the partition."""
    for partition in range(PARTITIONS):
        for number, client in enumerate(clients):
            response = await client.append("t", [b"%d" % number], partition=partition)
            assert response.ranges[0].base_offset == number
            assert response.ranges[0].durability == log_pb2.DURABILITY_FLUSHED
    queries = [
        log_pb2.OffsetQuery(topic="t", partition=partition, position=log_pb2.OFFSET_POSITION_LATEST)
        for partition in range(PARTITIONS)
    ]
    for client in clients:
        for partition in range(PARTITIONS):
            assert [record.value for record in (await client.read("t", partition)).records] == [b"0", b"1"]
        response = await client.log.ListOffsets(log_pb2.ListOffsetsRequest(queries=queries))
        assert [(result.partition, result.offset) for result in response.results] == [
            (partition, 2) for partition in range(PARTITIONS)
        ]


async def test_append_over_many_leaders_answers_once(clients: tuple[Client, Client]) -> None:
    """Records of one call that go to several brokers come back as one answer with every index."""
    records = [log_pb2.Record(key=b"k%d" % number, value=b"v") for number in range(100)]
    response = await clients[0].log.Append(log_pb2.AppendRequest(topic="t", records=records), timeout=WAIT_S)
    assert sorted(index for found in response.ranges for index in found.record_indexes) == list(range(100))
    assert {(await leaders(clients[0]))[found.partition] for found in response.ranges} == {1, 2}


async def test_forwarded_refusals_keep_their_code_and_details(clients: tuple[Client, Client]) -> None:
    """The client gets the leader's refusal as if it had asked the leader itself."""
    partition = next(number for number, leader in (await leaders(clients[0])).items() if leader == 2)
    status = await refusal(clients[0].read("t", partition, offset=5))
    assert status.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert status.readable_range is not None
    assert status.readable_range.high_watermark == 0


async def test_forwarded_call_is_never_forwarded_again(
    brokers: tuple[BrokerServer, BrokerServer], clients: tuple[Client, Client]
) -> None:
    """A forwarded call that came to the wrong broker is refused with a hint."""
    partition = next(number for number, leader in (await leaders(clients[0])).items() if leader == 2)
    append = log_pb2.AppendRequest(topic="t", partition=partition, records=[log_pb2.Record(value=b"x")])
    read = log_pb2.ReadRequest(topic="t", partition=partition)
    queries = [log_pb2.OffsetQuery(topic="t", partition=partition, position=log_pb2.OFFSET_POSITION_LATEST)]
    async with passing_on(brokers[0], 1) as passer:
        for call in (
            passer.call("Append", append, log_pb2.AppendResponse),
            passer.call("Read", read, log_pb2.ReadResponse),
        ):
            with pytest.raises(RefusedError) as caught:
                await call
            assert caught.value.failure.code is ErrorCode.NOT_LEADER
            assert caught.value.failure.leader is not None
            assert caught.value.failure.leader.leader_id == 2
        request = log_pb2.ListOffsetsRequest(queries=queries)
        response = await passer.call("ListOffsets", request, log_pb2.ListOffsetsResponse)
    assert ErrorCode.from_number(response.results[0].error.code) is ErrorCode.NOT_LEADER


async def test_clients_cannot_say_that_a_call_was_passed_on(clients: tuple[Client, Client]) -> None:
    """Metadata that brokers of older versions sent along means nothing at the public port."""
    partition = next(number for number, leader in (await leaders(clients[0])).items() if leader == 2)
    read = log_pb2.ReadRequest(topic="t", partition=partition)
    response = await clients[0].log.Read(read, metadata=(("lograft-forwarded", "1"),), timeout=WAIT_S)
    assert response.high_watermark == 0


async def test_streams_refuse_foreign_partitions_with_a_hint(
    brokers: tuple[BrokerServer, BrokerServer], clients: tuple[Client, Client]
) -> None:
    """Only the leader serves bulk streams. The refusal names the leader."""
    partition = next(number for number, leader in (await leaders(clients[0])).items() if leader == 2)
    produce = ProduceStream(clients[0])
    await produce.open(("t", partition))
    fetch = FetchStream(clients[0])
    await fetch.open(("t", partition, 0))
    for end in (await produce.route_end(), await fetch.route_end()):
        assert ErrorCode.from_number(end.error.code) is ErrorCode.NOT_LEADER
        hint = end.error.leader
        assert f"{hint.host}:{hint.port}" == str(brokers[1].address)


async def test_admin_calls_work_at_a_broker_without_a_voter(clients: tuple[Client, Client]) -> None:
    """The second broker finds the controller, and shows the change that it passed on."""
    created = await clients[1].create_topic("u", 2)
    cluster = await clients[1].metadata.GetCluster(metadata_pb2.GetClusterRequest(topics=["u"]))
    assert cluster.metadata_offset >= created.metadata_offset
    assert len(cluster.topics) == 1
    assert {broker.broker_id: broker.rack for broker in cluster.brokers} == {1: "", 2: "r2"}


async def test_producer_ids_of_two_brokers_differ(clients: tuple[Client, Client]) -> None:
    """Each broker hands out ids from its own blocks."""
    answers = [await client.log.InitProducer(log_pb2.InitProducerRequest()) for client in clients for _ in range(3)]
    assert len({answer.producer.producer_id for answer in answers}) == 6


async def test_stopped_broker_hands_over_and_comes_back(tmp_path: Path) -> None:
    """Watchers hear of a stop as a lost leader. After the restart the records exist under a new epoch."""
    async with running_broker(tmp_path / "1") as first, connected(first) as client:
        async with second_broker(first, tmp_path / "2"):
            await client.create_topic("t", 4)
            partition = next(number for number, leader in (await leaders(client)).items() if leader == 2)
            await client.append("t", [b"kept"], partition=partition)
            watch = client.metadata.WatchCluster(metadata_pb2.WatchClusterRequest(topics=["t"]))
        async with asyncio.timeout(WAIT_S):
            async for response in watch:
                if any(
                    found.partition == partition and not found.HasField("leader_id")
                    for topic in response.topics
                    for found in topic.partitions
                ):
                    break
        status = await refusal(client.read("t", partition))
        assert status.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert status.retry_after_ms
        async with second_broker(first, tmp_path / "2") as second, connected(second) as direct:
            assert [record.value for record in (await direct.read("t", partition)).records] == [b"kept"]
            assert [record.value for record in (await client.read("t", partition)).records] == [b"kept"]


async def test_broker_that_is_cut_off_tells_nobody_who_leads(tmp_path: Path) -> None:
    """After a session without an answer of a controller it ends its watches and refuses new ones. Reads still work."""
    async with (
        running_broker(tmp_path / "1") as first,
        second_broker(first, tmp_path / "2") as second,
        connected(second) as client,
    ):
        watch = client.metadata.WatchCluster(metadata_pb2.WatchClusterRequest())
        assert (await watch.read()).snapshot
        await first.stop()
        async with asyncio.timeout(3 * WAIT_S):
            while not (response := await watch.read()).HasField("error"):
                pass
        assert response.error.code == errors_pb2.ERROR_CODE_BROKER_FENCED
        again = client.metadata.WatchCluster(metadata_pb2.WatchClusterRequest())
        assert (await refusal(again.read())).code is ErrorCode.BROKER_FENCED
        cluster = await client.metadata.GetCluster(metadata_pb2.GetClusterRequest(), timeout=WAIT_S)
        assert len(cluster.brokers) == 2

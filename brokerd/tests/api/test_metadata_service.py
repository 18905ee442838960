# SPDX-License-Identifier: Apache-2.0
"""GetCluster, WatchCluster and the forwarded AdminService over real gRPC."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from lograft.v1 import admin_pb2, errors_pb2, metadata_pb2
from lograft.wire.codes import ErrorCode

from brokerd.process.server import BrokerServer
from brokerd.tests.support import WAIT_S, Client, refusal


class Watcher:
    """A WatchCluster stream with waits that end."""

    def __init__(self, client: Client, **fields: Any) -> None:
        self.call = client.metadata.WatchCluster(metadata_pb2.WatchClusterRequest(**fields))

    async def next(self) -> metadata_pb2.WatchClusterResponse:
        async with asyncio.timeout(WAIT_S):
            response = await self.call.read()
        assert response is not grpc.aio.EOF
        return response

    async def until(self, metadata_offset: int) -> list[metadata_pb2.WatchClusterResponse]:
        found = [await self.next()]
        while found[-1].metadata_offset < metadata_offset:
            found.append(await self.next())
        return found


async def test_created_topic_is_seen_at_the_answering_broker(broker: BrokerServer, client: Client) -> None:
    """A change answers with its metadata offset, and the same broker shows it at once."""
    created = await client.create_topic("t", 3)
    cluster = await client.metadata.GetCluster(
        metadata_pb2.GetClusterRequest(topics=["t", "missing"], min_metadata_offset=created.metadata_offset)
    )
    assert cluster.metadata_offset >= created.metadata_offset
    assert [topic.topic for topic in cluster.topics] == ["t"]
    assert [partition.leader_id for partition in cluster.topics[0].partitions] == [1, 1, 1]
    (found,) = cluster.brokers
    assert (found.broker_id, found.fenced) == (1, False)
    assert f"{found.host}:{found.port}" == str(broker.address)
    assert cluster.controller_id == 1


async def test_unreached_metadata_offset_is_refused_in_time(client: Client) -> None:
    """A wait for an offset that does not come ends with a typed answer before the deadline."""
    request = metadata_pb2.GetClusterRequest(min_metadata_offset=10**12)
    status = await refusal(client.metadata.GetCluster(request, timeout=2))
    assert status.code is ErrorCode.METADATA_NOT_REACHED


async def test_watch_sends_the_state_once_and_then_changes(client: Client) -> None:
    """A watch starts with a snapshot; a new topic and a deleted one follow as deltas."""
    await client.create_topic("first")
    watcher = Watcher(client)
    snapshot = await watcher.next()
    while snapshot.metadata_offset == 0:
        assert snapshot.snapshot
        assert [topic.topic for topic in snapshot.topics] == ["first"]
        assert [broker.broker_id for broker in snapshot.brokers] == [1]
        snapshot = await watcher.next()
    created = await client.create_topic("second", 2)
    delta = (await watcher.until(created.metadata_offset))[-2:]
    topics = [topic for response in delta for topic in response.topics]
    assert [topic.topic for topic in topics] == ["second"]
    assert not any(response.snapshot for response in delta)
    deleted = await client.admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="first"))
    removed = await watcher.until(deleted.metadata_offset)
    assert [name for response in removed for name in response.removed_topics] == ["first"]


async def test_watch_resumes_after_an_offset(client: Client) -> None:
    """A client that comes back with its offset gets what it missed and no snapshot."""
    first = await client.create_topic("first")
    second = await client.create_topic("second")
    watcher = Watcher(client, after_offset=first.metadata_offset)
    responses = await watcher.until(second.metadata_offset)
    assert not any(response.snapshot for response in responses)
    assert [topic.topic for response in responses for topic in response.topics] == ["second"]


async def test_watch_of_named_topics_hears_of_no_other(client: Client) -> None:
    """The filter holds for the snapshot and for the changes; unknown names are allowed."""
    await client.create_topic("other")
    watcher = Watcher(client, topics=["mine"])
    snapshot = await watcher.next()
    while snapshot.metadata_offset == 0:
        snapshot = await watcher.next()
    assert not snapshot.topics
    await client.create_topic("another")
    mine = await client.create_topic("mine")
    responses = await watcher.until(mine.metadata_offset)
    assert [topic.topic for response in responses for topic in response.topics] == ["mine"]


async def test_watch_ends_typed_when_the_broker_stops(broker: BrokerServer, client: Client) -> None:
    """A watch reports a clean shutdown before it ends."""
    watcher = Watcher(client)
    await watcher.next()
    stopping = asyncio.create_task(broker.stop())
    response = await watcher.next()
    while not response.HasField("error"):
        response = await watcher.next()
    assert response.error.code == errors_pb2.ERROR_CODE_SHUTTING_DOWN
    await stopping


async def test_admin_calls_pass_through_with_their_errors(client: Client) -> None:
    """The broker passes requests on to the controller and its refusals back, details included."""
    await client.create_topic("t")
    listed = await client.admin.ListTopics(admin_pb2.ListTopicsRequest())
    assert [topic.topic for topic in listed.topics] == ["t"]
    described = await client.admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="t"))
    assert {config.name: config.value for config in described.configs}["flush.policy"] == "ack"
    quorum = await client.admin.DescribeQuorum(admin_pb2.DescribeQuorumRequest())
    assert quorum.leader_id == 1
    assert (await refusal(client.create_topic("t"))).code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert (await refusal(client.create_topic(".."))).code is ErrorCode.INVALID_TOPIC_NAME
    request = admin_pb2.CreateTopicRequest(topic="r", replication_factor=3)
    assert (await refusal(client.admin.CreateTopic(request))).code is ErrorCode.NOT_ENOUGH_BROKERS
    request = admin_pb2.CreateTopicRequest(topic="r", cluster_id="elsewhere")
    assert (await refusal(client.admin.CreateTopic(request))).code is ErrorCode.WRONG_CLUSTER

# SPDX-License-Identifier: Apache-2.0
"""Many topics in one request, through the real service of one quorum server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import CreateTopic
from metaquorum.controller_service.topics import SLICE_TOPICS
from metaquorum.tests.quorum_cluster import BrokerStub, QuorumCluster, quorum_cluster, refused


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    async with quorum_cluster(tmp_path, 1) as running:
        await BrokerStub(running, 7).join(1)
        yield running


def request(*topics: admin_pb2.NewTopic, validate_only: bool = False) -> admin_pb2.CreateTopicsRequest:
    """Return a request."""
    return admin_pb2.CreateTopicsRequest(topics=topics, validate_only=validate_only)


def new(topic: str, **fields: object) -> admin_pb2.NewTopic:
    """Return a topic to create."""
    return admin_pb2.NewTopic(topic=topic, **fields)  # pyright: ignore[reportArgumentType]


async def test_each_topic_is_created_or_refused_for_itself(cluster: QuorumCluster) -> None:
    """A refused topic stops no other and has its reason; the results are in the order of the request."""
    admin = cluster.admin(1)
    await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="there"))
    answer = await admin.CreateTopics(
        request(
            new("a", partition_count=3, configs={"segment.ms": "5"}),
            new("there"),
            new("a b"),
            new("b", configs={"segment.ms": "x"}),
            new("c", replication_factor=2),
            new("d"),
        )
    )
    codes = [ErrorCode.from_number(each.error.code).name if each.HasField("error") else None for each in answer.results]
    assert codes == [None, "TOPIC_ALREADY_EXISTS", "INVALID_TOPIC_NAME", "INVALID_CONFIG", "BROKER_FENCED", None]
    assert [each.topic for each in answer.results] == ["a", "there", "a b", "b", "c", "d"]
    assert [each.partition_count for each in answer.results] == [3, 0, 0, 0, 0, 1]
    image = cluster.servers[1].image
    assert image.topic_names == ["a", "d", "there"]
    assert answer.metadata_offset == image.metadata_offset
    for name, result in (("a", answer.results[0]), ("d", answer.results[5])):
        topic = image.topic_by_name(name)
        assert topic is not None
        assert (topic.topic_id, len(topic.partitions)) == (result.topic_id, result.partition_count)


async def test_more_topics_than_a_slice_are_all_created_in_order(cluster: QuorumCluster) -> None:
    """The largest request is created in slices."""
    names = [f"t{number:04}" for number in range(1_000)]
    assert len(names) > 2 * SLICE_TOPICS
    answer = await cluster.admin(1).CreateTopics(request(*map(new, names)))
    assert not any(each.HasField("error") for each in answer.results)
    assert cluster.servers[1].image.topic_names == names
    assert len({each.topic_id for each in answer.results}) == len(names)


async def test_check_changes_nothing(cluster: QuorumCluster) -> None:
    """The answer says what the request would do."""
    before = cluster.servers[1].image.metadata_offset
    answer = await cluster.admin(1).CreateTopics(request(new("a"), new("a b"), validate_only=True))
    assert [each.HasField("error") for each in answer.results] == [False, True]
    assert answer.metadata_offset == 0
    assert cluster.servers[1].image.metadata_offset == before


async def test_requests_that_cannot_be_are_refused_whole(cluster: QuorumCluster) -> None:
    """None, too many, one twice, too many partitions: no topic is created."""
    admin = cluster.admin(1)
    for topics in (
        [],
        [new(f"t{number}") for number in range(1_001)],
        [new("a"), new("b"), new("a")],
        [new("a", partition_count=9_999), new("b"), new("c")],
    ):
        await refused(admin.CreateTopics(request(*topics)), ErrorCode.INVALID_REQUEST)
    assert cluster.servers[1].image.topic_names == []


async def test_names_of_the_system_are_reserved_and_hidden(cluster: QuorumCluster) -> None:
    """Clients cannot make, grow or delete an internal topic, which a broker makes by the command; lists show it on demand, marked."""
    admin, host = cluster.admin(1), cluster.servers[1].host
    for call in (
        admin.CreateTopic(admin_pb2.CreateTopicRequest(topic="__mine")),
        admin.CreatePartitions(admin_pb2.CreatePartitionsRequest(topic="__groups", partition_count=2)),
        admin.DeleteTopic(admin_pb2.DeleteTopicRequest(topic="__groups")),
    ):
        await refused(call, ErrorCode.INVALID_TOPIC_NAME)
    answer = await admin.CreateTopics(request(new("__mine"), new("a")))
    assert [each.HasField("error") for each in answer.results] == [True, False]
    command = CreateTopic(topic="__groups", topic_id=b"g" * 16, partition_count=1, replication_factor=1, configs={})
    await host.submit(command, timeout_ms=10_000)
    listed = await admin.ListTopics(admin_pb2.ListTopicsRequest())
    assert [each.topic for each in listed.topics] == ["a"]
    listed = await admin.ListTopics(admin_pb2.ListTopicsRequest(include_internal=True))
    assert [(each.topic, each.is_internal) for each in listed.topics] == [("__groups", True), ("a", False)]

# SPDX-License-Identifier: Apache-2.0
"""Configs through the real service of one quorum server: changes, refusals, descriptions, a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.tests.quorum_cluster import BrokerStub, QuorumCluster, quorum_cluster, refused

TOPIC = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="t")
BROKER = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_BROKER, name="7")
CLUSTER = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_CLUSTER)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    async with quorum_cluster(tmp_path, 1) as running:
        await BrokerStub(running, 7).join(1)
        await running.admin(1).CreateTopic(admin_pb2.CreateTopicRequest(topic="t"))
        yield running


def change(resource: admin_pb2.ConfigResource, name: str, value: str | None) -> admin_pb2.ResourceConfigChanges:
    """Return one change."""
    return admin_pb2.ResourceConfigChanges(resource=resource, changes=[admin_pb2.ConfigChange(name=name, value=value)])


async def test_changes_are_described_with_their_source_and_outlive_a_restart(cluster: QuorumCluster) -> None:
    """Configs of all three kinds are committed as one change and are read back from the disk."""
    admin = cluster.admin(1)
    altered = await admin.AlterConfigs(
        admin_pb2.AlterConfigsRequest(
            resources=[
                change(TOPIC, "description", "x" * 256),
                change(BROKER, "flush.policy", "none"),
                change(CLUSTER, "retention.ms", "5"),
            ]
        )
    )
    assert altered.metadata_offset > 0
    request = admin_pb2.DescribeConfigsRequest(
        resources=[TOPIC, BROKER, CLUSTER], broker_id=7, min_metadata_offset=altered.metadata_offset
    )
    described = await admin.DescribeConfigs(request)
    assert [each.resource for each in described.resources] == [TOPIC, BROKER, CLUSTER]
    of_topic = {entry.name: entry for entry in described.resources[0].configs}
    assert (of_topic["description"].value, of_topic["description"].source) == (
        "x" * 256,
        admin_pb2.CONFIG_SOURCE_TOPIC,
    )
    assert of_topic["flush.policy"].source == admin_pb2.CONFIG_SOURCE_BROKER
    assert of_topic["retention.ms"].source == admin_pb2.CONFIG_SOURCE_CLUSTER
    assert of_topic["segment.ms"].source == admin_pb2.CONFIG_SOURCE_DEFAULT
    assert of_topic["segment.ms"].default_value == of_topic["segment.ms"].value
    topic = await admin.DescribeTopic(admin_pb2.DescribeTopicRequest(topic="t"))
    sources = {entry.name: entry.source for entry in topic.configs}
    assert sources["retention.ms"] == admin_pb2.CONFIG_SOURCE_CLUSTER
    assert sources["flush.policy"] == admin_pb2.CONFIG_SOURCE_DEFAULT
    await cluster.stop(1)
    await cluster.start(1)
    await cluster.active()
    assert list((await cluster.admin(1).DescribeConfigs(request)).resources) == list(described.resources)


async def test_check_changes_nothing_and_bad_requests_are_refused(cluster: QuorumCluster) -> None:
    """Refusals of the core and of the translation reach the client as their typed status."""
    admin = cluster.admin(1)
    before = cluster.servers[1].image.metadata_offset
    checked = await admin.AlterConfigs(
        admin_pb2.AlterConfigsRequest(resources=[change(TOPIC, "segment.ms", "5")], validate_only=True)
    )
    assert checked.metadata_offset == 0
    no_type = admin_pb2.ConfigResource(name="t")
    for resources, code in (
        ([], ErrorCode.INVALID_REQUEST),
        ([change(no_type, "segment.ms", "5")], ErrorCode.INVALID_REQUEST),
        ([change(TOPIC, "segment.ms", "x")], ErrorCode.INVALID_CONFIG),
    ):
        await refused(admin.AlterConfigs(admin_pb2.AlterConfigsRequest(resources=resources)), code)
    for described, code in (
        ([], ErrorCode.INVALID_REQUEST),
        ([CLUSTER] * 1_001, ErrorCode.INVALID_REQUEST),
        ([no_type], ErrorCode.INVALID_REQUEST),
        ([admin_pb2.ConfigResource(type=TOPIC.type, name="none")], ErrorCode.UNKNOWN_TOPIC),
    ):
        await refused(admin.DescribeConfigs(admin_pb2.DescribeConfigsRequest(resources=described)), code)
    topic = cluster.servers[1].image.topic_by_name("t")
    assert topic is not None
    assert topic.configs == {}
    assert before > 0

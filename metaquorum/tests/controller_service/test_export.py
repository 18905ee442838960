# SPDX-License-Identifier: Apache-2.0
"""ExportMetadata through the real service: the lines are of one offset, the same on every node, and bounded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import Reassignment, ReassignPartitions
from metaquorum.metadata import export
from metaquorum.tests.quorum_cluster import BrokerStub, QuorumCluster, quorum_cluster, refused

WAIT_MS = 10_000
TOPIC = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="a")
CLUSTER = admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_CLUSTER)


async def exported(cluster: QuorumCluster, node_id: int) -> list[str]:
    """Return the lines of an export of a voter."""
    call = cluster.admin(node_id).ExportMetadata(admin_pb2.ExportMetadataRequest())
    return [line async for message in call for line in message.lines]


async def filled(cluster: QuorumCluster) -> int:
    """Fill a cluster with a little of everything; return the node id of the active controller."""
    active = await cluster.active()
    admin = cluster.admin(active)
    leaving = BrokerStub(cluster, 7)
    await leaving.join(active)
    for topic, count in (("b", 1), ("a", 3)):
        await admin.CreateTopic(admin_pb2.CreateTopicRequest(topic=topic, partition_count=count))
    await BrokerStub(cluster, 8).join(active)
    changes = [
        admin_pb2.ResourceConfigChanges(
            resource=resource, changes=[admin_pb2.ConfigChange(name="retention.ms", value="5")]
        )
        for resource in (TOPIC, CLUSTER)
    ]
    await admin.AlterConfigs(admin_pb2.AlterConfigsRequest(resources=changes))
    moves = (Reassignment(topic="a", partition=1, replicas=(8,)),)
    await cluster.servers[active].host.submit(ReassignPartitions(reassignments=moves), timeout_ms=WAIT_MS)
    return active


def of_type(lines: list[str], kind: str) -> list[dict[str, Any]]:
    """Return the entries of a type."""
    return [entry for entry in map(json.loads, lines) if entry["type"] == kind]


async def test_lines_hold_the_image_of_one_offset_with_a_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Voters, features, brokers, topics, partitions and configs; the export leaves no file on the disk."""
    monkeypatch.setattr(export, "PIECE_LINES", 3)
    async with quorum_cluster(tmp_path, 1) as cluster:
        await filled(cluster)
        lines = await exported(cluster, 1)
        image = cluster.servers[1].image
        (head,) = of_type(lines, "export")
        assert json.loads(lines[0]) == head
        assert (head["metadata_offset"], head["cluster_id"]) == (image.metadata_offset, "test-cluster")
        (end,) = of_type(lines, "end")
        assert json.loads(lines[-1]) == end
        assert end["line_count"] == len(lines) - 1
        assert end["sha256"] == hashlib.sha256("".join(f"{line}\n" for line in lines[:-1]).encode()).hexdigest()
        assert [each["node_id"] for each in of_type(lines, "voter")] == [1]
        assert [(each["broker_id"], each["fenced"]) for each in of_type(lines, "broker")] == [(7, False), (8, False)]
        assert {each["topic"] for each in of_type(lines, "topic")} == {"a", "b"}
        moved = next(each for each in of_type(lines, "partition") if (each["topic"], each["partition"]) == ("a", 1))
        assert (moved["replicas"], moved["adding"], moved["removing"], moved["leader_id"]) == ([8, 7], [8], [7], 7)
        assert len(of_type(lines, "partition")) == 4
        assert [(each["resource"], each["name"], each["value"]) for each in of_type(lines, "config")] == [
            ("topic", "a", "5"),
            ("cluster", "", "5"),
        ]
        assert await exported(cluster, 1) == lines
        await cluster.stop(1)
        await cluster.start(1)
        await cluster.active()
        again = await exported(cluster, 1)
        # A new leader appends records of its own; the rows are the same.
        assert again[1:-1] == lines[1:-1]
        assert not list((cluster.path(1) / "metadata" / "snapshots").iterdir())


async def test_exports_are_bounded_and_of_this_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than may run is refused, and another cluster; followers name the controller."""
    async with quorum_cluster(tmp_path, 1) as cluster:
        other = cluster.admin(1).ExportMetadata(admin_pb2.ExportMetadataRequest(cluster_id="other"))
        await refused(_first(other), ErrorCode.WRONG_CLUSTER)
        monkeypatch.setattr(export, "MAX_EXPORTS", 0)
        busy = cluster.admin(1).ExportMetadata(admin_pb2.ExportMetadataRequest())
        await refused(_first(busy), ErrorCode.OVERLOADED)
        monkeypatch.setattr(export, "MAX_EXPORTS", 1)
        assert await exported(cluster, 1)
        assert await exported(cluster, 1), "the first export was not counted off"


async def _first(call: Any) -> object:
    return await call.read()

# SPDX-License-Identifier: Apache-2.0
"""Clusters whose logs are trimmed, and what their nodes have in common."""

from __future__ import annotations

from lograft.v1 import admin_pb2

from metaquorum.metadata.records import MetadataRecord
from metaquorum.tests.controller_world import view
from metaquorum.tests.quorum_cluster import QuorumCluster, until


async def create_topics(cluster: QuorumCluster, first: int, count: int) -> int:
    """Create topics at the active controller; return the metadata offset of the last one."""
    active = await cluster.active()
    offset = 0
    for number in range(first, first + count):
        request = admin_pb2.CreateTopicRequest(topic=f"topic-{number:04d}", partition_count=5, replication_factor=1)
        offset = (await cluster.admin(active).CreateTopic(request)).metadata_offset
    return offset


async def trimmed(cluster: QuorumCluster, beyond: int) -> None:
    """Wait until every running voter has trimmed its log beyond an offset."""
    await until(
        lambda: all(server.node.log_start_offset > beyond for server in cluster.servers.values()),
        what=f"logs trimmed beyond {beyond}",
    )


async def equal(cluster: QuorumCluster, offset: int) -> list[tuple[bytes, MetadataRecord]]:
    """Wait until every running voter has the same image at or beyond an offset; return its rows."""

    def same() -> list[tuple[bytes, MetadataRecord]] | None:
        images = [server.image for server in cluster.servers.values()]
        if any(image.metadata_offset < offset for image in images):
            return None
        rows = [view(image) for image in images]
        return rows[0] if all(one == rows[0] for one in rows) else None

    return await until(same, what="equal images")

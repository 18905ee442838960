# SPDX-License-Identifier: Apache-2.0
"""Clusters with trimmed logs, and the common state of their nodes."""

from __future__ import annotations

from metaquorum.metadata.records import MetadataRecord
from metaquorum.tests.controller_world import view
from metaquorum.tests.quorum_cluster import QuorumCluster, until


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

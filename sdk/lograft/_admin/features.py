# SPDX-License-Identifier: Apache-2.0
"""The calls about the feature level of the cluster, for the admin clients."""

from __future__ import annotations

from lograft._admin.topics import checked_int32
from lograft._client.cluster import Cluster
from lograft.types import FeatureLevelDescription
from lograft.v1 import admin_pb2
from lograft.v1.admin_pb2_grpc import AdminServiceStub


async def describe_feature_level(cluster: Cluster, *, timeout_ms: int) -> FeatureLevelDescription:
    """Describe the feature level."""
    request = admin_pb2.DescribeFeatureLevelRequest(cluster_id=cluster.cluster_id)
    response = await cluster.ask(
        lambda channel: AdminServiceStub(channel).DescribeFeatureLevel, request, timeout_ms=timeout_ms
    )
    return FeatureLevelDescription(
        level=response.level,
        controller_max_level=response.controller_max_level,
        brokers={each.broker_id: (each.min_level, each.max_level) for each in response.brokers},
    )


async def update_feature_level(cluster: Cluster, level: int, *, validate_only: bool, timeout_ms: int) -> None:
    """Raise the feature level."""
    request = admin_pb2.UpdateFeatureLevelRequest(
        cluster_id=cluster.cluster_id, level=checked_int32("level", level), validate_only=validate_only
    )
    # Raising it twice is raising it once.
    await cluster.ask(lambda channel: AdminServiceStub(channel).UpdateFeatureLevel, request, timeout_ms=timeout_ms)

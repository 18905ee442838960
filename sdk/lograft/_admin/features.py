# SPDX-License-Identifier: Apache-2.0
"""The calls about the feature level of the cluster, for the admin clients."""

from __future__ import annotations

from lograft._admin.calls import AdminCalls
from lograft._admin.topics import checked_int32
from lograft.types import FeatureLevelDescription
from lograft.v1 import admin_pb2


async def describe_feature_level(calls: AdminCalls) -> FeatureLevelDescription:
    """Describe the feature level of the cluster, and the levels that its servers can run at."""
    request = admin_pb2.DescribeFeatureLevelRequest()
    response = await calls.ask(lambda stub: stub.DescribeFeatureLevel, request)
    return FeatureLevelDescription(
        level=response.level,
        controller_max_level=response.controller_max_level,
        brokers={each.broker_id: (each.min_level, each.max_level) for each in response.brokers},
    )


async def update_feature_level(calls: AdminCalls, level: int, *, validate_only: bool = False) -> None:
    """Raise the feature level of the cluster. It never goes down again.

    Args:
        level: the new level; the one that holds changes nothing.
        validate_only: check only, change nothing.

    Raises:
        InvalidRequestError: it would go down, or a server cannot run at it; the message says which.
    """
    request = admin_pb2.UpdateFeatureLevelRequest(level=checked_int32("level", level), validate_only=validate_only)
    # Raising it twice is raising it once.
    await calls.ask(lambda stub: stub.UpdateFeatureLevel, request)

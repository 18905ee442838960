# SPDX-License-Identifier: Apache-2.0
"""The admin calls about the feature level of the cluster."""

from __future__ import annotations

from lograft._admin.calls import AdminCalls
from lograft._admin.topics import checked_int32
from lograft.types import FeatureLevelDescription
from lograft.v1 import admin_pb2


async def describe_feature_level(calls: AdminCalls) -> FeatureLevelDescription:
    """Describe the feature level of the cluster, and the levels at which its servers can run."""
    request = admin_pb2.DescribeFeatureLevelRequest()
    response = await calls.ask(lambda stub: stub.DescribeFeatureLevel, request)
    return FeatureLevelDescription(
        level=response.level,
        controller_max_level=response.controller_max_level,
        brokers={each.broker_id: (each.min_level, each.max_level) for each in response.brokers},
    )


async def update_feature_level(calls: AdminCalls, level: int, *, validate_only: bool = False) -> None:
    """Raise the feature level of the cluster. It cannot go down again.

    Args:
        level: the new level; the current level changes nothing.
        validate_only: check the request without changing anything.

    Raises:
        InvalidRequestError: the level would go down, or a server cannot run at it; the message says which.
    """
    request = admin_pb2.UpdateFeatureLevelRequest(level=checked_int32("level", level), validate_only=validate_only)
    # Raising the level twice has the effect of raising it once, so the call may be repeated.
    await calls.ask(lambda stub: stub.UpdateFeatureLevel, request)

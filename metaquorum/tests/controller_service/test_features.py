# SPDX-License-Identifier: Apache-2.0
"""The feature level through the real service, of servers whose version knows several levels."""

from __future__ import annotations

from pathlib import Path

from lograft.internal.v1 import controller_pb2
from lograft.v1 import admin_pb2
from lograft.wire.codes import ErrorCode

from metaquorum.controller.settings import ControllerSettings
from metaquorum.tests.quorum_cluster import quorum_cluster, refused, registration


async def test_level_is_raised_kept_over_a_restart_and_not_lowered(tmp_path: Path) -> None:
    """The level rises to the highest that all brokers support, and never falls."""
    async with quorum_cluster(tmp_path, 1, controller=ControllerSettings(max_feature_level=3)) as cluster:
        request = registration(7)
        request.feature_level.CopyFrom(controller_pb2.FeatureRange(min_level=1, max_level=2))
        await cluster.controllers(1).register(request)
        admin = cluster.admin(1)
        checked = await admin.UpdateFeatureLevel(admin_pb2.UpdateFeatureLevelRequest(level=2, validate_only=True))
        assert checked.metadata_offset == 0
        raised = await admin.UpdateFeatureLevel(admin_pb2.UpdateFeatureLevelRequest(level=2))
        assert raised.metadata_offset > 0
        for level in (1, 3, 4):
            await refused(
                admin.UpdateFeatureLevel(admin_pb2.UpdateFeatureLevelRequest(level=level)), ErrorCode.INVALID_REQUEST
            )
        await cluster.stop(1)
        await cluster.start(1)
        await cluster.active()
        described = await cluster.admin(1).DescribeFeatureLevel(admin_pb2.DescribeFeatureLevelRequest())
        assert (described.level, described.controller_max_level) == (2, 3)
        assert [(each.broker_id, each.min_level, each.max_level) for each in described.brokers] == [(7, 1, 2)]

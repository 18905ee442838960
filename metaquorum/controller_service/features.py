# SPDX-License-Identifier: Apache-2.0
"""The feature level: requests of AdminService to commands, and the image to answers.

Owns the translation. Does not decide whether the level may rise.
"""

from __future__ import annotations

from lograft.v1 import admin_pb2

from metaquorum.controller.commands import UpdateFeatureLevel, VoterLevels
from metaquorum.controller_service.operation import Member
from metaquorum.metadata.records import FEATURE_LEVEL, FEATURE_NAME


def update(request: admin_pb2.UpdateFeatureLevelRequest, member: Member) -> UpdateFeatureLevel:
    """Return the command for a request, with the levels that each voter in force supports, as it reported them to this leader."""
    voters = tuple(
        VoterLevels(
            node_id=voter.node_id,
            min_level=None if voter.levels is None else voter.levels.min_level,
            max_level=None if voter.levels is None else voter.levels.max_level,
        )
        for voter in member.node.status().voters
    )
    return UpdateFeatureLevel(level=request.level, validate_only=request.validate_only, voters=voters)


async def describe(
    _request: admin_pb2.DescribeFeatureLevelRequest, member: Member, _timeout_ms: int
) -> admin_pb2.DescribeFeatureLevelResponse:
    """Return the feature level, and the levels that the brokers support."""
    image = member.host.image
    return admin_pb2.DescribeFeatureLevelResponse(
        level=image.features.get(FEATURE_NAME, FEATURE_LEVEL),
        controller_max_level=member.host.settings.max_feature_level,
        brokers=[
            admin_pb2.BrokerFeatureLevels(
                broker_id=broker.broker_id, min_level=broker.min_feature_level, max_level=broker.max_feature_level
            )
            for _, broker in sorted(image.brokers.items())
        ],
        metadata_offset=image.metadata_offset,
    )

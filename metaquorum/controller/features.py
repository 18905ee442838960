# SPDX-License-Identifier: Apache-2.0
"""The feature level of the cluster: which records and messages it may use.

Owns the rules of a change. Law: the level only rises, and only to a level that this version, every registered broker and every voter
support; a voter that has not reported its levels counts as one that does not. Records of a level must be readable at every higher
level, but not at a lower one.
Source: KIP-584; `docs/controller.md` section "Feature level".
"""

from __future__ import annotations

from lograft.wire.codes import ErrorCode

from metaquorum.controller.appended import AppendedImage
from metaquorum.controller.commands import Decision, Done, UpdateFeatureLevel, VoterLevels, refuse
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.records import FEATURE_LEVEL, FEATURE_NAME, FeatureLevelRecord

_SHOWN_BROKERS = 20


def current_level(image: AppendedImage) -> int:
    """Return the level of the cluster."""
    return image.feature_level(FEATURE_NAME) or FEATURE_LEVEL


def update(image: AppendedImage, settings: ControllerSettings, command: UpdateFeatureLevel) -> Decision:
    """Decide about a new feature level."""
    level = current_level(image)
    if command.level == level:
        return Decision(response=Done())
    if command.level < level:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"the cluster runs at feature level {level} and never goes back, to {command.level} neither: "
            "its log may hold records that a lower level does not know",
        )
    if command.level > settings.max_feature_level:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"this version knows feature levels up to {settings.max_feature_level}, not {command.level}; "
            "install a newer version first",
        )
    unable = [
        broker.broker_id
        for broker in image.brokers()
        if not broker.min_feature_level <= command.level <= broker.max_feature_level
    ]
    if unable:
        return refuse(
            ErrorCode.INVALID_REQUEST,
            f"brokers {unable[:_SHOWN_BROKERS]} cannot run at feature level {command.level}; upgrade them first",
        )
    voters = [voter for voter in command.voters if not voter.has(command.level)]
    if voters:
        return refuse(ErrorCode.INVALID_REQUEST, _about_voters(voters, command.level))
    record = FeatureLevelRecord(name=FEATURE_NAME, level=command.level)
    return Decision(response=Done(), records=() if command.validate_only else (record,))


def _about_voters(voters: list[VoterLevels], level: int) -> str:
    unable = [voter.node_id for voter in voters if voter.is_known]
    if unable:
        return f"voters {unable} of the quorum cannot run at feature level {level}; upgrade them first"
    silent = [voter.node_id for voter in voters]
    return (
        f"voters {silent} of the quorum have not said yet at which feature levels they can run; start them, or remove them "
        "from the voters, and try again (`lograft quorum describe` shows who fetches)"
    )

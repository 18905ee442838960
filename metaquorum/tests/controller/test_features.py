# SPDX-License-Identifier: Apache-2.0
"""The feature level of the cluster: it rises once all brokers and voters support it, and never falls."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import Bootstrap, Done, UpdateFeatureLevel, VoterLevels
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.records import FEATURE_NAME, FeatureLevelRecord
from metaquorum.tests.controller_world import World, register, view


@pytest.fixture
def world() -> World:
    """A cluster at level 1; its version supports 3 levels, and its brokers support 3 and 2."""
    made = World(settings=ControllerSettings(max_feature_level=3))
    made.run(Bootstrap())
    made.run(register(1, max_feature_level=3))
    made.run(register(2, max_feature_level=2))
    return made


def test_level_goes_up_where_all_brokers_can(world: World) -> None:
    """The change is one record in the image; repeating it needs no record, and a dry run changes nothing."""
    checked = world.decide(UpdateFeatureLevel(level=2, validate_only=True))
    assert (checked.response, checked.records) == (Done(), ())
    decision = world.run(UpdateFeatureLevel(level=2))
    assert decision.records == (FeatureLevelRecord(name=FEATURE_NAME, level=2),)
    assert world.image.features == {FEATURE_NAME: 2}
    assert world.decide(UpdateFeatureLevel(level=2)).records == ()


@pytest.mark.parametrize(
    ("level", "text"),
    [(1, "never goes back, to 1"), (0, "never goes back"), (3, "brokers [2] cannot run"), (4, "up to 3, not 4")],
)
def test_other_changes_are_refused(world: World, level: int, text: str) -> None:
    """A lower level, a level that a broker does not support and an unknown level are refused; the refusal says what to do."""
    world.run(UpdateFeatureLevel(level=2))
    refusal = world.refusal(UpdateFeatureLevel(level=level))
    assert refusal.code is ErrorCode.INVALID_REQUEST
    assert text in refusal.message


def test_broker_that_was_upgraded_opens_the_way(world: World) -> None:
    """The range of levels that a broker supports is part of its registration, and of the rows of the image."""
    world.run(register(2, process=102, max_feature_level=3))
    assert any(getattr(record, "max_feature_level", None) == 3 for _, record in view(world.image))
    world.take_over()
    world.run(UpdateFeatureLevel(level=3))
    assert world.image.features == {FEATURE_NAME: 3}
    assert world.refusal(register(4, max_feature_level=2)).code is ErrorCode.INVALID_REQUEST


def test_voters_that_cannot_follow_hold_the_level_back(world: World) -> None:
    """The refusal names all voters that cannot run at the level, else those that have not reported; a dry run is refused as well."""
    able = VoterLevels(node_id=1, min_level=1, max_level=2)
    old = VoterLevels(node_id=2, min_level=1, max_level=1)
    new = VoterLevels(node_id=3, min_level=3, max_level=4)
    silent = VoterLevels(node_id=4, min_level=None, max_level=None)
    for voters, text in (
        ((able, old, new, silent), "voters [2, 3] of the quorum cannot run at feature level 2; upgrade"),
        ((able, silent), "voters [4] of the quorum have not said"),
    ):
        for validate_only in (False, True):
            command = UpdateFeatureLevel(level=2, validate_only=validate_only, voters=voters)
            refusal = world.refusal(command)
            assert refusal.code is ErrorCode.INVALID_REQUEST
            assert text in refusal.message
    world.run(UpdateFeatureLevel(level=2, voters=(able,)))
    assert world.image.features == {FEATURE_NAME: 2}
    assert world.decide(UpdateFeatureLevel(level=2, voters=(silent,))).response == Done(), "nothing to change"

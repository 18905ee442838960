# SPDX-License-Identifier: Apache-2.0
"""Configs of consumer groups: changes, precedence, what contradicts, limits; and what internal topics do not take."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import AlterConfigs, Done, Refusal, ResourceChanges
from metaquorum.controller.configs import ConfigSource, describe
from metaquorum.metadata.changes import ChangeCollector
from metaquorum.metadata.group_configs import GroupSettings, combination_problem, group_settings
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_rows import all_rows
from metaquorum.metadata.records import ConfigRecord, ConfigResource
from metaquorum.metadata.topic_configs import GROUP_CONFIGS, TOPIC_CONFIGS
from metaquorum.tests.controller_world import World, create_topic

TOPIC, CLUSTER, GROUP = ConfigResource.TOPIC, ConfigResource.CLUSTER, ConfigResource.GROUP
SESSION, BEAT, RETENTION = "group.session.timeout.ms", "group.heartbeat.interval.ms", "group.offsets.retention.ms"


def change(resource: ConfigResource, name: str, **configs: str | None) -> ResourceChanges:
    """Return changes of one resource; a double underscore in a name stands for a dot."""
    changes = tuple((key.replace("__", "."), value) for key, value in configs.items())
    return ResourceChanges(resource=resource, name=name, changes=changes)


def alter(*resources: ResourceChanges, validate_only: bool = False) -> AlterConfigs:
    """Return the command."""
    return AlterConfigs(resources=resources, validate_only=validate_only)


def found(world: World, group: str) -> dict[str, tuple[str, ConfigSource]]:
    """Return what DescribeConfigs says of a group."""
    values = describe(world.image, GROUP, group, 1)
    assert not isinstance(values, Refusal)
    return {each.definition.name: (each.value, each.source) for each in values}


@pytest.fixture
def world() -> World:
    """A world with broker 1, topic "t" and the topic of groups."""
    made = World()
    made.start_broker(1)
    made.run(create_topic("t"))
    made.run(create_topic("__groups", configs={"cleanup.policy": "compact"}))
    return made


def test_group_that_does_not_exist_may_have_configs(world: World) -> None:
    """One change is one record with the group's id, and goes by removal."""
    decision = world.run(alter(change(GROUP, "g", group__offsets__retention__ms="-1")))
    assert decision.response == Done()
    assert decision.records == (ConfigRecord(resource=GROUP, resource_name="g", name=RETENTION, value="-1"),)
    assert dict(world.image.configs_of(GROUP, "g")) == {RETENTION: "-1"}
    assert list(world.image.configured_groups()) == ["g"]
    world.run(alter(change(GROUP, "g", group__offsets__retention__ms=None)))
    assert list(world.image.configured_groups()) == []


def test_group_inherits_from_the_cluster(world: World) -> None:
    """The value of the group counts before the cluster's, that before the default; brokers and topics have none of them."""
    assert found(world, "g").keys() == GROUP_CONFIGS
    assert found(world, "g")[RETENTION] == ("604800000", ConfigSource.DEFAULT)
    world.run(alter(change(CLUSTER, "", group__offsets__retention__ms="60000")))
    assert found(world, "g")[RETENTION] == ("60000", ConfigSource.CLUSTER)
    world.run(alter(change(GROUP, "g", group__offsets__retention__ms="70000")))
    assert found(world, "g")[RETENTION] == ("70000", ConfigSource.GROUP)
    assert found(world, "h")[RETENTION] == ("60000", ConfigSource.CLUSTER)
    for resource, name in ((TOPIC, "t"), (ConfigResource.BROKER, "1")):
        refusal = world.refusal(alter(change(resource, name, group__offsets__retention__ms="60000")))
        assert (refusal.code, "group" in refusal.message) == (ErrorCode.INVALID_CONFIG, True)
    assert world.refusal(alter(change(GROUP, "g", retention__ms="1"))).code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        (SESSION, ("15000", "60000"), ("5999", "60001", "-1", "")),
        (BEAT, ("1000", "15000"), ("999", "20001", "5 s")),
        ("group.assignment.interval.ms", ("0", "15000"), ("-1", "15001")),
        ("group.assignor", ("uniform", "range"), ("", "best")),
        (RETENTION, ("-1", "60000", str(2**63 - 1)), ("0", "59999", "never")),
    ],
)
def test_values_have_bounds(world: World, name: str, good: tuple[str, ...], bad: tuple[str, ...]) -> None:
    """What is out of range is refused with what is allowed."""
    for value in good:
        world.run(alter(ResourceChanges(resource=GROUP, name="g", changes=((name, value),))))
    for value in bad:
        refusal = world.refusal(alter(ResourceChanges(resource=GROUP, name="g", changes=((name, value),))))
        assert refusal.code is ErrorCode.INVALID_CONFIG
        assert TOPIC_CONFIGS[name].allowed in refusal.message


@pytest.mark.parametrize("resource", [(GROUP, "g"), (CLUSTER, "")])
def test_three_heartbeats_fit_into_a_session(world: World, resource: tuple[ConfigResource, str]) -> None:
    """A session alone may be too short for the default; both in one request are good, and neither may be taken back alone."""
    refusal = world.refusal(alter(change(*resource, group__session__timeout__ms="12000")))
    assert (refusal.code, "set both" in refusal.message) == (ErrorCode.INVALID_CONFIG, True)
    both = change(*resource, group__session__timeout__ms="12000", group__heartbeat__interval__ms="4000")
    world.run(alter(both))
    assert world.refusal(alter(change(*resource, group__heartbeat__interval__ms=None))).code is ErrorCode.INVALID_CONFIG
    world.run(alter(change(*resource, group__session__timeout__ms=None)))
    world.run(alter(change(*resource, group__heartbeat__interval__ms=None)))


def test_group_is_checked_against_what_it_inherits(world: World) -> None:
    """Also against a change of the cluster in the same request. What has nothing to do with sessions is not checked."""
    cluster = change(CLUSTER, "", group__session__timeout__ms="60000", group__heartbeat__interval__ms="20000")
    group = change(GROUP, "g", group__session__timeout__ms="60000")
    world.run(alter(cluster, group))
    refusal = world.refusal(alter(change(GROUP, "h", group__session__timeout__ms="30000")))
    assert refusal.code is ErrorCode.INVALID_CONFIG
    world.run(alter(change(GROUP, "g", group__heartbeat__interval__ms="20000", group__session__timeout__ms=None)))
    world.run(
        alter(change(CLUSTER, "", group__session__timeout__ms=None, group__heartbeat__interval__ms=None)),
    )
    own = {**world.image.configs_of(CLUSTER, ""), **world.image.configs_of(GROUP, "g")}
    assert combination_problem(own) is not None
    assert group_settings(own).heartbeat_interval_ms == 15_000
    world.run(alter(change(GROUP, "g", group__assignor="range")))


def test_bad_group_ids_are_refused(world: World) -> None:
    """A group id has 1 to 255 bytes."""
    for name in ("", "x" * 256, "\u00fc" * 128):
        refusal = world.refusal(alter(change(GROUP, name, group__assignor="range")))
        assert refusal.code is ErrorCode.INVALID_REQUEST
        assert isinstance(describe(world.image, GROUP, name, None), Refusal)


def test_number_of_configured_groups_is_limited(world: World) -> None:
    """Uncommitted ones count; those that are configured already may still be changed."""
    world.limit(max_configured_groups=2)
    world.append(alter(change(GROUP, "a", group__assignor="range"), change(GROUP, "b", group__assignor="range")))
    refusal = world.refusal(alter(change(GROUP, "c", group__assignor="range")))
    assert refusal.code is ErrorCode.LIMIT_EXCEEDED
    world.append(alter(change(GROUP, "b", group__assignor="uniform")))
    world.append(alter(change(GROUP, "a", group__assignor=None)))
    world.append(alter(change(GROUP, "c", group__assignor="range")))
    world.commit()
    assert sorted(world.image.configured_groups()) == ["b", "c"]


def test_settings_follow_from_the_table() -> None:
    """Without configs the defaults hold; a retention of -1 is none."""
    assert group_settings({}) == GroupSettings(
        session_timeout_ms=45_000,
        heartbeat_interval_ms=5_000,
        assignment_interval_ms=200,
        assignor="uniform",
        offsets_retention_ms=7 * 24 * 3_600_000,
    )
    assert group_settings({RETENTION: "-1", "retention.ms": "5"}).offsets_retention_ms is None


def test_rows_of_any_group_id_come_back() -> None:
    """A group id may contain the byte that ends the name in a key."""
    image = MetadataImage()
    for number, group in enumerate(("g", "a\x00b", "\x00", "a")):
        image.replay(ConfigRecord(resource=GROUP, resource_name=group, name=RETENTION, value="-1"), number)
    names = [row.resource_name for _, row in all_rows(image) if isinstance(row, ConfigRecord)]
    assert sorted(names) == ["\x00", "a", "a\x00b", "g"]


def test_change_of_a_group_names_the_group() -> None:
    """It is no change of what topics inherit."""
    collector = ChangeCollector()
    collector.add(ConfigRecord(resource=GROUP, resource_name="g", name=RETENTION, value="-1"), MetadataImage())
    made = collector.finish(1)
    assert (made.group_ids, made.inherited_configs, made.is_empty) == (frozenset({"g"}), False, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "delete"),
        ("cleanup.policy", "compact,delete"),
        ("cleanup.policy", None),
        ("max.message.bytes", "1048575"),
        ("max.message.bytes", None),
    ],
)
def test_internal_topic_keeps_what_its_coordinators_need(world: World, name: str, value: str | None) -> None:
    """Neither a value nor the removal gets through; other topics take it."""
    wrong = ((name, value),)
    refusal = world.refusal(alter(ResourceChanges(resource=TOPIC, name="__groups", changes=wrong)))
    assert (refusal.code, "internal topic" in refusal.message) == (ErrorCode.INVALID_CONFIG, True)
    assert world.run(alter(ResourceChanges(resource=TOPIC, name="t", changes=wrong))).response == Done()


def test_internal_topic_takes_what_breaks_nothing(world: World) -> None:
    """Segments, larger batches, durability are the operator's."""
    fine = change(TOPIC, "__groups", segment__bytes="1048576", max__message__bytes="2097152", cleanup__policy="compact")
    assert world.run(alter(fine)).response == Done()

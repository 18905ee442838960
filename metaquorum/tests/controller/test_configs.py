# SPDX-License-Identifier: Apache-2.0
"""Configs of topics, brokers and the cluster: changes, refusals, precedence, and the overlay."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import AlterConfigs, DeleteTopic, Done, Refusal, ResourceChanges
from metaquorum.controller.configs import ConfigSource, describe, settings_of, value_for_broker
from metaquorum.metadata.records import ConfigRecord, ConfigResource
from metaquorum.metadata.topic_configs import (
    CATCH_UP_RATE,
    MAX_DESCRIPTION_BYTES,
    MOVE_RATE,
    TOPIC_CONFIGS,
    FlushPolicy,
)
from metaquorum.tests.controller_world import SETTINGS, World, create_topic, topic_id, view

TOPIC, BROKER, CLUSTER = ConfigResource.TOPIC, ConfigResource.BROKER, ConfigResource.CLUSTER


def change(resource: ConfigResource, name: str, **configs: str | None) -> ResourceChanges:
    """Return changes of one resource; a double underscore in a name stands for a dot."""
    changes = tuple((key.replace("__", "."), value) for key, value in configs.items())
    return ResourceChanges(resource=resource, name=name, changes=changes)


def alter(*resources: ResourceChanges, validate_only: bool = False) -> AlterConfigs:
    """Return the command."""
    return AlterConfigs(resources=resources, validate_only=validate_only)


@pytest.fixture
def world() -> World:
    """A world with broker 1 and topic "t"."""
    made = World()
    made.start_broker(1)
    made.run(create_topic("t", configs={"segment.ms": "5"}))
    return made


def test_one_change_is_one_record(world: World) -> None:
    """Setting one config of 256 bytes is one record with the topic's id, and the committed image shows it."""
    text = "x" * 256
    decision = world.run(alter(change(TOPIC, "t", description=text)))
    assert decision.response == Done()
    assert decision.records == (
        ConfigRecord(resource=TOPIC, resource_name=topic_id("t").hex(), name="description", value=text),
    )
    topic = world.image.topic_by_name("t")
    assert topic is not None
    assert topic.configs == {"segment.ms": "5", "description": text}


def test_several_resources_change_in_one_batch(world: World) -> None:
    """Topic, broker and cluster change together; removing a config that was not set needs no record."""
    world.run(alter(change(CLUSTER, "", flush__policy="none")))
    decision = world.run(
        alter(
            change(TOPIC, "t", segment__ms=None, retention__ms=None, segment__bytes="16384"),
            change(BROKER, "1", flush__policy="interval"),
            change(CLUSTER, "", flush__policy=None, retention__ms="7"),
        )
    )
    assert [(record.resource, record.name, record.value) for record in _configs(decision.records)] == [
        (TOPIC, "segment.ms", None),
        (TOPIC, "segment.bytes", "16384"),
        (BROKER, "flush.policy", "interval"),
        (CLUSTER, "flush.policy", None),
        (CLUSTER, "retention.ms", "7"),
    ]
    assert world.image.configs_of(CLUSTER, "") == {"retention.ms": "7"}
    assert world.image.configs_of(BROKER, "1") == {"flush.policy": "interval"}
    assert world.image.configs_of(BROKER, "2") == {}


def _configs(records: tuple[object, ...]) -> list[ConfigRecord]:
    assert all(isinstance(record, ConfigRecord) for record in records)
    return [record for record in records if isinstance(record, ConfigRecord)]


@pytest.mark.parametrize(
    ("resources", "code", "text"),
    [
        ((), ErrorCode.INVALID_REQUEST, "1 to 500 config changes, this one has 0"),
        ((change(TOPIC, "t"),), ErrorCode.INVALID_REQUEST, "this one has 0"),
        ((change(TOPIC, "none", segment__ms="1"),), ErrorCode.UNKNOWN_TOPIC, "'none'"),
        ((change(BROKER, "9", segment__ms="1"),), ErrorCode.INVALID_REQUEST, "'9' is registered"),
        ((change(BROKER, "01", segment__ms="1"),), ErrorCode.INVALID_REQUEST, "'01' is registered"),
        ((change(BROKER, "", segment__ms="1"),), ErrorCode.INVALID_REQUEST, "'' is registered"),
        ((change(BROKER, "1" * 5_000, segment__ms="1"),), ErrorCode.INVALID_REQUEST, "in decimal"),
        ((change(BROKER, "\u00b2", segment__ms="1"),), ErrorCode.INVALID_REQUEST, "in decimal"),
        ((change(CLUSTER, "c", segment__ms="1"),), ErrorCode.INVALID_REQUEST, "no name"),
        ((change(TOPIC, "t", no__such="1"),), ErrorCode.INVALID_CONFIG, "'no.such'; known are cleanup.policy"),
        ((change(TOPIC, "t", no__such=None),), ErrorCode.INVALID_CONFIG, "'no.such'"),
        ((change(TOPIC, "t", segment__ms="0"),), ErrorCode.INVALID_CONFIG, "segment.ms must be an integer from 1"),
        ((change(TOPIC, "t", min__cleanable__dirty__ratio="2"),), ErrorCode.INVALID_CONFIG, "such as 0.25, not '2'"),
        ((change(TOPIC, "t", flush__policy="x"),), ErrorCode.INVALID_CONFIG, "one of ack, interval, none, not 'x'"),
        ((change(CLUSTER, "", description="x"),), ErrorCode.INVALID_CONFIG, "for a topic only, not for a cluster"),
        ((change(BROKER, "1", description=None),), ErrorCode.INVALID_CONFIG, "for a topic only, not for a broker"),
        ((change(TOPIC, "t", description="a\nb"),), ErrorCode.INVALID_CONFIG, "without control characters"),
        ((change(TOPIC, "t", description="\u00fc" * 513),), ErrorCode.INVALID_CONFIG, "at most 1024 bytes"),
        (
            (change(TOPIC, "t", segment__ms="1"), change(TOPIC, "t", segment__ms=None)),
            ErrorCode.INVALID_REQUEST,
            "segment.ms of topic 't' is named twice",
        ),
    ],
)
def test_bad_change_is_refused_with_its_key_and_what_is_allowed(
    world: World, resources: tuple[ResourceChanges, ...], code: ErrorCode, text: str
) -> None:
    """A refusal names the bad key and what is allowed; a valid change in the same request is not made either."""
    refusal = world.refusal(alter(*resources))
    assert refusal.code is code
    assert text in refusal.message
    assert len(refusal.message) < 1_500
    if any(each.changes for each in resources):
        assert world.refusal(alter(change(CLUSTER, "", retention__bytes="1"), *resources)).code is code


def test_changes_of_one_request_are_limited(world: World) -> None:
    """One more than the limit is refused, however they are spread over resources."""
    many = tuple((f"c{number}", "1") for number in range(SETTINGS.max_config_changes))
    too_many = (ResourceChanges(resource=TOPIC, name="t", changes=many), change(CLUSTER, "", retention__ms="1"))
    refusal = world.refusal(alter(*too_many))
    assert (refusal.code, str(SETTINGS.max_config_changes + 1) in refusal.message) == (ErrorCode.INVALID_REQUEST, True)


def test_validate_only_checks_and_changes_nothing(world: World) -> None:
    """A dry run answers like the change and has no records; a bad one is refused."""
    assert world.decide(alter(change(TOPIC, "t", segment__ms="9"), validate_only=True)).records == ()
    refusal = world.refusal(alter(change(TOPIC, "t", segment__ms="x"), validate_only=True))
    assert refusal.code is ErrorCode.INVALID_CONFIG


def test_longest_description_is_taken() -> None:
    """The limit counts bytes of UTF-8, inclusive."""
    definition = TOPIC_CONFIGS["description"]
    assert definition.problem("\u00fc" * (MAX_DESCRIPTION_BYTES // 2)) is None
    assert definition.problem("") is None
    assert definition.problem("x" * (MAX_DESCRIPTION_BYTES + 1)) is not None


def test_precedence_is_topic_broker_cluster_default(world: World) -> None:
    """Each layer hides the one below; DescribeConfigs says which one a value comes from."""

    def found(broker_id: int | None) -> tuple[str, ConfigSource]:
        values = describe(world.image, TOPIC, "t", broker_id)
        assert not isinstance(values, Refusal)
        of_topics = [name for name, definition in TOPIC_CONFIGS.items() if TOPIC in definition.scopes]
        assert [each.definition.name for each in values] == of_topics
        (value,) = (each for each in values if each.definition.name == "flush.policy")
        assert settings_of(world.image, _topic(world), broker_id).flush_policy is FlushPolicy(value.value)
        assert settings_of(world.controller.image, _topic(world), broker_id).flush_policy.value == value.value
        return value.value, value.source

    assert found(1) == ("ack", ConfigSource.DEFAULT)
    world.run(alter(change(CLUSTER, "", flush__policy="none")))
    assert found(1) == ("none", ConfigSource.CLUSTER)
    world.run(alter(change(BROKER, "1", flush__policy="interval")))
    assert found(1) == ("interval", ConfigSource.BROKER)
    assert found(2) == ("none", ConfigSource.CLUSTER)
    assert found(None) == ("none", ConfigSource.CLUSTER)
    world.run(alter(change(TOPIC, "t", flush__policy="ack")))
    assert found(1) == ("ack", ConfigSource.TOPIC)
    world.run(alter(change(TOPIC, "t", flush__policy=None), change(BROKER, "1", flush__policy=None)))
    assert found(1) == ("none", ConfigSource.CLUSTER)


def _topic(world: World) -> dict[str, str]:
    topic = world.image.topic_by_name("t")
    assert topic is not None
    return topic.configs


def test_brokers_and_the_cluster_are_described_without_what_is_not_theirs(world: World) -> None:
    """A broker shows its own values over the cluster's, the cluster its own; neither has the config `description`."""
    world.run(alter(change(CLUSTER, "", retention__ms="1"), change(BROKER, "1", segment__ms="2")))
    of_broker, of_cluster = describe(world.image, BROKER, "1", None), describe(world.image, CLUSTER, "", None)
    assert not isinstance(of_broker, Refusal)
    assert not isinstance(of_cluster, Refusal)
    sources = {each.definition.name: each.source for each in of_broker}
    assert (sources["retention.ms"], sources["segment.ms"]) == (ConfigSource.CLUSTER, ConfigSource.BROKER)
    assert "description" not in sources
    assert {each.definition.name: each.source for each in of_cluster}["segment.ms"] is ConfigSource.DEFAULT
    unknown = describe(world.image, TOPIC, "none", None)
    assert isinstance(unknown, Refusal)
    assert unknown.code is ErrorCode.UNKNOWN_TOPIC


def test_uncommitted_configs_are_seen_by_decisions_and_fall_with_the_leadership(world: World) -> None:
    """The overlay shows appended configs, drops them at the commit, and is empty in a new leadership."""
    world.append(alter(change(CLUSTER, "", flush__policy="none")))
    assert world.controller.image.configs_of(CLUSTER, "") == {"flush.policy": "none"}
    assert world.image.configs_of(CLUSTER, "") == {}
    assert len(world.decide(alter(change(CLUSTER, "", flush__policy=None))).records) == 1
    before = world.controller.image.overlay_size
    world.commit()
    assert world.controller.image.overlay_size == before - 1
    assert world.image.configs_of(CLUSTER, "") == {"flush.policy": "none"}
    world.append(alter(change(CLUSTER, "", flush__policy=None)))
    assert world.controller.image.configs_of(CLUSTER, "") == {}
    world.take_over()
    assert world.controller.image.configs_of(CLUSTER, "") == {"flush.policy": "none"}


def test_configs_of_a_broker_that_left_can_be_seen_and_removed(world: World) -> None:
    """The configs of a broker stay readable and removable after the broker is gone."""
    world.image.replay(ConfigRecord(resource=BROKER, resource_name="8", name="segment.ms", value="3"), 1_000)
    world.log_end_offset = 1_001
    world.take_over()
    assert not isinstance(describe(world.image, BROKER, "8", None), Refusal)
    world.run(alter(change(BROKER, "8", segment__ms=None)))
    assert isinstance(describe(world.image, BROKER, "8", None), Refusal)


def test_configs_of_a_topic_go_with_it(world: World) -> None:
    """A new topic of the same name starts without the configs of the deleted one."""
    world.run(alter(change(TOPIC, "t", description="old")))
    world.run(DeleteTopic(topic="t"))
    world.run(create_topic("t"))
    assert _topic(world) == {}
    assert not [key for key, _ in view(world.image) if key[0] == 5]


@pytest.mark.parametrize("name", [CATCH_UP_RATE, MOVE_RATE])
def test_rates_of_replication_are_set_for_brokers_and_the_cluster_only(world: World, name: str) -> None:
    """They are stored, checked and described for both, and a broker's own value wins; a topic has no such configs."""

    def rate(resource: ConfigResource, resource_name: str) -> tuple[str, ConfigSource] | None:
        values = describe(world.image, resource, resource_name, None)
        assert not isinstance(values, Refusal)
        found = {each.definition.name: (each.value, each.source) for each in values}
        return found.get(name)

    def set_rate(resource: ConfigResource, resource_name: str, value: str | None) -> AlterConfigs:
        return AlterConfigs(
            resources=(ResourceChanges(resource=resource, name=resource_name, changes=((name, value),)),)
        )

    assert rate(BROKER, "1") == ("-1", ConfigSource.DEFAULT)
    assert value_for_broker(world.image, 1, name) == "-1"
    world.run(set_rate(CLUSTER, "", "1000000"))
    assert value_for_broker(world.image, 1, name) == "1000000"
    world.run(set_rate(BROKER, "1", "1024"))
    assert rate(BROKER, "1") == ("1024", ConfigSource.BROKER)
    assert rate(CLUSTER, "") == ("1000000", ConfigSource.CLUSTER)
    assert (value_for_broker(world.image, 1, name), value_for_broker(world.image, 2, name)) == ("1024", "1000000")
    world.run(set_rate(BROKER, "1", "-1"))
    assert value_for_broker(world.image, 1, name) == "-1", "no limit for a broker wins over one of the cluster"
    world.run(set_rate(BROKER, "1", None))
    assert rate(BROKER, "1") == ("1000000", ConfigSource.CLUSTER)
    assert rate(TOPIC, "t") is None
    for resource, resource_name, value in (
        (TOPIC, "t", "5000"),
        (CLUSTER, "", "0"),
        (CLUSTER, "", "1023"),
        (BROKER, "1", "-2"),
        (BROKER, "1", "fast"),
        (BROKER, "1", str(2**63)),
    ):
        refusal = world.refusal(set_rate(resource, resource_name, value))
        assert refusal.code is ErrorCode.INVALID_CONFIG
        assert name in refusal.message
    # What topics inherit is not disturbed by it.
    assert settings_of(world.image, _topic(world), 1).flush_policy is FlushPolicy.ACK

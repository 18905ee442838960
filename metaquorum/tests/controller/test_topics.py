# SPDX-License-Identifier: Apache-2.0
"""Topics in the controller: creation, deletion, names, configs, placement, limits."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_BATCH_BYTES

from metaquorum.controller.commands import AlterConfigs, DeleteTopic, ResourceChanges, TopicCreated, TopicDeleted
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata import topic_configs, topic_names
from metaquorum.metadata.image_rows import DeletedBlock, deleted_key
from metaquorum.metadata.records import ConfigRecord, ConfigResource, TopicRecord
from metaquorum.metadata.topic_configs import TOPIC_CONFIGS, CleanupPolicy, CompressionType, FlushPolicy
from metaquorum.tests.controller_world import SETTINGS, World, create_topic, register, topic_id, view


def world_with_brokers(count: int, *, settings: ControllerSettings | None = None) -> World:
    """Return a world with brokers 1 to `count`, all unfenced."""
    world = World() if settings is None else World(settings=settings)
    for broker_id in range(1, count + 1):
        world.start_broker(broker_id)
    return world


def test_create_topic_makes_it_visible_with_partitions_and_configs() -> None:
    """A committed creation shows the topic whole: id, partitions with leaders and epochs, the configs that were set."""
    world = world_with_brokers(2)
    decision = world.run(create_topic("events", partition_count=4, configs={"segment.ms": "60000"}))
    topic = world.image.topic_by_name("events")
    assert topic is not None
    assert topic is world.image.topic_by_id(topic_id("events"))
    assert [partition.partition for partition in topic.partitions] == [0, 1, 2, 3]
    assert [partition.leader_id for partition in topic.partitions] == [1, 2, 1, 2]
    assert all(partition.isr == partition.replicas == (partition.leader_id,) for partition in topic.partitions)
    assert {(partition.leader_epoch, partition.partition_epoch) for partition in topic.partitions} == {(0, 0)}
    assert topic.configs == {"segment.ms": "60000"}
    assert topic.replication_factor == 1
    assert decision.response == TopicCreated(
        topic="events", topic_id=topic_id("events"), partitions=tuple(topic.partitions), configs={"segment.ms": "60000"}
    )


def test_create_topic_with_zero_counts_takes_defaults() -> None:
    """Absent numbers mean one partition and the default replication factor."""
    world = world_with_brokers(1)
    world.run(create_topic("t", partition_count=0, replication_factor=0))
    assert world.leaders("t") == [1]


def test_create_topic_is_one_batch_with_the_topic_first() -> None:
    """The topic exists whole or not at all: topic, configs and partitions are one decision, in replay order."""
    world = world_with_brokers(1)
    configs = {"segment.ms": "5", "flush.policy": "none"}
    records = world.decide(create_topic("t", partition_count=3, configs=configs)).records
    assert isinstance(records[0], TopicRecord)
    assert [record.name for record in records if isinstance(record, ConfigRecord)] == ["flush.policy", "segment.ms"]
    assert len(records) == 1 + 2 + 3


def test_create_topic_twice_is_refused_committed_or_not() -> None:
    """A second topic of the name is refused as soon as the first is appended."""
    world = world_with_brokers(1)
    world.append(create_topic("t"))
    again = create_topic("t", topic_id=topic_id("other"))
    assert world.refusal(again).code is ErrorCode.TOPIC_ALREADY_EXISTS
    world.commit()
    assert world.refusal(again).code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_create_topic_validate_only_changes_nothing() -> None:
    """A dry run answers like the creation and leaves no record."""
    world = world_with_brokers(1)
    decision = world.run(create_topic("t", validate_only=True))
    assert isinstance(decision.response, TopicCreated)
    assert decision.records == ()
    assert world.image.topic_by_name("t") is None
    assert world.refusal(create_topic("..", validate_only=True)).code is ErrorCode.INVALID_TOPIC_NAME


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a" * 250,
        "a/b",
        "a\x00b",
        "\x00",
        "a b",
        "a\n",
        "\u00e4",
        "\uff41",
        "topic:1",
        "a,b",
        "\U0001f4a5",
    ],
)
def test_create_topic_with_a_bad_name_is_refused(name: str) -> None:
    """The naming rule: empty, dots alone, 250 characters, slash, NUL, blanks and anything not ASCII are refused."""
    world = world_with_brokers(1)
    refusal = world.refusal(create_topic(name, topic_id=topic_id("x")))
    assert refusal.code is ErrorCode.INVALID_TOPIC_NAME
    refusal.message.encode()
    assert "\x00" not in refusal.message


@pytest.mark.parametrize("name", ["a", "...", "a.b_c-D9", "_", "-", "x" * 249, "__consumer_offsets"])
def test_topic_names_that_keep_the_rule(name: str) -> None:
    """The rule allows every other name."""
    assert topic_names.problem(name) is None


@pytest.mark.parametrize("count", [-1, 10_001, 2**31 - 1, -(2**31)])
def test_create_topic_with_a_bad_partition_count_is_refused(count: int) -> None:
    """Partition counts outside 1 to the limit are refused and the limit is named."""
    refusal = world_with_brokers(1).refusal(create_topic("t", partition_count=count))
    assert refusal.code is ErrorCode.INVALID_PARTITION_COUNT
    assert "10000" in refusal.message


def test_create_topic_with_as_many_partitions_as_allowed() -> None:
    """The limit itself is allowed."""
    world = world_with_brokers(3)
    world.run(create_topic("t", partition_count=10_000))
    assert world.image.counts.partitions == 10_000
    assert sorted(world.image.counts.leaders.values()) == [3_333, 3_333, 3_334]


def test_create_topic_with_replicas() -> None:
    """Every partition has as many replicas as asked for, on different brokers, all in sync; the first one leads."""
    world = world_with_brokers(4)
    world.run(create_topic("t", partition_count=12, replication_factor=3))
    topic = world.image.topic_by_name("t")
    assert topic is not None
    for partition in topic.partitions:
        assert len(set(partition.replicas)) == len(partition.replicas) == 3
        assert partition.isr == partition.replicas
        assert partition.leader_id == partition.replicas[0]
    assert set(world.image.counts.leaders.values()) == {3}
    assert set(world.image.counts.replicas.values()) == {9}


@pytest.mark.parametrize("factor", [-1, 101, 2**31 - 1])
def test_create_topic_with_an_impossible_replication_factor_is_refused(factor: int) -> None:
    """A factor below 0 has no meaning, and one above the limit is a mistake."""
    refusal = world_with_brokers(3).refusal(create_topic("t", replication_factor=factor))
    assert refusal.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert f"not {factor}" in refusal.message


@pytest.mark.parametrize("factor", [4, 100])
def test_create_topic_with_more_replicas_than_brokers_is_refused(factor: int) -> None:
    """A broker has at most one replica of a partition, so the message says how many brokers are needed."""
    world = world_with_brokers(3)
    world.now_ms += SETTINGS.broker_arrival_ms
    refusal = world.refusal(create_topic("t", replication_factor=factor))
    assert refusal.code is ErrorCode.NOT_ENOUGH_BROKERS
    assert f"{factor} usable" in refusal.message


def test_create_topic_without_a_usable_broker_is_refused() -> None:
    """Fenced brokers and those that leave get no partitions."""
    world = World()
    assert world.refusal(create_topic("t")).code is ErrorCode.BROKER_FENCED
    world.run(register(1))
    assert world.refusal(create_topic("t")).code is ErrorCode.BROKER_FENCED
    world.beat(1)
    world.run(create_topic("t"))
    world.beat(1, want_shutdown=True)
    assert world.refusal(create_topic("u")).code is ErrorCode.BROKER_FENCED


def test_want_of_brokers_is_for_now_where_those_that_are_registered_would_do() -> None:
    """The refusal is retriable then; it is not if the request has more replicas than there are brokers."""
    world = World()
    for broker_id in (1, 2):
        world.run(register(broker_id))
    passing = world.refusal(create_topic("t", replication_factor=2))
    assert (passing.code, passing.code.retriable) == (ErrorCode.BROKER_FENCED, True)
    assert "2 usable broker(s) needed, 0 present (2 registered)" in passing.message
    world.now_ms += SETTINGS.broker_arrival_ms
    assert world.refusal(create_topic("t", replication_factor=2)).code is ErrorCode.BROKER_FENCED
    lasting = world.refusal(create_topic("t", replication_factor=3))
    assert (lasting.code, lasting.code.retriable) == (ErrorCode.NOT_ENOUGH_BROKERS, False)
    assert "3 usable broker(s) needed, 0 present (2 registered)" in lasting.message


def test_want_of_brokers_is_for_now_while_brokers_arrive() -> None:
    """The brokers of a starting cluster register one after the other: after each of them, and each new controller, more may follow."""
    world = World()
    asked = create_topic("t", replication_factor=3)
    for broker_id in (1, 2):
        world.run(register(broker_id))
        world.beat(broker_id)
        world.now_ms += SETTINGS.broker_arrival_ms - 1
        arriving = world.refusal(asked)
        assert (arriving.code, arriving.code.retriable) == (ErrorCode.BROKER_FENCED, True)
        assert f"3 usable broker(s) needed, {broker_id} present" in arriving.message
    world.run(register(2, process=22))  # the same broker again: no new one
    world.beat(2)
    world.now_ms += 1
    assert world.refusal(asked).code is ErrorCode.NOT_ENOUGH_BROKERS
    world.take_over()
    assert world.refusal(asked).code is ErrorCode.BROKER_FENCED
    world.now_ms += SETTINGS.broker_arrival_ms
    assert world.refusal(asked).code is ErrorCode.NOT_ENOUGH_BROKERS


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"retention.hours": "1"}, "unknown config 'retention.hours'"),
        ({"retention.ms": "-2"}, "retention.ms must be an integer from 0 to 9223372036854775807, or -1 for no limit"),
        ({"retention.ms": "-1 "}, "retention.ms"),
        ({"retention.bytes": "-0"}, "retention.bytes"),
        ({"file.delete.delay.ms": "-1"}, "file.delete.delay.ms"),
        ({"cleanup.policy": "delete,compact"}, "cleanup.policy must be one of delete, compact, compact,delete"),
        ({"": "1"}, "unknown config"),
        ({"segment.bytes": "1"}, "segment.bytes must be an integer from 16384"),
        ({"segment.bytes": "2147483648"}, "segment.bytes"),
        ({"segment.bytes": "1_000_000"}, "segment.bytes"),
        ({"segment.bytes": " 100000"}, "segment.bytes"),
        ({"segment.bytes": "\uff11\uff16\uff13\uff18\uff14"}, "segment.bytes"),
        ({"segment.bytes": ""}, "segment.bytes"),
        ({"segment.ms": "-1"}, "segment.ms"),
        ({"segment.ms": "0"}, "segment.ms"),
        ({"segment.ms": "9" * 5_000}, "segment.ms"),
        ({"max.message.bytes": str(MAX_BATCH_BYTES + 1)}, "max.message.bytes"),
        ({"flush.policy": "ACK"}, "flush.policy must be one of ack, interval, none"),
        ({"flush.policy": ""}, "flush.policy"),
        ({"compression.type": "gzip"}, "compression.type must be one of producer, none, zstd"),
        ({"compression.type": "ZSTD"}, "compression.type"),
        ({"compression.zstd.level": "20"}, "compression.zstd.level must be an integer from 1 to 19"),
        ({"compression.zstd.level": "0"}, "compression.zstd.level"),
        ({"segment.ms": "5", "flush.interval.ms": "x"}, "flush.interval.ms"),
    ],
)
def test_create_topic_with_a_bad_config_is_refused(configs: dict[str, str], words: str) -> None:
    """Unknown names and values that do not fit are refused with the rule, in a bounded message."""
    refusal = world_with_brokers(1).refusal(create_topic("t", configs=configs))
    assert refusal.code is ErrorCode.INVALID_CONFIG
    assert words in refusal.message
    assert len(refusal.message) < 500


def test_every_config_has_a_valid_default_and_effective_settings_follow_what_is_set() -> None:
    """Defaults are valid, and set values win over them."""
    for definition in TOPIC_CONFIGS.values():
        problems = [
            topic_configs.value_problem(kind, definition.name, definition.default) for kind in definition.scopes
        ]
        assert problems == [None] * len(definition.scopes)
    assert list(TOPIC_CONFIGS) == sorted(TOPIC_CONFIGS)
    defaults = topic_configs.effective({})
    assert defaults.flush_policy is FlushPolicy.ACK
    assert defaults.max_message_bytes == 1024 * 1024
    assert defaults.segment_bytes == 1024**3
    changed = topic_configs.effective({"flush.policy": "interval", "flush.interval.ms": "7", "segment.ms": "8"})
    assert (changed.flush_policy, changed.flush_interval_ms, changed.segment_ms) == (FlushPolicy.INTERVAL, 7, 8)
    assert changed.index_interval_bytes == defaults.index_interval_bytes == 4096


def test_old_data_goes_after_a_week_unless_the_topic_says_otherwise() -> None:
    """The defaults of retention, and the value for no limit."""
    defaults = topic_configs.effective({})
    assert (defaults.retention_ms, defaults.retention_bytes) == (7 * 24 * 3_600_000, None)
    assert (defaults.cleanup_policy, defaults.file_delete_delay_ms) == (CleanupPolicy.DELETE, 60_000)
    configs = {"retention.ms": "-1", "retention.bytes": "0", "file.delete.delay.ms": "5", "cleanup.policy": "compact"}
    assert topic_configs.problem(configs) is None
    changed = topic_configs.effective(configs)
    assert (changed.retention_ms, changed.retention_bytes, changed.file_delete_delay_ms) == (None, 0, 5)
    assert [(policy.deletes, policy.compacts) for policy in CleanupPolicy] == [
        (True, False),
        (False, True),
        (True, True),
    ]
    assert changed.cleanup_policy is CleanupPolicy.COMPACT


def test_batches_are_stored_as_produced_unless_the_topic_names_a_codec() -> None:
    """The default, and every value of `compression.type` with its level."""
    defaults = topic_configs.effective({})
    assert (defaults.compression_type, defaults.zstd_level) == (CompressionType.PRODUCER, 1)
    for value in ("producer", "none", "zstd"):
        configs = {"compression.type": value, "compression.zstd.level": "19"}
        assert topic_configs.problem(configs) is None
        changed = topic_configs.effective(configs)
        assert (changed.compression_type.value, changed.zstd_level) == (value, 19)


def test_create_topic_beyond_the_cluster_limits_is_refused() -> None:
    """Topics and partitions of the cluster have limits, with the appended ones counted."""
    world = world_with_brokers(1, settings=ControllerSettings(max_topics=2, max_partitions=5))
    world.append(create_topic("a", partition_count=3))
    assert world.refusal(create_topic("b", partition_count=3)).code is ErrorCode.LIMIT_EXCEEDED
    world.append(create_topic("b", partition_count=2))
    refusal = world.refusal(create_topic("c", partition_count=0))
    assert refusal.code is ErrorCode.LIMIT_EXCEEDED
    assert "2 topics" in refusal.message
    world.commit()
    world.run(DeleteTopic(topic="b"))
    world.run(create_topic("c", partition_count=0))


def test_delete_topic_removes_everything_of_it() -> None:
    """After a deletion the image equals that before the creation, except for the offset and the id of the deleted topic."""
    world = world_with_brokers(2)
    world.run(create_topic("keep", configs={"segment.ms": "9"}))
    before = view(world.image)
    counts = world.image.counts.copy()
    world.run(create_topic("drop", partition_count=5, configs={"segment.ms": "1"}))
    decision = world.run(DeleteTopic(topic="drop"))
    assert decision.response == TopicDeleted(topic_id=topic_id("drop"))
    deleted = DeletedBlock(number=0, data=topic_id("drop"))
    assert view(world.image) == [*before, (deleted_key(0), deleted)]
    assert world.image.counts == counts
    assert world.image.topic_names == ["keep"]


def test_delete_unknown_topic_is_refused() -> None:
    """A topic that does not exist cannot be deleted, under any name."""
    world = world_with_brokers(1)
    assert world.refusal(DeleteTopic(topic="nope")).code is ErrorCode.UNKNOWN_TOPIC
    assert len(world.refusal(DeleteTopic(topic="x" * 100_000)).message) < 400
    world.run(create_topic("t"))
    world.append(DeleteTopic(topic="t"))
    assert world.refusal(DeleteTopic(topic="t")).code is ErrorCode.UNKNOWN_TOPIC


def test_topic_deleted_and_created_again_has_another_id() -> None:
    """The id is the identity: a new topic of an old name is another topic."""
    world = world_with_brokers(1)
    world.run(create_topic("t"))
    world.append(DeleteTopic(topic="t"))
    world.append(create_topic("t", topic_id=topic_id("t2")))
    appended = world.controller.image.topic_by_name("t")
    assert appended is not None
    assert appended.topic_id == topic_id("t2")
    world.commit()
    found = world.image.topic_by_name("t")
    assert found is not None
    assert found.topic_id == topic_id("t2")
    assert world.image.topic_by_id(topic_id("t")) is None


def test_topic_id_drawn_twice_stops_the_process() -> None:
    """A repeated id of 16 random bytes means that the source of randomness is broken."""
    world = world_with_brokers(1)
    world.run(create_topic("a"))
    with pytest.raises(AssertionError, match="drawn twice"):
        world.decide(create_topic("b", topic_id=topic_id("a")))


def test_placement_prefers_brokers_with_fewer_replicas() -> None:
    """Single-partition topics one after the other spread evenly, and a new broker is used first."""
    world = world_with_brokers(3)
    for number in range(9):
        world.run(create_topic(f"t{number}"))
    assert world.image.counts.replicas == {1: 3, 2: 3, 3: 3}
    world.start_broker(4)
    for number in range(3):
        world.run(create_topic(f"u{number}"))
    assert world.image.counts.replicas[4] == 3


def test_config_of_a_topic_can_be_changed_and_removed_by_record() -> None:
    """Config records set and remove configs of a topic, and are refused for a topic that does not exist."""
    world = world_with_brokers(1)
    world.run(create_topic("t", configs={"segment.ms": "5"}))
    name = topic_id("t").hex()

    def config(value: str | None, resource_name: str = name) -> ConfigRecord:
        return ConfigRecord(resource=ConfigResource.TOPIC, resource_name=resource_name, name="segment.ms", value=value)

    world.image.replay(config("6"), world.log_end_offset)
    topic = world.image.topic_by_name("t")
    assert topic is not None
    assert topic.configs == {"segment.ms": "6"}
    world.image.replay(config(None), world.log_end_offset + 1)
    world.image.replay(config(None), world.log_end_offset + 2)
    assert topic.configs == {}
    with pytest.raises(AssertionError, match="unknown topic"):
        world.image.replay(config("6", "00" * 16), world.log_end_offset + 3)


def test_topics_are_listed_by_name_from_any_point_on() -> None:
    """Listing is ascending by name and resumes behind any name, present or not, in both images."""
    world = world_with_brokers(1)
    for name in ("m", "a", "z", "B"):
        world.run(create_topic(name))
    world.append(create_topic("k"))
    assert [topic.topic for topic in world.image.topics()] == ["B", "a", "m", "z"]
    assert [topic.topic for topic in world.image.topics(after="b")] == ["m", "z"]
    assert [topic.topic for topic in world.controller.image.topics()] == ["B", "a", "k", "m", "z"]
    assert [topic.topic for topic in world.controller.image.topics(after="a")] == ["k", "m", "z"]
    assert list(world.image.topics(after="z")) == []


@pytest.mark.parametrize(
    ("default", "factor", "expected"),
    [(None, 1, None), (None, 2, None), (None, 3, "2"), ("1", 3, None), ("3", 3, "2"), ("3", 4, "3"), ("100", 2, None)],
)
def test_new_topic_gets_a_minimum_below_its_replication_factor(
    default: str | None, factor: int, expected: str | None
) -> None:
    """The cluster's default, but one replica may always be away; a minimum of 1 needs no config."""
    world = World()
    for broker_id in range(1, 5):
        world.start_broker(broker_id)
    if default is not None:
        changes = ResourceChanges(
            resource=ConfigResource.CLUSTER, name="", changes=(("default.min.insync.replicas", default),)
        )
        world.run(AlterConfigs(resources=(changes,), validate_only=False))
    response = world.run(create_topic("t", replication_factor=factor)).response
    assert isinstance(response, TopicCreated)
    topic = world.image.topic_by_name("t")
    assert topic is not None
    assert topic.configs.get("min.insync.replicas") == expected
    assert response.configs == topic.configs


def test_minimum_of_the_creator_holds_and_a_later_default_changes_no_topic() -> None:
    """A creator that names the config gets it; an existing topic keeps the value of its creation."""
    world = World()
    for broker_id in range(1, 4):
        world.start_broker(broker_id)
    for name, value in (("one", "1"), ("three", "3")):
        world.run(create_topic(name, replication_factor=3, configs={"min.insync.replicas": value}))
    world.run(create_topic("default", replication_factor=3))
    changes = ResourceChanges(resource=ConfigResource.CLUSTER, name="", changes=(("default.min.insync.replicas", "1"),))
    world.run(AlterConfigs(resources=(changes,), validate_only=False))
    found = {topic.topic: topic.configs.get("min.insync.replicas") for topic in world.image.topics()}
    assert found == {"one": "1", "three": "3", "default": "2"}

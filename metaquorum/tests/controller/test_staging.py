# SPDX-License-Identifier: Apache-2.0
"""Staging topics in the controller: creation beside their topics, growth, deletion, reassignment, configs, limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_BATCH_BYTES

from metaquorum.controller.commands import (
    AlterConfigs,
    AlterPartition,
    Command,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FenceBroker,
    IsrProposal,
    PartitionsAltered,
    PartitionsCreated,
    Reassignment,
    ReassignPartitions,
    Refusal,
    ResourceChanges,
    TopicCreated,
)
from metaquorum.controller.reassignment import list_reassignments
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.records import (
    ConfigRecord,
    ConfigResource,
    LeaderChange,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from metaquorum.metadata.runs import runs
from metaquorum.metadata.state import PartitionImage, TopicImage
from metaquorum.metadata.topic_configs import internal_problem, problem
from metaquorum.metadata.topic_names import STAGING_PREFIX, staging_topic
from metaquorum.tests.controller_world import World, create_topic, topic_id

STAGING = staging_topic(topic_id("t"))


def world_of(settings: ControllerSettings | None = None, *, brokers: int = 5) -> World:
    """Return a world with live brokers, from 0 on."""
    world = World() if settings is None else World(settings=settings)
    for broker_id in range(brokers):
        world.start_broker(broker_id)
    return world


@pytest.fixture
def world() -> World:
    """Brokers 0 to 4; topic "t" with two partitions on 0, 1 and 2, and its staging topic."""
    made = world_of()
    made.write_topic("t", (0, 1, 2), partition_count=2, configs={"min.insync.replicas": "2"})
    made.run(stage("t", 2))
    return made


def stage(topic: str, partition_count: int, /, **changes: object) -> CreateTopic:
    """Return the creation of the staging topic of a topic."""
    name = staging_topic(topic_id(topic))
    return replace(create_topic(name, partition_count=partition_count, topic_id=topic_id(f"s-{topic}")), **changes)


def found(world: World, topic: str) -> TopicImage:
    """Return a committed topic that must exist."""
    image = world.image.topic_by_name(topic)
    assert image is not None, topic
    return image


def places(world: World, topic: str) -> list[tuple[int, ...]]:
    """Return the replicas of each partition of a committed topic."""
    return [partition.replicas for partition in found(world, topic).partitions]


def alter(topic: str, *changes: tuple[str, str | None]) -> AlterConfigs:
    """Return changes of the configs of a topic."""
    return AlterConfigs(resources=(ResourceChanges(resource=ConfigResource.TOPIC, name=topic, changes=changes),))


def reassign(*replicas: int, topic: str = "t", partition: int = 0) -> ReassignPartitions:
    """Return the command for one partition; without replicas it cancels."""
    return ReassignPartitions(
        reassignments=(Reassignment(topic=topic, partition=partition, replicas=replicas or None),)
    )


def result(world: World, command: Command) -> PartitionImage | Refusal:
    """Run a command for one partition and return its result."""
    response = world.run(command).response
    assert isinstance(response, PartitionsAltered), response
    (one,) = response.results
    return one


def catch_up(world: World, topic: str, *isr: int) -> None:
    """Let the leader of partition 0 propose in-sync replicas, which must be accepted."""
    partition = world.partition(topic)
    assert partition.leader_id is not None
    proposal = IsrProposal(
        topic_id=found(world, topic).topic_id,
        partition=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=tuple((node_id, None) for node_id in isr),
    )
    leader = partition.leader_id
    accepted = result(world, AlterPartition(broker_id=leader, broker_epoch=world.epoch(leader), proposals=(proposal,)))
    assert isinstance(accepted, PartitionImage), accepted


# Creation.


def test_staging_topic_lies_on_the_replicas_of_its_topic() -> None:
    """Each partition has the replicas of the topic's, in the same order; the first one leads, whoever leads the topic's."""
    world = world_of()
    world.run(create_topic("t", partition_count=7, replication_factor=3, placement_seed=9))
    second = LeaderChange(leader_id=places(world, "t")[0][1])
    world.write(PartitionChangeRecord(topic_id=topic_id("t"), partition=0, leader=second))
    created = world.run(stage("t", 7)).response
    assert places(world, STAGING) == places(world, "t")
    partitions = found(world, STAGING).partitions
    assert [each.leader_id for each in partitions] == [each.replicas[0] for each in partitions]
    assert all(each.isr == each.replicas and not each.adding and not each.elr for each in partitions)
    assert {(each.leader_epoch, each.partition_epoch) for each in partitions} == {(0, 0)}
    assert isinstance(created, TopicCreated)
    assert created.partitions == tuple(partitions)
    assert created.configs == found(world, STAGING).configs


def test_creation_names_a_topic_that_exists_with_its_partition_count(world: World) -> None:
    """Otherwise the caller's metadata is old: it hears so by codes on which it asks again, whatever the topic was before."""
    world.run(DeleteTopic(topic="t"))
    assert world.refusal(stage("t", 2)).code is ErrorCode.UNKNOWN_TOPIC
    world.write_topic("u", (0,), partition_count=3)
    for count in (0, 1, 2, 4):
        refusal = world.refusal(stage("u", count))
        assert (refusal.code, "has 3 partitions" in refusal.message) == (ErrorCode.INVALID_PARTITION_COUNT, True)
    world.run(stage("u", 3))
    assert world.refusal(stage("u", 3)).code is ErrorCode.TOPIC_ALREADY_EXISTS
    world.write_topic("one", (4,))
    world.run(stage("one", 0))
    assert places(world, staging_topic(topic_id("one"))) == [(4,)]


def test_creation_sees_what_is_appended_and_not_committed() -> None:
    """A deletion or a growth that is under way counts."""
    world = world_of()
    world.run(create_topic("t", partition_count=2))
    world.append(CreatePartitions(topic="t", partition_count=3))
    assert world.refusal(stage("t", 2)).code is ErrorCode.INVALID_PARTITION_COUNT
    world.append(stage("t", 3))
    world.append(DeleteTopic(topic="t"))
    assert world.refusal(stage("t", 3)).code is ErrorCode.UNKNOWN_TOPIC
    world.commit()
    assert list(world.image.topic_names) == []


@pytest.mark.parametrize(
    "name",
    [STAGING_PREFIX, f"{STAGING_PREFIX}orders", f"{STAGING_PREFIX}{bytes(16).hex()}0", STAGING_PREFIX + "AB" * 16],
)
def test_name_of_a_staging_topic_has_an_id(name: str) -> None:
    """A topic that looks like a staging topic and belongs to none is refused."""
    assert world_of().refusal(create_topic(name)).code is ErrorCode.INVALID_TOPIC_NAME


def test_topics_of_the_system_have_no_staging_topics(world: World) -> None:
    """Neither state of coordinators nor staged records are ingested."""
    world.write_topic("__groups", (0,))
    staged = staging_topic(topic_id("__groups"))
    assert world.refusal(create_topic(staged, topic_id=topic_id("x"))).code is ErrorCode.INVALID_TOPIC_NAME
    twice = staging_topic(found(world, STAGING).topic_id)
    refusal = world.refusal(create_topic(twice, partition_count=2, topic_id=topic_id("y")))
    assert refusal.code is ErrorCode.INVALID_TOPIC_NAME


def test_new_staging_topic_is_led_by_a_live_replica() -> None:
    """Fenced replicas are not in sync. Below the minimum they are eligible: nothing is committed that they could lack."""
    world = world_of()
    world.write_topic("t", (0, 1, 2), configs={"min.insync.replicas": "2"})
    world.write_topic("alone", (3,))
    world.run(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    world.run(stage("t", 1))
    assert world.partition(STAGING) == PartitionImage(0, (0, 1, 2), (1, 2), 1, 0, 0)
    world.run(DeleteTopic(topic="t"))
    world.write_topic("t", (0, 1, 2), configs={"min.insync.replicas": "2"})
    world.run(FenceBroker(broker_id=2, broker_epoch=world.epoch(2)))
    world.run(stage("t", 1))
    assert world.partition(STAGING) == PartitionImage(0, (0, 1, 2), (1,), 1, 0, 0, elr=(0, 2))
    world.run(FenceBroker(broker_id=3, broker_epoch=world.epoch(3)))
    refusal = world.refusal(stage("alone", 1))
    assert (refusal.code, refusal.code.retriable) == (ErrorCode.BROKER_FENCED, True)
    world.beat(3)
    world.run(stage("alone", 1))


def test_staging_topic_made_during_a_reassignment_lies_at_its_target(world: World) -> None:
    """It has nothing to copy, so it begins where the topic will be. A cancel takes it back."""
    world.write_topic("u", (0, 1))
    world.run(reassign(3, 4, topic="u"))
    name = staging_topic(topic_id("u"))
    world.run(stage("u", 1))
    assert world.partition(name) == PartitionImage(0, (3, 4), (3, 4), 3, 0, 0)
    assert isinstance(result(world, reassign(topic="u")), PartitionImage)
    assert world.partition("u").replicas == (0, 1)
    assert (world.partition(name).replicas, world.partition(name).adding) == ((0, 1, 3, 4), (0, 1))
    catch_up(world, name, 0, 1, 3, 4)
    assert world.partition(name).replicas == (0, 1)


def test_dry_run_of_a_creation_changes_nothing() -> None:
    """It answers as the creation does."""
    world = world_of()
    world.write_topic("t", (2, 0))
    checked = world.decide(stage("t", 1, validate_only=True))
    assert checked.records == ()
    assert checked.response == world.run(stage("t", 1)).response


# Configs.


def test_staged_records_last_as_long_as_those_of_the_topic() -> None:
    """A staging topic gets the topic's durability and its own rules, whatever a request or the cluster wants."""
    world = world_of()
    cluster = (("default.min.insync.replicas", "3"), ("cleanup.policy", "compact"), ("retention.ms", "1"))
    world.run(AlterConfigs(resources=(ResourceChanges(resource=ConfigResource.CLUSTER, name="", changes=cluster),)))
    world.write_topic("t", (0, 1, 2, 3), configs={"flush.policy": "none", "segment.ms": "5"})
    wanted = {"retention.ms": "5", "flush.policy": "ack", "min.insync.replicas": "4", "segment.bytes": "16384"}
    world.run(stage("t", 1, configs=wanted))
    configs = found(world, STAGING).configs
    assert configs == {
        "cleanup.policy": "delete",
        "flush.policy": "none",
        "max.message.bytes": str(MAX_BATCH_BYTES),
        "message.timestamp.after.max.ms": str(2**63 - 1),
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.bytes": "16384",
    }
    assert problem(configs) is None
    assert world.image.ack_switch(ConfigResource.TOPIC, found(world, STAGING).topic_id.hex()) is None


def test_durability_follows_the_topic_in_one_batch(world: World) -> None:
    """Set, set again, removed: the staging topic has the value of its topic after each; other configs stay apart."""
    steps: list[tuple[tuple[str, str | None], ...]] = [
        (("min.insync.replicas", "3"),),
        (("flush.policy", "none"), ("retention.ms", "5")),
        (("flush.policy", "ack"), ("min.insync.replicas", None)),
        (("flush.policy", None), ("min.insync.replicas", None)),
    ]
    for changes in steps:
        decision = world.run(alter("t", *changes))
        assert decision.then is None
        topic, staging = found(world, "t").configs, found(world, STAGING).configs
        for name in ("min.insync.replicas", "flush.policy"):
            assert topic.get(name) == staging.get(name)
        assert staging["retention.ms"] == "-1"
    # What neither has needs no record.
    assert world.decide(alter("t", ("flush.policy", None))).records == ()
    checked = replace(alter("t", ("flush.policy", "none")), validate_only=True)
    assert world.decide(checked).records == ()


def test_lower_minimum_ends_eligible_replicas_of_both(world: World) -> None:
    """The batch that lowers `min.insync.replicas` clears the eligible replicas of the staging topic, too."""
    for name in ("t", STAGING):
        change = PartitionChangeRecord(topic_id=found(world, name).topic_id, partition=1, isr=(0,), elr=(1, 2))
        world.write(change)
    decision = world.run(alter("t", ("min.insync.replicas", "1")))
    cleared = [each.topic_id for each in decision.records if isinstance(each, PartitionChangeRecord)]
    assert cleared == [topic_id("t"), found(world, STAGING).topic_id]
    assert found(world, STAGING).partitions[1].elr == ()


def test_lower_minimum_finds_eligible_replicas_anywhere_in_a_large_topic() -> None:
    """Partitions of several blocks, the first, an inner and the last one: each is cleared under its own number, in both topics."""
    world = world_of()
    world.write_topic("t", (0, 1, 2), partition_count=300, configs={"min.insync.replicas": "2"})
    world.run(stage("t", 300))
    for name in ("t", STAGING):
        for number in (0, 130, 299):
            change = PartitionChangeRecord(topic_id=found(world, name).topic_id, partition=number, isr=(0,), elr=(1, 2))
            world.write(change)
    decision = world.run(alter("t", ("min.insync.replicas", "1")))
    cleared = [each for each in decision.records if isinstance(each, PartitionChangeRecord)]
    assert [(each.topic_id, each.partition) for each in cleared] == [
        (found(world, name).topic_id, number) for name in ("t", STAGING) for number in (0, 130, 299)
    ]
    assert not any(partition.elr for name in ("t", STAGING) for partition in found(world, name).partitions)


def test_switch_to_ack_is_known_for_both(world: World) -> None:
    """A broker that stops uncleanly leaves the in-sync replicas of a staging topic that was not always flushed."""
    world.run(alter("t", ("flush.policy", "none")))
    world.run(alter("t", ("flush.policy", "ack")))
    for name in ("t", STAGING):
        assert world.image.ack_switch(ConfigResource.TOPIC, found(world, name).topic_id.hex()) is not None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("min.insync.replicas", "1", "change t"),
        ("flush.policy", None, "change t"),
        ("cleanup.policy", "compact", "stays delete"),
        ("retention.ms", "5", "stays -1"),
        ("retention.ms", None, "stays -1"),
        ("retention.bytes", None, "stays -1"),
        ("max.message.bytes", "1048576", "stays 8388608"),
    ],
)
def test_configs_of_a_staging_topic_that_matter_are_not_changed_by_themselves(
    world: World, name: str, value: str | None, words: str
) -> None:
    """The refusal says where to change them. Retention, for example, would delete what a decision needs."""
    refusal = world.refusal(alter(STAGING, (name, value)))
    assert (refusal.code, words in refusal.message) == (ErrorCode.INVALID_CONFIG, True)


def test_other_configs_of_a_staging_topic_can_be_changed(world: World) -> None:
    """Segments may be smaller, so that their files go earlier. The rules of compacted internal topics do not hold."""
    world.run(alter(STAGING, ("segment.bytes", "16384"), ("file.delete.delay.ms", "0")))
    assert found(world, STAGING).configs["segment.bytes"] == "16384"
    assert internal_problem("cleanup.policy", "delete") is not None


# Growth and deletion.


def test_growth_takes_the_staging_topic_along(world: World) -> None:
    """New partitions of both lie on the same replicas, in one batch; the answer has those of the topic."""
    for count in (3, 9):
        decision = world.run(CreatePartitions(topic="t", partition_count=count, placement_seed=count))
        assert isinstance(decision.response, PartitionsCreated)
        assert decision.response.topic == "t"
        assert places(world, STAGING) == places(world, "t")
        assert len(places(world, "t")) == count
        new = [each for each in decision.records if isinstance(each, PartitionRecord)]
        assert len(new) == len(decision.records) == 2 * len(decision.response.partitions)
    assert found(world, STAGING).partitions[8].leader_id == places(world, "t")[8][0]
    checked = world.decide(CreatePartitions(topic="t", partition_count=10, validate_only=True))
    assert checked.records == ()


def test_deletion_takes_the_staging_topic_along(world: World) -> None:
    """One batch removes both. Another topic of that name has no staging topic until it is made."""
    world.write_topic("u", (0,))
    world.run(stage("u", 1))
    decision = world.run(DeleteTopic(topic="t"))
    assert decision.records == (
        RemoveTopicRecord(topic_id=topic_id("t")),
        RemoveTopicRecord(topic_id=topic_id("s-t")),
    )
    assert list(world.image.topic_names) == [staging_topic(topic_id("u")), "u"]
    assert {topic_id("t"), topic_id("s-t")} <= world.image.deleted_topics.ids()
    assert world.image.counts.partitions == 2
    again = create_topic("t", topic_id=topic_id("t2"))
    world.run(again)
    assert world.decide(DeleteTopic(topic="t")).records == (RemoveTopicRecord(topic_id=topic_id("t2")),)


@pytest.mark.parametrize("command", [CreatePartitions(topic=STAGING, partition_count=9), DeleteTopic(topic=STAGING)])
def test_staging_topic_is_not_grown_or_deleted_by_itself(world: World, command: Command) -> None:
    """Whoever asks: it would differ from its topic."""
    refusal = world.refusal(command)
    assert (refusal.code, "change t" in refusal.message) == (ErrorCode.INVALID_TOPIC_NAME, True)
    world.run(DeleteTopic(topic="t"))
    assert world.refusal(command).code is ErrorCode.UNKNOWN_TOPIC


# Limits.


def test_staging_topics_count_for_the_limits_of_the_cluster() -> None:
    """Topics, partitions and replicas of a broker: a topic with a staging topic takes twice as much."""
    world = world_of(ControllerSettings(max_topics=2, max_partitions=12, max_broker_replicas=5), brokers=2)
    world.run(create_topic("t", partition_count=3))
    world.run(stage("t", 3))
    assert world.refusal(create_topic("u")).code is ErrorCode.LIMIT_EXCEEDED
    # Broker 1 has two replicas: three more partitions with their staging partitions do not fit.
    refusal = world.refusal(CreatePartitions(topic="t", partition_count=6))
    assert (refusal.code, "more than 5 replicas" in refusal.message) == (ErrorCode.LIMIT_EXCEEDED, True)
    refusal = world.refusal(CreatePartitions(topic="t", partition_count=7))
    assert (refusal.code, "may have 12" in refusal.message) == (ErrorCode.LIMIT_EXCEEDED, True)
    world.limit(max_broker_replicas=4)
    world.run(CreatePartitions(topic="t", partition_count=4))
    assert world.image.counts.replicas == {0: 4, 1: 4}
    assert world.image.counts.partitions == 8


def test_full_brokers_get_no_staging_topic() -> None:
    """A broker takes its replica of the staging topic only if it has room for it."""
    world = world_of(ControllerSettings(max_broker_replicas=3), brokers=2)
    world.write_topic("t", (0,), partition_count=2)
    refusal = world.refusal(stage("t", 2))
    assert (refusal.code, "[0]" in refusal.message) == (ErrorCode.LIMIT_EXCEEDED, True)
    world.limit(max_broker_replicas=4)
    world.run(stage("t", 2))
    assert world.image.counts.replicas == {0: 4}


def test_request_creates_so_many_partitions_with_those_of_the_staging_topic() -> None:
    """A batch of records stays as small as that of one topic."""
    world = world_of(ControllerSettings(max_request_partitions=6), brokers=1)
    world.run(create_topic("t", partition_count=6))
    world.run(stage("t", 6))
    refusal = world.refusal(CreatePartitions(topic="t", partition_count=10))
    assert (refusal.code, "staging topic" in refusal.message) == (ErrorCode.INVALID_PARTITION_COUNT, True)
    world.run(CreatePartitions(topic="t", partition_count=9))
    assert len(places(world, STAGING)) == 9
    world.run(create_topic("u", partition_count=6))
    world.run(CreatePartitions(topic="u", partition_count=7))
    # No newer metadata would help, so this is not the code on which a caller asks again.
    assert world.refusal(stage("u", 7)).code is ErrorCode.LIMIT_EXCEEDED


def test_largest_topic_gets_a_staging_topic_in_one_batch() -> None:
    """10,000 partitions: topic, configs, partitions, as for any topic of that size."""
    world = world_of()
    count = world.settings.max_request_partitions
    world.run(create_topic("t", partition_count=count, replication_factor=3, placement_seed=1))
    decision = world.run(stage("t", count))
    kinds = [type(record) for record in decision.records]
    assert (kinds[0], kinds.count(PartitionRecord), kinds.count(ConfigRecord)) == (TopicRecord, count, 6)
    assert places(world, STAGING) == places(world, "t")


# Reassignment.


def test_reassignment_takes_the_staging_partition_along(world: World) -> None:
    """Both get the target in one batch; each completes when its own replicas are in sync."""
    begun = result(world, reassign(3, 4, 2))
    assert isinstance(begun, PartitionImage)
    assert begun == world.partition("t")
    assert world.partition(STAGING) == begun
    assert found(world, STAGING).partitions[1].replicas == (0, 1, 2)
    catch_up(world, STAGING, 0, 1, 2, 3, 4)
    assert world.partition(STAGING) == PartitionImage(0, (3, 4, 2), (3, 4, 2), 3, 1, 2)
    assert world.partition("t") == begun
    catch_up(world, "t", 0, 1, 2, 3, 4)
    assert world.partition("t").replicas == world.partition(STAGING).replicas


def test_both_are_listed_while_they_move(world: World) -> None:
    """Whoever waits for the end of a move sees both."""
    world.run(reassign(3, 4, 2))
    page = list_reassignments(world.image, world.settings, None)
    assert [(topic, each.partition) for topic, each in page.found] == [(STAGING, 0), ("t", 0)]


def test_cancel_takes_the_staging_partition_back(world: World) -> None:
    """It cancels both, also where only one of them is complete."""
    before = world.partition("t").replicas
    world.run(reassign(3, 4, 2))
    cancelled = result(world, reassign())
    assert isinstance(cancelled, PartitionImage)
    for name in ("t", STAGING):
        partition = world.partition(name)
        assert (partition.adding, partition.removing) == ((), ())
        assert set(partition.replicas) == set(before)
        assert partition.replicas == cancelled.replicas
    world.run(reassign(3, 4, 2))
    catch_up(world, STAGING, 0, 1, 2, 3, 4)
    assert world.partition(STAGING).replicas == (3, 4, 2)
    assert isinstance(result(world, reassign()), PartitionImage)
    assert world.partition(STAGING).target_replicas == world.partition("t").replicas
    assert set(world.partition(STAGING).adding) == {0, 1}
    catch_up(world, STAGING, 0, 1, 2, 3, 4)
    assert world.partition(STAGING).replicas == world.partition("t").replicas


def test_staging_partition_goes_on_when_that_of_the_topic_is_there(world: World) -> None:
    """Nothing is left to cancel. The same target again changes nothing of the topic, another one takes both."""
    world.run(reassign(3, 4))
    catch_up(world, "t", 0, 1, 2, 3, 4)
    refused = result(world, reassign())
    assert isinstance(refused, Refusal)
    assert world.partition(STAGING).adding == (3, 4)
    assert world.decide(reassign(3, 4)).records == ()
    world.run(reassign(3, 1))
    assert world.partition("t").target_replicas == world.partition(STAGING).target_replicas == (3, 1)
    catch_up(world, "t", 3, 4, 1)
    catch_up(world, STAGING, 0, 1, 2, 3)
    assert world.partition("t").replicas == world.partition(STAGING).replicas == (3, 1)


def test_target_again_completes_a_staging_partition_that_waited(world: World) -> None:
    """The staging partition lacks a leader of the new set at first; its topic is there already. Asking again completes it."""
    world.write(PartitionChangeRecord(topic_id=topic_id("s-t"), partition=0, isr=(0, 1)))
    world.run(reassign(2, 1))
    assert world.partition("t").replicas == (2, 1)
    assert (world.partition(STAGING).removing, world.partition(STAGING).isr) == ((0,), (0, 1))
    world.write(PartitionChangeRecord(topic_id=topic_id("s-t"), partition=0, isr=(2, 1, 0)))
    decision = world.run(reassign(2, 1))
    assert [each.topic_id for each in decision.records if isinstance(each, PartitionChangeRecord)] == [topic_id("s-t")]
    assert world.partition(STAGING).replicas == (2, 1)


def test_other_order_moves_the_preferred_leader_of_both(world: World) -> None:
    """The staging topic has the same preferred leaders."""
    world.run(reassign(2, 1, 0))
    assert world.partition(STAGING).replicas == world.partition("t").replicas == (2, 1, 0)


def test_neither_moves_if_staged_records_would_be_lost(world: World) -> None:
    """Only a new replica of the staging partition has what is staged: the topic's partition waits, too."""
    world.run(reassign(3, 4))
    world.write(PartitionChangeRecord(topic_id=topic_id("s-t"), partition=0, isr=(0, 3)))
    world.run(alter("t", ("min.insync.replicas", "1")))
    world.run(FenceBroker(broker_id=0, broker_epoch=world.epoch(0)))
    assert world.partition(STAGING).isr == (3,)
    before = world.partition("t")
    refused = result(world, reassign())
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.INVALID_REQUEST
    assert "staging topic cannot go along" in refused.message
    assert world.partition("t") == before
    world.beat(0)
    catch_up(world, STAGING, 3, 0)
    assert isinstance(result(world, reassign()), PartitionImage)


def test_limit_of_a_broker_counts_both_and_a_refused_pair_counts_nothing(world: World) -> None:
    """Broker 4 has room for one more: no pair fits, and what is refused takes no room from a topic without staging topic."""
    world.write_topic("u", (0,))
    world.write_topic("filled", (4,), partition_count=2)
    world.limit(max_broker_replicas=3)
    pair = reassign(4, 1, 2).reassignments
    alone = Reassignment(topic="u", partition=0, replicas=(4,))
    response = world.run(ReassignPartitions(reassignments=(*pair, alone))).response
    assert isinstance(response, PartitionsAltered)
    refused, moved = response.results
    assert isinstance(refused, Refusal)
    assert refused.code is ErrorCode.LIMIT_EXCEEDED
    assert isinstance(moved, PartitionImage)
    assert world.image.counts.replicas[4] == 3
    world.limit(max_broker_replicas=5)
    assert isinstance(result(world, reassign(4, 1, 2)), PartitionImage)
    assert world.image.counts.replicas[4] == 5


def test_staging_topic_is_not_reassigned_by_itself(world: World) -> None:
    """The refusal names the topic; other partitions of the request are not concerned."""
    own = Reassignment(topic=STAGING, partition=1, replicas=(3, 4))
    with_topic = ReassignPartitions(reassignments=(own, *reassign(3, 4).reassignments))
    response = world.run(with_topic).response
    assert isinstance(response, PartitionsAltered)
    refused, begun = response.results
    assert isinstance(refused, Refusal)
    assert (refused.code, "change t" in refused.message) == (ErrorCode.INVALID_REQUEST, True)
    assert isinstance(begun, PartitionImage)
    assert found(world, STAGING).partitions[1].replicas == (0, 1, 2)
    for replicas in ((), (1, 2)):
        assert isinstance(result(world, reassign(*replicas, topic=STAGING)), Refusal)


def test_changes_of_one_topic_are_one_run_and_a_check_writes_nothing(world: World) -> None:
    """Reassignments of many partitions are replayed in one pass over each of the topics."""
    command = ReassignPartitions(
        reassignments=tuple(Reassignment(topic="t", partition=number, replicas=(3, 4)) for number in (0, 1))
    )
    assert world.decide(replace(command, validate_only=True)).records == ()
    records = world.decide(command).records
    assert [len(run) for _, run in runs(records, 0) if isinstance(run, list)] == [2, 2]

# SPDX-License-Identifier: Apache-2.0
"""Partition growth, placement over racks and the limits of replicas, as decisions of the controller."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import CreatePartitions, FenceBroker, PartitionsCreated
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata import image_rows
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.records import PartitionRecord, TopicRecord
from metaquorum.tests.controller_world import World, create_topic, register, topic_id, view


def world_with_brokers(*racks: str | None, settings: ControllerSettings | None = None) -> World:
    """Return a world with brokers from 1 on, one for each rack, all unfenced."""
    world = World() if settings is None else World(settings=settings)
    for broker_id, rack in enumerate(racks, start=1):
        world.run(register(broker_id, rack=rack))
        world.beat(broker_id)
    return world


def grow(topic: str, partition_count: int, **changes: object) -> CreatePartitions:
    """Return the command."""
    return replace(CreatePartitions(topic=topic, partition_count=partition_count), **changes)


def test_growth_adds_partitions_and_leaves_the_others_alone() -> None:
    """New partitions follow the old ones, each with a leader at epoch 0, on the brokers with the fewest replicas of the topic."""
    world = world_with_brokers("a", "b")
    world.run(create_topic("t", partition_count=1))
    before = world.image.topic_by_name("t")
    assert before is not None
    (old,) = before.partitions
    decision = world.run(grow("t", 4))
    after = world.image.topic_by_name("t")
    assert after is not None
    assert after.partitions[0] == old
    assert [partition.partition for partition in after.partitions] == [0, 1, 2, 3]
    assert sorted(world.leaders("t"), key=str) == [1, 1, 2, 2]
    assert all(isinstance(record, PartitionRecord) for record in decision.records)
    assert decision.response == PartitionsCreated(
        topic="t", topic_id=topic_id("t"), partitions=tuple(after.partitions[1:])
    )


def test_growth_can_be_checked_only() -> None:
    """A dry run answers like the growth and has no records."""
    world = world_with_brokers(None)
    world.run(create_topic("t"))
    decision = world.decide(grow("t", 3, validate_only=True))
    assert decision.records == ()
    assert isinstance(decision.response, PartitionsCreated)
    assert len(decision.response.partitions) == 2


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (grow("none", 3), ErrorCode.UNKNOWN_TOPIC, "'none'"),
        (grow("t", 2), ErrorCode.INVALID_PARTITION_COUNT, "name 3 or more, not 2"),
        (grow("t", 0), ErrorCode.INVALID_PARTITION_COUNT, "name 3 or more, not 0"),
        (grow("t", -(2**31)), ErrorCode.INVALID_PARTITION_COUNT, "can only get more"),
        (grow("t", 8), ErrorCode.INVALID_PARTITION_COUNT, "at most 5 partitions, not 6"),
        (grow("t", 7), ErrorCode.LIMIT_EXCEEDED, "has 2 partitions and may have 6"),
        (grow("t", 6), ErrorCode.LIMIT_EXCEEDED, "more than 5 replicas"),
    ],
)
def test_growth_that_cannot_be_is_refused(command: CreatePartitions, code: ErrorCode, text: str) -> None:
    """The count may only rise, within the limits of the request, of the cluster and of each broker; the refusal names the limit."""
    settings = ControllerSettings(max_request_partitions=5, max_partitions=6, max_broker_replicas=5)
    world = world_with_brokers(None, settings=settings)
    world.run(create_topic("t", partition_count=2))
    refusal = world.refusal(command)
    assert refusal.code is code
    assert text in refusal.message


def test_growth_needs_a_usable_broker() -> None:
    """Without a usable broker no partition is created; a full broker is passed over while another one has room."""
    settings = ControllerSettings(max_broker_replicas=2)
    world = world_with_brokers(None, None, settings=settings)
    world.run(FenceBroker(broker_id=2, broker_epoch=world.epoch(2)))
    world.run(create_topic("t", partition_count=2))
    assert world.refusal(grow("t", 3)).code is ErrorCode.LIMIT_EXCEEDED
    world.beat(2)
    world.run(grow("t", 4))
    assert world.leaders("t") == [1, 1, 2, 2]
    refusal = world.refusal(create_topic("u"))
    assert (refusal.code, "more than 2 replicas" in refusal.message) == (ErrorCode.LIMIT_EXCEEDED, True)
    for broker_id in (1, 2):
        world.run(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))
    assert world.refusal(grow("t", 5)).code is ErrorCode.BROKER_FENCED


def test_growth_keeps_the_replication_factor_and_spreads_over_racks() -> None:
    """A topic with two replicas each, as records allow, grows with two replicas each, in different racks."""
    world = world_with_brokers("a", "a", "b", "b")
    offset = world.log_end_offset
    world.image.replay(TopicRecord(topic="t", topic_id=topic_id("t")), offset)
    first = PartitionRecord(
        topic_id=topic_id("t"),
        partition=0,
        replicas=(1, 3),
        isr=(1, 3),
        leader_id=1,
        leader_epoch=0,
        partition_epoch=0,
    )
    world.image.replay(first, offset + 1)
    world.log_end_offset = offset + 2
    world.take_over()
    world.run(grow("t", 10, placement_seed=5))
    topic = world.image.topic_by_name("t")
    assert topic is not None
    assert all({replica > 2 for replica in partition.replicas} == {True, False} for partition in topic.partitions)
    counts = world.image.counts
    assert counts.replicas == {1: 5, 2: 5, 3: 5, 4: 5}
    assert set(counts.leaders.values()) <= {2, 3}


def test_growth_survives_a_restart() -> None:
    """The rows of the image hold the new partitions."""
    world = world_with_brokers(None)
    world.run(create_topic("t"))
    world.run(grow("t", 3))
    restored = MetadataImage()
    for _, row in view(world.image):
        image_rows.add_row(restored, row)
    topic = restored.topic_by_name("t")
    assert topic is not None
    assert len(topic.partitions) == 3
    assert topic == world.image.topic_by_name("t")

# SPDX-License-Identifier: Apache-2.0
"""A topic changes to `flush.policy=ack` while brokers hold records that they never flushed: who may lead after a power loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaquorum.controller.commands import AlterConfigs, Bootstrap, FenceBroker, ResourceChanges
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_rows import add_row, all_rows
from metaquorum.metadata.records import BrokerRecord, ConfigResource
from metaquorum.metadata.row_codec import decode_row, encode_row
from metaquorum.tests.controller_world import World, incarnation, register, topic_id, view

BROKERS = (1, 2, 3)
TOPIC, BROKER, CLUSTER = ConfigResource.TOPIC, ConfigResource.BROKER, ConfigResource.CLUSTER


@pytest.fixture
def world() -> World:
    """Three brokers."""
    made = World()
    for broker_id in BROKERS:
        made.start_broker(broker_id)
    return made


def set_policy(world: World, resource: ConfigResource, name: str, policy: str | None) -> None:
    """Set the flush policy of a resource, or remove it."""
    changes = ResourceChanges(resource=resource, name=name, changes=(("flush.policy", policy),))
    world.run(AlterConfigs(resources=(changes,)))


def stop_all(world: World) -> None:
    """Let all brokers fail at once."""
    for broker_id in BROKERS:
        world.append(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))
    world.commit()
    world.run(Bootstrap())


def come_back(world: World, broker_id: int, *, process: int) -> None:
    """Register the next process of a broker that lost power, and unfence it."""
    world.run(register(broker_id, process=process))
    world.beat(broker_id)


def in_sync(world: World, topic: str = "t") -> tuple[tuple[int, ...], int | None]:
    """In-sync replicas and leader of the first partition."""
    partition = world.partition(topic)
    return partition.isr, partition.leader_id


def test_broker_that_registered_before_the_switch_is_not_trusted(world: World) -> None:
    """It may have lost records that counted as stored under `none`, so the controller waits for the other replicas."""
    world.write_topic("t", BROKERS, configs={"flush.policy": "none"})
    set_policy(world, TOPIC, "t", "ack")
    stop_all(world)
    come_back(world, 1, process=101)
    assert in_sync(world) == ((2, 3), None)


def test_broker_that_registered_after_the_switch_is_trusted(world: World) -> None:
    """A broker flushes every log that it opens at its start, and from then on no record counts before it is flushed."""
    world.write_topic("t", BROKERS, configs={"flush.policy": "none"})
    set_policy(world, TOPIC, "t", "ack")
    stop_all(world)
    for broker_id in BROKERS:
        come_back(world, broker_id, process=100 + broker_id)
    world.pass_over()
    assert in_sync(world)[0] == (3,)
    stop_all(world)
    come_back(world, 3, process=203)
    assert in_sync(world) == ((3,), 3)
    assert world.image.brokers[3].replaced_broker_epoch == 0, "the sweep is over"


def test_topic_that_was_made_with_ack_has_no_switch(world: World) -> None:
    """Most topics are newer than the brokers: that is no reason to distrust a broker."""
    world.write_topic("t", BROKERS, configs={"flush.policy": "ack"})
    world.write_topic("default", BROKERS)
    set_policy(world, TOPIC, "t", "ack")
    assert dict(world.image.ack_switches()) == {}
    stop_all(world)
    come_back(world, 1, process=101)
    assert in_sync(world) == in_sync(world, "default") == ((1,), 1)


@pytest.mark.parametrize(("resource", "name"), [(BROKER, "1"), (CLUSTER, "")])
@pytest.mark.parametrize("policy", ["ack", None])
def test_switch_of_what_a_topic_inherits_counts(
    world: World, resource: ConfigResource, name: str, policy: str | None
) -> None:
    """This also holds when another policy is removed and the default is `ack`."""
    set_policy(world, resource, name, "none")
    world.write_topic("t", BROKERS)
    world.write_topic("own", BROKERS, configs={"flush.policy": "ack"})
    set_policy(world, resource, name, policy)
    stop_all(world)
    come_back(world, 1, process=101)
    assert in_sync(world) == ((2, 3), None)
    assert in_sync(world, "own") == ((1,), 1), "it was under ack all the time"


def test_end_of_a_topics_own_policy_may_uncover_ack(world: World) -> None:
    """The topic had `none` until now, and inherits `ack`."""
    world.write_topic("t", BROKERS, configs={"flush.policy": "none"})
    set_policy(world, TOPIC, "t", None)
    stop_all(world)
    come_back(world, 1, process=101)
    assert in_sync(world) == ((2, 3), None)


def test_of_several_unclean_stops_the_first_counts(world: World) -> None:
    """The broker returned after the switch, lost power before the sweep ended, and returned again: the first loss still counts."""
    world.write_topic("t", BROKERS, configs={"flush.policy": "none"})
    before = world.epoch(1)
    set_policy(world, TOPIC, "t", "ack")
    stop_all(world)
    world.append(register(1, process=101))
    world.append(register(1, process=101, port=9999))
    world.commit()
    world.append(register(1, process=201))
    world.commit()
    assert world.image.brokers[1].replaced_broker_epoch == before
    world.take_over()
    world.run(Bootstrap())
    world.beat(1)
    assert in_sync(world) == ((2, 3), None)


def test_clean_stop_after_the_switch_keeps_its_place(world: World) -> None:
    """A clean stop flushes everything."""
    world.write_topic("t", BROKERS, configs={"flush.policy": "none"})
    set_policy(world, TOPIC, "t", "ack")
    stop_all(world)
    world.run(register(1, process=101, clean_stop_epoch=world.epoch(1)))
    world.beat(1)
    assert in_sync(world) == ((1,), 1)


def test_switches_are_rows_of_the_image_and_go_with_their_topic(world: World) -> None:
    """The switch survives encoding; a config that comes from a row is a state and not a switch."""
    world.write_topic("t", BROKERS, configs={"flush.policy": "none"})
    for resource, name in ((TOPIC, "t"), (BROKER, "2"), (CLUSTER, "")):
        set_policy(world, resource, name, "none")
        set_policy(world, resource, name, "ack")
    switches = dict(world.image.ack_switches())
    assert list(switches) == [(TOPIC, topic_id("t").hex()), (BROKER, "2"), (CLUSTER, "")]
    assert sorted(switches.values()) == list(switches.values())
    restored = MetadataImage()
    for key, row in all_rows(world.image):
        add_row(restored, decode_row(key, encode_row(row)))
    assert view(restored) == view(world.image)
    assert dict(restored.ack_switches()) == switches
    old = MetadataImage()
    for key, row in all_rows(world.image):
        if key[0] != 10:
            add_row(old, row)
    assert dict(old.ack_switches()) == {}, "an image of format 4 has none"


def test_registration_without_the_epoch_that_it_replaced_is_as_old_as_can_be(world: World) -> None:
    """A record of an earlier version has no such epoch: after a switch, the broker is not trusted."""
    world.write_topic("t", BROKERS, configs={"flush.policy": "none"})
    set_policy(world, TOPIC, "t", "ack")
    stop_all(world)
    decision = world.decide(register(1, process=101))
    record = decision.records[0]
    assert isinstance(record, BrokerRecord)
    world.write(replace(record, replaced_broker_epoch=0, incarnation_id=incarnation(77)))
    world.run(Bootstrap())
    assert in_sync(world) == ((2, 3), None)

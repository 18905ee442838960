# SPDX-License-Identifier: Apache-2.0
"""Clean and unclean restarts in the controller (KIP-966): which brokers leave the in-sync replicas before they may lead again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import Bootstrap, BrokerRegistered, Decision, FenceBroker, HeartbeatAnswered
from metaquorum.controller.elections import Lossy, partition_change
from metaquorum.metadata import record_codec
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_rows import all_rows
from metaquorum.metadata.records import (
    BrokerChangeRecord,
    BrokerRecord,
    ConfigRecord,
    ConfigResource,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from metaquorum.metadata.state import PartitionImage
from metaquorum.tests.controller_world import World, create_topic, incarnation, register, topic_id


def add(world: World, *records: MetadataRecord) -> None:
    """Append and commit records that the test writes itself."""
    for record in records:
        world.controller.replay(record, world.log_end_offset)
        world.log.append((world.log_end_offset, record))
        world.log_end_offset += 1
    world.commit()


def replicated(topic: str, *, policy: str, isr: tuple[int, ...] = (1, 2, 3), count: int = 1) -> list[MetadataRecord]:
    """Return the records of a topic with three replicas, led by the first in-sync one."""
    partitions = [
        PartitionRecord(
            topic_id=topic_id(topic),
            partition=partition,
            replicas=(1, 2, 3),
            isr=isr,
            leader_id=isr[0],
            leader_epoch=0,
            partition_epoch=0,
        )
        for partition in range(count)
    ]
    config = ConfigRecord(
        resource=ConfigResource.TOPIC, resource_name=topic_id(topic).hex(), name="flush.policy", value=policy
    )
    return [TopicRecord(topic=topic, topic_id=topic_id(topic)), config, *partitions]


def state(world: World, topic: str) -> tuple[tuple[int, ...], int | None]:
    """Return in-sync replicas and leader of the first partition."""
    found = world.image.topic_by_name(topic)
    assert found is not None
    return found.partitions[0].isr, found.partitions[0].leader_id


@pytest.fixture
def world() -> World:
    """Three brokers that all stopped at once, with one topic of each flush policy, in sync on all of them."""
    world = World()
    for broker_id in (1, 2, 3):
        world.start_broker(broker_id)
    for policy in ("ack", "interval", "none"):
        add(world, *replicated(policy, policy=policy))
    for broker_id in (1, 2, 3):
        world.append(FenceBroker(broker_id=broker_id, broker_epoch=world.epoch(broker_id)))
    world.commit()
    world.run(Bootstrap())
    assert [state(world, policy) for policy in ("ack", "interval", "none")] == [((1, 2, 3), None)] * 3
    return world


def come_back(world: World, broker_id: int, *, clean: bool, process: int = 100) -> Decision:
    """Register the next process of a broker."""
    epoch = world.epoch(broker_id) if clean else None
    return world.run(register(broker_id, process=process + broker_id, clean_stop_epoch=epoch))


def test_clean_restart_keeps_its_place_in_the_in_sync_replicas(world: World) -> None:
    """The epoch of the clean stop is that of the replaced registration: the replica has all its records."""
    come_back(world, 1, clean=True)
    assert not world.image.brokers[1].unclean
    world.beat(1)
    assert [state(world, policy) for policy in ("ack", "interval", "none")] == [((1,), 1)] * 3


def test_unclean_restart_leaves_the_in_sync_replicas_where_it_may_lack_records(world: World) -> None:
    """Under `ack` all acknowledged records were flushed; under the other policies the controller waits for the other replicas."""
    come_back(world, 1, clean=False)
    assert not world.image.brokers[1].unclean, "the sweep is over"
    assert [state(world, policy) for policy in ("interval", "none")] == [((2, 3), None)] * 2
    world.beat(1)
    assert state(world, "ack") == ((1,), 1)
    assert [state(world, policy) for policy in ("interval", "none")] == [((2, 3), None)] * 2
    come_back(world, 3, clean=True)
    world.beat(3)
    assert [state(world, policy) for policy in ("interval", "none")] == [((3,), 3)] * 2


def test_last_in_sync_replica_stays_however_it_stopped(world: World) -> None:
    """Brokers leave the in-sync replicas in the order of their return; the last one cannot leave, and leads."""
    for broker_id in (2, 1, 3):
        come_back(world, broker_id, clean=False)
    assert state(world, "none") == ((3,), None)
    for broker_id in (2, 1, 3):
        world.beat(broker_id)
    assert state(world, "none") == ((3,), 3)
    assert state(world, "ack")[0] != (3,)


NEW_DIRECTORY = incarnation(7)


def come_back_wiped(world: World, broker_id: int, *, clean: bool = False) -> Decision:
    """Register the next process of a broker with another log directory than before."""
    epoch = world.epoch(broker_id) if clean else None
    directories = (NEW_DIRECTORY,)
    command = register(broker_id, process=300 + broker_id, clean_stop_epoch=epoch, log_directory_ids=directories)
    return world.run(command)


@pytest.mark.parametrize("clean", [False, True])
def test_broker_whose_directory_was_wiped_is_trusted_under_no_policy(world: World, clean: bool) -> None:
    """The flushed records are lost with the directory: the broker leaves even under `ack`, and the controller waits for the others."""
    come_back_wiped(world, 1, clean=clean)
    assert not world.image.brokers[1].unclean, "the sweep is over"
    world.beat(1)
    assert [state(world, policy) for policy in ("ack", "interval", "none")] == [((2, 3), None)] * 3
    come_back(world, 3, clean=False)
    world.beat(3)
    assert [state(world, policy) for policy in ("ack", "interval", "none")] == [((3,), 3), ((2,), None), ((2,), None)]


def test_wiped_broker_is_the_last_to_be_taken_for_the_one_that_has_the_most(world: World) -> None:
    """If every replica may lack records, a broker that was only killed stays, even if the wiped one returns after it."""
    for broker_id in (2, 3):
        come_back(world, broker_id, clean=False)
    assert state(world, "none") == ((1,), None)
    world.append(register(1, process=101))
    command = register(2, process=302, log_directory_ids=(NEW_DIRECTORY,))
    world.append(command)
    world.commit()
    world.run(Bootstrap())
    assert state(world, "none") == ((1,), None)
    assert state(world, "ack") == ((1, 3), None)


def test_another_directory_beside_the_old_ones_is_nothing_lost(world: World) -> None:
    """A broker may add log directories and list them in another order; a missing one means that its logs are lost."""
    first, second = world.image.brokers[1].log_directory_ids[0], incarnation(8)
    more = register(1, process=401, clean_stop_epoch=world.epoch(1), log_directory_ids=(second, first))
    world.run(more)
    assert state(world, "ack")[0] == (1, 2, 3)
    world.append(register(1, process=402, clean_stop_epoch=world.epoch(1), log_directory_ids=(first,)))
    world.commit()
    assert world.image.brokers[1].unclean
    assert world.image.brokers[1].lost_directories


def test_lost_directories_are_remembered_until_the_broker_has_left(world: World) -> None:
    """A new controller, a restart during the sweep and a repeated registration do not change the lost directories."""
    wiped = register(1, process=301, log_directory_ids=(NEW_DIRECTORY,))
    world.append(wiped)
    world.append(replace(wiped, port=9999))
    world.commit()
    world.append(replace(wiped, incarnation_id=incarnation(302), clean_stop_epoch=world.epoch(1)))
    world.commit()
    assert world.image.brokers[1].lost_directories
    world.take_over()
    world.run(Bootstrap())
    assert not world.image.brokers[1].lost_directories
    assert state(world, "ack") == ((2, 3), None)


def test_with_one_replica_an_unclean_restart_changes_nothing() -> None:
    """There is no other replica to wait for: the broker leads again, as with every other topic."""
    world = World()
    epoch = world.start_broker(1)
    world.run(create_topic("t", partition_count=2, configs={"flush.policy": "none"}))
    world.run(FenceBroker(broker_id=1, broker_epoch=epoch))
    come_back(world, 1, clean=False)
    world.beat(1)
    assert world.leaders("t") == [1, 1]


@pytest.mark.parametrize("said", [None, 0, 10**6])
def test_only_the_epoch_of_the_replaced_registration_proves_a_clean_stop(world: World, said: int | None) -> None:
    """A mark of an earlier registration, a mark without an epoch and no mark all mean unclean."""
    world.append(register(1, process=101, clean_stop_epoch=said))
    broker = world.controller.image.broker(1)
    assert broker is not None
    assert broker.unclean


def test_unclean_broker_stays_fenced_until_the_sweep_is_over(world: World) -> None:
    """Otherwise it could be elected where the sweep has not been yet; it may still stop."""
    decision = world.append(register(1, process=101))
    assert decision.then is not None
    world.commit()
    answer = world.beat(1)
    assert isinstance(answer.response, HeartbeatAnswered)
    assert answer.response.fenced
    assert world.image.brokers[1].fenced
    stopping = world.beat(1, want_shutdown=True).response
    assert isinstance(stopping, HeartbeatAnswered)
    assert stopping.should_shutdown
    world.run(decision.then)
    world.beat(1)
    assert not world.image.brokers[1].fenced
    assert state(world, "none") == ((2, 3), None)


def test_new_controller_goes_on_with_a_broken_off_sweep(world: World) -> None:
    """The log keeps that a broker is unclean until it has left the in-sync replicas everywhere."""
    world.append(register(1, process=101))
    world.commit()
    assert world.image.brokers[1].unclean
    world.take_over()
    world.run(Bootstrap())
    assert not world.image.brokers[1].unclean
    assert state(world, "none") == ((2, 3), None)


def test_clean_stop_of_a_broker_that_had_not_left_yet_does_not_hide_the_unclean_one(world: World) -> None:
    """The broker started uncleanly, stopped cleanly before the sweep ended, and started again: it may still lack records."""
    world.append(register(1, process=101))
    world.commit()
    come_back(world, 1, clean=True, process=200)
    assert state(world, "none") == ((2, 3), None)


def test_sweep_that_was_under_way_does_not_declare_a_broker_clean(world: World) -> None:
    """It has passed topics that the broker has not left; only a sweep that starts after the registration may declare it clean."""
    world.limit(max_sweep_partitions=2)
    first = world.append(Bootstrap())
    assert first.then is not None
    under_way = world.append(first.then)
    assert under_way.then is not None
    registration = world.append(register(1, process=101))
    world.commit()
    world.run(under_way.then)
    assert world.image.brokers[1].unclean
    assert registration.then is not None
    world.run(registration.then)
    assert not world.image.brokers[1].unclean
    assert [state(world, policy)[0] for policy in ("ack", "interval", "none")] == [(1, 2, 3), (2, 3), (2, 3)]


def test_registering_again_changes_nothing_about_it(world: World) -> None:
    """The incarnation registers again, also with another address: unclean stays unclean, and clean stays clean."""
    world.append(register(1, process=101))
    world.append(register(1, process=101, port=9999))
    broker = world.controller.image.broker(1)
    assert broker is not None
    assert (broker.unclean, broker.port) == (True, 9999)
    world.commit()
    world.run(Bootstrap())
    decision = world.run(register(1, process=101, port=9998))
    assert isinstance(decision.response, BrokerRegistered)
    assert not world.image.brokers[1].unclean


def test_live_process_is_not_made_unclean_by_another_one(world: World) -> None:
    """The controller refuses the other registration, and it changes nothing."""
    come_back(world, 1, clean=True)
    world.beat(1)
    assert world.refusal(register(1, process=500)).code is ErrorCode.DUPLICATE_BROKER
    assert not world.image.brokers[1].unclean


def test_new_broker_is_not_unclean() -> None:
    """A new broker has no known replicas that could lack records."""
    world = World()
    assert world.run(register(1)).then is None
    assert not world.image.brokers[1].unclean


@pytest.mark.parametrize(
    ("isr", "lossy", "expected"),
    [
        ((1, 2, 3), [2], (1, 3)),
        ((1, 2, 3), [3, 1], (2,)),
        ((1, 2, 3), [3, 1, 2], (2,)),
        ((1,), [1], None),
        ((2, 3), [1], None),
    ],
)
def test_lossy_replicas_leave_one_after_the_other(
    isr: tuple[int, ...], lossy: list[int], expected: tuple[int, ...] | None
) -> None:
    """This also holds if no replica may lead; the last one never leaves."""
    change = partition_change(
        b"t" * 16, PartitionImage(0, (1, 2, 3), isr, None, 4, 6), lambda _: False, tuple(map(Lossy, lossy))
    )
    assert (None if change is None else change.isr) == expected


def test_unclean_is_kept_in_records_and_rows(world: World) -> None:
    """The mark survives encoding, as a record, as a change, and as a row of the image."""
    world.append(register(1, process=101))
    world.commit()
    rows = [record for _, record in all_rows(world.image) if isinstance(record, BrokerRecord)]
    assert [record.unclean for record in rows] == [True, False, False]
    rows[1] = replace(rows[1], unclean=True, lost_directories=True)
    assert [record_codec.decode(record_codec.encode(record)) for record in rows] == rows
    restored = MetadataImage()
    for offset, record in enumerate(rows):
        restored.replay(record, offset)
    assert restored.brokers[1].unclean
    assert [broker.lost_directories for broker in restored.brokers.values()] == [False, True, False]
    for unclean in (True, False, None):
        change = BrokerChangeRecord(broker_id=1, broker_epoch=5, unclean=unclean)
        assert record_codec.decode(record_codec.encode(change)) == change

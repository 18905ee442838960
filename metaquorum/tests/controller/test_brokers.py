# SPDX-License-Identifier: Apache-2.0
"""Brokers in the controller: registration, heartbeats, fencing, controlled shutdown, producer ids."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.commands import (
    AllocateProducerIds,
    BrokerRegistered,
    Done,
    ExpireSessions,
    FenceBroker,
    Heartbeat,
    HeartbeatAnswered,
    ProducerIdsAllocated,
)
from metaquorum.controller.settings import ControllerSettings
from metaquorum.metadata.records import MAX_PRODUCER_ID, BrokerRecord, ProducerIdsRecord, RemoveBrokerRecord
from metaquorum.tests.controller_world import SETTINGS, World, create_topic, incarnation, register


def test_register_new_broker_starts_fenced_with_the_offset_of_its_record_as_epoch() -> None:
    """The broker epoch is the offset of the registration's record, and a new broker may not lead yet."""
    world = World()
    world.pass_over(3)
    expected_epoch = world.log_end_offset
    decision = world.run(register(1))
    assert decision.response == BrokerRegistered(broker_epoch=None)
    broker = world.image.brokers[1]
    assert broker.broker_epoch == expected_epoch
    assert (broker.host, broker.port, broker.rack, broker.fenced) == ("broker-1", 9640, "r1", True)
    assert broker.incarnation_id == incarnation(1)
    assert broker.log_directory_ids == (incarnation(901),)


def test_register_same_incarnation_again_keeps_epoch_and_writes_nothing() -> None:
    """Kafka behaviour 25: the same incarnation keeps its epoch when it registers again, and the controller writes nothing."""
    world = World()
    epoch = world.start_broker(1)
    decision = world.run(register(1))
    assert decision.response == BrokerRegistered(broker_epoch=epoch)
    assert decision.records == ()
    assert not world.image.brokers[1].fenced


def test_register_same_incarnation_at_another_address_keeps_epoch_and_state() -> None:
    """A process with another address keeps its epoch and is not fenced."""
    world = World()
    epoch = world.start_broker(1)
    world.run(register(1, host="elsewhere", port=1234, rack=None))
    broker = world.image.brokers[1]
    assert (broker.host, broker.port, broker.rack, broker.broker_epoch) == ("elsewhere", 1234, None, epoch)
    assert not broker.fenced


def test_register_second_process_while_first_is_in_session_is_refused() -> None:
    """Kafka behaviour 25: another process under an id that is unfenced and in session is a duplicate."""
    world = World()
    world.start_broker(1)
    world.now_ms += SETTINGS.session_timeout_ms - 1
    refusal = world.refusal(register(1, process=7))
    assert refusal.code is ErrorCode.DUPLICATE_BROKER
    assert "broker-1:9640" in refusal.message


def test_register_second_process_after_session_takes_over_and_old_epoch_is_stale() -> None:
    """Kafka behaviour 25: after the session the id is free; the partitions of the old process lose their leader."""
    world = World()
    old_epoch = world.start_broker(1)
    world.run(create_topic("t"))
    world.now_ms += SETTINGS.session_timeout_ms
    world.run(register(1, process=7))
    assert world.image.brokers[1].fenced
    assert world.leaders("t") == [None]
    stale = world.refusal(Heartbeat(broker_id=1, broker_epoch=old_epoch, metadata_offset=99))
    assert stale.code is ErrorCode.STALE_BROKER_EPOCH
    world.beat(1)
    assert world.leaders("t") == [1]


def test_register_second_process_while_first_is_fenced_takes_over() -> None:
    """Kafka behaviour 25: a fenced registration does not hold the id."""
    world = World()
    world.run(register(1))
    old_epoch = world.epoch(1)
    decision = world.run(register(1, process=7))
    assert decision.response == BrokerRegistered(broker_epoch=None)
    assert world.epoch(1) > old_epoch


def test_register_second_process_while_first_shuts_down_takes_over() -> None:
    """A broker that has announced its shutdown does not hold its id."""
    world = World()
    world.start_broker(1)
    world.run(create_topic("t"))
    world.append(Heartbeat(broker_id=1, broker_epoch=world.epoch(1), metadata_offset=0, want_shutdown=True))
    world.run(register(1, process=7))
    assert world.image.brokers[1].incarnation_id == incarnation(7)
    assert not world.image.brokers[1].in_controlled_shutdown


def test_register_same_incarnation_during_shutdown_changes_its_mind() -> None:
    """A process that registers again while it was leaving stays, and leads again."""
    world = World()
    world.start_broker(1)
    world.run(create_topic("t"))
    world.beat(1, want_shutdown=True)
    assert world.leaders("t") == [None]
    world.run(register(1))
    assert not world.image.brokers[1].in_controlled_shutdown
    assert world.leaders("t") == [1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"broker_id": -1}, "broker id -1"),
        ({"broker_id": 2**31}, "out of range"),
        ({"incarnation_id": b"short"}, "incarnation id"),
        ({"host": ""}, "host"),
        ({"host": "h" * 256}, "host"),
        ({"port": 0}, "port 0"),
        ({"port": 65_536}, "port 65536"),
        ({"rack": "r" * 250}, "rack"),
        ({"log_directory_ids": tuple(incarnation(i) for i in range(257))}, "256 log directories"),
        ({"log_directory_ids": (b"x",)}, "directory id"),
        ({"min_feature_level": 2, "max_feature_level": 3}, "feature level 1"),
        ({"min_feature_level": 0, "max_feature_level": 0}, "feature level 1"),
    ],
)
def test_register_with_a_bad_field_is_refused(changes: dict[str, object], words: str) -> None:
    """Every field of a registration has a rule, and breaking it is an invalid request that names it."""
    refusal = World().refusal(register(1, **changes))
    assert refusal.code is ErrorCode.INVALID_REQUEST
    assert words in refusal.message


def test_register_more_brokers_than_allowed_is_refused() -> None:
    """The number of brokers has a limit, and known brokers do not count twice."""
    world = World(settings=ControllerSettings(max_brokers=2))
    world.run(register(1))
    world.run(register(2))
    assert world.refusal(register(3)).code is ErrorCode.LIMIT_EXCEEDED
    world.run(register(2, process=8))


def test_heartbeat_of_fenced_broker_that_is_behind_stays_fenced() -> None:
    """Kafka behaviour 26: fenced and behind its own registration: stays fenced."""
    world = World()
    world.run(register(1))
    decision = world.beat(1, metadata_offset=world.epoch(1))
    assert decision.response == HeartbeatAnswered(fenced=True, caught_up=False, should_shutdown=False)
    assert decision.records == ()


def test_heartbeat_of_fenced_broker_that_is_caught_up_unfences() -> None:
    """Kafka behaviour 26: fenced and past its own registration: unfenced."""
    world = World()
    world.run(register(1))
    decision = world.beat(1, metadata_offset=world.epoch(1) + 1)
    assert decision.response == HeartbeatAnswered(fenced=False, caught_up=True, should_shutdown=False)
    assert not world.image.brokers[1].fenced


def test_heartbeat_of_unfenced_broker_writes_nothing() -> None:
    """A usual heartbeat costs no record."""
    world = World()
    world.start_broker(1)
    decision = world.beat(1)
    assert decision.response == HeartbeatAnswered(fenced=False, caught_up=True, should_shutdown=False)
    assert decision.records == ()


def test_heartbeat_that_wants_fence_fences_and_keeps_fenced() -> None:
    """A broker may ask to be fenced: its partitions lose their leader until it no longer asks."""
    world = World()
    world.start_broker(1)
    world.run(create_topic("t"))
    assert world.beat(1, want_fence=True).response == HeartbeatAnswered(
        fenced=True, caught_up=True, should_shutdown=False
    )
    assert world.leaders("t") == [None]
    assert world.beat(1, want_fence=True).records == ()
    world.beat(1)
    assert world.leaders("t") == [1]


def test_heartbeat_of_unknown_broker_is_refused() -> None:
    """The controller asks a broker that is not registered to register."""
    refusal = World().refusal(Heartbeat(broker_id=1, broker_epoch=5, metadata_offset=0))
    assert refusal.code is ErrorCode.BROKER_FENCED


def test_shutdown_of_fenced_broker_is_granted_at_once() -> None:
    """Kafka behaviour 26: a fenced broker leads nothing and may stop."""
    world = World()
    world.run(register(1))
    decision = world.beat(1, want_shutdown=True)
    assert decision.response == HeartbeatAnswered(fenced=True, caught_up=True, should_shutdown=True)
    assert decision.records == ()


def test_shutdown_of_broker_without_leaderships_is_granted_at_once_and_fences() -> None:
    """Kafka behaviour 26: a broker that is unfenced and leads nothing is fenced and may stop."""
    world = World()
    world.start_broker(1)
    decision = world.beat(1, want_shutdown=True)
    assert decision.response == HeartbeatAnswered(fenced=True, caught_up=True, should_shutdown=True)
    assert world.image.brokers[1].fenced


def test_shutdown_is_granted_when_leaderships_are_gone_and_all_live_brokers_know() -> None:
    """Kafka behaviour 26: the broker may stop once it leads nothing and every live broker has applied that offset."""
    world = World()
    world.start_broker(1)
    world.start_broker(2)
    world.run(create_topic("t", partition_count=2))
    wait = HeartbeatAnswered(fenced=False, caught_up=True, should_shutdown=False)
    behind = world.log_end_offset
    first = world.append(
        Heartbeat(broker_id=1, broker_epoch=world.epoch(1), metadata_offset=behind, want_shutdown=True)
    )
    assert first.response == wait
    # Its leaderships are still there: the sweep has not run.
    assert world.append(Heartbeat(broker_id=1, broker_epoch=world.epoch(1), metadata_offset=behind)).response == wait
    assert first.then is not None
    world.run(first.then)
    assert sorted(world.leaders("t"), key=str) == [2, None]
    world.beat(2, metadata_offset=behind)
    assert world.beat(1, want_shutdown=True).response == wait
    world.beat(2)
    released = world.beat(1, want_shutdown=True)
    assert released.response == HeartbeatAnswered(fenced=True, caught_up=True, should_shutdown=True)
    assert world.image.brokers[1].fenced
    assert world.image.brokers[1].in_controlled_shutdown
    # It stays out of service until its next process registers.
    assert world.beat(1).response == HeartbeatAnswered(fenced=True, caught_up=True, should_shutdown=False)


def test_shutdown_after_take_over_waits_until_brokers_know_the_new_leadership() -> None:
    """A new controller does not know when the leaderships moved, so the broker waits until all know the controller's own start."""
    world = World()
    world.start_broker(1)
    world.start_broker(2)
    world.run(create_topic("t"))
    world.run(create_topic("u"))
    world.beat(1, want_shutdown=True)
    world.take_over()
    decision = world.beat(1, want_shutdown=True)
    assert isinstance(decision.response, HeartbeatAnswered)
    assert not decision.response.should_shutdown
    world.beat(2)
    decision = world.beat(1, want_shutdown=True)
    assert isinstance(decision.response, HeartbeatAnswered)
    assert decision.response.should_shutdown


def test_expire_sessions_fences_exactly_those_whose_time_is_over() -> None:
    """A session lasts `session_timeout_ms`, and its end takes the leaderships away."""
    world = World()
    world.start_broker(1)
    world.now_ms += 1_000
    world.start_broker(2)
    world.run(create_topic("t", partition_count=2))
    assert world.controller.deadline_ms() == world.now_ms + SETTINGS.session_timeout_ms - 1_000
    world.now_ms += SETTINGS.session_timeout_ms - 1_001
    assert world.run(ExpireSessions()).records == ()
    world.now_ms += 1
    world.run(ExpireSessions())
    assert world.image.brokers[1].fenced
    assert not world.image.brokers[2].fenced
    assert sorted(world.leaders("t"), key=str) == [2, None]
    assert world.controller.deadline_ms() == world.now_ms + 1_000


def test_sessions_without_unfenced_brokers_have_no_deadline() -> None:
    """Without an unfenced broker no session can expire: the next deadline is that of the periodic work."""
    world = World()
    periodic_ms = world.controller.deadline_ms()
    assert periodic_ms == world.now_ms + 300_000
    world.run(register(1))
    assert world.controller.deadline_ms() == periodic_ms
    world.beat(1)
    assert world.controller.deadline_ms() == world.now_ms + SETTINGS.session_timeout_ms


def test_expire_sessions_is_bounded() -> None:
    """One decision fences a bounded number of brokers; the next one takes the rest."""
    world = World(settings=replace(SETTINGS, max_expired_brokers=2))
    for broker_id in (1, 2, 3):
        world.start_broker(broker_id)
    world.now_ms += SETTINGS.session_timeout_ms
    assert len(world.run(ExpireSessions()).records) == 2
    assert len(world.run(ExpireSessions()).records) == 1
    assert all(broker.fenced for broker in world.image.brokers.values())


def test_take_over_gives_every_broker_a_whole_session() -> None:
    """A new controller does not fence for heartbeats that went to the old one."""
    world = World()
    world.start_broker(1)
    world.now_ms += 10 * SETTINGS.session_timeout_ms
    world.take_over()
    assert world.run(ExpireSessions()).records == ()
    world.now_ms += SETTINGS.session_timeout_ms
    assert len(world.run(ExpireSessions()).records) == 1


def test_grace_after_a_hold_up_starts_sessions_anew_and_keeps_offsets() -> None:
    """A controller that was blocked must not fence the brokers for that."""
    world = World()
    world.start_broker(1)
    world.now_ms += 10 * SETTINGS.session_timeout_ms
    world.controller.grace(world.now_ms)
    assert world.run(ExpireSessions()).records == ()


def test_fence_broker_whose_process_is_gone() -> None:
    """The shell proves that a process is gone and the controller fences it at once; an old epoch or a fenced broker changes nothing."""
    world = World()
    epoch = world.start_broker(1)
    world.run(create_topic("t"))
    assert world.refusal(FenceBroker(broker_id=1, broker_epoch=epoch + 1)).code is ErrorCode.STALE_BROKER_EPOCH
    world.run(FenceBroker(broker_id=1, broker_epoch=epoch))
    assert world.image.brokers[1].fenced
    assert world.leaders("t") == [None]
    again = world.run(FenceBroker(broker_id=1, broker_epoch=epoch))
    assert (again.response, again.records) == (Done(), ())


def test_producer_ids_come_in_blocks_that_nobody_else_gets() -> None:
    """Blocks follow each other without overlap, uncommitted ones included."""
    world = World()
    epoch = world.start_broker(1)
    other = world.start_broker(2)
    first = world.append(AllocateProducerIds(broker_id=1, broker_epoch=epoch)).response
    second = world.append(AllocateProducerIds(broker_id=2, broker_epoch=other)).response
    assert first == ProducerIdsAllocated(first_producer_id=1, count=SETTINGS.producer_id_block)
    assert second == ProducerIdsAllocated(first_producer_id=1_001, count=SETTINGS.producer_id_block)
    world.commit()
    assert world.image.next_producer_id == 2_001
    world.take_over()
    third = world.run(AllocateProducerIds(broker_id=1, broker_epoch=epoch)).response
    assert third == ProducerIdsAllocated(first_producer_id=2_001, count=SETTINGS.producer_id_block)


def test_producer_ids_for_a_stale_epoch_are_refused() -> None:
    """Only the registered process gets ids."""
    world = World()
    epoch = world.start_broker(1)
    assert world.refusal(AllocateProducerIds(broker_id=1, broker_epoch=epoch - 1)).code is ErrorCode.STALE_BROKER_EPOCH
    assert world.refusal(AllocateProducerIds(broker_id=9, broker_epoch=1)).code is ErrorCode.BROKER_FENCED


def test_producer_ids_end_with_the_64_bit_range() -> None:
    """The last ids are not given twice."""
    world = World()
    epoch = world.start_broker(1)
    last = ProducerIdsRecord(broker_id=1, broker_epoch=epoch, next_producer_id=MAX_PRODUCER_ID - 999)
    world.controller.replay(last, world.log_end_offset)
    assert world.refusal(AllocateProducerIds(broker_id=1, broker_epoch=epoch)).code is ErrorCode.LIMIT_EXCEEDED


def test_removed_broker_is_gone_from_overlay_and_image() -> None:
    """A removed broker is unknown, first to decisions, then to readers."""
    world = World()
    epoch = world.start_broker(1)
    record = RemoveBrokerRecord(broker_id=1, broker_epoch=epoch)
    world.controller.replay(record, world.log_end_offset)
    world.log.append((world.log_end_offset, record))
    world.log_end_offset += 1
    assert world.controller.image.broker(1) is None
    assert world.controller.image.brokers() == []
    assert 1 in world.image.brokers
    world.commit()
    assert 1 not in world.image.brokers


def test_record_about_another_registration_stops_the_process() -> None:
    """A record that contradicts the image is a fault, never skipped."""
    world = World()
    epoch = world.start_broker(1)
    with pytest.raises(AssertionError, match="epoch"):
        world.image.replay(RemoveBrokerRecord(broker_id=1, broker_epoch=epoch + 1), world.log_end_offset)
    with pytest.raises(AssertionError, match="not registered"):
        world.image.replay(RemoveBrokerRecord(broker_id=9, broker_epoch=epoch), world.log_end_offset)


def test_broker_record_without_epoch_takes_the_offset_of_its_place_in_the_log() -> None:
    """The log position decides the epoch, so it is known only when the record is appended."""
    world = World()
    record = register(4)
    written = world.append(record).records[0]
    assert isinstance(written, BrokerRecord)
    assert written.broker_epoch is None
    assert world.epoch(4) == world.log_end_offset - 1

# SPDX-License-Identifier: Apache-2.0
"""States of brokers, and their removal, as decisions of the core."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lograft.wire.codes import ErrorCode

from metaquorum.controller.brokers import BrokerState, state_of
from metaquorum.controller.commands import DeleteTopic, Done, ExpireSessions, FenceBroker, RemoveBroker
from metaquorum.controller.sessions import Sessions
from metaquorum.metadata.records import RemoveBrokerRecord
from metaquorum.tests.controller_world import SETTINGS, World, register


@pytest.fixture
def world() -> World:
    """Brokers 1 and 2 are active and host no replicas."""
    made = World()
    for broker_id in (1, 2):
        made.start_broker(broker_id)
    return made


@pytest.mark.parametrize(
    ("fenced", "leaving", "session_lasts", "expected"),
    [
        (False, False, True, BrokerState.ACTIVE),
        (False, False, False, BrokerState.ACTIVE),
        (False, True, True, BrokerState.SHUTTING_DOWN),
        (True, False, True, BrokerState.REGISTERED),
        (True, False, False, BrokerState.FENCED),
        (True, True, True, BrokerState.FENCED),
    ],
)
def test_state_follows_from_registration_and_session(
    world: World, fenced: bool, leaving: bool, session_lasts: bool, expected: BrokerState
) -> None:
    """The image decides whether a broker may lead; the session only tells a starting broker from a dead one."""
    broker = replace(world.image.brokers[1], fenced=fenced, in_controlled_shutdown=leaving)
    assert state_of(broker, session_lasts=session_lasts) is expected


def test_session_is_described_with_age_and_offset(world: World) -> None:
    """The age counts from the last heartbeat and shows when the session ends; the next registration has no session yet."""
    world.beat(1, metadata_offset=77)
    world.now_ms += 400
    session = world.controller.session_of(world.image.brokers[1], world.now_ms)
    assert session is not None
    assert (session.age_ms, session.metadata_offset, session.lasts) == (400, 77, True)
    later = world.controller.session_of(world.image.brokers[1], world.now_ms + SETTINGS.session_timeout_ms)
    assert later is not None
    assert not later.lasts
    assert Sessions(1, now_ms=0).describe(world.image.brokers[1], 0) is None


def test_broker_that_is_gone_and_hosts_nothing_is_removed(world: World) -> None:
    """The id becomes unknown and free for another process; a dry run changes nothing."""
    world.run(FenceBroker(broker_id=1, broker_epoch=world.epoch(1)))
    world.now_ms += SETTINGS.session_timeout_ms
    checked = world.decide(RemoveBroker(broker_id=1, validate_only=True))
    assert (checked.response, checked.records) == (Done(), ())
    epoch = world.epoch(1)
    decision = world.run(RemoveBroker(broker_id=1))
    assert decision.records == (RemoveBrokerRecord(broker_id=1, broker_epoch=epoch),)
    assert list(world.image.brokers) == [2]
    assert world.refusal(RemoveBroker(broker_id=1)).message == "no broker 1 is registered"
    world.run(register(1, process=99))
    assert world.image.brokers[1].broker_epoch > epoch


def test_broker_that_lives_is_not_removed(world: World) -> None:
    """The broker is unfenced, or fenced with a live session: the refusal says where it runs or how long to wait."""
    refusal = world.refusal(RemoveBroker(broker_id=1))
    assert refusal.code is ErrorCode.INVALID_REQUEST
    assert "broker-1:9640; stop it" in refusal.message
    world.beat(1, want_fence=True)
    world.now_ms += 100
    assert "heard of 100 ms ago" in world.refusal(RemoveBroker(broker_id=1)).message


def test_broker_that_hosts_replicas_is_not_removed(world: World) -> None:
    """The refusal counts the replicas and names some of them, even if the broker is dead."""
    world.write_topic("mine", (1, 2), partition_count=7)
    world.write_topic("other", (2,))
    world.now_ms += SETTINGS.session_timeout_ms
    world.run(ExpireSessions())
    refusal = world.refusal(RemoveBroker(broker_id=1))
    assert refusal.code is ErrorCode.INVALID_REQUEST
    assert "has 7 replicas (mine:0, mine:1, mine:2, mine:3, mine:4, ...)" in refusal.message
    world.run(DeleteTopic(topic="mine"))
    assert world.run(RemoveBroker(broker_id=1)).response == Done()

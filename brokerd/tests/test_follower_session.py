# SPDX-License-Identifier: Apache-2.0
"""The core of the follower's side of a stream: routes, acknowledgements, credit, heartbeats."""

from __future__ import annotations

import pytest

from brokerd.limits import (
    ACKS_COALESCE_MS,
    ACKS_PER_MESSAGE,
    CATCH_UP_CREDIT_BYTES,
    IN_SYNC_CREDIT_BYTES,
    REPLICATE_IDLE_MS,
    REPLICATE_SILENCE_MS,
    SUBSCRIBES_PER_MESSAGE,
)
from brokerd.partition import follower_stream as session_module
from brokerd.partition.effects import SendAck, Subscribe
from brokerd.partition.follower_stream import Acks, Credit, FollowerSession, Heartbeat, Subscriptions, Unsubscriptions

T0 = 1_000


def request(session: int) -> Subscribe:
    """Subscription `session` of an empty log."""
    return Subscribe(leader_id=2, leader_epoch=5, session=session, log_end_offset=0, flushed_offset=0, last_epoch=None)


def ack(session: int, offset: int) -> SendAck:
    """Everything below `offset` is held."""
    return SendAck(session=session, appended_offset=offset, flushed_offset=offset)


def following(*keys: str) -> FollowerSession[str]:
    """A stream on which these keys have routes 0, 1, ... of session 1."""
    stream = FollowerSession[str](T0)
    for key in keys:
        stream.subscribe(key, request(1))
    stream.take(T0)
    return stream


def test_subscriptions_get_numbers_that_are_never_used_again() -> None:
    """Each subscription that is sent has a number of its own, also where the key had one before."""
    stream = FollowerSession[str](T0)
    assert stream.is_idle
    stream.subscribe("a", request(1))
    stream.subscribe("b", request(1))
    assert stream.has_urgent
    assert not stream.is_idle
    assert stream.take(T0) == [Subscriptions(((0, "a", request(1)), (1, "b", request(1))))]
    assert not stream.has_urgent
    stream.subscribe("a", request(2))
    assert stream.find(0) is None, "the newer subscription ends the older one"
    assert stream.take(T0) == [Subscriptions(((2, "a", request(2)),))]
    assert stream.find(2) == ("a", 2)
    assert stream.find(1) == ("b", 1)


def test_subscription_that_was_not_sent_is_replaced() -> None:
    """Only the last one is sent."""
    stream = FollowerSession[str](T0)
    stream.subscribe("a", request(1))
    stream.subscribe("a", request(2))
    assert stream.take(T0) == [Subscriptions(((0, "a", request(2)),))]


def test_unsubscribing_drops_what_waits_and_ends_what_was_sent() -> None:
    """A subscription that waits is forgotten; for one that was sent the leader is told."""
    stream = FollowerSession[str](T0)
    stream.subscribe("a", request(1))
    stream.unsubscribe("a", 1)
    assert stream.is_idle
    assert stream.take(T0) == []
    stream = following("a")
    stream.unsubscribe("a", 1)
    assert stream.has_urgent
    assert stream.take(T0) == [Unsubscriptions((0,))]
    assert stream.find(0) is None


def test_unsubscribing_an_earlier_session_changes_nothing() -> None:
    """What is over is over, and the present subscription is another."""
    stream = following("a")
    stream.unsubscribe("a", 7)
    stream.unsubscribe("b", 1)
    stream.subscribe("c", request(3))
    stream.unsubscribe("c", 2)
    assert stream.take(T0) == [Subscriptions(((1, "c", request(3)),))]
    assert stream.find(0) == ("a", 1)


def test_end_of_a_key_goes_before_its_next_subscription() -> None:
    """The leader hears of the end first."""
    stream = following("a")
    stream.unsubscribe("a", 1)
    stream.subscribe("a", request(2))
    assert stream.take(T0) == [Unsubscriptions((0,)), Subscriptions(((1, "a", request(2)),))]


def test_route_that_the_leader_ends_is_told_once() -> None:
    """After its end a route is unknown."""
    stream = following("a")
    assert stream.end(0) == ("a", 1)
    assert stream.end(0) is None
    assert stream.find(0) is None
    assert stream.is_idle


def test_last_acknowledgement_of_each_route_is_sent() -> None:
    """Those that came before it are not; a session that is over is not acknowledged."""
    stream = following("a", "b")
    stream.ack("a", ack(1, 5))
    stream.ack("a", ack(1, 9))
    stream.ack("b", ack(1, 3))
    stream.ack("b", ack(2, 4))
    stream.ack("c", ack(1, 4))
    assert stream.take(T0) == [Acks(((0, 9, 9), (1, 3, 3)))]
    assert stream.take(T0) == []


def test_acknowledgements_wait_for_each_other() -> None:
    """The first goes at once; the next ones go together a little later."""
    stream = following("a")
    stream.ack("a", ack(1, 1))
    assert stream.deadline_ms() <= T0
    assert stream.take(T0) == [Acks(((0, 1, 1),))]
    stream.ack("a", ack(1, 2))
    assert stream.deadline_ms() == T0 + ACKS_COALESCE_MS
    assert stream.take(T0 + ACKS_COALESCE_MS - 1) == []
    stream.ack("a", ack(1, 3))
    assert stream.take(T0 + ACKS_COALESCE_MS) == [Acks(((0, 3, 3),))]


def test_acknowledgement_of_an_ended_route_is_not_sent() -> None:
    """The leader would not know what it means."""
    stream = following("a")
    stream.ack("a", ack(1, 1))
    stream.end(0)
    assert stream.take(T0) == []


def test_messages_have_a_most_number_of_entries() -> None:
    """Many partitions take several messages, in their order."""
    keys = [str(number) for number in range(SUBSCRIBES_PER_MESSAGE + 1)]
    stream = FollowerSession[str](T0)
    for key in keys:
        stream.subscribe(key, request(1))
    sent = stream.take(T0)
    assert [len(part.entries) for part in sent if isinstance(part, Subscriptions)] == [SUBSCRIBES_PER_MESSAGE, 1]
    for key in keys:
        stream.ack(key, ack(1, 1))
    acked = stream.take(T0 + ACKS_COALESCE_MS)
    assert [len(part.entries) for part in acked if isinstance(part, Acks)] == [ACKS_PER_MESSAGE, 1]
    for key in keys:
        stream.unsubscribe(key, 1)
    ended = stream.take(T0 + ACKS_COALESCE_MS)
    assert [len(part.routes) for part in ended if isinstance(part, Unsubscriptions)] == [SUBSCRIBES_PER_MESSAGE, 1]


def test_credit_goes_back_by_class_when_a_part_of_it_is_used() -> None:
    """Little is not worth a message; then all of it goes back, of both classes."""
    stream = following("a")
    stream.use_credit(IN_SYNC_CREDIT_BYTES // 8 - 1, is_in_sync=True)
    stream.use_credit(7, is_in_sync=False)
    assert stream.take(T0) == []
    stream.use_credit(1, is_in_sync=True)
    assert stream.has_urgent
    assert stream.take(T0) == [Credit(IN_SYNC_CREDIT_BYTES // 8, 7)]
    assert stream.take(T0) == []
    stream.use_credit(CATCH_UP_CREDIT_BYTES // 8, is_in_sync=False)
    assert stream.take(T0) == [Credit(0, CATCH_UP_CREDIT_BYTES // 8)]


def test_side_that_has_nothing_to_say_says_that_it_lives() -> None:
    """After a second without a message comes a heartbeat; any message puts it off."""
    stream = following("a")
    assert stream.deadline_ms() == T0 + REPLICATE_IDLE_MS
    assert stream.take(T0 + REPLICATE_IDLE_MS - 1) == []
    assert stream.take(T0 + REPLICATE_IDLE_MS) == [Heartbeat()]
    assert stream.take(T0 + REPLICATE_IDLE_MS) == []
    stream.ack("a", ack(1, 1))
    stream.take(T0 + 1_500)
    assert stream.deadline_ms() == T0 + 1_500 + REPLICATE_IDLE_MS


def test_silence_of_the_leader_is_counted_from_what_it_said_last() -> None:
    """The stream is given up when the leader has said nothing for the whole time."""
    stream = following("a")
    assert stream.silence_left_ms(T0) == REPLICATE_SILENCE_MS
    stream.hear(T0 + 500)
    assert stream.silence_left_ms(T0 + REPLICATE_SILENCE_MS) == 500
    assert stream.silence_left_ms(T0 + REPLICATE_SILENCE_MS + 500) == 0


def test_lost_stream_names_every_subscription_once() -> None:
    """Those that were sent and those that wait, with their sessions."""
    stream = following("a", "b")
    stream.end(0)
    stream.subscribe("c", request(4))
    assert stream.subscriptions() == [("b", 1), ("c", 4)]


def test_stream_without_numbers_left_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds no number waits for the next stream."""
    monkeypatch.setattr(session_module, "MAX_ROUTES_PER_REPLICATE_STREAM", 2)
    stream = FollowerSession[str](T0)
    for key in "abc":
        stream.subscribe(key, request(1))
    assert stream.take(T0) == [Subscriptions(((0, "a", request(1)), (1, "b", request(1))))]
    assert stream.is_used_up
    assert stream.subscriptions() == [("a", 1), ("b", 1), ("c", 1)]

# SPDX-License-Identifier: Apache-2.0
"""The core of the follower's side of a stream: routes, acknowledgements, credit, heartbeats."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from brokerd.partition.effects import SendAck, Subscribe
from brokerd.partition.follower_stream import FollowerSession
from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import (
    Acks,
    Credit,
    Heartbeat,
    RouteAck,
    Subscription,
    Subscriptions,
    Unsubscriptions,
)

LIMITS = StreamLimits()
T0 = 1_000


class Replica(NamedTuple):
    """A replica that follows, as its stream names it."""

    topic_id: bytes
    partition: int


A, B, C = (Replica(b"t" * 16, partition) for partition in range(3))


def new_session(limits: StreamLimits = LIMITS) -> FollowerSession[Replica]:
    """A stream that was just opened."""
    return FollowerSession(limits, T0)


def bound(route: int, replica: Replica, session: int) -> Subscription:
    """Return the subscription that the leader gets for `request(session)`."""
    return Subscription(
        route=route,
        topic_id=replica.topic_id,
        partition=replica.partition,
        session=session,
        leader_epoch=5,
        log_end_offset=0,
        flushed_offset=0,
        last_epoch=None,
    )


def request(session: int) -> Subscribe:
    """Return subscription `session` of an empty log."""
    return Subscribe(leader_id=2, leader_epoch=5, session=session, log_end_offset=0, flushed_offset=0, last_epoch=None)


def ack(session: int, offset: int) -> SendAck:
    """Return an acknowledgement of everything below `offset`."""
    return SendAck(session=session, appended_offset=offset, flushed_offset=offset)


def following(*replicas: Replica) -> FollowerSession[Replica]:
    """A stream on which these replicas have routes 0, 1, ... of session 1."""
    stream = new_session()
    for replica in replicas:
        stream.subscribe(replica, request(1))
    stream.take_messages(T0)
    return stream


def test_subscriptions_get_numbers_that_are_never_used_again() -> None:
    """Each subscription that is sent has a new number, even if the replica had one before."""
    stream = new_session()
    assert stream.is_idle
    stream.subscribe(A, request(1))
    stream.subscribe(B, request(1))
    assert stream.has_urgent
    assert not stream.is_idle
    assert stream.take_messages(T0) == [Subscriptions((bound(0, A, 1), bound(1, B, 1)))]
    assert not stream.has_urgent
    stream.subscribe(A, request(2))
    assert stream.find(0) is None, "the newer subscription ends the older one"
    assert stream.take_messages(T0) == [Subscriptions((bound(2, A, 2),))]
    assert stream.find(2) == (A, 2)
    assert stream.find(1) == (B, 1)


def test_subscription_that_was_not_sent_is_replaced() -> None:
    """Only the last subscription is sent."""
    stream = new_session()
    stream.subscribe(A, request(1))
    stream.subscribe(A, request(2))
    assert stream.take_messages(T0) == [Subscriptions((bound(0, A, 2),))]


def test_unsubscribing_drops_what_waits_and_ends_what_was_sent() -> None:
    """A waiting subscription is forgotten. The end of a sent one is told to the leader."""
    stream = new_session()
    stream.subscribe(A, request(1))
    stream.unsubscribe(A, 1)
    assert stream.is_idle
    assert stream.take_messages(T0) == []
    stream = following(A)
    stream.unsubscribe(A, 1)
    assert stream.has_urgent
    assert stream.take_messages(T0) == [Unsubscriptions((0,))]
    assert stream.find(0) is None


def test_unsubscribing_what_waits_ends_the_route_that_it_replaces() -> None:
    """The leader still has the route of the earlier subscription, and would send on it for as long as the stream lives."""
    stream = following(A, B)
    stream.subscribe(A, request(2))
    stream.subscribe(A, request(3))
    stream.unsubscribe(A, 3)
    assert stream.has_urgent
    assert stream.take_messages(T0) == [Unsubscriptions((0,))]
    stream.subscribe(B, request(2))
    assert stream.take_messages(T0) == [Subscriptions((bound(2, B, 2),))], "the leader replaces route 1 by itself"
    stream.unsubscribe(B, 2)
    assert stream.take_messages(T0) == [Unsubscriptions((2,))]


def test_unsubscribing_an_earlier_session_changes_nothing() -> None:
    """An ended session stays ended, and the present subscription is another one."""
    stream = following(A)
    stream.unsubscribe(A, 7)
    stream.unsubscribe(B, 1)
    stream.subscribe(C, request(3))
    stream.unsubscribe(C, 2)
    assert stream.take_messages(T0) == [Subscriptions((bound(1, C, 3),))]
    assert stream.find(0) == (A, 1)


def test_end_of_a_subscription_goes_before_its_next_subscription() -> None:
    """The leader hears of the end first."""
    stream = following(A)
    stream.unsubscribe(A, 1)
    stream.subscribe(A, request(2))
    assert stream.take_messages(T0) == [Unsubscriptions((0,)), Subscriptions((bound(1, A, 2),))]


def test_route_that_the_leader_ends_is_told_once() -> None:
    """After its end a route is unknown."""
    stream = following(A)
    assert stream.end(0) == (A, 1)
    assert stream.end(0) is None
    assert stream.find(0) is None
    assert stream.is_idle


def test_last_acknowledgement_of_each_route_is_sent() -> None:
    """Earlier acknowledgements are not sent. An ended session is not acknowledged."""
    stream = following(A, B)
    stream.ack(A, ack(1, 5))
    stream.ack(A, ack(1, 9))
    stream.ack(B, ack(1, 3))
    stream.ack(B, ack(2, 4))
    stream.ack(C, ack(1, 4))
    assert stream.take_messages(T0) == [Acks((RouteAck(0, 9, 9), RouteAck(1, 3, 3)))]
    assert stream.take_messages(T0) == []


def test_acknowledgements_wait_for_each_other() -> None:
    """The first acknowledgement is sent at once, the next ones together a little later."""
    stream = following(A)
    stream.ack(A, ack(1, 1))
    assert stream.deadline_ms() <= T0
    assert stream.take_messages(T0) == [Acks((RouteAck(0, 1, 1),))]
    stream.ack(A, ack(1, 2))
    assert stream.deadline_ms() == T0 + LIMITS.acks_coalesce_ms
    assert stream.take_messages(T0 + LIMITS.acks_coalesce_ms - 1) == []
    stream.ack(A, ack(1, 3))
    assert stream.take_messages(T0 + LIMITS.acks_coalesce_ms) == [Acks((RouteAck(0, 3, 3),))]


def test_acknowledgement_of_an_ended_route_is_not_sent() -> None:
    """The leader would not know the route."""
    stream = following(A)
    stream.ack(A, ack(1, 1))
    stream.end(0)
    assert stream.take_messages(T0) == []


def test_messages_have_a_most_number_of_entries() -> None:
    """Many partitions take several messages, in their order."""
    replicas = [Replica(b"t" * 16, partition) for partition in range(LIMITS.subscribes_per_message + 1)]
    stream = new_session()
    for replica in replicas:
        stream.subscribe(replica, request(1))
    sent = stream.take_messages(T0)
    assert [len(part.subscriptions) for part in sent if isinstance(part, Subscriptions)] == [
        LIMITS.subscribes_per_message,
        1,
    ]
    for replica in replicas:
        stream.ack(replica, ack(1, 1))
    acked = stream.take_messages(T0 + LIMITS.acks_coalesce_ms)
    assert [len(part.acks) for part in acked if isinstance(part, Acks)] == [LIMITS.acks_per_message, 1]
    for replica in replicas:
        stream.unsubscribe(replica, 1)
    ended = stream.take_messages(T0 + LIMITS.acks_coalesce_ms)
    assert [len(part.routes) for part in ended if isinstance(part, Unsubscriptions)] == [
        LIMITS.subscribes_per_message,
        1,
    ]


def test_credit_goes_back_by_class_when_a_part_of_it_is_used() -> None:
    """A small amount is not worth a message. Later all of it is granted, for both classes."""
    stream = following(A)
    stream.use_credit(LIMITS.in_sync_credit_bytes // 8 - 1, is_in_sync=True)
    stream.use_credit(7, is_in_sync=False)
    assert stream.take_messages(T0) == []
    stream.use_credit(1, is_in_sync=True)
    assert stream.has_urgent
    assert stream.take_messages(T0) == [Credit(LIMITS.in_sync_credit_bytes // 8, 7)]
    assert stream.take_messages(T0) == []
    stream.use_credit(LIMITS.catch_up_credit_bytes // 8, is_in_sync=False)
    assert stream.take_messages(T0) == [Credit(0, LIMITS.catch_up_credit_bytes // 8)]


def test_side_that_has_nothing_to_say_says_that_it_lives() -> None:
    """After a second without a message comes a heartbeat; any message puts it off."""
    stream = following(A)
    assert stream.deadline_ms() == T0 + LIMITS.idle_ms
    assert stream.take_messages(T0 + LIMITS.idle_ms - 1) == []
    assert stream.take_messages(T0 + LIMITS.idle_ms) == [Heartbeat()]
    assert stream.take_messages(T0 + LIMITS.idle_ms) == []
    stream.ack(A, ack(1, 1))
    stream.take_messages(T0 + 1_500)
    assert stream.deadline_ms() == T0 + 1_500 + LIMITS.idle_ms


def test_silence_of_the_leader_is_counted_from_what_it_said_last() -> None:
    """The stream is given up after the whole time without a message of the leader."""
    stream = following(A)
    assert stream.silence_left_ms(T0) == LIMITS.silence_ms
    stream.hear(T0 + 500)
    assert stream.silence_left_ms(T0 + LIMITS.silence_ms) == 500
    assert stream.silence_left_ms(T0 + LIMITS.silence_ms + 500) == 0


def test_lost_stream_names_every_subscription_once() -> None:
    """They are the sent and the waiting ones, with their sessions."""
    stream = following(A, B)
    stream.end(0)
    stream.subscribe(C, request(4))
    assert stream.subscriptions() == [(B, 1), (C, 4)]


def test_stream_without_numbers_left_is_used_up() -> None:
    """A subscription without a number waits for the next stream."""
    stream = new_session(replace(LIMITS, max_routes=2))
    for replica in (A, B, C):
        stream.subscribe(replica, request(1))
    assert stream.take_messages(T0) == [Subscriptions((bound(0, A, 1), bound(1, B, 1)))]
    assert stream.is_used_up
    assert stream.subscriptions() == [(A, 1), (B, 1), (C, 1)]

# SPDX-License-Identifier: Apache-2.0
"""The core of a stream at the leader: route numbers and subscriptions, and their limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.partition.leader_stream import LeaderSession, Rebinding
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.partition.stream_messages import RouteAck
from brokerd.tests.partition.leader_sessions import (
    LIMITS,
    accept,
    acked,
    ended,
    opened_session,
    read,
    refusal,
    subscribe,
    subscription,
)


def test_unwanted_routes_end_without_an_answer() -> None:
    """The replica hears of it, but not of routes that were never bound."""
    session = opened_session()
    subscribe(session, 1, log_end=5)
    assert session.unsubscribe((1, 1, 5, -1), 0) == [1]
    assert session.take_answers(0) == []
    assert session.next_read(0) is None


def test_a_newer_subscription_of_a_partition_ends_the_older_route() -> None:
    """The replica loses the older one first. The follower knows, so it is not told."""
    session = opened_session()
    subscribe(session, 1, log_end=5)
    newer = subscription(2, end=3, session=2)
    assert session.subscribe((newer,), 0) == [Rebinding(1, newer)]
    assert session.acknowledge(acked(1, 0), 0) == []
    assert session.take_answers(0) == []
    accept(session, 2, end=5)
    session.take_answers(0)
    assert read(session, 5) == (2, 3)
    other = subscription(3, partition=1)
    assert session.subscribe((other,), 0) == [Rebinding(None, other)]


@pytest.mark.parametrize("is_over", [False, True], ids=["bound", "over"])
def test_a_number_is_never_used_again(is_over: bool) -> None:
    """A number that was bound before ends the stream, whether its route is over or not."""
    session = opened_session()
    subscribe(session, 1)
    if is_over:
        session.unsubscribe((1,), 0)
    assert session.subscribe((subscription(1, partition=1),), 0) == []
    assert "route 1 " in refusal(session)


def test_numbers_need_not_come_in_order() -> None:
    """Any number that was not used may be bound, up to the limit."""
    session = opened_session()
    last = LIMITS.max_routes - 1
    for place, number in enumerate((100, 3, last, 0)):
        subscribe(session, number, partition=place)
    assert session.route_count == 4


def test_numbers_out_of_range() -> None:
    """A number at the limit is refused alone. A number below zero ends the stream, after the earlier part of the message."""
    session = opened_session()
    beyond = subscription(LIMITS.max_routes)
    good = subscription(1)
    assert session.subscribe((beyond, good), 0) == [Rebinding(None, good)]
    assert session.take_answers(0) == [ended(LIMITS.max_routes, SubscriptionError.OVERLOADED)]
    wanted = (subscription(2, partition=2), subscription(-1, partition=3))
    assert session.subscribe(wanted, 0) == [Rebinding(None, wanted[0])]
    assert "below 0" in refusal(session)


@pytest.mark.parametrize(
    "fields",
    [
        {"flushed": -1},
        {"end": 5, "flushed": 6},
        {"end": -5, "flushed": -6},
        {"session": -1},
        {"leader_epoch": -1},
        {"last_epoch": -1},
    ],
    ids=str,
)
def test_a_subscription_that_contradicts_itself_is_refused_alone(fields: dict[str, int]) -> None:
    """No replica hears of it, and the next one in the message is served."""
    session = opened_session()
    good = subscription(2, partition=1, end=5, last_epoch=0)
    wanted = (subscription(1, **fields), good)
    assert session.subscribe(wanted, 0) == [Rebinding(None, good)]
    assert session.take_answers(0) == [ended(1, SubscriptionError.INVALID_ACK)]


def test_a_refused_subscription_of_a_partition_ends_the_older_route_all_the_same() -> None:
    """The follower has dropped the older one. Its replica loses it and hears of no other."""
    session = opened_session()
    subscribe(session, 1, log_end=5)
    assert session.subscribe((subscription(2, flushed=-1),), 0) == [Rebinding(1, None)]
    assert session.take_answers(0) == [ended(2, SubscriptionError.INVALID_ACK)]
    assert session.route_count == 0
    assert session.next_read(0) is None


TOO_MANY = range(LIMITS.subscribes_per_message + 1)


@pytest.mark.parametrize(
    "say",
    [
        lambda session: session.subscribe([subscription(route, partition=route) for route in TOO_MANY], 0),
        lambda session: session.unsubscribe(TOO_MANY, 0),
        lambda session: session.acknowledge([RouteAck(route, 0, 0) for route in TOO_MANY], 0),
    ],
    ids=["subscriptions", "unsubscriptions", "acks"],
)
def test_a_message_has_a_most(say: Callable[[LeaderSession], list[object]]) -> None:
    """A message with more entries than the maximum ends the stream and has no other effect."""
    session = opened_session()
    assert say(session) == []
    assert "2001" in refusal(session)
    assert session.route_count == 0


def test_the_stream_is_not_read_while_too_much_waits() -> None:
    """Unread answers limit what is accepted."""
    session = opened_session()
    subscribe(session, 0)
    wanted = tuple(subscription(LIMITS.max_routes) for _ in range(LIMITS.subscribes_per_message))
    count = 0
    while not session.must_pause:
        session.subscribe(wanted, 0)
        count += len(wanted)
    assert count < LIMITS.max_waiting_answers + LIMITS.subscribes_per_message
    assert len(session.take_answers(0)) == count
    assert not session.must_pause


def test_a_message_may_be_full() -> None:
    """A message with the maximum number of entries is accepted."""
    session = opened_session()
    numbers = range(LIMITS.subscribes_per_message)
    wanted = tuple(subscription(number, partition=number) for number in numbers)
    assert session.subscribe(wanted, 0) == [Rebinding(None, each) for each in wanted]
    for number in numbers:
        accept(session, number)
    acks = tuple(RouteAck(number, 0, 0) for number in range(LIMITS.acks_per_message))
    assert len(session.acknowledge(acks, 0)) == LIMITS.acks_per_message
    assert len(session.unsubscribe(tuple(numbers), 0)) == LIMITS.subscribes_per_message

# SPDX-License-Identifier: Apache-2.0
"""The core of a stream at the leader: numbers and subscriptions, and what bounds them."""

from __future__ import annotations

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.limits import (
    ACKS_PER_MESSAGE,
    MAX_ROUTES_PER_REPLICATE_STREAM,
    MAX_STREAM_OUTBOX_ITEMS,
    SUBSCRIBES_PER_MESSAGE,
)
from brokerd.partition.leader_stream_events import (
    AcksReceived,
    LoseReplica,
    PushEvent,
    RouteAck,
    RoutesUnwanted,
    SubscribeReplica,
    SubscriptionsReceived,
)
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.tests.push_support import (
    accept,
    acked,
    ended,
    only_abort,
    opened_session,
    read,
    subscribe,
    subscription,
)


def test_unwanted_routes_end_without_an_answer() -> None:
    """The replica hears of it, and of none that was not bound."""
    session = opened_session()
    subscribe(session, 1, log_end=5)
    assert session.step(RoutesUnwanted(routes=(1, 1, 5, -1)), 0) == [LoseReplica(route=1)]
    assert session.take_answers(0) == []
    assert session.next_read(0) is None


def test_a_newer_subscription_of_a_partition_ends_the_older_route() -> None:
    """The replica loses the older one first; the follower, which knows, is not told."""
    session = opened_session()
    subscribe(session, 1, log_end=5)
    newer = subscription(2, end=3, session=2)
    assert session.step(SubscriptionsReceived(subscriptions=(newer,)), 0) == [
        LoseReplica(route=1),
        SubscribeReplica(subscription=newer),
    ]
    assert session.step(acked(1, 0), 0) == []
    assert session.take_answers(0) == []
    accept(session, 2, end=5)
    session.take_answers(0)
    assert read(session, 5) == (2, 3)
    other = subscription(3, partition=1)
    assert session.step(SubscriptionsReceived(subscriptions=(other,)), 0) == [SubscribeReplica(subscription=other)]


@pytest.mark.parametrize("is_over", [False, True], ids=["bound", "over"])
def test_a_number_is_never_used_again(is_over: bool) -> None:
    """A number that was bound before ends the stream, whether its route is over or not."""
    session = opened_session()
    subscribe(session, 1)
    if is_over:
        session.step(RoutesUnwanted(routes=(1,)), 0)
    again = SubscriptionsReceived(subscriptions=(subscription(1, partition=1),))
    failure = only_abort(session.step(again, 0))
    assert failure.code is ErrorCode.INVALID_REQUEST
    assert "route 1 " in failure.message


def test_numbers_need_not_come_in_order() -> None:
    """Any number that was not used may be bound, up to the limit."""
    session = opened_session()
    last = MAX_ROUTES_PER_REPLICATE_STREAM - 1
    for place, number in enumerate((100, 3, last, 0)):
        subscribe(session, number, partition=place)
    assert session.route_count == 4


def test_numbers_out_of_range() -> None:
    """One at the limit is refused alone; one below zero ends the stream, behind what came before it in the message."""
    session = opened_session()
    beyond = subscription(MAX_ROUTES_PER_REPLICATE_STREAM)
    good = subscription(1)
    effects = session.step(SubscriptionsReceived(subscriptions=(beyond, good)), 0)
    assert effects == [SubscribeReplica(subscription=good)]
    assert session.take_answers(0) == [ended(MAX_ROUTES_PER_REPLICATE_STREAM, SubscriptionError.OVERLOADED)]
    wanted = (subscription(2, partition=2), subscription(-1, partition=3))
    effects = session.step(SubscriptionsReceived(subscriptions=wanted), 0)
    assert effects[0] == SubscribeReplica(subscription=wanted[0])
    assert only_abort(effects[1:]).code is ErrorCode.INVALID_REQUEST


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
    assert session.step(SubscriptionsReceived(subscriptions=wanted), 0) == [SubscribeReplica(subscription=good)]
    assert session.take_answers(0) == [ended(1, SubscriptionError.INVALID_ACK)]


@pytest.mark.parametrize(
    "event",
    [
        SubscriptionsReceived(
            subscriptions=tuple(subscription(route, partition=route) for route in range(SUBSCRIBES_PER_MESSAGE + 1))
        ),
        RoutesUnwanted(routes=tuple(range(SUBSCRIBES_PER_MESSAGE + 1))),
        AcksReceived(
            acks=tuple(
                RouteAck(route=route, appended_offset=0, flushed_offset=0) for route in range(ACKS_PER_MESSAGE + 1)
            )
        ),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_message_has_a_most(event: PushEvent) -> None:
    """One with more entries ends the stream and has no other effect."""
    session = opened_session()
    failure = only_abort(session.step(event, 0))
    assert failure.code is ErrorCode.INVALID_REQUEST
    assert "2001" in failure.message
    assert session.route_count == 0


def test_the_stream_is_not_read_while_too_much_waits() -> None:
    """Answers that nobody takes bound what is taken in."""
    session = opened_session()
    subscribe(session, 0)
    wanted = tuple(subscription(MAX_ROUTES_PER_REPLICATE_STREAM) for _ in range(SUBSCRIBES_PER_MESSAGE))
    count = 0
    while not session.must_pause:
        session.step(SubscriptionsReceived(subscriptions=wanted), 0)
        count += len(wanted)
    assert count < MAX_STREAM_OUTBOX_ITEMS + SUBSCRIBES_PER_MESSAGE
    assert len(session.take_answers(0)) == count
    assert not session.must_pause


def test_a_message_may_be_full() -> None:
    """As many entries as the limit says are taken."""
    session = opened_session()
    numbers = range(SUBSCRIBES_PER_MESSAGE)
    wanted = tuple(subscription(number, partition=number) for number in numbers)
    effects = session.step(SubscriptionsReceived(subscriptions=wanted), 0)
    assert effects == [SubscribeReplica(subscription=each) for each in wanted]
    for number in numbers:
        accept(session, number)
    acks = tuple(RouteAck(route=number, appended_offset=0, flushed_offset=0) for number in range(ACKS_PER_MESSAGE))
    assert len(session.step(AcksReceived(acks=acks), 0)) == ACKS_PER_MESSAGE
    assert len(session.step(RoutesUnwanted(routes=tuple(numbers)), 0)) == SUBSCRIBES_PER_MESSAGE

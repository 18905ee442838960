# SPDX-License-Identifier: Apache-2.0
"""The core of a stream at the leader: marks, heartbeats, silence, shutdown; everything that time alone causes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.partition.leader_stream import LeaderSession
from brokerd.partition.reconciliation import SubscriptionError
from brokerd.partition.replication_rates import ReplicationRates, Traffic
from brokerd.partition.stream_messages import Credit, Ended, GoAway, Heartbeat, LeaderMessage, Marks, RouteMark
from brokerd.tests.partition.leader_sessions import (
    LIMITS,
    OPENED,
    accept,
    is_timed_out,
    new_session,
    opened_session,
    read,
    subscribe,
    subscription,
)


def move(
    session: LeaderSession, route: int, high_watermark: int, *, log_start_offset: int = 0, now_ms: int = 0
) -> None:
    """Move the high watermark of a route."""
    session.mark(route, high_watermark=high_watermark, log_start_offset=log_start_offset, now_ms=now_ms)


def tick(session: LeaderSession, now_ms: int) -> list[LeaderMessage]:
    """Let time pass, and return the messages to write."""
    session.tick(now_ms)
    assert not session.is_over
    return session.take_answers(now_ms)


def mark(route: int, high_watermark: int, log_start_offset: int = 0) -> RouteMark:
    """Return a mark of a route."""
    return RouteMark(route, high_watermark, log_start_offset)


def test_marks_of_all_routes_go_out_together() -> None:
    """The first mark waits 2 ms for others. Each route is in the message once, with its last values."""
    session = opened_session()
    for route in (1, 2, 3):
        subscribe(session, route, partition=route)
    move(session, 2, 4, now_ms=100)
    assert session.deadline_ms() == 100 + LIMITS.marks_coalesce_ms
    move(session, 1, 5, now_ms=101)
    move(session, 2, 6, log_start_offset=2, now_ms=101)
    assert not session.has_answers
    assert tick(session, 101) == []
    assert tick(session, 102) == [Marks((mark(2, 6, 2), mark(1, 5)))]
    assert tick(session, 104) == []


def test_no_news_is_no_mark() -> None:
    """A high watermark and log start that the route has already got make no mark; nor does an unknown route."""
    session = opened_session()
    subscribe(session, 1, high_watermark=7)
    move(session, 1, 7)
    move(session, 9, 7)
    assert session.deadline_ms() == LIMITS.idle_ms
    assert tick(session, LIMITS.marks_coalesce_ms) == []
    move(session, 1, 7, log_start_offset=1)
    assert tick(session, LIMITS.marks_coalesce_ms) == [Marks((mark(1, 7, 1),))]


def test_batches_take_the_news_along() -> None:
    """A route that gets batches in time needs no mark, because they carry the watermark. The others get their marks."""
    session = opened_session()
    subscribe(session, 1)
    subscribe(session, 2, partition=1)
    session.grow(1, 9)
    move(session, 1, 4, log_start_offset=2)
    move(session, 2, 3)
    wanted = session.next_read(0)
    assert wanted is not None
    assert (wanted.route, wanted.high_watermark, wanted.log_start_offset) == (1, 4, 2)
    session.note_read(1, next_offset=9, size_bytes=100, now_ms=1)
    assert tick(session, LIMITS.marks_coalesce_ms) == [Marks((mark(2, 3),))]
    move(session, 1, 9, log_start_offset=2, now_ms=10)
    session.grow(1, 10)
    read(session, 10, now_ms=11)
    assert session.deadline_ms() > 10 + LIMITS.marks_coalesce_ms, "no mark waits any more"


def test_a_route_without_credit_is_marked() -> None:
    """Where nothing can be sent, the watermark still gets through."""
    session = opened_session(in_sync_bytes=0)
    subscribe(session, 1, log_end=9)
    move(session, 1, 4)
    assert session.next_read(0) is None
    assert tick(session, LIMITS.marks_coalesce_ms) == [Marks((mark(1, 4),))]


def test_a_route_that_ended_is_not_marked() -> None:
    """Nothing comes on a route behind its end."""
    session = opened_session()
    subscribe(session, 1)
    move(session, 1, 4)
    session.unsubscribe((1,), 0)
    assert tick(session, LIMITS.marks_coalesce_ms) == []


def test_marks_have_a_most_a_message() -> None:
    """More routes than that go out 2 ms later."""
    session = opened_session()
    count = LIMITS.marks_per_message + 1
    for first in range(0, count, LIMITS.subscribes_per_message):
        numbers = range(first, min(first + LIMITS.subscribes_per_message, count))
        wanted = tuple(subscription(number, partition=number) for number in numbers)
        session.subscribe(wanted, 0)
        for number in numbers:
            accept(session, number)
    session.take_answers(0)
    for number in range(count):
        move(session, number, 1)
    (first_marks,) = tick(session, 2)
    assert first_marks == Marks(tuple(mark(number, 1) for number in range(LIMITS.marks_per_message)))
    assert session.deadline_ms() == 4
    assert tick(session, 3) == []
    assert tick(session, 4) == [Marks((mark(LIMITS.marks_per_message, 1),))]


def test_marks_wait_while_the_writer_is_behind() -> None:
    """For a follower that does not read, messages do not pile up: new marks replace waiting ones until they are taken."""
    session = opened_session()
    subscribe(session, 1)
    for now_ms in range(0, 200, 10):
        move(session, 1, now_ms + 1, now_ms=now_ms)
        session.tick(now_ms + LIMITS.marks_coalesce_ms)
    assert session.deadline_ms() > 190 + LIMITS.marks_coalesce_ms
    assert session.take_answers(200) == [Marks((mark(1, 1),))]
    assert tick(session, 202) == [Marks((mark(1, 191),))]


def test_an_idle_stream_sends_a_heartbeat_a_second() -> None:
    """A heartbeat comes after a second without another message. Batches and answers delay it, whatever their route is."""
    session = opened_session()
    subscribe(session, 1)
    assert session.deadline_ms() == LIMITS.idle_ms
    assert tick(session, LIMITS.idle_ms - 1) == []
    assert tick(session, LIMITS.idle_ms) == [Heartbeat()]
    assert tick(session, LIMITS.idle_ms + 1) == []
    session.hear(1_500)
    session.grow(1, 1)
    read(session, 1, now_ms=1_500)
    assert session.deadline_ms() == 2_500
    subscribe(session, 2, partition=1, now_ms=1_700)
    assert session.deadline_ms() == 2_700


def test_a_writer_that_is_behind_is_not_asked_for_heartbeats() -> None:
    """The waiting messages suffice. The next check is a second later, not at once."""
    session = opened_session()
    session.tick(LIMITS.idle_ms)
    session.tick(2 * LIMITS.idle_ms)
    assert session.deadline_ms() == 3 * LIMITS.idle_ms
    assert session.take_answers(2_000) == [Heartbeat()]


@pytest.mark.parametrize(
    "say",
    [
        lambda session, now_ms: session.subscribe((), now_ms),
        lambda session, now_ms: session.unsubscribe((), now_ms),
        lambda session, now_ms: session.acknowledge((), now_ms),
        lambda session, now_ms: session.grant(Credit(0, 0), now_ms),
        lambda session, now_ms: session.hear(now_ms),
    ],
    ids=["subscriptions", "unsubscriptions", "acks", "credit", "heartbeat"],
)
def test_any_message_breaks_the_silence(say: Callable[[LeaderSession, int], object]) -> None:
    """The time of silence starts over with each message."""
    session = opened_session()
    for now_ms in range(500, LIMITS.silence_ms, 500):
        tick(session, now_ms)
    say(session, LIMITS.silence_ms - 1)
    assert tick(session, LIMITS.silence_ms) == [Heartbeat()]


def test_silence_ends_the_stream() -> None:
    """A follower without a message for 3 s is gone, however much is sent to it."""
    session = opened_session()
    subscribe(session, 1)
    for now_ms in range(100, LIMITS.silence_ms, 100):
        session.grow(1, now_ms)
        read(session, now_ms, now_ms=now_ms)
        session.tick(now_ms)
        assert not session.is_over
    assert session.deadline_ms() == LIMITS.silence_ms
    session.tick(LIMITS.silence_ms)
    assert is_timed_out(session)


def test_a_leader_that_stood_still_listens_once_more() -> None:
    """A tick that comes a second late shows a process pause. Messages that arrived during it get time to be read."""
    session = opened_session()
    late_ms = LIMITS.silence_ms + LIMITS.idle_ms
    session.tick(late_ms)
    assert not session.is_over
    assert session.deadline_ms() == late_ms + LIMITS.idle_ms
    session.tick(late_ms + LIMITS.idle_ms)
    assert is_timed_out(session)


def test_a_stop_is_told_and_ends_with_the_last_route() -> None:
    """The stream is served until its partitions have other leaders. Then it may be closed."""
    session = opened_session()
    assert not session.is_finished, "a stream without routes lives on"
    subscribe(session, 1, log_end=5)
    session.stop(2_000, 100)
    session.stop(9_000, 200)
    assert session.take_answers(200) == [GoAway(2_000)]
    assert not session.is_finished
    read(session, 5)
    session.end_route(1, SubscriptionError.NOT_LEADER)
    assert not session.is_finished, "the end is not written yet"
    (answer,) = session.take_answers(300)
    assert isinstance(answer, Ended)
    assert session.is_finished


def test_a_stop_has_its_time() -> None:
    """Routes that no other broker takes delay the stop only for the announced time."""
    session = opened_session()
    subscribe(session, 1, log_end=5)
    session.stop(500, 100)
    assert session.deadline_ms() == 600
    session.tick(599)
    assert not session.is_over
    session.tick(600)
    assert session.is_over
    assert session.failure is None, "it ends in good order"


def test_the_rate_sets_a_deadline() -> None:
    """A route that only the rate holds back is checked when the bucket has filled, even if the writer is behind."""
    session = opened_session(rates=ReplicationRates(catch_up_limit=1_000))
    subscribe(session, 1, log_end=9, traffic=Traffic.CATCH_UP)
    read(session, 1, size_bytes=1_100)
    assert session.next_read(0) is None
    assert session.deadline_ms() == 101
    session.tick(101)
    assert session.deadline_ms() == LIMITS.idle_ms
    assert read(session, 2, now_ms=101) == (1, 1)


def test_many_idle_routes_cost_no_time() -> None:
    """With any number of routes, only the stream itself has a deadline, and a tick touches none of them."""
    session = opened_session()
    for first in range(0, 6_000, LIMITS.subscribes_per_message):
        numbers = range(first, first + LIMITS.subscribes_per_message)
        wanted = tuple(subscription(number, partition=number) for number in numbers)
        session.subscribe(wanted, 0)
        for number in numbers:
            accept(session, number)
        session.take_answers(0)
    assert session.deadline_ms() == LIMITS.idle_ms
    assert tick(session, LIMITS.idle_ms) == [Heartbeat()]
    assert session.next_read(LIMITS.idle_ms) is None


def test_the_times_of_a_stream_begin_with_its_opening() -> None:
    """The times count from the end of the opening, however long it took."""
    session = new_session()
    session.open(Credit(0, 0), OPENED, 1_900)
    assert session.deadline_ms() == 1_900 + LIMITS.idle_ms

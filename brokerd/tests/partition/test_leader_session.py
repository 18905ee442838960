# SPDX-License-Identifier: Apache-2.0
"""The core of a stream at the leader: opening, subscriptions, acknowledgements, batches, effects of bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.partition.leader_stream import LeaderSession, NextRead, Rebinding
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.partition.replication_rates import Traffic
from brokerd.partition.stream_messages import Accepted, Credit, Diverged, RouteAck
from brokerd.tests.partition.leader_sessions import (
    LIMITS,
    OPENED,
    accept,
    acked,
    ended,
    is_timed_out,
    new_session,
    opened_session,
    read,
    refusal,
    subscribe,
    subscription,
)


@pytest.mark.parametrize(
    "say",
    [
        lambda session: session.subscribe((), 0),
        lambda session: session.unsubscribe((), 0),
        lambda session: session.acknowledge((), 0),
        lambda session: session.grant(Credit(1, 1), 0),
        lambda session: session.hear(0),
    ],
    ids=["subscriptions", "unsubscriptions", "acks", "credit", "heartbeat"],
)
def test_open_comes_first(say: Callable[[LeaderSession], object]) -> None:
    """Any other first message ends the stream, and the reason names the expected message."""
    session = new_session()
    assert not say(session)
    assert "`open`" in refusal(session)


def test_opened_is_the_first_answer_even_at_a_stop() -> None:
    """Nothing is written before the answer to the opening, not even that the broker stops."""
    session = new_session()
    session.stop(100, 0)
    assert not session.has_answers
    assert session.take_answers(0) == []
    assert not session.is_finished
    session.open(Credit(0, 0), OPENED, 0)
    assert session.has_answers
    assert session.take_answers(0)[0] == OPENED
    assert session.is_finished


def test_open_comes_once() -> None:
    """A second opening ends the stream."""
    session = opened_session()
    session.open(Credit(1, 1), OPENED, 0)
    assert "twice" in refusal(session)


@pytest.mark.parametrize(("in_sync", "catch_up"), [(-1, 0), (0, -1), (LIMITS.max_credit_bytes + 1, 0)])
def test_bad_credit_ends_the_stream(in_sync: int, catch_up: int) -> None:
    """Credit below zero or over the limit is refused, at the opening and later."""
    credit = Credit(in_sync, catch_up)
    session = new_session()
    session.open(credit, OPENED, 0)
    assert "credit" in refusal(session)
    session = opened_session()
    session.grant(credit, 0)
    assert "credit" in refusal(session)


def test_a_stream_that_is_never_opened_ends() -> None:
    """The opening has its time limit."""
    session = new_session(now_ms=1_000)
    assert session.deadline_ms() == 1_000 + LIMITS.open_ms
    session.tick(1_000 + LIMITS.open_ms - 1)
    assert not session.is_over
    session.tick(1_000 + LIMITS.open_ms)
    assert is_timed_out(session)


def test_an_accepted_route_is_sent_everything_from_the_followers_end_on() -> None:
    """Acceptance first, then batches from the follower's log end to the leader's, one chunk at a time."""
    session = opened_session()
    wanted = subscription(7, end=10)
    assert session.subscribe((wanted,), 0) == [Rebinding(None, wanted)]
    assert session.next_read(0) is None
    accept(session, 7, end=30, high_watermark=12, log_start_offset=3)
    assert session.next_read(0) is None, "the answer goes first"
    assert session.take_answers(0) == [Accepted(route=7, high_watermark=12, log_start_offset=3)]
    assert session.next_read(0) == NextRead(
        route=7,
        offset=10,
        max_bytes=LIMITS.chunk_bytes,
        high_watermark=12,
        log_start_offset=3,
        is_in_sync=True,
    )
    assert session.note_read(7, next_offset=25, size_bytes=100, now_ms=0)
    assert read(session, 30) == (7, 25)
    assert session.next_read(0) is None


def test_an_answer_goes_before_batches_of_any_route() -> None:
    """While an answer waits, nothing is read: batches never overtake answers."""
    session = opened_session()
    subscribe(session, 1, log_end=5)
    subscribe(session, 2, partition=1)
    session.end_route(2, SubscriptionError.NOT_LEADER)
    assert session.next_read(0) is None
    assert session.take_answers(0) == [ended(2, SubscriptionError.NOT_LEADER)]
    assert read(session, 5) == (1, 0)


def test_growth_wakes_a_route_that_had_everything() -> None:
    """A route at the log end gets what is appended. Older marks, and marks of unknown routes, change nothing."""
    session = opened_session()
    subscribe(session, 1, log_end=0)
    assert session.next_read(0) is None
    session.grow(1, 4)
    session.grow(1, 3)
    session.grow(99, 4)
    assert read(session, 4) == (1, 0)
    session.grow(1, 4)
    assert session.next_read(0) is None


def test_growth_before_the_acceptance_is_not_lost() -> None:
    """The log may grow while the answer is under way; it is sent after the acceptance, not before."""
    session = opened_session()
    session.subscribe((subscription(1),), 0)
    session.grow(1, 9)
    session.mark(1, high_watermark=5, log_start_offset=0, now_ms=0)
    assert session.next_read(0) is None
    accept(session, 1, end=6)
    session.take_answers(0)
    assert read(session, 9) == (1, 0)
    assert session.next_read(0) is None


def test_a_route_that_is_gone_hears_no_late_answer() -> None:
    """Events of a replica for an ended route, or repeated ones, are ignored."""
    session = opened_session()
    subscribe(session, 1)
    subscribe(session, 2, partition=1)
    session.unsubscribe((1,), 0)
    accept(session, 1, end=5)
    accept(session, 2, end=5)
    session.diverge(1, EpochEnd(1, 2))
    session.end_route(1, SubscriptionError.NOT_LEADER)
    session.classify(1, Traffic.CATCH_UP)
    session.mark(1, high_watermark=5, log_start_offset=0, now_ms=0)
    assert not session.note_read(1, next_offset=5, size_bytes=10, now_ms=0)
    session.end_route(1, SubscriptionError.STORAGE_FAILED, log_start_offset=0)
    assert session.take_answers(0) == []
    assert session.next_read(0) is None
    assert session.route_count == 1


def test_diverged_and_refused_end_the_route() -> None:
    """The follower hears of both. The replica knows already, so it is not told again."""
    session = opened_session()
    wanted = (subscription(1), subscription(2, partition=1))
    session.subscribe(wanted, 0)
    session.diverge(1, EpochEnd(4, 8))
    session.end_route(2, SubscriptionError.BELOW_LOG_START, log_start_offset=6)
    assert session.take_answers(0) == [
        Diverged(route=1, leader_end=EpochEnd(4, 8)),
        ended(2, SubscriptionError.BELOW_LOG_START, 6),
    ]
    assert session.route_count == 0


def test_an_end_takes_a_waiting_route_out_of_its_turn() -> None:
    """Nothing is sent on a route behind its end."""
    session = opened_session()
    subscribe(session, 1, log_end=5)
    session.end_route(1, SubscriptionError.NOT_LEADER)
    session.take_answers(0)
    assert session.next_read(0) is None


def test_acknowledgements_go_to_their_replicas() -> None:
    """Each acknowledgement of an accepted route is passed on, in order. Those of unknown, ended or unaccepted routes are not."""
    session = opened_session()
    for route in (1, 2, 3):
        subscribe(session, route, partition=route, log_end=8)
        read(session, 8)
    session.unsubscribe((2,), 0)
    session.subscribe((subscription(4, partition=4),), 0)
    acks = tuple(RouteAck(route, 8, route) for route in (3, 9, 2, 1, 4, -1))
    assert session.acknowledge(acks, 0) == [
        RouteAck(3, 8, 3),
        RouteAck(1, 8, 1),
    ]
    assert session.take_answers(0) == []


@pytest.mark.parametrize(
    ("appended", "flushed"), [(6, 2), (6, 6), (9, 5), (5, 6), (-1, -1), (5, -1), (3, 2), (4, 1)], ids=str
)
def test_a_false_acknowledgement_ends_the_stream(appended: int, flushed: int) -> None:
    """Acknowledgements beyond what was sent, inconsistent ones, or ones below an earlier one: neither they nor later ones count.

    An offset beyond what was sent may be in the leader's log, where it would count. Each rule is broken alone at least once.
    """
    session = opened_session()
    subscribe(session, 1, log_end=9)
    read(session, 5)
    subscribe(session, 2, partition=1)
    assert session.acknowledge(acked(1, 4, 2), 0) == [RouteAck(1, 4, 2)]
    acks = (
        RouteAck(2, 0, 0),
        RouteAck(1, appended, flushed),
        RouteAck(2, 0, 0),
    )
    assert session.acknowledge(acks, 0) == [RouteAck(2, 0, 0)]
    assert "acknowledgement of route 1" in refusal(session)


def test_what_was_sent_may_be_acknowledged_in_full() -> None:
    """The end of the last message is the maximum."""
    session = opened_session()
    subscribe(session, 1, log_end=9)
    read(session, 5)
    assert session.acknowledge(acked(1, 5), 0) == [RouteAck(1, 5, 5)]


def test_a_failed_read_ends_the_route() -> None:
    """The follower hears the reason, and no credit is spent."""
    session = opened_session()
    subscribe(session, 1, log_end=9)
    assert session.next_read(0) is not None
    session.end_route(1, SubscriptionError.BELOW_LOG_START, log_start_offset=4)
    assert session.route_count == 0
    assert session.take_answers(0) == [ended(1, SubscriptionError.BELOW_LOG_START, 4)]
    assert session.credit_bytes(is_in_sync=True) == 1_000_000


def test_a_read_that_gives_nothing_ends_the_route() -> None:
    """The log end says that there are bytes. Reading nothing would repeat forever."""
    session = opened_session()
    subscribe(session, 1, log_end=9)
    assert session.next_read(0) is not None
    assert not session.note_read(1, next_offset=0, size_bytes=0, now_ms=0)
    assert session.take_answers(0) == [ended(1, SubscriptionError.STORAGE_FAILED)]


def test_each_class_spends_its_own_credit() -> None:
    """A route spends the credit of its class, and the replica may change the class."""
    session = opened_session(in_sync_bytes=100, catch_up_bytes=100)
    subscribe(session, 1, log_end=9)
    read(session, 1, size_bytes=30)
    assert (session.credit_bytes(is_in_sync=True), session.credit_bytes(is_in_sync=False)) == (70, 100)
    session.classify(1, Traffic.CATCH_UP)
    session.classify(1, Traffic.CATCH_UP)
    following = session.next_read(0)
    assert following is not None
    assert not following.is_in_sync
    session.note_read(1, next_offset=2, size_bytes=130, now_ms=0)
    assert (session.credit_bytes(is_in_sync=True), session.credit_bytes(is_in_sync=False)) == (70, -30)
    assert session.next_read(0) is None
    session.grant(Credit(0, 30), 0)
    assert session.next_read(0) is None
    session.grant(Credit(0, 1), 0)
    assert read(session, 9) == (1, 2)


def test_a_change_of_class_while_idle_counts_from_the_next_append_on() -> None:
    """A route with nothing to send is in no queue, whatever its class becomes."""
    session = opened_session(catch_up_bytes=0)
    subscribe(session, 1)
    session.classify(1, Traffic.CATCH_UP)
    session.grow(1, 1)
    assert session.next_read(0) is None
    session.classify(1, Traffic.IN_SYNC)
    assert read(session, 1) == (1, 0)


def test_the_writer_is_asked_only_where_there_is_work() -> None:
    """If everything is sent, acknowledgements and credit do not wake the writer. Answers, growth and the end of a stop do."""
    session = opened_session(in_sync_bytes=0)
    subscribe(session, 1)
    session.acknowledge(acked(1, 0), 0)
    session.grant(Credit(5, 5), 0)
    assert not session.has_work
    session.grow(1, 3)
    assert session.has_work
    read(session, 3)
    assert not session.has_work
    session.stop(100, 0)
    assert session.has_work
    session.take_answers(0)
    assert not session.has_work
    session.unsubscribe((1,), 0)
    assert session.has_work

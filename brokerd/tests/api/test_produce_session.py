# SPDX-License-Identifier: Apache-2.0
"""The produce session core: binding, numbers, limits, receipts, ends of routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_IN_FLIGHT_BATCHES, MAX_ROUTE

from brokerd.api.log_service.produce import LIMITS
from brokerd.api.log_service.produce_session import (
    Acks,
    Opened,
    ProduceLimits,
    ProduceSession,
    Receipt,
    RouteEnded,
    RouteWanted,
)
from brokerd.failure import Failure, RefusedError
from brokerd.partition.events import Durability

LOST = Failure(code=ErrorCode.NOT_LEADER, message="moved")
BAD = Failure(code=ErrorCode.CORRUPT_BATCH, message="bits")

Session = ProduceSession[str]


def wanted(route: int) -> RouteWanted:
    return RouteWanted(route=route, topic="t", partition=route)


def bound(route: int) -> str:
    """Return the binding of a route in these tests."""
    return f"t-{route}"


def opened_session(*routes: int, acks: Acks = Acks.ALL, limits: ProduceLimits = LIMITS) -> Session:
    session = Session(limits)
    wants = [wanted(route) for route in routes]
    assert session.open(acks, wants) == wants
    for route in routes:
        session.bind_route(route, bound(route))
    session.end_binding()
    assert session.take_answers() == [Opened(bindings=tuple(bound(route) for route in routes))]
    return session


def send(session: Session, route: int, number: int, size_bytes: int = 100) -> str | None:
    return session.receive_batch(route, number, size_bytes)


def store(session: Session, route: int, number: int, base_offset: int, *, duplicate: bool = False) -> None:
    assert send(session, route, number) == bound(route)
    assert session.note_appended(route, number, base_offset, duplicate=duplicate)


def ack(session: Session, route: int, number: int, durability: Durability = Durability.FLUSHED) -> None:
    session.acknowledge(route, number, durability)


def test_receipts_are_cumulative_and_list_every_base_offset() -> None:
    """Batches acknowledged before the writer comes share one receipt with all their offsets."""
    session = opened_session(7)
    store(session, 7, 1, 0)
    store(session, 7, 2, 10, duplicate=True)
    assert session.in_flight_bytes == 200
    assert not session.is_drained
    ack(session, 7, 1)
    ack(session, 7, 2)
    assert session.in_flight_bytes == 0
    assert session.has_answers
    assert session.take_answers() == [
        Receipt(route=7, last_batch_number=2, durability=Durability.FLUSHED, base_offsets=[0, 10], duplicates=[1])
    ]
    assert session.is_drained


def test_receipts_wait_for_the_batches_before() -> None:
    """An ack out of order (a duplicate's) gives no receipt before the batches ahead of it have theirs."""
    session = opened_session(7)
    store(session, 7, 1, 10)
    store(session, 7, 2, 0, duplicate=True)
    ack(session, 7, 2)
    assert session.take_answers() == []
    ack(session, 7, 1)
    answers = session.take_answers()
    assert [answer.base_offsets for answer in answers if isinstance(answer, Receipt)] == [[10, 0]]


def test_receipts_of_different_durability_are_separate() -> None:
    """A receipt never claims more than all its batches have reached."""
    session = opened_session(7)
    store(session, 7, 1, 0)
    store(session, 7, 2, 1)
    ack(session, 7, 1, Durability.REPLICATED)
    ack(session, 7, 2, Durability.FLUSHED)
    assert [(answer.last_batch_number, answer.durability) for answer in session.take_answers()] == [  # type: ignore[union-attr]
        (1, Durability.REPLICATED),
        (2, Durability.FLUSHED),
    ]


def test_receipt_taken_by_the_writer_does_not_grow() -> None:
    """A receipt that was taken is final. The next acknowledgement starts another receipt."""
    session = opened_session(7)
    store(session, 7, 1, 0)
    store(session, 7, 2, 1)
    ack(session, 7, 1)
    first = session.take_answers()
    ack(session, 7, 2)
    assert [answer.base_offsets for answer in (*first, *session.take_answers())] == [[0], [1]]  # type: ignore[union-attr]


def test_acks_none_sends_no_receipt() -> None:
    """With ACKS_NONE a stored batch is forgotten at once."""
    session = opened_session(7, acks=Acks.NONE)
    assert send(session, 7, 1) == bound(7)
    assert not session.note_appended(7, 1, 0, duplicate=False)
    assert session.is_drained
    assert session.in_flight_bytes == 0


def test_failed_batch_ends_its_route_after_the_receipts_before_it() -> None:
    """Batches ahead of the failed one get their receipts; the route then ends at exactly the failed number."""
    session = opened_session(7, 8)
    store(session, 7, 1, 0)
    send(session, 7, 2)
    session.fail_batch(7, 2, BAD)
    assert send(session, 7, 3) is None
    assert session.take_answers() == []
    assert session.take_ended() == []
    ack(session, 7, 1)
    assert session.take_ended() == [bound(7)]
    receipt, end = session.take_answers()
    assert isinstance(receipt, Receipt)
    assert end == RouteEnded(route=7, failure=BAD, first_failed_batch_number=2, outcome_unknown=False)
    assert send(session, 7, 4) is None
    assert session.take_answers() == []
    store(session, 8, 1, 0)


def test_failed_batch_without_batches_before_it_ends_the_route_at_once() -> None:
    """Nothing is waited for when nothing is unacknowledged."""
    session = opened_session(7)
    send(session, 7, 1)
    session.fail_batch(7, 1, BAD)
    assert session.take_ended() == [bound(7)]
    assert session.take_answers() == [
        RouteEnded(route=7, failure=BAD, first_failed_batch_number=1, outcome_unknown=False)
    ]
    assert session.in_flight_bytes == 0


def test_lost_partition_leaves_the_outcome_of_unacknowledged_batches_unknown() -> None:
    """A route whose partition is lost names the first batch without a receipt, and says that its outcome is unknown."""
    session = opened_session(7)
    store(session, 7, 1, 0)
    store(session, 7, 2, 1)
    ack(session, 7, 1)
    session.lose_route(7, LOST)
    assert session.take_ended() == [bound(7)]
    assert session.find(7) is None
    assert session.take_answers()[-1] == RouteEnded(
        route=7, failure=LOST, first_failed_batch_number=2, outcome_unknown=True
    )
    assert session.in_flight_bytes == 0
    ack(session, 7, 2)
    assert not session.note_appended(7, 2, 1, duplicate=False)
    session.fail_batch(7, 2, BAD)
    session.lose_route(7, LOST)
    assert session.take_answers() == session.take_ended() == []


def test_lost_partition_without_batches_is_no_unknown_outcome() -> None:
    """An idle route that is lost names the next number and nothing is unknown."""
    session = opened_session(7)
    session.lose_route(7, LOST)
    assert session.take_answers() == [
        RouteEnded(route=7, failure=LOST, first_failed_batch_number=1, outcome_unknown=False)
    ]


@pytest.mark.parametrize("number", [0, 2, -1, 2**62], ids=["zero", "gap", "negative", "huge"])
def test_wrong_batch_number_ends_the_route(number: int) -> None:
    """A number that is not the next one is a lost or repeated batch: the route ends, nothing is appended."""
    session = opened_session(7)
    assert send(session, 7, number) is None
    assert session.take_ended() == [bound(7)]
    (end,) = session.take_answers()
    assert isinstance(end, RouteEnded)
    assert (end.failure.code, end.first_failed_batch_number) == (ErrorCode.INVALID_REQUEST, 1)


def test_too_many_batches_in_flight_end_the_route() -> None:
    """The limit in `opened` holds: the batch beyond it is refused, and the earlier batches keep their receipts."""
    session = opened_session(7)
    for number in range(1, MAX_IN_FLIGHT_BATCHES + 1):
        store(session, 7, number, number)
    assert send(session, 7, MAX_IN_FLIGHT_BATCHES + 1) is None
    for number in range(1, MAX_IN_FLIGHT_BATCHES + 1):
        assert session.take_ended() == []
        ack(session, 7, number)
    assert session.take_ended() == [bound(7)]
    end = session.take_answers()[-1]
    assert isinstance(end, RouteEnded)
    assert end.failure.code is ErrorCode.OVERLOADED
    assert end.first_failed_batch_number == MAX_IN_FLIGHT_BATCHES + 1


def test_batch_for_an_unbound_route_is_answered_and_harms_nothing() -> None:
    """An unknown route number gets its own end. Other routes keep working."""
    session = opened_session(7)
    assert send(session, 9, 1) is None
    (end,) = session.take_answers()
    assert isinstance(end, RouteEnded)
    assert (end.route, end.failure.code) == (9, ErrorCode.INVALID_ROUTE)
    store(session, 7, 1, 0)


def test_route_bound_twice_is_dead() -> None:
    """A number with two partitions cannot be told apart, so it ends; also when it comes twice in one request."""
    session = opened_session(7)
    store(session, 7, 1, 0)
    assert session.want_routes([wanted(7), wanted(8), wanted(8), wanted(9)]) == [wanted(9)]
    assert session.take_ended() == [bound(7)]
    session.bind_route(9, bound(9))
    session.end_binding()
    answers = session.take_answers()
    ends = {answer.route: answer for answer in answers if isinstance(answer, RouteEnded)}
    assert ends.keys() == {7, 8}
    assert all(end.failure.code is ErrorCode.INVALID_ROUTE for end in ends.values())
    assert ends[7].outcome_unknown
    assert answers[-1] == Opened(bindings=(bound(9),))
    assert session.want_routes([wanted(8)]) == []


def test_opened_comes_first_and_refused_routes_after_it() -> None:
    """The first answer of a stream is `opened`, whatever was refused or lost before it."""
    session = Session(LIMITS)
    session.open(Acks.ALL, [wanted(1), wanted(2), wanted(3)])
    session.refuse_route(1, LOST)
    session.bind_route(2, bound(2))
    session.bind_route(3, bound(3))
    session.lose_route(3, LOST)
    assert not session.has_answers
    assert session.take_answers() == []
    session.end_binding()
    opened, *ends = session.take_answers()
    assert opened == Opened(bindings=(bound(2),))
    assert [end.route for end in ends] == [1, 3]  # type: ignore[union-attr]


def test_protocol_errors_end_the_stream() -> None:
    """An error that the end of a route cannot express ends the stream with a typed error."""
    opened = opened_session(1)
    calls: list[Callable[[], object]] = [
        lambda: send(Session(LIMITS), 1, 1),
        lambda: Session(LIMITS).want_routes([]),
        lambda: opened.open(Acks.ALL, []),
        lambda: opened.want_routes([wanted(-1)]),
        lambda: opened.want_routes([wanted(MAX_ROUTE + 1)]),
    ]
    for call in calls:
        with pytest.raises(RefusedError) as refusal:
            call()
        assert refusal.value.failure.code is ErrorCode.INVALID_REQUEST


def test_route_count_over_a_life_is_limited() -> None:
    """A stream that keeps binding routes ends before it costs unbounded memory."""
    session = opened_session(0, 1, limits=replace(LIMITS, max_routes=3))
    session.lose_route(0, LOST)
    assert session.want_routes([wanted(2)]) == [wanted(2)]
    session.refuse_route(2, LOST)
    with pytest.raises(RefusedError) as refusal:
        session.want_routes([wanted(3)])
    assert refusal.value.failure.code is ErrorCode.LIMIT_EXCEEDED


def test_reading_pauses_on_bytes_and_on_answers() -> None:
    """The stream is not read while too much is unacknowledged or too many answers wait."""
    session = opened_session(7)
    assert not session.must_pause
    send(session, 7, 1, size_bytes=LIMITS.max_in_flight_bytes)
    assert session.must_pause
    session = opened_session(7)
    for _ in range(LIMITS.max_outbox_answers):
        send(session, 9, 1)
    assert session.must_pause
    session.take_answers()
    assert not session.must_pause


def test_stream_that_is_over_gives_back_what_was_bound() -> None:
    """The bindings of ended and live routes are returned once. Later acknowledgements are ignored."""
    session = opened_session(7, 8, 9)
    store(session, 7, 1, 0)
    session.lose_route(8, LOST)
    assert sorted(session.close()) == [bound(7), bound(8), bound(9)]
    assert session.close() == []
    ack(session, 7, 1)
    session.lose_route(9, LOST)
    assert session.take_ended() == []


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=40), st.randoms(use_true_random=False))
def test_every_batch_gets_exactly_one_receipt_in_order(batches: list[tuple[int, bool]], random: object) -> None:
    """Whatever the order of acks and writes, each route's receipts list its offsets once and in order."""
    session = opened_session(0, 1)
    numbers = {0: 0, 1: 0}
    waiting: list[tuple[int, int]] = []
    seen: dict[int, list[int]] = {0: [], 1: []}

    def drain() -> None:
        for answer in session.take_answers():
            assert isinstance(answer, Receipt)
            first = answer.last_batch_number - len(answer.base_offsets) + 1
            assert first == len(seen[answer.route]) + 1
            seen[answer.route] += answer.base_offsets

    for route, take in batches:
        drain()
        if numbers[route] - len(seen[route]) == MAX_IN_FLIGHT_BATCHES:
            continue
        numbers[route] += 1
        store(session, route, numbers[route], numbers[route] * 10)
        waiting.append((route, numbers[route]))
        random.shuffle(waiting)  # type: ignore[attr-defined]
        if take:
            ack(session, *waiting.pop())
            drain()
    for route, number in waiting:
        ack(session, route, number)
    drain()
    assert seen == {route: [number * 10 for number in range(1, numbers[route] + 1)] for route in (0, 1)}
    assert session.in_flight_bytes == 0
    assert session.is_drained

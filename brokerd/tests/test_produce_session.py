# SPDX-License-Identifier: Apache-2.0
"""The produce session core: binding, numbers, limits, receipts, ends of routes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_IN_FLIGHT_BATCHES, MAX_ROUTE

from brokerd.api.log_service.produce_events import (
    AbortStream,
    AckReached,
    Acks,
    AppendBatch,
    AwaitAck,
    BatchFailed,
    BatchReceived,
    BatchStored,
    Effect,
    Opened,
    Receipt,
    ReleaseRoute,
    ResolveRoutes,
    RouteBound,
    RouteEnded,
    RouteLost,
    RouteRefused,
    RoutesResolved,
    RoutesWanted,
    RouteWanted,
    StreamOpened,
)
from brokerd.api.log_service.produce_session import ProduceSession
from brokerd.failure import Failure
from brokerd.limits import MAX_ROUTES_PER_STREAM, MAX_STREAM_OUTBOX_ITEMS
from brokerd.partition.events import Durability

LOST = Failure(code=ErrorCode.NOT_LEADER, message="moved")
BAD = Failure(code=ErrorCode.CORRUPT_BATCH, message="bits")


def wanted(route: int) -> RouteWanted:
    return RouteWanted(route=route, topic="t", partition=route)


def bound(route: int) -> RouteBound:
    return RouteBound(route=route, topic_id=b"i" * 16, leader_epoch=1, max_batch_bytes=1_000)


def opened_session(*routes: int, acks: Acks = Acks.ALL) -> ProduceSession:
    session = ProduceSession()
    wants = tuple(wanted(route) for route in routes)
    assert session.step(StreamOpened(acks=acks, routes=wants)) == [ResolveRoutes(routes=wants)]
    for route in routes:
        assert session.step(bound(route)) == []
    assert session.step(RoutesResolved()) == []
    assert session.take_answers() == [Opened(routes=tuple(bound(route) for route in routes))]
    return session


def send(session: ProduceSession, route: int, number: int, size_bytes: int = 100) -> list[Effect]:
    return session.step(BatchReceived(route=route, batch_number=number, size_bytes=size_bytes))


def store(session: ProduceSession, route: int, number: int, base_offset: int, *, duplicate: bool = False) -> None:
    assert send(session, route, number) == [AppendBatch(route=route, batch_number=number)]
    stored = BatchStored(route=route, batch_number=number, base_offset=base_offset, duplicate=duplicate)
    assert session.step(stored) == [AwaitAck(route=route, batch_number=number)]


def ack(session: ProduceSession, route: int, number: int, durability: Durability = Durability.FLUSHED) -> list[Effect]:
    return session.step(AckReached(route=route, batch_number=number, durability=durability))


def only_abort(effects: list[Effect]) -> Failure:
    assert len(effects) == 1
    assert isinstance(effects[0], AbortStream)
    return effects[0].failure


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
    """One receipt never says more than what all its batches have reached."""
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
    """What was handed to the writer is final; the next ack starts another receipt."""
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
    send(session, 7, 1)
    assert session.step(BatchStored(route=7, batch_number=1, base_offset=0, duplicate=False)) == []
    assert session.is_drained
    assert session.in_flight_bytes == 0


def test_failed_batch_ends_its_route_after_the_receipts_before_it() -> None:
    """Batches ahead of the failed one get their receipts; the route then ends at exactly the failed number."""
    session = opened_session(7, 8)
    store(session, 7, 1, 0)
    send(session, 7, 2)
    assert session.step(BatchFailed(route=7, batch_number=2, failure=BAD)) == []
    assert send(session, 7, 3) == []
    assert session.take_answers() == []
    assert ack(session, 7, 1) == [ReleaseRoute(route=7)]
    receipt, end = session.take_answers()
    assert isinstance(receipt, Receipt)
    assert end == RouteEnded(route=7, failure=BAD, first_failed_batch_number=2, outcome_unknown=False)
    assert send(session, 7, 4) == []
    assert session.take_answers() == []
    store(session, 8, 1, 0)


def test_failed_batch_without_batches_before_it_ends_the_route_at_once() -> None:
    """Nothing is waited for when nothing is unacknowledged."""
    session = opened_session(7)
    send(session, 7, 1)
    assert session.step(BatchFailed(route=7, batch_number=1, failure=BAD, outcome_unknown=True)) == [
        ReleaseRoute(route=7)
    ]
    assert session.take_answers() == [
        RouteEnded(route=7, failure=BAD, first_failed_batch_number=1, outcome_unknown=True)
    ]
    assert session.in_flight_bytes == 0


def test_lost_partition_leaves_the_outcome_of_unacknowledged_batches_unknown() -> None:
    """A route whose partition is lost names the first batch without a receipt and says that its fate is unknown."""
    session = opened_session(7)
    store(session, 7, 1, 0)
    store(session, 7, 2, 1)
    ack(session, 7, 1)
    assert session.step(RouteLost(route=7, failure=LOST)) == [ReleaseRoute(route=7)]
    assert session.take_answers()[-1] == RouteEnded(
        route=7, failure=LOST, first_failed_batch_number=2, outcome_unknown=True
    )
    assert session.in_flight_bytes == 0
    assert ack(session, 7, 2) == []
    assert session.step(BatchStored(route=7, batch_number=2, base_offset=1, duplicate=False)) == []
    assert session.step(BatchFailed(route=7, batch_number=2, failure=BAD)) == []
    assert session.step(RouteLost(route=7, failure=LOST)) == []


def test_lost_partition_without_batches_is_no_unknown_outcome() -> None:
    """An idle route that is lost names the next number and nothing is unknown."""
    session = opened_session(7)
    session.step(RouteLost(route=7, failure=LOST))
    assert session.take_answers() == [
        RouteEnded(route=7, failure=LOST, first_failed_batch_number=1, outcome_unknown=False)
    ]


@pytest.mark.parametrize("number", [0, 2, -1, 2**62], ids=["zero", "gap", "negative", "huge"])
def test_wrong_batch_number_ends_the_route(number: int) -> None:
    """A number that is not the next one is a lost or repeated batch: the route ends, nothing is appended."""
    session = opened_session(7)
    assert send(session, 7, number) == [ReleaseRoute(route=7)]
    (end,) = session.take_answers()
    assert isinstance(end, RouteEnded)
    assert (end.failure.code, end.first_failed_batch_number) == (ErrorCode.INVALID_REQUEST, 1)


def test_too_many_batches_in_flight_end_the_route() -> None:
    """The limit told in `opened` is kept: the batch beyond it is refused, those before keep their receipts."""
    session = opened_session(7)
    for number in range(1, MAX_IN_FLIGHT_BATCHES + 1):
        store(session, 7, number, number)
    assert send(session, 7, MAX_IN_FLIGHT_BATCHES + 1) == []
    for number in range(1, MAX_IN_FLIGHT_BATCHES + 1):
        effects = ack(session, 7, number)
    assert effects == [ReleaseRoute(route=7)]
    end = session.take_answers()[-1]
    assert isinstance(end, RouteEnded)
    assert end.failure.code is ErrorCode.OVERLOADED
    assert end.first_failed_batch_number == MAX_IN_FLIGHT_BATCHES + 1


def test_batch_for_an_unbound_route_is_answered_and_harms_nothing() -> None:
    """An unknown route number gets its own end; other routes go on."""
    session = opened_session(7)
    assert send(session, 9, 1) == []
    (end,) = session.take_answers()
    assert isinstance(end, RouteEnded)
    assert (end.route, end.failure.code) == (9, ErrorCode.INVALID_ROUTE)
    store(session, 7, 1, 0)


def test_route_bound_twice_is_dead() -> None:
    """A number with two partitions cannot be told apart, so it ends; also when it comes twice in one request."""
    session = opened_session(7)
    store(session, 7, 1, 0)
    effects = session.step(RoutesWanted(routes=(wanted(7), wanted(8), wanted(8), wanted(9))))
    assert effects == [ReleaseRoute(route=7), ResolveRoutes(routes=(wanted(9),))]
    session.step(bound(9))
    session.step(RoutesResolved())
    answers = session.take_answers()
    ends = {answer.route: answer for answer in answers if isinstance(answer, RouteEnded)}
    assert ends.keys() == {7, 8}
    assert all(end.failure.code is ErrorCode.INVALID_ROUTE for end in ends.values())
    assert ends[7].outcome_unknown
    assert answers[-1] == Opened(routes=(bound(9),))
    assert session.step(RoutesWanted(routes=(wanted(8),))) == [ResolveRoutes(routes=())]


def test_opened_comes_first_and_refused_routes_after_it() -> None:
    """The first answer of a stream is `opened`, whatever was refused or lost before it."""
    session = ProduceSession()
    session.step(StreamOpened(acks=Acks.ALL, routes=(wanted(1), wanted(2), wanted(3))))
    session.step(RouteRefused(route=1, failure=LOST))
    session.step(bound(2))
    session.step(bound(3))
    session.step(RouteLost(route=3, failure=LOST))
    assert not session.has_answers
    assert session.take_answers() == []
    session.step(RoutesResolved())
    opened, *ends = session.take_answers()
    assert opened == Opened(routes=(bound(2),))
    assert [end.route for end in ends] == [1, 3]  # type: ignore[union-attr]


def test_protocol_errors_abort_the_stream() -> None:
    """What no route can carry ends the stream with a typed error."""
    assert only_abort(send(ProduceSession(), 1, 1)).code is ErrorCode.INVALID_REQUEST
    assert only_abort(ProduceSession().step(RoutesWanted(routes=()))).code is ErrorCode.INVALID_REQUEST
    session = opened_session(1)
    assert only_abort(session.step(StreamOpened(acks=Acks.ALL, routes=()))).code is ErrorCode.INVALID_REQUEST
    for route in (-1, MAX_ROUTE + 1):
        failure = only_abort(session.step(RoutesWanted(routes=(wanted(route),))))
        assert failure.code is ErrorCode.INVALID_REQUEST


def test_route_count_over_a_life_is_limited() -> None:
    """A stream that keeps binding routes ends before it costs unbounded memory."""
    session = opened_session()
    many = tuple(wanted(route) for route in range(MAX_ROUTES_PER_STREAM + 1))
    assert only_abort(session.step(RoutesWanted(routes=many))).code is ErrorCode.LIMIT_EXCEEDED


def test_reading_pauses_on_bytes_and_on_answers() -> None:
    """The stream is not read while too much is unacknowledged or too many answers wait."""
    session = opened_session(7)
    assert not session.must_pause
    send(session, 7, 1, size_bytes=64 * 1024 * 1024)
    assert session.must_pause
    session = opened_session(7)
    for _ in range(MAX_STREAM_OUTBOX_ITEMS):
        send(session, 9, 1)
    assert session.must_pause
    session.take_answers()
    assert not session.must_pause


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


def test_unknown_event_is_a_fault() -> None:
    """An event that the core does not know stops the process instead of being dropped."""
    with pytest.raises(AssertionError):
        ProduceSession().step(object())  # type: ignore[arg-type]

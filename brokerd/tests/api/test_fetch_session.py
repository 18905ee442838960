# SPDX-License-Identifier: Apache-2.0
"""The fetch session core: binding, credit, fairness, marks, ends of routes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_ROUTE

from brokerd.api.log_service.fetch import LIMITS
from brokerd.api.log_service.fetch_session import (
    CAUGHT_UP_MARK_DELAY_MS,
    FetchLimits,
    FetchOpened,
    FetchRouteEnded,
    FetchRouteWanted,
    FetchSession,
    Mark,
    ReadChunk,
)
from brokerd.failure import Failure, RefusedError

LOST = Failure(code=ErrorCode.NOT_LEADER, message="moved")

MARK_MS = LIMITS.mark_interval_ms

Session = FetchSession["Bound"]


@dataclass(frozen=True, slots=True)
class Bound:
    """The binding of a route in these tests, with its first offset."""

    route: int
    offset: int = 0
    high_watermark: int = 0


def wanted(route: int, offset: int = 0) -> FetchRouteWanted:
    return FetchRouteWanted(route=route, topic="t", partition=route, offset=offset)


def bind(session: Session, bound: Bound) -> None:
    session.bind_route(
        bound.route, bound, offset=bound.offset, high_watermark=bound.high_watermark, log_start_offset=0, now_ms=0
    )


def opened_session(
    *routes: Bound, credit_bytes: int = 1_000, max_chunk_bytes: int = 100, limits: FetchLimits = LIMITS
) -> Session:
    session = Session(limits)
    wants = [wanted(route.route, route.offset) for route in routes]
    assert session.open(wants, credit_bytes=credit_bytes, max_chunk_bytes=max_chunk_bytes) == wants
    for route in routes:
        bind(session, route)
    session.end_binding(0)
    return session


def move(session: Session, route: int, high_watermark: int) -> None:
    session.move_route(route, high_watermark=high_watermark, log_start_offset=0)


def chunk(session: Session, read: ReadChunk[Bound] | None, next_offset: int, size_bytes: int) -> None:
    assert read is not None
    session.note_read(read.route, next_offset, size_bytes, 0)


def place(read: ReadChunk[Bound] | None) -> tuple[int, int, int, int]:
    """Return the route, the range of offsets and the size of a read; its binding is that of the route."""
    assert read is not None
    assert read.binding.route == read.route
    return read.route, read.offset, read.end_offset, read.max_bytes


def test_opened_is_followed_by_a_mark_for_a_route_that_is_caught_up() -> None:
    """A route bound at the high watermark gets a mark at once that it has caught up."""
    session = opened_session(Bound(1), Bound(2, 0, 5))
    assert session.take_answers() == [
        FetchOpened(bindings=(Bound(1), Bound(2, 0, 5))),
        Mark(route=1, next_offset=0, high_watermark=0, log_start_offset=0, caught_up=True),
    ]
    assert place(session.next_read()) == (2, 0, 5, 100)


def test_ready_routes_take_turns() -> None:
    """Routes that stay ready are read one chunk each in turn."""
    session = opened_session(Bound(1, 0, 100), Bound(2, 0, 100), Bound(3, 0, 100))
    order = []
    for position in range(1, 7):
        read = session.next_read()
        assert read is not None
        order.append(read.route)
        chunk(session, read, (position + 2) // 3, 10)
    assert order == [1, 2, 3, 1, 2, 3]


def test_credit_limits_chunks_and_lets_the_first_batch_through() -> None:
    """A chunk is limited to the credit. A batch larger than the rest is sent whole, and the debt is paid first."""
    session = opened_session(Bound(1, 0, 100), credit_bytes=150)
    chunk(session, session.next_read(), 10, 100)
    read = session.next_read()
    assert read is not None
    assert read.max_bytes == 50
    chunk(session, read, 20, 400)
    assert session.credit_bytes == -350
    assert session.next_read() is None
    session.grant_credit(350)
    assert session.next_read() is None
    session.grant_credit(1)
    assert place(session.next_read()) == (1, 20, 100, 1)


def test_zero_credit_sends_nothing_until_credit_comes() -> None:
    """A stream may be opened without credit."""
    session = opened_session(Bound(1, 0, 100), credit_bytes=0)
    session.take_answers()
    assert not session.has_work
    assert session.next_read() is None
    session.grant_credit(1)
    assert session.has_work


def test_high_watermark_move_makes_a_route_ready_once() -> None:
    """Several moves before the turn of a route give it one turn that reads up to the last of them."""
    session = opened_session(Bound(1))
    for high_watermark in (3, 9, 9):
        move(session, 1, high_watermark)
    assert place(session.next_read()) == (1, 0, 9, 100)
    assert session.next_read() is None
    move(session, 8, 5)
    assert session.next_read() is None


def test_nothing_is_read_before_the_binding_is_answered() -> None:
    """Records that become readable while other routes of the same request are still looked for wait for the answer."""
    session = opened_session(Bound(1))
    session.want_routes([wanted(2), wanted(3)])
    bind(session, Bound(2))
    move(session, 2, 5)
    assert session.next_read() is None
    bind(session, Bound(3))
    session.end_binding(0)
    assert place(session.next_read()) == (2, 0, 5, 100)
    assert session.next_read() is None


def test_offset_beyond_the_high_watermark_waits_for_it() -> None:
    """A route that starts above the high watermark stays quiet until the watermark has passed its offset."""
    session = opened_session(Bound(1, 5, 2))
    move(session, 1, 4)
    assert session.next_read() is None
    move(session, 1, 6)
    assert place(session.next_read()) == (1, 5, 6, 100)


def test_caught_up_mark_follows_the_last_chunk_after_a_moment() -> None:
    """The chunk itself says that it is the last. The mark comes only if no other chunk follows."""
    session = opened_session(Bound(1, 0, 5))
    session.take_answers()
    chunk(session, session.next_read(), 5, 10)
    assert session.take_answers() == []
    assert session.deadline_ms() == CAUGHT_UP_MARK_DELAY_MS
    session.tick(CAUGHT_UP_MARK_DELAY_MS - 1)
    assert session.take_answers() == []
    session.tick(CAUGHT_UP_MARK_DELAY_MS)
    mark = Mark(route=1, next_offset=5, high_watermark=5, log_start_offset=0, caught_up=True)
    assert session.take_answers() == [mark]
    assert session.deadline_ms() == CAUGHT_UP_MARK_DELAY_MS + MARK_MS
    session.tick(CAUGHT_UP_MARK_DELAY_MS + MARK_MS)
    assert session.take_answers() == [mark]


def test_steady_flow_puts_the_mark_off() -> None:
    """A route that keeps getting chunks gets no marks between them."""
    session = opened_session(Bound(1, 0, 1))
    session.take_answers()
    for now_ms in range(0, 1_000, 10):
        read = session.next_read()
        assert read is not None
        session.note_read(1, read.end_offset, 1, now_ms)
        session.tick(now_ms + 5)
        assert session.take_answers() == []
        move(session, 1, read.end_offset + 1)
        session.grant_credit(1)


def test_route_that_waits_for_credit_gets_no_mark() -> None:
    """A ready route gets no mark that it has caught up, and its schedule continues."""
    session = opened_session(Bound(1), credit_bytes=0)
    session.take_answers()
    move(session, 1, 5)
    session.tick(MARK_MS)
    assert session.take_answers() == []
    assert session.deadline_ms() == 2 * MARK_MS


def test_unbound_route_ends_and_gets_nothing_more() -> None:
    """After the end that answers an unbind no chunk and no mark of the route follows."""
    session = opened_session(Bound(1, 0, 100), Bound(2, 0, 100))
    session.take_answers()
    session.drop_routes([1, 9])
    assert session.take_ended() == [Bound(1, 0, 100)]
    first, second = session.take_answers()
    assert first == FetchRouteEnded(route=1, failure=None)
    assert isinstance(second, FetchRouteEnded)
    assert second.failure is not None
    assert second.failure.code is ErrorCode.INVALID_ROUTE
    read = session.next_read()
    assert read is not None
    assert read.route == 2
    session.drop_routes([1])
    assert not session.is_live(1)
    session.tick(10**9)
    assert session.take_answers() == []


def test_route_lost_while_its_chunk_is_read_only_costs_credit() -> None:
    """Written bytes count even if the route has ended in the meantime."""
    session = opened_session(Bound(1, 0, 100))
    session.take_answers()
    read = session.next_read()
    session.lose_route(1, LOST)
    session.lose_route(1, LOST)
    assert session.take_ended() == [Bound(1, 0, 100)]
    chunk(session, read, 5, 70)
    assert session.credit_bytes == 930
    assert session.take_answers() == [FetchRouteEnded(route=1, failure=LOST)]


def test_log_that_gives_nothing_ends_the_route() -> None:
    """A read without progress below the high watermark would repeat forever, so the route ends with INTERNAL."""
    session = opened_session(Bound(1, 3, 100))
    session.take_answers()
    chunk(session, session.next_read(), 3, 0)
    assert session.take_ended() == [Bound(1, 3, 100)]
    (end,) = session.take_answers()
    assert isinstance(end, FetchRouteEnded)
    assert end.failure is not None
    assert end.failure.code is ErrorCode.INTERNAL


def test_refused_routes_come_after_opened() -> None:
    """The first answer of a stream is `opened`; later binds answer in order."""
    session = Session(LIMITS)
    session.open([wanted(1), wanted(2)], credit_bytes=1, max_chunk_bytes=0)
    session.refuse_route(1, LOST)
    bind(session, Bound(2, 0, 5))
    assert session.take_answers() == []
    assert session.next_read() is None
    session.end_binding(0)
    assert session.take_answers() == [FetchOpened(bindings=(Bound(2, 0, 5),)), FetchRouteEnded(route=1, failure=LOST)]
    assert session.want_routes([wanted(3)]) == [wanted(3)]
    bind(session, Bound(3, 0, 5))
    session.end_binding(0)
    assert session.take_answers() == [FetchOpened(bindings=(Bound(3, 0, 5),))]


def test_route_bound_twice_is_dead() -> None:
    """A number with two partitions cannot be told apart, so it ends; also when it comes twice in one request."""
    session = opened_session(Bound(1))
    session.take_answers()
    assert session.want_routes([wanted(1), wanted(2), wanted(2), wanted(3)]) == [wanted(3)]
    assert session.take_ended() == [Bound(1)]
    ends = session.take_answers()
    assert [end.route for end in ends] == [1, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.want_routes([]),
        lambda session: session.grant_credit(1),
        lambda session: session.drop_routes([1]),
        lambda session: session.open([], credit_bytes=-1, max_chunk_bytes=0),
        lambda session: session.open([], credit_bytes=LIMITS.max_credit_bytes + 1, max_chunk_bytes=0),
        lambda session: session.open([], credit_bytes=1, max_chunk_bytes=-1),
        lambda session: session.open([], credit_bytes=1, max_chunk_bytes=LIMITS.max_chunk_bytes + 1),
    ],
    ids=["bind first", "credit first", "unbind first", "debt", "huge credit", "negative chunk", "huge chunk"],
)
def test_bad_first_messages_end_the_stream(call: Callable[[Session], object]) -> None:
    """An error that the end of a route cannot express ends the stream with a typed error."""
    with pytest.raises(RefusedError) as refusal:
        call(Session(LIMITS))
    assert refusal.value.failure.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.open([], credit_bytes=1, max_chunk_bytes=0),
        lambda session: session.grant_credit(0),
        lambda session: session.grant_credit(-5),
        lambda session: session.grant_credit(LIMITS.max_credit_bytes),
        lambda session: session.want_routes([wanted(-1)]),
        lambda session: session.want_routes([wanted(MAX_ROUTE + 1)]),
        lambda session: session.drop_routes(range(LIMITS.max_routes + 1)),
    ],
    ids=["open twice", "no credit", "negative credit", "too much credit", "route -1", "route too high", "many unbinds"],
)
def test_bad_later_messages_end_the_stream(call: Callable[[Session], object]) -> None:
    """Later messages are checked as well."""
    with pytest.raises(RefusedError) as refusal:
        call(opened_session(Bound(1)))
    assert refusal.value.failure.code is ErrorCode.INVALID_REQUEST


def test_route_count_over_a_life_is_limited() -> None:
    """A stream that keeps binding routes ends before it costs unbounded memory."""
    session = opened_session(Bound(1), Bound(2), limits=replace(LIMITS, max_routes=3))
    session.drop_routes([1])
    assert session.want_routes([wanted(3)]) == [wanted(3)]
    session.refuse_route(3, LOST)
    with pytest.raises(RefusedError) as refusal:
        session.want_routes([wanted(4)])
    assert refusal.value.failure.code is ErrorCode.LIMIT_EXCEEDED


def test_stream_that_is_over_gives_back_what_was_bound() -> None:
    """The bindings of ended and live routes are returned once. Later calls are ignored."""
    session = opened_session(Bound(1), Bound(2))
    session.lose_route(1, LOST)
    assert session.close() == [Bound(1), Bound(2)]
    assert session.close() == []
    move(session, 2, 5)
    session.lose_route(2, LOST)
    assert session.next_read() is None
    assert session.take_ended() == []


def test_reading_pauses_while_many_answers_wait() -> None:
    """A client that asks without reading the answers is not read any more."""
    session = opened_session()
    session.drop_routes(range(LIMITS.max_outbox_answers))
    assert session.must_pause
    session.take_answers()
    assert not session.must_pause


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50), st.integers(1, 300)), max_size=60))
def test_every_offset_is_read_once_and_in_order(moves: list[tuple[int, int, int]]) -> None:
    """Whatever the moves and the credit, each route reads a gapless ascending range up to its high watermark."""
    session = opened_session(Bound(1), Bound(2), Bound(3), credit_bytes=0)
    high_watermarks = {1: 0, 2: 0, 3: 0}
    positions = {1: 0, 2: 0, 3: 0}

    def read_all() -> None:
        while (read := session.next_read()) is not None:
            assert read.offset == positions[read.route] < read.end_offset == high_watermarks[read.route]
            assert 0 < read.max_bytes <= 100
            positions[read.route] = min(read.offset + 7, read.end_offset)
            chunk(session, read, positions[read.route], 60)

    for route, step, credit_bytes in moves:
        high_watermarks[route] += step
        move(session, route, high_watermarks[route])
        session.grant_credit(credit_bytes)
        read_all()
        assert session.credit_bytes > -60
    session.grant_credit(10**9)
    read_all()
    assert positions == high_watermarks

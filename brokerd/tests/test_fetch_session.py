# SPDX-License-Identifier: Apache-2.0
"""The fetch session core: binding, credit, fairness, marks, ends of routes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_ROUTE

from brokerd.api.log_service.fetch_events import (
    AbortFetchStream,
    ChunkRead,
    CreditGranted,
    FetchEffect,
    FetchEvent,
    FetchOpened,
    FetchRouteBound,
    FetchRouteEnded,
    FetchRouteLost,
    FetchRouteRefused,
    FetchRoutesResolved,
    FetchRoutesWanted,
    FetchRouteWanted,
    FetchStreamOpened,
    FetchTick,
    HighWatermarkMoved,
    Mark,
    ReadChunk,
    ReleaseFetchRoute,
    ResolveFetchRoutes,
    RoutesUnwanted,
)
from brokerd.api.log_service.fetch_session import CAUGHT_UP_MARK_DELAY_MS, FetchSession
from brokerd.failure import Failure
from brokerd.limits import (
    FETCH_MARK_INTERVAL_MS,
    MAX_CHUNK_BYTES,
    MAX_CREDIT_BYTES,
    MAX_ROUTES_PER_STREAM,
    MAX_STREAM_OUTBOX_ITEMS,
)

LOST = Failure(code=ErrorCode.NOT_LEADER, message="moved")


def wanted(route: int, offset: int = 0) -> FetchRouteWanted:
    return FetchRouteWanted(route=route, topic="t", partition=route, offset=offset)


def bound(route: int, offset: int = 0, high_watermark: int = 0) -> FetchRouteBound:
    return FetchRouteBound(
        route=route,
        topic_id=b"i" * 16,
        leader_epoch=1,
        offset=offset,
        log_start_offset=0,
        high_watermark=high_watermark,
    )


def opened_session(*routes: FetchRouteBound, credit_bytes: int = 1_000, max_chunk_bytes: int = 100) -> FetchSession:
    session = FetchSession()
    wants = tuple(wanted(route.route, route.offset) for route in routes)
    opening = FetchStreamOpened(routes=wants, credit_bytes=credit_bytes, max_chunk_bytes=max_chunk_bytes)
    assert session.step(opening, 0) == [ResolveFetchRoutes(routes=wants)]
    for route in routes:
        assert session.step(route, 0) == []
    assert session.step(FetchRoutesResolved(), 0) == []
    return session


def chunk(session: FetchSession, read: ReadChunk | None, next_offset: int, size_bytes: int) -> list[FetchEffect]:
    assert read is not None
    return session.step(ChunkRead(route=read.route, next_offset=next_offset, size_bytes=size_bytes), 0)


def only_abort(effects: list[FetchEffect]) -> Failure:
    assert len(effects) == 1
    assert isinstance(effects[0], AbortFetchStream)
    return effects[0].failure


def test_opened_is_followed_by_a_mark_for_a_route_that_is_caught_up() -> None:
    """A route bound at the high watermark is told at once that it has everything."""
    session = opened_session(bound(1), bound(2, 0, 5))
    assert session.take_answers() == [
        FetchOpened(routes=(bound(1), bound(2, 0, 5))),
        Mark(route=1, next_offset=0, high_watermark=0, log_start_offset=0, caught_up=True),
    ]
    assert session.next_read() == ReadChunk(route=2, offset=0, end_offset=5, max_bytes=100)


def test_ready_routes_take_turns() -> None:
    """Routes that stay ready are read one chunk each in turn."""
    session = opened_session(bound(1, 0, 100), bound(2, 0, 100), bound(3, 0, 100))
    order = []
    for position in range(1, 7):
        read = session.next_read()
        assert read is not None
        order.append(read.route)
        chunk(session, read, (position + 2) // 3, 10)
    assert order == [1, 2, 3, 1, 2, 3]


def test_credit_limits_chunks_and_lets_the_first_batch_through() -> None:
    """A chunk is cut to the credit; a batch larger than the rest is sent whole and the debt is paid first."""
    session = opened_session(bound(1, 0, 100), credit_bytes=150)
    assert chunk(session, session.next_read(), 10, 100) == []
    read = session.next_read()
    assert read is not None
    assert read.max_bytes == 50
    chunk(session, read, 20, 400)
    assert session.credit_bytes == -350
    assert session.next_read() is None
    assert not session.step(CreditGranted(credit_bytes=350), 0)
    assert session.next_read() is None
    session.step(CreditGranted(credit_bytes=1), 0)
    assert session.next_read() == ReadChunk(route=1, offset=20, end_offset=100, max_bytes=1)


def test_zero_credit_sends_nothing_until_credit_comes() -> None:
    """A stream may be opened without credit."""
    session = opened_session(bound(1, 0, 100), credit_bytes=0)
    session.take_answers()
    assert not session.has_work
    assert session.next_read() is None
    session.step(CreditGranted(credit_bytes=1), 0)
    assert session.has_work


def test_high_watermark_move_makes_a_route_ready_once() -> None:
    """Several moves before the turn of a route give it one turn that reads up to the last of them."""
    session = opened_session(bound(1))
    for high_watermark in (3, 9, 9):
        session.step(HighWatermarkMoved(route=1, high_watermark=high_watermark, log_start_offset=2), 0)
    assert session.next_read() == ReadChunk(route=1, offset=0, end_offset=9, max_bytes=100)
    assert session.next_read() is None
    session.step(HighWatermarkMoved(route=8, high_watermark=5, log_start_offset=0), 0)
    assert session.next_read() is None


def test_offset_beyond_the_high_watermark_waits_for_it() -> None:
    """A route that starts above the high watermark stays quiet until the watermark has passed its offset."""
    session = opened_session(bound(1, 5, 2))
    session.step(HighWatermarkMoved(route=1, high_watermark=4, log_start_offset=0), 0)
    assert session.next_read() is None
    session.step(HighWatermarkMoved(route=1, high_watermark=6, log_start_offset=0), 0)
    assert session.next_read() == ReadChunk(route=1, offset=5, end_offset=6, max_bytes=100)


def test_caught_up_mark_follows_the_last_chunk_after_a_moment() -> None:
    """The chunk itself says that it is the last; the mark comes only when nothing more does."""
    session = opened_session(bound(1, 0, 5))
    session.take_answers()
    chunk(session, session.next_read(), 5, 10)
    assert session.take_answers() == []
    assert session.deadline_ms() == CAUGHT_UP_MARK_DELAY_MS
    session.step(FetchTick(), CAUGHT_UP_MARK_DELAY_MS - 1)
    assert session.take_answers() == []
    session.step(FetchTick(), CAUGHT_UP_MARK_DELAY_MS)
    mark = Mark(route=1, next_offset=5, high_watermark=5, log_start_offset=0, caught_up=True)
    assert session.take_answers() == [mark]
    assert session.deadline_ms() == CAUGHT_UP_MARK_DELAY_MS + FETCH_MARK_INTERVAL_MS
    session.step(FetchTick(), CAUGHT_UP_MARK_DELAY_MS + FETCH_MARK_INTERVAL_MS)
    assert session.take_answers() == [mark]


def test_steady_flow_puts_the_mark_off() -> None:
    """A route that keeps getting chunks gets no marks between them."""
    session = opened_session(bound(1, 0, 1))
    session.take_answers()
    for now_ms in range(0, 1_000, 10):
        read = session.next_read()
        assert read is not None
        session.step(ChunkRead(route=1, next_offset=read.end_offset, size_bytes=1), now_ms)
        session.step(FetchTick(), now_ms + 5)
        assert session.take_answers() == []
        session.step(HighWatermarkMoved(route=1, high_watermark=read.end_offset + 1, log_start_offset=0), now_ms)
        session.step(CreditGranted(credit_bytes=1), now_ms)


def test_route_that_waits_for_credit_gets_no_mark() -> None:
    """A ready route is not told that it has caught up, and its schedule goes on."""
    session = opened_session(bound(1), credit_bytes=0)
    session.take_answers()
    session.step(HighWatermarkMoved(route=1, high_watermark=5, log_start_offset=0), 0)
    session.step(FetchTick(), FETCH_MARK_INTERVAL_MS)
    assert session.take_answers() == []
    assert session.deadline_ms() == 2 * FETCH_MARK_INTERVAL_MS


def test_unbound_route_ends_and_gets_nothing_more() -> None:
    """After the end that answers an unbind no chunk and no mark of the route follows."""
    session = opened_session(bound(1, 0, 100), bound(2, 0, 100))
    session.take_answers()
    assert session.step(RoutesUnwanted(routes=(1, 9)), 0) == [ReleaseFetchRoute(route=1)]
    first, second = session.take_answers()
    assert first == FetchRouteEnded(route=1, failure=None)
    assert isinstance(second, FetchRouteEnded)
    assert second.failure is not None
    assert second.failure.code is ErrorCode.INVALID_ROUTE
    read = session.next_read()
    assert read is not None
    assert read.route == 2
    assert session.step(RoutesUnwanted(routes=(1,)), 0) == []
    session.step(FetchTick(), 10**9)
    assert session.take_answers() == []


def test_route_lost_while_its_chunk_is_read_only_costs_credit() -> None:
    """Bytes that were written count even when the route has ended meanwhile."""
    session = opened_session(bound(1, 0, 100))
    session.take_answers()
    read = session.next_read()
    assert session.step(FetchRouteLost(route=1, failure=LOST), 0) == [ReleaseFetchRoute(route=1)]
    assert session.step(FetchRouteLost(route=1, failure=LOST), 0) == []
    assert chunk(session, read, 5, 70) == []
    assert session.credit_bytes == 930
    assert session.take_answers() == [FetchRouteEnded(route=1, failure=LOST)]


def test_log_that_gives_nothing_ends_the_route() -> None:
    """A read without progress below the high watermark would repeat for ever: the route ends with INTERNAL."""
    session = opened_session(bound(1, 3, 100))
    session.take_answers()
    assert chunk(session, session.next_read(), 3, 0) == [ReleaseFetchRoute(route=1)]
    (end,) = session.take_answers()
    assert isinstance(end, FetchRouteEnded)
    assert end.failure is not None
    assert end.failure.code is ErrorCode.INTERNAL


def test_refused_routes_come_after_opened() -> None:
    """The first answer of a stream is `opened`; later binds answer in order."""
    session = FetchSession()
    session.step(FetchStreamOpened(routes=(wanted(1), wanted(2)), credit_bytes=1, max_chunk_bytes=0), 0)
    session.step(FetchRouteRefused(route=1, failure=LOST), 0)
    session.step(bound(2, 0, 5), 0)
    assert session.take_answers() == []
    assert session.next_read() is None
    session.step(FetchRoutesResolved(), 0)
    assert session.take_answers() == [FetchOpened(routes=(bound(2, 0, 5),)), FetchRouteEnded(route=1, failure=LOST)]
    assert session.step(FetchRoutesWanted(routes=(wanted(3),)), 0) == [ResolveFetchRoutes(routes=(wanted(3),))]
    session.step(bound(3, 0, 5), 0)
    session.step(FetchRoutesResolved(), 0)
    assert session.take_answers() == [FetchOpened(routes=(bound(3, 0, 5),))]


def test_route_bound_twice_is_dead() -> None:
    """A number with two partitions cannot be told apart, so it ends; also when it comes twice in one request."""
    session = opened_session(bound(1))
    session.take_answers()
    effects = session.step(FetchRoutesWanted(routes=(wanted(1), wanted(2), wanted(2), wanted(3))), 0)
    assert effects == [ReleaseFetchRoute(route=1), ResolveFetchRoutes(routes=(wanted(3),))]
    ends = session.take_answers()
    assert [end.route for end in ends] == [1, 2]


@pytest.mark.parametrize(
    "event",
    [
        FetchRoutesWanted(routes=()),
        CreditGranted(credit_bytes=1),
        RoutesUnwanted(routes=(1,)),
        FetchStreamOpened(routes=(), credit_bytes=-1, max_chunk_bytes=0),
        FetchStreamOpened(routes=(), credit_bytes=MAX_CREDIT_BYTES + 1, max_chunk_bytes=0),
        FetchStreamOpened(routes=(), credit_bytes=1, max_chunk_bytes=-1),
        FetchStreamOpened(routes=(), credit_bytes=1, max_chunk_bytes=MAX_CHUNK_BYTES + 1),
    ],
    ids=["bind first", "credit first", "unbind first", "debt", "huge credit", "negative chunk", "huge chunk"],
)
def test_bad_first_messages_abort_the_stream(event: FetchEvent) -> None:
    """What no route can carry ends the stream with a typed error."""
    assert only_abort(FetchSession().step(event, 0)).code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "event",
    [
        FetchStreamOpened(routes=(), credit_bytes=1, max_chunk_bytes=0),
        CreditGranted(credit_bytes=0),
        CreditGranted(credit_bytes=-5),
        CreditGranted(credit_bytes=MAX_CREDIT_BYTES),
        FetchRoutesWanted(routes=(wanted(-1),)),
        FetchRoutesWanted(routes=(wanted(MAX_ROUTE + 1),)),
        RoutesUnwanted(routes=tuple(range(MAX_ROUTES_PER_STREAM + 1))),
    ],
    ids=["open twice", "no credit", "negative credit", "too much credit", "route -1", "route too high", "many unbinds"],
)
def test_bad_later_messages_abort_the_stream(event: FetchEvent) -> None:
    """Later messages are checked as well."""
    assert only_abort(opened_session(bound(1)).step(event, 0)).code is ErrorCode.INVALID_REQUEST


def test_route_count_over_a_life_is_limited() -> None:
    """A stream that keeps binding routes ends before it costs unbounded memory."""
    many = tuple(wanted(route) for route in range(MAX_ROUTES_PER_STREAM + 1))
    assert only_abort(opened_session().step(FetchRoutesWanted(routes=many), 0)).code is ErrorCode.LIMIT_EXCEEDED


def test_reading_pauses_while_many_answers_wait() -> None:
    """A client that asks without reading the answers is not read any more."""
    session = opened_session()
    session.step(RoutesUnwanted(routes=tuple(range(MAX_STREAM_OUTBOX_ITEMS))), 0)
    assert session.must_pause
    session.take_answers()
    assert not session.must_pause


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50), st.integers(1, 300)), max_size=60))
def test_every_offset_is_read_once_and_in_order(moves: list[tuple[int, int, int]]) -> None:
    """Whatever the moves and the credit, each route reads a gapless ascending range up to its high watermark."""
    session = opened_session(bound(1), bound(2), bound(3), credit_bytes=0)
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
        session.step(HighWatermarkMoved(route=route, high_watermark=high_watermarks[route], log_start_offset=0), 0)
        session.step(CreditGranted(credit_bytes=credit_bytes), 0)
        read_all()
        assert session.credit_bytes > -60
    session.step(CreditGranted(credit_bytes=10**9), 0)
    read_all()
    assert positions == high_watermarks


def test_unknown_event_is_a_fault() -> None:
    """An event that the core does not know stops the process instead of being dropped."""
    with pytest.raises(AssertionError):
        FetchSession().step(object(), 0)  # type: ignore[arg-type]

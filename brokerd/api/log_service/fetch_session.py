# SPDX-License-Identifier: Apache-2.0
"""The core of one fetch stream.

Owns: which routes are bound and how far each was sent, the credit, whose turn it is, and when a mark is due.
Must not: read a log, find partitions, touch a stream or a clock.

Theory of operation. A route is *ready* while its next offset is below the high watermark. Ready routes wait in a
ring; `next_read` gives the front one its turn and the shell answers with `ChunkRead`, which puts the route at the
back if it is still ready. Credit is spent by the bytes really read: a chunk is cut to the credit that is left, but
its first batch is sent whole, so credit may fall below zero by one batch and never stalls on a batch larger than
itself.

Marks: a chunk whose next offset equals its high watermark says itself that the route has caught up. A mark says so
when no chunk can (at the binding), again a moment after the last chunk when nothing more came, and every few
seconds while the route is idle.

Laws: offsets of a route never go back; a chunk never follows the end of its route; a route without ready records
costs nothing.
Source: architecture section 5.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final, assert_never

from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_ROUTE

from brokerd.api.log_service.fetch_events import (
    AbortFetchStream,
    ChunkRead,
    CreditGranted,
    FetchAnswer,
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
from brokerd.failure import Failure
from brokerd.limits import (
    DEFAULT_CHUNK_BYTES,
    FETCH_MARK_INTERVAL_MS,
    MAX_CHUNK_BYTES,
    MAX_CREDIT_BYTES,
    MAX_ROUTES_PER_STREAM,
    MAX_STREAM_OUTBOX_ITEMS,
)

CAUGHT_UP_MARK_DELAY_MS: Final = 25
"""Milliseconds without a new record after which a route that caught up by a chunk also gets a mark."""


class _Route:
    """A live route."""

    __slots__ = ("high_watermark", "in_ring", "log_start_offset", "mark_due_ms", "next_offset", "scheduled_ms")

    def __init__(self, bound: FetchRouteBound, mark_due_ms: int) -> None:
        self.next_offset = bound.offset
        self.high_watermark = bound.high_watermark
        self.log_start_offset = bound.log_start_offset
        self.in_ring = False
        self.mark_due_ms = mark_due_ms
        # Earliest entry of this route in the schedule; a later `mark_due_ms` is found when that entry comes up.
        self.scheduled_ms: int | None = None

    @property
    def is_ready(self) -> bool:
        return self.next_offset < self.high_watermark


class FetchSession:
    """One fetch stream; see the module docstring."""

    __slots__ = (
        "_bound",
        "_credit_bytes",
        "_ended",
        "_is_open",
        "_is_opened",
        "_max_chunk_bytes",
        "_outbox",
        "_resolving",
        "_ring",
        "_routes",
        "_schedule",
    )

    def __init__(self) -> None:
        self._is_open = False
        self._is_opened = False
        self._routes: dict[int, _Route] = {}
        self._ended: set[int] = set()
        self._resolving: set[int] = set()
        self._bound: list[FetchRouteBound] = []
        self._ring: deque[int] = deque()
        self._schedule: list[tuple[int, int]] = []
        self._outbox: list[FetchAnswer] = []
        self._credit_bytes = 0
        self._max_chunk_bytes = DEFAULT_CHUNK_BYTES

    @property
    def credit_bytes(self) -> int:
        """Bytes that may still be sent; below zero after a batch larger than the rest."""
        return self._credit_bytes

    @property
    def has_work(self) -> bool:
        """True when there is an answer to write or a chunk to read."""
        return self._is_opened and bool(self._outbox or (self._ring and self._credit_bytes > 0))

    @property
    def is_opened(self) -> bool:
        """True once the opening is answered: that answer comes before any other."""
        return self._is_opened

    @property
    def must_pause(self) -> bool:
        """True while no further request should be read from the stream."""
        return len(self._outbox) >= MAX_STREAM_OUTBOX_ITEMS

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which `FetchTick` must be given, or None."""
        return self._schedule[0][0] if self._schedule else None

    def take_answers(self) -> list[FetchAnswer]:
        """Return the answers to write now, in order, and forget them; nothing before the first `FetchOpened`."""
        if not self._is_opened:
            return []
        answers = self._outbox
        self._outbox = []
        return answers

    def next_read(self) -> ReadChunk | None:
        """Return what to read next, or None without a ready route or credit. Each must be answered before the next."""
        if not self._is_opened or self._credit_bytes <= 0:
            return None
        ring = self._ring
        while ring:
            number = ring.popleft()
            route = self._routes.get(number)
            if route is None:
                continue  # ended while it waited for its turn
            route.in_ring = False
            return ReadChunk(
                route=number,
                offset=route.next_offset,
                end_offset=route.high_watermark,
                max_bytes=min(self._max_chunk_bytes, self._credit_bytes),
            )
        return None

    def step(self, event: FetchEvent, now_ms: int) -> list[FetchEffect]:
        """Take an event and say what to do.

        Args:
            event: what happened.
            now_ms: monotonic time in milliseconds.
        """
        match event:
            case HighWatermarkMoved():
                self._on_moved(event)
                return []
            case ChunkRead():
                return self._on_read(event, now_ms)
            case CreditGranted():
                return self._on_credit(event.credit_bytes)
            case FetchTick():
                self._on_tick(now_ms)
                return []
            case FetchStreamOpened():
                return self._on_open(event)
            case FetchRoutesWanted():
                return self._on_routes(event.routes)
            case RoutesUnwanted():
                return self._on_unwanted(event.routes)
            case FetchRouteBound():
                self._resolving.discard(event.route)
                self._routes[event.route] = _Route(event, now_ms + FETCH_MARK_INTERVAL_MS)
                self._bound.append(event)
                return []
            case FetchRouteRefused():
                self._resolving.discard(event.route)
                self._refuse(event.route, event.failure)
                return []
            case FetchRoutesResolved():
                self._on_resolved(now_ms)
                return []
            case FetchRouteLost():
                return self._end(event.route, event.failure)
            case _:
                assert_never(event)

    def _on_open(self, event: FetchStreamOpened) -> list[FetchEffect]:
        if self._is_open:
            return [_abort("`open` came twice; it is the first message of a stream and the only one of its kind")]
        if not 0 <= event.credit_bytes <= MAX_CREDIT_BYTES:
            return [_abort(f"credit_bytes {event.credit_bytes} is not between 0 and {MAX_CREDIT_BYTES}")]
        if not 0 <= event.max_chunk_bytes <= MAX_CHUNK_BYTES:
            return [_abort(f"max_chunk_bytes {event.max_chunk_bytes} is not between 0 and {MAX_CHUNK_BYTES}")]
        self._is_open = True
        self._credit_bytes = event.credit_bytes
        self._max_chunk_bytes = event.max_chunk_bytes or DEFAULT_CHUNK_BYTES
        return self._on_routes(event.routes)

    def _on_routes(self, wanted: tuple[FetchRouteWanted, ...]) -> list[FetchEffect]:
        if not self._is_open:
            return [_abort("the first message of a fetch stream must be `open`")]
        known = len(self._routes) + len(self._ended)
        if known + len(wanted) > MAX_ROUTES_PER_STREAM:
            message = f"a stream takes {MAX_ROUTES_PER_STREAM} routes over its life; open another stream"
            return [AbortFetchStream(failure=Failure(code=ErrorCode.LIMIT_EXCEEDED, message=message))]
        effects: list[FetchEffect] = []
        resolve: dict[int, FetchRouteWanted] = {}
        for route in wanted:
            number = route.route
            if not 0 <= number <= MAX_ROUTE:
                return [_abort(f"route {number} is not between 0 and {MAX_ROUTE}")]
            if number in self._routes or number in self._resolving or number in self._ended:
                # Two partitions under one number cannot be told apart any more, so the number is dead.
                message = f"route {number} was bound before on this stream"
                failure = Failure(code=ErrorCode.INVALID_ROUTE, message=message)
                self._resolving.discard(number)
                resolve.pop(number, None)
                effects += self._end(number, failure) if number in self._routes else self._refuse(number, failure)
                continue
            self._resolving.add(number)
            resolve[number] = route
        effects.append(ResolveFetchRoutes(routes=tuple(resolve.values())))
        return effects

    def _on_resolved(self, now_ms: int) -> None:
        assert not self._resolving, f"routes {sorted(self._resolving)} were not answered"
        bound = [route for route in self._bound if route.route in self._routes]
        self._bound.clear()
        opened = FetchOpened(routes=tuple(bound))
        if self._is_opened:
            self._outbox.append(opened)
        else:
            # The first answer of a stream is `opened`; ends of refused routes that wait come after it.
            self._outbox.insert(0, opened)
            self._is_opened = True
        for event in bound:
            route = self._routes[event.route]
            if route.is_ready:
                self._enqueue(event.route, route)
            else:
                self._mark(event.route, route, now_ms)

    def _on_moved(self, event: HighWatermarkMoved) -> None:
        route = self._routes.get(event.route)
        if route is None:
            return
        route.log_start_offset = event.log_start_offset
        if event.high_watermark > route.high_watermark:
            route.high_watermark = event.high_watermark
            if route.is_ready:
                self._enqueue(event.route, route)

    def _on_read(self, event: ChunkRead, now_ms: int) -> list[FetchEffect]:
        self._credit_bytes -= event.size_bytes
        route = self._routes.get(event.route)
        if route is None:
            return []
        if event.next_offset <= route.next_offset:
            message = f"the log gave nothing at offset {route.next_offset} below {route.high_watermark}"
            return self._end(event.route, Failure(code=ErrorCode.INTERNAL, message=message))
        route.next_offset = event.next_offset
        if route.is_ready:
            self._enqueue(event.route, route)
        else:
            self._plan_mark(event.route, route, now_ms + CAUGHT_UP_MARK_DELAY_MS)
        return []

    def _on_credit(self, credit_bytes: int) -> list[FetchEffect]:
        if not self._is_open:
            return [_abort("the first message of a fetch stream must be `open`, before any credit")]
        if credit_bytes <= 0 or self._credit_bytes + credit_bytes > MAX_CREDIT_BYTES:
            return [_abort(f"credit of {credit_bytes} bytes is not above 0, or brings the sum over {MAX_CREDIT_BYTES}")]
        self._credit_bytes += credit_bytes
        return []

    def _on_unwanted(self, numbers: tuple[int, ...]) -> list[FetchEffect]:
        if not self._is_open:
            return [_abort("the first message of a fetch stream must be `open`, before any unbind")]
        if len(numbers) > MAX_ROUTES_PER_STREAM:
            return [_abort(f"{len(numbers)} routes in one message are more than {MAX_ROUTES_PER_STREAM}")]
        effects: list[FetchEffect] = []
        for number in numbers:
            if number in self._routes:
                effects += self._end(number, None)
            elif number not in self._ended:
                message = f"route {number} is not bound on this stream"
                self._outbox.append(
                    FetchRouteEnded(route=number, failure=Failure(code=ErrorCode.INVALID_ROUTE, message=message))
                )
        return effects

    def _on_tick(self, now_ms: int) -> None:
        schedule = self._schedule
        while schedule and schedule[0][0] <= now_ms:
            due_ms, number = heappop(schedule)
            route = self._routes.get(number)
            if route is None or route.scheduled_ms != due_ms:
                continue
            route.scheduled_ms = None
            if route.mark_due_ms > now_ms:
                self._plan_mark(number, route, route.mark_due_ms)
            elif route.is_ready:
                # It waits for credit or for its turn; a mark would say nothing new.
                self._plan_mark(number, route, now_ms + FETCH_MARK_INTERVAL_MS)
            else:
                self._mark(number, route, now_ms)

    def _mark(self, number: int, route: _Route, now_ms: int) -> None:
        self._outbox.append(
            Mark(
                route=number,
                next_offset=route.next_offset,
                high_watermark=route.high_watermark,
                log_start_offset=route.log_start_offset,
                caught_up=not route.is_ready,
            )
        )
        self._plan_mark(number, route, now_ms + FETCH_MARK_INTERVAL_MS)

    def _plan_mark(self, number: int, route: _Route, due_ms: int) -> None:
        route.mark_due_ms = due_ms
        if route.scheduled_ms is None or due_ms < route.scheduled_ms:
            route.scheduled_ms = due_ms
            heappush(self._schedule, (due_ms, number))

    def _enqueue(self, number: int, route: _Route) -> None:
        if not route.in_ring:
            route.in_ring = True
            self._ring.append(number)

    def _refuse(self, number: int, failure: Failure) -> list[FetchEffect]:
        self._ended.add(number)
        self._outbox.append(FetchRouteEnded(route=number, failure=failure))
        return []

    def _end(self, number: int, failure: Failure | None) -> list[FetchEffect]:
        if self._routes.pop(number, None) is None:
            return []
        self._ended.add(number)
        self._outbox.append(FetchRouteEnded(route=number, failure=failure))
        return [ReleaseFetchRoute(route=number)]


def _abort(message: str) -> AbortFetchStream:
    return AbortFetchStream(failure=Failure(code=ErrorCode.INVALID_REQUEST, message=message))

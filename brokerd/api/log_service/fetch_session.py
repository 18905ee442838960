# SPDX-License-Identifier: Apache-2.0
"""The core of one fetch stream: requests enter through its methods, `next_read` returns reads, `take_answers` returns answers.

Owns the bound routes and their next offsets, the credit, whose turn it is, and when a mark is due.
Does not read a log, find partitions, or touch a stream or a clock.

Binding. The client asks for routes (`open`, `want_routes`). The shell finds each partition (`bind_route`, `refuse_route`), and one
`FetchOpened` answers them all (`end_binding`). The object that the shell binds to a route is opaque here: a read names it, and
`take_ended` returns it after the route has ended.

Reads. A route is *ready* while its next offset is below the high watermark. Ready routes wait in a ring. `next_read` takes the first
one, and the shell answers with `note_read`, which puts the route at the end if it is still ready. Credit is spent by the bytes that
were really read. A chunk is limited to the remaining credit, but its first batch is sent whole. So credit may fall below zero by one
batch, and a batch larger than the credit does not block the stream.

Marks. A chunk whose next offset equals its high watermark already says that the route has caught up. A mark says it where no chunk
can (at the binding), again a moment after the last chunk if no more came, and every few seconds while the route is idle.

Laws: the offsets of a route never go back. A chunk never follows the end of its route. A route that is not ready costs nothing.
Source: docs/clients.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_ROUTE

from brokerd.failure import Failure, RefusedError, refused

BindingT = TypeVar("BindingT")

CAUGHT_UP_MARK_DELAY_MS: Final = 25
"""Milliseconds without a new record after which a route that caught up by a chunk also gets a mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits of one stream.

    Attributes:
        max_routes: routes that a stream may bind over its life, ended ones included. A stream that asks for more ends.
        max_outbox_answers: answers waiting to be written from which on the stream is not read.
        max_credit_bytes: maximum unspent credit.
        default_chunk_bytes: bytes of one chunk if the client names no other number.
        max_chunk_bytes: maximum bytes of one chunk that a client may ask for.
        mark_interval_ms: milliseconds between two marks of an idle route.
    """

    max_routes: int
    max_outbox_answers: int
    max_credit_bytes: int
    default_chunk_bytes: int
    max_chunk_bytes: int
    mark_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRouteWanted:
    """A partition that the client wants to read from `offset` (inclusive) on, from a follower too if it allows that."""

    route: int
    topic: str
    partition: int
    offset: int
    allow_follower: bool = False
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk(Generic[BindingT]):
    """A request to read whole batches of a route, from the batch that holds `offset`, below `end_offset`, at least one batch."""

    route: int
    binding: BindingT
    offset: int
    end_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOpened(Generic[BindingT]):
    """Answer to the opening of the stream or to further routes: the bindings of the routes that are live."""

    bindings: tuple[BindingT, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Progress of a route without bytes."""

    route: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    caught_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRouteEnded:
    """The end of a route. `failure` None: the client unbound it."""

    route: int
    failure: Failure | None


FetchAnswer = FetchOpened[BindingT] | Mark | FetchRouteEnded


class _Route(Generic[BindingT]):
    """A live route."""

    __slots__ = (
        "binding",
        "high_watermark",
        "in_ring",
        "is_answered",
        "log_start_offset",
        "mark_due_ms",
        "next_offset",
        "scheduled_ms",
    )

    def __init__(
        self, binding: BindingT, *, offset: int, high_watermark: int, log_start_offset: int, mark_due_ms: int
    ) -> None:
        self.binding = binding
        self.next_offset = offset
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset
        self.in_ring = False
        # True once the answer to the binding waits to be written. The client learns the topic's id from it, before any batch.
        self.is_answered = False
        self.mark_due_ms = mark_due_ms
        # Earliest entry of this route in the schedule. When that entry is due, a later `mark_due_ms` makes a new entry.
        self.scheduled_ms: int | None = None

    @property
    def is_ready(self) -> bool:
        return self.next_offset < self.high_watermark


class FetchSession(Generic[BindingT]):
    """The state of one fetch stream. Its only caller, the shell of the stream, is the one writer of this state.

    `now_ms` is monotonic time in milliseconds.
    """

    __slots__ = (
        "_bound",
        "_credit_bytes",
        "_dead",
        "_ended",
        "_is_open",
        "_is_opened",
        "_limits",
        "_max_chunk_bytes",
        "_outbox",
        "_resolving",
        "_ring",
        "_routes",
        "_schedule",
    )

    def __init__(self, limits: FetchLimits) -> None:
        self._limits = limits
        self._is_open = False
        self._is_opened = False
        self._routes: dict[int, _Route[BindingT]] = {}
        # Numbers that were bound or refused and may not be used again.
        self._dead: set[int] = set()
        self._resolving: set[int] = set()
        self._bound: list[int] = []
        self._ended: list[BindingT] = []
        self._ring: deque[int] = deque()
        self._schedule: list[tuple[int, int]] = []
        self._outbox: list[FetchAnswer[BindingT]] = []
        self._credit_bytes = 0
        self._max_chunk_bytes = limits.default_chunk_bytes

    @property
    def credit_bytes(self) -> int:
        """Bytes that may still be sent. Below zero after a batch that was larger than the rest."""
        return self._credit_bytes

    @property
    def has_work(self) -> bool:
        """True if there is an answer to write or a chunk to read."""
        return self._is_opened and bool(self._outbox or (self._ring and self._credit_bytes > 0))

    @property
    def is_opened(self) -> bool:
        """True after the opening was answered. No other answer comes before that."""
        return self._is_opened

    @property
    def must_pause(self) -> bool:
        """True while the shell must not read further requests from the stream."""
        return len(self._outbox) >= self._limits.max_outbox_answers

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which the shell must call `tick`; None if no mark is planned."""
        return self._schedule[0][0] if self._schedule else None

    def is_live(self, number: int) -> bool:
        """Return True while a route is bound."""
        return number in self._routes

    def take_answers(self) -> list[FetchAnswer[BindingT]]:
        """Return the answers to write now, in order, and forget them. Before the first `FetchOpened` there are none."""
        if not self._is_opened:
            return []
        answers = self._outbox
        self._outbox = []
        return answers

    def take_ended(self) -> list[BindingT]:
        """Return the bindings of the routes that have ended since the last call."""
        ended = self._ended
        self._ended = []
        return ended

    def close(self) -> list[BindingT]:
        """End every route without an answer, because the stream has ended. Return their bindings."""
        bindings = self._ended + [route.binding for route in self._routes.values()]
        self._ended = []
        self._routes.clear()
        return bindings

    def next_read(self) -> ReadChunk[BindingT] | None:
        """Return what to read next; None without a ready route or without credit. The shell answers each read before the next.

        It has written everything from `take_answers` before, so that the answer to a binding precedes the first batch.
        """
        if not self._is_opened or self._credit_bytes <= 0:
            return None
        ring = self._ring
        while ring:
            number = ring.popleft()
            route = self._routes.get(number)
            if route is None:
                continue  # the route ended while it waited for its turn
            route.in_ring = False
            return ReadChunk(
                route=number,
                binding=route.binding,
                offset=route.next_offset,
                end_offset=route.high_watermark,
                max_bytes=min(self._max_chunk_bytes, self._credit_bytes),
            )
        return None

    def open(
        self, routes: Sequence[FetchRouteWanted], *, credit_bytes: int, max_chunk_bytes: int
    ) -> list[FetchRouteWanted]:
        """Handle the first request of the stream; `max_chunk_bytes` 0 means the default. Returns and raises as `want_routes` does."""
        limits = self._limits
        if self._is_open:
            raise _broken("`open` came twice; it is the first message of a stream and the only one of its kind")
        if not 0 <= credit_bytes <= limits.max_credit_bytes:
            raise _broken(f"credit_bytes {credit_bytes} is not between 0 and {limits.max_credit_bytes}")
        if not 0 <= max_chunk_bytes <= limits.max_chunk_bytes:
            raise _broken(f"max_chunk_bytes {max_chunk_bytes} is not between 0 and {limits.max_chunk_bytes}")
        self._is_open = True
        self._credit_bytes = credit_bytes
        self._max_chunk_bytes = max_chunk_bytes or limits.default_chunk_bytes
        return self.want_routes(routes)

    def want_routes(self, wanted: Sequence[FetchRouteWanted]) -> list[FetchRouteWanted]:
        """Begin to bind the routes that the client asks for.

        Returns:
            The routes whose partitions the shell must find. It answers each with `bind_route` or `refuse_route`, and then calls
            `end_binding`.

        Raises:
            RefusedError: the stream ends, because the client asks for too much, or violates the protocol in a way that the end of a
                route cannot express.
        """
        if not self._is_open:
            raise _broken("the first message of a fetch stream must be `open`")
        if len(self._routes) + len(self._dead) + len(wanted) > self._limits.max_routes:
            message = f"a stream takes {self._limits.max_routes} routes over its life; open another stream"
            raise refused(ErrorCode.LIMIT_EXCEEDED, message)
        resolve: dict[int, FetchRouteWanted] = {}
        for route in wanted:
            number = route.route
            if not 0 <= number <= MAX_ROUTE:
                raise _broken(f"route {number} is not between 0 and {MAX_ROUTE}")
            if number in self._routes or number in self._resolving or number in self._dead:
                # Two partitions under one number cannot be told apart, so neither keeps the number.
                message = f"route {number} was bound before on this stream"
                failure = Failure(code=ErrorCode.INVALID_ROUTE, message=message)
                resolve.pop(number, None)
                if number in self._routes:
                    self.lose_route(number, failure)
                else:
                    self.refuse_route(number, failure)
                continue
            self._resolving.add(number)
            resolve[number] = route
        return list(resolve.values())

    def bind_route(
        self,
        number: int,
        binding: BindingT,
        *,
        offset: int,
        high_watermark: int,
        log_start_offset: int,
        now_ms: int,
    ) -> None:
        """Bind a route: this broker serves its partition, and the offset is in range."""
        self._resolving.discard(number)
        self._routes[number] = _Route(
            binding,
            offset=offset,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            mark_due_ms=now_ms + self._limits.mark_interval_ms,
        )
        self._bound.append(number)

    def refuse_route(self, number: int, failure: Failure) -> None:
        """Refuse a route: this broker cannot serve its partition, or not from that offset."""
        self._resolving.discard(number)
        self._dead.add(number)
        self._outbox.append(FetchRouteEnded(route=number, failure=failure))

    def end_binding(self, now_ms: int) -> None:
        """Answer the routes of the last request. The shell has bound or refused each of them."""
        assert not self._resolving, f"routes {sorted(self._resolving)} were not answered"
        live = [(number, route) for number in self._bound if (route := self._routes.get(number)) is not None]
        self._bound.clear()
        opened = FetchOpened(bindings=tuple(route.binding for _, route in live))
        if self._is_opened:
            self._outbox.append(opened)
        else:
            # The first answer of a stream is `FetchOpened`. The ends of refused routes come after it.
            self._outbox.insert(0, opened)
            self._is_opened = True
        for number, route in live:
            route.is_answered = True
            if route.is_ready:
                self._enqueue(number, route)
            else:
                self._mark(number, route, now_ms)

    def drop_routes(self, numbers: Sequence[int]) -> None:
        """Unbind routes at the request of the client.

        Raises:
            RefusedError: the stream ends, because it is not open, or the request has too many routes.
        """
        if not self._is_open:
            raise _broken("the first message of a fetch stream must be `open`, before any unbind")
        if len(numbers) > self._limits.max_routes:
            raise _broken(f"{len(numbers)} routes in one message are more than {self._limits.max_routes}")
        for number in numbers:
            if number in self._routes:
                self._end_route(number, None)
            elif number not in self._dead:
                message = f"route {number} is not bound on this stream"
                failure = Failure(code=ErrorCode.INVALID_ROUTE, message=message)
                self._outbox.append(FetchRouteEnded(route=number, failure=failure))

    def grant_credit(self, credit_bytes: int) -> None:
        """Add credit that the client grants.

        Raises:
            RefusedError: the stream ends, because it is not open, or the number of bytes is out of range.
        """
        if not self._is_open:
            raise _broken("the first message of a fetch stream must be `open`, before any credit")
        most_bytes = self._limits.max_credit_bytes
        if credit_bytes <= 0 or self._credit_bytes + credit_bytes > most_bytes:
            raise _broken(f"credit of {credit_bytes} bytes is not above 0, or brings the sum over {most_bytes}")
        self._credit_bytes += credit_bytes

    def move_route(self, number: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Note that more records of a route are readable, or that its log start has moved."""
        route = self._routes.get(number)
        if route is None:
            return
        route.log_start_offset = log_start_offset
        if high_watermark > route.high_watermark:
            route.high_watermark = high_watermark
            if route.is_ready and route.is_answered:
                self._enqueue(number, route)

    def note_read(self, number: int, next_offset: int, size_bytes: int, now_ms: int) -> None:
        """Note the result of the last `next_read`, which the shell writes now."""
        self._credit_bytes -= size_bytes
        route = self._routes.get(number)
        if route is None:
            return
        if next_offset <= route.next_offset:
            message = f"the log gave nothing at offset {route.next_offset} below {route.high_watermark}"
            self._end_route(number, Failure(code=ErrorCode.INTERNAL, message=message))
            return
        route.next_offset = next_offset
        if route.is_ready:
            self._enqueue(number, route)
        else:
            self._plan_mark(number, route, now_ms + CAUGHT_UP_MARK_DELAY_MS)

    def lose_route(self, number: int, failure: Failure) -> None:
        """End a route because this broker no longer serves its partition, or because a read failed."""
        if number in self._routes:
            self._end_route(number, failure)

    def tick(self, now_ms: int) -> None:
        """Make the marks that are due."""
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
                # The route waits for credit or for its turn. A mark would say nothing new.
                self._plan_mark(number, route, now_ms + self._limits.mark_interval_ms)
            else:
                self._mark(number, route, now_ms)

    def _mark(self, number: int, route: _Route[BindingT], now_ms: int) -> None:
        self._outbox.append(
            Mark(
                route=number,
                next_offset=route.next_offset,
                high_watermark=route.high_watermark,
                log_start_offset=route.log_start_offset,
                caught_up=not route.is_ready,
            )
        )
        self._plan_mark(number, route, now_ms + self._limits.mark_interval_ms)

    def _plan_mark(self, number: int, route: _Route[BindingT], due_ms: int) -> None:
        route.mark_due_ms = due_ms
        if route.scheduled_ms is None or due_ms < route.scheduled_ms:
            route.scheduled_ms = due_ms
            heappush(self._schedule, (due_ms, number))

    def _enqueue(self, number: int, route: _Route[BindingT]) -> None:
        if not route.in_ring:
            route.in_ring = True
            self._ring.append(number)

    def _end_route(self, number: int, failure: Failure | None) -> None:
        self._ended.append(self._routes.pop(number).binding)
        self._dead.add(number)
        self._outbox.append(FetchRouteEnded(route=number, failure=failure))


def _broken(message: str) -> RefusedError:
    """Return the refusal of a whole stream whose client violated the protocol."""
    return refused(ErrorCode.INVALID_REQUEST, message)

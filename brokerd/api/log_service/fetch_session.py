# SPDX-License-Identifier: Apache-2.0
"""The core of one fetch stream: requests go in by methods, reads come out of `next_read`, answers out of `take_answers`.

Owns: which routes are bound and how far each was sent, the credit, whose turn it is, and when a mark is due.
Must not: read a log, find partitions, touch a stream or a clock.

Theory of operation. The client asks for routes (`open`, `want_routes`); the shell finds each partition (`bind_route`,
`refuse_route`), and one `FetchOpened` answers them all (`end_binding`). What the shell binds to a route is opaque here:
a read names it, and `take_ended` gives it back once the route is over.

A route is *ready* while its next offset is below the high watermark. Ready routes wait in a ring; `next_read` gives the
front one its turn and the shell answers with `note_read`, which puts the route at the back if it is still ready. Credit
is spent by the bytes really read: a chunk is cut to the credit that is left, but its first batch is sent whole, so credit
may fall below zero by one batch and never stalls on a batch larger than itself.

Marks: a chunk whose next offset equals its high watermark says itself that the route has caught up. A mark says so
when no chunk can (at the binding), again a moment after the last chunk when nothing more came, and every few
seconds while the route is idle.

Laws: offsets of a route never go back; a chunk never follows the end of its route; a route without ready records
costs nothing.
Source: architecture section 5.
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
        max_routes: routes bound over its life, ended ones included; one that asks for more ends.
        max_outbox_answers: answers that wait to be written from which on the stream is not read.
        max_credit_bytes: most unspent credit.
        default_chunk_bytes: bytes of one chunk when the client names no other.
        max_chunk_bytes: most bytes of one chunk that a client may ask for.
        mark_interval_ms: milliseconds between the marks of an idle route.
    """

    max_routes: int
    max_outbox_answers: int
    max_credit_bytes: int
    default_chunk_bytes: int
    max_chunk_bytes: int
    mark_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRouteWanted:
    """A partition that the client wants to read from `offset` (inclusive) on, if it allows so from a follower too."""

    route: int
    topic: str
    partition: int
    offset: int
    allow_follower: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk(Generic[BindingT]):
    """Read whole batches of a route, from the one that holds `offset` on and below `end_offset`; at least one."""

    route: int
    binding: BindingT
    offset: int
    end_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOpened(Generic[BindingT]):
    """Answer to the opening of the stream or to further routes: what was bound to those that are live."""

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
    """The route is over; `failure` None: the client let it go."""

    route: int
    failure: Failure | None


FetchAnswer = FetchOpened[BindingT] | Mark | FetchRouteEnded


class _Route(Generic[BindingT]):
    """A live route."""

    __slots__ = (
        "binding",
        "high_watermark",
        "in_ring",
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
        self.mark_due_ms = mark_due_ms
        # Earliest entry of this route in the schedule; a later `mark_due_ms` is found when that entry comes up.
        self.scheduled_ms: int | None = None

    @property
    def is_ready(self) -> bool:
        return self.next_offset < self.high_watermark


class FetchSession(Generic[BindingT]):
    """One fetch stream; see above. Its only caller is the stream's shell, which is the one writer of all that it holds.

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
        # Numbers that were bound or refused and may not come again.
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
        return len(self._outbox) >= self._limits.max_outbox_answers

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which `tick` must be called, or None."""
        return self._schedule[0][0] if self._schedule else None

    def is_live(self, number: int) -> bool:
        """True while a route is bound."""
        return number in self._routes

    def take_answers(self) -> list[FetchAnswer[BindingT]]:
        """Return the answers to write now, in order, and forget them; nothing before the first `FetchOpened`."""
        if not self._is_opened:
            return []
        answers = self._outbox
        self._outbox = []
        return answers

    def take_ended(self) -> list[BindingT]:
        """Return what was bound to the routes that are over since the last call."""
        ended = self._ended
        self._ended = []
        return ended

    def close(self) -> list[BindingT]:
        """End every route without an answer, because the stream is over; return what was bound to them."""
        bindings = self._ended + [route.binding for route in self._routes.values()]
        self._ended = []
        self._routes.clear()
        return bindings

    def next_read(self) -> ReadChunk[BindingT] | None:
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
                binding=route.binding,
                offset=route.next_offset,
                end_offset=route.high_watermark,
                max_bytes=min(self._max_chunk_bytes, self._credit_bytes),
            )
        return None

    def open(
        self, routes: Sequence[FetchRouteWanted], *, credit_bytes: int, max_chunk_bytes: int
    ) -> list[FetchRouteWanted]:
        """Take the first request of the stream, where `max_chunk_bytes` 0 means the default; as `want_routes`."""
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
        """Take routes that the client wants to bind.

        Returns:
            Those to find. Each is answered with `bind_route` or `refuse_route`, and all of them with `end_binding`.

        Raises:
            RefusedError: the stream ends: the client broke the protocol in a way that no route can carry, or asks for too much.
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
                # Two partitions under one number cannot be told apart any more, so the number is dead.
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
        """Learn that the partition is served here, and the offset is in range."""
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
        """Learn that the partition cannot be served here, or not from that offset."""
        self._resolving.discard(number)
        self._dead.add(number)
        self._outbox.append(FetchRouteEnded(route=number, failure=failure))

    def end_binding(self, now_ms: int) -> None:
        """Answer the routes that were asked for last: each was bound or refused."""
        assert not self._resolving, f"routes {sorted(self._resolving)} were not answered"
        live = [(number, route) for number in self._bound if (route := self._routes.get(number)) is not None]
        self._bound.clear()
        opened = FetchOpened(bindings=tuple(route.binding for _, route in live))
        if self._is_opened:
            self._outbox.append(opened)
        else:
            # The first answer of a stream is `opened`; ends of refused routes that wait come after it.
            self._outbox.insert(0, opened)
            self._is_opened = True
        for number, route in live:
            if route.is_ready:
                self._enqueue(number, route)
            else:
                self._mark(number, route, now_ms)

    def drop_routes(self, numbers: Sequence[int]) -> None:
        """Let routes go that the client does not want any more.

        Raises:
            RefusedError: the stream ends: it is not open, or there are too many.
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
        """Learn that the client takes that many bytes more.

        Raises:
            RefusedError: the stream ends: it is not open, or that is no credit.
        """
        if not self._is_open:
            raise _broken("the first message of a fetch stream must be `open`, before any credit")
        most_bytes = self._limits.max_credit_bytes
        if credit_bytes <= 0 or self._credit_bytes + credit_bytes > most_bytes:
            raise _broken(f"credit of {credit_bytes} bytes is not above 0, or brings the sum over {most_bytes}")
        self._credit_bytes += credit_bytes

    def move_route(self, number: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Learn that more records of a route are readable, or that its log start has moved."""
        route = self._routes.get(number)
        if route is None:
            return
        route.log_start_offset = log_start_offset
        if high_watermark > route.high_watermark:
            route.high_watermark = high_watermark
            if route.is_ready:
                self._enqueue(number, route)

    def note_read(self, number: int, next_offset: int, size_bytes: int, now_ms: int) -> None:
        """Learn what the last `next_read` gave, which is written now."""
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
        """Learn that the partition of a route is no longer served here, or that a read failed."""
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
                # It waits for credit or for its turn; a mark would say nothing new.
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
    """Make the refusal of a whole stream whose client broke the protocol."""
    return refused(ErrorCode.INVALID_REQUEST, message)

# SPDX-License-Identifier: Apache-2.0
"""The core of one produce stream: requests enter through its methods, and `take_answers` returns the answers.

Owns the bound routes, the batch numbers, the unacknowledged batches, and the answers that wait to be written.
Does not parse batches, find partitions, or touch a log, a stream or a clock.

Binding. The client asks for routes (`open`, `want_routes`). The shell finds each partition (`bind_route`, `refuse_route`), and one
`Opened` answers them all (`end_binding`). The object that the shell binds to a route is opaque here: `receive_batch` returns it for
each batch, and `take_ended` returns it after the route has ended. `fetch_session` has the second copy of this binding of routes.

Receipts. A batch of a live route must carry the next batch number. The shell appends it (`note_appended`, `fail_batch`) and later
reports its acknowledgement (`acknowledge`). Acknowledgements may come in any order, because a duplicate waits for an older offset.
Receipts have the order of the batches: only the oldest batches of a route, without a gap, are in a receipt. A receipt that waits to be
written grows, so a slow writer sends a few large receipts instead of many small ones.

Failures. A failed batch ends its route, but not at once. The batches before it are in the log and get their receipts first, so that
the client learns the exact position of the failure. Until then the route is *ending* and drops further batches.

Laws: a failed batch ends its route and nothing else. Batches of an ended route are dropped without an answer, because `RouteEnded`
names the first of them. A receipt is never taken back. Every bound of memory is in `ProduceLimits` or in the wire limits.
Source: docs/clients.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_IN_FLIGHT_BATCHES, MAX_ROUTE

from brokerd.failure import Failure, RefusedError, refused
from brokerd.partition.events import Durability

BindingT = TypeVar("BindingT")


class Acks(Enum):
    """When batches of a stream are acknowledged."""

    ALL = "all"
    LEADER = "leader"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceLimits:
    """Limits of one stream.

    Attributes:
        max_routes: routes that a stream may bind over its life, ended ones included. A stream that asks for more ends.
        max_in_flight_bytes: bytes without a receipt from which on the stream is not read.
        max_outbox_answers: answers waiting to be written from which on the stream is not read.
    """

    max_routes: int
    max_in_flight_bytes: int
    max_outbox_answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteWanted:
    """A partition that the client wants to bind to a route number."""

    route: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Generic[BindingT]):
    """Answer to the opening of the stream or to further routes: the bindings of the routes that are live."""

    bindings: tuple[BindingT, ...]


@dataclass(slots=True, kw_only=True)
class Receipt:
    """Acknowledgement of consecutive batches of one route. It grows until `take_answers` returns it."""

    route: int
    last_batch_number: int
    durability: Durability
    base_offsets: list[int] = field(default_factory=list[int])
    duplicates: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEnded:
    """The end of a route, with its reason."""

    route: int
    failure: Failure
    first_failed_batch_number: int
    outcome_unknown: bool


Answer = Opened[BindingT] | Receipt | RouteEnded


class _Batch:
    """A batch of a live route without a receipt."""

    __slots__ = ("base_offset", "duplicate", "durability", "number", "size_bytes")

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.base_offset: int | None = None
        self.duplicate = False
        self.durability: Durability | None = None


class _Ending:
    """How a route ends after the batches before the failed one have their receipts."""

    __slots__ = ("failed_number", "failure", "outcome_unknown")

    def __init__(self, failure: Failure, failed_number: int, *, outcome_unknown: bool = False) -> None:
        self.failure = failure
        self.failed_number = failed_number
        self.outcome_unknown = outcome_unknown


class _Route(Generic[BindingT]):
    """A live or ending route."""

    __slots__ = ("binding", "ending", "next_number", "receipt", "unacked")

    def __init__(self, binding: BindingT) -> None:
        self.binding = binding
        self.next_number = 1
        self.ending: _Ending | None = None
        self.unacked: deque[_Batch] = deque()
        # Receipt of this route that is still in the outbox and may grow.
        self.receipt: Receipt | None = None


class ProduceSession(Generic[BindingT]):
    """The state of one produce stream. Its only caller, the shell of the stream, is the one writer of this state."""

    __slots__ = (
        "_acks",
        "_bound",
        "_dead",
        "_ended",
        "_in_flight_bytes",
        "_is_opened",
        "_limits",
        "_outbox",
        "_resolving",
        "_routes",
    )

    def __init__(self, limits: ProduceLimits) -> None:
        self._limits = limits
        self._acks: Acks | None = None
        self._routes: dict[int, _Route[BindingT]] = {}
        # Numbers that were bound or refused and may not be used again.
        self._dead: set[int] = set()
        self._resolving: set[int] = set()
        self._bound: list[int] = []
        self._ended: list[BindingT] = []
        self._outbox: deque[Answer[BindingT]] = deque()
        self._in_flight_bytes = 0
        self._is_opened = False

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the batches without a receipt."""
        return self._in_flight_bytes

    @property
    def is_opened(self) -> bool:
        """True after the opening was answered. No other answer comes before that."""
        return self._is_opened

    @property
    def must_pause(self) -> bool:
        """True while the shell must not read further requests from the stream."""
        limits = self._limits
        return self._in_flight_bytes >= limits.max_in_flight_bytes or len(self._outbox) >= limits.max_outbox_answers

    @property
    def has_answers(self) -> bool:
        """True if `take_answers` would return an answer."""
        return self._is_opened and bool(self._outbox)

    @property
    def is_drained(self) -> bool:
        """True when no batch waits for its receipt and no answer waits to be written."""
        return not self._outbox and not any(route.unacked for route in self._routes.values())

    def take_answers(self) -> list[Answer[BindingT]]:
        """Return the answers to write now, in order, and forget them. Before the first `Opened` there are none."""
        if not self._is_opened:
            return []
        answers = list(self._outbox)
        self._outbox.clear()
        for answer in answers:
            if isinstance(answer, Receipt):
                route = self._routes.get(answer.route)
                if route is not None and route.receipt is answer:
                    route.receipt = None
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

    def find(self, number: int) -> BindingT | None:
        """Return the binding of a route; None if the route is not live."""
        route = self._routes.get(number)
        return None if route is None else route.binding

    def open(self, acks: Acks, routes: Sequence[RouteWanted]) -> list[RouteWanted]:
        """Handle the first request of the stream. Returns and raises as `want_routes` does."""
        if self._acks is not None:
            raise _broken("`open` came twice; it is the first message of a stream and the only one of its kind")
        self._acks = acks
        return self.want_routes(routes)

    def want_routes(self, wanted: Sequence[RouteWanted]) -> list[RouteWanted]:
        """Begin to bind the routes that the client asks for.

        Returns:
            The routes whose partitions the shell must find. It answers each with `bind_route` or `refuse_route`, and then calls
            `end_binding`.

        Raises:
            RefusedError: the stream ends, because the client asks for too much, or violates the protocol in a way that the end of a
                route cannot express.
        """
        if self._acks is None:
            raise _broken("the first message of a produce stream must be `open`")
        if len(self._routes) + len(self._dead) + len(wanted) > self._limits.max_routes:
            message = f"a stream takes {self._limits.max_routes} routes over its life; open another stream"
            raise refused(ErrorCode.LIMIT_EXCEEDED, message)
        resolve: dict[int, RouteWanted] = {}
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

    def bind_route(self, number: int, binding: BindingT) -> None:
        """Bind a route to its partition, which this broker leads."""
        self._resolving.discard(number)
        self._routes[number] = _Route(binding)
        self._bound.append(number)

    def refuse_route(self, number: int, failure: Failure) -> None:
        """Refuse a route: this broker cannot serve its partition."""
        self._resolving.discard(number)
        self._dead.add(number)
        self._outbox.append(
            RouteEnded(route=number, failure=failure, first_failed_batch_number=0, outcome_unknown=False)
        )

    def end_binding(self) -> None:
        """Answer the routes of the last request. The shell has bound or refused each of them."""
        assert not self._resolving, f"routes {sorted(self._resolving)} were not answered"
        # A route may have been lost between its binding and now. Its end is in the outbox already.
        live = (self._routes.get(number) for number in self._bound)
        opened = Opened(bindings=tuple(route.binding for route in live if route is not None))
        self._bound.clear()
        if self._is_opened:
            self._outbox.append(opened)
        else:
            # The first answer of a stream is `Opened`. The ends of refused routes come after it.
            self._outbox.appendleft(opened)
            self._is_opened = True

    def receive_batch(self, number: int, batch_number: int, size_bytes: int) -> BindingT | None:
        """Accept a batch that arrived on a route.

        Returns:
            The binding of the route. The shell appends the batch there and calls `note_appended` or `fail_batch` before the next batch.
            None: the batch is dropped, or ends its route.

        Raises:
            RefusedError: the stream ends, because it is not open.
        """
        route = self._routes.get(number)
        if route is None:
            self._receive_unbound(number, batch_number)
            return None
        if route.ending is not None:
            return None
        if batch_number != route.next_number:
            message = f"batch {batch_number} of route {number} came where {route.next_number} was expected"
            failure = Failure(code=ErrorCode.INVALID_REQUEST, message=message)
            self._begin_end(number, route, _Ending(failure, route.next_number))
            return None
        if len(route.unacked) >= MAX_IN_FLIGHT_BATCHES:
            message = f"{MAX_IN_FLIGHT_BATCHES} batches of route {number} are unacknowledged; wait for receipts"
            failure = Failure(code=ErrorCode.OVERLOADED, message=message)
            self._begin_end(number, route, _Ending(failure, batch_number))
            return None
        route.next_number += 1
        route.unacked.append(_Batch(batch_number, size_bytes))
        self._in_flight_bytes += size_bytes
        return route.binding

    def note_appended(self, number: int, batch_number: int, base_offset: int, *, duplicate: bool) -> bool:
        """Note that the last received batch is in the log, newly or (`duplicate`) since an earlier append.

        Returns:
            True if the shell must call `acknowledge` when the batch has reached the stream's level.
        """
        route = self._routes.get(number)
        if route is None:
            return False
        batch = route.unacked[-1]
        assert batch.number == batch_number, f"batch {batch_number} appended, {batch.number} is the last"
        if self._acks is Acks.NONE:
            route.unacked.pop()
            self._in_flight_bytes -= batch.size_bytes
            return False
        batch.base_offset = base_offset
        batch.duplicate = duplicate
        return True

    def fail_batch(self, number: int, batch_number: int, failure: Failure) -> None:
        """Note that the last received batch was not appended. Its route ends after the receipts of the batches before it."""
        route = self._routes.get(number)
        if route is None:
            return
        batch = route.unacked.pop()
        assert batch.number == batch_number, f"batch {batch_number} failed, {batch.number} is the last"
        self._in_flight_bytes -= batch.size_bytes
        self._begin_end(number, route, _Ending(failure, batch_number))

    def acknowledge(self, number: int, batch_number: int, durability: Durability) -> None:
        """Note that an appended batch has reached the stream's level."""
        route = self._routes.get(number)
        if route is None:
            return
        unacked = route.unacked
        unacked[batch_number - unacked[0].number].durability = durability
        while unacked and unacked[0].durability is not None:
            batch = unacked.popleft()
            self._in_flight_bytes -= batch.size_bytes
            self._add_to_receipt(number, route, batch)
        if route.ending is not None and not unacked:
            self._end_route(number, route.ending)

    def lose_route(self, number: int, failure: Failure) -> None:
        """End a route because this broker no longer serves its partition."""
        route = self._routes.get(number)
        if route is None:
            return
        # The outcome of appended batches stays unknown.
        is_unknown = bool(route.unacked)
        failed_number = route.unacked[0].number if is_unknown else route.next_number
        self._end_route(number, _Ending(failure, failed_number, outcome_unknown=is_unknown))

    def _receive_unbound(self, number: int, batch_number: int) -> None:
        if self._acks is None:
            raise _broken("the first message of a produce stream must be `open`, before any batch")
        if number in self._dead:
            return
        failure = Failure(code=ErrorCode.INVALID_ROUTE, message=f"route {number} is not bound on this stream")
        first_failed = max(batch_number, 0)
        self._outbox.append(
            RouteEnded(route=number, failure=failure, first_failed_batch_number=first_failed, outcome_unknown=False)
        )

    def _add_to_receipt(self, number: int, route: _Route[BindingT], batch: _Batch) -> None:
        assert batch.base_offset is not None, f"batch {batch.number} is not appended"
        assert batch.durability is not None, f"batch {batch.number} is not acknowledged"
        receipt = route.receipt
        if receipt is None or receipt.durability is not batch.durability:
            receipt = Receipt(route=number, last_batch_number=batch.number, durability=batch.durability)
            route.receipt = receipt
            self._outbox.append(receipt)
        if batch.duplicate:
            receipt.duplicates.append(len(receipt.base_offsets))
        receipt.base_offsets.append(batch.base_offset)
        receipt.last_batch_number = batch.number

    def _begin_end(self, number: int, route: _Route[BindingT], ending: _Ending) -> None:
        if route.unacked:
            route.ending = ending
        else:
            self._end_route(number, ending)

    def _end_route(self, number: int, ending: _Ending) -> None:
        route = self._routes.pop(number)
        self._dead.add(number)
        self._ended.append(route.binding)
        for batch in route.unacked:
            self._in_flight_bytes -= batch.size_bytes
        self._outbox.append(
            RouteEnded(
                route=number,
                failure=ending.failure,
                first_failed_batch_number=ending.failed_number,
                outcome_unknown=ending.outcome_unknown,
            )
        )


def _broken(message: str) -> RefusedError:
    """Return the refusal of a whole stream whose client violated the protocol."""
    return refused(ErrorCode.INVALID_REQUEST, message)

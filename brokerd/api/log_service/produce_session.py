# SPDX-License-Identifier: Apache-2.0
"""The core of one produce stream: requests go in by methods, answers come out of `take_answers`.

Owns: which routes are bound, the batch numbers, what is unacknowledged, and the answers that wait to be written.
Must not: parse batches, find partitions, touch a log, a stream or a clock.

Theory of operation. The client asks for routes (`open`, `want_routes`); the shell finds each partition (`bind_route`,
`refuse_route`), and one `Opened` answers them all (`end_binding`). What the shell binds to a route is opaque here: a
batch gets it back from `receive_batch`, and `take_ended` gives it back once the route is over. `fetch_session` has the
second copy of this binding of routes.

A batch of a live route must carry the next number. The shell appends it (`note_appended`, `fail_batch`) and then tells
of its acknowledgement (`acknowledge`). Acknowledgements may come in any order (a duplicate waits for an older offset),
receipts go out in batch order: only the front of the queue of a route is acknowledged. Receipts that wait to be written
grow in place, so a slow writer sends few large receipts instead of many small ones.

A failed batch ends its route, but not at once: the batches before it are in the log and get their receipts first,
so that the client learns the exact place. Meanwhile the route is *ending* and drops what comes.

Laws: a failed batch ends its route and nothing else; batches of an ended route are dropped without an answer,
because `RouteEnded` names the first of them; a receipt is never taken back; every bound of memory is in
`ProduceLimits` or in the wire limits.
Source: architecture section 5.
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
        max_routes: routes bound over its life, ended ones included; one that asks for more ends.
        max_in_flight_bytes: bytes without a receipt from which on the stream is not read.
        max_outbox_answers: answers that wait to be written from which on the stream is not read.
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
    """Answer to the opening of the stream or to further routes: what was bound to those that are live."""

    bindings: tuple[BindingT, ...]


@dataclass(slots=True, kw_only=True)
class Receipt:
    """Acknowledgement of consecutive batches of one route; grows until it is taken to be written."""

    route: int
    last_batch_number: int
    durability: Durability
    base_offsets: list[int] = field(default_factory=list[int])
    duplicates: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteEnded:
    """The route is over."""

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
    """How a route will end once the batches before the failed one have their receipts."""

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
    """One produce stream; see above. Its only caller is the stream's shell, which is the one writer of all that it holds."""

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
        # Numbers that were bound or refused and may not come again.
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
        """True once the opening is answered: that answer comes before any other."""
        return self._is_opened

    @property
    def must_pause(self) -> bool:
        """True while no further request should be read from the stream."""
        limits = self._limits
        return self._in_flight_bytes >= limits.max_in_flight_bytes or len(self._outbox) >= limits.max_outbox_answers

    @property
    def has_answers(self) -> bool:
        """True when `take_answers` would return something."""
        return self._is_opened and bool(self._outbox)

    @property
    def is_drained(self) -> bool:
        """True when no batch waits for its receipt and no answer waits to be written."""
        return not self._outbox and not any(route.unacked for route in self._routes.values())

    def take_answers(self) -> list[Answer[BindingT]]:
        """Return the answers to write now, in order, and forget them; nothing before the first `Opened`."""
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

    def find(self, number: int) -> BindingT | None:
        """Return what is bound to a route; None: it is not live."""
        route = self._routes.get(number)
        return None if route is None else route.binding

    def open(self, acks: Acks, routes: Sequence[RouteWanted]) -> list[RouteWanted]:
        """Take the first request of the stream; as `want_routes`."""
        if self._acks is not None:
            raise _broken("`open` came twice; it is the first message of a stream and the only one of its kind")
        self._acks = acks
        return self.want_routes(routes)

    def want_routes(self, wanted: Sequence[RouteWanted]) -> list[RouteWanted]:
        """Take routes that the client wants to bind.

        Returns:
            Those to find. Each is answered with `bind_route` or `refuse_route`, and all of them with `end_binding`.

        Raises:
            RefusedError: the stream ends: the client broke the protocol in a way that no route can carry, or asks for too much.
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

    def bind_route(self, number: int, binding: BindingT) -> None:
        """Learn that the partition was found and is led here."""
        self._resolving.discard(number)
        self._routes[number] = _Route(binding)
        self._bound.append(number)

    def refuse_route(self, number: int, failure: Failure) -> None:
        """Learn that the partition cannot be served here."""
        self._resolving.discard(number)
        self._dead.add(number)
        self._outbox.append(
            RouteEnded(route=number, failure=failure, first_failed_batch_number=0, outcome_unknown=False)
        )

    def end_binding(self) -> None:
        """Answer the routes that were asked for last: each was bound or refused."""
        assert not self._resolving, f"routes {sorted(self._resolving)} were not answered"
        # A route may have been lost between its binding and now; its end stands in the outbox already.
        live = (self._routes.get(number) for number in self._bound)
        opened = Opened(bindings=tuple(route.binding for route in live if route is not None))
        self._bound.clear()
        if self._is_opened:
            self._outbox.append(opened)
        else:
            # The first answer of a stream is `opened`; ends of refused routes that wait come after it.
            self._outbox.appendleft(opened)
            self._is_opened = True

    def receive_batch(self, number: int, batch_number: int, size_bytes: int) -> BindingT | None:
        """Take a batch that came in on a route.

        Returns:
            Where it is to be appended; `note_appended` or `fail_batch` says how that went, before the next batch. None: it is
            dropped, or ends its route.

        Raises:
            RefusedError: the stream ends: it is not open.
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
        """Learn that the batch received last is in the log, now or (`duplicate`) since an earlier time.

        Returns:
            True if `acknowledge` has to say when it has reached the level of the stream.
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
        """Learn that the batch received last was not appended: its route ends with the receipts of those before it."""
        route = self._routes.get(number)
        if route is None:
            return
        batch = route.unacked.pop()
        assert batch.number == batch_number, f"batch {batch_number} failed, {batch.number} is the last"
        self._in_flight_bytes -= batch.size_bytes
        self._begin_end(number, route, _Ending(failure, batch_number))

    def acknowledge(self, number: int, batch_number: int, durability: Durability) -> None:
        """Learn that an appended batch has reached the level that the stream waits for."""
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
        """Learn that the partition of a route is no longer served here."""
        route = self._routes.get(number)
        if route is None:
            return
        # Of what was appended it will not be known any more what became of it.
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
    """Make the refusal of a whole stream whose client broke the protocol."""
    return refused(ErrorCode.INVALID_REQUEST, message)

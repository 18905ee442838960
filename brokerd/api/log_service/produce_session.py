# SPDX-License-Identifier: Apache-2.0
"""The core of one produce stream.

Owns: which routes are bound, the batch numbers, what is unacknowledged, and the answers that wait to be written.
Must not: parse batches, find partitions, touch a log, a stream or a clock.

Theory of operation. Routes are asked for, resolved by the shell, and answered by one `Opened`. A batch of a live
route must carry the next number; it is appended by the shell, then waits for its acknowledgement. Acknowledgements
may come in any order (a duplicate waits for an older offset), receipts go out in batch order: only the front of the
queue of a route is acknowledged. Receipts that wait to be written grow in place, so a slow writer sends few large
receipts instead of many small ones.

A failed batch ends its route, but not at once: the batches before it are in the log and get their receipts first,
so that the client learns the exact place. Meanwhile the route is *ending* and drops what comes.

Laws: a failed batch ends its route and nothing else; batches of an ended route are dropped without an answer,
because `RouteEnded` names the first of them; a receipt is never taken back; every bound of memory is in
`brokerd.limits` or in the wire limits.
Source: architecture section 5.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_IN_FLIGHT_BATCHES, MAX_ROUTE

from brokerd.api.log_service.produce_events import (
    AbortStream,
    AckReached,
    Acks,
    Answer,
    AppendBatch,
    AwaitAck,
    BatchFailed,
    BatchReceived,
    BatchStored,
    Effect,
    Event,
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
from brokerd.failure import Failure
from brokerd.limits import MAX_ROUTES_PER_STREAM, MAX_STREAM_IN_FLIGHT_BYTES, MAX_STREAM_OUTBOX_ITEMS
from brokerd.partition.events import Durability


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

    def __init__(self, failure: Failure, failed_number: int, outcome_unknown: bool) -> None:
        self.failure = failure
        self.failed_number = failed_number
        self.outcome_unknown = outcome_unknown


class _Route:
    """A live or ending route."""

    __slots__ = ("ending", "next_number", "receipt", "unacked")

    def __init__(self) -> None:
        self.next_number = 1
        self.ending: _Ending | None = None
        self.unacked: deque[_Batch] = deque()
        # Receipt of this route that is still in the outbox and may grow.
        self.receipt: Receipt | None = None


class ProduceSession:
    """One produce stream; see the module docstring."""

    __slots__ = ("_acks", "_bound", "_ended", "_in_flight_bytes", "_is_opened", "_outbox", "_resolving", "_routes")

    def __init__(self) -> None:
        self._acks: Acks | None = None
        self._routes: dict[int, _Route] = {}
        self._ended: set[int] = set()
        self._resolving: set[int] = set()
        self._bound: list[RouteBound] = []
        self._outbox: deque[Answer] = deque()
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
        return self._in_flight_bytes >= MAX_STREAM_IN_FLIGHT_BYTES or len(self._outbox) >= MAX_STREAM_OUTBOX_ITEMS

    @property
    def has_answers(self) -> bool:
        """True when `take_answers` would return something."""
        return self._is_opened and bool(self._outbox)

    @property
    def is_drained(self) -> bool:
        """True when no batch waits for its receipt and no answer waits to be written."""
        return not self._outbox and not any(route.unacked for route in self._routes.values())

    def take_answers(self) -> list[Answer]:
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

    def step(self, event: Event) -> list[Effect]:
        """Take an event and say what to do."""
        match event:
            case BatchReceived():
                return self._on_batch(event)
            case BatchStored():
                return self._on_stored(event)
            case AckReached():
                return self._on_ack(event)
            case BatchFailed():
                return self._on_batch_failed(event)
            case RouteLost():
                return self._on_lost(event)
            case StreamOpened():
                return self._on_open(event)
            case RoutesWanted():
                return self._on_routes(event.routes)
            case RouteBound():
                self._resolving.discard(event.route)
                self._routes[event.route] = _Route()
                self._bound.append(event)
                return []
            case RouteRefused():
                self._resolving.discard(event.route)
                return self._refuse_route(event.route, event.failure)
            case RoutesResolved():
                return self._on_resolved()
            case _:
                assert_never(event)

    def _on_open(self, event: StreamOpened) -> list[Effect]:
        if self._acks is not None:
            return [_abort("`open` came twice; it is the first message of a stream and the only one of its kind")]
        self._acks = event.acks
        return self._on_routes(event.routes)

    def _on_routes(self, wanted: tuple[RouteWanted, ...]) -> list[Effect]:
        if self._acks is None:
            return [_abort("the first message of a produce stream must be `open`")]
        known = len(self._routes) + len(self._ended)
        if known + len(wanted) > MAX_ROUTES_PER_STREAM:
            message = f"a stream takes {MAX_ROUTES_PER_STREAM} routes over its life; open another stream"
            return [AbortStream(failure=Failure(code=ErrorCode.LIMIT_EXCEEDED, message=message))]
        effects: list[Effect] = []
        resolve: list[RouteWanted] = []
        for route in wanted:
            if not 0 <= route.route <= MAX_ROUTE:
                return [_abort(f"route {route.route} is not between 0 and {MAX_ROUTE}")]
            if route.route in self._routes or route.route in self._resolving or route.route in self._ended:
                effects += self._on_bound_twice(route.route)
                resolve = [other for other in resolve if other.route != route.route]
                continue
            self._resolving.add(route.route)
            resolve.append(route)
        effects.append(ResolveRoutes(routes=tuple(resolve)))
        return effects

    def _on_bound_twice(self, number: int) -> list[Effect]:
        # Two partitions under one number cannot be told apart any more, so the number is dead.
        failure = Failure(code=ErrorCode.INVALID_ROUTE, message=f"route {number} was bound before on this stream")
        self._resolving.discard(number)
        if number in self._routes:
            return self._on_lost(RouteLost(route=number, failure=failure))
        return self._refuse_route(number, failure)

    def _on_resolved(self) -> list[Effect]:
        assert not self._resolving, f"routes {sorted(self._resolving)} were not answered"
        # A route may have been lost between its binding and now; its end stands in the outbox already.
        opened = Opened(routes=tuple(route for route in self._bound if route.route in self._routes))
        self._bound.clear()
        if self._is_opened:
            self._outbox.append(opened)
        else:
            # The first answer of a stream is `opened`; ends of refused routes that wait come after it.
            self._outbox.appendleft(opened)
            self._is_opened = True
        return []

    def _on_batch(self, event: BatchReceived) -> list[Effect]:
        if self._acks is None:
            return [_abort("the first message of a produce stream must be `open`, before any batch")]
        route = self._routes.get(event.route)
        if route is None:
            if event.route in self._ended:
                return []
            message = f"route {event.route} is not bound on this stream"
            self._outbox.append(
                RouteEnded(
                    route=event.route,
                    failure=Failure(code=ErrorCode.INVALID_ROUTE, message=message),
                    first_failed_batch_number=max(event.batch_number, 0),
                    outcome_unknown=False,
                )
            )
            return []
        if route.ending is not None:
            return []
        if event.batch_number != route.next_number:
            message = f"batch {event.batch_number} of route {event.route} came where {route.next_number} was expected"
            failure = Failure(code=ErrorCode.INVALID_REQUEST, message=message)
            return self._begin_end(event.route, route, _Ending(failure, route.next_number, outcome_unknown=False))
        if len(route.unacked) >= MAX_IN_FLIGHT_BATCHES:
            message = f"{MAX_IN_FLIGHT_BATCHES} batches of route {event.route} are unacknowledged; wait for receipts"
            failure = Failure(code=ErrorCode.OVERLOADED, message=message)
            return self._begin_end(event.route, route, _Ending(failure, event.batch_number, outcome_unknown=False))
        route.next_number += 1
        route.unacked.append(_Batch(event.batch_number, event.size_bytes))
        self._in_flight_bytes += event.size_bytes
        return [AppendBatch(route=event.route, batch_number=event.batch_number)]

    def _on_stored(self, event: BatchStored) -> list[Effect]:
        route = self._routes.get(event.route)
        if route is None:
            return []
        batch = route.unacked[-1]
        assert batch.number == event.batch_number, f"batch {event.batch_number} stored, {batch.number} is the last"
        if self._acks is Acks.NONE:
            route.unacked.pop()
            self._in_flight_bytes -= batch.size_bytes
            return []
        batch.base_offset = event.base_offset
        batch.duplicate = event.duplicate
        return [AwaitAck(route=event.route, batch_number=event.batch_number)]

    def _on_batch_failed(self, event: BatchFailed) -> list[Effect]:
        route = self._routes.get(event.route)
        if route is None:
            return []
        batch = route.unacked.pop()
        assert batch.number == event.batch_number, f"batch {event.batch_number} failed, {batch.number} is the last"
        self._in_flight_bytes -= batch.size_bytes
        return self._begin_end(event.route, route, _Ending(event.failure, event.batch_number, event.outcome_unknown))

    def _on_ack(self, event: AckReached) -> list[Effect]:
        route = self._routes.get(event.route)
        if route is None:
            return []
        unacked = route.unacked
        unacked[event.batch_number - unacked[0].number].durability = event.durability
        while unacked and unacked[0].durability is not None:
            batch = unacked.popleft()
            self._in_flight_bytes -= batch.size_bytes
            self._add_to_receipt(event.route, route, batch)
        if route.ending is not None and not unacked:
            return self._end_route(event.route, route.ending)
        return []

    def _on_lost(self, event: RouteLost) -> list[Effect]:
        route = self._routes.get(event.route)
        if route is None:
            return []
        if route.unacked:
            # Appended, but nobody will say any more what became of them.
            return self._end_route(event.route, _Ending(event.failure, route.unacked[0].number, outcome_unknown=True))
        return self._end_route(event.route, _Ending(event.failure, route.next_number, outcome_unknown=False))

    def _add_to_receipt(self, number: int, route: _Route, batch: _Batch) -> None:
        assert batch.base_offset is not None, f"batch {batch.number} is not stored"
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

    def _refuse_route(self, number: int, failure: Failure) -> list[Effect]:
        self._ended.add(number)
        self._outbox.append(
            RouteEnded(route=number, failure=failure, first_failed_batch_number=0, outcome_unknown=False)
        )
        return []

    def _begin_end(self, number: int, route: _Route, ending: _Ending) -> list[Effect]:
        if not route.unacked:
            return self._end_route(number, ending)
        route.ending = ending
        return []

    def _end_route(self, number: int, ending: _Ending) -> list[Effect]:
        route = self._routes.pop(number)
        self._ended.add(number)
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
        return [ReleaseRoute(route=number)]


def _abort(message: str) -> AbortStream:
    return AbortStream(failure=Failure(code=ErrorCode.INVALID_REQUEST, message=message))

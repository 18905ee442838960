# SPDX-License-Identifier: Apache-2.0
"""The core of one `Replicate` stream at the leader.

Owns: which routes are bound and how far each was sent, the answers to be written, the marks that wait, heartbeats and
silence. Must not: read a log, find replicas, decide who is in sync, touch a stream or a clock.

Theory of operation. A subscription binds its number and goes to the replica, which accepts, diverges or refuses it. From
the acceptance on a route is *ready* while its next offset is below the leader's log end; ready routes wait for their turn
(`Turns`), `next_read` gives the one whose turn it is, and the shell answers with `ChunkRead` or `ReadFailed` before it
asks again. Batches carry high watermark and log start, so a route whose watermark moved waits `MARKS_COALESCE_MS` for
batches that take the news along; what is left then goes out as one message for all routes.

Laws
    No batches while an answer waits: what is said about a route is written before what is sent on it.
    Nothing comes on a route behind its end, nor before its acceptance.
    An acknowledgement beyond what was sent on its route, below an earlier one of the route, or one that contradicts itself ends the
    stream and counts nothing: who says what cannot be is not believed about other routes either.
    A route without news costs nothing, also in time.
Source: docs/replication.md, "The stream".
"""

from __future__ import annotations

from typing import Final, assert_never

from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure
from brokerd.limits import (
    ACKS_PER_MESSAGE,
    MARKS_COALESCE_MS,
    MARKS_PER_MESSAGE,
    MAX_CREDIT_BYTES,
    MAX_ROUTES_PER_REPLICATE_STREAM,
    MAX_STREAM_OUTBOX_ITEMS,
    REPLICATE_OPEN_MS,
    REPLICATE_SILENCE_MS,
    SUBSCRIBES_PER_MESSAGE,
)
from brokerd.partition.leader_stream_events import (
    AbortPush,
    Accepted,
    AckReplica,
    AcksReceived,
    ChunkRead,
    ClosePush,
    CreditReceived,
    Diverged,
    Ended,
    GoAway,
    Heartbeat,
    HeartbeatReceived,
    LeaderMoved,
    LogGrown,
    LoseReplica,
    Marks,
    Opened,
    PushAnswer,
    PushEffect,
    PushEvent,
    PushOpened,
    PushTick,
    ReadFailed,
    ReadReplica,
    RouteAccepted,
    RouteAck,
    RouteDiverged,
    RouteMark,
    RouteRefused,
    RoutesUnwanted,
    StopWanted,
    SubscribeReplica,
    Subscription,
    SubscriptionsReceived,
    TrafficChanged,
)
from brokerd.partition.leader_stream_pulse import Pulse, Sign
from brokerd.partition.leader_stream_rate import PushRates
from brokerd.partition.leader_stream_routes import PushRoute, RouteTable
from brokerd.partition.leader_stream_traffic import Traffic
from brokerd.partition.leader_stream_turns import Turns
from brokerd.partition.reconciliation import SubscriptionError

MAX_ROUTE_NUMBER: Final = MAX_ROUTES_PER_REPLICATE_STREAM - 1
"""Highest number of a route; the lowest is 0."""


class PushSession:
    """One stream; see the module docstring.

    Args:
        rates: of what goes to followers that are out of sync, shared by all streams of the leader.
        now_ms: monotonic time in milliseconds.
    """

    __slots__ = (
        "_is_open",
        "_marked",
        "_marks_due_ms",
        "_outbox",
        "_pulse",
        "_routes",
        "_started_ms",
        "_stop_due_ms",
        "_turns",
    )

    def __init__(self, rates: PushRates, now_ms: int) -> None:
        self._is_open = False
        self._started_ms = now_ms
        self._routes = RouteTable()
        self._turns = Turns(rates)
        self._pulse = Pulse(now_ms)
        self._outbox: list[PushAnswer] = []
        self._marked: dict[int, PushRoute] = {}
        self._marks_due_ms = 0
        self._stop_due_ms: int | None = None

    @property
    def route_count(self) -> int:
        """Routes that are bound."""
        return len(self._routes)

    @property
    def has_answers(self) -> bool:
        """True while answers wait to be written; none before `Opened`."""
        return self._is_open and bool(self._outbox)

    @property
    def must_pause(self) -> bool:
        """True while no further request should be read from the stream."""
        return len(self._outbox) >= MAX_STREAM_OUTBOX_ITEMS

    @property
    def is_finished(self) -> bool:
        """True when the stream may be closed: the broker stops, no route is left, and all is said."""
        is_stopping = self._is_open and self._stop_due_ms is not None
        return is_stopping and not self._outbox and not self._routes

    @property
    def has_work(self) -> bool:
        """True when the writer should look: for answers, routes that wait for their turn, or the end of a stop."""
        return self.has_answers or self._turns.is_anybody_waiting or self.is_finished

    def credit_bytes(self, *, is_in_sync: bool) -> int:
        """Return what may still be sent of a class; below zero after a message that took more than was left."""
        return self._turns.credit_bytes(is_in_sync=is_in_sync)

    def deadline_ms(self) -> int:
        """Return the monotonic time at which `PushTick` must be given."""
        if not self._is_open:
            return self._started_ms + REPLICATE_OPEN_MS
        due_ms = self._pulse.deadline_ms()
        if self._marked and self._marks_due_ms < due_ms:
            due_ms = self._marks_due_ms
        if self._stop_due_ms is not None and self._stop_due_ms < due_ms:
            due_ms = self._stop_due_ms
        rate_ms = self._turns.deadline_ms()
        return due_ms if rate_ms is None else min(due_ms, rate_ms)

    def take_answers(self, now_ms: int) -> list[PushAnswer]:
        """Return the answers to write now, in order, and forget them."""
        if not self.has_answers:
            return []
        answers = self._outbox
        self._outbox = []
        self._pulse.note_sent(now_ms)
        return answers

    def next_read(self, now_ms: int) -> ReadReplica | None:
        """Return what to read next, or None: nothing can be sent now. Each must be answered before the next."""
        if self._outbox:
            return None
        number = self._turns.take(now_ms)
        if number is None:
            return None
        route = self._routes.get(number)
        assert route is not None, f"route {number} is over and waits for its turn"
        return ReadReplica(
            route=number,
            offset=route.next_offset,
            max_bytes=self._turns.message_bytes(route.traffic),
            high_watermark=route.high_watermark,
            log_start_offset=route.log_start_offset,
            is_in_sync=route.traffic is Traffic.IN_SYNC,
        )

    def step(self, event: PushEvent, now_ms: int) -> list[PushEffect]:
        """Take an event and say what to do.

        Args:
            event: what happened.
            now_ms: monotonic time in milliseconds.
        """
        match event:
            case LogGrown():
                self._on_grown(event)
                return []
            case ChunkRead():
                return self._on_read(event, now_ms)
            case AcksReceived():
                return self._on_acks(event.acks, now_ms)
            case LeaderMoved():
                self._on_moved(event, now_ms)
                return []
            case CreditReceived():
                return self._on_credit(event, now_ms)
            case HeartbeatReceived():
                return self._heard("a heartbeat", now_ms)
            case SubscriptionsReceived():
                return self._on_subscriptions(event.subscriptions, now_ms)
            case RoutesUnwanted():
                return self._on_unwanted(event.routes, now_ms)
            case RouteAccepted():
                self._on_accepted(event)
                return []
            case RouteDiverged():
                if self._drop(event.route):
                    self._outbox.append(Diverged(route=event.route, leader_end=event.leader_end))
                return []
            case RouteRefused():
                if self._drop(event.route):
                    self._tell_end(event.route, event.error, event.log_start_offset)
                return []
            case TrafficChanged():
                self._on_traffic(event)
                return []
            case ReadFailed():
                return self._end(event.route, event.error, event.log_start_offset)
            case PushOpened():
                return self._on_open(event, now_ms)
            case StopWanted():
                if self._stop_due_ms is None:
                    self._outbox.append(GoAway(drain_ms=event.drain_ms))
                    self._stop_due_ms = now_ms + event.drain_ms
                return []
            case PushTick():
                return self._on_tick(now_ms)
            case _:
                assert_never(event)

    def _on_open(self, event: PushOpened, now_ms: int) -> list[PushEffect]:
        if self._is_open:
            return [_abort("`open` came twice; it is the first message of a stream and the only one of its kind")]
        if not self._turns.grant(in_sync_bytes=event.in_sync_bytes, catch_up_bytes=event.catch_up_bytes):
            return [_abort(f"the first credit is not between 0 and {MAX_CREDIT_BYTES}")]
        self._is_open = True
        self._pulse = Pulse(now_ms)
        self._outbox.insert(0, Opened())
        return []

    def _heard(self, what: str, now_ms: int) -> list[PushEffect]:
        """Note that a message came; refuse one that comes before `open`."""
        if not self._is_open:
            return [_abort(f"the first message of a stream between brokers must be `open`, not {what}")]
        self._pulse.note_heard(now_ms)
        return []

    def _on_subscriptions(self, subscriptions: tuple[Subscription, ...], now_ms: int) -> list[PushEffect]:
        refusal = self._heard("subscriptions", now_ms)
        if refusal:
            return refusal
        if len(subscriptions) > SUBSCRIBES_PER_MESSAGE:
            return [_abort(f"{len(subscriptions)} subscriptions in one message are more than {SUBSCRIBES_PER_MESSAGE}")]
        effects: list[PushEffect] = []
        for subscription in subscriptions:
            number = subscription.route
            if number < 0:
                return [*effects, _abort(f"route {number} is below 0")]
            if number > MAX_ROUTE_NUMBER:
                self._tell_end(number, SubscriptionError.OVERLOADED, 0)
                continue
            if not self._routes.use(number):
                # Two subscriptions under one number cannot be told apart any more.
                return [*effects, _abort(f"route {number} was bound before on this stream: count up")]
            older = self._routes.number_of(subscription.topic_id, subscription.partition)
            if older is not None and self._drop(older):
                effects.append(LoseReplica(route=older))
            if not _is_sound(subscription):
                self._tell_end(number, SubscriptionError.INVALID_ACK, 0)
                continue
            self._routes.bind(number, PushRoute(subscription))
            effects.append(SubscribeReplica(subscription=subscription))
        return effects

    def _on_unwanted(self, numbers: tuple[int, ...], now_ms: int) -> list[PushEffect]:
        refusal = self._heard("unsubscriptions", now_ms)
        if refusal:
            return refusal
        if len(numbers) > SUBSCRIBES_PER_MESSAGE:
            return [_abort(f"{len(numbers)} routes in one message are more than {SUBSCRIBES_PER_MESSAGE}")]
        return [LoseReplica(route=number) for number in numbers if self._drop(number)]

    def _on_acks(self, acks: tuple[RouteAck, ...], now_ms: int) -> list[PushEffect]:
        refusal = self._heard("acknowledgements", now_ms)
        if refusal:
            return refusal
        if len(acks) > ACKS_PER_MESSAGE:
            return [_abort(f"{len(acks)} acknowledgements in one message are more than {ACKS_PER_MESSAGE}")]
        effects: list[PushEffect] = []
        for ack in acks:
            route = self._routes.get(ack.route)
            if route is None or not route.is_accepted:
                continue  # of a route that has ended meanwhile
            if not route.take_ack(ack.appended_offset, ack.flushed_offset):
                said = f"appended {ack.appended_offset}, flushed {ack.flushed_offset}"
                known = f"sent up to {route.next_offset}, before: {route.acked_offset}, {route.flushed_offset}"
                return [*effects, _abort(f"the acknowledgement of route {ack.route} cannot be: {said}; {known}")]
            effects.append(
                AckReplica(route=ack.route, appended_offset=ack.appended_offset, flushed_offset=ack.flushed_offset)
            )
        return effects

    def _on_credit(self, event: CreditReceived, now_ms: int) -> list[PushEffect]:
        refusal = self._heard("credit", now_ms)
        if refusal:
            return refusal
        if not self._turns.grant(in_sync_bytes=event.in_sync_bytes, catch_up_bytes=event.catch_up_bytes):
            credit = f"{event.in_sync_bytes} and {event.catch_up_bytes} bytes"
            return [_abort(f"credit of {credit} is below 0, or brings a sum over {MAX_CREDIT_BYTES}")]
        return []

    def _on_accepted(self, event: RouteAccepted) -> None:
        route = self._routes.get(event.route)
        if route is None or route.is_accepted:
            return
        route.is_accepted = True
        route.traffic = event.traffic
        route.log_end_offset = max(route.log_end_offset, event.log_end_offset)
        route.high_watermark, route.log_start_offset = event.high_watermark, event.log_start_offset
        accepted = Accepted(
            route=event.route, high_watermark=event.high_watermark, log_start_offset=event.log_start_offset
        )
        self._outbox.append(accepted)
        self._queue_if_ready(event.route, route)

    def _on_grown(self, event: LogGrown) -> None:
        route = self._routes.get(event.route)
        if route is not None and event.log_end_offset > route.log_end_offset:
            route.log_end_offset = event.log_end_offset
            self._queue_if_ready(event.route, route)

    def _on_moved(self, event: LeaderMoved, now_ms: int) -> None:
        route = self._routes.get(event.route)
        if route is None or not route.is_accepted:
            return  # the acceptance brings its own
        news = (event.high_watermark, event.log_start_offset)
        if news == (route.high_watermark, route.log_start_offset):
            return
        route.high_watermark, route.log_start_offset = news
        if not self._marked:
            self._marks_due_ms = now_ms + MARKS_COALESCE_MS
        self._marked[event.route] = route

    def _on_traffic(self, event: TrafficChanged) -> None:
        route = self._routes.get(event.route)
        if route is not None and route.traffic is not event.traffic:
            route.traffic = event.traffic
            self._turns.move(event.route, event.traffic)

    def _on_read(self, event: ChunkRead, now_ms: int) -> list[PushEffect]:
        route = self._routes.get(event.route)
        if route is None:
            return []
        if event.next_offset <= route.next_offset:
            # The log end is beyond, so something must be there.
            return self._end(event.route, SubscriptionError.STORAGE_FAILED, route.log_start_offset)
        self._turns.spend(event.size_bytes, route.traffic)
        self._pulse.note_sent(now_ms)
        self._marked.pop(event.route, None)
        route.next_offset = event.next_offset
        self._queue_if_ready(event.route, route)
        return []

    def _on_tick(self, now_ms: int) -> list[PushEffect]:
        if not self._is_open:
            if now_ms < self._started_ms + REPLICATE_OPEN_MS:
                return []
            message = f"`open` did not come within {REPLICATE_OPEN_MS} ms"
            return [AbortPush(failure=Failure(code=ErrorCode.TIMED_OUT, message=message))]
        if self._stop_due_ms is not None and now_ms >= self._stop_due_ms:
            return [ClosePush()]
        self._turns.look(now_ms)
        if self._marked and now_ms >= self._marks_due_ms:
            self._tell_marks(now_ms)
        sign = self._pulse.check(now_ms)
        if sign is Sign.SILENT:
            message = f"nothing came for {REPLICATE_SILENCE_MS} ms: open another stream"
            return [AbortPush(failure=Failure(code=ErrorCode.TIMED_OUT, message=message))]
        if sign is Sign.BEAT and not self._outbox:
            self._outbox.append(Heartbeat())
        return []

    def _tell_marks(self, now_ms: int) -> None:
        self._marks_due_ms = now_ms + MARKS_COALESCE_MS
        if self._outbox:
            return  # the writer is behind; news of one route replace each other meanwhile
        numbers = list(self._marked)[:MARKS_PER_MESSAGE]
        told = [(number, self._marked.pop(number)) for number in numbers]
        marks = tuple(
            RouteMark(route=number, high_watermark=route.high_watermark, log_start_offset=route.log_start_offset)
            for number, route in told
        )
        self._outbox.append(Marks(marks=marks))

    def _queue_if_ready(self, number: int, route: PushRoute) -> None:
        if route.is_ready:
            self._turns.add(number, route.traffic)

    def _drop(self, number: int) -> bool:
        """Forget a route; False if it is not bound."""
        route = self._routes.pop(number)
        if route is None:
            return False
        self._turns.remove(number, route.traffic)
        self._marked.pop(number, None)
        return True

    def _end(self, number: int, error: SubscriptionError, log_start_offset: int) -> list[PushEffect]:
        """End a route from this side: the follower and the replica hear of it."""
        if not self._drop(number):
            return []
        self._tell_end(number, error, log_start_offset)
        return [LoseReplica(route=number)]

    def _tell_end(self, number: int, error: SubscriptionError, log_start_offset: int) -> None:
        self._outbox.append(Ended(route=number, error=error, log_start_offset=log_start_offset, message=error.value))


def _is_sound(subscription: Subscription) -> bool:
    """True if no number of a subscription contradicts itself."""
    last_epoch = 0 if subscription.last_epoch is None else subscription.last_epoch
    is_counted = min(subscription.session, subscription.leader_epoch, last_epoch) >= 0
    return is_counted and 0 <= subscription.flushed_offset <= subscription.log_end_offset


def _abort(message: str) -> AbortPush:
    return AbortPush(failure=Failure(code=ErrorCode.INVALID_REQUEST, message=message))

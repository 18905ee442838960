# SPDX-License-Identifier: Apache-2.0
"""The core of one `Replicate` stream at the leader: what the follower sends, what to send to it, and when.

Owns: the bound routes and how far each was sent, the credits and whose turn it is, waiting answers and marks,
heartbeats and silence. It reads no log, finds no replicas, does not decide who is in sync, and uses no stream or clock.

Theory of operation. The shell calls one method for each message of the follower and for each change of a replica. The
result is what the shell does next. A subscription binds its number and goes to the replica, which accepts it, reports
divergence, or refuses it. An accepted route is *ready* while its next offset is below the leader's log end. Ready
routes wait for their turn. `next_read` returns the route whose turn it is; the shell reports with `note_read` or
`end_route` before it asks again. Batches carry high watermark and log start. So when a watermark moves, the route waits
`marks_coalesce_ms` for batches that carry the new value. Then one message for all routes carries what is left.

Laws
    No batches while an answer waits: what is said about a route is written before what is sent on it.
    Nothing is sent on a route after its end, or before its acceptance. A number is bound once in the life of a stream.
    An acknowledgement ends the stream and counts nothing if it is beyond what was sent on its route, below an earlier
    one of the route, or contradicts itself. A follower that says something impossible is not trusted about other routes
    either.
    A route without changes costs nothing, not even time.
Source: docs/replication.md, "The stream".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from lograft.wire.codes import ErrorCode

from brokerd.failure import Failure
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.partition.replication_rates import ReplicationRates, TokenBucket, Traffic
from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import (
    Accepted,
    Credit,
    Diverged,
    Ended,
    GoAway,
    Heartbeat,
    LeaderMessage,
    Marks,
    Opened,
    RouteAck,
    RouteMark,
    Subscription,
)


class NextRead(NamedTuple):
    """Read whole batches of a route, at least one, from the one that begins at `offset` on; send the other fields with them."""

    route: int
    offset: int
    max_bytes: int
    high_watermark: int
    log_start_offset: int
    is_in_sync: bool


class Rebinding(NamedTuple):
    """The changes by one subscription, in this order.

    Attributes:
        replaced: route whose replica loses its follower; None: the partition had no route.
        subscription: to pass to its replica, which answers now or later; None: it is refused.
    """

    replaced: int | None
    subscription: Subscription | None


class _Route:
    """A bound route; only its session writes it.

    Attributes:
        key: topic id and partition.
        acked_offset: end of the follower's log, as it last said (exclusive).
        flushed_offset: end of what the follower has on stable storage, as it last said (exclusive).
        next_offset: start of the next message; everything below was sent, or was there before.
        log_end_offset: log end of the leader (exclusive).
        high_watermark: high watermark of the leader (exclusive).
        log_start_offset: log start of the leader (inclusive).
        is_accepted: True once the replica has accepted the subscription.
        traffic: kind of its traffic, which decides whose credit it spends.
    """

    __slots__ = (
        "acked_offset",
        "flushed_offset",
        "high_watermark",
        "is_accepted",
        "key",
        "log_end_offset",
        "log_start_offset",
        "next_offset",
        "traffic",
    )

    def __init__(self, subscription: Subscription) -> None:
        self.key = (subscription.topic_id, subscription.partition)
        self.acked_offset = self.next_offset = subscription.log_end_offset
        self.flushed_offset = subscription.flushed_offset
        self.log_end_offset = 0
        self.high_watermark = 0
        self.log_start_offset = 0
        self.is_accepted = False
        self.traffic = Traffic.CATCH_UP


class LeaderSession:
    """One stream at the leader. After every call `is_over` says whether the stream ends.

    Args:
        limits: limits of the stream.
        rates: the replication throttle for followers out of sync, shared by all streams of the leader.
        now_ms: monotonic time in milliseconds.
    """

    __slots__ = (
        "_failure",
        "_heard_ms",
        "_is_open",
        "_is_over",
        "_limits",
        "_marked",
        "_marks_due_ms",
        "_numbers",
        "_outbox",
        "_routes",
        "_sent_ms",
        "_started_ms",
        "_stop_due_ms",
        "_turns",
        "_used",
    )

    def __init__(self, limits: StreamLimits, rates: ReplicationRates, now_ms: int) -> None:
        self._limits = limits
        self._is_open = False
        self._is_over = False
        self._failure: Failure | None = None
        self._started_ms = self._heard_ms = self._sent_ms = now_ms
        self._stop_due_ms: int | None = None
        # The routes by number; the number of the newest route of each partition.
        self._routes: dict[int, _Route] = {}
        self._numbers: dict[tuple[bytes, int], int] = {}
        # One bit for each number that was ever bound, up to the highest one.
        self._used = bytearray()
        self._turns = Turns(limits, rates)
        self._outbox: list[LeaderMessage] = []
        self._marked: dict[int, _Route] = {}
        self._marks_due_ms = 0

    @property
    def is_over(self) -> bool:
        """True once the stream must end at once: because of `failure`, or at the end of a stop."""
        return self._is_over

    @property
    def failure(self) -> Failure | None:
        """Why the stream ends, for the follower; None: it continues, or ends cleanly."""
        return self._failure

    @property
    def route_count(self) -> int:
        """Number of bound routes."""
        return len(self._routes)

    @property
    def has_answers(self) -> bool:
        """True while answers wait to be written; False before the opening."""
        return self._is_open and bool(self._outbox)

    @property
    def must_pause(self) -> bool:
        """True while no further message may be read from the stream."""
        return len(self._outbox) >= self._limits.max_waiting_answers

    @property
    def is_finished(self) -> bool:
        """True if the writer may close the stream: the broker stops, no route is left, and everything was sent."""
        is_stopping = self._is_open and self._stop_due_ms is not None
        return is_stopping and not self._outbox and not self._routes

    @property
    def has_work(self) -> bool:
        """True if the writer has work: answers, routes that wait for their turn, or the end of a stop."""
        return self.has_answers or self._turns.is_waiting or self.is_finished

    def credit_bytes(self, *, is_in_sync: bool) -> int:
        """Return the credit left for a class; below zero after a message that took more than was left."""
        return self._turns.credit_bytes(is_in_sync=is_in_sync)

    # Messages of the follower.

    def open(self, credit: Credit, answer: Opened, now_ms: int) -> None:
        """Handle the opening message of an accepted follower.

        Args:
            credit: the first credits.
            answer: what to send to the follower before anything else.
            now_ms: monotonic time in milliseconds.
        """
        if self._is_open:
            self._abort("`open` came twice; it is the first message of a stream and the only one of its kind")
        elif not self._turns.grant(credit):
            self._abort(f"the first credit is not between 0 and {self._limits.max_credit_bytes}")
        else:
            self._is_open = True
            self._heard_ms = self._sent_ms = now_ms
            self._outbox.insert(0, answer)

    def subscribe(self, subscriptions: Sequence[Subscription], now_ms: int) -> list[Rebinding]:
        """Handle subscriptions; return what they change, in order.

        The replica of each one answers with `accept`, `diverge` or `end_route`, now or later.
        """
        limits = self._limits
        if not self._hears("subscriptions", now_ms):
            return []
        if len(subscriptions) > limits.subscribes_per_message:
            most = limits.subscribes_per_message
            self._abort(f"{len(subscriptions)} subscriptions in one message are more than {most}")
            return []
        rebindings: list[Rebinding] = []
        for subscription in subscriptions:
            number = subscription.route
            if number < 0:
                self._abort(f"route {number} is below 0")
                break
            if number >= limits.max_routes:
                self._tell_end(number, SubscriptionError.OVERLOADED, 0)
                continue
            if not self._use(number):
                # Two subscriptions with one number could no longer be told apart.
                self._abort(f"route {number} was bound before on this stream: count up")
                break
            replaced = self._numbers.get((subscription.topic_id, subscription.partition))
            if replaced is not None:
                self._drop(replaced)
            if _is_sound(subscription):
                route = self._routes[number] = _Route(subscription)
                self._numbers[route.key] = number
                rebindings.append(Rebinding(replaced, subscription))
            else:
                self._tell_end(number, SubscriptionError.INVALID_ACK, 0)
                if replaced is not None:
                    rebindings.append(Rebinding(replaced, None))
        return rebindings

    def unsubscribe(self, numbers: Sequence[int], now_ms: int) -> list[int]:
        """End routes for the follower; return those whose replica loses its follower."""
        if not self._hears("unsubscriptions", now_ms):
            return []
        if len(numbers) > self._limits.subscribes_per_message:
            self._abort(f"{len(numbers)} routes in one message are more than {self._limits.subscribes_per_message}")
            return []
        return [number for number in numbers if self._drop(number)]

    def acknowledge(self, acks: Sequence[RouteAck], now_ms: int) -> list[RouteAck]:
        """Handle acknowledgements; return those that count, for the replicas of the routes."""
        if not self._hears("acknowledgements", now_ms):
            return []
        if len(acks) > self._limits.acks_per_message:
            self._abort(f"{len(acks)} acknowledgements in one message are more than {self._limits.acks_per_message}")
            return []
        counted: list[RouteAck] = []
        for ack in acks:
            number, appended_offset, flushed_offset = ack
            route = self._routes.get(number)
            if route is None or not route.is_accepted:
                continue  # of a route that has ended
            if not (
                route.acked_offset <= appended_offset <= route.next_offset
                and route.flushed_offset <= flushed_offset <= appended_offset
            ):
                said = f"appended {appended_offset}, flushed {flushed_offset}"
                known = f"sent up to {route.next_offset}, before: {route.acked_offset}, {route.flushed_offset}"
                self._abort(f"the acknowledgement of route {number} cannot be: {said}; {known}")
                break
            route.acked_offset, route.flushed_offset = appended_offset, flushed_offset
            counted.append(ack)
        return counted

    def grant(self, credit: Credit, now_ms: int) -> None:
        """Handle credit, which is added to what was granted before."""
        if self._hears("credit", now_ms) and not self._turns.grant(credit):
            said = f"{credit.in_sync_bytes} and {credit.catch_up_bytes} bytes"
            self._abort(f"credit of {said} is below 0, or brings a sum over {self._limits.max_credit_bytes}")

    def hear(self, now_ms: int) -> None:
        """Note that the follower is alive."""
        self._hears("a heartbeat", now_ms)

    # Changes of the replicas.

    def accept(
        self, number: int, *, high_watermark: int, log_start_offset: int, log_end_offset: int, traffic: Traffic
    ) -> None:
        """Accept a subscription: the follower's log is a prefix of the leader's.

        Args:
            number: number of the route.
            high_watermark: high watermark of the leader (exclusive).
            log_start_offset: log start of the leader (inclusive).
            log_end_offset: log end of the leader (exclusive).
            traffic: kind of the route's traffic.
        """
        route = self._routes.get(number)
        if route is None or route.is_accepted:
            return
        route.is_accepted = True
        route.traffic = traffic
        route.log_end_offset = max(route.log_end_offset, log_end_offset)
        route.high_watermark, route.log_start_offset = high_watermark, log_start_offset
        self._outbox.append(Accepted(route=number, high_watermark=high_watermark, log_start_offset=log_start_offset))
        self._queue_if_ready(number, route)

    def diverge(self, number: int, leader_end: EpochEnd) -> None:
        """End a route because the logs diverge at `leader_end`; the replica has ended the subscription."""
        if self._drop(number):
            self._outbox.append(Diverged(route=number, leader_end=leader_end))

    def end_route(self, number: int, error: SubscriptionError, *, log_start_offset: int = 0) -> None:
        """End a route: there is no replica, or it has ended the subscription, or its log cannot be read."""
        if self._drop(number):
            self._tell_end(number, error, log_start_offset)

    def grow(self, number: int, log_end_offset: int) -> None:
        """Note that the log has grown to `log_end_offset` (exclusive)."""
        route = self._routes.get(number)
        if route is not None and log_end_offset > route.log_end_offset:
            route.log_end_offset = log_end_offset
            self._queue_if_ready(number, route)

    def mark(self, number: int, *, high_watermark: int, log_start_offset: int, now_ms: int) -> None:
        """Note that the high watermark (exclusive) or the log start (inclusive) has moved."""
        route = self._routes.get(number)
        if route is None or not route.is_accepted:
            return  # the acceptance carries its own
        if route.high_watermark == high_watermark and route.log_start_offset == log_start_offset:
            return
        route.high_watermark, route.log_start_offset = high_watermark, log_start_offset
        if not self._marked:
            self._marks_due_ms = now_ms + self._limits.marks_coalesce_ms
        self._marked[number] = route

    def classify(self, number: int, traffic: Traffic) -> None:
        """Note the kind of a route's traffic, for example because its follower joined the maximal in-sync replicas."""
        route = self._routes.get(number)
        if route is not None and route.traffic is not traffic:
            route.traffic = traffic
            self._turns.move(number, traffic)

    # For the writer and the timer.

    def take_answers(self, now_ms: int) -> list[LeaderMessage]:
        """Return the answers to write now, in order, and remove them."""
        if not self.has_answers:
            return []
        answers = self._outbox
        self._outbox = []
        self._sent_ms = now_ms
        return answers

    def next_read(self, now_ms: int) -> NextRead | None:
        """Return the next read; None: nothing can be sent now."""
        if self._outbox:
            return None
        number = self._turns.take(now_ms)
        if number is None:
            return None
        route = self._routes[number]
        return NextRead(
            number,
            route.next_offset,
            self._turns.message_bytes(route.traffic),
            route.high_watermark,
            route.log_start_offset,
            route.traffic is Traffic.IN_SYNC,
        )

    def note_read(self, number: int, *, next_offset: int, size_bytes: int, now_ms: int) -> bool:
        """Note that the shell has done the read of `next_read` and writes it now.

        Returns:
            False: write nothing, because the route is over. It ended in the meantime, or the read returned nothing.
        """
        route = self._routes.get(number)
        if route is None:
            return False
        if next_offset <= route.next_offset:
            # The log end is beyond this offset, so the read must return something.
            self.end_route(number, SubscriptionError.STORAGE_FAILED, log_start_offset=route.log_start_offset)
            return False
        self._turns.spend(size_bytes, route.traffic)
        self._sent_ms = now_ms
        self._marked.pop(number, None)
        route.next_offset = next_offset
        self._queue_if_ready(number, route)
        return True

    def stop(self, drain_ms: int, now_ms: int) -> None:
        """Tell the follower that the broker stops; the stream ends once it has no routes, or after `drain_ms`."""
        if self._stop_due_ms is None:
            self._outbox.append(GoAway(drain_ms))
            self._stop_due_ms = now_ms + drain_ms

    def deadline_ms(self) -> int:
        """Return the monotonic time when `tick` is due."""
        limits = self._limits
        if not self._is_open:
            return self._started_ms + limits.open_ms
        due_ms = min(self._sent_ms + limits.idle_ms, self._heard_ms + limits.silence_ms)
        if self._marked and self._marks_due_ms < due_ms:
            due_ms = self._marks_due_ms
        if self._stop_due_ms is not None and self._stop_due_ms < due_ms:
            due_ms = self._stop_due_ms
        rate_ms = self._turns.deadline_ms()
        return due_ms if rate_ms is None else min(due_ms, rate_ms)

    def tick(self, now_ms: int) -> None:
        """Note that time has passed; the messages that are due become answers."""
        limits = self._limits
        if not self._is_open:
            if now_ms >= self._started_ms + limits.open_ms:
                self._fail(ErrorCode.TIMED_OUT, f"`open` did not come within {limits.open_ms} ms")
            return
        if self._stop_due_ms is not None and now_ms >= self._stop_due_ms:
            self._is_over = True
            return
        self._turns.look(now_ms)
        if self._marked and now_ms >= self._marks_due_ms:
            self._tell_marks(now_ms)
        late_ms = now_ms - (self._heard_ms + limits.silence_ms)
        if late_ms >= limits.idle_ms:
            # This process itself stood still, and has not read yet what arrived in the meantime. Wait for one more
            # heartbeat.
            self._heard_ms = now_ms - limits.silence_ms + limits.idle_ms
        elif late_ms >= 0:
            self._fail(ErrorCode.TIMED_OUT, f"nothing came for {limits.silence_ms} ms: open another stream")
            return
        if now_ms >= self._sent_ms + limits.idle_ms:
            self._sent_ms = now_ms
            if not self._outbox:
                self._outbox.append(Heartbeat())

    # Internal helpers.

    def _hears(self, what: str, now_ms: int) -> bool:
        """Note that a message arrived; refuse it if it comes before `open`."""
        if not self._is_open:
            self._abort(f"the first message of a stream between brokers must be `open`, not {what}")
            return False
        self._heard_ms = now_ms
        return True

    def _abort(self, message: str) -> None:
        self._fail(ErrorCode.INVALID_REQUEST, message)

    def _fail(self, code: ErrorCode, message: str) -> None:
        """End the stream; the first reason counts."""
        if not self._is_over:
            self._is_over = True
            self._failure = Failure(code=code, message=message)

    def _use(self, number: int) -> bool:
        """Mark a number as used; False if it was used before."""
        place, bit = number >> 3, 1 << (number & 7)
        if place >= len(self._used):
            self._used.extend(bytes(place + 1 - len(self._used)))
        if self._used[place] & bit:
            return False
        self._used[place] |= bit
        return True

    def _queue_if_ready(self, number: int, route: _Route) -> None:
        if route.is_accepted and route.next_offset < route.log_end_offset:
            self._turns.add(number, route.traffic)

    def _drop(self, number: int) -> bool:
        """Forget a route; False if it is not bound."""
        route = self._routes.pop(number, None)
        if route is None:
            return False
        del self._numbers[route.key]
        self._turns.remove(number, route.traffic)
        self._marked.pop(number, None)
        return True

    def _tell_end(self, number: int, error: SubscriptionError, log_start_offset: int) -> None:
        self._outbox.append(Ended(route=number, error=error, log_start_offset=log_start_offset, message=error.value))

    def _tell_marks(self, now_ms: int) -> None:
        self._marks_due_ms = now_ms + self._limits.marks_coalesce_ms
        if self._outbox:
            return  # the writer is behind; in the meantime newer marks of a route replace older ones
        numbers = list(self._marked)[: self._limits.marks_per_message]
        told = [(number, self._marked.pop(number)) for number in numbers]
        marks = (RouteMark(number, route.high_watermark, route.log_start_offset) for number, route in told)
        self._outbox.append(Marks(tuple(marks)))


class Turns:
    """Schedules the routes of one stream that have something to send: three queues, two credits, two rates.

    Routes to in-sync followers come first, with one chunk in each turn. The other routes are served while no in-sync
    route has both data and credit. They also get one `catch_up_turn_bytes` after each `catch_up_every_bytes` of in-sync
    bytes, so that they never stop. Among the others, catching-up routes and moving routes alternate, and those that a
    rate holds back are skipped. The bytes really sent are taken from the credit: while any credit is left, a message
    may take more.

    Law: a route without anything to send is in no queue and costs nothing.
    Source: docs/replication.md, "Credits", "Fairness" and "Rates".

    Args:
        limits: limits of the stream.
        rates: the replication throttle for followers out of sync, shared by all streams of the leader.
    """

    __slots__ = (
        "_catch_up_credit_bytes",
        "_held_by",
        "_in_sync_credit_bytes",
        "_is_move_next",
        "_limits",
        "_owed_bytes",
        "_queues",
        "_rates",
        "_since_turn_bytes",
    )

    def __init__(self, limits: StreamLimits, rates: ReplicationRates) -> None:
        self._limits = limits
        self._rates = rates
        # By kind of traffic.
        self._queues: tuple[OrderedDict[int, None], ...] = tuple(OrderedDict() for _ in Traffic)
        self._in_sync_credit_bytes = 0
        self._catch_up_credit_bytes = 0
        self._since_turn_bytes = 0
        # Bytes left of the turn that catch-up routes have earned, before in-sync routes have their turn again.
        self._owed_bytes = 0
        self._is_move_next = False
        # The bucket that held back a route when its turn had come.
        self._held_by: TokenBucket | None = None

    @property
    def is_waiting(self) -> bool:
        """True while a route has something to send, whether it may send or not."""
        return any(self._queues)

    def credit_bytes(self, *, is_in_sync: bool) -> int:
        """Return the credit left for a class; below zero after a message that took more than was left."""
        return self._in_sync_credit_bytes if is_in_sync else self._catch_up_credit_bytes

    def grant(self, credit: Credit) -> bool:
        """Add credit; False, without a change, if it is below zero or brings a sum over the limit."""
        in_sync = self._in_sync_credit_bytes + credit.in_sync_bytes
        catch_up = self._catch_up_credit_bytes + credit.catch_up_bytes
        is_below = credit.in_sync_bytes < 0 or credit.catch_up_bytes < 0
        if is_below or max(in_sync, catch_up) > self._limits.max_credit_bytes:
            return False
        self._in_sync_credit_bytes, self._catch_up_credit_bytes = in_sync, catch_up
        return True

    def add(self, route: int, traffic: Traffic) -> None:
        """Put a route at the end of its queue, unless it is in it."""
        self._queues[traffic][route] = None

    def remove(self, route: int, traffic: Traffic) -> None:
        """Remove a route from its queue, if it is in it."""
        self._queues[traffic].pop(route, None)

    def move(self, route: int, traffic: Traffic) -> None:
        """Move a waiting route to another queue."""
        for queue in self._queues:
            if queue.pop(route, 0) is None:
                self.add(route, traffic)
                return

    def take(self, now_ms: int) -> int | None:
        """Remove and return the route whose turn it is; None: no route may send."""
        in_sync = self._queues[Traffic.IN_SYNC]
        can_send_in_sync = bool(in_sync) and self._in_sync_credit_bytes > 0
        if can_send_in_sync and self._owed_bytes <= 0:
            return in_sync.popitem(last=False)[0]
        if self._catch_up_credit_bytes > 0:
            queue = self._next_queue(now_ms)
            if queue is not None:
                return queue.popitem(last=False)[0]
        return in_sync.popitem(last=False)[0] if can_send_in_sync else None

    def message_bytes(self, traffic: Traffic) -> int:
        """Return the largest size of the next message of a route."""
        return self._rates.message_bytes(traffic, self._limits.chunk_bytes)

    def spend(self, size_bytes: int, traffic: Traffic) -> None:
        """Take the sent bytes from the credit of their class and from the buckets."""
        if traffic is not Traffic.IN_SYNC:
            self._catch_up_credit_bytes -= size_bytes
            self._owed_bytes = max(self._owed_bytes - size_bytes, 0)
            self._rates.spend(size_bytes, traffic)
            return
        self._in_sync_credit_bytes -= size_bytes
        self._since_turn_bytes += size_bytes
        if self._since_turn_bytes >= self._limits.catch_up_every_bytes:
            self._since_turn_bytes = 0
            self._owed_bytes = self._limits.catch_up_turn_bytes

    def look(self, now_ms: int) -> None:
        """Check whether a rate still holds back a route."""
        if self._held_by is not None and self._held_by.is_open(now_ms):
            self._held_by = None

    def deadline_ms(self) -> int | None:
        """Return when to call `look` for a route that only a rate holds back; None: time changes nothing."""
        is_waiting = bool(self._queues[Traffic.CATCH_UP] or self._queues[Traffic.MOVING])
        if self._held_by is None or not is_waiting or self._catch_up_credit_bytes <= 0:
            return None
        return self._held_by.due_ms()

    def _next_queue(self, now_ms: int) -> OrderedDict[int, None] | None:
        """Return the next out-of-sync queue; the two alternate. None: no route waits, or the rates hold back all of them."""
        self._held_by = None
        kinds = (Traffic.MOVING, Traffic.CATCH_UP) if self._is_move_next else (Traffic.CATCH_UP, Traffic.MOVING)
        for traffic in kinds:
            queue = self._queues[traffic]
            if queue:
                held_by = self._rates.held_by(traffic, now_ms)
                if held_by is None:
                    self._is_move_next = traffic is Traffic.CATCH_UP
                    return queue
                self._held_by = held_by
        return None


def _is_sound(subscription: Subscription) -> bool:
    """Return whether the numbers of a subscription are consistent."""
    last_epoch = 0 if subscription.last_epoch is None else subscription.last_epoch
    is_counted = min(subscription.session, subscription.leader_epoch, last_epoch) >= 0
    return is_counted and 0 <= subscription.flushed_offset <= subscription.log_end_offset

# SPDX-License-Identifier: Apache-2.0
"""The core of one `Replicate` stream at the leader: what comes from the follower, what goes to it, and when.

Owns: which routes are bound and how far each was sent, credit and whose turn it is, the answers to be written, the marks that
wait, heartbeats and silence. Must not: read a log, find replicas, decide who is in sync, touch a stream or a clock.

Theory of operation. The shell calls one method for each message of the follower and for each thing that a replica says; the
result is what the shell does next. A subscription binds its number and goes to the replica, which accepts, diverges or refuses
it. From the acceptance on a route is *ready* while its next offset is below the leader's log end; ready routes wait for their
turn. `next_read` gives the one whose turn it is; the shell reports with `note_read` or `end_route` before it asks again.
Batches carry high watermark and log start, so a route whose watermark moved waits `marks_coalesce_ms` for batches that take the
news along; what is left then goes out as one message for all routes.

Laws
    No batches while an answer waits: what is said about a route is written before what is sent on it.
    Nothing comes on a route behind its end, nor before its acceptance. A number is bound once in the life of a stream.
    An acknowledgement beyond what was sent on its route, below an earlier one of the route, or one that contradicts itself ends
    the stream and counts nothing: a follower that says what cannot be is not believed about other routes either.
    A route without news costs nothing, also in time.
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
    """Read whole batches of a route from the one that begins at `offset` on; at least one. The rest goes along with them."""

    route: int
    offset: int
    max_bytes: int
    high_watermark: int
    log_start_offset: int
    is_in_sync: bool


class Rebinding(NamedTuple):
    """What a subscription changes, in this order.

    Attributes:
        replaced: route whose replica loses its follower; None: the partition had no route.
        subscription: to be handed to its replica, which answers now or later; None: it is refused.
    """

    replaced: int | None
    subscription: Subscription | None


class _Route:
    """A route that is bound; its session alone writes it.

    Attributes:
        key: topic id and partition.
        acked_offset: everything below is in the follower's log, as it said last (exclusive).
        flushed_offset: everything below is on its stable storage, as it said last (exclusive).
        next_offset: where the next message begins; everything below was sent, or was there (exclusive).
        log_end_offset: of the leader (exclusive).
        high_watermark: of the leader (exclusive).
        log_start_offset: of the leader (inclusive).
        is_accepted: True once the replica has accepted the subscription.
        traffic: what it is for, and so whose credit it spends.
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
    """One stream; see above. After every call `is_over` says whether the stream ends.

    Args:
        limits: what bounds the stream.
        rates: of what goes to followers that are out of sync, shared by all streams of the leader.
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
        # By number; and the number of the newest route of a partition.
        self._routes: dict[int, _Route] = {}
        self._numbers: dict[tuple[bytes, int], int] = {}
        # One bit for each number that was ever bound, as far as the highest one.
        self._used = bytearray()
        self._turns = Turns(limits, rates)
        self._outbox: list[LeaderMessage] = []
        self._marked: dict[int, _Route] = {}
        self._marks_due_ms = 0

    @property
    def is_over(self) -> bool:
        """True once the stream must end, whatever is still under way: for `failure`, or in good order at the end of a stop."""
        return self._is_over

    @property
    def failure(self) -> Failure | None:
        """Why the stream ends, for the follower; None: it goes on, or ends in good order."""
        return self._failure

    @property
    def route_count(self) -> int:
        """Routes that are bound."""
        return len(self._routes)

    @property
    def has_answers(self) -> bool:
        """True while answers wait to be written; none before the opening."""
        return self._is_open and bool(self._outbox)

    @property
    def must_pause(self) -> bool:
        """True while no further message should be read from the stream."""
        return len(self._outbox) >= self._limits.max_waiting_answers

    @property
    def is_finished(self) -> bool:
        """True when the writer may close the stream: the broker stops, no route is left, and all is said."""
        is_stopping = self._is_open and self._stop_due_ms is not None
        return is_stopping and not self._outbox and not self._routes

    @property
    def has_work(self) -> bool:
        """True when the writer should look: for answers, routes that wait for their turn, or the end of a stop."""
        return self.has_answers or self._turns.is_waiting or self.is_finished

    def credit_bytes(self, *, is_in_sync: bool) -> int:
        """Return what may still be sent of a class; below zero after a message that took more than was left."""
        return self._turns.credit_bytes(is_in_sync=is_in_sync)

    # What the follower says.

    def open(self, credit: Credit, answer: Opened, now_ms: int) -> None:
        """Take the opening of a follower that is let in.

        Args:
            credit: what may be sent at first.
            answer: what the follower is told before anything else.
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
        """Take subscriptions; return what they change, in order.

        The replica of each answers with `accept`, `diverge` or `end_route`, now or later.
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
                # Two subscriptions under one number cannot be told apart any more.
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
        """End routes that the follower does not want any more; return those whose replica loses its follower."""
        if not self._hears("unsubscriptions", now_ms):
            return []
        if len(numbers) > self._limits.subscribes_per_message:
            self._abort(f"{len(numbers)} routes in one message are more than {self._limits.subscribes_per_message}")
            return []
        return [number for number in numbers if self._drop(number)]

    def acknowledge(self, acks: Sequence[RouteAck], now_ms: int) -> list[RouteAck]:
        """Take what the follower holds; return what counts, for the replicas of the routes."""
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
                continue  # of a route that has ended meanwhile
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
        """Take credit beyond what was granted before."""
        if self._hears("credit", now_ms) and not self._turns.grant(credit):
            said = f"{credit.in_sync_bytes} and {credit.catch_up_bytes} bytes"
            self._abort(f"credit of {said} is below 0, or brings a sum over {self._limits.max_credit_bytes}")

    def hear(self, now_ms: int) -> None:
        """Learn that the follower lives."""
        self._hears("a heartbeat", now_ms)

    # What the replicas say.

    def accept(
        self, number: int, *, high_watermark: int, log_start_offset: int, log_end_offset: int, traffic: Traffic
    ) -> None:
        """Learn that the follower's log is a prefix of the leader's.

        Args:
            number: number of the route.
            high_watermark: of the leader (exclusive).
            log_start_offset: of the leader (inclusive).
            log_end_offset: of the leader (exclusive).
            traffic: what the route is for.
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
        """Learn where the logs part; the replica has ended the subscription."""
        if self._drop(number):
            self._outbox.append(Diverged(route=number, leader_end=leader_end))

    def end_route(self, number: int, error: SubscriptionError, *, log_start_offset: int = 0) -> None:
        """Learn that a route is over: there is no replica, it has ended the subscription, or its log cannot be read."""
        if self._drop(number):
            self._tell_end(number, error, log_start_offset)

    def grow(self, number: int, log_end_offset: int) -> None:
        """Learn that there is something to send, up to `log_end_offset` (exclusive)."""
        route = self._routes.get(number)
        if route is not None and log_end_offset > route.log_end_offset:
            route.log_end_offset = log_end_offset
            self._queue_if_ready(number, route)

    def mark(self, number: int, *, high_watermark: int, log_start_offset: int, now_ms: int) -> None:
        """Learn that the high watermark (exclusive) or the log start (inclusive) moved."""
        route = self._routes.get(number)
        if route is None or not route.is_accepted:
            return  # the acceptance brings its own
        if route.high_watermark == high_watermark and route.log_start_offset == log_start_offset:
            return
        route.high_watermark, route.log_start_offset = high_watermark, log_start_offset
        if not self._marked:
            self._marks_due_ms = now_ms + self._limits.marks_coalesce_ms
        self._marked[number] = route

    def classify(self, number: int, traffic: Traffic) -> None:
        """Learn that the follower is now one of the maximal in-sync replicas, or no more."""
        route = self._routes.get(number)
        if route is not None and route.traffic is not traffic:
            route.traffic = traffic
            self._turns.move(number, traffic)

    # What the writer and the timer do.

    def take_answers(self, now_ms: int) -> list[LeaderMessage]:
        """Return the answers to write now, in order, and forget them."""
        if not self.has_answers:
            return []
        answers = self._outbox
        self._outbox = []
        self._sent_ms = now_ms
        return answers

    def next_read(self, now_ms: int) -> NextRead | None:
        """Return what to read next, or None: nothing can be sent now."""
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
        """Learn that the shell has read what `next_read` asked for, and writes it now.

        Returns:
            False: nothing is to be written, as the route is over: it ended meanwhile, or nothing was there.
        """
        route = self._routes.get(number)
        if route is None:
            return False
        if next_offset <= route.next_offset:
            # The log end is beyond, so something must be there.
            self.end_route(number, SubscriptionError.STORAGE_FAILED, log_start_offset=route.log_start_offset)
            return False
        self._turns.spend(size_bytes, route.traffic)
        self._sent_ms = now_ms
        self._marked.pop(number, None)
        route.next_offset = next_offset
        self._queue_if_ready(number, route)
        return True

    def stop(self, drain_ms: int, now_ms: int) -> None:
        """Tell the follower that the broker stops; the stream ends without routes, or at the latest after `drain_ms`."""
        if self._stop_due_ms is None:
            self._outbox.append(GoAway(drain_ms))
            self._stop_due_ms = now_ms + drain_ms

    def deadline_ms(self) -> int:
        """Return the monotonic time at which `tick` is due."""
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
        """Learn that time passed; what is due then is among the answers."""
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
            # This process stood still itself. What came meanwhile is not read yet: there is one more beat's time for it.
            self._heard_ms = now_ms - limits.silence_ms + limits.idle_ms
        elif late_ms >= 0:
            self._fail(ErrorCode.TIMED_OUT, f"nothing came for {limits.silence_ms} ms: open another stream")
            return
        if now_ms >= self._sent_ms + limits.idle_ms:
            self._sent_ms = now_ms
            if not self._outbox:
                self._outbox.append(Heartbeat())

    # Inside.

    def _hears(self, what: str, now_ms: int) -> bool:
        """Note that a message came; refuse one that comes before `open`."""
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
        """Use up a number; False if it was used before."""
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
            return  # the writer is behind; news of one route replace each other meanwhile
        numbers = list(self._marked)[: self._limits.marks_per_message]
        told = [(number, self._marked.pop(number)) for number in numbers]
        marks = (RouteMark(number, route.high_watermark, route.log_start_offset) for number, route in told)
        self._outbox.append(Marks(tuple(marks)))


class Turns:
    """Whose turn it is on one stream: three queues of routes with something to send, two credits, two rates.

    Routes of followers that are in sync go first, one chunk a turn each. The others are served while none of the first has
    both something to send and credit, and one `catch_up_turn_bytes` after each `catch_up_every_bytes` of the first, so that
    they never stop. Among the others, those that catch up and those that move alternate; what a rate holds back is passed over.
    Credit is spent by the bytes really sent: while any is left, a message may take more.

    Law: a route without anything to send is in no queue and costs nothing.
    Source: docs/replication.md, "Credits", "Fairness" and "Rates".

    Args:
        limits: what bounds the stream.
        rates: of what goes to followers that are out of sync, shared by all streams of the leader.
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
        # What is left of the turn that catch-up routes have earned, before in-sync routes are looked at again.
        self._owed_bytes = 0
        self._is_move_next = False
        # The bucket that held a route back when its turn had come.
        self._held_by: TokenBucket | None = None

    @property
    def is_waiting(self) -> bool:
        """True while a route has something to send, whether it may or not."""
        return any(self._queues)

    def credit_bytes(self, *, is_in_sync: bool) -> int:
        """Return what may still be sent of a class; below zero after a message that took more than was left."""
        return self._in_sync_credit_bytes if is_in_sync else self._catch_up_credit_bytes

    def grant(self, credit: Credit) -> bool:
        """Take up credit; False, and nothing changes, if it is below zero or brings a sum over the limit."""
        in_sync = self._in_sync_credit_bytes + credit.in_sync_bytes
        catch_up = self._catch_up_credit_bytes + credit.catch_up_bytes
        is_below = credit.in_sync_bytes < 0 or credit.catch_up_bytes < 0
        if is_below or max(in_sync, catch_up) > self._limits.max_credit_bytes:
            return False
        self._in_sync_credit_bytes, self._catch_up_credit_bytes = in_sync, catch_up
        return True

    def add(self, route: int, traffic: Traffic) -> None:
        """Put a route at the end of its queue, unless it waits there."""
        self._queues[traffic][route] = None

    def remove(self, route: int, traffic: Traffic) -> None:
        """Take a route out of its queue, if it waits there."""
        self._queues[traffic].pop(route, None)

    def move(self, route: int, traffic: Traffic) -> None:
        """Let a route wait in another queue from now on, if it waits."""
        for queue in self._queues:
            if queue.pop(route, 0) is None:
                self.add(route, traffic)
                return

    def take(self, now_ms: int) -> int | None:
        """Take the route whose turn it is out of its queue; None: none may send."""
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
        """Return how large the next message of a route should be at most."""
        return self._rates.message_bytes(traffic, self._limits.chunk_bytes)

    def spend(self, size_bytes: int, traffic: Traffic) -> None:
        """Take what was sent off the credit of its class, and out of the buckets."""
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
        """Look whether a rate still holds a route back."""
        if self._held_by is not None and self._held_by.is_open(now_ms):
            self._held_by = None

    def deadline_ms(self) -> int | None:
        """Return when to `look` at what a rate alone holds back; None: time alone changes nothing."""
        is_waiting = bool(self._queues[Traffic.CATCH_UP] or self._queues[Traffic.MOVING])
        if self._held_by is None or not is_waiting or self._catch_up_credit_bytes <= 0:
            return None
        return self._held_by.due_ms()

    def _next_queue(self, now_ms: int) -> OrderedDict[int, None] | None:
        """Return the queue out of sync whose turn it is; the two alternate. None: none waits, or the rates hold all of them."""
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
    """True if no number of a subscription contradicts itself."""
    last_epoch = 0 if subscription.last_epoch is None else subscription.last_epoch
    is_counted = min(subscription.session, subscription.leader_epoch, last_epoch) >= 0
    return is_counted and 0 <= subscription.flushed_offset <= subscription.log_end_offset

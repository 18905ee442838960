# SPDX-License-Identifier: Apache-2.0
"""The cores of a follower's side of `Replicate`: what to send to one leader, and when to reopen a broken stream.

`FollowerSession` owns the route numbers, the messages that wait, the credit to return, and the times of heartbeats and
silence. `StreamRetry` owns the backoff of one leader, over all streams to it. Neither uses a log, a stream or a clock,
or knows the state of a partition.

Theory of operation. A replica's newest subscription waits until the next message. When it is sent, it gets a route, a
number that is never used again on the stream. Messages of the leader name the route. A route that has ended, or that a
newer subscription of the same replica has replaced, is unknown, and the session ignores messages about it. The leader
ends a replaced route when it gets the newer subscription; if that one ends before it is sent, the session unsubscribes
the route. It keeps only the last acknowledgement of each route, and sends acknowledgements together.

Laws
    A replica has at most one subscription, waiting or sent.
    The leader has no route of a replica without a subscription once it has all messages.
    Nothing is acknowledged for a route that is over.
    The returned credit is at most the used credit.
Source: docs/replication.md section "The stream".
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, Protocol, TypeVar

from lograft.wire.codes import ErrorCode

from brokerd.partition.effects import SendAck, Subscribe
from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import (
    Acks,
    Credit,
    FollowerMessage,
    Heartbeat,
    RouteAck,
    Subscription,
    Subscriptions,
    Unsubscriptions,
)

_CREDIT_SHARE = 8
"""The follower returns credit when this share of the window (one in this many) was used, so that the leader never waits for it."""

_JITTER_SHARE = 4
"""A random part makes a pause longer, by at most this share of it (one in this many)."""

_PASSING: Final = frozenset(
    {
        # A newer registration of this broker is under way.
        ErrorCode.STALE_BROKER_EPOCH,
        # The leader's metadata is behind, or it is still opening the log.
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.UNKNOWN_PARTITION,
        # A stream can be opened again without harm.
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.INTERNAL,
        ErrorCode.UNSPECIFIED,
    }
)


class SubscribingReplica(Hashable, Protocol):
    """A replica, as its stream names it to the leader."""

    @property
    def topic_id(self) -> bytes:
        """Topic id, 16 bytes."""
        ...

    @property
    def partition(self) -> int:
        """Partition number, from 0."""
        ...


_Replica = TypeVar("_Replica", bound=SubscribingReplica)


class FollowerSession(Generic[_Replica]):
    """One stream, from its opening on.

    Args:
        limits: limits of the stream.
        now_ms: monotonic time when the stream was opened.
    """

    __slots__ = (
        "_acked_ms",
        "_acks",
        "_credit_bytes",
        "_heard_ms",
        "_limits",
        "_replaced",
        "_routes",
        "_said_ms",
        "_sent",
        "_to_subscribe",
        "_to_unsubscribe",
        "_used_numbers",
    )

    def __init__(self, limits: StreamLimits, now_ms: int) -> None:
        self._limits = limits
        self._to_subscribe: dict[_Replica, Subscribe] = {}
        self._to_unsubscribe: list[int] = []
        # By route: replica and session. By replica: route.
        self._routes: dict[int, tuple[_Replica, int]] = {}
        self._sent: dict[_Replica, int] = {}
        # By replica: the route that its waiting subscription replaces, and that the leader still has.
        self._replaced: dict[_Replica, int] = {}
        self._acks: dict[int, SendAck] = {}
        # Credit to return: in sync, catching up.
        self._credit_bytes = [0, 0]
        self._used_numbers = 0
        self._said_ms = self._heard_ms = now_ms
        self._acked_ms = now_ms - limits.acks_coalesce_ms

    @property
    def is_used_up(self) -> bool:
        """True once the stream has no route number left, so that a new stream is needed."""
        return self._used_numbers >= self._limits.max_routes

    @property
    def is_idle(self) -> bool:
        """True while there is no subscription, waiting or sent."""
        return not self._sent and not self._to_subscribe

    def subscriptions(self) -> list[tuple[_Replica, int]]:
        """Return the replicas and sessions of all subscriptions, sent or waiting."""
        waiting = [(replica, request.session) for replica, request in self._to_subscribe.items()]
        return [*self._routes.values(), *waiting]

    # Requests of the replicas.

    def subscribe(self, replica: _Replica, request: Subscribe) -> None:
        """Add a subscription; an earlier one of the replica is over."""
        route = self._sent.get(replica)
        self._end(replica)
        if route is not None:
            self._replaced[replica] = route
        self._to_subscribe[replica] = request

    def unsubscribe(self, replica: _Replica, session: int) -> None:
        """End the subscription with this number."""
        waiting = self._to_subscribe.get(replica)
        if waiting is not None and waiting.session == session:
            del self._to_subscribe[replica]
            replaced = self._replaced.pop(replica, None)
            if replaced is not None:
                self._to_unsubscribe.append(replaced)
            return
        route = self._sent.get(replica)
        if route is not None and self._routes[route][1] == session:
            self._end(replica)
            self._to_unsubscribe.append(route)

    def ack(self, replica: _Replica, ack: SendAck) -> None:
        """Add an acknowledgement; ignored if its session is over."""
        route = self._sent.get(replica)
        if route is not None and self._routes[route][1] == ack.session:
            self._acks[route] = ack

    # Messages of the leader.

    def hear(self, now_ms: int) -> None:
        """Note that a message of the leader arrived."""
        self._heard_ms = now_ms

    def find(self, route: int) -> tuple[_Replica, int] | None:
        """Return the replica and session of a live route, or None."""
        return self._routes.get(route)

    def end(self, route: int) -> tuple[_Replica, int] | None:
        """Note that the leader ended a route; return its replica and session, or None."""
        found = self._routes.get(route)
        if found is not None:
            self._end(found[0])
        return found

    def use_credit(self, size_bytes: int, *, is_in_sync: bool) -> None:
        """Note that received bytes of a class were processed."""
        self._credit_bytes[0 if is_in_sync else 1] += size_bytes

    # For the writer.

    @property
    def has_urgent(self) -> bool:
        """True if a message waits that must be sent as soon as possible."""
        return bool(self._to_subscribe or self._to_unsubscribe) or self._is_credit_due()

    def take_messages(self, now_ms: int) -> list[FollowerMessage]:
        """Return the messages to send now, in order, and count them as sent; empty: nothing before `deadline_ms`."""
        limits = self._limits
        messages: list[FollowerMessage] = []
        # Ends come first, because a replica may subscribe again after them.
        while self._to_unsubscribe:
            messages.append(Unsubscriptions(tuple(self._to_unsubscribe[: limits.subscribes_per_message])))
            del self._to_unsubscribe[: limits.subscribes_per_message]
        while self._to_subscribe and not self.is_used_up:
            messages.append(self._bind())
        if self._acks and now_ms - self._acked_ms >= limits.acks_coalesce_ms:
            self._acked_ms = now_ms
            while self._acks:
                routes = list(self._acks)[: limits.acks_per_message]
                acks = ((route, self._acks.pop(route)) for route in routes)
                messages.append(
                    Acks(tuple(RouteAck(route, ack.appended_offset, ack.flushed_offset) for route, ack in acks))
                )
        if self._is_credit_due():
            messages.append(Credit(*self._credit_bytes))
            self._credit_bytes = [0, 0]
        if not messages and now_ms - self._said_ms >= limits.idle_ms:
            messages.append(Heartbeat())
        if messages:
            self._said_ms = now_ms
        return messages

    def deadline_ms(self) -> int:
        """Return when `take_messages` has a message again, if nothing else happens."""
        due_ms = self._said_ms + self._limits.idle_ms
        return min(due_ms, self._acked_ms + self._limits.acks_coalesce_ms) if self._acks else due_ms

    def silence_left_ms(self, now_ms: int) -> int:
        """Return how many more milliseconds of silence the stream survives; 0 or less: none."""
        return self._heard_ms + self._limits.silence_ms - now_ms

    # Internal helpers.

    def _bind(self) -> Subscriptions:
        """Give routes to waiting subscriptions, as many as fit into one message."""
        bound: list[Subscription] = []
        while self._to_subscribe and len(bound) < self._limits.subscribes_per_message and not self.is_used_up:
            replica = next(iter(self._to_subscribe))
            request = self._to_subscribe.pop(replica)
            self._replaced.pop(replica, None)
            route = self._used_numbers
            self._used_numbers += 1
            self._routes[route] = (replica, request.session)
            self._sent[replica] = route
            bound.append(
                Subscription(
                    route=route,
                    topic_id=replica.topic_id,
                    partition=replica.partition,
                    session=request.session,
                    leader_epoch=request.leader_epoch,
                    log_end_offset=request.log_end_offset,
                    flushed_offset=request.flushed_offset,
                    last_epoch=request.last_epoch,
                )
            )
        return Subscriptions(tuple(bound))

    def _end(self, replica: _Replica) -> None:
        self._to_subscribe.pop(replica, None)
        route = self._sent.pop(replica, None)
        if route is not None:
            del self._routes[route]
            self._acks.pop(route, None)

    def _is_credit_due(self) -> bool:
        in_sync_bytes, catch_up_bytes = self._credit_bytes
        return (
            in_sync_bytes * _CREDIT_SHARE >= self._limits.in_sync_credit_bytes
            or catch_up_bytes * _CREDIT_SHARE >= self._limits.catch_up_credit_bytes
        )


class StreamRetry:
    """Decides when a follower tries again to open its stream to a leader.

    The pauses grow while attempts fail, up to `retry_max_ms`, and start over after a stream that lived. A leader change
    (a partition is to follow this leader from now on) also starts them over, and ends the current pause. Earlier
    failures concerned an earlier process, or the time before the leader was up.

    Law: at least `news_ms` pass between the starts of two attempts. After a leader change, or after the end of the
    attempt during which it came, at most `news_ms` pass. No pause is longer than `pause_max_ms`.

    Args:
        limits: limits of the pauses.
        now_ms: monotonic time in milliseconds.

    Attributes:
        due_ms: earliest time of the next attempt.
    """

    __slots__ = ("_began_ms", "_has_news", "_is_trying", "_limits", "_pause_ms", "due_ms")

    def __init__(self, limits: StreamLimits, now_ms: int) -> None:
        self._limits = limits
        self.due_ms = now_ms
        self._began_ms = now_ms - limits.news_ms
        self._pause_ms = limits.retry_min_ms
        self._is_trying = self._has_news = False

    def begin(self, now_ms: int) -> None:
        """Note the start of an attempt."""
        self._began_ms = now_ms
        self._is_trying, self._has_news = True, False

    def end(self, now_ms: int, *, is_hopeless: bool, jitter: float) -> None:
        """Note the end of an attempt, or of the stream that it opened.

        Args:
            now_ms: monotonic time in milliseconds.
            is_hopeless: result of `is_hopeless` for the reason; True: the longest pause follows.
            jitter: random number from 0 to 1.
        """
        limits = self._limits
        self._is_trying = False
        if self._has_news or now_ms - self._began_ms >= limits.retry_reset_ms:
            self._pause_ms = limits.retry_min_ms
        if is_hopeless:
            self._pause_ms = limits.retry_max_ms
        pause_ms = int(self._pause_ms * (1 + jitter / _JITTER_SHARE))
        self._pause_ms = min(2 * self._pause_ms, limits.retry_max_ms)
        self.due_ms = now_ms + min(pause_ms, limits.pause_max_ms)
        if self._has_news:
            self.due_ms = min(self.due_ms, now_ms + limits.news_ms)

    def hear(self, now_ms: int) -> None:
        """Note a leader change: a partition is to follow this leader from now on."""
        if self._is_trying:
            self._has_news = True
            return
        self._pause_ms = self._limits.retry_min_ms
        self.due_ms = min(self.due_ms, max(now_ms, self._began_ms + self._limits.news_ms))


def is_hopeless(code: ErrorCode | None) -> bool:
    """Return whether an operator must act (True), or a failed attempt mends itself with time (False).

    Args:
        code: the leader's refusal; None: the connection failed without a refusal.
    """
    return code is not None and not code.retriable and code not in _PASSING

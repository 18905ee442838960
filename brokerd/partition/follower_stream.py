# SPDX-License-Identifier: Apache-2.0
"""The cores of a follower's side of `Replicate`: what is to be said on a stream to one leader, and when a broken one is tried again.

`FollowerSession` owns the numbers of the routes, what waits to be sent, the credit to give back, and the times of heartbeats and
silence. `StreamRetry` owns the back-off of one leader, over all streams to it. Neither touches a log, a stream or a clock, or knows
a partition's state.

Theory of operation. A replica's newest subscription waits until the next message; sent, it has a route, a number never used again
on the stream. What comes from the leader names the route; a route that has ended, or that a newer subscription of the same replica
has replaced, is not found any more, and what names it is passed over. Acknowledgements are kept for each route, the last one only,
and go out together.

Laws: a replica has at most one subscription, waiting or sent; nothing is acknowledged for a route that is over; credit given
back is at most what was taken.
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
"""Credit is given back when this part of the window was used, so that the leader never waits for it."""

_JITTER_SHARE = 4
"""A pause is longer at random, by at most this part of it."""

_PASSING: Final = frozenset(
    {
        # A newer registration of this broker is under way.
        ErrorCode.STALE_BROKER_EPOCH,
        # The leader's metadata is behind, or its log is being opened.
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.UNKNOWN_PARTITION,
        # Opening a stream is repeated without harm.
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
        """Partition, from 0."""
        ...


_Replica = TypeVar("_Replica", bound=SubscribingReplica)


class FollowerSession(Generic[_Replica]):
    """One stream, from its opening on.

    Args:
        limits: what bounds the stream.
        now_ms: monotonic time at which the stream was opened.
    """

    __slots__ = (
        "_acked_ms",
        "_acks",
        "_credit_bytes",
        "_heard_ms",
        "_limits",
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
        self._acks: dict[int, SendAck] = {}
        # To be given back: in sync, catching up.
        self._credit_bytes = [0, 0]
        self._used_numbers = 0
        self._said_ms = self._heard_ms = now_ms
        self._acked_ms = now_ms - limits.acks_coalesce_ms

    @property
    def is_used_up(self) -> bool:
        """True once the stream has no number left for another route: open a new one."""
        return self._used_numbers >= self._limits.max_routes

    @property
    def is_idle(self) -> bool:
        """True while there is no subscription, waiting or sent."""
        return not self._sent and not self._to_subscribe

    def subscriptions(self) -> list[tuple[_Replica, int]]:
        """Return replicas and sessions of all subscriptions, sent or waiting."""
        waiting = [(replica, request.session) for replica, request in self._to_subscribe.items()]
        return [*self._routes.values(), *waiting]

    # What the replicas ask for.

    def subscribe(self, replica: _Replica, request: Subscribe) -> None:
        """Take a subscription; an earlier one of the replica is over."""
        self._end(replica)
        self._to_subscribe[replica] = request

    def unsubscribe(self, replica: _Replica, session: int) -> None:
        """End the subscription of that number."""
        waiting = self._to_subscribe.get(replica)
        if waiting is not None and waiting.session == session:
            del self._to_subscribe[replica]
            return
        route = self._sent.get(replica)
        if route is not None and self._routes[route][1] == session:
            self._end(replica)
            self._to_unsubscribe.append(route)

    def ack(self, replica: _Replica, ack: SendAck) -> None:
        """Take an acknowledgement; passed over when its session is over."""
        route = self._sent.get(replica)
        if route is not None and self._routes[route][1] == ack.session:
            self._acks[route] = ack

    # What the leader says.

    def hear(self, now_ms: int) -> None:
        """Learn that the leader said something."""
        self._heard_ms = now_ms

    def find(self, route: int) -> tuple[_Replica, int] | None:
        """Return replica and session of a live route."""
        return self._routes.get(route)

    def end(self, route: int) -> tuple[_Replica, int] | None:
        """Learn that the leader ended a route; return what `find` would have."""
        found = self._routes.get(route)
        if found is not None:
            self._end(found[0])
        return found

    def use_credit(self, size_bytes: int, *, is_in_sync: bool) -> None:
        """Learn that bytes of a class have come, and are dealt with."""
        self._credit_bytes[0 if is_in_sync else 1] += size_bytes

    # What the writer does.

    @property
    def has_urgent(self) -> bool:
        """True if something waits that is sent as soon as the stream takes it."""
        return bool(self._to_subscribe or self._to_unsubscribe) or self._is_credit_due()

    def take_messages(self, now_ms: int) -> list[FollowerMessage]:
        """Return what is to be said now, in order, and reckon it as said; empty: nothing before `deadline_ms`."""
        limits = self._limits
        messages: list[FollowerMessage] = []
        # Ends first: a replica may subscribe again behind them.
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
        """Return when `take_messages` has something to say again, if nothing happens before."""
        due_ms = self._said_ms + self._limits.idle_ms
        return min(due_ms, self._acked_ms + self._limits.acks_coalesce_ms) if self._acks else due_ms

    def silence_left_ms(self, now_ms: int) -> int:
        """Return after how many more silent milliseconds the stream is given up; 0 or less: now."""
        return self._heard_ms + self._limits.silence_ms - now_ms

    # Inside.

    def _bind(self) -> Subscriptions:
        """Give routes to what waits, as many as one message takes."""
        bound: list[Subscription] = []
        while self._to_subscribe and len(bound) < self._limits.subscribes_per_message and not self.is_used_up:
            replica = next(iter(self._to_subscribe))
            request = self._to_subscribe.pop(replica)
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
    """When a follower tries again to open its stream to a leader.

    The pauses between attempts grow while attempts fail, up to `retry_max_ms`, and start over after a stream that lived. News of
    the leader (a partition that wants to follow it from now on) start them over too, and end the one that is going on: what failed
    before was an earlier process, or the time before the leader was up.

    Law: between the beginnings of two attempts pass at least `news_ms`, and after news of the leader, or the end of the attempt that
    they met, not more. No pause is longer than `pause_max_ms`.

    Args:
        limits: what bounds the pauses.
        now_ms: monotonic time in milliseconds.

    Attributes:
        due_ms: when the next attempt may begin.
    """

    __slots__ = ("_began_ms", "_has_news", "_is_trying", "_limits", "_pause_ms", "due_ms")

    def __init__(self, limits: StreamLimits, now_ms: int) -> None:
        self._limits = limits
        self.due_ms = now_ms
        self._began_ms = now_ms - limits.news_ms
        self._pause_ms = limits.retry_min_ms
        self._is_trying = self._has_news = False

    def begin(self, now_ms: int) -> None:
        """Learn that an attempt begins."""
        self._began_ms = now_ms
        self._is_trying, self._has_news = True, False

    def end(self, now_ms: int, *, is_hopeless: bool, jitter: float) -> None:
        """Learn that the attempt, or the stream that came of it, is over.

        Args:
            now_ms: monotonic time in milliseconds.
            is_hopeless: as `is_hopeless` says of the reason: the longest pause follows.
            jitter: from 0 to 1, at random.
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
        """Learn that a partition wants to follow the leader from now on."""
        if self._is_trying:
            self._has_news = True
            return
        self._pause_ms = self._limits.retry_min_ms
        self.due_ms = min(self.due_ms, max(now_ms, self._began_ms + self._limits.news_ms))


def is_hopeless(code: ErrorCode | None) -> bool:
    """Return whether time alone mends a failed attempt (False), or an operator must look at it (True).

    Args:
        code: why the leader refused; None: the connection failed, and nothing was refused.
    """
    return code is not None and not code.retriable and code not in _PASSING

# SPDX-License-Identifier: Apache-2.0
"""The core of one `Replicate` stream at the follower: what is to be said to one leader.

Owns: the numbers of the routes, what waits to be sent, the credit to give back, and the times of heartbeats and silence.
Must not: touch a log, a stream, a clock or a protobuf message, or know a partition's state.

Theory of operation. A replica is one *key*. Its newest subscription waits until the next message; sent, it has a route,
a number never used again on the stream. What comes from the leader names the route; a route that has ended, or that a
newer subscription of the same key has taken over, is not found any more, and what names it is passed over.
Acknowledgements are kept for each route, the last one only, and go out together.

Laws: a key has at most one subscription, waiting or sent; nothing is acknowledged for a route that is over; credit given
back is at most what was taken.
Source: docs/replication.md section "The stream".
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from brokerd.limits import (
    ACKS_COALESCE_MS,
    ACKS_PER_MESSAGE,
    CATCH_UP_CREDIT_BYTES,
    IN_SYNC_CREDIT_BYTES,
    MAX_ROUTES_PER_REPLICATE_STREAM,
    REPLICATE_IDLE_MS,
    REPLICATE_SILENCE_MS,
    SUBSCRIBES_PER_MESSAGE,
)
from brokerd.partition.effects import SendAck, Subscribe

_CREDIT_SHARE = 8
"""Credit is given back when this part of the window was used, so that the leader never waits for it."""

_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Say that this side lives."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Let the leader send so many bytes more, of each class."""

    in_sync_bytes: int
    catch_up_bytes: int


@dataclass(frozen=True, slots=True)
class Unsubscriptions:
    """End these routes."""

    routes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Subscriptions(Generic[_Key]):
    """Bind routes: (route, key, subscription)."""

    entries: tuple[tuple[int, _Key, Subscribe], ...]


@dataclass(frozen=True, slots=True)
class Acks:
    """Tell what is held: (route, appended offset, flushed offset)."""

    entries: tuple[tuple[int, int, int], ...]


class FollowerSession(Generic[_Key]):
    """One stream, from its opening on; see the module docstring.

    Args:
        now_ms: monotonic time at which the stream was opened.
    """

    __slots__ = (
        "_acked_ms",
        "_acks",
        "_credit",
        "_heard_ms",
        "_routes",
        "_said_ms",
        "_sent",
        "_to_subscribe",
        "_to_unsubscribe",
        "_used_numbers",
    )

    def __init__(self, now_ms: int) -> None:
        self._to_subscribe: dict[_Key, Subscribe] = {}
        self._to_unsubscribe: list[int] = []
        # By route: key and session. By key: route.
        self._routes: dict[int, tuple[_Key, int]] = {}
        self._sent: dict[_Key, int] = {}
        self._acks: dict[int, SendAck] = {}
        self._credit = [0, 0]
        self._used_numbers = 0
        self._said_ms = self._heard_ms = now_ms
        self._acked_ms = now_ms - ACKS_COALESCE_MS

    @property
    def is_used_up(self) -> bool:
        """True once the stream has no number left for another route: open a new one."""
        return self._used_numbers >= MAX_ROUTES_PER_REPLICATE_STREAM

    @property
    def is_idle(self) -> bool:
        """True while there is no subscription, waiting or sent."""
        return not self._sent and not self._to_subscribe

    def subscriptions(self) -> list[tuple[_Key, int]]:
        """Return keys and sessions of all subscriptions, sent or waiting."""
        waiting = [(key, request.session) for key, request in self._to_subscribe.items()]
        return [*self._routes.values(), *waiting]

    def subscribe(self, key: _Key, request: Subscribe) -> None:
        """Take a subscription; an earlier one of the key is over."""
        self._end(key)
        self._to_subscribe[key] = request

    def unsubscribe(self, key: _Key, session: int) -> None:
        """End the subscription of that number."""
        waiting = self._to_subscribe.get(key)
        if waiting is not None and waiting.session == session:
            del self._to_subscribe[key]
            return
        route = self._sent.get(key)
        if route is not None and self._routes[route][1] == session:
            self._end(key)
            self._to_unsubscribe.append(route)

    def ack(self, key: _Key, ack: SendAck) -> None:
        """Take an acknowledgement; passed over when its session is over."""
        route = self._sent.get(key)
        if route is not None and self._routes[route][1] == ack.session:
            self._acks[route] = ack

    def hear(self, now_ms: int) -> None:
        """Learn that the leader said something."""
        self._heard_ms = now_ms

    def find(self, route: int) -> tuple[_Key, int] | None:
        """Return key and session of a live route."""
        return self._routes.get(route)

    def end(self, route: int) -> tuple[_Key, int] | None:
        """Learn that the leader ended a route; return what `find` would have."""
        found = self._routes.get(route)
        if found is not None:
            self._end(found[0])
        return found

    def use_credit(self, size_bytes: int, *, is_in_sync: bool) -> None:
        """Learn that bytes of a class have come, and are dealt with."""
        self._credit[0 if is_in_sync else 1] += size_bytes

    @property
    def has_urgent(self) -> bool:
        """True if something waits that is sent as soon as the stream takes it."""
        return bool(self._to_subscribe or self._to_unsubscribe) or self._is_credit_due()

    def take(self, now_ms: int) -> list[Subscriptions[_Key] | Unsubscriptions | Acks | Credit | Heartbeat]:
        """Return what is to be said now, in order, and reckon it as said; empty: nothing before `deadline_ms`."""
        parts: list[Subscriptions[_Key] | Unsubscriptions | Acks | Credit | Heartbeat] = []
        # Ends first: a key may be subscribed again behind them.
        while self._to_unsubscribe:
            parts.append(Unsubscriptions(tuple(self._to_unsubscribe[:SUBSCRIBES_PER_MESSAGE])))
            del self._to_unsubscribe[:SUBSCRIBES_PER_MESSAGE]
        while self._to_subscribe and not self.is_used_up:
            parts.append(self._bind())
        if self._acks and now_ms - self._acked_ms >= ACKS_COALESCE_MS:
            self._acked_ms = now_ms
            while self._acks:
                routes = list(self._acks)[:ACKS_PER_MESSAGE]
                acks = [(route, self._acks.pop(route)) for route in routes]
                parts.append(Acks(tuple((route, ack.appended_offset, ack.flushed_offset) for route, ack in acks)))
        if self._is_credit_due():
            parts.append(Credit(*self._credit))
            self._credit = [0, 0]
        if not parts and now_ms - self._said_ms >= REPLICATE_IDLE_MS:
            parts.append(Heartbeat())
        if parts:
            self._said_ms = now_ms
        return parts

    def deadline_ms(self) -> int:
        """Return when `take` has something to say again, if nothing happens before."""
        due_ms = self._said_ms + REPLICATE_IDLE_MS
        return min(due_ms, self._acked_ms + ACKS_COALESCE_MS) if self._acks else due_ms

    def silence_left_ms(self, now_ms: int) -> int:
        """Return after how many more silent milliseconds the stream is given up; 0 or less: now."""
        return self._heard_ms + REPLICATE_SILENCE_MS - now_ms

    def _bind(self) -> Subscriptions[_Key]:
        entries: list[tuple[int, _Key, Subscribe]] = []
        while self._to_subscribe and len(entries) < SUBSCRIBES_PER_MESSAGE and not self.is_used_up:
            key = next(iter(self._to_subscribe))
            request = self._to_subscribe.pop(key)
            route = self._used_numbers
            self._used_numbers += 1
            self._routes[route] = (key, request.session)
            self._sent[key] = route
            entries.append((route, key, request))
        return Subscriptions(tuple(entries))

    def _end(self, key: _Key) -> None:
        self._to_subscribe.pop(key, None)
        route = self._sent.pop(key, None)
        if route is not None:
            del self._routes[route]
            self._acks.pop(route, None)

    def _is_credit_due(self) -> bool:
        return (
            self._credit[0] * _CREDIT_SHARE >= IN_SYNC_CREDIT_BYTES
            or self._credit[1] * _CREDIT_SHARE >= CATCH_UP_CREDIT_BYTES
        )

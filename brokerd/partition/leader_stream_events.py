# SPDX-License-Identifier: Apache-2.0
"""Inputs, effects and answers of the core of a `Replicate` stream at the leader. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.failure import Failure
from brokerd.partition.leader_stream_traffic import Traffic
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError

# What the follower sends.


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOpened:
    """The follower opened the stream and may be served; bytes that may be sent at first, by class."""

    in_sync_bytes: int
    catch_up_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a follower asks for: one partition from its log end on.

    Attributes:
        route: number that it binds.
        topic_id: id of the topic.
        partition: partition, from 0.
        session: number of the subscription, as the follower counts.
        leader_epoch: epoch that it wants to follow.
        log_end_offset: end of its log (exclusive).
        flushed_offset: how much of that is on stable storage (exclusive).
        last_epoch: leader epoch of its last record; None without one.
    """

    route: int
    topic_id: bytes
    partition: int
    session: int
    leader_epoch: int
    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionsReceived:
    """The follower subscribes."""

    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesUnwanted:
    """The follower lets routes go."""

    routes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAck:
    """What the follower holds of one partition: offsets, exclusive."""

    route: int
    appended_offset: int
    flushed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcksReceived:
    """The follower tells what it holds."""

    acks: tuple[RouteAck, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditReceived:
    """The follower takes that many bytes more, by class."""

    in_sync_bytes: int
    catch_up_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """The follower lives."""


# What the replicas tell, by way of the shell.


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAccepted:
    """The follower's log is a prefix of the leader's.

    Attributes:
        route: number of the route.
        high_watermark: of the leader (exclusive).
        log_start_offset: of the leader (inclusive).
        log_end_offset: of the leader (exclusive).
        traffic: what the route is for.
    """

    route: int
    high_watermark: int
    log_start_offset: int
    log_end_offset: int
    traffic: Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDiverged:
    """The logs part; the replica has ended the subscription."""

    route: int
    leader_end: EpochEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRefused:
    """There is no replica, or it has ended the subscription."""

    route: int
    error: SubscriptionError
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrown:
    """There is something to send, up to `log_end_offset` (exclusive)."""

    route: int
    log_end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMoved:
    """The high watermark (exclusive) or the log start (inclusive) moved."""

    route: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficChanged:
    """The follower is now one of the maximal in-sync replicas, or no more."""

    route: int
    traffic: Traffic


# What the shell did.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRead:
    """The shell read what `next_read` asked for and writes it now."""

    route: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFailed:
    """The shell could not read what `next_read` asked for."""

    route: int
    error: SubscriptionError
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopWanted:
    """The broker stops: tell the follower, and end the stream when it has no routes any more, or at the latest after `drain_ms`."""

    drain_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushTick:
    """Time passed; see `PushSession.deadline_ms`."""


PushEvent = (
    PushOpened
    | SubscriptionsReceived
    | RoutesUnwanted
    | AcksReceived
    | CreditReceived
    | HeartbeatReceived
    | RouteAccepted
    | RouteDiverged
    | RouteRefused
    | LogGrown
    | LeaderMoved
    | TrafficChanged
    | ChunkRead
    | ReadFailed
    | StopWanted
    | PushTick
)


# Effects.


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeReplica:
    """Find the replica and subscribe; it answers with `RouteAccepted`, `RouteDiverged` or `RouteRefused`, now or later."""

    subscription: Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class AckReplica:
    """Tell the replica of a route what its follower holds."""

    route: int
    appended_offset: int
    flushed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseReplica:
    """Tell the replica of a route that the subscription is over."""

    route: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortPush:
    """End the whole stream with an error."""

    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosePush:
    """End the whole stream in good order: the time of the stop is over."""


PushEffect = SubscribeReplica | AckReplica | LoseReplica | AbortPush | ClosePush


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReplica:
    """Read whole batches of a route from the one that begins at `offset` on; at least one. The rest goes along with them."""

    route: int
    offset: int
    max_bytes: int
    high_watermark: int
    log_start_offset: int
    is_in_sync: bool


# Answers, in the order in which they are to be written.


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The stream is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A subscription is accepted: batches follow."""

    route: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """A subscription is over: the logs part."""

    route: int
    leader_end: EpochEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing more comes on a route."""

    route: int
    error: SubscriptionError
    log_start_offset: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteMark:
    """High watermark (exclusive) and log start (inclusive) of a route."""

    route: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """News of routes, at most `MARKS_PER_MESSAGE`."""

    marks: tuple[RouteMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The leader lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoAway:
    """The leader stops, and closes the stream after `drain_ms` at the latest."""

    drain_ms: int


PushAnswer = Opened | Accepted | Diverged | Ended | Marks | Heartbeat | GoAway

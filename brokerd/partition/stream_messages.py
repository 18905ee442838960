# SPDX-License-Identifier: Apache-2.0
"""The messages of a `Replicate` stream in both directions. Values only: both cores use them, and the codec encodes them.

Source: proto/lograft/internal/v1/replication.proto; docs/replication.md, "The stream".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lograft.wire.checksum import BytesLike

from brokerd.partition.reconciliation import EpochEnd, SubscriptionError

# Messages of either side.


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """This side is alive."""


# Messages of a follower.


@dataclass(frozen=True, slots=True)
class Credit:
    """The leader may send this many more bytes, by class."""

    in_sync_bytes: int
    catch_up_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """The first message of a stream.

    Attributes:
        cluster_id: the cluster.
        follower_id: node id of the follower.
        broker_epoch: epoch of its registration.
        incarnation_id: random id of its process, 16 bytes.
        leader_id: node id of the broker that it wants to reach.
        formats: batch formats (magic numbers) that it stores; none: 16.
        credit: the first credits.
    """

    cluster_id: str
    follower_id: int
    broker_epoch: int
    incarnation_id: bytes
    leader_id: int
    formats: tuple[int, ...]
    credit: Credit


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A follower's request for one partition, from its log end on.

    Attributes:
        route: number that it binds.
        topic_id: id of the topic.
        partition: partition number, from 0.
        session: the follower's number of the subscription.
        leader_epoch: epoch that it wants to follow.
        log_end_offset: end of its log (exclusive).
        flushed_offset: end of what it has on stable storage (exclusive).
        last_epoch: leader epoch of its last record; None: no record.
    """

    route: int
    topic_id: bytes
    partition: int
    session: int
    leader_epoch: int
    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The follower subscribes."""

    subscriptions: tuple[Subscription, ...]


@dataclass(frozen=True, slots=True)
class Unsubscriptions:
    """The follower ends routes."""

    routes: tuple[int, ...]


class RouteAck(NamedTuple):
    """What the follower holds of one partition: offsets, exclusive."""

    route: int
    appended_offset: int
    flushed_offset: int


@dataclass(frozen=True, slots=True)
class Acks:
    """The follower acknowledges what it holds."""

    acks: tuple[RouteAck, ...]


FollowerMessage = Open | Subscriptions | Unsubscriptions | Acks | Credit | Heartbeat


# Messages of a leader.


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The stream is open.

    Attributes:
        broker_epoch: epoch of the leader's registration.
        idle_ms: milliseconds without another message after which either side sends a heartbeat.
        silence_ms: milliseconds without any message after which either side ends the stream.
        lag_max_ms: most milliseconds that an in-sync follower may be behind.
    """

    broker_epoch: int
    idle_ms: int
    silence_ms: int
    lag_max_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A subscription is accepted, and batches follow; with the leader's high watermark (exclusive) and log start (inclusive)."""

    route: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """A subscription is over, because the logs diverge."""

    route: int
    leader_end: EpochEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing more is sent on a route; the log start (inclusive) is for BELOW_LOG_START."""

    route: int
    error: SubscriptionError
    log_start_offset: int
    message: str


class RouteMark(NamedTuple):
    """High watermark (exclusive) and log start (inclusive) of a route."""

    route: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class Marks:
    """Changes of routes that get no batches at the moment."""

    marks: tuple[RouteMark, ...]


@dataclass(frozen=True, slots=True)
class GoAway:
    """The leader stops, and ends the stream after at most `drain_ms`."""

    drain_ms: int


class Batches(NamedTuple):
    """Whole batches of one route and one leader epoch.

    Attributes:
        route: number of the route.
        base_offset: offset of the first batch (inclusive).
        leader_epoch: leader epoch of all batches.
        high_watermark: high watermark of the leader (exclusive).
        log_start_offset: log start of the leader (inclusive).
        is_in_sync: True if the message spends the credit of in-sync routes; any other class counts as catching up.
        body: the batches, byte for byte as in the log.
    """

    route: int
    base_offset: int
    leader_epoch: int
    high_watermark: int
    log_start_offset: int
    is_in_sync: bool
    body: BytesLike


LeaderMessage = Opened | Accepted | Diverged | Ended | Marks | Heartbeat | GoAway
"""All except `Batches`, which the leader's shell writes as it reads them."""

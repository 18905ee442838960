# SPDX-License-Identifier: Apache-2.0
"""Inputs, effects and answers of a produce session. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from brokerd.failure import Failure
from brokerd.partition.events import Durability


class Acks(Enum):
    """When batches of a stream are acknowledged."""

    ALL = "all"
    LEADER = "leader"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteWanted:
    """A partition that the client wants to bind to a route number."""

    route: int
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOpened:
    """The first request of the stream, already checked for its fields."""

    acks: Acks
    routes: tuple[RouteWanted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesWanted:
    """More routes on an open stream."""

    routes: tuple[RouteWanted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteBound:
    """The shell found the partition and leads it."""

    route: int
    topic_id: bytes
    leader_epoch: int
    max_batch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRefused:
    """The shell cannot serve the route."""

    route: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesResolved:
    """Every route of the last `ResolveRoutes` was answered; `opened` may be sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReceived:
    """A batch came in."""

    route: int
    batch_number: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStored:
    """The batch that `AppendBatch` asked for is in the log, now or (`duplicate`) since an earlier time."""

    route: int
    batch_number: int
    base_offset: int
    duplicate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """The batch that `AppendBatch` asked for was not appended; `outcome_unknown`: a part of it may be in the log."""

    route: int
    batch_number: int
    failure: Failure
    outcome_unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AckReached:
    """A stored batch has reached the level that the stream waits for."""

    route: int
    batch_number: int
    durability: Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteLost:
    """The partition of a route is no longer served here."""

    route: int
    failure: Failure


Event = (
    StreamOpened
    | RoutesWanted
    | RouteBound
    | RouteRefused
    | RoutesResolved
    | BatchReceived
    | BatchStored
    | BatchFailed
    | AckReached
    | RouteLost
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRoutes:
    """Find the partitions; answer each with `RouteBound` or `RouteRefused`, then `RoutesResolved`."""

    routes: tuple[RouteWanted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBatch:
    """Check and append the batch just received; answer with `BatchStored` or `BatchFailed`."""

    route: int
    batch_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitAck:
    """Tell when the stored batch has reached the stream's level, with `AckReached`."""

    route: int
    batch_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRoute:
    """Forget the partition that was bound to the route."""

    route: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortStream:
    """End the whole stream with an error: the client broke the protocol in a way that no route can carry."""

    failure: Failure


Effect = ResolveRoutes | AppendBatch | AwaitAck | ReleaseRoute | AbortStream


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """Answer to the opening of the stream or to further routes."""

    routes: tuple[RouteBound, ...]


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


Answer = Opened | Receipt | RouteEnded

# SPDX-License-Identifier: Apache-2.0
"""Inputs, effects and answers of a fetch session. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.failure import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRouteWanted:
    """A partition that the client wants to read from `offset` (inclusive) on, if it allows so from a follower too."""

    route: int
    topic: str
    partition: int
    offset: int
    allow_follower: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStreamOpened:
    """The first request of the stream; `max_chunk_bytes` 0 means the default."""

    routes: tuple[FetchRouteWanted, ...]
    credit_bytes: int
    max_chunk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRoutesWanted:
    """More routes on an open stream."""

    routes: tuple[FetchRouteWanted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRouteBound:
    """The shell found the partition, leads it or follows it in sync, and the offset is in range."""

    route: int
    topic_id: bytes
    leader_epoch: int
    offset: int
    log_start_offset: int
    high_watermark: int
    from_follower: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRouteRefused:
    """The shell cannot serve the route."""

    route: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRoutesResolved:
    """Every route of the last `ResolveFetchRoutes` was answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesUnwanted:
    """The client lets routes go."""

    routes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditGranted:
    """The client takes that many bytes more."""

    credit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HighWatermarkMoved:
    """More records of a route became readable, or its log start moved."""

    route: int
    high_watermark: int
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRead:
    """The shell read what `next_read` asked for and writes it now."""

    route: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRouteLost:
    """The partition of a route is no longer served here, or a read failed."""

    route: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTick:
    """Time passed; see `FetchSession.deadline_ms`."""


FetchEvent = (
    FetchStreamOpened
    | FetchRoutesWanted
    | FetchRouteBound
    | FetchRouteRefused
    | FetchRoutesResolved
    | RoutesUnwanted
    | CreditGranted
    | HighWatermarkMoved
    | ChunkRead
    | FetchRouteLost
    | FetchTick
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveFetchRoutes:
    """Find the partitions; answer each with `FetchRouteBound` or `FetchRouteRefused`, then `FetchRoutesResolved`."""

    routes: tuple[FetchRouteWanted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFetchRoute:
    """Forget the partition that was bound to the route."""

    route: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortFetchStream:
    """End the whole stream with an error."""

    failure: Failure


FetchEffect = ResolveFetchRoutes | ReleaseFetchRoute | AbortFetchStream


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadChunk:
    """Read whole batches of a route, from the one that holds `offset` on and below `end_offset`; at least one."""

    route: int
    offset: int
    end_offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOpened:
    """Answer to the opening of the stream or to further routes."""

    routes: tuple[FetchRouteBound, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Progress of a route without bytes."""

    route: int
    next_offset: int
    high_watermark: int
    log_start_offset: int
    caught_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRouteEnded:
    """The route is over; `failure` None: the client let it go."""

    route: int
    failure: Failure | None


FetchAnswer = FetchOpened | Mark | FetchRouteEnded

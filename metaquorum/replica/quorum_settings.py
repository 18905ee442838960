# SPDX-License-Identifier: Apache-2.0
"""Settings of one quorum node.

Owns their names, units and defaults (architecture section 7). Must not read them from anywhere: a server does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metaquorum.metadata.records import FEATURE_LEVEL
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.types import LevelRange

LEVELS: Final = LevelRange(min_level=1, max_level=FEATURE_LEVEL)
"""Feature levels that this version can run at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumTimers:
    """Times of the quorum, in milliseconds.

    Attributes:
        election_timeout_ms: a voter without a leader waits from this (inclusive) to twice this (exclusive), drawn at
            random.
        fetch_timeout_ms: a follower that has no valid answer of the leader for so long starts an election; the leader
            resigns when no majority has fetched for 1.5 times as long.
        fetch_wait_ms_max: longest time that the leader parks a fetch which has nothing to send.
        request_timeout_ms: time after which a request to a peer without an answer is sent again; for a fetch, besides the wait that it
            asks for. A late answer counts all the same, until the fetch timeout.
        retry_backoff_ms: first pause after a failed request; doubles up to `retry_backoff_ms_max`.
        retry_backoff_ms_max: longest pause after a failed request.
        shutdown_grace_ms: longest time that a stopping leader waits for its voters to hear of it.
        snapshot_piece_timeout_ms: longest time to wait for the next piece of a snapshot.
    """

    election_timeout_ms: int = 500
    fetch_timeout_ms: int = 1_000
    fetch_wait_ms_max: int = 400
    request_timeout_ms: int = 150
    retry_backoff_ms: int = 20
    retry_backoff_ms_max: int = 400
    shutdown_grace_ms: int = 1_000
    snapshot_piece_timeout_ms: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """When snapshots of the metadata are made, and how many are kept.

    Attributes:
        log_bytes: a snapshot is made when so many bytes of log were committed since the last one.
        interval_ms: or so many milliseconds after the first commit since the last one.
        kept: newest snapshots that are kept, at least 1; once there are so many, the log begins at the oldest.
    """

    log_bytes: int = 20 * 1024 * 1024
    interval_ms: int = 3_600_000
    kept: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumSettings:
    """Settings of one quorum node.

    Attributes:
        node_id: id of this node.
        cluster_id: id of the cluster; peers of another one are refused.
        voters: `host:port` of the quorum listeners by node id, as configured. They are where to find the quorum; who
            votes is said by the log. May be empty when `bootstrap_addresses` is not.
        bootstrap_addresses: further `host:port` of quorum listeners whose node id is not known (brokers).
        advertised_address: `host:port` at which peers reach this node; None for an observer without a listener.
        timers: times.
        max_fetch_bytes: most bytes of batches in one fetch answer; one batch is sent whatever its size.
        max_uncommitted_bytes: most bytes that a leader appends beyond the high watermark before `append` raises
            BusyError.
        snapshots: when snapshots are made.
        levels: feature levels that this version can run at; the leader is told them.
    """

    node_id: int
    cluster_id: str
    voters: Mapping[int, str] = field(default_factory=dict[int, str])
    bootstrap_addresses: tuple[str, ...] = ()
    advertised_address: str | None = None
    timers: QuorumTimers = field(default_factory=QuorumTimers)
    max_fetch_bytes: int = 1024 * 1024
    max_uncommitted_bytes: int = 32 * 1024 * 1024
    snapshots: SnapshotSettings = field(default_factory=SnapshotSettings)
    levels: LevelRange = LEVELS


def raft_config(settings: QuorumSettings) -> RaftConfig:
    """The part of the settings that the core needs."""
    timers = settings.timers
    return RaftConfig(
        election_timeout_ms=timers.election_timeout_ms,
        fetch_timeout_ms=timers.fetch_timeout_ms,
        fetch_wait_ms=timers.fetch_wait_ms_max,
        fetch_wait_ms_max=timers.fetch_wait_ms_max,
        request_timeout_ms=timers.request_timeout_ms,
        retry_backoff_ms=timers.retry_backoff_ms,
        retry_backoff_ms_max=timers.retry_backoff_ms_max,
        shutdown_grace_ms=timers.shutdown_grace_ms,
        max_fetch_bytes=settings.max_fetch_bytes,
        max_uncommitted_bytes=settings.max_uncommitted_bytes,
        kept_snapshots=settings.snapshots.kept,
    )

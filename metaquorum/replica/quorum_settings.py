# SPDX-License-Identifier: Apache-2.0
"""Settings of one quorum node.

Owns their names, units and defaults. Does not read them from anywhere: a server does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from metaquorum.metadata.records import FEATURE_LEVEL
from metaquorum.raft.config import RaftConfig
from metaquorum.raft.types import LevelRange

LEVELS: Final = LevelRange(min_level=1, max_level=FEATURE_LEVEL)
"""Feature levels that this version supports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumTimers:
    """Times of the quorum, in milliseconds.

    Attributes:
        election_timeout_ms: a voter without a leader waits a random time from this (inclusive) to twice this (exclusive).
        fetch_timeout_ms: a follower without a valid answer of the leader for this long starts an election. The leader resigns when no
            majority has fetched for 1.5 times this long.
        fetch_wait_ms_max: longest time that the leader delays the answer to a fetch without anything to send.
        request_timeout_ms: time after which an unanswered request to a peer is sent again; for a fetch, in addition to the wait that
            it asks for. A late answer still counts, until the fetch timeout.
        retry_backoff_ms: first pause after a failed request; it doubles up to `retry_backoff_ms_max`.
        retry_backoff_ms_max: longest pause after a failed request.
        shutdown_grace_ms: longest time that a stopping leader waits for its voters to learn of it.
        snapshot_piece_timeout_ms: longest wait for the next piece of a snapshot.
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
        log_bytes: a snapshot is made when this many bytes of log were committed since the last one,
        interval_ms: or this many milliseconds after the first commit since the last one.
        kept: number of newest snapshots that are kept, at least 1; once there are that many, the log begins at the oldest.
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
        voters: configured `host:port` of the quorum listeners by node id. They only say where to find the quorum; the log says who
            votes. May be empty if `bootstrap_addresses` is not.
        bootstrap_addresses: further `host:port` of quorum listeners with unknown node ids (for brokers).
        advertised_address: `host:port` at which peers reach this node; None for an observer without a listener.
        timers: times.
        max_fetch_bytes: largest number of bytes of batches in one fetch answer; a single batch may be larger.
        max_uncommitted_bytes: bytes that a leader may append beyond the high watermark; then `append` raises BusyError.
        snapshots: when snapshots are made.
        levels: feature levels that this version supports; the node reports them to the leader.
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
    """Return the part of the settings that the core needs."""
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

# SPDX-License-Identifier: Apache-2.0
"""State of the quorum as a quorum node knows it, for DescribeQuorum.

Owns the types, and their derivation from the state of the core. Changes nothing.
Source: KIP-595 "DescribeQuorum", KIP-836 (times of the last fetch).
"""

from __future__ import annotations

from dataclasses import dataclass

from metaquorum.metadata.listener import QuorumLeader
from metaquorum.raft.roles import Leader, ReplicaProgress
from metaquorum.raft.state import RaftState
from metaquorum.raft.types import LevelRange
from metaquorum.raft.voters import Voter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaStatus:
    """The leader's knowledge of one voter or observer.

    Attributes:
        node_id: node id.
        directory_id: id of its metadata directory, 16 bytes.
        address: `host:port` of its quorum listener; None for an observer without one.
        log_end_offset: end of its flushed log (exclusive); None before its first fetch of this epoch.
        last_fetch_age_ms: milliseconds since its last fetch; 0 for the leader itself; None before the first.
        last_caught_up_age_ms: milliseconds since it last had everything; 0 for the leader itself; None if never in this epoch.
        levels: feature levels that it reports to support; None before its first fetch of this epoch, or if this node does not lead.
    """

    node_id: int
    directory_id: bytes
    address: str | None
    log_end_offset: int | None
    last_fetch_age_ms: int | None
    last_caught_up_age_ms: int | None
    levels: LevelRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumStatus:
    """State of the quorum as this node sees it. Only the leader knows the progress of others.

    Attributes:
        leader: the known leader.
        role: role of this node: unattached, prospective, candidate, leader, resigned or follower.
        is_voter: True if this node is a voter.
        high_watermark: end of the committed log (exclusive); None if unknown.
        log_end_offset: end of this node's log (exclusive).
        flushed_offset: end of this node's flushed log (exclusive).
        voters: voters, ascending by node id.
        observers: observers that fetched recently, ascending by node id; empty unless this node leads.
    """

    leader: QuorumLeader
    role: str
    is_voter: bool
    high_watermark: int | None
    log_end_offset: int
    flushed_offset: int
    voters: tuple[ReplicaStatus, ...]
    observers: tuple[ReplicaStatus, ...]


def describe(state: RaftState, leader: QuorumLeader, *, now_ms: int) -> QuorumStatus:
    """Return the state of the quorum as this node sees it at a monotonic time in milliseconds."""
    leading = state.role if isinstance(state.role, Leader) else None
    observers = () if leading is None else tuple(leading.observers.values())
    return QuorumStatus(
        leader=leader,
        role=type(state.role).__name__.lower(),
        is_voter=state.is_voter,
        high_watermark=None if state.high_watermark is None else state.commit_offset,
        log_end_offset=state.log.log_end_offset,
        flushed_offset=state.log.flushed_offset,
        voters=tuple(_voter_status(state, voter, leading, now_ms) for voter in state.voter_set.voters),
        observers=tuple(
            _replica_status(progress, progress.address, now_ms)
            for progress in sorted(observers, key=lambda p: (p.key.node_id, p.key.directory_id))
        ),
    )


def _voter_status(state: RaftState, voter: Voter, leading: Leader | None, now_ms: int) -> ReplicaStatus:
    address = state.address_for(voter)
    if voter.key == state.key:
        age_ms = 0 if leading is not None else None
        return ReplicaStatus(
            node_id=voter.key.node_id,
            directory_id=voter.key.directory_id,
            address=address,
            log_end_offset=state.log.flushed_offset,
            last_fetch_age_ms=age_ms,
            last_caught_up_age_ms=age_ms,
            levels=state.identity.levels if leading is not None else None,
        )
    progress = ReplicaProgress(key=voter.key, address=address)
    if leading is not None:
        progress = leading.voters.get(voter.key.node_id, progress)
    return _replica_status(progress, address, now_ms)


def _replica_status(progress: ReplicaProgress, address: str | None, now_ms: int) -> ReplicaStatus:
    fetch_ms, caught_up_ms = progress.last_fetch_ms, progress.last_caught_up_ms
    return ReplicaStatus(
        node_id=progress.key.node_id,
        directory_id=progress.key.directory_id,
        address=address,
        log_end_offset=progress.end_offset,
        last_fetch_age_ms=None if fetch_ms is None else now_ms - fetch_ms,
        last_caught_up_age_ms=None if caught_up_ms is None else now_ms - caught_up_ms,
        levels=progress.levels,
    )

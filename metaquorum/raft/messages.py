# SPDX-License-Identifier: Apache-2.0
"""Requests and responses between quorum nodes: one frozen dataclass each, field for field `quorum.proto`.

Owns their shape only. Meaning of each field: `proto/lograft/internal/v1/quorum.proto`. Batches stay opaque: the shell
reads their headers into `BatchSpan`s, the core decides by those.
Source: KIP-595, KIP-853, KIP-996.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from metaquorum.raft.types import (
    FIRST_LEVEL_ONLY,
    LOG_BEGIN,
    EpochEnd,
    LevelRange,
    NodeId,
    Offset,
    QuorumEpoch,
    ReplicaKey,
    SnapshotId,
)
from metaquorum.raft.voters import VoterSet


@unique
class Refusal(Enum):
    """Why a request was not handled."""

    WRONG_CLUSTER = "wrong cluster"
    FENCED_EPOCH = "fenced epoch"
    UNKNOWN_EPOCH = "unknown epoch"
    NOT_LEADER = "not leader"
    INVALID_VOTER_KEY = "invalid voter key"
    INVALID_REQUEST = "invalid request"
    SNAPSHOT_NOT_FOUND = "snapshot not found"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteRequest:
    """A voter asks another for its vote in a new epoch."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: QuorumEpoch
    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteRequest:
    """A voter asks another whether it would give its vote; binds nobody."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: QuorumEpoch
    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """Answer to either; the asking node knows which one it sent."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    granted: bool
    refusal: Refusal | None = None
    leader_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """A leader makes itself known to a voter."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    leader_id: NodeId
    voter: ReplicaKey
    leader_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse:
    """Answer to a new leader."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochRequest:
    """A resigning leader names its successors, the most complete log first."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    leader_id: NodeId
    preferred_successors: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndQuorumEpochResponse:
    """Answer to a resigning leader."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A replica asks for what follows its log; `high_watermark` is the one it knows, `read_round` the leader's last one.

    `levels` are those that the asking process can run at.
    """

    cluster_id: str
    quorum_epoch: QuorumEpoch
    replica: ReplicaKey
    fetch_offset: Offset
    last_fetched_epoch: QuorumEpoch
    high_watermark: Offset | None
    max_bytes: int
    max_wait_ms: int
    replica_address: str | None
    read_round: int = 0
    levels: LevelRange = FIRST_LEVEL_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSpan:
    """Header of one fetched batch: offsets from base (inclusive) to next (exclusive), all of one epoch."""

    base_offset: Offset
    next_offset: Offset
    epoch: QuorumEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatches:
    """Whole batches as they came, with what the core must know of them.

    Attributes:
        data: the batches, opaque; handed back in `AppendAsFollower`.
        spans: their headers in order; never empty.
        voters: voter sets in them with the offsets of their records.
    """

    data: bytes
    spans: tuple[BatchSpan, ...]
    voters: tuple[tuple[Offset, VoterSet], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """What follows, or where the logs part, or why neither; `batches`, `diverging`, `snapshot` exclude each other."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    leader_address: str | None
    high_watermark: Offset | None = None
    diverging: EpochEnd | None = None
    batches: FetchedBatches | None = None
    log_start_offset: Offset = LOG_BEGIN
    snapshot: SnapshotId | None = None
    refusal: Refusal | None = None
    read_round: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterRequest:
    """A voter tells its leader where its quorum listener is, because the set of voters says otherwise."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    voter: ReplicaKey
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterResponse:
    """Answer to that; without a refusal the record is appended or was not needed. UNAVAILABLE: ask again."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    refusal: Refusal | None = None


Request = (
    VoteRequest | PreVoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest | UpdateVoterRequest
)
Response = VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse | FetchResponse | UpdateVoterResponse

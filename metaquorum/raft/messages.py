# SPDX-License-Identifier: Apache-2.0
"""Requests and responses between quorum nodes: one frozen dataclass for each message of `quorum.proto`, field by field.

Owns only their fields; `proto/lograft/internal/v1/quorum.proto` has the meaning of each. Batches stay opaque: the shell reads their
headers into `BatchSpan`s, and the core decides by those.
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
    """A candidate asks a voter for its vote in a new epoch."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: QuorumEpoch
    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteRequest:
    """A voter asks another whether it would grant its vote. The answer is not binding."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    candidate: ReplicaKey
    voter: ReplicaKey
    last_epoch: QuorumEpoch
    log_end_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteResponse:
    """Answer to both kinds of vote request; the asking node knows which one it sent."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    granted: bool
    refusal: Refusal | None = None
    leader_address: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochRequest:
    """A leader announces itself to a voter."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    leader_id: NodeId
    voter: ReplicaKey
    leader_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginQuorumEpochResponse:
    """Answer to a leader's announcement."""

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
    """A replica asks for the records after its log.

    `high_watermark` is the one that it knows, `read_round` the last one that the leader named, and `levels` those that its process
    supports.
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
    """Whole fetched batches, unchanged, with what the core must know of them.

    Attributes:
        data: the batches, opaque; passed back in `AppendAsFollower`.
        spans: their headers in order; never empty.
        voters: voter sets in them, with the offsets of their records.
    """

    data: bytes
    spans: tuple[BatchSpan, ...]
    voters: tuple[tuple[Offset, VoterSet], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """The next records, or where the logs diverge, or a refusal. At most one of `batches`, `diverging`, `snapshot` is set."""

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
    """A voter reports the address of its quorum listener to the leader, because the voter set has another one."""

    cluster_id: str
    quorum_epoch: QuorumEpoch
    voter: ReplicaKey
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoterResponse:
    """Answer to UpdateVoter. Without a refusal the record is appended or was not needed. UNAVAILABLE: ask again."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    refusal: Refusal | None = None


Request = (
    VoteRequest | PreVoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | FetchRequest | UpdateVoterRequest
)
Response = VoteResponse | BeginQuorumEpochResponse | EndQuorumEpochResponse | FetchResponse | UpdateVoterResponse

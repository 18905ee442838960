# SPDX-License-Identifier: Apache-2.0
"""Inputs of the Raft core, one sentence each. A tick is an event like any other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from metaquorum.raft.messages import Request, Response
from metaquorum.raft.types import NodeId, QuorumEpoch, ReplicaKey, SnapshotId
from metaquorum.raft.voter_changes import VoterChange
from metaquorum.raft.voters import VoterSet


@unique
class Failure(Enum):
    """How a request to a peer failed."""

    REFUSED = "refused"
    """Nobody answers at the address: the process is gone."""
    TIMED_OUT = "timed out"
    """No answer in time: anything may have happened."""


@dataclass(frozen=True, slots=True)
class Started:
    """The shell is ready to carry out effects; the first event, once."""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that `deadline_ms` named has come, or any other time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """A peer asks; the answer goes out as Reply or ReplyWithBatches with the same token, at once or later."""

    token: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """A peer answered the request that was sent under this id; late and repeated ones do no harm."""

    request_id: int
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """The request that was sent under this id got no answer."""

    request_id: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionStatePersisted:
    """The election state of PersistElectionState with this sequence number is on stable storage."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlushed:
    """The flush that FlushLog with this id asked for is done."""

    flush_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalReceived:
    """A user of this node wants records appended in the epoch in which it believes to lead.

    Attributes:
        proposal_id: comes back in AppendAsLeader or RejectProposal of the same step.
        quorum_epoch: epoch of the leadership that the user acts in.
        record_count: number of records, at least 1.
        size_bytes: size of the encoded batch.
    """

    proposal_id: int
    quorum_epoch: QuorumEpoch
    record_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequested:
    """A user of this node wants to show what is committed now; ReadReady or RejectRead with the same id follows, once."""

    read_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeRequested:
    """An operator wants the voters changed; AnswerVoterChange with the same token follows, once."""

    token: int
    change: VoterChange


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequested:
    """An operator wants this leader to hand over; AnswerTransfer with the same token follows, once.

    Attributes:
        token: comes back in the answer.
        to: node id of the voter that is to lead; None for any.
    """

    token: int
    to: NodeId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCreated:
    """A snapshot of this node's own committed log is complete and on stable storage."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotProgressed:
    """A valid piece of a download has come from the leader."""

    download_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDownloaded:
    """A download is whole, its digest is right, it is on stable storage; `voters` are in force at its end."""

    download_id: int
    voters: VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFailed:
    """A download came to nothing: no answer, an answer that cannot be used, or the leader has no such snapshot."""

    download_id: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotServed:
    """This node sent a piece of a snapshot to a replica, which therefore lives and follows."""

    replica: ReplicaKey


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """The node is to leave in an orderly way; FinishShutdown follows."""


Event = (
    Started
    | Tick
    | RequestReceived
    | ResponseReceived
    | RequestFailed
    | ElectionStatePersisted
    | LogFlushed
    | ProposalReceived
    | ReadRequested
    | VoterChangeRequested
    | TransferRequested
    | SnapshotCreated
    | SnapshotProgressed
    | SnapshotDownloaded
    | SnapshotFailed
    | SnapshotServed
    | ShutdownRequested
)

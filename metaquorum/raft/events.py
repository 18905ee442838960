# SPDX-License-Identifier: Apache-2.0
"""Inputs of the Raft core. A tick is an event like any other."""

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
    """No process answers at the address, or the peer refuses."""
    TIMED_OUT = "timed out"
    """No usable answer in time: the peer may have handled the request or not."""


@dataclass(frozen=True, slots=True)
class Started:
    """The shell is ready to carry out effects. The first event; occurs once."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: the time of `deadline_ms` has come, or any other time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """A peer sent a request. A Reply or ReplyWithBatches with the same token answers it, at once or later."""

    token: int
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseReceived:
    """A peer answered the request with this id. Late and repeated answers are harmless."""

    request_id: int
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """The request with this id got no answer."""

    request_id: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionStatePersisted:
    """The election state of PersistElectionState with this sequence number is on stable storage."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFlushed:
    """The flush of the FlushLog with this id is done."""

    flush_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalReceived:
    """A user of this node wants to append records in the epoch that it believes to lead.

    Attributes:
        proposal_id: returned in the AppendAsLeader or RejectProposal of the same step.
        quorum_epoch: epoch of the leadership for which the user acts.
        record_count: number of records, at least 1.
        size_bytes: size of the encoded batch.
    """

    proposal_id: int
    quorum_epoch: QuorumEpoch
    record_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequested:
    """A user of this node wants to read what is committed now. One ReadReady or RejectRead with the same id follows."""

    read_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterChangeRequested:
    """An operator wants to change the voters. One AnswerVoterChange with the same token follows."""

    token: int
    change: VoterChange


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRequested:
    """An operator wants this leader to transfer the leadership. One AnswerTransfer with the same token follows.

    Attributes:
        token: returned in the answer.
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
    """A valid piece of a download has arrived from the leader."""

    download_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDownloaded:
    """A download is complete, its digest is correct, and it is on stable storage. `voters` are in force at its end."""

    download_id: int
    voters: VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFailed:
    """A download failed: no answer, an unusable answer, or the leader does not have the snapshot."""

    download_id: int
    failure: Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotServed:
    """This node sent a piece of a snapshot to a replica, so that replica is alive and follows."""

    replica: ReplicaKey


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """The node is to stop in an orderly way. FinishShutdown follows."""


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

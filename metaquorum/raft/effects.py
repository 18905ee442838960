# SPDX-License-Identifier: Apache-2.0
"""Outputs of the Raft core: what the shell must do, in the given order.

Appends and truncations are carried out at once (an append reaches the operating system, not the disk). PersistElectionState and
FlushLog run in the background, and an event reports their end. A failure of any of the four ends the node: it must not tell others of
a log or a vote that may not be on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from metaquorum.raft.messages import FetchedBatches, FetchResponse, Request, Response
from metaquorum.raft.types import ElectionState, NodeId, Offset, QuorumEpoch, SnapshotId
from metaquorum.raft.voter_changes import ChangeOutcome, TransferOutcome
from metaquorum.raft.voters import VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistElectionState:
    """Put the state on stable storage, then report ElectionStatePersisted. The next one comes only after that."""

    sequence: int
    state: ElectionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Content of an append: the batch of the ProposalReceived with this id."""

    proposal_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """Content of an append: the control record that opens an epoch, with the voters that granted their votes, ascending."""

    leader_id: NodeId
    granting_voters: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersChange:
    """Content of an append: the control record with a new voter set, in force from here on."""

    voters: VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAsLeader:
    """Append one batch. Its records get the offsets from `base_offset` (inclusive) to `next_offset` (exclusive)."""

    base_offset: Offset
    next_offset: Offset
    quorum_epoch: QuorumEpoch
    content: Proposal | LeaderChange | VotersChange


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAsFollower:
    """Append fetched batches unchanged."""

    batches: FetchedBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Remove everything from `to_offset` (inclusive) on, durably, before any other change of the log."""

    to_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSnapshot:
    """Download a snapshot from the leader at `address`, in the background.

    SnapshotProgressed reports each piece. SnapshotDownloaded reports the end, once everything is checked and on stable storage;
    otherwise SnapshotFailed. A newer download ends an older one.
    """

    download_id: int
    address: str
    quorum_epoch: QuorumEpoch
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardSnapshot:
    """Stop a download that is no longer needed, and remove its remains."""

    download_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """Replace log and image by a downloaded snapshot, durably, before any other change of the log.

    Order: give the snapshot its final name, empty the log and let it begin at the snapshot's end, replace the image.
    """

    download_id: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimLog:
    """Trim the log below a snapshot, durably, then remove every older snapshot."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLog:
    """Put everything appended so far on stable storage, then report LogFlushed."""

    flush_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a request to the node at `address` (`host:port`), and report its response or failure under `request_id`.

    After `timeout_ms` the response no longer counts.
    """

    request_id: int
    address: str
    request: Request
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer the request with this token."""

    token: int
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyWithBatches:
    """Answer a fetch with the batches from `fetch_offset` on: at least one whole batch, otherwise at most `max_bytes`."""

    token: int
    response: FetchResponse
    fetch_offset: Offset
    max_bytes: int


@unique
class Rejection(Enum):
    """Why records were not appended, or a read was not answered."""

    NOT_LEADER = "not leader"
    BUSY = "busy"
    TOO_LARGE = "too large"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectProposal:
    """Tell the user of this node that nothing was appended."""

    proposal_id: int
    reason: Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadReady:
    """Tell the user: everything below `read_offset` (exclusive) is committed, and includes all that was when the read arrived."""

    read_id: int
    read_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectRead:
    """Tell the user that this node cannot say what is committed."""

    read_id: int
    reason: Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceCommit:
    """Deliver: every record below this offset (exclusive) is committed, and flushed here."""

    commit_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceLeader:
    """Tell the users of this node the leader of the epoch; None if unknown."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """This node leads the epoch: tell each user once everything below `start_offset` (exclusive) is delivered to it."""

    quorum_epoch: QuorumEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Deactivate:
    """This node no longer leads the epoch."""

    quorum_epoch: QuorumEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerVoterChange:
    """Tell the operator with this token how the change of the voters ended."""

    token: int
    outcome: ChangeOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTransfer:
    """Tell the operator with this token how the leadership transfer ended."""

    token: int
    outcome: TransferOutcome


@unique
class Violation(Enum):
    """Kind of a peer's violation of the protocol; the server's log has only a few lines of each kind."""

    ABSURD_REQUEST = "absurd_request"
    ABSURD_ANSWER = "absurd_answer"
    TWO_LEADERS = "two_leaders"
    FETCH_ANSWER = "fetch_answer"
    CUT = "cut"
    SNAPSHOT = "snapshot"
    EPOCHS_USED_UP = "epochs_used_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportViolation:
    """A peer violated the protocol. Its message was refused or ignored, and an operator should know."""

    kind: Violation
    text: str


@dataclass(frozen=True, slots=True)
class FinishShutdown:
    """Nothing is left to send: the shell may stop."""


Effect = (
    PersistElectionState
    | AppendAsLeader
    | AppendAsFollower
    | TruncateLog
    | DownloadSnapshot
    | DiscardSnapshot
    | InstallSnapshot
    | TrimLog
    | FlushLog
    | Send
    | Reply
    | ReplyWithBatches
    | RejectProposal
    | ReadReady
    | RejectRead
    | AdvanceCommit
    | AnnounceLeader
    | Activate
    | Deactivate
    | AnswerVoterChange
    | AnswerTransfer
    | ReportViolation
    | FinishShutdown
)

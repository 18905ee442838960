# SPDX-License-Identifier: Apache-2.0
"""Outputs of the Raft core: what the shell must do, in the order given.

Appends and truncations are carried out at once (they reach the operating system, not the disk); PersistElectionState
and FlushLog run beside and are answered by an event when done. A failure of any of the four ends the node: a log or a
vote that may not be on disk must not be spoken of (reliability 3.2).
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
    """Put the state on stable storage, then report ElectionStatePersisted; the next one comes only after that."""

    sequence: int
    state: ElectionState


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Content of an append: the batch of ProposalReceived with this id."""

    proposal_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """Content of an append: the control record that opens an epoch, with those that voted for it, ascending."""

    leader_id: NodeId
    granting_voters: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class VotersChange:
    """Content of an append: the control record that says who votes from here on."""

    voters: VoterSet


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAsLeader:
    """Append one batch; its records get the offsets from base_offset (inclusive) to next_offset (exclusive)."""

    base_offset: Offset
    next_offset: Offset
    quorum_epoch: QuorumEpoch
    content: Proposal | LeaderChange | VotersChange


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendAsFollower:
    """Append fetched batches as they are."""

    batches: FetchedBatches


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Drop everything from to_offset (inclusive) on, durably, before anything else is done to the log."""

    to_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSnapshot:
    """Fetch a snapshot from the leader at `address` beside everything else.

    Each piece that comes is reported with SnapshotProgressed; the end with SnapshotDownloaded, once all of it is
    checked and on stable storage, or with SnapshotFailed. A newer download ends an older one.
    """

    download_id: int
    address: str
    quorum_epoch: QuorumEpoch
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardSnapshot:
    """Nobody wants this download any more: stop it and remove what there is of it."""

    download_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSnapshot:
    """Put a downloaded snapshot in the place of log and image, durably, before anything else is done to the log.

    Order: the snapshot gets its final name, the log is emptied and begins at its end, the image is replaced.
    """

    download_id: int
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimLog:
    """Drop the log below a snapshot, durably, then every older snapshot."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLog:
    """Put everything appended so far on stable storage, then report LogFlushed."""

    flush_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a request to the node at `address` (`host:port`) and report its response or failure under request_id.

    After timeout_ms nobody waits for the response any more.
    """

    request_id: int
    address: str
    request: Request
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer the request that came with this token."""

    token: int
    response: Response


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyWithBatches:
    """Answer a fetch with the batches from fetch_offset on: at least one whole batch, else at most max_bytes."""

    token: int
    response: FetchResponse
    fetch_offset: Offset
    max_bytes: int


@unique
class Rejection(Enum):
    """Why records were not appended."""

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
    """Tell the user: everything below read_offset (exclusive) was committed when the read came, and nothing else was."""

    read_id: int
    read_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectRead:
    """Tell the user that this node cannot say what is committed."""

    read_id: int
    reason: Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceCommit:
    """Every record below this offset (exclusive) is committed and flushed here: deliver it."""

    commit_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnounceLeader:
    """Tell the users of this node who leads in this epoch, None for nobody known."""

    quorum_epoch: QuorumEpoch
    leader_id: NodeId | None
    address: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """This node leads the epoch: tell each user once it has been given everything below start_offset (exclusive)."""

    quorum_epoch: QuorumEpoch
    start_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Deactivate:
    """This node leads no more."""

    quorum_epoch: QuorumEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerVoterChange:
    """Tell who asked under this token how the change of the voters ended."""

    token: int
    outcome: ChangeOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTransfer:
    """Tell who asked under this token how the handing over ended."""

    token: int
    outcome: TransferOutcome


@unique
class Violation(Enum):
    """What a peer did that the protocol rules out; the log has few lines of each kind."""

    ABSURD_REQUEST = "absurd_request"
    ABSURD_ANSWER = "absurd_answer"
    TWO_LEADERS = "two_leaders"
    FETCH_ANSWER = "fetch_answer"
    CUT = "cut"
    SNAPSHOT = "snapshot"
    EPOCHS_USED_UP = "epochs_used_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportViolation:
    """A peer said what the protocol rules out; it was refused or ignored, and an operator should know."""

    kind: Violation
    text: str


@dataclass(frozen=True, slots=True)
class FinishShutdown:
    """Nothing is left to say: the shell may stop."""


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

# SPDX-License-Identifier: Apache-2.0
"""What the shell must do for a partition replica: the outputs of its core, to be carried out in the order given.

Those of a leader towards followers and controller, and those of a follower, have sections of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from brokerd.partition.events import Durability
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError


class LossReason(Enum):
    """Why a replica stopped serving its streams."""

    NOT_LEADER = "another broker leads the partition"
    NO_LEADER = "the partition has no leader"
    LEADER_EPOCH_MOVED = "the leader epoch moved"
    STORAGE_FAILED = "the log failed"
    REMOVED = "the partition is no longer hosted here"
    NOT_ENOUGH_REPLICAS = "too few replicas are in sync; the records are in the leader's log and may still be committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushLog:
    """Force the log to stable storage; answer with `LogFlushed`. Asked again while one runs: once more after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishHighWatermark:
    """Readers may read below `high_watermark` (exclusive); wake those that wait."""

    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteAck:
    """Tell the waiter of `token` what its records have reached."""

    token: int
    durability: Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAck:
    """Tell the waiter of `token` that nobody knows whether its records will survive."""

    token: int
    reason: LossReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EndService:
    """End every stream route and waiting read of the partition."""

    reason: LossReason
    message: str


# Of a leader with followers.


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginLeaderEpoch:
    """Let the log know that the epoch begins at its end (`PartitionLog.assign_epoch`)."""

    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptSubscription:
    """Send the follower, from its log end on, what is in the log and whatever comes.

    Attributes:
        node_id: the follower.
        broker_epoch: its process.
        session: its subscription.
        high_watermark: to be told with it (exclusive).
    """

    node_id: int
    broker_epoch: int
    session: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergeSubscription:
    """Tell the follower where the logs part; it will subscribe anew."""

    node_id: int
    broker_epoch: int
    session: int
    leader_end: EpochEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSubscription:
    """Send the follower no more, and tell it why."""

    node_id: int
    broker_epoch: int
    session: int
    error: SubscriptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedMember:
    """A replica that is to be in sync, as the process that the leader saw; no epoch: the leader does not know one."""

    node_id: int
    broker_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Propose in-sync replicas to the controller; exactly one of the three `Proposal...` events answers, in the end.

    Attributes:
        proposal: number of the proposal; rises over the life of the replica.
        leader_epoch: epoch of the leadership.
        partition_epoch: version of the state that is to be changed.
        members: the in-sync replicas, this broker among them.
    """

    proposal: int
    leader_epoch: int
    partition_epoch: int
    members: tuple[ProposedMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign:
    """Ask the controller to let another replica lead; the metadata tells whether it did, and nothing else answers."""

    leader_epoch: int


# Of a follower.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetEmptyEpoch:
    """Let the log forget a leader epoch that has no record: as the leader of it this replica never appended.

    Otherwise records of an older epoch, which the leader of a newer one has behind the log end, could not be appended.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Ask the leader for the records from the log end on; takes the place of an earlier one that was not sent yet.

    Attributes:
        leader_id: whom to ask.
        leader_epoch: epoch to follow.
        session: number of this subscription.
        log_end_offset: end of the log (exclusive).
        flushed_offset: how much of that is on stable storage (exclusive).
        last_epoch: leader epoch of the last record; None without one.
    """

    leader_id: int
    leader_epoch: int
    session: int
    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """End a subscription, sent or not; nothing of it is acknowledged any more."""

    leader_id: int
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBatches:
    """Append the batches of this step, and answer with `BatchAppended`; if that fails, with `SubscriptionEnded`."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAck:
    """Tell the leader what this replica holds; a later one takes the place of one that was not sent yet."""

    session: int
    appended_offset: int
    flushed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Truncate the log at `to_offset` (exclusive end of what stays), and answer with `LogTruncated`.

    Attributes:
        to_offset: where to truncate.
        loses_committed: True if records below the high watermark that was known here go: only an unclean election does that.
    """

    to_offset: int
    loses_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLog:
    """Drop the whole log and begin it anew, empty, at `start_offset`; answer with `LogTruncated`."""

    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Drop what the leader has dropped: move the log start up to this offset (inclusive)."""

    log_start_offset: int


Effect = (
    FlushLog
    | PublishHighWatermark
    | CompleteAck
    | FailAck
    | EndService
    | BeginLeaderEpoch
    | AcceptSubscription
    | DivergeSubscription
    | EndSubscription
    | ProposeIsr
    | Resign
    | ForgetEmptyEpoch
    | Subscribe
    | Unsubscribe
    | AppendBatches
    | SendAck
    | TruncateLog
    | RestartLog
    | AdvanceLogStart
)

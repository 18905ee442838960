# SPDX-License-Identifier: Apache-2.0
"""Effects of a partition replica: the outputs of its core. The shell carries them out in the given order.

The effects of a leader of several replicas, and those of a follower, have their own sections.
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
    """Flush the log and answer with `LogFlushed`. If a flush is running, flush once more after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishHighWatermark:
    """Readers may read below `high_watermark` (exclusive); wake the waiting ones."""

    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteAck:
    """Report to the waiter of `token` which durability its records have reached."""

    token: int
    durability: Durability


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAck:
    """Report to the waiter of `token` that the outcome of its records is unknown."""

    token: int
    reason: LossReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EndService:
    """End every stream route and every waiting read of the partition."""

    reason: LossReason
    message: str


# Effects of a leader with followers.


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginLeaderEpoch:
    """Note in the log that the epoch begins at its end (`PartitionLog.assign_epoch`)."""

    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptSubscription:
    """Send the follower the log from its log end on, now and as it grows.

    Attributes:
        node_id: the follower.
        broker_epoch: broker epoch of its process.
        session: number of its subscription.
        high_watermark: high watermark to send with the acceptance (exclusive).
    """

    node_id: int
    broker_epoch: int
    session: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergeSubscription:
    """Tell the follower where the logs diverge; it will subscribe again."""

    node_id: int
    broker_epoch: int
    session: int
    leader_end: EpochEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSubscription:
    """End the subscription of a follower, with the reason."""

    node_id: int
    broker_epoch: int
    session: int
    error: SubscriptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedMember:
    """A proposed in-sync replica and its broker epoch, as the leader knows it; None: unknown."""

    node_id: int
    broker_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposeIsr:
    """Propose in-sync replicas to the controller; exactly one of the three `Proposal...` events follows.

    Attributes:
        proposal: number of the proposal, rising over the life of the replica.
        leader_epoch: epoch of the leadership.
        partition_epoch: version of the state to change.
        members: the proposed in-sync replicas, including this broker.
    """

    proposal: int
    leader_epoch: int
    partition_epoch: int
    members: tuple[ProposedMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign:
    """Ask the controller to elect another leader; only the metadata shows the outcome."""

    leader_epoch: int


# Effects of a follower.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetEmptyEpoch:
    """Make the log forget a leader epoch without records, from a leadership in which this replica appended nothing.

    Otherwise the log would refuse records of an older epoch that the new leader has behind its log end.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Ask the leader for the records from the log end on; replaces an earlier request that was not sent yet.

    Attributes:
        leader_id: the leader.
        leader_epoch: epoch to follow.
        session: number of this subscription.
        log_end_offset: end of the own log (exclusive).
        flushed_offset: end of what is on stable storage (exclusive).
        last_epoch: leader epoch of the last record; None: no record.
    """

    leader_id: int
    leader_epoch: int
    session: int
    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """End a subscription, sent or not; no acknowledgement follows."""

    leader_id: int
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBatches:
    """Append the batches of this step and answer with `BatchAppended`, or with `SubscriptionEnded` if that fails."""

    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAck:
    """Tell the leader what this replica holds; replaces an earlier acknowledgement that was not sent yet."""

    session: int
    appended_offset: int
    flushed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateLog:
    """Truncate the log to `to_offset` (its new exclusive end), and answer with `LogTruncated`.

    Attributes:
        to_offset: the new end.
        loses_committed: True if records below the known high watermark are lost, which only an unclean election causes.
    """

    to_offset: int
    loses_committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLog:
    """Drop the whole log and restart it empty at `start_offset`; answer with `LogTruncated`."""

    start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceLogStart:
    """Move the log start up to this offset (inclusive), as the leader has."""

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

# SPDX-License-Identifier: Apache-2.0
"""What happens to the leader of a partition with several replicas: its followers, and the answers to its proposals.

Values only. A *session* is one subscription; the follower numbers them, rising over the life of its process. Broker epoch
and session together name one for good.
"""

from __future__ import annotations

from dataclasses import dataclass

from lograft.wire.codes import ErrorCode

from brokerd.partition.reconciliation import EpochEnd
from metaquorum.metadata.state import PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerSubscribed:
    """A follower asks for the records from its log end on.

    Attributes:
        node_id: the follower.
        broker_epoch: epoch of the follower's registration.
        session: number of this subscription.
        leader_epoch: epoch that it wants to follow.
        log_end_offset: end of its log (exclusive).
        flushed_offset: how much of that is on stable storage (exclusive).
        last_epoch: leader epoch of its last record; None for a log that never had one.
        epoch_end: what the leader's log knows of that epoch (`PartitionLog.end_offset_for_epoch`); None: it is above all
            known ones, or there is no `last_epoch`.
        hidden_from: from where on damage of the leader's log hides where that epoch ends (`PartitionLog.hidden_from`); None: it
            is known.
        log_start_offset: start of the leader's log (inclusive).
    """

    node_id: int
    broker_epoch: int
    session: int
    leader_epoch: int
    log_end_offset: int
    flushed_offset: int
    last_epoch: int | None
    epoch_end: EpochEnd | None
    hidden_from: int | None = None
    log_start_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerAcked:
    """A follower holds everything below these offsets (exclusive): in its log, on stable storage."""

    node_id: int
    broker_epoch: int
    session: int
    appended_offset: int
    flushed_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerLost:
    """The subscription is over: the follower ended it, or its stream broke."""

    node_id: int
    broker_epoch: int
    session: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalAccepted:
    """The controller accepted `proposal`; the partition is in this committed state from there on."""

    proposal: int
    partition: PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRefused:
    """The controller refused `proposal`: it was not carried out, and never will be."""

    proposal: int
    code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalUnanswered:
    """Nobody knows what became of `proposal`: it may have been carried out, or be carried out later."""

    proposal: int


LeaderEvent = (
    FollowerSubscribed | FollowerAcked | FollowerLost | ProposalAccepted | ProposalRefused | ProposalUnanswered
)

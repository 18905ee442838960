# SPDX-License-Identifier: Apache-2.0
"""Events of the leader of a partition with several replicas: about its followers, and answers to its proposals.

Values only. A *session* is one subscription. The follower numbers its sessions, rising over the life of its process.
Broker epoch and session together identify one for good.
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
        flushed_offset: end of what it has on stable storage (exclusive).
        last_epoch: leader epoch of its last record; None: its log never had one.
        epoch_end: end of that epoch in the leader's log (`PartitionLog.end_offset_for_epoch`). None: the epoch is above
            all known ones, or there is no `last_epoch`.
        hidden_from: first offset where that epoch may end, if damage of the leader's log hides its end
            (`PartitionLog.hidden_from`); None: the end is known.
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
    """A follower holds everything below these offsets (exclusive): in its log, and on stable storage."""

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
    """The controller accepted `proposal`; `partition` is the committed state."""

    proposal: int
    partition: PartitionImage


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRefused:
    """The controller refused `proposal`: it was not carried out, and never will be."""

    proposal: int
    code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalUnanswered:
    """The outcome of `proposal` is unknown: it may have been carried out, or may still be."""

    proposal: int


LeaderEvent = (
    FollowerSubscribed | FollowerAcked | FollowerLost | ProposalAccepted | ProposalRefused | ProposalUnanswered
)

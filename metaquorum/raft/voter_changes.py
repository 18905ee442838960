# SPDX-License-Identifier: Apache-2.0
"""Requested changes of the voter set and of the leadership, and their outcomes.

Owns these values. Their behaviour is in `membership` and `transfer`.
Law: each request is answered exactly once, and with UNKNOWN only if the change may still take effect.
Source: KIP-853 "AddRaftVoter", "RemoveRaftVoter", "UpdateRaftVoter"; Raft dissertation 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from metaquorum.raft.types import NodeId, Offset, QuorumEpoch, ReplicaKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoter:
    """Turns an observer into a voter.

    Attributes:
        key: the observer.
        address: `host:port` of its quorum listener; None for the one in its fetches.
        level: feature level of the cluster, which it must support; every version supports the first one.
    """

    key: ReplicaKey
    address: str | None = None
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoter:
    """Removes a voter from the set.

    Attributes:
        key: the voter.
        replacement: the AddVoter that will follow. The removal is refused if that would be refused now.
    """

    key: ReplicaKey
    replacement: AddVoter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoter:
    """Sets the address (`host:port`) of a voter's quorum listener."""

    key: ReplicaKey
    address: str


VoterChange = AddVoter | RemoveVoter | UpdateVoter


@unique
class ChangeRefusal(Enum):
    """Why a change was refused; it had no effect."""

    NOT_LEADER = "not leader"
    NOT_READY = "nothing of this epoch is committed yet"
    CHANGE_PENDING = "another change is not committed yet"
    TRANSFER_PENDING = "the leadership is being handed over"
    DUPLICATE_VOTER = "a voter has this node id"
    TOO_MANY_VOTERS = "no room for another voter"
    NOT_CAUGHT_UP = "no observer that fetches and has caught up"
    NO_ADDRESS = "no address known"
    LEVEL_NOT_SUPPORTED = "it cannot run at the feature level of the cluster"
    VOTER_NOT_FOUND = "no such voter"
    LAST_VOTER = "no voter would be left"
    QUORUM_AT_RISK = "no majority of the remaining voters has caught up"
    ALREADY_LEADER = "it leads already"
    NO_SUCCESSOR = "no voter to hand over to fetches"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRefused:
    """The change was refused and not made."""

    reason: ChangeRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCommitted:
    """The change is made for good; it is in the committed log below `next_offset` (exclusive)."""

    next_offset: Offset


@dataclass(frozen=True, slots=True)
class ChangeUnknown:
    """The leadership ended before the record was committed: it may stay or be truncated."""


ChangeOutcome = ChangeCommitted | ChangeRefused | ChangeUnknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResigned:
    """This node has resigned from `quorum_epoch` in favour of a successor."""

    quorum_epoch: QuorumEpoch
    successor: ReplicaKey


@dataclass(frozen=True, slots=True)
class TransferTimedOut:
    """No successor had everything in time; this node continues to lead."""


TransferOutcome = TransferResigned | TransferTimedOut | ChangeRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingChange:
    """A change whose VotersRecord is appended but uncommitted.

    Attributes:
        token: token of the operator's request; None if the leader made the change for an address.
        next_offset: end of the record (exclusive).
    """

    token: int | None
    next_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTransfer:
    """A leader waits until a successor has everything.

    Attributes:
        token: token of the operator's request.
        to: node id of the successor; None for the first voter that has everything.
        started_ms: time of the request.
        deadline_ms: when the leader gives up.
    """

    token: int
    to: NodeId | None
    started_ms: int
    deadline_ms: int

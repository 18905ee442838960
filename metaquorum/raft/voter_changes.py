# SPDX-License-Identifier: Apache-2.0
"""Changes of the set of voters and of the leadership that are asked for, and how they can end.

Owns these values. Behaviour is in `membership` and `transfer`.
Law: whoever asked is answered exactly once, and is told UNKNOWN only when the change may still take effect.
Source: KIP-853 "AddRaftVoter", "RemoveRaftVoter", "UpdateRaftVoter"; Raft dissertation 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from metaquorum.raft.types import NodeId, Offset, QuorumEpoch, ReplicaKey


@dataclass(frozen=True, slots=True, kw_only=True)
class AddVoter:
    """An observer is to vote from here on.

    Attributes:
        key: the observer.
        address: `host:port` of its quorum listener; None for the one that it fetches with.
        level: feature level of the cluster, at which it must be able to run; every version can at the first one.
    """

    key: ReplicaKey
    address: str | None = None
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveVoter:
    """A voter is to vote no more.

    Attributes:
        key: the voter.
        replacement: what is to be asked for next. The removal is refused where that would be refused now.
    """

    key: ReplicaKey
    replacement: AddVoter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateVoter:
    """A voter's quorum listener has this address (`host:port`) from here on."""

    key: ReplicaKey
    address: str


VoterChange = AddVoter | RemoveVoter | UpdateVoter


@unique
class ChangeRefusal(Enum):
    """Why a change was not begun; nothing of it happened."""

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
    """Not done: it was refused."""

    reason: ChangeRefusal


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCommitted:
    """Done for good; it is in the committed log below next_offset (exclusive)."""

    next_offset: Offset


@dataclass(frozen=True, slots=True)
class ChangeUnknown:
    """The leadership ended before the record was committed: it may stay or be cut off."""


ChangeOutcome = ChangeCommitted | ChangeRefused | ChangeUnknown


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferResigned:
    """This node has resigned from quorum_epoch in favour of a successor."""

    quorum_epoch: QuorumEpoch
    successor: ReplicaKey


@dataclass(frozen=True, slots=True)
class TransferTimedOut:
    """No successor had everything in time; this node leads on."""


TransferOutcome = TransferResigned | TransferTimedOut | ChangeRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingChange:
    """A change whose VotersRecord is appended and not committed.

    Attributes:
        token: who asked; None when the leader changed its own address.
        next_offset: end of the record (exclusive).
    """

    token: int | None
    next_offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingTransfer:
    """A leader waits for a successor to have everything.

    Attributes:
        token: who asked.
        to: node id of the successor, None for whoever has everything first.
        started_ms: when it was asked for.
        deadline_ms: when it is given up.
    """

    token: int
    to: NodeId | None
    started_ms: int
    deadline_ms: int

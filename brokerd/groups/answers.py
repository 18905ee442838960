# SPDX-License-Identifier: Apache-2.0
"""Answers of the group core: outcomes, refusals, and the answer that carries an outcome together with effects.

Values only. The service maps `Refusal` to the error codes of the public contract, by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from brokerd.groups.effects import Effect
from brokerd.groups.records import CurrentValue, GroupValue, MemberValue, OffsetValue, Partitions


class Refusal(Enum):
    """Why a command, or one partition of it, is refused. The values are names of error codes."""

    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_PATTERN = "INVALID_PATTERN"
    UNKNOWN_ASSIGNOR = "UNKNOWN_ASSIGNOR"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    UNKNOWN_MEMBER = "UNKNOWN_MEMBER"
    FENCED_MEMBER_EPOCH = "FENCED_MEMBER_EPOCH"
    STALE_MEMBER_EPOCH = "STALE_MEMBER_EPOCH"
    INSTANCE_IN_USE = "INSTANCE_IN_USE"
    INSTANCE_FENCED = "INSTANCE_FENCED"
    PROCESSING_LIMIT_EXCEEDED = "PROCESSING_LIMIT_EXCEEDED"
    SUPERSEDED = "REQUEST_SUPERSEDED"
    GROUP_NOT_FOUND = "GROUP_NOT_FOUND"
    GROUP_NOT_EMPTY = "GROUP_NOT_EMPTY"
    GROUP_SUBSCRIBED = "GROUP_SUBSCRIBED"
    UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
    UNKNOWN_PARTITION = "UNKNOWN_PARTITION"
    OFFSETS_PENDING = "OFFSETS_PENDING"
    INGEST_FENCED = "INGEST_FENCED"
    INGEST_CONFLICT = "INGEST_CONFLICT"
    TOPICS_NOT_LOADED = "COORDINATOR_LOADING"
    STALE_ASSIGNMENT = "STALE_ASSIGNMENT"
    """For the shell alone: the computation is not the one under way."""
    INVALID_ASSIGNMENT = "INVALID_ASSIGNMENT"
    """For the shell alone: the assignor is wrong."""


class GroupState(Enum):
    """State of a group that exists."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ReconciliationState(Enum):
    """How far a member is on the way to its target."""

    STABLE = "Stable"
    UNREVOKED = "Unrevoked"
    UNRELEASED = "Unreleased"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A refusal.

    Attributes:
        code: reason.
        message: text for people: what happened and what to do.
        retry_after_ms: milliseconds to wait before a retry; 0: no advice.
    """

    code: Refusal
    message: str
    retry_after_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """Answer to a join or a beat.

    Attributes:
        member_id: member.
        member_epoch: its epoch.
        heartbeat_interval_ms: milliseconds between two beats.
        session_timeout_ms: milliseconds without a beat after which the member is removed.
        assignment_number: number of the last assignment that was sent to the member.
        assignment: all partitions that it may use; None: as before.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignment_number: int
    assignment: Partitions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The member has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """The core knows it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResult:
    """Result for one partition of a commit, alteration or deletion; `refused` None: done."""

    topic_id: bytes
    partition: int
    refused: Refused | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResults:
    """Results of a commit, alteration or deletion, in the order of the command."""

    results: tuple[OffsetResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffset:
    """The committed offset of a partition; `value` None and not `refused`: positively none is stored."""

    topic_id: bytes
    partition: int
    value: OffsetValue | None
    refused: Refused | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffsets:
    """Committed offsets, in the order of the command, or by topic id and partition."""

    offsets: tuple[FetchedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsPrepared:
    """The offsets are pending: they count if and only if the round of the ingest is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsResolved:
    """Nothing is pending for the round of the ingest at this epoch (any more).

    Attributes:
        was_pending: True: the log has the outcome. False: nothing was pending, as far as this coordinator knows.
    """

    was_pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeletion:
    """Answer to the deletion of a group; `is_complete` False: a part is gone, ask again."""

    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentStored:
    """The target is in the log, or, `is_complete` False, the first part of it; ticks write the rest."""

    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """A group in a list."""

    group_id: str
    state: GroupState
    member_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """Groups by id; `has_more`: continue after the last one."""

    groups: tuple[GroupListing, ...]
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A member.

    Attributes:
        member_id: member.
        state: how far it is.
        about: what it says about itself.
        current: its current assignment.
        target: its target assignment.
        is_streaming: True if it beats over a stream that is open.
    """

    member_id: str
    state: ReconciliationState
    about: MemberValue
    current: CurrentValue
    target: Partitions
    is_streaming: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its members, by member id."""

    group_id: str
    state: GroupState
    value: GroupValue
    assignor: str
    members: tuple[MemberDescription, ...]
    offset_count: int


Outcome = (
    Refused
    | MemberState
    | Left
    | Noted
    | OffsetResults
    | FetchedOffsets
    | OffsetsPrepared
    | OffsetsResolved
    | GroupDeletion
    | AssignmentStored
    | GroupList
    | GroupDescription
)
"""What the sender of a command is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response of a decision: given, and its effects carried out, when the records are committed.

    Attributes:
        outcome: what the sender is told; `Noted` for a tick.
        effects: what the shell has to do.
    """

    outcome: Outcome
    effects: tuple[Effect, ...] = ()

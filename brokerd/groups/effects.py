# SPDX-License-Identifier: Apache-2.0
"""Effects of the group core: what the shell has to do once the decision is committed. Each carries all that it needs.

Values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from brokerd.groups.assignment.specs import MemberSpec, TopicSpec
from brokerd.groups.records import Partitions


class Removal(Enum):
    """Why a member was removed without asking for it."""

    SESSION_ENDED = "session ended"
    REVOCATION_LIMIT = "it did not confirm a revocation within its processing limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeAssignment:
    """Run the assignor off the event loop and give `AssignmentComputed` back.

    Attributes:
        group_id: group.
        group_epoch: epoch to name in the result.
        assignor: name of the assignor.
        members: members by member id, with their present targets.
        topics: every topic that some member subscribes to, by topic id.
    """

    group_id: str
    group_epoch: int
    assignor: str
    members: tuple[MemberSpec, ...]
    topics: Mapping[bytes, TopicSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushAssignment:
    """Send a member its assignment on its stream.

    Attributes:
        group_id: group.
        member_id: member.
        stream: number of the stream.
        member_epoch: its epoch.
        assignment_number: number of the assignment.
        assignment: all partitions that it may use.
    """

    group_id: str
    member_id: str
    stream: int
    member_epoch: int
    assignment_number: int
    assignment: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRemoved:
    """Count and log a removal, and tell the member if it has an open stream."""

    group_id: str
    member_id: str
    reason: Removal
    stream: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsExpired:
    """Log and count offsets that have expired: (topic id, partition, offset)."""

    group_id: str
    offsets: tuple[tuple[bytes, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExpired:
    """Log that a group without members and offsets is gone."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOutcome:
    """Ask the coordinator of an ingest what becomes of pending offsets, and give `ResolveOffsets` back.

    If asking fails, do nothing: it is asked for again.

    Attributes:
        group_id: group.
        ingest_id: ingest.
        ingest_epoch: epoch of the ingest at which they were prepared.
        round: round of the ingest.
        offsets_digest: digest of the group and the offsets; see `PrepareOffsets`.
    """

    group_id: str
    ingest_id: str
    ingest_epoch: int
    round: int
    offsets_digest: bytes = b""


Effect = ComputeAssignment | PushAssignment | MemberRemoved | OffsetsExpired | GroupExpired | AskOutcome
"""Everything that the shell may have to do."""

# SPDX-License-Identifier: Apache-2.0
"""Commands of the group core: what clients, administrators and the shell ask for.

Values only. Source: `docs/groups.md` section "Commands".
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.groups.assignment.specs import Assignment
from brokerd.groups.records import Partitions, Subscription
from brokerd.groups.settings import GroupConfig
from brokerd.groups.subscriptions import Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A process becomes a member (epoch 0), or repeats the request because no answer came.

    Attributes:
        group_id: group.
        member_id: UUID that the client made.
        subscription: topics that it wants.
        instance_id: name of a static member; None for a dynamic one.
        rack: rack of its host; None if unknown.
        client_id: name of the client program.
        client_host: address of the client.
        assignor: assignor that it prefers; empty: none.
        processing_limit_ms: see `MemberValue`; 0: the default.
        beat_number: number of the request, rising over joins, beats and leaves of the member id; 0: not numbered.
        stream: number that the shell gave to the heartbeat stream of the process; None: a unary call.
        lost_epoch: epoch at which the member has lost its partitions; 0: it had none, or does not say.
    """

    group_id: str
    member_id: str
    subscription: Subscription
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    assignor: str = ""
    processing_limit_ms: int = 0
    beat_number: int = 0
    stream: int | None = None
    lost_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A member shows that it lives, what it owns, and what it wants.

    Attributes:
        group_id: group.
        member_id: member.
        member_epoch: epoch that it knows, above 0.
        instance_id: name of a static member, so that a replaced process can be told.
        owned: all partitions that it uses or has not given up; None: as in the last answered beat.
        assignment_number: number of the last assignment that it has taken over; 0: none.
        idle_ms: milliseconds since its application last asked for records.
        subscription: new subscription; None: unchanged.
        assignor: newly preferred assignor; None: unchanged.
        beat_number: see `Join`.
        stream: see `Join`.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    owned: Partitions | None = None
    assignment_number: int = 0
    idle_ms: int = 0
    subscription: Subscription | None = None
    assignor: str | None = None
    beat_number: int = 0
    stream: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A member leaves for good (epoch -1), or a static member will be back (epoch -2). It has given up all partitions."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    will_be_back: bool = False
    beat_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamClosed:
    """A heartbeat stream has ended. That is no death: its members live until their sessions end or they beat elsewhere."""

    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """An offset to store.

    Attributes:
        topic_id: topic.
        partition: partition.
        offset: next offset to read, from 0.
        leader_epoch: leader epoch of the record before it; -1: unknown.
        metadata: text of the application.
    """

    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Stores offsets: of a member for partitions that it holds, or of nobody while the group has no members.

    Attributes:
        group_id: group.
        offsets: offsets, one for each partition.
        member_id: member; empty: no membership.
        member_epoch: epoch that the member knows.
        commit_number: number of the commit, rising for a member id; 0: not numbered.
    """

    group_id: str
    offsets: tuple[OffsetCommit, ...]
    member_id: str = ""
    member_epoch: int = -1
    commit_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOffsets:
    """Checks offsets as `CommitOffsets` does, and keeps them pending: they count if and only if a round of an ingest is committed.

    Attributes:
        group_id: group.
        ingest_id: ingest.
        ingest_epoch: epoch of the ingest, from 1.
        round: round of the ingest, from 1.
        offsets: offsets, one for each partition.
        member_id: member; empty: no membership.
        member_epoch: epoch that the member knows.
        instance_id: name of a static member, so that a replaced process can be told.
        commit_number: see `CommitOffsets`.
        offsets_digest: digest by which the outcome names them, as the coordinator of the ingest made it.
    """

    group_id: str
    ingest_id: str
    ingest_epoch: int
    round: int
    offsets: tuple[OffsetCommit, ...]
    member_id: str = ""
    member_epoch: int = -1
    instance_id: str | None = None
    commit_number: int = 0
    offsets_digest: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveOffsets:
    """Says what became of a round of an ingest, at an epoch: its pending offsets are committed, or go.

    Attributes:
        group_id: group.
        ingest_id: ingest.
        ingest_epoch: epoch at which they were prepared.
        round: round.
        is_committed: True: those with the digest are committed. Others of this epoch and round go.
        offsets_digest: see `PrepareOffsets`.
    """

    group_id: str
    ingest_id: str
    ingest_epoch: int
    round: int
    is_committed: bool
    offsets_digest: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """Reads committed offsets of some partitions, or of all that have one (`partitions` None)."""

    group_id: str
    partitions: tuple[tuple[bytes, int], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterOffsets:
    """Sets offsets of a group without members, also back. Creates the group if there is none."""

    group_id: str
    offsets: tuple[OffsetCommit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """Deletes offsets of topics to which no member subscribes."""

    group_id: str
    partitions: tuple[tuple[bytes, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Deletes a group without members and its offsets, a part at a time."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroups:
    """Lists groups by id, `limit` at a time, after the id `after`; `states` empty: in any state."""

    after: str = ""
    limit: int = 1_000
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    """Describes a group with its members."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentComputed:
    """The result of a computation that the core asked for. Members that have left meanwhile are ignored."""

    group_id: str
    group_epoch: int
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsChanged:
    """The topics of the cluster, or what has changed.

    Attributes:
        metadata_offset: offset of the metadata that says so, exclusive.
        topics: new and changed topics; all of them, if `is_complete`.
        deleted: ids of topics that are known to be deleted. After loading, the shell also names those of
            `GroupCore.topics_with_offsets` that the metadata knows as deleted.
        is_complete: True: topics that are not named do not exist.
    """

    metadata_offset: int
    topics: tuple[Topic, ...] = ()
    deleted: tuple[bytes, ...] = ()
    is_complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanged:
    """The config of a group; None: the defaults hold again."""

    group_id: str
    config: GroupConfig | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultsChanged:
    """The config of groups that have none of their own."""

    config: GroupConfig


Command = (
    Join
    | Beat
    | Leave
    | StreamClosed
    | CommitOffsets
    | PrepareOffsets
    | ResolveOffsets
    | FetchOffsets
    | AlterOffsets
    | DeleteOffsets
    | DeleteGroup
    | ListGroups
    | DescribeGroup
    | AssignmentComputed
    | TopicsChanged
    | ConfigChanged
    | DefaultsChanged
)
"""Everything that can be asked of the core."""


def scope_of(command: Command) -> str | None:
    """Return the group that a command concerns; None: no single group. Commands of different groups cannot see each other."""
    match command:
        case StreamClosed() | ListGroups() | TopicsChanged() | DefaultsChanged():
            return None
        case _:
            return command.group_id

# SPDX-License-Identifier: Apache-2.0
"""Records of groups: what the log holds. A record with value None is a tombstone.

Values only. No record says anything about another key, so that replay gives the same state from any compacted subset of the log.
Source: `docs/groups.md` section "Records".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

Partitions = Mapping[bytes, tuple[int, ...]]
"""Partitions in ascending order, by topic id. No entry is empty."""

Held = Mapping[bytes, Mapping[int, int]]
"""Assignment epochs by topic id and partition, partitions in ascending order. No entry is empty."""

JOIN_EPOCH: Final = 0
"""Member epoch of a join on the wire (KIP-848)."""

LEAVE_EPOCH: Final = -1
"""Member epoch of a leave on the wire (KIP-848)."""

AWAY_EPOCH: Final = -2
"""Member epoch of a static member that has left and will be back, on the wire and in the log (KIP-848)."""

FIRST_TARGET_EPOCH: Final = 1
"""Target epoch of a new group: its members have an epoch above `JOIN_EPOCH` before anything is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupValue:
    """State of a group.

    Attributes:
        group_epoch: rises when members, subscriptions or topics change.
        target_epoch: group epoch for which the target assignment was computed.
        topics_digest: digest of the subscribed topics at the group epoch; empty: unknown.
        metadata_offset: offset of the metadata that the digest comes from, exclusive.
        empty_since_ms: since when the group has no members, in milliseconds since 1970; None while it has some.
    """

    group_epoch: int = FIRST_TARGET_EPOCH
    target_epoch: int = FIRST_TARGET_EPOCH
    topics_digest: bytes = b""
    metadata_offset: int = 0
    empty_since_ms: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class Subscription:
    """What a member subscribes to.

    Attributes:
        names: topic names, ascending.
        pattern: RE2 expression that must match a whole topic name; empty: none.
    """

    names: tuple[str, ...] = ()
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberValue:
    """What a member says about itself.

    Attributes:
        subscription: topics that it wants.
        processing_limit_ms: milliseconds that its application may take between two requests for records, and that it may take to
            give up partitions.
        instance_id: name of a static member; None for a dynamic one.
        rack: rack of its host; None if unknown.
        client_id: name of the client program; may be empty.
        client_host: address of the client; may be empty.
        assignor: name of the assignor that it prefers; empty: none.
        session_timeout_ms: milliseconds without a sign of life after which it is removed. It was told so when it joined and relies on
            it: it stops in time only if its session is never shorter than it knows. 0: not recorded.
    """

    subscription: Subscription
    processing_limit_ms: int
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    assignor: str = ""
    session_timeout_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetValue:
    """Target assignment of a member.

    Attributes:
        target_epoch: target epoch with which it was last changed. Above that of the group, while a target is being written.
        partitions: the partitions.
    """

    target_epoch: int
    partitions: Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentValue:
    """Current assignment of a member.

    Attributes:
        member_epoch: target epoch that it has reached, or `AWAY_EPOCH`.
        previous_epoch: its epoch before that.
        assigned: what it may use.
        revoking: what it must give up and has not confirmed.
    """

    member_epoch: int
    previous_epoch: int
    assigned: Held = field(default_factory=dict[bytes, Mapping[int, int]])
    revoking: Held = field(default_factory=dict[bytes, Mapping[int, int]])


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetValue:
    """A committed offset.

    Attributes:
        offset: next offset to read.
        commit_ms: when it was committed, in milliseconds since 1970.
        leader_epoch: leader epoch of the record before it; -1: unknown.
        metadata: text of the application.
    """

    offset: int
    commit_ms: int
    leader_epoch: int = -1
    metadata: str = ""


class PendingKey(NamedTuple):
    """Names the pending offsets of a group: the round of an ingest with which they go."""

    ingest_id: str
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffset:
    """An offset that waits for the decision of an ingest.

    Attributes:
        topic_id: topic.
        partition: partition.
        offset: next offset to read.
        leader_epoch: leader epoch of the record before it; -1: unknown.
        metadata: text of the application.
    """

    topic_id: bytes
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingValue:
    """Offsets that count if and only if a round of an ingest is committed.

    Attributes:
        ingest_epoch: epoch of the ingest. Only a decision at this epoch commits them.
        prepared_ms: when they were prepared, in milliseconds since 1970.
        offsets: the offsets, by topic id and partition, without those of topics that were deleted meanwhile.
        offsets_digest: digest by which the outcome names them, those of deleted topics included.
    """

    ingest_epoch: int
    prepared_ms: int
    offsets: tuple[PendingOffset, ...]
    offsets_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group."""

    group_id: str
    value: GroupValue | None


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member of a group."""

    group_id: str
    member_id: str
    value: MemberValue | None


@dataclass(frozen=True, slots=True)
class TargetRecord:
    """The target assignment of a member."""

    group_id: str
    member_id: str
    value: TargetValue | None


@dataclass(frozen=True, slots=True)
class CurrentRecord:
    """The current assignment of a member."""

    group_id: str
    member_id: str
    value: CurrentValue | None


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """A committed offset of a partition."""

    group_id: str
    topic_id: bytes
    partition: int
    value: OffsetValue | None


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """The pending offsets that go with a round of an ingest."""

    group_id: str
    ingest_id: str
    round: int
    value: PendingValue | None

    @property
    def pending_key(self) -> PendingKey:
        """Names them within the group."""
        return PendingKey(self.ingest_id, self.round)


GroupLogRecord = GroupRecord | MemberRecord | TargetRecord | CurrentRecord | OffsetRecord | PendingRecord
"""Everything that the log of groups may hold."""

_RECORD_BYTES: Final = 64
"""Bytes of a record beyond ids and partitions: key prefix, numbers, framing of the batch."""

_TOPIC_BYTES: Final = 28
"""Bytes of one topic in an assignment beyond its partitions."""

_PENDING_BYTES: Final = 56
"""Bytes of one pending offset beyond its metadata."""

_PARTITION_BYTES: Final = 3
"""Bytes of a partition number, for topics of up to 2,097,151 partitions."""


def partitions_bytes(partitions: Mapping[bytes, tuple[int, ...] | Mapping[int, int]]) -> int:
    """Return an estimate of the bytes of an assignment in the log. It is rather too high."""
    return sum(_TOPIC_BYTES + _PARTITION_BYTES * len(each) for each in partitions.values())


def record_bytes(record: GroupLogRecord) -> int:
    """Return an estimate of the bytes of a record in the log, so that decisions stay below the limits of a batch."""
    size = _RECORD_BYTES + len(record.group_id.encode())
    match record:
        case MemberRecord(value=MemberValue() as member):
            names = sum(len(name) + 3 for name in member.subscription.names)
            return size + names + 1_500
        case TargetRecord(value=TargetValue() as target):
            return size + len(record.member_id.encode()) + partitions_bytes(target.partitions)
        case CurrentRecord(value=CurrentValue() as current):
            # Partitions of one topic may have several assignment epochs, each with an entry of its own.
            epochs = sum(len(set(held.values())) for held in (*current.assigned.values(), *current.revoking.values()))
            held = partitions_bytes(current.assigned) + partitions_bytes(current.revoking)
            return size + len(record.member_id.encode()) + held + _TOPIC_BYTES * epochs
        case OffsetRecord(value=OffsetValue() as offset):
            return size + len(offset.metadata.encode())
        case PendingRecord():
            pending = () if record.value is None else record.value.offsets
            metadata = sum(len(each.metadata.encode()) for each in pending)
            digest = 0 if record.value is None else len(record.value.offsets_digest)
            return size + len(record.ingest_id.encode()) + digest + metadata + _PENDING_BYTES * len(pending)
        case MemberRecord() | TargetRecord() | CurrentRecord():
            return size + len(record.member_id.encode())
        case _:
            return size

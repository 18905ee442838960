# SPDX-License-Identifier: Apache-2.0
"""Decisions about committed offsets: commit, fetch, alter, delete, expiry.

Owns the rules of `docs/groups.md` section "Offsets", and which offset may be stored. `pending` has those that go with an ingest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from brokerd.groups.answers import FetchedOffset, FetchedOffsets, OffsetResult, OffsetResults, Refusal, Refused
from brokerd.groups.commands import (
    AlterOffsets,
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetCommit,
    PrepareOffsets,
)
from brokerd.groups.decision_room import DecisionRoom
from brokerd.groups.effects import GroupExpired, OffsetsExpired
from brokerd.groups.group import Group, Member, members_text
from brokerd.groups.limits import (
    MAX_GROUP_OFFSETS,
    MAX_GROUPS,
    MAX_ID_BYTES,
    MAX_OFFSET_METADATA_BYTES,
    MAX_REQUEST_BYTES,
    MAX_REQUEST_PARTITIONS,
    OFFSETS_SWEEP_MS,
    PENDING_RETRY_MS,
)
from brokerd.groups.records import (
    GroupLogRecord,
    GroupRecord,
    GroupValue,
    OffsetRecord,
    OffsetValue,
    PendingKey,
    record_bytes,
)
from brokerd.groups.state import CoordinatorState, GroupDecision, decided, refused


def commit(state: CoordinatorState, command: CommitOffsets) -> GroupDecision:
    """Store offsets of a member for what it holds, or of nobody while the group has no members."""
    problem = check_request(command.group_id, command.offsets)
    if problem is not None:
        return problem
    if not state.topics.is_loaded:
        return topics_not_loaded()
    group = state.group(command.group_id)
    if not command.member_id:
        return _store(state, group, command.group_id, command.offsets, None, 0)
    member = None if group is None else group.member(command.member_id)
    if group is None or member is None:
        return refused(
            Refusal.UNKNOWN_MEMBER, f"{command.member_id} is no member (any more); its partitions are lost, join again"
        )
    problem = check_commit(state, command, member)
    if problem is not None:
        return problem
    return _store(state, group, command.group_id, command.offsets, member, command.member_epoch)


def alter(state: CoordinatorState, command: AlterOffsets) -> GroupDecision:
    """Set offsets of a group without members."""
    problem = check_request(command.group_id, command.offsets)
    if problem is not None:
        return problem
    if not state.topics.is_loaded:
        return topics_not_loaded()
    return _store(state, state.group(command.group_id), command.group_id, command.offsets, None, 0)


def fetch(state: CoordinatorState, command: FetchOffsets) -> GroupDecision:
    """Return committed offsets. No epoch is checked, so that nothing but "none is stored" looks like it.

    Of a partition with a pending offset nothing can be said before the decision: neither the old offset nor the new one may count.
    """
    group = state.groups.get(command.group_id) or Group(command.group_id)
    keys = command.partitions
    if keys is None:
        keys = tuple(sorted({*group.offsets, *group.pending_partitions}))
    found = (
        FetchedOffset(topic_id=key[0], partition=key[1], value=None, refused=problem)
        if (problem := _check_pending(group, *key)) is not None
        else FetchedOffset(topic_id=key[0], partition=key[1], value=group.offsets.get(key))
        for key in keys
    )
    return decided(FetchedOffsets(offsets=tuple(found)))


def delete(state: CoordinatorState, command: DeleteOffsets) -> GroupDecision:
    """Delete offsets of topics to which no member subscribes."""
    group = state.group(command.group_id)
    if group is None:
        return not_found(command.group_id)
    if len(command.partitions) > MAX_REQUEST_PARTITIONS:
        return _too_many()
    wanted = frozenset[bytes]().union(*(state.topics.meaning(each) for each in group.subscriptions))
    results: list[OffsetResult] = []
    records: list[GroupLogRecord] = []
    for topic_id, partition in dict.fromkeys(command.partitions):
        problem: Refused | None = None
        if topic_id in wanted or (group.subscriptions and not state.knows_topics_of(group)):
            problem = Refused(code=Refusal.GROUP_SUBSCRIBED, message="members subscribe to the topic; stop them first")
        elif (pending := _check_pending(group, topic_id, partition)) is not None:
            problem = pending
        elif (topic_id, partition) in group.offsets:
            records.append(OffsetRecord(group.group_id, topic_id, partition, None))
        results.append(OffsetResult(topic_id=topic_id, partition=partition, refused=problem))
    return decided(OffsetResults(results=tuple(results)), records)


def of_deleted_topic(state: CoordinatorState, topic_id: bytes, room: DecisionRoom) -> list[GroupLogRecord]:
    """Return tombstones of the offsets of a deleted topic, as many as there is room for."""
    records: list[GroupLogRecord] = []
    for group_id in state.groups_with_offsets(topic_id):
        for key in sorted(state.groups[group_id].offsets):
            if key[0] == topic_id:
                record = OffsetRecord(group_id, topic_id, key[1], None)
                if not room.take([record]):
                    return records
                records.append(record)
    return records


def expire(
    state: CoordinatorState, group: Group, room: DecisionRoom
) -> tuple[list[GroupLogRecord], OffsetsExpired | GroupExpired | None]:
    """Return tombstones of the expired offsets of a group, as many as there is room for; or that of the group if it holds nothing."""
    value = group.value
    if value is None or value.empty_since_ms is None or group.members:
        return [], None
    if not group.offsets:
        if group.pending or state.unix_ms < value.empty_since_ms + OFFSETS_SWEEP_MS:
            return [], None
        last = GroupRecord(group.group_id, None)
        return ([last], GroupExpired(group_id=group.group_id)) if room.take([last]) else ([], None)
    retention_ms = state.config(group.group_id).offsets_retention_ms
    if retention_ms is None:
        return [], None
    expired: list[tuple[bytes, int, int]] = []
    records: list[GroupLogRecord] = []
    for (topic_id, partition), offset in sorted(group.offsets.items(), key=lambda each: each[0]):
        since_ms = max(offset.commit_ms, value.empty_since_ms)
        if group.pending_at(topic_id, partition) is not None:
            continue
        if state.unix_ms >= since_ms + retention_ms:
            record = OffsetRecord(group.group_id, topic_id, partition, None)
            if not room.take([record]):
                break
            expired.append((topic_id, partition, offset.offset))
            records.append(record)
    return records, OffsetsExpired(group_id=group.group_id, offsets=tuple(expired)) if expired else None


def not_found(group_id: str) -> GroupDecision:
    """Return the refusal for a group that does not exist."""
    return refused(Refusal.GROUP_NOT_FOUND, f"no group has the id {group_id!r}")


def _store(
    state: CoordinatorState,
    group: Group | None,
    group_id: str,
    offsets: Sequence[OffsetCommit],
    member: Member | None,
    member_epoch: int,
) -> GroupDecision:
    """Store offsets: of a member, or, `member` None, of nobody, if the group has no members."""
    problem = check_group(state, group, member)
    if problem is not None:
        return problem
    results = check_offsets(state, group or Group(group_id), offsets, member, member_epoch)
    records: list[GroupLogRecord] = []
    for each, result in zip(offsets, results, strict=True):
        if result.refused is None:
            value = OffsetValue(
                offset=each.offset, commit_ms=state.unix_ms, leader_epoch=each.leader_epoch, metadata=each.metadata
            )
            records.append(OffsetRecord(group_id, each.topic_id, each.partition, value))
    if group is None and records:
        records.insert(0, new_group(state, group_id))
    if sum(map(record_bytes, records)) > MAX_REQUEST_BYTES:
        return refused(
            Refusal.INVALID_REQUEST, f"the offsets take more than {MAX_REQUEST_BYTES} bytes; send them in parts"
        )
    return decided(OffsetResults(results=tuple(results)), records)


def new_group(state: CoordinatorState, group_id: str) -> GroupRecord:
    """Return the record of a group that begins without members."""
    return GroupRecord(group_id, replace(GroupValue(), empty_since_ms=state.unix_ms))


def check_group(state: CoordinatorState, group: Group | None, member: Member | None) -> GroupDecision | None:
    """Refuse a commit of nobody (`member` None) in a group with members, and one group too many."""
    if member is None and group is not None and group.members:
        return refused(
            Refusal.GROUP_NOT_EMPTY, f"the group has {members_text(group)}; commit as one, or stop them first"
        )
    if group is None and len(state.groups) >= MAX_GROUPS:
        return refused(Refusal.LIMIT_EXCEEDED, f"this coordinator has {MAX_GROUPS} groups; delete some")
    return None


def check_commit(
    state: CoordinatorState, command: CommitOffsets | PrepareOffsets, member: Member
) -> GroupDecision | None:
    """Refuse a late copy of a commit, and an epoch that the member does not have yet; note the number of the commit."""
    session = state.sessions.of(command.group_id, command.member_id)
    if 0 < command.commit_number < session.commit_number:
        return refused(Refusal.SUPERSEDED, "a later commit of the member was handled already; send the offsets anew")
    if command.member_epoch > member.known_current.member_epoch:
        return refused(
            Refusal.FENCED_MEMBER_EPOCH,
            f"epoch {command.member_epoch} is above the member's, {member.known_current.member_epoch}; join again",
        )
    session.commit_number = max(session.commit_number, command.commit_number)
    return None


def check_offsets(
    state: CoordinatorState,
    group: Group,
    offsets: Sequence[OffsetCommit],
    member: Member | None,
    member_epoch: int,
    renewed: PendingKey | None = None,
) -> list[OffsetResult]:
    """Return for each offset whether it may be stored.

    Args:
        state: the coordinator.
        group: the group, which may be new.
        offsets: the offsets, one for each partition.
        member: the member that commits them; None: nobody.
        member_epoch: epoch that it knows.
        renewed: pending offsets that these replace.
    """
    results: list[OffsetResult] = []
    new_count = 0
    for each in offsets:
        is_new = (each.topic_id, each.partition) not in group.offsets
        problem = (
            _check_offset(state, each)
            or (None if member is None else _check_held(member, member_epoch, each))
            or _check_pending(group, each.topic_id, each.partition, renewed)
        )
        # Pending offsets count, so that resolving them cannot fail.
        if problem is None and is_new and len(group.offsets) + group.pending_count + new_count >= MAX_GROUP_OFFSETS:
            problem = Refused(
                code=Refusal.LIMIT_EXCEEDED,
                message=f"the group has offsets of {MAX_GROUP_OFFSETS} partitions; delete some",
            )
        new_count += is_new and problem is None
        results.append(OffsetResult(topic_id=each.topic_id, partition=each.partition, refused=problem))
    return results


def check_request(group_id: str, offsets: Sequence[OffsetCommit]) -> GroupDecision | None:
    """Refuse what is no group id, too many offsets, and a partition that comes twice."""
    if not group_id or len(group_id.encode()) > MAX_ID_BYTES:
        return refused(Refusal.INVALID_REQUEST, f"the group id has 1 to {MAX_ID_BYTES} bytes")
    if len(offsets) > MAX_REQUEST_PARTITIONS:
        return _too_many()
    if len(_keys(offsets)) < len(offsets):
        return refused(Refusal.INVALID_REQUEST, "a partition is named twice; name each once")
    return None


def _check_pending(group: Group, topic_id: bytes, partition: int, renewed: PendingKey | None = None) -> Refused | None:
    """Refuse to say or to change anything while an offset of the partition waits for the decision of an ingest."""
    pending = group.pending_at(topic_id, partition)
    if pending is None or pending == renewed:
        return None
    return Refused(
        code=Refusal.OFFSETS_PENDING,
        message=f"an offset of partition {partition} waits for the decision of ingest {pending.ingest_id!r}; ask again",
        retry_after_ms=PENDING_RETRY_MS,
    )


def _keys(offsets: Iterable[OffsetCommit]) -> frozenset[tuple[bytes, int]]:
    return frozenset((each.topic_id, each.partition) for each in offsets)


def _check_offset(state: CoordinatorState, commit: OffsetCommit) -> Refused | None:
    topic = state.topics.get(commit.topic_id)
    if topic is None:
        return Refused(
            code=Refusal.UNKNOWN_TOPIC,
            message=f"no topic has the id {commit.topic_id.hex()}: it was deleted, or is new; fetch the metadata",
        )
    if not 0 <= commit.partition < topic.partition_count:
        return Refused(
            code=Refusal.UNKNOWN_PARTITION, message=f"{topic.name} has {topic.partition_count} partitions, from 0"
        )
    if commit.offset < 0 or commit.leader_epoch < -1:
        return Refused(code=Refusal.INVALID_REQUEST, message="the offset is below 0, or the leader epoch below -1")
    # The text as it is stored, whatever compression makes of it (KAFKA-19760).
    if len(commit.metadata.encode()) > MAX_OFFSET_METADATA_BYTES:
        return Refused(
            code=Refusal.INVALID_REQUEST, message=f"the metadata has more than {MAX_OFFSET_METADATA_BYTES} bytes"
        )
    return None


def _check_held(member: Member, member_epoch: int, commit: OffsetCommit) -> Refused | None:
    """Accept assignment epoch <= epoch of the commit; the caller has compared it with the member's (KIP-1251)."""
    current = member.known_current
    for held in (current.assigned, current.revoking):
        assignment_epoch = held.get(commit.topic_id, {}).get(commit.partition)
        if assignment_epoch is not None and assignment_epoch <= member_epoch:
            return None
    return Refused(
        code=Refusal.STALE_MEMBER_EPOCH,
        message=f"the member does not hold partition {commit.partition} at epoch {member_epoch}; "
        "it was given to another, or must be fetched anew",
    )


def topics_not_loaded() -> GroupDecision:
    """Return the refusal of a coordinator that has not seen the topics."""
    return refused(Refusal.TOPICS_NOT_LOADED, "the coordinator has not seen the topics yet; ask again", 100)


def _too_many() -> GroupDecision:
    return refused(
        Refusal.INVALID_REQUEST, f"one request takes {MAX_REQUEST_PARTITIONS} partitions; send them in parts"
    )

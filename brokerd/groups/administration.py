# SPDX-License-Identifier: Apache-2.0
"""What administrators ask: lists, descriptions, the deletion of a group.

Owns these decisions.
"""

from __future__ import annotations

from brokerd.groups.answers import (
    GroupDeletion,
    GroupDescription,
    GroupList,
    GroupListing,
    MemberDescription,
    Refusal,
)
from brokerd.groups.commands import DeleteGroup, DescribeGroup, ListGroups
from brokerd.groups.decision_room import DecisionRoom
from brokerd.groups.group import members_text
from brokerd.groups.limits import MAX_LISTED_GROUPS, PENDING_RETRY_MS
from brokerd.groups.offsets import not_found
from brokerd.groups.records import GroupLogRecord, GroupRecord, OffsetRecord
from brokerd.groups.state import CoordinatorState, GroupDecision, decided, refused
from brokerd.groups.targets import assignor_of


def list_groups(state: CoordinatorState, command: ListGroups) -> GroupDecision:
    """List groups by id."""
    limit = max(1, min(command.limit, MAX_LISTED_GROUPS))
    found: list[GroupListing] = []
    for group_id in sorted(each for each in state.groups if each > command.after):
        group = state.groups[group_id]
        if group.value is None:
            continue
        group_state = state.state_of(group)
        if command.states and group_state.value not in command.states:
            continue
        if len(found) == limit:
            return decided(GroupList(groups=tuple(found), has_more=True))
        found.append(GroupListing(group_id=group_id, state=group_state, member_count=len(group.members)))
    return decided(GroupList(groups=tuple(found), has_more=False))


def describe(state: CoordinatorState, command: DescribeGroup, default_assignor: str) -> GroupDecision:
    """Describe a group with its members."""
    group = state.group(command.group_id)
    if group is None:
        return not_found(command.group_id)
    members = tuple(
        MemberDescription(
            member_id=member.member_id,
            state=state.state_of_member(group, member),
            about=member.known_about,
            current=member.known_current,
            target=member.target_partitions,
            is_streaming=state.sessions.get(group.group_id, member.member_id).is_stream_open,
        )
        for member in group.present()
    )
    return decided(
        GroupDescription(
            group_id=group.group_id,
            state=state.state_of(group),
            value=group.known_value,
            assignor=assignor_of(state, group, default_assignor),
            members=members,
            offset_count=len(group.offsets),
        )
    )


def delete_group(state: CoordinatorState, command: DeleteGroup) -> GroupDecision:
    """Delete a group without members: its offsets, as many as one decision takes, and with the last of them the group."""
    group = state.group(command.group_id)
    if group is None:
        return not_found(command.group_id)
    if group.members:
        return refused(
            Refusal.GROUP_NOT_EMPTY,
            f"the group has {members_text(group)}; stop them, or wait for their sessions",
        )
    if group.pending:
        return refused(
            Refusal.OFFSETS_PENDING,
            f"offsets of the group wait for the decision of ingest {min(group.pending).ingest_id!r}; ask again",
            PENDING_RETRY_MS,
        )
    records: list[GroupLogRecord] = []
    room = DecisionRoom()
    for topic_id, partition in sorted(group.offsets):
        record = OffsetRecord(group.group_id, topic_id, partition, None)
        if not room.take([record]):
            return decided(GroupDeletion(is_complete=False), records)
        records.append(record)
    records.append(GroupRecord(group.group_id, None))
    return decided(GroupDeletion(is_complete=True), records)

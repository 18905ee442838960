# SPDX-License-Identifier: Apache-2.0
"""Target assignments: when one is computed and of what, and how a result gets into the log.

Owns the rules of `docs/groups.md` section "Border" about computations. The assignor itself runs outside of the core.
"""

from __future__ import annotations

from dataclasses import replace

from brokerd.groups.answers import AssignmentStored, Refusal
from brokerd.groups.assignment.specs import Assignment, MemberSpec
from brokerd.groups.commands import AssignmentComputed
from brokerd.groups.decision_room import DecisionRoom
from brokerd.groups.effects import ComputeAssignment
from brokerd.groups.group import Group
from brokerd.groups.limits import ASSIGNMENT_RETRY_MS, MAX_TARGET_BYTES
from brokerd.groups.records import (
    GroupLogRecord,
    GroupRecord,
    Partitions,
    TargetRecord,
    TargetValue,
    partitions_bytes,
)
from brokerd.groups.sessions import PendingTarget, Timer, TimerKind
from brokerd.groups.state import CoordinatorState, GroupDecision, decided, refused


def ask(state: CoordinatorState, group: Group, default_assignor: str) -> ComputeAssignment | None:
    """Return the effect that asks for the target of a group that is due, and remember it; None if it must wait."""
    timer = Timer(TimerKind.ASSIGNMENT, group.group_id)
    state.sessions.timers.set(timer, state.now_ms + ASSIGNMENT_RETRY_MS)
    if group.group_id in state.sessions.pending:
        return None
    if not state.knows_topics_of(group):
        interval_ms = state.config(group.group_id).assignment_interval_ms
        state.sessions.timers.set(timer, state.now_ms + max(interval_ms, 1_000))
        return None
    epoch = group.known_value.group_epoch
    state.sessions.computing[group.group_id] = epoch
    topics = state.topics
    wanted = frozenset[bytes]().union(*(topics.meaning(each) for each in group.subscriptions))
    members = tuple(
        MemberSpec(
            member.member_id,
            member.known_about.instance_id,
            member.known_about.rack,
            topics.meaning(member.known_about.subscription),
            member.target_partitions,
        )
        for member in group.present()
    )
    return ComputeAssignment(
        group_id=group.group_id,
        group_epoch=epoch,
        assignor=assignor_of(state, group, default_assignor),
        members=members,
        topics={topic_id: topics.spec(topic_id) for topic_id in sorted(wanted)},
    )


def assignor_of(state: CoordinatorState, group: Group, default_assignor: str) -> str:
    """Return the assignor that most members prefer, or without preference the group; of several, the first by name."""
    default_assignor = state.config(group.group_id).assignor or default_assignor
    votes: dict[str, int] = {}
    for member in group.present():
        name = member.known_about.assignor or default_assignor
        votes[name] = votes.get(name, 0) + 1
    return min(votes, key=lambda name: (-votes[name], name), default=default_assignor)


def store(state: CoordinatorState, command: AssignmentComputed) -> GroupDecision:
    """Write a result into the log, or the first part of it; `write` goes on with the rest."""
    group = state.group(command.group_id)
    epoch = command.group_epoch
    # An earlier computation that took longer than the retry time is as good as the last one.
    is_awaited = epoch <= state.sessions.computing.get(command.group_id, 0)
    pending = state.sessions.pending.get(command.group_id)
    is_awaited = is_awaited and (pending is None or pending.group_epoch < epoch)
    if group is None or not is_awaited or epoch <= group.known_value.target_epoch:
        return refused(Refusal.STALE_ASSIGNMENT, f"no computation for epoch {epoch} is under way; drop the result")
    wanted = {member_id: _tidy(state, partitions) for member_id, partitions in command.assignment.items()}
    problem = _problem(state, wanted)
    if problem is not None:
        del state.sessions.computing[command.group_id]
        return refused(Refusal.INVALID_ASSIGNMENT, problem, ASSIGNMENT_RETRY_MS)
    state.sessions.pending[command.group_id] = PendingTarget(epoch, wanted)
    records, is_complete = write(group, state.sessions.pending[command.group_id], DecisionRoom())
    return decided(AssignmentStored(is_complete=is_complete), records)


def write(group: Group, pending: PendingTarget, room: DecisionRoom) -> tuple[list[GroupLogRecord], bool]:
    """Return the records of what is still to be written of a target, as many as there is room for, and whether that is all.

    What is left is seen from the state, so that a refused append loses nothing. Members that came later keep what they have: nothing.
    """
    records: list[GroupLogRecord] = []
    for member_id in sorted(group.members):
        wanted = pending.assignment.get(member_id, {})
        if wanted == group.members[member_id].target_partitions:
            continue
        record = TargetRecord(
            group.group_id, member_id, TargetValue(target_epoch=pending.group_epoch, partitions=wanted)
        )
        if not room.take([record]):
            return records, False
        records.append(record)
    last = GroupRecord(group.group_id, replace(group.known_value, target_epoch=pending.group_epoch))
    return ([*records, last], True) if room.take([last]) else (records, False)


def _tidy(state: CoordinatorState, partitions: Partitions) -> Partitions:
    """Return an assignment without topics that were deleted meanwhile, and without empty entries; topics by id."""
    return {
        topic_id: tuple(sorted(partitions[topic_id]))
        for topic_id in sorted(partitions)
        if partitions[topic_id] and state.topics.get(topic_id) is not None
    }


def _problem(state: CoordinatorState, assignment: Assignment) -> str | None:
    """Return why an assignment cannot be a target; None if it can."""
    owners: dict[bytes, dict[int, str]] = {}
    for member_id, partitions in assignment.items():
        if partitions_bytes(partitions) > MAX_TARGET_BYTES:
            return f"{member_id} gets more than {MAX_TARGET_BYTES} bytes of partitions; add members to the group"
        for topic_id, numbers in partitions.items():
            topic = state.topics.get(topic_id)
            taken = owners.setdefault(topic_id, {})
            for number in numbers:
                if topic is None or not 0 <= number < topic.partition_count:
                    return f"{member_id} gets partition {number} of {topic_id.hex()}, which does not exist"
                if number in taken:
                    return f"{member_id} and {taken[number]} get partition {number} of {topic_id.hex()}"
                taken[number] = member_id
    return None

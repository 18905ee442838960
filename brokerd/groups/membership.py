# SPDX-License-Identifier: Apache-2.0
"""Decisions about members: join, beat, leave, takeover by a newer process, removal.

Owns the rules of `docs/groups.md` section "Membership".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from brokerd.groups.answers import Left, MemberState, ReconciliationState, Refusal, Refused
from brokerd.groups.commands import Beat, Join, Leave
from brokerd.groups.decision_room import DecisionRoom
from brokerd.groups.effects import MemberRemoved, PushAssignment, Removal
from brokerd.groups.group import Group, Member, plain
from brokerd.groups.limits import (
    DEFAULT_PROCESSING_LIMIT_MS,
    INSTANCE_RETRY_MIN_MS,
    MAX_GROUP_MEMBERS,
    MAX_GROUPS,
    MAX_ID_BYTES,
    MAX_PATTERN_BYTES,
    MAX_PROCESSING_LIMIT_MS,
    MAX_SUBSCRIBED_NAMES,
    MAX_SUBSCRIPTION_BYTES,
    MAX_TOPIC_NAME_BYTES,
    MIN_PROCESSING_LIMIT_MS,
    UNSETTLED_BEAT_MS,
)
from brokerd.groups.reconciliation import is_within, reconcile
from brokerd.groups.records import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    CurrentRecord,
    CurrentValue,
    GroupLogRecord,
    GroupRecord,
    GroupValue,
    MemberRecord,
    MemberValue,
    Partitions,
    Subscription,
    TargetRecord,
    TargetValue,
)
from brokerd.groups.sessions import Session, Timer, TimerKind
from brokerd.groups.settings import SESSION_BEATS
from brokerd.groups.state import CoordinatorState, GroupDecision, decided, refused
from brokerd.groups.subscriptions import PatternError


def join(state: CoordinatorState, assignors: Sequence[str], command: Join) -> GroupDecision:
    """Make a process a member, or answer a repeated request."""
    problem = _check_join(command) or _check_wishes(state, assignors, command.subscription, command.assignor)
    if problem is not None:
        return problem
    group = state.group(command.group_id)
    if group is None and len(state.groups) >= MAX_GROUPS:
        return refused(Refusal.LIMIT_EXCEEDED, f"this coordinator has {MAX_GROUPS} groups; delete some")
    group = group or Group(command.group_id)
    if _is_superseded(state, command):
        return _superseded()
    about = MemberValue(
        subscription=command.subscription,
        processing_limit_ms=command.processing_limit_ms or DEFAULT_PROCESSING_LIMIT_MS,
        session_timeout_ms=state.config(command.group_id).session_timeout_ms,
        instance_id=command.instance_id,
        rack=command.rack,
        client_id=command.client_id,
        client_host=command.client_host,
        assignor=command.assignor,
    )
    member = group.member(command.member_id)
    if member is not None and member.known_about.instance_id != command.instance_id:
        return refused(Refusal.INVALID_REQUEST, "a member cannot change its instance id; join under a new member id")
    if member is not None and not member.is_away:
        if _holds_at(member.known_current, command.lost_epoch):
            # The member lost its partitions without the coordinator's knowledge. Commits that it sent before may still arrive.
            return _hand_over(state, group, member, command, about)
        return _join_again(state, group, member, command, about)
    former = None if command.instance_id is None else group.member_of_instance(command.instance_id)
    if former is not None:
        return _take_over(state, group, former, command, about)
    if len(group.members) >= MAX_GROUP_MEMBERS:
        return refused(Refusal.LIMIT_EXCEEDED, f"the group has {MAX_GROUP_MEMBERS} members, and no more may join")
    value = state.raised(group, group.subscriptions_after(added=about.subscription))
    current = CurrentValue(member_epoch=value.target_epoch, previous_epoch=JOIN_EPOCH)
    records = (
        GroupRecord(group.group_id, replace(value, empty_since_ms=None)),
        MemberRecord(group.group_id, command.member_id, about),
        CurrentRecord(group.group_id, command.member_id, current),
    )
    session = _hear(state, command, about)
    return decided(_told(state, command, about, session, current, is_assignment_sent=True), records)


def beat(state: CoordinatorState, assignors: Sequence[str], command: Beat) -> GroupDecision:
    """Answer a member that lives, and carry it on towards its target."""
    group = state.group(command.group_id)
    member = None if group is None else group.member(command.member_id)
    if group is None or member is None:
        return unknown_member(group, command.member_id, command.instance_id)
    if _is_superseded(state, command):
        return _superseded()
    current = member.known_current
    if not _is_epoch_good(current, command):
        return refused(
            Refusal.FENCED_MEMBER_EPOCH,
            f"epoch {command.member_epoch} is none that the member may have (its epoch is {current.member_epoch}); "
            "its partitions are lost, join with epoch 0",
        )
    about, problem = _wishes(state, assignors, member.known_about, command)
    if problem is not None:
        return problem
    if command.idle_ms > about.processing_limit_ms:
        records = removal(state, group, [member])
        return decided(
            Refused(
                code=Refusal.PROCESSING_LIMIT_EXCEEDED,
                message=f"the application asked for records {command.idle_ms} ms ago, its limit is {about.processing_limit_ms} ms; "
                "the member was removed, join when it asks again",
            ),
            records,
        )
    session = _hear(state, command, about)
    session.echoed_number = command.assignment_number
    records: list[GroupLogRecord] = []
    if about != member.known_about:
        after = group.subscriptions_after(removed=(member.member_id,), added=about.subscription)
        records.append(GroupRecord(group.group_id, state.raised(group, after)))
        records.append(MemberRecord(group.group_id, member.member_id, about))
    is_settled = session.is_settled
    moved = current
    if is_settled and state.may_reconcile(group):
        moved = _moved_on(state, group, member, owned=command.owned, subscription=about.subscription)
    if moved is not current:
        records.append(CurrentRecord(group.group_id, member.member_id, moved))
    is_assignment_sent = moved is not current or not is_settled
    is_there = not records and state.state_of_member(group, member) is ReconciliationState.STABLE
    is_there = is_there and group.known_value.group_epoch == group.known_value.target_epoch
    told = _told(state, command, about, session, moved, is_assignment_sent=is_assignment_sent, is_there=is_there)
    return decided(told, records)


def leave(state: CoordinatorState, command: Leave) -> GroupDecision:
    """Remove a member that leaves, or note that a static one will be back."""
    group = state.group(command.group_id)
    member = None if group is None else group.member(command.member_id)
    if group is None or member is None:
        return unknown_member(group, command.member_id, command.instance_id)
    if _is_superseded(state, command):
        return _superseded()
    if not command.will_be_back:
        return decided(Left(), removal(state, group, [member]))
    if member.known_about.instance_id is None:
        return refused(Refusal.INVALID_REQUEST, "only a member with an instance id can be back; leave with epoch -1")
    session = state.sessions.of(command.group_id, command.member_id)
    session.beat_number = max(session.beat_number, command.beat_number)
    away = CurrentValue(member_epoch=AWAY_EPOCH, previous_epoch=member.known_current.member_epoch)
    state.sessions.detach(command.group_id, command.member_id)
    return decided(Left(), () if member.is_away else (CurrentRecord(group.group_id, member.member_id, away),))


def removal(state: CoordinatorState, group: Group, members: Sequence[Member]) -> list[GroupLogRecord]:
    """Return the records that remove members. The last one takes the target epoch along (KAFKA-20442)."""
    value = state.raised(group, group.subscriptions_after(each.member_id for each in members))
    if sum(1 for _ in group.present()) == len(members):
        value = replace(value, target_epoch=value.group_epoch, empty_since_ms=state.unix_ms)
    records: list[GroupLogRecord] = [GroupRecord(group.group_id, value)]
    for member in members:
        records += _tombstones(group, member)
    return records


def remove_due(
    state: CoordinatorState, group: Group, due: Sequence[tuple[Member, Removal]], room: DecisionRoom
) -> tuple[list[GroupLogRecord], list[MemberRemoved]]:
    """Return the records and effects that remove members whose time is over, as many as there is room for."""
    members: list[Member] = []
    effects: list[MemberRemoved] = []
    for member, reason in due:
        if not room.take(_tombstones(group, member)):
            break
        members.append(member)
        session = state.sessions.get(group.group_id, member.member_id)
        stream = session.stream if session.is_stream_open else None
        effects.append(MemberRemoved(group_id=group.group_id, member_id=member.member_id, reason=reason, stream=stream))
    return removal(state, group, members) if members else [], effects


def push(
    state: CoordinatorState, group: Group, member_ids: Iterable[str], room: DecisionRoom
) -> tuple[list[GroupLogRecord], list[PushAssignment], list[str]]:
    """Carry on members that wait, as many as there is room for.

    Only a settled member with an open stream is carried on here. Every other one comes with its next beat.

    Returns:
        Records, effects, and the members that were looked at.
    """
    records: list[GroupLogRecord] = []
    effects: list[PushAssignment] = []
    seen: list[str] = []
    for member_id in member_ids:
        member = group.member(member_id)
        session = state.sessions.get(group.group_id, member_id)
        is_reachable = session.stream is not None and session.is_stream_open
        if member is None or member.is_away or not is_reachable or not session.is_settled:
            seen.append(member_id)
            continue
        current = member.known_current
        moved = _moved_on(state, group, member, owned=None, subscription=member.known_about.subscription)
        record = CurrentRecord(group.group_id, member_id, moved)
        if moved is not current and not room.take([record]):
            break
        seen.append(member_id)
        if moved is current or session.stream is None:
            continue
        records.append(record)
        effects.append(
            PushAssignment(
                group_id=group.group_id,
                member_id=member_id,
                stream=session.stream,
                member_epoch=moved.member_epoch,
                assignment_number=session.next_number(),
                assignment=plain(moved.assigned),
            )
        )
    return records, effects, seen


def _join_again(
    state: CoordinatorState, group: Group, member: Member, command: Join, about: MemberValue
) -> GroupDecision:
    """Answer a repeated join. It confirms no revocation, because it may be a late copy."""
    about = replace(about, session_timeout_ms=member.known_about.session_timeout_ms)
    records: list[GroupLogRecord] = []
    if _wants_same(about, member.known_about):
        # Another address or limit changes nothing for the assignment.
        records += [] if about == member.known_about else [MemberRecord(group.group_id, member.member_id, about)]
    else:
        after = group.subscriptions_after(removed=(member.member_id,), added=about.subscription)
        records.append(GroupRecord(group.group_id, state.raised(group, after)))
        records.append(MemberRecord(group.group_id, member.member_id, about))
    session = _hear(state, command, about)
    return decided(_told(state, command, about, session, member.known_current, is_assignment_sent=True), records)


def _take_over(
    state: CoordinatorState, group: Group, former: Member, command: Join, about: MemberValue
) -> GroupDecision:
    """Let a newer process take over the target of a static member, if the old process is provably gone."""
    session = state.sessions.get(group.group_id, former.member_id)
    is_gone = former.is_away or (session.stream is not None and not session.is_stream_open)
    if not is_gone:
        expires_ms = state.sessions.timers.deadline_of(Timer(TimerKind.SESSION, group.group_id, former.member_id))
        left_ms = INSTANCE_RETRY_MIN_MS if expires_ms is None else expires_ms - state.now_ms
        return refused(
            Refusal.INSTANCE_IN_USE,
            f"member {former.member_id} has the instance id {about.instance_id!r} and its process may be alive; "
            "stop it, or wait until its session ends",
            max(INSTANCE_RETRY_MIN_MS, left_ms),
        )
    return _hand_over(state, group, former, command, about)


def _hand_over(
    state: CoordinatorState, group: Group, former: Member, command: Join, about: MemberValue
) -> GroupDecision:
    """Give the target of a member that is gone to the one that joins, at an epoch of its own."""
    value = _taken_over_value(state, group, former, about)
    target: TargetValue | None = None
    if not group.is_frozen:
        target = TargetValue(target_epoch=value.target_epoch, partitions=former.target_partitions)
    current = CurrentValue(member_epoch=value.target_epoch, previous_epoch=JOIN_EPOCH)
    if state.may_reconcile(group):
        current = reconcile(
            current,
            target=state.effective_target(former, about.subscription),
            target_epoch=value.target_epoch,
            owned=None,
            is_free=lambda topic_id, number: group.is_free(topic_id, number, ignored=former.member_id),
        )
    records: list[GroupLogRecord] = [GroupRecord(group.group_id, value)]
    if former.member_id != command.member_id:
        records += _tombstones(group, former)
    records.append(MemberRecord(group.group_id, command.member_id, about))
    if target is not None or command.member_id in group.members:
        records.append(TargetRecord(group.group_id, command.member_id, target))
    records.append(CurrentRecord(group.group_id, command.member_id, current))
    session = _hear(state, command, about)
    return decided(_told(state, command, about, session, current, is_assignment_sent=True), records)


def _taken_over_value(state: CoordinatorState, group: Group, former: Member, about: MemberValue) -> GroupValue:
    """Return the value of a group in which a target has moved to another member.

    The targets as they are get an epoch of their own, so that the new process holds nothing at an epoch of the old one. A computation
    under way is stale then. If the target had been out of date, or is now, the group epoch is one further ahead.
    """
    value = group.known_value
    after = group.subscriptions_after(removed=(former.member_id,), added=about.subscription)
    risen = state.raised(group, after)
    if group.is_frozen:
        return risen
    is_current = (
        _wants_same(about, former.known_about)
        and value.group_epoch == value.target_epoch
        and risen.topics_digest == value.topics_digest
    )
    return replace(risen, target_epoch=risen.group_epoch, group_epoch=risen.group_epoch + (not is_current))


def _moved_on(
    state: CoordinatorState, group: Group, member: Member, *, owned: Partitions | None, subscription: Subscription
) -> CurrentValue:
    return reconcile(
        member.known_current,
        target=state.effective_target(member, subscription),
        target_epoch=group.known_value.target_epoch,
        owned=owned,
        is_free=group.is_free,
    )


def _holds_at(current: CurrentValue, epoch: int) -> bool:
    """Return True if a member holds a partition since this epoch or an earlier one."""
    return any(
        assignment_epoch <= epoch
        for held in (current.assigned, current.revoking)
        for numbers in held.values()
        for assignment_epoch in numbers.values()
    )


def _wants_same(first: MemberValue, second: MemberValue) -> bool:
    return (first.subscription, first.rack, first.assignor) == (second.subscription, second.rack, second.assignor)


def _is_epoch_good(current: CurrentValue, command: Beat) -> bool:
    """Return True if a member may have the epoch (KIP-848)."""
    if command.member_epoch == current.member_epoch:
        return True
    is_lost_answer = 0 < command.member_epoch == current.previous_epoch < current.member_epoch
    return is_lost_answer and command.owned is not None and is_within(command.owned, current.assigned)


def _tombstones(group: Group, member: Member) -> list[GroupLogRecord]:
    records: list[GroupLogRecord] = [MemberRecord(group.group_id, member.member_id, None)]
    if member.target is not None:
        records.append(TargetRecord(group.group_id, member.member_id, None))
    records.append(CurrentRecord(group.group_id, member.member_id, None))
    return records


def _hear(state: CoordinatorState, command: Join | Beat, about: MemberValue) -> Session:
    return state.sessions.hear(
        command.group_id,
        command.member_id,
        expires_ms=state.now_ms + state.session_ms(command.group_id, about),
        beat_number=command.beat_number,
        stream=command.stream,
    )


def _told(
    state: CoordinatorState,
    command: Join | Beat,
    about: MemberValue,
    session: Session,
    current: CurrentValue,
    *,
    is_assignment_sent: bool,
    is_there: bool = False,
) -> MemberState:
    session_ms = state.session_ms(command.group_id, about)
    interval_ms = min(state.config(command.group_id).heartbeat_interval_ms, session_ms // SESSION_BEATS)
    if command.stream is None and not is_there:
        interval_ms = min(interval_ms, UNSETTLED_BEAT_MS)
    return MemberState(
        member_id=command.member_id,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=interval_ms,
        session_timeout_ms=session_ms,
        assignment_number=session.next_number() if is_assignment_sent else session.sent_number or 0,
        assignment=plain(current.assigned) if is_assignment_sent else None,
    )


def _is_superseded(state: CoordinatorState, command: Join | Beat | Leave) -> bool:
    session = state.sessions.get(command.group_id, command.member_id)
    return 0 < command.beat_number < session.beat_number


def _superseded() -> GroupDecision:
    return refused(Refusal.SUPERSEDED, "a later request of the member was handled already; drop this one")


def unknown_member(group: Group | None, member_id: str, instance_id: str | None) -> GroupDecision:
    """Return the refusal for who is no member (any more), or was replaced."""
    if group is not None and instance_id is not None and group.member_of_instance(instance_id) is not None:
        return refused(
            Refusal.INSTANCE_FENCED, f"a newer process has taken over the instance id {instance_id!r}; stop this one"
        )
    return refused(
        Refusal.UNKNOWN_MEMBER, f"{member_id} is no member (any more); its partitions are lost, join with epoch 0"
    )


def _wishes(
    state: CoordinatorState, assignors: Sequence[str], about: MemberValue, command: Beat
) -> tuple[MemberValue, GroupDecision | None]:
    """Return what a member wants from now on, and why it cannot have it, if so."""
    subscription = about.subscription if command.subscription is None else command.subscription
    assignor = about.assignor if command.assignor is None else command.assignor
    if command.subscription is None and command.assignor is None:
        return about, None
    wanted = replace(about, subscription=subscription, assignor=assignor)
    return wanted, _check_wishes(state, assignors, subscription, assignor)


def _check_join(command: Join) -> GroupDecision | None:
    texts = {
        "group id": command.group_id,
        "member id": command.member_id,
        "instance id": command.instance_id,
        "rack": command.rack,
        "client id": command.client_id,
        "client host": command.client_host,
    }
    for name, text in texts.items():
        if text is not None and len(text.encode()) > MAX_ID_BYTES:
            return refused(Refusal.INVALID_REQUEST, f"the {name} has more than {MAX_ID_BYTES} bytes")
    if not command.group_id or not command.member_id or command.instance_id == "":
        return refused(Refusal.INVALID_REQUEST, "group id, member id or instance id is empty")
    limit_ms = command.processing_limit_ms
    if limit_ms and not MIN_PROCESSING_LIMIT_MS <= limit_ms <= MAX_PROCESSING_LIMIT_MS:
        return refused(
            Refusal.INVALID_REQUEST,
            f"the processing limit is {limit_ms} ms: use {MIN_PROCESSING_LIMIT_MS} to {MAX_PROCESSING_LIMIT_MS} ms",
        )
    return None


def _check_wishes(
    state: CoordinatorState, assignors: Sequence[str], subscription: Subscription, assignor: str
) -> GroupDecision | None:
    if assignor and assignor not in assignors:
        return refused(Refusal.UNKNOWN_ASSIGNOR, f"no assignor {assignor!r}; choose one of {', '.join(assignors)}")
    names = subscription.names
    if len(names) > MAX_SUBSCRIBED_NAMES or sum(map(len, names)) > MAX_SUBSCRIPTION_BYTES:
        return refused(
            Refusal.LIMIT_EXCEEDED,
            f"a subscription takes {MAX_SUBSCRIBED_NAMES} topic names and {MAX_SUBSCRIPTION_BYTES} bytes; use a pattern",
        )
    if any(not name or len(name.encode()) > MAX_TOPIC_NAME_BYTES for name in names):
        return refused(Refusal.INVALID_REQUEST, f"a topic name is empty or has more than {MAX_TOPIC_NAME_BYTES} bytes")
    if any(first >= second for first, second in pairwise(names)):
        return refused(Refusal.INVALID_REQUEST, "topic names of a subscription must ascend and differ")
    if len(subscription.pattern.encode()) > MAX_PATTERN_BYTES:
        return refused(Refusal.LIMIT_EXCEEDED, f"the pattern has more than {MAX_PATTERN_BYTES} bytes")
    try:
        state.topics.check_pattern(subscription.pattern)
    except PatternError as error:
        return refused(Refusal.INVALID_PATTERN, f"pattern {subscription.pattern!r} cannot be used: {error}")
    return None

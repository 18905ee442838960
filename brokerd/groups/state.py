# SPDX-License-Identifier: Apache-2.0
"""The state of one coordinator: its groups, and everything that decisions look at.

Owns the groups. `replay` is the only writer of durable state. It also keeps the soft state in step: a member that appears has a
session, one that is gone has none, and what may move on now waits for the next tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from brokerd.coordinator.core import Decision
from brokerd.groups.answers import Answer, GroupState, Outcome, ReconciliationState, Refusal, Refused
from brokerd.groups.effects import Effect
from brokerd.groups.group import Group, Member
from brokerd.groups.limits import PENDING_OFFSETS_MS
from brokerd.groups.reconciliation import effective_target, is_reached
from brokerd.groups.records import (
    CurrentRecord,
    GroupLogRecord,
    GroupRecord,
    GroupValue,
    MemberRecord,
    MemberValue,
    OffsetRecord,
    OffsetValue,
    Partitions,
    PendingRecord,
    Subscription,
    TargetRecord,
)
from brokerd.groups.sessions import OutcomeTimer, Sessions, Timer, TimerKind
from brokerd.groups.settings import GroupConfig
from brokerd.groups.subscriptions import Topics

GroupDecision = Decision[Answer, GroupLogRecord]
"""What a command or a tick of the group core leads to."""


class CoordinatorState:
    """Everything that a coordinator knows.

    Args:
        topics: topics of the cluster, and the meaning of subscriptions.
        defaults: config of groups that have none.
        unix_offset_ms: added to monotonic milliseconds it gives milliseconds since 1970.

    Attributes:
        groups: groups by id.
        topics: as given.
        sessions: soft state.
        configs: configs of groups that have one.
        defaults: as given, until they are changed.
    """

    def __init__(self, topics: Topics, *, defaults: GroupConfig, unix_offset_ms: int) -> None:
        self.groups: dict[str, Group] = {}
        self.topics = topics
        self.sessions = Sessions()
        self.configs: dict[str, GroupConfig] = {}
        self.defaults = defaults
        self._unix_offset_ms = unix_offset_ms
        self._groups_by_topic: dict[bytes, dict[str, int]] = {}

    @property
    def now_ms(self) -> int:
        """The time of the present decision, in monotonic milliseconds."""
        assert self.sessions.now_ms is not None, "a decision before the first time"
        return self.sessions.now_ms

    @property
    def unix_ms(self) -> int:
        """The time of the present decision, in milliseconds since 1970."""
        return self.now_ms + self._unix_offset_ms

    def config(self, group_id: str) -> GroupConfig:
        """Return the config of a group."""
        return self.configs.get(group_id, self.defaults)

    def session_ms(self, group_id: str, about: MemberValue) -> int:
        """Return the session of a member in milliseconds; that of its group, if its record names none."""
        return about.session_timeout_ms or self.config(group_id).session_timeout_ms

    def group(self, group_id: str) -> Group | None:
        """Return a group; None if it does not exist."""
        found = self.groups.get(group_id)
        return found if found is not None and found.value is not None else None

    def topics_with_offsets(self) -> tuple[bytes, ...]:
        """Return the ids of topics for which some group has an offset, committed or pending, ascending."""
        return tuple(sorted(self._groups_by_topic))

    def groups_with_offsets(self, topic_id: bytes) -> tuple[str, ...]:
        """Return the groups that have offsets of a topic, committed or pending, by id."""
        return tuple(sorted(self._groups_by_topic.get(topic_id, ())))

    def knows_topics_of(self, group: Group) -> bool:
        """Return True unless the group has seen newer metadata than this broker has; then nothing may be assigned or revoked."""
        return self.topics.is_loaded and self.topics.metadata_offset >= group.known_value.metadata_offset

    def may_reconcile(self, group: Group) -> bool:
        """Return True if members of the group may be assigned and revoked partitions."""
        return self.knows_topics_of(group) and not group.is_frozen

    def effective_target(self, member: Member, subscription: Subscription | None = None) -> Partitions:
        """Return the effective target of a member, or the one that it has with another subscription."""
        wanted = member.known_about.subscription if subscription is None else subscription
        return effective_target(member.target_partitions, self.topics.meaning(wanted))

    def raised(self, group: Group, subscriptions: Iterable[Subscription]) -> GroupValue:
        """Return the value of a group whose group epoch rises, with these subscriptions of members."""
        value = group.known_value
        risen = replace(value, group_epoch=value.group_epoch + 1)
        if not self.knows_topics_of(group):
            return risen
        return replace(risen, topics_digest=self.digest(subscriptions), metadata_offset=self.topics.metadata_offset)

    def digest(self, subscriptions: Iterable[Subscription]) -> bytes:
        """Return the digest of the topics that subscriptions mean."""
        wanted: set[bytes] = set()
        for subscription in subscriptions:
            wanted |= self.topics.meaning(subscription)
        return self.topics.digest(wanted)

    def state_of(self, group: Group) -> GroupState:
        """Return the state of a group that exists."""
        value = group.known_value
        members = tuple(group.present())
        if not members:
            return GroupState.EMPTY
        if value.group_epoch > value.target_epoch:
            return GroupState.ASSIGNING
        is_stable = all(self.state_of_member(group, each) is ReconciliationState.STABLE for each in members)
        return GroupState.STABLE if is_stable else GroupState.RECONCILING

    def state_of_member(self, group: Group, member: Member) -> ReconciliationState:
        """Return how far a member is."""
        current = member.known_current
        if current.revoking:
            return ReconciliationState.UNREVOKED
        if member.is_away:
            return ReconciliationState.STABLE
        target = self.effective_target(member) if self.knows_topics_of(group) else member.target_partitions
        is_there = is_reached(current, target, group.known_value.target_epoch)
        return ReconciliationState.STABLE if is_there else ReconciliationState.UNRELEASED

    def replay(self, record: GroupLogRecord) -> None:
        """Apply a record that the log has. Any earlier record of a key may be missing."""
        if record.value is None and record.group_id not in self.groups:
            return
        group = self.groups.setdefault(record.group_id, Group(record.group_id))
        match record:
            case GroupRecord():
                former_epoch = group.known_value.target_epoch
                group.value = record.value
                self._after_epoch(group, former_epoch)
            case MemberRecord():
                group.put_member(record.member_id, record.value)
                self._after_member(group, record.member_id)
            case TargetRecord():
                group.put_target(record.member_id, record.value)
            case CurrentRecord():
                released = group.put_current(record.member_id, record.value)
                self.sessions.wait(group.group_id, released)
                self._watch_revocation(group, record.member_id)
            case OffsetRecord():
                self._put_offset(group, record, record.value)
            case PendingRecord():
                self._put_pending(group, record)
        if group.is_unused:
            del self.groups[record.group_id]

    def begin(self) -> None:
        """Begin what is not durable: called with the first time after loading. Every member gets a whole session."""
        for group in self.groups.values():
            for member_id in group.members:
                self._after_member(group, member_id)
                self._watch_revocation(group, member_id)
            for ingest_id, number in sorted(group.pending):
                self._watch_outcome(OutcomeTimer(group.group_id, ingest_id, number))
            self._after_epoch(group, group.known_value.target_epoch)

    def _put_offset(self, group: Group, record: OffsetRecord, value: OffsetValue | None) -> None:
        key = (record.topic_id, record.partition)
        is_known = key in group.offsets
        if value is not None:
            group.offsets[key] = value
        elif is_known:
            del group.offsets[key]
        self._count_offset(group, record.topic_id, (value is not None) - is_known)

    def _put_pending(self, group: Group, record: PendingRecord) -> None:
        old = group.pending.get(record.pending_key)
        for each in () if old is None else old.offsets:
            self._count_offset(group, each.topic_id, -1)
        for each in () if record.value is None else record.value.offsets:
            self._count_offset(group, each.topic_id, 1)
        group.put_pending(record.pending_key, record.value)
        timer = OutcomeTimer(group.group_id, record.ingest_id, record.round)
        if record.value is None:
            self.sessions.outcomes.cancel(timer)
        elif old is None or old.ingest_epoch != record.value.ingest_epoch:
            self._watch_outcome(timer)

    def _watch_outcome(self, timer: OutcomeTimer) -> None:
        if self.sessions.now_ms is not None:
            self.sessions.outcomes.set(timer, self.now_ms + PENDING_OFFSETS_MS)

    def _count_offset(self, group: Group, topic_id: bytes, by: int) -> None:
        if by:
            counts = self._groups_by_topic.setdefault(topic_id, {})
            counts[group.group_id] = counts.get(group.group_id, 0) + by
            if not counts[group.group_id]:
                del counts[group.group_id]
            if not counts:
                del self._groups_by_topic[topic_id]

    def _after_member(self, group: Group, member_id: str) -> None:
        member = group.members.get(member_id)
        if member is None or member.about is None:
            self.sessions.drop(group.group_id, member_id)
            return
        timer = Timer(TimerKind.SESSION, group.group_id, member_id)
        if self.sessions.now_ms is not None and self.sessions.timers.deadline_of(timer) is None:
            self.sessions.timers.set(timer, self.now_ms + self.session_ms(group.group_id, member.about))

    def _watch_revocation(self, group: Group, member_id: str) -> None:
        if self.sessions.now_ms is None:
            return
        timer = Timer(TimerKind.REVOCATION, group.group_id, member_id)
        member = group.member(member_id)
        if member is None or not member.known_current.revoking:
            self.sessions.timers.cancel(timer)
        elif self.sessions.timers.deadline_of(timer) is None:
            # The member counts its limit from the moment at which it hears, which is at most a session later. It stops by itself then;
            # if it were removed earlier, it might not know, and two members would use what it keeps.
            limit_ms = member.known_about.processing_limit_ms + self.config(group.group_id).session_timeout_ms
            self.sessions.timers.set(timer, self.now_ms + limit_ms)

    def _after_epoch(self, group: Group, former_epoch: int) -> None:
        """Keep computations and their timer in step with the epochs of a group."""
        sessions, group_id, value = self.sessions, group.group_id, group.value
        timer = Timer(TimerKind.ASSIGNMENT, group_id)
        target_epoch = 0 if value is None else value.target_epoch
        if value is None or sessions.computing.get(group_id, target_epoch + 1) <= target_epoch:
            sessions.computing.pop(group_id, None)
        pending = sessions.pending.get(group_id)
        if pending is not None and (value is None or pending.group_epoch <= target_epoch):
            del sessions.pending[group_id]
        if sessions.now_ms is None:
            return
        if target_epoch != former_epoch:
            sessions.timers.cancel(timer)
            sessions.wait(group_id, tuple(group.members))
        if value is None or value.group_epoch <= target_epoch:
            sessions.timers.cancel(timer)
        elif sessions.timers.deadline_of(timer) is None:
            sessions.timers.set(timer, self.now_ms + self.config(group_id).assignment_interval_ms)


def decided(outcome: Outcome, records: Iterable[GroupLogRecord] = (), effects: Iterable[Effect] = ()) -> GroupDecision:
    """Return a decision with its answer."""
    return Decision(tuple(records), Answer(outcome=outcome, effects=tuple(effects)))


def refused(code: Refusal, message: str, retry_after_ms: int = 0) -> GroupDecision:
    """Return a decision that refuses and changes nothing."""
    return Decision((), Answer(outcome=Refused(code=code, message=message, retry_after_ms=retry_after_ms)))

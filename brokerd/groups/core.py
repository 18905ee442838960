# SPDX-License-Identifier: Apache-2.0
"""The group core of one coordinator: commands in, decisions out.

Owns the dispatch and the order of the work of a tick. It implements `brokerd.coordinator.core.Core`: the shell appends the records of a
decision, replays what the log accepted, and gives the answer when it is committed. The object is dropped with the leadership.
It does not read a clock, draw random numbers, wait or log.
Source: `docs/groups.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, assert_never

from brokerd.coordinator.core import Decision
from brokerd.groups import administration, membership, offsets, pending, targets
from brokerd.groups.answers import Answer, Noted
from brokerd.groups.commands import (
    AlterOffsets,
    AssignmentComputed,
    Beat,
    Command,
    CommitOffsets,
    ConfigChanged,
    DefaultsChanged,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    Join,
    Leave,
    ListGroups,
    PrepareOffsets,
    ResolveOffsets,
    StreamClosed,
    TopicsChanged,
)
from brokerd.groups.decision_room import DecisionRoom
from brokerd.groups.effects import Effect, Removal
from brokerd.groups.group import Group, Member
from brokerd.groups.limits import OFFSETS_SWEEP_MS, SWEEP_OFFSETS
from brokerd.groups.records import (
    CurrentRecord,
    GroupLogRecord,
    GroupRecord,
    MemberRecord,
    OffsetRecord,
    PendingRecord,
    TargetRecord,
)
from brokerd.groups.sessions import Timer, TimerKind
from brokerd.groups.settings import GroupConfig
from brokerd.groups.state import CoordinatorState, GroupDecision, decided
from brokerd.groups.subscriptions import PatternCompiler, Topics

DEFAULT_ASSIGNORS: Final = ("uniform", "range")
"""Names of assignors; the first is the default."""


class GroupCore:
    """The groups of one coordinator during one leadership.

    Args:
        compiler: returns the matcher of a pattern, and raises `PatternError` for a bad one.
        defaults: config of groups that have none.
        assignors: names of the assignors that members may prefer; the first is the default.
        unix_offset_ms: what makes milliseconds since 1970 of the monotonic time that decisions get.
    """

    def __init__(
        self,
        compiler: PatternCompiler,
        *,
        defaults: GroupConfig | None = None,
        assignors: Sequence[str] = DEFAULT_ASSIGNORS,
        unix_offset_ms: int = 0,
    ) -> None:
        self._assignors = tuple(assignors)
        self._state = CoordinatorState(
            Topics(compiler), defaults=defaults or GroupConfig(), unix_offset_ms=unix_offset_ms
        )

    @property
    def state(self) -> CoordinatorState:
        """The state. Callers must not change it."""
        return self._state

    def topics_with_offsets(self) -> tuple[bytes, ...]:
        """Return the topics with offsets, so that the shell can look after loading which of them were deleted."""
        return self._state.topics_with_offsets()

    def decide(self, command: Command, now_ms: int) -> GroupDecision:
        """Return the decision about a command, without changing durable state.

        Args:
            command: the command.
            now_ms: monotonic time in milliseconds.
        """
        self._note_time(now_ms)
        state = self._state
        match command:
            case Beat():
                return membership.beat(state, self._assignors, command)
            case CommitOffsets():
                return offsets.commit(state, command)
            case FetchOffsets():
                return offsets.fetch(state, command)
            case PrepareOffsets():
                return pending.prepare(state, command)
            case ResolveOffsets():
                return pending.resolve(state, command)
            case Join():
                return membership.join(state, self._assignors, command)
            case Leave():
                return membership.leave(state, command)
            case AssignmentComputed():
                return targets.store(state, command)
            case StreamClosed():
                state.sessions.close_stream(command.stream)
                return decided(Noted())
            case TopicsChanged():
                return self._change_topics(command)
            case ConfigChanged():
                return self._change_config(command)
            case DefaultsChanged():
                self._state.defaults = command.config
                return decided(Noted())
            case AlterOffsets():
                return offsets.alter(state, command)
            case DeleteOffsets():
                return offsets.delete(state, command)
            case DeleteGroup():
                return administration.delete_group(state, command)
            case ListGroups():
                return administration.list_groups(state, command)
            case DescribeGroup():
                return administration.describe(state, command, self._assignors[0])
            case _:
                assert_never(command)

    def replay(self, record: GroupLogRecord) -> None:
        """Apply a record that the log has: the only way to change durable state."""
        self._state.replay(record)

    def deadline_ms(self) -> int | None:
        """Return the monotonic time in milliseconds at which `tick` has something to decide; None: nothing is due."""
        sessions = self._state.sessions
        if sessions.now_ms is None:
            return 0
        if sessions.has_work():
            return sessions.now_ms
        deadlines = (sessions.timers.next_ms(), sessions.outcomes.next_ms(), sessions.next_sweep_ms)
        return min((each for each in deadlines if each is not None), default=None)

    def tick(self, now_ms: int) -> Decision[Answer, GroupLogRecord] | None:
        """Decide about what is due, without changing durable state; None: nothing.

        A decision concerns each group once, because it does not see its own records. What is left makes `deadline_ms` lie in the past.
        """
        self._note_time(now_ms)
        work = _TickWork()
        for group, due in self._due():
            if work.room.is_full:
                break
            self._run_timers(work, group, due)
        self._write_targets(work)
        self._compare_topics(work)
        self._push(work)
        self._delete_topics(work)
        self._sweep(work)
        work.effects += pending.ask_outcomes(self._state)
        if not work.records and not work.effects:
            return None
        return decided(Noted(), work.records, work.effects)

    def records(self) -> Iterator[GroupLogRecord]:
        """Yield the durable state as records, in an order that depends on the state alone."""
        for group_id in sorted(self._state.groups):
            group = self._state.groups[group_id]
            if group.value is not None:
                yield GroupRecord(group_id, group.value)
            for member_id in sorted(group.members):
                member = group.members[member_id]
                if member.about is not None:
                    yield MemberRecord(group_id, member_id, member.about)
                if member.target is not None:
                    yield TargetRecord(group_id, member_id, member.target)
                if member.current is not None:
                    yield CurrentRecord(group_id, member_id, member.current)
            for topic_id, partition in sorted(group.offsets):
                yield OffsetRecord(group_id, topic_id, partition, group.offsets[topic_id, partition])
            for key in sorted(group.pending):
                yield PendingRecord(group_id, key.ingest_id, key.round, group.pending[key])

    def _note_time(self, now_ms: int) -> None:
        sessions = self._state.sessions
        if sessions.now_ms is None:
            sessions.now_ms = now_ms
            sessions.next_sweep_ms = now_ms + OFFSETS_SWEEP_MS
            self._state.begin()
        sessions.now_ms = max(sessions.now_ms, now_ms)

    def _change_topics(self, command: TopicsChanged) -> GroupDecision:
        topics, sessions = self._state.topics, self._state.sessions
        was_behind = [each for each in self._state.groups.values() if not self._state.knows_topics_of(each)]
        is_changed = topics.change(
            command.metadata_offset, command.topics, command.deleted, is_complete=command.is_complete
        )
        if topics.metadata_offset == command.metadata_offset:
            sessions.deleted_topics.update(dict.fromkeys(sorted(command.deleted)))
        affected = self._state.groups.values() if is_changed else was_behind
        for group in affected:
            if group.members:
                sessions.changed_topics[group.group_id] = None
                sessions.wait(group.group_id, tuple(group.members))
        return decided(Noted())

    def _change_config(self, command: ConfigChanged) -> GroupDecision:
        if command.config is None:
            self._state.configs.pop(command.group_id, None)
        else:
            self._state.configs[command.group_id] = command.config
        return decided(Noted())

    def _due(self) -> list[tuple[Group, list[Timer]]]:
        """Return the timers that are due, by group. Those of former members and groups are dropped."""
        sessions = self._state.sessions
        by_group: dict[str, list[Timer]] = {}
        for timer in sessions.timers.due(self._state.now_ms):
            group = self._state.group(timer.group_id)
            if group is None:
                sessions.timers.cancel(timer)
                sessions.drop(timer.group_id, timer.member_id)
            elif timer.member_id and group.member(timer.member_id) is None:
                sessions.drop(timer.group_id, timer.member_id)
            else:
                by_group.setdefault(timer.group_id, []).append(timer)
        return [(self._state.groups[group_id], due) for group_id, due in by_group.items()]

    def _run_timers(self, work: _TickWork, group: Group, due: list[Timer]) -> None:
        reasons = {TimerKind.SESSION: Removal.SESSION_ENDED, TimerKind.REVOCATION: Removal.REVOCATION_LIMIT}
        removed: dict[str, tuple[Member, Removal]] = {}
        for timer in due:
            member = group.member(timer.member_id)
            if member is not None and timer.member_id not in removed:
                removed[timer.member_id] = (member, reasons[timer.kind])
        if removed:
            records, effects = membership.remove_due(self._state, group, list(removed.values()), work.room)
            work.add(group.group_id, records, effects)
        elif any(timer.kind is TimerKind.ASSIGNMENT for timer in due):
            effect = targets.ask(self._state, group, self._assignors[0])
            work.effects += [] if effect is None else [effect]

    def _write_targets(self, work: _TickWork) -> None:
        for group_id, target in list(self._state.sessions.pending.items()):
            group = self._state.group(group_id)
            if group is None:
                del self._state.sessions.pending[group_id]
            elif work.has_room_for(group_id):
                records, _ = targets.write(group, target, work.room)
                work.add(group_id, records)

    def _compare_topics(self, work: _TickWork) -> None:
        """Raise the epoch of groups whose topics are no longer those of their group epoch."""
        sessions = self._state.sessions
        for group_id in list(sessions.changed_topics):
            if not work.has_room_for(group_id):
                continue
            del sessions.changed_topics[group_id]
            group = self._state.group(group_id)
            if group is None or not group.members or not self._state.knows_topics_of(group):
                continue
            if self._state.digest(group.subscriptions) != group.known_value.topics_digest:
                # Kept until the record is there: a refused append must not lose the change.
                sessions.changed_topics[group_id] = None
                record = GroupRecord(group_id, self._state.raised(group, group.subscriptions))
                work.add(group_id, [record] if work.room.take([record]) else [])

    def _push(self, work: _TickWork) -> None:
        sessions = self._state.sessions
        for group_id in list(sessions.waiting):
            group = self._state.group(group_id)
            if group is None or not self._state.may_reconcile(group):
                # It waits no longer: when the obstacle goes, all its members are looked at.
                del sessions.waiting[group_id]
                continue
            if not work.has_room_for(group_id):
                continue
            waiting = sessions.waiting[group_id]
            records, effects, seen = membership.push(self._state, group, list(waiting), work.room)
            for member_id in seen:
                del waiting[member_id]
            if not waiting:
                del sessions.waiting[group_id]
            work.add(group_id, records, effects)

    def _delete_topics(self, work: _TickWork) -> None:
        sessions = self._state.sessions
        for topic_id in list(sessions.deleted_topics):
            groups = self._state.groups_with_offsets(topic_id)
            if not groups:
                del sessions.deleted_topics[topic_id]
            elif not work.room.is_full:
                # Offsets depend on no other record of a group, so that the groups are not counted as changed.
                work.records += offsets.of_deleted_topic(self._state, topic_id, work.room)
        if sessions.deleted_topics and not work.room.is_full:
            work.records += pending.without_topics(self._state, sessions.deleted_topics, work.room)

    def _sweep(self, work: _TickWork) -> None:
        """Look for expired offsets, and for groups that hold nothing, some groups at a time."""
        sessions = self._state.sessions
        if sessions.next_sweep_ms is not None and self._state.now_ms >= sessions.next_sweep_ms:
            sessions.next_sweep_ms = self._state.now_ms + OFFSETS_SWEEP_MS
            # Configs come before the topics, and only they say how long offsets are kept.
            sessions.sweep = sorted(self._state.groups, reverse=True) if self._state.topics.is_loaded else []
            sessions.forget_departed()
            sessions.forget_resolved()
            used = (each.pattern for group in self._state.groups.values() for each in group.subscriptions)
            self._state.topics.forget_patterns(frozenset(used))
        looked_at = 0
        while sessions.sweep and looked_at < SWEEP_OFFSETS and not work.room.is_full:
            group = self._state.group(sessions.sweep[-1])
            if group is not None:
                looked_at += 1 + len(group.offsets)
                if group.group_id in work.groups:
                    break
                records, effect = offsets.expire(self._state, group, work.room)
                if records:
                    # The group is looked at again, until nothing of it is due.
                    work.add(group.group_id, records, [] if effect is None else [effect])
                    break
            sessions.sweep.pop()


class _TickWork:
    """What one tick has collected: records and effects of groups, each of which comes once."""

    def __init__(self) -> None:
        self.records: list[GroupLogRecord] = []
        self.effects: list[Effect] = []
        self.groups: dict[str, None] = {}
        self.room = DecisionRoom()

    def has_room_for(self, group_id: str) -> bool:
        return not self.room.is_full and group_id not in self.groups

    def add(self, group_id: str, records: Sequence[GroupLogRecord], effects: Sequence[Effect] = ()) -> None:
        if records:
            self.groups[group_id] = None
        self.records += records
        self.effects += effects

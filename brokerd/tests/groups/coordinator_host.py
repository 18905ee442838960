# SPDX-License-Identifier: Apache-2.0
"""A coordinator in virtual time: a group core with its log, as the runtime drives it, and an assignor for it.

Every record goes through the codec, and a failover loads a compacted subset of what was committed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from brokerd.coordinator.core import Record
from brokerd.groups.answers import Answer, FetchedOffsets, MemberState, OffsetResults, Outcome, Refusal, Refused
from brokerd.groups.codec import decode, encode
from brokerd.groups.commands import (
    AssignmentComputed,
    Beat,
    Command,
    CommitOffsets,
    FetchOffsets,
    Join,
    OffsetCommit,
    TopicsChanged,
)
from brokerd.groups.core import GroupCore
from brokerd.groups.effects import ComputeAssignment, Effect, PushAssignment
from brokerd.groups.group import Group, Member
from brokerd.groups.records import GroupLogRecord, Partitions, Subscription
from brokerd.groups.settings import GroupConfig
from brokerd.groups.subscriptions import NameMatcher, PatternError, Topic

UNIX_OFFSET_MS = 1_700_000_000_000


def compiler(pattern: str) -> NameMatcher:
    """Return a matcher of names: `prefix.*`, or a whole name. "(" is no pattern."""
    if "(" in pattern:
        raise PatternError("missing closing )")
    if pattern.endswith(".*"):
        return lambda name: name.startswith(pattern[:-2])
    return lambda name: name == pattern


def topic(name: str, partition_count: int = 1, number: int | None = None) -> Topic:
    """Return a topic whose id follows from the number, or from the name."""
    topic_id = (name if number is None else f"{name}#{number}").encode().ljust(16, b".")
    return Topic(topic_id=topic_id, name=name, partition_count=partition_count, is_internal=name.startswith("__"))


def assign(effect: ComputeAssignment) -> dict[str, dict[bytes, tuple[int, ...]]]:
    """Return a sticky, even assignment: a stand-in that needs no more than the effect."""
    wanted = {member.member_id: member.topics for member in effect.members}
    given: dict[str, list[tuple[bytes, int]]] = {member_id: [] for member_id in sorted(wanted)}
    free: list[tuple[bytes, int]] = []
    owner: dict[tuple[bytes, int], str] = {}
    for member in effect.members:
        for topic_id, numbers in member.owned.items():
            for number in numbers:
                owner.setdefault((topic_id, number), member.member_id)
    for topic_id, spec in effect.topics.items():
        for number in range(spec.partition_count):
            member_id = owner.get((topic_id, number), "")
            if topic_id in wanted.get(member_id, ()):
                given[member_id].append((topic_id, number))
            else:
                free.append((topic_id, number))
    for each in free:
        subscribers = [member_id for member_id in given if each[0] in wanted[member_id]]
        given[min(subscribers, key=lambda member_id: (len(given[member_id]), member_id))].append(each)
    while _move_one(given, wanted):
        pass
    return {member_id: _by_topic(partitions) for member_id, partitions in given.items()}


def _move_one(given: dict[str, list[tuple[bytes, int]]], wanted: dict[str, frozenset[bytes]]) -> bool:
    by_size = sorted(given, key=lambda member_id: (len(given[member_id]), member_id))
    for small in by_size:
        for big in reversed(by_size):
            if len(given[big]) < len(given[small]) + 2:
                break
            for each in sorted(given[big], reverse=True):
                if each[0] in wanted[small]:
                    given[big].remove(each)
                    given[small].append(each)
                    return True
    return False


def _by_topic(partitions: Iterable[tuple[bytes, int]]) -> dict[bytes, tuple[int, ...]]:
    found: dict[bytes, tuple[int, ...]] = {}
    for topic_id, number in sorted(partitions):
        found[topic_id] = (*found.get(topic_id, ()), number)
    return found


@dataclass(slots=True)
class Batch:
    """Records of one decision, and the command that led to it (None: a tick)."""

    command: Command | None
    records: tuple[Record, ...]


def compacted(batches: Iterable[Batch], rng: random.Random) -> list[Record]:
    """Return what a compaction at any moment may have left of a log: the last record of each key, and any of the earlier ones.

    A tombstone may be gone when nothing older of its key is left.
    """
    whole = [record for batch in batches for record in batch.records]
    last = {record.key: index for index, record in enumerate(whole)}
    kept = {index for index in range(len(whole)) if rng.random() < 0.3} | set(last.values())
    oldest: dict[bytes, int] = {}
    for index in sorted(kept):
        oldest.setdefault(whole[index].key, index)
    for key in sorted(last):
        if oldest[key] == last[key] and whole[last[key]].value is None and rng.random() < 0.5:
            kept.discard(last[key])
    return [whole[index] for index in sorted(kept)]


class CoordinatorHost:
    """One coordinator, whose log is committed at once.

    Attributes:
        core: the present core.
        log: batches.
        now_ms: virtual time.
        effects: effects that were not handled.
        computing: True: assignments are computed as soon as they are asked for.
    """

    def __init__(self, *topics: Topic, config: GroupConfig | None = None) -> None:
        self.config = config or GroupConfig()
        self.log: list[Batch] = []
        self.now_ms = 1_000
        self.effects: list[Effect] = []
        self.computing = True
        self.metadata_offset = 0
        self.topics = {each.topic_id: each for each in topics}
        self.on_decision: Callable[[GroupCore, Command | None, tuple[GroupLogRecord, ...]], None] | None = None
        self.core = self._new_core()
        self.core.tick(self.now_ms)
        self.tell_topics()

    def _new_core(self) -> GroupCore:
        return GroupCore(compiler, defaults=self.config, unix_offset_ms=UNIX_OFFSET_MS)

    def do(self, command: Command) -> Outcome:
        """Decide about a command, append, and return the outcome. Effects are collected."""
        decision = self.core.decide(command, self.now_ms)
        return self._take(command, decision.records, decision.response).outcome

    def tick(self) -> bool:
        """Run one tick. Return True if it decided anything."""
        decision = self.core.tick(self.now_ms)
        if decision is None:
            return False
        self._take(None, decision.records, decision.response)
        return True

    def run(self, milliseconds: int = 0) -> None:
        """Let time pass, with every tick that is due."""
        end_ms = self.now_ms + milliseconds
        for _ in range(10_000):
            deadline_ms = self.core.deadline_ms()
            if deadline_ms is None or deadline_ms > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms = max(self.now_ms, deadline_ms)
            self.tick()
        raise AssertionError("ticks without end")

    def _take(self, command: Command | None, records: tuple[GroupLogRecord, ...], answer: Answer) -> Answer:
        assert len(records) <= 4_096, "more records than the runtime takes"
        if self.on_decision is not None:
            self.on_decision(self.core, command, records)
        coded = tuple(map(encode, records))
        assert tuple(map(decode, coded)) == records
        for record in coded:
            self.core.replay(decode(record))
        if coded:
            self.log.append(Batch(command, coded))
        for effect in answer.effects:
            if isinstance(effect, ComputeAssignment) and self.computing:
                self.compute(effect)
            else:
                self.effects.append(effect)
        return answer

    def compute(self, effect: ComputeAssignment) -> Outcome:
        """Run the assignor and give the result back."""
        return self.do(
            AssignmentComputed(group_id=effect.group_id, group_epoch=effect.group_epoch, assignment=assign(effect))
        )

    def tell_topics(self, *deleted: bytes) -> None:
        """Hand in all topics, and ids that are known to be deleted."""
        self.metadata_offset += 1
        self.do(
            TopicsChanged(
                metadata_offset=self.metadata_offset,
                topics=tuple(self.topics.values()),
                deleted=deleted,
                is_complete=True,
            )
        )

    def put_topic(self, *topics: Topic) -> None:
        """Create or change topics."""
        self.topics.update((each.topic_id, each) for each in topics)
        self.tell_topics()

    def delete_topic(self, gone: Topic) -> None:
        """Delete a topic."""
        del self.topics[gone.topic_id]
        self.tell_topics(gone.topic_id)

    def fail_over(self, seed: int = 0, *, with_topics: bool = True) -> None:
        """Drop the core and load another one from a compacted log."""
        self.core = loaded(self._new_core(), compacted(self.log, random.Random(seed)))
        self.core.tick(self.now_ms)
        if with_topics:
            self.tell_topics()

    def group(self, group_id: str = "g") -> Group:
        """Return a group that exists."""
        found = self.core.state.group(group_id)
        assert found is not None, f"no group {group_id}"
        return found

    def member(self, member_id: str, group_id: str = "g") -> Member:
        """Return a member."""
        found = self.group(group_id).member(member_id)
        assert found is not None, f"no member {member_id}"
        return found

    def pushes(self) -> list[PushAssignment]:
        """Return the assignments pushed so far."""
        return [each for each in self.effects if isinstance(each, PushAssignment)]

    def join(self, member_id: str, *names: str, group_id: str = "g", **more: object) -> MemberState:
        """Join, and return the state."""
        subscription = Subscription(tuple(sorted(names)))
        outcome = self.do(Join(**{"group_id": group_id, "member_id": member_id, "subscription": subscription, **more}))
        assert isinstance(outcome, MemberState), outcome
        return outcome

    def beat(self, member_id: str, group_id: str = "g", **more: object) -> MemberState:
        """Beat as a member that knows everything, and return the state."""
        outcome = self.try_beat(member_id, group_id, **more)
        assert isinstance(outcome, MemberState), outcome
        return outcome

    def try_beat(self, member_id: str, group_id: str = "g", **more: object) -> Outcome:
        """Beat, by default with the present epoch, number and assignment, and return the outcome."""
        found = self.core.state.groups.get(group_id)
        member = None if found is None else found.member(member_id)
        session = self.core.state.sessions.get(group_id, member_id)
        known: dict[str, object] = {"member_epoch": 1, "assignment_number": session.sent_number or 0}
        if member is not None:
            known["member_epoch"] = member.known_current.member_epoch
            known["owned"] = {each: tuple(numbers) for each, numbers in member.known_current.assigned.items()}
        return self.do(Beat(**{"group_id": group_id, "member_id": member_id, **known, **more}))

    def settle(self, *member_ids: str, rounds: int = 4, group_id: str = "g") -> None:
        """Let the targets be computed, and the members beat until each has what it gets."""
        self.run(self.config.assignment_interval_ms)
        for _ in range(rounds):
            for member_id in member_ids:
                self.beat(member_id, group_id)
            self.run()

    def commit(self, topic_id: bytes, partition: int, offset: int, **more: object) -> Refusal | None:
        """Commit one offset. Return why it was refused, or None."""
        offsets = (OffsetCommit(topic_id=topic_id, partition=partition, offset=offset),)
        outcome = self.do(CommitOffsets(**{"group_id": "g", "offsets": offsets, **more}))
        if isinstance(outcome, Refused):
            return outcome.code
        assert isinstance(outcome, OffsetResults)
        return None if outcome.results[0].refused is None else outcome.results[0].refused.code

    def committed(self, topic_id: bytes, partition: int, group_id: str = "g") -> int | None:
        """Return the committed offset of a partition; None: positively none."""
        outcome = self.do(FetchOffsets(group_id=group_id, partitions=((topic_id, partition),)))
        assert isinstance(outcome, FetchedOffsets)
        value = outcome.offsets[0].value
        return None if value is None else value.offset


def loaded(core: GroupCore, records: Iterable[Record]) -> GroupCore:
    """Replay records into a core, and return it."""
    for record in records:
        core.replay(decode(record))
    return core


def assigned(member: Member) -> Partitions:
    """Return what a member may use."""
    return {topic_id: tuple(numbers) for topic_id, numbers in member.known_current.assigned.items()}


def refusal(outcome: Outcome) -> Refusal:
    """Return the code of a refusal."""
    assert isinstance(outcome, Refused), outcome
    return outcome.code


def indexes(core: GroupCore) -> list[object]:
    """Return everything that is derived of the records, in a form that can be compared."""
    found: list[object] = [core.topics_with_offsets()]
    for group_id in sorted(core.state.groups):
        group = core.state.groups[group_id]
        found += [group_id, sorted(group.subscriptions), group.is_frozen]
        found += [sorted(each.member_id for each in group.present())]
        for member in group.present():
            instance_id = member.known_about.instance_id
            holder = None if instance_id is None else group.member_of_instance(instance_id)
            found.append(None if holder is None else holder.member_id)
            for topic_id, numbers in member.target_partitions.items():
                found += [(topic_id, number, group.is_free(topic_id, number)) for number in numbers]
        found += [sorted(group.offsets.items(), key=lambda each: each[0])]
        found += [[core.state.groups_with_offsets(each) for each in core.topics_with_offsets()]]
    return found

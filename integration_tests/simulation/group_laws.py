# SPDX-License-Identifier: Apache-2.0
"""The laws of groups in the world, over three views: the committed log of `__groups`, the answers of coordinators, and the members.

Owns the state that the committed log of `__groups` gives (each record once, in order, whichever replica shows it first), and what the
members hold, deliver and have processed. It looks at nothing that a coordinator keeps for itself.

Laws
    one holder: in the committed state no partition is assigned to, or being revoked by, two members. A pair of partition and
        assignment epoch never belongs to two members. Member epoch <= target epoch <= group epoch.
    undisturbed: a partition that a member has and keeps in its target stays assigned under the same assignment epoch.
    offsets: an offset that was acknowledged to an application never moves back. A committed offset is never deleted, and never above
        what applications have processed.
    committed first: an acknowledged commit is in the committed state; a fetch names nothing that is not.
    one owner: no member begins a partition that another one may still deliver, and nobody delivers what another one has begun.
    no loss without need: a member that an answer deprives of partitions is none in the committed state.
    nothing skipped: a member begins at or below what the group has processed, at or above what was acknowledged, and delivers every
        offset from there on.
    stable: `STABLE_MS_MAX` after the last fault every partition has an owner who reads it, and from then on nobody loses or gives up
        anything.

Source: docs/groups.md "Invariants".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from unittest import mock

from lograft._groups.member import GroupMember
from lograft._groups.membership import Phase
from lograft._groups.offsets import GroupOffsets
from lograft.types import OffsetAndMetadata
from lograft.v1 import group_pb2

from brokerd.coordinator.core import Record
from brokerd.groups.answers import FetchedOffsets, OffsetResults, Outcome
from brokerd.groups.codec import decode
from brokerd.groups.commands import Command, CommitOffsets, FetchOffsets
from brokerd.groups.coordinators import GroupCoordinators
from brokerd.groups.records import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    CurrentRecord,
    CurrentValue,
    GroupLogRecord,
    GroupRecord,
    GroupValue,
    MemberRecord,
    OffsetRecord,
    PendingRecord,
    TargetRecord,
    TargetValue,
)
from integration_tests.simulation.ingest_laws import GROUP_PREFIX, IngestLaws
from metaquorum.testing.invariants import InvariantViolation, require
from metaquorum.testing.scheduler import Scheduler

Key = tuple[bytes, int]
"""Topic id and partition."""

Place = tuple[str, bytes, int]
"""Group, topic id, partition."""

STABLE_MS_MAX: Final = 60_000
"""Maximum virtual milliseconds from the last fault to a stable assignment: a session, the silence limits of dead connections, and
the pauses between attempts."""


class MemberView(Protocol):
    """A member, as the laws see it."""

    name: str
    group: str

    def may_deliver(self, key: Key) -> bool:
        """Return True if its client still hands out records of a partition, now or when its process goes on."""
        ...

    @property
    def held(self) -> frozenset[Key]:
        """Partitions that it reads."""
        ...

    @property
    def member_id(self) -> str:
        """Its member id; empty while it is away from the group, leaves it, or its application stalls or waits for a commit."""
        ...

    @property
    def heard_ms(self) -> int:
        """Virtual time at which it sent the last beat that was answered; -1: none was."""
        ...

    @property
    def is_alive(self) -> bool:
        """True until its process has ended."""
        ...


@dataclass(slots=True)
class _Group:
    """The committed state of a group."""

    value: GroupValue | None = None
    currents: dict[str, CurrentValue] = field(default_factory=dict[str, CurrentValue])
    targets: dict[str, TargetValue] = field(default_factory=dict[str, TargetValue])
    offsets: dict[Key, int] = field(default_factory=dict[Key, int])
    owners: dict[tuple[bytes, int, int], str] = field(default_factory=dict[tuple[bytes, int, int], str])

    @property
    def is_frozen(self) -> bool:
        """True while a target is being written in several decisions."""
        epoch = 0 if self.value is None else self.value.target_epoch
        return any(target.target_epoch > epoch for target in self.targets.values())


class GroupLaws:
    """Checks groups. Only its own methods write its state."""

    def __init__(self, scheduler: Scheduler, counts: Counter[str], ingests: IngestLaws) -> None:
        self._scheduler = scheduler
        self._ingests = ingests
        self._counts = counts
        self._groups: dict[str, _Group] = {}
        self._acked: dict[Place, int] = {}
        self._processed: dict[Place, int] = {}
        self._owner: dict[Place, MemberView] = {}
        # Next offset of each partition that a member has begun.
        self._next: dict[tuple[MemberView, Key], int] = {}
        self._values: dict[tuple[Key, int], bytes] = {}
        self._members: list[MemberView] = []
        self.violation: InvariantViolation | None = None
        self.stable_groups: set[str] = set()
        self.healed_ms: int | None = None

    def throw_away(self) -> None:
        """Release all members."""
        self._owner.clear()
        self._next.clear()
        self._members.clear()
        self.violation = None

    @contextmanager
    def noting(self) -> Generator[None]:
        """Keep a violation for the world: an exception here would look to the code under test like a fault of its own."""
        try:
            yield
        except InvariantViolation as violation:
            self.violation = self.violation or violation

    # What coordinators and clients say.

    @contextmanager
    def watching(self) -> Generator[None]:
        """Check every answer of a coordinator, and note every commit that a client knows to be stored."""
        submit_to: Callable[..., Any] = GroupCoordinators.submit_to
        commit: Callable[..., Any] = GroupOffsets.commit
        on_active: Callable[..., None] = GroupCoordinators._on_active  # pyright: ignore[reportPrivateUsage]
        hear: Callable[[GroupMember, group_pb2.GroupMemberState], None] = GroupMember.hear

        async def watched_submit_to(
            owner: GroupCoordinators, partition: int, command: Command, **arguments: Any
        ) -> Outcome:
            outcome: Outcome = await submit_to(owner, partition, command, **arguments)
            with self.noting():
                self._on_answer(command, outcome)
            return outcome

        def watched_commit(
            owner: GroupOffsets, offsets: Mapping[Key, OffsetAndMetadata], **arguments: Any
        ) -> Coroutine[Any, Any, None]:
            ended: Coroutine[Any, Any, None] = commit(owner, offsets, **arguments)

            async def watched() -> None:
                await ended
                group = owner._group_id  # pyright: ignore[reportPrivateUsage]
                self._counts["group commit acknowledged"] += 1
                for key, offset in offsets.items():
                    place = (group, *key)
                    self._acked[place] = max(self._acked.get(place, 0), offset.offset)

            return watched()

        def watched_hear(member: GroupMember, state: group_pb2.GroupMemberState) -> None:
            had = member.held if member.phase is Phase.MEMBER else ()
            hear(member, state)
            if had and member.phase is not Phase.MEMBER and member.phase is not Phase.LEAVING:
                group = self._groups.get(member.group_id)
                is_known = group is not None and member.identity.member_id in group.currents
                with self.noting():
                    law = "a member that was not removed loses nothing"
                    require(not is_known, law, (member.identity, had, state.error.message))

        def watched_on_active(owner: GroupCoordinators, partition: int, is_active: bool) -> None:
            on_active(owner, partition, is_active)
            found = owner._runtime.find(partition)  # pyright: ignore[reportPrivateUsage]
            if is_active and found is not None:
                self._counts["coordinator loaded"] += 1
                self._counts["coordinator loaded from a snapshot"] += found.is_last_load_from_snapshot

        with (
            mock.patch.object(GroupCoordinators, "_on_active", watched_on_active),
            mock.patch.object(GroupMember, "hear", watched_hear),
            mock.patch.object(GroupCoordinators, "submit_to", watched_submit_to),
            mock.patch.object(GroupOffsets, "commit", watched_commit),
        ):
            yield

    def _on_answer(self, command: Command, outcome: Outcome) -> None:
        if isinstance(command, CommitOffsets) and isinstance(outcome, OffsetResults):
            for sent, result in zip(command.offsets, outcome.results, strict=True):
                if result.refused is None:
                    committed = self.committed(command.group_id, (sent.topic_id, sent.partition))
                    law = "an acknowledged commit is committed"
                    require(committed is not None and committed >= sent.offset, law, (command, committed))
                else:
                    self._counts[f"group commit refused: {result.refused.code.name}"] += 1
        elif isinstance(command, FetchOffsets) and isinstance(outcome, FetchedOffsets):
            for each in outcome.offsets:
                committed = self.committed(command.group_id, (each.topic_id, each.partition))
                if each.value is not None:
                    law = "a fetch names what is committed"
                    require(committed is not None and each.value.offset <= committed, law, (command, each, committed))

    # The committed log.

    def committed(self, group_id: str, key: Key) -> int | None:
        """Return the committed offset of a partition; None: there is none."""
        group = self._groups.get(group_id)
        return None if group is None else group.offsets.get(key)

    def on_committed(self, records: Iterable[Record]) -> None:
        """Take the records of one committed batch of `__groups`, in the order of the log."""
        found = list(map(decode, records))
        before: dict[str, dict[str, CurrentValue]] = {}
        for record in found:
            group = self._groups.setdefault(record.group_id, _Group())
            before.setdefault(record.group_id, dict(group.currents))
            self._apply(group, record)
        for group_id, currents in before.items():
            self._check(group_id, self._groups[group_id], currents)

    def _apply(self, group: _Group, record: GroupLogRecord) -> None:
        match record:
            case GroupRecord():
                group.value = record.value
                if record.value is None:
                    # A group that was deleted begins anew at epoch 1.
                    group.owners.clear()
            case MemberRecord():
                pass
            case TargetRecord():
                _put(group.targets, record.member_id, record.value)
            case CurrentRecord():
                _put(group.currents, record.member_id, record.value)
            case OffsetRecord():
                self._apply_offset(group, record)
            case PendingRecord():
                pass

    def _apply_offset(self, group: _Group, record: OffsetRecord) -> None:
        key = (record.topic_id, record.partition)
        require(record.value is not None, "a committed offset is not deleted", record)
        assert record.value is not None
        offset = record.value.offset
        if record.group_id.startswith(GROUP_PREFIX):
            self._ingests.on_group_offset(record.group_id, key, offset)
            group.offsets[key] = offset
            return
        known, acked = group.offsets.get(key, 0), self._acked.get((record.group_id, *key), 0)
        # This holds for unacknowledged offsets too: a member that gets a partition back has it at a new epoch, so its late commits
        # are refused.
        require(offset >= max(known, acked), "a committed offset does not move back", (record, known, acked))
        processed = self._processed.get((record.group_id, *key), 0)
        require(offset <= processed, "only what was processed is committed", (record, processed))
        group.offsets[key] = offset

    def _check(self, group_id: str, group: _Group, before: Mapping[str, CurrentValue]) -> None:
        value = group.value or GroupValue()
        require(value.target_epoch <= value.group_epoch, "no target is newer than the group", (group_id, value))
        holders: dict[Key, str] = {}
        for member_id, current in group.currents.items():
            law = "no member is ahead of the target"
            require(current.member_epoch <= value.target_epoch, law, (group_id, member_id, current, value))
            for held in (current.assigned, current.revoking):
                for topic_id, numbers in held.items():
                    for number, epoch in numbers.items():
                        holder = holders.setdefault((topic_id, number), member_id)
                        require(holder == member_id, "one member holds a partition", (group_id, number, group.currents))
                        owner = group.owners.setdefault((topic_id, number, epoch), member_id)
                        law = "one member has a partition in an assignment epoch"
                        require(owner == member_id, law, (group_id, number, epoch, owner, member_id))
            old = before.get(member_id)
            if old is not None and old is not current and not group.is_frozen:
                self._check_kept(group_id, group, member_id, old, current)

    def _check_kept(self, group_id: str, group: _Group, member_id: str, old: CurrentValue, new: CurrentValue) -> None:
        target = group.targets.get(member_id)
        if new.previous_epoch == JOIN_EPOCH and old.member_epoch < new.member_epoch:
            # The member had lost its partitions without the coordinator's knowledge, and got them back at a new epoch.
            return
        if target is None or AWAY_EPOCH in (old.member_epoch, new.member_epoch):
            return
        for topic_id, numbers in old.assigned.items():
            for number, epoch in numbers.items():
                if number in target.partitions.get(topic_id, ()):
                    kept = new.assigned.get(topic_id, {}).get(number)
                    law = "a partition that a member keeps is not disturbed"
                    require(kept == epoch, law, (group_id, member_id, number, old, new))

    # The members.

    def joined(self, member: MemberView) -> None:
        """Take a member."""
        self._members.append(member)

    def members(self, group_id: str) -> list[MemberView]:
        """Return the members of a group that are alive."""
        return [each for each in self._members if each.group == group_id and each.is_alive]

    def begins(self, member: MemberView, key: Key, offset: int) -> None:
        """Note that a member reads a partition from an offset on."""
        place = (member.group, *key)
        for other in self._members:
            if other is not member and other.group == member.group and other.may_deliver(key):
                require(False, "a partition has one owner", (member.name, other.name, key[1]))
        processed, acked = self._processed.get(place, 0), self._acked.get(place, 0)
        require(offset <= processed, "nothing is skipped", (member.name, key[1], offset, processed))
        require(offset >= acked, "no committed offset is lost", (member.name, key[1], offset, acked))
        self._owner[place] = member
        self._next[member, key] = offset
        self._counts["group partition begun"] += 1
        self._counts["group record delivered again"] += processed - offset

    def ends(self, member: MemberView, keys: Sequence[Key], *, is_lost: bool) -> None:
        """Note that a member gives partitions up, or has lost them."""
        self._counts["group partition lost" if is_lost else "group partition revoked"] += len(keys)
        law = "a stable group takes nothing away"
        require(member.group not in self.stable_groups, law, (member.name, keys, is_lost))
        for key in keys:
            self._next.pop((member, key), None)

    def delivers(self, member: MemberView, key: Key, offset: int, value: bytes) -> None:
        """Note that the application of a member gets a record."""
        place = (member.group, *key)
        owner = self._owner.get(place)
        law = "only the owner delivers"
        require(owner is member, law, (member.name, None if owner is None else owner.name, key[1], offset))
        following = self._next.get((member, key))
        require(following == offset, "every offset is delivered", (member.name, key[1], offset, following))
        self._next[member, key] = offset + 1
        known = self._values.setdefault((key, offset), value)
        require(known == value, "a record is the same for everybody", (member.name, key[1], offset, known, value))

    def processed(self, member: MemberView, key: Key, offset: int) -> None:
        """Note that the application of a member is done with everything below an offset."""
        place = (member.group, *key)
        self._processed[place] = max(self._processed.get(place, 0), offset)

    # The end.

    def heal(self) -> None:
        """Note that there will be no further faults, and every partition has all its replicas in sync. Only the first call counts."""
        if self.healed_ms is None:
            self.healed_ms = self._scheduler.now_ms

    def look(self, group_id: str, keys: Sequence[Key]) -> bool:
        """Return True if each of these partitions has an owner who reads it; see the law `stable`."""
        members = self.members(group_id)
        held = [key for member in members for key in sorted(member.held)]
        is_stable = sorted(held) == sorted(keys) and self._is_settled(group_id, members)
        if is_stable and group_id not in self.stable_groups:
            self.stable_groups.add(group_id)
            assert self.healed_ms is not None, "a group is looked at in a healed world"
            took_ms = self._scheduler.now_ms - self.healed_ms
            self._counts["group stable after ms"] += took_ms
        if not is_stable and self.healed_ms is not None:
            late_ms = self._scheduler.now_ms - self.healed_ms
            law = "a group becomes stable"
            require(late_ms <= STABLE_MS_MAX, law, (group_id, [(each.name, sorted(each.held)) for each in members]))
        return is_stable

    def _is_settled(self, group_id: str, members: Sequence[MemberView]) -> bool:
        """Return True if the committed state knows exactly these members, all at the newest target, and all are in touch again."""
        if any(each.heard_ms < (self.healed_ms or 0) for each in members):
            return False
        group = self._groups.get(group_id)
        if group is None or group.value is None or group.value.target_epoch != group.value.group_epoch:
            return False
        return sorted(group.currents) == sorted(each.member_id for each in members) and all(
            current.member_epoch == group.value.target_epoch and not current.revoking
            for current in group.currents.values()
        )

    def is_done(self, group_id: str, ends: Mapping[Key, int]) -> bool:
        """Return True if everything is processed and committed."""
        return all((self.committed(group_id, key) or 0) == end for key, end in ends.items())

    def release(self, group_id: str) -> None:
        """Note that the members may leave."""
        self.stable_groups.discard(group_id)

    def lines(self) -> list[str]:
        """Return the state of the groups, for a report."""
        lines: list[str] = []
        for group_id, group in sorted(self._groups.items()):
            lines.append(f"  group {group_id}: {group.value} offsets={[*group.offsets.values()]}")
            for member_id, current in group.currents.items():
                lines.append(f"    {member_id[:8]} {current} target={group.targets.get(member_id)}")
        lines += [
            f"  member {member.name} of {member.group}: {[key[1] for key in sorted(member.held)]}"
            for member in self._members
            if member.is_alive
        ]
        return lines


def _put(values: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value

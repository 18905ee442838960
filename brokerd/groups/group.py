# SPDX-License-Identifier: Apache-2.0
"""One group: what its records say, and the indexes that follow from them.

Owns the state of a group. `put_…`, called by replay, are its only writers. Every index is a function of the values that are present,
whatever came before: while a compacted log is loaded, two members may seem to hold a partition, or a member may lack a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from brokerd.groups.records import (
    AWAY_EPOCH,
    CurrentValue,
    GroupValue,
    Held,
    MemberValue,
    OffsetValue,
    Partitions,
    PendingKey,
    PendingValue,
    Subscription,
    TargetValue,
)

NO_PARTITIONS: Partitions = {}
"""Nothing."""


@dataclass(slots=True)
class Member:
    """What the log says of a member. It is a member while `about` and `current` are present."""

    member_id: str
    about: MemberValue | None = None
    target: TargetValue | None = None
    current: CurrentValue | None = None

    @property
    def is_present(self) -> bool:
        """True for a member; False while parts are missing in a log that is being loaded."""
        return self.about is not None and self.current is not None

    @property
    def is_away(self) -> bool:
        """True for a static member that has left and will be back."""
        return self.current is not None and self.current.member_epoch == AWAY_EPOCH

    @property
    def known_about(self) -> MemberValue:
        """What a present member says about itself."""
        assert self.about is not None, f"{self.member_id} is no member"
        return self.about

    @property
    def known_current(self) -> CurrentValue:
        """The current assignment of a present member."""
        assert self.current is not None, f"{self.member_id} is no member"
        return self.current

    @property
    def target_partitions(self) -> Partitions:
        """Its target assignment."""
        return NO_PARTITIONS if self.target is None else self.target.partitions


class _Owners:
    """Members by partition. Usually one, but while a log is loaded it may be several."""

    def __init__(self) -> None:
        self._members: dict[bytes, dict[int, tuple[str, ...]]] = {}

    def add(self, member_id: str, partitions: Mapping[bytes, Iterable[int]]) -> None:
        for topic_id, numbers in partitions.items():
            members = self._members.setdefault(topic_id, {})
            for number in numbers:
                members[number] = (*members.get(number, ()), member_id)

    def remove(self, member_id: str, partitions: Mapping[bytes, Iterable[int]]) -> None:
        for topic_id, numbers in partitions.items():
            members = self._members[topic_id]
            for number in numbers:
                rest = tuple(each for each in members[number] if each != member_id)
                if rest:
                    members[number] = rest
                else:
                    del members[number]
            if not members:
                del self._members[topic_id]

    def of(self, topic_id: bytes, partition: int) -> tuple[str, ...]:
        members = self._members.get(topic_id)
        return () if members is None else members.get(partition, ())


class Group:
    """A group.

    Attributes:
        group_id: its id.
        value: its own record; None while there is none.
        members: members by id, in the order in which they came.
        offsets: committed offsets by topic id and partition.
        pending: offsets that wait for the decision of an ingest.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.value: GroupValue | None = None
        self.members: dict[str, Member] = {}
        self.offsets: dict[tuple[bytes, int], OffsetValue] = {}
        self.pending: dict[PendingKey, PendingValue] = {}
        self._pending_at: dict[tuple[bytes, int], tuple[PendingKey, ...]] = {}
        self._instances: dict[str, tuple[str, ...]] = {}
        self._subscriptions: dict[Subscription, int] = {}
        self._holders = _Owners()
        self._target_owners = _Owners()
        self._target_epochs: dict[int, int] = {}

    @property
    def known_value(self) -> GroupValue:
        """The record of a group that exists, or that of a new one."""
        return self.value or GroupValue()

    @property
    def is_unused(self) -> bool:
        """True if the log says nothing about the group."""
        return self.value is None and not self.members and not self.offsets and not self.pending

    @property
    def is_frozen(self) -> bool:
        """True while a part of a new target is written: nobody is assigned or revoked anything."""
        return max(self._target_epochs, default=0) > self.known_value.target_epoch

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Different subscriptions of its members."""
        return tuple(self._subscriptions)

    def present(self) -> Iterator[Member]:
        """Yield its members, by member id."""
        return (self.members[each] for each in sorted(self.members) if self.members[each].is_present)

    def member(self, member_id: str) -> Member | None:
        """Return a member; None if it is none."""
        found = self.members.get(member_id)
        return found if found is not None and found.is_present else None

    def member_of_instance(self, instance_id: str) -> Member | None:
        """Return the member with this instance id."""
        found = self._instances.get(instance_id)
        return None if not found else self.member(min(found))

    def subscriptions_after(
        self, removed: Iterable[str] = (), added: Subscription | None = None
    ) -> tuple[Subscription, ...]:
        """Return the different subscriptions once some members have gone, or given up their present ones, and one has come."""
        counts = dict(self._subscriptions)
        for member_id in removed:
            subscription = self.members[member_id].known_about.subscription
            counts[subscription] -= 1
        rest = tuple(each for each, count in counts.items() if count > 0)
        return rest if added is None or added in rest else (*rest, added)

    def is_free(self, topic_id: bytes, partition: int, ignored: str | None = None) -> bool:
        """Return True if no member holds the partition, except perhaps the ignored one."""
        holders = self._holders.of(topic_id, partition)
        return not holders or all(each == ignored for each in holders)

    @property
    def pending_partitions(self) -> tuple[tuple[bytes, int], ...]:
        """Topic id and partition of every pending offset, in order."""
        return tuple(sorted(self._pending_at))

    @property
    def pending_count(self) -> int:
        """Number of partitions with a pending offset."""
        return len(self._pending_at)

    def pending_at(self, topic_id: bytes, partition: int) -> PendingKey | None:
        """Return what a partition waits for; None: nothing."""
        found = self._pending_at.get((topic_id, partition))
        return None if found is None else found[0]

    def put_pending(self, key: PendingKey, value: PendingValue | None) -> None:
        """Store pending offsets; None: they are resolved."""
        old = self.pending.pop(key, None)
        for each in () if old is None else old.offsets:
            place = (each.topic_id, each.partition)
            rest = tuple(other for other in self._pending_at[place] if other != key)
            if rest:
                self._pending_at[place] = rest
            else:
                del self._pending_at[place]
        if value is None:
            return
        self.pending[key] = value
        for each in value.offsets:
            place = (each.topic_id, each.partition)
            self._pending_at[place] = (*self._pending_at.get(place, ()), key)

    def put_member(self, member_id: str, about: MemberValue | None) -> None:
        """Store what a member says about itself; None: it is gone."""
        member = self._entry(member_id)
        if member.about is not None:
            self._count_subscription(member.about.subscription, -1)
            if member.about.instance_id is not None:
                rest = tuple(each for each in self._instances[member.about.instance_id] if each != member_id)
                self._instances[member.about.instance_id] = rest
                if not rest:
                    del self._instances[member.about.instance_id]
        member.about = about
        if about is not None:
            self._count_subscription(about.subscription, 1)
            if about.instance_id is not None:
                self._instances[about.instance_id] = (*self._instances.get(about.instance_id, ()), member_id)
        self._drop_unused(member)

    def put_target(self, member_id: str, target: TargetValue | None) -> None:
        """Store the target assignment of a member."""
        member = self._entry(member_id)
        if member.target is not None:
            self._target_owners.remove(member_id, member.target.partitions)
            left = self._target_epochs[member.target.target_epoch] - 1
            self._target_epochs[member.target.target_epoch] = left
            if not left:
                del self._target_epochs[member.target.target_epoch]
        member.target = target
        if target is not None:
            self._target_owners.add(member_id, target.partitions)
            self._target_epochs[target.target_epoch] = self._target_epochs.get(target.target_epoch, 0) + 1
        self._drop_unused(member)

    def put_current(self, member_id: str, current: CurrentValue | None) -> tuple[str, ...]:
        """Store the current assignment of a member. Return the members whose targets have partitions that it has released."""
        member = self._entry(member_id)
        old, member.current = member.current, current
        for held in () if old is None else (old.assigned, old.revoking):
            self._holders.remove(member_id, held)
        for held in () if current is None else (current.assigned, current.revoking):
            self._holders.add(member_id, held)
        waiting: dict[str, None] = {}
        for held in () if old is None else (old.assigned, old.revoking):
            for topic_id, numbers in held.items():
                for number in numbers:
                    if not self._holders.of(topic_id, number):
                        waiting.update(dict.fromkeys(self._target_owners.of(topic_id, number)))
        self._drop_unused(member)
        return tuple(waiting)

    def _entry(self, member_id: str) -> Member:
        return self.members.setdefault(member_id, Member(member_id))

    def _drop_unused(self, member: Member) -> None:
        if member.about is None and member.target is None and member.current is None:
            del self.members[member.member_id]

    def _count_subscription(self, subscription: Subscription, by: int) -> None:
        count = self._subscriptions.get(subscription, 0) + by
        if count:
            self._subscriptions[subscription] = count
        else:
            del self._subscriptions[subscription]


def plain(held: Held) -> Partitions:
    """Return held partitions without their assignment epochs."""
    return {topic_id: tuple(numbers) for topic_id, numbers in held.items()}


def members_text(group: Group) -> str:
    """Return the number of members in words for people."""
    count = len(group.members)
    return f"{count} member" if count == 1 else f"{count} members"

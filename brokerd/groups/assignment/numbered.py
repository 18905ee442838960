# SPDX-License-Identifier: Apache-2.0
"""The input of an assignor in numbers: members, topics and partitions become indexes of lists.

Members stand in their order: static ones by instance id, then dynamic ones by member id. So a static member that returns under
another member id has its old place. Topics stand by id, and the partitions of all topics follow one another. Racks of members have
numbers, too, and so has the lack of a rack, which no replica is in.

Pure. Owns the numbering and the checks of the input; `owners` belongs to the assignor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brokerd.groups.assignment.specs import (
    MAX_MEMBERS,
    MAX_PARTITIONS,
    MAX_SUBSCRIPTIONS,
    Assignment,
    AssignmentTooLargeError,
    DuplicateMemberError,
    InvalidTopicError,
    MemberSpec,
    TopicSpec,
)

NOBODY = -1
"""Owner of a partition that has none."""


@dataclass(slots=True)
class Subscription:
    """Members that subscribe to the same existing topics.

    Attributes:
        members: their numbers, ascending.
        topics: numbers of the topics, ascending.
    """

    members: list[int]
    topics: list[int]


@dataclass(slots=True)
class Numbered:
    """The input of one computation in numbers.

    Attributes:
        members: in their order.
        topics: those that exist and have a subscriber, by id.
        starts: number of the first partition of each topic, and at the end the number of all partitions.
        subscriptions: groups of members with equal subscriptions, in the order of their first members. Members that subscribe to
            nothing are in none.
        rack_of: number of the rack of each member.
        rack_count: how many numbers there are.
        homes: for each partition the racks of members that have a replica, ascending; empty where no rack matters: nobody is near,
            or everybody. The list itself is empty if that holds for all partitions.
    """

    members: list[MemberSpec]
    topics: list[TopicSpec]
    starts: list[int]
    subscriptions: list[Subscription]
    rack_of: list[int]
    rack_count: int
    homes: list[tuple[int, ...]]

    def owners(self) -> list[int]:
        """Return the present owner of each partition, or `NOBODY`, as far as members own what they subscribe to and what exists."""
        owners = [NOBODY] * self.starts[-1]
        number_of = {topic.topic_id: number for number, topic in enumerate(self.topics)}
        for member, spec in enumerate(self.members):
            for topic_id, partitions in spec.owned.items():
                topic = number_of.get(topic_id)
                if topic is None or topic_id not in spec.topics:
                    continue
                start = self.starts[topic]
                count = self.starts[topic + 1] - start
                for partition in partitions:
                    if 0 <= partition < count and owners[start + partition] == NOBODY:
                        owners[start + partition] = member
        return owners

    def assignment(self, owners: Sequence[int]) -> Assignment:
        """Return the assignment in which each partition has the given owner; every partition has one."""
        result: list[dict[bytes, tuple[int, ...]]] = [{} for _ in self.members]
        for topic, spec in enumerate(self.topics):
            shares: dict[int, list[int]] = {}
            for partition, member in enumerate(owners[self.starts[topic] : self.starts[topic + 1]]):
                share = shares.get(member)
                if share is None:
                    shares[member] = [partition]
                else:
                    share.append(partition)
            for member, share in shares.items():
                result[member][spec.topic_id] = tuple(share)
        return {spec.member_id: shares for spec, shares in zip(self.members, result, strict=True)}


def number(members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]) -> Numbered:
    """Return the input in numbers.

    Raises:
        AssignmentError: the input contradicts itself or is too large.
    """
    ordered = _in_order(members)
    subscribed, subscriptions = _subscriptions(ordered, topics)
    starts = [0]
    for topic in subscribed:
        starts.append(starts[-1] + topic.partition_count)
    if starts[-1] > MAX_PARTITIONS:
        raise AssignmentTooLargeError(
            f"the group subscribes to {starts[-1]} partitions, and one group may have {MAX_PARTITIONS}: split it"
        )
    racks = sorted({member.rack for member in ordered if member.rack is not None})
    rack_numbers: dict[str | None, int] = {rack: number for number, rack in enumerate(racks)}
    if any(member.rack is None for member in ordered):
        rack_numbers[None] = len(racks)
    return Numbered(
        members=ordered,
        topics=subscribed,
        starts=starts,
        subscriptions=subscriptions,
        rack_of=[rack_numbers[member.rack] for member in ordered],
        rack_count=len(rack_numbers),
        homes=_homes(subscribed, rack_numbers),
    )


def _in_order(members: Sequence[MemberSpec]) -> list[MemberSpec]:
    if len(members) > MAX_MEMBERS:
        raise AssignmentTooLargeError(f"{len(members)} members, and one group may have {MAX_MEMBERS}: split it")
    ids = {member.member_id for member in members}
    static = [member.instance_id for member in members if member.instance_id is not None]
    if len(ids) != len(members) or len(set(static)) != len(static):
        raise DuplicateMemberError("two members have one member id or one instance id: keep the newer one only")
    return sorted(members, key=_order)


def _order(member: MemberSpec) -> tuple[bool, str]:
    """Static members by instance id, then dynamic ones by member id."""
    return member.instance_id is None, member.member_id if member.instance_id is None else member.instance_id


def _subscriptions(
    members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]
) -> tuple[list[TopicSpec], list[Subscription]]:
    """Return the topics that have subscribers, and the members by what they subscribe to."""
    if sum(len(member.topics) for member in members) > MAX_SUBSCRIPTIONS:
        raise AssignmentTooLargeError(
            f"more than {MAX_SUBSCRIPTIONS} subscriptions of members to topics: split the group"
        )
    alike: dict[frozenset[bytes], list[int]] = {}
    for member, spec in enumerate(members):
        alike.setdefault(spec.topics, []).append(member)
    wanted = set[bytes]().union(*alike)
    subscribed = [_checked(topic_id, topics[topic_id]) for topic_id in sorted(wanted) if topic_id in topics]
    subscribed = [topic for topic in subscribed if topic.partition_count]
    # Sets that differ only in topics which do not exist are equal subscriptions.
    number_of = {topic.topic_id: number for number, topic in enumerate(subscribed)}
    merged: dict[tuple[int, ...], list[int]] = {}
    for wanted_topics, who in alike.items():
        existing = tuple(sorted(number_of[topic_id] for topic_id in wanted_topics if topic_id in number_of))
        if existing:
            merged.setdefault(existing, []).extend(who)
    found = [Subscription(sorted(who), list(existing)) for existing, who in merged.items()]
    return subscribed, sorted(found, key=lambda each: each.members[0])


def _checked(topic_id: bytes, topic: TopicSpec) -> TopicSpec:
    if topic.topic_id != topic_id or topic.partition_count < 0 or len(topic.racks) not in (0, topic.partition_count):
        raise InvalidTopicError(
            f"topic {topic.topic_id.hex()} under the key {topic_id.hex()}: {topic.partition_count} partitions, "
            f"racks of {len(topic.racks)}: pass racks for every partition or for none"
        )
    return topic


def _homes(topics: Sequence[TopicSpec], rack_numbers: Mapping[str | None, int]) -> list[tuple[int, ...]]:
    if len(rack_numbers) < 2:
        return []
    known: dict[frozenset[str], tuple[int, ...]] = {}
    homes: list[tuple[int, ...]] = []
    matters = False
    for topic in topics:
        if not topic.racks:
            homes += [()] * topic.partition_count
        for racks in topic.racks:
            home = known.get(racks)
            if home is None:
                home = tuple(sorted(rack_numbers[rack] for rack in racks if rack in rack_numbers))
                # Near to everybody: no rack is better than another.
                home = () if len(home) == len(rack_numbers) else home
                known[racks] = home
                matters = matters or bool(home)
            homes.append(home)
    return homes if matters else []

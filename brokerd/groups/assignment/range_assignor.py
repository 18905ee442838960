# SPDX-License-Identifier: Apache-2.0
"""The assignor `range`: each member gets a range of each topic, and the same range of topics that are alike.

Topics are alike if they have equally many partitions and the same subscribers. Partition i of all of them goes to one member, so that
records of one key in several topics meet (co-partitioning). The ranges follow the order of members: the first ones get one more if
the number does not divide. A range is a function of members and topics alone, whatever they own now.

Where racks matter, ranges are what members should have, and leave only as many partitions as make more of them near. A partition
counts as near if it is for all topics that are alike.

Pure. Source: KIP-848 (range assignor), KIP-881 (racks), KIP-345 (order of static members).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brokerd.groups.assignment.numbered import Numbered, Subscription, number
from brokerd.groups.assignment.sharing import share
from brokerd.groups.assignment.specs import Assignment, MemberSpec, TopicSpec


class RangeAssignor:
    """Shares each topic alone, in ranges. Implements `Assignor`."""

    name = "range"

    def assign(self, members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]) -> Assignment:
        """Return the assignment; see `Assignor.assign`."""
        group = number(members, topics)
        owners = [0] * group.starts[-1]
        for alike in _alike(group):
            count = group.topics[alike.topics[0]].partition_count
            ranges = _ranges(count, alike.members)
            if group.homes:
                share(ranges, alike.members, _common_homes(group, alike.topics, count), group.rack_of)
            for topic in alike.topics:
                owners[group.starts[topic] : group.starts[topic + 1]] = ranges
        return group.assignment(owners)


def _alike(group: Numbered) -> list[Subscription]:
    """Return the topics that are alike together, with their subscribers."""
    subscribed_by: list[list[int]] = [[] for _ in group.topics]
    for number_of_subscription, subscription in enumerate(group.subscriptions):
        for topic in subscription.topics:
            subscribed_by[topic].append(number_of_subscription)
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for topic, subscriptions in enumerate(subscribed_by):
        alike.setdefault((group.topics[topic].partition_count, tuple(subscriptions)), []).append(topic)
    return [
        Subscription(sorted(member for each in subscriptions for member in group.subscriptions[each].members), topics)
        for (_, subscriptions), topics in alike.items()
    ]


def _ranges(count: int, members: Sequence[int]) -> list[int]:
    """Return the owner of each of `count` partitions: ranges in the order of members, the first ones larger by one."""
    base, larger = divmod(count, len(members))
    ranges: list[int] = []
    for position, member in enumerate(members):
        ranges += [member] * (base + (position < larger))
    return ranges


def _common_homes(group: Numbered, topics: Sequence[int], count: int) -> list[tuple[int, ...]]:
    """Return the racks that are near to partition i of all topics, for each i."""
    homes: list[tuple[int, ...]] = []
    for partition in range(count):
        common: tuple[int, ...] | None = None
        for topic in topics:
            home = group.homes[group.starts[topic] + partition]
            if home and common is None:
                common = home
            elif home and common is not None and home != common:
                common = tuple(rack for rack in common if rack in home)
        homes.append(common or ())
    return homes

# SPDX-License-Identifier: Apache-2.0
"""Shares partitions among members with differing subscriptions, as evenly as the subscriptions allow.

*Balance* here means: no chain of moves, each to another subscriber of the topic, takes a partition away from one member and gives one
to a member that has at least two fewer. No assignment is more even: its sizes, in descending order, are the smallest possible ones.
Members keep what they own. A partition without an owner goes to the subscriber with the fewest; then partitions move along such chains
until there is none. The search starts at the smallest member. Everybody that it reaches without success is done, so that failed
searches together visit each subscription once.

*Racks* follow: a partition whose owner is in another rack moves to a near member, if that keeps the sizes (the two members
swap sizes, or give each other a partition) and makes more partitions near.

Sets of members are the bits of integers, because Python unites thousands of members in one step.

Pure. `share_differing` changes the list of owners that it gets, and nothing else. Source: Harvey, Ladner, Lovász, Tamir,
"Semi-matchings for bipartite graphs and load balancing".
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from itertools import pairwise

from brokerd.groups.assignment.numbered import NOBODY, Numbered
from brokerd.groups.assignment.specs import MAX_RACK_LOOKUPS

_Home = tuple[int, ...]


def share_differing(group: Numbered, owners: list[int]) -> None:
    """Give each partition an owner among the subscribers of its topic. `owners` has the present ones, or `NOBODY`."""
    shares = _Shares(group, owners)
    shares.give_loose()
    shares.even_out()
    if group.homes:
        shares.bring_near()


class _Sizes:
    """Members by the number of their partitions."""

    def __init__(self, sizes: list[int]) -> None:
        self.of = sizes
        self.members_with: dict[int, int] = {}
        for member, size in enumerate(sizes):
            self.members_with[size] = self.members_with.get(size, 0) | 1 << member
        self.present = sorted(self.members_with)

    def change(self, member: int, by: int) -> None:
        """Change the size of a member."""
        size = self.of[member]
        bit = 1 << member
        rest = self.members_with[size] ^ bit
        if rest:
            self.members_with[size] = rest
        else:
            del self.members_with[size]
            self.present.remove(size)
        size += by
        self.of[member] = size
        if size in self.members_with:
            self.members_with[size] |= bit
        else:
            self.members_with[size] = bit
            insort(self.present, size)


class _Shares:
    def __init__(self, group: Numbered, owners: list[int]) -> None:
        self._owners = owners
        self._homes = group.homes
        self._topic_of: list[int] = []
        for topic, spec in enumerate(group.topics):
            self._topic_of += [topic] * spec.partition_count
        self._topics_of: list[list[int]] = [[] for _ in group.members]
        self._subscribers = [0] * len(group.topics)
        for subscription in group.subscriptions:
            members = sum(1 << member for member in subscription.members)
            for topic in subscription.topics:
                self._subscribers[topic] |= members
            for member in subscription.members:
                self._topics_of[member] = subscription.topics
        self._in_rack = [0] * group.rack_count
        for member, rack in enumerate(group.rack_of):
            self._in_rack[rack] |= 1 << member
        self._rack_of = group.rack_of
        self._lookups_left = MAX_RACK_LOOKUPS
        # What each member has, by topic and near racks: partitions that no rule tells apart. The last one goes first.
        self._held: list[dict[int, dict[_Home, list[int]]]] = [{} for _ in group.members]
        self._holders = [0] * len(group.topics)
        sizes = [0] * len(group.members)
        for partition in reversed(range(len(owners))):
            if owners[partition] != NOBODY:
                self._add(partition, owners[partition])
                sizes[owners[partition]] += 1
        self._sizes = _Sizes(sizes)
        self._participants = [member for member, topics in enumerate(self._topics_of) if topics]

    def _is_near(self, partition: int, member: int) -> bool:
        return self._rack_of[member] in self._homes[partition]

    def _near_members(self, partition: int) -> int:
        """Return the subscribers in racks that are near to the partition."""
        near = 0
        for rack in self._homes[partition]:
            near |= self._in_rack[rack]
        return near & self._subscribers[self._topic_of[partition]]

    def _home(self, partition: int) -> _Home:
        return self._homes[partition] if self._homes else ()

    def _add(self, partition: int, member: int) -> None:
        topic = self._topic_of[partition]
        self._held[member].setdefault(topic, {}).setdefault(self._home(partition), []).append(partition)
        self._holders[topic] |= 1 << member

    def _give(self, partition: int, member: int) -> None:
        self._owners[partition] = member
        self._add(partition, member)
        self._sizes.change(member, 1)

    def _move(self, partition: int, member: int) -> None:
        topic, home, owner = self._topic_of[partition], self._home(partition), self._owners[partition]
        by_home = self._held[owner][topic]
        alike = by_home[home]
        if alike[-1] == partition:
            alike.pop()
        else:
            alike.remove(partition)
        if not alike:
            del by_home[home]
        if not by_home:
            del self._held[owner][topic]
            self._holders[topic] ^= 1 << owner
        self._sizes.change(owner, -1)
        self._give(partition, member)

    # Balance

    def give_loose(self) -> None:
        """Give what nobody owns to the smallest subscriber, a near one among equals; topics with few subscribers first."""
        loose: dict[int, list[int]] = {}
        for partition, owner in enumerate(self._owners):
            if owner == NOBODY:
                loose.setdefault(self._topic_of[partition], []).append(partition)
        for topic in sorted(loose, key=lambda topic: self._subscribers[topic].bit_count()):
            smallest = 0
            for partition in loose[topic]:
                if not smallest:
                    smallest = self._smallest(self._subscribers[topic])[1]
                near = smallest & self._near_members(partition) if self._homes else 0
                member = _first(near or smallest)
                self._give(partition, member)
                smallest ^= 1 << member

    def _smallest(self, among: int) -> tuple[int, int]:
        """Return the smallest size among some members, and those who have it."""
        return next((size, found) for size in self._sizes.present if (found := self._sizes.members_with[size] & among))

    def even_out(self) -> None:
        """Move partitions along chains until no chain makes the sizes more even."""
        todo = sum(1 << member for member in self._participants)
        while todo:
            size, smallest = self._smallest(todo)
            receiver = _first(smallest)
            # Nobody that is still to do has less than `size`, and one more is no reason to move.
            larger = todo & ~smallest & ~self._sizes.members_with.get(size + 1, 0)
            reached, path = self._chain(receiver, larger, todo)
            if path is None:
                todo &= ~reached
            else:
                self._move_along(path)

    def _chain(self, receiver: int, larger: int, todo: int) -> tuple[int, list[int] | None]:
        """Search for the shortest chain from one of the `larger` members, the largest among equals, to the receiver.

        Return everybody who was reached, and the chain with the receiver first.
        """
        reached = 1 << receiver
        came_by: list[tuple[int, int]] = []
        frontier = [receiver]
        while frontier:
            round_start = len(came_by)
            found = 0
            for member in frontier:
                givers = 0
                for topic in self._topics_of[member]:
                    givers |= self._holders[topic]
                givers &= todo & ~reached
                if givers:
                    reached |= givers
                    found |= givers & larger
                    came_by.append((member, givers))
            if found:
                largest = next(
                    first for size in reversed(self._sizes.present) if (first := self._sizes.members_with[size] & found)
                )
                return reached, _path(came_by, receiver, _first(largest))
            frontier = [member for _, givers in came_by[round_start:] for member in _bits(givers)]
        return reached, None

    def _move_along(self, path: list[int]) -> None:
        for receiver, giver in pairwise(path):
            self._move(self._best_gift(giver, receiver), receiver)

    def _best_gift(self, giver: int, receiver: int) -> int:
        """Return what to give: near to the receiver rather than to the giver, else of the topic of which the giver has most."""
        best, best_value = NOBODY, (-2, 0)
        from_rack, to_rack = self._rack_of[giver], self._rack_of[receiver]
        for topic, by_home in self._held[giver].items():
            if not self._subscribers[topic] >> receiver & 1:
                continue
            for home, alike in by_home.items():
                self._lookups_left -= 1
                value = ((to_rack in home) - (from_rack in home), len(alike))
                if value > best_value:
                    best, best_value = alike[-1], value
                if best_value[0] == 1 or self._lookups_left <= 0:
                    break
        return best

    # Racks

    def bring_near(self) -> None:
        """Move partitions to near members as long as the sizes stay and more become near, or until the lookups are spent."""
        is_any_moved = True
        while is_any_moved and self._lookups_left > 0:
            is_any_moved = False
            for partition, home in enumerate(self._homes):
                if not home or self._is_near(partition, self._owners[partition]):
                    continue
                owner = self._owners[partition]
                candidates = self._near_members(partition)
                shorter = candidates & self._sizes.members_with.get(self._sizes.of[owner] - 1, 0)
                if shorter:
                    self._move(partition, _first(shorter))
                    is_any_moved = True
                    continue
                for candidate in _bits(candidates):
                    returned = self._return_for(candidate, owner)
                    if returned != NOBODY:
                        self._move(partition, candidate)
                        self._move(returned, owner)
                        is_any_moved = True
                    if returned != NOBODY or self._lookups_left <= 0:
                        break
                if self._lookups_left <= 0:
                    break

    def _return_for(self, giver: int, receiver: int) -> int:
        """Return what the giver can give without making it far, or `NOBODY`."""
        from_rack, to_rack = self._rack_of[giver], self._rack_of[receiver]
        self._lookups_left -= 1
        for topic, by_home in self._held[giver].items():
            self._lookups_left -= 1
            if not self._subscribers[topic] >> receiver & 1:
                continue
            for home, alike in by_home.items():
                self._lookups_left -= 1
                if from_rack not in home or to_rack in home:
                    return alike[-1]
        return NOBODY


def _first(members: int) -> int:
    return (members & -members).bit_length() - 1


def _bits(members: int) -> Iterator[int]:
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def _path(came_by: list[tuple[int, int]], receiver: int, giver: int) -> list[int]:
    """Return the members from the receiver to the giver."""
    path = [giver]
    while path[-1] != receiver:
        path.append(next(member for member, givers in came_by if givers >> path[-1] & 1))
    path.reverse()
    return path

# SPDX-License-Identifier: Apache-2.0
"""Chooses the rack of members that each partition goes to, so that as many partitions as possible are near to their members.

A partition is near to a rack where it has a replica. The racks have room in proportion to their members: a rack of n members takes
n x base partitions, and of all members `larger` take one more. Under these limits the greatest number of near partitions is a maximum
flow. It begins with what members have and is near already, places the rest greedily, and then looks for augmenting paths: a partition
pushes another one of its rack into a further rack near to that. Partitions that find no near rack fill the room that is left.

Pure. Owns the state of one choice. Source: Ford and Fulkerson, with the dead ends of failed searches closed for good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from brokerd.groups.assignment.specs import MAX_RACK_LOOKUPS

_Home = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChosenRacks:
    """The partitions of each rack, ascending, and how many of its members get one more than the base."""

    partitions: list[list[int]]
    larger: list[int]


def choose_racks(owners: Sequence[int], homes: Sequence[_Home], by_rack: Sequence[Sequence[int]]) -> ChosenRacks:
    """Return a rack for each partition.

    Args:
        owners: who should keep what they have, as far as that costs nothing; others than the members count as nobody.
        homes: racks near to each partition, ascending.
        by_rack: the members of each rack.
    """
    choice = _Choice(owners, homes, by_rack)
    choice.keep_near()
    choice.place_near()
    choice.push_on()
    choice.fill()
    return choice.result()


class _Choice:
    def __init__(self, owners: Sequence[int], homes: Sequence[_Home], by_rack: Sequence[Sequence[int]]) -> None:
        self._owners = owners
        self._homes = homes
        self._by_rack = by_rack
        self._rack_of = {member: rack for rack, members in enumerate(by_rack) for member in members}
        self._base, self._larger = divmod(len(owners), len(self._rack_of))
        self._racks = range(len(by_rack))
        self._base_room = [len(members) * self._base for members in by_rack]
        # Partitions that are near to the rack that they are in, by their homes.
        self._near: list[dict[_Home, list[int]]] = [{} for _ in self._racks]
        self._near_count = [0] * len(by_rack)
        self._larger_used = 0
        self._kept_near: dict[int, int] = {}
        self._loose: list[int] = []
        self._far: list[list[int]] = [[] for _ in self._racks]
        self._larger_of = [0] * len(by_rack)
        self._lookups_left = MAX_RACK_LOOKUPS

    # Room

    def _room(self, rack: int) -> int:
        """Return how many more near partitions the rack can take at once; what is above the base comes one by one."""
        below = self._base_room[rack] - self._near_count[rack]
        if below > 0:
            return below
        return int(self._larger_used < self._larger and self._may_be_larger(rack))

    def _may_be_larger(self, rack: int) -> bool:
        return self._near_count[rack] < self._base_room[rack] + len(self._by_rack[rack])

    def _put(self, partition: int, rack: int) -> None:
        self._near[rack].setdefault(self._homes[partition], []).append(partition)
        self._larger_used += self._near_count[rack] >= self._base_room[rack]
        self._near_count[rack] += 1

    def _take(self, home: _Home, rack: int) -> int:
        alike = self._near[rack][home]
        partition = alike.pop()
        if not alike:
            del self._near[rack][home]
        self._near_count[rack] -= 1
        self._larger_used -= self._near_count[rack] >= self._base_room[rack]
        return partition

    # The flow

    def keep_near(self) -> None:
        """Keep near partitions with their members, up to the share of each."""
        kept = self._kept_near
        above: list[int] = []
        for partition, home in enumerate(self._homes):
            owner = self._owners[partition]
            if home and self._rack_of.get(owner) in home:
                count = kept.get(owner, 0)
                if count < self._base:
                    kept[owner] = count + 1
                    self._put(partition, self._rack_of[owner])
                else:
                    above.append(partition)
            else:
                self._loose.append(partition)
        for partition in above:
            owner = self._owners[partition]
            if kept.get(owner, 0) == self._base and self._room(self._rack_of[owner]):
                kept[owner] = self._base + 1
                self._put(partition, self._rack_of[owner])
            else:
                self._loose.append(partition)
        self._loose.sort()

    def place_near(self) -> None:
        """Place loose partitions in near racks with room: those with the least choice first, each where most room is."""
        left: list[int] = []
        for partition in sorted(self._loose, key=lambda partition: len(self._homes[partition])):
            home = self._homes[partition]
            rack = max(home, key=self._room) if home else 0
            if home and self._room(rack) > 0:
                self._put(partition, rack)
            else:
                left.append(partition)
        self._loose = sorted(left)

    def push_on(self) -> None:
        """Place more of the loose partitions by augmenting paths, until none is left or the lookups are spent."""
        left: list[int] = []
        dead: set[int] = set()
        for partition in self._loose:
            home = self._homes[partition]
            came_by = dict[int, tuple[_Home, int]]()
            found = self._search(home, dead, came_by) if home and self._lookups_left > 0 else None
            if found is None:
                # No rack that was reached can ever pass anything on: room only shrinks.
                dead.update(came_by)
                left.append(partition)
                continue
            self._push(partition, found, came_by)
        self._loose = left

    def _search(self, home: _Home, dead: set[int], came_by: dict[int, tuple[_Home, int]]) -> int | None:
        """Return a rack with room that a path from the homes leads to; `came_by` has what each rack on the way is pushed by."""
        for rack in home:
            if rack not in dead:
                came_by[rack] = ((), rack)
        queue = deque(came_by)
        is_any_larger_reached = False
        while queue:
            rack = queue.popleft()
            if self._room(rack) > 0:
                return rack
            for moving in self._near[rack]:
                self._lookups_left -= len(moving)
                for further in moving:
                    if further not in came_by and further not in dead:
                        came_by[further] = (moving, rack)
                        queue.append(further)
            if not is_any_larger_reached and self._may_be_larger(rack):
                # Another rack may give up one of its larger shares for this one.
                is_any_larger_reached = True
                for further in self._racks:
                    if self._near_count[further] > self._base_room[further] and further not in came_by:
                        came_by[further] = ((), rack)
                        queue.append(further)
            if self._lookups_left <= 0:
                came_by.clear()
                return None
        return None

    def _push(self, partition: int, found: int, came_by: dict[int, tuple[_Home, int]]) -> None:
        """Move one partition along each step of the path, from its end to its start, then place the new one there."""
        rack = found
        while True:
            moving, giver = came_by[rack]
            if giver == rack:
                break
            if moving:
                self._put(self._take(moving, giver), rack)
            rack = giver
        self._put(partition, rack)

    # The rest

    def fill(self) -> None:
        """Put what is near to no rack, or found no room there, where it is, or else where room is left."""
        self._choose_larger()
        room = [self._base_room[rack] + self._larger_of[rack] - self._near_count[rack] for rack in self._racks]
        kept = dict[int, int]()
        for rack in self._racks:
            for alike in self._near[rack].values():
                for partition in alike:
                    owner = self._owners[partition]
                    kept[owner] = kept.get(owner, 0) + (self._rack_of.get(owner) == rack)
        # First those whose members stay within the base, then those of a larger share, then all others.
        for most in (self._base, self._base + 1):
            left: list[int] = []
            for partition in self._loose:
                owner = self._owners[partition]
                rack = self._rack_of.get(owner)
                if rack is not None and room[rack] > 0 and kept.get(owner, 0) < most:
                    kept[owner] = kept.get(owner, 0) + 1
                    room[rack] -= 1
                    self._far[rack].append(partition)
                else:
                    left.append(partition)
            self._loose = left
        racks = deque(rack for rack in self._racks if room[rack] > 0)
        for partition in self._loose:
            rack = racks.popleft()
            self._far[rack].append(partition)
            room[rack] -= 1
            if room[rack] > 0:
                racks.append(rack)

    def _choose_larger(self) -> None:
        """Give each rack as many larger shares as its near partitions need, then as many as its members have now, near or at all."""
        owned = dict[int, int]()
        for owner in self._owners:
            owned[owner] = owned.get(owner, 0) + 1
        self._larger_of = [max(0, near - room) for near, room in zip(self._near_count, self._base_room, strict=True)]
        left = self._larger - sum(self._larger_of)
        has_near, has_now = (
            [sum(counts.get(member, 0) > self._base for member in members) for members in self._by_rack]
            for counts in (self._kept_near, owned)
        )
        for most in (has_near, has_now, [len(members) for members in self._by_rack]):
            for rack in self._racks:
                more = max(0, min(left, most[rack] - self._larger_of[rack]))
                self._larger_of[rack] += more
                left -= more

    def result(self) -> ChosenRacks:
        """Return what was chosen."""
        partitions = [
            sorted([partition for alike in near.values() for partition in alike] + far)
            for near, far in zip(self._near, self._far, strict=True)
        ]
        return ChosenRacks(partitions, self._larger_of)

# SPDX-License-Identifier: Apache-2.0
"""Shares partitions among members of whom each may have any: sizes differ by at most one, as many as possible are near, few move.

Balance comes first, then racks, then stickiness. With racks that matter, `racks.choose_racks` first says in which rack each partition
goes; then each rack shares its partitions alone. Without them all members are one rack, and the moves are the fewest that balance
allows.

Pure. `share` changes the list of owners that it gets, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from brokerd.groups.assignment.racks import choose_racks


def share(owners: list[int], members: Sequence[int], homes: Sequence[tuple[int, ...]], rack_of: Sequence[int]) -> None:
    """Give each partition an owner among the members.

    Args:
        owners: preferred owner of each partition, or `NOBODY`; each is replaced by the owner.
        members: who shares, in their order, without repetition; at least one.
        homes: racks near to each partition, as in `Numbered.homes`.
        rack_of: rack of every member of the group.
    """
    base, larger = divmod(len(owners), len(members))
    if not homes or not any(homes):
        _share_evenly(owners, range(len(owners)), members, base, larger)
        return
    # Racks that are near to nothing here are one: a topic may be near to few of very many racks.
    racks = {rack: number for number, rack in enumerate(sorted({rack for home in homes for rack in home}))}
    elsewhere = len(racks)
    renumbered = {home: tuple(racks[rack] for rack in home) for home in dict.fromkeys(homes)}
    by_rack: list[list[int]] = [[] for _ in range(elsewhere + 1)]
    for member in members:
        by_rack[racks.get(rack_of[member], elsewhere)].append(member)
    chosen = choose_racks(owners, [renumbered[home] for home in homes], by_rack)
    for rack, partitions in enumerate(chosen.partitions):
        if by_rack[rack]:
            _share_evenly(owners, partitions, by_rack[rack], base, chosen.larger[rack])


def _share_evenly(owners: list[int], partitions: Sequence[int], members: Sequence[int], base: int, larger: int) -> None:
    """Give `larger` of the members `base` + 1 of the partitions, the others `base`, and move as few as possible."""
    held: dict[int, list[int]] = {member: [] for member in members}
    loose: list[int] = []
    for partition in partitions:
        held.get(owners[partition], loose).append(partition)
    # Who has more than the base keeps one more, as far as there are larger shares; the others of these go to the first in order.
    above = [member for member in members if len(held[member]) > base][:larger]
    is_larger = dict.fromkeys(above, True)
    for member in members:
        if len(is_larger) == larger:
            break
        is_larger[member] = True
    room: deque[tuple[int, int]] = deque()
    released = 0
    for member in members:
        share_of_member = held[member]
        missing = base + (member in is_larger) - len(share_of_member)
        if missing > 0:
            room.append((member, missing))
        elif missing < 0:
            # Each giver starts at another place, so that who comes last does not get one topic only.
            start = released % len(share_of_member)
            share_of_member = share_of_member[start:] + share_of_member[:start]
            loose += share_of_member[:-missing]
            released -= missing
    loose.sort()
    for partition in loose:
        member, missing = room.popleft()
        owners[partition] = member
        if missing > 1:
            room.append((member, missing - 1))

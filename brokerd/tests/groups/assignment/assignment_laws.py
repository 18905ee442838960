# SPDX-License-Identifier: Apache-2.0
"""The laws of an assignment (`docs/assignment.md`), each judged by a slow and obvious computation of its own."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from brokerd.groups.assignment.specs import Assignment, MemberSpec, TopicSpec

Topics = Mapping[bytes, TopicSpec]
Partition = tuple[bytes, int]


def topic_id(number: int) -> bytes:
    """Return the id of the topic with this number."""
    return number.to_bytes(16, "big")


def owning(members: Sequence[MemberSpec], assignment: Assignment) -> list[MemberSpec]:
    """Return the members as they stand after the assignment."""
    return [replace(member, owned=assignment.get(member.member_id, {})) for member in members]


def owners_of(assignment: Assignment) -> dict[Partition, str]:
    """Return the owner of each partition; two owners break the first law."""
    owners: dict[Partition, str] = {}
    for member_id, shares in assignment.items():
        for topic, partitions in shares.items():
            assert list(partitions) == sorted(set(partitions)), f"{member_id} has {partitions}: not ascending"
            assert partitions, f"{member_id} has an empty entry"
            for partition in partitions:
                assert (topic, partition) not in owners, f"two owners of {topic.hex()}-{partition}"
                owners[topic, partition] = member_id
    return owners


def check_owners(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """Exactly the partitions with subscribers have an owner, one, who subscribes. Every member has an entry."""
    assert set(assignment) == {member.member_id for member in members}
    owners = owners_of(assignment)
    subscribed = {topic for member in members for topic in member.topics if topic in topics}
    expected = {(topic, partition) for topic in subscribed for partition in range(topics[topic].partition_count)}
    assert set(owners) == expected
    subscriptions = {member.member_id: member.topics for member in members}
    for (topic, _), member_id in owners.items():
        assert topic in subscriptions[member_id], f"{member_id} does not subscribe to {topic.hex()}"


def sizes_of(assignment: Assignment) -> dict[str, int]:
    """Return the number of partitions of each member."""
    return {member_id: sum(map(len, shares.values())) for member_id, shares in assignment.items()}


def check_uniform_balance(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """No chain of moves to other subscribers takes from a member and gives to one with at least two fewer."""
    sizes, owners = sizes_of(assignment), owners_of(assignment)
    gives_to: dict[str, set[str]] = {member.member_id: set() for member in members}
    for (topic, _), owner in owners.items():
        gives_to[owner] |= {member.member_id for member in members if topic in member.topics}
    for start in gives_to:
        reached, queue = {start}, deque([start])
        while queue:
            for further in gives_to[queue.popleft()] - reached:
                assert sizes[further] >= sizes[start] - 1, f"{start} has {sizes[start]}, {further} {sizes[further]}"
                reached.add(further)
                queue.append(further)


def check_range_balance(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """Within each topic, the sizes of subscribers differ by at most one."""
    for topic in topics:
        subscribers = [member.member_id for member in members if topic in member.topics]
        sizes = [len(assignment[member_id].get(topic, ())) for member_id in subscribers]
        assert not sizes or max(sizes) - min(sizes) <= 1, f"{topic.hex()}: {sizes}"


def alike(members: Sequence[MemberSpec], topics: Topics) -> list[list[bytes]]:
    """Return the topics with subscribers, those with equally many partitions and equal subscribers together."""
    found: dict[tuple[int, frozenset[str]], list[bytes]] = {}
    for topic, spec in topics.items():
        subscribers = frozenset(member.member_id for member in members if topic in member.topics)
        if subscribers and spec.partition_count:
            found.setdefault((spec.partition_count, subscribers), []).append(topic)
    return list(found.values())


def check_co_partitions(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """Partition i of topics that are alike has one owner."""
    owners = owners_of(assignment)
    for together in alike(members, topics):
        for partition in range(topics[together[0]].partition_count):
            assert len({owners[topic, partition] for topic in together}) == 1


def check_ranges(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """Where no rack matters, shares are ranges in the order of members (static ones by instance id first), the first ones larger."""
    if any(home for home in homes_of(members, topics).values()):
        return
    static = sorted((each for each in members if each.instance_id is not None), key=lambda each: each.instance_id or "")
    order = [*static, *sorted((each for each in members if each.instance_id is None), key=lambda each: each.member_id)]
    for topic, spec in topics.items():
        shares = [assignment[member.member_id].get(topic, ()) for member in order if topic in member.topics]
        if shares:
            assert [partition for share in shares for partition in share] == list(range(spec.partition_count))
            assert [len(share) for share in shares] == sorted(map(len, shares), reverse=True)


def homes_of(members: Sequence[MemberSpec], topics: Topics) -> dict[Partition, frozenset[str]]:
    """Return for each subscribed partition the racks of members that have a replica; empty where no rack is better than another."""
    racks = {member.rack for member in members}
    homes: dict[Partition, frozenset[str]] = {}
    for topic in {topic for member in members for topic in member.topics if topic in topics}:
        for partition in range(topics[topic].partition_count):
            replicas = topics[topic].racks[partition] if topics[topic].racks else frozenset[str]()
            home = frozenset(rack for rack in replicas if rack in racks)
            homes[topic, partition] = frozenset() if len(home) == len(racks) else home
    return homes


def near_count(members: Sequence[MemberSpec], topics: Topics, owners: Mapping[Partition, str]) -> int:
    """Return the number of partitions with a replica in the rack of their owner, where racks differ in that."""
    rack_of = {member.member_id: member.rack for member in members}
    return sum(
        partition in owners and rack_of[owners[partition]] in home
        for partition, home in homes_of(members, topics).items()
    )


def most_near(homes: Sequence[frozenset[str]], racks: Sequence[str | None]) -> int:
    """Return the greatest number of near partitions if members with these racks share partitions with these homes evenly.

    A textbook maximum flow: source, partitions with one home, racks, sink. A rack has room for the base of each of its members, and
    by way of one more node for one more at each, though for `larger` of all.
    """
    base, larger = divmod(len(homes), len(racks))
    room: dict[tuple[object, object], int] = {("larger", "sink"): larger}
    for home in homes:
        room["source", home] = room.get(("source", home), 0) + 1
        room.update({(home, f"rack {rack}"): len(homes) for rack in home})
    for rack in racks:
        name = f"rack {rack}"
        room[name, "sink"] = room.get((name, "sink"), 0) + base
        room[name, "larger"] = room.get((name, "larger"), 0) + 1
    flow = 0
    while path := _path_with_room(room):
        pushed = min(room[step] for step in path)
        for start, end in path:
            room[start, end] -= pushed
            room[end, start] = room.get((end, start), 0) + pushed
        flow += pushed
    return flow


def _path_with_room(room: Mapping[tuple[object, object], int]) -> list[tuple[object, object]]:
    came_from: dict[object, object] = {"source": None}
    queue: deque[object] = deque(["source"])
    while queue:
        node = queue.popleft()
        for (start, end), left in room.items():
            if start == node and left > 0 and end not in came_from:
                came_from[end] = node
                queue.append(end)
    path: list[tuple[object, object]] = []
    node: object = "sink" if "sink" in came_from else "source"
    while came_from[node] is not None:
        path.append((came_from[node], node))
        node = came_from[node]
    return path


def check_uniform_racks(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """With equal subscriptions, as many partitions are near as balance allows. Else no move or exchange that keeps the sizes helps."""
    owners, homes = owners_of(assignment), homes_of(members, topics)
    subscribers = [member for member in members if any(_exists(topic, topics) for topic in member.topics)]
    if subscribers and have_equal_subscriptions(members, topics):
        expected = most_near([homes[key] for key in sorted(homes)], [member.rack for member in subscribers])
        assert near_count(members, topics, owners) == expected
        return
    sizes = sizes_of(assignment)
    by_id = {member.member_id: member for member in members}
    for partition, owner in owners.items():
        home = homes[partition]
        if not home or by_id[owner].rack in home:
            continue
        for other in members:
            if other.rack not in home or partition[0] not in other.topics:
                continue
            assert sizes[other.member_id] != sizes[owner] - 1, f"{partition} should move to {other.member_id}"
            for returned, its_owner in owners.items():
                if its_owner == other.member_id and returned[0] in by_id[owner].topics:
                    loses = other.rack in homes[returned] and by_id[owner].rack not in homes[returned]
                    assert loses, f"{partition} of {owner} should be exchanged for {returned} of {its_owner}"


def _exists(topic: bytes, topics: Topics) -> bool:
    return topic in topics and topics[topic].partition_count > 0


def check_range_racks(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """As many partitions as balance allows are near in all topics that are alike and for which racks matter."""
    owners, homes = owners_of(assignment), homes_of(members, topics)
    rack_of = {member.member_id: member.rack for member in members}
    for together in alike(members, topics):
        common: list[frozenset[str]] = []
        near = 0
        for partition in range(topics[together[0]].partition_count):
            each = [homes[topic, partition] for topic in together if homes[topic, partition]]
            common.append(frozenset.intersection(*each) if each else frozenset())
            near += rack_of[owners[together[0], partition]] in common[-1]
        racks = [member.rack for member in members if together[0] in member.topics]
        assert near == most_near(common, racks)


def valid_owners(members: Sequence[MemberSpec], topics: Topics) -> dict[Partition, str]:
    """Return the owners before a computation whom it may leave in place: they exist and subscribe."""
    return {
        (topic, partition): member.member_id
        for member in members
        for topic, partitions in member.owned.items()
        if topic in topics and topic in member.topics
        for partition in partitions
        if partition < topics[topic].partition_count
    }


def moves(before: Mapping[Partition, str], assignment: Assignment) -> int:
    """Return how many partitions left an owner who could have kept them."""
    after = owners_of(assignment)
    return sum(after[partition] != owner for partition, owner in before.items())


def fewest_moves(members: Sequence[MemberSpec], topics: Topics) -> int:
    """Return the fewest moves with which members with equal subscriptions can become balanced."""
    before = valid_owners(members, topics)
    sharing = [member for member in members if any(_exists(topic, topics) for topic in member.topics)]
    if not sharing:
        return 0
    count = len(homes_of(members, topics))
    base, larger = divmod(count, len(sharing))
    owned = sorted((sum(owner == member.member_id for owner in before.values()) for member in sharing), reverse=True)
    return sum(max(0, size - base - (position < larger)) for position, size in enumerate(owned))


def fewest_moves_of_differing(members: Sequence[MemberSpec], topics: Topics) -> int:
    """Return the fewest moves of any assignment that is as even as the subscriptions allow.

    A minimum-cost matching of partitions and the places of members, one shortest augmenting path (Bellman-Ford) for each partition.
    The k-th place of a member costs k times more than all moves together, which makes the sizes as even as possible.
    """
    before = valid_owners(members, topics)
    place_cost = len(homes_of(members, topics)) + 1
    owner_of: dict[Partition, int] = {}
    sizes = [0] * len(members)

    def cost(partition: Partition, member: int) -> int:
        return int(before.get(partition, members[member].member_id) != members[member].member_id)

    for new in sorted(homes_of(members, topics)):
        distance = {member: cost(new, member) for member, spec in enumerate(members) if new[0] in spec.topics}
        came_by: dict[int, tuple[Partition, int]] = dict.fromkeys(distance, (new, -1))
        is_shorter = True
        while is_shorter:
            is_shorter = False
            for partition, member in owner_of.items():
                for further, spec in enumerate(members):
                    if member in distance and further != member and partition[0] in spec.topics:
                        length = distance[member] - cost(partition, member) + cost(partition, further)
                        if further not in distance or length < distance[further]:
                            distance[further], came_by[further] = length, (partition, member)
                            is_shorter = True
        member = min(distance, key=lambda member: distance[member] + sizes[member] * place_cost)
        sizes[member] += 1
        while member != -1:
            partition, giver = came_by[member]
            owner_of[partition] = member
            member = giver
    return sum(cost(partition, member) for partition, member in owner_of.items())


def near_within_shares(members: Sequence[MemberSpec], topics: Topics) -> int:
    """Return how many near partitions members with equal subscriptions could keep within even shares."""
    before, homes = valid_owners(members, topics), homes_of(members, topics)
    rack_of = {member.member_id: member.rack for member in members}
    sharing = [member.member_id for member in members if any(_exists(topic, topics) for topic in member.topics)]
    if not sharing:
        return 0
    base, larger = divmod(len(homes), len(sharing))
    near = Counter(owner for partition, owner in before.items() if rack_of[owner] in homes[partition])
    return sum(min(near[member], base) for member in sharing) + min(
        larger, sum(near[member] > base for member in sharing)
    )


def have_equal_subscriptions(members: Sequence[MemberSpec], topics: Topics) -> bool:
    """Return whether all members that subscribe to an existing topic subscribe to the same ones."""
    subscriptions = {frozenset(topic for topic in member.topics if _exists(topic, topics)) for member in members}
    return len(subscriptions - {frozenset()}) <= 1


def check_moves(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """With equal subscriptions: the fewest moves that balance allows, and a bounded number for each partition that became near."""
    if not have_equal_subscriptions(members, topics):
        return
    moved, fewest = moves(valid_owners(members, topics), assignment), fewest_moves(members, topics)
    near = near_count(members, topics, owners_of(assignment))
    gained = near - near_within_shares(members, topics)
    assert gained >= 0
    racks = len({member.rack for member in members})
    assert fewest <= moved <= fewest + (racks + 1) * gained, f"{moved} moves, at least {fewest}, {gained} became near"


def check_uniform(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """Check all laws of `uniform`."""
    check_owners(members, topics, assignment)
    check_uniform_balance(members, topics, assignment)
    check_uniform_racks(members, topics, assignment)
    check_moves(members, topics, assignment)


def check_range(members: Sequence[MemberSpec], topics: Topics, assignment: Assignment) -> None:
    """Check all laws of `range`."""
    check_owners(members, topics, assignment)
    check_range_balance(members, topics, assignment)
    check_co_partitions(members, topics, assignment)
    check_ranges(members, topics, assignment)
    check_range_racks(members, topics, assignment)


LAWS = {"uniform": check_uniform, "range": check_range}
"""All laws of an assignor that one assignment shows, by name."""

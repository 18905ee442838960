# SPDX-License-Identifier: Apache-2.0
"""Groups that are large, lopsided or contradictory, and the numbers that stickiness promises."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from brokerd.groups.assignment import specs
from brokerd.groups.assignment.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, assignor_named
from brokerd.groups.assignment.specs import (
    AssignmentTooLargeError,
    DuplicateMemberError,
    InvalidTopicError,
    MemberSpec,
    TopicSpec,
    UnknownAssignorError,
)
from brokerd.tests.groups.assignment import assignment_laws as laws
from brokerd.tests.groups.assignment.assignment_laws import topic_id

UNIFORM, RANGE = ASSIGNORS["uniform"], ASSIGNORS["range"]
NAMES = sorted(ASSIGNORS)


def topics_of(count: int, partitions: int, racks: int = 0) -> dict[bytes, TopicSpec]:
    """Return topics with equally many partitions; with racks, each partition has replicas in two that follow one another."""
    return {
        topic_id(number): TopicSpec(
            topic_id(number),
            partitions,
            tuple(
                frozenset({f"rack-{(number + each) % racks}", f"rack-{(number + each + 1) % racks}"})
                for each in range(partitions if racks else 0)
            ),
        )
        for number in range(count)
    }


def members_of(count: int, topics: Mapping[bytes, TopicSpec], racks: int = 0) -> list[MemberSpec]:
    """Return members that subscribe to all topics, in racks by turns."""
    wanted = frozenset(topics)
    return [
        MemberSpec(f"member-{number:05}", None, f"rack-{number % racks}" if racks else None, wanted, {})
        for number in range(count)
    ]


def check_cheap_laws(name: str, members: Sequence[MemberSpec], topics: Mapping[bytes, TopicSpec]) -> None:
    """Check the laws that are quick to judge for many members, and that a second computation moves nothing."""
    assignment = ASSIGNORS[name].assign(members, topics)
    laws.check_owners(members, topics, assignment)
    if name == "uniform":
        sizes = laws.sizes_of(assignment).values()
        assert max(sizes) - min(sizes) <= 1
    else:
        laws.check_range_balance(members, topics, assignment)
        laws.check_co_partitions(members, topics, assignment)
    assert ASSIGNORS[name].assign(laws.owning(members, assignment), topics) == assignment


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("racks", [0, 3])
def test_one_topic_of_50000_partitions(name: str, racks: int) -> None:
    """The members of one huge topic share it evenly, and all partitions are near where each rack has enough members."""
    topics = topics_of(1, 50_000, racks)
    members = members_of(100, topics, racks)
    check_cheap_laws(name, members, topics)
    if racks:
        assignment = ASSIGNORS[name].assign(members, topics)
        assert laws.near_count(members, topics, laws.owners_of(assignment)) == 50_000


@pytest.mark.parametrize("racks", [0, 3])
def test_one_member_of_a_huge_topic_is_relieved(racks: int) -> None:
    """With differing subscriptions, one member that owns 50,000 partitions of one topic gives half of them to a newcomer."""
    topics = topics_of(2, 50_000, racks)
    huge, other = sorted(topics)
    everything = {huge: tuple(range(50_000))}
    members = [
        MemberSpec("a", None, "rack-0", frozenset({huge}), everything),
        MemberSpec("b", None, "rack-1", frozenset({huge}), {}),
        MemberSpec("c", None, "rack-2", frozenset({huge, other}), {other: tuple(range(50_000))}),
    ]
    assignment = UNIFORM.assign(members, topics)
    assert laws.sizes_of(assignment) == {"a": 25_000, "b": 25_000, "c": 50_000}
    if racks:
        # A third has replicas in both racks of the two that share it, a third in each one, so that everything can be near.
        near = laws.near_count(
            members, topics, {each: owner for each, owner in laws.owners_of(assignment).items() if each[0] == huge}
        )
        assert near == 50_000


@pytest.mark.parametrize("name", NAMES)
def test_1000_topics_of_one_partition(name: str) -> None:
    """`uniform` shares a thousand tiny topics evenly. In `range` they are alike, so that one member has all."""
    topics = topics_of(1_000, 1)
    members = members_of(30, topics)
    check_cheap_laws(name, members, topics)
    sizes = sorted(laws.sizes_of(ASSIGNORS[name].assign(members, topics)).values())
    assert sizes[-1] == (34 if name == "uniform" else 1_000)


@pytest.mark.parametrize("name", NAMES)
def test_disjoint_subscriptions(name: str) -> None:
    """Members that share no topic with anybody own theirs alone."""
    topics = topics_of(50, 7)
    members = [
        MemberSpec(f"member-{number}", None, None, frozenset({each}), {}) for number, each in enumerate(sorted(topics))
    ]
    assignment = ASSIGNORS[name].assign(members, topics)
    for member in members:
        assert assignment[member.member_id] == {topic: tuple(range(7)) for topic in member.topics}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("racks", [0, 4])
def test_more_members_than_partitions(name: str, racks: int) -> None:
    """With more members than partitions, nobody has more than one of a topic, and some have nothing."""
    topics = topics_of(1, 12, racks)
    check_cheap_laws(name, members_of(40, topics, racks), topics)


@pytest.mark.parametrize("name", NAMES)
def test_racks_that_are_all_different(name: str) -> None:
    """Each member in a rack of its own: nearly a matching of members and partitions, and complete here."""
    topics = topics_of(1, 300, 300)
    members = members_of(300, topics, 300)
    assignment = ASSIGNORS[name].assign(members, topics)
    assert laws.near_count(members, topics, laws.owners_of(assignment)) == 300
    check_cheap_laws(name, members, topics)


def test_lookups_for_racks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the lookups for racks are spent, the assignment is balanced and complete all the same."""
    topics = topics_of(6, 50, 12)
    members = members_of(12, topics, 12)
    for equal in (True, False):
        wanted = members if equal else [replace(members[0], topics=frozenset(sorted(topics)[:5])), *members[1:]]
        # Everybody begins with the wrong half.
        owned = laws.owning(wanted, RANGE.assign([replace(member, rack=None) for member in wanted], topics))
        near = []
        for limit in (0, specs.MAX_RACK_LOOKUPS):
            for module in ("racks", "differing"):
                monkeypatch.setattr(f"brokerd.groups.assignment.{module}.MAX_RACK_LOOKUPS", limit)
            assignment = UNIFORM.assign(owned, topics)
            laws.check_owners(owned, topics, assignment)
            laws.check_uniform_balance(owned, topics, assignment)
            near.append(laws.near_count(owned, topics, laws.owners_of(assignment)))
        assert near[0] <= near[1]
        assert equal or near[0] < near[1]


def test_numbers_of_stickiness() -> None:
    """100 members, 1,000 partitions: a join moves 9, a leave only what is free, growth nothing, a restart of all nothing."""
    topics = topics_of(20, 50)
    members = laws.owning(members_of(100, topics), UNIFORM.assign(members_of(100, topics), topics))
    # 101 members: nine get ten partitions less... 1,000 = 101 x 9 + 91, so that the newcomer takes nine, one from each of nine.
    joined = [*members, MemberSpec("member-99999", None, None, frozenset(topics), {})]
    after_join = UNIFORM.assign(joined, topics)
    assert laws.moves(laws.valid_owners(joined, topics), after_join) == 9
    assert laws.sizes_of(after_join)["member-99999"] == 9
    left = members[1:]
    assert laws.moves(laws.valid_owners(left, topics), UNIFORM.assign(left, topics)) == 0
    grown = {**topics, topic_id(0): TopicSpec(topic_id(0), 90, ())}
    assert laws.moves(laws.valid_owners(members, grown), UNIFORM.assign(members, grown)) == 0
    # The newcomer's partitions come from nine topics or more, not from the last one alone.
    assert len(after_join["member-99999"]) >= 5


def test_range_moves_at_most_half_and_one_for_each_member() -> None:
    """A join or leave moves at most half of each topic, and at most one partition more for each member."""
    topics = topics_of(3, 120)
    members = members_of(10, topics)
    members = laws.owning(members, RANGE.assign(members, topics))
    for position in range(11):
        newcomer = MemberSpec(f"member-{position - 1:05}~", None, None, frozenset(topics), {})
        joined = [*members, newcomer]
        moved = laws.moves(laws.valid_owners(joined, topics), RANGE.assign(joined, topics))
        assert moved <= 3 * (120 / 2 + 10), position
    for position in range(10):
        left = [*members[:position], *members[position + 1 :]]
        moved = laws.moves(laws.valid_owners(left, topics), RANGE.assign(left, topics))
        assert moved <= 3 * (120 / 2 + 10), position


DIGEST = """
import hashlib, sys
from brokerd.groups.assignment.assignors import ASSIGNORS
from brokerd.tests.groups.assignment.seeded_groups import Storm
digest = hashlib.sha256()
for name in sorted(ASSIGNORS):
    for equal in (False, True):
        for seed in range(3):
            storm = Storm(seed, name, equal, racks=True)
            storm.run(15)
            for member in sorted(storm.members, key=lambda member: member.member_id):
                digest.update(repr((member.member_id, sorted(member.owned.items()))).encode())
print(digest.hexdigest())
"""


def test_no_hash_seed_matters() -> None:
    """Processes with different hash seeds come to the same assignments through a storm."""
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1
    assert len(digests.pop()) == 65


def test_two_claims_of_one_partition() -> None:
    """Of two members that claim a partition, the first in the order of members counts as the owner."""
    topics = topics_of(1, 2)
    members = [replace(each, owned={topic_id(0): (0,)}) for each in members_of(2, topics)]
    assert UNIFORM.assign(members, topics)["member-00000"] == {topic_id(0): (0,)}


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_group_has_an_empty_assignment(name: str) -> None:
    """Nobody gets nothing; members without topics, and topics without members, are no error."""
    assert ASSIGNORS[name].assign([], topics_of(1, 3)) == {}
    assert ASSIGNORS[name].assign([MemberSpec("a", None, "r", frozenset(), {})], topics_of(1, 3)) == {"a": {}}
    assert ASSIGNORS[name].assign(members_of(1, topics_of(1, 3)), {}) == {"member-00000": {}}


def test_bad_input_is_refused() -> None:
    """Contradictions and sizes beyond the limits are typed errors that say what to do."""
    topics = topics_of(1, 3)
    one, two = members_of(2, topics)
    with pytest.raises(DuplicateMemberError, match="keep the newer one"):
        UNIFORM.assign([one, one], topics)
    with pytest.raises(DuplicateMemberError, match="keep the newer one"):
        RANGE.assign([replace(one, instance_id="i"), replace(two, instance_id="i")], topics)
    for bad in (
        TopicSpec(topic_id(1), 3, ()),
        TopicSpec(topic_id(0), -1, ()),
        TopicSpec(topic_id(0), 2, (frozenset(),)),
    ):
        with pytest.raises(InvalidTopicError, match="for every partition or for none"):
            UNIFORM.assign([one], {topic_id(0): bad})
    with pytest.raises(AssignmentTooLargeError, match="split it"):
        UNIFORM.assign(members_of(specs.MAX_MEMBERS + 1, {}), {})
    with pytest.raises(AssignmentTooLargeError, match="split it"):
        UNIFORM.assign([one], topics_of(1, specs.MAX_PARTITIONS + 1))
    with pytest.raises(UnknownAssignorError, match="uniform, range"):
        assignor_named("sticky")
    assert assignor_named(DEFAULT_ASSIGNOR) is UNIFORM


def test_too_many_subscriptions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of members and topics has a limit of its own."""
    monkeypatch.setattr("brokerd.groups.assignment.numbered.MAX_SUBSCRIPTIONS", 5)
    topics = topics_of(3, 1)
    with pytest.raises(AssignmentTooLargeError, match="split the group"):
        UNIFORM.assign(members_of(2, topics), topics)

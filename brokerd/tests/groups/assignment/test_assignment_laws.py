# SPDX-License-Identifier: Apache-2.0
"""Both assignors keep the laws of an assignment for groups of any kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.groups.assignment.assignors import ASSIGNORS
from brokerd.groups.assignment.specs import MemberSpec, TopicSpec
from brokerd.tests.groups.assignment import assignment_laws as laws
from brokerd.tests.groups.assignment.groups_of_any_kind import Group, groups

UNIFORM, RANGE = ASSIGNORS["uniform"], ASSIGNORS["range"]
EXAMPLES = 100
NAMES = sorted(ASSIGNORS)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(group=groups())
def test_the_laws_hold(name: str, group: Group) -> None:
    """The laws of `docs/assignment.md` hold for one assignment, whatever members own before."""
    laws.LAWS[name](group.members, group.topics, ASSIGNORS[name].assign(group.members, group.topics))


@settings(max_examples=EXAMPLES, deadline=None)
@given(groups(equal=True))
def test_equal_subscriptions_differ_by_at_most_one_partition(group: Group) -> None:
    """With equal subscriptions, the sizes of all members differ by at most one."""
    sizes = laws.sizes_of(UNIFORM.assign(group.members, group.topics)).values()
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=EXAMPLES, deadline=None)
@given(groups(equal=True, racks=False, max_partitions=12))
def test_moves_are_the_fewest_that_balance_allows(group: Group) -> None:
    """With equal subscriptions and without racks, no balanced assignment moves fewer partitions."""
    assignment = UNIFORM.assign(group.members, group.topics)
    moves = laws.moves(laws.valid_owners(group.members, group.topics), assignment)
    assert moves == laws.fewest_moves(group.members, group.topics)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(group=groups())
def test_what_is_assigned_stays(name: str, group: Group) -> None:
    """A second computation over the result moves nothing."""
    first = ASSIGNORS[name].assign(group.members, group.topics)
    assert ASSIGNORS[name].assign(laws.owning(group.members, first), group.topics) == first


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=EXAMPLES, deadline=None)
@given(group=groups(), data=st.data())
def test_no_order_matters(name: str, group: Group, data: st.DataObject) -> None:
    """Members, topics and owned partitions in another order give the same assignment."""
    members = [
        replace(each, owned=dict(data.draw(st.permutations(list(each.owned.items())))))
        for each in data.draw(st.permutations(group.members))
    ]
    topics: dict[bytes, TopicSpec] = dict(data.draw(st.permutations(list(group.topics.items()))))
    assert ASSIGNORS[name].assign(members, topics) == ASSIGNORS[name].assign(group.members, group.topics)


def returned(member: MemberSpec, new_id: str, *, with_target: bool) -> MemberSpec:
    """Return a static member after its restart."""
    return replace(member, member_id=new_id, owned=member.owned if with_target else {})


# `range` needs nothing but the instance id; for `uniform` the group keeps the target of a static member that is away.
@pytest.mark.parametrize(("name", "with_target"), [("uniform", True), ("range", True), ("range", False)])
@settings(max_examples=EXAMPLES, deadline=None)
@given(group=groups())
def test_a_static_member_returns_to_its_share(name: str, with_target: bool, group: Group) -> None:
    """A static member that returns under another member id has its share of before, and so has everybody else."""
    first = ASSIGNORS[name].assign(group.members, group.topics)
    members = laws.owning(group.members, first)
    for position, member in enumerate(members):
        for new_id in ("!first", "~last") if member.instance_id is not None else ():
            again = [*members[:position], returned(member, new_id, with_target=with_target), *members[position + 1 :]]
            expected = {new_id if key == member.member_id else key: share for key, share in first.items()}
            assert ASSIGNORS[name].assign(again, group.topics) == expected


@settings(max_examples=EXAMPLES, deadline=None)
@given(groups(equal=True, racks=False))
def test_a_static_member_without_its_target_moves_nothing(group: Group) -> None:
    """A static member that returns empty-handed to `uniform` takes from nobody: what it had is free."""
    members = laws.owning(group.members, UNIFORM.assign(group.members, group.topics))
    emptied = [returned(members[0], "back", with_target=False), *members[1:]]
    assignment = UNIFORM.assign(emptied, group.topics)
    assert laws.moves(laws.valid_owners(emptied, group.topics), assignment) == 0

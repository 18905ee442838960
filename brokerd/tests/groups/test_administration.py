# SPDX-License-Identifier: Apache-2.0
"""Lists, descriptions and the deletion of groups."""

from __future__ import annotations

from brokerd.groups.answers import (
    GroupDeletion,
    GroupDescription,
    GroupList,
    GroupListing,
    GroupState,
    ReconciliationState,
    Refusal,
)
from brokerd.groups.commands import CommitOffsets, DeleteGroup, DescribeGroup, ListGroups, OffsetCommit
from brokerd.tests.groups.coordinator_host import CoordinatorHost, refusal, topic

T = topic("t", 4)


def test_list_in_pages_and_by_state() -> None:
    """Groups come by id, a page at a time, and may be chosen by state."""
    host = CoordinatorHost(T)
    for group_id in ("c", "a", "b"):
        host.join("m", "t", group_id=group_id)
    host.settle("m", group_id="b")
    host.commit(T.topic_id, 0, 1, group_id="d")
    first = host.do(ListGroups(limit=2))
    assert isinstance(first, GroupList)
    assert [each.group_id for each in first.groups] == ["a", "b"]
    assert first.has_more
    assert first.groups[1] == GroupListing(group_id="b", state=GroupState.STABLE, member_count=1)
    rest = host.do(ListGroups(after="b", limit=2))
    assert isinstance(rest, GroupList)
    assert [each.group_id for each in rest.groups] == ["c", "d"]
    assert not rest.has_more
    empty = host.do(ListGroups(states=("Empty",)))
    assert isinstance(empty, GroupList)
    assert [each.group_id for each in empty.groups] == ["d"]


def test_description_shows_how_far_each_member_is() -> None:
    """A rebalance seen from outside: one member must revoke, the other waits for it."""
    host = CoordinatorHost(T)
    host.join("a", "t", stream=1, client_id="app", client_host="h")
    host.beat("a")
    host.settle("a")
    host.join("b", "t")
    host.run(200)
    host.beat("a")
    host.beat("b")
    found = host.do(DescribeGroup(group_id="g"))
    assert isinstance(found, GroupDescription)
    assert found.state is GroupState.RECONCILING
    assert found.assignor == "uniform"
    assert [each.state for each in found.members] == [ReconciliationState.UNREVOKED, ReconciliationState.UNRELEASED]
    assert found.members[0].about.client_id == "app"
    assert len(found.members[1].target[T.topic_id]) == 2
    host.settle("a", "b")
    found = host.do(DescribeGroup(group_id="g"))
    assert isinstance(found, GroupDescription)
    assert found.state is GroupState.STABLE
    assert refusal(host.do(DescribeGroup(group_id="?"))) is Refusal.GROUP_NOT_FOUND


def test_deletion_needs_a_group_without_members() -> None:
    """With members it is refused; without, group and offsets are gone, and the log keeps nothing."""
    host = CoordinatorHost(T)
    assert refusal(host.do(DeleteGroup(group_id="g"))) is Refusal.GROUP_NOT_FOUND
    host.commit(T.topic_id, 0, 1)
    host.join("a", "t")
    assert refusal(host.do(DeleteGroup(group_id="g"))) is Refusal.GROUP_NOT_EMPTY
    host.run(45_000)
    assert host.do(DeleteGroup(group_id="g")) == GroupDeletion(is_complete=True)
    assert list(host.core.records()) == []
    assert host.core.topics_with_offsets() == ()
    assert host.committed(T.topic_id, 0) is None


def test_deletion_of_a_large_group_comes_in_parts() -> None:
    """Each call deletes what fits into a decision; the group stays until the last of it."""
    host = CoordinatorHost(topic("t", 4_000))
    offsets = tuple(OffsetCommit(topic_id=T.topic_id, partition=each, offset=1) for each in range(4_000))
    host.do(CommitOffsets(group_id="g", offsets=offsets))
    for _ in range(3):
        assert host.do(DeleteGroup(group_id="g")) == GroupDeletion(is_complete=False)
        assert host.group()
    assert host.do(DeleteGroup(group_id="g")) == GroupDeletion(is_complete=True)
    assert not host.core.state.groups

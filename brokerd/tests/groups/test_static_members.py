# SPDX-License-Identifier: Apache-2.0
"""Static members: takeover by a proven newer process, and the refusal of one that is not proven."""

from __future__ import annotations

from brokerd.groups.answers import Left, Refusal, Refused
from brokerd.groups.commands import Join, Leave, StreamClosed
from brokerd.groups.records import AWAY_EPOCH, Subscription
from brokerd.tests.groups.coordinator_host import CoordinatorHost, assigned, refusal, topic

T = topic("t", 4)


def two_members(**more: object) -> CoordinatorHost:
    """Return a stable group of a static member `old` (instance `i`) and `b`."""
    host = CoordinatorHost(T)
    host.join("old", "t", instance_id="i", **more)
    host.join("b", "t")
    host.settle("old", "b") if not more else None
    return host


def join_as(host: CoordinatorHost, member_id: str, *, names: tuple[str, ...] = ("t",)) -> object:
    """Join under the instance id."""
    return host.do(Join(group_id="g", member_id=member_id, subscription=Subscription(names), instance_id="i"))


def test_replacement_of_a_member_that_will_be_back() -> None:
    """It gets the same partitions in the answer to its join; the other member is not touched, and no target is computed."""
    host = two_members()
    mine, other = assigned(host.member("old")), host.member("b").known_current
    leave = Leave(group_id="g", member_id="old", instance_id="i", will_be_back=True)
    assert host.do(leave) == Left()
    assert host.member("old").known_current.member_epoch == AWAY_EPOCH
    host.computing = False
    host.join("new", "t", instance_id="i")
    assert assigned(host.member("new")) == mine
    assert host.member("b").known_current == other
    host.run(1_000)
    assert not [each for each in host.effects if type(each).__name__ == "ComputeAssignment"]
    assert host.group().member("old") is None


def test_member_that_will_be_back_keeps_its_target_until_its_session_ends() -> None:
    """Nobody else gets its partitions before; afterwards the others do."""
    host = two_members()
    host.do(Leave(group_id="g", member_id="old", instance_id="i", will_be_back=True))
    host.run(40_000)
    host.beat("b")
    assert sum(map(len, assigned(host.member("b")).values())) == 2
    host.run(5_000)
    host.settle("b")
    assert assigned(host.member("b")) == {T.topic_id: (0, 1, 2, 3)}


def test_replacement_is_refused_while_the_old_process_may_live() -> None:
    """Without proof it is INSTANCE_IN_USE with the rest of the session; afterwards it may join."""
    host = two_members()
    host.run(5_000)
    host.beat("b")
    outcome = join_as(host, "new")
    assert isinstance(outcome, Refused)
    assert outcome.code is Refusal.INSTANCE_IN_USE
    assert 0 < outcome.retry_after_ms <= 45_000
    host.run(outcome.retry_after_ms)
    host.join("new", "t", instance_id="i")


def test_old_process_is_fenced_for_good() -> None:
    """The process that was replaced gets INSTANCE_FENCED for beats and leaves, and cannot join either."""
    host = two_members(stream=7)
    host.do(StreamClosed(stream=7))
    host.join("new", "t", instance_id="i")
    assert refusal(host.try_beat("old", instance_id="i")) is Refusal.INSTANCE_FENCED
    assert refusal(host.do(Leave(group_id="g", member_id="old", instance_id="i"))) is Refusal.INSTANCE_FENCED
    assert refusal(join_as(host, "old")) is Refusal.INSTANCE_IN_USE


def test_stream_of_another_process_is_no_proof() -> None:
    """Only the end of the stream on which the member beats proves anything, and a beat elsewhere voids it."""
    host = two_members(stream=7)
    host.do(StreamClosed(stream=8))
    assert refusal(join_as(host, "new")) is Refusal.INSTANCE_IN_USE
    host.do(StreamClosed(stream=7))
    host.beat("old", stream=9)
    assert refusal(join_as(host, "new")) is Refusal.INSTANCE_IN_USE


def test_takeover_uses_a_new_assignment_epoch() -> None:
    """The new process holds no partition at an epoch at which the old one held it."""
    host = two_members()
    before = host.member("old").known_current.assigned[T.topic_id]
    host.do(Leave(group_id="g", member_id="old", instance_id="i", will_be_back=True))
    host.join("new", "t", instance_id="i")
    after = host.member("new").known_current.assigned[T.topic_id]
    assert set(before) == set(after)
    assert all(after[each] > before[each] for each in after)


def test_takeover_with_another_subscription_asks_for_a_target() -> None:
    """What the new process does not subscribe to is not assigned to it, and the group is computed anew."""
    host = CoordinatorHost(T, topic("u", 2))
    host.join("old", "t", instance_id="i")
    host.settle("old")
    host.do(Leave(group_id="g", member_id="old", instance_id="i", will_be_back=True))
    assert host.join("new", "u", instance_id="i").assignment == {}
    host.settle("new")
    assert assigned(host.member("new")) == {topic("u").topic_id: (0, 1)}


def test_takeover_voids_a_computation_under_way() -> None:
    """A result that knows the old member id is dropped, and another is asked for."""
    host = two_members()
    host.computing = False
    host.join("c", "t")
    host.run(200)
    asked = host.effects.pop()
    host.do(Leave(group_id="g", member_id="old", instance_id="i", will_be_back=True))
    host.join("new", "t", instance_id="i")
    assert type(asked).__name__ == "ComputeAssignment"
    assert refusal(host.compute(asked)) is Refusal.STALE_ASSIGNMENT
    host.computing = True
    host.settle("new", "b", "c")
    assert sum(len(assigned(host.member(each))[T.topic_id]) for each in ("new", "b", "c")) == 4


def test_only_a_static_member_can_be_back() -> None:
    """A leave with -2 of a dynamic member is refused, and changes nothing."""
    host = CoordinatorHost(T)
    host.join("a", "t")
    outcome = host.do(Leave(group_id="g", member_id="a", will_be_back=True))
    assert refusal(outcome) is Refusal.INVALID_REQUEST
    assert host.member("a").known_current.member_epoch >= 1


def test_instance_id_of_a_member_is_fixed() -> None:
    """A join that changes the instance id of a member is refused."""
    host = two_members()
    assert refusal(join_as(host, "b")) is Refusal.INVALID_REQUEST

# SPDX-License-Identifier: Apache-2.0
"""Target assignments: when one is asked for, of what, and how a result gets into the log."""

from __future__ import annotations

from brokerd.groups.answers import AssignmentStored, GroupState, MemberState, Refusal
from brokerd.groups.assignment.specs import MemberSpec, TopicSpec
from brokerd.groups.commands import AssignmentComputed, ConfigChanged, Join, Leave
from brokerd.groups.effects import ComputeAssignment
from brokerd.groups.limits import ASSIGNMENT_RETRY_MS
from brokerd.groups.records import GroupRecord, Subscription, TargetRecord
from brokerd.groups.settings import GroupConfig
from brokerd.groups.subscriptions import Topic
from brokerd.tests.groups.coordinator_host import CoordinatorHost, assign, assigned, refusal, topic

T, U = topic("t", 4), topic("u", 2)


def asked(host: CoordinatorHost) -> list[ComputeAssignment]:
    """Return the computations that were asked for and not carried out."""
    return [each for each in host.effects if isinstance(each, ComputeAssignment)]


def test_effect_has_everything() -> None:
    """Members with ids, racks, topics and present targets; topics with counts and racks; epoch and assignor."""
    racks = (frozenset({"r1"}), frozenset({"r1", "r2"}))
    host = CoordinatorHost(T, Topic(topic_id=U.topic_id, name="u", partition_count=2, racks=racks))
    host.join("a", "t")
    host.settle("a")
    host.computing = False
    host.join("b", "t", "u", "nowhere", instance_id="i", rack="r1")
    host.run(200)
    (effect,) = asked(host)
    assert effect.group_epoch == host.group().known_value.group_epoch
    assert effect.assignor == "uniform"
    assert effect.members == (
        MemberSpec("a", None, None, frozenset({T.topic_id}), {T.topic_id: (0, 1, 2, 3)}),
        MemberSpec("b", "i", "r1", frozenset({T.topic_id, U.topic_id}), {}),
    )
    assert effect.topics == {
        T.topic_id: TopicSpec(T.topic_id, 4, ()),
        U.topic_id: TopicSpec(U.topic_id, 2, racks),
    }


def test_computation_waits_for_the_interval() -> None:
    """It is asked for an interval after the first change, not earlier and not later."""
    host = CoordinatorHost(T, config=GroupConfig(assignment_interval_ms=1_000))
    host.computing = False
    host.join("a", "t")
    host.run(600)
    host.join("b", "t")
    host.run(399)
    assert asked(host) == []
    host.run(1)
    assert len(asked(host)) == 1


def test_interval_of_zero() -> None:
    """Without an interval the next tick asks."""
    host = CoordinatorHost(T)
    host.do(ConfigChanged(group_id="g", config=GroupConfig(assignment_interval_ms=0)))
    host.computing = False
    host.join("a", "t")
    host.run()
    assert len(asked(host)) == 1


def test_lost_computation_is_asked_for_again() -> None:
    """Without a result the effect comes again after the retry time, and the late first result is still good."""
    host = CoordinatorHost(T)
    host.computing = False
    host.join("a", "t")
    host.run(200)
    host.run(ASSIGNMENT_RETRY_MS - 1)
    assert len(asked(host)) == 1
    host.run(1)
    assert len(asked(host)) == 2
    assert host.compute(asked(host)[0]) == AssignmentStored(is_complete=True)
    assert refusal(host.compute(asked(host)[1])) is Refusal.STALE_ASSIGNMENT


def test_result_that_nobody_awaits_is_dropped() -> None:
    """Results of other epochs, of unknown groups, and of before a failover change nothing."""
    host = CoordinatorHost(T)
    host.computing = False
    host.join("a", "t")
    host.run(200)
    (effect,) = asked(host)
    for group_id, epoch in (("?", effect.group_epoch), ("g", effect.group_epoch + 1), ("g", 1)):
        wrong = AssignmentComputed(group_id=group_id, group_epoch=epoch, assignment=assign(effect))
        assert refusal(host.do(wrong)) is Refusal.STALE_ASSIGNMENT
    host.fail_over()
    assert refusal(host.compute(effect)) is Refusal.STALE_ASSIGNMENT
    host.computing = True
    host.settle("a")
    assert assigned(host.member("a")) == {T.topic_id: (0, 1, 2, 3)}


def test_members_that_come_and_go_meanwhile_do_not_void_a_result() -> None:
    """It counts for those who are still there, and another computation follows: churn cannot starve a group."""
    host = CoordinatorHost(T)
    host.computing = False
    for member_id in ("a", "b"):
        host.join(member_id, "t")
    host.run(200)
    (effect,) = asked(host)
    host.join("c", "t")
    host.do(Leave(group_id="g", member_id="b"))
    host.effects.clear()
    assert host.compute(effect) == AssignmentStored(is_complete=True)
    assert host.core.state.state_of(host.group()) is GroupState.ASSIGNING
    host.beat("a")
    assert assigned(host.member("a")) == {T.topic_id: (0, 2)}
    host.computing = True
    host.settle("a", "c")
    assert sorted(each for member_id in ("a", "c") for each in assigned(host.member(member_id))[T.topic_id]) == [
        0,
        1,
        2,
        3,
    ]


def test_wrong_results_are_refused() -> None:
    """Partitions that do not exist, and partitions with two owners, are no target; the group asks again later."""
    host = CoordinatorHost(T)
    host.computing = False
    host.join("a", "t")
    host.join("b", "t")
    for bad in (
        {"a": {T.topic_id: (0, 4)}},
        {"a": {T.topic_id: (-1,)}},
        {"a": {T.topic_id: (0, 0)}},
        {"a": {T.topic_id: (0, 1)}, "b": {T.topic_id: (1, 2)}},
    ):
        host.run(ASSIGNMENT_RETRY_MS)
        effect = asked(host)[-1]
        result = AssignmentComputed(group_id="g", group_epoch=effect.group_epoch, assignment=bad)
        assert refusal(host.do(result)) is Refusal.INVALID_ASSIGNMENT
        host.beat("a")
        host.beat("b")
    assert assigned(host.member("a")) == {}
    host.computing = True
    host.run(ASSIGNMENT_RETRY_MS)
    host.settle("a", "b")
    assert host.core.state.state_of(host.group()) is GroupState.STABLE


def test_topics_deleted_during_a_computation_are_left_out() -> None:
    """A result may name a topic that has just been deleted; the rest of it counts."""
    host = CoordinatorHost(T, U)
    host.computing = False
    host.join("a", "t", "u")
    host.run(200)
    (effect,) = asked(host)
    host.delete_topic(U)
    assert host.compute(effect) == AssignmentStored(is_complete=True)
    host.beat("a")
    host.beat("a")
    assert assigned(host.member("a")) == {T.topic_id: (0, 1, 2, 3)}


def test_most_members_choose_the_assignor() -> None:
    """Those without a wish count for the default; with a tie the first name wins."""
    host = CoordinatorHost(T)
    host.computing = False
    host.join("a", "t", assignor="range")
    host.join("b", "t")
    host.run(200)
    host.join("c", "t", assignor="uniform")
    host.run(ASSIGNMENT_RETRY_MS)
    assert [each.assignor for each in asked(host)] == ["range", "uniform"]


def large(member_count: int) -> tuple[CoordinatorHost, ComputeAssignment]:
    """Return a group with many members whose target is asked for."""
    names = tuple(f"t{number:04d}" for number in range(300))
    host = CoordinatorHost(*(topic(name, 50) for name in names))
    host.computing = False
    for number in range(member_count):
        host.join(f"m{number:04d}", *names)
    host.run(200)
    return host, asked(host)[-1]


def round_robin(effect: ComputeAssignment) -> dict[str, dict[bytes, tuple[int, ...]]]:
    """Return an assignment without regard to anything."""
    members = [each.member_id for each in effect.members]
    given: dict[str, dict[bytes, tuple[int, ...]]] = {each: {} for each in members}
    index = 0
    for topic_id, spec in effect.topics.items():
        for number in range(spec.partition_count):
            mine = given[members[index % len(members)]]
            mine[topic_id] = (*mine.get(topic_id, ()), number)
            index += 1
    return given


def test_large_target_is_written_in_parts_and_counts_as_a_whole() -> None:
    """While it is written the group is frozen: nobody is assigned anything. With the last part everybody is."""
    host, effect = large(1_000)
    result = AssignmentComputed(group_id="g", group_epoch=effect.group_epoch, assignment=round_robin(effect))
    assert host.do(result) == AssignmentStored(is_complete=False)
    assert host.group().is_frozen
    assert host.beat("m0000").member_epoch < effect.group_epoch
    assert assigned(host.member("m0000")) == {}
    host.run()
    assert not host.group().is_frozen
    assert host.group().known_value.target_epoch == effect.group_epoch
    state = host.beat("m0000")
    assert state.assignment is not None
    assert sum(map(len, state.assignment.values())) == 15


def test_failover_while_a_target_is_written() -> None:
    """The group stays frozen until the next target is written; nobody loses or gets anything in between."""
    host, effect = large(1_000)
    result = AssignmentComputed(group_id="g", group_epoch=effect.group_epoch, assignment=round_robin(effect))
    host.do(result)
    host.fail_over()
    assert host.group().is_frozen
    host.beat("m0000")
    assert assigned(host.member("m0000")) == {}
    host.run(200)
    again = asked(host)[-1]
    host.do(AssignmentComputed(group_id="g", group_epoch=again.group_epoch, assignment=round_robin(again)))
    host.run()
    assert not host.group().is_frozen
    targets = [key for each in host.group().present() for key in each.target_partitions.items()]
    assert sum(len(numbers) for _, numbers in targets) == 15_000


def test_takeover_while_a_target_is_written() -> None:
    """The new process begins with nothing: what is written of the target may contradict its predecessor's."""
    host, effect = large(999)
    host.join("old", "t0000", instance_id="i", stream=4)
    host.run(ASSIGNMENT_RETRY_MS)
    effect = asked(host)[-1]
    host.do(AssignmentComputed(group_id="g", group_epoch=effect.group_epoch, assignment=round_robin(effect)))
    assert host.group().is_frozen
    host.core.state.sessions.close_stream(4)
    new = host.do(Join(group_id="g", member_id="new", subscription=Subscription(("t0000",)), instance_id="i"))
    assert isinstance(new, MemberState)
    assert new.assignment == {}
    host.run()
    assert not host.group().is_frozen
    assert host.member("new").target_partitions == {}
    assert host.core.state.state_of(host.group()) is GroupState.ASSIGNING


def test_records_of_a_target_are_as_the_page_says() -> None:
    """Changed targets come first, with the new epoch, and the group record last; unchanged ones are not written."""
    host = CoordinatorHost(T, U)
    host.join("a", "t")
    host.settle("a")
    host.computing = False
    host.join("b", "u")
    host.run(200)
    seen: list[object] = []
    host.on_decision = lambda core, command, records: seen.extend(records)
    host.compute(asked(host)[-1])
    assert [type(each) for each in seen] == [TargetRecord, GroupRecord]
    assert isinstance(seen[0], TargetRecord)
    assert seen[0].member_id == "b"
    assert seen[0].value is not None
    assert seen[0].value.target_epoch == host.group().known_value.target_epoch

# SPDX-License-Identifier: Apache-2.0
"""Topics and what subscriptions mean; reconciliation as a function; groups when topics change."""

from __future__ import annotations

import pytest

from brokerd.groups.answers import GroupState
from brokerd.groups.commands import Join
from brokerd.groups.patterns import MAX_PATTERN_BYTES, compile_pattern
from brokerd.groups.reconciliation import reconcile
from brokerd.groups.records import CurrentValue, Held, Partitions, Subscription
from brokerd.groups.subscriptions import PatternError, Topics
from brokerd.tests.groups.coordinator_host import CoordinatorHost, assigned, compiler, topic

A, B, X = topic("a", 2), topic("ab", 3), topic("x", 1)


def topics() -> Topics:
    """Return topics that have been handed in."""
    found = Topics(compiler)
    found.change(1, (A, B, X), (), is_complete=True)
    return found


def test_names_and_pattern_together() -> None:
    """A subscription means the named topics that exist, and those that the pattern matches."""
    known = topics()
    assert known.meaning(Subscription(("nowhere", "x"), "a.*")) == {A.topic_id, B.topic_id, X.topic_id}
    assert known.meaning(Subscription(("nowhere",))) == frozenset()
    assert known.meaning(Subscription((), "a")) == {A.topic_id}


def test_older_metadata_changes_nothing() -> None:
    """A change with a lower offset is ignored, and so is a partial one before the first complete one."""
    known = topics()
    assert not known.change(0, (), (A.topic_id,), is_complete=False)
    assert known.get(A.topic_id) == A
    empty = Topics(compiler)
    assert not empty.change(5, (A,), (), is_complete=False)
    assert not empty.is_loaded


def test_complete_change_removes_what_it_does_not_name() -> None:
    """Topics that a complete change lacks do not exist any more."""
    known = topics()
    assert known.change(2, (A,), (), is_complete=True)
    assert known.meaning(Subscription((), ".*")) == {A.topic_id}
    assert not known.change(3, (A,), (), is_complete=True), "nothing has changed"


def test_recreated_topic_has_a_new_identity() -> None:
    """A name means the newest topic with it, in whatever order deletion and creation come."""
    again = topic("a", 5, number=2)
    for deleted, order in (((A.topic_id,), (again,)), ((), (again,))):
        known = topics()
        known.change(2, order, deleted, is_complete=False)
        known.change(3, (), (A.topic_id,), is_complete=False)
        assert known.meaning(Subscription(("a",))) == {again.topic_id}
        assert known.get(A.topic_id) is None


def test_digest_sees_every_difference() -> None:
    """Ids, partition counts and racks are in the digest, the order of the topics is not."""
    known = topics()
    before = known.digest((A.topic_id, X.topic_id))
    assert before == known.digest((X.topic_id, A.topic_id))
    assert before != known.digest((A.topic_id,))
    known.change(2, (topic("a", 3),), (), is_complete=False)
    assert before != known.digest((A.topic_id, X.topic_id))


def test_bad_pattern_of_the_log_means_nothing() -> None:
    """A stored pattern that this version cannot compile means no topic; a new one is refused."""
    known = topics()
    with pytest.raises(PatternError):
        known.check_pattern("(")
    assert known.meaning(Subscription((), "(")) == frozenset()


def test_member_without_topics_is_stable() -> None:
    """Names that do not exist yet give nothing, and everything as soon as they do."""
    host = CoordinatorHost(A)
    host.join("m", "later")
    host.settle("m")
    assert host.core.state.state_of(host.group()) is GroupState.STABLE
    host.put_topic(topic("later", 2))
    host.settle("m")
    assert assigned(host.member("m")) == {topic("later").topic_id: (0, 1)}


def test_more_partitions_are_assigned() -> None:
    """Growth of a topic raises the epoch of its groups and of no other."""
    host = CoordinatorHost(A, X)
    host.join("m", "a")
    host.join("n", "x", group_id="other")
    host.settle("m")
    host.settle("n", group_id="other")
    before = host.group("other").known_value
    host.put_topic(topic("a", 4))
    host.settle("m")
    assert assigned(host.member("m")) == {A.topic_id: (0, 1, 2, 3)}
    assert host.group("other").known_value == before


def test_failover_alone_raises_no_epoch() -> None:
    """A new coordinator with the same topics computes nothing anew."""
    host = CoordinatorHost(A, B)
    host.do(Join(group_id="g", member_id="m", subscription=Subscription((), "a.*")))
    host.settle("m")
    before = host.group().known_value
    host.fail_over()
    host.run(1_000)
    assert host.group().known_value == before


def test_coordinator_that_is_behind_takes_nothing_away() -> None:
    """Before the topics are there, or are as new as those that the group has seen, nothing is revoked or assigned."""
    host = CoordinatorHost(A)
    host.join("m", "a")
    host.put_topic(B)
    host.join("n", "ab")
    host.settle("m", "n")
    before = [each.known_current for each in host.group().present()]
    host.fail_over(with_topics=False)
    host.beat("n")
    host.beat("n")
    host.metadata_offset = 0
    host.topics = {A.topic_id: A}
    host.tell_topics()
    for member_id in ("m", "n", "m", "n"):
        host.beat(member_id)
        host.run(1_000)
    assert [each.known_current for each in host.group().present()] == before
    host.metadata_offset = 10
    host.put_topic(B)
    host.settle("m", "n")
    assert host.core.state.state_of(host.group()) is GroupState.STABLE


T = b"t"


def step(
    assigned: Held, target: Partitions, *, revoking: Held | None = None, owned: Partitions | None = None, busy: str = ""
) -> CurrentValue:
    """Take one step from epoch 5 to a target of epoch 7; partitions whose digits are in `busy` are held by others."""
    current = CurrentValue(member_epoch=5, previous_epoch=4, assigned=assigned, revoking=revoking or {})
    return reconcile(
        current, target=target, target_epoch=7, owned=owned, is_free=lambda topic_id, number: str(number) not in busy
    )


def test_step_takes_what_is_free() -> None:
    """New partitions get the target epoch, kept ones keep theirs, and busy ones wait."""
    after = step({T: {0: 3}}, {T: (0, 1, 2)}, busy="2")
    assert after == CurrentValue(member_epoch=7, previous_epoch=5, assigned={T: {0: 3, 1: 7}})


def test_step_revokes_first() -> None:
    """As long as something is to be given up, the epoch stays and nothing new comes."""
    after = step({T: {0: 3, 1: 3}}, {T: (0, 2)})
    assert after == CurrentValue(member_epoch=5, previous_epoch=4, assigned={T: {0: 3}}, revoking={T: {1: 3}})
    waiting = step({T: {0: 3}}, {T: (0, 2)}, revoking={T: {1: 3}}, owned={T: (0, 1)})
    assert waiting.revoking == {T: {1: 3}}
    assert waiting.member_epoch == 5


def test_step_goes_on_after_the_confirmation() -> None:
    """Without the revoked partition among the owned ones, the member reaches the target."""
    after = step({T: {0: 3}}, {T: (0, 2)}, revoking={T: {1: 3}}, owned={T: (0,)})
    assert after == CurrentValue(member_epoch=7, previous_epoch=5, assigned={T: {0: 3, 2: 7}})


def test_step_does_not_return_what_is_being_revoked() -> None:
    """A partition that comes back into the target is confirmed first, and then assigned at a new epoch."""
    waiting = step({}, {T: (1,)}, revoking={T: {1: 3}}, owned={T: (1,)}, busy="1")
    assert waiting.revoking == {T: {1: 3}}
    assert waiting.assigned == {}


def test_step_without_a_change_returns_the_same_object() -> None:
    """So that nothing is written."""
    current = CurrentValue(member_epoch=7, previous_epoch=5, assigned={T: {0: 3}})
    after = reconcile(
        current, target={T: (0, 1)}, target_epoch=7, owned={T: (0,)}, is_free=lambda topic_id, number: number == 0
    )
    assert after is current


@pytest.mark.parametrize("pattern", ["(", "a" * (MAX_PATTERN_BYTES + 1)])
def test_pattern_that_re2_refuses_is_refused(pattern: str) -> None:
    """The core recognises the errors of the broker's own matcher, with the reason in the text."""
    known = Topics(compile_pattern)
    with pytest.raises(PatternError, match=r"\S"):
        known.check_pattern(pattern)
    assert known.meaning(Subscription((), pattern)) == frozenset()

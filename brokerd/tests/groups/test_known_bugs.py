# SPDX-License-Identifier: Apache-2.0
"""Bugs that other systems had, each as a test (`docs/groups.md` section "Bugs of other systems")."""

from __future__ import annotations

import random

from brokerd.groups.answers import FetchedOffsets, MemberState, OffsetResults, Refusal, Refused
from brokerd.groups.commands import (
    Beat,
    CommitOffsets,
    ConfigChanged,
    FetchOffsets,
    Join,
    Leave,
    OffsetCommit,
    StreamClosed,
)
from brokerd.groups.core import GroupCore
from brokerd.groups.effects import ComputeAssignment, OffsetsExpired
from brokerd.groups.limits import MAX_OFFSET_METADATA_BYTES, OFFSETS_SWEEP_MS
from brokerd.groups.records import CurrentRecord, GroupRecord, MemberRecord, OffsetRecord, Subscription, TargetRecord
from brokerd.groups.settings import GroupConfig
from brokerd.tests.groups.coordinator_host import (
    CoordinatorHost,
    assigned,
    compacted,
    compiler,
    indexes,
    loaded,
    refusal,
    topic,
)
from brokerd.tests.groups.group_walk import Walk
from brokerd.tests.groups.model_client import RETRY_FLOOR_MS, ModelClient, Phase

T, U = topic("t", 4), topic("u", 2)
DAY_MS = 24 * 3_600_000


def stable(*member_ids: str) -> CoordinatorHost:
    """Return a stable group of members that share T."""
    host = CoordinatorHost(T, U)
    for member_id in member_ids:
        host.join(member_id, "t")
    host.settle(*member_ids)
    return host


def test_commit_with_the_epoch_before_an_unseen_answer_counts() -> None:
    """The broker's epoch has moved and the answer is still under way: the owner's commits count all the same (KIP-1251)."""
    host = stable("a", "b")
    known = host.member("a").known_current.member_epoch
    kept = assigned(host.member("a"))[T.topic_id][0]
    for number in range(20):
        host.join(f"c{number}", "u")
        host.run(200)
        host.beat("a")
        assert host.member("a").known_current.member_epoch > known
        assert host.commit(T.topic_id, kept, number, member_id="a", member_epoch=known) is None
    assert host.committed(T.topic_id, kept) == 19


def test_fetch_of_offsets_answers_whatever_the_epoch() -> None:
    """While members join and epochs move, a fetch gives the offset; it is never an error that a client could take for none."""
    host = stable("a")
    host.commit(T.topic_id, 0, 77, member_id="a", member_epoch=host.member("a").known_current.member_epoch)
    for number in range(50):
        host.join(f"m{number}", "t")
        host.run(20)
        assert host.committed(T.topic_id, 0) == 77
    host.fail_over(with_topics=False)
    assert host.committed(T.topic_id, 0) == 77
    client = ModelClient("g", "x", Subscription(("t",)))
    client.owned[T.topic_id, 0] = None
    client.no_answer(1, 0)
    assert client.owned[T.topic_id, 0] is None, "a failure is no position"


def test_unsubscribed_partition_has_one_owner_for_each_epoch() -> None:
    """A member in Unrevoked unsubscribes and comes back: no pair of partition and assignment epoch has two owners."""
    host = stable("a")
    owners: dict[tuple[int, int], str] = {}

    def note() -> None:
        for member in host.group().present():
            for held in (member.known_current.assigned, member.known_current.revoking):
                for number, epoch in held.get(T.topic_id, {}).items():
                    assert owners.setdefault((number, epoch), member.member_id) == member.member_id

    host.join("b", "t")
    host.run(200)
    host.beat("a")
    assert host.member("a").known_current.revoking
    note()
    for names in (("u",), ("t",), ("u",), ("t",)):
        host.beat("a", subscription=Subscription(names), owned={T.topic_id: (0, 1, 2, 3)})
        note()
        for _ in range(3):
            for member_id in ("a", "b"):
                host.run(100)
                host.beat(member_id)
                note()
    assert len(owners) > 4


def test_fenced_member_joins_with_epoch_zero() -> None:
    """A member that was told FENCED, or was removed, joins under its id at once."""
    host = stable("a", "b")
    assert refusal(host.try_beat("a", member_epoch=99)) is Refusal.FENCED_MEMBER_EPOCH
    assert host.join("a", "t").assignment == assigned(host.member("a"))
    host.run(45_000)
    assert not host.group().members
    assert host.join("a", "t").member_epoch >= 1
    host.settle("a")
    assert assigned(host.member("a")) == {T.topic_id: (0, 1, 2, 3)}


def test_dropped_topic_leaves_before_the_next_target() -> None:
    """The beat that drops a topic takes its partitions away, although the target still has them."""
    host = stable("a")
    host.computing = False
    state = host.beat("a", subscription=Subscription(("u",)))
    assert state.assignment == {}
    assert host.member("a").target_partitions == {T.topic_id: (0, 1, 2, 3)}
    assert set(host.member("a").known_current.revoking[T.topic_id]) == {0, 1, 2, 3}
    host.beat("a")
    assert not host.member("a").known_current.revoking
    assert assigned(host.member("a")) == {}


def test_released_partition_is_pushed_at_once() -> None:
    """The member that waits for a partition gets it when the other has released it, without a beat of its own (KIP-848 needs one)."""
    host = CoordinatorHost(T)
    host.join("a", "t", stream=1)
    host.beat("a", stream=1)
    host.run(200)
    host.beat("a", stream=1)
    host.join("b", "t", stream=2)
    host.beat("b", stream=2)
    host.run(200)
    host.beat("b", stream=2)
    host.effects.clear()
    host.beat("a", stream=1)
    host.run()
    pushes = [each for each in host.pushes() if each.member_id == "b"]
    assert len(pushes) == 1
    assert sum(map(len, pushes[0].assignment.values())) == 2


def test_last_member_takes_the_target_epoch_along() -> None:
    """Whether the last member leaves or is removed, the empty group has target epoch = group epoch."""
    for end in ("leave", "session", "limit"):
        host = CoordinatorHost(T)
        host.join("a", "t", processing_limit_ms=1_000)
        if end == "leave":
            host.do(Leave(group_id="g", member_id="a"))
        elif end == "session":
            host.run(45_000)
        else:
            host.try_beat("a", idle_ms=1_001)
        value = host.group().known_value
        assert value.target_epoch == value.group_epoch, end
        assert value.empty_since_ms is not None


def test_pattern_sees_new_and_deleted_topics() -> None:
    """A topic that a pattern matches is assigned when it is created, and leaves when it is deleted."""
    host = CoordinatorHost(topic("p1", 1))
    host.do(Join(group_id="g", member_id="a", subscription=Subscription((), "p.*")))
    host.settle("a")
    assert assigned(host.member("a")) == {topic("p1").topic_id: (0,)}
    host.put_topic(topic("p2", 2))
    host.settle("a")
    assert assigned(host.member("a")) == {topic("p1").topic_id: (0,), topic("p2").topic_id: (0, 1)}
    host.delete_topic(topic("p1"))
    host.settle("a")
    assert assigned(host.member("a")) == {topic("p2").topic_id: (0, 1)}


def test_pattern_that_matches_nothing_any_more_raises_the_epoch() -> None:
    """From one topic to none is a change: the epoch rises, and the member ends stable with nothing."""
    host = CoordinatorHost(topic("p1", 1))
    host.do(Join(group_id="g", member_id="a", subscription=Subscription((), "p.*")))
    host.settle("a")
    before = host.group().known_value.group_epoch
    host.delete_topic(topic("p1"))
    host.settle("a")
    assert host.group().known_value.group_epoch > before
    assert assigned(host.member("a")) == {}
    assert host.core.state.state_of(host.group()).value == "Stable"


def test_pattern_never_matches_internal_topics() -> None:
    """Topics of the system are no part of ".*"."""
    host = CoordinatorHost(topic("__groups", 4), T)
    host.do(Join(group_id="g", member_id="a", subscription=Subscription((), ".*")))
    host.settle("a")
    assert assigned(host.member("a")) == {T.topic_id: (0, 1, 2, 3)}


def test_load_of_every_compacted_subset_gives_the_same_state() -> None:
    """Whatever compaction has left of a long history with removals, takeovers and deletions: state and indexes are the same."""
    walk = Walk(5)
    walk.run(500)
    batches = walk.log
    whole = loaded(GroupCore(compiler), [record for batch in batches for record in batch.records])
    rng = random.Random(1)
    for _ in range(60):
        core = loaded(GroupCore(compiler), compacted(batches, rng))
        assert list(core.records()) == list(whole.records())
        assert indexes(core) == indexes(whole)
    assert len(list(whole.records())) > 10


def test_lone_tombstones_create_nothing() -> None:
    """Tombstones of keys that were never seen leave no trace, in any order."""
    tombstones = [
        CurrentRecord("g", "a", None),
        TargetRecord("g", "a", None),
        MemberRecord("g", "a", None),
        OffsetRecord("g", b"t" * 16, 0, None),
        GroupRecord("g", None),
    ]
    for order in (tombstones, tombstones[::-1]):
        core = GroupCore(compiler)
        for record in order:
            core.replay(record)
        assert not core.state.groups
        assert core.topics_with_offsets() == ()


def test_client_drops_a_partition_before_it_confirms() -> None:
    """The model client delivers nothing of a revoked partition, and confirms only after its callback."""
    client = ModelClient("g", "a", Subscription(("t",)), callback_ms=500)
    tell(client, {T.topic_id: (0, 1)}, number=1, now_ms=0)
    client.owned = dict.fromkeys(client.owned, 5)
    client.hear(0, state({T.topic_id: (0,)}, number=2), 10)
    assert client.deliver((T.topic_id, 1)) is None
    assert client.deliver((T.topic_id, 0)) == 5
    first = beat_of(client, 20)
    assert first.owned == {T.topic_id: (0, 1)}, "the callback runs"
    client.hear(first.beat_number, state(None, number=2), 30)
    second = beat_of(client, 600)
    assert second.owned == {T.topic_id: (0,)}
    assert second.assignment_number == 2


def test_client_retries_have_a_floor() -> None:
    """Whatever a coordinator refuses, the model client sends at most one request for each floor."""
    for code in (Refusal.FENCED_MEMBER_EPOCH, Refusal.UNKNOWN_MEMBER, Refusal.SUPERSEDED, Refusal.INSTANCE_IN_USE):
        client = ModelClient("g", "a", Subscription(("t",)))
        sent = 0
        for now_ms in range(0, 2_000, 5):
            for command in client.step(now_ms):
                if isinstance(command, Beat | Join):
                    sent += 1
                    client.hear(command.beat_number, Refused(code=code, message="no"), now_ms)
        assert sent <= 1 + 2_000 // RETRY_FLOOR_MS, code


def test_a_burst_of_joins_makes_one_computation() -> None:
    """Joins within the assignment interval are assigned together; the interval begins with the first."""
    host = CoordinatorHost(T)
    host.computing = False
    for number in range(20):
        host.join(f"m{number:02d}", "t")
        host.run(9)
    host.run(200)
    asked = [each for each in host.effects if isinstance(each, ComputeAssignment)]
    assert len(asked) == 1
    assert len(asked[0].members) == 20


def test_metadata_is_counted_in_plain_bytes() -> None:
    """4,096 bytes are accepted, one more is not, however well they would compress; letters are not bytes."""
    host = CoordinatorHost(T)
    for text, is_good in (
        ("a" * MAX_OFFSET_METADATA_BYTES, True),
        ("a" * (MAX_OFFSET_METADATA_BYTES + 1), False),
        ("é" * (MAX_OFFSET_METADATA_BYTES // 2 + 1), False),
    ):
        offset = OffsetCommit(topic_id=T.topic_id, partition=0, offset=1, metadata=text)
        outcome = host.do(CommitOffsets(group_id="g", offsets=(offset,)))
        assert isinstance(outcome, OffsetResults)
        assert (outcome.results[0].refused is None) is is_good


def test_sweep_keeps_a_group_with_offsets() -> None:
    """A group without members goes only when it has no offsets either."""
    host = CoordinatorHost(T)
    host.commit(T.topic_id, 0, 1)
    host.run(3 * OFFSETS_SWEEP_MS)
    assert host.committed(T.topic_id, 0) == 1
    assert host.core.state.group("g") is not None


def test_stalled_client_revokes_before_it_is_removed() -> None:
    """Over the processing limit, the model client first loses its partitions, then says so, then joins again."""
    host = CoordinatorHost(T)
    client = ModelClient("g", "a", Subscription(("t",)), processing_limit_ms=5_000)
    seen: list[str] = []
    client.start(host.now_ms)
    for step in range(1_200):
        host.run(10)
        client.is_application_stalled = 100 <= step < 900
        for command in client.step(host.now_ms):
            outcome = host.do(command)
            if isinstance(command, FetchOffsets) and isinstance(outcome, FetchedOffsets):
                client.hear_offsets(command, outcome)
            elif isinstance(command, Beat | Join):
                if isinstance(outcome, Refused):
                    seen.append(outcome.code.name)
                    assert not client.held
                client.hear(command.beat_number, outcome, host.now_ms)
    assert seen == ["PROCESSING_LIMIT_EXCEEDED"]
    assert [each[0] for each in client.log] == ["assigned", "lost", "assigned"]
    assert client.phase is Phase.MEMBER


def test_instance_fenced_is_final() -> None:
    """A client whose instance id a newer process has ends with the error, and sends nothing more."""
    client = ModelClient("g", "a", Subscription(("t",)), instance_id="i")
    tell(client, {T.topic_id: (0,)}, number=1, now_ms=0)
    sent = beat_of(client, 10)
    client.hear(sent.beat_number, Refused(code=Refusal.INSTANCE_FENCED, message="replaced"), 20)
    assert client.phase is Phase.ENDED
    assert client.error is Refusal.INSTANCE_FENCED
    assert client.step(60_000) == []


def test_offset_expires_from_the_later_of_commit_and_empty() -> None:
    """A partition last committed over 7 days before the group became empty keeps its offset for 7 days more."""
    host = stable("a")
    host.commit(T.topic_id, 0, 5, member_id="a", member_epoch=host.member("a").known_current.member_epoch)
    for _ in range(8 * 24 * 60 * 2):
        host.now_ms += 30_000
        host.beat("a")
    host.run()
    host.do(Leave(group_id="g", member_id="a"))
    host.run(7 * DAY_MS - 1)
    assert host.committed(T.topic_id, 0) == 5
    host.run(OFFSETS_SWEEP_MS)
    assert host.committed(T.topic_id, 0) is None
    assert any(isinstance(each, OffsetsExpired) for each in host.effects)


def test_offsets_of_a_group_with_members_never_expire() -> None:
    """However long ago they were committed, and also for topics to which no member subscribes."""
    host = CoordinatorHost(T, U)
    host.commit(U.topic_id, 0, 5)
    host.join("a", "t")
    for _ in range(8 * 24 * 60 * 2):
        host.now_ms += 30_000
        host.beat("a")
        if host.core.deadline_ms() == host.now_ms:
            host.run()
    host.run()
    assert host.committed(U.topic_id, 0) == 5


def test_retention_never() -> None:
    """With retention "never", an empty group keeps its offsets for a year and more."""
    host = CoordinatorHost(T)
    host.do(ConfigChanged(group_id="g", config=GroupConfig(offsets_retention_ms=None)))
    host.commit(T.topic_id, 0, 5)
    for _ in range(100):
        host.now_ms += 4 * DAY_MS
        host.run()
    assert host.committed(T.topic_id, 0) == 5


def test_replacement_takes_over_when_the_stream_is_closed() -> None:
    """A crashed static member's replacement does not wait for the session, and nobody else is disturbed."""
    host = CoordinatorHost(T)
    host.join("old", "t", instance_id="i", stream=1)
    host.join("b", "t")
    host.beat("old", stream=1)
    host.settle("b")
    host.beat("old", stream=1)
    host.settle("b")
    mine, other = assigned(host.member("old")), host.member("b").known_current
    assert mine
    assert other.assigned
    host.do(StreamClosed(stream=1))
    new = host.join("new", "t", instance_id="i")
    assert new.assignment == mine
    host.settle("b", "new")
    assert assigned(host.member("new")) == mine
    assert host.member("b").known_current.assigned == other.assigned


def state(assignment: dict[bytes, tuple[int, ...]] | None, *, number: int) -> MemberState:
    """Return a state at epoch 2."""
    return MemberState(
        member_id="a",
        member_epoch=2,
        heartbeat_interval_ms=5_000,
        session_timeout_ms=45_000,
        assignment_number=number,
        assignment=assignment,
    )


def tell(client: ModelClient, assignment: dict[bytes, tuple[int, ...]], *, number: int, now_ms: int) -> None:
    """Let a client join and get an assignment."""
    (join,) = client.step(now_ms)
    assert isinstance(join, Join)
    client.hear(join.beat_number, state(assignment, number=number), now_ms)
    for command in client.step(now_ms):
        if isinstance(command, Beat):
            client.hear(command.beat_number, state(None, number=number), now_ms)


def beat_of(client: ModelClient, now_ms: int) -> Beat:
    """Return the beat that a client sends at this time."""
    for later_ms in range(now_ms, now_ms + 10_000, 10):
        beats = [each for each in client.step(later_ms) if isinstance(each, Beat)]
        if beats:
            return beats[0]
    raise AssertionError("no beat")

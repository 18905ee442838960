# SPDX-License-Identifier: Apache-2.0
"""Committed offsets: who may commit, what a fetch says, resets, deletions, expiry."""

from __future__ import annotations

import pytest

from brokerd.groups.answers import FetchedOffsets, GroupState, OffsetResults, Refusal
from brokerd.groups.commands import (
    AlterOffsets,
    CommitOffsets,
    ConfigChanged,
    DeleteOffsets,
    FetchOffsets,
    Leave,
    OffsetCommit,
)
from brokerd.groups.effects import GroupExpired, OffsetsExpired
from brokerd.groups.limits import MAX_OFFSET_METADATA_BYTES, MAX_REQUEST_PARTITIONS, OFFSETS_SWEEP_MS
from brokerd.groups.records import OffsetValue
from brokerd.groups.settings import GroupConfig
from brokerd.tests.groups.coordinator_host import UNIX_OFFSET_MS, CoordinatorHost, assigned, refusal, topic

T, U = topic("t", 4), topic("u", 2)
DAY_MS = 24 * 3_600_000


def member_with_all() -> CoordinatorHost:
    """Return a stable group of one member `a` that has all of T."""
    host = CoordinatorHost(T, U)
    host.join("a", "t")
    host.settle("a")
    return host


def epoch(host: CoordinatorHost) -> int:
    """Return the epoch of `a`."""
    return host.member("a").known_current.member_epoch


def test_owner_commits_and_everybody_reads() -> None:
    """A commit is stored with time, leader epoch and metadata."""
    host = member_with_all()
    offset = OffsetCommit(topic_id=T.topic_id, partition=1, offset=42, leader_epoch=3, metadata="half")
    outcome = host.do(CommitOffsets(group_id="g", member_id="a", member_epoch=epoch(host), offsets=(offset,)))
    assert isinstance(outcome, OffsetResults)
    assert outcome.results[0].refused is None
    fetched = host.do(FetchOffsets(group_id="g", partitions=((T.topic_id, 1), (T.topic_id, 0))))
    assert isinstance(fetched, FetchedOffsets)
    stored = OffsetValue(offset=42, commit_ms=host.now_ms + UNIX_OFFSET_MS, leader_epoch=3, metadata="half")
    assert [each.value for each in fetched.offsets] == [stored, None]


def test_commit_is_judged_for_each_partition() -> None:
    """What the member does not hold is refused with STALE_MEMBER_EPOCH; the rest of the request counts."""
    host = CoordinatorHost(T)
    host.join("a", "t")
    host.join("b", "t")
    host.settle("a", "b")
    mine = assigned(host.member("a"))[T.topic_id]
    offsets = tuple(OffsetCommit(topic_id=T.topic_id, partition=each, offset=7) for each in range(4))
    outcome = host.do(CommitOffsets(group_id="g", member_id="a", member_epoch=epoch(host), offsets=offsets))
    assert isinstance(outcome, OffsetResults)
    for result in outcome.results:
        code = None if result.refused is None else result.refused.code
        assert code is (None if result.partition in mine else Refusal.STALE_MEMBER_EPOCH)
        assert host.committed(T.topic_id, result.partition) == (7 if result.partition in mine else None)


def test_commit_in_the_revocation_callback_counts() -> None:
    """A partition that is being revoked can be committed until the member confirms, and not afterwards."""
    host = member_with_all()
    host.join("b", "t")
    host.run(200)
    host.beat("a")
    revoked = min(host.member("a").known_current.revoking[T.topic_id])
    assert host.commit(T.topic_id, revoked, 5, member_id="a", member_epoch=epoch(host)) is None
    host.beat("a")
    code = host.commit(T.topic_id, revoked, 6, member_id="a", member_epoch=epoch(host))
    assert code is Refusal.STALE_MEMBER_EPOCH
    assert host.committed(T.topic_id, revoked) == 5


def test_epochs_of_a_commit() -> None:
    """Above the member's epoch is fenced; below the assignment epoch is stale; between them counts (KIP-1251)."""
    host = member_with_all()
    first = epoch(host)
    host.put_topic(topic("t", 5))
    host.settle("a")
    held = host.member("a").known_current.assigned[T.topic_id]
    assert held[0] == first < held[4] == epoch(host)
    now = epoch(host)
    assert host.commit(T.topic_id, 0, 1, member_id="a", member_epoch=now + 1) is Refusal.FENCED_MEMBER_EPOCH
    assert host.commit(T.topic_id, 0, 1, member_id="a", member_epoch=first) is None
    assert host.commit(T.topic_id, 4, 1, member_id="a", member_epoch=first) is Refusal.STALE_MEMBER_EPOCH
    assert host.commit(T.topic_id, 4, 1, member_id="a", member_epoch=now) is None
    assert host.commit(T.topic_id, 0, 1, member_id="a", member_epoch=first - 1) is Refusal.STALE_MEMBER_EPOCH


def test_late_copy_of_a_commit_moves_nothing_back() -> None:
    """A commit with a lower number than one that was handled is refused, also before the member's first beat at a coordinator."""
    host = member_with_all()
    host.fail_over()
    who = {"member_id": "a", "member_epoch": epoch(host)}
    assert host.commit(T.topic_id, 0, 20, commit_number=8, **who) is None
    assert host.commit(T.topic_id, 0, 10, commit_number=7, **who) is Refusal.SUPERSEDED
    assert host.committed(T.topic_id, 0) == 20
    assert host.commit(T.topic_id, 0, 15, commit_number=9, **who) is None
    assert host.committed(T.topic_id, 0) == 15, "an explicit lower commit counts"


def test_commit_without_membership() -> None:
    """It makes a group if there is none, counts while the group is empty, and is refused when it has members."""
    host = CoordinatorHost(T)
    assert host.commit(T.topic_id, 0, 3) is None
    assert host.core.state.state_of(host.group()) is GroupState.EMPTY
    host.join("a", "t")
    assert host.commit(T.topic_id, 0, 4) is Refusal.GROUP_NOT_EMPTY
    assert host.commit(T.topic_id, 0, 4, member_id="b", member_epoch=1) is Refusal.UNKNOWN_MEMBER
    assert host.committed(T.topic_id, 0) == 3


def test_commit_out_of_range() -> None:
    """Unknown topics and partitions, negative offsets and long metadata are refused for their partition alone."""
    host = CoordinatorHost(T)
    assert host.commit(b"?" * 16, 0, 1) is Refusal.UNKNOWN_TOPIC
    assert host.commit(T.topic_id, 4, 1) is Refusal.UNKNOWN_PARTITION
    assert host.commit(T.topic_id, -1, 1) is Refusal.UNKNOWN_PARTITION
    assert host.commit(T.topic_id, 0, -1) is Refusal.INVALID_REQUEST
    assert not host.core.state.groups, "a refused commit makes no group"
    offset = OffsetCommit(topic_id=T.topic_id, partition=0, offset=1)
    assert refusal(host.do(CommitOffsets(group_id="g", offsets=(offset, offset)))) is Refusal.INVALID_REQUEST
    many = (offset,) * (MAX_REQUEST_PARTITIONS + 1)
    assert refusal(host.do(CommitOffsets(group_id="g", offsets=many))) is Refusal.INVALID_REQUEST
    assert refusal(host.do(CommitOffsets(group_id="", offsets=(offset,)))) is Refusal.INVALID_REQUEST


def test_commit_that_fills_a_batch_must_be_split() -> None:
    """Many offsets with long metadata are refused as a whole."""
    host = CoordinatorHost(topic("t", 400))
    offsets = tuple(
        OffsetCommit(topic_id=T.topic_id, partition=each, offset=1, metadata="m" * MAX_OFFSET_METADATA_BYTES)
        for each in range(400)
    )
    assert refusal(host.do(CommitOffsets(group_id="g", offsets=offsets))) is Refusal.INVALID_REQUEST
    assert isinstance(host.do(CommitOffsets(group_id="g", offsets=offsets[:100])), OffsetResults)


def test_commit_waits_for_the_topics() -> None:
    """A coordinator that has not seen the topics yet asks to come back, and answers fetches nevertheless."""
    host = CoordinatorHost(T)
    host.commit(T.topic_id, 0, 3)
    host.fail_over(with_topics=False)
    assert host.commit(T.topic_id, 0, 4) is Refusal.TOPICS_NOT_LOADED
    assert host.committed(T.topic_id, 0) == 3


def test_fetch_of_all_is_sorted_and_of_an_unknown_group_positively_empty() -> None:
    """All offsets come by topic id and partition; a group without any has none, which is no error."""
    host = CoordinatorHost(T, U)
    for each in (U, T):
        for partition in (1, 0):
            host.commit(each.topic_id, partition, partition)
    fetched = host.do(FetchOffsets(group_id="g"))
    assert isinstance(fetched, FetchedOffsets)
    keys = [(each.topic_id, each.partition) for each in fetched.offsets]
    assert keys == [(each.topic_id, partition) for each in (T, U) for partition in (0, 1)]
    assert host.do(FetchOffsets(group_id="?")) == FetchedOffsets(offsets=())
    assert host.committed(T.topic_id, 0, group_id="?") is None


def test_reset_needs_a_group_without_members() -> None:
    """AlterOffsets moves offsets back in an empty group, makes a group, and is refused where members are."""
    host = member_with_all()
    host.commit(T.topic_id, 0, 9, member_id="a", member_epoch=epoch(host))
    reset = AlterOffsets(group_id="g", offsets=(OffsetCommit(topic_id=T.topic_id, partition=0, offset=2),))
    assert refusal(host.do(reset)) is Refusal.GROUP_NOT_EMPTY
    host.do(Leave(group_id="g", member_id="a"))
    assert isinstance(host.do(reset), OffsetResults)
    assert host.committed(T.topic_id, 0) == 2
    host.do(AlterOffsets(group_id="new", offsets=reset.offsets))
    assert host.committed(T.topic_id, 0, group_id="new") == 2


def test_deletion_of_offsets() -> None:
    """Offsets of topics to which nobody subscribes are deleted; others are refused, one by one."""
    host = CoordinatorHost(T, U)
    host.commit(T.topic_id, 0, 1)
    host.commit(U.topic_id, 0, 1)
    host.join("a", "t")
    keys = ((T.topic_id, 0), (U.topic_id, 0), (U.topic_id, 1))
    outcome = host.do(DeleteOffsets(group_id="g", partitions=keys))
    assert isinstance(outcome, OffsetResults)
    codes = [None if each.refused is None else each.refused.code for each in outcome.results]
    assert codes == [Refusal.GROUP_SUBSCRIBED, None, None]
    assert host.committed(T.topic_id, 0) == 1
    assert host.committed(U.topic_id, 0) is None
    assert refusal(host.do(DeleteOffsets(group_id="?", partitions=keys))) is Refusal.GROUP_NOT_FOUND


def test_offsets_end_with_their_topic() -> None:
    """Deleting a topic deletes its offsets in every group, by id; a topic recreated under the name has none."""
    host = CoordinatorHost(T, U)
    for group_id in ("g", "h"):
        host.do(
            CommitOffsets(
                group_id=group_id,
                offsets=tuple(OffsetCommit(topic_id=each.topic_id, partition=0, offset=8) for each in (T, U)),
            )
        )
    host.delete_topic(T)
    again = topic("t", 4, number=2)
    host.put_topic(again)
    host.run()
    for group_id in ("g", "h"):
        assert host.committed(T.topic_id, 0, group_id) is None
        assert host.committed(again.topic_id, 0, group_id) is None
        assert host.committed(U.topic_id, 0, group_id) == 8
    assert host.core.topics_with_offsets() == (U.topic_id,)


def test_unknown_topic_is_not_a_deleted_one() -> None:
    """A coordinator whose metadata is behind keeps offsets of topics that it does not know."""
    host = CoordinatorHost(T)
    host.commit(T.topic_id, 0, 3)
    del host.topics[T.topic_id]
    host.tell_topics()
    host.run(1_000)
    assert host.committed(T.topic_id, 0) == 3


def test_many_offsets_of_a_deleted_topic_go_in_parts() -> None:
    """More offsets than one decision takes are deleted over several ticks."""
    host = CoordinatorHost(topic("t", 4_000))
    for group_id in ("g", "h"):
        offsets = tuple(OffsetCommit(topic_id=T.topic_id, partition=each, offset=8) for each in range(4_000))
        host.do(CommitOffsets(group_id=group_id, offsets=offsets))
    batches = len(host.log)
    host.delete_topic(topic("t", 4_000))
    host.run()
    assert len(host.log) >= batches + 3
    assert host.core.topics_with_offsets() == ()


def expired(host: CoordinatorHost) -> list[tuple[bytes, int, int]]:
    """Return what has expired so far."""
    found = (each for each in host.effects if isinstance(each, OffsetsExpired))
    return [key for each in found for key in each.offsets]


def test_expiry_is_an_effect_and_ends_in_the_end_of_the_group() -> None:
    """Expired offsets are named; the group without offsets goes with a later sweep."""
    host = CoordinatorHost(T)
    host.commit(T.topic_id, 2, 11)
    host.run(7 * DAY_MS - 1)
    assert expired(host) == []
    host.run(OFFSETS_SWEEP_MS)
    assert expired(host) == [(T.topic_id, 2, 11)]
    host.run(OFFSETS_SWEEP_MS)
    assert [each.group_id for each in host.effects if isinstance(each, GroupExpired)] == ["g"]
    assert not host.core.state.groups
    assert list(host.core.records()) == []


def test_retention_is_that_of_the_group() -> None:
    """A group's own config counts, and the default after it is removed."""
    host = CoordinatorHost(T)
    host.do(ConfigChanged(group_id="g", config=GroupConfig(offsets_retention_ms=3_600_000)))
    host.commit(T.topic_id, 0, 1)
    host.run(3_600_000 + OFFSETS_SWEEP_MS)
    assert host.committed(T.topic_id, 0) is None
    host.do(ConfigChanged(group_id="g", config=None))
    host.commit(T.topic_id, 0, 1)
    host.run(3_600_000 + OFFSETS_SWEEP_MS)
    assert host.committed(T.topic_id, 0) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"session_timeout_ms": 5_999},
        {"session_timeout_ms": 60_001},
        {"heartbeat_interval_ms": 999},
        {"heartbeat_interval_ms": 15_001},
        {"assignment_interval_ms": -1},
        {"assignment_interval_ms": 15_001},
        {"offsets_retention_ms": 59_999},
    ],
)
def test_config_out_of_range_is_refused(values: dict[str, int]) -> None:
    """Each config has a range, and the error names it."""
    with pytest.raises(ValueError, match=r"ms: use"):
        GroupConfig(**values)

# SPDX-License-Identifier: Apache-2.0
"""Offsets that go with an ingest: they count if and only if it is committed, and nothing passes them meanwhile."""

from __future__ import annotations

import pytest

from brokerd.groups import core, pending
from brokerd.groups.answers import (
    FetchedOffsets,
    GroupDeletion,
    OffsetResults,
    OffsetsPrepared,
    OffsetsResolved,
    Refusal,
    Refused,
)
from brokerd.groups.commands import (
    AlterOffsets,
    DeleteGroup,
    DeleteOffsets,
    FetchOffsets,
    Leave,
    OffsetCommit,
    PrepareOffsets,
    ResolveOffsets,
)
from brokerd.groups.effects import AskOutcome, GroupExpired, OffsetsExpired
from brokerd.groups.limits import (
    MAX_GROUP_OFFSETS,
    MAX_OFFSET_METADATA_BYTES,
    MAX_PREPARED_OFFSETS,
    OFFSETS_SWEEP_MS,
    PENDING_OFFSETS_MS,
)
from brokerd.groups.records import OffsetRecord, OffsetValue
from brokerd.tests.groups.coordinator_host import UNIX_OFFSET_MS, CoordinatorHost, assigned, refusal, topic

T, U = topic("t", 4), topic("u", 2)
DAY_MS = 24 * 3_600_000


def at(partition: int, offset: int, where: bytes = T.topic_id) -> OffsetCommit:
    """Return an offset to prepare."""
    return OffsetCommit(topic_id=where, partition=partition, offset=offset)


def prepare(host: CoordinatorHost, *offsets: OffsetCommit, **more: object) -> Refusal | None:
    """Prepare offsets, by default for round 1 of ingest `i` at epoch 1. Return why they were refused, or None."""
    default: dict[str, object] = {"group_id": "g", "ingest_id": "i", "ingest_epoch": 1, "round": 1}
    outcome = host.do(PrepareOffsets(**{**default, "offsets": offsets, **more}))
    if isinstance(outcome, Refused):
        return outcome.code
    assert outcome == OffsetsPrepared()
    return None


def resolve(host: CoordinatorHost, *, is_committed: bool, **more: object) -> None:
    """Say what became of a round, by default of round 1 of ingest `i` at epoch 1."""
    default: dict[str, object] = {"group_id": "g", "ingest_id": "i", "ingest_epoch": 1, "round": 1}
    outcome = host.do(ResolveOffsets(**{**default, "is_committed": is_committed, **more}))
    assert isinstance(outcome, OffsetsResolved)


def fetched(host: CoordinatorHost, *keys: tuple[bytes, int]) -> list[int | Refusal | None]:
    """Return what a fetch says of partitions, or of all: an offset, None, or why nothing can be said."""
    outcome = host.do(FetchOffsets(group_id="g", partitions=keys or None))
    assert isinstance(outcome, FetchedOffsets)
    return [
        each.refused.code if each.refused is not None else None if each.value is None else each.value.offset
        for each in outcome.offsets
    ]


def asked(host: CoordinatorHost) -> list[AskOutcome]:
    """Return the questions since the last call, and forget them."""
    found = [each for each in host.effects if isinstance(each, AskOutcome)]
    host.effects.clear()
    return found


def test_prepared_offsets_count_once_the_ingest_is_committed() -> None:
    """Until the outcome is known a fetch says nothing; then all of the offsets count, with the time of the outcome."""
    host = CoordinatorHost(T)
    host.commit(T.topic_id, 0, 3)
    more = OffsetCommit(topic_id=T.topic_id, partition=1, offset=8, leader_epoch=4, metadata="half")
    assert prepare(host, more, at(0, 7)) is None
    assert fetched(host, (T.topic_id, 0), (T.topic_id, 1), (T.topic_id, 2)) == [
        Refusal.OFFSETS_PENDING,
        Refusal.OFFSETS_PENDING,
        None,
    ]
    assert fetched(host) == [Refusal.OFFSETS_PENDING] * 2, "of all: also what has no offset yet"
    host.run(10)
    resolve(host, is_committed=True)
    assert host.committed(T.topic_id, 0) == 7
    stored = OffsetValue(offset=8, commit_ms=host.now_ms + UNIX_OFFSET_MS, leader_epoch=4, metadata="half")
    assert host.group().offsets[T.topic_id, 1] == stored
    resolve(host, is_committed=True)
    resolve(host, is_committed=False)
    assert fetched(host) == [7, 8], "the outcome stands"


def test_prepared_offsets_go_with_an_ingest_that_is_not_committed() -> None:
    """The offsets from before count again, and a partition without one has none."""
    host = CoordinatorHost(T)
    host.commit(T.topic_id, 0, 3)
    assert prepare(host, at(0, 7), at(1, 8)) is None
    resolve(host, is_committed=False)
    assert fetched(host, (T.topic_id, 0), (T.topic_id, 1)) == [3, None]
    resolve(host, is_committed=True)
    assert fetched(host, (T.topic_id, 0), (T.topic_id, 1)) == [3, None]


def test_outcome_of_what_was_never_prepared_is_noted() -> None:
    """An unknown round, ingest or group is answered as done, and makes nothing."""
    host = CoordinatorHost(T)
    resolve(host, is_committed=True)
    assert prepare(host, at(0, 1), ingest_id="j") is None
    resolve(host, is_committed=True)
    resolve(host, is_committed=True, ingest_id="j", round=2)
    assert fetched(host) == [Refusal.OFFSETS_PENDING]
    assert sorted(host.core.state.groups) == ["g"]


def test_prepare_checks_as_a_commit_does() -> None:
    """One partition that is refused refuses the whole, with the code of its commit, and leaves nothing pending."""
    host = CoordinatorHost(T)
    host.join("a", "t")
    host.join("b", "t")
    host.settle("a", "b")
    epoch = host.member("a").known_current.member_epoch
    mine, theirs = min(assigned(host.member("a"))[T.topic_id]), min(assigned(host.member("b"))[T.topic_id])
    who = {"member_id": "a", "member_epoch": epoch}
    assert prepare(host, at(mine, 5), at(theirs, 5), **who) is Refusal.STALE_MEMBER_EPOCH
    assert prepare(host, at(mine, 5), at(4, 5), **who) is Refusal.UNKNOWN_PARTITION
    assert prepare(host, at(mine, 5), at(0, 5, b"?" * 16), **who) is Refusal.UNKNOWN_TOPIC
    assert prepare(host, at(mine, -1), **who) is Refusal.INVALID_REQUEST
    assert prepare(host, at(mine, 5), at(mine, 5), **who) is Refusal.INVALID_REQUEST
    assert prepare(host, at(mine, 5), **{**who, "member_epoch": epoch + 1}) is Refusal.FENCED_MEMBER_EPOCH
    assert prepare(host, at(mine, 5), **{**who, "member_id": "c"}) is Refusal.UNKNOWN_MEMBER
    assert prepare(host, at(mine, 5)) is Refusal.GROUP_NOT_EMPTY
    assert fetched(host) == []
    assert not host.group().pending
    assert prepare(host, at(mine, 5), **who) is None


def test_replaced_process_is_told() -> None:
    """A prepare of a static member whose instance id another process has taken over is refused for good."""
    host = CoordinatorHost(T)
    host.join("a", "t", instance_id="i1")
    host.settle("a")
    host.do(Leave(group_id="g", member_id="a", instance_id="i1", will_be_back=True))
    host.join("b", "t", instance_id="i1")
    who = {"member_id": "a", "member_epoch": 1, "instance_id": "i1"}
    assert prepare(host, at(0, 5), **who) is Refusal.INSTANCE_FENCED
    assert prepare(host, at(0, 5), **{**who, "instance_id": None}) is Refusal.UNKNOWN_MEMBER


def test_prepare_out_of_range() -> None:
    """Ids, epochs and rounds have ranges, and one decision must hold all the offsets."""
    host = CoordinatorHost(topic("t", 4_000))
    assert prepare(host, at(0, 1), ingest_id="") is Refusal.INVALID_REQUEST
    assert prepare(host, at(0, 1), ingest_id="i" * 256) is Refusal.INVALID_REQUEST
    assert prepare(host, at(0, 1), ingest_epoch=0) is Refusal.INVALID_REQUEST
    assert prepare(host, at(0, 1), round=0) is Refusal.INVALID_REQUEST
    assert prepare(host, at(0, 1), group_id="") is Refusal.INVALID_REQUEST
    offsets = [at(each, 1) for each in range(MAX_PREPARED_OFFSETS + 1)]
    assert prepare(host, *offsets) is Refusal.LIMIT_EXCEEDED
    long = [
        OffsetCommit(topic_id=T.topic_id, partition=each, offset=1, metadata="m" * MAX_OFFSET_METADATA_BYTES)
        for each in range(400)
    ]
    assert prepare(host, *long) is Refusal.LIMIT_EXCEEDED
    assert not host.core.state.groups, "what is refused makes no group"
    assert prepare(host, *offsets[:-1]) is None
    batches = len(host.log)
    resolve(host, is_committed=True)
    assert len(host.log) == batches + 1, "one decision"
    assert len(host.group().offsets) == MAX_PREPARED_OFFSETS


def test_prepare_without_offsets_leaves_nothing() -> None:
    """It is checked, and there is nothing to resolve."""
    host = CoordinatorHost(T)
    assert prepare(host) is None
    assert not host.core.state.groups


def test_same_prepare_gets_the_same_answer() -> None:
    """It is repeated when its answer was lost, also at another coordinator and when its member has left meanwhile."""
    host = CoordinatorHost(T)
    host.join("a", "t")
    host.settle("a")
    who = {"member_id": "a", "member_epoch": host.member("a").known_current.member_epoch}
    assert prepare(host, at(0, 5), at(1, 6), **who) is None
    batches = len(host.log)
    assert prepare(host, at(1, 6), at(0, 5), **who) is None
    host.fail_over(with_topics=False)
    assert prepare(host, at(0, 5), at(1, 6), **who) is None
    assert len(host.log) == batches, "nothing is written twice"
    assert prepare(host, at(0, 5), at(1, 7), **who) is Refusal.INGEST_CONFLICT
    assert prepare(host, at(0, 5), **who) is Refusal.INGEST_CONFLICT


def test_higher_epoch_of_an_ingest_replaces_what_a_lower_one_has_prepared() -> None:
    """The offsets of the fenced epoch can never be committed, whatever comes late."""
    host = CoordinatorHost(T)
    assert prepare(host, at(0, 5), at(1, 5)) is None
    host.run(PENDING_OFFSETS_MS - 1)
    assert prepare(host, at(0, 6), ingest_epoch=2) is None
    assert prepare(host, at(0, 5), at(1, 5)) is Refusal.INGEST_FENCED
    host.run(PENDING_OFFSETS_MS - 1)
    assert asked(host) == [], "the new ones have their own time"
    resolve(host, is_committed=False)
    assert fetched(host, (T.topic_id, 0), (T.topic_id, 1)) == [Refusal.OFFSETS_PENDING, None]
    resolve(host, is_committed=True, ingest_epoch=2)
    assert fetched(host) == [6]


def test_outcome_of_a_higher_epoch_drops_what_a_lower_one_has_prepared() -> None:
    """Committed is what was prepared at the epoch of the decision, and nothing else."""
    host = CoordinatorHost(T)
    assert prepare(host, at(0, 5)) is None
    resolve(host, is_committed=True, ingest_epoch=2)
    assert fetched(host, (T.topic_id, 0)) == [None]


def test_late_copy_of_a_prepare_is_refused() -> None:
    """After the outcome, also one that came first, a prepare of the round or of an earlier one leaves nothing pending."""
    host = CoordinatorHost(T)
    resolve(host, is_committed=False, round=3, ingest_epoch=2)
    assert prepare(host, at(0, 5), round=3, ingest_epoch=2) is Refusal.INGEST_FENCED
    assert prepare(host, at(0, 5), round=3, ingest_epoch=1) is Refusal.INGEST_FENCED
    assert prepare(host, at(0, 5), round=2, ingest_epoch=2) is Refusal.INGEST_FENCED
    assert prepare(host, at(0, 5), round=3, ingest_epoch=3) is None
    resolve(host, is_committed=True, round=3, ingest_epoch=3)
    assert prepare(host, at(0, 9), round=4, ingest_epoch=3) is None
    resolve(host, is_committed=True, round=4, ingest_epoch=3)
    assert prepare(host, at(0, 5), round=3, ingest_epoch=3) is Refusal.INGEST_FENCED
    host.run(2 * OFFSETS_SWEEP_MS)
    assert prepare(host, at(0, 5), round=1, ingest_epoch=1) is None, "an id may begin anew"


def test_outcome_counts_for_exactly_the_offsets_that_it_names() -> None:
    """Offsets of a late prepare of the same epoch and round are dropped by the outcome of others, also at the next coordinator."""
    host = CoordinatorHost(T)
    assert prepare(host, at(0, 5), offsets_digest=b"five") is None
    resolve(host, is_committed=True, offsets_digest=b"five")
    assert prepare(host, at(0, 3), offsets_digest=b"three") is Refusal.INGEST_FENCED
    host.fail_over()
    assert prepare(host, at(0, 3), offsets_digest=b"three") is None, "nobody remembers the outcome"
    host.fail_over()
    host.run(PENDING_OFFSETS_MS)
    assert {each.offsets_digest for each in asked(host)} == {b"three"}
    resolve(host, is_committed=True, offsets_digest=b"five")
    assert fetched(host) == [5]
    assert not host.group().pending
    assert prepare(host, at(0, 3), offsets_digest=b"d" * 65) is Refusal.INVALID_REQUEST


def test_partition_that_is_pending_takes_no_other_offset() -> None:
    """Another ingest, another round, commits, resets and deletions ask again; other partitions go on."""
    host = CoordinatorHost(T, U)
    host.commit(T.topic_id, 0, 3)
    assert prepare(host, at(0, 7)) is None
    assert prepare(host, at(0, 8), ingest_id="j") is Refusal.OFFSETS_PENDING
    assert prepare(host, at(1, 8), at(0, 8), round=2) is Refusal.OFFSETS_PENDING
    assert prepare(host, at(1, 8), ingest_id="j") is None
    assert host.commit(T.topic_id, 0, 4) is Refusal.OFFSETS_PENDING
    assert host.commit(T.topic_id, 2, 4) is None
    altered = host.do(AlterOffsets(group_id="g", offsets=(at(0, 1), at(3, 1))))
    assert isinstance(altered, OffsetResults)
    assert altered.results[0].refused is not None
    assert altered.results[0].refused.code is Refusal.OFFSETS_PENDING
    assert altered.results[0].refused.retry_after_ms > 0
    assert altered.results[1].refused is None
    deleted = host.do(DeleteOffsets(group_id="g", partitions=((T.topic_id, 0), (T.topic_id, 2))))
    assert isinstance(deleted, OffsetResults)
    codes = [None if each.refused is None else each.refused.code for each in deleted.results]
    assert codes == [Refusal.OFFSETS_PENDING, None]
    resolve(host, is_committed=False)
    assert fetched(host, (T.topic_id, 0)) == [3], "nothing has passed it"
    resolve(host, is_committed=True, ingest_id="j")
    assert fetched(host, (T.topic_id, 1)) == [8]


def test_owner_is_judged_before_what_is_pending() -> None:
    """A former owner hears that the partition is lost, not that it should ask again."""
    host = CoordinatorHost(T)
    host.join("a", "t")
    host.settle("a")
    who = {"member_id": "a", "member_epoch": host.member("a").known_current.member_epoch}
    assert prepare(host, *(at(each, 5) for each in range(4)), **who) is None
    host.join("b", "t")
    host.settle("a", "b")
    lost = min(assigned(host.member("b"))[T.topic_id])
    assert host.commit(T.topic_id, lost, 6, **who) is Refusal.STALE_MEMBER_EPOCH
    new = {"member_id": "b", "member_epoch": host.member("b").known_current.member_epoch}
    assert host.commit(T.topic_id, lost, 6, **new) is Refusal.OFFSETS_PENDING
    assert fetched(host, (T.topic_id, lost)) == [Refusal.OFFSETS_PENDING]
    resolve(host, is_committed=True)
    assert fetched(host, (T.topic_id, lost)) == [5], "the commit of the former owner was decided in its time"
    assert host.commit(T.topic_id, lost, 6, **new) is None


def test_group_with_pending_offsets_is_not_deleted() -> None:
    """DeleteGroup asks to come back until the outcome is known."""
    host = CoordinatorHost(T)
    assert prepare(host, at(0, 5)) is None
    assert refusal(host.do(DeleteGroup(group_id="g"))) is Refusal.OFFSETS_PENDING
    resolve(host, is_committed=True)
    assert host.do(DeleteGroup(group_id="g")) == GroupDeletion(is_complete=True)


def test_expiry_leaves_pending_offsets_alone() -> None:
    """Neither the offsets nor the group go while an outcome is awaited; then everything expires in its time."""
    host = CoordinatorHost(T)
    host.commit(T.topic_id, 0, 3)
    host.commit(T.topic_id, 1, 3)
    assert prepare(host, at(0, 5)) is None
    assert prepare(host, at(0, 5), group_id="h") is None
    host.now_ms += 8 * DAY_MS
    host.run(OFFSETS_SWEEP_MS)
    expired = [key for each in host.effects if isinstance(each, OffsetsExpired) for key in each.offsets]
    assert expired == [(T.topic_id, 1, 3)]
    assert host.group("g").value is not None
    assert host.group("h").value is not None, "it holds nothing but what is pending"
    resolve(host, is_committed=False)
    resolve(host, is_committed=False, group_id="h")
    host.run(2 * OFFSETS_SWEEP_MS)
    assert not host.core.state.groups
    assert sorted(each.group_id for each in host.effects if isinstance(each, GroupExpired)) == ["g", "h"]


def test_pending_offsets_of_a_deleted_topic_resolve_to_nothing() -> None:
    """Only those of other topics count. A topic of the same name that comes later has none."""
    host = CoordinatorHost(T, U)
    assert prepare(host, at(0, 5), at(1, 6, U.topic_id)) is None
    assert prepare(host, at(1, 5), ingest_id="j") is None
    host.delete_topic(T)
    host.put_topic(topic("t", 4, number=2))
    host.run()
    assert host.core.topics_with_offsets() == (U.topic_id,)
    assert prepare(host, at(0, 5), at(1, 6, U.topic_id)) is None, "the same prepare, the same answer"
    resolve(host, is_committed=True)
    resolve(host, is_committed=True, ingest_id="j")
    assert fetched(host) == [6]
    assert fetched(host, (T.topic_id, 0)) == [None]


def test_topics_that_are_deleted_together_leave_pending_offsets_together() -> None:
    """Two topics of one prepare that go at once both go: the second record of a key must not undo the first."""
    host = CoordinatorHost(T, U, topic("v"))
    assert prepare(host, at(0, 5), at(0, 6, U.topic_id), at(0, 7, topic("v").topic_id)) is None
    for gone in (T, U):
        del host.topics[gone.topic_id]
    host.tell_topics(T.topic_id, U.topic_id)
    host.run()
    assert host.core.topics_with_offsets() == (topic("v").topic_id,)
    resolve(host, is_committed=True)
    assert fetched(host) == [7]


def test_topic_that_was_deleted_while_no_coordinator_was_there() -> None:
    """The next one names the topics of pending offsets too, and is told which of them are gone."""
    host = CoordinatorHost(T)
    assert prepare(host, at(0, 5)) is None
    del host.topics[T.topic_id]
    host.fail_over(with_topics=False)
    assert host.core.topics_with_offsets() == (T.topic_id,)
    host.tell_topics(T.topic_id)
    host.run()
    assert host.core.topics_with_offsets() == ()
    assert not host.group().pending


def test_outcome_is_asked_for_until_it_is_known() -> None:
    """First after its time, then again and again, then no more."""
    host = CoordinatorHost(T)
    assert prepare(host, at(0, 5), round=4, ingest_epoch=3) is None
    host.run(PENDING_OFFSETS_MS - 1)
    assert asked(host) == []
    question = AskOutcome(group_id="g", ingest_id="i", ingest_epoch=3, round=4)
    for _ in range(3):
        host.run(1)
        assert asked(host) == [question]
        host.run(PENDING_OFFSETS_MS - 1)
        assert asked(host) == []
    resolve(host, is_committed=True, round=4, ingest_epoch=3)
    host.run(10 * PENDING_OFFSETS_MS)
    assert asked(host) == []


def test_loaded_coordinator_asks_in_its_own_time() -> None:
    """What was pending at the former coordinator is asked for again, once it was pending here for as long."""
    host = CoordinatorHost(T)
    assert prepare(host, at(0, 5)) is None
    host.run(PENDING_OFFSETS_MS - 1)
    host.fail_over()
    host.run(PENDING_OFFSETS_MS - 1)
    assert asked(host) == []
    host.run(1)
    assert [each.ingest_id for each in asked(host)] == ["i"]
    assert fetched(host) == [Refusal.OFFSETS_PENDING]


def test_many_outcomes_are_asked_for_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a load everything is due at once; each tick asks for some."""
    monkeypatch.setattr(pending, "DECISION_OUTCOMES", 2)
    host = CoordinatorHost(topic("t", 5))
    for number in range(5):
        assert prepare(host, at(number, 5), ingest_id=f"i{number}") is None
    host.fail_over()
    host.now_ms += PENDING_OFFSETS_MS
    counts: list[int] = []
    while host.tick():
        counts.append(len(asked(host)))
    assert counts == [2, 2, 1]


def test_pending_offsets_count_towards_the_limit_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that resolving them cannot fail."""
    monkeypatch.setattr(core.offsets, "MAX_GROUP_OFFSETS", 3)
    assert MAX_GROUP_OFFSETS > 3
    host = CoordinatorHost(topic("t", 5))
    host.commit(T.topic_id, 0, 1)
    assert prepare(host, at(1, 5)) is None
    assert prepare(host, at(2, 5), at(3, 5), ingest_id="j") is Refusal.LIMIT_EXCEEDED
    assert prepare(host, at(2, 5), ingest_id="j") is None
    assert host.commit(T.topic_id, 3, 1) is Refusal.LIMIT_EXCEEDED
    assert host.commit(T.topic_id, 0, 2) is None
    resolve(host, is_committed=True)
    resolve(host, is_committed=True, ingest_id="j")
    assert fetched(host) == [2, 5, 5]


def test_failover_keeps_what_is_pending() -> None:
    """A coordinator that loads a compacted log knows the pending offsets, and resolves them."""
    for seed in range(8):
        host = CoordinatorHost(T)
        host.commit(T.topic_id, 0, 1)
        for number in range(1, 5):
            assert prepare(host, at(0, 10 * number), round=number) is None
            host.fail_over(seed)
            assert fetched(host) == [Refusal.OFFSETS_PENDING]
            resolve(host, is_committed=number % 2 == 0, round=number)
            host.fail_over(seed)
            assert fetched(host) == [10 * number if number % 2 == 0 else 10 * (number - 1) or 1]
        stored = [each for each in host.core.records() if isinstance(each, OffsetRecord)]
        assert len(stored) == 1

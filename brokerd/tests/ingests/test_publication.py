# SPDX-License-Identifier: Apache-2.0
"""Decisions and what follows: sequences, order, repeated asks, groups, deleted topics, limits, and garbage in pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerd.ingests import asks, commits, opening, sweep
from brokerd.ingests.answers import Committed, Decided, Noted, OutcomeKnown, Planned, Refusal, Watermark
from brokerd.ingests.commands import (
    DecideOutcome,
    DescribeIngest,
    ListIngests,
    ManifestEntry,
    NoteLostRecords,
    OffsetsResolved,
    OpenIngest,
    PartPublished,
    PublishedUpTo,
    TopicsDeleted,
    scope_of,
)
from brokerd.ingests.commits import digest_of, offsets_digest
from brokerd.ingests.effects import IngestCompleted, Publish, RecordsLost, ResolveOffsets, Slice
from brokerd.ingests.limits import (
    ABORTED_KEEP_MS,
    COMMITTED_KEEP_MS,
    PARTITION_RECORDS_MAX,
    PUBLISH_RETRY_MS,
    PUBLISHING_MAX,
)
from brokerd.ingests.records import (
    NO_OFFSET,
    IngestKind,
    IngestState,
    IngestTopic,
    SequencesRecord,
    TopicPartition,
    record_bytes,
)
from brokerd.tests.ingests.ingest_host import OFFSETS, OTHER, P0, P1, TOPIC, TOPICS, IngestHost, code, part

REPEATED = IngestKind.REPEATED
DIGEST = offsets_digest(OFFSETS)


def watermark(host: IngestHost, where: TopicPartition = P0) -> int | None:
    """Return up to which sequence everything is complete."""
    outcome = host.do(PublishedUpTo(topic_partition=where))
    assert isinstance(outcome, Watermark)
    return outcome.sequence


def resolves(host: IngestHost) -> list[ResolveOffsets]:
    """Take what groups have to be told."""
    found = [each for each in host.effects if isinstance(each, ResolveOffsets)]
    host.effects = [each for each in host.effects if not isinstance(each, ResolveOffsets)]
    return found


def resolved(host: IngestHost, effect: ResolveOffsets) -> None:
    """Report that a group has heard."""
    host.do(OffsetsResolved(ingest_id=effect.ingest_id, ingest_epoch=effect.ingest_epoch, round=effect.round))


def test_publication_is_in_the_order_of_tasks() -> None:
    """Whatever the order of the manifest; the slices are those of the sealed attempts."""
    host = IngestHost()
    host.open()
    later, earlier = host.sealed(part(P0, 2, first_offset=5), task=7), host.sealed(part(P0, 3, first_offset=9), task=2)
    planned = host.plan(later, earlier)
    assert isinstance(planned, Planned)
    assert planned.checks[0].topic_partition == P0
    host.decide(later, earlier)
    (effect,) = host.asked()
    assert effect.producer_id == 2**62 + 5
    assert (effect.part.base_sequence, effect.part.records) == (0, 5)
    first = 2**61 + 5 * 2**40
    assert effect.part.slices == planned.checks[0].slices
    assert effect.part.slices == (
        Slice(task=2, producer_id=first + 1, first_sequence=0, records=3, first_offset=9, end_offset=12),
        Slice(task=7, producer_id=first, first_sequence=0, records=2, first_offset=5, end_offset=7),
    )


def test_parts_of_a_partition_come_one_after_another() -> None:
    """The next is asked for with the answer to the one before, never earlier; other partitions do not wait."""
    host = IngestHost()
    for at, ingest_id in enumerate("xyz"):
        host.open(ingest_id)
        where = P1 if ingest_id == "z" else P0
        host.decide(host.sealed(part(where, at + 1), ingest_id=ingest_id), ingest_id=ingest_id)
    first, other = host.asked()
    assert (first.ingest_id, other.ingest_id) == ("x", "z")
    assert watermark(host) == 0
    host.published(first)
    (second,) = host.asked()
    assert (second.ingest_id, second.part.base_sequence) == ("y", 1)
    assert watermark(host) == 1
    host.published(second)
    assert watermark(host) is None
    assert watermark(host, P1) == 0
    ends = [host.do(PublishedUpTo(topic_partition=each)) for each in (P0, P1)]
    assert [each.end_sequence for each in ends if isinstance(each, Watermark)] == [3, 3]


def test_watermark_waits_for_all_partitions_of_a_decision() -> None:
    """A part that is published does not count while another one of its decision is not."""
    host = IngestHost()
    host.open()
    host.decide(host.sealed(part(P0), part(P1)))
    first, second = host.asked()
    host.published(first)
    assert watermark(host) == 0
    host.published(second)
    assert watermark(host) is None


def test_sequences_wrap_around() -> None:
    """After 2^31 records comes 0, and older parts are still the first ones, also after a failover."""
    host = IngestHost()
    host.put(SequencesRecord(TOPIC, 0, (2**31 - 3,)))
    for ingest_id in "xyz":
        host.open(ingest_id)
        host.decide(host.sealed(part(P0, 2), ingest_id=ingest_id), ingest_id=ingest_id)
    assert host.core.state.next_sequence(P0) == 3
    host.fail_over()
    order: list[tuple[str, int]] = []
    while asked := host.asked():
        (effect,) = asked
        assert watermark(host) == effect.part.base_sequence
        order.append((effect.ingest_id, effect.part.base_sequence))
        host.published(effect)
    assert order == [("x", 2**31 - 3), ("y", 2**31 - 1), ("z", 1)]


def test_sequences_of_partitions_beyond_the_first_block() -> None:
    """64 partitions share a record."""
    host = IngestHost()
    host.open()
    far = TopicPartition(TOPIC, 130)
    host.decide(host.sealed(part(P1, 4), part(far, 3)))
    assert host.core.state.sequences == {(TOPIC, 0): (0, 4), (TOPIC, 2): (0, 0, 3)}
    assert [host.core.state.next_sequence(each) for each in (P0, P1, far)] == [0, 4, 3]


def test_publication_is_asked_for_again() -> None:
    """Each second, until it is on record; also by the next coordinator."""
    host = IngestHost()
    host.open()
    host.decide(host.sealed(part()))
    (effect,) = host.asked()
    host.run(PUBLISH_RETRY_MS - 1)
    assert not host.asked()
    host.run(1)
    assert host.asked() == [effect]
    host.fail_over()
    assert host.asked() == [effect]
    assert host.published(effect) == host.published(effect) == Noted()
    host.run(10 * PUBLISH_RETRY_MS)
    assert not host.asked()


def test_few_publications_at_once_and_all_in_turn() -> None:
    """Partitions without an answer do not hold up the others."""
    host = IngestHost()
    host.open()
    count = 2 * PUBLISHING_MAX + 10
    host.decide(host.sealed(*(part(TopicPartition(TOPIC, number)) for number in range(count))))
    seen: dict[int, None] = {}
    for _ in range(3):
        asked = host.asked()
        assert len(asked) <= PUBLISHING_MAX
        seen.update(dict.fromkeys(each.part.partition for each in asked))
        host.run(PUBLISH_RETRY_MS)
    assert len(seen) == count
    host.publish_all()
    assert host.value().state is IngestState.COMMITTED


def test_late_answer_about_a_forgotten_ingest_is_ignored() -> None:
    """The base sequence tells the parts of two ingests with one id apart."""
    host = IngestHost()
    host.open()
    host.decide(host.sealed(part()))
    (old,) = host.asked()
    host.published(old)
    host.run(COMMITTED_KEEP_MS)
    host.open()
    host.decide(host.sealed(part(), epoch=2), epoch=2)
    host.published(old)
    assert host.value().state is IngestState.DECIDED
    host.publish_all()
    assert host.value().state is IngestState.COMMITTED


def test_impossible_offsets_of_a_publication_are_refused() -> None:
    """The records need room."""
    host = IngestHost()
    host.open()
    host.decide(host.sealed(part()))
    (effect,) = host.asked()
    bad = PartPublished(
        ingest_id="x", round=1, topic_id=TOPIC, partition=0, base_sequence=0, first_offset=4, end_offset=5
    )
    assert host.refusal(bad) is Refusal.INVALID_REQUEST
    assert host.refusal(replace(bad, first_offset=-2, end_offset=5)) is Refusal.INVALID_REQUEST
    host.published(effect)


def test_published_records_that_retention_has_deleted_end_no_other_part() -> None:
    """An end that is no more is unknown; only a leader that says that the topic is gone ends the rest of it."""
    host = IngestHost()
    host.open()
    host.decide(host.sealed(part(P0), part(P1)))
    effects = host.asked()
    for each, first, end in ((effects[0], NO_OFFSET, 7), (effects[1], NO_OFFSET, NO_OFFSET)):
        assert host.value().state is IngestState.DECIDED
        host.do(
            PartPublished(
                ingest_id="x",
                round=1,
                topic_id=TOPIC,
                partition=each.part.partition,
                base_sequence=each.part.base_sequence,
                first_offset=first,
                end_offset=end,
            )
        )
        host.run()
        assert host.core.topics() == (TOPIC,)
    (completed,) = [each for each in host.effects if isinstance(each, IngestCompleted)]
    assert [(each.first_offset, each.end_offset) for each in completed.result.parts] == [(-1, 7), (-1, -1)]


def test_deleted_topic_ends_its_parts() -> None:
    """They count as published, with no offsets, and its sequences go."""
    host = IngestHost()
    host.open()
    other = TopicPartition(OTHER, 0)
    host.decide(host.sealed(part(P0), part(P1), part(other)))
    effects = {each.part.topic_id: each for each in host.asked()}
    assert host.core.topics() == (TOPIC, OTHER)
    host.do(TopicsDeleted(topic_ids=(TOPIC, b"?" * 16)))
    host.run()
    assert host.core.topics() == (OTHER,)
    host.published(effects[OTHER])
    (completed,) = [each for each in host.effects if isinstance(each, IngestCompleted)]
    offsets = [(each.topic_id, each.first_offset, each.end_offset) for each in completed.result.parts]
    assert offsets == [(TOPIC, NO_OFFSET, NO_OFFSET)] * 2 + [(OTHER, 100, 102)]
    assert host.core.deadline_ms() is not None
    host.run(PUBLISH_RETRY_MS)
    assert not host.asked()


def test_leader_of_a_deleted_topic_ends_a_part() -> None:
    """Its parts have no offsets."""
    host = IngestHost()
    host.open()
    host.decide(host.sealed(part()))
    host.do(
        PartPublished(
            ingest_id="x",
            round=1,
            topic_id=TOPIC,
            partition=0,
            base_sequence=0,
            first_offset=NO_OFFSET,
            end_offset=NO_OFFSET,
            is_topic_gone=True,
        )
    )
    assert host.value().state is IngestState.COMMITTED
    host.run()
    assert host.core.topics() == ()


def test_offsets_of_a_decision() -> None:
    """The group is told with the answer, and again until it has heard; the next decision waits for that."""
    host = IngestHost()
    host.open(kind=REPEATED)
    entry = host.sealed(part())
    host.plan(entry, offsets=OFFSETS)
    host.decide(entry, offsets=OFFSETS)
    (effect,) = resolves(host)
    assert effect == ResolveOffsets(
        ingest_id="x", ingest_epoch=1, round=1, group_id="g", is_committed=True, offsets_digest=DIGEST
    )
    host.publish_all()
    host.run(PUBLISH_RETRY_MS)
    assert resolves(host) == [effect]
    host.fail_over()
    assert resolves(host) == [effect]
    assert code(host.plan(number=2)) is code(host.decide(number=2)) is Refusal.INGEST_PUBLISHING
    # Neither an abort nor a takeover makes it forget the group.
    host.abort()
    host.open(kind=REPEATED)
    assert host.value().group is not None
    resolved(host, replace(effect, round=2))
    assert host.value().group is not None
    resolved(host, effect)
    assert host.value().group is None
    assert isinstance(host.decide(epoch=2, number=2), Committed)
    host.run(10 * PUBLISH_RETRY_MS)
    assert not resolves(host)


def test_committed_ingest_is_kept_until_its_group_has_heard() -> None:
    """Otherwise the group would be told that its offsets do not count."""
    host = IngestHost()
    host.open()
    host.decide(offsets=OFFSETS)
    for _ in range(4):
        host.now_ms += COMMITTED_KEEP_MS // 2
        host.tick()
    question = DecideOutcome(ingest_id="x", ingest_epoch=1, round=1, offsets_digest=DIGEST)
    assert host.do(question) == OutcomeKnown(is_committed=True)
    resolved(host, resolves(host)[0])
    host.run()
    assert not host.core.state.ingests


def test_question_of_a_group_aborts_an_undecided_round() -> None:
    """So it gets an answer that stands, and the same one again."""
    host = IngestHost()
    host.open()
    entry = host.sealed(part())
    host.plan(entry, offsets=OFFSETS)
    question = DecideOutcome(ingest_id="x", ingest_epoch=1, round=1, offsets_digest=DIGEST)
    for _ in range(2):
        assert host.do(question) == OutcomeKnown(is_committed=False)
    assert code(host.decide(entry, offsets=OFFSETS)) is Refusal.INGEST_ABORTED
    (effect,) = resolves(host)
    assert not effect.is_committed
    # The group may never answer: an outcome that changes nothing holds nothing up.
    host.run(ABORTED_KEEP_MS)
    assert not host.core.state.ingests
    assert host.do(question) == OutcomeKnown(is_committed=False)


def test_offsets_that_another_commit_of_the_round_has_prepared_do_not_count() -> None:
    """They are no part of the decision, although epoch and round are the same."""
    host = IngestHost()
    host.open()
    host.plan(offsets=OFFSETS)
    assert isinstance(host.decide(), Committed)
    question = DecideOutcome(ingest_id="x", ingest_epoch=1, round=1, offsets_digest=DIGEST)
    assert host.do(question) == OutcomeKnown(is_committed=False)
    host.fail_over()
    assert host.do(question) == OutcomeKnown(is_committed=False)


def test_outcome_is_that_of_the_offsets_that_the_decision_names() -> None:
    """A prepare that comes late, with other offsets or of another group, does not count because its round was decided."""
    host = IngestHost()
    host.open()
    host.decide(offsets=OFFSETS)
    question = DecideOutcome(ingest_id="x", ingest_epoch=1, round=1, offsets_digest=DIGEST)
    others = (
        replace(OFFSETS, group_id="h"),
        replace(OFFSETS, offsets=(replace(OFFSETS.offsets[0], offset=8),)),
        replace(OFFSETS, offsets=(replace(OFFSETS.offsets[0], metadata="m"),)),
        replace(OFFSETS, offsets=()),
    )
    for _ in range(2):
        for other in others:
            late = replace(question, offsets_digest=offsets_digest(other))
            assert host.do(late) == OutcomeKnown(is_committed=False)
        assert host.do(question) == OutcomeKnown(is_committed=True)
        host.fail_over()


@pytest.mark.parametrize("kind", list(IngestKind))
def test_offsets_do_not_count_again_once_their_group_has_confirmed(kind: IngestKind) -> None:
    """What is pending after that is a late copy of the prepare, at a coordinator that has forgotten the outcome."""
    host = IngestHost()
    host.open(kind=kind)
    host.decide(offsets=OFFSETS)
    question = DecideOutcome(ingest_id="x", ingest_epoch=1, round=1, offsets_digest=DIGEST)
    assert host.do(question) == OutcomeKnown(is_committed=True)
    resolved(host, resolves(host)[0])
    state = host.value().state
    for _ in range(2):
        assert host.do(question) == OutcomeKnown(is_committed=False)
        host.fail_over()
    assert host.value().state is state, "and nothing is aborted by the question"


def lost(effect: Publish, records: int) -> NoteLostRecords:
    """Return what the leader says of a part."""
    return NoteLostRecords(
        ingest_id=effect.ingest_id,
        round=effect.round,
        topic_id=effect.part.topic_id,
        partition=effect.part.partition,
        base_sequence=effect.part.base_sequence,
        records=records,
    )


def test_part_after_a_loss_is_asked_for_with_it_and_the_result_says_so() -> None:
    """The loss is on record before the part is published, whoever coordinates then; it is told once, and more of it once more."""
    host = IngestHost()
    host.open()
    host.decide(host.sealed(part(), part(P1)))
    first, other = host.asked()
    host.do(lost(first, 7))
    host.do(lost(first, 7))
    assert [each.records for each in host.effects if isinstance(each, RecordsLost)] == [7]
    host.effects = []
    host.fail_over()
    asked = {each.part.partition: each for each in host.asked()}
    assert (asked[0].part.lost_records, asked[1].part.lost_records) == (7, 0)
    assert asked[0].part == replace(first.part, lost_records=7)
    host.do(lost(first, 9))
    assert [each.records for each in host.effects if isinstance(each, RecordsLost)] == [2], "those that are new"
    host.published(first)
    host.published(other)
    value = host.value()
    assert value.state is IngestState.COMMITTED
    assert value.decision is not None
    assert [each.lost_records for each in value.decision.parts] == [9, 0]


def test_only_the_next_part_of_a_partition_can_have_lost_what_is_before_it() -> None:
    """Late and absurd words about others change nothing."""
    host = IngestHost()
    for ingest_id in ("x", "y"):
        host.open(ingest_id)
        host.decide(host.sealed(part(), ingest_id=ingest_id), ingest_id=ingest_id)
    (first,) = host.asked()
    for wrong in (
        lost(replace(first, ingest_id="y"), 7),
        replace(lost(first, 7), ingest_id="y", base_sequence=2),
        replace(lost(first, 7), base_sequence=1),
        replace(lost(first, 7), round=2),
        replace(lost(first, 7), partition=1),
        replace(lost(first, 7), ingest_id="unknown"),
    ):
        assert host.do(wrong) == Noted()
    for absurd in (0, -1, 2**30 + 1):
        assert code(host.do(lost(first, absurd))) is Refusal.INVALID_REQUEST
    assert not host.effects
    host.published(first)
    assert host.do(lost(first, 7)) == Noted()
    (second,) = host.asked()
    assert second.part.lost_records == 0
    assert not any(isinstance(each, RecordsLost) for each in host.effects)


def test_question_about_a_fenced_epoch_disturbs_nobody() -> None:
    """Offsets belong to an epoch: those of a fenced client do not count, whatever its successor decides in the same round."""
    host = IngestHost()
    host.open()
    host.plan(host.sealed(part()), offsets=OFFSETS)
    host.open()
    (effect,) = resolves(host)
    assert (effect.ingest_epoch, effect.is_committed) == (1, False)
    old = DecideOutcome(ingest_id="x", ingest_epoch=1, round=1, offsets_digest=DIGEST)
    assert host.do(old) == OutcomeKnown(is_committed=False)
    assert host.value().state is IngestState.OPEN
    # What the group has not heard of an abort does not hold up a decision.
    host.decide(epoch=2, offsets=OFFSETS)
    assert host.do(old) == OutcomeKnown(is_committed=False)
    assert host.do(replace(old, ingest_epoch=2)) == OutcomeKnown(is_committed=True)


def test_client_that_aborts_has_its_group_told() -> None:
    """That is for speed; a group that nobody tells asks for itself."""
    host = IngestHost()
    host.open()
    host.plan(host.sealed(part()), offsets=OFFSETS)
    host.abort()
    (effect,) = resolves(host)
    assert effect == ResolveOffsets(ingest_id="x", ingest_epoch=1, round=1, group_id="g", is_committed=False)
    host.fail_over()
    assert resolves(host) == [effect]


def test_manifest_must_be_what_is_sealed() -> None:
    """One attempt for a task, sealed, with as many records."""
    host = IngestHost()
    host.open()
    entry = host.sealed(part())
    host.attempt(1)
    unsealed = ManifestEntry(task=1, attempt_id=b"a", records=0)
    for decide in (host.plan, host.decide):
        assert code(decide(entry, entry)) is Refusal.INVALID_REQUEST
        assert code(decide(entry, unsealed)) is Refusal.INGEST_INCOMPLETE
        assert code(decide(replace(entry, records=1))) is Refusal.INGEST_INCOMPLETE
        assert code(decide(replace(entry, attempt_id=b"?"))) is Refusal.INGEST_INCOMPLETE
        assert code(decide(entry, number=2)) is Refusal.INVALID_REQUEST
        twice = replace(OFFSETS, offsets=OFFSETS.offsets * 2)
        assert code(decide(entry, offsets=twice)) is Refusal.INVALID_REQUEST
        assert code(decide(entry, offsets=replace(OFFSETS, group_id=""))) is Refusal.INVALID_REQUEST
    assert host.value().decision is None


def test_same_manifest_in_another_order_is_the_same() -> None:
    """And who commits the offsets is no part of it."""
    one, two = ManifestEntry(task=0, attempt_id=b"a", records=1), ManifestEntry(task=1, attempt_id=b"b", records=2)
    assert digest_of((one, two), OFFSETS) == digest_of((two, one), OFFSETS)
    different = [
        digest_of((one, two), None),
        digest_of((one,), OFFSETS),
        digest_of((one, replace(two, records=3)), OFFSETS),
        digest_of((one, replace(two, attempt_id=b"c")), OFFSETS),
        digest_of((one, two), replace(OFFSETS, group_id="h")),
        digest_of((one, two), replace(OFFSETS, offsets=(replace(OFFSETS.offsets[0], offset=8),))),
        digest_of((one, two), replace(OFFSETS, offsets=(replace(OFFSETS.offsets[0], metadata="m"),))),
        digest_of((one, two), OFFSETS),
    ]
    assert len(set(different)) == len(different)


def test_dropped_attempts_are_counted() -> None:
    """Attempts of the round that the manifest does not name, sealed or not."""
    host = IngestHost()
    host.open()
    host.attempt(0, attempt_id=b"dead")
    host.open()
    entry = host.sealed(part(), epoch=2)
    host.attempt(0, epoch=2, attempt_id=b"loser")
    host.attempt(1, epoch=2, attempt_id=b"late")
    host.decide(entry, epoch=2)
    decision = host.value().decision
    assert decision is not None
    assert decision.dropped_attempts == 2


def test_partition_with_too_many_records_to_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences can be compared only within half of their number."""
    host = IngestHost()
    host.open("big")
    big = part(P0, PARTITION_RECORDS_MAX)
    host.decide(host.sealed(big, ingest_id="big"), ingest_id="big")
    host.open()
    entry = host.sealed(part())
    assert code(host.plan(entry)) is code(host.decide(entry)) is Refusal.INGEST_PUBLISHING
    host.publish_all()
    assert isinstance(host.decide(entry), Decided)
    host.open("y")
    monkeypatch.setattr(commits, "PARTITION_RECORDS_MAX", 1)
    assert code(host.plan(host.sealed(part(), ingest_id="y"), ingest_id="y")) is Refusal.LIMIT_EXCEEDED


def test_limits_of_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that does not fit into one decision is refused when it is planned."""
    host = IngestHost()
    host.open()
    entries = [host.sealed(part(TopicPartition(TOPIC, number * 64)), task=number) for number in range(3)]
    for name, value in [
        ("MANIFEST_ATTEMPTS_MAX", 2),
        ("PARTITIONS_MAX", 2),
        ("PARTS_TOTAL_MAX", 2),
        ("DECISION_RECORDS_MAX", 7),
        ("DECISION_BYTES_MAX", 400),
    ]:
        with monkeypatch.context() as patched:
            patched.setattr(commits, name, value)
            assert code(host.plan(*entries)) is code(host.decide(*entries)) is Refusal.LIMIT_EXCEEDED, name
    with monkeypatch.context() as patched:
        patched.setattr(commits, "OFFSETS_MAX", 0)
        assert code(host.plan(*entries, offsets=OFFSETS)) is Refusal.LIMIT_EXCEEDED
    assert isinstance(host.decide(*entries), Decided)


def test_largest_decision_fits_into_a_batch() -> None:
    """Whatever is not refused has at most 4,096 records and 900 KiB, by an estimate that is not below the truth."""
    host = IngestHost()
    host.open()
    entries = [
        host.sealed(*(part(TopicPartition(TOPIC, 1_000 * task + number)) for number in range(1_000)), task=task)
        for task in range(3)
    ]
    host.decide(*entries)
    records = host.log[-1].records
    assert len(records) == 3_000 + 47 + 2
    size = sum(len(each.key) + len(each.value or b"") + 48 for each in records)
    assert size < 960 * 1024


def test_limits_of_an_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids, topics, times to live, and numbers of ingests."""
    host = IngestHost()

    def refusal(**more: object) -> Refusal | None:
        return host.refusal(OpenIngest(**{"ingest_id": "x", "kind": IngestKind.SINGLE, "topics": TOPICS, **more}))

    assert refusal(ingest_id="") is refusal(ingest_id="ä" * 128) is Refusal.INVALID_REQUEST
    assert refusal(topics=()) is refusal(topics=(TOPICS[0], TOPICS[0])) is Refusal.INVALID_REQUEST
    assert refusal(topics=(IngestTopic(TOPIC, ""),)) is Refusal.INVALID_REQUEST
    assert refusal(ttl_ms=9_999) is refusal(ttl_ms=604_800_001) is refusal(ttl_ms=-1) is Refusal.INVALID_REQUEST
    many = tuple(IngestTopic(number.to_bytes(16, "big"), f"t{number}") for number in range(101))
    assert refusal(topics=many) is Refusal.LIMIT_EXCEEDED
    assert refusal(topics=many[:100]) is None
    monkeypatch.setattr(opening, "OPEN_INGESTS_MAX", 1)
    assert refusal(ingest_id="y") is Refusal.LIMIT_EXCEEDED
    assert refusal() is None
    host.abort(epoch=0)
    assert refusal(ingest_id="y") is None
    assert refusal() is Refusal.LIMIT_EXCEEDED
    monkeypatch.setattr(opening, "OPEN_INGESTS_MAX", 10)
    monkeypatch.setattr(opening, "KNOWN_INGESTS_MAX", 2)
    assert refusal(ingest_id="z") is Refusal.LIMIT_EXCEEDED
    assert refusal() is None


def test_garbage_is_deleted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number of records at a time, while the ingest goes on; an append that is refused is repeated."""
    monkeypatch.setattr(sweep, "SWEEP_RECORDS", 5)
    host = IngestHost()
    host.open(kind=REPEATED)
    entries = [host.sealed(part(TopicPartition(TOPIC, task)), task=task) for task in range(20)]
    host.decide(*entries[:10])
    for _ in range(30):
        decision = host.core.tick(host.now_ms)
        assert decision is None or len(decision.records) <= 5
        host.tick()
    assert host.core.state.attempt_count == 10
    host.publish_all()
    host.run()
    assert not host.value().group
    ingest = host.core.state.ingests["x"]
    assert not ingest.plans
    assert not ingest.manifests
    assert host.core.state.attempt_count == 10
    host.abort()
    host.run()
    assert host.core.state.attempt_count == 0


def test_records_of_long_work_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes too; a single large record goes alone."""
    monkeypatch.setattr(sweep, "SWEEP_BYTES", 300)
    host = IngestHost()
    host.open()
    for task in range(9):
        host.attempt(task)
    host.abort()
    sizes: list[int] = []
    while (decision := host.tick()) is not None:
        sizes.append(sum(map(record_bytes, decision.records)))
    assert sizes
    assert max(sizes) <= 300
    assert host.core.state.attempt_count == 0


def test_deleted_topic_with_many_parts_ends_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result has them all."""
    monkeypatch.setattr(sweep, "SWEEP_RECORDS", 6)
    host = IngestHost()
    host.open()
    host.decide(host.sealed(*(part(TopicPartition(TOPIC, number)) for number in range(20))))
    host.asked()
    host.do(TopicsDeleted(topic_ids=(TOPIC,)))
    host.run()
    decision = host.value().decision
    assert decision is not None
    assert len(decision.parts) == 20
    assert host.core.topics() == ()


def test_description_and_list() -> None:
    """What administrators see, with the progress."""
    host = IngestHost()
    host.open()
    host.open("w", kind=REPEATED)
    entry = host.sealed(part(P0), part(P1))
    host.attempt(1)
    described = host.do(DescribeIngest(ingest_id="x"))
    assert (described.open_attempts, described.sealed_attempts, described.sealed_records) == (1, 1, 4)
    assert (described.parts, described.published_parts, described.result) == (0, 0, None)
    host.decide(entry)
    host.published(host.asked()[0])
    described = host.do(DescribeIngest(ingest_id="x"))
    assert (described.parts, described.published_parts, described.result) == (2, 1, None)
    host.run(PUBLISH_RETRY_MS)
    host.publish_all()
    described = host.do(DescribeIngest(ingest_id="x"))
    assert (described.parts, described.published_parts, described.result.records) == (2, 2, 4)
    assert host.refusal(DescribeIngest(ingest_id="?")) is Refusal.INGEST_NOT_FOUND
    page = host.do(ListIngests(limit=1))
    assert ([each.ingest_id for each in page.ingests], page.has_more) == (["w"], True)
    page = host.do(ListIngests(after="w"))
    assert ([each.ingest_id for each in page.ingests], page.has_more) == (["x"], False)
    page = host.do(ListIngests(states=(IngestState.OPEN,)))
    assert [each.ingest_id for each in page.ingests] == ["w"]
    assert host.refusal(ListIngests(limit=0)) is Refusal.INVALID_REQUEST


def test_scopes() -> None:
    """Ingests do not see each other, but decisions share sequences."""
    host = IngestHost()
    host.open()
    host.decide(host.sealed(part()))
    (effect,) = host.asked()
    assert isinstance(effect, Publish)
    assert scope_of(DescribeIngest(ingest_id="x")) == "x"
    assert scope_of(PublishedUpTo(topic_partition=P0)) is None
    assert scope_of(TopicsDeleted(topic_ids=())) is None


def test_asks_count_against_one_limit() -> None:
    """A key is asked once in a while, and another identity at once."""
    ask = asks.Asks[str, int]()
    ask.expect("a", 1)
    assert ask.next_key(0) == "a"
    ask.note_asked("a", 1, 0)
    assert ask.next_key(PUBLISH_RETRY_MS - 1) is None
    assert ask.next_ms(0) == PUBLISH_RETRY_MS
    ask.expect("a", 1)
    assert ask.next_key(0) is None
    ask.expect("a", 2)
    assert ask.next_key(0) == "a"
    ask.expect("a", None)
    assert ask.next_ms(0) is None

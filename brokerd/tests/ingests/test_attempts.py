# SPDX-License-Identifier: Apache-2.0
"""Attempts: producer ids, rounds, seals, and which staged records may still be needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerd.ingests import attempts
from brokerd.ingests.answers import LiveSequences, Refusal
from brokerd.ingests.commands import LiveAttempts, ManifestEntry, OpenAttempt, SealAttempt
from brokerd.ingests.records import (
    AttemptKey,
    AttemptRecord,
    AttemptValue,
    EpochsRecord,
    IngestKind,
    StagedPart,
    TopicPartition,
)
from brokerd.ingests.sequences import staging_producer_id
from brokerd.tests.ingests.ingest_host import ATTEMPT, P0, P1, PARTITION, TOPIC, IngestHost, part

REPEATED = IngestKind.REPEATED


def live(host: IngestHost, *producer_ids: int, where: TopicPartition = P0) -> tuple[int | None, ...]:
    """Return what is still needed of producer ids."""
    outcome = host.do(LiveAttempts(topic_partition=where, producer_ids=producer_ids))
    assert isinstance(outcome, LiveSequences), outcome
    return outcome.sequences


def seal_of(*parts: StagedPart) -> SealAttempt:
    """Return the seal of the attempt that tests use."""
    return SealAttempt(ingest_id="x", ingest_epoch=1, task=0, attempt_id=ATTEMPT, parts=parts)


def test_each_attempt_has_a_producer_id_of_its_own() -> None:
    """Also after a failover; the same attempt again gets the same one."""
    host = IngestHost()
    host.open()
    first, second = host.attempt(0), host.attempt(1)
    assert (first, second) == (2**61 + 5 * 2**40, 2**61 + 5 * 2**40 + 1)
    assert host.attempt(0) == first
    host.abort()
    host.run()
    host.fail_over()
    host.open()
    assert host.attempt(0, epoch=2) == second + 1


def test_number_of_a_refused_append_is_not_given_twice() -> None:
    """Two attempts of one turn do not see each other's records."""
    host = IngestHost()
    host.open()
    command = OpenAttempt(ingest_id="x", ingest_epoch=1, task=0, attempt_id=b"lost")
    lost = host.core.decide(command, host.now_ms).response.outcome
    assert lost.producer_id < host.attempt()


def test_sealed_attempt_goes_on_in_the_next_round() -> None:
    """Under its producer id, at its sequences; in each partition from where it ended."""
    host = IngestHost()
    host.open(kind=REPEATED)
    producer_id = host.attempt()
    host.seal(part(P0, 3))
    host.decide(ManifestEntry(task=0, attempt_id=ATTEMPT, records=3))
    host.publish_all()
    assert host.attempt() == producer_id
    assert host.refusal(seal_of(part(P0, 2))) is Refusal.INVALID_REQUEST
    assert host.refusal(seal_of(part(P0, 2, first_sequence=4))) is Refusal.INVALID_REQUEST
    host.seal(part(P0, 2, first_sequence=3), part(P1, 1))
    host.decide(ManifestEntry(task=0, attempt_id=ATTEMPT, records=3), number=2)
    host.publish_all()
    assert host.attempt() == producer_id
    host.seal(part(P0, 1, first_sequence=5), part(P1, 1, first_sequence=1))


def test_attempt_that_was_not_sealed_ends_with_the_round() -> None:
    """Nobody knows where its sequences ended, so it begins again under another producer id."""
    host = IngestHost()
    host.open(kind=REPEATED)
    producer_id = host.attempt()
    host.decide()
    assert live(host, producer_id) == (None,)
    assert host.attempt() > producer_id


def test_attempt_that_misses_a_round_ends() -> None:
    """It could go on in the next round only."""
    host = IngestHost()
    host.open(kind=REPEATED)
    producer_id = host.attempt()
    host.seal()
    host.decide()
    host.decide(number=2)
    assert host.attempt() > producer_id


def test_late_copy_of_a_seal_of_the_last_round() -> None:
    """It is answered, and changes nothing of the round that is open."""
    host = IngestHost()
    host.open(kind=REPEATED)
    entry = host.sealed(part(P0, 3))
    host.decide(entry)
    host.publish_all()
    assert host.refusal(seal_of(part(P0, 3))) is None
    assert host.refusal(replace(seal_of(part(P0, 3)), round=1)) is None
    host.attempt()
    assert host.refusal(seal_of(part(P0, 3))) is Refusal.INVALID_REQUEST
    assert host.refusal(replace(seal_of(), round=1)) is Refusal.INVALID_REQUEST
    host.seal(part(P0, 1, first_sequence=3))


@pytest.mark.parametrize(
    "parts",
    [
        (part(), part()),
        (replace(part(), topic_id=b"?" * 16),),
        (replace(part(), partition=-1),),
        (replace(part(), records=0),),
        (replace(part(), records=3),),
        (replace(part(), first_offset=-1),),
        (replace(part(), first_sequence=1),),
        (replace(part(), first_sequence=2**31),),
    ],
)
def test_impossible_parts_are_refused(parts: tuple[StagedPart, ...]) -> None:
    """Nothing is sealed that cannot be staged like that."""
    host = IngestHost()
    host.open()
    host.attempt()
    assert host.refusal(seal_of(*parts)) is Refusal.INVALID_REQUEST


def test_seal_of_an_attempt_that_nobody_opened() -> None:
    """It has no producer id."""
    host = IngestHost()
    host.open()
    assert host.refusal(seal_of(part())) is Refusal.INVALID_REQUEST


@pytest.mark.parametrize(("task", "attempt_id"), [(-1, b"a"), (0, b""), (0, b"a" * 65)])
def test_impossible_attempts_are_refused(task: int, attempt_id: bytes) -> None:
    """Tasks count from 0, and attempt ids have 1 to 64 bytes."""
    host = IngestHost()
    host.open()
    command = OpenAttempt(ingest_id="x", ingest_epoch=1, task=task, attempt_id=attempt_id)
    assert host.refusal(command) is Refusal.INVALID_REQUEST


def test_limits_of_attempts_and_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one ingest and of the coordinator; an attempt that exists is not refused."""
    monkeypatch.setattr(attempts, "ATTEMPTS_MAX", 2)
    monkeypatch.setattr(attempts, "ATTEMPTS_TOTAL_MAX", 3)
    monkeypatch.setattr(attempts, "SLICES_MAX", 2)
    monkeypatch.setattr(attempts, "SLICES_TOTAL_MAX", 3)
    host = IngestHost()
    host.open()
    host.open("y")
    host.attempt(0)
    host.attempt(1)
    third = OpenAttempt(ingest_id="x", ingest_epoch=1, task=2, attempt_id=ATTEMPT)
    assert host.refusal(third) is Refusal.LIMIT_EXCEEDED
    host.attempt(1)
    host.attempt(0, ingest_id="y")
    fourth = OpenAttempt(ingest_id="y", ingest_epoch=1, task=1, attempt_id=ATTEMPT)
    assert host.refusal(fourth) is Refusal.LIMIT_EXCEEDED
    host.seal(part(P0), part(P1))
    assert host.refusal(replace(seal_of(part()), task=1)) is Refusal.LIMIT_EXCEEDED
    assert host.refusal(replace(seal_of(part(P0), part(P1)), ingest_id="y")) is Refusal.LIMIT_EXCEEDED
    host.seal(part(), ingest_id="y")


def test_partitions_of_an_attempt_are_limited_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record has them all."""
    monkeypatch.setattr(attempts, "PARTITIONS_MAX", 2)
    host = IngestHost()
    host.open(kind=REPEATED)
    entry = host.sealed(part(P0), part(P1))
    host.decide(entry)
    host.publish_all()
    host.attempt()
    assert host.refusal(seal_of(part(TopicPartition(TOPIC, 2)))) is Refusal.LIMIT_EXCEEDED


def test_what_a_single_ingest_needs() -> None:
    """Everything until it is sealed, then the parts, then those that are not published, then nothing."""
    host = IngestHost()
    host.open()
    producer_id, dropped = host.attempt(0), host.attempt(1)
    assert live(host, producer_id, dropped) == (0, 0)
    host.seal(part(P0), part(P1))
    assert live(host, producer_id) == live(host, producer_id, where=P1) == (0,)
    assert live(host, producer_id, where=TopicPartition(TOPIC, 2)) == (None,)
    host.decide(ManifestEntry(task=0, attempt_id=ATTEMPT, records=4))
    assert live(host, producer_id, dropped) == (0, None)
    asked = host.asked()
    host.published(asked[0])
    assert live(host, producer_id) == (None,)
    assert live(host, producer_id, where=P1) == (0,)
    host.published(asked[1])
    assert live(host, producer_id, where=P1) == (None,)
    host.run()
    assert live(host, producer_id, dropped) == (None, None)
    assert host.core.state.attempt_count == 0


def test_what_a_repeated_ingest_needs() -> None:
    """From where its published rounds end, in each partition."""
    host = IngestHost()
    host.open(kind=REPEATED)
    producer_id = host.attempt()
    host.seal(part(P0, 3))
    host.decide(ManifestEntry(task=0, attempt_id=ATTEMPT, records=3))
    assert live(host, producer_id) == (0,)
    host.publish_all()
    assert live(host, producer_id) == (3,)
    assert live(host, producer_id, where=P1) == (0,)
    host.attempt()
    assert live(host, producer_id) == (3,)
    host.seal(part(P0, 2, first_sequence=3))
    assert live(host, producer_id) == (3,)
    host.open(kind=REPEATED)
    assert live(host, producer_id) == (None,)


def test_producer_id_of_a_later_coordinator_is_kept() -> None:
    """A deposed coordinator does not know what its successor has given, and must not free it."""
    host = IngestHost()
    host.open()
    producer_id = host.attempt()
    host.abort()
    assert live(host, producer_id, producer_id + 1) == (None, 0)


def test_foreign_producer_ids_are_refused() -> None:
    """Each coordinator knows its own."""
    host = IngestHost()
    command = LiveAttempts(topic_partition=P0, producer_ids=(staging_producer_id(PARTITION + 1, 0),))
    assert host.refusal(command) is Refusal.INVALID_REQUEST
    assert host.refusal(replace(command, producer_ids=(7,))) is Refusal.INVALID_REQUEST
    assert host.refusal(replace(command, producer_ids=(7,) * 1_001)) is Refusal.LIMIT_EXCEEDED


def test_attempts_of_a_deleted_ingest_that_come_back_do_not_count() -> None:
    """A replica that missed the tombstones may lead: what is left over is deleted, and a new ingest is above its epochs."""
    host = IngestHost()
    value = AttemptValue(producer_id=staging_producer_id(PARTITION, 0), ingest_epoch=4, round=1)
    host.put(EpochsRecord(4), AttemptRecord("x", AttemptKey(0, ATTEMPT), value))
    assert host.open().ingest_epoch == 5
    assert live(host, value.producer_id) == (0,)
    host.fail_over()
    host.run()
    assert host.core.state.attempt_count == 0

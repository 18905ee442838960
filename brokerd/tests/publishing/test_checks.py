# SPDX-License-Identifier: Apache-2.0
"""Checks of staged slices at the leader of their partition."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from lograft.wire.codes import ErrorCode

from brokerd.failure import RefusedError
from brokerd.publishing.parts import Gap, MissingSlice, Slice
from brokerd.publishing.staged_reads import StagedReads
from brokerd.tests.publishing.publishing_broker import SEQUENCES, STAGING, PublishingBroker
from brokerd.tests.replica.lone_broker import TOPIC_ID


@pytest.fixture
async def broker() -> AsyncIterator[PublishingBroker]:
    made = PublishingBroker()
    await made.start()
    yield made
    await made.manager.stop()


async def slices(broker: PublishingBroker, *batches: int) -> list[Slice]:
    """Stage in turns as many batches as are given for each attempt; return their slices."""
    attempts = [await broker.attempt(number, sequence=SEQUENCES - 5) for number in range(len(batches))]
    for number in range(max(batches)):
        for attempt, count in zip(attempts, batches, strict=True):
            if number < count:
                attempt.stage(b"a", b"b")
    return [(await attempt.seal())[0] for attempt in attempts]


async def test_whole_slices_are_accepted(broker: PublishingBroker) -> None:
    """Short ones, and long ones whose begin the producer state has forgotten."""
    assert await broker.checks.check(TOPIC_ID, 0, await slices(broker, 1, 5, 16, 40)) == []


async def test_producer_state_spares_reads(broker: PublishingBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most the first batch of a slice is read; where an attempt went on, the headers are."""
    read, offsets = StagedReads.read, list[int]()

    async def read_and_note(reads: StagedReads, topic_id: bytes, partition: int, offset: int, end_offset: int) -> bytes:
        offsets.append(offset)
        return await read(reads, topic_id, partition, offset, end_offset)

    monkeypatch.setattr(StagedReads, "read", read_and_note)
    short, long = await slices(broker, 10, 40)
    assert await broker.checks.check(TOPIC_ID, 0, [short, long]) == []
    assert offsets == [long.first_offset]
    offsets.clear()
    attempt = await broker.attempt(1, sequence=(SEQUENCES - 5 + 80) % SEQUENCES)
    for _ in range(20):
        attempt.stage(b"later")
    assert await broker.checks.check(TOPIC_ID, 0, [short, long]) == []
    assert offsets


async def test_each_missing_slice_is_named(broker: PublishingBroker) -> None:
    """With its place and the reason; whole ones are not."""
    good, long, deleted = await slices(broker, 5, 40, 20)
    staging = await broker.staging()
    beyond = good._replace(end_offset=staging.log_end_offset + 1)
    shifted = long._replace(first_sequence=long.first_sequence + 1, records=long.records - 1)
    stranger = good._replace(producer_id=STAGING + 99)
    within = long._replace(end_offset=long.end_offset - 1, records=long.records - 1)
    found = await broker.checks.check(TOPIC_ID, 0, [beyond, shifted, stranger])
    assert [(each.index, each.gap) for each in found] == [
        (0, Gap.NOT_STAGED),
        (1, Gap.SEQUENCE),
        (2, Gap.BEGIN),
    ]
    assert await broker.checks.check(TOPIC_ID, 0, [within]) == [MissingSlice(0, long.producer_id, Gap.END)]
    await staging.delete_before(deleted.first_offset + 1, 0)
    assert await broker.checks.check(TOPIC_ID, 0, [deleted]) == [MissingSlice(0, deleted.producer_id, Gap.DELETED)]


async def test_check_waits_for_the_commit(broker: PublishingBroker) -> None:
    """What is only in the leader's log is no answer yet."""
    attempt = await broker.attempt(0)
    attempt.stage(b"x")
    staging = await broker.staging()
    assert staging.high_watermark == 0
    assert await broker.checks.check(TOPIC_ID, 0, [Slice(STAGING, 0, 1, 0, 1)]) == []
    assert staging.high_watermark == 1


async def test_absurd_and_unknown_are_refused(broker: PublishingBroker) -> None:
    """Typed: nothing of it is INGEST_INCOMPLETE."""
    good = Slice(STAGING, 0, 1, 0, 1)
    for topic_id, partition, wanted, code in (
        (TOPIC_ID, 0, [good._replace(records=0)], ErrorCode.INVALID_REQUEST),
        (b"u" * 16, 0, [good], ErrorCode.METADATA_NOT_REACHED),
        (TOPIC_ID, 5, [good], ErrorCode.METADATA_NOT_REACHED),
    ):
        with pytest.raises(RefusedError) as caught:
            await broker.checks.check(topic_id, partition, wanted)
        assert caught.value.failure.code is code

# SPDX-License-Identifier: Apache-2.0
"""What an attempt has staged, as its receipts say."""

from __future__ import annotations

import pytest
from lograft._producer.batches import SealedBatch
from lograft._producer.staging import StagedRange, Staging
from lograft.errors import RequestTimeoutError, UsageError
from lograft.types import BatchReceipt, Durability
from lograft.wire.batch import encode_batch

ID = bytes(range(16))


def batch(topic: str, partition: int, records: int, sequence: int) -> SealedBatch:
    made = SealedBatch(
        topic=topic,
        partition=partition,
        body=_Body(encode_batch([b"x"] * records)),
        record_count=records,
        reserved_bytes=0,
        deadline_ms=0,
        ordinal=0,
    )
    made.base_sequence = sequence
    return made


class _Body(bytearray):
    def stamp_producer(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        raise AssertionError("nothing is sent here")

    def join(self) -> bytearray:
        return self

    def pieces(self) -> list[bytes | bytearray | memoryview]:
        return [self]


def receipt(made: SealedBatch, base_offset: int | None, error: RequestTimeoutError | None = None) -> BatchReceipt:
    return BatchReceipt(
        topic=made.topic,
        partition=made.partition,
        base_offset=base_offset,
        record_count=made.record_count,
        durability=Durability.FLUSHED,
        error=error,
    )


def test_ranges_grow_with_receipts_and_go_on_after_each_seal() -> None:
    """The first sequence and offset are those of the first batch, whatever lies between batches. A seal takes what is there."""
    staging = Staging(7, {"a": ID})
    for made, offset in ((batch("a", 0, 3, 0), 10), (batch("a", 0, 2, 3), 20), (batch("a", 1, 1, 0), 5)):
        staging.note(made, receipt(made, offset))
    assert staging.take() == {("a", 0): StagedRange(0, 5, 10, 22), ("a", 1): StagedRange(0, 1, 5, 6)}
    assert staging.take() == {}
    later = batch("a", 0, 4, 5)
    staging.note(later, receipt(later, 30))
    assert staging.take() == {("a", 0): StagedRange(5, 4, 30, 34)}


def test_an_attempt_with_a_failed_batch_has_nothing_to_seal() -> None:
    """Whatever comes after it, records are missing."""
    staging = Staging(7, {"a": ID})
    first, second = batch("a", 0, 1, 0), batch("a", 0, 1, 1)
    staging.note(first, receipt(first, None, RequestTimeoutError("late")))
    staging.note(second, receipt(second, 3))
    for _ in range(2):
        with pytest.raises(RequestTimeoutError, match="late"):
            staging.take()


def test_names_of_staging_topics() -> None:
    """They follow from the id of the topic, and a topic that does not belong to the ingest has none."""
    staging = Staging(7, {"a": ID})
    assert staging.name("a") == "__staging-000102030405060708090a0b0c0d0e0f"
    assert staging.topic(staging.name("a")) == "a"
    with pytest.raises(UsageError, match="publishes to a, not to 'b'"):
        staging.name("b")

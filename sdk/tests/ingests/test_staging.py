# SPDX-License-Identifier: Apache-2.0
"""What an attempt has staged, as its receipts say."""

from __future__ import annotations

import pytest
from lograft._producer.staging import StagedRange, Staging
from lograft.errors import RequestTimeoutError, UsageError
from lograft.types import BatchReceipt, Durability

ID = bytes(range(16))


def receipt(
    topic: str, partition: int, records: int, base_offset: int | None, error: RequestTimeoutError | None = None
) -> BatchReceipt:
    return BatchReceipt(
        topic=topic,
        partition=partition,
        base_offset=base_offset,
        record_count=records,
        durability=Durability.FLUSHED,
        error=error,
    )


def test_ranges_grow_with_receipts_and_go_on_after_each_seal() -> None:
    """The first sequence and offset are those of the first batch, whatever lies between batches. A seal takes what is there."""
    staging = Staging(7, {"a": ID})
    staging.note(0, receipt("a", 0, 3, 10))
    staging.note(3, receipt("a", 0, 2, 20))
    staging.note(0, receipt("a", 1, 1, 5))
    assert staging.take() == {("a", 0): StagedRange(0, 5, 10, 22), ("a", 1): StagedRange(0, 1, 5, 6)}
    assert staging.take() == {}
    staging.note(5, receipt("a", 0, 4, 30))
    assert staging.take() == {("a", 0): StagedRange(5, 4, 30, 34)}


def test_an_attempt_with_a_failed_batch_has_nothing_to_seal() -> None:
    """Whatever comes after it, records are missing."""
    staging = Staging(7, {"a": ID})
    staging.note(0, receipt("a", 0, 1, None, RequestTimeoutError("late")))
    staging.note(1, receipt("a", 0, 1, 3))
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

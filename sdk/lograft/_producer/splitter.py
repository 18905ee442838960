# SPDX-License-Identifier: Apache-2.0
"""Splits a sealed batch that exceeds the limit of its topic.

This happens only when the limit is lower than the producer's batch size and was not known when the batch was sealed. This
module must not send.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from lograft._producer.batches import SealedBatch
from lograft.wire.batch import RecordBatch, compose_batch

T = TypeVar("T")


def split_batch(batch: SealedBatch) -> list[SealedBatch]:
    """Return two batches, each with half of the records. When both are resolved, the given batch is resolved.

    Args:
        batch: a batch of at least two records that was never sent. A piece of a split batch counts for the piece's owner.

    Raises:
        BatchError: the bytes are not a valid batch. Only a batch that the caller encoded can have such bytes.
    """
    assert batch.base_sequence is None, f"{batch} was sent, it cannot be split"
    content = RecordBatch(batch.body.join())
    count = content.record_count
    values, keys, timestamps = content.values(), content.keys(), content.timestamps_ms()
    headers = content.headers()
    codec = content.header.codec
    owner = batch.owner if batch.owner is not None else batch
    pieces: list[SealedBatch] = []
    for start, end in ((0, count // 2), (count // 2, count)):
        body = compose_batch(
            _part(values, start, end),
            keys=_part(keys, start, end),
            timestamps_ms=_part(timestamps, start, end),
            headers=_part(headers, start, end),
            codec=codec,
        )
        pieces.append(
            SealedBatch(
                topic=batch.topic,
                partition=batch.partition,
                body=body,
                record_count=end - start,
                reserved_bytes=0,
                deadline_ms=batch.deadline_ms,
                ordinal=batch.ordinal,
                owner=owner,
                outcome=batch.outcome,
                first_record=batch.first_record + start,
            )
        )
    owner.open_pieces += len(pieces) - (1 if batch.owner is not None else 0)
    return pieces


def _part(column: Sequence[T], start: int, end: int) -> Sequence[T]:
    return column[start:end]

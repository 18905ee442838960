# SPDX-License-Identifier: Apache-2.0
"""Staged bytes as batches of the publishing producer: checked against the plan, with new headers. Any thread may call it."""

from __future__ import annotations

from collections.abc import Sequence

from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError
from lograft.wire.header import header_of_producer, iter_batches, read_header

from brokerd.failure import refused
from brokerd.publishing.limits import RETRY_MS, SEQUENCE_COUNT
from brokerd.publishing.parts import Part
from brokerd.publishing.plan import PlannedBatch
from storage.types import HeadedBatch


def ready_batches(
    part: Part, partition: str, data: bytes | memoryview, planned: Sequence[PlannedBatch]
) -> list[HeadedBatch]:
    """Return the first planned batches, as many as the bytes hold up to one that is wrong.

    Args:
        part: the part that they belong to.
        partition: name of its partition, for messages.
        data: whole staged batches that follow each other.
        planned: what the plan expects there, in order; at least one.

    Raises:
        RefusedError: the first batch is wrong already: LEADER_NOT_AVAILABLE, it is another one than the plan says, or none; DATA_LOSS,
            it is damaged.
    """
    view = memoryview(data)
    ready: list[HeadedBatch] = []
    try:
        for expected, (at, header) in zip(planned, iter_batches(view), strict=False):
            found = PlannedBatch(header.base_offset, header.size_bytes, header.record_count, expected.first_record)
            if found != expected:
                break
            batch = view[at : at + header.size_bytes]
            base_sequence = (part.base_sequence + expected.first_record) % SEQUENCE_COUNT
            head = header_of_producer(batch, header, producer_id=part.producer_id, base_sequence=base_sequence)
            ready.append(HeadedBatch(head, read_header(head), batch[len(head) :]))
    except BatchError as error:
        if not ready:
            message = f"the staged batch at {planned[0].base_offset} for {partition} is damaged: {error}"
            raise refused(ErrorCode.DATA_LOSS, message, retry_after_ms=RETRY_MS) from error
    if not ready:
        message = f"the staged batch at {planned[0].base_offset} for {partition} is another one than a moment ago"
        raise refused(ErrorCode.LEADER_NOT_AVAILABLE, message, retry_after_ms=RETRY_MS)
    return ready

# SPDX-License-Identifier: Apache-2.0
"""Builders of batches and logs, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lograft.wire.batch import RecordBatch, check_batch, encode_batch, read_batches
from lograft.wire.limits import HEADER_BYTES, MAX_BATCH_BYTES

from storage.files.disk import Disk
from storage.log.partition_log import OpenedLog, PartitionLog
from storage.types import Appended, HeadedBatch, LogSettings

SMALL = LogSettings(segment_bytes=1_000, index_interval_bytes=100, segment_ms=10**15)
"""Settings with which a few batches fill a segment and an index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStamp:
    """Producer fields of a batch."""

    producer_id: int
    producer_epoch: int = 0
    base_sequence: int = 0


def make_batch(
    values: Sequence[bytes], *, timestamp_ms: int = 1_000, producer: ProducerStamp | None = None, control: bool = False
) -> bytearray:
    """Encode a batch of values with one timestamp."""
    return encode_batch(
        values,
        timestamps_ms=timestamp_ms,
        producer_id=producer.producer_id if producer is not None else -1,
        producer_epoch=producer.producer_epoch if producer is not None else -1,
        base_sequence=producer.base_sequence if producer is not None else -1,
        control=control,
    )


def headed(batch: bytes | bytearray) -> HeadedBatch:
    """Return a batch with its header apart from its payload."""
    header = check_batch(batch, max_bytes=MAX_BATCH_BYTES)
    return HeadedBatch(bytes(batch[:HEADER_BYTES]), header, memoryview(bytes(batch))[HEADER_BYTES:])


def append(
    log: PartitionLog,
    values: Sequence[bytes],
    *,
    leader_epoch: int = 0,
    timestamp_ms: int = 1_000,
    now_ms: int = 0,
    producer: ProducerStamp | None = None,
    control: bool = False,
) -> Appended:
    """Append one batch as a leader does: checked, then stamped."""
    batch = make_batch(values, timestamp_ms=timestamp_ms, producer=producer, control=control)
    header = check_batch(batch, max_bytes=MAX_BATCH_BYTES, allow_control=control)
    return log.append_as_leader(batch, header, leader_epoch=leader_epoch, now_ms=now_ms)


def open_log(disk: Disk, directory: str, settings: LogSettings = SMALL, *, now_ms: int = 0) -> OpenedLog:
    """Open a log."""
    return PartitionLog.open(disk, directory, settings=settings, now_ms=now_ms)


def read_all(
    log: PartitionLog, *, offset: int | None = None, max_bytes: int = 200, end_offset: int | None = None
) -> list[RecordBatch]:
    """Read all batches from an offset (default: log start) chunk by chunk; check that the chunks join."""
    position = log.log_start_offset if offset is None else offset
    batches: list[RecordBatch] = []
    while True:
        chunk = log.read(position, max_bytes, end_offset=end_offset)
        if not chunk.data:
            return batches
        found = list(read_batches(chunk.data))
        assert found[0].base_offset <= position < found[0].next_offset, f"{found[0].header} read at {position}"
        assert found[-1].next_offset == chunk.next_offset, f"{found[-1].header} ends a chunk at {chunk.next_offset}"
        batches += found
        position = chunk.next_offset


def read_values(log: PartitionLog, *, offset: int | None = None, max_bytes: int = 200) -> list[bytes | None]:
    """Return the values of all records from an offset on."""
    return [value for batch in read_all(log, offset=offset, max_bytes=max_bytes) for value in batch.values()]

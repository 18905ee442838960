# SPDX-License-Identifier: Apache-2.0
"""One batch of the model, and the rule of a compaction pass. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from lograft.wire.batch import BatchRecord, RecordBatch, read_header
from lograft.wire.header import PREFIX_BYTES, BatchHeader, stamped_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBatch:
    """One batch as it must be on disk.

    Attributes:
        data: all its bytes, stamped.
        header: its header, stamped.
        records: its records.
        appended_ms: the clock of the log's owner when it was appended.
    """

    data: bytes
    header: BatchHeader
    records: tuple[BatchRecord, ...]
    appended_ms: int = 0

    @classmethod
    def stamped(
        cls, batch: bytes | bytearray, *, base_offset: int, leader_epoch: int, appended_ms: int = 0
    ) -> ModelBatch:
        """Return a client's batch as a leader stores it."""
        prefix = stamped_prefix(base_offset, read_header(batch).batch_length, leader_epoch)
        return cls.standing(prefix + bytes(batch[PREFIX_BYTES:]), appended_ms=appended_ms)

    @classmethod
    def standing(cls, data: bytes, *, appended_ms: int = 0) -> ModelBatch:
        """Return a batch of a log."""
        return cls(
            data=data, header=read_header(data), records=tuple(RecordBatch(data).records()), appended_ms=appended_ms
        )

    @property
    def timestamps_ms(self) -> tuple[int, ...]:
        """The timestamp of each record, in milliseconds."""
        return tuple(record.timestamp_ms for record in self.records)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRule:
    """What a compaction pass under way may do.

    Attributes:
        now_ms: the clock of the pass, in milliseconds.
        end_offset: the pass touches nothing at or beyond it (exclusive).
        retention_ms: how long a tombstone stays.
        min_lag_ms: the pass touches nothing younger.
        aborted: base offsets of batches of aborted transactions.
        producers: ids of all producers that the log knows.
        known: the batches in their producer state.
    """

    now_ms: int
    end_offset: int
    retention_ms: int
    min_lag_ms: int
    aborted: frozenset[int]
    producers: frozenset[int]
    known: tuple[BatchHeader, ...] = field(repr=False)

# SPDX-License-Identifier: Apache-2.0
"""A sealed batch on its way through the producer.

This module owns the state that the accumulator, the sequencer, the engine and the streams keep for each batch. It must not know
how a batch is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from lograft._producer.outcomes import Outcome
from lograft.types import Headers


class BatchBody(Protocol):
    """An encoded batch that gets producer id, epoch and sequence later. `len` returns its bytes."""

    def __len__(self) -> int: ...

    def stamp_producer(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Write the identity and the sequence of the first record into the batch."""
        ...

    def join(self) -> bytearray:
        """Copy the batch into one piece of memory."""
        ...

    def pieces(self) -> Sequence[bytes | bytearray | memoryview]:
        """Return the bytes of the batch, in order."""
        ...


BatchEncoder = Callable[
    [
        Sequence[bytes | None],
        Sequence[bytes | None] | None,
        int | Sequence[int],
        Sequence[Headers] | None,
        tuple[int, int | None] | None,
    ],
    BatchBody,
]
"""Encodes values, keys, timestamps in milliseconds (one for all, or one each) and headers into a batch. The last argument is the
length of all values, and of all keys if there are keys; None if they differ or are not known."""


class Doubt(IntEnum):
    """Whether a waiting batch may be in the log. The higher value counts."""

    NONE = 0
    """The batch is not in the log: it was never sent, or the broker said so."""
    NEAR_REFUSAL = 1
    """The batch was in flight when the broker refused a batch without naming it."""
    LOST = 2
    """The batch was in flight when the connection broke, or when the producer stopped waiting for its receipt."""


class SealedBatch:
    """A batch that takes no more records.

    Attributes:
        topic: topic of the batch.
        partition: partition of the batch.
        body: the encoded batch. The stream writes the identity into it before it sends it for the first time.
        record_count: number of records in the batch.
        reserved_bytes: bytes of the producer's buffer that the batch holds until it is resolved.
        deadline_ms: monotonic time from which the batch counts as failed.
        ordinal: number in the order of sealing, over all partitions of the producer.
        base_sequence: sequence of the first record; None before the batch is numbered.
        batch_number: number on the current route; None while the batch is not on the wire.
        doubt: whether an earlier attempt may have appended the batch.
        outcome: where the handles of the records find their result; None for a batch whose records have no handles.
        first_record: number of the first record in the batch that was sealed; above 0 only in pieces of a split batch.
        owner: the batch from which this one was split; None for a whole batch.
        open_pieces: number of unresolved pieces of a split batch.
    """

    __slots__ = (
        "base_sequence",
        "batch_number",
        "body",
        "deadline_ms",
        "doubt",
        "first_record",
        "open_pieces",
        "ordinal",
        "outcome",
        "owner",
        "partition",
        "record_count",
        "reserved_bytes",
        "topic",
    )

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        body: BatchBody,
        record_count: int,
        reserved_bytes: int,
        deadline_ms: int,
        ordinal: int,
        owner: SealedBatch | None = None,
        outcome: Outcome | None = None,
        first_record: int = 0,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.body = body
        self.record_count = record_count
        self.reserved_bytes = reserved_bytes
        self.deadline_ms = deadline_ms
        self.ordinal = ordinal
        self.base_sequence: int | None = None
        self.batch_number: int | None = None
        self.doubt = Doubt.NONE
        self.owner = owner
        self.outcome = outcome
        self.first_record = first_record
        self.open_pieces = 0

    def __repr__(self) -> str:
        return f"SealedBatch({self.topic}-{self.partition}, ordinal={self.ordinal}, records={self.record_count})"

# SPDX-License-Identifier: Apache-2.0
"""A sealed batch on its way through the producer.

Owns the state that the accumulator, the sequencer and the shells keep for each batch. Must not know how a batch is
encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Protocol

from lograft.types import Headers


class BatchBody(Protocol):
    """An encoded batch that takes its producer's numbers late; `len` gives its bytes."""

    def __len__(self) -> int: ...

    def stamp_producer(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Write identity and sequence of its first record into the batch."""
        ...

    def join(self) -> bytearray:
        """Copy it into one piece of memory."""
        ...

    def pieces(self) -> Sequence[bytes | bytearray | memoryview]:
        """Give its bytes, in order."""
        ...


BatchEncoder = Callable[
    [
        Sequence[bytes | None],
        Sequence[bytes | None] | None,
        int | Sequence[int],
        Sequence[Headers] | None,
    ],
    BatchBody,
]
"""Encodes values, keys, timestamps in milliseconds (one for all, or one each) and headers into a batch."""


class Doubt(IntEnum):
    """Whether a batch that waits may be in the log; the higher one counts."""

    NONE = 0
    """It is not: it was never sent, or the broker said so."""
    NEAR_REFUSAL = 1
    """It was in flight when the broker refused a batch without saying which one."""
    LOST = 2
    """It was in flight when the connection broke or the wait for its receipt was given up."""


class SealedBatch:
    """A batch that takes no more records.

    Attributes:
        topic: topic of the batch.
        partition: partition of the batch.
        body: the encoded batch; the shell writes the identity into it before it is first sent.
        record_count: records in it.
        reserved_bytes: bytes of the producer's buffer that it holds until it is resolved.
        deadline_ms: monotonic time from which it counts as failed.
        ordinal: number in the order of sealing over all partitions of the producer.
        base_sequence: sequence of its first record; None: not numbered (yet).
        batch_number: number on its current route; None: not on the wire.
        doubt: whether an earlier sending may have been appended.
        owner: the batch that this one was split off; None: it is whole.
        open_pieces: pieces of a split batch that are not resolved.
    """

    __slots__ = (
        "base_sequence",
        "batch_number",
        "body",
        "deadline_ms",
        "doubt",
        "open_pieces",
        "ordinal",
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
        self.open_pieces = 0

    def __repr__(self) -> str:
        return f"SealedBatch({self.topic}-{self.partition}, ordinal={self.ordinal}, records={self.record_count})"

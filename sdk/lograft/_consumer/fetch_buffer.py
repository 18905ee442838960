# SPDX-License-Identifier: Apache-2.0
"""What a consumer has received and not yet handed out, and how much more brokers may send.

This module owns the order of arrivals, which of them are still wanted, the positions, and the credit. It must not decode, check
or fetch anything.

Theory of operation. Every assigned partition has a `Cursor`. Its `position` is the next offset for the application. A seek
raises its `generation`. Arrivals for an older generation are dropped when their turn comes. The engine fetches ahead of the
position.

Credit. A broker may send the bytes that it was granted. `CreditLedger` grants consumed bytes again, in steps. So bytes that are
received and not consumed, plus bytes that may still come, never exceed the limit, except by a single larger batch.

Laws: the positions of one generation never go back, except by a `Reset`. Each chunk is handed out once, in the order of
arrival. The bytes of dropped chunks are granted again like those of consumed ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from lograft.errors import LograftError
from lograft.types import TopicPartition

GRANT_STEPS: Final = 4
"""The limit divided by this is the step in which credit is granted again."""


class Cursor:
    """The consumer's state in one partition. The collector writes it, and `FetchBuffer.take` on its behalf.

    Attributes:
        tp: the partition.
        position: next offset for the application.
        generation: number that every seek raises.
        high_watermark: last known end of the readable offsets, exclusive; None before the first chunk.
        log_end: last known end of the readable offsets, exclusive, as of the newest arrival; None before the first.
        error: why nothing more comes until the next seek; None if no error occurred.
        topic_id: id of the topic of which it may read; None: that of the first binding.
        is_from_group: True if the coordinator of the group assigned the partition, and so says when it is gone.
        is_paused: True while the application wants nothing from the partition.
        handed_ms: largest timestamp of the last batch that was handed out, in milliseconds since 1970; None before the first.
        leader_epoch: leader epoch of that batch; None before the first.
    """

    __slots__ = (
        "error",
        "generation",
        "handed_ms",
        "high_watermark",
        "is_from_group",
        "is_paused",
        "leader_epoch",
        "log_end",
        "position",
        "topic_id",
        "tp",
    )

    def __init__(
        self, tp: TopicPartition, position: int, topic_id: bytes | None = None, *, is_from_group: bool = False
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.is_from_group = is_from_group
        self.log_end: int | None = None
        self.is_paused = False
        self.handed_ms: int | None = None
        self.leader_epoch: int | None = None
        self.position = position
        self.generation = 0
        self.high_watermark: int | None = None
        self.error: LograftError | None = None

    def seek(self, offset: int) -> None:
        """Continue from an offset, and drop everything fetched ahead."""
        self.generation += 1
        self.position = offset
        self.error = None

    def retire(self) -> None:
        """Drop everything fetched, because the partition is no longer assigned, or paused."""
        self.generation += 1

    @property
    def is_at_end(self) -> bool:
        """True if the application has everything that was readable, as far as is known."""
        return self.log_end is not None and self.position >= self.log_end

    def advance(self, next_offset: int) -> None:
        """Note that the application has everything below `next_offset`. The position never goes back."""
        self.position = max(self.position, next_offset)


class CreditLedger:
    """Credit of one fetch stream."""

    __slots__ = ("_held_bytes", "_limit_bytes", "_open_bytes", "_step_bytes")

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0, f"limit {limit_bytes}"
        self._limit_bytes = limit_bytes
        self._step_bytes = max(1, limit_bytes // GRANT_STEPS)
        # Bytes granted and not yet used by the broker; negative after a batch that was larger than the rest.
        self._open_bytes = limit_bytes
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes received and not consumed."""
        return self._held_bytes

    @property
    def open_bytes(self) -> int:
        """Bytes that the broker may still send."""
        return self._open_bytes

    def receive(self, size_bytes: int) -> None:
        """Count a chunk that has arrived."""
        self._open_bytes -= size_bytes
        self._held_bytes += size_bytes

    def consume(self, size_bytes: int) -> None:
        """Count a chunk that was consumed or dropped."""
        self._held_bytes -= size_bytes
        assert self._held_bytes >= 0, f"consumed {-self._held_bytes} bytes more than received"

    def take_grant(self) -> int:
        """Return the bytes to grant now; 0 while they are less than a step."""
        grant = self._limit_bytes - self._held_bytes - self._open_bytes
        if grant < self._step_bytes:
            return 0
        self._open_bytes += grant
        return grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Whole batches of one partition as a broker sent them. The body of a progress mark is empty.

    Attributes:
        cursor: the cursor of the partition.
        generation: generation of the cursor for which the chunk was fetched.
        body: the batches, one after the other.
        next_offset: offset of the next read.
        high_watermark: end of the readable offsets, exclusive.
        source: the stream that gets the credit for the bytes. This module only passes it on.
    """

    cursor: Cursor
    generation: int
    body: bytes | bytearray | memoryview
    next_offset: int
    high_watermark: int
    source: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The position was out of range and moves to `offset`."""

    cursor: Cursor
    generation: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Fetching of the partition has failed. Nothing more comes until the next seek."""

    cursor: Cursor
    generation: int
    error: LograftError


Arrival = Chunk | Reset | Failure


class FetchBuffer:
    """Arrivals, in order."""

    __slots__ = ("_arrivals",)

    def __init__(self) -> None:
        self._arrivals: deque[Arrival] = deque()

    def __bool__(self) -> bool:
        return bool(self._arrivals)

    def put(self, arrival: Arrival) -> None:
        """Add an arrival."""
        if isinstance(arrival, Chunk) and arrival.generation == arrival.cursor.generation:
            arrival.cursor.log_end = arrival.high_watermark
        self._arrivals.append(arrival)

    def take(self, dropped: list[Chunk]) -> Chunk | None:
        """Remove and return the first chunk that is still wanted. Resets and failures before it take effect.

        Args:
            dropped: gets the chunks that are no longer wanted. The caller gives their bytes back.

        Returns:
            The chunk; None when no chunk is left, or when a cursor has failed (see its `error`).
        """
        while self._arrivals:
            arrival = self._arrivals.popleft()
            cursor = arrival.cursor
            if arrival.generation != cursor.generation:
                if isinstance(arrival, Chunk):
                    dropped.append(arrival)
                continue
            if isinstance(arrival, Chunk):
                cursor.high_watermark = arrival.high_watermark
                return arrival
            if isinstance(arrival, Failure):
                cursor.error = arrival.error
                return None
            cursor.position = arrival.offset
        return None

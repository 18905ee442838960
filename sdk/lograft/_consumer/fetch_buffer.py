# SPDX-License-Identifier: Apache-2.0
"""What a consumer has received and not yet handed out, and how much more brokers may send.

This module owns the order of arrivals, which of them are still wanted, the positions, and the credit. It must not decode, check
or fetch anything.

Theory of operation. Every assigned partition has a `Cursor`. Its `position` is the next offset for the application. A seek
raises its `generation`. Arrivals for an older generation are dropped when their turn comes. The engine fetches ahead of the
position.

Credit. A broker may send the bytes that it was granted. `PrefetchBudget` shares the bytes that a consumer may have ahead of the
application among its streams, one to each broker, and `CreditLedger` grants consumed bytes again, in steps. So bytes that are
received and not consumed, plus bytes that may still come, together never exceed the limit, except by a larger batch of each
stream.

Laws: the positions of one generation never go back, except by a `Reset`. Each chunk is handed out once, in the order of
arrival. The bytes of dropped chunks are granted again like those of consumed ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lograft.errors import LograftError
from lograft.types import TopicPartition

GRANT_STEPS: Final = 4
"""The share of a stream divided by this is the step in which credit is granted again."""


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


class PrefetchBudget:
    """The bytes that all fetch streams of one consumer together may have ahead of the application.

    Every stream may have an equal share, and one more share stays free for the next stream. A broker cannot be asked to give
    credit back, so a stream whose share has become smaller gets no more until it has used what it has. Meanwhile a new stream
    begins with half of what is free.
    """

    __slots__ = ("_free_bytes", "_limit_bytes", "_stream_count")

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0, f"limit {limit_bytes}"
        self._limit_bytes = limit_bytes
        # Negative while batches that were larger than their credit wait for the application.
        self._free_bytes = limit_bytes
        self._stream_count = 0

    def add_stream(self) -> CreditLedger:
        """Return the credit of a new stream."""
        self._stream_count += 1
        return CreditLedger(self)

    def remove_stream(self) -> None:
        """Count a stream less. Its ledger calls this."""
        self._stream_count -= 1

    @property
    def free_bytes(self) -> int:
        """Bytes that may still be granted; negative after batches that were larger than their credit."""
        return self._free_bytes

    @property
    def share_bytes(self) -> int:
        """Bytes that one stream may have, granted or received."""
        return max(1, self._limit_bytes // (self._stream_count + 1))

    def take(self, size_bytes: int) -> None:
        """Count bytes as used, or with a negative number as free again. The ledgers call this."""
        self._free_bytes -= size_bytes


class CreditLedger:
    """Credit of one fetch stream, a part of the budget of its consumer."""

    __slots__ = ("_budget", "_held_bytes", "_is_live", "_open_bytes")

    def __init__(self, budget: PrefetchBudget) -> None:
        self._budget = budget
        # Bytes granted and not yet used by the broker; negative after a batch that was larger than the rest.
        self._open_bytes = 0
        self._held_bytes = 0
        self._is_live = False

    @property
    def held_bytes(self) -> int:
        """Bytes received and not consumed."""
        return self._held_bytes

    @property
    def open_bytes(self) -> int:
        """Bytes that the broker may still send."""
        return self._open_bytes

    def begin(self) -> int:
        """Return the credit with which the stream opens, at least 1 byte: a broker sends a first batch of any size."""
        assert not self._is_live, "the stream has its first credit already"
        self._is_live = True
        self._set_open(max(1, min(self._budget.share_bytes, self._budget.free_bytes // 2)))
        return self._open_bytes

    def end(self) -> None:
        """Count the stream as ended: the broker sends nothing more. What it has sent stays counted until it is consumed."""
        if self._is_live:
            self._set_open(0)
        self._is_live = False
        self._budget.remove_stream()

    def receive(self, size_bytes: int) -> None:
        """Count a chunk that has arrived."""
        self._hold(size_bytes)
        self._set_open(self._open_bytes - size_bytes)

    def consume(self, size_bytes: int) -> None:
        """Count a chunk that was consumed or dropped."""
        self._hold(-size_bytes)
        assert self._held_bytes >= 0, f"consumed {-self._held_bytes} bytes more than received"

    def take_grant(self) -> int:
        """Return the bytes to grant now; 0 while they are less than a step, unless the broker has no credit left.

        A stream that has sent nothing that waits gets at least 1 byte, as at its beginning, so that none waits for the others.
        """
        if not self._is_live:
            return 0
        share_bytes = self._budget.share_bytes
        present = max(0, self._open_bytes)
        target = min(share_bytes - self._held_bytes, present + self._budget.free_bytes)
        if not self._held_bytes:
            target = max(1, target)
        gain = target - present
        if gain <= 0 or (present and gain < share_bytes // GRANT_STEPS):
            return 0
        grant = target - self._open_bytes
        self._set_open(target)
        return grant

    def _hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._budget.take(size_bytes)

    def _set_open(self, size_bytes: int) -> None:
        self._budget.take(max(0, size_bytes) - max(0, self._open_bytes))
        self._open_bytes = size_bytes


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
        topic_id: id of the topic that was read; empty in a mark.
    """

    cursor: Cursor
    generation: int
    body: bytes | bytearray | memoryview
    next_offset: int
    high_watermark: int
    source: object
    topic_id: bytes = b""


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

    def put_first(self, arrivals: Sequence[Arrival]) -> None:
        """Put arrivals of one partition back before all others."""
        self._arrivals.extendleft(reversed(arrivals))

    def take_all_of(self, cursor: Cursor, generation: int) -> list[Arrival]:
        """Remove and return all arrivals of a partition, in order."""
        taken: list[Arrival] = []
        others: deque[Arrival] = deque()
        for each in self._arrivals:
            (taken if each.cursor is cursor and each.generation == generation else others).append(each)
        self._arrivals = others
        return taken

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

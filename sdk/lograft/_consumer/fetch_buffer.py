# SPDX-License-Identifier: Apache-2.0
"""What a consumer has received and not yet handed out, and what it has promised to take.

Owns: the order of what arrived, which of it is still wanted, positions, and credit. Must not decode, check or fetch
anything.

Theory of operation. Every assigned partition has a `Cursor`. Its `position` is the next offset for the application;
seeking raises its `generation`, and what arrives for an older generation is dropped when its turn comes. The shell
fetches ahead of the position.

Credit: a broker may send what it was granted; `CreditLedger` grants again what the application has consumed, in
steps, so that received but unconsumed bytes plus bytes that may still come never exceed the limit (but for a single
larger batch).

Laws: positions of one generation never go back, but for a `Reset`; a chunk is handed out once, in the order of
arrival; bytes of dropped chunks are granted again like those of consumed ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from lograft.errors import LograftError
from lograft.types import TopicPartition

GRANT_STEPS: Final = 4
"""Credit is granted again in steps of the limit divided by this."""


class Cursor:
    """Where the consumer stands in one partition. Written by the collector, and for it by `FetchBuffer.take`.

    Attributes:
        tp: the partition.
        position: next offset for the application.
        generation: raised by every seek.
        high_watermark: end of the readable offsets, exclusive, as last seen; None: never seen.
        error: why nothing comes any more, until the next seek.
    """

    __slots__ = ("error", "generation", "high_watermark", "position", "tp")

    def __init__(self, tp: TopicPartition, position: int) -> None:
        self.tp = tp
        self.position = position
        self.generation = 0
        self.high_watermark: int | None = None
        self.error: LograftError | None = None

    def seek(self, offset: int) -> None:
        """Go on from an offset; what was fetched ahead is dropped."""
        self.generation += 1
        self.position = offset
        self.error = None

    def retire(self) -> None:
        """The partition is no longer assigned: drop what was fetched."""
        self.generation += 1

    def advance(self, next_offset: int) -> None:
        """The application has everything below `next_offset`; positions never go back."""
        self.position = max(self.position, next_offset)


class CreditLedger:
    """Credit of one fetch stream."""

    __slots__ = ("_held_bytes", "_limit_bytes", "_open_bytes", "_step_bytes")

    def __init__(self, limit_bytes: int) -> None:
        assert limit_bytes > 0, f"limit {limit_bytes}"
        self._limit_bytes = limit_bytes
        self._step_bytes = max(1, limit_bytes // GRANT_STEPS)
        # Granted and not yet used by the broker; below zero after a batch larger than the rest.
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
        """A chunk has come."""
        self._open_bytes -= size_bytes
        self._held_bytes += size_bytes

    def consume(self, size_bytes: int) -> None:
        """A chunk was used up or dropped."""
        self._held_bytes -= size_bytes
        assert self._held_bytes >= 0, f"consumed {-self._held_bytes} bytes more than received"

    def take_grant(self) -> int:
        """Return the bytes to grant now; 0: not enough yet for a step."""
        grant = self._limit_bytes - self._held_bytes - self._open_bytes
        if grant < self._step_bytes:
            return 0
        self._open_bytes += grant
        return grant


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Whole batches of one partition as they came from a broker; none at all in a progress mark.

    Attributes:
        cursor: its partition.
        generation: generation of the cursor for which it was fetched.
        body: the batches, one after the other.
        next_offset: offset to read after it.
        high_watermark: end of the readable offsets, exclusive.
        source: what its bytes are given back to; opaque here.
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
    """Nothing more will come for the partition until the next seek."""

    cursor: Cursor
    generation: int
    error: LograftError


Arrival = Chunk | Reset | Failure


class FetchBuffer:
    """What has come, in order."""

    __slots__ = ("_arrivals",)

    def __init__(self) -> None:
        self._arrivals: deque[Arrival] = deque()

    def __bool__(self) -> bool:
        return bool(self._arrivals)

    def put(self, arrival: Arrival) -> None:
        """Add what has just come."""
        self._arrivals.append(arrival)

    def take(self, dropped: list[Chunk]) -> Chunk | None:
        """Remove and return the first chunk that is still wanted; resets and failures before it take effect.

        Args:
            dropped: gets the chunks that nobody wants any more; their bytes are to be given back.

        Returns:
            None when nothing is left, or when a cursor has failed: see its `error`.
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

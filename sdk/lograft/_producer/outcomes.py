# SPDX-License-Identifier: Apache-2.0
"""The outcome of one batch, which the handles of its records ask.

This module owns the results of a batch, whole or in pieces, and the calls that wait for the result of a record. It is pure: it
runs no call itself, and knows no thread.

An outcome is made with its open batch. Handles, the open batch and the sealed batch refer to it. A producer itself forgets the
batch when it is resolved, so an outcome without handles is gone then.

No lock guards an outcome. The thread that resolves batches first stores the result and then takes the waiting calls. A thread
that waits first adds its call and then looks for the result. So at least one of them finds both, and since a list gives each
element away once, exactly one of them runs the call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lograft.errors import LograftError
from lograft.types import BatchReceipt

Call: TypeAlias = Callable[[], None]


class Resolver:
    """The thread that resolves the batches of a producer, by its identifier; None before it runs. The sender writes it."""

    __slots__ = ("thread_id",)

    def __init__(self) -> None:
        self.thread_id: int | None = None


class Waiting:
    """A call that runs once when a record has its result."""

    __slots__ = ("call", "index")

    def __init__(self, index: int, call: Call) -> None:
        self.index: int = index
        self.call: Call = call


class Outcome:
    """The results of one batch. The thread that resolves batches writes it; any thread may read it and wait.

    Attributes:
        topic: topic name.
        partition: partition, from 0.
        marks: the time marks of the batch; see `PartitionBuffer.marks`. The accumulator writes them.
        resolver: the thread that resolves the batch.
    """

    __slots__ = ("_end", "_pieces", "_waiting", "marks", "partition", "resolver", "topic")

    def __init__(self, topic: str, partition: int, marks: Sequence[tuple[int, int]], resolver: Resolver) -> None:
        self.topic: str = topic
        self.partition: int = partition
        self.marks: Sequence[tuple[int, int]] = marks
        self.resolver: Resolver = resolver
        # (first record, result) of each resolved piece, ascending. A batch that was not split is one piece. The tuple is
        # replaced, never changed, so that a reader sees whole pieces.
        self._pieces: tuple[tuple[int, BatchReceipt], ...] = ()
        self._waiting: list[Waiting] = []
        self._end: LograftError | None = None

    def find(self, index: int) -> tuple[int | None, BatchReceipt | LograftError] | None:
        """Return (offset, receipt) of a record, or (None, error) if the producer ended without one; None while neither is known.

        Args:
            index: number of the record in the batch, from 0.
        """
        pieces = self._pieces
        at = bisect_right(pieces, index, key=_first) - 1
        if at >= 0:
            first, receipt = pieces[at]
            if index - first < receipt.record_count:
                return (None if receipt.base_offset is None else receipt.base_offset + index - first), receipt
        return None if self._end is None else (None, self._end)

    def timestamp_ms(self, index: int) -> int:
        """Return the create time of a record that brought none, in milliseconds since 1970-01-01 UTC."""
        timestamp_ms = 0
        for start, mark_ms in self.marks:
            if start > index:
                break
            timestamp_ms = mark_ms
        return timestamp_ms

    def resolve(self, first: int, receipt: BatchReceipt) -> list[Call]:
        """Store the result of a piece, and return the calls that waited for it, in the order in which they came.

        Args:
            first: number of the piece's first record in the batch; 0 for a whole batch.
            receipt: result of the piece.
        """
        at = bisect_right(self._pieces, first, key=_first)
        self._pieces = (*self._pieces[:at], (first, receipt), *self._pieces[at:])
        return self._take(first, first + receipt.record_count)

    def end(self, error: LograftError) -> list[Call]:
        """Give the records without a result an error, because no result will come, and return the calls that waited."""
        self._end = error
        return self._take(0, None)

    def wait(self, index: int, call: Call) -> Waiting | None:
        """Keep a call until the record has its result. Return None if it has one already; the call does not run then."""
        waiting = Waiting(index, call)
        self._waiting.append(waiting)
        if self.find(index) is not None and self.forget(waiting):
            return None
        return waiting

    def forget(self, waiting: Waiting) -> bool:
        """Drop a call. Return False if it was taken, so that it has run or will run."""
        try:
            self._waiting.remove(waiting)
        except ValueError:
            return False
        return True

    def _take(self, start: int, end: int | None) -> list[Call]:
        taken: list[Waiting] = []
        while self._waiting:
            try:
                taken.append(self._waiting.pop())
            except IndexError:
                break  # another thread has just forgotten the last one
        taken.reverse()
        if end is None:
            return [waiting.call for waiting in taken]
        self._waiting += [waiting for waiting in taken if not start <= waiting.index < end]
        return [waiting.call for waiting in taken if start <= waiting.index < end]


def _first(piece: tuple[int, BatchReceipt]) -> int:
    return piece[0]

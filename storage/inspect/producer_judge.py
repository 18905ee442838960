# SPDX-License-Identifier: Apache-2.0
"""Judges producer snapshots: each must agree with a replay of the batch headers before it. Pure.

A snapshot may know less than a replay, because the log forgets idle producers. It may also know batches that are no
longer readable: below the first segment, in damaged ranges, or in fillers, where compaction dropped what no producer
needs. What both know must be equal: the newest visible batches of each producer in the snapshot.
Source: docs/storage_format.md, section on the producer snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from lograft.wire.header import BatchHeader
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

from storage.inspect.formats import SnapshotFile, TransactionsView, WindowBatch, WindowEntry


class _Window:
    """The epoch and the newest batches of one producer."""

    __slots__ = ("batches", "producer_epoch")

    def __init__(self, producer_epoch: int, batches: Iterable[WindowBatch] = ()) -> None:
        self.producer_epoch = producer_epoch
        self.batches = deque(batches, maxlen=DEDUP_WINDOW_BATCHES)


class ProducerReplay:
    """The producer state that the headers of one log give, and the offsets that are not readable.

    Args:
        first_offset: base offset of the first segment, inclusive; earlier batches are unknown.
    """

    def __init__(self, first_offset: int) -> None:
        self._first_offset = first_offset
        self._windows: dict[int, _Window] = {}
        self._opaque_starts: list[int] = []
        self._opaque_ends: list[int] = []

    def batch(self, header: BatchHeader) -> None:
        """Add the header of a complete batch, ascending."""
        if header.is_filler and not header.has_producer:
            self.opaque(header.base_offset, header.next_offset)
        if not header.has_producer or (header.base_sequence < 0 and not header.is_transactional):
            return
        window = self._windows.get(header.producer_id)
        if window is None or window.producer_epoch != header.producer_epoch:
            window = self._windows[header.producer_id] = _Window(header.producer_epoch)
        # The end of a transaction has the coordinator epoch in this field.
        if header.base_sequence >= 0 and not header.is_control:
            window.batches.append(WindowBatch(header.base_sequence, header.base_offset, header.last_offset_delta))

    def opaque(self, base_offset: int, end_offset: int) -> None:
        """Add offsets [base_offset, end_offset) whose batches are not readable, ascending."""
        if self._opaque_ends and self._opaque_ends[-1] == base_offset:
            self._opaque_ends[-1] = end_offset
        else:
            self._opaque_starts.append(base_offset)
            self._opaque_ends.append(end_offset)

    def hides(self, offset: int) -> bool:
        """Tell whether the batch at an offset is not readable: before the first segment, or in an opaque range."""
        slot = bisect_right(self._opaque_starts, offset) - 1
        return offset < self._first_offset or (slot >= 0 and offset < self._opaque_ends[slot])

    def seed(self, entries: Iterable[WindowEntry]) -> None:
        """Continue with the content of a snapshot, which includes everything before it."""
        self._windows = {entry.producer_id: _Window(entry.producer_epoch, entry.batches) for entry in entries}

    def contradiction(self, snapshot: SnapshotFile, offset: int) -> str | None:
        """Return how a snapshot contradicts the headers below `offset`, which the replay has reached; None if it does not."""
        for entry in snapshot.producers:
            fault = self._entry_fault(entry, offset)
            if fault is not None:
                return f"producer {entry.producer_id}: {fault}"
        return _transactions_fault(snapshot.transactions, offset)

    def _entry_fault(self, entry: WindowEntry, offset: int) -> str | None:
        if any(batch.base_offset + batch.last_offset_delta >= offset for batch in entry.batches):
            return f"a batch at offset {entry.batches[-1].base_offset}, which lies beyond the snapshot"
        visible = self._visible(entry.batches)
        window = self._windows.get(entry.producer_id)
        replayed = self._visible(window.batches) if window is not None else []
        if window is not None and window.producer_epoch != entry.producer_epoch:
            if visible or (replayed and not self._opaque_starts):
                return f"epoch {entry.producer_epoch}, its newest batch in the log has {window.producer_epoch}"
            return None
        count = min(len(visible), len(replayed))
        if visible[len(visible) - count :] != replayed[len(replayed) - count :]:
            return f"batches {visible[-count:]}, the log has {replayed[-count:]}"
        if visible and not replayed:
            return f"a batch at offset {visible[-1].base_offset}, where the log has none of it"
        if replayed and not visible and not self._opaque_starts:
            return f"the batch at offset {replayed[-1].base_offset} is missing"
        return None

    def _visible(self, batches: Iterable[WindowBatch]) -> list[WindowBatch]:
        return [batch for batch in batches if not self.hides(batch.base_offset)]


def _transactions_fault(transactions: TransactionsView, offset: int) -> str | None:
    """Return what is impossible about the transactions of a snapshot at `offset`; None if nothing is."""
    if transactions.next_offset > offset:
        return f"a transaction reaches to {transactions.next_offset}, beyond the snapshot"
    for still_open in transactions.still_open:
        if still_open.first_offset >= transactions.next_offset:
            return f"the open transaction of producer {still_open.producer_id} begins behind the newest transactional batch"
    ends = [aborted.last_offset for aborted in transactions.aborted]
    if ends != sorted(set(ends)) or any(end >= transactions.next_offset for end in ends):
        return "the aborted transactions do not ascend, or end behind the newest transactional batch"
    ids = [coordinator.producer_id for coordinator in transactions.coordinators]
    if ids != sorted(set(ids)) or any(coordinator.coordinator_epoch < 0 for coordinator in transactions.coordinators):
        return "the coordinators do not ascend by producer, or one has no epoch"
    return None

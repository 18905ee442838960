# SPDX-License-Identifier: Apache-2.0
"""Which transactions of one log are open, and which were aborted.

A transaction of a producer begins with its first transactional batch. It ends with a control batch of the same
producer: commit, or abort (`ABORT_BIT`). A coordinator writes it, and it carries the coordinator's epoch. Readers of
committed records only stop below the first record of any open transaction (the *last stable offset*), and leave out the
records of aborted ones.

Laws
    A producer has at most one open transaction.
    The epochs of the coordinators that end a producer's transactions never go back, so that a replaced coordinator ends
    nothing.
    Ends come in offset order, so that `last_offset` of the aborted transactions ascends.
    Everything here follows from batch headers alone.
The producer snapshots hold transactions together with the producer state, so no index file of its own can be missing
(ADR 7).
Pure. Source: KIP-98; Kafka, ProducerStateManager and TransactionIndex.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from lograft.wire.header import BatchHeader

from storage.errors import CoordinatorFencedError

_FIELDS = 3


class AbortedTransaction(NamedTuple):
    """An aborted transaction: the records of `producer_id` from `first_offset` to its end marker at `last_offset` (both inclusive)."""

    producer_id: int
    first_offset: int
    last_offset: int


class Transactions:
    """Open and aborted transactions of one log.

    Attributes:
        next_offset: offset after the newest transactional batch; a truncation below it changes the state.
    """

    __slots__ = ("_aborted", "_coordinator_epochs", "_last_offsets", "_open", "next_offset")

    def __init__(self) -> None:
        # Producer id -> first offset of its open transaction.
        self._open: dict[int, int] = {}
        # (producer id, first offset, last offset) of each aborted one, and the last offsets for bisection.
        self._aborted = array("q")
        self._last_offsets = array("q")
        # Producer id -> largest epoch of a coordinator that ended one of its transactions.
        self._coordinator_epochs: dict[int, int] = {}
        self.next_offset = 0

    def note(self, header: BatchHeader, base_offset: int) -> None:
        """Note a transactional batch of the log at `base_offset`."""
        self.next_offset = base_offset + header.last_offset_delta + 1
        if not header.is_control:
            self._open.setdefault(header.producer_id, base_offset)
            return
        self.note_coordinator(header.producer_id, header.coordinator_epoch)
        first_offset = self._open.pop(header.producer_id, None)
        if first_offset is not None and header.is_abort:
            last_offset = base_offset + header.last_offset_delta
            self.restore_aborted(AbortedTransaction(header.producer_id, first_offset, last_offset))

    def note_coordinator(self, producer_id: int, coordinator_epoch: int) -> None:
        """Note the epoch of a coordinator that ended a transaction of a producer; -1 (unknown) changes nothing."""
        if coordinator_epoch > self.coordinator_epoch(producer_id):
            self._coordinator_epochs[producer_id] = coordinator_epoch

    def coordinator_epoch(self, producer_id: int) -> int:
        """Return the largest epoch of a coordinator that ended a transaction of a producer; -1: unknown."""
        return self._coordinator_epochs.get(producer_id, -1)

    def check_coordinator(self, header: BatchHeader) -> None:
        """Judge the end of a transaction before it is appended.

        An end without an epoch counts as older than any with one.

        Raises:
            CoordinatorFencedError: a coordinator with a higher epoch has ended a transaction of this producer.
        """
        known = self.coordinator_epoch(header.producer_id)
        if header.coordinator_epoch < known:
            raise CoordinatorFencedError(
                producer_id=header.producer_id, current_epoch=known, coordinator_epoch=header.coordinator_epoch
            )

    def coordinator_epochs(self) -> list[tuple[int, int]]:
        """Return (producer id, coordinator epoch) of the producers with a known one, ascending by producer id."""
        return sorted(self._coordinator_epochs.items())

    def forget_coordinator(self, producer_id: int) -> None:
        """Forget the coordinator epoch of a producer that the log forgets."""
        self._coordinator_epochs.pop(producer_id, None)

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset of an open transaction, or the high watermark if that is lower (exclusive)."""
        return min(high_watermark, *self._open.values()) if self._open else high_watermark

    def aborted_between(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap `start_offset` (inclusive) to `end_offset` (exclusive)."""
        found: list[AbortedTransaction] = []
        for slot in range(bisect_left(self._last_offsets, start_offset), len(self._last_offsets)):
            aborted = self._aborted_at(slot)
            # They are ordered by their ends, not by their starts, so a later one may reach back.
            if aborted.first_offset < end_offset:
                found.append(aborted)
        return found

    def is_open(self, producer_id: int) -> bool:
        """Tell whether a producer has an open transaction."""
        return producer_id in self._open

    def open_transactions(self) -> Iterator[tuple[int, int]]:
        """Return (producer id, first offset) of the open transactions, ascending by producer id."""
        return iter(sorted(self._open.items()))

    def aborted_transactions(self) -> Iterator[AbortedTransaction]:
        """Return all aborted transactions, ascending by their ends."""
        return map(self._aborted_at, range(len(self._last_offsets)))

    def restore_open(self, producer_id: int, first_offset: int) -> None:
        """Restore an open transaction from a snapshot."""
        self._open[producer_id] = first_offset

    def restore_aborted(self, aborted: AbortedTransaction) -> None:
        """Append an aborted transaction to the list.

        Raises:
            ValueError: it does not end after the last one.
        """
        if self._last_offsets and aborted.last_offset <= self._last_offsets[-1]:
            raise ValueError(f"a transaction ends at {aborted.last_offset}, after one at {self._last_offsets[-1]}")
        self._aborted.extend(aborted)
        self._last_offsets.append(aborted.last_offset)

    def forget_below(self, offset: int) -> int:
        """Forget aborted transactions that end below an offset (the new log start); return their number."""
        count = bisect_left(self._last_offsets, offset)
        del self._last_offsets[:count]
        del self._aborted[: count * _FIELDS]
        return count

    def _aborted_at(self, slot: int) -> AbortedTransaction:
        return AbortedTransaction(*self._aborted[slot * _FIELDS : (slot + 1) * _FIELDS])

# SPDX-License-Identifier: Apache-2.0
"""Producer state: which batches of which producers the log holds.

For each producer id the log knows the epoch, the next sequence and the last 16 batches (Kafka: 5). These rules apply,
in this order:

1. lower epoch than known                                  -> ProducerFencedError
2. known epoch, sequence continues                         -> append
3. known epoch, exactly one of the last 16 batches again   -> duplicate: its original offsets, nothing appended
4. known epoch, anything else (gap, overlap, older resend) -> OutOfOrderSequenceError; a gap is taken if the leader
   says so: the log has lost what lies between
5. higher epoch: must start with sequence 0, else          -> OutOfOrderSequenceError
6. unknown producer: any sequence is accepted, as in Kafka. A producer becomes unknown only when its state was dropped
   (`max_producers`, expiry), and must be able to continue. A new producer counts from 0. If the first batch of a route
   fails, the broker refuses all later ones, so no gap can arise.

A control batch (the end of a transaction) has no sequence. Rule 1 holds for it, and a lower coordinator epoch than
known leads to CoordinatorFencedError. Sequences count records and wrap from 2**31 - 1 to 0.
Pure: the module uses no file (`producer_snapshots` does) and no clock.
Source: KIP-98; KIP-360; Kafka, ProducerAppendInfo.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from lograft.wire.header import BatchHeader
from lograft.wire.limits import DEDUP_WINDOW_BATCHES, PUBLISHING_PRODUCER_ID_MIN

from storage.errors import OutOfOrderSequenceError, ProducerFencedError

from .transactions import Transactions

SEQUENCE_MASK = 2**31 - 1
"""Largest sequence; sequences count modulo this plus one."""

EVICTED_SHARE = 8
"""Above the limit, the log forgets an extra share of the producers (one in this many), so that it seldom looks for the idlest."""

_ENTRY_FIELDS = 3
_WINDOW_FIELDS = DEDUP_WINDOW_BATCHES * _ENTRY_FIELDS


class ProducedBatch(NamedTuple):
    """One batch of a producer: its first sequence, its first offset, and its last offset minus the first."""

    base_sequence: int
    base_offset: int
    last_offset_delta: int

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1


class ProducerState:
    """The state of one producer. The batches are a flat array, because most of many producers are idle."""

    __slots__ = ("_window", "last_append_ms", "producer_epoch")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        # The clock of the log's owner at the newest append. 0: unknown, because it was read back from batches; `expire`
        # then counts from its next check.
        self.last_append_ms = 0
        self._window = array("q")

    @property
    def next_sequence(self) -> int:
        """The sequence that continues this producer's batches; 0 if its epoch has none yet."""
        window = self._window
        return (window[-3] + window[-1] + 1) & SEQUENCE_MASK if window else 0

    @property
    def last_base_offset(self) -> int:
        """Base offset of the producer's newest batch; -1 if it has none. The lowest one counts as idle longest."""
        return self._window[-2] if self._window else -1

    def batches(self) -> list[ProducedBatch]:
        """Return the remembered batches, oldest first."""
        window = self._window
        return [ProducedBatch(*window[at : at + _ENTRY_FIELDS]) for at in range(0, len(window), _ENTRY_FIELDS)]

    def add(self, base_sequence: int, base_offset: int, last_offset_delta: int) -> None:
        """Add the newest batch, and drop the oldest if there are more than 16."""
        window = self._window
        window.extend((base_sequence, base_offset, last_offset_delta))
        if len(window) > _WINDOW_FIELDS:
            del window[:_ENTRY_FIELDS]

    def find(self, base_sequence: int, last_offset_delta: int) -> ProducedBatch | None:
        """Return the newest remembered batch with exactly these sequences."""
        window = self._window
        for at in range(len(window) - _ENTRY_FIELDS, -1, -_ENTRY_FIELDS):
            if window[at] == base_sequence and window[at + 2] == last_offset_delta:
                return ProducedBatch(*window[at : at + _ENTRY_FIELDS])
        return None


class ProducerWindows:
    """The producer state and the transactions of one log."""

    __slots__ = ("_states", "_transactions")

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._transactions: Transactions | None = None

    def __len__(self) -> int:
        return len(self._states)

    @property
    def transactions(self) -> Transactions:
        """The log's transactions, made at first use, because most logs have none."""
        if self._transactions is None:
            self._transactions = Transactions()
        return self._transactions

    @property
    def has_transactions(self) -> bool:
        """True once a transactional batch was noted."""
        return self._transactions is not None

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset (exclusive); see `Transactions.last_stable_offset`."""
        return high_watermark if self._transactions is None else self._transactions.last_stable_offset(high_watermark)

    def forget_aborted_below(self, offset: int) -> None:
        """Forget aborted transactions that end below the log start."""
        if self._transactions is not None:
            self._transactions.forget_below(offset)

    def states(self) -> Iterator[tuple[int, ProducerState]]:
        """Return (producer id, state) of all producers, ascending by id."""
        return iter(sorted(self._states.items()))

    def find(self, producer_id: int) -> ProducerState | None:
        """Return the state of one producer, only for reading; None: the log does not know it."""
        return self._states.get(producer_id)

    def check(self, header: BatchHeader, *, may_skip: bool = False) -> ProducedBatch | None:
        """Judge a batch of a producer before it is appended; change nothing.

        Args:
            header: header of the batch.
            may_skip: True: its sequence may lie ahead of the next one, by less than half of all sequences.

        Returns:
            None if the log must append it; the original if it is a duplicate.

        Raises:
            OutOfOrderSequenceError, ProducerFencedError, CoordinatorFencedError: by the rules of the module.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            return None
        base_sequence = header.base_sequence
        if header.is_control and header.producer_epoch >= state.producer_epoch:
            if self._transactions is not None:
                self._transactions.check_coordinator(header)
            return None
        if header.producer_epoch == state.producer_epoch:
            expected_sequence = state.next_sequence
            if base_sequence == expected_sequence:
                return None
            original = state.find(base_sequence, header.last_offset_delta)
            if original is not None:
                return original
            if may_skip and (base_sequence - expected_sequence) & SEQUENCE_MASK <= SEQUENCE_MASK // 2:
                return None
        elif header.producer_epoch < state.producer_epoch:
            raise ProducerFencedError(
                producer_id=header.producer_id,
                current_epoch=state.producer_epoch,
                producer_epoch=header.producer_epoch,
            )
        elif base_sequence == 0:
            return None
        else:
            expected_sequence = 0
        raise OutOfOrderSequenceError(
            producer_id=header.producer_id, expected_sequence=expected_sequence, base_sequence=base_sequence
        )

    def update(self, header: BatchHeader, base_offset: int, *, now_ms: int = 0) -> None:
        """Note a batch at `base_offset`, appended at `now_ms` or (0) read back from the log.

        Followers and recovery call this without `check`, because the leader decided. Another epoch starts new state.
        The end of a transaction has no sequence; with a higher epoch it fences the older epochs of its producer.
        """
        if header.is_transactional:
            self.transactions.note(header, base_offset)
        elif header.base_sequence < 0:
            return
        state = self._states.get(header.producer_id)
        if state is None or state.producer_epoch != header.producer_epoch:
            state = self._states[header.producer_id] = ProducerState(header.producer_epoch)
        # A batch that was read back does not say when it was appended, and the time in an older snapshot is out of
        # date.
        state.last_append_ms = max(state.last_append_ms, now_ms) if now_ms else 0
        if header.base_sequence >= 0 and not header.is_control:
            state.add(header.base_sequence, base_offset, header.last_offset_delta)

    def restore(self, producer_id: int, state: ProducerState) -> None:
        """Restore a producer from a snapshot."""
        self._states[producer_id] = state

    def has_batch_from(self, offset: int) -> bool:
        """Tell whether a producer has a batch at `offset` or beyond, so that a truncation there changes the state."""
        if self._transactions is not None and self._transactions.next_offset > offset:
            return True
        return any(state.last_base_offset >= offset for state in self._states.values())

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget the producers whose newest batch was appended more than `expiration_ms` ago; return their number.

        The clock is that of the log's owner, not record timestamps, because a producer that loads old records is not
        idle. A producer whose time is unknown counts from now on. A producer in an open transaction stays, and so does
        a publishing producer.
        """
        gone: list[int] = []
        for producer_id, state in self._states.items():
            if state.last_append_ms == 0:
                state.last_append_ms = now_ms
            elif now_ms - state.last_append_ms > expiration_ms and not self._must_stay(producer_id):
                gone.append(producer_id)
        return self._forget(gone)

    def evict_idlest(self, max_producers: int) -> int:
        """Forget the producers that were idle longest if there are more than `max_producers`; return their number."""
        excess = len(self._states) - max_producers
        if excess <= 0:
            return 0
        count = min(len(self._states), excess + max_producers // EVICTED_SHARE)
        by_age = sorted(self._states.items(), key=lambda item: item[1].last_base_offset)
        return self._forget([producer_id for producer_id, _ in by_age if not self._must_stay(producer_id)][:count])

    def _forget(self, producer_ids: list[int]) -> int:
        for producer_id in producer_ids:
            del self._states[producer_id]
            if self._transactions is not None:
                self._transactions.forget_coordinator(producer_id)
        return len(producer_ids)

    def _must_stay(self, producer_id: int) -> bool:
        """Tell whether a producer must stay.

        Otherwise one of its older epochs could write into its open transaction, or what an ingest published before
        could be published again.
        """
        return producer_id >= PUBLISHING_PRODUCER_ID_MIN or self._is_in_transaction(producer_id)

    def _is_in_transaction(self, producer_id: int) -> bool:
        return self._transactions is not None and self._transactions.is_open(producer_id)

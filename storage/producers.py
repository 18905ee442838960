# SPDX-License-Identifier: Apache-2.0
"""The idempotence window: which batches of which producers the log holds.

For each producer id the log knows the epoch, the next sequence and the last 16 batches (Kafka: 5). Rules, in this
order:

1. lower epoch than known                                  -> ProducerFencedError
2. known epoch, sequence continues                         -> append
3. known epoch, exactly one of the last 16 batches again   -> duplicate: its original offsets, nothing appended
4. known epoch, anything else (gap, overlap, older resend) -> OutOfOrderSequenceError
5. higher epoch: must start with sequence 0, else          -> OutOfOrderSequenceError
6. unknown producer: any sequence is taken, as Kafka does. A producer becomes unknown only when its state was dropped
   (`max_producers`, later expiry), and must be able to go on; a producer that starts counts from 0 anyway, and a broker
   refuses every later batch of a route whose first one failed, so that no gap can slip in there.

Sequences count records and wrap from 2**31 - 1 to 0. Pure: knows no file (`producer_snapshots` does) and no clock.
Source: KIP-98; KIP-360; Kafka, ProducerAppendInfo.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from lograft.wire.header import BatchHeader
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

from .errors import OutOfOrderSequenceError, ProducerFencedError

SEQUENCE_MASK = 2**31 - 1
"""Sequences are taken modulo this plus one."""

EVICTED_SHARE = 8
"""When there are too many producers, one in so many is forgotten at once, so that the search for the idlest is rare."""

_ENTRY_FIELDS = 3
_WINDOW_FIELDS = DEDUP_WINDOW_BATCHES * _ENTRY_FIELDS


class ProducedBatch(NamedTuple):
    """One batch of a producer: its first sequence, its first offset, and the last offset minus the first."""

    base_sequence: int
    base_offset: int
    last_offset_delta: int

    @property
    def next_offset(self) -> int:
        """Offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1


class ProducerState:
    """One producer. The window is a flat array, because there may be many producers and few of them are active."""

    __slots__ = ("_window", "max_timestamp_ms", "producer_epoch")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.max_timestamp_ms = 0
        self._window = array("q")

    @property
    def next_sequence(self) -> int:
        """The sequence that continues this producer's batches; needs a batch in the window."""
        window = self._window
        return (window[-3] + window[-1] + 1) & SEQUENCE_MASK

    @property
    def last_base_offset(self) -> int:
        """Base offset of the producer's newest batch: the measure of how long it has been idle."""
        return self._window[-2]

    def batches(self) -> list[ProducedBatch]:
        """Return the batches of the window, oldest first."""
        window = self._window
        return [ProducedBatch(*window[at : at + _ENTRY_FIELDS]) for at in range(0, len(window), _ENTRY_FIELDS)]

    def add(self, base_sequence: int, base_offset: int, last_offset_delta: int) -> None:
        """Add the newest batch; the oldest leaves the window when it is full."""
        window = self._window
        window.extend((base_sequence, base_offset, last_offset_delta))
        if len(window) > _WINDOW_FIELDS:
            del window[:_ENTRY_FIELDS]

    def find(self, base_sequence: int, last_offset_delta: int) -> ProducedBatch | None:
        """Return the batch of the window with exactly these sequences, newest first."""
        window = self._window
        for at in range(len(window) - _ENTRY_FIELDS, -1, -_ENTRY_FIELDS):
            if window[at] == base_sequence and window[at + 2] == last_offset_delta:
                return ProducedBatch(*window[at : at + _ENTRY_FIELDS])
        return None


class ProducerWindows:
    """All producers of one log."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def states(self) -> Iterator[tuple[int, ProducerState]]:
        """Return (producer id, state) of all producers in the order of their ids."""
        return iter(sorted(self._states.items()))

    def check(self, header: BatchHeader) -> ProducedBatch | None:
        """Judge a batch of a producer before it is appended; changes nothing.

        Returns:
            None if it is to be appended; the original if it is a duplicate.

        Raises:
            OutOfOrderSequenceError, ProducerFencedError: see the rules of the module.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            return None
        base_sequence = header.base_sequence
        if header.producer_epoch == state.producer_epoch:
            expected_sequence = state.next_sequence
            if base_sequence == expected_sequence:
                return None
            original = state.find(base_sequence, header.last_offset_delta)
            if original is not None:
                return original
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

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """Note a batch that was appended at `base_offset`, or that stands in the log.

        Followers and recovery come here without `check`: the leader decided. Another epoch starts a new window. Batches
        without a sequence (control batches) are passed over.
        """
        if header.base_sequence < 0:
            return
        state = self._states.get(header.producer_id)
        if state is None or state.producer_epoch != header.producer_epoch:
            state = self._states[header.producer_id] = ProducerState(header.producer_epoch)
        state.add(header.base_sequence, base_offset, header.last_offset_delta)
        state.max_timestamp_ms = max(state.max_timestamp_ms, header.max_timestamp_ms)

    def restore(self, producer_id: int, state: ProducerState) -> None:
        """Put a producer back that was read from a snapshot."""
        self._states[producer_id] = state

    def has_batch_from(self, offset: int) -> bool:
        """Tell whether a producer has a batch at `offset` or beyond: then a truncation there changes this state."""
        return any(state.last_base_offset >= offset for state in self._states.values())

    def evict_idlest(self, max_producers: int) -> int:
        """Forget producers idle longest while there are more than `max_producers`; return how many went."""
        excess = len(self._states) - max_producers
        if excess <= 0:
            return 0
        count = min(len(self._states), excess + max_producers // EVICTED_SHARE)
        by_age = sorted(self._states.items(), key=lambda item: item[1].last_base_offset)
        for producer_id, _ in by_age[:count]:
            del self._states[producer_id]
        return count

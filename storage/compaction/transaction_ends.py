# SPDX-License-Identifier: Apache-2.0
"""Decides on the control batches that end transactions. Pure.

Rules
    The end of a transaction stays as long as a record of the transaction does; without it that record would belong to
    an open transaction.
    The first pass that leaves no record (of an aborted transaction: the first pass) writes the delete horizon into the
    end. A pass at or after the horizon removes it. A reader or replica that has seen records of the transaction has
    that long to see how it ended.
    Where an older record may be left, the pass sets no horizon and removes no end.
    The newest end of each producer that the log still knows stays whatever its age. It remembers the epochs of the
    producer and of its coordinator, as a filler remembers sequences.

Design
    `note_end` sees all batches of the mapped part (and, if a horizon has passed, all below it) before `decide` judges
    any. If a newer end is unknown, an older one only stays longer. `note_left` and `decide` see the log from its start,
    in offset order.

Source: docs/storage.md section 6; Kafka, CleanedTransactionMetadata and LogCleanerTest.testCommitMarkerRemoval.
"""

from __future__ import annotations

from typing import NamedTuple

from lograft.wire.header import BatchHeader
from lograft.wire.limits import MAX_TIMESTAMP_MS

from .survivors import TombstoneRule


class EndDecision(NamedTuple):
    """The decision on the end of a transaction.

    Attributes:
        stays: False: the pass removes it, and its offset becomes a gap.
        delete_horizon_ms: its horizon, old or new; None: none.
        due_ms: time from which a pass may remove it; None: its age does not decide.
    """

    stays: bool
    delete_horizon_ms: int | None
    due_ms: int | None


class TransactionEnds:
    """The ends of transactions in one pass.

    Args:
        known_producers: ids of the producers that the log knows.
    """

    __slots__ = ("_known_producers", "_left", "_newest")

    def __init__(self, known_producers: frozenset[int]) -> None:
        self._known_producers = known_producers
        # Producers with a remaining record of their current transaction.
        self._left: set[int] = set()
        # Producer id -> base offset of its newest known end.
        self._newest: dict[int, int] = {}

    def note_end(self, header: BatchHeader) -> None:
        """Note any batch; only the ends of transactions of known producers count."""
        if is_end(header) and header.producer_id in self._known_producers:
            self._newest[header.producer_id] = max(header.base_offset, self._newest.get(header.producer_id, -1))

    def note_left(self, header: BatchHeader) -> None:
        """Note a batch of which at least one record stays."""
        if header.is_transactional:
            self._left.add(header.producer_id)

    def decide(self, header: BatchHeader, rule: TombstoneRule) -> EndDecision:
        """Decide on the end of a transaction."""
        producer_id, horizon_ms = header.producer_id, header.delete_horizon_ms
        if producer_id in self._left:
            self._left.discard(producer_id)
            return EndDecision(True, horizon_ms, None)
        if header.next_offset > rule.end_offset:
            return EndDecision(True, horizon_ms, None)
        if horizon_ms is None:
            horizon_ms = min(rule.now_ms + rule.retention_ms, MAX_TIMESTAMP_MS)
            return EndDecision(True, horizon_ms, horizon_ms)
        if rule.now_ms < horizon_ms:
            return EndDecision(True, horizon_ms, horizon_ms)
        is_memory = producer_id in self._known_producers and self._newest.get(producer_id, -1) <= header.base_offset
        return EndDecision(True, horizon_ms, None) if is_memory else EndDecision(False, None, None)


def is_end(header: BatchHeader) -> bool:
    """Tell whether a batch is the end of a transaction."""
    return header.is_control and header.is_transactional

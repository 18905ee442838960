# SPDX-License-Identifier: Apache-2.0
"""What becomes of the control batches that end transactions. Pure.

Rules
    The end of a transaction stays as long as a record of it does: without it that record would be of an open transaction.
    The first pass that leaves none (of an aborted one: the first pass at all) writes the delete horizon into it, and a pass at or
    after the horizon removes it, so that a reader or a replica that saw records of it has so much time to see how it ended.
    Where something older may have been left no horizon is given, and no end goes.
    The newest end of each producer that the log still knows stays whatever its age is: it is the memory of the producer's epoch
    and of its coordinator's, as a filler is of its sequences.

Theory
    `note_end` sees all batches of the part whose keys are mapped (and, if a horizon has passed, all below), before `decide`
    judges any; so a newer end that is not known only keeps an older one longer. `note_left` and `decide` see the log from its
    start, in the order of offsets.

Source: docs/storage.md section 6; Kafka, CleanedTransactionMetadata and LogCleanerTest.testCommitMarkerRemoval.
"""

from __future__ import annotations

from typing import NamedTuple

from lograft.wire.header import BatchHeader
from lograft.wire.limits import MAX_TIMESTAMP_MS

from .survivors import TombstoneRule


class EndFate(NamedTuple):
    """What becomes of the end of a transaction.

    Attributes:
        stays: False: it goes, and its offset becomes a gap.
        delete_horizon_ms: the horizon that it has, or gets; None: none.
        due_ms: when a pass may remove it; None: not because of its age.
    """

    stays: bool
    delete_horizon_ms: int | None
    due_ms: int | None


class TransactionEnds:
    """The ends of transactions during one pass.

    Args:
        known_producers: ids of the producers that the log knows.
    """

    __slots__ = ("_known_producers", "_left", "_newest")

    def __init__(self, known_producers: frozenset[int]) -> None:
        self._known_producers = known_producers
        # Producers with records left of the transaction that the pass is in.
        self._left: set[int] = set()
        # Producer -> base offset of its newest end that was noted.
        self._newest: dict[int, int] = {}

    def note_end(self, header: BatchHeader) -> None:
        """Note any batch: only ends of transactions of known producers matter."""
        if is_end(header) and header.producer_id in self._known_producers:
            self._newest[header.producer_id] = max(header.base_offset, self._newest.get(header.producer_id, -1))

    def note_left(self, header: BatchHeader) -> None:
        """Note a batch with records, of which at least one stays."""
        if header.is_transactional:
            self._left.add(header.producer_id)

    def decide(self, header: BatchHeader, rule: TombstoneRule) -> EndFate:
        """Decide about the end of a transaction."""
        producer_id, horizon_ms = header.producer_id, header.delete_horizon_ms
        if producer_id in self._left:
            self._left.discard(producer_id)
            return EndFate(True, horizon_ms, None)
        if header.next_offset > rule.end_offset:
            return EndFate(True, horizon_ms, None)
        if horizon_ms is None:
            horizon_ms = min(rule.now_ms + rule.retention_ms, MAX_TIMESTAMP_MS)
            return EndFate(True, horizon_ms, horizon_ms)
        if rule.now_ms < horizon_ms:
            return EndFate(True, horizon_ms, horizon_ms)
        is_memory = producer_id in self._known_producers and self._newest.get(producer_id, -1) <= header.base_offset
        return EndFate(True, horizon_ms, None) if is_memory else EndFate(False, None, None)


def is_end(header: BatchHeader) -> bool:
    """Tell whether a batch is the end of a transaction."""
    return header.is_control and header.is_transactional

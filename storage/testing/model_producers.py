# SPDX-License-Identifier: Apache-2.0
"""Derives producer state and transactions from batch headers, by its own rules.

Laws
    A log may know less than everything that was ever appended: an opening or a truncation need not remember batches
    that were removed or lost their records. Compaction removes a batch that a newer one has displaced from the producer
    state; if the newer one is truncated, the state ends before both. The log must know every batch in the log with
    sequence numbers, and nothing that never existed.

Pure. Source: docs/storage.md section 3; KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lograft.wire.header import BatchHeader
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

_NEVER = 2**63
"""Above every offset."""

SEQUENCE_COUNT = 2**31
"""Sequences count modulo this."""


@dataclass(slots=True, kw_only=True)
class ModelWindow:
    """The state of one producer: its newest batches, oldest first."""

    producer_epoch: int
    batches: list[BatchHeader]

    @property
    def next_sequence(self) -> int:
        """The sequence that continues it; 0 if its epoch has none yet."""
        if not self.batches:
            return 0
        last = self.batches[-1]
        return (last.base_sequence + last.last_offset_delta + 1) % SEQUENCE_COUNT

    def copy(self) -> ModelWindow:
        """Return a copy."""
        return ModelWindow(producer_epoch=self.producer_epoch, batches=list(self.batches))


def is_end(header: BatchHeader) -> bool:
    """Tell whether a batch is the end of a transaction."""
    return header.is_control and header.is_transactional


def has_sequence(header: BatchHeader) -> bool:
    """Tell whether a batch belongs into the state of its producer."""
    return header.producer_id >= 0 and header.base_sequence >= 0 and not header.is_control


def note_producer(windows: dict[int, ModelWindow], header: BatchHeader) -> None:
    """Note one more batch; a batch or end with another producer epoch starts new state."""
    if not has_sequence(header) and not is_end(header):
        return
    window = windows.get(header.producer_id)
    if window is None or window.producer_epoch != header.producer_epoch:
        window = windows[header.producer_id] = ModelWindow(producer_epoch=header.producer_epoch, batches=[])
    if has_sequence(header):
        window.batches.append(header)
        del window.batches[:-DEDUP_WINDOW_BATCHES]


def windows_of(headers: Iterable[BatchHeader]) -> dict[int, ModelWindow]:
    """Return the state of all producers after some batches."""
    windows: dict[int, ModelWindow] = {}
    for header in headers:
        note_producer(windows, header)
    return windows


class Aborted(NamedTuple):
    """An aborted transaction; both offsets inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int

    def holds(self, header: BatchHeader) -> bool:
        """Tell whether a batch belongs to it."""
        return (
            header.is_transactional
            and not header.is_control
            and header.producer_id == self.producer_id
            and self.first_offset <= header.base_offset <= self.last_offset
        )


@dataclass(slots=True, kw_only=True)
class ModelTransactions:
    """Transactions after some batches.

    Attributes:
        open: producer id -> first offset.
        aborted: the aborted ones, in the order of their ends.
    """

    open: dict[int, int] = field(default_factory=dict[int, int])
    aborted: list[Aborted] = field(default_factory=list[Aborted])

    def is_aborted(self, header: BatchHeader) -> bool:
        """Tell whether a batch belongs to an aborted transaction."""
        return any(each.holds(header) for each in self.aborted)


def transactions_of(headers: Iterable[BatchHeader]) -> ModelTransactions:
    """Return the transactions after some batches."""
    found = ModelTransactions()
    for header in headers:
        if not header.is_transactional:
            continue
        if not header.is_control:
            found.open.setdefault(header.producer_id, header.base_offset)
            continue
        first_offset = found.open.pop(header.producer_id, None)
        if first_offset is not None and header.is_abort:
            found.aborted.append(Aborted(header.producer_id, first_offset, header.last_offset))
    return found


class SeenWindow(NamedTuple):
    """What a log knows of a producer: epoch, and (first sequence, first offset, last offset - first) of each batch."""

    producer_epoch: int
    batches: Sequence[tuple[int, int, int]]


def judge_windows(
    seen: Mapping[int, SeenWindow],
    *,
    history: Iterable[BatchHeader],
    standing: Iterable[BatchHeader],
    forgotten_at: Mapping[int, int],
) -> dict[int, ModelWindow]:
    """Check the producer state of a log after its opening, or after a truncation; return it.

    Args:
        seen: the producer state.
        history: all batches of the log as they were appended, including removed ones.
        standing: the batches in the log.
        forgotten_at: producer id -> log end when it was forgotten; earlier batches need not be known.

    Raises:
        AssertionError: the log does not know one of its batches, or knows one that never existed.
    """
    headers = list(history)
    whole = windows_of(headers)
    ever = {(each.producer_id, each.base_sequence, each.base_offset): each for each in headers if has_sequence(each)}
    required: dict[int, list[int]] = {}
    for header in standing:
        is_evidence = has_sequence(header) or is_end(header)
        if is_evidence and header.base_offset >= forgotten_at.get(header.producer_id, 0):
            required.setdefault(header.producer_id, []).append(header.base_offset)
    # The epoch of the newest batch in the log, or of a later one that was removed.
    epochs: dict[int, set[int]] = {producer_id: set() for producer_id in required}
    for header in headers:
        if (has_sequence(header) or is_end(header)) and header.base_offset >= max(
            required.get(header.producer_id, [_NEVER])
        ):
            epochs[header.producer_id].add(header.producer_epoch)
    missing = required.keys() - seen.keys()
    assert not missing, f"producers {sorted(missing)} are forgotten, their batches stand at {required}"
    found: dict[int, ModelWindow] = {}
    for producer_id, (epoch, batches) in seen.items():
        known = [ever.get((producer_id, sequence, offset)) for sequence, offset, _ in batches]
        window = ModelWindow(producer_epoch=epoch, batches=[each for each in known if each is not None])
        assert len(window.batches) == len(batches), f"producer {producer_id} knows batches that never were: {batches}"
        deltas = [each.last_offset_delta for each in window.batches]
        assert deltas == [delta for _, _, delta in batches], f"producer {producer_id} knows other batches: {batches}"
        offsets = [each.base_offset for each in window.batches]
        assert offsets == sorted(set(offsets)), f"producer {producer_id} knows batches in a wrong order: {batches}"
        full = whole[producer_id]
        wanted = {each.base_offset for each in full.batches} & set(required.get(producer_id, ()))
        assert wanted <= set(offsets), f"producer {producer_id} forgot {sorted(wanted - set(offsets))}"
        legal = epochs.get(producer_id, {epoch})
        assert epoch in legal, f"producer {producer_id} has epoch {epoch}, not one of {sorted(legal)}"
        found[producer_id] = window
    return found

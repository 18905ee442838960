# SPDX-License-Identifier: Apache-2.0
"""What batch headers say of producers, told by rules of its own: idempotence windows, open and aborted transactions.

Laws
    A log may know less than all that was ever appended: batches that were removed, or lost their records, need not be remembered
    by an opening. What stands in it with its sequence numbers must be known, and nothing may be known that was never there.

Pure. Source: docs/storage.md section 3; KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lograft.wire.header import BatchHeader
from lograft.wire.limits import DEDUP_WINDOW_BATCHES

SEQUENCE_COUNT = 2**31
"""Sequences are taken modulo this."""


@dataclass(slots=True, kw_only=True)
class ModelWindow:
    """The idempotence window of one producer: its newest batches, oldest first."""

    producer_epoch: int
    batches: list[BatchHeader]

    @property
    def next_sequence(self) -> int:
        """The sequence that continues it; 0 where its epoch has none yet."""
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
    """Tell whether a batch takes a place in the window of its producer."""
    return header.producer_id >= 0 and header.base_sequence >= 0 and not header.is_control


def note_producer(windows: dict[int, ModelWindow], header: BatchHeader) -> None:
    """Take up one more batch; another producer epoch begins a window anew, and so does an end with another one."""
    if not has_sequence(header) and not is_end(header):
        return
    window = windows.get(header.producer_id)
    if window is None or window.producer_epoch != header.producer_epoch:
        window = windows[header.producer_id] = ModelWindow(producer_epoch=header.producer_epoch, batches=[])
    if has_sequence(header):
        window.batches.append(header)
        del window.batches[:-DEDUP_WINDOW_BATCHES]


def windows_of(headers: Iterable[BatchHeader]) -> dict[int, ModelWindow]:
    """Return the windows of all producers after some batches."""
    windows: dict[int, ModelWindow] = {}
    for header in headers:
        note_producer(windows, header)
    return windows


class Aborted(NamedTuple):
    """A transaction without effect; both offsets inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int

    def holds(self, header: BatchHeader) -> bool:
        """Tell whether a batch is a part of it."""
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
        aborted: those without effect, in the order of their ends.
    """

    open: dict[int, int] = field(default_factory=dict[int, int])
    aborted: list[Aborted] = field(default_factory=list[Aborted])

    def is_aborted(self, header: BatchHeader) -> bool:
        """Tell whether the records of a batch ended without effect."""
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
    """What a log knows of a producer: its epoch, and (first sequence, first offset, last offset - first) of each batch."""

    producer_epoch: int
    batches: Sequence[tuple[int, int, int]]


def judge_windows(
    seen: Mapping[int, SeenWindow],
    *,
    history: Iterable[BatchHeader],
    standing: Iterable[BatchHeader],
    forgotten_at: Mapping[int, int],
) -> dict[int, ModelWindow]:
    """Check what a log knows after its opening, or after a truncation; return it.

    Args:
        seen: what it knows.
        history: all batches of the log as they were appended, the removed ones too.
        standing: the batches in the log.
        forgotten_at: producer id -> log end when it was forgotten; nothing below need be known.

    Raises:
        AssertionError: a batch that stands there is not known, or one that never was is.
    """
    headers = list(history)
    whole = windows_of(headers)
    ever = {(each.producer_id, each.base_sequence, each.base_offset): each for each in headers if has_sequence(each)}
    required: dict[int, list[int]] = {}
    for header in standing:
        is_evidence = has_sequence(header) or is_end(header)
        if is_evidence and header.base_offset >= forgotten_at.get(header.producer_id, 0):
            required.setdefault(header.producer_id, []).append(header.base_offset)
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
        if producer_id in required:
            assert epoch == full.producer_epoch, f"producer {producer_id} has epoch {epoch}, not {full.producer_epoch}"
        found[producer_id] = window
    return found

# SPDX-License-Identifier: Apache-2.0
"""Judges what the CRC of a batch cannot cover: its leader epoch, and whether its content obeys the rules of batches.

Below the recovery point the checkpoint of leader epochs is complete and trusted. Elsewhere, and without it, epochs must
not go back. Neighbouring batches with a wrong epoch form one finding.
Source: docs/storage_format.md, sections 2.1 and "Text checkpoints".
"""

from __future__ import annotations

from typing import NamedTuple

from lograft.wire.checker import check_offsets, check_timestamps, open_payload
from lograft.wire.checksum import BytesLike
from lograft.wire.errors import BatchError
from lograft.wire.filler import filler_fault
from lograft.wire.header import BatchHeader
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

from storage.inspect.findings import LogReport, Severity
from storage.log.epochs import LeaderEpochs, epoch_fits
from storage.types import Boundary

KNOWN_ATTRIBUTES = 0xFF
"""Attribute bits with a meaning; the others are zero."""


class _Seen(NamedTuple):
    """One batch: its file, its place, and its leader epoch."""

    name: str
    start: Boundary
    end: Boundary
    leader_epoch: int


class EpochJudge:
    """Judges the leader epochs of one log: `batch` for each batch, ascending, then `finish`."""

    def __init__(self, epochs: LeaderEpochs | None, *, believed_below: int, report: LogReport) -> None:
        self._epochs = epochs
        self._believed_below = believed_below
        self._report = report
        self._previous: _Seen | None = None
        self._floor_epoch = -1
        self._run: list[_Seen] = []

    def batch(self, name: str, position: int, header: BatchHeader) -> bool:
        """Add a complete batch; tell whether its epoch agrees with the epochs so far."""
        seen = _Seen(
            name,
            Boundary(header.base_offset, position),
            Boundary(header.next_offset, position + header.size_bytes),
            header.leader_epoch,
        )
        epochs = self._epochs
        if epochs is not None and header.base_offset < self._believed_below:
            fits = epoch_fits(epochs, header)
            if not fits:
                self._blame(seen)
                return False
        elif self._previous is not None and header.leader_epoch < self._previous.leader_epoch:
            if header.leader_epoch < self._floor_epoch:
                self._blame(seen)
                return False
            # The previous batch is above both neighbours, so its epoch is the wrong one.
            self._blame(self._previous)
            self._previous = seen
            return False
        if self._previous is None or header.leader_epoch > self._previous.leader_epoch:
            self._floor_epoch = self._previous.leader_epoch if self._previous is not None else -1
        else:
            self._floor_epoch = header.leader_epoch
        self._previous = seen
        return True

    def _blame(self, seen: _Seen) -> None:
        if self._run and (self._run[-1].name, self._run[-1].end) != (seen.name, seen.start):
            self.finish()
        self._run = [self._run[0] if self._run else seen, seen]

    def finish(self) -> None:
        """Report the finding that is still open."""
        if not self._run:
            return
        first, last = self._run
        self._run = []
        expected = self._epochs.epoch_at(first.start.offset) if self._epochs is not None else None
        against = "their neighbours" if expected is None else f"the checkpoint, which says {expected}"
        self._report.add(
            Severity.LAW,
            first.name,
            f"leader epoch {first.leader_epoch} contradicts {against}",
            start=first.start,
            end=last.end,
        )


def judge_content(name: str, position: int, header: BatchHeader, batch: BytesLike, report: LogReport) -> None:
    """Check a batch whose CRC matches: attributes, counts, producer, payload, offsets, timestamps."""
    fault = _header_fault(header)
    if fault is None and not header.is_filler:
        try:
            payload = open_payload(batch, header)
            check_offsets(header, payload.offset_deltas)
            check_timestamps(header, payload.timestamp_deltas_ms)
        except BatchError as error:
            fault = str(error)
    if fault is not None:
        report.add(
            Severity.LAW,
            name,
            f"the batch breaks a rule although its CRC matches: {fault}",
            start=Boundary(header.base_offset, position),
            end=Boundary(header.next_offset, position + header.size_bytes),
        )


def _header_fault(header: BatchHeader) -> str | None:
    """Return what no valid batch has in its header, or None; the format page defines the attribute bits."""
    if header.attributes & ~KNOWN_ATTRIBUTES:
        return f"attributes {header.attributes & 0xFFFF:#06x}"
    if header.is_filler:
        return filler_fault(header)
    if header.record_count > min(MAX_RECORDS_PER_BATCH, header.last_offset_delta + 1) or header.record_count < 0:
        return f"{header.record_count} records in {header.last_offset_delta + 1} offsets"
    identity = (header.producer_id, header.producer_epoch)
    # The end of a transaction names its producer but has no sequence.
    needs_sequence = header.producer_id >= 0 and not header.is_control
    if min(identity) < 0 and (*identity, header.base_sequence) != (-1, -1, -1):
        return f"producer {header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence}"
    return f"producer {header.producer_id} without a sequence" if needs_sequence and header.base_sequence < 0 else None

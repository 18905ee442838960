# SPDX-License-Identifier: Apache-2.0
"""Prefixes of the log of a coordinator: pieces and their gaps, the newest record of each key, which snapshot may be used and when.

Pure. Knows offsets and keys, and neither files nor batches.

Law: offsets are contiguous, so a record that compaction removed shows as a gap. Above a snapshot a gap may be a tombstone whose key the
snapshot still has. So a snapshot counts only while the log from its end on has no gap. Without a snapshot gaps are harmless: a
tombstone outlives every older record of its key.
Source: `docs/coordinator.md` section "Snapshots"; KIP-534 for the life of a tombstone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from brokerd.coordinator.core import Record
from brokerd.coordinator.limits import RECORD_OVERHEAD_BYTES, SNAPSHOT_LOG_BYTES


class SnapshotId(NamedTuple):
    """A snapshot: the end (exclusive) of the prefix that it stands for, and the leader epoch of the offset before the end."""

    end_offset: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A stretch of the log: what one batch covers.

    Attributes:
        base_offset: first offset that it covers (inclusive).
        next_offset: end of what it covers (exclusive).
        offsets: offsets of its records, ascending.
        records: the records, parallel to `offsets`.
    """

    base_offset: int
    next_offset: int
    offsets: Sequence[int]
    records: Sequence[Record]

    def count_below(self, offset: int) -> int:
        """Return the number of records below an offset (exclusive)."""
        return sum(1 for each in self.offsets if each < offset) if self.base_offset < offset else 0

    def is_whole_from(self, offset: int) -> bool:
        """Tell whether the piece has a record at every offset that it covers from `offset` (inclusive) on."""
        begin = max(offset, self.base_offset)
        return begin <= offset and len(self.records) - self.count_below(offset) == self.next_offset - begin


def why_unusable(
    snapshot: SnapshotId, *, log_start_offset: int, log_end_offset: int, epoch_before_end: int | None
) -> str | None:
    """Return why a snapshot does not belong to a log, or None if it does.

    Args:
        snapshot: the snapshot.
        log_start_offset: start of the log (inclusive).
        log_end_offset: end of the log, or of what is committed (exclusive).
        epoch_before_end: leader epoch that the log has at the last offset below the end of the snapshot; None: it does not know.
    """
    if snapshot.end_offset > log_end_offset:
        return f"it ends at {snapshot.end_offset}, above the log, which ends at {log_end_offset}: the log was truncated"
    if snapshot.end_offset < log_start_offset:
        return f"it ends at {snapshot.end_offset}, below the log, which begins at {log_start_offset}"
    # By log matching, one offset and epoch belong to one history.
    if snapshot.last_epoch != epoch_before_end:
        return (
            f"its last record has leader epoch {snapshot.last_epoch}, the log has {epoch_before_end} there: "
            "the log was truncated"
        )
    return None


def is_snapshot_due(
    *,
    snapshot_end_offset: int,
    snapshot_bytes: int,
    high_watermark: int,
    log_bytes_above: int,
    active_base_offset: int,
) -> bool:
    """Tell whether the next snapshot of a log is due.

    Args:
        snapshot_end_offset: end of the last one (exclusive); the log start without one.
        snapshot_bytes: its size; 0 without one.
        high_watermark: end of what is committed (exclusive).
        log_bytes_above: bytes of log from the end of the last one on, about.
        active_base_offset: first offset of the active segment. The cleaner removes records of sealed segments only.
    """
    if high_watermark <= snapshot_end_offset:
        return False
    is_much = log_bytes_above >= max(SNAPSHOT_LOG_BYTES, snapshot_bytes // 2)
    return is_much or snapshot_end_offset < active_base_offset <= high_watermark


class PrefixFold:
    """The newest record of each key in a stretch of the log, in the order of their offsets; only `add` writes it.

    Args:
        start_offset: where the stretch begins (inclusive): the end of the snapshot below it, or the log start.
        may_have_gaps: True if nothing older than this reading of the log is below the stretch.

    Attributes:
        next_offset: end of the stretch (exclusive).
        size_bytes: bytes of keys and values that it holds, with an overhead for each record.
    """

    def __init__(self, start_offset: int, *, may_have_gaps: bool) -> None:
        self.next_offset = start_offset
        self.size_bytes = 0
        self._may_have_gaps = may_have_gaps
        self._newest: dict[bytes, bytes | None] = {}

    def add(self, piece: LogPiece) -> bool:
        """Add the next piece; return False, and add nothing, if a gap makes what is below the stretch unusable."""
        if piece.next_offset <= self.next_offset:
            return True
        if not self._may_have_gaps and not piece.is_whole_from(self.next_offset):
            return False
        newest = self._newest
        for key, value in piece.records[piece.count_below(self.next_offset) :]:
            if key in newest:
                self.size_bytes -= _size_bytes(key, newest.pop(key))
            newest[key] = value
            self.size_bytes += _size_bytes(key, value)
        self.next_offset = piece.next_offset
        return True

    def over(self, older: Iterable[Record]) -> Iterator[Record]:
        """Yield the newest record of each key, without tombstones, ascending by offset.

        Args:
            older: records of a snapshot below the stretch.
        """
        newest = self._newest
        yield from (record for record in older if record.key not in newest)
        yield from (Record(key, value) for key, value in newest.items() if value is not None)


def _size_bytes(key: bytes, value: bytes | None) -> int:
    return len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES

# SPDX-License-Identifier: Apache-2.0
"""In-memory view of the metadata log: its end, its flushed part, and the start of each epoch.

Owns these numbers; the records themselves stay in the shell. The core keeps the view and the log in step: every change here is also
an effect of the same step.
Laws: log_start_offset <= flushed_offset <= log_end_offset. Epochs and their start offsets both ascend strictly. A log that begins
above 0 knows the epoch of the record before its start, from the id of the snapshot that stands for it. A flush that was under way
during a truncation proves nothing about later appends: each flush has an id, and a truncation forgets the one under way.
Source: KIP-101 and KIP-279 (leader epoch cache), KIP-595.
"""

from __future__ import annotations

from collections.abc import Sequence

from metaquorum.raft.types import LOG_BEGIN, NO_EPOCH, EpochEnd, LogPosition, Offset, QuorumEpoch, SnapshotId


class LogView:
    """View of one log. All offsets are ends (exclusive) unless named start or base."""

    __slots__ = (
        "_epochs",
        "_flush_end_offset",
        "_flush_id",
        "flushed_offset",
        "log_end_offset",
        "log_start_offset",
        "start_epoch",
    )

    def __init__(
        self,
        *,
        epochs: Sequence[tuple[QuorumEpoch, Offset]] = (),
        log_end_offset: Offset = LOG_BEGIN,
        flushed_offset: Offset = LOG_BEGIN,
        start: SnapshotId | None = None,
    ) -> None:
        self.log_start_offset = LOG_BEGIN if start is None else start.end_offset
        self.start_epoch = NO_EPOCH if start is None else start.epoch
        assert self.log_start_offset <= flushed_offset, f"log starts at {start}, flushed only to {flushed_offset}"
        assert flushed_offset <= log_end_offset, f"flushed {flushed_offset} beyond the end {log_end_offset}"
        self._epochs = list(epochs)
        self._flush_end_offset: Offset | None = None
        self._flush_id = 0
        self.log_end_offset = log_end_offset
        self.flushed_offset = flushed_offset

    @property
    def last_epoch(self) -> QuorumEpoch:
        """Epoch of the last record, in the log or in the snapshot before it; 0 if there is none."""
        return self._epochs[-1][0] if self._epochs else self.start_epoch

    @property
    def end_position(self) -> LogPosition:
        """End of the log, for the comparison of logs."""
        return LogPosition(last_epoch=self.last_epoch, log_end_offset=self.log_end_offset)

    @property
    def epochs(self) -> tuple[tuple[QuorumEpoch, Offset], ...]:
        """Epochs with records, ascending, each with its first offset (inclusive)."""
        return tuple(self._epochs)

    @property
    def is_flushed(self) -> bool:
        """True if everything appended is on stable storage."""
        return self.flushed_offset == self.log_end_offset

    @property
    def is_flushing(self) -> bool:
        """True while a flush is under way."""
        return self._flush_end_offset is not None

    def end_offset_for_epoch(self, epoch: QuorumEpoch) -> EpochEnd:
        """Return the largest epoch with records that is not above the given one, and its end.

        Returns:
            EpochEnd of epoch 0 at the beginning of the log if every record, and the one before the log, is of a higher epoch.
        """
        end_offset = self.log_end_offset
        for known_epoch, start_offset in reversed(self._epochs):
            if known_epoch <= epoch:
                return EpochEnd(epoch=known_epoch, end_offset=end_offset)
            end_offset = start_offset
        # Of the epoch before the log start only the end is known, and only if it is at the start or beyond.
        epoch_before = self.start_epoch if self.start_epoch <= epoch else NO_EPOCH
        return EpochEnd(epoch=epoch_before, end_offset=end_offset)

    def contains(self, snapshot: SnapshotId) -> bool:
        """Return whether a snapshot's end is in this log, or at one of its ends, and the record before it has its epoch."""
        end_offset = snapshot.end_offset
        if end_offset == self.log_start_offset:
            return snapshot.epoch == self.start_epoch
        if not self.log_start_offset < end_offset <= self.log_end_offset:
            return False
        return self._epoch_before(end_offset) == snapshot.epoch

    def _epoch_before(self, end_offset: Offset) -> QuorumEpoch:
        epochs = [epoch for epoch, start_offset in self._epochs if start_offset < end_offset]
        return epochs[-1]

    def truncate_prefix(self, to: SnapshotId) -> None:
        """Note that everything below a snapshot's end was removed; the snapshot stands for it."""
        assert self.contains(to), f"{to} is not of this log, which starts at {self.log_start_offset}"
        kept = [(epoch, start_offset) for epoch, start_offset in self._epochs if start_offset >= to.end_offset]
        following = kept[0][1] if kept else self.log_end_offset
        if following > to.end_offset:
            kept.insert(0, (self._epoch_at(to.end_offset), to.end_offset))
        self._epochs = kept
        self.log_start_offset, self.start_epoch = to.end_offset, to.epoch

    def _epoch_at(self, offset: Offset) -> QuorumEpoch:
        epochs = [epoch for epoch, start_offset in self._epochs if start_offset <= offset]
        return epochs[-1]

    def truncate_fully(self, to: SnapshotId) -> None:
        """Note that everything was removed, durably. The log is empty and begins at a snapshot's end."""
        self._epochs.clear()
        self._flush_end_offset = None
        self.log_start_offset = self.log_end_offset = self.flushed_offset = to.end_offset
        self.start_epoch = to.epoch

    def append(self, *, epoch: QuorumEpoch, next_offset: Offset) -> None:
        """Note that records of one epoch were appended up to `next_offset` (exclusive)."""
        assert next_offset > self.log_end_offset, f"append to {next_offset} at log end {self.log_end_offset}"
        assert epoch >= self.last_epoch > NO_EPOCH or epoch > NO_EPOCH == self.last_epoch, (
            f"append of epoch {epoch} after epoch {self.last_epoch}"
        )
        if not self._epochs or epoch != self._epochs[-1][0]:
            self._epochs.append((epoch, self.log_end_offset))
        self.log_end_offset = next_offset

    def truncate_suffix(self, to_offset: Offset) -> None:
        """Note that everything from `to_offset` (inclusive) on was removed, durably."""
        assert self.log_start_offset <= to_offset <= self.log_end_offset, (
            f"truncate to {to_offset}, log from {self.log_start_offset} to {self.log_end_offset}"
        )
        while self._epochs and self._epochs[-1][1] >= to_offset:
            self._epochs.pop()
        self._flush_end_offset = None
        self.log_end_offset = to_offset
        self.flushed_offset = min(self.flushed_offset, to_offset)

    def begin_flush(self) -> int:
        """Note that a flush of everything appended starts.

        Returns:
            The id for `end_flush`.
        """
        assert not self.is_flushing, f"second flush while one to {self._flush_end_offset} is under way"
        self._flush_end_offset = self.log_end_offset
        self._flush_id += 1
        return self._flush_id

    def end_flush(self, flush_id: int) -> bool:
        """Note that a flush ended.

        Returns:
            False for a flush that started before a truncation: it proves nothing and changes nothing.
        """
        if flush_id != self._flush_id or self._flush_end_offset is None:
            return False
        self.flushed_offset = self._flush_end_offset
        self._flush_end_offset = None
        return True

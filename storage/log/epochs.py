# SPDX-License-Identifier: Apache-2.0
"""Which leader epoch begins at which offset. Two logs use it to find where they diverge.

Law: entries increase strictly in epoch and in start offset. The records of an epoch run from its start offset to the
start offset of the next entry (exclusive). The entries are a cache of the log: recovery rebuilds them from batch
headers if their file is missing.

File `leader-epoch-checkpoint` is a text checkpoint (`checkpoints.encode_lines`) with one line `<epoch> <start offset>`
for each entry.
Source: KIP-101; KIP-279; Kafka, LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from lograft.wire.header import BatchHeader

from storage.files.checkpoints import MalformedTextError, numbers_of
from storage.types import EpochEnd


class EpochStart(NamedTuple):
    """The first record of `epoch` is at `start_offset` (inclusive)."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The leader epochs of one log, in memory."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        # Tuples: they seldom change, and lists would take three times the memory for the one epoch of an idle log.
        self._epochs: tuple[int, ...] = ()
        self._starts: tuple[int, ...] = ()
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    def entries(self) -> list[EpochStart]:
        """Return all entries, ascending."""
        return [EpochStart(*entry) for entry in zip(self._epochs, self._starts, strict=True)]

    @property
    def last_epoch(self) -> int | None:
        """The largest epoch, or None if the log never had one."""
        return self._epochs[-1] if self._epochs else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let `epoch` begin at `start_offset`; does nothing if it already is the last epoch.

        Forgets an epoch that began at the same offset, because it has no record.
        """
        if self._epochs and epoch <= self._epochs[-1]:
            assert epoch == self._epochs[-1], f"epoch {epoch} after {self._epochs[-1]}"
            return
        kept = bisect_left(self._starts, start_offset)
        self._epochs = (*self._epochs[:kept], epoch)
        self._starts = (*self._starts[:kept], start_offset)

    def begin_earlier(self, epoch: int, start_offset: int) -> None:
        """Note that an epoch begins earlier than known, or exists at all, as a repaired batch shows.

        Args:
            epoch: above the epoch known so far at the offset, and not above the next one.
            start_offset: base offset of the batch (inclusive).
        """
        kept = bisect_left(self._starts, start_offset)
        later = bisect_right(self._epochs, epoch)
        assert kept == 0 or self._epochs[kept - 1] < epoch, f"epoch {epoch} at {start_offset}"
        assert later - kept <= 1, f"epoch {epoch} at {start_offset} passes another"
        self._epochs = (*self._epochs[:kept], epoch, *self._epochs[later:])
        self._starts = (*self._starts[:kept], start_offset, *self._starts[later:])

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd | None:
        """Return the largest known epoch at or below `epoch`, and where it ends.

        Returns:
            That epoch, with the start of the next one or the log end. For an epoch below all known ones: `epoch`, with
            the start of the first known one. None if `epoch` is above all known ones.

        Source: KIP-279.
        """
        if not self._epochs or epoch > self._epochs[-1]:
            return None
        slot = bisect_right(self._epochs, epoch)
        if slot == len(self._epochs):
            return EpochEnd(epoch, log_end_offset)
        return EpochEnd(self._epochs[slot - 1] if slot else epoch, self._starts[slot])

    def divergence(self, *, last_epoch: int, fetch_offset: int, log_end_offset: int) -> EpochEnd | None:
        """Compare the end of a follower's log with this log.

        Args:
            last_epoch: epoch of the follower's last record; must not be above the last epoch here.
            fetch_offset: the follower's log end offset (exclusive).
            log_end_offset: end of this log (exclusive).

        Returns:
            None if the follower's log is a prefix of this one; else the epoch and end offset to truncate to.

        Source: KIP-595 section "Fetch"; Kafka, Partition.readRecords.
        """
        end = self.end_offset_for(last_epoch, log_end_offset)
        assert end is not None, f"epoch {last_epoch} is above all known ones: check it before"
        return end if end.epoch != last_epoch or end.end_offset < fetch_offset else None

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the record at an offset; None below the first entry."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else None

    def end_at(self, offset: int, log_end_offset: int) -> int:
        """Return the end (exclusive) of the run of records that have the epoch of the record at an offset."""
        slot = bisect_right(self._starts, offset)
        return self._starts[slot] if slot < len(self._starts) else log_end_offset

    def truncate_suffix(self, to_offset: int) -> bool:
        """Forget the epochs that begin at `to_offset` or beyond; tell whether there were any."""
        kept = bisect_left(self._starts, to_offset)
        if kept == len(self._starts):
            return False
        self._epochs, self._starts = self._epochs[:kept], self._starts[:kept]
        return True

    def truncate_prefix(self, to_offset: int) -> bool:
        """Forget epoch starts below `to_offset`; the epoch that covers `to_offset` now begins there. Tell whether anything changed.

        Source: Kafka, LeaderEpochFileCache.truncateFromStartAsyncFlush.
        """
        begun = bisect_right(self._starts, to_offset)
        if begun == 0 or (begun == 1 and self._starts[0] == to_offset):
            return False
        self._epochs = self._epochs[begun - 1 :]
        self._starts = (to_offset, *self._starts[begun:])
        return True

    def encode_entries(self) -> list[str]:
        """Return the lines of the checkpoint."""
        return [f"{epoch} {start_offset}" for epoch, start_offset in zip(self._epochs, self._starts, strict=True)]

    @classmethod
    def decode_entries(cls, lines: list[str]) -> LeaderEpochs:
        """Decode the lines of the checkpoint.

        Raises:
            MalformedTextError: they are not what `encode_entries` writes.
        """
        entries: list[EpochStart] = []
        for line in lines:
            epoch, start_offset = numbers_of(line, 2)
            if entries and (epoch <= entries[-1].epoch or start_offset <= entries[-1].start_offset):
                raise MalformedTextError(f"epoch {epoch} from {start_offset} on follows epoch {entries[-1].epoch}")
            entries.append(EpochStart(epoch, start_offset))
        epochs = cls()
        epochs._epochs = tuple(entry.epoch for entry in entries)
        epochs._starts = tuple(entry.start_offset for entry in entries)
        return epochs


def epoch_fits(epochs: LeaderEpochs, header: BatchHeader) -> bool:
    """Tell whether a batch's leader epoch, which no CRC covers, agrees with the epochs of the log.

    A filler of compaction may cover several epochs and may have any of them. Below the first known epoch, every epoch
    up to that one fits.
    """
    lowest = epochs.epoch_at(header.base_offset)
    highest = epochs.epoch_at(header.last_offset)
    if highest is None:
        return True
    return (lowest is None or lowest <= header.leader_epoch) and header.leader_epoch <= highest


def may_begin_earlier(epochs: LeaderEpochs, epoch: int, offset: int, *, damage_end: int) -> bool:
    """Tell whether a leader epoch may begin at an offset inside damage where a lower epoch, or none, is known.

    It may be at most the next epoch that is known to begin in the damage or right behind it.

    Args:
        epochs: leader epochs of the log.
        epoch: the epoch.
        offset: where it would begin.
        damage_end: end of the damage (exclusive), including all damage that touches it.
    """
    lowest = epochs.epoch_at(offset)
    if lowest is None:
        first = epochs.entries()[:1]
        return bool(first) and epoch <= first[0].epoch
    highest = epochs.epoch_at(min(epochs.end_at(offset, damage_end), damage_end))
    return highest is not None and lowest < epoch <= highest

# SPDX-License-Identifier: Apache-2.0
"""A partition log as a plain list of batches: `PartitionLog` must equal it, whatever happened.

The model holds what is visible from outside: the batches byte for byte, the log start, and what was acknowledged as
flushed. It derives leader epochs and producer state from the batches by its own rules, and knows what a crash may
leave.

Laws
    After a crash the log is a run of whole batches from the log start on, which contains at least everything that was
    flushed.
    If every unsynced byte survives (`kill -9`), nothing is lost. A truncation that has returned is never undone.
    The log start never goes below the durable one, and never above the requested one.
    A restart at an offset leaves the whole old log, as any crash may, or an empty log at that offset. Once it has
    returned, a crash leaves the empty log.
    Inside a compaction pass each batch is the old one, or what compaction may make of it (`model_compaction`).
    There is never damage, because a crash is not damage.

Pure: no disk, clock or randomness. Source: docs/storage.md sections 2, 3 and 10; KIP-98, KIP-101, KIP-279.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from lograft.wire.batch import BatchHeader, read_batches

from storage.testing.model_batch import CompactionRule, ModelBatch
from storage.testing.model_compaction import Before, adopt_compacted
from storage.testing.model_producers import (
    SEQUENCE_COUNT,
    ModelTransactions,
    ModelWindow,
    SeenWindow,
    judge_windows,
    note_producer,
    transactions_of,
    windows_of,
)
from storage.types import Appended, EpochEnd, TimestampAndOffset

__all__ = ["SEQUENCE_COUNT", "LogModel", "ModelBatch", "ModelWindow", "Refused"]


class Refused(Enum):
    """Why a log must refuse a producer's batch."""

    FENCED = "a newer producer epoch is known"
    OUT_OF_ORDER = "the sequence does not continue"


class LogModel:
    """The model of one log.

    Attributes:
        now_ms: the clock that the log gets.
        start_offset: first readable offset, inclusive.
        legal_starts: other log starts that a crash may leave, from a removal under way.
        failed_starts: log starts of failed removals, which a crash may leave too.
        durable_start: the log start that the removal in flight has written to the device; None: none yet.
        batches: the log from the batch that holds the log start on, ascending.
        history: all batches as they were appended, including those that were removed or compacted since.
        appended: base offset -> the newest batch that was ever appended there, also if it was truncated since.
        announced: batches of an append under way; a crash may leave all of them, or only the first ones.
        truncating_to: new end of a truncation under way; a crash may leave anything from there on.
        restarting_to: offset of a restart under way; None: there is none.
        flushed_offset: everything below it was acknowledged as flushed, exclusive.
        flush_target: what the flush group in flight may claim as flushed, exclusive; None: none is in flight.
        prefix_target: log start of the removal in flight; None: none is in flight.
        compacting: the rule of a swap under way.
        compacted_to: below it compaction replaced records, so no legal truncation goes there (exclusive).
        producers: producer state.
        forgotten_at: producer id -> log end when the log forgot it, because it was idle or its batches were removed.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self.start_offset = 0
        self.legal_starts: frozenset[int] = frozenset()
        self.failed_starts: frozenset[int] = frozenset()
        self.durable_start: int | None = None
        self.batches: list[ModelBatch] = []
        self.history: list[ModelBatch] = []
        self.appended: dict[int, ModelBatch] = {}
        self.announced: list[ModelBatch] = []
        self.truncating_to: int | None = None
        self.restarting_to: int | None = None
        self.flushed_offset = 0
        self.flush_target: int | None = None
        self.prefix_target: int | None = None
        self.compacting: CompactionRule | None = None
        self.compacted_to = 0
        self.producers: dict[int, ModelWindow] = {}
        self.forgotten_at: dict[int, int] = {}
        self._epochs: list[tuple[int, int]] = []

    def copy(self) -> LogModel:
        """Return a copy that shares no mutable state."""
        copied = LogModel()
        for name, value in vars(self).items():
            setattr(copied, name, value.copy() if isinstance(value, list | dict) else value)
        copied.producers = self.windows()
        return copied

    @property
    def end_offset(self) -> int:
        """Offset of the next record, exclusive end."""
        return self.batches[-1].header.next_offset if self.batches else self.start_offset

    @property
    def floor_offset(self) -> int:
        """The lowest legal end of a truncation (inclusive): the log start, or that of the removal in flight."""
        return self.start_offset if self.prefix_target is None else self.prefix_target

    def epochs(self) -> list[tuple[int, int]]:
        """Return (leader epoch, start offset) of all epochs, ascending."""
        return list(self._epochs)

    @property
    def last_epoch(self) -> int | None:
        """Largest leader epoch, or None."""
        return self._epochs[-1][0] if self._epochs else None

    def assign_epoch(self, leader_epoch: int, offset: int) -> None:
        """Note that a leader epoch begins at an offset; does nothing for the last epoch. Forget epochs without a record there."""
        if leader_epoch != self.last_epoch:
            self._epochs = [each for each in self._epochs if each[1] < offset]
            self._epochs.append((leader_epoch, offset))

    def forget_epochs(self, from_offset: int) -> None:
        """Forget the leader epochs that begin at an offset or beyond."""
        self._epochs = [each for each in self._epochs if each[1] < from_offset]

    def epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch of the record at an offset; None below the first one."""
        found = [epoch for epoch, start in self._epochs if start <= offset]
        return found[-1] if found else None

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd | None:
        """Return the largest known epoch at or below `epoch`, and its end; see `PartitionLog`."""
        epochs = self._epochs
        if not epochs or epoch > epochs[-1][0]:
            return None
        known = max((each for each, _ in epochs if each <= epoch), default=epoch)
        return EpochEnd(known, min((start for each, start in epochs if each > epoch), default=self.end_offset))

    def windows(self) -> dict[int, ModelWindow]:
        """Return the state of all producers."""
        return {producer_id: window.copy() for producer_id, window in self.producers.items()}

    def transactions(self) -> ModelTransactions:
        """Return the transactions of the whole history."""
        return transactions_of(batch.header for batch in self.history)

    def judge(self, header: BatchHeader) -> Appended | Refused | None:
        """Return the required result of a client's batch: the original of a duplicate, a refusal, or None: append it."""
        window = self.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if window is None:
            return None
        if header.is_control and header.producer_epoch >= window.producer_epoch:
            return None
        if header.producer_epoch > window.producer_epoch and header.base_sequence == 0:
            return None
        if header.producer_epoch < window.producer_epoch:
            return Refused.FENCED
        if header.producer_epoch > window.producer_epoch:
            return Refused.OUT_OF_ORDER
        if header.base_sequence == window.next_sequence:
            return None
        for known in reversed(window.batches):
            if (known.base_sequence, known.last_offset_delta) == (header.base_sequence, header.last_offset_delta):
                return Appended(known.base_offset, known.next_offset, True)
        return Refused.OUT_OF_ORDER

    def readable_from(self, offset: int, *, end_offset: int) -> list[ModelBatch]:
        """Return the batches from the one that holds `offset` to the last one that ends within the limit."""
        reached = [batch for batch in self.batches if batch.header.next_offset > offset]
        return [batch for batch in reached if batch.header.next_offset <= end_offset]

    def find_timestamp(self, timestamp_ms: int, *, end_offset: int) -> TimestampAndOffset | None:
        """Return the first user record below `end_offset` whose timestamp is `timestamp_ms` or later."""
        for batch in self.batches:
            for record in () if batch.header.is_control else batch.records:
                is_inside = self.start_offset <= record.offset < end_offset
                if record.timestamp_ms >= timestamp_ms and is_inside:
                    return TimestampAndOffset(record.timestamp_ms, record.offset)
        return None

    def cut_at(self, to_offset: int) -> int:
        """Return the log end after a truncation to `to_offset`, which drops whole batches."""
        return next(
            (batch.header.base_offset for batch in self.batches if batch.header.next_offset > to_offset),
            self.end_offset,
        )

    def append(self, batches: list[ModelBatch]) -> None:
        """Add batches that the log appended."""
        self.batches += batches
        self.history += batches
        self.appended.update((batch.header.base_offset, batch) for batch in batches)
        for batch in batches:
            self.assign_epoch(batch.header.leader_epoch, batch.header.base_offset)
            note_producer(self.producers, batch.header)
        self.announced = []

    def announce_truncation(self, to_offset: int) -> None:
        """Note the start of a truncation inside the log; nothing beyond its end is guaranteed from now on."""
        self.truncating_to = self.cut_at(to_offset)
        self.flushed_offset = min(self.flushed_offset, max(self.truncating_to, self.start_offset))

    def truncate(self) -> None:
        """Note that the announced truncation has returned."""
        to_offset = self.truncating_to
        assert to_offset is not None, "no truncation was announced"
        self.truncating_to = None
        self.batches = [batch for batch in self.batches if batch.header.base_offset < to_offset]
        self.history = [batch for batch in self.history if batch.header.base_offset < to_offset]
        self.forget_epochs(to_offset)
        self.producers = windows_of(batch.header for batch in self.history)
        if self.flush_target is not None:
            self.flush_target = min(self.flush_target, max(to_offset, self.start_offset))

    def restart(self, offset: int) -> None:
        """Note a restart: everything is dropped, and the log is empty at an offset."""
        now_ms, appended = self.now_ms, self.appended
        vars(self).update(vars(LogModel()))
        self.now_ms, self.appended = now_ms, appended
        self.start_offset = self.flushed_offset = offset

    def begin_at(self, offset: int) -> None:
        """Move the log start to an offset (not below the old one)."""
        if offset > self.end_offset:
            # A truncation dropped the batch of the new log start, so the log restarts there, empty.
            self.flush_target = None if self.flush_target is None else min(self.flush_target, offset)
        self.start_offset = offset
        self.legal_starts = frozenset()
        self.failed_starts = frozenset(each for each in self.failed_starts if each > offset)
        self.durable_start = None
        self.batches = [batch for batch in self.batches if batch.header.next_offset > offset]
        self.flushed_offset = max(self.flushed_offset, offset)
        begun = [each for each in self._epochs if each[1] <= offset]
        if begun:
            self._epochs = [(begun[-1][0], offset), *(each for each in self._epochs if each[1] > offset)]

    def least_after_crash(self, *, everything_kept: bool) -> int:
        """Return the smallest log end offset that a crash may leave, unless the log was restarted."""
        if not everything_kept:
            return self.flushed_offset
        return self.end_offset if self.truncating_to is None else self.truncating_to

    def settle_restart(self, start_offset: int, end_offset: int, *, everything_kept: bool) -> None:
        """Adopt a restart under way, if the opening found the restarted log."""
        to_offset, self.restarting_to = self.restarting_to, None
        least = self.least_after_crash(everything_kept=everything_kept)
        is_old = start_offset == self.start_offset and end_offset >= least
        if to_offset is not None and start_offset == end_offset == to_offset and not is_old:
            self.restart(to_offset)

    def settle(self, found: bytes, *, start_offset: int) -> None:
        """Adopt what an opening found: the bytes of all its batches.

        Args:
            found: the batches.
            start_offset: the log start.

        Raises:
            AssertionError: no crash may leave this.
        """
        certain = self.start_offset if self.durable_start is None else self.durable_start
        legal = {certain, *(each for each in self.legal_starts | self.failed_starts if each > certain)}
        assert start_offset in legal, f"the log starts at {start_offset}, not at one of {sorted(legal)}"
        announced = self.announced
        candidates = [batch for batch in (*self.batches, *announced) if batch.header.next_offset > start_offset]
        self.begin_at(start_offset)
        self.failed_starts = frozenset()
        if self.compacting is not None:
            candidates = self.compacted(candidates, found, self.compacting)
            self.compacted_to = max(self.compacted_to, self.compacting.end_offset)
        self.batches = take_run(candidates, found)
        end_offset = self.end_offset
        self.announced = []
        self.truncating_to = self.flush_target = self.prefix_target = self.compacting = None
        self.flushed_offset = end_offset
        old = [batch for batch in self.history if batch.header.base_offset < end_offset]
        known = old[-1].header.base_offset if old else -1
        new = [batch for batch in announced if known < batch.header.base_offset < end_offset]
        self.history = old + new
        self.forget_epochs(end_offset)
        for batch in new:
            if self.last_epoch is None or batch.header.leader_epoch > self.last_epoch:
                self.assign_epoch(batch.header.leader_epoch, max(batch.header.base_offset, self.start_offset))

    def note_opening(self, now_ms: int) -> None:
        """Note that batches of an opened log were written at its opening at the latest; the clock may have been set back."""
        self.batches = [
            batch if batch.appended_ms <= now_ms else replace(batch, appended_ms=now_ms) for batch in self.batches
        ]

    def settle_epoch(self, last_epoch: int | None) -> None:
        """Adopt the leader epoch of an opened log without batches: that of a removed batch, or none.

        Raises:
            AssertionError: there never was such a batch.
        """
        if self.batches or last_epoch is None or last_epoch == self.last_epoch:
            return
        removed = {batch.header.leader_epoch for batch in self.history}
        assert last_epoch in removed, f"leader epoch {last_epoch} was never there: {sorted(removed)}"
        self._epochs = [(last_epoch, self.start_offset)]

    def compacted(self, before: list[ModelBatch], found: bytes, rule: CompactionRule) -> list[ModelBatch]:
        """Return the batches that the log shows after swaps; see `adopt_compacted`."""
        return adopt_compacted(Before(batches=before, start_offset=self.start_offset), found, rule)

    def settle_producers(self, seen: Mapping[int, SeenWindow]) -> None:
        """Adopt the producer state of an opened or truncated log.

        Raises:
            AssertionError: see `judge_windows`.
        """
        for producer_id in self.producers.keys() - seen.keys():
            # Its batches are gone, and the snapshot with it was lost. The producer may start over, and an older
            # snapshot may come back.
            self.forgotten_at[producer_id] = self.end_offset
        self.producers = judge_windows(
            seen,
            history=(batch.header for batch in self.history),
            standing=(batch.header for batch in self.batches),
            forgotten_at=self.forgotten_at,
        )


def take_run(history: list[ModelBatch], found: bytes) -> list[ModelBatch]:
    """Return the first batches of a history, whose bytes must equal the given ones.

    Raises:
        AssertionError: the bytes differ.
    """
    kept: list[ModelBatch] = []
    size_bytes = 0
    for batch in history:
        if size_bytes == len(found):
            break
        kept.append(batch)
        size_bytes += len(batch.data)
    assert found == b"".join(batch.data for batch in kept), (
        f"{len(found)} bytes are not the first {len(kept)} batches of the history: "
        f"{[(each.base_offset, each.next_offset) for each in read_batches(found)][:4]}"
    )
    return kept

# SPDX-License-Identifier: Apache-2.0
"""A partition log as a plain list of batches: what `PartitionLog` must be equal to, whatever happened to it.

Owns what the outside may know of a log: its batches byte for byte, what was acknowledged as flushed, leader epochs and
idempotence windows (both told again from the batches, by rules of its own), and what a crash may leave.

Laws
    After a crash the log is a run of whole batches from the start of the history, at least as long as what was flushed.
    With every unsynced byte kept (`kill -9`) nothing is lost. A truncation that has returned is never undone.
    There is never damage: a crash is no damage.

Pure: no disk, clock or randomness. Source: docs/storage.md sections 2 and 9; KIP-98, KIP-101, KIP-279.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lograft.wire.header import PREFIX_BYTES, BatchHeader, read_header, stamped_prefix
from lograft.wire.limits import DEDUP_WINDOW_BATCHES
from lograft.wire.reader import RecordBatch

from storage.log import Appended, EpochEnd, TimestampAndOffset

SEQUENCE_COUNT = 2**31
"""Sequences are taken modulo this."""


class Refused(Enum):
    """Why a log must refuse a batch of a producer."""

    FENCED = "a newer producer epoch is known"
    OUT_OF_ORDER = "the sequence does not continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBatch:
    """One batch as it must stand on disk.

    Attributes:
        data: all its bytes, stamped.
        header: its header, stamped.
        timestamps_ms: one for each record, in milliseconds.
    """

    data: bytes
    header: BatchHeader
    timestamps_ms: tuple[int, ...]

    @classmethod
    def stamped(cls, batch: bytes | bytearray, *, base_offset: int, leader_epoch: int) -> ModelBatch:
        """Return a client's batch as a leader stores it."""
        prefix = stamped_prefix(base_offset, read_header(batch).batch_length, leader_epoch)
        data = prefix + bytes(batch[PREFIX_BYTES:])
        return cls(data=data, header=read_header(data), timestamps_ms=tuple(RecordBatch(data).timestamps_ms()))


@dataclass(slots=True, kw_only=True)
class ModelWindow:
    """The idempotence window of one producer: its newest batches, oldest first."""

    producer_epoch: int
    batches: list[BatchHeader]

    @property
    def next_sequence(self) -> int:
        """The sequence that continues it."""
        last = self.batches[-1]
        return (last.base_sequence + last.last_offset_delta + 1) % SEQUENCE_COUNT


class LogModel:
    """The list.

    Attributes:
        start_offset: first readable offset, inclusive.
        batches: the history, ascending.
        announced: batches of an append under way: a crash may leave them, or the first of them, too.
        truncating_to: where a truncation under way cuts; a crash may leave anything from there on.
        flushed_offset: everything below was acknowledged as flushed, exclusive.
        flush_target: what the flush group in flight may claim when it is taken back, exclusive; None: none in flight.
        empty_epoch: leader epoch that was assigned at the log end and has no record yet.
    """

    def __init__(self) -> None:
        self.start_offset = 0
        self.batches: list[ModelBatch] = []
        self.announced: list[ModelBatch] = []
        self.truncating_to: int | None = None
        self.flushed_offset = 0
        self.flush_target: int | None = None
        self.empty_epoch: int | None = None

    def copy(self) -> LogModel:
        """Return a copy that shares nothing that changes."""
        copied = LogModel()
        copied.start_offset = self.start_offset
        copied.batches = list(self.batches)
        copied.announced = list(self.announced)
        copied.truncating_to = self.truncating_to
        copied.flushed_offset = self.flushed_offset
        copied.flush_target = self.flush_target
        copied.empty_epoch = self.empty_epoch
        return copied

    @property
    def end_offset(self) -> int:
        """Offset that the next record gets, exclusive end."""
        return self.batches[-1].header.next_offset if self.batches else self.start_offset

    def epochs(self) -> list[tuple[int, int]]:
        """Return (leader epoch, start offset) of all epochs, ascending."""
        found: list[tuple[int, int]] = []
        for batch in self.batches:
            if not found or batch.header.leader_epoch > found[-1][0]:
                found.append((batch.header.leader_epoch, batch.header.base_offset))
        if self.empty_epoch is not None:
            found.append((self.empty_epoch, self.end_offset))
        return found

    @property
    def last_epoch(self) -> int | None:
        """Largest leader epoch, or None."""
        if self.empty_epoch is not None:
            return self.empty_epoch
        return self.batches[-1].header.leader_epoch if self.batches else None

    def epoch_at(self, offset: int) -> int | None:
        """Return the leader epoch of the record at an offset; None below the first one."""
        found = [epoch for epoch, start in self.epochs() if start <= offset]
        return found[-1] if found else None

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd | None:
        """Return the largest known epoch at or below `epoch`, and where it ends; see `PartitionLog`."""
        epochs = self.epochs()
        if not epochs or epoch > epochs[-1][0]:
            return None
        known = max((each for each, _ in epochs if each <= epoch), default=epoch)
        return EpochEnd(known, min((start for each, start in epochs if each > epoch), default=self.end_offset))

    def windows(self) -> dict[int, ModelWindow]:
        """Return the idempotence windows of all producers."""
        windows: dict[int, ModelWindow] = {}
        for batch in self.batches:
            header = batch.header
            if header.producer_id < 0 or header.base_sequence < 0:
                continue
            window = windows.get(header.producer_id)
            if window is None or window.producer_epoch != header.producer_epoch:
                window = windows[header.producer_id] = ModelWindow(producer_epoch=header.producer_epoch, batches=[])
            window.batches.append(header)
            del window.batches[:-DEDUP_WINDOW_BATCHES]
        return windows

    def judge(self, header: BatchHeader) -> Appended | Refused | None:
        """Tell what must become of a client's batch: a duplicate's original, a refusal, or None: it is appended."""
        window = self.windows().get(header.producer_id) if header.producer_id >= 0 else None
        if window is None or (header.producer_epoch > window.producer_epoch and header.base_sequence == 0):
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
        """Return the batches from the one that holds `offset` to the last one that does not reach beyond a limit."""
        reached = [batch for batch in self.batches if batch.header.next_offset > offset]
        return [batch for batch in reached if batch.header.next_offset <= end_offset]

    def find_timestamp(self, timestamp_ms: int, *, end_offset: int) -> TimestampAndOffset | None:
        """Return the first user record below `end_offset` whose timestamp is `timestamp_ms` or later."""
        for batch in self.batches:
            for delta, record_ms in enumerate(() if batch.header.is_control else batch.timestamps_ms):
                if record_ms >= timestamp_ms and batch.header.base_offset + delta < end_offset:
                    return TimestampAndOffset(record_ms, batch.header.base_offset + delta)
        return None

    def cut_at(self, to_offset: int) -> int:
        """Return where the log ends after a truncation to `to_offset`: whole batches are dropped."""
        return next(
            (batch.header.base_offset for batch in self.batches if batch.header.next_offset > to_offset),
            self.end_offset,
        )

    def append(self, batches: list[ModelBatch]) -> None:
        """Take up batches that stand in the log."""
        self.batches += batches
        self.announced = []
        self.empty_epoch = None

    def announce_truncation(self, to_offset: int) -> None:
        """A truncation inside the log begins: from now on what lies beyond the cut is not promised."""
        self.truncating_to = self.cut_at(to_offset)
        self.flushed_offset = min(self.flushed_offset, self.truncating_to)

    def truncate(self) -> None:
        """The announced truncation has returned."""
        to_offset = self.truncating_to
        assert to_offset is not None, "no truncation was announced"
        self.batches = [batch for batch in self.batches if batch.header.base_offset < to_offset]
        self.empty_epoch = self.truncating_to = None
        if self.flush_target is not None:
            self.flush_target = min(self.flush_target, to_offset)

    def least_after_crash(self, *, everything_kept: bool) -> int:
        """Return the log end offset that a crash must leave at least."""
        if not everything_kept:
            return self.flushed_offset
        return self.end_offset if self.truncating_to is None else self.truncating_to

    def settle(self, found: bytes) -> None:
        """Take up what an open found: the bytes of all its batches, a run of the history from its start.

        Raises:
            AssertionError: it is no such run.
        """
        history = [*self.batches, *self.announced]
        kept: list[ModelBatch] = []
        size_bytes = 0
        for batch in history:
            if size_bytes == len(found):
                break
            kept.append(batch)
            size_bytes += len(batch.data)
        assert found == b"".join(batch.data for batch in kept), (
            f"{len(found)} bytes are not the first {len(kept)} batches of the history"
        )
        self.batches = kept
        self.announced = []
        self.truncating_to = self.flush_target = self.empty_epoch = None
        self.flushed_offset = self.end_offset

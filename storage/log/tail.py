# SPDX-License-Identifier: Apache-2.0
"""The tail of a log: where it ends, its leader epoch there, and everything that is appended, rolls included.

Laws
    Offsets are contiguous and leader epochs never go back. A refused append leaves everything as it was.
    `active` is the last segment of the set, and `end_offset` its end.

Theory
    The active segment takes a leader's batch with one writev of a stamped 16-byte prefix and the client's bytes, and
    a follower's neighbouring batches with one write. Epochs and producers are noted in memory after the bytes stand.

Must not: decide whether the log may be written (`log.PartitionLog` does, and keeps the failure), sync anything.
Source: architecture sections 4 and 6; Kafka, UnifiedLog.append.
"""

from __future__ import annotations

from lograft.wire.header import PREFIX_BYTES, BatchHeader, stamped_prefix

from storage.errors import OutOfOrderOffsetError
from storage.files.disk import Buffer, Disk
from storage.segment.segment import Segment
from storage.types import Appended, LogSettings, PlacedBatch

from .flush_state import FlushState
from .follower_append import check_follower_batches
from .recovery import LogParts


class LogTail:
    """Append side of one log.

    Attributes:
        settings: the log's settings; replaced by `PartitionLog.apply_settings`.
        active: the segment that takes appends; its index is in memory.
        end_offset: offset that the next record gets (exclusive end).
        leader_epoch: largest leader epoch of the log, or None if it never had one.
    """

    __slots__ = ("_directory", "_disk", "_flush_state", "_parts", "active", "end_offset", "leader_epoch", "settings")

    def __init__(
        self, disk: Disk, directory: str, parts: LogParts, flush_state: FlushState, settings: LogSettings
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._parts = parts
        self._flush_state = flush_state
        self.settings = settings
        self.active = parts.segments.active
        self.end_offset = self.active.end_offset
        self.leader_epoch = parts.epochs.last_epoch

    def append_as_leader(self, batch: Buffer, header: BatchHeader, *, leader_epoch: int, now_ms: int) -> Appended:
        """Append one checked batch, stamping base offset and leader epoch; or find that it is here already.

        Raises:
            OutOfOrderSequenceError, ProducerFencedError, OutOfOrderOffsetError, DiskFullError: nothing was appended.
            DiskFailedError: the log directory failed for good.
        """
        known_epoch = self.leader_epoch
        if known_epoch is not None and leader_epoch < known_epoch:
            raise OutOfOrderOffsetError(
                f"leader epoch {leader_epoch} after {known_epoch}",
                expected_offset=self.end_offset,
                base_offset=self.end_offset,
            )
        has_producer = header.producer_id >= 0
        if has_producer:
            original = self._parts.producers.check(header)
            if original is not None:
                return Appended(original.base_offset, original.next_offset, True)
        base_offset = self.end_offset
        next_offset = base_offset + header.last_offset_delta + 1
        size_bytes = len(batch)
        segment = self.active
        settings = self.settings
        if segment.must_roll(
            last_offset=next_offset - 1,
            size_bytes=size_bytes,
            max_timestamp_ms=header.max_timestamp_ms,
            now_ms=now_ms,
            settings=settings,
        ):
            segment = self.roll(now_ms)
        segment.append(
            (stamped_prefix(base_offset, header.batch_length, leader_epoch), memoryview(batch)[PREFIX_BYTES:]),
            base_offset=base_offset,
            next_offset=next_offset,
            size_bytes=size_bytes,
            max_timestamp_ms=header.max_timestamp_ms,
            interval_bytes=settings.index_interval_bytes,
        )
        segment.written_ms = now_ms
        self.end_offset = next_offset
        if leader_epoch != known_epoch:
            self._assign_epoch(leader_epoch, base_offset)
        if has_producer:
            self._note_producer(header, base_offset, now_ms)
        return Appended(base_offset, next_offset, False)

    def append_as_follower(self, batches: Buffer, *, now_ms: int) -> Appended:
        """Append whole batches that a leader sent, byte for byte; all are checked before the first is written.

        Raises:
            BatchError, OutOfOrderOffsetError: nothing changed.
            DiskFullError: batches may be missing at the end: `end_offset` tells what was appended.
            DiskFailedError: the log directory failed for good.
        """
        base_offset = self.end_offset
        placed = check_follower_batches(batches, log_end_offset=base_offset, last_epoch=self.leader_epoch)
        while placed:
            header = placed[0].header
            if self.active.must_roll(
                last_offset=header.last_offset,
                size_bytes=header.size_bytes,
                max_timestamp_ms=header.max_timestamp_ms,
                now_ms=now_ms,
                settings=self.settings,
            ):
                self.roll(now_ms)
            count = self.active.count_fitting(placed, self.settings)
            self._append_run(batches, placed[:count], now_ms)
            self.active.written_ms = now_ms
            del placed[:count]
        return Appended(base_offset, self.end_offset, False)

    def _append_run(self, batches: Buffer, run: list[PlacedBatch], now_ms: int) -> None:
        """Write neighbouring batches of one region with one call."""
        active = self.active
        last = run[-1]
        active.append_bytes((memoryview(batches)[run[0].position : last.position + last.header.size_bytes],))
        for _, header in run:
            active.note_batch(
                base_offset=header.base_offset,
                next_offset=header.next_offset,
                size_bytes=header.size_bytes,
                max_timestamp_ms=header.max_timestamp_ms,
                interval_bytes=self.settings.index_interval_bytes,
            )
            if header.leader_epoch != self.leader_epoch:
                self._assign_epoch(header.leader_epoch, header.base_offset)
            if header.producer_id >= 0:
                self._note_producer(header, header.base_offset, now_ms)
        self.end_offset = active.end_offset

    def assign_epoch(self, leader_epoch: int) -> None:
        """Note that a leader epoch begins at the log end, before it has any record; not again for the last one."""
        if leader_epoch != self.leader_epoch:
            self._assign_epoch(leader_epoch, self.end_offset)

    def follow_truncation(self) -> None:
        """Take up the active segment, end and leader epoch that `truncation` left."""
        self.active = self._parts.segments.active
        self.end_offset = self.active.end_offset
        self.leader_epoch = self._parts.epochs.last_epoch

    def _assign_epoch(self, leader_epoch: int, start_offset: int) -> None:
        self._parts.epochs.assign(leader_epoch, start_offset)
        self._parts.epochs_saved = False
        self.leader_epoch = leader_epoch

    def _note_producer(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        producers = self._parts.producers
        producers.update(header, base_offset, now_ms=now_ms)
        if len(producers) > self.settings.max_producers:
            producers.evict_idlest(self.settings.max_producers)

    def roll(self, now_ms: int) -> Segment:
        """Begin a new segment at the log end.

        Nothing is synced here: the next flush group syncs the old file first, then the new one, then the directory,
        before anything in the new segment counts as flushed. Index and snapshot are caches and need no sync at all.
        """
        parts = self._parts
        old = self.active
        new = Segment.create(self._disk, self._directory, parts.damage, base_offset=self.end_offset, created_ms=now_ms)
        parts.segments.add(new)
        self.active = new
        self._flush_state.note_new_file()
        old.save_index()
        parts.segments.note_read(old, self._flush_state.flushed_offset)
        parts.snapshots.take(parts.producers, self.end_offset)
        return new

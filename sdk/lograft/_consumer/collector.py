# SPDX-License-Identifier: Apache-2.0
"""Makes batches and records for the application from fetched chunks, as Kafka's FetchCollector does.

This module owns the assigned partitions, their positions, the decoding of chunks and the check of checksums. It knows no lock
and no loop: the blocking consumer uses it under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

from lograft._client.clock import monotonic_ms
from lograft._consumer.arguments import check_offset
from lograft._consumer.fetch_buffer import Arrival, Chunk, Cursor, FetchBuffer
from lograft.errors import CorruptDataError, LograftError, NotAssignedError, UnreachableError
from lograft.fetched import FetchedBatch, leading_records
from lograft.settings import ConsumerSettings
from lograft.types import ConsumerRecord, OffsetAndMetadata, TopicPartition
from lograft.wire.batch import RecordBatch
from lograft.wire.errors import BatchError

RETURN_STEPS: Final = 16
"""The collector gives consumed bytes back when they reach `prefetch_bytes` divided by this."""

OffsetsToCommit = Mapping[TopicPartition, int | OffsetAndMetadata] | ConsumerRecord | FetchedBatch
"""What `commit` takes: next offsets by partition, or a record or batch up to which everything is processed."""

Deserializer = Callable[[bytes], Any]
"""Makes a value of the bytes of a key or value."""


@dataclass(slots=True)
class OpenChunk:
    """A chunk whose batches are being taken, and the byte position of the next batch."""

    chunk: Chunk
    position: int


@dataclass(slots=True)
class _Partial:
    """A batch of which `poll` has handed out the first `taken` records."""

    cursor: Cursor
    generation: int
    records: list[ConsumerRecord]
    fetched: FetchedBatch
    taken: int


class FetchCollector:
    """Hands out the batches and records of the assigned partitions, and moves their positions.

    Attributes:
        cursors: cursors of the assigned partitions.
        outage: the current outage: nothing has come from any partition for `unreachable_timeout_ms`. None without one. The
            consumer writes it when the fetch engine reports.
    """

    def __init__(self, settings: ConsumerSettings, give_back: Callable[[object, int], None]) -> None:
        """Start without partitions.

        Args:
            settings: the consumer's settings.
            give_back: gets the source and the number of bytes that the application has consumed.
        """
        self.cursors: dict[TopicPartition, Cursor] = {}
        self.outage: UnreachableError | None = None
        self._settings = settings
        self._give_back = give_back
        self._buffer = FetchBuffer()
        self._open: OpenChunk | None = None
        self._partial: _Partial | None = None
        self._used: dict[object, int] = {}
        self._used_bytes = 0
        self._return_bytes = max(1, settings.prefetch_bytes // RETURN_STEPS)
        self._failed: dict[TopicPartition, LograftError] = {}

    # -- assignment

    def assign(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes] | None = None
    ) -> list[Cursor]:
        """Replace the assignment and return the new cursors. Partitions that were assigned before get new cursors too.

        Args:
            positions: the first offset of each partition.
            topic_ids: ids by name of topics that must be these and no others; may lack some.
        """
        ids = topic_ids or {}
        for cursor in self.cursors.values():
            cursor.retire()
        self.cursors = {tp: Cursor(tp, position, ids.get(tp.topic)) for tp, position in positions.items()}
        self._failed.clear()
        self._drop_open()
        return list(self.cursors.values())

    def add(self, cursors: Sequence[Cursor]) -> None:
        """Add partitions to the assignment."""
        for cursor in cursors:
            self.cursors[cursor.tp] = cursor
            if cursor.error is not None:
                self._failed[cursor.tp] = cursor.error

    def retire(self, tps: Sequence[TopicPartition]) -> None:
        """Hand out nothing more of these partitions, and drop what was fetched of them. They keep their positions."""
        for tp in tps:
            self.cursors[tp].retire()
            self._failed.pop(tp, None)
        self._drop_stale()

    def remove(self, tps: Sequence[TopicPartition]) -> None:
        """Take partitions out of the assignment."""
        self.retire(tps)
        for tp in tps:
            del self.cursors[tp]

    def cursor(self, tp: TopicPartition) -> Cursor:
        """Return the cursor of an assigned partition.

        Raises:
            NotAssignedError: the partition is not assigned.
        """
        cursor = self.cursors.get(tp)
        if cursor is None:
            raise NotAssignedError(f"{TopicPartition(*tp)} is not assigned to this consumer; call assign() first")
        return cursor

    def seek(self, tp: TopicPartition, offset: int) -> Cursor:
        """Move the position of a partition, and drop everything fetched ahead."""
        cursor = self.cursor(tp)
        check_offset(offset, "an offset")
        cursor.seek(offset)
        self._failed.pop(tp, None)
        self._drop_stale()
        return cursor

    def tell_again(self, error: LograftError) -> None:
        """Raise an error in the next call that the application has not seen, because records precede it. Most last by themselves."""

    def held_ms(self) -> dict[TopicPartition, int]:
        """Return for how many milliseconds partitions have waited for the rest of a decision."""
        return {}

    # -- arrivals

    def put(self, arrival: Arrival) -> None:
        """Take an arrival from the engine."""
        self._buffer.put(arrival)

    @property
    def has_arrivals(self) -> bool:
        """True when `next_batch` may return a batch or raise an error."""
        return bool(self._buffer) or self._open is not None or self._partial is not None or bool(self._failed)

    def next_batch(self) -> FetchedBatch | None:
        """Return the next batch and move the position past it; None when no batch is there.

        Raises:
            LograftError: a partition has failed. This is raised again until the position of that partition is moved.
        """
        partial = self._take_partial()
        if partial is not None:
            partial.cursor.advance(partial.fetched.next_offset)
            source = partial.fetched
            return FetchedBatch(
                source.topic,
                source.partition,
                source.batch,
                skip=source.skip + partial.taken,
                high_watermark=source.high_watermark,
            )
        found = self._next()
        if found is None:
            return None
        cursor, fetched = found
        cursor.advance(fetched.next_offset)
        return fetched

    def next_records(self, max_records: int) -> list[ConsumerRecord]:
        """Return records of one or more batches, at most `max_records`, and move the positions past them.

        Raises:
            LograftError: as `next_batch`, when no record precedes the failure.
        """
        taken: list[ConsumerRecord] = []
        while len(taken) < max_records:
            partial = self._take_partial()
            if partial is None:
                try:
                    found = self._next()
                except LograftError:
                    if taken:
                        break
                    raise
                if found is None:
                    break
                cursor, fetched = found
                partial = _Partial(cursor, cursor.generation, fetched.records(), fetched, 0)
            self._take_from(partial, max_records - len(taken), taken)
        return taken

    def next_record(self) -> ConsumerRecord | None:
        """Return the next record and move the position past it; None when none is there. For iteration: it is the fast way.

        Raises:
            LograftError: as `next_batch`.
        """
        partial = self._partial
        if partial is None or partial.generation != partial.cursor.generation:
            found = self.next_records(1)
            return found[0] if found else None
        records, taken = partial.records, partial.taken
        partial.taken = following = taken + 1
        if following < len(records):
            # Records of a batch ascend, so that this is what `Cursor.advance` does.
            partial.cursor.position = records[following].offset
        else:
            self._partial = None
            partial.cursor.advance(partial.fetched.next_offset)
        return records[taken]

    def _take_from(self, partial: _Partial, wanted: int, taken: list[ConsumerRecord]) -> None:
        end = partial.taken + wanted
        some = (
            partial.records
            if partial.taken == 0 and end >= len(partial.records)
            else partial.records[partial.taken : end]
        )
        taken += some
        partial.taken += len(some)
        if partial.taken < len(partial.records):
            partial.cursor.advance(partial.records[partial.taken].offset)
            self._partial = partial
        else:
            partial.cursor.advance(partial.fetched.next_offset)

    def _take_partial(self) -> _Partial | None:
        partial, self._partial = self._partial, None
        if partial is not None and partial.generation == partial.cursor.generation:
            return partial
        return None

    def _next(self) -> tuple[Cursor, FetchedBatch] | None:
        """Return the next batch with a record for the application."""
        self._raise_failure()
        while True:
            opened = self._open
            if opened is None or opened.chunk.generation != opened.chunk.cursor.generation:
                self._drop_open()
                opened = self._open_next()
                if opened is None:
                    self._raise_failure()
                    return None
            fetched = self._take_batch(opened)
            if fetched is not None:
                return opened.chunk.cursor, fetched

    def _open_next(self) -> OpenChunk | None:
        dropped: list[Chunk] = []
        chunk = self._buffer.take(dropped)
        for old in dropped:
            self._use(old)
        if chunk is None:
            self._failed = {tp: cursor.error for tp, cursor in self.cursors.items() if cursor.error is not None}
            if not self._buffer:
                self._return_used()
            return None
        self._open = OpenChunk(chunk, 0)
        return self._open

    def _take_batch(self, opened: OpenChunk) -> FetchedBatch | None:
        """Take the next batch of a chunk; None if it has no record for the application, or if the chunk is at its end."""
        chunk = opened.chunk
        cursor = chunk.cursor
        if opened.position >= len(chunk.body):
            cursor.advance(chunk.next_offset)
            self._drop_open()
            return None
        try:
            batch = RecordBatch(chunk.body, opened.position, verify_crc=self._settings.check_crcs)
        except BatchError as error:
            self._drop_open()
            cursor.retire()
            cursor.error = CorruptDataError(
                f"a batch of {cursor.tp} at or after offset {cursor.position} is damaged: {error}", code=error.code
            )
            self._failed[cursor.tp] = cursor.error
            raise cursor.error from error
        header = batch.header
        opened.position += header.size_bytes
        is_last = opened.position >= len(chunk.body)
        if is_last:
            self._drop_open()
        if header.is_control or batch.next_offset <= cursor.position:
            cursor.advance(chunk.next_offset if is_last else batch.next_offset)
            return None
        skip = leading_records(batch, cursor.position)
        if skip >= batch.record_count:
            cursor.advance(batch.next_offset)
            return None
        cursor.handed_ms = header.max_timestamp_ms
        cursor.leader_epoch = header.leader_epoch
        tp = cursor.tp
        return FetchedBatch(tp.topic, tp.partition, batch, skip=skip, high_watermark=chunk.high_watermark)

    def _raise_failure(self) -> None:
        for tp, error in self._failed.items():
            if tp in self.cursors:
                raise error

    # -- credit

    def _drop_stale(self) -> None:
        """Drop the open chunk if it is no longer wanted. A chunk of another partition stays: the engine is already behind it."""
        opened = self._open
        if opened is not None and opened.chunk.generation != opened.chunk.cursor.generation:
            self._drop_open()

    def _drop_open(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            self._use(opened.chunk)

    def _use(self, chunk: Chunk) -> None:
        size_bytes = len(chunk.body)
        if size_bytes == 0:
            return
        self._used[chunk.source] = self._used.get(chunk.source, 0) + size_bytes
        self._used_bytes += size_bytes
        if self._used_bytes >= self._return_bytes:
            self._return_used()

    def _return_used(self) -> None:
        """Give back what was used. Even small amounts while nothing waits, so that no stream starves for them."""
        for source, used in self._used.items():
            self._give_back(source, used)
        self._used.clear()
        self._used_bytes = 0


class PollWait:
    """The wait of one poll: how long it may still last, and how it ends.

    A poll ends with an error as soon as an outage is reported. A poll that begins during an outage first waits its own time, at
    most `unreachable_timeout_ms`. So a program that polls again after the error neither spins nor hangs.
    """

    __slots__ = ("_again_ms", "_collector", "_deadline_ms", "_is_old_outage")

    def __init__(self, collector: FetchCollector, timeout_ms: int, unreachable_timeout_ms: int) -> None:
        at_ms = monotonic_ms()
        self._collector = collector
        self._deadline_ms = at_ms + timeout_ms
        self._again_ms = at_ms + unreachable_timeout_ms
        self._is_old_outage = collector.outage is not None

    def left_ms(self) -> int:
        """Return the milliseconds to wait for an arrival; 0 when the poll ends without one.

        Raises:
            UnreachableError: an outage lasts, and the time of the poll in an outage is over.
        """
        at_ms = monotonic_ms()
        end_ms = self._deadline_ms
        outage = self._collector.outage
        if outage is not None and self._is_old_outage:
            end_ms = min(end_ms, self._again_ms)
        elif outage is not None:
            end_ms = at_ms
        self._is_old_outage = self._is_old_outage and outage is not None
        if at_ms < end_ms:
            return end_ms - at_ms
        if outage is not None:
            raise copy(outage)
        return 0


def check_assigned(collector: FetchCollector, tps: Collection[TopicPartition]) -> list[TopicPartition]:
    """Return partitions that are assigned; without arguments, all.

    Raises:
        NotAssignedError: one is not assigned.
    """
    for tp in tps:
        if tp not in collector.cursors:
            raise NotAssignedError(f"{TopicPartition(*tp)} is not assigned to this consumer")
    return [TopicPartition(*tp) for tp in tps] or list(collector.cursors)

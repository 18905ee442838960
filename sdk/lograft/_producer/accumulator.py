# SPDX-License-Identifier: Apache-2.0
"""Gathers records into batches.

Owns the open batch of every partition, the memory they and the sealed ones may take, linger, and what a flush waits for. Must
not send, encode (the encoder is passed in), wait or read a clock. It knows no locks: the blocking producer calls it under its own,
but for the fast path.

Theory of operation. A client looks up the partition's `PartitionBuffer` and, when the record fits into the `room` of its open
batch, takes the size off `room` and appends value and key to it: nothing else happens per record. All else happens when `room`
runs out, in `add`: memory is granted in quanta, a full batch is sealed, an empty one is opened. While no batch is
open, or the open one needs columns that the fast path does not fill (own timestamps, headers: a *rich* one), `CLOSED` stands in
its place, into which nothing fits, so that every record comes to `add`.

The fast path takes no lock, everything else happens under the client's. What makes that safe: the append of value and key is one
step, and it is followed by a look whether the batch is still the open one. Closing a batch goes the other way round: first
`CLOSED` is put in its place, then its records are copied and removed. So a record that was appended too late to be copied is
noticed by its sender, who has it taken in again under the lock (`take_late`). The arithmetic on `room` may lose a step when two
threads meet: a batch is then a little fuller or emptier than counted, never wrong.

A batch is sealed when it is full, when it has lingered (and the partition's pipeline has room for it; else it goes on filling,
which is how batches grow under load), at a flush, and when the buffer is full while nothing is under way that could free it.

Records without a timestamp of their own get the time at which their batch was opened; every time that the batch lingers on,
a new mark is set for those that come later. So a timestamp is at most `max(linger_ms, MARK_INTERVAL_MS)` early, and no clock
is read per record.

Laws: every accepted record is in exactly one batch; order of acceptance is kept within a partition; reserved bytes never exceed
`buffer_bytes`, but for one late record per thread; a batch holds at most `MAX_BATCH_RECORDS` and, but for a single larger record,
its size limit. Source: the interplay of linger and full pipelines follows Kafka's RecordAccumulator (Kafka 4.0).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final

from lograft._producer.batches import BatchBody, BatchEncoder, SealedBatch
from lograft._producer.buffers import OpenBatch, PartitionBuffer, TopicBuffers, close_batch
from lograft._producer.record_columns import (
    RECORD_OVERHEAD_BYTES,
    TIMESTAMP_BYTES,
    expand,
    interleave,
    no_headers,
    record_size,
)
from lograft.types import Headers

BATCH_OVERHEAD_BYTES: Final = 160
"""Bytes counted for the header of a batch and the tags of its columns."""
QUANTUM_BYTES: Final = 64 * 1024
"""Bytes of the buffer that are granted to an open batch at a time."""
MAX_BATCH_RECORDS: Final = 100_000
"""Most records of a batch of the format."""
SAFE_BATCH_RECORDS: Final = MAX_BATCH_RECORDS - QUANTUM_BYTES // RECORD_OVERHEAD_BYTES - 1_000
"""Records after which a batch gets no further grant: those of the fast path (and late ones) must still fit in."""
WAKE_BYTES: Final = 1024 * 1024
"""Bytes of the buffer, at most, that must be free before callers are woken: more would make them fill it in bursts that keep
the event loop from sending meanwhile (there is one interpreter lock)."""
MARK_INTERVAL_MS: Final = 10
"""Least milliseconds between two looks at a batch that lingers on."""


class AddResult(Enum):
    """What became of a record. Only ADDED has changed the state."""

    ADDED = "added"
    BUFFER_FULL = "buffer full"
    TOO_LARGE = "too large"


class Accumulator:
    """All open batches of one producer; see the module docstring."""

    __slots__ = (
        "_batch_bytes",
        "_buffer_bytes",
        "_delivery_timeout_ms",
        "_encode",
        "_linger_ms",
        "_lingering",
        "_max_in_flight",
        "_max_record_bytes",
        "_next_ordinal",
        "_open",
        "is_send_due",
        "outstanding",
        "reserved_bytes",
        "sealed",
    )

    def __init__(
        self,
        *,
        batch_bytes: int,
        buffer_bytes: int,
        linger_ms: int,
        max_in_flight: int,
        delivery_timeout_ms: int,
        max_record_bytes: int,
        encode: BatchEncoder,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._buffer_bytes = buffer_bytes
        self._linger_ms = linger_ms
        self._max_in_flight = max_in_flight
        self._delivery_timeout_ms = delivery_timeout_ms
        self._max_record_bytes = max_record_bytes
        self._encode = encode
        self._next_ordinal = 0
        # Open batches in the order of their opening: id(buffer) -> buffer.
        self._open: dict[int, PartitionBuffer] = {}
        self._lingering: deque[tuple[int, PartitionBuffer, int]] = deque()
        self.reserved_bytes = 0
        self.sealed: deque[SealedBatch] = deque()
        # A batch was sealed that its pipeline has room for; whoever takes what is sealed sets it back first.
        self.is_send_due = False
        self.outstanding: dict[int, SealedBatch] = {}

    def add_topic(self, topic: str, partition_count: int, *, first_sticky: int) -> TopicBuffers:
        """Make the buffers of a topic.

        Args:
            topic: its name.
            partition_count: number of partitions, at least 1.
            first_sticky: any number; chooses the partition that the first records without a key go to.
        """
        buffers = TopicBuffers(topic)
        buffers.sticky = first_sticky % partition_count
        self.grow_topic(buffers, partition_count)
        return buffers

    def grow_topic(self, buffers: TopicBuffers, partition_count: int) -> None:
        """Add buffers for partitions that are new; never takes any away."""
        buffers.grow(
            [
                PartitionBuffer(
                    buffers, partition, size_limit=self._batch_bytes, max_record_bytes=self._max_record_bytes
                )
                for partition in range(len(buffers.parts), partition_count)
            ]
        )

    def limit_batches(self, part: PartitionBuffer, max_batch_bytes: int) -> None:
        """Take note of the largest batch that the partition's topic takes, in bytes with header."""
        part.size_limit = min(self._batch_bytes, max_batch_bytes)
        part.max_record_bytes = min(self._max_record_bytes, max_batch_bytes)

    def add(
        self,
        part: PartitionBuffer,
        value: bytes | None,
        key: bytes | None,
        timestamp_ms: int | None,
        headers: Headers | None,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> AddResult:
        """Add a record: the way for everything that the fast path cannot do.

        Args:
            part: the partition's buffer.
            value: its value; None: a null value.
            key: its key; None: it has none.
            timestamp_ms: its create time; None: `wall_ms`, see the module docstring.
            headers: its headers; None: it has none.
            now_ms: monotonic time in milliseconds.
            wall_ms: time in milliseconds since 1970-01-01 UTC.
        """
        size = record_size(value, key, timestamp_ms, headers)
        if not self._make_room(part, size, now_ms=now_ms, wall_ms=wall_ms, max_total=part.max_record_bytes):
            too_large = size + BATCH_OVERHEAD_BYTES > min(part.max_record_bytes, self._buffer_bytes)
            return AddResult.TOO_LARGE if too_large else AddResult.BUFFER_FULL
        if timestamp_ms is not None or headers:
            self._enrich(part, timestamp_ms is not None, bool(headers))
        if part.timestamps is not None:
            part.timestamps.append(wall_ms if timestamp_ms is None else timestamp_ms)
        if part.headers is not None:
            part.headers.append(headers or ())
        self._append(part, [value, key], size)
        return AddResult.ADDED

    def extend(
        self,
        part: PartitionBuffer,
        values: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        timestamps_ms: Sequence[int] | None,
        *,
        now_ms: int,
        wall_ms: int,
    ) -> AddResult:
        """Add several records at once, all into one batch.

        Args:
            part: the partition's buffer.
            values: their values, at least one.
            keys: their keys; None: they have none.
            timestamps_ms: their create times; None: `wall_ms`, see the module docstring.
            now_ms: monotonic time in milliseconds.
            wall_ms: time in milliseconds since 1970-01-01 UTC.

        Returns:
            TOO_LARGE when they do not fit into one batch of the partition: the caller adds them one by one then.
        """
        count = len(values)
        size = sum(map(len, values)) + (sum([len(key) for key in keys if key]) if keys else 0)
        size += count * (RECORD_OVERHEAD_BYTES + (0 if timestamps_ms is None else TIMESTAMP_BYTES))
        limit = min(part.size_limit, self._buffer_bytes)
        if size + BATCH_OVERHEAD_BYTES > limit or count > MAX_BATCH_RECORDS // 2:
            return AddResult.TOO_LARGE
        if not self._make_room(part, size, now_ms=now_ms, wall_ms=wall_ms, max_total=limit, count=count):
            return AddResult.BUFFER_FULL
        if timestamps_ms is not None:
            self._enrich(part, True, False)
        if part.timestamps is not None:
            part.timestamps += [wall_ms] * count if timestamps_ms is None else timestamps_ms
        if part.headers is not None:
            part.headers += no_headers(count)
        self._append(part, interleave(values, keys), size)
        return AddResult.ADDED

    def add_encoded(
        self, part: PartitionBuffer, body: BatchBody, record_count: int, *, may_split: bool, now_ms: int
    ) -> AddResult:
        """Take a batch that is encoded already; the partition's open batch is sealed before it.

        Args:
            part: the partition's buffer.
            body: the batch, which belongs to the accumulator from now on.
            record_count: records in it.
            may_split: the sender may split it when it is over the limit of the topic.
            now_ms: monotonic time in milliseconds.
        """
        size = len(body)
        limit = self._max_record_bytes if may_split and record_count > 1 else part.max_record_bytes
        if size > min(limit, self._buffer_bytes):
            return AddResult.TOO_LARGE
        if self.reserved_bytes + size > self._buffer_bytes:
            return AddResult.BUFFER_FULL
        if part.is_open:
            self.seal(part)
        self.reserved_bytes += size
        self._push(part, body, record_count, size, now_ms)
        return AddResult.ADDED

    def take_late(self, part: PartitionBuffer, batch: OpenBatch, *, now_ms: int, wall_ms: int) -> None:
        """Take in what the fast path appended to a batch while or after it was sealed; see the module docstring.

        The records were accepted when they were appended, so they are taken even over the memory bound.
        """
        while batch:
            value, key = batch[0], batch[1]
            del batch[:2]
            size = record_size(value, key, None, None)
            self._make_room(part, size, now_ms=now_ms, wall_ms=wall_ms, max_total=None)
            if part.timestamps is not None:
                part.timestamps.append(wall_ms)
            if part.headers is not None:
                part.headers.append(())
            self._append(part, [value, key], size)

    def turn_sticky(self, buffers: TopicBuffers) -> None:
        """Let the next records without a key go to the next partition."""
        buffers.sticky = (buffers.sticky + 1) % len(buffers.parts)

    def _append(self, part: PartitionBuffer, flat: list[bytes | None], size: int) -> None:
        if part.rich is not None:
            part.rich += flat
            part.rich_room -= size
        else:
            part.open.room -= size
            part.open += flat

    def _make_room(
        self,
        part: PartitionBuffer,
        size: int,
        *,
        now_ms: int,
        wall_ms: int,
        max_total: int | None,
        count: int = 1,
    ) -> bool:
        """Grant memory for `size` bytes of records, sealing and opening as needed.

        Args:
            part: the partition's buffer.
            size: bytes of the records.
            now_ms: monotonic time in milliseconds.
            wall_ms: time in milliseconds since 1970-01-01 UTC.
            max_total: largest batch that the records may make alone; None: grant whatever it takes.
            count: number of records.

        Returns:
            False when it was refused; nothing has changed then.
        """
        if max_total is not None and size + BATCH_OVERHEAD_BYTES > max_total:
            return False
        room = part.room
        must_seal = part.is_open and (
            part.granted - room + size > part.size_limit or part.record_count + count > SAFE_BATCH_RECORDS
        )
        is_new = must_seal or not part.is_open
        need = size + BATCH_OVERHEAD_BYTES if is_new else size - room
        # What a batch to be sealed does not use goes back before the new one takes.
        free = self._buffer_bytes - self.reserved_bytes + (room if must_seal else 0)
        if max_total is not None and need > free:
            return False
        if must_seal:
            self.seal(part)
        if is_new:
            self._open_batch(part, now_ms=now_ms, wall_ms=wall_ms)
        left = part.size_limit - part.granted - need
        grant = max(need, min(need + QUANTUM_BYTES, need + left, free)) if need > 0 else 0
        self.reserved_bytes += grant
        part.granted += grant
        if part.rich is not None:
            part.rich_room += grant
        else:
            part.open.room += grant - (BATCH_OVERHEAD_BYTES if is_new else 0)
        return True

    def _open_batch(self, part: PartitionBuffer, *, now_ms: int, wall_ms: int) -> None:
        part.open = OpenBatch(0)
        part.opened_ms = now_ms
        part.marks.append((0, wall_ms))
        self._open[id(part)] = part
        self._lingering.append((now_ms + self._linger_ms, part, part.serial))

    def _enrich(self, part: PartitionBuffer, with_timestamps: bool, with_headers: bool) -> None:
        """Give the open batch the columns that the fast path does not fill, and keep the fast path off it."""
        if part.rich is None:
            part.rich_room = part.open.room
            values, keys = close_batch(part)
            part.rich = interleave(values, keys)
        count = len(part.rich) // 2
        if with_timestamps and part.timestamps is None:
            part.timestamps = expand(part.marks, count)
        if with_headers and part.headers is None:
            part.headers = no_headers(count)

    def seal(self, part: PartitionBuffer) -> None:
        """Seal the open batch of a partition; there must be one."""
        assert part.is_open, f"{part.topic}-{part.partition} has no open batch"
        room = part.room
        values, keys = close_batch(part) if part.rich is None else (part.rich[::2], part.rich[1::2])
        timestamps: int | Sequence[int]
        if part.timestamps is not None:
            timestamps = part.timestamps
        elif len(part.marks) == 1:
            timestamps = part.marks[0][1]
        else:
            timestamps = expand(part.marks, len(values))
        # Counting is slow among keys (each is compared), fast among Nones (each is identical): look at the first one.
        is_keyless = keys[0] is None and keys.count(None) == len(keys)
        body = self._encode(values, None if is_keyless else keys, timestamps, part.headers)
        self.reserved_bytes -= room
        reserved = part.granted - room
        opened_ms = part.opened_ms
        part.rich, part.timestamps, part.headers, part.marks = None, None, None, []
        part.rich_room = part.granted = 0
        part.serial += 1
        del self._open[id(part)]
        topic = part.topic_buffers
        if topic.sticky == part.partition:
            self.turn_sticky(topic)
        self._push(part, body, len(values), reserved, opened_ms)

    def _push(self, part: PartitionBuffer, body: BatchBody, record_count: int, reserved: int, opened_ms: int) -> None:
        batch = SealedBatch(
            topic=part.topic,
            partition=part.partition,
            body=body,
            record_count=record_count,
            reserved_bytes=reserved,
            deadline_ms=opened_ms + self._delivery_timeout_ms,
            ordinal=self._next_ordinal,
        )
        self._next_ordinal += 1
        part.pending_batches += 1
        self.outstanding[batch.ordinal] = batch
        self.sealed.append(batch)
        if part.pending_batches <= self._max_in_flight:
            self.is_send_due = True

    def seal_all(self) -> None:
        """Seal every open batch."""
        for part in list(self._open.values()):
            self.seal(part)

    def deadline_ms(self) -> int | None:
        """Monotonic time at which `expire` has something to do; None: never, as things stand."""
        lingering = self._lingering
        while lingering and lingering[0][2] != lingering[0][1].serial:
            lingering.popleft()
        return lingering[0][0] if lingering else None

    def expire(self, *, now_ms: int, wall_ms: int) -> None:
        """Seal the batches that have lingered; those whose pipeline is full go on filling, with a new time mark."""
        again: list[tuple[int, PartitionBuffer, int]] = []
        while (deadline_ms := self.deadline_ms()) is not None and deadline_ms <= now_ms:
            _, part, serial = self._lingering.popleft()
            if part.pending_batches < self._max_in_flight:
                self.seal(part)
                continue
            if part.timestamps is None and part.marks[-1][1] != wall_ms:
                part.marks.append((part.record_count, wall_ms))
            again.append((now_ms + max(self._linger_ms, MARK_INTERVAL_MS), part, serial))
        self._lingering.extend(again)

    def release(self, batch: SealedBatch, part: PartitionBuffer, *, now_ms: int) -> None:
        """A sealed batch is resolved: free its memory, and seal the next one if it only waited for the pipeline."""
        del self.outstanding[batch.ordinal]
        self.reserved_bytes -= batch.reserved_bytes
        part.pending_batches -= 1
        if part.is_open and now_ms >= part.opened_ms + self._linger_ms and part.pending_batches < self._max_in_flight:
            self.seal(part)

    def should_wake(self, waiter_count: int, flush_marks: Sequence[int]) -> bool:
        """True when those who wait for room or for a flush should look again.

        For room, a few batches must fit, so that a caller that is faster than the brokers is woken once for some of
        them; or nothing is under way that could free more.

        Args:
            waiter_count: those who wait, for whatever.
            flush_marks: the mark of each of them that waits for a flush.
        """
        if waiter_count > len(flush_marks):
            step = min(WAKE_BYTES, self._buffer_bytes // 4)
            return self.reserved_bytes + step <= self._buffer_bytes or not self.outstanding
        return any(map(self.has_reached, flush_marks))

    def relieve(self) -> None:
        """The buffer is full: if nothing under way will free memory, send what is there."""
        if not self.outstanding:
            self.seal_all()

    def unresolved_records(self) -> int:
        """Records that were taken and are neither acknowledged nor failed; counted when asked, not for each record."""
        sealed = sum(batch.record_count for batch in list(self.outstanding.values()))
        return sealed + sum(part.record_count for part in list(self._open.values()))

    def flush_mark(self) -> int:
        """Seal everything; the returned mark is reached when all of it is resolved."""
        self.seal_all()
        return self._next_ordinal

    def has_reached(self, mark: int) -> bool:
        """True when every batch that was sealed before the mark is resolved."""
        return not self.outstanding or next(iter(self.outstanding)) >= mark

# SPDX-License-Identifier: Apache-2.0
"""Collects records into batches.

This module owns the open batch of every partition, the memory for open and sealed batches, linger, and the marks of flushes. It
must not send, encode (the caller passes an encoder), wait or read a clock. It knows no lock: the blocking producer calls it
under its own lock, except for the fast path.

Theory of operation. A producer looks up the `PartitionBuffer`. If the record has the lengths of a uniform batch (see
`OpenBatch`), the producer appends value and key. If the record fits into the `room` of another batch, the producer subtracts
its size from `room` and appends value and key. Nothing else happens for such a record. `refill` grants more memory to a uniform
batch that has reached its limit. `add` does the rest: it grants memory in quanta, seals a full batch and opens an empty one.
The fast path fills no timestamps and no headers. A batch that needs such columns is a *rich* batch. While the open batch is
rich, or no batch is open, `open` is `CLOSED`. Nothing fits into `CLOSED`, so every record comes to `add`.

The fast path takes no lock; all other code runs under the producer's lock. This is safe for two reasons. The append of value
and key is one step, and after it the producer compares the length of the list with the limit of the batch. Closing a batch uses
the opposite order: it first sets `open` to `CLOSED` and the limit to 0, then copies and removes the records. So a producer
notices when its record came too late to be copied, and adds it again under the lock (`take_late`). The handle of a record has
its number in the batch from the length of the list after the append. That is exact because the interpreter changes threads only
at calls of functions, at jumps back and at the begin of functions, and none of them is between the append and the length. The
arithmetic on `room` may lose a step when two threads meet, and each of them may append a record that reaches the limit. The
batch is then a little fuller or emptier than counted, which does no harm.

A batch is sealed when it is full, and at a flush. It is sealed when it has lingered and the partition's pipeline has room; with
a full pipeline it goes on filling, which is how batches grow under load. And it is sealed when the buffer is full and no batch
is under way that could free memory.

Records without a timestamp get the time at which their batch was opened. Each time the batch lingers on, later records get a
new time mark. So a timestamp is at most `max(linger_ms, MARK_INTERVAL_MS)` early, and the producer reads no clock for each
record.

Laws: each accepted record is in exactly one batch. Records of a partition stay in the order in which they were accepted.
Reserved bytes never exceed `buffer_bytes`, except by one record for each thread that meets another one. A batch holds at most
`MAX_BATCH_RECORDS` records, and does not exceed its size limit unless it is a single larger record.
Source: linger and full pipelines work together as in Kafka's RecordAccumulator (Kafka 4.0).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final

from lograft._producer.batches import BatchBody, BatchEncoder, SealedBatch
from lograft._producer.buffers import MovedRecord, OpenBatch, PartitionBuffer, Place, TopicBuffers, close_batch
from lograft._producer.outcomes import Outcome, Resolver
from lograft._producer.partitioner import CRC32C, KeyRule, quietest
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
"""Bytes of the buffer that one grant gives to an open batch, besides what its records need at once."""
MAX_BATCH_RECORDS: Final = 100_000
"""Most records that the format allows in a batch."""
SAFE_BATCH_RECORDS: Final = MAX_BATCH_RECORDS - QUANTUM_BYTES // RECORD_OVERHEAD_BYTES - 1_000
"""Records after which a batch gets no further grant. Records of the fast path, and late ones, must still fit."""
WAKE_BYTES: Final = 1024 * 1024
"""Most bytes of the buffer that must be free before waiting callers wake up. With more, they would fill the buffer in bursts during
which the event loop cannot send, because the process has one interpreter lock."""
MARK_INTERVAL_MS: Final = 10
"""Shortest time between two checks of a batch that lingers on, in milliseconds."""


class AddResult(Enum):
    """Result of adding a record. Only ADDED has changed the state."""

    ADDED = "added"
    BUFFER_FULL = "buffer full"
    TOO_LARGE = "too large"


class Accumulator:
    """All open batches of one producer, and the memory for them and for the sealed ones."""

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
        "resolver",
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
        self.resolver = Resolver()
        # Open batches, oldest first: id(buffer) -> buffer.
        self._open: dict[int, PartitionBuffer] = {}
        self._lingering: deque[tuple[int, PartitionBuffer, int]] = deque()
        self.reserved_bytes = 0
        self.sealed: deque[SealedBatch] = deque()
        # A batch was sealed whose pipeline has room. The sender clears the flag before it takes the sealed batches.
        self.is_send_due = False
        self.outstanding: dict[int, SealedBatch] = {}

    def add_topic(self, topic: str, partition_count: int, *, first_sticky: int, rule: KeyRule = CRC32C) -> TopicBuffers:
        """Make the buffers of a topic.

        Args:
            topic: topic name.
            partition_count: number of partitions, at least 1.
            first_sticky: any number; it chooses the partition of the first records without a key.
            rule: how keys decide.
        """
        buffers = TopicBuffers(topic, rule)
        buffers.sticky = first_sticky % partition_count
        self.grow_topic(buffers, partition_count)
        return buffers

    def grow_topic(self, buffers: TopicBuffers, partition_count: int) -> None:
        """Add buffers for new partitions. Buffers are never removed."""
        buffers.grow(
            [
                PartitionBuffer(
                    buffers, partition, size_limit=self._batch_bytes, max_record_bytes=self._max_record_bytes
                )
                for partition in range(len(buffers.parts), partition_count)
            ]
        )

    def limit_batches(self, part: PartitionBuffer, max_batch_bytes: int) -> None:
        """Set the largest batch that the partition's topic accepts, in bytes with header."""
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
        """Add a record that the fast path cannot add.

        Args:
            part: the partition's buffer.
            value: value; None is a null.
            key: key; None for a record without a key.
            timestamp_ms: create time in milliseconds since 1970-01-01 UTC; None uses the time mark of the batch.
            headers: headers; None for a record without headers.
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

    def last_place(self, part: PartitionBuffer) -> Place:
        """Return the place of the record that the last call of `add` added to a partition. Nothing may come between the calls."""
        timestamp_ms = None if part.timestamps is None else part.timestamps[-1]
        return Place(part.outcome, part.last_number, timestamp_ms)

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
        """Add several records to one batch.

        Args:
            part: the partition's buffer.
            values: values, at least one.
            keys: one key for each value; None for records without keys.
            timestamps_ms: one create time for each value; None uses the time mark of the batch.
            now_ms: monotonic time in milliseconds.
            wall_ms: time in milliseconds since 1970-01-01 UTC.

        Returns:
            TOO_LARGE when the records do not fit into one batch of the partition. The caller then adds them one by one.
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
        """Add an encoded batch. The partition's open batch is sealed before it.

        Args:
            part: the partition's buffer.
            body: the batch. The accumulator owns it from now on.
            record_count: number of records in it.
            may_split: the sender may split the batch when it exceeds the limit of the topic.
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
        self._push(part, body, record_count, size, now_ms, None)
        return AddResult.ADDED

    def take_late(self, part: PartitionBuffer, batch: OpenBatch, *, now_ms: int, wall_ms: int) -> None:
        """Add the records again that the fast path appended to a batch during or after its sealing.

        The producer has already accepted them, so they are added even above the memory bound. `batch.moved` gets the place of
        each, for the thread that appended it.
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
            batch.moved.append(MovedRecord(value, key, self.last_place(part)))

    def turn_sticky(self, buffers: TopicBuffers) -> None:
        """Send the next records without a key to the next partition; with the rule "sticky" all records, to the quietest one."""
        if buffers.rule.ignores_keys:
            loads = [(part.leader, part.pending_bytes) for part in buffers.parts]
            buffers.sticky = quietest(loads, buffers.sticky)
            return
        buffers.sticky = (buffers.sticky + 1) % len(buffers.parts)

    def _append(self, part: PartitionBuffer, flat: list[bytes | None], size: int) -> None:
        if part.rich is not None:
            part.rich += flat
            part.rich_room -= size
            part.last_number = len(part.rich) // 2
            return
        batch = part.open
        if not batch and len(flat) == 2 and flat[0] is not None:
            batch.begin(flat[0], flat[1])
            part.last_number = 1
            return
        batch.count_bytes()
        batch.room -= size
        # As on the fast path, nothing may come between the append and the length.
        batch += flat
        slots = len(batch)
        part.last_number = slots // 2

    def refill(self, part: PartitionBuffer) -> None:
        """Grant more memory to the open batch of a partition, which has reached its limit.

        If there is none, or the batch is full, the batch is no longer uniform, and the next record comes to `add`.
        """
        batch = part.open
        if batch.lengths is None:
            return  # another thread has met it with a record of other lengths
        grant = min(QUANTUM_BYTES, part.size_limit - part.granted, self._buffer_bytes - self.reserved_bytes)
        if grant > 0 and len(batch) // 2 < SAFE_BATCH_RECORDS:
            self.reserved_bytes += grant
            part.granted += grant
            batch.grant(grant)
        if len(batch) >= batch.limit:
            batch.count_bytes()

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
        """Grant memory for `size` bytes of records. Seal and open batches as needed.

        Args:
            part: the partition's buffer.
            size: bytes of the records.
            now_ms: monotonic time in milliseconds.
            wall_ms: time in milliseconds since 1970-01-01 UTC.
            max_total: largest batch that these records alone may make; None always grants.
            count: number of records.

        Returns:
            False when the grant is refused. Nothing has changed then.
        """
        if max_total is not None and size + BATCH_OVERHEAD_BYTES > max_total:
            return False
        room = part.room
        must_seal = part.is_open and (
            part.granted - room + size > part.size_limit or part.record_count + count > SAFE_BATCH_RECORDS
        )
        is_new = must_seal or not part.is_open
        need = size + BATCH_OVERHEAD_BYTES if is_new else size - room
        # A batch returns its unused bytes when it is sealed, before the new batch takes memory.
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
            part.open.grant(grant - (BATCH_OVERHEAD_BYTES if is_new else 0))
        return True

    def _open_batch(self, part: PartitionBuffer, *, now_ms: int, wall_ms: int) -> None:
        part.opened_ms = now_ms
        part.marks.append((0, wall_ms))
        part.outcome = Outcome(part.topic, part.partition, part.marks, self.resolver)
        part.open = OpenBatch(part.outcome)
        self._open[id(part)] = part
        self._lingering.append((now_ms + self._linger_ms, part, part.serial))

    def _enrich(self, part: PartitionBuffer, with_timestamps: bool, with_headers: bool) -> None:
        """Make the open batch rich: add columns that the fast path does not fill, and keep the fast path away from it."""
        if part.rich is None:
            part.rich_room = part.room
            values, keys = close_batch(part)
            part.rich = interleave(values, keys)
        count = len(part.rich) // 2
        if with_timestamps and part.timestamps is None:
            part.timestamps = expand(part.marks, count)
        if with_headers and part.headers is None:
            part.headers = no_headers(count)

    def seal(self, part: PartitionBuffer) -> None:
        """Seal the open batch of a partition, which must exist."""
        assert part.is_open, f"{part.topic}-{part.partition} has no open batch"
        room = part.room
        lengths = part.open.lengths
        values, keys = close_batch(part) if part.rich is None else (part.rich[::2], part.rich[1::2])
        timestamps: int | Sequence[int]
        if part.timestamps is not None:
            timestamps = part.timestamps
        elif len(part.marks) == 1:
            timestamps = part.marks[0][1]
        else:
            timestamps = expand(part.marks, len(values))
        # `count` is slow over keys, which it compares, and fast over Nones, which are identical. So look at the first key.
        is_keyless = keys[0] is None and keys.count(None) == len(keys)
        body = self._encode(values, None if is_keyless else keys, timestamps, part.headers, lengths)
        self.reserved_bytes -= room
        reserved = part.granted - room
        opened_ms = part.opened_ms
        part.rich, part.timestamps, part.headers, part.marks = None, None, None, []
        part.rich_room = part.granted = 0
        part.serial += 1
        del self._open[id(part)]
        self._push(part, body, len(values), reserved, opened_ms, part.outcome)
        topic = part.topic_buffers
        if topic.sticky == part.partition:
            self.turn_sticky(topic)

    def _push(
        self,
        part: PartitionBuffer,
        body: BatchBody,
        record_count: int,
        reserved: int,
        opened_ms: int,
        outcome: Outcome | None,
    ) -> None:
        batch = SealedBatch(
            topic=part.topic,
            partition=part.partition,
            body=body,
            record_count=record_count,
            reserved_bytes=reserved,
            deadline_ms=opened_ms + self._delivery_timeout_ms,
            ordinal=self._next_ordinal,
            outcome=outcome,
        )
        self._next_ordinal += 1
        part.pending_batches += 1
        part.pending_bytes += reserved
        self.outstanding[batch.ordinal] = batch
        self.sealed.append(batch)
        if part.pending_batches <= self._max_in_flight:
            self.is_send_due = True

    def seal_all(self) -> None:
        """Seal every open batch."""
        for part in list(self._open.values()):
            self.seal(part)

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which `expire` has work; None while no batch lingers."""
        lingering = self._lingering
        while lingering and lingering[0][2] != lingering[0][1].serial:
            lingering.popleft()
        return lingering[0][0] if lingering else None

    def expire(self, *, now_ms: int, wall_ms: int) -> None:
        """Seal the batches that have lingered. A batch whose pipeline is full goes on filling, with a new time mark."""
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
        """Free the memory of a resolved batch, and seal the next batch if it only waited for room in the pipeline."""
        del self.outstanding[batch.ordinal]
        self.reserved_bytes -= batch.reserved_bytes
        part.pending_batches -= 1
        part.pending_bytes -= batch.reserved_bytes
        if part.is_open and now_ms >= part.opened_ms + self._linger_ms and part.pending_batches < self._max_in_flight:
            self.seal(part)

    def should_wake(self, waiter_count: int, flush_marks: Sequence[int]) -> bool:
        """True when callers that wait for room or for a flush should check again.

        For room, a few batches must fit, or no batch must be under way that could free more. So a caller that is faster than
        the brokers wakes up once for several batches.

        Args:
            waiter_count: number of all waiting callers.
            flush_marks: the marks of those that wait for a flush.
        """
        if waiter_count > len(flush_marks):
            step = min(WAKE_BYTES, self._buffer_bytes // 4)
            return self.reserved_bytes + step <= self._buffer_bytes or not self.outstanding
        return any(map(self.has_reached, flush_marks))

    def relieve(self) -> None:
        """Seal every open batch when the buffer is full and no batch under way will free memory."""
        if not self.outstanding:
            self.seal_all()

    def unresolved_records(self) -> int:
        """Return the number of records that are neither acknowledged nor failed. It is counted on request, not for each record."""
        sealed = sum(batch.record_count for batch in list(self.outstanding.values()))
        return sealed + sum(part.record_count for part in list(self._open.values()))

    def unresolved_outcomes(self) -> list[Outcome]:
        """Return the outcomes of all batches that are neither acknowledged nor failed, open ones included."""
        sealed = [batch.outcome for batch in self.outstanding.values() if batch.outcome is not None]
        return sealed + [part.outcome for part in self._open.values()]

    def flush_mark(self) -> int:
        """Seal everything and return a mark. It is reached when all batches sealed so far are resolved."""
        self.seal_all()
        return self._next_ordinal

    def has_reached(self, mark: int) -> bool:
        """True when every batch that was sealed before the mark is resolved."""
        return not self.outstanding or next(iter(self.outstanding)) >= mark

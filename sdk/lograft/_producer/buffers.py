# SPDX-License-Identifier: Apache-2.0
"""The open batches to which a producer's fast path appends.

This module owns the state of one partition's open batch and the closing of it. `accumulator` explains the state, says why the
fast path needs no lock, and makes every other change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lograft._producer.outcomes import Outcome, Resolver
from lograft._producer.partitioner import CRC32C, KeyRule
from lograft._producer.record_columns import RECORD_OVERHEAD_BYTES
from lograft.types import Headers

MAX_KEPT_KEYS: Final = 16_384
"""Most keys of a topic whose partition is cached: the first ones seen. With their bytes they take about 3 MB."""
MAX_KEPT_KEY_BYTES: Final = 64
"""Bytes of the longest key that is cached."""


MAX_UNKEPT_LOOKUPS: Final = 1_000
"""Lookups of uncached keys after which the topic counts as one with mostly uncached keys."""


NO_LIMIT: Final = (1 << 30) - 1
"""Limit of a batch that has none: more than any length. The interpreter compares larger numbers more slowly."""


class OpenBatch(list["bytes | None"]):
    """The list to which the fast path appends: value, key, value, key, ...

    A batch is *uniform* while all its records have values of one length, and keys of one length or no keys. The fast path then
    compares two lengths instead of counting bytes, and the encoder need not ask each item for its length. The first record of
    another length ends that for the batch: from then on `room` counts the bytes that still fit.

    No record fits into a batch before `begin` has put its first record into it. So a thread that finds room, or the lengths of
    its record, has found a state that no later change can make wrong.

    The class is a list instead of having one. This saves the fast path two steps for each record.

    Attributes:
        room: number of bytes that still fit; -1 in a new or uniform batch. May get negative where threads meet.
        value_length: bytes of each value while the batch is uniform, else -1.
        key_length: bytes of each key of a uniform batch; None if its records have no keys.
        limit: length of the list at which the fast path asks the producer what to do. A uniform batch has no memory for a further
            record then. A closed batch has the limit 0, another one none.
        outcome: the outcome of the batch, for the handles of its records.
        moved: records that came too late for the batch, until the thread that appended each of them takes its entry.
    """

    __slots__ = ("_granted_bytes", "_is_counted", "key_length", "limit", "moved", "outcome", "room", "value_length")

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.room = -1
        self.value_length = -1
        self.key_length: int | None = None
        self.limit = NO_LIMIT
        self.outcome = outcome
        self.moved: list[MovedRecord] = []
        self._granted_bytes = 0
        self._is_counted = False

    @property
    def lengths(self) -> tuple[int, int | None] | None:
        """Length of each value, and of each key if the records have keys, of a uniform batch; None for another one."""
        return None if self.value_length < 0 else (self.value_length, self.key_length)

    @property
    def record_bytes(self) -> int:
        """Bytes counted for each record of a uniform batch."""
        return self.value_length + (self.key_length or 0) + RECORD_OVERHEAD_BYTES

    @property
    def free_bytes(self) -> int:
        """Number of bytes that still fit. Negative where threads that met have appended more than fitted."""
        return self.room if self._is_counted else self._granted_bytes - len(self) // 2 * self.record_bytes

    def grant(self, size_bytes: int) -> None:
        """Add memory for records."""
        if self._is_counted:
            self.room += size_bytes
            return
        self._granted_bytes += size_bytes
        if self.value_length >= 0:
            self.limit = self._granted_bytes // self.record_bytes * 2

    def begin(self, value: bytes, key: bytes | None) -> None:
        """Put the first record into the batch. The batch is uniform if it has memory for a second such record."""
        size = len(value) + len(key or b"") + RECORD_OVERHEAD_BYTES
        self += (value, key)
        if self._granted_bytes < 2 * size:
            self._is_counted = True
            self.room = self._granted_bytes - size
            return
        self.key_length = None if key is None else len(key)
        self.limit = self._granted_bytes // size * 2
        # The fast path looks at this one first, so it is written last.
        self.value_length = len(value)

    def count_bytes(self) -> None:
        """Let records of any length in, as far as they fit."""
        if not self._is_counted:
            room = self.free_bytes
            self.value_length = -1
            self.limit = NO_LIMIT
            self._is_counted = True
            self.room = room


class Place(NamedTuple):
    """Where a record is: the outcome of its batch, its number there from 1, and the create time that it got, if it got its own."""

    outcome: Outcome
    number: int
    timestamp_ms: int | None


class MovedRecord(NamedTuple):
    """A record that came too late for its batch, and its place in a later one."""

    value: bytes | None
    key: bytes | None
    place: Place


CLOSED: Final = OpenBatch(Outcome("", 0, (), Resolver()))
"""The open batch of a partition whose records must not take the fast path. No record fits into it."""
CLOSED.limit = 0


class PartitionBuffer:
    """The open batch of one partition. The fast path changes `open` and its room; `Accumulator` changes everything else.

    Attributes:
        topic_buffers: buffers of the topic.
        topic: topic name.
        partition: partition, from 0.
        open: the batch to which the fast path appends; `CLOSED` while no batch is open, and while the open batch is rich.
        rich: values and keys, alternately, of a batch with timestamps of the caller or with headers; None while the open batch,
            if any, is plain.
        rich_room: bytes that still fit into the rich batch.
        timestamps: timestamps of the rich batch's records; None if no record brought one.
        headers: headers of the rich batch's records; None if no record brought any.
        granted: bytes of the buffer that the open batch was granted; 0 while no batch is open.
        marks: (records before, wall-clock milliseconds). The records after those get this time.
        opened_ms: monotonic time at which the open batch was opened.
        outcome: the outcome of the open batch, plain or rich; of the last one while no batch is open.
        leader: node id of the leader, -1 while none is known. Only the rule "sticky" needs it; the sender writes it.
        last_number: number, from 1, in the open batch of the record that `Accumulator.add` added last.
        pending_batches: number of sealed batches that are not resolved.
        pending_bytes: bytes of the buffer that they hold.
        serial: number of batches sealed before.
        size_limit: bytes of the largest batch with several records.
        max_record_bytes: bytes of the largest batch with one record.
    """

    __slots__ = (
        "granted",
        "headers",
        "last_number",
        "leader",
        "marks",
        "max_record_bytes",
        "open",
        "opened_ms",
        "outcome",
        "partition",
        "pending_batches",
        "pending_bytes",
        "rich",
        "rich_room",
        "serial",
        "size_limit",
        "timestamps",
        "topic",
        "topic_buffers",
    )

    def __init__(self, topic_buffers: TopicBuffers, partition: int, *, size_limit: int, max_record_bytes: int) -> None:
        self.topic_buffers = topic_buffers
        self.topic = topic_buffers.topic
        self.partition = partition
        self.open = CLOSED
        self.rich: list[bytes | None] | None = None
        self.rich_room = 0
        self.timestamps: list[int] | None = None
        self.headers: list[Headers] | None = None
        self.granted = 0
        self.marks: list[tuple[int, int]] = []
        self.opened_ms = 0
        self.outcome = CLOSED.outcome
        self.last_number = 0
        self.leader = -1
        self.pending_batches = 0
        self.pending_bytes = 0
        self.serial = 0
        self.size_limit = size_limit
        self.max_record_bytes = max_record_bytes

    @property
    def is_open(self) -> bool:
        """True while a batch with at least one record is open."""
        return self.granted > 0

    @property
    def room(self) -> int:
        """Bytes that fit into the open batch without a further grant; 0 while no batch is open."""
        if self.rich is not None:
            return self.rich_room
        return 0 if self.open is CLOSED else self.open.free_bytes

    @property
    def record_count(self) -> int:
        """Number of records in the open batch."""
        return len(self.open if self.rich is None else self.rich) // 2


class UnkeptKeys(dict[bytes, PartitionBuffer]):
    """The cached keys of a topic whose keys are mostly not cached. It looks up the other keys without raising an exception."""

    __slots__ = ("_topic",)

    def __init__(self, topic: TopicBuffers) -> None:
        super().__init__(topic.by_key)
        self._topic = topic

    def __missing__(self, key: bytes) -> PartitionBuffer:
        """Return the buffer of an uncached key."""
        return self._topic.of_key(key)


class TopicBuffers:
    """The partitions of one topic.

    Attributes:
        topic: topic name.
        parts: a buffer for each partition.
        count: number of partitions, for the fast path; never more than `parts` has.
        by_key: buffers by key, for a bounded number of keys. A lookup costs the fast path a third of a checksum. It raises
            KeyError for other keys; `of_key` finds their buffer. `grow` replaces the dict.
        unkept_lookups: number of calls of `of_key` for keys that are not cached. Threads that meet may lose a count.
        sticky: partition that takes records without key and partition until its batch is sealed.
        rule: how keys decide. With a rule that does not hash keys, `by_key` stays empty and asks `of_key` for each record.
    """

    __slots__ = ("by_key", "count", "parts", "rule", "sticky", "topic", "unkept_lookups")

    def __init__(self, topic: str, rule: KeyRule = CRC32C) -> None:
        self.topic = topic
        self.rule = rule
        self.parts: list[PartitionBuffer] = []
        self.count = 0
        self.by_key: dict[bytes, PartitionBuffer] = {}
        self.sticky = 0
        self.unkept_lookups = 0
        if rule.hash is None:
            self.by_key = UnkeptKeys(self)

    def grow(self, parts: Sequence[PartitionBuffer]) -> None:
        """Add partitions.

        The order of the steps matters: a thread that meanwhile caches a buffer by the old count puts it into the old `by_key`.
        """
        self.parts += parts
        self.count = len(self.parts)
        if self.rule.hash is not None:
            self.by_key = {}
        self.unkept_lookups = 0

    def of_key(self, key: bytes) -> PartitionBuffer:
        """Return the buffer of a key by the rule. Cache it if the rule hashes keys, while the cache has room.

        The producer asks a program's own function itself, before it comes here with a partition.
        """
        hash_one = self.rule.hash
        if hash_one is None:
            return self.parts[self.sticky]
        by_key = self.by_key
        part = self.parts[hash_one(key) % self.count]
        if len(by_key) < MAX_KEPT_KEYS and len(key) <= MAX_KEPT_KEY_BYTES:
            by_key[key] = part
        else:
            self.unkept_lookups += 1
        return part

    def suit_keys(self) -> None:
        """Change to `UnkeptKeys` when most keys are not cached. As for `grow`, the caller holds the client's lock.

        An exception costs the fast path three times as much as a lookup. This is acceptable for the first record of each key,
        but not for every record of a topic with more or longer keys than the cache takes.
        """
        if self.unkept_lookups > MAX_UNKEPT_LOOKUPS and type(self.by_key) is dict:
            self.by_key = UnkeptKeys(self)


NO_TOPIC: Final[tuple[str, TopicBuffers | None]] = ("", None)
"""Placeholder for a topic and its buffers; no topic has an empty name."""


def close_batch(part: PartitionBuffer) -> tuple[list[bytes | None], list[bytes | None]]:
    """Keep the fast path away from the open batch, and return its values and its keys.

    The order of the steps matters: a thread that appends after the length is read finds the limit 0 (see `accumulator`).
    """
    flat = part.open
    part.open = CLOSED
    flat.limit = 0
    end = len(flat)
    values, keys = flat[:end:2], flat[1:end:2]
    del flat[:end]
    return values, keys

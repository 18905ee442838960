# SPDX-License-Identifier: Apache-2.0
"""The open batches that a producer's fast path appends to.

Owns the state of one partition's open batch and the closing of it. What the state means, and why the fast path needs no
lock, stands in `accumulator`, which owns every other change of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from lograft.types import Headers

MAX_KEPT_KEYS: Final = 16_384
"""Keys of a topic, at most, whose partition is kept: the first ones seen. With their own bytes about 3 MB."""
MAX_KEPT_KEY_BYTES: Final = 64
"""Bytes of the longest key that is kept."""


MAX_UNKEPT_LOOKUPS: Final = 1_000
"""Look-ups of keys that are not kept after which such keys are taken for the usual ones."""


class OpenBatch(list["bytes | None"]):
    """What the fast path appends to: value, key, value, key, ...; `room` is what still fits in.

    It is a list, not an owner of one: that saves the fast path two steps for each record.
    """

    __slots__ = ("room",)

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room


CLOSED: Final = OpenBatch(-1)
"""Stands where no batch takes records by the fast path; nothing ever fits into it."""


class PartitionBuffer:
    """The open batch of one partition. The producer's fast path works on `open`; all else is `Accumulator`'s.

    Attributes:
        topic_buffers: the topic.
        topic: its name.
        partition: number of the partition.
        open: where the fast path appends; `CLOSED` while no batch is open, or it is a rich one.
        rich: values and keys in turns of a batch with own timestamps or headers; None: the open batch, if any, is
            plain.
        rich_room: bytes that fit into the rich batch.
        timestamps: own timestamps of the rich batch's records; None: they have none.
        headers: headers of the rich batch's records; None: they have none.
        granted: bytes of the buffer that the open batch was granted; 0: none is open.
        marks: (records before, wall-clock milliseconds): records from there on get this time.
        opened_ms: monotonic time at which the open batch was opened.
        pending_batches: sealed batches that are not resolved.
        serial: number of batches sealed before.
        size_limit: bytes of the largest batch of several records.
        max_record_bytes: bytes of the largest batch of one record.
    """

    __slots__ = (
        "granted",
        "headers",
        "marks",
        "max_record_bytes",
        "open",
        "opened_ms",
        "partition",
        "pending_batches",
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
        self.pending_batches = 0
        self.serial = 0
        self.size_limit = size_limit
        self.max_record_bytes = max_record_bytes

    @property
    def is_open(self) -> bool:
        """True while a batch with at least one record is open."""
        return self.granted > 0

    @property
    def room(self) -> int:
        """Bytes that fit into the open batch without a further grant; 0: none is open."""
        if self.rich is not None:
            return self.rich_room
        return 0 if self.open is CLOSED else self.open.room

    @property
    def record_count(self) -> int:
        """Records in the open batch."""
        return len(self.open if self.rich is None else self.rich) // 2


class UnkeptKeys(dict[bytes, PartitionBuffer]):
    """The kept keys of a topic most of whose keys are not kept: looks the others up without an exception for each."""

    __slots__ = ("_topic",)

    def __init__(self, topic: TopicBuffers) -> None:
        super().__init__(topic.by_key)
        self._topic = topic

    def __missing__(self, key: bytes) -> PartitionBuffer:
        """Buffer of a key that is not kept."""
        return self._topic.of_key(key)


class TopicBuffers:
    """The partitions of one topic.

    Attributes:
        topic: its name.
        parts: a buffer for each partition.
        count: how many there are, for the fast path; never more than `parts` has.
        by_key: the buffer of keys that were seen, a bounded number of them: looking one up costs the fast path a third
            of what its checksum does. A key that is not in it raises KeyError: `of_key` knows its buffer. Replaced when
            partitions are added.
        unkept_lookups: how often `of_key` was asked for a key that is not kept; threads that meet may lose a count.
        sticky: takes the records without key and partition until its batch is sealed.
    """

    __slots__ = ("by_key", "count", "parts", "sticky", "topic", "unkept_lookups")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.parts: list[PartitionBuffer] = []
        self.count = 0
        self.by_key: dict[bytes, PartitionBuffer] = {}
        self.sticky = 0
        self.unkept_lookups = 0

    def grow(self, parts: Sequence[PartitionBuffer]) -> None:
        """Add partitions.

        The order is the point: a client that keeps a buffer by the old count meanwhile keeps it in the old `by_key`.
        """
        self.parts += parts
        self.count = len(self.parts)
        self.by_key = {}
        self.unkept_lookups = 0

    def of_key(self, key: bytes) -> PartitionBuffer:
        """Buffer of a key: its CRC-32C modulo the partition count, kept for the next time while there is room."""
        by_key = self.by_key
        part = self.parts[crc32c(key) % self.count]
        if len(by_key) < MAX_KEPT_KEYS and len(key) <= MAX_KEPT_KEY_BYTES:
            by_key[key] = part
        else:
            self.unkept_lookups += 1
        return part

    def suit_keys(self) -> None:
        """Change to `UnkeptKeys` when most keys are not kept; called with the client's lock held, as `grow` is.

        An exception costs the fast path three times what a look-up does: right for the first record of each key, wrong
        for every record of a topic with more or longer keys than are kept.
        """
        if self.unkept_lookups > MAX_UNKEPT_LOOKUPS and type(self.by_key) is dict:
            self.by_key = UnkeptKeys(self)


NO_TOPIC: Final[tuple[str, TopicBuffers | None]] = ("", None)
"""Stands in the place of a topic and its buffers; no topic has this name."""


def close_batch(part: PartitionBuffer) -> tuple[list[bytes | None], list[bytes | None]]:
    """Keep the fast path off the open batch and return its values and its keys.

    The order is the point: whoever appends after the look at the length sees that the batch is closed (see
    `accumulator`).
    """
    flat = part.open
    part.open = CLOSED
    end = len(flat)
    values, keys = flat[:end:2], flat[1:end:2]
    del flat[:end]
    return values, keys

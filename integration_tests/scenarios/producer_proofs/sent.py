# SPDX-License-Identifier: Apache-2.0
"""What a producer sent and what its handles said, and the comparison with the logs. Does not know clients or clusters.

A record is named by its key and its number, and the numbers of a key are 0, 1, 2, ... So its value says where it belongs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

PROBLEMS_MAX = 100
RECORD_OVERHEAD_BYTES = 16
"""Bytes that a record counts beside key and value (`buffer_bytes`)."""


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record as a reader found it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class _Waiting:
    partition: int
    size_bytes: int


def encode(key: int, number: int, size_bytes: int) -> tuple[bytes, bytes]:
    """Return key and value of a record. The value is padded to a size."""
    return b"k%d" % key, (b"%d:%d " % (key, number)).ljust(size_bytes, b".")


def decode(value: bytes | None) -> tuple[int, int] | None:
    """Return key and number of a value; None: it is no value of a proof."""
    head, separator, padding = (value or b"").partition(b" ")
    key, colon, number = head.partition(b":")
    if not separator or not colon or padding.strip(b".") or not key.isdigit() or not number.isdigit():
        return None
    return int(key), int(number)


class Sent:
    """All records of one producer. `sending` is called by the thread that sends, `resolved` by any.

    Args:
        name: name of the producer, for messages.
        keys: number of keys.
        partition_count: partitions of its topic.

    Attributes:
        problems: what was found so far.
        resolved_count: handles with a result.
        waiting_bytes_max: most bytes of records without a result, as `buffer_bytes` counts them.
    """

    def __init__(self, name: str, *, keys: int, partition_count: int) -> None:
        self.name = name
        self.problems: list[str] = []
        self.resolved_count = 0
        self.waiting_bytes_max = 0
        self._next = [0] * keys
        # Place of each record by key and number; None: without a result.
        self._places: list[list[tuple[int, int] | None]] = [[] for _ in range(keys)]
        # Everything below has a result, as far as somebody asked.
        self._resolved_end = [0] * keys
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._waiting_bytes = 0
        self._waiting_in = [0] * partition_count
        self._resolved_s = [0.0] * partition_count
        self._lock = threading.Lock()

    @property
    def sent_count(self) -> int:
        """Number of records sent."""
        return sum(self._next)

    @property
    def unresolved_count(self) -> int:
        """Number of records without a result."""
        with self._lock:
            return len(self._waiting)

    def waiting_in(self, partition: int) -> int:
        """Return the bytes without a result in a partition."""
        return self._waiting_in[partition]

    def resolved_after(self, partition: int, when_s: float) -> bool:
        """Return True if a record of a partition was acknowledged after a monotonic time."""
        return self._resolved_s[partition] > when_s

    def are_resolved(self, marks: Iterable[int]) -> bool:
        """Return True if every record that was sent before the marks (see `marks`) has a result."""
        with self._lock:
            for key, mark in enumerate(marks):
                places = self._places[key]
                while self._resolved_end[key] < mark and places[self._resolved_end[key]] is not None:
                    self._resolved_end[key] += 1
                if self._resolved_end[key] < mark:
                    return False
        return True

    def marks(self) -> list[int]:
        """Return how many records of each key were sent."""
        return list(self._next)

    def take(self, key: int) -> int:
        """Return the number of the next record of a key."""
        number = self._next[key]
        self._next[key] += 1
        with self._lock:
            self._places[key].append(None)
        return number

    def sending(self, key: int, number: int, partition: int, size_bytes: int) -> None:
        """Note that the producer has taken a record, whose handle names the partition."""
        with self._lock:
            if self._places[key][number] is not None:
                # The result came before `send` returned.
                return
            self._waiting[key, number] = _Waiting(partition, size_bytes)
            self._waiting_bytes += size_bytes
            self._waiting_in[partition] += size_bytes
            self.waiting_bytes_max = max(self.waiting_bytes_max, self._waiting_bytes)

    def resolved(self, key: int, number: int, result: tuple[int, int] | Exception) -> None:
        """Note the result of a handle: partition and offset, or the error."""
        with self._lock:
            self.resolved_count += 1
            waiting = self._waiting.pop((key, number), None)
            if waiting is not None:
                self._waiting_bytes -= waiting.size_bytes
                self._waiting_in[waiting.partition] -= waiting.size_bytes
            if self._places[key][number] is not None:
                self._note(f"{key}:{number} got a second result: {result}")
            if isinstance(result, Exception):
                self._places[key][number] = (-1, -1)
                self._note(f"{key}:{number} was not acknowledged: {result!r}")
                return
            self._places[key][number] = result
            self._resolved_s[result[0]] = time.monotonic()

    def compare(self, records: Iterable[LoggedRecord]) -> list[str]:
        """Return the problems: what the handles said, and how the logs differ from what was sent.

        Args:
            records: everything in the topic, each partition in the order of its offsets.
        """
        counts = [0] * len(self._next)
        homes: list[int | None] = [None] * len(self._next)
        for record in records:
            found = decode(record.value)
            if found is None or record.key != b"k%d" % found[0] or found[0] >= len(counts):
                self._note(f"{record.partition} has {record.value!r} at {record.offset}, which nobody sent")
                continue
            key, number = found
            where = f"{key}:{number} at {record.offset} of partition {record.partition}"
            if homes[key] not in (None, record.partition):
                self._note(f"{where}: the key is also in partition {homes[key]}")
            homes[key] = record.partition
            if number != counts[key]:
                what = "DOUBLED or out of order" if number < counts[key] else "LOST or out of order before it"
                self._note(f"{where}: {counts[key]} is next: {what}")
            counts[key] = max(counts[key], number + 1)
            place = self._places[key][number] if number < len(self._places[key]) else None
            if place != (record.partition, record.offset):
                self._note(f"{where}: its handle says {place}")
        for key, (count, sent) in enumerate(zip(counts, self._next, strict=True)):
            if count != sent:
                self._note(f"key {key}: {count} records in the log, {sent} sent: LOST")
        if self._waiting:
            self._note(f"{len(self._waiting)} handles have no result")
        if self.resolved_count != self.sent_count:
            self._note(f"{self.resolved_count} results of {self.sent_count} handles")
        return [f"{self.name}: {problem}" for problem in self.problems]

    def _note(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

# SPDX-License-Identifier: Apache-2.0
"""What the log must have and what it has, as counts and checksums that do not depend on order.

Owns the hash of a record, the tallies, and their comparison. Must not import Lograft, because the proof must not rest on the code
that it judges. So the partition of a key is computed here again, by the rule in the documentation (CRC-32C modulo the partition
count).

A checksum is the sum modulo 2**64 of a 64-bit BLAKE2b hash of (key, value, timestamp) of each record. A record that is lost,
duplicated, changed or moved to another partition changes it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from crc32c import crc32c

MODULUS = 2**64
_LENGTHS = struct.Struct(">qqq")
_HASH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """A record to ingest. `key` None: the record has no key. The timestamp is in milliseconds since 1970-01-01 UTC."""

    key: bytes | None
    value: bytes
    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Number of records, and the sum of their hashes modulo 2**64."""

    count: int = 0
    checksum: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(count=self.count + other.count, checksum=(self.checksum + other.checksum) % MODULUS)


Tallies = Mapping[int, Tally]
"""Tallies by partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One partition of the source, with the same partition of the log."""

    partition: int
    wanted: Tally
    found: Tally

    @property
    def is_equal(self) -> bool:
        """True if no record is lost, duplicated, changed or misplaced."""
        return self.wanted == self.found


def hash_record(key: bytes | None, value: bytes | None, timestamp_ms: int) -> int:
    """Hash one record. The lengths are part of the hash, so bytes cannot move between key and value unnoticed."""
    lengths = _LENGTHS.pack(-1 if key is None else len(key), -1 if value is None else len(value), timestamp_ms)
    return _HASH.unpack(blake2b(b"".join((lengths, key or b"", value or b"")), digest_size=8).digest())[0]


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of a key."""
    return crc32c(key) % partition_count


class SourceFacts:
    """Hash, partition and time of every source record, so that a time range can be chosen and tallied afterwards.

    It takes 17 bytes for each record.
    """

    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count
        self.size_bytes = 0
        self.keyless_count = 0
        self._hashes = array("Q")
        self._timestamps_ms = array("q")
        self._partitions = array("b" if partition_count <= 127 else "i")

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, record: SourceRecord) -> int:
        """Note a record.

        Returns:
            Its partition. Records without a key get the partitions in turn.
        """
        if record.key is None:
            partition = self.keyless_count % self.partition_count
            self.keyless_count += 1
        else:
            partition = partition_of(record.key, self.partition_count)
        self._hashes.append(hash_record(record.key, record.value, record.timestamp_ms))
        self._timestamps_ms.append(record.timestamp_ms)
        self._partitions.append(partition)
        self.size_bytes += len(record.key or b"") + len(record.value)
        return partition

    def tally(self, start_ms: int | None = None, end_ms: int | None = None) -> dict[int, Tally]:
        """Tally the records from `start_ms` (inclusive) to `end_ms` (exclusive); None: no bound."""
        counts: dict[int, int] = {}
        sums: dict[int, int] = {}
        for hashed, timestamp_ms, partition in zip(self._hashes, self._timestamps_ms, self._partitions, strict=True):
            if (start_ms is None or timestamp_ms >= start_ms) and (end_ms is None or timestamp_ms < end_ms):
                counts[partition] = counts.get(partition, 0) + 1
                sums[partition] = sums.get(partition, 0) + hashed
        return {
            partition: Tally(count=count, checksum=sums[partition] % MODULUS) for partition, count in counts.items()
        }

    def middle_range(self) -> tuple[int, int]:
        """Return a time range with about the middle third of the records.

        Returns:
            Start (inclusive) and end (exclusive) in milliseconds since 1970-01-01 UTC.
        """
        ordered = sorted(self._timestamps_ms)
        start_ms, end_ms = ordered[len(ordered) // 3], ordered[2 * len(ordered) // 3]
        return start_ms, max(end_ms, start_ms + 1)


def compare(wanted: Tallies, found: Tallies, partition_count: int) -> list[Comparison]:
    """Return both sides together, one line for each partition, ascending."""
    # Records in a partition that the topic should not have must show too.
    partitions = sorted({*range(partition_count), *wanted, *found})
    return [
        Comparison(partition=each, wanted=wanted.get(each, Tally()), found=found.get(each, Tally()))
        for each in partitions
    ]

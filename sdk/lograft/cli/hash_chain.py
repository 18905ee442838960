# SPDX-License-Identifier: Apache-2.0
"""A hash chain through the values of a partition. Equal seeds give equal values.

    value = digest of the value before (8 bytes) | number (8) | time of sending in ns (8) | filler

The number counts from 0. The digest before the first value is that of the run and the partition. Since each digest covers its
whole value, with the digest in it, a value fits only behind exactly the values that were sent before it: a changed byte, a
missing, doubled or swapped record is found at the next one. The digest after the last value is compared with the sender's.
Source: the bench of s2 (Stream Store) checks its data so while it measures.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 8
"""Bytes of a digest. Faults are found, attacks are not the subject."""

HEAD: Final = struct.Struct(f"<{DIGEST_BYTES}sQQ")
"""Digest of the value before, number, time of sending in nanoseconds."""

MIN_VALUE_BYTES: Final = HEAD.size
"""Bytes of the smallest value."""

POOL_BYTES: Final = 1 << 20
"""Bytes from which the filler is cut, besides the size of a value."""

_STEP: Final = 4_099
"""Bytes between the fillers of two values; a prime, so that they do not repeat soon."""


class ChainError(Exception):
    """The values of a partition are not those that were sent. The text says where and how."""


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The end of a chain: number of values, and the digest of the last one."""

    count: int
    digest: bytes


class ChainWriter:
    """Makes the values of one partition."""

    def __init__(self, run: bytes, partition: int, value_bytes: int, seed: int) -> None:
        """Begin a chain.

        Args:
            run: id of the run.
            partition: the partition.
            value_bytes: bytes of each value, at least `MIN_VALUE_BYTES`.
            seed: seed of the filler.
        """
        self._digest = first_digest(run, partition)
        self._count = 0
        self._filler_bytes = value_bytes - HEAD.size
        self._pool = _pool(seed, self._filler_bytes)

    def next(self, time_ns: int) -> bytes:
        """Return the next value.

        Args:
            time_ns: time of sending, in nanoseconds of any clock.
        """
        number = self._count
        at = number * _STEP % POOL_BYTES
        value = HEAD.pack(self._digest, number, time_ns) + self._pool[at : at + self._filler_bytes]
        self._digest = blake2b(value, digest_size=DIGEST_BYTES).digest()
        self._count = number + 1
        return value

    def end(self) -> ChainEnd:
        """Return where the chain is."""
        return ChainEnd(self._count, self._digest)


class ChainReader:
    """Checks the values of one partition, in the order of their offsets."""

    def __init__(self, run: bytes, partition: int) -> None:
        self._digest = first_digest(run, partition)
        self._count = 0
        self._partition = partition

    def take(self, values: Sequence[bytes | None], base_offset: int) -> None:
        """Check the next values.

        Args:
            values: the values.
            base_offset: offset of the first one.

        Raises:
            ChainError: a value does not follow the one before.
        """
        digest = self._digest
        for value in values:
            if value is None or value[:DIGEST_BYTES] != digest:
                raise self._wrong(value, base_offset)
            digest = blake2b(value, digest_size=DIGEST_BYTES).digest()
            self._count += 1
            base_offset += 1
        self._digest = digest

    def check_end(self, end: ChainEnd) -> None:
        """Compare with what was sent.

        Raises:
            ChainError: values are missing at the end, or the last one was changed.
        """
        if self._count != end.count:
            raise ChainError(f"partition {self._partition}: {self._count} of {end.count} records came")
        if self._digest != end.digest:
            raise ChainError(f"partition {self._partition}: the last record was changed")

    def _wrong(self, value: bytes | None, offset: int) -> ChainError:
        where = f"partition {self._partition}, offset {offset}"
        if value is None or len(value) < HEAD.size:
            return ChainError(f"{where}: this record was never sent")
        _, number, _ = HEAD.unpack_from(value)
        if number > self._count:
            return ChainError(f"{where}: record {number} came in place of {self._count}: records are missing")
        if number < self._count:
            return ChainError(f"{where}: record {number} came again, in place of {self._count}")
        return ChainError(f"{where}: record {number - 1} or the beginning of this one was changed")


@lru_cache(maxsize=1)
def _pool(seed: int, filler_bytes: int) -> bytes:
    """Return the bytes from which all partitions cut their fillers."""
    return random.Random(seed).randbytes(POOL_BYTES + filler_bytes)


def first_digest(run: bytes, partition: int) -> bytes:
    """Return the digest before the first value of a partition."""
    return blake2b(run + partition.to_bytes(4, "little"), digest_size=DIGEST_BYTES).digest()


def sent_ns(value: bytes) -> int:
    """Return the time of sending of a value."""
    return HEAD.unpack_from(value)[2]

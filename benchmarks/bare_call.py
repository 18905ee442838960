# SPDX-License-Identifier: Apache-2.0
"""The ceiling of `send()`: a method in plain Python that does the least that a keyed send must do, and nothing with the records.

It checks two types, hashes the key with zlib's CRC-32 to a partition, appends key and value to that partition's lists, and takes the
time. It counts no memory, looks up no topic and seals no batch, and no other thread uses the lists. On the machine of the reference
figures such a call takes 173 ns, so 1.5 M records/s are 0.26 of its rate. Its time here shows how fast the interpreter is at the
moment.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence

DEMANDED_RATIO = 0.26
"""1.5 M records/s as a share of the rate of calls of 173 ns."""


class BareProducer:
    """Collects records by partition, without a limit."""

    def __init__(self, partition_count: int) -> None:
        self._partitions: list[tuple[list[bytes], list[bytes]]] = [([], []) for _ in range(partition_count)]
        self._count = partition_count
        self.last_s = 0.0

    def send(self, topic: str, value: bytes, key: bytes) -> None:
        """Collect one record. The topic is ignored."""
        if type(value) is not bytes or type(key) is not bytes:
            raise TypeError("value and key must be bytes")
        values, keys = self._partitions[zlib.crc32(key) % self._count]
        values.append(value)
        keys.append(key)
        self.last_s = time.time()


def bare_calls_s(keys: Sequence[bytes], values: Sequence[bytes], partition_count: int) -> float:
    """Return the seconds of one bare call for each record, in the same loop in which `send()` is measured."""
    send = BareProducer(partition_count).send
    started = time.perf_counter()
    for key, value in zip(keys, values, strict=True):
        send("topic", value, key=key)
    return time.perf_counter() - started

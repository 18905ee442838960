# SPDX-License-Identifier: Apache-2.0
"""What was sent, acknowledged and read in each partition of a soak, and the problems found.

Only one producer sends to a fresh topic, so record n of a partition has offset n, if nothing is lost, duplicated or moved. Its receipt
must say so, and a reader must find it there. A value is its number (8 bytes, big-endian) and a body computed from the number. Retention
removes old records, so the check happens during the soak, not at the end.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from itertools import pairwise

from integration_tests.harness.load.times import Wait

NUMBER_BYTES = 8
BODIES = 61
"""Number of different bodies. It is prime, so that no batch size hides a shift."""
PROBLEMS_MAX = 20
"""Maximum problems that are kept."""


class Values:
    """Makes values and checks them.

    Args:
        value_bytes: size of each value, including its number.
        seed: seed of the bodies.
    """

    def __init__(self, value_bytes: int, *, seed: int = 1) -> None:
        assert value_bytes > NUMBER_BYTES, f"{value_bytes} bytes leave no body"
        rng = random.Random(seed)
        self._bodies = [rng.randbytes(value_bytes - NUMBER_BYTES) for _ in range(BODIES)]

    def make(self, first: int, count: int) -> list[bytes]:
        """Return the values of consecutive numbers, in order."""
        return [
            number.to_bytes(NUMBER_BYTES, "big") + self._bodies[number % BODIES]
            for number in range(first, first + count)
        ]

    def is_right(self, number: int, value: bytes | None) -> bool:
        """Return True if this is the value of a number."""
        if value is None or int.from_bytes(value[:NUMBER_BYTES], "big") != number:
            return False
        return value[NUMBER_BYTES:] == self._bodies[number % BODIES]


class PartitionLedger:
    """One partition. `sent`, `acknowledged` and `read` are counts of records, and at the same time the next offsets."""

    def __init__(self) -> None:
        self.sent = self.acknowledged = self.read = 0
        # End (exclusive) and time of each group of records that was sent together and is not acknowledged yet.
        self.under_way: deque[tuple[int, float]] = deque()


class Ledger:
    """All partitions. Each method belongs to one thread: sending to the sender, receipts to the SDK, reading to the reader.

    Attributes:
        partitions: partitions by number.
        problems: the first problems found.
        waits: waits of records that were sent together, until their last receipt.
    """

    def __init__(self, partition_count: int, values: Values) -> None:
        self.partitions = [PartitionLedger() for _ in range(partition_count)]
        self.problems: list[str] = []
        self.waits: list[Wait] = []
        self._values = values

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged records, in all partitions."""
        return sum(each.acknowledged for each in self.partitions)

    @property
    def is_all_read(self) -> bool:
        """True if everything acknowledged has been read."""
        return all(each.read >= each.acknowledged for each in self.partitions)

    def unread(self, partition: int) -> int:
        """Return how many records of a partition are acknowledged and not read yet."""
        each = self.partitions[partition]
        return each.acknowledged - each.read

    def send(self, partition: int, count: int, now_s: float) -> list[bytes]:
        """Return the next values of a partition, to be sent now."""
        each = self.partitions[partition]
        values = self._values.make(each.sent, count)
        each.sent += count
        each.under_way.append((each.sent, now_s))
        return values

    def take_receipt(self, partition: int, base_offset: int, count: int, now_s: float) -> None:
        """Note that the next records of a partition were acknowledged, at an offset."""
        each = self.partitions[partition]
        if base_offset != each.acknowledged:
            self.note(
                f"partition {partition}: {count} records acknowledged at {base_offset}, not at {each.acknowledged}"
            )
        each.acknowledged += count
        if each.acknowledged > each.sent:
            self.note(f"partition {partition}: {each.acknowledged} records acknowledged of {each.sent} sent")
        while each.under_way and each.under_way[0][0] <= each.acknowledged:
            _, sent_s = each.under_way.popleft()
            self.waits.append(Wait(partition, sent_s, now_s))

    def take_read(self, partition: int, base_offset: int, values: Iterable[bytes | None]) -> None:
        """Note what a reader found, batch by batch."""
        each = self.partitions[partition]
        if base_offset != each.read:
            self.note(f"partition {partition}: read {base_offset} after {each.read - 1}")
            each.read = base_offset
        for value in values:
            if not self._values.is_right(each.read, value):
                found = "a null" if value is None else f"{value[:NUMBER_BYTES].hex()} and {len(value)} bytes in all"
                self.note(f"partition {partition}: another value at {each.read}: {found}")
            each.read += 1

    def note(self, problem: str) -> None:
        """Keep a problem, up to the maximum."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def judge_end(self) -> list[str]:
        """Compare what was sent, acknowledged and read. Call it only after everything should have ended."""
        found = list(self.problems)
        for number, each in enumerate(self.partitions):
            counts = {"sent": each.sent, "acknowledged": each.acknowledged, "read": each.read}
            if any(one != other for one, other in pairwise(counts.values())):
                found.append(f"partition {number}: {counts} records")
        return found

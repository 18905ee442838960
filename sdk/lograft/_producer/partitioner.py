# SPDX-License-Identifier: Apache-2.0
"""Which partition a record goes to.

Owns the rule for keys. Records without a key stick to one partition until its batch is sealed: see
`TopicBuffers.sticky`.
Source: librdkafka's `consistent_random`, except that the checksum is CRC-32C (hardware does it), as the Append call
of a broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c


def partition_by_keys(keys: Sequence[bytes | None], partition_count: int, *, keyless: int) -> list[int]:
    """Partition of each key: its CRC-32C modulo the partition count, `keyless` for None."""
    return [keyless if key is None else crc32c(key) % partition_count for key in keys]


def group_by_partition(partitions: Sequence[int]) -> dict[int, list[int]]:
    """Indexes of the records of each partition, ascending; partitions in the order of their first record."""
    groups: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        group = groups.get(partition)
        if group is None:
            groups[partition] = [index]
        else:
            group.append(index)
    return groups

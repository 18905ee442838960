# SPDX-License-Identifier: Apache-2.0
"""Chooses the partition of a record.

This module has the rule for keys. Records without a key stick to one partition until its batch is sealed; see
`TopicBuffers.sticky`.
Source: librdkafka's `consistent_random`, but with CRC-32C as the checksum, which hardware computes. A broker's Append call uses
the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c


def partition_by_keys(keys: Sequence[bytes | None], partition_count: int, *, keyless: int) -> list[int]:
    """Return the partition of each key: its CRC-32C modulo the partition count, and `keyless` for None."""
    return [keyless if key is None else crc32c(key) % partition_count for key in keys]


def group_by_partition(partitions: Sequence[int]) -> dict[int, list[int]]:
    """Return the indexes of each partition's records, ascending. The partitions are in the order of their first record."""
    groups: dict[int, list[int]] = {}
    for index, partition in enumerate(partitions):
        group = groups.get(partition)
        if group is None:
            groups[partition] = [index]
        else:
            group.append(index)
    return groups

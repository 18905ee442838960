# SPDX-License-Identifier: Apache-2.0
"""Chooses the partition of a key.

The producers of the SDK and `Append` share this rule, so a key goes to the same partition on both ways.
Law: equal keys and equal partition counts give the same partition in every version and every language.
"""

from __future__ import annotations

from lograft.wire.checksum import BytesLike, crc32c


def partition_for_key(key: BytesLike, partition_count: int) -> int:
    """Return the partition of a key: its CRC-32C modulo the partition count.

    Args:
        key: the key; may be empty. The caller places records without a key.
        partition_count: number of partitions of the topic, at least 1.

    Returns:
        The partition, from 0 (inclusive) to `partition_count` (exclusive).
    """
    return crc32c(key) % partition_count

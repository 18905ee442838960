# SPDX-License-Identifier: Apache-2.0
"""Which partition a key belongs to.

Shared by the producers of the SDK and by `Append`, so that the same key lands in the same partition whichever way it
comes.
Law: equal keys and equal partition counts give the same partition in every version and every language.
"""

from __future__ import annotations

from lograft.wire.checksum import BytesLike, crc32c


def partition_for_key(key: BytesLike, partition_count: int) -> int:
    """Give the partition of a key: its CRC-32C modulo the partition count.

    Args:
        key: the key; may be empty. Records without a key are placed by the caller.
        partition_count: partitions of the topic, at least 1.

    Returns:
        Partition, 0 inclusive to `partition_count` exclusive.
    """
    return crc32c(key) % partition_count

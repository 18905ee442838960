# SPDX-License-Identifier: Apache-2.0
"""CRC-32C and the partition of a key."""

from __future__ import annotations

import pytest
from lograft.wire.checksum import crc32c
from lograft.wire.partitioner import partition_for_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_crc32c_known_answers(data: bytes, expected: int) -> None:
    """The vectors of RFC 3720 appendix B.4 hold, for every kind of buffer and in pieces."""
    assert crc32c(data) == crc32c(bytearray(data)) == crc32c(memoryview(data)) == expected
    assert crc32c(data[5:], crc32c(data[:5])) == expected


@pytest.mark.parametrize(("key", "partition"), [(b"", 0), (b"123456789", 0xE3069283 % 6), (bytes(32), 0x8A9136AA % 6)])
def test_partition_is_the_crc_modulo_the_count(key: bytes, partition: int) -> None:
    """The partition of a key never changes: other languages compute the same."""
    assert partition_for_key(key, 6) == partition
    assert partition_for_key(key, 1) == 0

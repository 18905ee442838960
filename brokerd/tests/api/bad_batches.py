# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a batch, each with the code that a broker must refuse it with."""

from __future__ import annotations

import struct
from collections.abc import Callable

import zstandard
from lograft.wire.checksum import crc32c
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_INFLATED_BYTES
from lograft.wire.varint import encode_varint

CRC_POSITION = 17
CRC_START = 21


def with_crc(batch: bytearray) -> bytes:
    """Give a changed batch a matching CRC, so that the check behind the CRC refuses it."""
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def changed(batch: bytes, form: str, position: int, value: int) -> bytes:
    """Overwrite one field of a header."""
    copy = bytearray(batch)
    struct.pack_into(form, copy, position, value)
    return with_crc(copy)


def broken_crc(batch: bytes) -> bytes:
    copy = bytearray(batch)
    copy[-1] ^= 1
    return bytes(copy)


def compressed(batch: bytes, inflated_bytes: int, *, states_size: bool) -> bytes:
    """A batch whose payload inflates to that many bytes of zeros as values, made without holding them."""
    prefix = b"\x0a" + encode_varint(inflated_bytes)
    size = len(prefix) + inflated_bytes
    compressor = zstandard.ZstdCompressor(write_content_size=states_size).compressobj(size=size if states_size else -1)
    payload = compressor.compress(prefix)
    piece = bytes(1024 * 1024)
    for start in range(0, inflated_bytes, len(piece)):
        payload += compressor.compress(piece[: inflated_bytes - start])
    payload += compressor.flush()
    copy = bytearray(batch[:61]) + payload
    struct.pack_into(">i", copy, 8, len(copy) - 12)
    struct.pack_into(">h", copy, 21, 4)
    return with_crc(copy)


def torn_zstd(batch: bytes) -> bytes:
    copy = bytearray(batch[:61]) + b"\x28\xb5\x2f\xfd\x00"
    struct.pack_into(">i", copy, 8, len(copy) - 12)
    struct.pack_into(">h", copy, 21, 4)
    return with_crc(copy)


BATCHES: dict[str, tuple[ErrorCode, Callable[[bytes], bytes]]] = {
    "empty": (ErrorCode.INVALID_BATCH, lambda batch: b""),
    "shorter than a header": (ErrorCode.INVALID_BATCH, lambda batch: batch[:60]),
    "truncated": (ErrorCode.INVALID_BATCH, lambda batch: batch[:-1]),
    "two batches in one": (ErrorCode.INVALID_BATCH, lambda batch: batch + batch),
    "broken CRC": (ErrorCode.CORRUPT_BATCH, broken_crc),
    "over the topic's limit": (ErrorCode.MESSAGE_TOO_LARGE, lambda batch: batch + bytes(100_000)),
    "length negative": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">i", 8, -1)),
    "length huge": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">i", 8, 2**31 - 1)),
    "Kafka's magic": (ErrorCode.UNSUPPORTED_FORMAT, lambda batch: changed(batch, ">b", 16, 2)),
    "unknown magic": (ErrorCode.UNSUPPORTED_FORMAT, lambda batch: changed(batch, ">b", 16, 99)),
    "unknown codec": (ErrorCode.UNSUPPORTED_FORMAT, lambda batch: changed(batch, ">h", 21, 3)),
    "control batch": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">h", 21, 0x20)),
    "wrong count": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">i", 57, 3)),
    "count zero": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">i", 57, 0)),
    "count negative": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">i", 57, -5)),
    "record-count bomb": (
        ErrorCode.INVALID_BATCH,
        lambda batch: changed(bytes(changed(batch, ">i", 57, 2**31 - 1)), ">i", 23, 2**31 - 2),
    ),
    "offsets burnt": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">i", 23, 1_000_000)),
    "base offset negative": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">q", 0, -1)),
    "timestamp negative": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">q", 27, -1)),
    "timestamp of no year": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">q", 27, 2**62)),
    "zstd bomb": (
        ErrorCode.MESSAGE_TOO_LARGE,
        lambda batch: compressed(batch, MAX_INFLATED_BYTES + 1, states_size=True),
    ),
    "zstd bomb without a size": (
        ErrorCode.MESSAGE_TOO_LARGE,
        lambda batch: compressed(batch, MAX_INFLATED_BYTES + 1, states_size=False),
    ),
    "large and wrong once inflated": (
        ErrorCode.INVALID_BATCH,
        lambda batch: compressed(batch, 3_000_000, states_size=True),
    ),
    "torn zstd": (ErrorCode.INVALID_BATCH, torn_zstd),
    "another producer": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">q", 43, 999_999)),
    "another producer epoch": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">h", 51, 7)),
    "half a producer": (ErrorCode.INVALID_BATCH, lambda batch: changed(batch, ">q", 43, -1)),
}

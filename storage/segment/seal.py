# SPDX-License-Identifier: Apache-2.0
"""The seal of a segment: checksums of its log file from the time when every batch had been verified.

File `%020d.seal` (big-endian), named by the segment's base offset:

    0   4  bytes   "LGSL"
    4   2  uint16  version, 1
    6   2  uint16  0
    8   4  uint32  n, the number of chunks
    12  8  uint64  bytes of the .log file that the seal covers
    20  8  int64   end offset of the segment (exclusive)
    28  8  int64   largest timestamp of the segment in milliseconds; -1 if it has no readable batch
    36  4n uint32  CRC-32C of each MiB of the .log file; the last chunk may be shorter
    ..  4  uint32  CRC-32C of everything before it

Law: the seal is a cache of what was verified, never the truth. A seal with another size or end than its segment is
stale.
Pure: the module reads and writes no file (`scrub` does).
Source: docs/storage.md, section 5.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from lograft.wire.checksum import crc32c

from .offset_index import to_big_endian

SEAL_CHUNK_BYTES = 1024 * 1024
"""Bytes of the log file that one CRC of the seal covers; also the size of one read of a scrub."""

NO_TIMESTAMP_MS = -1
"""Largest timestamp of a segment without a readable batch."""

_MAGIC = b"LGSL"
_VERSION = 1
_HEAD = struct.Struct(">4sHHIQqq")
_CRC_BYTES = 4


class MalformedSealError(Exception):
    """The bytes are not a seal; the message says why. Never leaves the storage package, because a bad seal is made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The facts about a sealed segment when it was verified.

    Attributes:
        log_bytes: size of its log file.
        end_offset: its end, exclusive.
        max_timestamp_ms: largest timestamp of its batches; `NO_TIMESTAMP_MS` if none is readable.
        chunk_crcs: CRC-32C of each `SEAL_CHUNK_BYTES` of the log file, ascending.
    """

    log_bytes: int
    end_offset: int
    max_timestamp_ms: int
    chunk_crcs: tuple[int, ...]

    def fits(self, *, log_bytes: int, end_offset: int) -> bool:
        """Tell whether the seal is for a segment of this size and end; otherwise it is stale."""
        return (self.log_bytes, self.end_offset) == (log_bytes, end_offset)


def chunk_count(log_bytes: int) -> int:
    """Return the number of chunks of a log file of this size."""
    return -(-log_bytes // SEAL_CHUNK_BYTES)


def differing_chunks(seal: Seal, chunk_crcs: Sequence[int]) -> list[int]:
    """Return the numbers of the chunks, from 0, whose CRC differs from the seal's; a missing chunk differs."""
    found = dict(enumerate(chunk_crcs))
    return [number for number, crc in enumerate(seal.chunk_crcs) if found.get(number) != crc]


def encode_seal(seal: Seal) -> bytes:
    """Return the content of the seal file."""
    count = len(seal.chunk_crcs)
    assert count == chunk_count(seal.log_bytes), f"{count} chunks for {seal.log_bytes} bytes"
    crcs = array("I", seal.chunk_crcs)
    to_big_endian(crcs)
    head = _HEAD.pack(_MAGIC, _VERSION, 0, count, seal.log_bytes, seal.end_offset, seal.max_timestamp_ms)
    body = head + crcs.tobytes()
    return body + crc32c(body).to_bytes(_CRC_BYTES, "big")


def decode_seal(content: bytes) -> Seal:
    """Decode a seal file.

    Raises:
        MalformedSealError: the content is not a seal.
    """
    if len(content) < _HEAD.size + _CRC_BYTES:
        raise MalformedSealError(f"{len(content)} bytes, a seal has {_HEAD.size + _CRC_BYTES} at least")
    magic, version, _, count, log_bytes, end_offset, max_timestamp_ms = _HEAD.unpack_from(content)
    if magic != _MAGIC:
        raise MalformedSealError(f"it begins with {magic!r}, a seal with {_MAGIC!r}")
    if version != _VERSION:
        raise MalformedSealError(f"version {version}, this reader knows {_VERSION}")
    body = memoryview(content)[:-_CRC_BYTES]
    if crc32c(body) != int.from_bytes(content[-_CRC_BYTES:], "big"):
        raise MalformedSealError("its CRC does not match")
    if len(body) != _HEAD.size + count * _CRC_BYTES or count != chunk_count(log_bytes):
        raise MalformedSealError(f"{len(content)} bytes, {count} chunks and {log_bytes} bytes of log do not agree")
    crcs = array("I", bytes(body[_HEAD.size :]))
    to_big_endian(crcs)
    return Seal(log_bytes=log_bytes, end_offset=end_offset, max_timestamp_ms=max_timestamp_ms, chunk_crcs=tuple(crcs))

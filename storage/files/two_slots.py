# SPDX-License-Identifier: Apache-2.0
"""A few numbers in a file of two 512-byte slots, written in turn; the valid slot with the larger sequence counts.

A slot is one sector, so a torn write leaves the other slot, or the whole new one. Each slot (big-endian; the rest of
its 512 bytes is zero):

    0   4  bytes   magic of the file
    4   2  uint16  version, 1
    6   2  uint16  flags
    8   8  uint64  sequence of this write, from 1
    16  ...        the fields of the file
    end 4  uint32  CRC-32C of everything before

Pure: `recovery_point` and `log_start` own the files. Source: docs/storage_format.md sections 2.5 and 2.7.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from lograft.wire.checksum import crc32c

from .disk import SECTOR_BYTES

SLOT_COUNT = 2
"""Number of slots in a file."""

FILE_BYTES = SECTOR_BYTES * SLOT_COUNT
"""Size of a file in bytes."""

_VERSION = 1
_CRC_BYTES = 4


class Slot(NamedTuple):
    """One slot: the sequence of its write (from 1), its flag bits, and its numbers."""

    sequence: int
    flags: int
    values: tuple[int, ...]


class TwoSlots:
    """The codec of one kind of file.

    Args:
        magic: the first four bytes of each slot.
        fields: `struct` codes of the numbers, without byte order.
    """

    def __init__(self, magic: bytes, fields: str) -> None:
        self._magic = magic
        self._body = struct.Struct(f">4sHHQ{fields}")

    def encode(self, sequence: int, flags: int, *values: int) -> bytes:
        """Return the bytes of one slot, without the zero padding; the arguments are the fields of `Slot`."""
        body = self._body.pack(self._magic, _VERSION, flags, sequence, *values)
        return body + crc32c(body).to_bytes(_CRC_BYTES, "big")

    def decode(self, content: bytes) -> Slot | None:
        """Return the valid slot with the larger sequence; None if no slot is valid."""
        best: Slot | None = None
        for position in range(0, FILE_BYTES, SECTOR_BYTES):
            body = content[position : position + self._body.size]
            crc = content[position + self._body.size : position + self._body.size + _CRC_BYTES]
            if len(crc) < _CRC_BYTES or crc32c(body).to_bytes(_CRC_BYTES, "big") != crc:
                continue
            magic, version, flags, sequence, *values = self._body.unpack(body)
            if (magic, version) == (self._magic, _VERSION) and sequence > (best.sequence if best is not None else 0):
                best = Slot(sequence, flags, tuple(values))
        return best


def slot_position(sequence: int) -> int:
    """Return the byte position in the file for the write with this sequence."""
    return sequence % SLOT_COUNT * SECTOR_BYTES

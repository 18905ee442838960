# SPDX-License-Identifier: Apache-2.0
"""An encoded batch that is not yet one piece of memory.

A producer numbers its batches long after it encodes them, and a number changes the CRC. Only then does the batch go into a
message. Until then it stays in pieces, so its bytes are read once for the CRC and copied once into the message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from lograft.wire.checksum import BytesLike, crc32c
from lograft.wire.header import CRC_START, LENGTH_END, BatchHeader, write_header
from lograft.wire.limits import HEADER_BYTES

_CRC = struct.Struct(">I")
_CRC_POSITION = 17
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43


class EncodedBatch:
    """Header and payload of one batch, with the payload in pieces. `len` returns the size of the whole batch in bytes."""

    __slots__ = ("_has_crc", "_header", "_payload", "_size_bytes")

    def __init__(self, header: BatchHeader, payload: Sequence[BytesLike]) -> None:
        """Put a header before a payload.

        Args:
            header: the header. This class computes its `batch_length` and `crc`.
            payload: the pieces, compressed if the header says so. They must not change any more.
        """
        self._size_bytes = HEADER_BYTES + sum(map(len, payload))
        self._header = bytearray(HEADER_BYTES)
        self._payload = payload
        self._has_crc = False
        write_header(self._header, header._replace(batch_length=self._size_bytes - LENGTH_END))

    @classmethod
    def wrap(cls, batch: bytearray) -> EncodedBatch:
        """Take over a whole batch in one piece of memory. It must not change any more."""
        wrapped = cls.__new__(cls)
        wrapped._size_bytes = len(batch)
        wrapped._header = batch[:HEADER_BYTES]
        wrapped._payload = (memoryview(batch)[HEADER_BYTES:],)
        wrapped._has_crc = True
        return wrapped

    def __len__(self) -> int:
        return self._size_bytes

    def stamp_producer(self, *, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Write another producer id, epoch and sequence into the header."""
        _PRODUCER.pack_into(self._header, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
        self._has_crc = False

    def pieces(self) -> list[BytesLike]:
        """Return the bytes of the batch, with the right CRC, in order."""
        if not self._has_crc:
            crc = crc32c(memoryview(self._header)[CRC_START:])
            for piece in self._payload:
                crc = crc32c(piece, crc)
            _CRC.pack_into(self._header, _CRC_POSITION, crc)
            self._has_crc = True
        return [self._header, *self._payload]

    def join(self) -> bytearray:
        """Copy the batch into one piece of memory."""
        return bytearray().join(self.pieces())

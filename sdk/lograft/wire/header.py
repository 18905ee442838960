# SPDX-License-Identifier: Apache-2.0
"""The 61-byte header of a record batch: reads it, stamps it, gives it another producer, and walks over batches.

Big-endian. Field for field the layout of Kafka's RecordBatch v2. `magic` is 16 for Lograft's payload.

    offset size type   field
    0      8    int64  base_offset
    8      4    int32  batch_length        bytes after this field: batch size - 12
    12     4    int32  leader_epoch        the CRC covers neither this field nor base_offset: the leader stamps them in place
    16     1    int8   magic               16
    17     4    uint32 crc                 CRC-32C of bytes 21 to the end
    21     2    int16  attributes          bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon,
                                           7 abort; others 0
    23     4    int32  last_offset_delta
    27     8    int64  base_timestamp_ms
    35     8    int64  max_timestamp_ms
    43     8    int64  producer_id         -1: none
    51     2    int16  producer_epoch      -1: none
    53     4    int32  base_sequence       -1: none; wraps from 2**31 - 1 to 0; at the end of a transaction: coordinator epoch
    57     4    int32  record_count        0: a filler, which covers offsets that compaction emptied (`filler.py`)
    61     ...         payload             lograft.v1.Records, plain or as one zstd frame

This module must not judge: it returns the numbers as they are on the wire (`checker.py` judges them).
Source: Kafka, DefaultRecordBatch; docs/storage_format.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from lograft.wire.checksum import BytesLike, crc32c
from lograft.wire.compression import Codec
from lograft.wire.errors import CorruptBatchError, UnsupportedBatchError
from lograft.wire.limits import HEADER_BYTES, MAGIC

LENGTH_END = 12
"""Position after `batch_length`. A batch takes this plus `batch_length` bytes."""

CRC_START = 21
"""First byte that the CRC covers."""

PREFIX_BYTES = 16
"""Bytes before `magic`."""

CODEC_MASK = 0x07
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20

DELETE_HORIZON_BIT = 0x40
"""Compaction sets this bit. `base_timestamp_ms` is then the time from which compaction may remove the tombstones of the batch."""

ABORT_BIT = 0x80
"""Set in the control batch that aborts a transaction, together with the control and transactional bits. Kafka has no such bit and says
this in the payload. Lograft must tell from headers alone which records count."""

_TRANSACTION_END = TRANSACTIONAL_BIT | CONTROL_BIT
_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qii")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_START = 43
_CRC = struct.Struct(">I")
_CRC_AT = 17
_SEQUENCE_MASK = 0x7FFF_FFFF

assert _HEADER.size == HEADER_BYTES, _HEADER.size


class BatchHeader(NamedTuple):
    """Header of a record batch: the raw integers of the wire, -1 for an absent producer."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Codec of the payload.

        Raises:
            UnsupportedBatchError: this version does not support the codec number.
        """
        number = self.attributes & CODEC_MASK
        try:
            return Codec(number)
        except ValueError:
            raise UnsupportedBatchError(f"codec {number} is not supported: use 0 (none) or 4 (zstd)") from None

    @property
    def is_control(self) -> bool:
        """True for a batch of control records, which users never see."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """True for a batch that belongs to a transaction or ends one (`is_control`)."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_abort(self) -> bool:
        """True for the control batch that aborts a transaction."""
        return bool(self.attributes & ABORT_BIT)

    @property
    def coordinator_epoch(self) -> int:
        """Epoch of the coordinator that ended the transaction; -1 if it is not known, or if the batch does not end a transaction.

        The batch that ends a transaction has no sequence. The epoch takes that field, so that headers alone tell it.
        """
        return self.base_sequence if self.attributes & _TRANSACTION_END == _TRANSACTION_END else -1

    @property
    def is_filler(self) -> bool:
        """True for a batch without records: compaction removed them all, and the batch covers their offsets."""
        return self.record_count == 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which compaction may remove the tombstones of the batch, in milliseconds; None before it is decided."""
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer(self) -> bool:
        """True when the batch carries a producer id, epoch and sequence."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (inclusive, wrapped). It means something only with a producer."""
        return (self.base_sequence + self.last_offset_delta) & _SEQUENCE_MASK


def read_header(buffer: BytesLike, position: int = 0) -> BatchHeader:
    """Read the header that starts at a position.

    Raises:
        CorruptBatchError: fewer than 61 bytes are left.
    """
    try:
        return BatchHeader._make(_HEADER.unpack_from(buffer, position))
    except struct.error:
        left_bytes = max(0, len(buffer) - position)
        raise CorruptBatchError(f"a batch header takes {HEADER_BYTES} bytes, {left_bytes} are left") from None


def write_header(batch: bytearray, header: BatchHeader) -> None:
    """Write a header over the first 61 bytes of a batch, in place."""
    _HEADER.pack_into(batch, 0, *header)


def stamp(batch: bytearray, *, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into a batch, in place. The CRC does not cover them."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, LENGTH_END, leader_epoch)


def stamped_prefix(base_offset: int, batch_length: int, leader_epoch: int) -> bytes:
    """Return the 16 bytes before `magic`. With prefix + batch[16:], a caller writes a stamped batch without a copy."""
    return _PREFIX.pack(base_offset, batch_length, leader_epoch)


def header_of_producer(batch: BytesLike, header: BatchHeader, *, producer_id: int, base_sequence: int) -> bytes:
    """Return the header that a batch has as one of another producer, at its epoch 0, with the CRC that fits.

    The payload stays as it is, and is not copied. Base offset and leader epoch stay too: the log stamps them, as in any append.

    Args:
        batch: the whole batch.
        header: its header.
        producer_id: the other producer, from 0.
        base_sequence: sequence of the first record for that producer, 0 to 2**31 - 1.

    Returns:
        `HEADER_BYTES` bytes.

    Raises:
        CorruptBatchError: the size or the CRC of the batch is wrong. A new CRC would hide that.
    """
    if len(batch) != header.size_bytes:
        raise CorruptBatchError(f"the batch claims {header.size_bytes} bytes and has {len(batch)}")
    view = memoryview(batch)
    other = bytearray(view[:HEADER_BYTES])
    _PRODUCER.pack_into(other, _PRODUCER_START, producer_id, 0, base_sequence)
    payload = view[HEADER_BYTES:]
    found = crc32c(payload, crc32c(view[CRC_START:HEADER_BYTES]))
    if found != header.crc:
        raise CorruptBatchError(f"the batch has CRC {found:#010x}, its header says {header.crc:#010x}")
    _CRC.pack_into(other, _CRC_AT, crc32c(payload, crc32c(other[CRC_START:])))
    return bytes(other)


def iter_batches(region: BytesLike) -> Iterator[tuple[int, BatchHeader]]:
    """Iterate over whole batches that follow one another.

    It checks only what it needs: whole headers, sizes inside the region, magic 16. It does not check the CRC.

    Yields:
        (position of the batch in the region, its header).

    Raises:
        CorruptBatchError: the last batch is cut off, or a size is impossible.
        UnsupportedBatchError: a batch has another magic number.
    """
    position = 0
    end = len(region)
    while position < end:
        header = read_header(region, position)
        if header.magic != MAGIC:
            raise UnsupportedBatchError(
                f"batch at byte {position} has magic {header.magic}, this version reads {MAGIC}"
            )
        size_bytes = header.size_bytes
        if size_bytes < HEADER_BYTES or size_bytes > end - position:
            raise CorruptBatchError(f"batch at byte {position} claims {size_bytes} bytes, {end - position} are left")
        yield position, header
        position += size_bytes

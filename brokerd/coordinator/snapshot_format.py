# SPDX-License-Identifier: Apache-2.0
"""The bytes of `coordinator.snapshot`: a head, chunks that are record batches, an end. No files.

    head, 48 bytes, big-endian
    0   8  bytes   magic LGCOSNAP
    8   2  uint16  version, 1
    10  2  uint16  0
    12  4  int32   partition
    16  16 bytes   topic id
    32  8  int64   end offset (exclusive)
    40  4  int32   leader epoch of the offset before the end
    44  4  uint32  CRC-32C of everything before
    chunks: record batches with keys; `base_offset` is the number of records before the chunk
    end, 24 bytes
    0   8  bytes   magic LGCOSEND
    8   8  int64   number of records
    16  4  uint32  number of chunks
    20  4  uint32  CRC-32C of everything before in the end

Law: what is decoded is what was encoded, or `DamagedSnapshotError` says what is wrong.
Source: `docs/coordinator.md` section "Snapshots".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, cast

from lograft.wire.batch import RecordBatch, encode_batch
from lograft.wire.checksum import BytesLike, crc32c
from lograft.wire.errors import BatchError

from brokerd.coordinator.core import Record
from brokerd.coordinator.limits import SNAPSHOT_CHUNK_BYTES, SNAPSHOT_CHUNK_RECORDS
from brokerd.coordinator.prefix import SnapshotId

HEAD_MAGIC: Final = b"LGCOSNAP"
END_MAGIC: Final = b"LGCOSEND"
VERSION: Final = 1

_HEAD: Final = struct.Struct(">8sHHi16sqi")
_END: Final = struct.Struct(">8sqI")
_CRC: Final = struct.Struct(">I")

HEAD_BYTES: Final = _HEAD.size + _CRC.size
END_BYTES: Final = _END.size + _CRC.size


class DamagedSnapshotError(Exception):
    """The bytes are no snapshot that this version can use; the message says why."""


class SnapshotEnd(NamedTuple):
    """What the end of a snapshot says."""

    record_count: int
    chunk_count: int


def encode_head(snapshot: SnapshotId, *, topic_id: bytes, partition: int) -> bytes:
    """Return the head of a snapshot."""
    head = _HEAD.pack(HEAD_MAGIC, VERSION, 0, partition, topic_id, snapshot.end_offset, snapshot.last_epoch)
    return head + _CRC.pack(crc32c(head))


def decode_head(data: bytes, *, topic_id: bytes, partition: int) -> SnapshotId:
    """Return which snapshot a head begins.

    Raises:
        DamagedSnapshotError: damaged, of another version, or of another partition.
    """
    if len(data) != HEAD_BYTES:
        raise DamagedSnapshotError(f"its head has {len(data)} bytes")
    magic, version, _, found_partition, found_topic_id, end_offset, last_epoch = _HEAD.unpack_from(data)
    if magic != HEAD_MAGIC:
        raise DamagedSnapshotError(f"it begins with {magic!r}")
    if _CRC.unpack_from(data, _HEAD.size) != (crc32c(data[: _HEAD.size]),):
        raise DamagedSnapshotError("the CRC of its head does not match")
    if version != VERSION:
        raise DamagedSnapshotError(f"it has version {version}, this broker reads {VERSION}")
    if (found_topic_id, found_partition) != (topic_id, partition):
        raise DamagedSnapshotError(f"it is of partition {found_partition} of topic {found_topic_id.hex()}")
    if end_offset <= 0 or last_epoch < 0:
        raise DamagedSnapshotError(f"it claims end offset {end_offset} and leader epoch {last_epoch}")
    return SnapshotId(end_offset, last_epoch)


def encode_end(end: SnapshotEnd) -> bytes:
    """Return the end of a snapshot."""
    data = _END.pack(END_MAGIC, end.record_count, end.chunk_count)
    return data + _CRC.pack(crc32c(data))


def decode_end(data: bytes) -> SnapshotEnd:
    """Return what an end says.

    Raises:
        DamagedSnapshotError: it is damaged.
    """
    if len(data) != END_BYTES:
        raise DamagedSnapshotError(f"its end has {len(data)} bytes")
    magic, record_count, chunk_count = _END.unpack_from(data)
    if magic != END_MAGIC or _CRC.unpack_from(data, _END.size) != (crc32c(data[: _END.size]),):
        raise DamagedSnapshotError("its end is damaged or missing")
    return SnapshotEnd(record_count, chunk_count)


def encode_chunks(records: Iterable[Record]) -> Iterator[tuple[bytearray, int]]:
    """Yield chunks and the number of records in each.

    Args:
        records: of each key one, without tombstones.
    """
    keys: list[bytes] = []
    values: list[bytes | None] = []
    size_bytes = base = 0
    for key, value in records:
        record_bytes = len(key) + len(value or b"")
        is_full = size_bytes + record_bytes > SNAPSHOT_CHUNK_BYTES or len(keys) >= SNAPSHOT_CHUNK_RECORDS
        if keys and is_full:
            yield encode_batch(values, keys=keys, base_offset=base), len(keys)
            base += len(keys)
            keys, values, size_bytes = [], [], 0
        keys.append(key)
        values.append(value)
        size_bytes += record_bytes
    if keys:
        yield encode_batch(values, keys=keys, base_offset=base), len(keys)


def decode_chunk(data: BytesLike, *, base: int) -> list[Record]:
    """Return the records of one chunk.

    Args:
        data: the chunk, whole.
        base: number of records before it.

    Raises:
        DamagedSnapshotError: it is damaged, or not the next chunk.
    """
    try:
        batch = RecordBatch(data)
        keys, values = batch.keys(), batch.values()
    except BatchError as error:
        raise DamagedSnapshotError(f"its chunk behind record {base} is damaged: {error}") from error
    # The CRC of a batch covers neither its base offset nor its leader epoch.
    if (batch.base_offset, batch.header.leader_epoch) != (base, 0) or None in keys or None in values:
        raise DamagedSnapshotError(f"its chunk behind record {base} is another one")
    return list(map(Record, cast("list[bytes]", keys), values))

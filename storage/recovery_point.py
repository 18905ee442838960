# SPDX-License-Identifier: Apache-2.0
"""The durable lower bound of a log's flushed offset, and the mark of a clean stop.

File `recovery-point`: two slots of 512 bytes, written in turn; the valid one with the larger sequence counts. Each slot
(big-endian, the rest of the 512 bytes is zero):

    0   4  bytes   "LGRP"
    4   2  uint16  version, 1
    6   2  uint16  flags: bit 0 = clean
    8   8  uint64  sequence of this write
    16  8  int64   flushed offset (exclusive)
    24  8  int64   base offset of the last segment   (clean only, else 0)
    32  8  int64   size of its .log file             (clean only, else 0)
    40  4  uint32  CRC-32C of bytes 0 to 39

Law: a slot is written after the flush that it reports, without a sync of its own; whatever of it survives a crash is
true. A process crash leaves it exact (the page cache survives), a power failure leaves it behind by at most
`SYNC_INTERVAL_FLUSHES` flush groups. Before the log is truncated below the flushed offset both slots are lowered
and synced. "Clean" holds only while the last segment has exactly the recorded size, so that appending needs no
write here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from lograft.wire.checksum import crc32c

from .env import SECTOR_BYTES, Disk, File
from .errors import DiskFullError, FileMissingError

SYNC_INTERVAL_FLUSHES = 64
"""Every so many flush groups the file itself is synced with the group."""

_SLOT = struct.Struct(">4sHHQqqqI")
_MAGIC = b"LGRP"
_VERSION = 1
_CLEAN = 1
_CRC_BYTES = 4
_SLOT_COUNT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanEnd:
    """Where a log ended when it was closed: its last segment and the size of that segment's log file."""

    segment_base_offset: int
    segment_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPoint:
    """Everything below `flushed_offset` is on stable storage; `clean_end` if nothing happened after it."""

    flushed_offset: int
    clean_end: CleanEnd | None = None


class RecoveryPointFile:
    """The open file of one log. Only the owner of the log writes it; a flush thread may sync it."""

    def __init__(self, file: File, *, sequence: int, point: RecoveryPoint | None) -> None:
        self._file = file
        self._sequence = sequence
        self._point = point

    @property
    def point(self) -> RecoveryPoint | None:
        """The last point read or written; None if both slots are bad."""
        return self._point

    @property
    def file(self) -> File:
        """The open file, for a flush that syncs it too."""
        return self._file

    @classmethod
    def open_or_create(cls, disk: Disk, path: str) -> RecoveryPointFile:
        """Open the file, or create it with two empty slots (the caller syncs the directory).

        Raises:
            DiskFullError, DiskFailedError, DiskAccessError, TooManyOpenFilesError.
        """
        try:
            file = disk.open_file(path)
        except FileMissingError:
            file = disk.create_file(path)
        missing_bytes = SECTOR_BYTES * _SLOT_COUNT - file.size
        content = file.pread(SECTOR_BYTES * _SLOT_COUNT, 0)
        if missing_bytes > 0:
            file.append([bytes(missing_bytes)])
        sequence, point = decode_slots(content)
        return cls(file, sequence=sequence, point=point)

    def write(self, point: RecoveryPoint) -> None:
        """Write the next slot without a sync.

        A full disk (copy-on-write file systems) only leaves the old bound standing, which is still true.
        """
        self._sequence += 1
        slot = encode_slot(point, self._sequence)
        try:
            self._file.write(slot, self._sequence % _SLOT_COUNT * SECTOR_BYTES)
        except DiskFullError:
            return
        self._point = point

    def write_synced(self, point: RecoveryPoint) -> None:
        """Write both slots and sync: afterwards no older point can come back.

        Raises:
            DiskFullError, DiskFailedError.
        """
        for _ in range(_SLOT_COUNT):
            self._sequence += 1
            self._file.write(encode_slot(point, self._sequence), self._sequence % _SLOT_COUNT * SECTOR_BYTES)
        self._file.sync()
        self._point = point

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def encode_slot(point: RecoveryPoint, sequence: int) -> bytes:
    """Return the 44 bytes of one slot."""
    end = point.clean_end
    body = _SLOT.pack(
        _MAGIC,
        _VERSION,
        _CLEAN if end is not None else 0,
        sequence,
        point.flushed_offset,
        end.segment_base_offset if end is not None else 0,
        end.segment_bytes if end is not None else 0,
        0,
    )[:-_CRC_BYTES]
    return body + crc32c(body).to_bytes(_CRC_BYTES, "big")


def decode_slots(content: bytes) -> tuple[int, RecoveryPoint | None]:
    """Return the larger sequence of the valid slots and its point; (0, None) if no slot is valid."""
    best: tuple[int, RecoveryPoint | None] = (0, None)
    for position in range(0, SECTOR_BYTES * _SLOT_COUNT, SECTOR_BYTES):
        slot = content[position : position + _SLOT.size]
        if len(slot) < _SLOT.size:
            continue
        magic, version, flags, sequence, flushed_offset, segment_base, segment_bytes, crc = _SLOT.unpack(slot)
        if (magic, version) != (_MAGIC, _VERSION) or crc32c(slot[:-_CRC_BYTES]) != crc:
            continue
        if sequence > best[0]:
            clean_end = (
                CleanEnd(segment_base_offset=segment_base, segment_bytes=segment_bytes) if flags & _CLEAN else None
            )
            best = (sequence, RecoveryPoint(flushed_offset=flushed_offset, clean_end=clean_end))
    return best

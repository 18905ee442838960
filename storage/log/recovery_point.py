# SPDX-License-Identifier: Apache-2.0
"""The durable lower bound of a log's flushed offset, and the mark of a clean stop: file `recovery-point`.

Two slots of 512 bytes, written in turn; the valid one with the larger sequence counts. Each slot (big-endian; the rest
of its 512 bytes is zero):

    0   4  bytes   "LGRP"
    4   2  uint16  version, 1
    6   2  uint16  flags: bit 0 = clean
    8   8  uint64  sequence of this write
    16  8  int64   flushed offset (exclusive)
    24  8  int64   base offset of the last segment   (clean only, else 0)
    32  8  int64   size of its .log file             (clean only, else 0)
    40  4  uint32  CRC-32C of bytes 0 to 39

Law: a slot is written after the flush that it reports, without a sync of its own. Whatever survives a crash is true.
After the crash of a process it is exact, because the page cache survives. After a power failure it lags by at most
`SYNC_INTERVAL_FLUSHES` flush groups. Before the log is truncated below the flushed offset, both slots are lowered and
synced. "Clean" holds only while the last segment has exactly the recorded size, so that an append writes nothing here.
An opening reads the file and holds no descriptor; the first write opens it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from storage.errors import DiskError, DiskFailedError, FileMissingError
from storage.files.descriptor_cache import may_close, needs_sync, write_hint
from storage.files.disk import Disk, File
from storage.files.names import RECOVERY_POINT_FILE
from storage.files.two_slots import FILE_BYTES, SLOT_COUNT, TwoSlots, slot_position

SYNC_INTERVAL_FLUSHES = 64
"""Each flush group with a multiple of this number also syncs the recovery point."""

_SLOTS = TwoSlots(b"LGRP", "qqq")
_CLEAN = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanEnd:
    """Where a log ended when it was closed: its last segment, and the size of that segment's log file."""

    segment_base_offset: int
    segment_bytes: int


class RecoveryPoint(NamedTuple):
    """Everything below `flushed_offset` is on stable storage; `clean_end` is set if nothing was written since."""

    flushed_offset: int
    clean_end: CleanEnd | None = None


class RecoveryPointFile:
    """The file of one log, opened at the first write. Only the owner of the log writes it; a flush thread may sync it."""

    __slots__ = ("_directory", "_disk", "_file", "_point", "_sequence")

    def __init__(
        self, disk: Disk, directory: str, *, file: File | None = None, sequence: int, point: RecoveryPoint | None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._file = file
        self._sequence = sequence
        self._point = point

    @property
    def point(self) -> RecoveryPoint | None:
        """The last point that was read or written; None if both slots are bad."""
        return self._point

    @property
    def file(self) -> File:
        """The open file, for a flush group that syncs it.

        Raises:
            FileMissingError, DiskAccessError, TooManyOpenFilesError: it cannot be opened.
        """
        if self._file is None:
            self._file = self._disk.open_file(_path(self._directory))
        return self._file

    @classmethod
    def open_or_create(cls, disk: Disk, directory: str) -> RecoveryPointFile:
        """Read the file of the log in a directory, or create it with two empty slots (the caller syncs the directory).

        Raises:
            DiskFullError, DiskFailedError, DiskAccessError, DiskReadError, TooManyOpenFilesError.
        """
        path = _path(directory)
        file: File | None = None
        try:
            content = disk.read_file(path)
        except FileMissingError:
            content = b""
            file = disk.create_file(path)
        missing_bytes = FILE_BYTES - len(content)
        if missing_bytes > 0:
            file = file if file is not None else disk.open_file(path)
            file.append([bytes(missing_bytes)])
        sequence, point = decode_slots(content)
        return cls(disk, directory, file=file, sequence=sequence, point=point)

    def write(self, point: RecoveryPoint) -> None:
        """Write the next slot without a sync.

        If the disk does not accept it, the old bound stays, which is still true. That can be a full copy-on-write file
        system, a lack of descriptors, or a missing file.

        Raises:
            DiskFailedError: the disk is failed for good.
        """
        self._sequence += 1
        slot = encode_slot(point, self._sequence)
        try:
            file = self.file
            # A slot may be lost, so it holds no descriptor until the next sync.
            write_hint(file, slot, slot_position(self._sequence))
        except DiskFailedError:
            raise
        except DiskError:
            return
        if needs_sync(file):
            may_close(file)
        self._point = point

    def write_synced(self, point: RecoveryPoint) -> None:
        """Write both slots and sync them; afterwards no older point can come back.

        Raises:
            DiskFullError, DiskFailedError, FileMissingError, DiskAccessError, TooManyOpenFilesError.
        """
        file = self.file
        for _ in range(SLOT_COUNT):
            self._sequence += 1
            file.write(encode_slot(point, self._sequence), slot_position(self._sequence))
        file.sync()
        self._point = point

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _path(directory: str) -> str:
    return f"{directory}/{RECOVERY_POINT_FILE}"


def encode_slot(point: RecoveryPoint, sequence: int) -> bytes:
    """Return the 44 bytes of one slot."""
    end = point.clean_end
    if end is None:
        return _SLOTS.encode(sequence, 0, point.flushed_offset, 0, 0)
    return _SLOTS.encode(sequence, _CLEAN, point.flushed_offset, end.segment_base_offset, end.segment_bytes)


def decode_slots(content: bytes) -> tuple[int, RecoveryPoint | None]:
    """Return the largest sequence of the valid slots, and its point; (0, None) if no slot is valid."""
    slot = _SLOTS.decode(content)
    if slot is None:
        return 0, None
    flushed_offset, base_offset, size_bytes = slot.values
    end = CleanEnd(segment_base_offset=base_offset, segment_bytes=size_bytes) if slot.flags & _CLEAN else None
    return slot.sequence, RecoveryPoint(flushed_offset=flushed_offset, clean_end=end)

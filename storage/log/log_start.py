# SPDX-License-Identifier: Apache-2.0
"""The log start of one log: the log never serves anything below it again.

File `log-start`, made when the log start first moves above 0: two slots (`two_slots`, magic "LGLS") with one field,

    16  8  int64  log start offset (inclusive)

Law: both slots are written and synced before any segment below is removed. So records missing below the log start were
removed, and records missing above it were lost. The log makes the file by replacement, so that only damage can make
both slots bad. Then the log start counts as 0, and everything below the first segment as lost.
State: the owner of the log writes it; a `LogStartWork` may write it in another thread while the owner waits for that
work.
Source: docs/storage.md section 3.
"""

from __future__ import annotations

from storage.errors import FileMissingError, StorageError
from storage.files.checkpoints import parent_of, replace_file
from storage.files.disk import SECTOR_BYTES, Disk
from storage.files.names import LOG_START_FILE
from storage.files.two_slots import FILE_BYTES, SLOT_COUNT, Slot, TwoSlots, slot_position

_SLOTS = TwoSlots(b"LGLS", "q")


class LogStartFile:
    """The file of one log as it was read. Writes are rare, so an open log keeps neither this object nor a descriptor."""

    __slots__ = ("_disk", "_is_there", "_offset", "_path", "_sequence")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{LOG_START_FILE}"
        self._is_there = False
        self._sequence = 0
        self._offset = 0

    @property
    def offset(self) -> int:
        """First readable offset (inclusive); 0 without a valid file."""
        return self._offset

    @classmethod
    def read(cls, disk: Disk, directory: str) -> LogStartFile:
        """Read the file.

        Raises:
            DiskAccessError, DiskReadError, TooManyOpenFilesError.
        """
        loaded = cls(disk, directory)
        try:
            content = disk.read_file(loaded._path)
        except FileMissingError:
            return loaded
        slot = _SLOTS.decode(content)
        # A file of another size cannot be written in place.
        loaded._is_there = len(content) == FILE_BYTES
        if slot is None:
            return loaded
        loaded._sequence = slot.sequence
        (loaded._offset,) = slot.values
        return loaded

    def sync(self) -> None:
        """Sync the file and its name, after reading it.

        Recovery removes segments because of the log start. A process that died before its sync left it only in the page
        cache.

        Raises:
            DiskFailedError, DiskAccessError, TooManyOpenFilesError.
        """
        if self._offset == 0:
            return
        file = self._disk.open_file(self._path)
        try:
            file.sync()
        finally:
            file.close()
        # The file was first renamed into place; the process may have died before it synced the name.
        self._disk.sync_directory(parent_of(self._path))

    def write_synced(self, offset: int) -> None:
        """Write a log start to both slots and sync it.

        Raises:
            DiskFullError: the old log start is still valid.
            DiskFailedError, DiskAccessError, TooManyOpenFilesError: the disk.
        """
        slots = [Slot(self._sequence + number, 0, (offset,)) for number in range(1, SLOT_COUNT + 1)]
        if self._is_there:
            self._overwrite(slots)
        else:
            slots.sort(key=lambda slot: slot_position(slot.sequence))
            content = b"".join(
                _SLOTS.encode(slot.sequence, slot.flags, *slot.values).ljust(SECTOR_BYTES, b"\0") for slot in slots
            )
            replace_file(self._disk, self._path, content)
            self._is_there = True
        self._sequence += SLOT_COUNT
        self._offset = offset

    def _overwrite(self, slots: list[Slot]) -> None:
        file = self._disk.open_file(self._path)
        try:
            for slot in slots:
                file.write(_SLOTS.encode(slot.sequence, slot.flags, *slot.values), slot_position(slot.sequence))
            file.sync()
        finally:
            file.close()


class LogStartWork:
    """Puts a log start on stable storage: the only step of a truncation of the prefix that waits for the device.

    The owner makes it (`PartitionLog.begin_prefix`), any thread runs it, and the owner takes it back
    (`PartitionLog.end_prefix`).

    Attributes:
        to_offset: the new log start (inclusive).
        error: why `run` failed; None before and after a successful run.
        is_done: True once `run` has returned.
    """

    __slots__ = ("_directory", "_disk", "error", "is_done", "to_offset")

    def __init__(self, disk: Disk, directory: str, to_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self.to_offset = to_offset
        self.error: StorageError | None = None
        self.is_done = False

    def run(self) -> None:
        """Write the log start. Blocks for as long as the disk takes. Call once, from any thread.

        Raises:
            DiskFullError: the log start did not move.
            DiskFailedError, DiskAccessError, TooManyOpenFilesError: the disk.
        """
        try:
            file = LogStartFile.read(self._disk, self._directory)
            if self.to_offset > file.offset:
                file.write_synced(self.to_offset)
        except StorageError as error:
            self.error = error
            raise
        self.is_done = True

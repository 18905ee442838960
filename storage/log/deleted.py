# SPDX-License-Identifier: Apache-2.0
"""Files removed from a log: renamed to `<name>.deleted` at once, deleted after a delay or at the next opening.

The delay keeps them for a reader that still has them open, and for an operator who notices a mistake. Nothing here is
synced: if a crash undoes a rename or a deletion, the next opening repeats it.
State: the owner of the log writes it; `RemovalWork.run` may run in any thread.
Source: docs/storage.md section 3; Kafka, LocalLog.deleteSegmentFiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from storage.errors import FileMissingError
from storage.files.checkpoints import remove_if_exists
from storage.files.disk import Disk
from storage.files.names import DELETED_SUFFIX


class _Deleted(NamedTuple):
    path: str
    deleted_ms: int


class DeletedFiles:
    """The `.deleted` files of one log that this process made."""

    __slots__ = ("_disk", "_waiting")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        # A tuple: most logs never delete anything, and all of them share the empty tuple.
        self._waiting: tuple[_Deleted, ...] = ()

    def rename(self, paths: Iterable[str], *, now_ms: int) -> None:
        """Rename the files that exist, in this order; skip the others."""
        renamed: list[_Deleted] = []
        try:
            for path in paths:
                deleted_path = path + DELETED_SUFFIX
                try:
                    self._disk.rename(path, deleted_path)
                except FileMissingError:
                    continue
                renamed.append(_Deleted(deleted_path, now_ms))
        finally:
            # What took the place of a compacted segment may go too: the file under this name now is young.
            names = {each.path for each in renamed}
            self._waiting = (*(each for each in self._waiting if each.path not in names), *renamed)

    def take_due(self, *, now_ms: int, delay_ms: int) -> RemovalWork | None:
        """Return the work for the files whose delay is over; None if there are none."""
        count = 0
        while count < len(self._waiting) and now_ms - self._waiting[count].deleted_ms >= delay_ms:
            count += 1
        due, self._waiting = self._waiting[:count], self._waiting[count:]
        return RemovalWork(self._disk, [each.path for each in due]) if due else None


class RemovalWork:
    """Files to delete. Nothing else uses them, so any thread may run it at any time."""

    def __init__(self, disk: Disk, paths: list[str]) -> None:
        self._disk = disk
        self._paths = paths

    def run(self) -> int:
        """Delete the files; return how many existed. After an error the next opening deletes the rest.

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        return sum(remove_if_exists(self._disk, path) for path in self._paths)

# SPDX-License-Identifier: Apache-2.0
"""Files that left a log: renamed to `<name>.deleted` at once, removed after a delay, or when the log is opened again.

The delay leaves them to a reader that still has them open, and to somebody who finds out that it was a mistake. Nothing here is
synced: a rename or a removal that a crash undoes is repeated when the log is opened.
Belongs to the owner of the log; `RemovalWork.run` may run in any thread.
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
        # A tuple: most logs never delete anything, and the empty one is shared by all.
        self._waiting: tuple[_Deleted, ...] = ()

    def rename(self, paths: Iterable[str], *, now_ms: int) -> None:
        """Rename the files that are there, in this order.

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
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
        """Hand over the files whose delay is over; None if there are none.

        Args:
            now_ms: the caller's clock in milliseconds.
            delay_ms: how long a file stays after it was renamed (inclusive).
        """
        count = 0
        while count < len(self._waiting) and now_ms - self._waiting[count].deleted_ms >= delay_ms:
            count += 1
        due, self._waiting = self._waiting[:count], self._waiting[count:]
        return RemovalWork(self._disk, [each.path for each in due]) if due else None


class RemovalWork:
    """Files to remove; nobody else needs them, so that any thread may do it at any time."""

    def __init__(self, disk: Disk, paths: list[str]) -> None:
        self._disk = disk
        self._paths = paths

    def run(self) -> int:
        """Remove the files; return how many were there. What is left after an error is removed when the log is opened.

        Raises:
            DiskFailedError, DiskAccessError: the disk.
        """
        return sum(remove_if_exists(self._disk, path) for path in self._paths)

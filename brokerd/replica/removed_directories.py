# SPDX-License-Identifier: Apache-2.0
"""Directories of partitions that this broker no longer has, or never had: renamed first, deleted later.

Owns the names `<partition directory>.<wall-clock milliseconds>.removed|unknown` in `partitions/`. Does not judge which
partitions are known. Every method blocks. Any thread may call it, one call at a time for one name.

Law: nothing is deleted before its time has passed, counted from the renaming, over restarts. The exception is an
unknown directory, when an operator asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.limits import DELETED_PARTITION_KEEP_MS, UNKNOWN_PARTITION_KEEP_MS
from storage.files.disk import Disk
from storage.files.names import parse_partition_directory_name

logger = logging.getLogger(__name__)

_REMOVED: Final = "removed"
_UNKNOWN: Final = "unknown"
_KEEP_MS: Final = {_REMOVED: DELETED_PARTITION_KEEP_MS, _UNKNOWN: UNKNOWN_PARTITION_KEEP_MS}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPartitions:
    """How much was removed because the metadata never knew it.

    Attributes:
        partition_count: number of partition directories.
        size_bytes: bytes of the files in them.
    """

    partition_count: int = 0
    size_bytes: int = 0


class RemovedDirectories:
    """The removed partition directories of one log directory.

    Args:
        disk: the log directory's file system.
        directory: `partitions/` of the data directory.
        now_ms: wall clock in milliseconds.
    """

    def __init__(self, disk: Disk, directory: str, now_ms: Callable[[], int]) -> None:
        self._disk = disk
        self._directory = directory
        self._now_ms = now_ms

    def remove(self, name: str, *, is_known: bool) -> None:
        """Rename a partition directory, so that it holds no replica; does nothing if it does not exist.

        Args:
            name: name of the partition directory.
            is_known: True if the partition was removed; False if the metadata never knew it here, which may be a
                mistake.

        Raises:
            StorageError: it could not be renamed.
        """
        source = f"{self._directory}/{name}"
        if not self._disk.exists(source):
            return
        target = f"{name}.{self._now_ms()}.{_REMOVED if is_known else _UNKNOWN}"
        self._disk.rename(source, f"{self._directory}/{target}")
        self._disk.sync_directory(self._directory)
        if is_known:
            logger.info("partition directory removed: %s", target)
            return
        keep_s = UNKNOWN_PARTITION_KEEP_MS // 1000
        logger.warning(
            "partition directory not in the cluster's metadata: renamed to %s, deleted in %d s, "
            "or at once by `lograft directories delete-unknown`",
            target,
            keep_s,
        )

    def delete_due(self) -> int:
        """Delete the directories that were removed long enough ago.

        Returns:
            The number of deleted directories.

        Raises:
            StorageError: a directory could not be deleted.
        """
        now_ms = self._now_ms()
        return self._delete([name for name, since_ms, kind in self._found() if now_ms - since_ms >= _KEEP_MS[kind]])

    def unknown(self) -> UnknownPartitions:
        """Return how much is here that the metadata never knew.

        Raises:
            StorageError: a directory could not be read.
        """
        names = self._unknown_names()
        return UnknownPartitions(partition_count=len(names), size_bytes=sum(map(self._size_bytes, names)))

    def delete_unknown(self) -> UnknownPartitions:
        """Delete early what the metadata never knew, because an operator asks for it.

        Returns:
            What was deleted.

        Raises:
            StorageError: a directory could not be deleted; others may have been.
        """
        names = self._unknown_names()
        size_bytes = sum(map(self._size_bytes, names))
        return UnknownPartitions(partition_count=self._delete(names), size_bytes=size_bytes)

    def _unknown_names(self) -> list[str]:
        return [name for name, _, kind in self._found() if kind == _UNKNOWN]

    def _found(self) -> Iterator[tuple[str, int, str]]:
        """Yield name, time and kind of each removed directory."""
        for name in self._disk.list_directory(self._directory):
            parts = name.rsplit(".", 2)
            is_one = len(parts) == 3 and parts[1].isdecimal() and parts[2] in _KEEP_MS
            if is_one and parse_partition_directory_name(parts[0]) is not None:
                yield name, int(parts[1]), parts[2]

    def _size_bytes(self, name: str) -> int:
        path = f"{self._directory}/{name}"
        return sum(self._disk.size_bytes(f"{path}/{file_name}") for file_name in self._disk.list_directory(path))

    def _delete(self, names: Sequence[str]) -> int:
        for name in names:
            path = f"{self._directory}/{name}"
            for file_name in self._disk.list_directory(path):
                self._disk.remove(f"{path}/{file_name}")
            self._disk.remove_directory(path)
            logger.info("partition directory deleted: %s", name)
        if names:
            self._disk.sync_directory(self._directory)
        return len(names)

# SPDX-License-Identifier: Apache-2.0
"""Directories of partitions that are no longer, or never were, this broker's: moved out of the way, deleted later.

Owns the names `<partition directory>.<wall-clock milliseconds>.removed|unknown` in `partitions/`. Must not judge
which partitions are known. Every method blocks and may be called from any thread, one call at a time for one name.

Law: nothing is deleted before its time has passed, counted from the moment it was set aside, over restarts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from brokerd.limits import DELETED_PARTITION_KEEP_MS, UNKNOWN_PARTITION_KEEP_MS
from storage.env import Disk
from storage.names import parse_partition_directory_name

logger = logging.getLogger(__name__)

_REMOVED: Final = "removed"
_UNKNOWN: Final = "unknown"


class SetAside:
    """See the module docstring.

    Args:
        disk: the log directory's file system.
        directory: `partitions/` of the data directory.
        now_ms: wall clock, in milliseconds.
    """

    def __init__(self, disk: Disk, directory: str, now_ms: Callable[[], int]) -> None:
        self._disk = disk
        self._directory = directory
        self._now_ms = now_ms

    def take(self, name: str, *, is_known: bool) -> None:
        """Set a partition directory aside; nothing happens when it does not exist.

        Args:
            name: the partition directory.
            is_known: True if the partition was removed, False if the metadata never knew it here: that may be a mistake.

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
            logger.info("partition directory set aside: %s", target)
            return
        keep_s = UNKNOWN_PARTITION_KEEP_MS // 1000
        logger.warning(
            "partition directory not in the cluster's metadata: set aside: %s, deleted in %d s", target, keep_s
        )

    def delete_due(self) -> int:
        """Delete what was set aside long enough ago.

        Returns:
            How many directories were deleted.

        Raises:
            StorageError: one could not be deleted.
        """
        deleted = 0
        for name in self._disk.list_directory(self._directory):
            since_ms, keep_ms = _parse(name)
            if since_ms is None or self._now_ms() - since_ms < keep_ms:
                continue
            path = f"{self._directory}/{name}"
            for file_name in self._disk.list_directory(path):
                self._disk.remove(f"{path}/{file_name}")
            self._disk.remove_directory(path)
            deleted += 1
            logger.info("partition directory deleted: %s", name)
        if deleted:
            self._disk.sync_directory(self._directory)
        return deleted


def _parse(name: str) -> tuple[int | None, int]:
    parts = name.rsplit(".", 2)
    if len(parts) != 3 or not parts[1].isdecimal() or parse_partition_directory_name(parts[0]) is None:
        return None, 0
    if parts[2] == _REMOVED:
        return int(parts[1]), DELETED_PARTITION_KEEP_MS
    if parts[2] == _UNKNOWN:
        return int(parts[1]), UNKNOWN_PARTITION_KEEP_MS
    return None, 0

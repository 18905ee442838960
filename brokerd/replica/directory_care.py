# SPDX-License-Identifier: Apache-2.0
"""What is done again and again for each log directory: room, ballast, and what was set aside.

One directory's trouble does not stop the care for the others. Must not decide what a failed directory ends: the host does.
Source: docs/storage.md section 8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from brokerd.clock import monotonic_ms
from brokerd.replica.set_aside import SetAside, UnknownPartitions
from storage.directory.directories import LogDirectories, LogDirectory
from storage.errors import DiskFailedError, StorageError

logger = logging.getLogger(__name__)


class DirectoryCare:
    """See the module docstring.

    Args:
        directories: the log directories.
        now_ms: wall clock, in milliseconds.
        on_failure: told of a directory that failed.
    """

    def __init__(
        self,
        directories: LogDirectories,
        *,
        now_ms: Callable[[], int],
        on_failure: Callable[[LogDirectory, DiskFailedError], None],
    ) -> None:
        self._directories = directories
        self._on_failure = on_failure
        self._set_asides = {
            directory: SetAside(directory.disk, directory.partitions_path, now_ms) for directory in directories
        }
        self._unknown: Mapping[LogDirectory, UnknownPartitions] = {}
        # Held while set-aside directories are read or deleted: no reader finds a directory that is going away.
        self._set_aside_in_use = asyncio.Lock()

    async def take(self, name: str, *, is_known: bool) -> None:
        """Set the directory of a partition aside that has no replica here; nothing happens when there is none.

        One that cannot be renamed stays, and is found unknown at the next start.

        Args:
            name: the partition directory.
            is_known: True if the replica was removed, False if the metadata never knew it here.
        """
        directory = self._directories.find(name)
        if directory is None:
            return
        try:
            await asyncio.to_thread(self._set_asides[directory].take, name, is_known=is_known)
        except StorageError as error:
            logger.error("partition directory not set aside: %s: %s", name, error)
            if isinstance(error, DiskFailedError):
                self._on_failure(directory, error)
            return
        self._directories.forget(name)

    async def delete_due(self) -> int:
        """Delete what was set aside long enough ago; return how many directories were deleted."""
        deleted = 0
        for directory, set_aside in self._set_asides.items():
            try:
                async with self._set_aside_in_use:
                    deleted += await asyncio.to_thread(set_aside.delete_due)
            except StorageError as error:
                logger.error("set-aside directory not deleted: %s: %s", directory, error)
        await self.count_unknown()
        return deleted

    @property
    def unknown_counts(self) -> Mapping[LogDirectory, UnknownPartitions]:
        """What each directory had when it was last counted, without those that failed; nothing before `count_unknown`.

        May be read from any thread: the mapping is replaced, never changed.
        """
        return self._unknown

    async def count_unknown(self) -> None:
        """Count what in each directory that works was set aside because the metadata never knew it."""
        self._unknown = {
            directory: await self.unknown(directory) for directory in self._directories if directory.failure is None
        }

    async def unknown(self, directory: LogDirectory) -> UnknownPartitions:
        """Look how much in a directory was set aside because the metadata never knew it; nothing where it cannot be read."""
        try:
            async with self._set_aside_in_use:
                return await asyncio.to_thread(self._set_asides[directory].unknown)
        except StorageError as error:
            logger.error("set-aside directories not counted: %s: %s", directory, error)
            return UnknownPartitions()

    async def delete_unknown(self) -> UnknownPartitions:
        """Delete what the metadata never knew, in every directory that works; return how much that was.

        Raises:
            StorageError: something could not be deleted.
        """
        try:
            async with self._set_aside_in_use:
                deleted = [
                    await asyncio.to_thread(set_aside.delete_unknown)
                    for directory, set_aside in self._set_asides.items()
                    if directory.failure is None
                ]
        finally:
            await self.count_unknown()
        return UnknownPartitions(
            partition_count=sum(each.partition_count for each in deleted),
            size_bytes=sum(each.size_bytes for each in deleted),
        )

    async def tend_space(self) -> None:
        """Look how much room each directory has, and do what its ballast needs."""
        for directory in self._directories:
            if directory.failure is not None:
                continue
            try:
                await asyncio.to_thread(directory.space.tend, monotonic_ms())
            except DiskFailedError as error:
                self._on_failure(directory, error)
            except StorageError as error:
                logger.error("ballast of a log directory: %s: %s", directory, error)

# SPDX-License-Identifier: Apache-2.0
"""The high watermarks of the partitions here that have several replicas, kept over a restart.

Owns the file of each log directory: read at the start, written again when a value moved. Must not decide what is committed. An old
value is safe, so that nothing is synced; without any, a partition whose in-sync replicas are too few after a restart
could not be read at all.
Source: docs/replication.md, "Contract of the shells"; Kafka, replication-offset-checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from brokerd.limits import HIGH_WATERMARK_SAVE_MS
from storage.directory.directories import LogDirectories, LogDirectory
from storage.directory.high_watermarks import load_high_watermarks, write_high_watermarks
from storage.errors import DiskFailedError, StorageError
from storage.log.partition_log import PartitionLog

HighWatermark = tuple[LogDirectory, str, int]
"""Log directory, name of the partition's directory in it, offset (exclusive)."""

logger = logging.getLogger(__name__)


class HighWatermarks:
    """See the module docstring.

    Args:
        directories: the log directories.
        present: gives the high watermarks as they are now, of partitions with several replicas.
        on_failure: told when a log directory failed.
    """

    def __init__(
        self,
        directories: LogDirectories,
        present: Callable[[], Iterable[HighWatermark]],
        on_failure: Callable[[LogDirectory, DiskFailedError], None],
    ) -> None:
        self._directories = directories
        self._present = present
        self._on_failure = on_failure
        self._saved: dict[LogDirectory, dict[str, int]] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Read the files, and save from now on."""
        self._saved = await asyncio.to_thread(self._read)
        self._task = asyncio.create_task(self._save_now_and_then(), name="high-watermarks")

    async def stop(self) -> None:
        """Save for the last time. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            # Not cancelled: a saving under way must end before the next one begins.
            self._stopping.set()
            await task
            await self._save()

    def known(self, directory: LogDirectory, name: str, log: PartitionLog) -> int:
        """Return what was saved for a log, or its log start (exclusive)."""
        saved = self._saved.get(directory, {}).get(name, 0)
        return min(max(saved, log.log_start_offset), log.log_end_offset)

    def _read(self) -> dict[LogDirectory, dict[str, int]]:
        saved: dict[LogDirectory, dict[str, int]] = {}
        for directory in self._directories:
            loaded = load_high_watermarks(directory.disk, directory.path)
            if loaded.problem is not None:
                # The leaders tell them again.
                logger.warning("high watermarks not read: directory=%s: %s", directory, loaded.problem)
            saved[directory] = loaded.offsets
        return saved

    async def _save_now_and_then(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(HIGH_WATERMARK_SAVE_MS / 1000):
                    await self._stopping.wait()
            except TimeoutError:
                await self._save()

    async def _save(self) -> None:
        present: dict[LogDirectory, dict[str, int]] = {directory: {} for directory in self._saved}
        for directory, name, high_watermark in self._present():
            present.setdefault(directory, {})[name] = high_watermark
        changed = {
            directory: offsets
            for directory, offsets in present.items()
            if offsets != self._saved.get(directory, {}) and directory.failure is None
        }
        for directory, offsets in changed.items():
            try:
                await asyncio.to_thread(write_high_watermarks, directory.disk, directory.path, offsets)
            except DiskFailedError as error:
                self._on_failure(directory, error)
            except StorageError as error:
                logger.warning("high watermarks not saved: directory=%s: %s", directory, error)
            else:
                self._saved[directory] = offsets

# SPDX-License-Identifier: Apache-2.0
"""The front of one hosted log: old segments go, without the event loop waiting for the disk.

The owner of the log makes a step and takes its result back here, on the event loop; what waits for the device in between
(the sync of the log start, the removal of large files) runs in a thread, as a flush does. One step at a time, from
its making to its end, and `close` waits for it, so that no log is closed under a running step.
Must not decide what is due: `storage.log.retention` does.
Source: docs/storage.md sections 3 and 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from brokerd.clock import wall_ms
from storage.errors import DiskFailedError, LogClosedError, OffsetOutOfRangeError, StorageError
from storage.log.log_start import LogStartWork
from storage.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)


class LogOwner(Protocol):
    """The hosted replica that owns the log; `str` names the partition."""

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of what may go."""
        ...

    def note_front(self) -> None:
        """Learn that the log start or the flushed offset may have moved."""
        ...

    def note_disk_failure(self, error: DiskFailedError) -> None:
        """Learn that the log directory failed."""
        ...


class LogFront:
    """See the module docstring.

    Args:
        log: the open log.
        owner: who owns it, and made this object.
    """

    __slots__ = ("_advancing", "_is_closed", "_log", "_owner", "_step_end", "_wanted_start_offset")

    def __init__(self, log: PartitionLog, owner: LogOwner) -> None:
        self._log = log
        self._owner = owner
        self._is_closed = False
        # Only during a step: a broker holds many idle partitions.
        self._step_end: asyncio.Event | None = None
        self._advancing: asyncio.Task[None] | None = None
        self._wanted_start_offset = 0

    async def apply_retention(self, now_ms: int) -> int:
        """Roll a segment that is old by the clock, remove what is due and delete what was removed long ago.

        Nothing is raised: what went wrong is logged, or fails the log directory, and is tried again by the next call.

        Args:
            now_ms: wall clock in milliseconds.

        Returns:
            How many segments were removed.
        """
        async with self._one_step():
            if self._is_closed or self._log.failure is not None:
                return 0
            try:
                return await self._retain(now_ms)
            except DiskFailedError as error:
                self._owner.note_disk_failure(error)
            except StorageError as error:
                logger.error("retention failed: partition=%s: %s", self._owner, error)
            return 0

    async def _retain(self, now_ms: int) -> int:
        log = self._log
        log.roll_if_due(now_ms)
        work = log.begin_retention(self._owner.high_watermark, now_ms)
        removed_count = 0 if work is None else await self._carry_out(work, now_ms)
        removal = log.begin_removal(now_ms)
        if removal is not None:
            await asyncio.to_thread(removal.run)
        if removed_count > 0:
            logger.info(
                "retention: partition=%s segments=%d log_start_offset=%d",
                self._owner,
                removed_count,
                log.log_start_offset,
            )
        return removed_count

    async def delete_before(self, before_offset: int | None, now_ms: int) -> int:
        """Let the log begin at an offset (inclusive), for good; return the log start. A caller that goes away stops nothing.

        Args:
            before_offset: first offset to keep; None: the high watermark.
            now_ms: wall clock in milliseconds.

        Raises:
            OffsetOutOfRangeError: above the high watermark.
            StorageError: the log is closed, or the disk failed or is full.
        """
        return await asyncio.shield(asyncio.create_task(self._delete_before(before_offset, now_ms)))

    async def _delete_before(self, before_offset: int | None, now_ms: int) -> int:
        async with self._one_step():
            log, high_watermark = self._log, self._owner.high_watermark
            if self._is_closed:
                raise LogClosedError(log.directory)
            if before_offset is not None and before_offset > high_watermark:
                raise OffsetOutOfRangeError(
                    before_offset, log_start_offset=log.log_start_offset, log_end_offset=high_watermark
                )
            try:
                work = log.begin_prefix(high_watermark if before_offset is None else before_offset)
                await self._carry_out(work, now_ms)
            except DiskFailedError as error:
                self._owner.note_disk_failure(error)
                raise
            return log.log_start_offset

    def advance(self, log_start_offset: int) -> None:
        """Let the log of a follower begin where its leader's does, a little later; what goes wrong is logged.

        Args:
            log_start_offset: first offset to keep (inclusive), at most the high watermark.
        """
        self._wanted_start_offset = max(self._wanted_start_offset, log_start_offset)
        if self._advancing is None and not self._is_closed and log_start_offset > self._log.log_start_offset:
            self._advancing = asyncio.create_task(self._advance(), name="log-start")

    async def _advance(self) -> None:
        try:
            while not self._is_closed and self._wanted_start_offset > self._log.log_start_offset:
                await self._delete_before(self._wanted_start_offset, wall_ms())
        except StorageError as error:
            # The leader tells its log start again with its next batches.
            logger.error(
                "log start not moved: partition=%s to_offset=%d: %s", self._owner, self._wanted_start_offset, error
            )
        finally:
            self._advancing = None

    async def _carry_out(self, work: LogStartWork, now_ms: int) -> int:
        with suppress(StorageError):  # `end` raises it
            await asyncio.to_thread(work.run)
        try:
            return self._log.end_prefix(work, now_ms)
        finally:
            self._owner.note_front()

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Wait for the step under way, and let none begin until the context ends."""
        async with self._one_step():
            yield

    def adopt(self, log: PartitionLog) -> None:
        """Go on with the same log in another directory, while this one is held."""
        self._log = log

    async def close(self) -> None:
        """Take no more steps, and wait for the one under way. Idempotent."""
        self._is_closed = True
        async with self._one_step():
            pass

    @asynccontextmanager
    async def _one_step(self) -> AsyncGenerator[None]:
        """Wait for the step under way, and be the only one meanwhile."""
        while self._step_end is not None:
            await self._step_end.wait()
        self._step_end = step_end = asyncio.Event()
        try:
            yield
        finally:
            self._step_end = None
            step_end.set()

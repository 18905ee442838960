# SPDX-License-Identifier: Apache-2.0
"""The flushes of one hosted log: one group at a time in the flusher's threads, the next one right behind it.

Everything runs on the event loop, except the sync itself. Laws: nothing is told to be flushed before `end_flush` has returned; a
flush that is tried again waits while the log is lent.
Source: docs/storage_format.md section 3.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from storage.errors import DiskFailedError, DiskFullError, TooManyOpenFilesError
from storage.log.flush import FlushWork
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import GroupFlusher

FLUSH_RETRY_MS = 1_000
"""Milliseconds after which a flush that found no space is tried again."""

FULL_FLUSHES = 3
"""Flushes after which a log that takes no appends is flushed to its end, unless the disk has no room."""

logger = logging.getLogger(__name__)


class FlushOwner(Protocol):
    """The hosted replica that owns the log; `str` names the partition."""

    @property
    def is_writable(self) -> bool:
        """False once the replica is closed or its log failed."""
        ...

    @property
    def is_lent(self) -> bool:
        """True while somebody else works on the log alone."""
        ...

    def note_flushed(self, flushed_offset: int) -> None:
        """Learn that everything below an offset (exclusive) is on stable storage."""
        ...

    def note_disk_failure(self, error: DiskFailedError) -> None:
        """Learn that the log directory failed."""
        ...


class LogFlushing:
    """See the module docstring.

    Args:
        log: the open log.
        flusher: threads for fdatasync.
        owner: who owns the log, and made this object.

    Attributes:
        log: replaced when the log goes on in another directory; no flush is under way then.
    """

    __slots__ = ("_again", "_flusher", "_idle", "_is_running", "_loop", "_owner", "log")

    def __init__(self, log: PartitionLog, flusher: GroupFlusher, owner: FlushOwner) -> None:
        self.log = log
        self._flusher = flusher
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._is_running = False
        self._again = False
        # Made by who waits for it: an event takes more memory than all the rest of an idle replica.
        self._idle: asyncio.Event | None = None

    def begin(self) -> None:
        """Flush what there is; under a running flush: once more behind it."""
        if self._is_running:
            self._again = True
            return
        try:
            work = self._flusher.submit(self.log, self._on_done)
        except DiskFailedError as error:
            self._owner.note_disk_failure(error)
            return
        if work is not None:
            self._is_running = True

    async def wait_idle(self) -> None:
        """Wait until no flush is under way."""
        while self._is_running:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()

    async def flush_all(self) -> bool:
        """Flush a log that takes no appends; tell whether it is flushed to its end."""
        for _ in range(FULL_FLUSHES):
            if self._owner.is_writable:
                self.begin()
            await self.wait_idle()
        return self._owner.is_writable and self.log.flushed_offset == self.log.log_end_offset

    def _on_done(self, work: FlushWork, _error: BaseException | None) -> None:
        """Hand the end of a flush over from the flush thread; `end_flush` raises what went wrong."""
        self._loop.call_soon_threadsafe(self._end, work)

    def _end(self, work: FlushWork) -> None:
        self._is_running = False
        if self._idle is not None:
            self._idle.set()
            self._idle = None
        try:
            flushed_offset = self.log.end_flush(work)
        except (DiskFullError, TooManyOpenFilesError) as error:
            logger.error("flush found no space or descriptor, trying again: partition=%s: %s", self._owner, error)
            self._loop.call_later(FLUSH_RETRY_MS / 1000, self._retry)
            return
        except DiskFailedError as error:
            self._owner.note_disk_failure(error)
            return
        # The next flush starts before the acknowledgements of this one go out: the disk must not wait for them.
        if self._again and self._owner.is_writable:
            self._again = False
            self.begin()
        self._owner.note_flushed(flushed_offset)

    def _retry(self) -> None:
        if self._owner.is_lent:
            # A cut or a move works on the log at this moment, perhaps in a thread.
            self._loop.call_later(FLUSH_RETRY_MS / 1000, self._retry)
        elif self._owner.is_writable:
            self.begin()

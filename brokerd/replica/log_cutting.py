# SPDX-License-Identifier: Apache-2.0
"""The cuts of one follower's log: what waits for the device is done in a thread, and events wait behind it.

Owns the task. Must not decide where to cut: the core does.
Law: between the effect that asks for a cut and `LogCut`, the core gets no event, save those that end the replica.
Source: docs/replication.md, "Contract of the shells".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from brokerd.partition.effects import RestartLog, TruncateLog
from brokerd.partition.events import Event
from brokerd.partition.follower_events import LogCut
from storage.errors import DiskFailedError, StorageError
from storage.log.partition_log import PartitionLog

CUT_RETRY_MS = 1_000
"""Milliseconds after which a cut that found no space is asked for again."""

logger = logging.getLogger(__name__)


class CutOwner(Protocol):
    """The hosted replica; `str` names the partition."""

    def lent(self) -> AbstractAsyncContextManager[PartitionLog]:
        """Wait until nobody else works on the log, and keep everybody from it until the context ends."""
        ...

    def note_disk_failure(self, error: DiskFailedError) -> None:
        """Learn that the log directory failed."""
        ...

    def fail(self, message: str) -> None:
        """Serve no more."""
        ...

    def take_event(self, event: Event) -> None:
        """Give an event to the core."""
        ...

    def pause_events(self) -> None:
        """Keep events from the core until `resume_events`."""
        ...

    def resume_events(self, event: Event) -> None:
        """Give the core the event that it waits for, and then what was held back."""
        ...


class LogCutting:
    """See the module docstring; made with the first cut."""

    __slots__ = ("_owner", "_task")

    def __init__(self, owner: CutOwner) -> None:
        self._owner = owner
        self._task: asyncio.Task[None] | None = None

    def begin(self, effect: TruncateLog | RestartLog) -> None:
        """Begin a cut."""
        assert self._task is None, f"{self._owner}: {effect} while another cut is under way"
        self._owner.pause_events()
        self._task = asyncio.create_task(self._cut(effect), name="log-cut")
        self._task.add_done_callback(self._on_done)

    async def wait_idle(self) -> None:
        """Wait until no cut is under way."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _cut(self, effect: TruncateLog | RestartLog) -> None:
        owner = self._owner
        async with owner.lent() as log:
            is_cut = await self._try_cut(log, effect)
        if not is_cut:
            await asyncio.sleep(CUT_RETRY_MS / 1000)
        self._task = None
        # Also where nothing was cut: the leader is asked again, and says again where to cut.
        owner.resume_events(
            LogCut(
                log_end_offset=log.log_end_offset,
                flushed_offset=log.flushed_offset,
                last_epoch=log.last_record_epoch,
                log_start_offset=log.log_start_offset,
            )
        )

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A fault of ours: nobody knows how the log is now, so that it serves no more.
            logger.critical("cut failed: partition=%s", self._owner, exc_info=error)
            self._owner.fail(f"a cut of the log failed: {error}")

    async def _try_cut(self, log: PartitionLog, effect: TruncateLog | RestartLog) -> bool:
        owner = self._owner
        try:
            await asyncio.to_thread(_carry_out(log, effect))
        except DiskFailedError as error:
            owner.note_disk_failure(error)
        except StorageError as error:
            logger.error("log not cut, asking the leader again: partition=%s effect=%s: %s", owner, effect, error)
        else:
            logger.info("log cut: partition=%s effect=%s log_end_offset=%d", owner, effect, log.log_end_offset)
            return True
        return False


def _carry_out(log: PartitionLog, effect: TruncateLog | RestartLog) -> Callable[[], object]:
    if isinstance(effect, TruncateLog):
        return lambda: log.truncate_suffix(effect.to_offset)
    return lambda: log.restart_at(effect.start_offset)

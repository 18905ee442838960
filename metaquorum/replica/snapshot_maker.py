# SPDX-License-Identifier: Apache-2.0
"""Makes snapshots of a node's own image: after a number of log bytes, or a time after the last one.

Owns the schedule, and the steps in the thread: checkpoint, check of its id, sync. The order is the law: checkpoint under a `.part`
name, sync of every file and of the directory, the final name, sync of the parent directory. Only then the core learns of the
snapshot, and trims the log. Before that the maker waits for slower listeners, so nothing that they need is trimmed.
A failure makes no snapshot and is logged; the log then stays longer.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from metaquorum.metadata.image_format import STATE_KEY, ImageState, LoadedImage
from metaquorum.metadata.image_store import open_read_only
from metaquorum.metadata.listener import CommittedBatch, QuorumLeader
from metaquorum.metadata.metadata_files import MetadataFiles
from metaquorum.metadata.snapshot_files import sync_tree
from metaquorum.raft.types import Offset, QuorumEpoch, SnapshotId
from metaquorum.replica.quorum_settings import SnapshotSettings

logger = logging.getLogger(__name__)

WAIT_FOR_LISTENERS_MS: Final = 50
"""Milliseconds between two checks whether every listener has passed the end of a new snapshot."""


class SnapshotMaker:
    """A listener that counts committed bytes, and makes a snapshot when one is due.

    Args:
        files: image and snapshots.
        settings: when a snapshot is due.
        thread: thread for blocking work, shared with downloads, so that the two do not overlap.
        log_bytes: approximate bytes of log that no snapshot covers yet.
        positions: returns the offset (exclusive) below which every listener has received everything.
        may_make: returns False while a download may replace the image.
        on_made: gets a snapshot that is on stable storage.
    """

    def __init__(
        self,
        files: MetadataFiles,
        settings: SnapshotSettings,
        thread: ThreadPoolExecutor,
        *,
        log_bytes: int,
        positions: Callable[[], int],
        may_make: Callable[[], bool],
        on_made: Callable[[SnapshotId], None],
    ) -> None:
        self._files = files
        self._settings = settings
        self._thread = thread
        self._positions = positions
        self._may_make = may_make
        self._on_made = on_made
        self._log_bytes = log_bytes
        self._offset = files.loaded.image.metadata_offset
        self._is_overdue = False
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._report_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def applied_offset(self) -> int:
        """Offset of the image, from which it counts."""
        return self._offset

    @property
    def may_lag(self) -> bool:
        """True: no caller waits for the count."""
        return True

    def on_commit(self, batch: CommittedBatch) -> None:
        """Count a batch."""
        self._offset = batch.next_offset
        self._log_bytes += batch.size_bytes
        if self._timer is None and not self._is_overdue:
            delay_s = self._settings.interval_ms / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._overdue)
        self._make_if_due()

    def settle(self) -> None:
        """Do nothing: counting postpones no work."""

    def on_snapshot(self, loaded: LoadedImage) -> None:
        """Start a new count: the leader's snapshot covers everything before."""
        self._offset = loaded.image.metadata_offset
        self._restart()

    def on_leader(self, leader: QuorumLeader) -> None:
        """Do nothing: every node makes its own snapshots."""

    def on_activate(self, quorum_epoch: int) -> None:
        """Do nothing, as in `on_leader`."""

    def on_deactivate(self) -> None:
        """Do nothing, as in `on_leader`."""

    async def close(self) -> None:
        """Stop. Waits for a snapshot that is being made."""
        self._is_closed = True
        for timer in (self._timer, self._report_timer):
            if timer is not None:
                timer.cancel()
        if self._task is not None:
            await self._task

    def _restart(self) -> None:
        self._log_bytes = 0
        self._is_overdue = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _overdue(self) -> None:
        self._timer = None
        self._is_overdue = True
        self._make_if_due()

    def _make_if_due(self) -> None:
        is_due = self._is_overdue or self._log_bytes >= self._settings.log_bytes
        if not is_due or self._is_closed or self._task is not None or not self._may_make():
            return
        self._restart()
        self._task = asyncio.get_running_loop().create_task(self._make())

    async def _make(self) -> None:
        part = self._files.snapshots.part()
        started_s = asyncio.get_running_loop().time()
        try:
            self._files.store.write()
            made = await asyncio.get_running_loop().run_in_executor(self._thread, self._prepare, part)
            newest = self._files.snapshots.newest
            if made is None or (newest is not None and made.end_offset <= newest.end_offset):
                shutil.rmtree(part, ignore_errors=True)
                return
            self._files.snapshots.publish(part, made)
            duration_ms = int((asyncio.get_running_loop().time() - started_s) * 1_000)
            logger.info(
                "event=snapshot_made end_offset=%d epoch=%d duration_ms=%d", made.end_offset, made.epoch, duration_ms
            )
            self._report(made)
        except Exception:
            # The disk is full, or RocksDB failed: there is no new snapshot, and the log is not trimmed.
            logger.exception("event=snapshot_failed action=log_stays")
            shutil.rmtree(part, ignore_errors=True)
        finally:
            self._task = None

    def _prepare(self, part: Path) -> SnapshotId | None:
        """In the thread: make a checkpoint of one offset and sync it. Return None if the image names no voters yet."""
        self._files.store.checkpoint(part)
        database = open_read_only(part)
        try:
            value = database.get(STATE_KEY)
        finally:
            database.close()
        if not isinstance(value, bytes):
            return None
        state = ImageState.decode(value)
        if not state.voters_record:
            return None
        sync_tree(part)
        return SnapshotId(end_offset=Offset(state.metadata_offset), epoch=QuorumEpoch(state.quorum_epoch))

    def _report(self, made: SnapshotId) -> None:
        self._report_timer = None
        if self._is_closed:
            return
        if self._positions() >= made.end_offset:
            self._on_made(made)
            return
        loop = asyncio.get_running_loop()
        self._report_timer = loop.call_later(WAIT_FOR_LISTENERS_MS / 1_000, self._report, made)

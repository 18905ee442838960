# SPDX-License-Identifier: Apache-2.0
"""Makes snapshots of a node's own image: after so many bytes of log, or so long after the last one.

Owns when, and the steps in the thread: checkpoint, reading back of its id, sync. The order is the law: checkpoint under a
`.part` name, every file and the directory synced, the final name, its directory synced; only then is the core told, which
trims the log. A listener that is slower than the image is waited for, so that nothing it needs is trimmed.
A failure makes no snapshot and is reported; the log then stays longer.
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
"""Milliseconds between two looks whether every listener has passed the end of a new snapshot."""


class SnapshotMaker:
    """A listener that counts, and makes a snapshot when it is time.

    Args:
        files: image and snapshots.
        settings: when.
        thread: where the blocking work is done; one for downloads too, so that the two do not overlap.
        log_bytes: bytes of log that no snapshot has yet, about.
        positions: offset (exclusive) that every listener has been given everything below of.
        may_make: False while a download may put another image in the place of this one.
        on_made: told when a snapshot is on stable storage.
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
        """It counts from the image on."""
        return self._offset

    @property
    def may_lag(self) -> bool:
        """Nobody waits for a count."""
        return True

    def on_commit(self, batch: CommittedBatch) -> None:
        """Count a batch."""
        self._offset = batch.next_offset
        self._log_bytes += batch.size_bytes
        if self._timer is None and not self._is_overdue:
            delay_s = self._settings.interval_ms / 1_000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._overdue)
        self._make_if_due()

    def on_snapshot(self, loaded: LoadedImage) -> None:
        """Begin to count anew: the leader's snapshot has everything."""
        self._offset = loaded.image.metadata_offset
        self._restart()

    def on_leader(self, leader: QuorumLeader) -> None:
        """Nothing to do: every node makes its own."""

    def on_activate(self, quorum_epoch: int) -> None:
        """Nothing to do, as for `on_leader`."""

    def on_deactivate(self) -> None:
        """Nothing to do, as for `on_leader`."""

    async def close(self) -> None:
        """Stop; one that is being made is finished and has its name, or goes."""
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
            # Disk full, or RocksDB refuses: there is no new snapshot, and nothing is trimmed for it.
            logger.exception("event=snapshot_failed action=log_stays")
            shutil.rmtree(part, ignore_errors=True)
        finally:
            self._task = None

    def _prepare(self, part: Path) -> SnapshotId | None:
        """In the thread: a checkpoint of one offset, synced; None when the image says not yet who votes."""
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

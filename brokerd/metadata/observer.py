# SPDX-License-Identifier: Apache-2.0
"""The broker's copy of the cluster metadata, kept by the quorum node of this process.

Owns the image, the wait for an offset, and the calls to those who follow changes. Must not decide anything about them.
Law: the image holds committed records only, in offset order; `metadata_offset` never goes back.
Everything runs on the event loop thread.
Source: architecture section 7, "Brokers are observers".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import heappop, heappush

from brokerd.limits import WATCH_HISTORY_CHANGES
from metaquorum.metadata import image_rows, record_codec
from metaquorum.metadata.changes import ChangeCollector, ChangeHistory, MetadataChange
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import LoadedImage
from metaquorum.metadata.image_store import ImageStore
from metaquorum.metadata.listener import CommittedBatch, QuorumLeader, control_voters
from metaquorum.metadata.runs import runs

logger = logging.getLogger(__name__)

ChangeCallback = Callable[[MetadataChange], None]


class MetadataObserver:
    """Listener of a quorum node; see the module docstring."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.history = ChangeHistory(WATCH_HISTORY_CHANGES)
        self._store: ImageStore | None = None
        self._leader = QuorumLeader(leader_id=None, quorum_epoch=0, address=None)
        self._metadata_offset = 0
        self._change_callbacks: list[ChangeCallback] = []
        self._leader_callbacks: list[Callable[[], None]] = []
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_count = 0

    @property
    def applied_offset(self) -> int:
        """Offset (exclusive) of the applied records; a start begins with the image that the disk has."""
        return self._metadata_offset

    @property
    def metadata_offset(self) -> int:
        """End (exclusive) of the committed metadata that the image holds."""
        return self._metadata_offset

    @property
    def leader(self) -> QuorumLeader:
        """Who leads the quorum, as far as this node knows; that node is the active controller."""
        return self._leader

    def store_in(self, store: ImageStore) -> None:
        """Write the image to `store` from here on, which holds what this observer holds; the caller closes it."""
        self._store = store

    def on_change(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call `callback` after every change of the image; returns the way to stop that. It must not block."""
        self._change_callbacks.append(callback)
        return lambda: self._change_callbacks.remove(callback)

    def on_leader_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when another quorum leader is known; returns the way to stop that. It must not block."""
        self._leader_callbacks.append(callback)
        return lambda: self._leader_callbacks.remove(callback)

    async def wait_for(self, metadata_offset: int, *, timeout_ms: int) -> bool:
        """Wait until the image holds everything below `metadata_offset`.

        Args:
            metadata_offset: offset wanted, exclusive.
            timeout_ms: most milliseconds to wait.

        Returns:
            False when it did not come in time.
        """
        if self._metadata_offset >= metadata_offset:
            return True
        if timeout_ms <= 0:
            return False
        reached = asyncio.get_running_loop().create_future()
        self._waiter_count += 1
        heappush(self._waiters, (metadata_offset, self._waiter_count, reached))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await reached
        except TimeoutError:
            # An offset that never comes must not leave its waiter behind.
            self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
            self._waiters.sort(key=lambda waiter: waiter[:2])
            return False
        return True

    @property
    def may_lag(self) -> bool:
        """Clients and partitions wait for news."""
        return False

    def on_commit(self, batch: CommittedBatch) -> None:
        """Apply a committed batch and tell those who follow."""
        collector = ChangeCollector()
        keys: list[bytes] = []
        if not batch.is_control:
            records = [record_codec.decode(data) for data in batch.records]
            for offset, run in runs(records, batch.base_offset):
                collector.add(run, self.image)
                if self._store is not None:
                    keys.extend(image_rows.touched_keys(run, self.image))
                self.image.replay(run, offset)
        self.image.advance(batch.next_offset)
        if self._store is not None:
            self._store.apply(self.image, keys, quorum_epoch=batch.quorum_epoch, voters=control_voters(batch))
        self._metadata_offset = batch.next_offset
        change = collector.finish(batch.next_offset)
        self.history.add(change, base_offset=batch.base_offset)
        self._tell(change)

    def on_snapshot(self, loaded: LoadedImage) -> None:
        """Take an image in the place of this one; to those who follow, everything in either may have changed."""
        images = (self.image, loaded.image)
        change = MetadataChange(
            metadata_offset=loaded.image.metadata_offset,
            topics=frozenset(topic.topic for image in images for topic in image.topics()),
            topic_ids=frozenset(topic.topic_id for image in images for topic in image.topics()),
            broker_ids=frozenset(broker_id for image in images for broker_id in image.brokers),
        )
        self.image = loaded.image
        self._metadata_offset = loaded.image.metadata_offset
        # What changed in between is not known, so whoever resumes from before gets everything.
        self.history = ChangeHistory(WATCH_HISTORY_CHANGES)
        self._tell(change)

    def _tell(self, change: MetadataChange) -> None:
        if not change.is_empty:
            for callback in tuple(self._change_callbacks):
                callback(change)
        while self._waiters and self._waiters[0][0] <= self._metadata_offset:
            reached = heappop(self._waiters)[2]
            if not reached.done():
                reached.set_result(None)

    def on_leader(self, leader: QuorumLeader) -> None:
        """Note who leads the quorum."""
        if leader == self._leader:
            return
        logger.info(
            "quorum leader: leader_id=%s quorum_epoch=%d address=%s",
            leader.leader_id,
            leader.quorum_epoch,
            leader.address,
        )
        self._leader = leader
        for callback in tuple(self._leader_callbacks):
            callback()

    def on_activate(self, quorum_epoch: int) -> None:
        """Nothing to do: the controller of this process, if any, has a listener of its own."""

    def on_deactivate(self) -> None:
        """Nothing to do, as for `on_activate`."""

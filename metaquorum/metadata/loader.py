# SPDX-License-Identifier: Apache-2.0
"""The cluster metadata of one process: applies what the quorum commits to the image, once, for controller and broker alike.

    loader = MetadataLoader()
    loader.open(metadata.store, metadata.loaded)      # what the disk has
    QuorumNode(..., listener=loader)                  # the rest comes from the quorum
    unsubscribe = loader.on_change(callback)
    await loader.wait_for(offset, timeout_ms=1_000)

Owns the image, its copy in RocksDB, the last changes, the waiters for offsets, and the subscribers to changes. It decides nothing
about the metadata. Laws: the image holds only committed records, in offset order; `metadata_offset` never falls; the controller
learns of a batch when the image has it, and everyone else after the controller. Everything runs on the event loop thread.
Source: docs/controller.md; Kafka, MetadataLoader (KIP-866).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from metaquorum.metadata import image_rows, record_codec
from metaquorum.metadata.changes import ChangeCollector, ChangeHistory, MetadataChange
from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.image_format import LoadedImage
from metaquorum.metadata.image_store import ImageStore
from metaquorum.metadata.listener import CommittedBatch, QuorumLeader, control_voters
from metaquorum.metadata.runs import runs
from metaquorum.metadata.waiters import OffsetWaiters

logger = logging.getLogger(__name__)

HISTORY_CHANGES: Final = 4_096
"""Changes that are kept for clients that resume. A client that resumes from before them gets the whole image."""

ChangeCallback = Callable[[MetadataChange], None]


class LocalController(Protocol):
    """The controller of this process, if it has one."""

    @property
    def may_lag(self) -> bool:
        """True while it is a standby controller, so that commits may reach it a little later."""
        ...

    def on_applied(self, metadata_offset: int) -> None:
        """Note that the image has everything below an offset (exclusive)."""
        ...

    def on_activate(self, quorum_epoch: int) -> None:
        """Become active: the image has everything from before this epoch."""
        ...

    def on_deactivate(self) -> None:
        """Become a standby; see `MetadataListener.on_deactivate`."""
        ...


class MetadataLoader:
    """The `MetadataListener` of this process: applies committed batches and tells the controller, subscribers and waiters.

    Attributes:
        image: the committed image; a snapshot replaces the object.
        history: the last changes.
    """

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.history = ChangeHistory(HISTORY_CHANGES)
        self._store: ImageStore | None = None
        self._controller: LocalController | None = None
        self._leader = QuorumLeader(leader_id=None, quorum_epoch=0, address=None)
        self._change_callbacks: list[ChangeCallback] = []
        self._leader_callbacks: list[Callable[[], None]] = []
        self._waiters = OffsetWaiters()

    def open(self, store: ImageStore, loaded: LoadedImage) -> None:
        """Start with the image from disk, and write every later change to the store. The caller closes the store."""
        self._store = store
        if loaded.image.metadata_offset > 0:
            self.on_snapshot(loaded)

    def attach(self, controller: LocalController) -> None:
        """Set the controller of this process, before the quorum node starts. It learns what is applied and when this node leads."""
        self._controller = controller

    def stop(self) -> None:
        """Release every waiter; their `wait_for` returns False."""
        self._waiters.stop()

    @property
    def metadata_offset(self) -> int:
        """End (exclusive) of the committed metadata that the image holds."""
        return self.image.metadata_offset

    @property
    def leader(self) -> QuorumLeader:
        """The quorum leader as far as this node knows. Its node has the active controller."""
        return self._leader

    @property
    def is_crowded(self) -> bool:
        """True while no further caller may wait for an offset."""
        return self._waiters.is_full

    def on_change(self, callback: ChangeCallback) -> Callable[[], None]:
        """Call `callback` after every change of the image; it must not block. Return a function that ends this."""
        self._change_callbacks.append(callback)
        return lambda: self._change_callbacks.remove(callback)

    def on_leader_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when another quorum leader becomes known; it must not block. Return a function that ends this."""
        self._leader_callbacks.append(callback)
        return lambda: self._leader_callbacks.remove(callback)

    async def wait_for(self, metadata_offset: int, *, timeout_ms: int) -> bool:
        """Wait until the image holds everything below `metadata_offset`.

        Args:
            metadata_offset: wanted offset, exclusive.
            timeout_ms: longest wait in milliseconds.

        Returns:
            False if the time was up, too many callers wait, or this process stops.
        """
        if self.metadata_offset >= metadata_offset:
            return True
        return await self._waiters.wait(metadata_offset, timeout_ms=timeout_ms)

    # Methods of `MetadataListener`.

    @property
    def applied_offset(self) -> int:
        """Offset from which on (inclusive) the quorum must deliver batches."""
        return self.image.metadata_offset

    @property
    def may_lag(self) -> bool:
        """True without subscribers, waiters, and an active controller here."""
        if self._change_callbacks or self._waiters:
            return False
        return self._controller is None or self._controller.may_lag

    def on_commit(self, batch: CommittedBatch) -> None:
        """Apply a committed batch to the image, then notify the controller, subscribers and waiters. `settle` writes it to disk."""
        image, store = self.image, self._store
        collector = ChangeCollector()
        keys: list[bytes] = []
        if not batch.is_control:
            records = [record_codec.decode(data) for data in batch.records]
            for offset, run in runs(records, batch.base_offset):
                collector.add(run, image)
                if store is not None:
                    keys.extend(image_rows.touched_keys(run, image))
                image.replay(run, offset)
        image.advance(batch.next_offset)
        if store is not None:
            store.note(image, keys, quorum_epoch=batch.quorum_epoch, voters=control_voters(batch))
        change = collector.finish(batch.next_offset)
        self.history.add(change, base_offset=batch.base_offset)
        self._tell(change)

    def settle(self) -> None:
        """Write what was committed to the copy of the image on disk."""
        if self._store is not None:
            self._store.write()

    def on_snapshot(self, loaded: LoadedImage) -> None:
        """Switch to the image of a snapshot, which the store has already. For subscribers, everything in either image has changed."""
        images = (self.image, loaded.image)
        change = MetadataChange(
            metadata_offset=loaded.image.metadata_offset,
            topics=frozenset(topic.topic for image in images for topic in image.topics()),
            topic_ids=frozenset(topic.topic_id for image in images for topic in image.topics()),
            broker_ids=frozenset(broker_id for image in images for broker_id in image.brokers),
            group_ids=frozenset(group_id for image in images for group_id in image.configured_groups()),
        )
        self.image = loaded.image
        # The changes in between are unknown, so a client that resumes from before gets the whole image.
        self.history = ChangeHistory(HISTORY_CHANGES)
        self._tell(change)

    def _tell(self, change: MetadataChange) -> None:
        if self._controller is not None:
            self._controller.on_applied(self.metadata_offset)
        if not change.is_empty:
            for callback in tuple(self._change_callbacks):
                callback(change)
        self._waiters.reached(self.metadata_offset)

    def on_leader(self, leader: QuorumLeader) -> None:
        """Store who leads the quorum."""
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
        """Make the controller active."""
        if self._controller is not None:
            self._controller.on_activate(quorum_epoch)

    def on_deactivate(self) -> None:
        """Make the controller a standby."""
        if self._controller is not None:
            self._controller.on_deactivate()

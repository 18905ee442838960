# SPDX-License-Identifier: Apache-2.0
"""The partitions of this broker: opens and closes their logs as the metadata says.

Owns every `HostedReplica` and the directory `partitions/`. Must not serve requests, or decide who leads.

Theory of operation. After the image has caught up with this broker's registration the host looks at all of it once, and
from then on at every topic that a change touches. A partition with a replica here gets a slot; opening its log (with
recovery) runs in a thread, a few at a time, and until it is done the slot only holds those who wait. A partition whose
topic is gone is closed and its directory set aside; a directory that the metadata does not know is set aside at the
start and reported. What was set aside is deleted later, so that a mistake can be mended by hand.

Law: a log has one owner at a time; the thread that opens it gives it up before the loop takes it.
Source: architecture section 8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator

from brokerd.clock import wall_ms
from brokerd.failure import LeaderPlace
from brokerd.limits import FLUSH_THREADS, LOG_OPEN_TASKS
from brokerd.metadata.changes import MetadataChange
from brokerd.metadata.observer import MetadataObserver
from brokerd.partition.replica import PartitionReplica
from brokerd.replication.hosted_replica import STOPPING, HostedReplica
from brokerd.replication.listening import log_settings
from brokerd.replication.set_aside import SetAside
from metaquorum.controller.image import PartitionImage, TopicImage
from metaquorum.controller.topic_configs import TopicSettings, effective
from storage.env import Disk
from storage.errors import DiskFailedError, StorageError
from storage.flusher import GroupFlusher
from storage.log import OpenedLog, PartitionLog
from storage.names import PartitionIdentity, partition_directory_name

logger = logging.getLogger(__name__)


class _Slot:
    """A partition that has a replica here: being opened, open, or failed to open."""

    __slots__ = ("is_removed", "opened", "problem", "replica")

    def __init__(self) -> None:
        self.replica: HostedReplica | None = None
        self.problem: StorageError | None = None
        self.opened = asyncio.Event()
        self.is_removed = False


class ReplicaHost:
    """See the module docstring.

    Args:
        disk: the log directory's file system.
        directory: `partitions/` of the data directory.
        set_aside: where directories of removed partitions go.
        node_id: node id of this broker.
        observer: the metadata.
    """

    def __init__(
        self, *, disk: Disk, directory: str, set_aside: SetAside, node_id: int, observer: MetadataObserver
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._set_aside = set_aside
        self._node_id = node_id
        self._observer = observer
        self._flusher = GroupFlusher(FLUSH_THREADS)
        self._slots: dict[bytes, dict[int, _Slot]] = {}
        self._open_limit = asyncio.Semaphore(LOG_OPEN_TASKS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: DiskFailedError | None = None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Open every log that the image gives to this broker, and follow changes from now on.

        Raises:
            StorageError: the directory cannot be used.
        """
        self._observer.on_change(self._on_change)
        known: set[str] = set()
        for topic in self._observer.image.topics():
            self._reconcile(topic)
            known.update(
                _directory_name(topic.topic_id, partition) for partition in self._slots.get(topic.topic_id, {})
            )
        await asyncio.to_thread(self._set_aside.take_unknown, known)
        await self.wait_idle()

    async def wait_idle(self) -> None:
        """Wait until no log is being opened or removed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> None:
        """Close every log clean. Idempotent."""
        for slot in list(self._all_slots()):
            slot.is_removed = True
        await self.wait_idle()
        replicas = [slot.replica for slot in self._all_slots() if slot.replica is not None]
        self._slots.clear()
        for replica in replicas:
            await replica.close(STOPPING)
        await asyncio.to_thread(self._flusher.close)

    @property
    def replica_count(self) -> int:
        """Replicas that are open."""
        return sum(slot.replica is not None for slot in self._all_slots())

    def leaderless_count(self) -> int:
        """Count the partitions here that have no leader although this broker is in sync and could lead them."""
        image = self._observer.image
        topics = (image.topic_by_id(topic_id) for topic_id in self._slots)
        return sum(
            partition.leader_id is None and self._node_id in partition.isr
            for topic in topics
            if topic is not None
            for partition in topic.partitions
        )

    def find(self, topic_id: bytes, partition: int) -> HostedReplica | None:
        """Return the open replica, or None."""
        slot = self._slots.get(topic_id, {}).get(partition)
        return None if slot is None else slot.replica

    def problem(self, topic_id: bytes, partition: int) -> StorageError | None:
        """Return why the log of a replica that belongs here could not be opened."""
        slot = self._slots.get(topic_id, {}).get(partition)
        return None if slot is None else slot.problem

    async def wait_open(self, topic_id: bytes, partition: int, *, timeout_ms: int) -> HostedReplica | None:
        """Return the replica, waiting while its log is being opened; None when there is none, or not in time."""
        slot = self._slots.get(topic_id, {}).get(partition)
        if slot is None:
            return None
        if slot.replica is None and not slot.opened.is_set():
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await slot.opened.wait()
            except TimeoutError:
                return None
        return slot.replica

    def leader_place(self, topic_id: bytes, partition: int) -> LeaderPlace | None:
        """Return who leads a partition, as clients find it; None without a leader."""
        topic = self._observer.image.topic_by_id(topic_id)
        if topic is None or partition >= len(topic.partitions):
            return None
        image = topic.partitions[partition]
        broker = None if image.leader_id is None else self._observer.image.brokers.get(image.leader_id)
        if broker is None:
            return None
        return LeaderPlace(
            leader_id=broker.broker_id, leader_epoch=image.leader_epoch, host=broker.host, port=broker.port
        )

    def _all_slots(self) -> Iterator[_Slot]:
        for slots in self._slots.values():
            yield from slots.values()

    def _on_change(self, change: MetadataChange) -> None:
        for topic_id in sorted(change.topic_ids):
            topic = self._observer.image.topic_by_id(topic_id)
            if topic is not None:
                self._reconcile(topic)
                continue
            for partition, slot in self._slots.pop(topic_id, {}).items():
                self._remove(topic_id, partition, slot)

    def _reconcile(self, topic: TopicImage) -> None:
        settings = effective(topic.configs)
        slots = self._slots.setdefault(topic.topic_id, {})
        for image in topic.partitions:
            slot = slots.get(image.partition)
            if self._node_id not in image.replicas:
                if slot is not None:
                    self._remove(topic.topic_id, image.partition, slots.pop(image.partition))
                continue
            if slot is None:
                slot = slots[image.partition] = _Slot()
                self._spawn(self._open(topic.topic, topic.topic_id, image.partition, slot, settings))
            elif slot.replica is not None:
                self._update(slot.replica, image, settings)
        if not slots:
            del self._slots[topic.topic_id]

    def _update(self, replica: HostedReplica, image: PartitionImage, settings: TopicSettings) -> None:
        replica.apply_settings(settings)
        replica.set_leadership(leader_id=image.leader_id, leader_epoch=image.leader_epoch)

    async def _open(self, topic: str, topic_id: bytes, partition: int, slot: _Slot, settings: TopicSettings) -> None:
        async with self._open_limit:
            if slot.is_removed or self._failure is not None:
                slot.opened.set()
                return
            directory = f"{self._directory}/{_directory_name(topic_id, partition)}"
            try:
                opened = await asyncio.to_thread(
                    PartitionLog.open,
                    self._disk,
                    directory,
                    settings=log_settings(settings),
                    now_ms=wall_ms(),
                    identity=PartitionIdentity(topic_id, partition),
                )
            except StorageError as error:
                slot.problem = error
                slot.opened.set()
                logger.error("log not opened: partition=%s-%d: %s", topic, partition, error)
                if isinstance(error, DiskFailedError):
                    self.note_disk_failure(error)
                return
        self._report(topic, partition, opened)
        replica = self._make_replica(topic, topic_id, partition, opened.log, settings)
        if slot.is_removed:
            await replica.close(STOPPING)
            slot.opened.set()
            return
        slot.replica = replica
        # The metadata may have moved while the log was being opened.
        current = self._observer.image.topic_by_id(topic_id)
        if current is not None and partition < len(current.partitions):
            self._update(replica, current.partitions[partition], effective(current.configs))
        slot.opened.set()

    def _make_replica(
        self, topic: str, topic_id: bytes, partition: int, log: PartitionLog, settings: TopicSettings
    ) -> HostedReplica:
        core = PartitionReplica(
            node_id=self._node_id,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            flush_policy=settings.flush_policy,
            flush_interval_ms=settings.flush_interval_ms,
        )
        return HostedReplica(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            core=core,
            log=log,
            settings=settings,
            flusher=self._flusher,
            leader_place=lambda: self.leader_place(topic_id, partition),
            on_disk_failed=self.note_disk_failure,
        )

    def _report(self, topic: str, partition: int, opened: OpenedLog) -> None:
        logger.info(
            "log open: partition=%s-%d log_start_offset=%d log_end_offset=%d report=%s",
            topic,
            partition,
            opened.log.log_start_offset,
            opened.log.log_end_offset,
            opened.report,
        )

    def _remove(self, topic_id: bytes, partition: int, slot: _Slot) -> None:
        slot.is_removed = True
        self._spawn(self._close_and_set_aside(topic_id, partition, slot))

    async def _close_and_set_aside(self, topic_id: bytes, partition: int, slot: _Slot) -> None:
        await slot.opened.wait()
        if slot.replica is not None:
            await slot.replica.close("the topic was deleted")
        name = _directory_name(topic_id, partition)
        try:
            await asyncio.to_thread(self._set_aside.take, name, is_known=True)
        except StorageError as error:
            # It will be found unknown at the next start and set aside then.
            logger.error("directory of a removed partition not set aside: %s: %s", name, error)
            if isinstance(error, DiskFailedError):
                self.note_disk_failure(error)

    def note_disk_failure(self, error: DiskFailedError) -> None:
        """End the service of every partition: the log directory failed for good."""
        if self._failure is not None:
            return
        self._failure = error
        logger.critical("log directory failed, no partition here can be written any more: %s", error)
        for slot in list(self._all_slots()):
            if slot.replica is not None:
                slot.replica.fail(f"the log directory failed: {error}")
        if not self.failed.done():
            self.failed.set_result(error)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            # A fault of ours: the process must not go on as if the partition were fine.
            logger.critical("partition task failed", exc_info=error)
            self.failed.set_result(error)


def _directory_name(topic_id: bytes, partition: int) -> str:
    return partition_directory_name(PartitionIdentity(topic_id, partition))

# SPDX-License-Identifier: Apache-2.0
"""The partitions of this broker: opens and closes their logs as the metadata says.

Owns every `HostedReplica` and `partitions/` of every log directory. Must not serve requests, or decide who leads.

Theory of operation. After the image has caught up with this broker's registration the host looks at all of it once, and
from then on at every topic that a change touches. A partition with a replica here gets a slot; opening its log (with
recovery) runs in a thread, a few at a time, and until it is done the slot only holds those who wait. A partition whose
topic is gone is closed and its directory set aside; a directory that the metadata does not know is set aside at the
start and reported. What was set aside is deleted later, so that a mistake can be mended by hand.

Laws
    A log has one owner at a time; the thread that opens it gives it up before the loop takes it.
    A log directory that fails ends the service of its own partitions. Only the first one, which holds the metadata too, or
    the last one that was left, ends the broker.
Source: architecture section 8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Final

from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.controller_client.partition_requests import ResignReason
from brokerd.failure import LeaderPlace, refused
from brokerd.limits import FLUSH_THREADS, NO_ROOM_RETRY_MS, REPLICA_SLICE, RETENTION_CHECK_MS
from brokerd.partition.events import BrokerChanged
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.cleaning import LogCleaning
from brokerd.replica.directory_care import DirectoryCare
from brokerd.replica.high_watermarks import HighWatermark, HighWatermarks
from brokerd.replica.inherited_configs import InheritedConfigs
from brokerd.replica.leader_place import leader_place
from brokerd.replica.log_front import LogFront
from brokerd.replica.log_opening import LogOpening
from brokerd.replica.moving import ReplicaMoves
from brokerd.replica.opening_turns import OpeningTurns
from brokerd.replica.partition_news import OwnBroker, broker_state, leaderless_count, partition_changed
from brokerd.replica.producer_expiry import expire_producers
from brokerd.replica.refusals import STOPPING
from brokerd.replica.replica import HostedReplica
from brokerd.replica.replica_peers import ReplicaPeers
from brokerd.replica.replica_slot import LeavingReplicas, ReplicaSlot, directory_name
from brokerd.replica.retention_task import RetentionTask
from brokerd.replica.role_log import RoleLog
from brokerd.replica.scrubbing import LogScrubbing, ScrubSettings
from brokerd.replica.set_aside import UnknownPartitions
from metaquorum.controller.configs import settings_of
from metaquorum.metadata.awaited import awaited_directories
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.image import PartitionImage, TopicImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.topic_configs import TopicSettings
from storage.compaction.cleaner import CleanerSettings
from storage.directory.directories import LogDirectories, LogDirectory
from storage.directory.space import SpaceState
from storage.errors import DiskFailedError, LogClosedError, StorageError
from storage.files.names import PartitionIdentity, parse_partition_directory_name, partition_directory_name
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import GroupFlusher

DEFAULT_CLEANER: Final = CleanerSettings()
DEFAULT_SCRUB: Final = ScrubSettings()
"""How logs are compacted, and sealed segments checked, unless told otherwise."""

logger = logging.getLogger(__name__)


class ReplicaHost:
    """See the module docstring.

    Args:
        directories: the log directories.
        own: this broker, and the process that it is.
        observer: the metadata.
        now_ms: wall clock, in milliseconds.
        retention_check_ms: milliseconds between two rounds of retention.
        cleaner: how logs are compacted.
        scrub: how sealed segments are checked.
        peers: the other brokers and the controller; None: for partitions of one replica only.

    Attributes:
        retention: makes old data go.
        cleaning: compacts the logs whose topics ask for it.
        scrubbing: checks what was written long ago.
        moves: moves logs between the directories.
        on_offline: told the ids of all log directories that have failed, whenever one does.
    """

    def __init__(
        self,
        *,
        directories: LogDirectories,
        own: OwnBroker,
        observer: MetadataLoader,
        now_ms: Callable[[], int] = wall_ms,
        retention_check_ms: int = RETENTION_CHECK_MS,
        cleaner: CleanerSettings = DEFAULT_CLEANER,
        scrub: ScrubSettings = DEFAULT_SCRUB,
        peers: ReplicaPeers | None = None,
    ) -> None:
        self._directories = directories
        self._care = DirectoryCare(directories, now_ms=now_ms, on_failure=self.note_disk_failure)
        self._opening = LogOpening(directories)
        self._now_ms = now_ms
        self._own, self._node_id = own, own.node_id
        self._peers = peers
        self._observer = observer
        self._flusher = GroupFlusher(FLUSH_THREADS)
        self._roles = RoleLog()
        self.retention = RetentionTask(self._fronts, interval_ms=retention_check_ms, now_ms=now_ms)
        self.cleaning = LogCleaning(self.replicas, settings=cleaner)
        self.scrubbing = LogScrubbing(self.replicas, settings=scrub)
        self.moves = ReplicaMoves(self)
        self._slots: dict[bytes, dict[int, ReplicaSlot]] = {}
        self._leaving = LeavingReplicas()
        self._high_watermarks = HighWatermarks(directories, self._replicated, self.note_disk_failure)
        self._inherited = InheritedConfigs(observer, self._slots.keys(), self._reconcile)
        self._opening_turns = OpeningTurns()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_following: Callable[[], None] | None = None
        self._failed: set[LogDirectory] = set()
        # When what is led in a directory without room may be given up again.
        self._hand_over_due_ms: dict[LogDirectory, int] = {}
        # Awaited replicas whose log lies nowhere here, as far as they were reported.
        self._missing: set[tuple[bytes, int]] = set()
        self.on_offline: Callable[[tuple[bytes, ...]], None] | None = None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        """Open every log that the image gives to this broker, and follow changes from now on.

        Raises:
            DuplicatePartitionError: a partition lies in two directories.
            StorageError: a directory cannot be used.
        """
        await asyncio.to_thread(self._directories.scan)
        await self._high_watermarks.start()
        self._own.look(self._observer.image)
        self._stop_following = self._observer.on_change(self._on_change)
        for topic in self._observer.image.topics():
            self._reconcile(topic)
        self._take_unknown()
        await self.wait_idle()
        await self._care.count_unknown()
        self.retention.start().add_done_callback(self._note_fault)
        self.cleaning.start()
        self.scrubbing.start()

    def _take_unknown(self) -> None:
        """Begin to set aside what lies here for partitions that have no replica here; one that comes meanwhile waits.

        The metadata may say that the topic was deleted, or that the partition has its replicas elsewhere: such a directory was
        removed while this broker was away. Every other one may be a mistake, and is kept for longer.
        """
        deleted = self._observer.image.deleted_topics.ids()
        for name in self._directories.names:
            identity = parse_partition_directory_name(name)
            if identity is None or identity.partition in self._slots.get(identity.topic_id, {}):
                continue
            topic = self._observer.image.topic_by_id(identity.topic_id)
            if topic is None:
                is_known = identity.topic_id in deleted
            else:
                is_known = identity.partition < len(topic.partitions)
                assert not is_known or self._node_id not in topic.partitions[identity.partition].replicas, name
            self._leaving.note(*identity, self._spawn(self._care.take(name, is_known=is_known)))

    async def wait_idle(self) -> None:
        """Wait until no log is being opened or removed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> bool:
        """Close every log; True if all were closed clean. What the metadata says meanwhile changes nothing here. Idempotent."""
        if self._stop_following is not None:
            self._stop_following()
            self._stop_following = None
        await asyncio.gather(self.retention.stop(), self.cleaning.stop(), self.scrubbing.stop(), self.moves.stop())
        for slot in list(self._all_slots()):
            slot.is_removed = True
        self._opening_turns.end_burst()
        await self.wait_idle()
        await self._high_watermarks.stop()
        replicas = list(self.replicas())
        self._slots.clear()
        are_clean = True
        for count, replica in enumerate(replicas, start=1):
            are_clean &= await replica.close(STOPPING)
            if count % REPLICA_SLICE == 0:
                # A voter in this process, and what is left of the connections, take their turn.
                await asyncio.sleep(0)
        self._roles.say()
        await asyncio.to_thread(self._flusher.close)
        return are_clean and not self._failed

    @property
    def directories(self) -> LogDirectories:
        """The log directories."""
        return self._directories

    @property
    def replica_count(self) -> int:
        """Replicas that are open."""
        return sum(slot.replica is not None for slot in self._all_slots())

    @property
    def leads_several(self) -> bool:
        """True if this broker leads a partition that others have too."""
        return any(replica.leads_several for replica in self.replicas())

    def leaderless_count(self) -> int:
        """Count the partitions here that have no leader although this broker is in sync and could lead them."""
        return leaderless_count(self._observer.image, self._slots.keys(), self._node_id)

    def replicas_in(self, directory: LogDirectory) -> list[HostedReplica]:
        """Return the open replicas in a log directory, by topic and partition."""
        found = [slot.replica for slot in self._all_slots() if slot.replica and slot.directory is directory]
        return sorted(found, key=lambda replica: (replica.topic, replica.partition))

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
        if slot.replica is None and slot.is_opening:
            self._opening_turns.hurry(slot)
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await slot.wait_opened()
            except TimeoutError:
                return None
        return slot.replica

    def leader_place(self, topic_id: bytes, partition: int) -> LeaderPlace | None:
        """Return who leads a partition, as clients find it; None without a leader."""
        return leader_place(self._observer.image, self._own, topic_id, partition)

    def _all_slots(self) -> Iterator[ReplicaSlot]:
        for slots in self._slots.values():
            yield from slots.values()

    def replicas(self) -> Iterator[HostedReplica]:
        """Give the open replicas, by topic and partition."""
        return (slot.replica for slot in self._all_slots() if slot.replica is not None)

    def _replicated(self) -> Iterator[HighWatermark]:
        for topic_id, slots in self._slots.items():
            for partition, slot in slots.items():
                if slot.replica is not None and slot.directory is not None and not slot.replica.is_alone:
                    yield slot.directory, directory_name(topic_id, partition), slot.replica.high_watermark

    def _fronts(self) -> Iterator[LogFront]:
        return (replica.front for replica in self.replicas())

    def _on_change(self, change: MetadataChange) -> None:
        is_let_in = self._own.look(self._observer.image)
        for topic_id in sorted(change.topic_ids):
            topic = self._observer.image.topic_by_id(topic_id)
            if topic is not None:
                if topic_id not in self._slots:
                    self._opening_turns.note_new()
                self._reconcile(topic, change.partitions.get(topic_id))
                continue
            for partition, slot in self._slots.pop(topic_id, {}).items():
                self._remove(topic_id, partition, slot)
        if (change.inherited_configs or is_let_in) and self._inherited.change():
            self._spawn(self._inherited.apply())
        if change.broker_ids:
            self._spawn(self._tell_brokers(change.broker_ids))

    async def _tell_brokers(self, broker_ids: frozenset[int]) -> None:
        """Tell every replica that leads how the metadata has these brokers now; each takes what concerns it."""
        for count, replica in enumerate(tuple(self.replicas()), start=1):
            if replica.leads_several:
                for broker_id in sorted(broker_ids):
                    state = broker_state(self._observer.image, broker_id)
                    if state is not None:
                        replica.take_event(BrokerChanged(broker=state))
            if count % REPLICA_SLICE == 0:
                await asyncio.sleep(0)

    def _reconcile(self, topic: TopicImage, changed: Iterable[int] | None = None) -> None:
        """Have the replicas here of a topic as the metadata says; `changed`: of these partitions alone, None: of all."""
        settings = self._settings(topic)
        is_known = topic.topic_id in self._slots
        slots = self._slots.setdefault(topic.topic_id, {})
        are_waiting = False
        images = topic.partitions if changed is None else [topic.partitions[number] for number in sorted(changed)]
        for image in images:
            slot = slots.get(image.partition)
            if self._node_id not in image.replicas:
                if slot is not None:
                    self._remove(topic.topic_id, image.partition, slots.pop(image.partition))
                continue
            if image.awaited:
                self._look_at_awaited(topic, image)
            if slot is None and not self._may_begin(topic, image):
                are_waiting = True
            elif slot is None:
                slot = slots[image.partition] = ReplicaSlot(self._leaving.of(topic.topic_id, image.partition))
                self._spawn(self._open(topic.topic, topic.topic_id, image.partition, slot, settings))
            elif slot.replica is not None:
                self._update(slot.replica, topic, image, settings)
        if slots or are_waiting:
            return
        if changed is not None and is_known:
            # Others of its partitions may wait to be opened here.
            self._reconcile(topic)
        else:
            del self._slots[topic.topic_id]

    def _may_begin(self, topic: TopicImage, image: PartitionImage) -> bool:
        """Tell whether the log of a replica may be opened now, or made.

        Where it lies in no directory, it is made only after the controller has let this process in: until then it may be one that
        the partition is about to await, and an empty log would be taken for what was lost.
        """
        is_here = self._directories.find(directory_name(topic.topic_id, image.partition)) is not None
        return is_here or (self._own.may_lead and not awaited_directories(image.awaited, self._node_id))

    def _look_at_awaited(self, topic: TopicImage, image: PartitionImage) -> None:
        """Claim the replica here if its log lies in a directory that the partition awaits, else say what is missing, once."""
        awaited = awaited_directories(image.awaited, self._node_id)
        if not awaited:
            return
        directory = self._directories.find(directory_name(topic.topic_id, image.partition))
        if directory is not None and directory.directory_id in awaited:
            if self._peers is not None and self._peers.withdrawals is not None:
                self._peers.withdrawals.note_found(topic.topic_id, image.partition, directory.directory_id)
        elif (topic.topic_id, image.partition) not in self._missing:
            self._missing.add((topic.topic_id, image.partition))
            logger.error(
                "replica without its log directory: partition=%s-%d: it was the last in-sync one; no leader before log directory "
                "%s is back, or an unclean election",
                topic.topic,
                image.partition,
                " or ".join(each.hex() for each in awaited),
            )

    def _settings(self, topic: TopicImage) -> TopicSettings:
        return settings_of(self._observer.image, topic.configs, self._node_id)

    def _update(
        self, replica: HostedReplica, topic: TopicImage, image: PartitionImage, settings: TopicSettings
    ) -> None:
        replica.apply_settings(settings)
        replica.take_partition(partition_changed(self._observer.image, topic, self._own.seen(image)))

    async def _open(
        self, topic: str, topic_id: bytes, partition: int, slot: ReplicaSlot, settings: TopicSettings
    ) -> None:
        await slot.wait_turn()
        await self._opening_turns.take(slot)
        try:
            if slot.is_removed:
                slot.end_opening()
                return
            identity = PartitionIdentity(topic_id, partition)
            try:
                directory, opened = await asyncio.to_thread(self._opening.open, topic, identity, settings)
            except StorageError as error:
                slot.problem = error
                slot.end_opening()
                logger.error("log not opened: partition=%s-%d: %s", topic, partition, error)
                if not slot.is_removed:
                    self._note_lost(topic_id, partition)
                self._note_failure_at(partition_directory_name(identity), error)
                return
        finally:
            self._opening_turns.give_back()
        replica = self._make_replica(topic, topic_id, partition, directory, opened.log, settings)
        slot.replica, slot.directory = replica, directory
        if slot.is_removed:
            await replica.close(STOPPING)
            slot.end_opening()
            return
        if directory in self._failed:
            replica.fail(f"the log directory failed: {directory.failure}")
            self._note_lost(topic_id, partition)
        # The metadata may have moved while the log was being opened.
        current = self._observer.image.topic_by_id(topic_id)
        if current is not None and partition < len(current.partitions):
            self._update(replica, current, current.partitions[partition], self._settings(current))
        slot.end_opening()

    def open_moved(self, identity: PartitionIdentity, directory: LogDirectory, path: str) -> PartitionLog:
        """Open the log of a replica that was moved to another directory. Runs in a thread."""
        replica = self.find(*identity)
        if replica is None:
            raise LogClosedError(path)
        return self._opening.open_at(identity, directory, path, replica.settings).log

    def move(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Begin to move the log of a replica to another log directory; `moves` tells how it goes.

        Raises:
            RefusedError: there is no such replica or directory here, or it cannot be moved now.
        """
        slot = self._slots.get(topic_id, {}).get(partition)
        if slot is None:
            raise refused(ErrorCode.UNKNOWN_TOPIC, f"partition {partition} of this topic has no replica on this broker")
        target = self._directories.by_id(directory_id)
        if target is None:
            message = f"this broker has no log directory {directory_id.hex()}: name one of its own"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        self.moves.start(slot, target)

    def _make_replica(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        directory: LogDirectory,
        log: PartitionLog,
        settings: TopicSettings,
    ) -> HostedReplica:
        image = self._observer.image.topic_by_id(topic_id)
        is_alone = image is None or image.partitions[partition].replicas == (self._node_id,)
        name = directory_name(topic_id, partition)
        core = PartitionReplica(
            node_id=self._node_id,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            flush_policy=settings.flush_policy,
            flush_interval_ms=settings.flush_interval_ms,
            high_watermark=None if is_alone else self._high_watermarks.known(directory, name, log),
            last_epoch=log.last_record_epoch,
            # Rises over the life of the process, also where a replica goes and comes back.
            session_count=monotonic_ms(),
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
            space=directory.space,
            on_disk_failed=lambda error: self.note_disk_failure(directory, error),
            on_no_room=lambda: self._hand_over(directory),
            roles=self._roles,
            peers=self._peers,
        )

    def _remove(self, topic_id: bytes, partition: int, slot: ReplicaSlot) -> None:
        slot.is_removed = True
        if self._peers is not None and self._peers.withdrawals is not None:
            self._peers.withdrawals.note_removed(topic_id, partition)
        self._leaving.note(topic_id, partition, self._spawn(self._close_and_set_aside(topic_id, partition, slot)))

    async def _close_and_set_aside(self, topic_id: bytes, partition: int, slot: ReplicaSlot) -> None:
        await slot.wait_opened()
        await self.moves.end(slot)
        if slot.replica is not None:
            await slot.replica.close("the topic was deleted")
        await self._care.take(directory_name(topic_id, partition), is_known=True)

    def _note_failure_at(self, name: str, error: StorageError) -> None:
        """Take up an error of a partition's directory, if it is one that ends more than this partition."""
        directory = self._directories.find(name)
        if isinstance(error, DiskFailedError) and directory is not None:
            self.note_disk_failure(directory, error)

    def _note_lost(self, topic_id: bytes, partition: int) -> None:
        """Have a replica withdrawn whose log does not work: others take over."""
        if self._peers is not None and self._peers.withdrawals is not None:
            self._peers.withdrawals.note_lost(topic_id, partition)

    def note_disk_failure(self, directory: LogDirectory, error: DiskFailedError) -> None:
        """End the service of every partition of a log directory: it failed for good."""
        if directory in self._failed:
            return
        self._failed.add(directory)
        directory.note_failure(error)
        logger.critical("log directory failed, no partition in it can be written any more: %s: %s", directory, error)
        for replica in self.replicas_in(directory):
            replica.fail(f"the log directory failed: {error}")
            self._note_lost(replica.topic_id, replica.partition)
        if self.on_offline is not None:
            self.on_offline(self._directories.failed_ids)
        is_fatal = directory is self._directories.first or len(self._failed) == len(self._directories)
        if is_fatal and not self.failed.done():
            self.failed.set_result(error)

    def lacks_room(self) -> bool:
        """True while a log directory that works has too little room for appends of clients, as it was last looked at."""
        return any(each.failure is None and each.space.state is not SpaceState.FREE for each in self._directories)

    def _hand_over(self, directory: LogDirectory) -> None:
        """Give up what is led in a directory without room, where another replica may lead; at most once in `NO_ROOM_RETRY_MS`."""
        now_ms = monotonic_ms()
        if now_ms < self._hand_over_due_ms.get(directory, now_ms):
            return
        self._hand_over_due_ms[directory] = now_ms + NO_ROOM_RETRY_MS
        for replica in self.replicas_in(directory):
            replica.resign(ResignReason.NO_ROOM)

    async def delete_due(self) -> int:
        """Delete what was set aside long enough ago; return how many directories were deleted."""
        return await self._care.delete_due()

    async def unknown_partitions(self, directory: LogDirectory) -> UnknownPartitions:
        """Look how much in a directory was set aside because the metadata never knew it."""
        return await self._care.unknown(directory)

    @property
    def unknown_counts(self) -> Mapping[LogDirectory, UnknownPartitions]:
        """See `DirectoryCare.unknown_counts`."""
        return self._care.unknown_counts

    async def delete_unknown_partitions(self) -> UnknownPartitions:
        """Delete what the metadata never knew, before its time.

        Raises:
            StorageError: something could not be deleted.
        """
        return await self._care.delete_unknown()

    async def expire_producers(self, expiration_ms: int) -> int:
        """Let every log forget the producers that were idle for longer; return how many."""
        return await expire_producers(self.replicas(), now_ms=self._now_ms(), expiration_ms=expiration_ms)

    async def tend_space(self) -> None:
        """Look how much room each directory has, and do what its ballast needs."""
        await self._care.tend_space()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._note_fault(task)

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            # A fault of ours: the process must not go on as if the partition were fine.
            logger.critical("partition task failed", exc_info=error)
            self.failed.set_result(error)

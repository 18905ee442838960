# SPDX-License-Identifier: Apache-2.0
"""The replica manager: opens and closes the logs of this broker as the metadata says, and passes changes to the replicas.

Owns every `Replica`, and `partitions/` of every log directory. Serves no requests, and does not decide who leads.

Theory of operation. After the image has caught up with this broker's registration, the manager goes over all of it
once. From then on it looks at every topic that a change touches. It enters a partition with a replica here at once.
Opening the log (with recovery) runs in a thread, a few at a time. Until it is done, the entry only holds waiters. The
manager closes a partition whose topic was deleted, and removes its directory. At the start it removes and reports
directories that the metadata does not know. A removal first only renames the directory (`removed_directories`), so that
an operator can undo a mistake.

A file in each log directory keeps the high watermarks of partitions with several replicas over a restart. The manager
reads it at the start, and writes it when a value has moved. An old value is safe, so nothing is synced. Without any
value, a partition with too few in-sync replicas after a restart could not be read at all.

Laws
    A log has one owner at a time: the thread that opens it hands it to the event loop.
    A failed log directory ends the service of its own partitions only. The failure of the first one, which also holds
    the metadata, or of the last one left, ends the broker.
    A failure of one directory does not stop the work on the others.
Source: docs/replication.md, "Contract of the shells"; docs/storage.md section 8; Kafka,
ReplicaManager and replication-offset-checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from lograft.wire.codes import ErrorCode

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.controller_client.partition_requests import ResignReason
from brokerd.failure import LeaderPlace, refused
from brokerd.limits import FLUSH_THREADS, HIGH_WATERMARK_SAVE_MS, NO_ROOM_RETRY_MS, REPLICA_SLICE, RETENTION_CHECK_MS
from brokerd.partition.events import BrokerChanged
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.cleaning import LogCleaning
from brokerd.replica.log_opening import LogOpening
from brokerd.replica.metadata_view import OwnBroker, broker_state, leader_place, leaderless_count, partition_changed
from brokerd.replica.moving import ReplicaMoves
from brokerd.replica.opening_turns import OpeningTurns
from brokerd.replica.producer_expiry import expire_producers
from brokerd.replica.refusals import MOVED_AWAY, STOPPING, TOPIC_DELETED
from brokerd.replica.removed_directories import RemovedDirectories, UnknownPartitions
from brokerd.replica.replica import Replica, ReplicaContext
from brokerd.replica.replica_peers import ReplicaPeers
from brokerd.replica.retention import RetentionTask
from brokerd.replica.role_log import RoleLog
from brokerd.replica.scrubbing import LogScrubbing, ScrubSettings
from metaquorum.controller.configs import settings_of
from metaquorum.metadata.awaited import awaited_directories
from metaquorum.metadata.changes import MetadataChange
from metaquorum.metadata.image import PartitionImage, TopicImage
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.metadata.topic_configs import TopicSettings
from storage.compaction.cleaner import CleanerSettings
from storage.directory.directories import LogDirectories, LogDirectory
from storage.directory.high_watermarks import load_high_watermarks, write_high_watermarks
from storage.directory.space import SpaceState
from storage.errors import DiskFailedError, StorageError
from storage.files.names import PartitionIdentity, parse_partition_directory_name, partition_directory_name
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import GroupFlusher

DEFAULT_CLEANER: Final = CleanerSettings()
DEFAULT_SCRUB: Final = ScrubSettings()
"""Default settings of the cleaner and the scrub."""

SLICE_TOPICS: Final = 200
"""Topics handled in one turn of the event loop; some 5 ms with a few partitions each."""

logger = logging.getLogger(__name__)


class HostedPartition:
    """A partition with a replica on this broker, whose log is being opened, is open, or did not open. Only `ReplicaManager` writes it.

    Args:
        name: name of the directory that holds its log.
        closing: task that removes the directory of an earlier replica of the partition here; None: there is none.

    Attributes:
        name: name of the directory that holds its log.
        replica: the open replica, or None.
        problem: why the log could not be opened.
        is_removed: True once the replica no longer belongs here.
    """

    __slots__ = ("_closing", "_opening", "is_removed", "name", "problem", "replica")

    def __init__(self, name: str, closing: asyncio.Task[None] | None = None) -> None:
        self.name = name
        self._closing = closing
        self.replica: Replica | None = None
        self.problem: StorageError | None = None
        self.is_removed = False
        # Exists only during the opening: an event takes more memory than the rest of an idle partition's entry.
        self._opening: asyncio.Event | None = asyncio.Event()

    @property
    def is_opening(self) -> bool:
        """True until the log is open, or has failed to open."""
        return self._opening is not None

    async def wait_directory(self) -> None:
        """Wait until the directory of an earlier replica is removed."""
        closing, self._closing = self._closing, None
        if closing is not None:
            # Its failure does not affect the next replica.
            await asyncio.wait((closing,))

    async def wait_opened(self) -> None:
        """Wait until the log is open, or has failed to open."""
        if self._opening is not None:
            await self._opening.wait()

    def end_opening(self) -> None:
        """Wake all waiters."""
        if self._opening is not None:
            self._opening.set()
            self._opening = None


_Result = TypeVar("_Result")


class ReplicaManager:
    """The replicas of one broker. Belongs to one event loop; only its own methods write its state.

    Args:
        directories: the log directories.
        own: this broker and its process.
        observer: the metadata.
        now_ms: wall clock in milliseconds.
        retention_check_ms: milliseconds between two rounds of retention.
        cleaner: settings of the cleaner.
        scrub: settings of the scrub.
        peers: the other brokers and the controller; None: partitions have one replica only.

    Attributes:
        retention: the retention task.
        cleaning: the cleaner.
        scrubbing: the scrub.
        moves: the moves of logs between the directories.
        on_offline: called with the ids of all failed log directories whenever one fails; the broker's process sets it
            once.
        on_role: called after each change of the role or the leader epoch of an open replica; the broker's process sets it once,
            before `start`.
        failed: resolves with the reason when the broker must stop.
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
        self._own, self._node_id = own, own.node_id
        self._observer = observer
        self._now_ms = now_ms
        self._peers = peers
        self._flusher = GroupFlusher(FLUSH_THREADS)
        self._roles = RoleLog()
        self._context = ReplicaContext(
            flusher=self._flusher,
            leader_place=self.leader_place,
            on_disk_failed=self.note_disk_failure,
            on_no_room=self._hand_over,
            roles=self._roles,
            on_role=self._tell_role,
            peers=peers,
        )
        self._opening = LogOpening(directories)
        self._opening_turns = OpeningTurns()
        self.retention = RetentionTask(self.replicas, interval_ms=retention_check_ms, now_ms=now_ms)
        self.cleaning = LogCleaning(self.replicas, settings=cleaner)
        self.scrubbing = LogScrubbing(self.replicas, settings=scrub)
        self.moves = ReplicaMoves(directories, self._opening, self.note_disk_failure)
        self._hosted: dict[bytes, dict[int, HostedPartition]] = {}
        # Tasks that remove the directory of a removed replica. A new replica of the partition must wait, because its
        # log would be opened in that directory.
        self._closing: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._file_work: set[asyncio.Task[Any]] = set()
        self._stop_following: Callable[[], None] | None = None
        # True while a scan over all topics is under way; True if another one must follow.
        self._is_walking = self._walk_again = False
        # Awaited replicas whose log is in no directory here, so that each is reported once.
        self._missing: set[tuple[bytes, int]] = set()
        self._removed = {each: RemovedDirectories(each.disk, each.partitions_path, now_ms) for each in directories}
        # Held while removed directories are read or deleted, so that no reader finds a directory that is being deleted.
        self._removed_lock = asyncio.Lock()
        self._unknown_counts: Mapping[LogDirectory, UnknownPartitions] = {}
        self._saved_high_watermarks: dict[LogDirectory, dict[str, int]] = {}
        self._saving: asyncio.Task[None] | None = None
        self._stop_saving = asyncio.Event()
        self._failed: set[LogDirectory] = set()
        # When the leaderships in a directory without space may be resigned again.
        self._hand_over_due_ms: dict[LogDirectory, int] = {}
        self.on_offline: Callable[[tuple[bytes, ...]], None] | None = None
        self.on_role: Callable[[Replica], None] | None = None
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    # ------------------------------------------------------------------------------------------------------------------
    # Start and stop.

    async def start(self) -> None:
        """Open every log that the image assigns to this broker, and follow changes from now on.

        Raises:
            DuplicatePartitionError: a partition is in two directories.
            StorageError: a directory cannot be used.
        """
        await asyncio.to_thread(self._directories.scan)
        self._saved_high_watermarks = await asyncio.to_thread(self._load_high_watermarks)
        self._saving = asyncio.create_task(self._save_at_intervals(), name="high-watermarks")
        self._own.look(self._observer.image)
        self._stop_following = self._observer.on_change(self._on_change)
        for topic in self._observer.image.topics():
            self._reconcile(topic)
        self._remove_unknown()
        await self.wait_idle()
        await self._count_unknown()
        self.retention.start().add_done_callback(self._note_fault)
        self.cleaning.start()
        self.scrubbing.start()

    def _remove_unknown(self) -> None:
        """Begin to remove the directories of partitions that have no replica here; a replica that comes in the meantime waits.

        If the metadata says that the topic was deleted or that the replicas are elsewhere, the directory was left while
        this broker was away. Any other directory may be a mistake, and is kept for longer.
        """
        deleted = self._observer.image.deleted_topics.ids()
        for name in self._directories.names:
            identity = parse_partition_directory_name(name)
            if identity is None or identity.partition in self._hosted.get(identity.topic_id, {}):
                continue
            topic = self._observer.image.topic_by_id(identity.topic_id)
            if topic is None:
                is_known = identity.topic_id in deleted
            else:
                is_known = identity.partition < len(topic.partitions)
                assert not is_known or self._node_id not in topic.partitions[identity.partition].replicas, name
            self._note_closing(*identity, self._spawn(self._remove_directory(name, is_known=is_known)))

    async def wait_idle(self) -> None:
        """Wait until no log is being opened or removed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self) -> bool:
        """Close every log; return True if all closed cleanly. Changes of the metadata no longer have an effect. Idempotent."""
        if self._stop_following is not None:
            self._stop_following()
            self._stop_following = None
        await asyncio.gather(self.retention.stop(), self.cleaning.stop(), self.scrubbing.stop(), self.moves.stop())
        for hosted in list(self._all_hosted()):
            hosted.is_removed = True
        self._opening_turns.end_burst()
        await self.wait_idle()
        if self._file_work:
            await asyncio.wait(self._file_work)
        await self._stop_saving_high_watermarks()
        replicas = list(self.replicas())
        self._hosted.clear()
        are_clean = True
        for count, replica in enumerate(replicas, start=1):
            are_clean &= await replica.close(STOPPING)
            if count % REPLICA_SLICE == 0:
                # Let a voter in this process, and the remaining connections, have their turn.
                await asyncio.sleep(0)
        self._roles.say()
        await asyncio.to_thread(self._flusher.close)
        return are_clean and not self._failed

    # ------------------------------------------------------------------------------------------------------------------
    # Looking up replicas.

    @property
    def directories(self) -> LogDirectories:
        """The log directories."""
        return self._directories

    @property
    def replica_count(self) -> int:
        """Number of open replicas."""
        return sum(hosted.replica is not None for hosted in self._all_hosted())

    @property
    def leads_several(self) -> bool:
        """True if this broker leads a partition with other replicas."""
        return any(replica.leads_several for replica in self.replicas())

    def leaderless_count(self) -> int:
        """Count the partitions here without a leader although this broker is in sync and could lead them."""
        return leaderless_count(self._observer.image, self._hosted.keys(), self._node_id)

    def leader_place(self, topic_id: bytes, partition: int) -> LeaderPlace | None:
        """Return the leader of a partition, as clients find it; None: there is none."""
        return leader_place(self._observer.image, self._own, topic_id, partition)

    def replicas(self) -> Iterator[Replica]:
        """Return an iterator over the open replicas, by topic and partition."""
        return (hosted.replica for hosted in self._all_hosted() if hosted.replica is not None)

    def replicas_in(self, directory: LogDirectory) -> list[Replica]:
        """Return the open replicas in a log directory, by topic and partition."""
        found = [replica for replica in self.replicas() if replica.directory is directory]
        return sorted(found, key=lambda replica: (replica.topic, replica.partition))

    def find(self, topic_id: bytes, partition: int) -> Replica | None:
        """Return the open replica, or None."""
        hosted = self._hosted.get(topic_id, {}).get(partition)
        return None if hosted is None else hosted.replica

    def problem(self, topic_id: bytes, partition: int) -> StorageError | None:
        """Return why the log of a replica here could not be opened; None: no problem."""
        hosted = self._hosted.get(topic_id, {}).get(partition)
        return None if hosted is None else hosted.problem

    async def wait_open(self, topic_id: bytes, partition: int, *, timeout_ms: int) -> Replica | None:
        """Return the replica; wait while its log is being opened. None: there is none, or the time ran out."""
        hosted = self._hosted.get(topic_id, {}).get(partition)
        if hosted is None:
            return None
        if hosted.replica is None and hosted.is_opening:
            self._opening_turns.hurry(hosted)
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await hosted.wait_opened()
            except TimeoutError:
                return None
        return hosted.replica

    def _all_hosted(self) -> Iterator[HostedPartition]:
        for partitions in self._hosted.values():
            yield from partitions.values()

    # ------------------------------------------------------------------------------------------------------------------
    # Changes of the metadata.

    def _on_change(self, change: MetadataChange) -> None:
        is_let_in = self._own.look(self._observer.image)
        for topic_id in sorted(change.topic_ids):
            topic = self._observer.image.topic_by_id(topic_id)
            if topic is not None:
                if topic_id not in self._hosted:
                    self._opening_turns.note_new()
                self._reconcile(topic, change.partitions.get(topic_id))
                continue
            for partition, hosted in self._hosted.pop(topic_id, {}).items():
                self._remove(topic_id, partition, hosted)
        if change.inherited_configs or is_let_in:
            self._walk_again = True
            if not self._is_walking:
                self._is_walking = True
                self._spawn(self._reconcile_all())
        if change.broker_ids:
            self._spawn(self._tell_brokers(change.broker_ids))

    async def _reconcile_all(self) -> None:
        """Go over all topics until nothing has changed in the meantime: inherited configs, and permission to lead.

        A change of one cluster config may touch a hundred thousand logs. Between slices, produce, fetch and heartbeats
        have their turn.
        """
        while self._walk_again:
            self._walk_again = False
            for count, topic_id in enumerate(tuple(self._hosted), start=1):
                topic = self._observer.image.topic_by_id(topic_id)
                if topic is not None:
                    self._reconcile(topic)
                if count % SLICE_TOPICS == 0:
                    await asyncio.sleep(0)
        self._is_walking = False

    async def _tell_brokers(self, broker_ids: frozenset[int]) -> None:
        """Tell every replica that leads several the new state of these brokers; each one picks what concerns it."""
        for count, replica in enumerate(tuple(self.replicas()), start=1):
            if replica.leads_several:
                for broker_id in sorted(broker_ids):
                    state = broker_state(self._observer.image, broker_id)
                    if state is not None:
                        replica.take_event(BrokerChanged(broker=state))
            if count % REPLICA_SLICE == 0:
                await asyncio.sleep(0)

    def _reconcile(self, topic: TopicImage, changed: Iterable[int] | None = None) -> None:
        """Bring the replicas of a topic here to the state in the metadata: those in `changed`, or (None) all of them."""
        settings = self._settings(topic)
        is_known = topic.topic_id in self._hosted
        partitions = self._hosted.setdefault(topic.topic_id, {})
        are_waiting = False
        images = topic.partitions if changed is None else [topic.partitions[number] for number in sorted(changed)]
        for image in images:
            hosted = partitions.get(image.partition)
            if self._node_id not in image.replicas:
                if hosted is not None:
                    self._remove(topic.topic_id, image.partition, partitions.pop(image.partition))
                continue
            if image.awaited:
                self._look_at_awaited(topic, image)
            if hosted is None and not self._may_open(topic, image):
                are_waiting = True
            elif hosted is None:
                name = directory_name(topic.topic_id, image.partition)
                hosted = HostedPartition(name, self._closing.get((topic.topic_id, image.partition)))
                partitions[image.partition] = hosted
                self._spawn(self._open(topic.topic, topic.topic_id, image.partition, hosted, settings))
            elif hosted.replica is not None:
                self._update(hosted.replica, topic, image, settings)
        if partitions or are_waiting:
            return
        if changed is not None and is_known:
            # Other partitions of the topic may still wait to be opened here.
            self._reconcile(topic)
        else:
            del self._hosted[topic.topic_id]

    def _may_open(self, topic: TopicImage, image: PartitionImage) -> bool:
        """Tell whether the log of a replica may be opened or made now.

        A log that is in no directory is made only after the controller has unfenced this process. Before that, the
        partition may be about to await it, and an empty log would count as the lost one.
        """
        is_here = self._directories.find(directory_name(topic.topic_id, image.partition)) is not None
        return is_here or (self._own.may_lead and not awaited_directories(image.awaited, self._node_id))

    def _look_at_awaited(self, topic: TopicImage, image: PartitionImage) -> None:
        """Claim the replica if its log is in an awaited directory; otherwise log once what is missing."""
        awaited = awaited_directories(image.awaited, self._node_id)
        if not awaited:
            return
        directory = self._directories.find(directory_name(topic.topic_id, image.partition))
        if directory is not None and directory.directory_id in awaited:
            if self._peers is not None:
                self._peers.requests.note_found(topic.topic_id, image.partition, directory.directory_id)
        elif (topic.topic_id, image.partition) not in self._missing:
            self._missing.add((topic.topic_id, image.partition))
            logger.error(
                "replica without its log directory: partition=%s-%d: it was the last in-sync one; no leader before log directory "
                "%s is back, or an unclean election",
                topic.topic,
                image.partition,
                " or ".join(each.hex() for each in awaited),
            )

    def _tell_role(self, replica: Replica) -> None:
        if self.on_role is not None:
            self.on_role(replica)

    def _settings(self, topic: TopicImage) -> TopicSettings:
        return settings_of(self._observer.image, topic.configs, self._node_id)

    def _update(self, replica: Replica, topic: TopicImage, image: PartitionImage, settings: TopicSettings) -> None:
        replica.apply_settings(settings)
        replica.take_partition(partition_changed(self._observer.image, topic, self._own.seen(image)))

    # ------------------------------------------------------------------------------------------------------------------
    # Opening, moving and removing replicas.

    async def _open(
        self, topic: str, topic_id: bytes, partition: int, hosted: HostedPartition, settings: TopicSettings
    ) -> None:
        await hosted.wait_directory()
        await self._opening_turns.take(hosted)
        try:
            if hosted.is_removed:
                hosted.end_opening()
                return
            identity = PartitionIdentity(topic_id, partition)
            try:
                directory, opened = await asyncio.to_thread(self._opening.open, topic, identity, settings)
            except StorageError as error:
                hosted.problem = error
                hosted.end_opening()
                logger.error("log not opened: partition=%s-%d: %s", topic, partition, error)
                if not hosted.is_removed:
                    self._note_lost(topic_id, partition)
                self._note_failure_at(partition_directory_name(identity), error)
                return
        finally:
            self._opening_turns.give_back()
        replica = hosted.replica = self._make_replica(topic, topic_id, partition, directory, opened.log, settings)
        if hosted.is_removed:
            await replica.close(STOPPING)
            hosted.end_opening()
            return
        if directory in self._failed:
            replica.fail(f"the log directory failed: {directory.failure}")
            self._note_lost(topic_id, partition)
        # The metadata may have changed while the log was being opened.
        current = self._observer.image.topic_by_id(topic_id)
        if current is not None and partition < len(current.partitions):
            self._update(replica, current, current.partitions[partition], self._settings(current))
        hosted.end_opening()

    def _make_replica(
        self,
        topic: str,
        topic_id: bytes,
        partition: int,
        directory: LogDirectory,
        log: PartitionLog,
        settings: TopicSettings,
    ) -> Replica:
        image = self._observer.image.topic_by_id(topic_id)
        is_alone = image is None or image.partitions[partition].replicas == (self._node_id,)
        name = directory_name(topic_id, partition)
        core = PartitionReplica(
            node_id=self._node_id,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            flush_policy=settings.flush_policy,
            flush_interval_ms=settings.flush_interval_ms,
            high_watermark=None if is_alone else self._saved_high_watermark(directory, name, log),
            last_epoch=log.last_record_epoch,
            # Rises over the life of the process, even if a replica is removed and comes back.
            session_count=monotonic_ms(),
        )
        return Replica(
            topic=topic,
            topic_id=topic_id,
            partition=partition,
            core=core,
            log=log,
            directory=directory,
            settings=settings,
            context=self._context,
        )

    def move(self, topic_id: bytes, partition: int, directory_id: bytes) -> None:
        """Begin to move the log of a replica to another log directory; `moves` reports its progress.

        Raises:
            RefusedError: there is no such replica or directory here, or it cannot be moved now.
        """
        hosted = self._hosted.get(topic_id, {}).get(partition)
        if hosted is None:
            raise refused(ErrorCode.UNKNOWN_TOPIC, f"partition {partition} of this topic has no replica on this broker")
        target = self._directories.by_id(directory_id)
        if target is None:
            message = f"this broker has no log directory {directory_id.hex()}: name one of its own"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        if hosted.replica is None:
            raise refused(ErrorCode.STORAGE_FAILED, "the log of this replica is not open: nothing can be moved")
        self.moves.start(hosted.replica, target)

    def _remove(self, topic_id: bytes, partition: int, hosted: HostedPartition) -> None:
        hosted.is_removed = True
        if self._peers is not None:
            self._peers.requests.note_removed(topic_id, partition)
        self._note_closing(topic_id, partition, self._spawn(self._close_and_remove(topic_id, partition, hosted)))

    async def _close_and_remove(self, topic_id: bytes, partition: int, hosted: HostedPartition) -> None:
        await hosted.wait_opened()
        replica = hosted.replica
        if replica is not None:
            await self.moves.end(replica)
            is_deleted = self._observer.image.topic_by_id(topic_id) is None
            await replica.close(TOPIC_DELETED if is_deleted else MOVED_AWAY)
        await self._remove_directory(hosted.name, is_known=True)

    def _note_closing(self, topic_id: bytes, partition: int, task: asyncio.Task[None]) -> None:
        key = topic_id, partition

        def forget(_: asyncio.Task[None]) -> None:
            if self._closing.get(key) is task:
                del self._closing[key]

        self._closing[key] = task
        task.add_done_callback(forget)

    # ------------------------------------------------------------------------------------------------------------------
    # Removed directories.

    async def _remove_directory(self, name: str, *, is_known: bool) -> None:
        """Remove the directory of a partition that has no replica here; does nothing if it does not exist.

        A directory that cannot be renamed stays, and is an unknown one at the next start.

        Args:
            name: name of the partition directory.
            is_known: True if the replica was removed; False if the metadata never knew it here.
        """
        directory = self._directories.find(name)
        if directory is None:
            return
        try:
            await asyncio.to_thread(self._removed[directory].remove, name, is_known=is_known)
        except StorageError as error:
            logger.error("partition directory not removed: %s: %s", name, error)
            if isinstance(error, DiskFailedError):
                self.note_disk_failure(directory, error)
            return
        self._directories.forget(name)

    async def delete_due(self) -> int:
        """Delete the directories that were removed long enough ago; return their number."""
        return await self._to_its_end(self._delete_due())

    async def _delete_due(self) -> int:
        deleted = 0
        for directory, removed in self._removed.items():
            try:
                async with self._removed_lock:
                    deleted += await asyncio.to_thread(removed.delete_due)
            except StorageError as error:
                logger.error("removed directory not deleted: %s: %s", directory, error)
        await self._count_unknown()
        return deleted

    @property
    def unknown_counts(self) -> Mapping[LogDirectory, UnknownPartitions]:
        """The last count of each working directory; empty before the end of `start`.

        Any thread may read it: the mapping is replaced, never changed.
        """
        return self._unknown_counts

    async def _count_unknown(self) -> None:
        """Count, in each working directory, the partitions that the metadata never knew."""
        self._unknown_counts = {
            directory: await self.unknown_partitions(directory)
            for directory in self._directories
            if directory.failure is None
        }

    async def unknown_partitions(self, directory: LogDirectory) -> UnknownPartitions:
        """Return how much in a directory the metadata never knew; nothing if the directory cannot be read."""
        try:
            async with self._removed_lock:
                return await asyncio.to_thread(self._removed[directory].unknown)
        except StorageError as error:
            logger.error("removed directories not counted: %s: %s", directory, error)
            return UnknownPartitions()

    async def delete_unknown_partitions(self) -> UnknownPartitions:
        """Delete early, in every working directory, the partitions that the metadata never knew; return how much was deleted.

        Raises:
            StorageError: a directory could not be deleted.
        """
        try:
            async with self._removed_lock:
                deleted = [
                    await asyncio.to_thread(removed.delete_unknown)
                    for directory, removed in self._removed.items()
                    if directory.failure is None
                ]
        finally:
            await self._count_unknown()
        return UnknownPartitions(
            partition_count=sum(each.partition_count for each in deleted),
            size_bytes=sum(each.size_bytes for each in deleted),
        )

    # ------------------------------------------------------------------------------------------------------------------
    # High watermarks over a restart.

    def _saved_high_watermark(self, directory: LogDirectory, name: str, log: PartitionLog) -> int:
        """Return the saved high watermark of a log, at least its log start (exclusive)."""
        saved = self._saved_high_watermarks.get(directory, {}).get(name, 0)
        return min(max(saved, log.log_start_offset), log.log_end_offset)

    def _load_high_watermarks(self) -> dict[LogDirectory, dict[str, int]]:
        """Read the files; runs in a thread."""
        saved: dict[LogDirectory, dict[str, int]] = {}
        for directory in self._directories:
            loaded = load_high_watermarks(directory.disk, directory.path)
            if loaded.problem is not None:
                # The leaders will send them again.
                logger.warning("high watermarks not read: directory=%s: %s", directory, loaded.problem)
            saved[directory] = loaded.offsets
        return saved

    async def _save_at_intervals(self) -> None:
        while not self._stop_saving.is_set():
            try:
                async with asyncio.timeout(HIGH_WATERMARK_SAVE_MS / 1000):
                    await self._stop_saving.wait()
            except TimeoutError:
                await self._save_high_watermarks()

    async def _stop_saving_high_watermarks(self) -> None:
        """Save for the last time. Idempotent."""
        saving, self._saving = self._saving, None
        if saving is not None:
            # Not cancelled: a save under way must end before the next one begins.
            self._stop_saving.set()
            await saving
            await self._save_high_watermarks()

    async def _save_high_watermarks(self) -> None:
        present: dict[LogDirectory, dict[str, int]] = {directory: {} for directory in self._saved_high_watermarks}
        for hosted in self._all_hosted():
            replica = hosted.replica
            if replica is not None and not replica.is_alone:
                present.setdefault(replica.directory, {})[hosted.name] = replica.high_watermark
        changed = {
            directory: offsets
            for directory, offsets in present.items()
            if offsets != self._saved_high_watermarks.get(directory, {}) and directory.failure is None
        }
        for directory, offsets in changed.items():
            try:
                await asyncio.to_thread(write_high_watermarks, directory.disk, directory.path, offsets)
            except DiskFailedError as error:
                self.note_disk_failure(directory, error)
            except StorageError as error:
                logger.warning("high watermarks not saved: directory=%s: %s", directory, error)
            else:
                self._saved_high_watermarks[directory] = offsets

    # ------------------------------------------------------------------------------------------------------------------
    # Failures and lack of space.

    def note_disk_failure(self, directory: LogDirectory, error: DiskFailedError) -> None:
        """End the service of every partition in a log directory that has failed for good."""
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

    def _note_failure_at(self, name: str, error: StorageError) -> None:
        """Handle an error of a partition's directory if it affects the whole log directory."""
        directory = self._directories.find(name)
        if isinstance(error, DiskFailedError) and directory is not None:
            self.note_disk_failure(directory, error)

    def _note_lost(self, topic_id: bytes, partition: int) -> None:
        """Report a replica as offline because its log does not work, so that others take over."""
        if self._peers is not None:
            self._peers.requests.note_lost(topic_id, partition)

    def lacks_room(self) -> bool:
        """Return True while a working log directory has too little space for appends of clients, as of the last look."""
        return any(each.failure is None and each.space.state is not SpaceState.FREE for each in self._directories)

    def _hand_over(self, directory: LogDirectory) -> None:
        """Resign the leaderships in a directory without space, if another replica may lead; at most once in `NO_ROOM_RETRY_MS`."""
        now_ms = monotonic_ms()
        if now_ms < self._hand_over_due_ms.get(directory, now_ms):
            return
        self._hand_over_due_ms[directory] = now_ms + NO_ROOM_RETRY_MS
        for replica in self.replicas_in(directory):
            replica.resign(ResignReason.NO_ROOM)

    async def tend_space(self) -> None:
        """Check the space of each directory, and write or remove its ballast as needed; handle disk failures that threads met."""
        await self._to_its_end(self._tend_space())

    async def _tend_space(self) -> None:
        for directory in self._directories:
            if directory.failure is not None:
                # Compaction, a repair or a deletion may have met it in a directory to which no client writes.
                self.note_disk_failure(directory, directory.failure)
                continue
            try:
                await asyncio.to_thread(directory.space.tend, monotonic_ms())
            except DiskFailedError as error:
                self.note_disk_failure(directory, error)
            except StorageError as error:
                logger.error("ballast of a log directory: %s: %s", directory, error)

    async def expire_producers(self, expiration_ms: int) -> int:
        """Make every log forget the producers that were idle for longer; return their number."""
        return await expire_producers(self.replicas(), now_ms=self._now_ms(), expiration_ms=expiration_ms)

    # ------------------------------------------------------------------------------------------------------------------
    # Tasks.

    async def _to_its_end(self, work: Coroutine[None, None, _Result]) -> _Result:
        """Do work on the files of the directories. If the caller is cancelled, `stop` waits until no thread is at the files."""
        task = asyncio.create_task(work)
        self._file_work.add(task)
        task.add_done_callback(self._file_work.discard)
        return await asyncio.shield(task)

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
            # This is a bug: the process must not continue as if the partition were fine.
            logger.critical("partition task failed", exc_info=error)
            self.failed.set_result(error)


def directory_name(topic_id: bytes, partition: int) -> str:
    """Return the name of the directory that holds the log of a replica."""
    return partition_directory_name(PartitionIdentity(topic_id, partition))

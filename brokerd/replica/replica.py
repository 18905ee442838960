# SPDX-License-Identifier: Apache-2.0
"""One partition replica that is open on this broker: its core, its log, and who waits for it.

Owns the log (it is the only one that calls it) and carries out the effects of the core. Must not decide what is
acknowledged or readable: the core does. Everything runs on the event loop thread, except the fdatasync itself.

Law: listeners are called after the state of the core is complete.
Source: architecture sections 6 and 8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from lograft.wire.codes import ErrorCode
from lograft.wire.header import BatchHeader

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.controller_client.partition_requests import Resignation, ResignReason
from brokerd.failure import Failure, LeaderPlace, RefusedError
from brokerd.partition.effects import (
    AcceptSubscription,
    AdvanceLogStart,
    AppendBatches,
    BeginLeaderEpoch,
    CompleteAck,
    DivergeSubscription,
    Effect,
    EndService,
    EndSubscription,
    FailAck,
    FlushLog,
    ForgetEmptyEpoch,
    GiveWay,
    ProposeIsr,
    PublishHighWatermark,
)
from brokerd.partition.events import (
    AckDropped,
    AckLevel,
    AckWanted,
    BatchAppended,
    Event,
    FlushPolicyChanged,
    LogFlushed,
    PartitionChanged,
    ReplicaRemoved,
    StorageFailed,
)
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.core_runner import CoreRunner
from brokerd.replica.follower_readers import FollowerReaders
from brokerd.replica.led_followers import LedFollowers
from brokerd.replica.listening import AckCallback, log_settings
from brokerd.replica.log_copying import LogCopying
from brokerd.replica.log_flushing import LogFlushing
from brokerd.replica.log_front import LogFront
from brokerd.replica.log_lease import LogLease
from brokerd.replica.record_rules import check_records
from brokerd.replica.refusals import append_failure, end_code, end_failure, moving_failure, too_few_failure
from brokerd.replica.replica_listeners import ReplicaListeners
from brokerd.replica.replica_peers import ReplicaPeers
from brokerd.replica.replica_reading import ReplicaReading
from brokerd.replica.role_log import RoleLog
from metaquorum.metadata.topic_configs import TopicSettings
from storage.directory.space_guard import SpaceGuard
from storage.errors import (
    DataLossError,
    DiskFailedError,
    DiskFullError,
    DiskSpaceLowError,
    LogClosedError,
    StorageError,
)
from storage.log.partition_log import PartitionLog
from storage.maintenance.flusher import GroupFlusher
from storage.types import Appended

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class HostedReplica(ReplicaReading):
    """See the module docstring.

    Args:
        topic: topic name.
        topic_id: topic id, 16 bytes.
        partition: partition, from 0.
        core: the core, made for this log.
        log: the open log.
        settings: effective configs of the topic.
        flusher: threads for fdatasync.
        leader_place: gives the leader of the partition as clients see it, for hints.
        space: says whether the log directory has room for an append.
        on_disk_failed: told when the log directory failed.
        on_no_room: told when an append of a client found too little room there.
        roles: told when the role changes.
        peers: the other brokers and the controller; None: only for a partition of one replica.

    Attributes:
        front: where old segments go.
        listeners: who uses this replica.
        space: says whether the log directory has room.
        is_moving: True while the log is being moved to another directory; it is not compacted meanwhile.
        settings: effective configs of the topic as they are now.
    """

    def __init__(
        self,
        *,
        topic: str,
        topic_id: bytes,
        partition: int,
        core: PartitionReplica,
        log: PartitionLog,
        settings: TopicSettings,
        flusher: GroupFlusher,
        leader_place: Callable[[], LeaderPlace | None],
        space: SpaceGuard,
        on_disk_failed: Callable[[DiskFailedError], None],
        on_no_room: Callable[[], None],
        roles: RoleLog,
        peers: ReplicaPeers | None = None,
    ) -> None:
        super().__init__(core, log)
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self._runner = CoreRunner(core, self._carry_out, self._after_step)
        self.settings = settings
        self._leader_place = leader_place
        self.space = space
        self._on_disk_failed = on_disk_failed
        self._on_no_room = on_no_room
        self._roles = roles
        self._peers = peers
        # What a partition of several replicas needs; made at first use.
        self._followers: LedFollowers | None = None
        self._copying: LogCopying | None = None
        self._follower_readers: FollowerReaders | None = None
        self.front = LogFront(log, self)
        self._flushing = LogFlushing(log, flusher, self)
        self._lease = LogLease(self.front, self._flushing)
        self.listeners = ReplicaListeners()
        self._ack_callbacks: dict[int, AckCallback] = {}
        self._next_token = 0
        self.is_moving = False
        self._is_closed = self._is_clean = False

    @property
    def is_leader(self) -> bool:
        """True while this broker leads the partition and its log works."""
        return self._core.is_leader

    @property
    def is_writable(self) -> bool:
        """False once the replica is closed or its log failed."""
        return not self._is_closed and not self._core.is_failed

    @property
    def leader_epoch(self) -> int:
        """Leader epoch, 0 before the metadata gave one."""
        return self._core.leader_epoch or 0

    @property
    def log(self) -> PartitionLog:
        """The log, for the parts of this replica."""
        return self._log

    @property
    def is_lent(self) -> bool:
        """True while somebody else works on the log; it takes no appends."""
        return self._lease.is_lent

    @property
    def in_sync(self) -> tuple[int, ...]:
        """Node ids of the maximal in-sync replicas that a leader of several reckons with; another object after every change."""
        return self._core.maximal_isr

    @property
    def is_alone(self) -> bool:
        """True while the partition has this replica only."""
        return self._core.roles.is_alone

    @property
    def leads_several(self) -> bool:
        """True while this broker leads the partition and others follow."""
        return self._core.roles.leadership is not None

    @property
    def followers(self) -> LedFollowers:
        """The followers, as their streams see this replica."""
        if self._followers is None:
            self._followers = LedFollowers(self)
        return self._followers

    @property
    def follower_readers(self) -> FollowerReaders:
        """Who reads this replica while it follows."""
        if self._follower_readers is None:
            self._follower_readers = FollowerReaders(self._core, self.refusal)
        return self._follower_readers

    @property
    def is_compacted(self) -> bool:
        """True if the topic's `cleanup.policy` says so."""
        return self.settings.cleanup_policy.compacts

    @property
    def max_message_bytes(self) -> int:
        """Most bytes of one batch, header included."""
        return self.settings.max_message_bytes

    def refusal(self) -> Failure:
        """Say why this replica does not serve; only while it is no leader."""
        if self._core.is_failed:
            return Failure(code=ErrorCode.STORAGE_FAILED, message=f"the log of {self} failed on this broker")
        place = self._leader_place()
        if place is None:
            message = f"{self} has no leader at the moment"
            return Failure(code=ErrorCode.LEADER_NOT_AVAILABLE, message=message, retry_after_ms=250)
        return Failure(code=ErrorCode.NOT_LEADER, message=f"broker {place.leader_id} leads {self}", leader=place)

    def append(self, batch: bytes | memoryview, header: BatchHeader, *, level: AckLevel = AckLevel.LEADER) -> Appended:
        """Append a batch that `check_batch` has accepted, for somebody who will wait for `level`.

        Raises:
            RefusedError: not appended; STORAGE_FAILED after a write error means that a part may be in the log.
        """
        core = self._core
        leader_epoch = core.leader_epoch
        if not core.is_leader or leader_epoch is None:
            raise RefusedError(self.refusal())
        if level is AckLevel.ALL and core.is_below_min_isr:
            raise RefusedError(too_few_failure(str(self)))
        if self.is_lent:
            raise RefusedError(moving_failure(str(self)))
        now_ms = wall_ms()
        check_records(batch, header, self.settings, topic=self.topic, now_ms=now_ms)
        try:
            self.space.admit(len(batch), now_ms=monotonic_ms())
            appended = self._log.append_as_leader(batch, header, leader_epoch=leader_epoch, now_ms=now_ms)
        except StorageError as error:
            if isinstance(error, DiskFailedError):
                self._fail(error)
            elif isinstance(error, DiskFullError | DiskSpaceLowError):
                self._on_no_room()
            raise RefusedError(append_failure(error, str(self), has_followers=self.leads_several)) from error
        if not appended.duplicate:
            self._runner.step(BatchAppended(log_end_offset=self._log.log_end_offset))
        return appended

    def resign(self, reason: ResignReason) -> None:
        """Ask that another replica leads, if there is one; the metadata says whether it does."""
        if self._peers is not None and self._peers.resignations is not None and self.leads_several:
            self._peers.resignations.resign(
                Resignation(
                    topic_id=self.topic_id,
                    partition=self.partition,
                    leader_epoch=self.leader_epoch,
                    reason=reason,
                    allow_eligible=self._core.is_eligible_enough,
                )
            )

    def want_ack(self, next_offset: int, level: AckLevel, callback: AckCallback) -> int:
        """Call back when every record below `next_offset` has reached `level`, possibly before this returns.

        Returns:
            A token for `drop_ack`.
        """
        self._next_token += 1
        token = self._next_token
        self._ack_callbacks[token] = callback
        self._runner.step(AckWanted(token=token, next_offset=next_offset, level=level))
        return token

    def drop_ack(self, token: int) -> None:
        """Stop to wait; nothing happens when the callback was called already."""
        if self._ack_callbacks.pop(token, None) is not None:
            self._runner.step(AckDropped(token=token))

    def take_partition(self, event: PartitionChanged) -> None:
        """Take over what the metadata says about the partition."""
        was_leader, old_epoch = self._core.is_leader, self._core.leader_epoch
        self._runner.step(event)
        if (self._core.is_leader, self._core.leader_epoch) != (was_leader, old_epoch):
            end_offset = self._log.log_end_offset
            self._roles.note(self, event.partition, is_leader=self._core.is_leader, log_end_offset=end_offset)

    def take_event(self, event: Event) -> None:
        """Give an event to the core: what the parts of this replica, and the controller, have to tell."""
        self._runner.step(event)

    def pause_events(self) -> None:
        """Keep events from the core until `resume_events`: the log is being cut."""
        self._runner.pause()

    def resume_events(self, event: Event) -> None:
        """Give the core the event that it waits for, and then what was held back."""
        self._runner.resume(event)

    def apply_settings(self, settings: TopicSettings) -> None:
        """Take over changed topic configs."""
        if settings == self.settings:
            return
        self.settings = settings
        if not self.is_lent:
            self._log.apply_settings(log_settings(settings))
        self._runner.step(FlushPolicyChanged(policy=settings.flush_policy, interval_ms=settings.flush_interval_ms))

    def fail(self, message: str) -> None:
        """Serve no more: the log directory failed."""
        if not self._core.is_failed:
            self._runner.step(StorageFailed(message=message))

    def run_step(self, step: Callable[[PartitionLog, int], _Result]) -> _Result:
        """Let background work take a short step on the log, with the high watermark; raises what it raises, or LogClosedError."""
        if self._is_closed or self.is_lent:
            raise LogClosedError(self._log.directory)
        try:
            return step(self._log, self.high_watermark)
        except DiskFailedError as error:
            self._fail(error)
            raise

    @asynccontextmanager
    async def lent(self) -> AsyncGenerator[PartitionLog]:
        """Take no append or step of background work until the context ends; reads go on."""
        async with self._lease.lent():
            try:
                yield self._log
            finally:
                self._log.apply_settings(log_settings(self.settings))

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Flush to the end, and take no append or step of background work until the context ends; reads go on.

        Raises:
            LogClosedError: the replica is closed or failed, or cannot be flushed.
        """
        async with self.lent():
            if not await self._flushing.flush_all():
                raise LogClosedError(self._log.directory)
            yield

    def check_room(self, size_bytes: int) -> None:
        """Let compaction write a file beside the log; may be called from any thread; raises DiskSpaceLowError if there is no room."""
        self.space.check_room(size_bytes, now_ms=monotonic_ms(), is_freeing=True)

    async def wait_released(self) -> None:
        """Wait until the log is not held."""
        await self._lease.wait_released()

    def adopt(
        self, log: PartitionLog, *, space: SpaceGuard, on_disk_failed: Callable[[DiskFailedError], None]
    ) -> PartitionLog:
        """Go on with the same log in another directory, while this one is held; return the old one, to be closed."""
        old = self._log
        assert self.is_lent, f"{self} is not held"
        assert log.flushed_offset == log.log_end_offset == old.log_end_offset, f"{self}: {log.log_end_offset}"
        self._log, self.space, self._on_disk_failed = log, space, on_disk_failed
        self.front.adopt(log)
        self._flushing.log = log
        return old

    def note_disk_failure(self, error: DiskFailedError) -> None:
        """Serve no more, and tell that the log directory failed."""
        self._fail(error)

    async def close(self, message: str) -> bool:
        """Serve no more, wait for a flush under way, and close the log; True if it was closed clean. Idempotent."""
        if self._is_closed:
            return self._is_clean
        self._is_closed = True
        self._runner.step(ReplicaRemoved(message=message))
        self._runner.close()
        if self._copying is not None:
            await self._copying.cutting.wait_idle()
        await self._flushing.wait_idle()
        await self.front.close()
        try:
            if self._log.has_unsaved:
                await asyncio.to_thread(self._log.close, clean=not self._core.is_failed)
            else:
                # Without a thread: a stop has tens of thousands of these to close, and nothing to write for them.
                self._log.close(clean=not self._core.is_failed)
        except StorageError as error:
            # Recovery at the next start treats the log as after a crash.
            logger.error("log not closed clean: partition=%s: %s", self, error)
        else:
            self._is_clean = not self._core.is_failed and self._log.failure is None
        return self._is_clean

    def _after_step(self, event: Event) -> None:
        start_offset, high_watermark = self._log.log_start_offset, self._core.high_watermark
        assert start_offset <= high_watermark, (
            f"{self} begins at {start_offset}, above its high watermark {high_watermark}: {event}"
        )
        followers = self._followers
        if followers is not None:
            if type(event) is BatchAppended:
                followers.tell_growth(event.log_end_offset)
            followers.tell_in_sync()
        if self._follower_readers is not None:
            self._follower_readers.note_step()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case PublishHighWatermark():
                self.listeners.tell_high_watermark(effect.high_watermark)
                if self._followers is not None:
                    self._followers.tell_marks()
            case CompleteAck():
                callback = self._ack_callbacks.pop(effect.token, None)
                if callback is not None:
                    callback(effect.durability)
            case FlushLog():
                self._flushing.begin()
            case FailAck():
                callback = self._ack_callbacks.pop(effect.token, None)
                if callback is not None:
                    callback(effect.reason)
            case EndService():
                self._end_service(effect)
            case AcceptSubscription() | DivergeSubscription() | EndSubscription():
                self.followers.answer(effect)
            case BeginLeaderEpoch():
                self._log.assign_epoch(effect.leader_epoch)
            case ProposeIsr() | GiveWay():
                assert self._peers is not None, f"{self} has peers"
                self._peers.ask_controller(self, effect)
            case ForgetEmptyEpoch():
                self._log.truncate_suffix(self._log.log_end_offset)
            case AdvanceLogStart():
                self.front.advance(effect.log_start_offset)
            case AppendBatches():
                self._copied().append()
            case _:
                self._copied().carry_out(effect)

    def _copied(self) -> LogCopying:
        if self._copying is None:
            assert self._peers is not None, f"{self} has peers"
            self._copying = LogCopying(self, self._peers.links)
        return self._copying

    def _end_service(self, effect: EndService) -> None:
        leader = self._leader_place() if end_code(effect) is ErrorCode.NOT_LEADER else None
        failure = end_failure(effect, str(self), leader)
        self.listeners.end_service(failure)

    def _repairs(self, damage: DataLossError) -> bool:
        if self._peers is None or self._peers.repairs is None or self.is_alone:
            return False
        news = self._peers.repairs.news
        news.tell()
        given_up = news.given_up(self._log.directory)
        hopeless = [each for each in self._log.damaged if each.segment_base_offset in given_up]
        return not any(each.base_offset <= damage.base_offset < each.end_offset for each in hopeless)

    def note_flushed(self, flushed_offset: int) -> None:
        """Learn that everything below an offset (exclusive) is on stable storage."""
        self._runner.step(LogFlushed(flushed_offset=flushed_offset))

    def note_front(self) -> None:
        """Follow the log: what lies below its start counts as flushed."""
        if self._log.flushed_offset > self._core.flushed_offset:
            self._runner.step(LogFlushed(flushed_offset=self._log.flushed_offset))
        if self._followers is not None:
            self._followers.tell_marks()

    def _fail(self, error: DiskFailedError) -> None:
        logger.critical("log failed: partition=%s: %s", self, error)
        self.fail(f"the log failed: {error}")
        self._on_disk_failed(error)

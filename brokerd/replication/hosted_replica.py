# SPDX-License-Identifier: Apache-2.0
"""One partition replica that is open on this broker: its core, its log, and who waits for it.

Owns the log (it is the only one that calls it) and carries out the effects of the core. Must not decide what is
acknowledged or readable: the core does. Everything runs on the event loop thread, except the fdatasync itself.

Law: listeners are called after the state of the core is complete. Inside `on_high_watermark` they may read offsets but
not add or remove listeners.
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
from brokerd.failure import Failure, LeaderPlace, ReadableOffsets, RefusedError
from brokerd.partition.effects import (
    CompleteAck,
    Effect,
    EndService,
    FailAck,
    FlushLog,
    PublishHighWatermark,
)
from brokerd.partition.events import (
    AckDropped,
    AckLevel,
    AckWanted,
    BatchAppended,
    Event,
    FlushPolicyChanged,
    LeadershipChanged,
    LogFlushed,
    ReplicaRemoved,
    StorageFailed,
    Tick,
)
from brokerd.partition.replica import PartitionReplica
from brokerd.replication.listening import AckCallback, ReadListener, ServiceListener, client_text, log_settings
from brokerd.replication.log_flushing import LogFlushing
from brokerd.replication.log_front import LogFront
from brokerd.replication.record_rules import check_records
from brokerd.replication.refusals import append_failure, end_code, end_failure, moving_failure, range_failure
from metaquorum.controller.topic_configs import TopicSettings
from storage.errors import (
    DiskFailedError,
    LogClosedError,
    OffsetOutOfRangeError,
    StorageError,
)
from storage.flusher import GroupFlusher
from storage.log import Appended, LogRead, PartitionLog, TimestampAndOffset
from storage.space_guard import SpaceGuard

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class HostedReplica:
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

    Attributes:
        front: where old segments go.
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
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self._core = core
        self._log = log
        self.settings = settings
        self._leader_place = leader_place
        self._space = space
        self._on_disk_failed = on_disk_failed
        self.front = LogFront(log, self)
        self._flushing = LogFlushing(log, flusher, self)
        self._loop = asyncio.get_running_loop()
        # Dictionaries for their order: who came first is told first.
        self._service_listeners: dict[ServiceListener, None] = {}
        self._read_listeners: dict[ServiceListener, ReadListener] = {}
        self._ack_callbacks: dict[int, AckCallback] = {}
        self._next_token = 0
        self.is_moving = False
        self._held: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = self._is_clean = False

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

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
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset that the next record will get."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of the readable records."""
        return self._core.high_watermark

    @property
    def is_compacted(self) -> bool:
        """True if the topic's `cleanup.policy` says so."""
        return self.settings.cleanup_policy.compacts

    @property
    def max_message_bytes(self) -> int:
        """Most bytes of one batch, header included."""
        return self.settings.max_message_bytes

    @property
    def readable_range(self) -> ReadableOffsets:
        """The offsets that can be read."""
        return ReadableOffsets(log_start_offset=self._log.log_start_offset, high_watermark=self._core.high_watermark)

    def refusal(self) -> Failure:
        """Say why this replica does not serve; only while it is no leader."""
        if self._core.is_failed:
            return Failure(code=ErrorCode.STORAGE_FAILED, message=f"the log of {self} failed on this broker")
        place = self._leader_place()
        if place is None:
            message = f"{self} has no leader at the moment"
            return Failure(code=ErrorCode.LEADER_NOT_AVAILABLE, message=message, retry_after_ms=250)
        return Failure(code=ErrorCode.NOT_LEADER, message=f"broker {place.leader_id} leads {self}", leader=place)

    def append(self, batch: bytes | memoryview, header: BatchHeader) -> Appended:
        """Append a batch that `check_batch` has accepted.

        Raises:
            RefusedError: not appended; STORAGE_FAILED after a write error means that a part may be in the log.
        """
        core = self._core
        leader_epoch = core.leader_epoch
        if not core.is_leader or leader_epoch is None:
            raise RefusedError(self.refusal())
        if self._held is not None:
            raise RefusedError(moving_failure(str(self)))
        now_ms = wall_ms()
        check_records(batch, header, self.settings, topic=self.topic, now_ms=now_ms)
        try:
            self._space.admit(len(batch), now_ms=monotonic_ms())
            appended = self._log.append_as_leader(batch, header, leader_epoch=leader_epoch, now_ms=now_ms)
        except StorageError as error:
            if isinstance(error, DiskFailedError):
                self._fail(error)
            raise RefusedError(append_failure(error, str(self))) from error
        if not appended.duplicate:
            self._step(BatchAppended(log_end_offset=self._log.log_end_offset))
        return appended

    def want_ack(self, next_offset: int, level: AckLevel, callback: AckCallback) -> int:
        """Call back when every record below `next_offset` has reached `level`, possibly before this returns.

        Returns:
            A token for `drop_ack`.
        """
        self._next_token += 1
        token = self._next_token
        self._ack_callbacks[token] = callback
        self._step(AckWanted(token=token, next_offset=next_offset, level=level))
        return token

    def drop_ack(self, token: int) -> None:
        """Stop to wait; nothing happens when the callback was called already."""
        if self._ack_callbacks.pop(token, None) is not None:
            self._step(AckDropped(token=token))

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> LogRead:
        """Read whole batches from the one that holds `offset` on, below `end_offset` (exclusive); at least one.

        Raises:
            RefusedError: out of range, damaged, or the disk does not give the bytes.
        """
        try:
            return self._log.read(offset, max_bytes, end_offset=end_offset)
        except OffsetOutOfRangeError as error:
            raise RefusedError(self.out_of_range(offset)) from error
        except StorageError as error:
            logger.error("read failed: partition=%s offset=%d: %s", self, offset, error)
            raise RefusedError(Failure(code=error.code, message=client_text(error))) from error

    def find_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """Find the first readable record with the timestamp or a later one.

        Raises:
            RefusedError: the log could not be read.
        """
        try:
            return self._log.find_timestamp(timestamp_ms, end_offset=self._core.high_watermark)
        except StorageError as error:
            logger.error("search by time failed: partition=%s timestamp_ms=%d: %s", self, timestamp_ms, error)
            raise RefusedError(Failure(code=error.code, message=client_text(error))) from error

    def out_of_range(self, offset: int) -> Failure:
        """Make the refusal of an offset that cannot be read."""
        return range_failure(offset, str(self), self.readable_range)

    def add_service_listener(self, listener: ServiceListener) -> None:
        """Tell the listener when the service ends."""
        self._service_listeners[listener] = None

    def add_read_listener(self, listener: ReadListener) -> None:
        """Tell the listener when the high watermark moves and when the service ends."""
        self._service_listeners[listener] = None
        self._read_listeners[listener] = listener

    def remove_listener(self, listener: ServiceListener) -> None:
        """Stop to tell the listener; nothing happens when it was not added."""
        self._service_listeners.pop(listener, None)
        self._read_listeners.pop(listener, None)

    @property
    def listener_count(self) -> int:
        """How many listeners there are."""
        return len(self._service_listeners)

    def set_leadership(self, *, leader_id: int | None, leader_epoch: int) -> None:
        """Take over what the metadata says about the leader."""
        was_leader, old_epoch = self._core.is_leader, self._core.leader_epoch
        self._step(LeadershipChanged(leader_id=leader_id, leader_epoch=leader_epoch))
        if (self._core.is_leader, self._core.leader_epoch) != (was_leader, old_epoch):
            logger.info(
                "role: partition=%s leader_id=%s leader_epoch=%d is_leader=%s log_end_offset=%d",
                self,
                leader_id,
                leader_epoch,
                self._core.is_leader,
                self._log.log_end_offset,
            )

    def apply_settings(self, settings: TopicSettings) -> None:
        """Take over changed topic configs."""
        if settings == self.settings:
            return
        self.settings = settings
        if self._held is None:
            self._log.apply_settings(log_settings(settings))
        self._step(FlushPolicyChanged(policy=settings.flush_policy, interval_ms=settings.flush_interval_ms))

    def fail(self, message: str) -> None:
        """Serve no more: the log directory failed."""
        if not self._core.is_failed:
            self._step(StorageFailed(message=message))

    def run_step(self, step: Callable[[PartitionLog, int], _Result]) -> _Result:
        """Let background work take a short step on the log, with the high watermark; raises what it raises, or LogClosedError."""
        if self._is_closed or self._held is not None:
            raise LogClosedError(self._log.directory)
        try:
            return step(self._log, self.high_watermark)
        except DiskFailedError as error:
            self._fail(error)
            raise

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Flush to the end, and take no append or step of background work until the context ends; reads go on.

        Raises:
            LogClosedError: the replica is closed or failed, or cannot be flushed.
        """
        assert self._held is None, f"{self} is held"
        self._held = held = asyncio.Event()
        try:
            async with self.front.held():
                if not await self._flushing.flush_all():
                    raise LogClosedError(self._log.directory)
                yield
        finally:
            self._held = None
            self._log.apply_settings(log_settings(self.settings))
            held.set()

    def check_room(self, size_bytes: int) -> None:
        """Let compaction write a file beside the log; may be called from any thread; raises DiskSpaceLowError if there is no room."""
        self._space.check_room(size_bytes, now_ms=monotonic_ms(), is_freeing=True)

    async def wait_released(self) -> None:
        """Wait until the log is not held."""
        while self._held is not None:
            await self._held.wait()

    def adopt(
        self, log: PartitionLog, *, space: SpaceGuard, on_disk_failed: Callable[[DiskFailedError], None]
    ) -> PartitionLog:
        """Go on with the same log in another directory, while this one is held; return the old one, to be closed."""
        old = self._log
        assert self._held is not None, f"{self} is not held"
        assert log.flushed_offset == log.log_end_offset == old.log_end_offset, f"{self}: {log.log_end_offset}"
        self._log, self._space, self._on_disk_failed = log, space, on_disk_failed
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
        self._step(ReplicaRemoved(message=message))
        if self._timer is not None:
            self._timer.cancel()
        await self._flushing.wait_idle()
        await self.front.close()
        try:
            await asyncio.to_thread(self._log.close, clean=not self._core.is_failed)
        except StorageError as error:
            # Recovery at the next start treats the log as after a crash.
            logger.error("log not closed clean: partition=%s: %s", self, error)
        else:
            self._is_clean = not self._core.is_failed and self._log.failure is None
        return self._is_clean

    def _step(self, event: Event) -> None:
        for effect in self._core.step(event, monotonic_ms()):
            self._carry_out(effect)
        if self._core.deadline_ms() is not None and self._timer is None:
            self._arm_timer()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case PublishHighWatermark():
                for listener in self._read_listeners.values():
                    listener.on_high_watermark(effect.high_watermark)
            case CompleteAck():
                callback = self._ack_callbacks.pop(effect.token, None)
                if callback is not None:
                    callback(effect.durability)
            case FlushLog():
                self._flushing.begin()
            case FailAck():
                callback = self._ack_callbacks.pop(effect.token, None)
                if callback is not None:
                    callback(None)
            case EndService():
                self._end_service(effect)
            case _:
                # Only `PartitionChanged` brings the core to any other, and nobody gives it that yet.
                raise AssertionError(f"{self} has one replica, and its core asks for {effect}")

    def _end_service(self, effect: EndService) -> None:
        leader = self._leader_place() if end_code(effect) is ErrorCode.NOT_LEADER else None
        failure = end_failure(effect, str(self), leader)
        listeners = tuple(self._service_listeners)
        self._service_listeners.clear()
        self._read_listeners.clear()
        for listener in listeners:
            listener.on_service_end(failure)

    def note_flushed(self, flushed_offset: int) -> None:
        """Learn that everything below an offset (exclusive) is on stable storage."""
        self._step(LogFlushed(flushed_offset=flushed_offset))

    def note_front(self) -> None:
        """Follow the log: what lies below its start counts as flushed."""
        if self._log.flushed_offset > self._core.flushed_offset:
            self._step(LogFlushed(flushed_offset=self._log.flushed_offset))

    def _fail(self, error: DiskFailedError) -> None:
        logger.critical("log failed: partition=%s: %s", self, error)
        self.fail(f"the log failed: {error}")
        self._on_disk_failed(error)

    def _arm_timer(self) -> None:
        deadline_ms = self._core.deadline_ms()
        assert deadline_ms is not None, "no deadline"
        self._timer = self._loop.call_later(max(deadline_ms - monotonic_ms(), 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._step(Tick())

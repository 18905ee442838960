# SPDX-License-Identifier: Apache-2.0
"""One replica of a partition on this broker: its log, its core, and its listeners.

Theory of operation. The core (`brokerd.partition.replica`) decides: what is acknowledged, what is readable, who is in
sync, whom this replica follows, where its log is truncated. This class owns the log, passes events to the core, and
carries out its effects: appends, flushes, truncations, acknowledgements, messages to followers and the leader, requests
to the controller. Everything runs on the event loop thread, except work that waits for the device (fdatasync, removal
of files, truncation). That work runs in threads, one at a time on a log if it could conflict.

Laws
    Effects are carried out in the core's order. An append comes last, because it is an event itself.
    While the log is truncated, the core gets no event except those that end the replica. The others follow in their
    order. Flushes from before the truncation are not reported: `LogTruncated` says what is flushed.
    A flush is reported only after `PartitionLog.end_flush` has returned.
    Listeners are called after the state of the core is complete. A reader at a follower learns of the end of its
    service in the step in which the leader is lost, so before any truncation.
    While the log is locked, it accepts no append and no step of background work. Reads continue.

Source: docs/replication.md, "Contract of the shells"; docs/storage.md sections 3 and 4.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar, assert_never

from lograft.wire.checksum import BytesLike
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError
from lograft.wire.filler import encode_filler
from lograft.wire.header import BatchHeader, read_header

from brokerd.clock import monotonic_ms, wall_ms
from brokerd.controller_client.partition_requests import Resignation, ResignReason
from brokerd.failure import Failure, LeaderPlace, ReadableOffsets, RefusedError
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
    LossReason,
    ProposeIsr,
    PublishHighWatermark,
    Resign,
    RestartLog,
    SendAck,
    Subscribe,
    TruncateLog,
    Unsubscribe,
)
from brokerd.partition.events import (
    AckDropped,
    AckLevel,
    AckWanted,
    BatchAppended,
    Durability,
    Event,
    FlushPolicyChanged,
    LogFlushed,
    PartitionChanged,
    ReplicaRemoved,
    StorageFailed,
    Tick,
)
from brokerd.partition.follower_events import (
    BatchesReceived,
    LeaderAdvanced,
    LogTruncated,
    SubscriptionAccepted,
    SubscriptionDiverged,
    SubscriptionEnded,
)
from brokerd.partition.leader_events import FollowerAcked, FollowerLost, FollowerSubscribed
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.partition.replica import PartitionReplica
from brokerd.replica.follower_routes import FollowerRoutes
from brokerd.replica.listeners import ReplicaListeners
from brokerd.replica.record_rules import check_records
from brokerd.replica.refusals import (
    append_failure,
    client_text,
    end_code,
    end_failure,
    moving_failure,
    range_failure,
    repairing_failure,
    too_few_failure,
)
from brokerd.replica.replica_peers import ReplicaPeers
from brokerd.replica.replication_border import FollowerRead, FollowerRequest, FollowerRoute, LeaderStreams
from brokerd.replica.role_log import RoleLog
from metaquorum.metadata.topic_configs import TopicSettings
from storage.directory.directories import LogDirectory
from storage.errors import (
    DataLossError,
    DiskFailedError,
    DiskFullError,
    DiskSpaceLowError,
    LogClosedError,
    OffsetOutOfRangeError,
    OutOfOrderOffsetError,
    StorageError,
    TooManyOpenFilesError,
)
from storage.log.flush import FlushWork
from storage.log.log_start import LogStartWork
from storage.log.partition_log import PartitionLog
from storage.log.reader import ReadWork
from storage.maintenance.flusher import GroupFlusher
from storage.types import Appended, HeadedBatch, HeadersRead, LogRead, LogSettings, TimestampAndOffset

FLUSH_RETRY_MS: Final = 1_000
"""Milliseconds after which a flush that found no space is tried again."""

FULL_FLUSHES: Final = 3
"""Flushes after which a log without appends is flushed to its end, unless the disk has no space."""

TRUNCATE_RETRY_MS: Final = 1_000
"""Milliseconds after which the follower asks its leader again where to truncate, after a truncation found no space."""

SHARED_SETTINGS: Final = 1_024
"""Number of different settings that are remembered, so that idle logs share them."""

AckCallback = Callable[[Durability | LossReason], None]
"""Called once with the reached durability, or with the reason why the outcome of the records is unknown."""

_NEVER_HELD: Final = frozenset((StorageFailed, ReplicaRemoved))
"""Events that the core gets even while the log is truncated."""

_Result = TypeVar("_Result")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaContext:
    """What all replicas of a broker share.

    Attributes:
        flusher: threads for fdatasync.
        leader_place: returns the leader of a partition as clients find it, by topic id and number; for leader hints.
        on_disk_failed: called when a log directory has failed.
        on_no_room: called when an append of a client found too little space in a log directory.
        roles: gets the changes of roles.
        on_role: called after each change of the role or the leader epoch of a replica, the first one after its
            log was opened included.
        peers: the other brokers and the controller; None: partitions have one replica only.
    """

    flusher: GroupFlusher
    leader_place: Callable[[bytes, int], LeaderPlace | None]
    on_disk_failed: Callable[[LogDirectory, DiskFailedError], None]
    on_no_room: Callable[[LogDirectory], None]
    roles: RoleLog
    on_role: Callable[[Replica], None] | None = None
    peers: ReplicaPeers | None = None


class Replica:
    """One replica. Belongs to the event loop in which it was made; `str` returns the partition's name.

    Only its own methods write its state, except `is_moving`.

    Args:
        topic: topic name.
        topic_id: topic id, 16 bytes.
        partition: partition number, from 0.
        core: the core, made for this log.
        log: the open log.
        directory: the log directory that holds it.
        settings: effective configs of the topic.
        context: what all replicas of the broker share.

    Attributes:
        topic: as above.
        topic_id: as above.
        partition: as above.
        directory: the log directory that holds the log now; `switch_log` writes it.
        settings: present effective configs of the topic; `apply_settings` writes them.
        listeners: the users of this replica.
        is_moving: True while the log moves to another directory, and is not compacted; `ReplicaMoves` writes it.
    """

    __slots__ = (
        "_ack_callbacks",
        "_context",
        "_core",
        "_flush_again",
        "_flush_holds",
        "_flush_idle",
        "_followed_end",
        "_follower_listeners",
        "_follower_routes",
        "_held_events",
        "_is_clean",
        "_is_closed",
        "_is_flush_held",
        "_is_flushing",
        "_is_unstored",
        "_leader_id",
        "_log",
        "_log_start_step",
        "_log_start_task",
        "_loop",
        "_next_token",
        "_timer",
        "_timer_due_ms",
        "_truncation",
        "_unlocked",
        "_wanted_log_start_offset",
        "directory",
        "is_moving",
        "listeners",
        "partition",
        "settings",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        *,
        topic: str,
        topic_id: bytes,
        partition: int,
        core: PartitionReplica,
        log: PartitionLog,
        directory: LogDirectory,
        settings: TopicSettings,
        context: ReplicaContext,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.directory: LogDirectory = directory
        self.settings = settings
        self.listeners = ReplicaListeners()
        self.is_moving = False
        self._core = core
        self._log: PartitionLog = log
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._is_closed = self._is_clean = False
        self._ack_callbacks: dict[int, AckCallback] = {}
        self._next_token = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0
        self._is_flushing = self._flush_again = self._is_flush_held = False
        self._flush_holds = 0
        self._wanted_log_start_offset = 0
        # The following fields are set at first use, or only during a wait. A broker holds many idle replicas, and an
        # event or a dictionary takes more memory than much of the rest.
        self._held_events: deque[Event] | None = None
        self._flush_idle: asyncio.Event | None = None
        self._log_start_step: asyncio.Event | None = None
        self._log_start_task: asyncio.Task[None] | None = None
        self._unlocked: asyncio.Event | None = None
        self._truncation: asyncio.Task[None] | None = None
        # True while the last append from the leader failed, which is logged once.
        self._is_unstored = False
        self._follower_routes: FollowerRoutes | None = None
        self._follower_listeners: ReplicaListeners | None = None
        # What the readers of a follower were last told.
        self._followed_end: int | None = None
        # The leader that the core last asked.
        self._leader_id = -1

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    # ------------------------------------------------------------------------------------------------------------------
    # State: role, offsets, configs.

    @property
    def log(self) -> PartitionLog:
        """The log, only for reading; changes need `run_step` or `locked`."""
        return self._log

    @property
    def is_leader(self) -> bool:
        """True while this broker leads the partition and its log works."""
        return self._core.is_leader

    @property
    def is_writable(self) -> bool:
        """False once the replica is closed or its log failed."""
        return not self._is_closed and not self._core.is_failed

    @property
    def is_locked(self) -> bool:
        """True while a move or a truncation has the log alone; then it accepts no appends."""
        return self._unlocked is not None

    @property
    def is_alone(self) -> bool:
        """True while the partition has this replica only."""
        return self._core.roles.is_alone

    @property
    def leads_several(self) -> bool:
        """True while this broker leads the partition and there are other replicas."""
        return self._core.roles.leadership is not None

    @property
    def in_sync(self) -> tuple[int, ...]:
        """Node ids of the maximal in-sync replicas if this broker leads several; another object after every change."""
        return self._core.maximal_isr

    @property
    def is_end_known(self) -> bool:
        """False for a new leader that does not know yet what an earlier one had committed."""
        return self._core.is_end_known

    @property
    def is_compacted(self) -> bool:
        """True if the topic's `cleanup.policy` says so."""
        return self.settings.cleanup_policy.compacts

    @property
    def max_message_bytes(self) -> int:
        """Most bytes of one batch, including the header."""
        return self.settings.max_message_bytes

    @property
    def leader_epoch(self) -> int:
        """The leader epoch; 0 before the metadata has given one."""
        return self._core.leader_epoch or 0

    @property
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self._log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record."""
        return self._log.log_end_offset

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of the readable records."""
        return self._core.high_watermark

    @property
    def followed_end(self) -> int | None:
        """End (exclusive) of what this replica serves to readers as a follower; None: it serves no reader as one."""
        return self._core.followed_end

    @property
    def readable_range(self) -> ReadableOffsets:
        """The offsets that can be read."""
        return ReadableOffsets(log_start_offset=self._log.log_start_offset, high_watermark=self._core.high_watermark)

    def refusal(self) -> Failure:
        """Return why this replica does not serve; only while it does not lead."""
        if self._core.is_failed:
            return Failure(code=ErrorCode.STORAGE_FAILED, message=f"the log of {self} failed on this broker")
        place = self._context.leader_place(self.topic_id, self.partition)
        if place is None:
            message = f"{self} has no leader at the moment"
            return Failure(code=ErrorCode.LEADER_NOT_AVAILABLE, message=message, retry_after_ms=250)
        return Failure(code=ErrorCode.NOT_LEADER, message=f"broker {place.leader_id} leads {self}", leader=place)

    def out_of_range(self, offset: int) -> Failure:
        """Return the refusal for an offset that cannot be read."""
        return range_failure(offset, str(self), self.readable_range)

    # ------------------------------------------------------------------------------------------------------------------
    # Reads.

    def read(self, offset: int, max_bytes: int, *, end_offset: int) -> LogRead:
        """Read whole batches, at least one, from the one that holds `offset` on, below `end_offset` (exclusive).

        Raises:
            RefusedError: out of range; damaged (LEADER_NOT_AVAILABLE while another replica may take over); or the disk
                cannot return the bytes.
        """
        try:
            return self._log.read(offset, max_bytes, end_offset=end_offset)
        except (OffsetOutOfRangeError, StorageError) as error:
            raise self._read_refusal(offset, error) from error

    def begin_read(self, offset: int, *, end_offset: int) -> ReadWork | None:
        """Begin a read of whole batches from `offset` to `end_offset` (exclusive), for a thread to carry out.

        Returns:
            None if that takes more than to fetch the bytes; `read` says why.
        """
        try:
            return self._log.begin_read(offset, end_offset=end_offset)
        except StorageError:
            return None

    def read_headers(self, offset: int, max_bytes: int, *, end_offset: int) -> HeadersRead:
        """Return the headers of the batches that `read` would return; of large batches little else is read. Raises as `read`."""
        try:
            return self._log.read_headers(offset, max_bytes, end_offset=end_offset)
        except (OffsetOutOfRangeError, StorageError) as error:
            raise self._read_refusal(offset, error) from error

    def _read_refusal(self, offset: int, error: StorageError) -> RefusedError:
        if isinstance(error, OffsetOutOfRangeError):
            return RefusedError(self.out_of_range(offset))
        logger.error("read failed: partition=%s offset=%d: %s", self, offset, error)
        if isinstance(error, DataLossError) and self._report_damage(error):
            return RefusedError(repairing_failure(str(self)))
        return RefusedError(Failure(code=error.code, message=client_text(error)))

    def find_timestamp(self, timestamp_ms: int) -> TimestampAndOffset | None:
        """Find the first readable record with this timestamp or a later one.

        Raises:
            RefusedError: the log could not be read.
        """
        try:
            return self._log.find_timestamp(timestamp_ms, end_offset=self._core.high_watermark)
        except StorageError as error:
            logger.error("search by time failed: partition=%s timestamp_ms=%d: %s", self, timestamp_ms, error)
            raise RefusedError(Failure(code=error.code, message=client_text(error))) from error

    @property
    def follower_listeners(self) -> ReplicaListeners:
        """The readers of this replica while it follows; their end offset is at most what the leader of the present epoch has told."""
        if self._follower_listeners is None:
            self._follower_listeners = ReplicaListeners()
            self._followed_end = self._core.followed_end
        return self._follower_listeners

    def _tell_followed_end(self, listeners: ReplicaListeners) -> None:
        end_offset = self._core.followed_end
        if end_offset == self._followed_end:
            return
        self._followed_end = end_offset
        if end_offset is None:
            listeners.end_service(self.refusal())
        else:
            listeners.tell_high_watermark(end_offset)

    def _report_damage(self, damage: DataLossError) -> bool:
        """Report damage that a read met, for a repair; tell whether another replica may serve the range soon."""
        peers = self._context.peers
        if peers is None or peers.repairs is None or self.is_alone:
            return False
        reports = peers.repairs.reports
        reports.note_damage()
        given_up = reports.given_up(self._log.directory)
        hopeless = [each for each in self._log.damaged if each.segment_base_offset in given_up]
        return not any(each.base_offset <= damage.base_offset < each.end_offset for each in hopeless)

    # ------------------------------------------------------------------------------------------------------------------
    # Appends of a leader, and their acknowledgements.

    def append(self, batch: bytes | memoryview, header: BatchHeader, *, level: AckLevel = AckLevel.LEADER) -> Appended:
        """Append a batch that `check_batch` has accepted, for a client that waits for `level`.

        Args:
            batch: the batch.
            header: its header.
            level: the level that must be reachable.

        Raises:
            RefusedError: not appended. STORAGE_FAILED after a write error: a part may be in the log.
        """
        leader_epoch = self._writable_epoch(level)
        now_ms = wall_ms()
        check_records(batch, header, self.settings, topic=self.topic, now_ms=now_ms)
        try:
            self.directory.space.admit(header.size_bytes, now_ms=monotonic_ms())
            appended = self._log.append_as_leader(batch, header, leader_epoch=leader_epoch, now_ms=now_ms)
        except StorageError as error:
            raise self._append_refusal(error) from error
        if not appended.duplicate:
            self.take_event(BatchAppended(log_end_offset=self._log.log_end_offset))
        return appended

    def append_decided(self, run: Sequence[HeadedBatch], *, may_skip: bool = False) -> list[Appended]:
        """Append batches of an ingest that its decision publishes, with one write; they need every in-sync replica.

        The configs of the topic judged their records when they were staged, and must not refuse what is decided.

        Args:
            run: batches of one publishing producer that continue each other, at least one.
            may_skip: True: the log has lost what lies between the last sequence of the producer and the first batch.

        Returns:
            Where the first batches are, at least one; append the rest with another call.

        Raises:
            RefusedError: as `append`.
        """
        leader_epoch = self._writable_epoch(AckLevel.ALL)
        try:
            self.directory.space.admit(sum(header.size_bytes for _, header, _ in run), now_ms=monotonic_ms())
            appended = self._log.append_run_as_leader(
                run, leader_epoch=leader_epoch, now_ms=wall_ms(), may_skip=may_skip
            )
        except StorageError as error:
            raise self._append_refusal(error) from error
        if not appended[0].duplicate:
            self.take_event(BatchAppended(log_end_offset=self._log.log_end_offset))
        return appended

    def _writable_epoch(self, level: AckLevel) -> int:
        """Return the leader epoch in which this leader appends for a client that waits for `level`.

        Raises:
            RefusedError: it appends nothing at the moment.
        """
        core = self._core
        leader_epoch = core.leader_epoch
        if not core.is_leader or leader_epoch is None:
            raise RefusedError(self.refusal())
        if level is AckLevel.ALL and core.is_below_min_isr:
            raise RefusedError(too_few_failure(str(self)))
        if self._unlocked is not None:
            raise RefusedError(moving_failure(str(self)))
        return leader_epoch

    def _append_refusal(self, error: StorageError) -> RefusedError:
        """Return the refusal of an append that the storage has refused, once the others who must know have been told."""
        if isinstance(error, DiskFailedError):
            self._fail(error)
        elif isinstance(error, DiskFullError | DiskSpaceLowError):
            self._context.on_no_room(self.directory)
        return RefusedError(append_failure(error, str(self), has_followers=self.leads_several))

    def want_ack(self, next_offset: int, level: AckLevel, callback: AckCallback) -> int:
        """Call back once every record below `next_offset` has reached `level`, possibly before this returns.

        Returns:
            A token for `drop_ack`.
        """
        self._next_token += 1
        token = self._next_token
        self._ack_callbacks[token] = callback
        self.take_event(AckWanted(token=token, next_offset=next_offset, level=level))
        return token

    def drop_ack(self, token: int) -> None:
        """Stop waiting; does nothing if the callback was called already."""
        if self._ack_callbacks.pop(token, None) is not None:
            self.take_event(AckDropped(token=token))

    def resign(self, reason: ResignReason) -> None:
        """Ask the controller to elect another replica, if there is one; the metadata shows the outcome."""
        if self.leads_several:
            self._send_resignation(reason, self.leader_epoch, allow_eligible=self._core.is_eligible_enough)

    def _send_resignation(self, reason: ResignReason, leader_epoch: int, *, allow_eligible: bool) -> None:
        peers = self._context.peers
        if peers is None:
            return
        peers.requests.resign(
            Resignation(
                topic_id=self.topic_id,
                partition=self.partition,
                leader_epoch=leader_epoch,
                reason=reason,
                allow_eligible=allow_eligible,
            )
        )

    # ------------------------------------------------------------------------------------------------------------------
    # Changes of the metadata.

    def take_partition(self, event: PartitionChanged) -> None:
        """Apply a state of the partition in the metadata."""
        core = self._core
        was_leader, old_epoch = core.is_leader, core.leader_epoch
        self.take_event(event)
        if (core.is_leader, core.leader_epoch) != (was_leader, old_epoch):
            self._context.roles.note(
                self, event.partition, is_leader=core.is_leader, log_end_offset=self._log.log_end_offset
            )
            if self._context.on_role is not None:
                self._context.on_role(self)

    def apply_settings(self, settings: TopicSettings) -> None:
        """Apply changed topic configs."""
        if settings == self.settings:
            return
        self.settings = settings
        if self._unlocked is None:
            self._log.apply_settings(log_settings(settings))
        self.take_event(FlushPolicyChanged(policy=settings.flush_policy, interval_ms=settings.flush_interval_ms))

    # ------------------------------------------------------------------------------------------------------------------
    # The core: events, effects in their order, and its timer.

    def take_event(self, event: Event, batches: BytesLike = b"") -> None:
        """Pass an event to the core and carry out its effects; while the log is truncated, later.

        Args:
            event: the event.
            batches: the bytes of a `BatchesReceived`.
        """
        if self._truncation is not None and type(event) not in _NEVER_HELD:
            if type(event) is not LogFlushed:
                self._held_events = self._held_events or deque()
                self._held_events.append(event)
            return
        is_append_wanted = False
        for effect in self._core.step(event, monotonic_ms()):
            if type(effect) is AppendBatches:
                is_append_wanted = True
            else:
                self._carry_out(effect)
        self._after_step(event)
        if is_append_wanted:
            assert type(event) is BatchesReceived, f"{self}: {event} asks for an append"
            self._append_from_leader(event.session, batches)
        self._set_timer()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case PublishHighWatermark():
                self.listeners.tell_high_watermark(effect.high_watermark)
                self._tell_followers_marks()
            case CompleteAck():
                callback = self._ack_callbacks.pop(effect.token, None)
                if callback is not None:
                    callback(effect.durability)
            case FlushLog():
                if self._flush_holds:
                    self._is_flush_held = True
                else:
                    self._begin_flush()
            case SendAck():
                self._leader_streams.send_ack(self, effect, leader_id=self._leader_id)
            case FailAck():
                callback = self._ack_callbacks.pop(effect.token, None)
                if callback is not None:
                    callback(effect.reason)
            case EndService():
                self._end_service(effect)
            case AcceptSubscription() | DivergeSubscription() | EndSubscription():
                self._answer_follower(effect)
            case BeginLeaderEpoch():
                self._log.assign_epoch(effect.leader_epoch)
            case ProposeIsr():
                self._peers.requests.propose(self, effect)
            case Resign():
                # The core resigns only where no acknowledged record can be lost.
                self._send_resignation(ResignReason.CUT_OFF, effect.leader_epoch, allow_eligible=True)
            case ForgetEmptyEpoch():
                self._log.truncate_suffix(self._log.log_end_offset)
            case AdvanceLogStart():
                self._advance_log_start(effect.log_start_offset)
            case Subscribe():
                self._leader_id = effect.leader_id
                self._leader_streams.subscribe(self, effect)
            case Unsubscribe():
                self._leader_streams.unsubscribe(self, leader_id=effect.leader_id, session=effect.session)
            case TruncateLog() | RestartLog():
                self._begin_truncation(effect)
            case AppendBatches():
                raise AssertionError(f"{self}: an append comes behind all other effects")
            case _:
                assert_never(effect)

    def _after_step(self, event: Event) -> None:
        """Tell readers and followers what the step has changed."""
        start_offset, high_watermark = self._log.log_start_offset, self._core.high_watermark
        assert start_offset <= high_watermark, (
            f"{self} begins at {start_offset}, above its high watermark {high_watermark}: {event}"
        )
        routes = self._follower_routes
        if routes is not None:
            if type(event) is BatchAppended:
                routes.tell_growth(event.log_end_offset)
            routes.tell_in_sync(self._core.maximal_isr)
        if self._follower_listeners is not None:
            self._tell_followed_end(self._follower_listeners)

    def _set_timer(self) -> None:
        deadline_ms = self._core.deadline_ms()
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_due_ms <= deadline_ms:
                return  # the timer is set again when it rings
            self._timer.cancel()
        self._timer_due_ms = deadline_ms
        self._timer = self._loop.call_later(max(deadline_ms - monotonic_ms(), 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.take_event(Tick())

    def _end_service(self, effect: EndService) -> None:
        is_hint_wanted = end_code(effect) is ErrorCode.NOT_LEADER
        leader = self._context.leader_place(self.topic_id, self.partition) if is_hint_wanted else None
        self.listeners.end_service(end_failure(effect, str(self), leader))

    @property
    def _peers(self) -> ReplicaPeers:
        peers = self._context.peers
        assert peers is not None, f"{self} has peers"
        return peers

    # ------------------------------------------------------------------------------------------------------------------
    # Followers of this leader, for their streams.

    @property
    def follower_count(self) -> int:
        """Number of subscriptions of followers, accepted or not answered yet."""
        return 0 if self._follower_routes is None else len(self._follower_routes)

    def subscribe_follower(self, route: FollowerRoute, request: FollowerRequest) -> None:
        """Handle a subscription; the route gets its answer (accepted, diverged or ended) before this returns, or later."""
        log = self._log
        if self._follower_routes is None:
            self._follower_routes = FollowerRoutes()
        self._follower_routes.ask(route)
        known = None if request.last_epoch is None else log.end_offset_for_epoch(request.last_epoch)
        self.take_event(
            FollowerSubscribed(
                node_id=route.node_id,
                broker_epoch=route.broker_epoch,
                session=route.session,
                leader_epoch=request.leader_epoch,
                log_end_offset=request.log_end_offset,
                flushed_offset=request.flushed_offset,
                last_epoch=request.last_epoch,
                epoch_end=None if known is None else EpochEnd(known.epoch, known.end_offset),
                hidden_from=None if known is None else log.hidden_from(known.end_offset),
                log_start_offset=log.log_start_offset,
            )
        )

    def ack_follower(self, route: FollowerRoute, *, appended_offset: int, flushed_offset: int) -> None:
        """Note what the follower holds; ignored if the route is over."""
        routes = self._follower_routes
        if routes is not None and routes.is_accepted(route):
            self.take_event(
                FollowerAcked(
                    node_id=route.node_id,
                    broker_epoch=route.broker_epoch,
                    session=route.session,
                    appended_offset=appended_offset,
                    flushed_offset=flushed_offset,
                )
            )

    def lose_follower(self, route: FollowerRoute) -> None:
        """Note that the follower or a broken stream has ended the route; the route gets no more calls."""
        routes = self._follower_routes
        if routes is not None and routes.discard(route):
            self.take_event(FollowerLost(node_id=route.node_id, broker_epoch=route.broker_epoch, session=route.session))

    def read_for_follower(self, offset: int, max_bytes: int) -> FollowerRead:
        """Read at least one batch of one leader epoch, from the batch that begins at `offset` up to the log end.

        Raises:
            RefusedError: out of range, damaged, or the disk cannot return the bytes.
        """
        log = self._log
        try:
            found = log.read(offset, max_bytes, end_offset=log.epoch_end_at(offset))
            leader_epoch = log.epoch_at(offset)
            if leader_epoch is None:
                # All epochs before were in damage that was repaired. Only the headers show them, and two batches may
                # differ.
                found = log.read(offset, 1, end_offset=log.log_end_offset)
                leader_epoch = read_header(found.data).leader_epoch
        except StorageError as error:
            raise RefusedError(Failure(code=error.code, message=client_text(error))) from error
        data = from_offset(found.data, offset)
        return FollowerRead(data=data, base_offset=offset, next_offset=found.next_offset, leader_epoch=leader_epoch)

    def _answer_follower(self, effect: AcceptSubscription | DivergeSubscription | EndSubscription) -> None:
        """Pass the core's answer to a subscription to its route; does nothing if the route is gone."""
        routes = self._follower_routes
        if routes is None:
            return
        key = (effect.node_id, effect.broker_epoch, effect.session)
        match effect:
            case AcceptSubscription():
                routes.accept(
                    key,
                    high_watermark=effect.high_watermark,
                    log_start_offset=self._log.log_start_offset,
                    is_in_sync=effect.node_id in self._core.maximal_isr,
                )
            case DivergeSubscription():
                route = routes.pop(key)
                if route is not None:
                    route.on_diverged(effect.leader_end)
            case EndSubscription():
                route = routes.pop(key)
                if route is not None:
                    route.on_ended(effect.error, log_start_offset=self._log.log_start_offset)

    def _tell_followers_marks(self) -> None:
        if self._follower_routes is not None:
            self._follower_routes.tell_marks(
                high_watermark=self._core.high_watermark, log_start_offset=self._log.log_start_offset
            )

    # ------------------------------------------------------------------------------------------------------------------
    # The leader of this follower, for the stream to it (`FollowingReplica`).

    @property
    def _leader_streams(self) -> LeaderStreams:
        return self._peers.leader_streams

    def on_subscription_accepted(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Note that the log is a prefix of the leader's."""
        self.take_event(
            SubscriptionAccepted(session=session, high_watermark=high_watermark, log_start_offset=log_start_offset)
        )

    def on_subscription_diverged(self, session: int, leader_end: EpochEnd) -> None:
        """Note where the logs diverge; the subscription is over."""
        log = self._log
        known = None if leader_end.epoch is None else log.end_offset_for_epoch(leader_end.epoch)
        logger.info("logs diverge: partition=%s leader_end=%s own_end=%s", self, leader_end, known)
        self.take_event(
            SubscriptionDiverged(
                session=session,
                leader_end=leader_end,
                own_end=None if known is None else EpochEnd(known.epoch, known.end_offset),
                own_start_offset=log.log_start_offset,
            )
        )

    def on_subscription_ended(
        self, session: int, error: SubscriptionError, *, log_start_offset: int | None = None
    ) -> None:
        """Note that the subscription is over."""
        self.take_event(SubscriptionEnded(session=session, error=error, log_start_offset=log_start_offset))

    def on_leader_batches(
        self,
        session: int,
        batches: BytesLike,
        *,
        base_offset: int,
        leader_epoch: int,
        high_watermark: int,
        log_start_offset: int,
    ) -> None:
        """Handle whole batches of one leader epoch, with the high watermark and log start that the leader had when it sent them."""
        if self._unlocked is not None:
            # In the last step of a move between directories, or in a truncation after the end of the session.
            self._give_up_subscription(session, SubscriptionError.OVERLOADED)
            return
        received = BatchesReceived(session=session, base_offset=base_offset, leader_epoch=leader_epoch)
        self.take_event(received, batches)
        self.on_leader_marks(session, high_watermark=high_watermark, log_start_offset=log_start_offset)

    def on_leader_marks(self, session: int, *, high_watermark: int, log_start_offset: int) -> None:
        """Note the leader's high watermark and log start."""
        self.take_event(
            LeaderAdvanced(session=session, high_watermark=high_watermark, log_start_offset=log_start_offset)
        )

    def _append_from_leader(self, session: int, batches: BytesLike) -> None:
        """Append the leader's batches and tell the core; if that fails, end the subscription."""
        log = self._log
        old_end_offset = log.log_end_offset
        problem: SubscriptionError | None = None
        try:
            self.directory.space.admit(len(batches), now_ms=monotonic_ms(), is_client=False)
            log.append_as_follower(batches, now_ms=wall_ms())
        except (BatchError, OutOfOrderOffsetError) as error:
            logger.error("batches of the leader refused: partition=%s offset=%d: %s", self, old_end_offset, error)
            problem = SubscriptionError.BAD_BATCHES
        except DiskFailedError as error:
            self._fail(error)
            return
        except StorageError as error:
            if not self._is_unstored:
                logger.error(
                    "batches of the leader not stored: partition=%s offset=%d: %s; it tries again each second, and says so once",
                    self,
                    old_end_offset,
                    error,
                )
            self._is_unstored = True
            problem = SubscriptionError.STORAGE_FAILED
        else:
            self._is_unstored = False
        if log.log_end_offset > old_end_offset:
            self.take_event(BatchAppended(log_end_offset=log.log_end_offset))
        if problem is not None:
            self._give_up_subscription(session, problem)

    def _give_up_subscription(self, session: int, error: SubscriptionError) -> None:
        self._leader_streams.unsubscribe(self, leader_id=self._leader_id, session=session)
        self.take_event(SubscriptionEnded(session=session, error=error))

    # ------------------------------------------------------------------------------------------------------------------
    # Truncation of records that a follower has and its leader does not.

    def _begin_truncation(self, effect: TruncateLog | RestartLog) -> None:
        """Truncate or restart the log in a thread; from now on events wait."""
        assert self._truncation is None, f"{self}: {effect} while the log is truncated"
        if isinstance(effect, TruncateLog) and effect.loses_committed:
            logger.error(
                "records that were committed are truncated, as an unclean election brings about: partition=%s "
                "from_offset=%d to_offset=%d",
                self,
                effect.to_offset,
                self._log.log_end_offset,
            )
        self._truncation = asyncio.create_task(self._truncate(effect), name="log-truncation")
        self._truncation.add_done_callback(self._on_truncation_done)

    async def _truncate(self, effect: TruncateLog | RestartLog) -> None:
        async with self.locked() as log:
            is_done = await self._try_truncation(log, effect)
        if not is_done:
            await asyncio.sleep(TRUNCATE_RETRY_MS / 1000)
        self._truncation = None
        # Also if nothing was truncated: the follower asks the leader again, and gets the same answer.
        self.take_event(
            LogTruncated(
                log_end_offset=log.log_end_offset,
                flushed_offset=log.flushed_offset,
                last_epoch=log.last_record_epoch,
                log_start_offset=log.log_start_offset,
            )
        )
        held = self._held_events
        # A held event may begin the next truncation.
        while held and self._truncation is None:
            self.take_event(held.popleft())

    async def _try_truncation(self, log: PartitionLog, effect: TruncateLog | RestartLog) -> bool:
        try:
            if isinstance(effect, TruncateLog):
                await asyncio.to_thread(log.truncate_suffix, effect.to_offset)
            else:
                await asyncio.to_thread(log.restart_at, effect.start_offset)
        except DiskFailedError as error:
            self._fail(error)
        except StorageError as error:
            logger.error("log not truncated, asking the leader again: partition=%s effect=%s: %s", self, effect, error)
        else:
            logger.info("log truncated: partition=%s effect=%s log_end_offset=%d", self, effect, log.log_end_offset)
            return True
        return False

    def _on_truncation_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # This is a bug. The state of the log is unknown, so the replica must not serve.
            logger.critical("truncation failed: partition=%s", self, exc_info=error)
            self.fail(f"a truncation of the log failed: {error}")

    # ------------------------------------------------------------------------------------------------------------------
    # Flushes: one group at a time in the flusher's threads, the next one right after it.

    def hold_flushes(self) -> None:
        """Begin no flush for appends until `release_flushes`, so that one flush covers what several appends write.

        Acknowledgements that need a flush wait until then, so the caller must release soon. Several callers may hold at once; the
        last release counts.
        """
        self._flush_holds += 1

    def release_flushes(self) -> None:
        """End a hold; the log is flushed if an append asked for it meanwhile."""
        assert self._flush_holds > 0, f"{self}: no hold to release"
        self._flush_holds -= 1
        if self._is_flush_held and not self._flush_holds:
            self._is_flush_held = False
            self._flush_unlocked()

    def _begin_flush(self) -> None:
        """Flush the log; if a flush is running, flush once more after it."""
        if self._is_flushing:
            self._flush_again = True
            return
        try:
            work = self._context.flusher.submit(self._log, self._on_flush_done)
        except DiskFailedError as error:
            self._fail(error)
            return
        if work is not None:
            self._is_flushing = True

    def _on_flush_done(self, work: FlushWork, _error: BaseException | None) -> None:
        """Pass the end of a flush from the flush thread to the event loop; `end_flush` raises its error."""
        self._loop.call_soon_threadsafe(self._end_flush, work)

    def _end_flush(self, work: FlushWork) -> None:
        self._is_flushing = False
        if self._flush_idle is not None:
            self._flush_idle.set()
            self._flush_idle = None
        try:
            flushed_offset = self._log.end_flush(work)
        except (DiskFullError, TooManyOpenFilesError) as error:
            logger.error("flush found no space or descriptor, trying again: partition=%s: %s", self, error)
            self._loop.call_later(FLUSH_RETRY_MS / 1000, self._flush_unlocked)
            return
        except DiskFailedError as error:
            self._fail(error)
            return
        # The next flush starts before the acknowledgements of this one are sent, so that the disk does not wait for
        # them.
        if self._flush_again and self.is_writable:
            self._flush_again = False
            self._begin_flush()
        self._note_flushed(flushed_offset)

    def _note_flushed(self, flushed_offset: int) -> None:
        self.take_event(LogFlushed(flushed_offset=flushed_offset))

    def _flush_unlocked(self) -> None:
        """Flush the log; while a truncation or a move works on it, perhaps in a thread, later."""
        if self._unlocked is not None:
            self._loop.call_later(FLUSH_RETRY_MS / 1000, self._flush_unlocked)
        elif self.is_writable:
            self._begin_flush()

    async def _wait_flush_idle(self) -> None:
        """Wait until no flush is under way."""
        while self._is_flushing:
            self._flush_idle = self._flush_idle or asyncio.Event()
            await self._flush_idle.wait()

    async def _flush_all(self) -> bool:
        """Flush a log without appends; tell whether it is flushed to its end."""
        for _ in range(FULL_FLUSHES):
            if self.is_writable:
                self._begin_flush()
            await self._wait_flush_idle()
        return self.is_writable and self._log.flushed_offset == self._log.log_end_offset

    # ------------------------------------------------------------------------------------------------------------------
    # The log start: retention, deleted records, the leader's log start. One step at a time, from its beginning to its
    # end.

    async def apply_retention(self, now_ms: int) -> int:
        """Roll a segment that is old by the clock, remove due segments, and delete files whose delay is over.

        Raises nothing: an error is logged, or fails the log directory, and the next call tries again.

        Args:
            now_ms: wall clock in milliseconds.

        Returns:
            The number of removed segments.
        """
        async with self._one_log_start_step():
            if self._is_closed or self._log.failure is not None:
                return 0
            try:
                return await self._retain(now_ms)
            except DiskFailedError as error:
                self._fail(error)
            except StorageError as error:
                logger.error("retention failed: partition=%s: %s", self, error)
            return 0

    async def _retain(self, now_ms: int) -> int:
        log = self._log
        log.roll_if_due(now_ms)
        work = log.begin_retention(self._core.high_watermark, now_ms)
        removed_count = 0 if work is None else await self._move_log_start(work, now_ms)
        await self._remove_deleted(now_ms)
        if removed_count > 0:
            logger.info(
                "retention: partition=%s segments=%d log_start_offset=%d", self, removed_count, log.log_start_offset
            )
        return removed_count

    async def _remove_deleted(self, now_ms: int) -> None:
        """Delete the files of removed segments whose delay is over. Raises nothing: after an error the next opening deletes them."""
        removal = self._log.begin_removal(now_ms)
        if removal is None:
            return
        try:
            await asyncio.to_thread(removal.run)
        except DiskFailedError as error:
            self._fail(error)
        except StorageError as error:
            logger.error("files of removed segments not deleted: partition=%s: %s", self, error)

    async def delete_before(self, before_offset: int | None, now_ms: int) -> int:
        """Move the log start to an offset (inclusive), for good; return the log start. Cancelling the caller does not stop it.

        Args:
            before_offset: first offset to keep; None: the high watermark.
            now_ms: wall clock in milliseconds.

        Raises:
            OffsetOutOfRangeError: above the high watermark.
            StorageError: the log is closed, or the disk has failed or is full.
        """
        return await asyncio.shield(asyncio.create_task(self._delete_before(before_offset, now_ms)))

    async def _delete_before(self, before_offset: int | None, now_ms: int) -> int:
        async with self._one_log_start_step():
            log, high_watermark = self._log, self._core.high_watermark
            if self._is_closed:
                raise LogClosedError(log.directory)
            if before_offset is not None and before_offset > high_watermark:
                raise OffsetOutOfRangeError(
                    before_offset, log_start_offset=log.log_start_offset, log_end_offset=high_watermark
                )
            try:
                work = log.begin_prefix(high_watermark if before_offset is None else before_offset)
                await self._move_log_start(work, now_ms)
                await self._remove_deleted(now_ms)
            except DiskFailedError as error:
                self._fail(error)
                raise
            return log.log_start_offset

    def _advance_log_start(self, log_start_offset: int) -> None:
        """Move a follower's log start to its leader's, a little later; errors are logged.

        Args:
            log_start_offset: first offset to keep (inclusive), at most the high watermark.
        """
        self._wanted_log_start_offset = max(self._wanted_log_start_offset, log_start_offset)
        if self._log_start_task is None and not self._is_closed and log_start_offset > self._log.log_start_offset:
            self._log_start_task = asyncio.create_task(self._follow_log_start(), name="log-start")

    async def _follow_log_start(self) -> None:
        try:
            while not self._is_closed and self._wanted_log_start_offset > self._log.log_start_offset:
                await self._delete_before(self._wanted_log_start_offset, wall_ms())
        except StorageError as error:
            # The leader sends its log start again with its next batches.
            logger.error(
                "log start not moved: partition=%s to_offset=%d: %s", self, self._wanted_log_start_offset, error
            )
        finally:
            self._log_start_task = None

    async def _move_log_start(self, work: LogStartWork, now_ms: int) -> int:
        with suppress(StorageError):  # `end_prefix` raises it
            await asyncio.to_thread(work.run)
        try:
            return self._log.end_prefix(work, now_ms)
        finally:
            # Records below the log start count as flushed.
            if self._log.flushed_offset > self._core.flushed_offset:
                self.take_event(LogFlushed(flushed_offset=self._log.flushed_offset))
            self._tell_followers_marks()

    @asynccontextmanager
    async def _one_log_start_step(self) -> AsyncGenerator[None]:
        """Wait for the step under way; until the context ends, no other step begins."""
        while self._log_start_step is not None:
            await self._log_start_step.wait()
        self._log_start_step = step_end = asyncio.Event()
        try:
            yield
        finally:
            self._log_start_step = None
            step_end.set()

    # ------------------------------------------------------------------------------------------------------------------
    # Work of others on the log: short steps, or exclusive access.

    def run_step(self, step: Callable[[PartitionLog, int], _Result]) -> _Result:
        """Run a short step of background work with the log and the high watermark; raises its errors, or `LogClosedError`."""
        if self._is_closed or self._unlocked is not None:
            raise LogClosedError(self._log.directory)
        try:
            return step(self._log, self._core.high_watermark)
        except DiskFailedError as error:
            self._fail(error)
            raise

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[PartitionLog]:
        """Wait until no other work uses the log, then keep appends and other work off it until the context ends; reads continue."""
        await self.wait_unlocked()
        self._unlocked = unlocked = asyncio.Event()
        try:
            async with self._one_log_start_step():
                await self._wait_flush_idle()
                try:
                    yield self._log
                finally:
                    self._log.apply_settings(log_settings(self.settings))
        finally:
            self._unlocked = None
            unlocked.set()

    @asynccontextmanager
    async def locked_and_flushed(self) -> AsyncGenerator[None]:
        """Lock the log as `locked` does, with the log flushed to its end.

        Raises:
            LogClosedError: the replica is closed or failed, or cannot be flushed.
        """
        async with self.locked():
            if not await self._flush_all():
                raise LogClosedError(self._log.directory)
            yield

    async def wait_unlocked(self) -> None:
        """Wait until the log is not locked."""
        while self._unlocked is not None:
            await self._unlocked.wait()

    def switch_log(self, log: PartitionLog, directory: LogDirectory) -> PartitionLog:
        """Continue with the same log in another directory, under the lock; return the old one, which the caller closes."""
        old = self._log
        assert self._unlocked is not None, f"{self} is not locked"
        assert log.flushed_offset == log.log_end_offset == old.log_end_offset, f"{self}: {log.log_end_offset}"
        self._log = log
        self.directory = directory
        return old

    def check_room(self, size_bytes: int) -> None:
        """Check the space for a compacted file beside the log, from any thread; raises `DiskSpaceLowError` if there is too little."""
        self.directory.space.check_room(size_bytes, now_ms=monotonic_ms(), is_freeing=True)

    # ------------------------------------------------------------------------------------------------------------------
    # End of the replica.

    def fail(self, message: str) -> None:
        """Stop serving, because the log directory has failed."""
        if not self._core.is_failed:
            self.take_event(StorageFailed(message=message))

    def _fail(self, error: DiskFailedError) -> None:
        """Stop serving, and report that the log directory has failed."""
        logger.critical("log failed: partition=%s: %s", self, error)
        self.fail(f"the log failed: {error}")
        self._context.on_disk_failed(self.directory, error)

    async def close(self, message: str) -> bool:
        """Stop serving, wait for the work under way, and close the log; return True if it closed cleanly. Idempotent."""
        if self._is_closed:
            return self._is_clean
        self._is_closed = True
        self.take_event(ReplicaRemoved(message=message))
        self._held_events = None
        if self._timer is not None:
            self._timer.cancel()
        if self._truncation is not None:
            await asyncio.wait((self._truncation,))
        await self._wait_flush_idle()
        async with self._one_log_start_step():
            pass
        try:
            if self._log.has_unsaved:
                await asyncio.to_thread(self._log.close, clean=not self._core.is_failed)
            else:
                # Without a thread: at a stop tens of thousands of logs must be closed, with nothing to write for them.
                self._log.close(clean=not self._core.is_failed)
        except StorageError as error:
            # At the next start, recovery treats the log as after a crash.
            logger.error("log not closed clean: partition=%s: %s", self, error)
        else:
            self._is_clean = not self._core.is_failed and self._log.failure is None
        return self._is_clean


def from_offset(data: BytesLike, offset: int) -> BytesLike:
    """Return batches from an offset on, for a follower whose log ends there.

    Where a follower's log ends, the leader's had a batch that began. Compaction may have merged it with the fillers before it, so that
    one filler covers both sides of the offset. It is cut.
    """
    if not data:
        return data
    header = read_header(data)
    if header.base_offset >= offset or not header.is_filler or header.has_producer:
        return data
    rest = encode_filler(
        base_offset=offset,
        last_offset_delta=header.last_offset - offset,
        leader_epoch=header.leader_epoch,
        timestamp_ms=header.max_timestamp_ms,
    )
    return bytes(rest) + bytes(memoryview(data)[header.size_bytes :])


@lru_cache(maxsize=SHARED_SETTINGS)
def log_settings(settings: TopicSettings) -> LogSettings:
    """Return the settings of the log engine for a topic's configs; logs with equal configs share the object."""
    deletes = settings.cleanup_policy.deletes
    compacts = settings.cleanup_policy.compacts
    return LogSettings(
        segment_bytes=settings.segment_bytes,
        # Only sealed segments are compacted, so the active one must not outlive the longest lag.
        segment_ms=min(settings.segment_ms, settings.max_compaction_lag_ms) if compacts else settings.segment_ms,
        index_interval_bytes=settings.index_interval_bytes,
        retention_ms=settings.retention_ms if deletes else None,
        retention_bytes=settings.retention_bytes if deletes else None,
        file_delete_delay_ms=settings.file_delete_delay_ms,
        compact=compacts,
        min_compaction_lag_ms=settings.min_compaction_lag_ms,
        max_compaction_lag_ms=settings.max_compaction_lag_ms,
        min_cleanable_dirty_ratio=settings.min_cleanable_dirty_ratio,
        delete_retention_ms=settings.delete_retention_ms,
    )

# SPDX-License-Identifier: Apache-2.0
"""One Replicate stream at the leader: reads what a follower says, pushes batches as they are appended.

Owns the bindings from route numbers to replicas, the two loops and one timer. Must not decide whose turn it is, what credit
is left, or what counts: the core of the stream and the cores of the replicas do.

The writer sleeps until something is to be sent; a batch costs one read, one copy into its frame and one write, and
nothing else is awaited. Three things end the stream: the reader (half-close, bad input), the writer (the stop), and the timer
or another stream of the same follower, which do not wait for a write that may never end.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import Final, assert_never

from google.protobuf.message import DecodeError
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.api.calls import undecodable
from brokerd.clock import monotonic_ms
from brokerd.failure import Failure, RefusedError
from brokerd.limits import REPLICA_SLICE
from brokerd.partition.leader_stream import PushSession
from brokerd.partition.leader_stream_events import (
    AbortPush,
    AckReplica,
    ChunkRead,
    ClosePush,
    LeaderMoved,
    LogGrown,
    LoseReplica,
    PushEffect,
    PushEvent,
    PushTick,
    ReadFailed,
    ReadReplica,
    RouteAccepted,
    RouteDiverged,
    RouteRefused,
    StopWanted,
    SubscribeReplica,
    Subscription,
    TrafficChanged,
)
from brokerd.partition.leader_stream_traffic import Traffic
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.replica.replica import Replica
from brokerd.replica.replication_border import FollowerRequest
from brokerd.replication.batches_frame import encode_batches_frame
from brokerd.replication.leader_codec import encode_push_answer, read_open, read_request
from brokerd.replication.leader_handshake import Leader
from brokerd.wake import Wake
from metaquorum.net.link import Stream

SESSIONS_PER_STREAM: Final = 2**63
"""Session numbers that the field of a subscription can hold."""

logger = logging.getLogger(__name__)


class _Route:
    """A subscription at its replica; see `FollowerRoute`."""

    __slots__ = ("_key", "_stream", "broker_epoch", "node_id", "number", "replica", "session")

    def __init__(
        self, stream: ReplicateStream, number: int, replica: Replica, key: tuple[bytes, int], session: int
    ) -> None:
        self._stream = stream
        self._key = key
        self.number = number
        self.replica = replica
        self.node_id = stream.follower_id
        self.broker_epoch = stream.follower_epoch
        self.session = session

    def on_accepted(self, *, high_watermark: int, log_start_offset: int, is_in_sync: bool) -> None:
        self._stream.note(
            RouteAccepted(
                route=self.number,
                high_watermark=high_watermark,
                log_start_offset=log_start_offset,
                log_end_offset=self.replica.log_end_offset,
                traffic=self._stream.traffic(self._key, is_in_sync=is_in_sync),
            )
        )

    def on_diverged(self, leader_end: EpochEnd) -> None:
        self._stream.forget(self)
        self._stream.note(RouteDiverged(route=self.number, leader_end=leader_end))

    def on_ended(self, error: SubscriptionError, *, log_start_offset: int) -> None:
        self._stream.forget(self)
        self._stream.note(RouteRefused(route=self.number, error=error, log_start_offset=log_start_offset))

    def on_log_grown(self, log_end_offset: int) -> None:
        self._stream.note(LogGrown(route=self.number, log_end_offset=log_end_offset))

    def on_marks(self, *, high_watermark: int, log_start_offset: int) -> None:
        self._stream.note_later(
            LeaderMoved(route=self.number, high_watermark=high_watermark, log_start_offset=log_start_offset)
        )

    def on_traffic(self, *, is_in_sync: bool) -> None:
        traffic = self._stream.traffic(self._key, is_in_sync=is_in_sync)
        self._stream.note(TrafficChanged(route=self.number, traffic=traffic))


class ReplicateStream:
    """See the module docstring.

    Attributes:
        follower_id: node id of the follower; 0 before the stream was opened.
        follower_epoch: epoch of its registration.
    """

    def __init__(self, leader: Leader, context: Stream, opening: pb.ReplicateRequest) -> None:
        self.follower_id = 0
        self.follower_epoch = 0
        self._leader = leader
        self._context = context
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        self._session = PushSession(leader.rates, monotonic_ms())
        self._broker_epoch: int | None = None
        self._number = 0
        self._routes: dict[int, _Route] = {}
        self._wake = Wake()
        self._resume = Wake()
        self._over = Wake()
        self._is_over = False
        self._error: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0

    async def run(self) -> None:
        """Serve the stream until the follower closes its side, or something ends it."""
        with self._leader.streams.entry(self):
            tasks = (
                asyncio.create_task(self._read(), name="replicate-reader"),
                asyncio.create_task(self._write(), name="replicate-writer"),
            )
            for task in tasks:
                task.add_done_callback(self._on_task_done)
            self._arm_timer()
            try:
                await self._over.wait()
                if self._error is not None:
                    raise self._error
            finally:
                self._is_over = True
                for task in tasks:
                    task.cancel()
                if self._timer is not None:
                    self._timer.cancel()
                self._leader.followers.leave(self)
                await self._lose_routes()
                await asyncio.wait(tasks)

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the follower that the broker stops."""
        self.note_later(StopWanted(drain_ms=drain_ms))
        self._wake.set()

    def supersede(self, failure: Failure) -> None:
        """End the stream: another one of the follower counts from now on."""
        self._finish(RefusedError(failure))

    def note(self, event: PushEvent) -> None:
        """Give the core what a replica says, and let the writer look."""
        self._session.step(event, monotonic_ms())
        self._wake.set()

    def note_later(self, event: PushEvent) -> None:
        """Give the core what is to be sent in a while: the timer is enough."""
        self._session.step(event, monotonic_ms())
        self._arm_timer()

    def traffic(self, key: tuple[bytes, int], *, is_in_sync: bool) -> Traffic:
        """Return what a route of a partition, by topic id and number, is for."""
        return self._leader.traffic(*key, self.follower_id, is_in_sync=is_in_sync)

    def forget(self, route: _Route) -> None:
        """Learn that a replica has ended a route."""
        self._leader.reads.forget(route.replica)
        self._routes.pop(route.number, None)

    async def _write(self) -> None:
        session, context = self._session, self._context
        while True:
            if session.has_answers:
                broker_epoch = self._broker_epoch
                assert broker_epoch is not None, "an answer before the handshake"
                for answer in session.take_answers(monotonic_ms()):
                    await context.write(encode_push_answer(answer, broker_epoch=broker_epoch))
                self._resume.set()
                continue
            wanted = session.next_read(monotonic_ms())
            if wanted is not None:
                frame = self._read_frame(wanted)
                if frame is not None:
                    await context.write(frame)
                continue
            if session.is_finished:
                return
            self._arm_timer()
            await self._wake.wait()

    def _read_frame(self, wanted: ReadReplica) -> bytes | None:
        """Read what the core asked for; None when the route ended instead."""
        replica = self._routes[wanted.route].replica
        try:
            if wanted.is_in_sync:
                found = self._leader.reads.read(replica, wanted.offset, wanted.max_bytes)
            else:
                found = replica.read_for_follower(wanted.offset, wanted.max_bytes)
        except RefusedError as error:
            # Retention may have overtaken a slow follower: it begins anew at the log start then.
            start_offset = replica.log_start_offset
            is_below = wanted.offset < start_offset
            reason = SubscriptionError.BELOW_LOG_START if is_below else SubscriptionError.STORAGE_FAILED
            logger.warning("read for broker %d failed: %s", self.follower_id, error)
            self._carry_out_all(
                ReadFailed(route=wanted.route, error=reason, log_start_offset=start_offset if is_below else 0)
            )
            return None
        size_bytes = len(found.data)
        self._carry_out_all(ChunkRead(route=wanted.route, next_offset=found.next_offset, size_bytes=size_bytes))
        if found.next_offset <= wanted.offset:
            return None
        return encode_batches_frame(
            wanted.route,
            found.base_offset,
            found.leader_epoch,
            wanted.high_watermark,
            wanted.log_start_offset,
            wanted.is_in_sync,
            found.data,
        )

    async def _read(self) -> None:
        session, context = self._session, self._context
        request: pb.ReplicateRequest | None = self._opening
        while True:
            while session.must_pause:
                await self._resume.wait()
            if request is None:
                data = await context.read()
                if data is None or self._is_over:
                    return
                try:
                    request = pb.ReplicateRequest.FromString(data)
                except DecodeError:
                    raise undecodable() from None
            is_open = request.HasField("open")
            event = self._on_open(request.open) if is_open else read_request(request)
            effects = iter(session.step(event, monotonic_ms()))
            while slice_ := list(islice(effects, REPLICA_SLICE)):
                for effect in slice_:
                    self._carry_out(effect)
                if len(slice_) == REPLICA_SLICE:
                    await asyncio.sleep(0)
            if is_open:
                self._arm_timer()  # from now on the times of an open stream count
            if session.has_work:  # most acknowledgements and credits ask for nothing
                self._wake.set()
            request = None

    def _on_open(self, request: pb.ReplicateOpen) -> PushEvent:
        if self._broker_epoch is None:
            broker_epoch = self._leader.check_open(request)
            self.follower_id, self.follower_epoch = request.follower_id, request.broker_epoch
            self._number = self._leader.followers.enter(self)
            self._broker_epoch = broker_epoch
            logger.info("follower connected: node_id=%d broker_epoch=%d", self.follower_id, self.follower_epoch)
        return read_open(request)

    def _carry_out_all(self, event: PushEvent) -> None:
        for effect in self._session.step(event, monotonic_ms()):
            self._carry_out(effect)

    def _carry_out(self, effect: PushEffect) -> None:
        match effect:
            case AckReplica():
                route = self._routes.get(effect.route)
                if route is not None:  # an acknowledgement before it may have ended it
                    route.replica.ack_follower(
                        route, appended_offset=effect.appended_offset, flushed_offset=effect.flushed_offset
                    )
            case SubscribeReplica():
                self._subscribe(effect.subscription)
            case LoseReplica():
                route = self._routes.pop(effect.route, None)
                if route is not None:
                    self._lose(route)
            case AbortPush():
                if effect.failure.code is ErrorCode.INVALID_REQUEST and self._broker_epoch is not None:
                    message = effect.failure.message
                    self._leader.refusals.note(self.follower_id, self.follower_epoch, message, monotonic_ms())
                self._finish(RefusedError(effect.failure))
            case ClosePush():
                self._finish(None)
            case _:
                assert_never(effect)

    def _subscribe(self, wanted: Subscription) -> None:
        if not self._leader.is_registered(self.follower_id):
            error = SubscriptionError.UNKNOWN_BROKER_EPOCH
            self.note(RouteRefused(route=wanted.route, error=error, log_start_offset=0))
            return
        replica = self._leader.find(wanted.topic_id, wanted.partition)
        if replica is None:
            self.note(RouteRefused(route=wanted.route, error=SubscriptionError.NOT_LEADER, log_start_offset=0))
            return
        key = (wanted.topic_id, wanted.partition)
        # A newer stream counts before an older one whatever the follower's numbers are: one that is forged, or wrong, would lock the
        # follower out until it registers again.
        session = self._number * SESSIONS_PER_STREAM + wanted.session
        route = self._routes[wanted.route] = _Route(self, wanted.route, replica, key, session)
        replica.subscribe_follower(
            route,
            FollowerRequest(
                leader_epoch=wanted.leader_epoch,
                log_end_offset=wanted.log_end_offset,
                flushed_offset=wanted.flushed_offset,
                last_epoch=wanted.last_epoch,
            ),
        )

    async def _lose_routes(self) -> None:
        """Tell every replica that its follower is gone; a few at a time, but all of them whatever happens meanwhile."""
        routes = list(self._routes.values())
        self._routes.clear()
        try:
            while routes:
                for route in routes[-REPLICA_SLICE:]:
                    self._lose(route)
                del routes[-REPLICA_SLICE:]
                await asyncio.sleep(0)
        finally:
            for route in routes:
                self._lose(route)

    def _lose(self, route: _Route) -> None:
        self._leader.reads.forget(route.replica)
        route.replica.lose_follower(route)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._finish(task.exception())

    def _finish(self, error: BaseException | None) -> None:
        """Let `run` end the stream; the first reason counts."""
        if not self._is_over:
            self._is_over = True
            self._error = error
            self._over.set()

    def _arm_timer(self) -> None:
        if self._is_over:
            return
        due_ms = self._session.deadline_ms()
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return  # an earlier timer looks again
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = self._loop.call_later(max(due_ms - monotonic_ms(), 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._carry_out_all(PushTick())
        self._wake.set()
        self._arm_timer()

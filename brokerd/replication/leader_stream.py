# SPDX-License-Identifier: Apache-2.0
"""The leader's side of replication: `Replicate` streams of followers over the carrier.

`ReplicationService` answers other brokers; a refusal ends their stream or request. `Leader` owns the decision who may open a stream,
and which stream of a follower counts. `LeaderStream` owns one stream: the routes of its replicas, the writer and one timer. The core
`brokerd.partition.leader_stream` decides about turns and credit, and the cores of the replicas decide what counts.

    service = ReplicationService(table)      # refuses until a leader is attached
    service.attach(leader)

The writer of a stream sleeps until there is something to send. A batch costs one read, one copy into its frame and one write, and
awaits nothing else. What a follower says is handled as it arrives, without a task in between. Three things end a stream: the follower
(end of its side, bad input), the writer (clean shutdown), and the timer or another stream of the same follower. The last two do not
wait for a write that may never end.

Law: a follower has one stream here, the newest of its newest process.
Source: docs/replication.md, "The stream".
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TypeVar, assert_never

from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAGIC

from brokerd.clock import monotonic_ms
from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import REPLICA_LAG_MAX_MS, REPLICA_SLICE
from brokerd.membership import UNREGISTERED_RETRY_MS, check_named_cluster, check_registered, stale
from brokerd.partition.leader_stream import LeaderSession, NextRead, Rebinding
from brokerd.partition.reconciliation import EpochEnd, SubscriptionError
from brokerd.partition.replication_rates import ReplicationRates, Traffic
from brokerd.partition.stream_limits import StreamLimits
from brokerd.partition.stream_messages import (
    Acks,
    Batches,
    Credit,
    FollowerMessage,
    Heartbeat,
    Open,
    Opened,
    RouteAck,
    Subscription,
    Subscriptions,
    Unsubscriptions,
)
from brokerd.replica.replica import Replica
from brokerd.replica.replication_border import FollowerRequest
from brokerd.replication.recent_reads import RecentReads
from brokerd.replication.repair import RangeSource
from brokerd.replication.stream_codec import decode_request, encode_batches, encode_response, read_request
from brokerd.stream_register import StreamRegister
from brokerd.wake import Wake
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.link import CallError, ServedCall, Stream
from metaquorum.net.methods import Method
from metaquorum.net.service import RefusalError, ServiceTable
from metaquorum.net.sparse_log import SparseLog

REQUEST_WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that a follower may send ahead. 2,000 subscriptions take a fifth of that."""

NOT_READY_RETRY_MS: Final = 100
"""`retry_after_ms` for a broker that asks before this one is ready."""

SESSIONS_PER_STREAM: Final = 2**63
"""Session numbers that the field of a subscription can hold."""

_DONE: Final = object()
"""Stands for the end of an iterator of turns."""

logger = logging.getLogger(__name__)

_ItemT = TypeVar("_ItemT")


class ReplicationService:
    """The replication requests that this broker answers: `Replicate` and `FetchRange`.

    Args:
        table: the table of carrier methods to which it adds itself.
    """

    def __init__(self, table: ServiceTable) -> None:
        self._leader: Leader | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        table.add_stream(Method.REPLICATE, pb.ReplicateRequest, self._replicate, window_bytes=REQUEST_WINDOW_BYTES)
        table.add(Method.FETCH_RANGE, pb.FetchRangeRequest, self._fetch_range)

    def attach(self, leader: Leader) -> None:
        """Answer requests from now on, through `leader`."""
        self._leader = leader

    async def close(self) -> None:
        """Refuse every request from now on, and end the open streams. Idempotent."""
        self._leader = None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        # `gather` would pass a cancellation of this task on to the streams; `wait` does not.
        if tasks:
            await asyncio.wait(tasks)

    async def _replicate(self, opening: pb.ReplicateRequest, stream: Stream) -> None:
        task = asyncio.current_task()
        assert task is not None, "streams are served by tasks"
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        try:
            await LeaderStream(self._attached(), stream, opening).run()
        except RefusedError as error:
            raise _refusal(error.failure) from error
        except CallError:
            # The follower has ended the stream, or is gone.
            return

    def _fetch_range(self, request: pb.FetchRangeRequest, call: ServedCall) -> None:
        try:
            call.respond(self._attached().ranges.fetch_range(request).SerializeToString())
        except RefusedError as error:
            raise _refusal(error.failure) from error

    def _attached(self) -> Leader:
        if self._leader is None:
            raise refused(
                ErrorCode.OVERLOADED, "this broker is starting or stopping", retry_after_ms=NOT_READY_RETRY_MS
            )
        return self._leader


def _refusal(failure: Failure) -> RefusalError:
    return RefusalError(failure.code, failure.message, retry_after_ms=failure.retry_after_ms)


class Leader:
    """This broker as the streams of its followers see it. Only this class decides which stream of a follower counts.

    Args:
        cluster_id: cluster id.
        node_id: node id.
        observer: the metadata.
        broker_epoch: returns the epoch of this broker's registration; None before the first.
        find: returns the open replica of a topic id and partition.
        ranges: answers `FetchRange`.
        streams: register of all streams, for the limit and for the shutdown.
        rates: rates of the traffic to followers that are not in sync, over all streams.
        limits: limits of a stream.

    Attributes:
        ranges, streams, rates, find, limits: as above.
        reads: recent reads for in-sync followers.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        observer: MetadataLoader,
        broker_epoch: Callable[[], int | None],
        find: Callable[[bytes, int], Replica | None],
        ranges: RangeSource,
        streams: StreamRegister,
        rates: ReplicationRates,
        limits: StreamLimits | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._observer = observer
        self._broker_epoch = broker_epoch
        self._counting: dict[int, LeaderStream] = {}
        self._opened_count = 0
        self._refusals = SparseLog()
        self.find = find
        self.ranges = ranges
        self.streams = streams
        self.rates = rates
        self.limits = limits or StreamLimits()
        self.reads = RecentReads()

    @property
    def follower_count(self) -> int:
        """Number of followers with a stream here."""
        return len(self._counting)

    def traffic(self, topic_id: bytes, partition: int, follower_id: int, *, is_in_sync: bool) -> Traffic:
        """Return the class of traffic of a route to a follower."""
        if is_in_sync:
            return Traffic.IN_SYNC
        topic = self._observer.image.topic_by_id(topic_id)
        if topic is None or partition >= len(topic.partitions):
            return Traffic.CATCH_UP
        # Valid for the life of the route: a reassignment that adds a follower begins and ends with a new leader epoch.
        return Traffic.MOVING if follower_id in topic.partitions[partition].adding else Traffic.CATCH_UP

    def is_registered(self, follower_id: int) -> bool:
        """Return True if the metadata has a registration of the broker, of whatever process. The cores check the process."""
        return follower_id in self._observer.image.brokers

    def check_open(self, opening: Open) -> Opened:
        """Check the opening message of a follower and return the answer to it.

        Raises:
            RefusedError: WRONG_CLUSTER, INVALID_REQUEST, OVERLOADED, and the codes of `check_registered`.
        """
        check_named_cluster(opening.cluster_id, self._cluster_id)
        follower_id, epoch = opening.follower_id, opening.broker_epoch
        if opening.leader_id != self._node_id:
            message = f"this is broker {self._node_id}, not {opening.leader_id}: look up its address again"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        if follower_id < 0 or follower_id == self._node_id or epoch < 0:
            message = f"follower {follower_id} of broker epoch {epoch} cannot follow broker {self._node_id}"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        if opening.formats and MAGIC not in opening.formats:
            message = f"batch formats {sorted(opening.formats)[:16]} do not hold {MAGIC}, which the logs here have"
            raise refused(ErrorCode.INVALID_REQUEST, message)
        check_registered(self._observer.image, follower_id, broker_epoch=epoch, incarnation_id=opening.incarnation_id)
        own_epoch = self._broker_epoch()
        if own_epoch is None:
            message = f"broker {self._node_id} is not registered yet: try again"
            raise refused(ErrorCode.OVERLOADED, message, retry_after_ms=UNREGISTERED_RETRY_MS)
        return Opened(
            broker_epoch=own_epoch,
            idle_ms=self.limits.idle_ms,
            silence_ms=self.limits.silence_ms,
            lag_max_ms=REPLICA_LAG_MAX_MS,
        )

    def enter(self, stream: LeaderStream) -> int:
        """Make this stream the one that counts and end an older one of the same follower.

        Returns:
            The number of the stream in the order of openings, from 0.

        Raises:
            RefusedError: STALE_BROKER_EPOCH, the older stream belongs to a newer process.
        """
        follower_id, epoch = stream.follower_id, stream.follower_epoch
        older = self._counting.get(follower_id)
        if older is not None:
            if epoch < older.follower_epoch:
                raise refused(ErrorCode.STALE_BROKER_EPOCH, stale(follower_id, epoch, older.follower_epoch))
            message = f"broker {follower_id} has opened another stream"
            older.end(RefusedError(Failure(code=ErrorCode.STALE_BROKER_EPOCH, message=message)))
        self._counting[follower_id] = stream
        self._opened_count += 1
        return self._opened_count - 1

    def leave(self, stream: LeaderStream) -> None:
        """Forget a stream that has ended. Does nothing if a newer one counts."""
        if self._counting.get(stream.follower_id) is stream:
            del self._counting[stream.follower_id]

    def note_refusal(self, stream: LeaderStream, message: str) -> None:
        """Log a refusal of a follower's stream, at most one line a second. The line has the count of refusals since the last one."""
        if count := self._refusals.note("refused follower", monotonic_ms() / 1000):
            logger.warning(
                "stream of a follower refused: node_id=%d broker_epoch=%d count=%d reason=%s",
                stream.follower_id,
                stream.follower_epoch,
                count,
                message,
            )


class _Route:
    """A follower's subscription at its replica. The replica calls it as its `FollowerRoute`."""

    __slots__ = ("_key", "_session", "_stream", "_wake", "broker_epoch", "node_id", "number", "replica", "session")

    def __init__(
        self, stream: LeaderStream, number: int, replica: Replica, key: tuple[bytes, int], session: int
    ) -> None:
        self._stream = stream
        self._session = stream.session
        self._wake = stream.wake
        self._key = key
        self.number = number
        self.replica = replica
        self.node_id = stream.follower_id
        self.broker_epoch = stream.follower_epoch
        self.session = session

    def on_accepted(self, *, high_watermark: int, log_start_offset: int, is_in_sync: bool) -> None:
        self._session.accept(
            self.number,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            log_end_offset=self.replica.log_end_offset,
            traffic=self._stream.traffic(self._key, is_in_sync=is_in_sync),
        )
        self._wake.set()

    def on_diverged(self, leader_end: EpochEnd) -> None:
        self._stream.forget(self)
        self._session.diverge(self.number, leader_end)
        self._wake.set()

    def on_ended(self, error: SubscriptionError, *, log_start_offset: int) -> None:
        self._stream.forget(self)
        self._session.end_route(self.number, error, log_start_offset=log_start_offset)
        self._wake.set()

    def on_log_grown(self, log_end_offset: int) -> None:
        self._session.grow(self.number, log_end_offset)
        self._wake.set()

    def on_marks(self, *, high_watermark: int, log_start_offset: int) -> None:
        self._session.mark(
            self.number, high_watermark=high_watermark, log_start_offset=log_start_offset, now_ms=monotonic_ms()
        )
        self._stream.arm_timer()

    def on_traffic(self, *, is_in_sync: bool) -> None:
        self._session.classify(self.number, self._stream.traffic(self._key, is_in_sync=is_in_sync))
        self._wake.set()


class LeaderStream:
    """One stream of one follower.

    Args:
        leader: this broker.
        stream: the stream of the carrier.
        opening: the message that opened it.

    Attributes:
        follower_id: node id of the follower; 0 before the handshake.
        follower_epoch: epoch of its registration; 0 before the handshake.
        session: the core.
        wake: wakes the writer.
    """

    def __init__(self, leader: Leader, stream: Stream, opening: pb.ReplicateRequest) -> None:
        self.follower_id = 0
        self.follower_epoch = 0
        self.session = LeaderSession(leader.limits, leader.rates, monotonic_ms())
        self.wake = Wake()
        self._leader = leader
        self._stream = stream
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        self._opened: Opened | None = None
        self._number = 0
        self._routes: dict[int, _Route] = {}
        # What the follower has said and nobody has handled yet, and what is left of the message before: the replicas of a long list
        # hear of it in turns.
        self._heard: deque[FollowerMessage] = deque()
        self._turn: Iterator[None] | None = None
        self._is_working = False
        self._over = Wake()
        self._is_over = False
        self._error: BaseException | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0

    async def run(self) -> None:
        """Serve the stream until the follower closes its side, or another reason ends it."""
        with self._leader.streams.entry(self):
            writer = asyncio.create_task(self._write(), name="replicate-writer")
            writer.add_done_callback(self._on_writer_done)
            self.arm_timer()
            try:
                self._hear(read_request(self._opening))
                self._stream.listen(self._on_messages, self.end)
                await self._over.wait()
                if self._error is not None:
                    raise self._error
            finally:
                self._is_over = True
                writer.cancel()
                if self._timer is not None:
                    self._timer.cancel()
                self._leader.leave(self)
                await self._lose_routes()
                await asyncio.wait((writer,))

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the follower that this broker stops."""
        self.session.stop(drain_ms, monotonic_ms())
        self.arm_timer()
        self.wake.set()

    def end(self, error: BaseException | None) -> None:
        """Make `run` end the stream, with an error or cleanly. Only the first reason counts."""
        if not self._is_over:
            self._is_over = True
            self._error = error
            self._over.set()

    # For the routes.

    def traffic(self, key: tuple[bytes, int], *, is_in_sync: bool) -> Traffic:
        """Return the class of traffic of a route. `key` is topic id and partition."""
        return self._leader.traffic(*key, self.follower_id, is_in_sync=is_in_sync)

    def forget(self, route: _Route) -> None:
        """Note that a replica has ended a route."""
        self._leader.reads.forget(route.replica)
        self._routes.pop(route.number, None)

    def arm_timer(self) -> None:
        """Set the timer to the core's next deadline."""
        if self._is_over:
            return
        due_ms = self.session.deadline_ms()
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return  # an earlier timer checks again
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = self._loop.call_later(max(due_ms - monotonic_ms(), 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.session.tick(monotonic_ms())
        self._end_if_over()
        self.wake.set()
        self.arm_timer()

    # The writer.

    async def _write(self) -> None:
        session, stream = self.session, self._stream
        while True:
            if session.has_answers:
                for answer in session.take_answers(monotonic_ms()):
                    await stream.write(encode_response(answer))
                self._work()
                continue
            wanted = session.next_read(monotonic_ms())
            if wanted is not None:
                frame = self._read_frame(wanted)
                if frame is not None:
                    await stream.write(frame)
                continue
            if session.is_finished:
                return
            self.arm_timer()
            await self.wake.wait()

    def _read_frame(self, wanted: NextRead) -> bytes | None:
        """Read the batches that the core asked for; None if the route ended instead."""
        number, offset, max_bytes, high_watermark, log_start_offset, is_in_sync = wanted
        replica = self._routes[number].replica
        try:
            if is_in_sync:
                found = self._leader.reads.read(replica, offset, max_bytes)
            else:
                found = replica.read_for_follower(offset, max_bytes)
        except RefusedError as error:
            # Retention may have overtaken a slow follower. It then restarts at the log start.
            start_offset = replica.log_start_offset
            is_below = offset < start_offset
            reason = SubscriptionError.BELOW_LOG_START if is_below else SubscriptionError.STORAGE_FAILED
            logger.warning("read for broker %d failed: %s", self.follower_id, error)
            self.session.end_route(number, reason, log_start_offset=start_offset if is_below else 0)
            self._lose(number)
            return None
        is_sent = self.session.note_read(
            number, next_offset=found.next_offset, size_bytes=len(found.data), now_ms=monotonic_ms()
        )
        if not is_sent:
            self._lose(number)
            return None
        return encode_batches(
            Batches(
                number, found.base_offset, found.leader_epoch, high_watermark, log_start_offset, is_in_sync, found.data
            )
        )

    # The follower's side.

    def _on_messages(self, messages: list[bytes]) -> None:
        for data in messages:
            if self._is_over:
                return
            try:
                self._hear(decode_request(data))
            except RefusedError as error:
                self.end(error)

    def _hear(self, message: FollowerMessage) -> None:
        self._heard.append(message)
        self._work()

    def _work(self) -> None:
        """Handle what the follower has said, in order, as far as possible now.

        The rest is handled later: in turns, or once the core's answers are written. Until then the stream pauses.
        """
        if self._is_working or self._is_over:
            return
        self._is_working = True
        try:
            while not self._is_over and self._turn is None and self._heard and not self.session.must_pause:
                self._turn = self._take(self._heard.popleft())
                self._go_on()
        except Exception as error:
            self.end(error)
        finally:
            self._is_working = False
        if self._heard or self._turn is not None:
            self._stream.pause()
        else:
            self._stream.resume()

    def _go_on(self) -> None:
        """Handle the next part of a message. The rest follows in the next turn of the event loop."""
        if self._turn is None:
            return
        if next(self._turn, _DONE) is None:
            self._loop.call_soon(self._on_turn)
            return
        self._turn = None
        self._end_if_over()
        if self.session.has_work:  # most acknowledgements and credits need no answer
            self.wake.set()

    def _on_turn(self) -> None:
        if self._is_over:
            return
        try:
            self._go_on()
        except Exception as error:
            self.end(error)
        self._work()

    def _take(self, message: FollowerMessage) -> Iterator[None]:
        """Pass a follower's message to the core, and the results to the replicas. Yields after each `REPLICA_SLICE` of them."""
        session, now_ms = self.session, monotonic_ms()
        match message:
            case Acks():
                yield from _in_turns(self._ack, session.acknowledge(message.acks, now_ms))
            case Credit():
                session.grant(message, now_ms)
            case Heartbeat():
                session.hear(now_ms)
            case Subscriptions():
                yield from _in_turns(self._rebind, session.subscribe(message.subscriptions, now_ms))
            case Unsubscriptions():
                yield from _in_turns(self._lose, session.unsubscribe(message.routes, now_ms))
            case Open():
                session.open(message.credit, self._admit(message), now_ms)
                self.arm_timer()  # from now on the deadlines of an open stream apply
            case _:
                assert_never(message)

    def _admit(self, opening: Open) -> Opened:
        """Admit the follower, once, and return the answer to its opening.

        Raises:
            RefusedError: as `Leader.check_open` and `Leader.enter`.
        """
        if self._opened is None:
            opened = self._leader.check_open(opening)
            self.follower_id, self.follower_epoch = opening.follower_id, opening.broker_epoch
            self._number = self._leader.enter(self)
            self._opened = opened
            logger.info("follower connected: node_id=%d broker_epoch=%d", self.follower_id, self.follower_epoch)
        return self._opened

    def _ack(self, ack: RouteAck) -> None:
        number, appended_offset, flushed_offset = ack
        route = self._routes.get(number)
        if route is not None:  # an earlier acknowledgement may have ended it
            route.replica.ack_follower(route, appended_offset=appended_offset, flushed_offset=flushed_offset)

    def _rebind(self, rebinding: Rebinding) -> None:
        if rebinding.replaced is not None:
            self._lose(rebinding.replaced)
        if rebinding.subscription is not None:
            self._subscribe(rebinding.subscription)

    def _subscribe(self, wanted: Subscription) -> None:
        if not self._leader.is_registered(self.follower_id):
            self.session.end_route(wanted.route, SubscriptionError.UNKNOWN_BROKER_EPOCH)
            return
        replica = self._leader.find(wanted.topic_id, wanted.partition)
        if replica is None:
            self.session.end_route(wanted.route, SubscriptionError.NOT_LEADER)
            return
        key = (wanted.topic_id, wanted.partition)
        # The number of the stream comes first, so a newer stream counts before an older one whatever session numbers the follower
        # sends. Otherwise a forged or wrong number would lock the follower out until it registers again.
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

    # The end.

    def _lose(self, number: int) -> None:
        """Tell the replica of a route that its follower is gone. Does nothing if the replica has ended the route."""
        route = self._routes.pop(number, None)
        if route is not None:
            self._leader.reads.forget(route.replica)
            route.replica.lose_follower(route)

    async def _lose_routes(self) -> None:
        """Tell every replica that its follower is gone: a few at a time, but all of them even if this is cancelled."""
        numbers = list(self._routes)
        try:
            for _ in _in_turns(self._lose, numbers):
                await asyncio.sleep(0)
        finally:
            for number in numbers:
                self._lose(number)

    def _end_if_over(self) -> None:
        """End the stream if its core says that it is over."""
        if not self.session.is_over or self._is_over:
            return
        failure = self.session.failure
        if failure is None:
            self.end(None)
            return
        if failure.code is ErrorCode.INVALID_REQUEST and self._opened is not None:
            self._leader.note_refusal(self, failure.message)
        self.end(RefusedError(failure))

    def _on_writer_done(self, writer: asyncio.Task[None]) -> None:
        if not writer.cancelled():
            self.end(writer.exception())


def _in_turns(tell: Callable[[_ItemT], None], items: list[_ItemT]) -> Iterator[None]:
    """Tell each item, and yield after each `REPLICA_SLICE` of them if there are more."""
    for count, item in enumerate(items, start=1):
        tell(item)
        if count % REPLICA_SLICE == 0 and count < len(items):
            yield

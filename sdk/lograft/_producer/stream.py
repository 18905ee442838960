# SPDX-License-Identifier: Apache-2.0
"""One produce stream to one leader, the partitions that use it, and the producer identity of their batches.

This module owns the handshake, the routes, the order of frames on the wire and the matching of receipts. It must not choose
leaders, retry, or know where batches come from; `engine` does that.

Theory of operation. The stream binds each partition (`PartitionSender`) to a route number: in `open` if the partition comes
before it is sent, else in `bind`. The writer takes one batch from each ready partition in turn, so no partition starves. When
the stream fails, it returns all its partitions to the engine at once. Source: docs/clients.md; proto/lograft/v1/log.proto.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext
from typing import Final, Protocol

import grpc
import grpc.aio

from lograft._client.backoff import Backoff
from lograft._client.clock import monotonic_ms
from lograft._client.cluster import Cluster
from lograft._client.metadata import Leader
from lograft._client.transport import WRITER_TIMEOUT_S, Purpose, to_error, write_first
from lograft._producer.batches import SealedBatch
from lograft._producer.sequencer import Acknowledged, PartitionSequencer, ReceiptError
from lograft.errors import LograftError, NoBrokerError, ProtocolError, RequestTimeoutError
from lograft.settings import CONNECT_TIMEOUT_MS, STALLED_MS, STREAM_OPEN_TIMEOUT_MS, STREAM_SILENCE_MS, ProducerSettings
from lograft.types import Acks, Durability
from lograft.v1 import errors_pb2, log_pb2
from lograft.wire.frames import encode_produce_frame

logger = logging.getLogger(__name__)

PRODUCE_METHOD: Final = "/lograft.v1.LogService/Produce"

_ACKS: Final = {
    Acks.ALL: log_pb2.ACKS_ALL,
    Acks.LEADER: log_pb2.ACKS_LEADER,
    Acks.NONE: log_pb2.ACKS_NONE,
}

_Call = grpc.aio.StreamStreamCall[bytes, log_pb2.ProduceResponse]


class Session:
    """One producer identity and the streams that use it.

    Args:
        identity: the identity, if it was given before.

    Attributes:
        identity: (producer id, producer epoch); None before the first handshake. The stream of that handshake writes it.
        handshake: the lock that this stream holds during the handshake.
        streams: the stream to each broker, by node id. The engine writes it.
        sender_count: number of partitions whose batches carry the identity. The engine writes it.
    """

    def __init__(self, identity: tuple[int, int] | None = None) -> None:
        self.identity = identity
        self.handshake: AbstractAsyncContextManager[None] = asyncio.Lock()
        self.streams: dict[int, ProduceStream] = {}
        self.sender_count = 0


class PartitionSender:
    """One partition on its way to its leader. A stream writes `stream`, `route` and `is_ready`; the engine writes everything else.

    Attributes:
        sequencer: order and identity of the partition's batches.
        session: the identity that its batches carry.
        stream: the stream to which the partition is bound or being bound; None while it waits for a leader.
        route: route number on that stream.
        is_ready: True while the partition is in the stream's queue of partitions with a batch to send.
        topic_id: id of the topic at the last binding.
        max_batch_bytes: largest batch that the topic accepts; None before the first binding.
        unknown_since_ms: monotonic time since when brokers do not know the partition.
        retry: timer of the next attempt to find a leader.
        last_error: why the partition last had no route.
        avoided: a leader that could not be used. The engine tries the same one again only after a pause.
        leaving: timer at which the partition leaves the stream to a former leader, unless the broker ends its route before.
    """

    __slots__ = (
        "avoided",
        "backoff",
        "is_ready",
        "last_error",
        "leaving",
        "max_batch_bytes",
        "partition",
        "retry",
        "route",
        "sequencer",
        "session",
        "stream",
        "topic",
        "topic_id",
        "unknown_since_ms",
    )

    def __init__(
        self, topic: str, partition: int, *, sequencer: PartitionSequencer, session: Session, backoff: Backoff
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.sequencer = sequencer
        self.session = session
        self.backoff = backoff
        self.stream: ProduceStream | None = None
        self.route = 0
        self.is_ready = False
        self.topic_id: bytes | None = None
        self.max_batch_bytes: int | None = None
        self.unknown_since_ms: int | None = None
        self.retry: asyncio.TimerHandle | None = None
        self.last_error: LograftError | None = None
        self.avoided: Leader | None = None
        self.leaving: asyncio.TimerHandle | None = None


class StreamOwner(Protocol):
    """What a stream reports to its owner, the engine. It separates the wire from the search for leaders."""

    def on_bound(self, sender: PartitionSender, opened: log_pb2.ProduceRouteOpened) -> None:
        """The partition's route is open. Its sequencer is not bound yet."""
        ...

    def on_acknowledged(self, sender: PartitionSender, done: Sequence[Acknowledged], durability: Durability) -> None:
        """Batches are in the log."""
        ...

    def on_sent(self, sender: PartitionSender, batch: SealedBatch) -> None:
        """A batch without a receipt (acks="none") was sent."""
        ...

    def on_route_end(self, sender: PartitionSender, error: errors_pb2.PartitionError, *, outcome_unknown: bool) -> None:
        """The broker ended the partition's route. The stream continues."""
        ...

    def on_stream_end(self, stream: ProduceStream, senders: Sequence[PartitionSender], error: LograftError) -> None:
        """The stream has ended. Batches in flight may have been appended."""
        ...

    def prepare(self, sender: PartitionSender) -> bool:
        """Make the partition's first batch ready to send. Return False if no batch is left to send."""
        ...


class ProduceStream:
    """Carries the batches of the partitions that one broker leads, and their receipts. Belongs to one event loop."""

    def __init__(
        self,
        owner: StreamOwner,
        cluster: Cluster,
        settings: ProducerSettings,
        session: Session,
        *,
        leader: Leader,
    ) -> None:
        self.leader = leader
        self.broker_id = leader.broker_id
        self.address = leader.address
        self.is_closed = False
        self._owner = owner
        self._cluster = cluster
        self._settings = settings
        self.session = session
        self._next_route = 0
        self._is_open = False
        self._to_bind: list[PartitionSender] = []
        self._binding: dict[int, PartitionSender] = {}
        self._bound: dict[int, PartitionSender] = {}
        self._ready: deque[PartitionSender] = deque()
        self._wakeup: asyncio.Future[None] | None = None
        self._in_flight_bytes = 0
        self._max_in_flight_bytes = 0
        self._window = 1
        self._is_going_away = False
        self._reset_reason: LograftError | None = None
        self._call: _Call | None = None
        self._is_ending = False
        # Monotonic time since when the broker owes an answer; None while it owes none.
        self._owed_since_ms: int | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    @property
    def is_open(self) -> bool:
        """True once the broker has answered."""
        return self._is_open

    def bind(self, sender: PartitionSender) -> None:
        """Bind a partition. The owner gets `on_bound`, `on_route_end` or `on_stream_end`."""
        sender.stream = self
        sender.route = self._next_route
        self._next_route += 1
        self._to_bind.append(sender)
        self._wake()

    def ready(self, sender: PartitionSender) -> None:
        """Queue a bound partition if it has a batch to send."""
        if not sender.is_ready and sender.sequencer.can_send():
            sender.is_ready = True
            self._ready.append(sender)
            self._wake()

    def abandon(self, sender: PartitionSender) -> None:
        """Forget a partition's route and ignore its late receipts. Call this before the sequencer is unbound."""
        self._in_flight_bytes -= sum(len(batch.body) for batch in sender.sequencer.in_flight)
        self._bound.pop(sender.route, None)
        self._binding.pop(sender.route, None)
        if sender in self._to_bind:
            self._to_bind.remove(sender)
        if sender.is_ready:
            self._ready.remove(sender)
            sender.is_ready = False
        sender.stream = None
        if not self._bound and not self._binding:
            self._owed_since_ms = None

    def is_stalled(self, at_ms: int) -> bool:
        """True if the broker has owed an answer for more than `STALLED_MS`. The engine then asks another broker for the leader."""
        return self._owed_since_ms is not None and at_ms - self._owed_since_ms > STALLED_MS

    def check_silence(self, at_ms: int) -> None:
        """End the stream if the broker has owed an answer for more than `STREAM_SILENCE_MS`."""
        if self._owed_since_ms is not None and at_ms - self._owed_since_ms > STREAM_SILENCE_MS:
            self._reset(RequestTimeoutError(f"{self.address} sent no answer for {STREAM_SILENCE_MS} ms"))

    def _reset(self, reason: LograftError) -> None:
        self._owed_since_ms = None
        self._reset_reason = reason
        self._stop()

    def _stop(self) -> None:
        """End the task. Cancel its call if it has one, so that gRPC can end the read under way."""
        if self._call is not None:
            self._call.cancel()
        elif not self._is_ending:
            self._task.cancel()

    async def close(self) -> None:
        """End the stream without calling the owner."""
        self.is_closed = True
        self._stop()
        await asyncio.gather(self._task, return_exceptions=True)

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    # -- the stream's task

    async def _run(self) -> None:
        with ExitStack() as uses:
            error = await self._carry(uses)
        if not self.is_closed:
            self._end(error)

    async def _carry(self, uses: ExitStack) -> LograftError:
        """Connect, open the stream, carry it to its end and return why it ended. `uses` keeps the channel open until then."""
        error: LograftError
        channel: grpc.aio.Channel | None = None
        call: _Call | None = None
        writer: asyncio.Task[None] | None = None
        transport = self._cluster.transport
        try:
            channel = await transport.connect(self.address, Purpose.BULK, timeout_s=CONNECT_TIMEOUT_MS / 1000)
            uses.enter_context(transport.using(channel))
            multi: grpc.aio.StreamStreamMultiCallable[bytes, log_pb2.ProduceResponse] = channel.stream_stream(
                PRODUCE_METHOD, request_serializer=None, response_deserializer=log_pb2.ProduceResponse.FromString
            )
            call = multi()
            await self._open(call)
            self._call = call
            writer = self._loop.create_task(self._write(call))
            await self._read(call)
            error = NoBrokerError(f"{self.address} closed the produce stream")
        except grpc.RpcError as cause:
            error = to_error(cause, self.address)
        except LograftError as cause:
            error = cause
        except TimeoutError:
            error = self._reset_reason = RequestTimeoutError(f"{self.address} did not open the produce stream in time")
        except asyncio.CancelledError:
            if self.is_closed:
                raise
            if self._reset_reason is None:
                self._cluster.note_cancelled()
            error = self._reset_reason or NoBrokerError(f"the produce stream to {self.address} was cancelled")
        except Exception as cause:
            logger.exception("produce stream to %s failed", self.address)
            error = ProtocolError(f"the produce stream to {self.address} failed: {cause!r}")
        finally:
            # From here on no caller cancels this task: it must return the bound partitions.
            self._is_ending = True
            if call is not None:
                call.cancel()
            if writer is not None:
                self._wake()
                await asyncio.wait((writer,), timeout=WRITER_TIMEOUT_S)
                writer.cancel()
            if channel is not None and isinstance(self._reset_reason, RequestTimeoutError):
                # The connection may have died without a sign. Further streams over it would fail in the same way.
                transport.give_up(channel)
        return error

    def _end(self, error: LograftError) -> None:
        self.is_closed = True
        senders = [*self._bound.values(), *self._binding.values(), *self._to_bind]
        self._bound.clear()
        self._binding.clear()
        self._to_bind.clear()
        self._ready.clear()
        for sender in senders:
            sender.stream = None
            sender.is_ready = False
        self._owner.on_stream_end(self, senders, error)

    async def _open(self, call: _Call) -> None:
        settings = self._settings
        needs_identity = settings.is_idempotent and self.session.identity is None
        # Only the handshake that gets the identity makes other streams of the session wait.
        turn = self.session.handshake if needs_identity else nullcontext()
        async with turn, asyncio.timeout(STREAM_OPEN_TIMEOUT_MS / 1000):
            request = log_pb2.ProduceOpen(
                cluster_id=self._cluster.cluster_id,
                acks=_ACKS[settings.acks],
                without_idempotence=not settings.is_idempotent,
                routes=self._take_routes(),
            )
            if self.session.identity is not None:
                producer_id, producer_epoch = self.session.identity
                request.producer.producer_id = producer_id
                request.producer.producer_epoch = producer_epoch
            await write_first(call, log_pb2.ProduceRequest(open=request).SerializeToString())
            response = await call.read()
            if not isinstance(response, log_pb2.ProduceResponse):
                raise NoBrokerError(f"{self.address} closed the produce stream before it was open")
            if response.WhichOneof("message") == "go_away":
                raise NoBrokerError(f"{self.address} is going away: {response.go_away.message}")
            if response.WhichOneof("message") != "opened":
                raise ProtocolError(f"{self.address} answered the opening of a produce stream with something else")
            opened = response.opened
            if settings.is_idempotent:
                if not opened.HasField("producer"):
                    raise ProtocolError(f"{self.address} gave no producer identity")
                self.session.identity = (opened.producer.producer_id, opened.producer.producer_epoch)
        self._window = max(1, min(settings.max_in_flight, opened.max_in_flight_batches or settings.max_in_flight))
        self._max_in_flight_bytes = opened.max_in_flight_bytes
        self._is_open = True
        self._on_opened(opened)

    def _take_routes(self) -> list[log_pb2.ProduceRoute]:
        routes: list[log_pb2.ProduceRoute] = []
        for sender in self._to_bind:
            self._binding[sender.route] = sender
            routes.append(log_pb2.ProduceRoute(route=sender.route, topic=sender.topic, partition=sender.partition))
        self._to_bind.clear()
        if self._owed_since_ms is None:
            self._owed_since_ms = monotonic_ms()
        return routes

    # -- writing

    async def _write(self, call: _Call) -> None:
        try:
            while not self._is_ending:
                if self._to_bind:
                    bind = log_pb2.ProduceBind(routes=self._take_routes())
                    await call.write(log_pb2.ProduceRequest(bind=bind).SerializeToString())
                frame = self._next_frame()
                if frame is not None:
                    await call.write(frame)
                elif not self._to_bind:
                    self._wakeup = self._loop.create_future()
                    await self._wakeup
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            # The reader sees the same end of the stream, with its reason.
            logger.debug("writing to %s ended: %s", self.address, error)
        except Exception as error:
            logger.exception("writing to %s failed", self.address)
            self._reset(ProtocolError(f"writing to {self.address} failed: {error!r}"))

    def _next_frame(self) -> bytes | None:
        """Return the next batch, as a message, of the partition whose turn it is."""
        if self._is_going_away:
            return None
        while self._ready:
            if self._in_flight_bytes > 0 and 0 < self._max_in_flight_bytes <= self._in_flight_bytes:
                return None
            sender = self._ready.popleft()
            sender.is_ready = False
            if not self._owner.prepare(sender) or not sender.sequencer.can_send():
                continue
            return self._frame(sender)
        return None

    def _frame(self, sender: PartitionSender) -> bytes:
        sequencer = sender.sequencer
        is_first = sequencer.queue[0].base_sequence is None
        is_silent = self._settings.acks is Acks.NONE
        batch = sequencer.take_unacknowledged() if is_silent else sequencer.take()
        if is_first and batch.base_sequence is not None:
            identity = sender.session.identity
            assert identity is not None, "a route was bound before the handshake"
            batch.body.stamp_producer(
                producer_id=identity[0], producer_epoch=identity[1], base_sequence=batch.base_sequence
            )
        assert batch.batch_number is not None, f"{batch} has no number"
        frame = encode_produce_frame(sender.route, batch.batch_number, *batch.body.pieces())
        if is_silent:
            self._owner.on_sent(sender, batch)
        else:
            self._in_flight_bytes += len(batch.body)
            if self._owed_since_ms is None:
                self._owed_since_ms = monotonic_ms()
        self.ready(sender)
        return frame

    # -- reading

    async def _read(self, call: _Call) -> None:
        while isinstance(response := await call.read(), log_pb2.ProduceResponse):
            match response.WhichOneof("message"):
                case "receipt":
                    self._on_receipt(response.receipt)
                case "opened":
                    self._on_opened(response.opened)
                case "route_end":
                    self._on_route_end(response.route_end)
                case "go_away":
                    logger.info("%s goes away: %s", self.address, response.go_away.message)
                    self._is_going_away = True
                    self._leave_if_idle()
                case _:
                    raise ProtocolError(f"{self.address} sent a message that this version does not know")

    def _settle(self) -> None:
        """Restart or stop the clock of the broker's silence after an answer."""
        is_owing = bool(self._binding) or any(sender.sequencer.in_flight for sender in self._bound.values())
        self._owed_since_ms = monotonic_ms() if is_owing else None
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._is_going_away and not any(sender.sequencer.in_flight for sender in self._bound.values()):
            raise NoBrokerError(f"{self.address} is going away")

    def _on_opened(self, opened: log_pb2.ProduceOpened) -> None:
        for route in opened.routes:
            sender = self._binding.pop(route.route, None)
            if sender is None:
                continue
            self._bound[route.route] = sender
            self._owner.on_bound(sender, route)
            sender.sequencer.bind(window=self._window)
            self.ready(sender)
        self._settle()

    def _on_receipt(self, receipt: log_pb2.ProduceReceipt) -> None:
        sender = self._bound.get(receipt.route)
        if sender is None:
            return
        try:
            done = sender.sequencer.acknowledge(receipt.last_batch_number, receipt.base_offsets, receipt.duplicates)
        except ReceiptError as error:
            raise ProtocolError(f"{self.address}: {error}") from error
        for acknowledged in done:
            self._in_flight_bytes -= len(acknowledged.batch.body)
        self.ready(sender)
        if self._ready:
            self._wake()
        self._owner.on_acknowledged(sender, done, _durability(receipt.durability))
        self._settle()

    def _on_route_end(self, end: log_pb2.RouteEnd) -> None:
        sender = self._bound.get(end.route) or self._binding.get(end.route)
        if sender is None:
            return
        self.abandon(sender)
        logger.info("%s-%d: route ended by %s: %s", sender.topic, sender.partition, self.address, end.error.message)
        self._owner.on_route_end(sender, end.error, outcome_unknown=end.outcome_unknown)
        if self._ready:
            self._wake()
        self._settle()


def _durability(number: int) -> Durability:
    """Return the durability for a number from a broker; UNKNOWN for one that this version does not know."""
    try:
        return Durability(number)
    except ValueError:
        return Durability.UNKNOWN

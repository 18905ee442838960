# SPDX-License-Identifier: Apache-2.0
"""One Produce stream: reads requests, appends batches, writes receipts.

Owns the bindings from route numbers to replicas and the two loops. Must not decide about numbers, limits or receipts:
the session core does. Nothing here is done per record.

The reader appends inside the event loop and never waits for the disk: under flush policy `ack` the flush runs in a
thread and the receipt follows it; under `none` the receipt is ready at once. The writer sleeps until the core has
answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import assert_never

import grpc.aio
from google.protobuf.message import DecodeError
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError
from lograft.wire.frames import ProduceFrame, decode_produce_request
from lograft.wire.header import BatchHeader

from brokerd.api.batch_check import Checked, check, is_costly, is_stored_anew
from brokerd.api.calls import ServicerContext, check_cluster, undecodable
from brokerd.api.identities import check_identity
from brokerd.api.parts import BrokerParts
from brokerd.api.produce_codec import AnswerEncoder, check_formats, encode_go_away, read_acks, read_routes
from brokerd.api.produce_events import (
    AbortStream,
    AckReached,
    Acks,
    AppendBatch,
    AwaitAck,
    BatchFailed,
    BatchReceived,
    BatchStored,
    Effect,
    Event,
    ReleaseRoute,
    ResolveRoutes,
    RouteBound,
    RouteLost,
    RouteRefused,
    RoutesResolved,
    RoutesWanted,
    RouteWanted,
    StreamOpened,
)
from brokerd.api.produce_session import ProduceSession
from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import BIND_WAIT_MS
from brokerd.partition.effects import LossReason
from brokerd.partition.events import AckLevel, Durability
from brokerd.replica.refusals import too_few_after_failure
from brokerd.replica.replica import HostedReplica
from brokerd.stream_register import GOING_AWAY
from brokerd.wake import Wake


class _Binding:
    """A route bound to a replica; hears when the replica stops to serve."""

    __slots__ = ("_stream", "max_batch_bytes", "replica", "route")

    def __init__(self, stream: ProduceStream, route: int, replica: HostedReplica, max_batch_bytes: int) -> None:
        self._stream = stream
        self.route = route
        self.replica = replica
        self.max_batch_bytes = max_batch_bytes

    def on_service_end(self, failure: Failure) -> None:
        self._stream.lose_route(self.route, failure)


class ProduceStream:
    """See the module docstring."""

    def __init__(self, parts: BrokerParts, context: ServicerContext) -> None:
        self._parts = parts
        self._context = context
        self._session = ProduceSession()
        self._encoder = AnswerEncoder(parts.cluster_id, parts.node_id)
        self._bindings: dict[int, _Binding] = {}
        self._level = AckLevel.ALL
        # What an append has to be able to reach; without receipts nobody waits for more than the leader's log.
        self._wanted = AckLevel.ALL
        # (-1, -1) in a batch header says that the batch has no producer.
        self._identity = (-1, -1)
        self._wake = Wake()
        self._resume = Wake()
        self._go_away: bytes | None = None
        self._is_over = False

    async def run(self) -> None:
        """Serve the stream until the client has closed it and everything is answered."""
        with self._parts.produce_streams.entry(self):
            reader = asyncio.create_task(self._read(), name="produce-reader")
            reader.add_done_callback(lambda _: self._wake.set())
            try:
                await self._write(reader)
            finally:
                self._is_over = True
                reader.cancel()
                for binding in self._bindings.values():
                    binding.replica.listeners.remove(binding)
                self._bindings.clear()
                await asyncio.wait((reader,))

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the client that the server stops."""
        self._go_away = encode_go_away(message, drain_ms)
        self._wake.set()

    def lose_route(self, route: int, failure: Failure) -> None:
        """End a route whose replica serves no more."""
        self._bindings.pop(route, None)
        self._step(RouteLost(route=route, failure=failure))

    async def _write(self, reader: asyncio.Task[None]) -> None:
        session, context, encode = self._session, self._context, self._encoder.encode
        while True:
            for answer in session.take_answers():
                await context.write(encode(answer))
            self._resume.set()
            if self._go_away is not None:
                if not session.is_opened:
                    raise refused(ErrorCode.SHUTTING_DOWN, GOING_AWAY)
                message, self._go_away = self._go_away, None
                await context.write(message)
            if session.has_answers:
                continue
            if reader.done():
                reader.result()
                if session.is_drained:
                    return
            await self._wake.wait()

    async def _read(self) -> None:
        session, context = self._session, self._context
        while True:
            while session.must_pause:
                await self._resume.wait()
            data = await context.read()
            if data is grpc.aio.EOF:
                return
            try:
                request = decode_produce_request(data)
            except DecodeError:
                raise undecodable() from None
            if type(request) is ProduceFrame:
                body = memoryview(request.body)
                binding = self._bindings.get(request.route)
                if is_costly(body) or (binding is not None and is_stored_anew(body, binding.replica.settings)):
                    await self._on_costly_batch(request, body)
                else:
                    self._on_batch(request, body, body, None)
            else:
                await self._on_request(request)

    async def _on_request(self, request: ProduceFrame | log_pb2.ProduceRequest) -> None:
        assert isinstance(request, log_pb2.ProduceRequest), "a frame is handled as a batch"
        kind = request.WhichOneof("message")
        if kind == "open":
            event = await self._on_open(request.open)
        elif kind == "bind":
            event = RoutesWanted(routes=read_routes(request.bind.routes))
        else:
            raise refused(ErrorCode.INVALID_REQUEST, "a message of a produce stream must be open, bind or batch")
        for effect in self._session.step(event):
            if isinstance(effect, ResolveRoutes):
                await self._resolve(effect.routes)
            else:
                self._carry_out(effect)
        self._wake.set()

    async def _on_open(self, request: log_pb2.ProduceOpen) -> Event:
        check_cluster(request.cluster_id, self._parts.cluster_id)
        check_formats(request.formats)
        acks = read_acks(request.acks)
        self._level = AckLevel.LEADER if acks is Acks.LEADER else AckLevel.ALL
        self._wanted = AckLevel.ALL if acks is Acks.ALL else AckLevel.LEADER
        if request.without_idempotence:
            if request.HasField("producer"):
                message = "`producer` and `without_idempotence` exclude each other"
                raise refused(ErrorCode.INVALID_REQUEST, message)
        elif request.HasField("producer"):
            identity = (request.producer.producer_id, request.producer.producer_epoch)
            await check_identity(self._parts.observer, *identity)
            self._identity = self._encoder.producer = identity
        else:
            self._identity = self._encoder.producer = (await self._parts.producer_ids.take(), 0)
        return StreamOpened(acks=acks, routes=read_routes(request.routes))

    async def _resolve(self, routes: Sequence[RouteWanted]) -> None:
        deadline = asyncio.get_running_loop().time() + BIND_WAIT_MS / 1000
        for wanted in routes:
            left_ms = max(0, int((deadline - asyncio.get_running_loop().time()) * 1000))
            try:
                replica = await self._parts.locator.local_leader(wanted.topic, wanted.partition, timeout_ms=left_ms)
            except RefusedError as error:
                self._step(RouteRefused(route=wanted.route, failure=error.failure))
                continue
            binding = _Binding(self, wanted.route, replica, replica.max_message_bytes)
            self._bindings[wanted.route] = binding
            replica.listeners.add_service(binding)
            self._step(
                RouteBound(
                    route=wanted.route,
                    topic_id=replica.topic_id,
                    leader_epoch=replica.leader_epoch,
                    max_batch_bytes=binding.max_batch_bytes,
                )
            )
        self._step(RoutesResolved())

    async def _on_costly_batch(self, frame: ProduceFrame, body: memoryview) -> None:
        binding = self._bindings.get(frame.route)
        stored, checked = body, None
        if binding is not None and len(body) <= binding.max_batch_bytes:
            threads, settings = self._parts.batch_threads, binding.replica.settings
            stored, checked = await threads.check_and_store(body, settings, max_bytes=binding.max_batch_bytes)
        self._on_batch(frame, body, stored, checked)

    def _on_batch(self, frame: ProduceFrame, body: memoryview, stored: memoryview, checked: Checked | None) -> None:
        """Take a batch that came as `body` and is stored as `stored`; `checked` None: the two are one, not checked yet."""
        session = self._session
        for effect in session.step(
            BatchReceived(route=frame.route, batch_number=frame.batch_number, size_bytes=len(body))
        ):
            if type(effect) is AppendBatch:
                self._append(effect, stored, checked)
            else:
                self._carry_out(effect)
        if session.has_answers:
            self._wake.set()

    def _append(self, effect: AppendBatch, body: memoryview, checked: Checked | None) -> None:
        route, batch_number = effect.route, effect.batch_number
        binding = self._bindings[route]
        if checked is None:
            checked = check(body, max_bytes=binding.max_batch_bytes)
        if isinstance(checked, BatchError):
            failure = Failure(code=checked.code, message=f"batch {batch_number}: {checked}")
            self._step(BatchFailed(route=route, batch_number=batch_number, failure=failure))
            return
        try:
            self._check_producer(checked)
            appended = binding.replica.append(body, checked, level=self._wanted)
        except RefusedError as error:
            self._step(BatchFailed(route=route, batch_number=batch_number, failure=error.failure))
            return
        stored = BatchStored(
            route=route, batch_number=batch_number, base_offset=appended.base_offset, duplicate=appended.duplicate
        )
        for follow_up in self._session.step(stored):
            if type(follow_up) is AwaitAck:
                on_ack = partial(self._on_ack, route, batch_number)
                binding.replica.want_ack(appended.next_offset, self._level, on_ack)
            else:
                self._carry_out(follow_up)

    def _check_producer(self, header: BatchHeader) -> None:
        if (header.producer_id, header.producer_epoch) != self._identity:
            wanted = "no producer" if self._identity[0] < 0 else "producer {} epoch {}".format(*self._identity)
            raise refused(
                ErrorCode.INVALID_BATCH,
                f"the batch carries producer {header.producer_id} epoch {header.producer_epoch}, "
                f"the stream was opened with {wanted}",
            )

    def _on_ack(self, route: int, batch_number: int, reached: Durability | LossReason) -> None:
        if self._is_over:
            return
        if isinstance(reached, Durability):
            self._step(AckReached(route=route, batch_number=batch_number, durability=reached))
        elif reached is LossReason.NOT_ENOUGH_REPLICAS:
            binding = self._bindings.get(route)
            if binding is not None:
                self._step(RouteLost(route=route, failure=too_few_after_failure(str(binding.replica))))
        # For any other reason the replica ends its service, and with it the route, right after.

    def _step(self, event: Event) -> None:
        for effect in self._session.step(event):
            self._carry_out(effect)
        if self._session.has_answers:
            self._wake.set()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ReleaseRoute():
                binding = self._bindings.pop(effect.route, None)
                if binding is not None:
                    binding.replica.listeners.remove(binding)
            case AbortStream():
                raise RefusedError(effect.failure)
            case ResolveRoutes() | AppendBatch() | AwaitAck():
                raise AssertionError(f"{effect} is carried out where it arises")
            case _:
                assert_never(effect)

# SPDX-License-Identifier: Apache-2.0
"""The Produce stream: reads requests, appends batches, writes receipts.

Owns the two loops of one stream, the bindings of its routes, and its protobuf. The session core decides about numbers, limits and
receipts. No work here is done per record.

The reader appends inside the event loop and never waits for the disk. Under `flush.policy=ack` a thread flushes, and the receipt
follows the flush. Under `none` the receipt is ready at once. The writer sleeps until the core has answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, assert_never

import grpc.aio
from google.protobuf.message import DecodeError
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.errors import BatchError
from lograft.wire.frames import ProduceFrame, decode_produce_request
from lograft.wire.header import BatchHeader
from lograft.wire.limits import MAGIC, MAX_IN_FLIGHT_BATCHES

from brokerd.api.calls import ServicerContext, check_cluster, check_formats, undecodable
from brokerd.api.log_service.batch_check import Checked, check, is_costly, needs_recompression
from brokerd.api.log_service.init_producer import check_identity
from brokerd.api.log_service.produce_session import (
    Acks,
    Answer,
    Opened,
    ProduceLimits,
    ProduceSession,
    Receipt,
    RouteEnded,
    RouteWanted,
)
from brokerd.api.log_service.staging import StagingRules, check_use, staging_rules
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error
from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import BIND_WAIT_MS, MAX_ROUTES_PER_STREAM, MAX_STREAM_IN_FLIGHT_BYTES, MAX_STREAM_OUTBOX_ITEMS
from brokerd.partition.effects import LossReason
from brokerd.partition.events import AckLevel, Durability
from brokerd.replica.refusals import too_few_after_failure
from brokerd.replica.replica import Replica
from brokerd.stream_register import GOING_AWAY
from brokerd.wake import Wake
from metaquorum.metadata.topic_configs import TopicSettings

LIMITS: Final = ProduceLimits(
    max_routes=MAX_ROUTES_PER_STREAM,
    max_in_flight_bytes=MAX_STREAM_IN_FLIGHT_BYTES,
    max_outbox_answers=MAX_STREAM_OUTBOX_ITEMS,
)

_ACKS: Final = {
    log_pb2.ACKS_UNSPECIFIED: Acks.ALL,
    log_pb2.ACKS_ALL: Acks.ALL,
    log_pb2.ACKS_LEADER: Acks.LEADER,
    log_pb2.ACKS_NONE: Acks.NONE,
}

_NO_PRODUCER: Final = (-1, -1)
"""Producer id and producer epoch in the header of a batch without a producer."""


class _Binding:
    """The replica of a route at the time of its binding. Hears when the replica ends its service."""

    __slots__ = ("_stream", "leader_epoch", "max_batch_bytes", "replica", "route", "staging")

    def __init__(self, stream: ProduceStream, route: int, replica: Replica, staging: StagingRules | None) -> None:
        self._stream = stream
        self.route = route
        self.replica = replica
        self.leader_epoch = replica.leader_epoch
        self.staging = staging
        self.max_batch_bytes = replica.max_message_bytes
        if staging is not None:
            self.max_batch_bytes = min(self.max_batch_bytes, staging.settings.max_message_bytes)
        replica.listeners.add_service(self)

    @property
    def settings(self) -> TopicSettings:
        """Configs of the topic whose codec the batches get."""
        return self.replica.settings if self.staging is None else self.staging.settings

    def release(self) -> None:
        """Stop listening to the replica."""
        self.replica.listeners.remove(self)

    def on_service_end(self, failure: Failure) -> None:
        self._stream.lose_route(self.route, failure)


class ProduceStream:
    """One produce stream of one client."""

    def __init__(self, parts: BrokerParts, context: ServicerContext) -> None:
        self._parts = parts
        self._context = context
        self._session: ProduceSession[_Binding] = ProduceSession(LIMITS)
        self._level = AckLevel.ALL
        # The level that must be reachable for an append. Without receipts it is the leader's log.
        self._wanted = AckLevel.ALL
        self._identity = _NO_PRODUCER
        self._wake = Wake()
        self._resume = Wake()
        self._go_away: bytes | None = None

    async def run(self) -> None:
        """Serve the stream until the client has closed it and everything is answered."""
        with self._parts.produce_streams.entry(self):
            reader = asyncio.create_task(self._read(), name="produce-reader")
            reader.add_done_callback(lambda _: self._wake.set())
            try:
                await self._write(reader)
            finally:
                reader.cancel()
                for binding in self._session.close():
                    binding.release()
                await asyncio.wait((reader,))

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the client that the broker stops."""
        response = log_pb2.ProduceResponse(go_away=log_pb2.GoAway(message=message, drain_ms=drain_ms))
        self._go_away = response.SerializeToString()
        self._wake.set()

    def lose_route(self, route: int, failure: Failure) -> None:
        """End a route because its replica has ended its service."""
        self._session.lose_route(route, failure)
        self._wake.set()

    async def _write(self, reader: asyncio.Task[None]) -> None:
        session, context = self._session, self._context
        while True:
            for binding in session.take_ended():
                binding.release()
            for answer in session.take_answers():
                await context.write(self._encode(answer))
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
                binding = session.find(request.route)
                if is_costly(body) or (binding is not None and needs_recompression(body, binding.settings)):
                    await self._on_costly_batch(request, body, binding)
                else:
                    self._on_batch(request, body, body, None)
            else:
                await self._on_request(request)

    async def _on_request(self, request: ProduceFrame | log_pb2.ProduceRequest) -> None:
        assert isinstance(request, log_pb2.ProduceRequest), "a frame is handled as a batch"
        kind = request.WhichOneof("message")
        if kind == "open":
            wanted = await self._on_open(request.open)
        elif kind == "bind":
            wanted = self._session.want_routes(_read_routes(request.bind.routes))
        else:
            raise refused(ErrorCode.INVALID_REQUEST, "a message of a produce stream must be open, bind or batch")
        await self._bind(wanted)

    async def _on_open(self, request: log_pb2.ProduceOpen) -> list[RouteWanted]:
        check_cluster(request.cluster_id, self._parts.cluster_id)
        check_formats(request.formats)
        acks = _read_acks(request.acks)
        self._level = AckLevel.LEADER if acks is Acks.LEADER else AckLevel.ALL
        self._wanted = AckLevel.ALL if acks is Acks.ALL else AckLevel.LEADER
        if request.without_idempotence:
            if request.HasField("producer"):
                message = "`producer` and `without_idempotence` exclude each other"
                raise refused(ErrorCode.INVALID_REQUEST, message)
        elif request.HasField("producer"):
            identity = (request.producer.producer_id, request.producer.producer_epoch)
            await check_identity(self._parts.observer, *identity)
            self._identity = identity
        else:
            self._identity = (await self._parts.producer_ids.take(), 0)
        return self._session.open(acks, _read_routes(request.routes))

    async def _bind(self, routes: Sequence[RouteWanted]) -> None:
        session, loop = self._session, asyncio.get_running_loop()
        deadline = loop.time() + BIND_WAIT_MS / 1000
        for wanted in routes:
            left_ms = max(0, int((deadline - loop.time()) * 1000))
            try:
                check_use(self._parts, wanted.topic, self._identity[0])
                replica = await self._parts.locator.local_leader(wanted.topic, wanted.partition, timeout_ms=left_ms)
                staging = staging_rules(self._parts, replica)
            except RefusedError as error:
                session.refuse_route(wanted.route, error.failure)
                continue
            session.bind_route(wanted.route, _Binding(self, wanted.route, replica, staging))
        session.end_binding()
        self._wake.set()

    async def _on_costly_batch(self, frame: ProduceFrame, body: memoryview, binding: _Binding | None) -> None:
        stored, checked = body, None
        if binding is not None and len(body) <= binding.max_batch_bytes:
            threads, settings = self._parts.batch_threads, binding.settings
            stored, checked = await threads.check_and_recompress(body, settings, max_bytes=binding.max_batch_bytes)
        self._on_batch(frame, body, stored, checked)

    def _on_batch(self, frame: ProduceFrame, body: memoryview, stored: memoryview, checked: Checked | None) -> None:
        """Append a batch that arrived as `body` and is stored as `stored`. `checked` None: both are the same, and not checked yet."""
        session, route, batch_number = self._session, frame.route, frame.batch_number
        binding = session.receive_batch(route, batch_number, len(body))
        if binding is not None:
            if checked is None:
                checked = check(stored, max_bytes=binding.max_batch_bytes)
            if isinstance(checked, BatchError):
                failure = Failure(code=checked.code, message=f"batch {batch_number}: {checked}")
                session.fail_batch(route, batch_number, failure)
            else:
                self._append(binding, batch_number, stored, checked)
        if session.has_answers:
            self._wake.set()

    def _append(self, binding: _Binding, batch_number: int, batch: memoryview, header: BatchHeader) -> None:
        session, route, replica = self._session, binding.route, binding.replica
        try:
            self._check_producer(header)
            if binding.staging is not None:
                binding.staging.admit(batch, header)
            appended = replica.append(batch, header, level=self._wanted)
        except RefusedError as error:
            session.fail_batch(route, batch_number, error.failure)
            return
        if session.note_appended(route, batch_number, appended.base_offset, duplicate=appended.duplicate):
            on_ack = partial(self._on_ack, binding, batch_number)
            replica.want_ack(appended.next_offset, self._level, on_ack)

    def _check_producer(self, header: BatchHeader) -> None:
        if (header.producer_id, header.producer_epoch) != self._identity:
            wanted = "no producer" if self._identity == _NO_PRODUCER else "producer {} epoch {}".format(*self._identity)
            raise refused(
                ErrorCode.INVALID_BATCH,
                f"the batch carries producer {header.producer_id} epoch {header.producer_epoch}, "
                f"the stream was opened with {wanted}",
            )

    def _on_ack(self, binding: _Binding, batch_number: int, reached: Durability | LossReason) -> None:
        """Note the outcome of an append. The session ignores it after the end of the stream or of the route."""
        session = self._session
        if isinstance(reached, Durability):
            session.acknowledge(binding.route, batch_number, reached)
        elif reached is LossReason.NOT_ENOUGH_REPLICAS:
            session.lose_route(binding.route, too_few_after_failure(str(binding.replica)))
        # For any other reason the replica ends its service right after this, which ends the route.
        if session.has_answers:
            self._wake.set()

    def _encode(self, answer: Answer[_Binding]) -> bytes:
        """Return the serialized ProduceResponse."""
        match answer:
            case Receipt():
                response = log_pb2.ProduceResponse(
                    receipt=log_pb2.ProduceReceipt(
                        route=answer.route,
                        last_batch_number=answer.last_batch_number,
                        base_offsets=answer.base_offsets,
                        durability=log_pb2.Durability.ValueType(answer.durability),
                        duplicates=answer.duplicates,
                    )
                )
            case RouteEnded():
                response = log_pb2.ProduceResponse(
                    route_end=log_pb2.RouteEnd(
                        route=answer.route,
                        error=partition_error(answer.failure),
                        first_failed_batch_number=answer.first_failed_batch_number,
                        outcome_unknown=answer.outcome_unknown,
                    )
                )
            case Opened():
                response = log_pb2.ProduceResponse(opened=self._opened(answer))
            case _:
                assert_never(answer)
        return response.SerializeToString()

    def _opened(self, answer: Opened[_Binding]) -> log_pb2.ProduceOpened:
        opened = log_pb2.ProduceOpened(
            cluster_id=self._parts.cluster_id,
            node_id=self._parts.node_id,
            routes=[
                log_pb2.ProduceRouteOpened(
                    route=binding.route,
                    topic_id=binding.replica.topic_id,
                    leader_epoch=binding.leader_epoch,
                    max_batch_bytes=binding.max_batch_bytes,
                )
                for binding in answer.bindings
            ],
            max_in_flight_batches=MAX_IN_FLIGHT_BATCHES,
            max_in_flight_bytes=MAX_STREAM_IN_FLIGHT_BYTES,
            formats=[MAGIC],
        )
        if self._identity != _NO_PRODUCER:
            opened.producer.producer_id, opened.producer.producer_epoch = self._identity
        return opened


def _read_acks(number: int) -> Acks:
    """Return the acks of a stream.

    Raises:
        RefusedError: INVALID_ACKS.
    """
    for known, acks in _ACKS.items():
        if known == number:
            return acks
    message = f"acks {number} is not known: use ACKS_ALL (1), ACKS_LEADER (2) or ACKS_NONE (3)"
    raise refused(ErrorCode.INVALID_ACKS, message)


def _read_routes(routes: Iterable[log_pb2.ProduceRoute]) -> list[RouteWanted]:
    return [RouteWanted(route=route.route, topic=route.topic, partition=route.partition) for route in routes]

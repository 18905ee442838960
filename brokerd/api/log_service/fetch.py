# SPDX-License-Identifier: Apache-2.0
"""The Fetch stream: reads requests, and sends chunks as soon as they are readable.

Owns the two loops of one stream, the bindings of its routes, and its protobuf. The session core decides about turns and credit.
Nothing here polls: when a high watermark moves, it wakes the writer, which reads the log and writes one chunk per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final, assert_never

import grpc.aio
from google.protobuf.message import DecodeError
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.frames import encode_fetch_frame

from brokerd.api.calls import ServicerContext, check_cluster, check_formats, undecodable
from brokerd.api.log_service.fetch_session import (
    FetchAnswer,
    FetchLimits,
    FetchOpened,
    FetchRouteEnded,
    FetchRouteWanted,
    FetchSession,
    Mark,
    ReadChunk,
)
from brokerd.api.log_service.readers import ServingReplica, find_serving
from brokerd.api.parts import BrokerParts
from brokerd.api.status import partition_error
from brokerd.clock import monotonic_ms
from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import (
    BIND_WAIT_MS,
    DEFAULT_CHUNK_BYTES,
    FETCH_MARK_INTERVAL_MS,
    MAX_CHUNK_BYTES,
    MAX_FETCH_CREDIT_BYTES,
    MAX_ROUTES_PER_STREAM,
    MAX_STREAM_OUTBOX_ITEMS,
    UNCOUNTED_CHUNK_BYTES,
)
from brokerd.stream_register import GOING_AWAY
from brokerd.wake import Wake
from storage.types import LogRead

LIMITS: Final = FetchLimits(
    max_routes=MAX_ROUTES_PER_STREAM,
    max_outbox_answers=MAX_STREAM_OUTBOX_ITEMS,
    max_credit_bytes=MAX_FETCH_CREDIT_BYTES,
    default_chunk_bytes=DEFAULT_CHUNK_BYTES,
    max_chunk_bytes=MAX_CHUNK_BYTES,
    mark_interval_ms=FETCH_MARK_INTERVAL_MS,
)


class _Binding:
    """The replica of a route at the time of its binding. Hears when more is readable and when the replica ends its service."""

    __slots__ = (
        "_listeners",
        "_stream",
        "from_follower",
        "high_watermark",
        "leader_epoch",
        "log_start_offset",
        "replica",
        "route",
    )

    def __init__(self, stream: FetchStream, route: int, serving: ServingReplica) -> None:
        self._stream = stream
        self._listeners = serving.listeners
        self.route = route
        self.replica = serving.replica
        self.leader_epoch = serving.replica.leader_epoch
        self.log_start_offset = serving.replica.log_start_offset
        self.high_watermark = serving.end_offset
        self.from_follower = not serving.is_leader
        self._listeners.add_read(self)

    def release(self) -> None:
        """Stop listening to the replica."""
        self._listeners.remove(self)

    def on_high_watermark(self, high_watermark: int) -> None:
        self._stream.move_route(self.route, high_watermark, self.replica.log_start_offset)

    def on_service_end(self, failure: Failure) -> None:
        self._stream.lose_route(self.route, failure)


class FetchStream:
    """One fetch stream of one client."""

    def __init__(self, parts: BrokerParts, context: ServicerContext) -> None:
        self._parts = parts
        self._context = context
        self._session: FetchSession[_Binding] = FetchSession(LIMITS)
        self._wake = Wake()
        self._resume = Wake()
        self._go_away: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due_ms = 0

    async def run(self) -> None:
        """Serve the stream until the client ends it, or has closed its side and spent its credit."""
        with self._parts.fetch_streams.entry(self):
            reader = asyncio.create_task(self._read(), name="fetch-reader")
            reader.add_done_callback(lambda _: self._wake.set())
            try:
                await self._write(reader)
            finally:
                reader.cancel()
                if self._timer is not None:
                    self._timer.cancel()
                for binding in self._session.close():
                    binding.release()
                await asyncio.wait((reader,))

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the client that the broker stops."""
        response = log_pb2.FetchResponse(go_away=log_pb2.GoAway(message=message, drain_ms=drain_ms))
        self._go_away = response.SerializeToString()
        self._wake.set()

    def move_route(self, route: int, high_watermark: int, log_start_offset: int) -> None:
        """Note that more records of a route are readable."""
        self._session.move_route(route, high_watermark=high_watermark, log_start_offset=log_start_offset)
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
            # Until none is left: a binding may be answered during a write, and its answer goes before its batches.
            while answers := session.take_answers():
                for answer in answers:
                    await context.write(self._encode(answer))
            self._resume.set()
            if self._go_away is not None:
                if not session.is_opened:
                    raise refused(ErrorCode.SHUTTING_DOWN, GOING_AWAY)
                message, self._go_away = self._go_away, None
                await context.write(message)
                continue
            read = session.next_read()
            if read is not None:
                await self._send_chunk(read)
                continue
            if session.has_work:
                continue
            if reader.done():
                reader.result()
                if session.credit_bytes <= 0:
                    return  # the client has closed its side, so no more credit can come
            self._arm_timer()
            await self._wake.wait()
            session.tick(monotonic_ms())

    async def _send_chunk(self, read: ReadChunk[_Binding]) -> None:
        """Read and write the chunk that the session asked for, after a wait if there is no memory."""
        buffer, context = self._parts.fetch_buffer, self._context
        found = self._read_log(read, buffer.chunk_bytes(read.max_bytes))
        if found is None:
            return
        size_bytes = len(found.data)
        if size_bytes <= UNCOUNTED_CHUNK_BYTES:
            chunk = self._chunk(read, found)
            if chunk is not None:
                await context.write(chunk)
            return
        grant = buffer.try_hold(size_bytes, context.peer())
        is_in_turn = grant is None
        if grant is None:
            # The log is read again after the wait, so that a waiting stream holds no data.
            found = None
            grant = await buffer.hold(size_bytes, context.peer())
        try:
            if is_in_turn:
                found = self._read_log(read, size_bytes)
            chunk = None if found is None else self._chunk(read, found)
            del found
            if chunk is not None:
                await context.write(chunk)
        finally:
            # A traceback may live until the garbage collector runs. The chunk must not.
            chunk = None
            buffer.give_back(grant)

    def _read_log(self, read: ReadChunk[_Binding], max_bytes: int) -> LogRead | None:
        """Read whole batches; None if the route has ended, before this call or through it."""
        if not self._session.is_live(read.route):
            return None
        try:
            return read.binding.replica.read(read.offset, max_bytes, end_offset=read.end_offset)
        except RefusedError as error:
            self.lose_route(read.route, error.failure)
            return None

    def _chunk(self, read: ReadChunk[_Binding], found: LogRead) -> bytes | None:
        """Note in the session how much was read, and return the message; None if nothing was read."""
        self._session.note_read(read.route, found.next_offset, len(found.data), monotonic_ms())
        return encode_fetch_frame(read.route, found.next_offset, read.end_offset, found.data) if found.data else None

    async def _read(self) -> None:
        session, context = self._session, self._context
        while True:
            while session.must_pause:
                await self._resume.wait()
            data = await context.read()
            if data is grpc.aio.EOF:
                return
            try:
                request = log_pb2.FetchRequest.FromString(data)
            except DecodeError:
                raise undecodable() from None
            await self._on_request(request)
            self._wake.set()

    async def _on_request(self, request: log_pb2.FetchRequest) -> None:
        session = self._session
        match request.WhichOneof("message"):
            case "credit":
                session.grant_credit(request.credit.bytes)
            case "open":
                check_cluster(request.open.cluster_id, self._parts.cluster_id)
                check_formats(request.open.formats)
                wanted = session.open(
                    _read_routes(request.open.routes),
                    credit_bytes=request.open.credit_bytes,
                    max_chunk_bytes=request.open.max_chunk_bytes,
                )
                await self._bind(wanted)
            case "bind":
                await self._bind(session.want_routes(_read_routes(request.bind.routes)))
            case "unbind":
                session.drop_routes(request.unbind.routes)
            case _:
                message = "a message of a fetch stream must be open, bind, unbind or credit"
                raise refused(ErrorCode.INVALID_REQUEST, message)

    async def _bind(self, routes: Sequence[FetchRouteWanted]) -> None:
        session = self._session
        give_up_ms = monotonic_ms() + BIND_WAIT_MS
        for wanted in routes:
            left_ms = max(0, give_up_ms - monotonic_ms())
            try:
                serving = await find_serving(
                    self._parts.locator,
                    wanted.topic,
                    wanted.partition,
                    allow_follower=wanted.allow_follower,
                    timeout_ms=left_ms,
                )
                serving.check_topic(wanted.topic_id)
                serving.check(wanted.offset)
            except RefusedError as error:
                session.refuse_route(wanted.route, error.failure)
                continue
            binding = _Binding(self, wanted.route, serving)
            session.bind_route(
                wanted.route,
                binding,
                offset=wanted.offset,
                high_watermark=binding.high_watermark,
                log_start_offset=binding.log_start_offset,
                now_ms=monotonic_ms(),
            )
        session.end_binding(monotonic_ms())

    def _arm_timer(self) -> None:
        due_ms = self._session.deadline_ms()
        if due_ms is None or (self._timer is not None and self._timer_due_ms <= due_ms):
            return  # an earlier timer checks again
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due_ms
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(due_ms - monotonic_ms(), 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()

    def _encode(self, answer: FetchAnswer[_Binding]) -> bytes:
        """Return the serialized FetchResponse."""
        match answer:
            case Mark():
                response = log_pb2.FetchResponse(
                    mark=log_pb2.FetchMark(
                        route=answer.route,
                        next_offset=answer.next_offset,
                        high_watermark=answer.high_watermark,
                        log_start_offset=answer.log_start_offset,
                        caught_up=answer.caught_up,
                    )
                )
            case FetchRouteEnded():
                end = log_pb2.RouteEnd(route=answer.route)
                if answer.failure is not None:
                    end.error.CopyFrom(partition_error(answer.failure))
                response = log_pb2.FetchResponse(route_end=end)
            case FetchOpened():
                response = log_pb2.FetchResponse(
                    opened=log_pb2.FetchOpened(
                        cluster_id=self._parts.cluster_id,
                        node_id=self._parts.node_id,
                        routes=[
                            log_pb2.FetchRouteOpened(
                                route=binding.route,
                                topic_id=binding.replica.topic_id,
                                leader_epoch=binding.leader_epoch,
                                log_start_offset=binding.log_start_offset,
                                high_watermark=binding.high_watermark,
                                from_follower=binding.from_follower,
                            )
                            for binding in answer.bindings
                        ],
                    )
                )
            case _:
                assert_never(answer)
        return response.SerializeToString()


def _read_routes(routes: Iterable[log_pb2.FetchRoute]) -> list[FetchRouteWanted]:
    return [
        FetchRouteWanted(
            route=route.route,
            topic=route.topic,
            partition=route.partition,
            offset=route.offset,
            allow_follower=route.allow_follower,
            topic_id=route.topic_id,
        )
        for route in routes
    ]

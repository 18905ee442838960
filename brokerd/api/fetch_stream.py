# SPDX-License-Identifier: Apache-2.0
"""One Fetch stream: reads requests, sends chunks as they become readable.

Owns the bindings from route numbers to replicas and the two loops. Must not decide whose turn it is or what credit is
left: the session core does. Nothing here polls: a move of a high watermark wakes the writer, which reads the log and
writes one chunk for one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import assert_never

import grpc.aio
from google.protobuf.message import DecodeError
from lograft.v1 import log_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.frames import encode_fetch_frame

from brokerd.api.calls import ServicerContext, check_cluster, undecodable
from brokerd.api.fetch_codec import encode_fetch_answer, encode_fetch_go_away, read_fetch_routes
from brokerd.api.fetch_events import (
    AbortFetchStream,
    ChunkRead,
    CreditGranted,
    FetchEffect,
    FetchEvent,
    FetchRouteBound,
    FetchRouteLost,
    FetchRouteRefused,
    FetchRoutesResolved,
    FetchRoutesWanted,
    FetchRouteWanted,
    FetchStreamOpened,
    FetchTick,
    HighWatermarkMoved,
    ReadChunk,
    ReleaseFetchRoute,
    ResolveFetchRoutes,
    RoutesUnwanted,
)
from brokerd.api.fetch_session import FetchSession
from brokerd.api.parts import BrokerParts
from brokerd.api.produce_codec import check_formats
from brokerd.api.readers import ServingReplica, find_serving
from brokerd.clock import monotonic_ms
from brokerd.failure import Failure, RefusedError, refused
from brokerd.limits import BIND_WAIT_MS, UNCOUNTED_CHUNK_BYTES
from brokerd.stream_register import GOING_AWAY
from brokerd.wake import Wake
from storage.types import LogRead


class _Binding:
    """A route bound to a replica; hears when more is readable and when the replica stops to serve."""

    __slots__ = ("_listeners", "_stream", "replica", "route")

    def __init__(self, stream: FetchStream, route: int, serving: ServingReplica) -> None:
        self._stream = stream
        self._listeners = serving.listeners
        self.route = route
        self.replica = serving.replica
        self._listeners.add_read(self)

    def release(self) -> None:
        """Hear no more."""
        self._listeners.remove(self)

    def on_high_watermark(self, high_watermark: int) -> None:
        self._stream.move_route(self.route, high_watermark, self.replica.log_start_offset)

    def on_service_end(self, failure: Failure) -> None:
        self._stream.lose_route(self.route, failure)


class FetchStream:
    """See the module docstring."""

    def __init__(self, parts: BrokerParts, context: ServicerContext) -> None:
        self._parts = parts
        self._context = context
        self._session = FetchSession()
        self._bindings: dict[int, _Binding] = {}
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
                for binding in self._bindings.values():
                    binding.release()
                self._bindings.clear()
                await asyncio.wait((reader,))

    def go_away(self, message: str, drain_ms: int) -> None:
        """Tell the client that the server stops."""
        self._go_away = encode_fetch_go_away(message, drain_ms)
        self._wake.set()

    def move_route(self, route: int, high_watermark: int, log_start_offset: int) -> None:
        """Learn that more of a route is readable."""
        self._session.step(
            HighWatermarkMoved(route=route, high_watermark=high_watermark, log_start_offset=log_start_offset), 0
        )
        self._wake.set()

    def lose_route(self, route: int, failure: Failure) -> None:
        """End a route whose replica serves no more."""
        self._bindings.pop(route, None)
        self._step(FetchRouteLost(route=route, failure=failure))

    async def _write(self, reader: asyncio.Task[None]) -> None:
        session, context = self._session, self._context
        cluster_id, node_id = self._parts.cluster_id, self._parts.node_id
        while True:
            for answer in session.take_answers():
                await context.write(encode_fetch_answer(answer, cluster_id=cluster_id, node_id=node_id))
            self._resume.set()
            if self._go_away is not None:
                if not session.is_opened:
                    raise refused(ErrorCode.SHUTTING_DOWN, GOING_AWAY)
                message, self._go_away = self._go_away, None
                await context.write(message)
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
            self._maybe_tick()

    async def _send_chunk(self, read: ReadChunk) -> None:
        """Read what the session asked for and write it, waiting for memory where there is none left."""
        buffer, context = self._parts.fetch_buffer, self._context
        found = self._read_log(read, buffer.chunk_bytes(read.max_bytes))
        if found is None:
            return
        size_bytes = len(found.data)
        if size_bytes <= UNCOUNTED_CHUNK_BYTES:
            chunk = self._encode(read, found)
            if chunk is not None:
                await context.write(chunk)
            return
        grant = buffer.try_hold(size_bytes, context.peer())
        is_in_turn = grant is None
        if grant is None:
            # Read again afterwards, so that those who wait hold nothing.
            found = None
            grant = await buffer.hold(size_bytes, context.peer())
        try:
            if is_in_turn:
                found = self._read_log(read, size_bytes)
            chunk = None if found is None else self._encode(read, found)
            del found
            if chunk is not None:
                await context.write(chunk)
        finally:
            # A trace of how this ended may live until the collector comes by; the chunk must not.
            chunk = None
            buffer.give_back(grant)

    def _read_log(self, read: ReadChunk, max_bytes: int) -> LogRead | None:
        """Read whole batches; None when the route has ended, before or by this."""
        binding = self._bindings.get(read.route)
        if binding is None:
            return None
        try:
            return binding.replica.read(read.offset, max_bytes, end_offset=read.end_offset)
        except RefusedError as error:
            self._step(FetchRouteLost(route=read.route, failure=error.failure))
            return None

    def _encode(self, read: ReadChunk, found: LogRead) -> bytes | None:
        """Tell the session what was read and give its message; None when nothing was there."""
        event = ChunkRead(route=read.route, next_offset=found.next_offset, size_bytes=len(found.data))
        for effect in self._session.step(event, monotonic_ms()):
            self._carry_out(effect)
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
            for effect in session.step(self._event(request), monotonic_ms()):
                if isinstance(effect, ResolveFetchRoutes):
                    await self._resolve(effect.routes)
                else:
                    self._carry_out(effect)
            self._wake.set()

    def _event(self, request: log_pb2.FetchRequest) -> FetchEvent:
        match request.WhichOneof("message"):
            case "credit":
                return CreditGranted(credit_bytes=request.credit.bytes)
            case "open":
                check_cluster(request.open.cluster_id, self._parts.cluster_id)
                check_formats(request.open.formats)
                return FetchStreamOpened(
                    routes=read_fetch_routes(request.open.routes),
                    credit_bytes=request.open.credit_bytes,
                    max_chunk_bytes=request.open.max_chunk_bytes,
                )
            case "bind":
                return FetchRoutesWanted(routes=read_fetch_routes(request.bind.routes))
            case "unbind":
                return RoutesUnwanted(routes=tuple(request.unbind.routes))
            case _:
                message = "a message of a fetch stream must be open, bind, unbind or credit"
                raise refused(ErrorCode.INVALID_REQUEST, message)

    async def _resolve(self, routes: Sequence[FetchRouteWanted]) -> None:
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
                serving.check(wanted.offset)
            except RefusedError as error:
                self._step(FetchRouteRefused(route=wanted.route, failure=error.failure))
                continue
            replica = serving.replica
            self._bindings[wanted.route] = _Binding(self, wanted.route, serving)
            self._step(
                FetchRouteBound(
                    route=wanted.route,
                    topic_id=replica.topic_id,
                    leader_epoch=replica.leader_epoch,
                    offset=wanted.offset,
                    log_start_offset=replica.log_start_offset,
                    high_watermark=serving.end_offset,
                    from_follower=not serving.is_leader,
                )
            )
        self._step(FetchRoutesResolved())

    def _arm_timer(self) -> None:
        due_ms = self._session.deadline_ms()
        if due_ms is None or (self._timer is not None and self._timer_due_ms <= due_ms):
            return  # an earlier timer looks again
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due_ms = due_ms
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(due_ms - monotonic_ms(), 0) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake.set()

    def _maybe_tick(self) -> None:
        due_ms = self._session.deadline_ms()
        if due_ms is not None:
            now_ms = monotonic_ms()
            if due_ms <= now_ms:
                self._session.step(FetchTick(), now_ms)

    def _step(self, event: FetchEvent) -> None:
        for effect in self._session.step(event, monotonic_ms()):
            self._carry_out(effect)
        self._wake.set()

    def _carry_out(self, effect: FetchEffect) -> None:
        match effect:
            case ReleaseFetchRoute():
                binding = self._bindings.pop(effect.route, None)
                if binding is not None:
                    binding.release()
            case AbortFetchStream():
                raise RefusedError(effect.failure)
            case ResolveFetchRoutes():
                raise AssertionError(f"{effect} is carried out where it arises")
            case _:
                assert_never(effect)

# SPDX-License-Identifier: Apache-2.0
"""A relay between consumers and the coordinator of a real broker, which fails on demand.

It says that it is the coordinator of every group, and passes all messages on as they are, so that the broker's own answers come
back. What it breaks is the way: streams that end or fall silent, calls that are refused, groups that move to another relay.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from typing import cast

import grpc
import grpc.aio
from lograft.v1 import errors_pb2, group_pb2
from lograft.wire.codes import ErrorCode
from lograft.wire.status import abort_status

START_TIMEOUT_S = 20
SERVICE = "/lograft.v1.GroupService/"

Stream = grpc.aio.StreamStreamCall[bytes, bytes]
Context = grpc.aio.ServicerContext[bytes, bytes]


class GroupRelay(grpc.GenericRpcHandler):
    """A relay to one broker.

    Attributes:
        refusals: by name of a method, the codes with which the next calls are refused.
        calls: by name of a method, how many calls came.
        elsewhere: another relay, which coordinates all groups instead of this one.
        silent_methods: names of methods whose calls are never answered.
        is_silent: True: nothing passes on streams, in either direction, and none of them ends.
    """

    def __init__(self, target: str) -> None:
        self.refusals: dict[str, list[ErrorCode]] = {}
        self.calls: dict[str, int] = {}
        self.elsewhere: GroupRelay | None = None
        self.silent_methods: set[str] = set()
        self.is_silent = False
        self.port = 0
        self._target = target
        self._channel: grpc.aio.Channel | None = None
        self._streams: set[Stream] = set()
        self._moves: set[asyncio.Queue[bytes]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready: Future[int] = Future()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def stream_count(self) -> int:
        """Streams of groups that are open."""
        return len(self._streams)

    def __enter__(self) -> GroupRelay:
        self._thread.start()
        self.port = self._ready.result(START_TIMEOUT_S)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(START_TIMEOUT_S)

    def break_streams(self) -> None:
        """End every stream of groups, as a lost connection does."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: [call.cancel() for call in list(self._streams)])

    def move_to(self, other: GroupRelay, *, announce: bool) -> None:
        """Make another relay the coordinator, and tell it on the streams or let the clients find out."""
        self.elsewhere = other
        if announce:
            coordinator = group_pb2.GroupCoordinator(broker_id=2, host="127.0.0.1", port=other.port)
            moved = group_pb2.GroupsResponse(moved=group_pb2.GroupsMoved(coordinator=coordinator, message="planned"))
            assert self._loop is not None
            self._loop.call_soon_threadsafe(
                lambda: [queue.put_nowait(moved.SerializeToString()) for queue in self._moves]
            )
        else:
            self.break_streams()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of any method."""
        method = handler_call_details.method

        async def relay(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
            async for response in self._relay(method, requests, context):
                yield response

        return cast("grpc.RpcMethodHandler", grpc.stream_stream_rpc_method_handler(relay))

    async def _relay(self, method: str, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        name = method.removeprefix(SERVICE)
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.refusals.get(name):
            await self._refuse(context, self.refusals[name].pop(0))
        if name in self.silent_methods:
            await asyncio.Event().wait()
        is_group = method.startswith(SERVICE)
        if name == "FindCoordinator":
            async for request in requests:
                yield self._coordinators(request)
            return
        if is_group and self.elsewhere is not None:
            await self._refuse(context, ErrorCode.NOT_COORDINATOR)
        assert self._channel is not None
        call: Stream = self._channel.stream_stream(method)(self._pass(name, requests))
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        if name == "Groups":
            self._streams.add(call)
            self._moves.add(queue)
            pump = asyncio.create_task(self._pump(call, queue))
            try:
                while (response := await queue.get()) != b"end":
                    yield response
            finally:
                self._streams.discard(call)
                self._moves.discard(queue)
                call.cancel()
                pump.cancel()
            return
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))

    async def _pump(self, call: Stream, queue: asyncio.Queue[bytes]) -> None:
        try:
            async for response in call:
                if not self.is_silent:
                    queue.put_nowait(response)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass
        finally:
            queue.put_nowait(b"end")

    async def _pass(self, name: str, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for request in requests:
            if not (self.is_silent and name == "Groups"):
                yield request

    def _coordinators(self, request: bytes) -> bytes:
        asked = group_pb2.FindCoordinatorRequest.FromString(request)
        port = self.port if self.elsewhere is None else self.elsewhere.port
        found = [
            group_pb2.GroupCoordinator(group_id=each, broker_id=1, host="127.0.0.1", port=port)
            for each in asked.group_ids
        ]
        return group_pb2.FindCoordinatorResponse(coordinators=found).SerializeToString()

    async def _refuse(self, context: Context, code: ErrorCode) -> None:
        hint = None
        if code is ErrorCode.NOT_COORDINATOR and self.elsewhere is not None:
            hint = errors_pb2.LeaderHint(leader_id=2, host="127.0.0.1", port=self.elsewhere.port)
        status = abort_status(code, "refused by the relay", leader=hint)
        await context.abort(status.code, status.details, status.trailing_metadata)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._channel = grpc.aio.insecure_channel(self._target, options=(("grpc.use_local_subchannel_pool", 1),))
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._ready.set_result(port)
        await self._stopping.wait()
        await server.stop(None)
        await self._channel.close()

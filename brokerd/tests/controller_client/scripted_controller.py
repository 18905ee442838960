# SPDX-License-Identifier: Apache-2.0
"""A controller that answers as a test says, over real connections, and the way of a broker to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from brokerd.controller_client.controller_calls import ControllerCalls
from metaquorum.metadata.loader import MetadataLoader
from metaquorum.net.carrier import Carrier
from metaquorum.net.connection import Limits
from metaquorum.net.hello import Identity
from metaquorum.net.link import ServedCall, Services, Stream
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.net.service import RefusalError
from metaquorum.testing.void_server import Swallowing, greeting

CLUSTER: Final = "c"
WINDOW_BYTES: Final = 64 * 1024

Script = Callable[[Method, bytes], Awaitable[bytes]]
"""Gets a method and a request; returns the response, raises `RefusalError`, or waits for as long as it likes."""

StreamScript = Callable[[Method, Stream], Awaitable[None]]
"""The same for a stream, which is ended when it returns."""


async def never(_method: Method, _request: bytes) -> bytes:
    """Answer nothing, as a process does whose controller is frozen."""
    await asyncio.Event().wait()
    return b""


async def answer(_method: Method, _request: bytes) -> bytes:
    """Answer at once."""
    return b"answer"


async def no_streams(method: Method, _stream: Stream) -> None:
    """Fail the test."""
    raise AssertionError(f"stream {method.name}")


class ScriptedController:
    """See the module docstring.

    Args:
        script: answers requests.
        streams: answers streams.
        cluster_id: cluster that it says it is of.

    Attributes:
        asked: method and bytes of each request, in the order in which they came.
        abandoned: requests for whose answers nobody waits any more.
        connection_count: connections that were made to it.
        swallow_count: so many of the next connections are greeted, and then take bytes and say nothing, not even to a ping: what is
            left of a connection whose machine was lost.
        swallowed: what such connections took.
    """

    def __init__(
        self, script: Script = answer, *, streams: StreamScript = no_streams, cluster_id: str = CLUSTER
    ) -> None:
        self.script = script
        self.streams = streams
        self.asked: list[tuple[Method, bytes]] = []
        self.abandoned: list[bytes] = []
        self.connection_count = 0
        self.swallow_count = 0
        self.swallowed = bytearray()
        self._cluster_id = cluster_id
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: Peers | None = None
        self._server: asyncio.Server | None = None
        self._identity: Identity | None = None

    @property
    def address(self) -> str:
        """Where it is asked."""
        assert self._identity is not None
        assert self._identity.address is not None
        return self._identity.address

    async def start(self) -> None:
        """Listen, on a port of its own."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._identity = Identity(cluster_id=self._cluster_id, node_id=1, incarnation_id=bytes(16), address=address)
        services = Services(
            requests={method: self._serve_of(method) for method in Method},
            streams={Method.EXPORT_METADATA: (lambda stream: self._begin(self._stream(stream)), WINDOW_BYTES)},
        )
        self._peers = Peers(self._identity, services)

    async def close(self) -> None:
        """Be gone: its port refuses, its connections end."""
        if self._server is None or self._peers is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await self._peers.close()

    def _accept(self) -> asyncio.Protocol:
        self.connection_count += 1
        if self.swallow_count > 0:
            self.swallow_count -= 1
            assert self._identity is not None
            return Swallowing(greeting(self._identity), self.swallowed)
        assert self._peers is not None
        return self._peers.accept()

    def _begin(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _serve_of(self, method: Method) -> Callable[[ServedCall], None]:
        def serve(call: ServedCall) -> None:
            self.asked.append((method, call.message))
            task = self._begin(self._answer(method, call))

            def abandon() -> None:
                self.abandoned.append(call.message)
                task.cancel()

            call.on_abandoned = abandon

        return serve

    async def _answer(self, method: Method, call: ServedCall) -> None:
        try:
            call.respond(await self.script(method, call.message))
        except RefusalError as error:
            call.fail(error.encode())

    async def _stream(self, stream: Stream) -> None:
        self.asked.append((Method.EXPORT_METADATA, stream.message))
        try:
            await self.streams(Method.EXPORT_METADATA, stream)
        except RefusalError as error:
            stream.fail(error.encode())
        else:
            stream.end()


@asynccontextmanager
async def controller_of(controller: ScriptedController) -> AsyncIterator[ScriptedController]:
    """Run a controller."""
    await controller.start()
    try:
        yield controller
    finally:
        await controller.close()


@asynccontextmanager
async def broker_peers(limits: Limits | None = None) -> AsyncIterator[Peers]:
    """The connections of broker 2 to other servers."""
    carrier = Carrier(cluster_id=CLUSTER, node_id=2, limits=limits)
    await carrier.start(None)
    try:
        yield carrier.peers
    finally:
        await carrier.close()


@asynccontextmanager
async def calls_to(
    *controllers: ScriptedController, observer: MetadataLoader | None = None, limits: Limits | None = None
) -> AsyncIterator[ControllerCalls]:
    """The calls of a broker whose list of voters has these controllers."""
    async with broker_peers(limits) as peers:
        yield ControllerCalls(observer or MetadataLoader(), peers, [each.address for each in controllers])

# SPDX-License-Identifier: Apache-2.0
"""A controller that answers as a test decides, over real connections, and a broker's calls to it."""

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
"""Gets a method and a request. Returns the response, raises `RefusalError`, or waits for any time."""

StreamScript = Callable[[Method, Stream], Awaitable[None]]
"""The same for a stream, which ends when it returns."""


async def never(_method: Method, _request: bytes) -> bytes:
    """Never answer, like a process whose controller is frozen."""
    await asyncio.Event().wait()
    return b""


async def answer(_method: Method, _request: bytes) -> bytes:
    """Answer at once."""
    return b"answer"


async def no_streams(method: Method, _stream: Stream) -> None:
    """Fail the test, because it expects no streams."""
    raise AssertionError(f"stream {method.name}")


class ScriptedController:
    """A controller that answers as a script decides, over real connections.

    Args:
        script: answers requests.
        streams: answers streams.
        cluster_id: cluster id that it reports.

    Attributes:
        asked: method and bytes of each request, in the order of arrival.
        abandoned: requests whose callers no longer wait for the answer.
        connection_count: number of connections made to it.
        swallow_count: this many of the next connections are greeted, and then read bytes and never answer, not even a ping. That is
            what remains of a connection to a lost machine.
        swallowed: bytes that such connections read.
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
        """Address of the controller."""
        assert self._identity is not None
        assert self._identity.address is not None
        return self._identity.address

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._identity = Identity(cluster_id=self._cluster_id, node_id=1, incarnation_id=bytes(16), address=address)
        services = Services(
            requests={method: self._serve_of(method) for method in Method},
            streams={Method.EXPORT_METADATA: (lambda stream: self._begin(self._stream(stream)), WINDOW_BYTES)},
        )
        self._peers = Peers(self._identity, services)

    async def close(self) -> None:
        """Stop: the port refuses connections, and the open ones end."""
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
    """Yield the calls of a broker whose voter list names these controllers."""
    async with broker_peers(limits) as peers:
        yield ControllerCalls(observer or MetadataLoader(), peers, [each.address for each in controllers])

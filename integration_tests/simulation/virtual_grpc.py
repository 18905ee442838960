# SPDX-License-Identifier: Apache-2.0
"""`grpc.aio` over the simulated network: channels and calls.

Owns what a gRPC client sees: connectivity, calls, deadlines, cancellation, statuses. `virtual_grpc_server` has the other end. As far as
Lograft uses it, it behaves as grpcio 1.85 does, oddities included; `test_virtual_grpc` compares the two. Knows no message: bytes pass
through the caller's own serializers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from functools import partial
from typing import Any

import grpc
import grpc.aio

from integration_tests.simulation.virtual_grpc_server import (
    GIVEN_UP,
    LATE,
    LOST,
    TORN,
    Options,
    Start,
    Status,
    VirtualContext,
    liveness_of,
    rpc_error,
)
from integration_tests.simulation.virtual_network import Connection, Dialer, Inbox, Network, Process, Window

_Multi = Callable[..., "VirtualCall"]
"""A method of a channel, ready to be called."""


class VirtualCall:
    """A call of any kind, at the client."""

    def __init__(
        self,
        channel: VirtualChannel,
        start: Start,
        serialize: Callable[[Any], bytes] | None,
        deserialize: Callable[[bytes], Any] | None,
        *,
        is_unary: bool,
    ) -> None:
        self._channel = channel
        self._loop = channel.process.loop
        self._serialize = serialize
        self._deserialize = deserialize
        self._is_unary = is_unary
        self._start = start
        self._inbox = Inbox(self._loop)
        self._window = Window(self._loop)
        self._status: Status | None = None
        # A status that arrived behind unread messages. The call is over only when they are read.
        self._coming: Status | None = None
        self._is_cancelled = False
        # The call ended during a write that waited.
        self._is_torn = False
        self._response: Any = grpc.aio.EOF
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._carried: asyncio.Future[None] = self._loop.create_future()
        self.connection: Connection | None = None
        self._server_side: VirtualContext | None = None
        self._waiting: list[Callable[[VirtualContext], object]] = []
        self._callbacks: list[Callable[[Any], None]] = []
        self._is_half_closed = start.request is not None
        self._timer: asyncio.TimerHandle | None = None
        if start.timeout_ms is not None:
            self._timer = self._loop.call_later(max(start.timeout_ms, 0) / 1000, self._on_deadline)
        channel.begin(self)

    # Called by the channel and the server.

    def carry(self, connection: Connection) -> None:
        """Run the call over a connection."""
        if self.done():
            return
        self.connection = connection

        def arrive() -> None:
            assert connection.serve is not None, "a connection that was accepted is served"
            side: VirtualContext = connection.serve(self._start, self)
            self._server_side = side
            for action in self._waiting:
                action(side)
            self._waiting.clear()

        connection.send(self._channel.process, connection.server, arrive)
        self._carried.set_result(None)

    def from_server(self, action: Callable[[], None]) -> None:
        """Send something from the server's process to this end."""
        assert self.connection is not None, "a call without a connection has no server"
        self.connection.send(self.connection.server, self._channel.process, action)

    def on_message(self, message: bytes) -> None:
        """Receive a response message."""
        if not self.done():
            self._inbox.put(message)

    def on_status(self, status: Status) -> None:
        """Receive the end of the call from the server. Earlier messages can still be read."""
        if self.done() or self._coming is not None:
            return
        if self._is_unary or self._inbox.is_empty:
            self._finish(status)
        else:
            self._coming = status
            self._inbox.end()
            self._window.close()

    def on_window(self, size_bytes: int) -> None:
        """Note that the server has read this many bytes."""
        self._window.give(size_bytes)

    def fail(self, status: Status) -> None:
        """End the call without a connection. Unread messages are lost, unless the status had arrived too."""
        if not self.done() and self._coming is None:
            self._inbox.drop()
            self._is_torn = self._window.is_waited_for
            self._finish(status)

    def _finish(self, status: Status) -> None:
        self._status = status
        self._inbox.end()
        self._window.close()
        self._channel.end(self)
        if self._timer is not None:
            self._timer.cancel()
        for future in (self._ended, self._carried):
            if not future.done():
                future.set_result(None)
        for callback in self._callbacks:
            self._loop.call_soon(callback, self)

    def _on_deadline(self) -> None:
        if not self.done():
            self._inbox.drop()
            self._is_torn = self._window.is_waited_for
            self._finish(TORN if self._is_torn else LATE)
            self._to_server(lambda side: side.cancel())

    def _to_server(self, action: Callable[[VirtualContext], object]) -> None:
        connection = self.connection
        if connection is None:
            self._waiting.append(action)
            return

        def arrive() -> None:
            side = self._server_side
            if side is not None:
                action(side)

        connection.send(self._channel.process, connection.server, arrive)

    # Called by the user.

    def cancel(self) -> bool:
        """Give the call up, and cancel every task that waits for it."""
        if self.done():
            return False
        self._is_cancelled = True
        self._inbox.drop()
        self._finish(GIVEN_UP)
        if self.connection is not None:
            self._to_server(lambda side: side.cancel())
        return True

    def cancelled(self) -> bool:
        """Return True if it was cancelled here."""
        return self._is_cancelled

    def done(self) -> bool:
        """Return True if the call is over."""
        return self._status is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` when the call is over."""
        if self._status is not None:
            self._loop.call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline; None without one."""
        return None if self._timer is None else max(0.0, self._timer.when() - self._loop.time())

    async def code(self) -> grpc.StatusCode:
        """Return the status code when the call is over."""
        return (await self._over())[0]

    async def details(self) -> str:
        """Return the text of the status."""
        return (await self._over())[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Return the metadata of the status."""
        return grpc.aio.Metadata(*(await self._over())[2])

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """Return empty metadata: none is ever sent."""
        return grpc.aio.Metadata()

    async def wait_for_connection(self) -> None:
        """Wait until a connection carries the call."""
        await asyncio.shield(self._carried)
        if self.done():
            await self._raise_for_status()

    async def _over(self) -> Status:
        while self._status is None:
            await asyncio.shield(self._ended)
        return self._status

    async def read(self) -> Any:
        """Return the next message, or EOF after an end without error."""
        try:
            message = await self._inbox.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if message is None:
            await self._raise_for_status()
            return grpc.aio.EOF
        size = len(message)
        self._to_server(lambda side: side.give(size))
        if self._coming is not None and self._inbox.is_empty:
            self._finish(self._coming)
        return self._decode(message)

    async def write(self, request: Any) -> None:
        """Send a message. Waits while too many bytes are on the way."""
        if self.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._is_half_closed:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        await self.wait_for_connection()
        data = bytes(request if self._serialize is None else self._serialize(request))
        if self._coming is not None:
            self._inbox.drop()
            self._finish(TORN)
            raise rpc_error(TORN)
        try:
            if await self._window.take(len(data)):
                self._to_server(lambda side: side.put(data))
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._is_torn:
            raise rpc_error(TORN)

    async def done_writing(self) -> None:
        """Send no more."""
        if not self.done() and not self._is_half_closed:
            self._is_half_closed = True
            self._to_server(lambda side: side.half_close())

    async def _raise_for_status(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        status = await self._over()
        if status[0] is not grpc.StatusCode.OK:
            raise rpc_error(status)

    def _decode(self, message: bytes) -> Any:
        return message if self._deserialize is None else self._deserialize(message)

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the response of a unary call."""
        return self._respond().__await__()

    async def _respond(self) -> Any:
        try:
            await self._over()
        except asyncio.CancelledError:
            self.cancel()
            raise
        await self._raise_for_status()
        if not self._inbox.is_empty:
            message = await self._inbox.get()
            assert message is not None, "it is not empty"
            self._response = self._decode(message)
        return self._response

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the responses of a stream."""
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


class VirtualChannel:
    """A channel. It connects at its first use, and again when asked to."""

    def __init__(self, network: Network, process: Process, address: str, options: Options | None = None) -> None:
        self.process = process
        self._liveness = liveness_of(options)
        self._address = address
        self._state = grpc.ChannelConnectivity.IDLE
        self._changed: list[asyncio.Future[None]] = []
        self._connection: Connection | None = None
        self._pending: dict[VirtualCall, None] = {}
        self._calls: dict[VirtualCall, None] = {}
        self._dialer = Dialer(network, process, address, on_done=self._on_dialed, on_break=self._on_break)

    # Methods.

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Return a method with one request and one response."""
        return partial(self._begin, method, request_serializer, response_deserializer, True, True)

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Return a method with one request and many responses."""
        return partial(self._begin, method, request_serializer, response_deserializer, True, False)

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Return a method with many requests and many responses."""
        return partial(self._begin, method, request_serializer, response_deserializer, False, False)

    def _begin(
        self,
        method: str,
        serialize: Any,
        deserialize: Any,
        takes_one: bool,
        gives_one: bool,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Any = None,
    ) -> VirtualCall:
        data = None
        if takes_one:
            data = request if serialize is None else serialize(request)
        timeout_ms = None if timeout is None else int(timeout * 1000)
        start = Start(method, tuple(metadata or ()), timeout_ms, data)
        return VirtualCall(self, start, serialize, deserialize, is_unary=gives_one)

    # Connectivity.

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state now, before an attempt to connect begins."""
        state = self._state
        if try_to_connect and state is grpc.ChannelConnectivity.IDLE:
            self._set_state(grpc.ChannelConnectivity.CONNECTING)
            self._dialer.dial()
        return state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the state is another one."""
        if self._state is grpc.ChannelConnectivity.SHUTDOWN:
            raise grpc.aio.UsageError("Channel is closed.")
        while self._state is last_observed_state:
            changed = self.process.loop.create_future()
            self._changed.append(changed)
            await changed

    async def channel_ready(self) -> None:
        """Wait until the channel is connected."""
        while self.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.READY:
            await self.wait_for_state_change(self._state)

    def begin(self, call: VirtualCall) -> None:
        """Carry a call, now or after connecting. If the channel fails to connect, the call fails."""
        if self._state is grpc.ChannelConnectivity.SHUTDOWN:
            raise grpc.aio.UsageError("Channel is closed.")
        self._calls[call] = None
        if self._connection is not None and not self._connection.is_broken:
            call.carry(self._connection)
        elif self._state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            loop = self.process.loop
            loop.deliver(loop.moment_ms(), lambda: call.fail(self._refused()))
        else:
            self._pending[call] = None
            self.get_state(try_to_connect=True)

    def end(self, call: VirtualCall) -> None:
        """Forget a call that is over."""
        self._calls.pop(call, None)
        self._pending.pop(call, None)

    async def close(self, grace: float | None = None) -> None:
        """End every call and the connection."""
        if self._state is grpc.ChannelConnectivity.SHUTDOWN:
            return
        self._set_state(grpc.ChannelConnectivity.SHUTDOWN)
        self._dialer.end()
        for call in list(self._calls):
            call.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            # The connection ends behind the messages about the cancelled calls.
            connection.part(self.process)
        await asyncio.sleep(0)

    async def __aenter__(self) -> VirtualChannel:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def _refused(self) -> Status:
        return grpc.StatusCode.UNAVAILABLE, f"failed to connect to {self._address}", ()

    def _set_state(self, state: grpc.ChannelConnectivity) -> None:
        self._state = state
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    def _on_dialed(self, connection: Connection | None) -> None:
        if connection is None:
            # The channel stays in this state until an attempt succeeds.
            self._set_state(grpc.ChannelConnectivity.TRANSIENT_FAILURE)
            for call in list(self._pending):
                call.fail(self._refused())
            return
        self._connection = connection
        if self._liveness is not None:
            connection.liveness[self.process.name] = self._liveness
        connection.on_goaway = lambda: self._leave(connection)
        self._set_state(grpc.ChannelConnectivity.READY)
        for call in list(self._pending):
            call.carry(connection)
        self._pending.clear()

    def _leave(self, connection: Connection) -> None:
        """Begin no more calls over a connection. Calls that it carries continue."""
        if self._connection is connection:
            self._connection = None
            self._set_state(grpc.ChannelConnectivity.IDLE)

    def _on_break(self, connection: Connection) -> None:
        if self._state is not grpc.ChannelConnectivity.SHUTDOWN:
            self._leave(connection)
        for call in list(self._calls):
            if call.connection is connection:
                call.fail(LOST)

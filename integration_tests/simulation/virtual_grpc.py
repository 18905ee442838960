# SPDX-License-Identifier: Apache-2.0
"""`grpc.aio` over the simulated network: channels and calls.

Owns what a client of gRPC sees: connectivity, calls, deadlines, cancellation, flow control, statuses. `virtual_grpc_server` has the
other end. As far as Lograft uses it, it behaves as grpcio 1.85 does; what that does not say is as its sources do.
Must not know any message: bytes go through the caller's own serializers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from integration_tests.simulation.virtual_loop import VirtualLoop
from integration_tests.simulation.virtual_network import Connection, Network, Process

WINDOW_BYTES: Final = 256 * 1024
"""Bytes of a stream that may be on the way, or wait to be read, before the writer waits."""

RECONNECT_MS: Final = (100, 500)
"""Pause after a failed attempt to connect: the first and the last."""

Status = tuple[grpc.StatusCode, str, tuple[tuple[str, str | bytes], ...]]
"""Code, details, trailing metadata."""

OK: Final[Status] = (grpc.StatusCode.OK, "", ())
LOST: Final[Status] = (grpc.StatusCode.UNAVAILABLE, "the connection broke", ())


class Window:
    """Flow control of one direction of a stream, at its sender."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._left_bytes = WINDOW_BYTES
        self._waiter: asyncio.Future[None] | None = None

    async def take(self, size_bytes: int) -> None:
        """Wait until there is room, and use it; one message may go beyond."""
        while self._left_bytes <= 0:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._left_bytes -= size_bytes

    def give(self, size_bytes: int) -> None:
        """The other end has read so much; a negative size is what the sender used."""
        self._left_bytes += size_bytes
        self.wake()

    def wake(self) -> None:
        """Let the writer look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Inbox:
    """Messages of one direction that were not read yet."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._messages: deque[bytes] = deque()
        self._is_ended = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, message: bytes) -> None:
        """A message came."""
        self._messages.append(message)
        self._wake()

    def end(self) -> None:
        """No more will come."""
        self._is_ended = True
        self._wake()

    def drop(self) -> None:
        """Forget what was not read."""
        self._messages.clear()
        self.end()

    async def get(self) -> bytes | None:
        """Return the next one, or None at the end."""
        while not self._messages and not self._is_ended:
            self._reader = self._loop.create_future()
            await self._reader
        return self._messages.popleft() if self._messages else None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a call, as it is sent."""

    method: str
    metadata: tuple[tuple[str, str | bytes], ...]
    timeout_ms: int | None
    request: bytes | None


class ServerSide(Protocol):
    """What a client may do with the other end of its call."""

    def put(self, message: bytes) -> None:
        """A request message."""
        ...

    def half_close(self) -> None:
        """No more will come."""
        ...

    def cancel(self) -> None:
        """The client wants no answer any more."""
        ...

    def give(self, size_bytes: int) -> None:
        """The client has read so much."""
        ...


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
        self._is_cancelled = False
        self._ended = self._loop.create_future()
        self._connection: Connection | None = None
        self._server_side: ServerSide | None = None
        self._waiting: list[Callable[[ServerSide], None]] = []
        self._callbacks: list[Callable[[Any], None]] = []
        self._is_half_closed = start.request is not None
        self._timer: asyncio.TimerHandle | None = None
        if start.timeout_ms is not None:
            self._timer = self._loop.call_later(max(start.timeout_ms, 0) / 1000, self._on_deadline)
        channel.begin(self)

    # What the channel and the server do.

    def carry(self, connection: Connection) -> None:
        """Go over a connection."""
        if self._status is not None or self._is_cancelled:
            return
        self._connection = connection
        server = connection.server

        def arrive() -> None:
            assert connection.serve is not None, "a connection that was accepted is served"
            side: ServerSide = connection.serve(self._start, self)
            self._server_side = side
            for action in self._waiting:
                action(side)
            self._waiting.clear()

        connection.send(self._channel.process, server, arrive)

    def from_server(self, action: Callable[[], None]) -> None:
        """Send something from the server's process to this end."""
        assert self._connection is not None, "a call without a connection has no server"
        self._connection.send(self._connection.server, self._channel.process, action)

    def on_message(self, message: bytes) -> None:
        """A response message came."""
        if self._status is None and not self._is_cancelled:
            self._inbox.put(message)

    def on_status(self, status: Status) -> None:
        """The call is over, from the other end."""
        if self._status is None and not self._is_cancelled:
            self._finish(status)

    def on_window(self, size_bytes: int) -> None:
        """The server has read so much."""
        self._window.give(size_bytes)

    def fail(self, status: Status) -> None:
        """The connection is gone, or there is none; what came before can still be read."""
        self.on_status(status)

    def _finish(self, status: Status) -> None:
        self._status = status
        self._inbox.end()
        self._window.wake()
        self._channel.end(self)
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended.done():
            self._ended.set_result(None)
        for callback in self._callbacks:
            self._loop.call_soon(callback, self)

    def _on_deadline(self) -> None:
        if self._status is None and not self._is_cancelled:
            self._inbox.drop()
            self._finish((grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ()))
            self._to_server(lambda side: side.cancel())

    def _to_server(self, action: Callable[[ServerSide], None]) -> None:
        connection = self._connection
        if connection is None:
            self._waiting.append(action)
            return

        def arrive() -> None:
            side = self._server_side
            if side is not None:
                action(side)

        connection.send(self._channel.process, connection.server, arrive)

    # What the user does.

    def cancel(self) -> bool:
        """Give the call up; whoever waits for it is cancelled."""
        if self._status is not None or self._is_cancelled:
            return False
        self._is_cancelled = True
        self._inbox.drop()
        self._finish((grpc.StatusCode.CANCELLED, "Locally cancelled by application!", ()))
        if self._connection is not None:
            self._to_server(lambda side: side.cancel())
        return True

    def cancelled(self) -> bool:
        """Whether it was given up here."""
        return self._is_cancelled

    def done(self) -> bool:
        """Whether it is over."""
        return self._status is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call back when it is over."""
        if self._status is not None:
            self._loop.call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        """Seconds to the deadline."""
        return None if self._timer is None else max(0.0, self._timer.when() - self._loop.time())

    async def code(self) -> grpc.StatusCode:
        """Status code, when it is over."""
        return (await self._over())[0]

    async def details(self) -> str:
        """Text of the status."""
        return (await self._over())[1]

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Metadata of the status."""
        return grpc.aio.Metadata(*(await self._over())[2])

    async def initial_metadata(self) -> grpc.aio.Metadata:
        """None is ever sent."""
        return grpc.aio.Metadata()

    async def wait_for_connection(self) -> None:
        """Return when the call is on its way."""
        await asyncio.sleep(0)

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
        self._to_server(lambda side, size=len(message): side.give(size))
        return message if self._deserialize is None else self._deserialize(message)

    async def write(self, request: Any) -> None:
        """Send a message; waits while too much is on the way."""
        if self.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._is_half_closed:
            raise asyncio.InvalidStateError("RPC is half closed after calling `done_writing`.")
        data = request if self._serialize is None else self._serialize(request)
        try:
            await self._window.take(len(data))
        except asyncio.CancelledError:
            self.cancel()
            raise
        if self.done():
            await self._raise_for_status()
            raise asyncio.InvalidStateError("RPC already finished.")
        self._to_server(lambda side, data=bytes(data): side.put(data))

    async def done_writing(self) -> None:
        """Send no more."""
        if not self.done() and not self._is_half_closed:
            self._is_half_closed = True
            self._to_server(lambda side: side.half_close())

    async def _raise_for_status(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        code, details, trailing = await self._over()
        if code is not grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)

    def __await__(self) -> Generator[Any, None, Any]:
        """The response of a unary call."""
        return self._response().__await__()

    async def _response(self) -> Any:
        response = await self.read()
        if response is grpc.aio.EOF:
            raise grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "no response")
        try:
            await self._over()
        except asyncio.CancelledError:
            self.cancel()
            raise
        await self._raise_for_status()
        return response

    def __aiter__(self) -> AsyncIterator[Any]:
        """The responses of a stream."""
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


class _Multi:
    """A method of a channel, to be called."""

    def __init__(
        self,
        channel: VirtualChannel,
        method: str,
        serialize: Callable[[Any], bytes] | None,
        deserialize: Callable[[bytes], Any] | None,
        *,
        takes_one: bool,
        gives_one: bool,
    ) -> None:
        self._channel = channel
        self._method = method
        self._serialize = serialize
        self._deserialize = deserialize
        self._takes_one = takes_one
        self._gives_one = gives_one

    def __call__(
        self, request: Any = None, *, timeout: float | None = None, metadata: Any = None, **_others: object
    ) -> VirtualCall:
        """Begin a call."""
        data: bytes | None = None
        if self._takes_one:
            data = request if self._serialize is None else self._serialize(request)
        start = Start(
            self._method, tuple(metadata or ()), None if timeout is None else int(timeout * 1000), data
        )
        return VirtualCall(self._channel, start, self._serialize, self._deserialize, is_unary=self._gives_one)


class VirtualChannel:
    """A channel; connects at its first use, and again when asked to."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self._network = network
        self.process = process
        self._address = address
        self._state = grpc.ChannelConnectivity.IDLE
        self._changed: list[asyncio.Future[None]] = []
        self._connection: Connection | None = None
        self._pending: dict[VirtualCall, None] = {}
        self._calls: dict[VirtualCall, None] = {}
        self._failure_count = 0
        self._attempt = 0

    # Methods.

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """One message for one."""
        return _Multi(self, method, request_serializer, response_deserializer, takes_one=True, gives_one=True)

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Many messages for one."""
        return _Multi(self, method, request_serializer, response_deserializer, takes_one=True, gives_one=False)

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Many for many."""
        return _Multi(self, method, request_serializer, response_deserializer, takes_one=False, gives_one=False)

    stream_unary = stream_stream

    # Connectivity.

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """State now."""
        if try_to_connect and self._state is grpc.ChannelConnectivity.IDLE:
            self._connect()
        return self._state

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return when the state is another one."""
        while self._state is last_observed_state:
            changed = self.process.loop.create_future()
            self._changed.append(changed)
            await changed

    async def channel_ready(self) -> None:
        """Return when it is connected."""
        while self.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.READY:
            await self.wait_for_state_change(self._state)

    def begin(self, call: VirtualCall) -> None:
        """Carry a call, now or when connected; a channel that fails fails it."""
        if self._state is grpc.ChannelConnectivity.SHUTDOWN:
            raise grpc.aio.UsageError("Channel is closed.")
        self._calls[call] = None
        if self._connection is not None and not self._connection.is_broken:
            call.carry(self._connection)
        elif self._state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            self.process.loop.call_soon(call.fail, self._refused())
        else:
            self._pending[call] = None
            self.get_state(try_to_connect=True)

    def end(self, call: VirtualCall) -> None:
        """A call is over."""
        self._calls.pop(call, None)
        self._pending.pop(call, None)

    async def close(self, grace: float | None = None) -> None:
        """End every call, and the connection."""
        if self._state is grpc.ChannelConnectivity.SHUTDOWN:
            return
        self._set_state(grpc.ChannelConnectivity.SHUTDOWN)
        for call in list(self._calls):
            call.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.on_break.pop(self.process.name, None)
            # Behind what was said: the cancelled calls.
            connection.send(self.process, connection.server, connection.break_off)
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

    def _connect(self) -> None:
        self._attempt += 1
        attempt = self._attempt
        self._set_state(grpc.ChannelConnectivity.CONNECTING)

        def done(connection: Connection | None) -> None:
            if self._attempt != attempt or self._state is grpc.ChannelConnectivity.SHUTDOWN:
                if connection is not None:
                    connection.break_off()
            elif connection is None:
                self._on_failure()
            else:
                self._on_connected(connection)

        self._network.connect(self.process, self._address, done, lambda: self._on_break(attempt))

    def _on_connected(self, connection: Connection) -> None:
        self._failure_count = 0
        self._connection = connection
        self._set_state(grpc.ChannelConnectivity.READY)
        for call in list(self._pending):
            call.carry(connection)
        self._pending.clear()

    def _on_failure(self) -> None:
        self._set_state(grpc.ChannelConnectivity.TRANSIENT_FAILURE)
        for call in list(self._pending):
            call.fail(self._refused())
        first_ms, last_ms = RECONNECT_MS
        pause_ms = min(first_ms << self._failure_count, last_ms)
        self._failure_count = min(self._failure_count + 1, 8)
        self.process.loop.call_later(pause_ms / 1000, self._retry, self._attempt)

    def _retry(self, attempt: int) -> None:
        if self._attempt == attempt and self._state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            # gRPC goes on trying; whoever asks for the state, or calls, finds it at it.
            self._connect()

    def _on_break(self, attempt: int) -> None:
        if self._attempt != attempt or self._state is grpc.ChannelConnectivity.SHUTDOWN:
            return
        if self._state is grpc.ChannelConnectivity.CONNECTING:
            self._on_failure()
            return
        self._connection = None
        self._set_state(grpc.ChannelConnectivity.IDLE)
        for call in list(self._calls):
            if call not in self._pending:
                call.fail(LOST)

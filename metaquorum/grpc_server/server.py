# SPDX-License-Identifier: Apache-2.0
"""A gRPC server: its listening sockets, connections and calls, and what handlers see of a call.

This module owns the connections of a server, the limit of its calls, and the state of each call. Handlers see what `grpc.aio` shows
them, as far as Lograft and the services of gRPC (health, reflection) use it; `test_virtual_grpc` compares the two.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias
from urllib.parse import quote

import grpc
from lograft._grpc import grpc_wire, http2, http2_socket
from lograft._grpc.grpc_wire import CallStart, MessageError, MessageReader, NoCallError, WireStatus
from lograft._grpc.http2 import header_block
from lograft._grpc.http2_socket import Http2Socket
from lograft.wire.keepalive import RECEIVE_WINDOW_BYTES
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

HANDSHAKE_TIMEOUT_S: Final = 20.0
"""Seconds that a client has to say that it speaks HTTP/2."""

FIRST_ROOM_BYTES: Final = 256 * 1024
"""Bytes of memory that a message gets when it is announced. It gets more as it comes, and at once if the call has had one as large."""

BACKLOG: Final = 1_024
"""Connections that may wait to be accepted."""

END_TIMEOUT_S: Final = 1.0
"""Seconds that handlers get to end after the server has cancelled them."""

logger = logging.getLogger(__name__)

Metadata = Sequence[tuple[str, str | bytes]]

# The first two have the texts of `grpc.aio`, which programs may know.
_STOPPED: Final = WireStatus(grpc_wire.UNAVAILABLE, "Cancelling all calls")
_UNKNOWN_METHOD: Final = WireStatus(grpc_wire.UNIMPLEMENTED, "Method not found!")
_LATE: Final = WireStatus(grpc_wire.DEADLINE_EXCEEDED, "Deadline Exceeded")
_NO_REQUEST: Final = WireStatus(grpc_wire.INTERNAL, "the call ended before a whole request")
_OK: Final = WireStatus(grpc_wire.OK, "")
_RESPONSE_BLOCK: Final = header_block(grpc_wire.RESPONSE_HEADERS)
_OK_BLOCK: Final = header_block(grpc_wire.status_trailers(_OK))
_TOO_MANY: Final = WireStatus(grpc_wire.RESOURCE_EXHAUSTED, "the server has as many calls as it takes; try again later")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class CallLostError(grpc.aio.InternalError):
    """A handler's message cannot be sent: the client has gone, or the call was ended from outside."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of a server.

    Attributes:
        max_calls: calls under way at the same time.
        max_connection_calls: calls under way at the same time over one connection.
        max_message_bytes: largest request in bytes.
        quiet_ms: milliseconds without a byte from a client after which it is pinged.
        timeout_ms: milliseconds that it then has to answer.
    """

    max_calls: int
    max_connection_calls: int
    quiet_ms: int
    timeout_ms: int
    max_message_bytes: int = MAX_GRPC_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class _CallDetails(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: Any


class ServerCall:
    """One call, and the context of its handler (as `grpc.aio.ServicerContext`).

    Args:
        connection: the connection that carries it.
        stream_id: its stream there.
        start: how the client began it.
        handler: of its method.
        max_message_bytes: largest request.
    """

    def __init__(
        self,
        connection: _Connection,
        stream_id: int,
        start: CallStart,
        handler: grpc.RpcMethodHandler[Any, Any],
        *,
        max_message_bytes: int,
    ) -> None:
        self.stream_id = stream_id
        self._connection = connection
        self._start = start
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._reader = MessageReader(max_message_bytes, start.encoding, FIRST_ROOM_BYTES)
        self._requests: deque[bytes | bytearray] = deque()
        self._held_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._written: asyncio.Future[None] | None = None
        self._is_half_closed = False
        self._has_headers = False
        self._code: Any = grpc.StatusCode.OK
        self._details = ""
        self._trailing: Metadata = ()
        # The client has gone or was sent away, so nothing can be said.
        self._is_lost = False
        self._is_aborted = False
        self._is_told = False
        self._task: asyncio.Task[None] | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._deadline: asyncio.TimerHandle | None = None
        if start.timeout_s is not None:
            self._deadline = self._loop.call_later(start.timeout_s, self._on_deadline)
        if handler.request_streaming:
            self._begin()

    # What the connection does.

    def on_data(self, data: memoryview, *, is_end: bool) -> None:
        """Take bytes of requests."""
        if self.is_over:
            return
        try:
            requests = self._reader.take(data)
        except MessageError as error:
            self._refuse(error.status)
            return
        self._take(requests)
        if is_end:
            self.on_half_close()

    def room(self) -> memoryview:
        """See `StreamUser`."""
        return memoryview(b"") if self.is_over else self._reader.room()

    def on_filled(self, size: int) -> None:
        """See `StreamUser`."""
        try:
            request = self._reader.filled(size)
        except MessageError as error:
            self._refuse(error.status)
            return
        self._take(() if request is None else (request,))

    def on_written(self) -> None:
        """See `StreamUser`."""
        if self._written is not None and not self._written.done():
            self._written.set_result(None)

    def on_half_close(self) -> None:
        """The client sends no more requests."""
        if self.is_over:
            return
        self._is_half_closed = True
        if self._reader.is_inside or self._task is None:
            self._refuse(_NO_REQUEST)
        self._arrive()

    def on_lost(self) -> None:
        """The client has given up the call, or its connection is gone: pending reads end, then the handler is cancelled."""
        if self.is_over:
            return
        self._is_lost = True
        self._cut()

    def stop(self, status: WireStatus) -> None:
        """End the call from the server's side."""
        if not self.is_over:
            self._refuse(status)

    @property
    def is_over(self) -> bool:
        """True if the client is gone, or was told how the call ended."""
        return self._is_lost or self._is_told

    @property
    def is_running(self) -> bool:
        """True while the handler runs."""
        return self._task is not None and not self._task.done()

    def _take(self, requests: Sequence[bytes | bytearray]) -> None:
        self._requests.extend(requests)
        self._held_bytes += sum(map(len, requests))
        if self._task is None and requests:
            self._begin()
        if requests:
            self._arrive()
        # A message under way must come to its end, whether or not anybody waits for it. Else the window is the reader's.
        if self._reader.missing_bytes or self._arrival is not None:
            self._connection.grant(self.stream_id, self._held_bytes)

    def _refuse(self, status: WireStatus) -> None:
        """Tell the client a status that no handler set, and cancel the handler."""
        self._tell(status)
        self._is_lost = True
        self._cut()

    def _cut(self) -> None:
        self._requests.clear()
        self._held_bytes = 0
        self._arrive()
        if self._written is not None and not self._written.done():
            self._written.set_exception(CallLostError("the client is gone"))
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is None:
            self._connection.on_call_end(self)
        else:
            # In a later step of the loop, so that a pending read sees its end first, as with `grpc.aio`.
            self._loop.call_soon(self._task.cancel)

    def _arrive(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _on_deadline(self) -> None:
        if not self.is_over:
            self._refuse(_LATE)

    # The run of the handler.

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._run(), name=f"serve {self._start.method}")
        self._task.add_done_callback(self._on_done)

    async def _run(self) -> None:
        handler: Any = self._handler
        takes_many, gives_many = handler.request_streaming, handler.response_streaming
        request: Any = self._iterate()
        if not takes_many:
            data = self._requests.popleft()
            self._held_bytes -= len(data)
            request = self._decoded(data)
            del data
        method = (
            (handler.stream_stream if takes_many else handler.unary_stream)
            if gives_many
            else (handler.stream_unary if takes_many else handler.unary_unary)
        )
        result = method(request, self)
        del request
        if hasattr(result, "__aiter__"):
            async with aclosing(result):
                async for response in result:
                    await self.write(response)
        else:
            response = await result
            if not gives_many and not self._is_aborted:
                await self.write(response)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if not self.is_over:
            if task.cancelled():
                self._tell(WireStatus(grpc_wire.CANCELLED, "the server gave up the call"))
            elif error is not None:
                logger.error("the handler of %s failed", self._start.method, exc_info=error)
                self._tell(WireStatus(grpc_wire.UNKNOWN, f"Unexpected {type(error)}: {error}"))
            else:
                self._tell(self._status(self._code, self._details, self._trailing))
        if self._deadline is not None:
            self._deadline.cancel()
        for callback in self._callbacks:
            callback(self)
        self._callbacks.clear()
        # The error of a task has the frames of the handler, and these have the call: a cycle that would keep what they hold.
        self._task = None
        self._connection.on_call_end(self)

    def _tell(self, status: WireStatus) -> None:
        self._is_told = True
        self._connection.end(self.stream_id, _status_block(status, is_whole=not self._has_headers))

    @staticmethod
    def _status(code: Any, details: str, trailing: Metadata) -> WireStatus:
        return WireStatus(code.value[0], details, tuple(trailing))

    # Methods of the handler.

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the call."""
        return self._start.metadata

    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline.when() - self._loop.time())

    def peer(self) -> str:
        """Return the name of the client."""
        return self._connection.peer

    def cancelled(self) -> bool:
        """Return True if the handler set the status CANCELLED. A client that gave up does not count."""
        return self._code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Return True if the client was told of the end."""
        return self._is_told

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` at the end of the call."""
        self._callbacks.append(callback)

    async def read(self) -> Any:
        """Return the next request, or EOF. A deserializer gets bytes or a bytearray; without one, the request is bytes."""
        self._require_open()
        while not self._requests and not self._is_half_closed and not self._is_lost:
            self._arrival = self._loop.create_future()
            self._connection.grant(self.stream_id, 0)
            try:
                await self._arrival
            finally:
                self._arrival = None
        if not self._requests:
            return grpc.aio.EOF
        data = self._requests.popleft()
        self._held_bytes -= len(data)
        return self._decoded(data)

    async def write(self, response: Any) -> None:
        """Send a response. Wait while too many bytes are on their way.

        Raises:
            CallLostError: the client has gone.
        """
        self._require_open()
        serialize: Any = self._handler.response_serializer
        data: bytes = response if serialize is None else serialize(response)
        if self._is_lost:
            raise CallLostError("the client is gone")
        self._send_headers(())
        assert self._written is None, "one message is written after the other"
        self._written = self._loop.create_future()
        try:
            self._connection.send(self.stream_id, (grpc_wire.message_head(len(data)), data))
            await self._written
        finally:
            self._written = None

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send the headers of the response, with metadata."""
        self._require_open()
        if not self._is_lost:
            self._send_headers(metadata)
            self._connection.flush()

    def _send_headers(self, metadata: Metadata) -> None:
        if not self._has_headers:
            self._has_headers = True
            block = _RESPONSE_BLOCK + header_block(grpc_wire.metadata_headers(metadata))
            self._connection.respond(self.stream_id, block)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata of the end."""
        self._trailing = tuple(metadata)

    def trailing_metadata(self) -> Metadata:
        """Return the metadata of the end."""
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status of the end."""
        self._code = code

    def code(self) -> grpc.StatusCode:
        """Return the status of the end."""
        return self._code

    def set_details(self, details: str) -> None:
        """Set the text of the end."""
        self._details = details

    def details(self) -> str:
        """Return the text of the end."""
        return self._details

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status, which the client gets behind what was written.

        Raises:
            grpc.aio.AbortError: always, unless the call is over: grpc.aio.UsageError, or CallLostError if the client has gone.
        """
        if self._is_aborted:
            raise grpc.aio.UsageError("Abort already called!")
        self._require_open()
        self._is_aborted = True
        if self._is_lost:
            raise CallLostError("the client is gone")
        self._code = code
        self._tell(self._status(code, details, trailing_metadata or self._trailing))
        raise grpc.aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End the call with a status (see `abort`)."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def _require_open(self) -> None:
        if self._is_aborted:
            raise grpc.aio.AbortError("Locally aborted.")
        if self._is_told and not self._is_lost:
            raise grpc.aio.UsageError("RPC already finished.")

    def _decoded(self, data: bytes | bytearray) -> Any:
        deserialize: Any = self._handler.request_deserializer
        return bytes(data) if deserialize is None else deserialize(data)

    async def _iterate(self) -> AsyncIterator[Any]:
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request


class GrpcServer:
    """A server. It belongs to the event loop in which `start` runs.

    Generated code registers services at it as at a `grpc.aio.Server`.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.is_serving = False
        self.buffer = bytearray(http2_socket.RECEIVE_BYTES)
        self.turns = http2_socket.WriteTurns()
        self._services: list[grpc.GenericRpcHandler] = []
        self._sockets: list[socket.socket] = []
        self._listeners: list[asyncio.Server] = []
        self._connections: dict[_Connection, None] = {}
        self._calls = 0
        self._emptied: asyncio.Event | None = None

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Add services."""
        self._services.extend(handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Handler]) -> None:
        """Do nothing: the generic handler of the service has the same methods."""

    def bind(self, host: str, port: int) -> int:
        """Take an address. Connections wait until `start`.

        Args:
            host: name or number. `::` takes IPv4 as well.
            port: 0 takes a free one.

        Returns:
            The port.

        Raises:
            OSError: the address is in use, or is none of this machine.
        """
        found = listening_sockets(host, port)
        self._sockets += found
        return found[0].getsockname()[1]

    async def start(self) -> None:
        """Accept connections."""
        self.is_serving = True
        loop = asyncio.get_running_loop()
        for listener in self._sockets:
            self._listeners.append(await loop.create_server(lambda: _Connection(self), sock=listener, backlog=BACKLOG))

    async def stop(self, grace_s: float | None) -> None:
        """Accept nothing more, give the calls under way `grace_s` seconds (None: no time), then end them and all connections.

        Their handlers are cancelled, and have ended when this returns, unless one takes longer than `END_TIMEOUT_S` to.
        """
        self.is_serving = False
        for listener in self._listeners:
            listener.close()
        self._close_sockets()
        for connection in list(self._connections):
            connection.go_away()
        if grace_s:
            await self._until_idle(grace_s)
        for connection in list(self._connections):
            connection.stop(_STOPPED)
        await asyncio.sleep(0)
        if not await self._until_idle(END_TIMEOUT_S):
            logger.warning("%d handlers have not ended %s s after they were cancelled", self._calls, END_TIMEOUT_S)
        for connection in list(self._connections):
            connection.close()

    async def _until_idle(self, timeout_s: float) -> bool:
        """Wait until no handler runs; False if one still does at the end of the time."""
        if self._calls:
            self._emptied = self._emptied or asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._emptied.wait()
        return not self._calls

    def end_connections(self, peers: Collection[str]) -> int:
        """End the connections of peers, by the names that `context.peer()` gives, and return how many were found."""
        found = [each for each in self._connections if each.peer in peers]
        for connection in found:
            connection.abort()
        return len(found)

    def _close_sockets(self) -> None:
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()

    # What connections do.

    def on_connection(self, connection: _Connection) -> None:
        """A client has connected."""
        self._connections[connection] = None
        if not self.is_serving:
            connection.abort()

    def on_connection_end(self, connection: _Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)

    def begin_call(self) -> bool:
        """Count a call; False if it is one too many."""
        if self._calls >= self.limits.max_calls:
            return False
        self._calls += 1
        return True

    def end_call(self) -> None:
        """A counted call is over."""
        self._calls -= 1
        if not self._calls and self._emptied is not None:
            self._emptied.set()

    def find(self, start: grpc_wire.CallStart) -> Handler | None:
        """Return the handler of a method."""
        details = _CallDetails(start.method, start.metadata)
        for service in self._services:
            handler = service.service(details)
            if handler is not None:
                return handler
        return None


def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at every address of a host, all on one port. A kind of address that this machine lacks is left out.

    Raises:
        OSError: see `GrpcServer.bind`.
    """
    found = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        listener: socket.socket | None = None
        try:
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
            listener.bind((address[0], port, *address[2:]))
            listener.listen(BACKLOG)
        except OSError as error:
            if listener is not None:
                listener.close()
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                missing = error
                continue
            for each in sockets:
                each.close()
            raise
        port = listener.getsockname()[1]
        sockets.append(listener)
    if not sockets:
        raise missing or OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    return sockets


class _Connection(Http2Socket[http2.ServerConnection, ServerCall]):
    """One connection of a client."""

    def __init__(self, server: GrpcServer) -> None:
        limits = server.limits
        super().__init__(
            http2.ServerConnection(RECEIVE_WINDOW_BYTES, limits.max_connection_calls),
            quiet_s=limits.quiet_ms / 1000,
            dead_s=(limits.quiet_ms + limits.timeout_ms) / 1000,
            buffer=server.buffer,
            turns=server.turns,
        )
        self._server = server
        self.peer = "unknown"
        # Calls whose handlers run, also those whose streams are gone.
        self._running: dict[ServerCall, None] = {}
        self._handshake: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.peer = _peer_name(transport.get_extra_info("peername"))
        self._handshake = self._loop.call_later(HANDSHAKE_TIMEOUT_S, self.abort)
        super().connection_made(transport)
        self._server.on_connection(self)

    def on_received(self, now_s: float) -> None:
        self.core.tick(now_s)

    def on_lost(self) -> None:
        self._end_handshake()
        self._server.on_connection_end(self)
        calls = list(self.calls.values())
        self.calls.clear()
        for call in calls:
            call.on_lost()

    def _end_handshake(self) -> None:
        if self._handshake is not None:
            self._handshake.cancel()
            self._handshake = None

    def on_event(self, event: http2.Event) -> None:
        match event:
            case http2.DataCame():
                call = self.calls.get(event.stream_id)
                if call is not None:
                    call.on_data(event.data, is_end=event.is_end)
            case http2.HeadersCame():
                call = self.calls.get(event.stream_id)
                if call is None:
                    self._begin(event)
                elif event.is_end:
                    call.on_half_close()
            case http2.StreamReset():
                call = self.calls.pop(event.stream_id, None)
                if call is not None:
                    call.on_lost()
            case http2.SettingsCame():
                self._end_handshake()
            case http2.GoingAway():
                pass

    def _begin(self, event: http2.HeadersCame) -> None:
        stream_id = event.stream_id
        try:
            start = grpc_wire.read_call(event.headers)
        except NoCallError as error:
            self.core.end(stream_id, header_block(error.headers))
            return
        handler = self._server.find(start)
        status = None
        if not self._server.is_serving:
            status = _STOPPED
        elif handler is None:
            status = _UNKNOWN_METHOD
        elif not self._server.begin_call():
            status = _TOO_MANY
        if handler is None or status is not None:
            self.core.end(stream_id, _status_block(status or _STOPPED, is_whole=True))
            return
        call = ServerCall(self, stream_id, start, handler, max_message_bytes=self._server.limits.max_message_bytes)
        self.calls[stream_id] = call
        self._running[call] = None
        if event.is_end:
            call.on_half_close()

    # What calls do.

    def respond(self, stream_id: int, headers: bytes) -> None:
        """Send the headers of a response, a block, with the next bytes."""
        self.core.respond(stream_id, headers)

    def end(self, stream_id: int, trailers: bytes) -> None:
        """End the response with a block of trailers behind what was sent."""
        self.core.end(stream_id, trailers)
        self.flush()

    def on_call_end(self, call: ServerCall) -> None:
        """Forget a call whose handler has ended."""
        self.calls.pop(call.stream_id, None)
        del self._running[call]
        self._server.end_call()

    # What the server does.

    def go_away(self) -> None:
        """Tell the client that it gets no further call through here."""
        self.core.go_away()
        self.flush()

    def stop(self, status: WireStatus) -> None:
        """End all calls."""
        for call in list(self._running):
            call.stop(status)


def _status_block(status: WireStatus, *, is_whole: bool) -> bytes:
    """Return a status as trailers; as the whole response, if it has had no headers."""
    block = _OK_BLOCK if status == _OK else header_block(grpc_wire.status_trailers(status))
    return _RESPONSE_BLOCK + block if is_whole else block


def _peer_name(address: Sequence[Any] | None) -> str:
    if not address:
        return "unknown"
    host, port = str(address[0]), address[1]
    return f"ipv6:{quote(f'[{host}]', safe='')}:{port}" if ":" in host else f"ipv4:{host}:{port}"

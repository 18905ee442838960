# SPDX-License-Identifier: Apache-2.0
"""A gRPC server: listening sockets, connections, and the handler of each call.

This module owns the connections of a server and the limit of its calls.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import grpc
from lograft._grpc import grpc_wire, http2, http2_socket
from lograft._grpc.grpc_wire import NoCallError, WireStatus
from lograft._grpc.http2_socket import Http2Socket
from lograft.wire.keepalive import RECEIVE_WINDOW_BYTES
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from metaquorum.grpc_server.call import ServerCall

HANDSHAKE_TIMEOUT_S: Final = 20.0
"""Seconds that a client has to say that it speaks HTTP/2."""

BACKLOG: Final = 1_024
"""Connections that may wait to be accepted."""

# The first two have the texts of `grpc.aio`, which programs may know.
_STOPPED: Final = WireStatus(grpc_wire.UNAVAILABLE, "Cancelling all calls")
_UNKNOWN_METHOD: Final = WireStatus(grpc_wire.UNIMPLEMENTED, "Method not found!")
_TOO_MANY: Final = WireStatus(grpc_wire.RESOURCE_EXHAUSTED, "the server has as many calls as it takes; try again later")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


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


class GrpcServer:
    """A server. It belongs to the event loop in which `start` runs.

    Generated code registers services at it as at a `grpc.aio.Server`.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.is_serving = False
        self.buffer = bytearray(http2_socket.RECEIVE_BYTES)
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
        found = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listener = socket.socket(family, kind, protocol)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
                # All addresses of a name share the port.
                listener.bind((address[0], port, *address[2:]))
                listener.listen(BACKLOG)
            except OSError:
                listener.close()
                self._close_sockets()
                raise
            port = listener.getsockname()[1]
            self._sockets.append(listener)
        return port

    async def start(self) -> None:
        """Accept connections."""
        self.is_serving = True
        loop = asyncio.get_running_loop()
        for listener in self._sockets:
            self._listeners.append(await loop.create_server(lambda: _Connection(self), sock=listener, backlog=BACKLOG))

    async def stop(self, grace_s: float | None) -> None:
        """Accept nothing more, give the calls under way `grace_s` seconds (None: no time), then end them and all connections."""
        self.is_serving = False
        for listener in self._listeners:
            listener.close()
        self._close_sockets()
        for connection in list(self._connections):
            connection.go_away()
        if grace_s and self._calls:
            self._emptied = asyncio.Event()
            try:
                async with asyncio.timeout(grace_s):
                    await self._emptied.wait()
            except TimeoutError:
                pass
        for connection in list(self._connections):
            connection.stop(_STOPPED)
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.close()

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


class _Connection(Http2Socket[http2.ServerConnection, ServerCall]):
    """One connection of a client."""

    def __init__(self, server: GrpcServer) -> None:
        limits = server.limits
        super().__init__(
            http2.ServerConnection(RECEIVE_WINDOW_BYTES, limits.max_connection_calls),
            quiet_s=limits.quiet_ms / 1000,
            dead_s=(limits.quiet_ms + limits.timeout_ms) / 1000,
            buffer=server.buffer,
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
            self.core.end(stream_id, error.headers)
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
            self.core.end(stream_id, (*grpc_wire.RESPONSE_HEADERS, *grpc_wire.status_trailers(status or _STOPPED)))
            return
        call = ServerCall(self, stream_id, start, handler, max_message_bytes=self._server.limits.max_message_bytes)
        self.calls[stream_id] = call
        self._running[call] = None
        if event.is_end:
            call.on_half_close()

    # What calls do.

    def respond(self, stream_id: int, headers: Iterable[tuple[str, str]]) -> None:
        """See `call.Connection`."""
        self.core.respond(stream_id, headers)

    def end(self, stream_id: int, trailers: Iterable[tuple[str, str]]) -> None:
        """See `call.Connection`."""
        self.core.end(stream_id, trailers)
        self.flush()

    def on_call_end(self, call: ServerCall) -> None:
        """See `call.Connection`."""
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


def _peer_name(address: Sequence[Any] | None) -> str:
    if not address:
        return "unknown"
    host, port = str(address[0]), address[1]
    return f"ipv6:{quote(f'[{host}]', safe='')}:{port}" if ":" in host else f"ipv4:{host}:{port}"

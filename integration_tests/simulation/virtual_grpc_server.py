# SPDX-License-Identifier: Apache-2.0
"""`grpc.aio` over the simulated network: servers, and the contexts of their calls.

Owns what a gRPC handler sees, and what travels over the network for a call in addition to its messages. Knows no message: bytes pass
through the handler's own serializers. `test_virtual_grpc` compares it with the real one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import grpc
import grpc.aio
from grpc._cython import cygrpc

from integration_tests.simulation.virtual_network import Connection, Inbox, Liveness, Network, Window

if TYPE_CHECKING:
    from integration_tests.simulation.virtual_grpc import VirtualCall

Metadata = tuple[tuple[str, str | bytes], ...]
Status = tuple[grpc.StatusCode, str, Metadata]
"""Code, details, trailing metadata."""

STOPPED: Final[Status] = (grpc.StatusCode.UNAVAILABLE, "Cancelling all calls", ())
UNKNOWN_METHOD: Final[Status] = (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", ())
LOST: Final[Status] = (grpc.StatusCode.UNAVAILABLE, "Stream removed (Socket closed)", ())
LATE: Final[Status] = (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", ())
GIVEN_UP: Final[Status] = (grpc.StatusCode.CANCELLED, "Locally cancelled by application!", ())
TORN: Final[Status] = (grpc.StatusCode.INTERNAL, "Internal error from Core", ())
"""The status that gRPC gives to a write that it could not finish."""

# gRPC has no public name for it.
BatchError: Final[Any] = cast("Any", cygrpc).ExecuteBatchError
"""Raised by a handler's send when the client is gone."""


DEFAULT_PING_TIMEOUT_MS: Final = 60_000
"""gRPC's own `grpc.http2.ping_timeout_ms`."""

Options = Sequence[tuple[str, Any]]
"""Options of a channel or a server. The simulation uses only those about pings."""


def liveness_of(options: Options | None) -> Liveness | None:
    """Return the ping behaviour of these options. Lograft wants one behaviour only: pings also without calls, and without an end."""
    found = dict(options or ())
    quiet_ms = found.get("grpc.keepalive_time_ms")
    if quiet_ms is None:
        return None
    assert found.get("grpc.keepalive_permit_without_calls") == 1, "pings that need calls are not simulated"
    assert found.get("grpc.http2.max_pings_without_data") == 0, "pings that cease are not simulated"
    timeout_ms = found.get("grpc.http2.ping_timeout_ms", DEFAULT_PING_TIMEOUT_MS)
    return Liveness(quiet_ms=quiet_ms, timeout_ms=timeout_ms)


def rpc_error(status: Status) -> grpc.aio.AioRpcError:
    """Return the exception that a client raises for a status."""
    code, details, trailing = status
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


@dataclass(frozen=True, slots=True)
class Start:
    """The beginning of a call, as it is sent."""

    method: str
    metadata: Metadata
    timeout_ms: int | None
    request: bytes | None


@dataclass(frozen=True, slots=True)
class _Details(grpc.HandlerCallDetails):
    method: str
    invocation_metadata: Any


class VirtualContext:
    """One call at the server: the context that its handler gets, and the actions of the client."""

    def __init__(self, server: VirtualServer, connection: Connection, start: Start, call: VirtualCall) -> None:
        self._server = server
        self._network = server.network
        self._connection = connection
        self._start = start
        self._call = call
        self._loop = server.process.loop
        self._inbox = Inbox(self._loop)
        self._window = Window(self._loop)
        self._code = grpc.StatusCode.OK
        self._details = ""
        self._trailing: Metadata = ()
        self._task: asyncio.Task[None] | None = None
        self._handler: Any = None
        # True if the client is gone, or the server has said how the call ended.
        self._is_lost = False
        self._is_aborted = False
        self._is_sent = False
        self._deadline_s = None if start.timeout_ms is None else self._loop.time() + start.timeout_ms / 1000

    def run(self, handler: Any) -> None:
        """Start the handler."""
        self._handler = handler
        self._task = task = self._loop.create_task(self._run(handler), name=f"serve {self._start.method}")
        task.add_done_callback(self._on_done)
        if self._deadline_s is not None:
            self._loop.call_at(self._deadline_s, self.cancel)

    # Actions of the client.

    def put(self, message: bytes) -> None:
        """Receive a request message."""
        self._inbox.put(message)

    def half_close(self) -> None:
        """Note that no more requests will come."""
        self._inbox.end()

    def cancel(self) -> None:
        """Handle the client's cancellation: a read ends at once, and the handler is cancelled a moment later."""
        if self._task is not None and not self._is_lost and not self._is_sent:
            self._is_lost = True
            self._inbox.drop()
            self._window.close()
            self._loop.deliver(self._loop.moment_ms(), self._task.cancel)

    def give(self, size_bytes: int) -> None:
        """Note that the client has read this many bytes."""
        self._window.give(size_bytes)

    # Methods of the handler.

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the call."""
        return self._start.metadata

    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline; None without one."""
        return None if self._deadline_s is None else max(0.0, self._deadline_s - self._loop.time())

    def peer(self) -> str:
        """Return the name of the client."""
        return f"ipv4:{self._connection.client.machine}:1"

    def cancelled(self) -> bool:
        """Return True if the handler set the status CANCELLED. A client that gave up does not count."""
        return self._code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Return True if the client was told of the end."""
        return self._is_sent

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` at the end of the call."""
        assert self._task is not None, "set by `run`"
        self._task.add_done_callback(lambda _: callback(self))

    async def read(self) -> Any:
        """Return the next request, or EOF."""
        self._require_open()
        message = await self._inbox.get()
        if message is None:
            return grpc.aio.EOF
        size = len(message)
        self._call.from_server(lambda: self._call.on_window(size))
        deserialize = self._handler.request_deserializer
        return message if deserialize is None else deserialize(message)

    async def write(self, response: Any) -> None:
        """Send a response. Waits while too many bytes are on the way."""
        self._require_open()
        serialize = self._handler.response_serializer
        data = bytes(response if serialize is None else serialize(response))
        if self._is_lost or not await self._window.take(len(data)):
            raise BatchError("the client is gone")
        self._call.from_server(lambda: self._call.on_message(data))

    async def send_initial_metadata(self, _metadata: object) -> None:
        """Do nothing: the simulation sends no initial metadata."""

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Set the metadata of the end."""
        self._trailing = tuple(metadata)

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status of the end."""
        self._code = code

    def set_details(self, details: str) -> None:
        """Set the text of the end."""
        self._details = details

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> NoReturn:
        """End the call with a status, which the client gets at once."""
        if self._is_aborted:
            raise grpc.aio.UsageError("Abort already called!")
        if self._is_sent:
            raise grpc.aio.UsageError("RPC already finished.")
        self._is_aborted = True
        if self._is_lost:
            raise BatchError("the client is gone")
        self._code = code
        self._tell((code, details, tuple(trailing_metadata or self._trailing)))
        raise grpc.aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End the call with a status."""
        await self.abort(status.code, status.details, status.trailing_metadata)

    def _require_open(self) -> None:
        if self._is_aborted:
            raise grpc.aio.AbortError("Locally aborted.")
        if self._is_sent:
            raise grpc.aio.UsageError("RPC already finished.")

    # The run of the handler.

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def _run(self, handler: Any) -> None:
        takes_many, gives_many = handler.request_streaming, handler.response_streaming
        if takes_many:
            request: Any = self._requests()
        else:
            data = self._start.request
            assert data is not None, "a unary request comes with the start"
            request = data if handler.request_deserializer is None else handler.request_deserializer(data)
        method = (
            (handler.stream_stream if takes_many else handler.unary_stream)
            if gives_many
            else (handler.stream_unary if takes_many else handler.unary_unary)
        )
        result = method(request, self)
        if hasattr(result, "__aiter__"):
            # The real gRPC releases the generator, and the event loop then ends it.
            async with aclosing(result):
                async for response in result:
                    await self.write(response)
        else:
            response = await result
            if not gives_many:
                await self.write(response)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._server.end(self)
        # If a handler is cancelled by anyone but the client, gRPC sends no status and the client waits.
        error = None if task.cancelled() else task.exception()
        if self._is_lost or self._is_sent or task.cancelled():
            return
        if error is None:
            self._tell((self._code, self._details, self._trailing))
        else:
            self._server.process.note_fault(f"handler of {self._start.method}", error)
            self._tell((grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}", ()))

    def _tell(self, status: Status) -> None:
        self._is_sent = True
        self._call.from_server(lambda: self._call.on_status(status))

    def is_over_connection(self, connection: Connection) -> bool:
        """Return True if the call runs over this connection."""
        return self._connection is connection

    def stop(self, status: Status) -> None:
        """End the call from the server's side."""
        if not self._is_lost and not self._is_sent:
            self._call.from_server(lambda: self._call.on_status(status))
            self.cancel()


class VirtualServer:
    """A gRPC server of one process."""

    def __init__(self, network: Network, process: Any, options: Options | None = None) -> None:
        self.network = network
        self.process = process
        self._liveness = liveness_of(options)
        self._generic: list[grpc.GenericRpcHandler] = []
        self._registered: dict[str, Any] = {}
        self._addresses: list[str] = []
        self._contexts: dict[VirtualContext, None] = {}
        self._connections: dict[Connection, None] = {}
        self._is_serving = False
        self._emptied: asyncio.Event | None = None

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Add services."""
        self._generic.extend(handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        """Add methods of a service."""
        for name, handler in method_handlers.items():
            self._registered[f"/{service_name}/{name}"] = handler

    def add_insecure_port(self, address: str) -> int:
        """Listen, and return the port.

        Raises:
            RuntimeError: the port is taken.
        """
        if not self.network.listen(address, self):
            raise RuntimeError(f"Failed to bind to address {address}; set GRPC_VERBOSITY=debug environment variable")
        self._addresses.append(address)
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        """Accept calls."""
        self._is_serving = True

    async def stop(self, grace: float | None) -> None:
        """Accept no more calls, give those under way `grace` seconds, then end them."""
        self._is_serving = False
        for address in self._addresses:
            self.network.unlisten(address, self)
        for connection in self._connections:
            self._say_goaway(connection)
        if grace and self._contexts:
            self._emptied = asyncio.Event()
            try:
                async with asyncio.timeout(grace):
                    await self._emptied.wait()
            except TimeoutError:
                pass
        for context in list(self._contexts):
            context.stop(STOPPED)
        await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.part(self.process)
        self._connections.clear()

    def _say_goaway(self, connection: Connection) -> None:
        def arrive() -> None:
            if connection.on_goaway is not None:
                connection.on_goaway()

        connection.send(self.process, connection.client, arrive)

    def accept(self, connection: Connection) -> Callable[[], None]:
        """Accept a connection (see `Listener`)."""
        self._connections[connection] = None
        if self._liveness is not None:
            connection.liveness[self.process.name] = self._liveness
        connection.serve = lambda start, call: self._serve(connection, start, call)
        return lambda: self._on_break(connection)

    def end(self, context: VirtualContext) -> None:
        """Forget a call that is over."""
        self._contexts.pop(context, None)
        if not self._contexts and self._emptied is not None:
            self._emptied.set()

    def _serve(self, connection: Connection, start: Start, call: VirtualCall) -> VirtualContext:
        context = VirtualContext(self, connection, start, call)
        handler = self._find(start) if self._is_serving else None
        if handler is None:
            status = UNKNOWN_METHOD if self._is_serving else STOPPED
            call.from_server(lambda: call.on_status(status))
            return context
        self._contexts[context] = None
        context.run(handler)
        return context

    def _find(self, start: Start) -> Any:
        handler = self._registered.get(start.method)
        if handler is not None:
            return handler
        details = _Details(start.method, start.metadata)
        for generic in self._generic:
            found = generic.service(details)
            if found is not None:
                return found
        return None

    def _on_break(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        for context in list(self._contexts):
            if context.is_over_connection(connection):
                context.cancel()

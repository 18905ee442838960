# SPDX-License-Identifier: Apache-2.0
"""TCP connections of asyncio over the simulated network: `create_server`, `create_connection`, and the transports of both ends.

Owns what an asyncio protocol sees: pieces of bytes in order, flow control, half-closed and broken connections. Does not know what is
sent. The network decides when bytes arrive and when a connection breaks.

Laws
    Bytes arrive in the order of their writing, cut into random pieces, or the connection is lost.
    A paused side receives no more than the window. Then the writer's buffer fills, and its protocol is told.
    Each protocol hears `connection_lost` once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from lograft._grpc.http2_socket import PING_TIMEOUT

from integration_tests.simulation.process import SimProcess, current_process
from integration_tests.simulation.virtual_network import WINDOW_BYTES, Connection, Network

HIGH_BYTES = 64 * 1024
"""Default number of buffered bytes from which on the protocol is asked to pause."""

Factory = Callable[[], asyncio.Protocol | asyncio.BufferedProtocol]


class VirtualTransport(asyncio.Transport):
    """One end of a connection.

    Args:
        network: the network between the two ends.
        connection: the connection.
        process: the process of this end.
        protocol: the protocol that gets the events.
    """

    def __init__(
        self,
        network: Network,
        connection: Connection,
        process: SimProcess,
        protocol: asyncio.Protocol | asyncio.BufferedProtocol,
    ) -> None:
        super().__init__()
        self._network = network
        self._connection = connection
        self._process = process
        self._peer: Any = connection.server if process is connection.client else connection.client
        self._protocol = protocol
        self._buffer = bytearray()
        self._window_bytes = WINDOW_BYTES
        self._high_bytes, self._low_bytes = HIGH_BYTES, HIGH_BYTES // 4
        self._is_protocol_paused = False
        self._inbox: list[bytes] = []
        self._has_end = self._is_end_told = False
        self._is_reading = True
        self._unreturned_bytes = 0
        self._is_eof_wanted = self._is_eof_sent = False
        self._is_closing = self._is_lost = False
        connection.ends[process.name] = self

    # Methods of an asyncio transport.

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send data. What exceeds the window waits in the buffer."""
        if self._is_closing or self._is_eof_wanted:
            return
        self._buffer += data
        self._pump()
        if len(self._buffer) > self._high_bytes and not self._is_protocol_paused:
            self._is_protocol_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Send several pieces of data."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Close the writing side after the buffered data."""
        self._is_eof_wanted = True
        self._pump()

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes at which the protocol pauses and resumes."""
        self._high_bytes = HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return the number of buffered bytes."""
        return len(self._buffer)

    def pause_reading(self) -> None:
        """Keep incoming data instead of passing it to the protocol."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Pass kept data to the protocol, and further data too."""
        if not self._is_reading:
            self._is_reading = True
            self._process.loop.call_soon(self._read)

    def is_closing(self) -> bool:
        """Return True after `close` or `abort`."""
        return self._is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the other end for `peername`, the default for other names."""
        return (self._peer.machine, self._connection.number) if name == "peername" else default

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def close(self) -> None:
        """End the connection after everything is sent."""
        if not self._is_closing:
            self._is_closing = True
            self._inbox.clear()
            self._pump()

    def abort(self) -> None:
        """End the connection now."""
        if not self._is_lost:
            if self._connection.is_forgotten and getattr(self._protocol, "end_reason", "") == PING_TIMEOUT:
                self._network.dead_count += 1
            self._is_closing = True
            self._buffer.clear()
            self._send(lambda end: end.on_reset())
            self._lose(None)

    # Events from the network.

    def on_data(self, data: bytes) -> None:
        """Receive a piece of data."""
        if self._is_lost:
            self._send(lambda end: end.on_reset())
        elif not self._is_closing:
            self._inbox.append(data)
            self._read()

    def on_end(self) -> None:
        """Receive the end of the other side's data."""
        if not self._is_closing:
            self._has_end = True
            self._read()

    def on_room(self, size_bytes: int) -> None:
        """Note that the other side has taken this many bytes."""
        self._window_bytes += size_bytes
        self._pump()

    def on_reset(self) -> None:
        """Handle a reset by the other side."""
        self._buffer.clear()
        self._lose(ConnectionResetError("reset by the other side"))

    def on_break(self) -> None:
        """Handle a break of the connection."""
        self._buffer.clear()
        self._lose(ConnectionResetError("the connection broke"))

    def _send(self, tell: Callable[[VirtualTransport], None]) -> None:
        connection, peer = self._connection, self._peer

        def arrive() -> None:
            end = connection.ends.get(peer.name)
            if end is not None:
                tell(end)

        connection.send(self._process, peer, arrive)

    def _pump(self) -> None:
        while self._buffer and self._window_bytes > 0:
            size_bytes = self._network.piece_bytes(min(len(self._buffer), self._window_bytes))
            piece = bytes(self._buffer[:size_bytes])
            del self._buffer[:size_bytes]
            self._window_bytes -= size_bytes
            self._send(lambda end, piece=piece: end.on_data(piece))
        if self._is_protocol_paused and len(self._buffer) <= self._low_bytes:
            self._is_protocol_paused = False
            self._protocol.resume_writing()
        if self._buffer or self._is_lost:
            return
        if (self._is_eof_wanted or self._is_closing) and not self._is_eof_sent:
            self._is_eof_sent = True
            self._send(lambda end: end.on_end())
        if self._is_closing:
            self._lose(None)

    def _read(self) -> None:
        while self._inbox and self._is_reading and not self._is_closing:
            data = self._inbox.pop(0)
            self._unreturned_bytes += len(data)
            if self._unreturned_bytes * 4 >= WINDOW_BYTES:
                taken_bytes, self._unreturned_bytes = self._unreturned_bytes, 0
                self._send(lambda end, taken_bytes=taken_bytes: end.on_room(taken_bytes))
            self._pass_on(data)
        if self._has_end and not self._inbox and not self._is_end_told and not self._is_closing:
            self._is_end_told = True
            if not self._protocol.eof_received():
                self.close()

    def _pass_on(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(data)
            return
        while data and not self._is_closing:
            room = memoryview(protocol.get_buffer(len(data)))
            size_bytes = min(len(room), len(data))
            room[:size_bytes] = data[:size_bytes]
            room.release()
            data = data[size_bytes:]
            protocol.buffer_updated(size_bytes)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._inbox.clear()
        self._connection.on_break.pop(self._process.name, None)
        self._process.loop.call_soon(self._protocol.connection_lost, error)
        if not self._connection.on_break:
            self._connection.break_off()  # both ends are gone, so data on the way does not matter


class VirtualSocket:
    """Replaces a listening socket."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def getsockname(self) -> tuple[str, int]:
        """Return its address."""
        return self.host, self.port

    def close(self) -> None:
        """Do nothing: the listener frees the address."""


class VirtualListener:
    """Replaces `asyncio.Server`.

    Args:
        network: network between the machines.
        process: the listening process.
        address: `host:port`.
        factory: makes a protocol for each connection.
    """

    def __init__(self, network: Network, process: SimProcess, address: str, factory: Factory) -> None:
        self.process = process
        self._network = network
        self._address = address
        self._factory = factory
        if not network.listen(address, self):
            raise OSError(f"{address} is in use")

    def accept(self, connection: Connection) -> Callable[[], None]:
        """Accept a connection."""
        protocol = self._factory()
        transport = VirtualTransport(self._network, connection, self.process, protocol)
        # The protocol must hear of the connection before it hears of anything else.
        self.process.loop.call_soon(protocol.connection_made, transport)
        return transport.on_break

    def close(self) -> None:
        """Stop listening."""
        self._network.unlisten(self._address, self)


class VirtualTcp:
    """The TCP functions of a simulated loop.

    Args:
        network: network between the machines.
    """

    def __init__(self, network: Network) -> None:
        self._network = network

    async def create_server(self, factory: Factory, *, sock: VirtualSocket) -> VirtualListener:
        """Create a listener (see `loop.create_server`)."""
        return VirtualListener(self._network, current_process(), f"{sock.host}:{sock.port}", factory)

    async def create_connection(
        self, factory: Factory, host: str, port: int
    ) -> tuple[VirtualTransport, asyncio.BaseProtocol]:
        """Open a connection (see `loop.create_connection`).

        Raises:
            OSError: no process listens there, or it is unreachable.
        """
        process, network = current_process(), self._network
        made: asyncio.Future[tuple[VirtualTransport, asyncio.BaseProtocol]] = process.loop.create_future()
        ends: list[VirtualTransport] = []

        def done(connection: Connection | None) -> None:
            if connection is None:
                broke()
                return
            protocol = asyncio.Protocol() if made.done() else factory()
            transport = VirtualTransport(network, connection, process, protocol)
            ends.append(transport)
            if made.done():
                transport.abort()  # the caller no longer waits
                return
            protocol.connection_made(transport)
            made.set_result((transport, protocol))

        def broke() -> None:
            if ends:
                ends[0].on_break()
            elif not made.done():
                made.set_exception(ConnectionRefusedError(f"{host}:{port} cannot be reached"))

        network.connect(process, f"{host}:{port}", done, broke)
        return await made

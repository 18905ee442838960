# SPDX-License-Identifier: Apache-2.0
"""TCP connections of asyncio over the simulated network: `create_server`, `create_connection`, and transports at both ends.

Owns what a protocol of asyncio sees: pieces of bytes in order, flow control, half-closed and broken connections. Must not know what is
sent. When something arrives, and when a connection breaks, the network says.

Laws
    What was written arrives in its order, cut into pieces at random, or the connection is lost.
    A side that is paused takes no more than the window; the writer's buffer fills, and its protocol is told.
    Each protocol hears `connection_lost` once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from integration_tests.simulation.process import SimProcess, current_process
from integration_tests.simulation.virtual_network import WINDOW_BYTES, Connection, Network

HIGH_BYTES = 64 * 1024
"""Bytes that wait to be sent before the protocol is asked to pause, unless it says otherwise."""

Factory = Callable[[], asyncio.Protocol]


class VirtualTransport(asyncio.Transport):
    """One end of a connection.

    Args:
        network: between the two.
        connection: the connection.
        process: who has this end.
        protocol: told of what happens.
    """

    def __init__(
        self, network: Network, connection: Connection, process: SimProcess, protocol: asyncio.Protocol
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

    # What a protocol asks of its transport.

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send; what does not fit waits in the buffer."""
        if self._is_closing or self._is_eof_wanted:
            return
        self._buffer += data
        self._pump()
        if len(self._buffer) > self._high_bytes and not self._is_protocol_paused:
            self._is_protocol_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Send all of them."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Say nothing more."""
        self._is_eof_wanted = True
        self._pump()

    def can_write_eof(self) -> bool:
        """Yes."""
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Say when the protocol is to pause."""
        self._high_bytes = HIGH_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Bytes that wait."""
        return len(self._buffer)

    def pause_reading(self) -> None:
        """Keep what comes."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Take what was kept."""
        if not self._is_reading:
            self._is_reading = True
            self._process.loop.call_soon(self._read)

    def is_closing(self) -> bool:
        """True once it was closed."""
        return self._is_closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing is known."""
        del name
        return default

    def close(self) -> None:
        """End once everything is sent."""
        if not self._is_closing:
            self._is_closing = True
            self._inbox.clear()
            self._pump()

    def abort(self) -> None:
        """End now."""
        if not self._is_lost:
            self._is_closing = True
            self._buffer.clear()
            self._send(lambda end: end.on_reset())
            self._lose(None)

    # What comes over the network.

    def on_data(self, data: bytes) -> None:
        """A piece came."""
        if self._is_lost:
            self._send(lambda end: end.on_reset())
        elif not self._is_closing:
            self._inbox.append(data)
            self._read()

    def on_end(self) -> None:
        """The other side says nothing more."""
        if not self._is_closing:
            self._has_end = True
            self._read()

    def on_room(self, size_bytes: int) -> None:
        """The other side has taken so much."""
        self._window_bytes += size_bytes
        self._pump()

    def on_reset(self) -> None:
        """The other side is gone."""
        self._buffer.clear()
        self._lose(ConnectionResetError("reset by the other side"))

    def on_break(self) -> None:
        """The connection broke."""
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
            self._protocol.data_received(data)
        if self._has_end and not self._inbox and not self._is_end_told and not self._is_closing:
            self._is_end_told = True
            if not self._protocol.eof_received():
                self.close()

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._inbox.clear()
        self._connection.on_break.pop(self._process.name, None)
        self._process.loop.call_soon(self._protocol.connection_lost, error)
        if not self._connection.on_break:
            self._connection.break_off()  # both ends are gone: nothing on the way is of any interest


class VirtualSocket:
    """In the place of a socket that listens."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port

    def getsockname(self) -> tuple[str, int]:
        """Where."""
        return self.host, self.port


class VirtualListener:
    """In the place of `asyncio.Server`.

    Args:
        network: between the machines.
        process: who listens.
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
        """Take a connection."""
        protocol = self._factory()
        transport = VirtualTransport(self._network, connection, self.process, protocol)
        # The other end hears of the connection before it hears of anything else.
        self.process.loop.call_soon(protocol.connection_made, transport)
        return transport.on_break

    def close(self) -> None:
        """Take none any more."""
        self._network.unlisten(self._address, self)


class VirtualTcp:
    """What a simulated loop has for TCP.

    Args:
        network: between the machines.
    """

    def __init__(self, network: Network) -> None:
        self._network = network

    async def create_server(self, factory: Factory, *, sock: VirtualSocket) -> VirtualListener:
        """See `loop.create_server`."""
        return VirtualListener(self._network, current_process(), f"{sock.host}:{sock.port}", factory)

    async def create_connection(
        self, factory: Factory, host: str, port: int
    ) -> tuple[VirtualTransport, asyncio.Protocol]:
        """See `loop.create_connection`.

        Raises:
            OSError: nobody listens there, or can be reached.
        """
        process, network = current_process(), self._network
        made: asyncio.Future[tuple[VirtualTransport, asyncio.Protocol]] = process.loop.create_future()
        ends: list[VirtualTransport] = []

        def done(connection: Connection | None) -> None:
            if connection is None:
                broke()
                return
            protocol = asyncio.Protocol() if made.done() else factory()
            transport = VirtualTransport(network, connection, process, protocol)
            ends.append(transport)
            if made.done():
                transport.abort()  # nobody waits any more
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

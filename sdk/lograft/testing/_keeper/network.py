# SPDX-License-Identifier: Apache-2.0
"""The connections to the servers: a proxy in front of every port, and nodes that are cut off.

A connection belongs to a target node and to the node that it comes from, or to a client. While either node is cut off, the
connection stays open and carries nothing, as with a network that drops packets. Healing aborts it, because bytes are missing;
the ends then connect anew.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from lograft.testing._keeper.nodes import LOOPBACK

BUFFER_BYTES: Final = 256 * 1024
"""Bytes of a connection that a proxy holds in each direction before it stops reading."""


class _End(asyncio.Protocol):
    """One end of a connection through a proxy. `connection` is its only reader."""

    def __init__(self, connection: _Connection) -> None:
        self.connection = connection
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self.transport = transport
        self.connection.opened(self)

    def data_received(self, data: bytes) -> None:
        self.connection.carry(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.connection.ended(self)

    def pause_writing(self) -> None:
        self.connection.set_reading(self, is_on=False)

    def resume_writing(self) -> None:
        self.connection.set_reading(self, is_on=True)


class _Connection:
    """A connection: the end of the caller, and the end of the server."""

    def __init__(self, network: Network, target: int, address: tuple[str, int]) -> None:
        self._network = network
        self.target = target
        self.source: int | None = None
        self._address = address
        self._early = bytearray()
        self.caller = _End(self)
        self.server = _End(self)
        self.is_blocked = False

    def _other(self, end: _End) -> asyncio.Transport | None:
        return (self.server if end is self.caller else self.caller).transport

    def opened(self, end: _End) -> None:
        """Find the source of a new connection and dial the server, or send the server what the caller sent before."""
        assert end.transport is not None
        if end is self.caller:
            self.source = self._network.source_of(end.transport)
            self._network.add(self)
            return
        early, self._early = bytes(self._early), bytearray()
        if early and not self.is_blocked:
            end.transport.write(early)
        if self.caller.transport is None:
            end.transport.close()
        else:
            self.caller.transport.resume_reading()

    async def dial(self) -> None:
        """Connect to the server."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.server, *self._address)
        except OSError:
            self.abort()

    def carry(self, end: _End, data: bytes) -> None:
        """Pass bytes on, or lose them."""
        if self.is_blocked:
            return
        onward = self._other(end)
        if onward is not None:
            onward.write(data)
        elif end is self.caller:
            self._early += data
            if len(self._early) > BUFFER_BYTES and end.transport is not None:
                end.transport.pause_reading()

    def ended(self, end: _End) -> None:
        """Close the other end too, unless nothing may pass."""
        onward = self._other(end)
        if onward is None:
            self._network.remove(self)
        elif not self.is_blocked:
            onward.close()

    def set_reading(self, end: _End, *, is_on: bool) -> None:
        """Start or stop reading what goes to `end`."""
        source = self._other(end)
        if source is not None and not source.is_closing():
            (source.resume_reading if is_on or self.is_blocked else source.pause_reading)()

    def block(self) -> None:
        """Carry nothing more. What comes is read and lost."""
        self.is_blocked = True
        for transport in (self.caller.transport, self.server.transport):
            if transport is not None and not transport.is_closing():
                transport.resume_reading()

    def abort(self) -> None:
        """Reset both ends."""
        for transport in (self.caller.transport, self.server.transport):
            if transport is not None:
                transport.abort()


class Network:
    """All proxies of a cluster. It alone changes which nodes are cut off.

    Args:
        find_source: returns the node at the other end of a connection, from the addresses of the other end and of this end.
    """

    def __init__(self, find_source: Callable[[tuple[str, int], tuple[str, int]], int | None]) -> None:
        self._find_source = find_source
        self._cut: set[int] = set()
        self._connections: set[_Connection] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._listeners: list[asyncio.Server] = []

    async def listen(self, target: int, host: str) -> int:
        """Open a proxy for a node on a port of the loopback address, and return the port. The node has the same port on `host`."""
        loop = asyncio.get_running_loop()

        def accept() -> _End:
            return _Connection(self, target, (host, port)).caller

        listener = await loop.create_server(accept, LOOPBACK, 0)
        port: int = listener.sockets[0].getsockname()[1]
        self._listeners.append(listener)
        return port

    def source_of(self, transport: asyncio.Transport) -> int | None:
        """Return the node at the other end of a connection; None: a client."""
        return self._find_source(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))

    def add(self, connection: _Connection) -> None:
        """Take a connection whose caller is known. It dials its server unless a node is cut off."""
        self._connections.add(connection)
        if self._is_cut(connection):
            connection.block()
            return
        task = asyncio.get_running_loop().create_task(connection.dial())
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    def remove(self, connection: _Connection) -> None:
        """Forget a connection whose ends are both gone."""
        self._connections.discard(connection)

    def _is_cut(self, connection: _Connection) -> bool:
        return connection.target in self._cut or connection.source in self._cut

    def cut(self, node: int) -> None:
        """Let nothing pass to or from a node."""
        self._cut.add(node)
        for each in self._connections:
            if self._is_cut(each):
                each.block()

    def mend(self, node: int) -> None:
        """Let connections to and from a node pass again."""
        self._cut.discard(node)
        for each in list(self._connections):
            if each.is_blocked and not self._is_cut(each):
                each.abort()

    async def close(self) -> None:
        """End everything."""
        for listener in self._listeners:
            listener.close()
        for task in list(self._dialling):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for each in list(self._connections):
            each.abort()

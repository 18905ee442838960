# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that can forget its connections, as a NAT or a lost machine does.

Owns the connections between clients and one server, in its own thread. A forgotten connection stays open and is read on both sides, but
the proxy passes neither bytes nor an end on. It accepts and carries new connections at all times. So TCP itself tells neither end
anything. (With a real lost machine, the kernel of the sender would at least miss its acknowledgements.)

Use: start it before the server, let the server advertise `proxy.address` (`--advertise`), and set `proxy.target`.
All methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from enum import Flag, auto
from types import TracebackType
from typing import Final, Self, TypeVar

T = TypeVar("T")

HOST: Final = "127.0.0.1"
CALL_TIMEOUT_S: Final = 30.0
"""Seconds that the thread has to start, to carry out an order, or to end."""
BUFFER_BYTES: Final = 256 * 1024
"""Bytes of a connection that the proxy holds in each direction before it stops reading."""


class Way(Flag):
    """Directions of a connection."""

    TO_SERVER = auto()
    TO_CLIENT = auto()
    BOTH = TO_SERVER | TO_CLIENT


class _Side(asyncio.Protocol):
    """One end of a connection through the proxy."""

    def __init__(self, link: _Link, way: Way) -> None:
        self._link = link
        self._way = way
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Carry what this end sends from now on."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self.transport = transport
        if self._way is Way.TO_CLIENT:
            self._link.flush_early()

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on, unless this direction is forgotten."""
        self._link.carry(self._way, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass the end on, unless this direction is forgotten."""
        self._link.end(self._way)

    def pause_writing(self) -> None:
        """Stop reading from the other end, because this one takes no more."""
        self._link.set_reading(self, False)

    def resume_writing(self) -> None:
        """Read from the other end again, because this one takes more."""
        self._link.set_reading(self, True)


class _Link:
    """A connection: its two ends, and its forgotten directions."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_end: Callable[[_Link], None]) -> None:
        self._loop = loop
        self._on_end = on_end
        self.client = _Side(self, Way.TO_SERVER)
        self.server = _Side(self, Way.TO_CLIENT)
        self.forgotten = Way(0)
        self.heard_s = loop.time()
        # What the client sent before the connection to the server was open. On loopback these are only a few messages.
        self._early: list[bytes] | None = []

    def _other(self, side: _Side) -> asyncio.Transport | None:
        return (self.server if side is self.client else self.client).transport

    def carry(self, way: Way, data: bytes) -> None:
        """Pass bytes on, or lose them if the direction is forgotten."""
        if way in self.forgotten:
            return
        self.heard_s = self._loop.time()
        if way is Way.TO_SERVER and self._early is not None:
            self._early.append(data)
            return
        onward = (self.server if way is Way.TO_SERVER else self.client).transport
        if onward is not None and not onward.is_closing():
            onward.write(data)

    def flush_early(self) -> None:
        """Send the early bytes, because the connection to the server is open."""
        early, self._early = self._early, None
        for data in early or ():
            self.carry(Way.TO_SERVER, data)

    def end(self, way: Way) -> None:
        """Tell the other end that one end is gone, unless this direction is forgotten."""
        side = self.client if way is Way.TO_SERVER else self.server
        onward = self._other(side)
        side.transport = None
        if onward is None:
            self._on_end(self)
        elif way not in self.forgotten:
            onward.close()

    def set_reading(self, writer: _Side, is_on: bool) -> None:
        """Start or stop reading from the end opposite to `writer`. Bytes that are lost anyway are always read."""
        source = self._other(writer)
        if source is not None and not source.is_closing():
            (source.resume_reading if is_on else source.pause_reading)()

    def forget(self, way: Way) -> None:
        """Carry nothing more in these directions."""
        self.forgotten |= way
        for transport in (self.client.transport, self.server.transport):
            if transport is not None and not transport.is_closing():
                transport.resume_reading()

    def abort(self) -> None:
        """Abort both ends."""
        for transport in (self.client.transport, self.server.transport):
            if transport is not None:
                transport.abort()


class ForgetfulProxy:
    """A proxy for one server; a context manager.

    Args:
        target: `host:port` of the server. It may be set later, before the first connection.
        silent_limit_s: seconds without a byte in either direction after which a connection is forgotten; None: never.
        port: port to listen on; 0: any.

    Attributes:
        target: where new connections go.
    """

    def __init__(self, target: str | None = None, *, silent_limit_s: float | None = None, port: int = 0) -> None:
        self.target = target
        self._silent_limit_s = silent_limit_s
        self._port = port
        self._links: set[_Link] = set()
        self._accepted_count = 0
        self._forgotten_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="forgetful-proxy", daemon=True)

    @property
    def address(self) -> str:
        """`127.0.0.1:port` for clients; only after `start`."""
        return f"{HOST}:{self._started.result(CALL_TIMEOUT_S)}"

    @property
    def accepted_count(self) -> int:
        """Number of connections accepted so far."""
        return self._accepted_count

    @property
    def forgotten_count(self) -> int:
        """Number of connections forgotten so far, by order or after silence."""
        return self._forgotten_count

    def start(self) -> Self:
        """Listen, and return the proxy."""
        self._thread.start()
        self._started.result(CALL_TIMEOUT_S)
        return self

    def stop(self) -> None:
        """End every connection and the thread."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(CALL_TIMEOUT_S)

    def forget(self, way: Way = Way.BOTH) -> int:
        """Carry nothing more on the open connections, and return their number."""
        return self._order(lambda: self._forget_all(way))

    def sever(self) -> int:
        """End the open connections visibly for both ends, and return their number."""
        return self._order(self._sever_all)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _order(self, work: Callable[[], T]) -> T:
        assert self._loop is not None, "not started"
        done: Future[T] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(work()))
        return done.result(CALL_TIMEOUT_S)

    def _forget_all(self, way: Way) -> int:
        links = [link for link in self._links if way not in link.forgotten]
        for link in links:
            self._forgotten_count += 1
            link.forget(way)
        return len(links)

    def _sever_all(self) -> int:
        links = list(self._links)
        for link in links:
            link.abort()
        return len(links)

    async def _main(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        dialling: set[asyncio.Task[None]] = set()

        def take() -> _Side:
            link = _Link(loop, self._links.discard)
            self._accepted_count += 1
            self._links.add(link)
            task = loop.create_task(self._dial(link))
            dialling.add(task)
            task.add_done_callback(dialling.discard)
            return link.client

        listener = await loop.create_server(take, HOST, self._port)
        self._started.set_result(listener.sockets[0].getsockname()[1])
        watch = loop.create_task(self._forget_silent_ones())
        await self._stopping.wait()
        watch.cancel()
        listener.close()
        for task in dialling:
            task.cancel()
        await asyncio.gather(watch, *dialling, return_exceptions=True)
        self._sever_all()

    async def _dial(self, link: _Link) -> None:
        """Connect to the server."""
        assert self.target is not None, "there is no target for connections"
        host, _, port = self.target.rpartition(":")
        try:
            await asyncio.get_running_loop().create_connection(lambda: link.server, host, int(port))
        except OSError:
            link.abort()
            return
        if link.client.transport is None:
            # The client has gone in the meantime.
            link.abort()

    async def _forget_silent_ones(self) -> None:
        limit_s = self._silent_limit_s
        if limit_s is None:
            return
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(limit_s / 20)
            for link in self._links:
                if Way.BOTH not in link.forgotten and loop.time() - link.heard_s > limit_s:
                    self._forgotten_count += 1
                    link.forget(Way.BOTH)

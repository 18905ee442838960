# SPDX-License-Identifier: Apache-2.0
"""Connections of the simulated loop: messages both ways, half-closed ends, a dead address, an ended process, a forgotten connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from integration_tests.simulation.process import SimProcess
from integration_tests.simulation.virtual_network import WINDOW_BYTES, Network
from integration_tests.simulation.virtual_platform import platform
from integration_tests.simulation.virtual_tcp import VirtualSocket
from metaquorum.testing.scheduler import Scheduler

SENT: Final = [b"", b"x", bytes(3 * WINDOW_BYTES), b"y" * 20_000, b"end"]
"""Among them one that takes more than any window."""


class Messages(asyncio.Protocol):
    """Messages over an asyncio transport: four bytes of length, then the message.

    Args:
        on_open: called when the connection is open.
    """

    def __init__(self, on_open: Callable[[Messages], None] | None = None) -> None:
        self._on_open = on_open
        self._reader = asyncio.StreamReader()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._lost: Exception | None = None
        self._transport: Any = None

    async def read(self) -> bytes | None:
        """Return the next message; None: the other side has closed its end."""
        length = await self._reader.read(4)
        if not length:
            return None
        length += await self._reader.readexactly(4 - len(length))
        return await self._reader.readexactly(int.from_bytes(length, "big"))

    async def write(self, message: bytes) -> None:
        """Send a message, and wait until there is room for the next one."""
        self._transport.write(len(message).to_bytes(4, "big") + message)
        await self._has_room.wait()
        if self._lost is not None:
            raise self._lost

    def end_writing(self) -> None:
        """Close this side's end."""
        self._transport.write_eof()

    def close(self) -> None:
        """End once everything is sent."""
        self._transport.close()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open."""
        self._transport = transport
        self._reader.set_transport(transport)
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Receive a piece of data."""
        self._reader.feed_data(data)

    def eof_received(self) -> bool:
        """Note that the other side has closed its end. This side may continue."""
        self._reader.feed_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is over."""
        self._lost = exc or ConnectionResetError("this side closed it")
        self._has_room.set()
        if exc is None:
            self._reader.feed_eof()
        else:
            self._reader.set_exception(exc)

    def pause_writing(self) -> None:
        """Stop writing: the transport is full."""
        self._has_room.clear()

    def resume_writing(self) -> None:
        """Continue writing: the transport has room."""
        self._has_room.set()


def new_process(scheduler: Scheduler, machine: str, faults: list[str]) -> SimProcess:
    """Make a process."""
    chance: dict[str, Any] = {"rng": scheduler.rng(machine), "work_ms_max": 1, "flush_ms_max": 0}
    return SimProcess(scheduler, machine=machine, number=0, disk=None, on_fault=faults.append, **chance)


def run(scenario: Callable[[Callable[[], None], Network], Awaitable[Any]], seed: int) -> Any:
    """Run a scenario beside an echo server. The scenario gets a function that kills the server, and the network."""
    scheduler, faults = Scheduler(seed), list[str]()
    network = Network(scheduler, scheduler.rng("network"), delay_ms_max=5)
    results: list[Any] = []
    ends: list[BaseException | None] = []
    tasks: list[asyncio.Task[None]] = []
    with platform(scheduler, network):
        server, client = new_process(scheduler, "server", faults), new_process(scheduler, "client", faults)

        async def echo(stream: Messages) -> None:
            while (message := await stream.read()) is not None:
                await stream.write(message)
            stream.close()

        def taken() -> Messages:
            return Messages(lambda stream: tasks.append(server.loop.create_task(echo(stream))))

        async def serve() -> None:
            socket: Any = VirtualSocket("server", 1)
            await asyncio.get_running_loop().create_server(taken, sock=socket)
            await asyncio.Event().wait()

        def kill() -> None:
            server.loop.kill()
            network.end_process(server)

        async def use() -> None:
            results.append(await scenario(kill, network))

        server.run(serve(), ends.append)
        while not network.is_listening("server:1"):
            assert scheduler.run_next()
        client.run(use(), ends.append)
        while not ends:
            assert scheduler.run_next()
        kill()
        client.loop.kill()
    assert ends == [None], (ends, faults)
    assert not faults
    return results[0]


async def dialled(port: int = 1) -> Messages:
    """Connect to the server."""
    stream = Messages()
    await asyncio.get_running_loop().create_connection(lambda: stream, "server", port)
    return stream


@pytest.mark.parametrize("seed", range(5))
def test_messages_come_back_in_order_and_the_end_behind_them(seed: int) -> None:
    """They are cut into random pieces and delayed by the window. A half-closed connection ends after all messages."""

    async def scenario(_kill: Callable[[], None], _network: Network) -> Any:
        stream = await dialled()

        async def send() -> None:
            for message in SENT:
                await stream.write(message)
            stream.end_writing()

        sending = asyncio.create_task(send())
        heard = [await stream.read() for _ in range(len(SENT) + 1)]
        await sending
        return heard == [*SENT, None]

    assert run(scenario, seed)


@pytest.mark.parametrize("seed", range(3))
def test_writer_waits_while_nobody_reads(seed: int) -> None:
    """Data on the way is bounded in each direction. All of it arrives once it is read."""

    async def scenario(_kill: Callable[[], None], _network: Network) -> Any:
        stream = await dialled()
        message, count = bytes(WINDOW_BYTES), 20
        written = 0

        async def send() -> None:
            nonlocal written
            for _ in range(count):
                await stream.write(message)
                written += 1

        sending = asyncio.create_task(send())
        await asyncio.sleep(60)
        was_written = written
        heard = [await stream.read() for _ in range(count)]
        await sending
        return 0 < was_written < count and heard == [message] * count

    assert run(scenario, seed)


def test_dead_address_refuses() -> None:
    """No process listens at the address."""

    async def scenario(_kill: Callable[[], None], _network: Network) -> Any:
        with pytest.raises(ConnectionRefusedError):
            await dialled(2)
        return True

    assert run(scenario, 1)


@pytest.mark.parametrize("seed", range(3))
def test_process_that_ends_breaks_its_connections(seed: int) -> None:
    """The other end hears of it, once, and cannot write any more."""

    async def scenario(kill: Callable[[], None], _network: Network) -> Any:
        stream = await dialled()
        kill()
        with pytest.raises(ConnectionResetError):
            await stream.read()
        with pytest.raises(ConnectionResetError):
            await stream.write(b"x")
        return True

    assert run(scenario, seed)


@pytest.mark.parametrize("way", ["both", "to the server", "to the client"])
def test_forgotten_connection_says_nothing_more(way: str) -> None:
    """Neither an answer nor the end of the other process comes over it where that is lost; a new connection is carried."""

    async def scenario(kill: Callable[[], None], network: Network) -> Any:
        stream = await dialled()
        await stream.write(b"before")
        heard: list[Any] = [await stream.read()]
        (connection,) = network.connections()
        connection.forget(
            *{
                "both": (connection.server, connection.client),
                "to the server": (connection.server,),
                "to the client": (connection.client,),
            }[way]
        )
        await stream.write(b"lost")
        heard.append(await nothing_from(stream))
        other = await dialled()
        await other.write(b"over a new one")
        heard.append(await other.read())
        kill()
        try:
            heard.append(await nothing_from(stream))
        except ConnectionResetError:
            heard.append("reset")
        stream.close()
        return heard

    # The server's messages arrive, and so does its end.
    end = "reset" if way == "to the server" else "nothing"
    assert run(scenario, 1) == [b"before", "nothing", b"over a new one", end]


async def nothing_from(stream: Messages) -> str | bytes | None:
    """Wait for a message for a minute."""
    try:
        async with asyncio.timeout(60):
            return await stream.read()
    except TimeoutError:
        return "nothing"

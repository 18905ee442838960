# SPDX-License-Identifier: Apache-2.0
"""Messages over one plain connection: order, limits, ends, and what happens to a side that does not keep to the format."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from brokerd import frame_stream
from brokerd.frame_stream import FrameStream
from brokerd.tests.support import WAIT_S
from metaquorum.runtime.frames import MAX_PIECES, BadFrameError, FrameReader, frame
from metaquorum.tests.quorum_cluster import until

GREETING = b"hello-1\n"
MAX_BYTES = 1024 * 1024


class Ends:
    """Both sides of connections to one listener."""

    def __init__(self) -> None:
        self.taken: list[FrameStream] = []
        self.port = 0

    async def dial(self) -> tuple[FrameStream, FrameStream]:
        """Connect; return both sides, greeted."""
        loop = asyncio.get_running_loop()
        count = len(self.taken)
        _, near = await loop.create_connection(
            lambda: FrameStream(greeting=GREETING, max_bytes=MAX_BYTES), "127.0.0.1", self.port
        )
        async with asyncio.timeout(WAIT_S):
            await near.greeted
            await until(lambda: len(self.taken) > count, what="the other side")
            far = self.taken[count]
            await far.greeted
        return near, far


@asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    """A listener whose connections end with it."""
    made = Ends()
    server = await asyncio.get_running_loop().create_server(
        lambda: FrameStream(greeting=GREETING, max_bytes=MAX_BYTES, on_open=made.taken.append), "127.0.0.1", 0
    )
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for stream in made.taken:
            stream.cancel()


async def test_messages_of_all_sizes_come_in_order() -> None:
    """Nothing, one byte, and more than any buffer; both ways at once."""
    messages = [b"", b"x", b"y" * 20_000, b"z" * MAX_BYTES, b"", b"end"]
    async with ends() as made, asyncio.timeout(WAIT_S):
        near, far = await made.dial()

        async def send(stream: FrameStream) -> None:
            for message in messages:
                await stream.write(message)

        async def receive(stream: FrameStream) -> list[object]:
            return [await stream.read() for _ in messages]

        _, _, at_far, at_near = await asyncio.gather(send(near), send(far), receive(far), receive(near))
        assert at_far == at_near == messages
        near.cancel()


async def test_a_writer_waits_for_a_reader_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody takes is bounded at both sides, and goes on when somebody does."""
    monkeypatch.setattr(frame_stream, "PLAIN_READ_BYTES", 100_000)
    monkeypatch.setattr(frame_stream, "PLAIN_WRITE_BYTES", 100_000)
    message, count = b"m" * 50_000, 400
    async with ends() as made, asyncio.timeout(WAIT_S):
        near, far = await made.dial()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(count):
                await near.write(message)
                sent += 1

        writing = asyncio.create_task(send())
        before = -1
        # Until nothing moves any more: what the system's own buffers take is not ours to say.
        while sent != before:
            before = sent
            for _ in range(50):
                await asyncio.sleep(0)
            await asyncio.to_thread(writing.done)
        assert sent < count
        assert [await far.read() for _ in range(count)] == [message] * count
        await writing
        near.cancel()


async def test_an_end_comes_behind_the_last_message() -> None:
    """A side that closes is read to the end; one that only stops to write still hears what is said."""
    async with ends() as made, asyncio.timeout(WAIT_S):
        near, far = await made.dial()
        await near.write(b"last")
        near.end_writing()
        assert [await far.read(), await far.read()] == [b"last", None]
        await far.write(b"heard")
        far.close()
        assert [await near.read(), await near.read()] == [b"heard", None]
        near.cancel()
        with pytest.raises(ConnectionResetError):
            await near.write(b"nobody is there")


async def test_a_close_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does not read what is left is let go."""
    monkeypatch.setattr(frame_stream, "PLAIN_CLOSE_S", 0.01)
    async with ends() as made, asyncio.timeout(WAIT_S):
        with socket.create_connection(("127.0.0.1", made.port)) as deaf:
            deaf.sendall(GREETING)
            await until(lambda: bool(made.taken), what="the connection")
            (stream,) = made.taken
            await stream.greeted
            for _ in range(30):
                stream.write_now(b"m" * MAX_BYTES)
            stream.close()
            assert await stream.read() is None


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"hello-2\n", GREETING + (MAX_BYTES + 1).to_bytes(4, "big")],
    ids=["another protocol", "another version", "a message that is too long"],
)
async def test_nonsense_ends_the_connection(said: bytes) -> None:
    """Nothing is taken for a message, the other side is disconnected, and a further one is served."""
    async with ends() as made, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(said)
        await until(lambda: bool(made.taken), what="the connection")
        with pytest.raises(BadFrameError):
            await made.taken[0].read()
        assert (await reader.read()) == GREETING
        writer.close()
        near, far = await made.dial()
        await near.write(b"well")
        assert await far.read() == b"well"
        near.cancel()


async def test_whoever_says_nothing_before_the_end_is_not_greeted() -> None:
    """Who waits for a greeting learns that none comes."""
    async with ends() as made, asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        assert await reader.readexactly(len(GREETING)) == GREETING
        writer.write_eof()
        await until(lambda: bool(made.taken), what="the connection")
        (stream,) = made.taken
        assert await stream.read() is None
        with pytest.raises(ConnectionResetError):
            await stream.greeted
        stream.cancel()
        writer.close()


def test_messages_are_cut_from_any_pieces() -> None:
    """Byte by byte or all at once: the same messages, also of more pieces than are kept apart."""
    messages = [b"a" * 3 * MAX_PIECES, b"", b"bc"]
    said = GREETING + b"".join(map(frame, messages))
    for step in (1, 2, 7, len(said)):
        reader = FrameReader(max_bytes=MAX_BYTES, greeting=GREETING)
        found: list[bytes] = []
        for begin in range(0, len(said), step):
            reader.feed(said[begin : begin + step])
            while (message := reader.take()) is not None:
                found.append(message)
        assert found == messages

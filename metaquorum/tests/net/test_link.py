# SPDX-License-Identifier: Apache-2.0
"""A connection between servers over real sockets: calls, streams, full buffers, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from metaquorum.net.connection import Limits, Loss
from metaquorum.net.frames import GREETING, Kind, header
from metaquorum.net.link import Link, RefusedByPeerError, ServedCall, Services, Stream, UnansweredError

LIMITS = Limits(ping_after_ms=100, liveness_ms=60_000, greeting_ms=5_000)
WAIT_S = 30.0
ECHO, SILENT, BROKEN, COUNT, SWALLOW, UNKNOWN = range(1, 7)


@dataclass
class Side:
    """One end: what it serves, and what it has seen."""

    asked: list[bytes] = field(default_factory=list[bytes])
    abandoned: list[bytes] = field(default_factory=list[bytes])
    over: list[str] = field(default_factory=list[str])
    streams: list[Stream] = field(default_factory=list[Stream])
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    links: list[Link] = field(default_factory=list[Link])
    refusal: bytes | None = None
    port: int = 0

    def services(self) -> Services:
        """Return the methods that it serves."""

        def echo(call: ServedCall) -> None:
            self.asked.append(call.message)
            call.respond(call.message + b" of " + call.hello)

        def silent(call: ServedCall) -> None:
            call.on_abandoned = lambda: self.abandoned.append(call.message)

        def broken(call: ServedCall) -> None:
            raise RuntimeError("a fault of the handler")

        def count(stream: Stream) -> None:
            self.tasks.append(asyncio.create_task(self._count(stream)))

        return Services(
            requests={ECHO: echo, SILENT: silent, BROKEN: broken},
            streams={COUNT: (count, 1_000), SWALLOW: (self.streams.append, 1_000)},
            unknown=b"unknown method",
            fault=b"a fault",
        )

    async def _count(self, stream: Stream) -> None:
        """Send as many numbers as the opening message says, then the size of what comes back until the stream ends."""
        for number in range(int(stream.message)):
            await stream.write(b"%d" % number)
        total = 0
        while (message := await stream.read()) is not None:
            total += len(message)
        await stream.write(b"taken %d" % total)
        stream.end()

    def link(self, *, is_dialler: bool, limits: Limits) -> Link:
        """Make an end."""
        made = Link(
            is_dialler=is_dialler,
            hello=b"dialler" if is_dialler else b"listener",
            services=self.services(),
            check_hello=lambda _: self.refusal,
            on_over=lambda _, reason: self.over.append(reason),
            limits=limits,
        )
        self.links.append(made)
        return made


@asynccontextmanager
async def connected(limits: Limits = LIMITS, *, refusal: bytes | None = None) -> AsyncIterator[tuple[Link, Side, Side]]:
    """Two sides over a loopback socket: yields the dialling link and both sides."""
    dialler, listener = Side(), Side(refusal=refusal)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: listener.link(is_dialler=False, limits=limits), "127.0.0.1", 0)
    listener.port = port = server.sockets[0].getsockname()[1]
    _, link = await loop.create_connection(lambda: dialler.link(is_dialler=True, limits=limits), "127.0.0.1", port)
    try:
        async with asyncio.timeout(WAIT_S):
            yield link, dialler, listener
    finally:
        links = (*dialler.links, *listener.links)
        for each in links:
            each.close(b"")
        await asyncio.gather(*(each.closed for each in links))
        for task in (*dialler.tasks, *listener.tasks):
            task.cancel()
        server.close()


async def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def test_both_sides_ask_and_are_answered() -> None:
    """Either side may ask; it gets the handler's answer, its refusal, its fault, or a refusal for an unknown method."""
    async with connected() as (link, _, listener):
        await link.greeted
        assert await link.ask(ECHO, b"one", timeout_ms=5_000) == b"one of dialler"
        assert await listener.links[0].ask(ECHO, b"two", timeout_ms=5_000) == b"two of listener"
        for method, failure in ((BROKEN, b"a fault"), (UNKNOWN, b"unknown method")):
            with pytest.raises(RefusedByPeerError) as refused:
                await link.ask(method, b"", timeout_ms=5_000)
            assert refused.value.failure == failure
        large = bytes(3_000_000)
        assert await link.ask(ECHO, large, timeout_ms=20_000) == large + b" of dialler"
        assert (link.open_count, listener.links[0].open_count) == (0, 0)


async def test_deadline_and_cancelled_caller_end_the_work_of_the_other_side() -> None:
    """The serving side learns of both."""
    async with connected() as (link, _, listener):
        await link.greeted
        with pytest.raises(UnansweredError) as late:
            await link.ask(SILENT, b"late", timeout_ms=20)
        assert late.value.loss is Loss.TIMED_OUT
        asking = asyncio.create_task(link.ask(SILENT, b"cancelled", timeout_ms=60_000))
        await asyncio.sleep(0.02)
        asking.cancel()
        await until(lambda: len(listener.abandoned) == 2)
        assert listener.abandoned == [b"late", b"cancelled"]
        await until(lambda: link.open_count == 0)


@pytest.mark.parametrize("ends", [False, True], ids=["answered", "lost"])
async def test_fault_of_whoever_asked_does_not_cost_the_others_their_outcomes(
    caplog: pytest.LogCaptureFixture, *, ends: bool
) -> None:
    """Each request gets its outcome; the connection stays usable, and its end is also reported."""
    told: list[object] = []

    def faulty(outcome: object) -> None:
        told.append(outcome)
        raise RuntimeError("a fault of the asker")

    async with connected() as (link, dialler, listener):
        await link.greeted
        for on_outcome in (faulty, told.append):
            link.request(SILENT if ends else ECHO, b"x", timeout_ms=60_000, on_outcome=on_outcome)
        if ends:
            await until(lambda: listener.links[0].open_count == 2)
            listener.links[0].close(b"stopping")
            await until(lambda: dialler.over)
        await until(lambda: len(told) == 2)
        if not ends:
            assert told == [b"x of dialler"] * 2
            assert await link.ask(ECHO, b"y", timeout_ms=5_000) == b"y of dialler"
    assert len([record for record in caplog.records if "event=outcome_failed" in record.message]) == 1


async def test_stream_runs_both_ways_within_its_windows() -> None:
    """A writer waits for its reader, and ends reach the other side in order."""
    async with connected() as (link, _, listener):
        await link.greeted
        stream = link.open(COUNT, b"500", window_bytes=100)
        assert [await stream.read() for _ in range(500)] == [b"%d" % number for number in range(500)]
        for _ in range(100):
            await stream.write(bytes(99))
        stream.end()
        assert await stream.read() == b"taken 9900"
        assert await stream.read() is None
        await until(lambda: (link.open_count, listener.links[0].open_count) == (0, 0))


async def test_nothing_is_kept_of_calls_that_are_over() -> None:
    """A connection lives for months: no state of a stream stays, however it ends and whichever side ends it last."""
    async with connected() as (link, _, listener):
        await link.greeted
        assert await link.ask(ECHO, b"", timeout_ms=5_000)
        ended, failed, given_up = (link.open(COUNT, b"0", window_bytes=100) for _ in range(3))
        ended.end()
        assert [await ended.read(), await ended.read()] == [b"taken 0", None]
        late = link.open(COUNT, b"0", window_bytes=100)
        late.end()
        failed.fail(b"enough")
        given_up.give_up()
        swallowed = link.open(SWALLOW, b"", window_bytes=10)
        await until(lambda: listener.streams)
        listener.streams[0].end()
        assert await swallowed.read() is None
        swallowed.end()
        other = listener.links[0]
        await until(lambda: (link.open_count, other.open_count) == (0, 0))
        for each in (link, other):
            assert [each._waiting, each._served, each._streams] == [{}] * 3  # pyright: ignore[reportPrivateUsage]
        assert [await late.read(), await late.read()] == [b"taken 0", None]


async def test_empty_messages_that_were_read_are_granted_again() -> None:
    """More of them than a window has bytes."""
    async with connected() as (link, _, listener):
        await link.greeted
        stream = link.open(SWALLOW, b"", window_bytes=10)
        await until(lambda: listener.streams)

        async def send() -> None:
            for _ in range(50):
                await listener.streams[0].write(b"")
            listener.streams[0].end()

        sending = asyncio.create_task(send())
        messages = [message async for message in _messages(stream)]
        await sending
        assert messages == [b""] * 50


async def _messages(stream: Stream) -> AsyncIterator[bytes]:
    while (message := await stream.read()) is not None:
        yield message


async def test_reader_that_does_not_read_stops_its_writer_and_nobody_else() -> None:
    """Requests beside it are answered, and no more bytes wait than the window allows."""
    async with connected() as (link, _, listener):
        await link.greeted
        stream = link.open(SWALLOW, b"", window_bytes=10)
        await until(lambda: listener.streams)
        writing = asyncio.create_task(_write_for_ever(stream))
        await asyncio.sleep(0.1)
        assert not writing.done()
        assert await link.ask(ECHO, b"beside", timeout_ms=5_000) == b"beside of dialler"
        taken = 0
        for _ in range(100):
            message = await listener.streams[0].read()
            assert message is not None
            taken += len(message)
        assert taken == 10_000
        listener.streams[0].fail(b"enough")
        with pytest.raises(RefusedByPeerError):
            await writing


async def _write_for_ever(stream: Stream) -> None:
    while True:
        await stream.write(bytes(100))


@dataclass
class Listened:
    """What a stream has passed on."""

    messages: list[bytes] = field(default_factory=list[bytes])
    ends: list[object] = field(default_factory=list[object])

    def to(self, stream: Stream) -> Listened:
        """Listen to a stream."""
        stream.listen(self.messages.extend, self.ends.append)
        return self


async def test_listener_hears_what_waits_and_what_comes_and_the_end_once() -> None:
    """More than a window of messages, in order; each is granted again."""
    async with connected() as (link, _, listener):
        await link.greeted
        stream = link.open(COUNT, b"500", window_bytes=100)
        assert await stream.read() == b"0"
        heard = Listened().to(stream)
        await until(lambda: len(heard.messages) == 499)
        assert heard.messages == [b"%d" % number for number in range(1, 500)]
        stream.end()
        await until(lambda: heard.ends)
        assert (heard.messages[-1], heard.ends) == (b"taken 0", [None])
        await until(lambda: (link.open_count, listener.links[0].open_count) == (0, 0))


async def test_paused_listener_hears_nothing_and_stops_the_writer() -> None:
    """No more waits than the window allows; after the pause all of it comes, and the end behind it."""
    async with connected() as (link, _, listener):
        await link.greeted
        stream = link.open(COUNT, b"100", window_bytes=20)
        stream.pause()
        heard = Listened().to(stream)
        stream.end()
        await asyncio.sleep(0.1)
        assert (heard.messages, heard.ends, listener.tasks[0].done()) == ([], [], False)
        stream.resume()
        await until(lambda: heard.ends)
        assert heard.messages == [*(b"%d" % number for number in range(100)), b"taken 0"]


@pytest.mark.parametrize("is_paused", [False, True], ids=["listening", "paused"])
async def test_listener_hears_the_reason_why_the_stream_is_over_after_its_last_message(*, is_paused: bool) -> None:
    """A reset, once, and nothing after it."""
    async with connected() as (link, _, listener):
        await link.greeted
        stream = link.open(SWALLOW, b"", window_bytes=100)
        if is_paused:
            stream.pause()
        heard = Listened().to(stream)
        await until(lambda: listener.streams)
        assert listener.streams[0].try_write(b"last")
        await asyncio.sleep(0.05)
        listener.streams[0].fail(b"enough")
        await until(lambda: heard.ends)
        (reason,) = heard.ends
        assert isinstance(reason, RefusedByPeerError)
        assert (heard.messages, reason.failure) == ([b"last"], b"enough")
        stream.give_up()
        assert len(heard.ends) == 1


async def test_listener_that_raises_loses_its_stream_alone() -> None:
    """Both sides hear of it, and other calls of the connection go on."""
    async with connected() as (link, _, listener):
        await link.greeted
        stream = link.open(SWALLOW, b"", window_bytes=100)
        ends: list[object] = []

        def fail(messages: list[bytes]) -> None:
            raise RuntimeError(f"a fault at {messages}")

        stream.listen(fail, ends.append)
        await until(lambda: listener.streams)
        others = Listened().to(listener.streams[0])
        assert listener.streams[0].try_write(b"bad")
        await until(lambda: ends and others.ends)
        assert [isinstance(each, UnansweredError) for each in (*ends, *others.ends)] == [True, True]
        assert await link.ask(ECHO, b"beside", timeout_ms=5_000) == b"beside of dialler"


async def test_end_of_the_connection_is_told_to_everybody_once() -> None:
    """A caller, a reader, a server of a stream and a request handler each learn of it."""
    async with connected() as (link, dialler, listener):
        await link.greeted
        stream = link.open(SWALLOW, b"", window_bytes=10)
        asking = asyncio.create_task(link.ask(SILENT, b"asked", timeout_ms=60_000))
        reading = asyncio.create_task(stream.read())
        await until(lambda: listener.streams and listener.links[0].open_count == 2)
        served = listener.streams[0]
        listener.links[0].close(b"stopping")
        for each in (asking, reading):
            with pytest.raises(UnansweredError) as lost:
                await each
            assert lost.value.loss is Loss.LOST
        with pytest.raises(UnansweredError):
            await served.read()
        await until(lambda: dialler.over)
        assert listener.abandoned == [b"asked"]
        assert (len(dialler.over), len(listener.over)) == (1, 1)
        assert not link.is_usable


async def test_other_side_that_does_not_fit_is_left_with_the_reason() -> None:
    """The side that dialled learns of it."""
    async with connected(refusal=b"another cluster") as (link, dialler, listener):
        await until(lambda: dialler.over and listener.over)
        assert not link.is_usable


@pytest.mark.parametrize("behind", ["a HELLO that does not fit", "a call before what is no frame"])
async def test_nothing_is_begun_on_a_connection_that_is_over(behind: str) -> None:
    """The calls came with the bytes that ended the connection, from a peer that did not wait for an answer."""
    is_misfit = behind == "a HELLO that does not fit"
    calls = _frame(Kind.REQUEST, 1, b"\0\1\0\0\0\5asked") + _frame(Kind.OPEN, 3, b"\0\5\0\0\0\5opened")
    end = b"" if is_misfit else bytes(4)
    async with connected(refusal=b"another cluster" if is_misfit else None) as (_, _, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(GREETING + _frame(Kind.HELLO, 0, b"x") + calls + end)
        with suppress(ConnectionError):
            while await reader.read(1_000):
                pass
        writer.close()
    assert listener.asked == []
    assert listener.streams == []


def _frame(kind: Kind, call_id: int, body: bytes) -> bytes:
    return header(kind, call_id, len(body)) + body


def test_attempt_to_connect_that_is_cancelled_just_before_its_end_leaves_nothing_behind() -> None:
    """In a busy process: uvloop then closes the transport, does not notify its protocol, and raises at a later write."""
    uvloop: Any = pytest.importorskip("uvloop")
    side = Side()

    async def dial() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Side().link(is_dialler=False, limits=LIMITS), "127.0.0.1", 0)
        link = side.link(is_dialler=True, limits=LIMITS)
        port = server.sockets[0].getsockname()[1]
        dialling = asyncio.create_task(loop.create_connection(lambda: _Cancelling(link, dialling), "127.0.0.1", port))
        with pytest.raises(asyncio.CancelledError):
            await dialling
        link.close(b"")
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(dial())
    assert len(side.over) == 1


class _Cancelling(asyncio.Protocol):
    """Wraps a link, and cancels the attempt to connect once the link has its transport."""

    def __init__(self, link: Link, dialling: asyncio.Task[Any]) -> None:
        self._link = link
        self._dialling = dialling

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass the transport to the link, and cancel the attempt."""
        self._link.connection_made(transport)
        self._dialling.cancel()


async def test_silent_machine_is_noticed_without_a_call() -> None:
    """The other side accepts bytes and sends none, like a lost machine behind a proxy."""
    limits = replace(LIMITS, liveness_ms=300)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"lograft-net-1\n\0\0\0\x07\1\0\0\0\0\0x")
        with suppress(ConnectionError):
            while await reader.read(1_000):
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    side = Side()
    _, link = await asyncio.get_running_loop().create_connection(
        lambda: side.link(is_dialler=True, limits=limits), "127.0.0.1", port
    )
    async with asyncio.timeout(WAIT_S):
        await link.greeted
        await until(lambda: side.over)
        await ended.wait()
    assert "no sign of life" in side.over[0]
    await link.closed
    server.close()


class Deaf(asyncio.Protocol):
    """A peer that sends its greeting, and reads nothing."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(b"lograft-net-1\n\0\0\0\x07\1\0\0\0\0\0x")
        self.transport.pause_reading()


@pytest.mark.parametrize("closes", [True, False], ids=["closed", "silent"])
async def test_other_side_that_does_not_read_is_not_waited_for(*, closes: bool) -> None:
    """The bytes for it would be kept for ever; the callers get an outcome."""
    deaf, side = Deaf(), Side()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: deaf, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    limits = replace(LIMITS, liveness_ms=60_000 if closes else 300)
    _, link = await loop.create_connection(lambda: side.link(is_dialler=True, limits=limits), "127.0.0.1", port)
    told: list[object] = []
    async with asyncio.timeout(WAIT_S):
        await link.greeted
        for _ in range(3):
            link.request(ECHO, bytes(4_000_000), timeout_ms=60_000, on_outcome=told.append)
        if closes:
            link.close(b"")
        await link.closed
    assert [type(outcome) for outcome in told] == [UnansweredError] * 3
    assert len(side.over) == 1
    assert deaf.transport is not None
    deaf.transport.abort()
    server.close()


async def test_idle_connection_lives_by_its_pings() -> None:
    """Both sides are silent for longer than the bound."""
    async with connected(replace(LIMITS, ping_after_ms=50, liveness_ms=2_000)) as (link, dialler, listener):
        await link.greeted
        await asyncio.sleep(3)
        assert dialler.over == listener.over == []
        assert await link.ask(ECHO, b"still", timeout_ms=5_000) == b"still of dialler"

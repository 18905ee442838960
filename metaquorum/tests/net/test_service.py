# SPDX-License-Identifier: Apache-2.0
"""What a server answers on its connections: typed refusals, faults without details, tasks that end with their call, bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from lograft.internal.v1 import net_pb2
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.v1.errors_pb2 import LeaderHint
from lograft.wire.codes import ErrorCode

from metaquorum.net import service
from metaquorum.net.carrier import Carrier
from metaquorum.net.connection import Limits, Loss
from metaquorum.net.link import CallError, Link, RefusedByPeerError, ServedCall, Stream, UnansweredError
from metaquorum.net.service import RefusalError, ServiceTable, decode_refusal
from metaquorum.tests.quorum_cluster import until

WAIT_S, WAIT_MS, LONG_MS = 30.0, 30_000, 600_000
PLAIN, WAITING, STREAM, UNKNOWN, UNKNOWN_STREAM = range(100, 105)
NONSENSE = b"\xff\xff\xff\xff"
WINDOW_BYTES = 64


class Served:
    """A server whose three methods do what the node id of the request stands for."""

    def __init__(self) -> None:
        self.table = ServiceTable()
        self.table.add(PLAIN, pb.ProbeRequest, self._plain)
        self.table.add_waiting(WAITING, pb.ProbeRequest, self._waiting)
        self.table.add_stream(STREAM, pb.ProbeRequest, self._stream, window_bytes=WINDOW_BYTES)
        self.running = 0
        self.ended: list[str] = []
        self.taken: list[bytes | None] = []

    def _plain(self, request: pb.ProbeRequest, call: ServedCall) -> None:
        self._act(request)
        call.respond(answer_to(request).SerializeToString())

    async def _waiting(self, request: pb.ProbeRequest, _call: ServedCall) -> pb.ProbeResponse:
        self.running += 1
        try:
            self._act(request)
            if request.node_id == WAITS:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        finally:
            self.running -= 1
        return answer_to(request)

    async def _stream(self, request: pb.ProbeRequest, stream: Stream) -> None:
        self.running += 1
        try:
            await stream.write(b"begin")
            self._act(request)
            if request.node_id == WAITS:
                await asyncio.Event().wait()
            if request.node_id == SAYS_TOO_MUCH:
                await stream.write(answer_to(request).SerializeToString())
            while (message := await stream.read()) is not None:
                self.taken.append(message)
                if request.node_id != TAKES:
                    await stream.write(message)
            self.taken.append(None)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        except CallError as error:
            self.ended.append(type(error).__name__)
            raise
        finally:
            self.running -= 1

    def _act(self, request: pb.ProbeRequest) -> None:
        if request.node_id == REFUSES:
            hint = LeaderHint(leader_id=3, leader_epoch=9, host="voter-3", port=9192)
            raise RefusalError(ErrorCode.NOT_CONTROLLER, "another one leads", retry_after_ms=70, leader=hint)
        if request.node_id == RAISES:
            raise RuntimeError("a secret detail")


ANSWERS, REFUSES, RAISES, WAITS, SAYS_TOO_MUCH, TAKES = range(1, 7)


def answer_to(request: pb.ProbeRequest) -> pb.ProbeResponse:
    """Return the answer that the request stands for."""
    cluster_id = "x" * (Limits().message_bytes + 100) if request.node_id == SAYS_TOO_MUCH else ""
    return pb.ProbeResponse(node_id=request.node_id, cluster_id=cluster_id)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Served, Link]]:
    """A server, and the connection of another one to it."""
    made = Served()
    server, client = Carrier(cluster_id="c", node_id=1), Carrier(cluster_id="c", node_id=2)
    server.table = made.table
    address = f"127.0.0.1:{server.bind('127.0.0.1', 0)}"
    await server.start(address)
    await client.start(None)
    try:
        async with asyncio.timeout(WAIT_S):
            yield made, await client.peers.connected(address, timeout_ms=WAIT_MS)
    finally:
        await client.close()
        await server.close()


def doing(what: int) -> bytes:
    """A request."""
    return pb.ProbeRequest(node_id=what).SerializeToString()


async def refusal_of(link: Link, method: int, message: bytes) -> RefusalError:
    """Ask; return how that is refused."""
    with pytest.raises(RefusedByPeerError) as refused:
        await link.ask(method, message, timeout_ms=WAIT_MS)
    return decode_refusal(refused.value.failure)


async def stream_refusal(stream: Stream) -> RefusalError:
    """Read until the stream ends with a reason, and return the reason."""
    try:
        while await stream.read() is not None:
            pass
    except RefusedByPeerError as error:
        return decode_refusal(error.failure)
    raise AssertionError("the stream ended without a reason")


async def test_requests_are_answered_at_once_or_by_a_task() -> None:
    """The caller sees no difference."""
    async with served() as (_, link):
        for method in (PLAIN, WAITING):
            answer = await link.ask(method, doing(ANSWERS), timeout_ms=WAIT_MS)
            assert pb.ProbeResponse.FromString(answer).node_id == ANSWERS


async def test_method_that_nobody_serves_is_refused() -> None:
    """A newer server learns that this one is older; the connection stays usable."""
    async with served() as (_, link):
        assert (await refusal_of(link, UNKNOWN, b"")).code is ErrorCode.INVALID_REQUEST
        refusal = await stream_refusal(link.open(UNKNOWN_STREAM, b"", window_bytes=100))
        assert refusal.code is ErrorCode.INVALID_REQUEST
        assert "version" in refusal.message
        assert await link.ask(PLAIN, doing(ANSWERS), timeout_ms=WAIT_MS)
        assert link.open_count == 0


async def test_bytes_that_are_no_message_are_refused_by_name(caplog: pytest.LogCaptureFixture) -> None:
    """No handler runs, and no traceback is logged."""
    async with served() as (made, link):
        refusals = [await refusal_of(link, method, NONSENSE) for method in (PLAIN, WAITING)]
        refusals.append(await stream_refusal(link.open(STREAM, NONSENSE, window_bytes=100)))
        for refusal in refusals:
            assert refusal.code is ErrorCode.INVALID_REQUEST
            assert "lograft.internal.v1.ProbeRequest" in refusal.message
        assert made.running == 0
    assert not [record for record in caplog.records if record.exc_info]


async def test_refusal_of_a_handler_is_told_with_all_that_it_says() -> None:
    """Code, text, advice, and whom to ask instead."""
    async with served() as (_, link):
        refusals = [await refusal_of(link, method, doing(REFUSES)) for method in (PLAIN, WAITING)]
        refusals.append(await stream_refusal(link.open(STREAM, doing(REFUSES), window_bytes=100)))
        for refusal in refusals:
            assert (refusal.code, refusal.message) == (ErrorCode.NOT_CONTROLLER, "another one leads")
            assert refusal.retry_after_ms == 70
            assert refusal.leader == LeaderHint(leader_id=3, leader_epoch=9, host="voter-3", port=9192)


async def test_fault_of_a_handler_is_internal_and_does_not_leak(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the details, once for each; the connection stays usable."""
    async with served() as (_, link):
        refusals = [await refusal_of(link, method, doing(RAISES)) for method in (PLAIN, WAITING)]
        refusals.append(await stream_refusal(link.open(STREAM, doing(RAISES), window_bytes=100)))
        for refusal in refusals:
            assert refusal.code is ErrorCode.INTERNAL
            assert "secret" not in refusal.message
            assert refusal.leader is None
        assert await link.ask(PLAIN, doing(ANSWERS), timeout_ms=WAIT_MS)
        await until(lambda: link.open_count == 0, what="the end of all calls")
    failed = [record for record in caplog.records if record.exc_info]
    assert [record.levelno for record in failed] == [logging.ERROR] * 3


async def test_answer_that_is_too_long_for_a_connection_is_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets a refusal at once, and the connection stays usable."""
    async with served() as (_, link):
        refusals = [await refusal_of(link, method, doing(SAYS_TOO_MUCH)) for method in (PLAIN, WAITING)]
        refusals.append(await stream_refusal(link.open(STREAM, doing(SAYS_TOO_MUCH), window_bytes=100)))
        assert [refusal.code for refusal in refusals] == [ErrorCode.INTERNAL] * 3
        assert await link.ask(PLAIN, doing(ANSWERS), timeout_ms=WAIT_MS)
        await until(lambda: link.open_count == 0, what="the end of all calls")
    assert len([record for record in caplog.records if record.exc_info]) == 3


@pytest.mark.parametrize(
    "body",
    [b"", NONSENSE, net_pb2.Failure(code=100_000).SerializeToString()],  # pyright: ignore[reportArgumentType]
)
def test_refusal_that_says_nothing_of_use_is_internal(body: bytes) -> None:
    """Of another version, or a faulty one."""
    assert decode_refusal(body).code is ErrorCode.INTERNAL


async def test_request_that_nobody_waits_for_any_more_ends_its_task() -> None:
    """The deadline passes, the caller cancels, or the connection ends."""
    async with served() as (made, link):
        with pytest.raises(UnansweredError) as late:
            await link.ask(WAITING, doing(WAITS), timeout_ms=50)
        assert late.value.loss is Loss.TIMED_OUT
        await until(lambda: made.ended == ["cancelled"], what="the end of the first task")
        asking = asyncio.create_task(link.ask(WAITING, doing(WAITS), timeout_ms=LONG_MS))
        await until(lambda: made.running == 1, what="the second task")
        asking.cancel()
        await until(lambda: len(made.ended) == 2, what="the end of the second task")
        asking = asyncio.create_task(link.ask(WAITING, doing(WAITS), timeout_ms=LONG_MS))
        await until(lambda: made.running == 1, what="the third task")
        link.close(b"")
        with pytest.raises(UnansweredError):
            await asking
        await until(lambda: made.ended == ["cancelled"] * 3, what="the end of the third task")
        assert made.running == 0


async def test_stream_ends_when_its_handler_returns() -> None:
    """Earlier messages arrive first; then the stream is closed on both sides."""
    async with served() as (made, link):
        stream = link.open(STREAM, doing(ANSWERS), window_bytes=100)
        assert await stream.read() == b"begin"
        for number in range(20):
            await stream.write(b"%d" % number * 10)
            assert await stream.read() == b"%d" % number * 10
        stream.end()
        assert await stream.read() is None
        assert made.taken[-1] is None
        await until(lambda: link.open_count == 0, what="the end of the stream")


async def test_stream_that_the_other_side_gives_up_ends_its_handler(caplog: pytest.LogCaptureFixture) -> None:
    """The handler reads, or writes to a full window; it is not at fault."""
    async with served() as (made, link):
        reading = link.open(STREAM, doing(ANSWERS), window_bytes=100)
        assert await reading.read() == b"begin"
        reading.give_up()
        await until(lambda: made.ended == ["UnansweredError"], what="the end of the reader")
        writing = link.open(STREAM, doing(ANSWERS), window_bytes=1)
        for _ in range(5):
            await writing.write(bytes(10))
        await until(lambda: len(made.taken) == 1, what="a writer that waits for room")
        writing.give_up()
        await until(lambda: made.ended == ["UnansweredError"] * 2, what="the end of the writer")
        await until(lambda: made.running == 0, what="the end of the handlers")
        assert await link.ask(PLAIN, doing(ANSWERS), timeout_ms=WAIT_MS)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("is_lost", [False, True], ids=["given up", "connection lost"])
async def test_handler_that_waits_for_something_else_is_cancelled_with_its_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, is_lost: bool
) -> None:
    """It neither reads nor writes, so it does not notice the end; a handler that ends by itself is not cancelled."""
    monkeypatch.setattr(service, "STREAM_GRACE_MS", 20)
    async with served() as (made, link):
        reading = link.open(STREAM, doing(ANSWERS), window_bytes=100)
        waiting = link.open(STREAM, doing(WAITS), window_bytes=100)
        for stream in (reading, waiting):
            assert await stream.read() == b"begin"
        if is_lost:
            link.close(b"")
        else:
            reading.give_up()
            waiting.give_up()
        await until(lambda: made.running == 0, what="the end of the handlers")
        assert made.ended == ["UnansweredError", "cancelled"]
    assert not [record for record in caplog.records if record.exc_info]


async def test_handler_has_what_came_before_the_end_of_its_stream() -> None:
    """A follower that stops reports what it holds, and gives the stream up after that."""
    async with served() as (made, link):
        stream = link.open(STREAM, doing(TAKES), window_bytes=100)
        assert await stream.read() == b"begin"
        for number in range(3):
            assert stream.try_write(b"%d" % number)
        stream.give_up()
        await until(lambda: made.running == 0, what="the end of the handler")
        assert made.taken == [b"0", b"1", b"2"]
        assert made.ended == ["UnansweredError"]


async def test_more_than_can_be_answered_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests and streams share the bound; methods without a task are answered, and room is free again at once."""
    monkeypatch.setattr(service, "MAX_TASKS", 2)
    async with served() as (made, link):
        asking = asyncio.create_task(link.ask(WAITING, doing(WAITS), timeout_ms=LONG_MS))
        stream = link.open(STREAM, doing(WAITS), window_bytes=100)
        await until(lambda: made.running == 2, what="two tasks")
        refusals = [
            await refusal_of(link, WAITING, doing(ANSWERS)),
            await stream_refusal(link.open(STREAM, doing(ANSWERS), window_bytes=100)),
        ]
        for refusal in refusals:
            assert refusal.code is ErrorCode.OVERLOADED
            assert refusal.retry_after_ms > 0
        assert await link.ask(PLAIN, doing(ANSWERS), timeout_ms=WAIT_MS)
        asking.cancel()
        await until(lambda: made.running == 1, what="room")
        assert await link.ask(WAITING, doing(ANSWERS), timeout_ms=WAIT_MS)
        stream.give_up()


async def test_table_that_closes_ends_what_is_under_way() -> None:
    """Streams are given up; requests end with the connection, which the table does not own."""
    async with served() as (made, link):
        asking = asyncio.create_task(link.ask(WAITING, doing(WAITS), timeout_ms=LONG_MS))
        stream = link.open(STREAM, doing(WAITS), window_bytes=100)
        assert await stream.read() == b"begin"
        await until(lambda: made.running == 2, what="two tasks")
        await made.table.close()
        await made.table.close()
        assert made.running == 0
        with pytest.raises(UnansweredError) as ended:
            await stream.read()
        assert ended.value.loss is Loss.CANCELLED
        link.close(b"")
        with pytest.raises(UnansweredError):
            await asking


def test_method_is_served_once() -> None:
    """A second registration fails at once."""
    table = Served().table
    with pytest.raises(AssertionError, match="served twice"):
        table.add(STREAM, pb.ProbeRequest, lambda _request, _call: None)

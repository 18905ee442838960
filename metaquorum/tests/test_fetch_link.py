# SPDX-License-Identifier: Apache-2.0
"""Fetches over plain connections: found by the port that gRPC answers name, given up for gRPC, closed to who says nonsense."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import grpc.aio
import pytest
from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.raft.events import Failure
from metaquorum.raft.messages import FetchRequest, FetchResponse, Refusal, Request, Response, VoteRequest
from metaquorum.rpc import fetch_listener
from metaquorum.rpc.fetch_listener import FetchListener
from metaquorum.rpc.quorum_service import QuorumServicer
from metaquorum.runtime import fetch_link
from metaquorum.runtime.driver import Answer, StoppedError
from metaquorum.runtime.frames import GREETING, BadFrameError, FrameReader, frame
from metaquorum.runtime.transport import MAX_TIMEOUTS_IN_A_ROW, GrpcTransport, PeerFailureError
from metaquorum.testing.scripted_node import CLUSTER_ID, ScriptedNode, key
from metaquorum.tests.quorum_cluster import until
from metaquorum.tests.test_fetch_stream import request_at

STOPPED_OFFSET = 1_000
"""A fetch from here on finds a node that is about to stop."""

SILENT_OFFSET = 2_000
"""A fetch from here on is not answered before `Leader.answer` is called."""

TIMEOUT_MS = 10_000


class Leader:
    """A node with both listeners that says in the log start which offset was asked for.

    Attributes:
        asked: offsets that came over plain connections.
        called: offsets that came by gRPC.
    """

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.called: list[int] = []
        self.address = ""
        self._waiting: list[Callable[[Answer | StoppedError], None]] = []
        self.service = QuorumServicer()
        self.service.attach(self)
        self.listener = FetchListener(self)
        self._server = grpc.aio.server()

    async def open(self) -> None:
        """Listen."""
        self.service.add_to(self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        self.service.fetch_port = await self.listener.open("127.0.0.1", 0)

    async def close(self) -> None:
        """Stop at once."""
        await self.listener.close()
        await self._server.stop(None)

    def take_request(self, request: FetchRequest, on_answer: Callable[[Answer | StoppedError], None]) -> None:
        """Answer a fetch that came over a plain connection."""
        self.asked.append(request.fetch_offset)
        if request.fetch_offset >= SILENT_OFFSET:
            self._waiting.append(on_answer)
        elif request.fetch_offset >= STOPPED_OFFSET:
            raise StoppedError("about to stop")
        else:
            on_answer(answer_to(request))

    def answer(self, answer: Answer | StoppedError) -> None:
        """Answer the fetch that waits."""
        self._waiting.pop()(answer)

    async def handle_request(self, request: Request) -> Answer:
        """Answer a fetch that came by gRPC; a vote is never answered."""
        if isinstance(request, VoteRequest):
            await asyncio.Event().wait()
        assert isinstance(request, FetchRequest), f"{request} is no fetch"
        self.called.append(request.fetch_offset)
        return answer_to(request)

    def handle_snapshot(self, request: pb.FetchSnapshotRequest) -> AsyncIterator[pb.FetchSnapshotResponse]:
        """Nobody asks."""
        raise StoppedError("no snapshots")

    def handle_probe(self, request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Nobody asks."""
        raise StoppedError("no probes")


def answer_to(request: FetchRequest) -> Answer:
    """An answer that names the offset which was asked for."""
    response = FetchResponse(
        quorum_epoch=request.quorum_epoch, leader_id=None, leader_address=None, log_start_offset=request.fetch_offset
    )
    return Answer(response=response)


class Follower:
    """Fetches as a core's shell does: over the plain connection if it is there, else by gRPC."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.transport = GrpcTransport()

    def begin(self, offset: int, *, timeout_ms: int = TIMEOUT_MS) -> asyncio.Future[Response | PeerFailureError] | None:
        """Send a fetch over the plain connection; None: it is not there."""
        outcome: asyncio.Future[Response | PeerFailureError] = asyncio.get_running_loop().create_future()
        request = request_at(offset)
        is_sent = self.transport.fetch_by_link(
            self._leader.address, request, timeout_ms=timeout_ms, on_answer=outcome.set_result
        )
        return outcome if is_sent else None

    async def fetch(self, offset: int, *, timeout_ms: int = TIMEOUT_MS) -> Response | PeerFailureError:
        """Fetch, one way or the other."""
        outcome = self.begin(offset, timeout_ms=timeout_ms)
        if outcome is not None:
            return await outcome
        try:
            return await self.transport.call(self._leader.address, request_at(offset), timeout_ms=timeout_ms)
        except PeerFailureError as error:
            return error

    async def is_linked(self) -> bool:
        """Fetch once and say whether it went over a plain connection."""
        before = len(self._leader.asked)
        await self.fetch(1)
        return len(self._leader.asked) > before


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    """A leader that listens."""
    made = Leader()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def follower(leader: Leader) -> AsyncIterator[Follower]:
    """A follower of it."""
    made = Follower(leader)
    yield made
    await made.transport.close()


async def linked(follower: Follower) -> None:
    """Fetch until the plain connection is used."""
    async with asyncio.timeout(TIMEOUT_MS / 1_000):
        while not await follower.is_linked():
            pass


def offset_of(response: Response | PeerFailureError) -> int:
    """Which offset an answer belongs to."""
    assert isinstance(response, FetchResponse), f"{response} is no answer to a fetch"
    return response.log_start_offset


def failure_of(response: Response | PeerFailureError) -> Failure:
    """Why there was no answer."""
    assert isinstance(response, PeerFailureError), f"{response} is an answer"
    return response.failure


async def test_fetches_go_over_the_connection_that_the_leader_names(leader: Leader, follower: Follower) -> None:
    """The first one goes by gRPC and brings the port; the answers are those of the same service."""
    assert offset_of(await follower.fetch(7)) == 7
    assert leader.called == [7]
    await linked(follower)
    called = len(leader.called)
    for offset in range(10, 20):
        assert offset_of(await follower.fetch(offset)) == offset
    assert (leader.asked[-10:], len(leader.called)) == (list(range(10, 20)), called)


async def test_leader_without_a_listener_is_fetched_from_by_grpc(leader: Leader, follower: Follower) -> None:
    """As is one of an older version, which names no port."""
    leader.service.fetch_port = 0
    for offset in range(5):
        assert offset_of(await follower.fetch(offset)) == offset
    assert leader.asked == []


async def test_port_that_nobody_listens_at_costs_one_attempt(leader: Leader, follower: Follower) -> None:
    """Fetches go on by gRPC, and the port is left alone for a while."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        leader.service.fetch_port = bound.getsockname()[1]
        for offset in range(20):
            assert offset_of(await follower.fetch(offset)) == offset
    leader.service.fetch_port = 1
    assert offset_of(await follower.fetch(20)) == 20
    assert leader.asked == []


async def test_other_program_at_the_port_is_told_nothing(leader: Leader, follower: Follower) -> None:
    """Who does not greet is not taken for a leader; what it says is no answer."""
    closed = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        # Nothing but the greeting comes before the end.
        assert await reader.read() == GREETING
        writer.close()
        closed.set()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    leader.service.fetch_port = server.sockets[0].getsockname()[1]
    assert offset_of(await follower.fetch(3)) == 3
    async with asyncio.timeout(TIMEOUT_MS / 1_000):
        await closed.wait()
    assert offset_of(await follower.fetch(4)) == 4
    assert leader.called == [3, 4]
    server.close()


async def test_fetch_without_an_answer_in_time_ends_the_connection(leader: Leader, follower: Follower) -> None:
    """Nobody could tell its answer from the next one's; the next fetch goes by gRPC and opens a new connection."""
    await linked(follower)
    assert failure_of(await follower.fetch(SILENT_OFFSET, timeout_ms=20)) is Failure.TIMED_OUT
    # An answer to a connection that is gone is dropped.
    leader.answer(answer_to(request_at(SILENT_OFFSET)))
    assert offset_of(await follower.fetch(5)) == 5
    assert leader.called[-1] == 5
    await linked(follower)


async def test_connection_with_a_late_answer_stays_while_fetches_go_by_grpc(leader: Leader, follower: Follower) -> None:
    """Whoever asks again meanwhile does so by gRPC; the late answer counts, and the connection is used again after it."""
    await linked(follower)
    late = follower.begin(SILENT_OFFSET)
    assert late is not None
    for offset in range(3):
        assert offset_of(await follower.fetch(offset)) == offset
        assert leader.called[-1] == offset
    assert not late.done()
    leader.answer(answer_to(request_at(SILENT_OFFSET)))
    assert offset_of(await late) == SILENT_OFFSET
    assert await follower.is_linked()


async def test_answers_on_the_plain_connection_do_not_excuse_a_silent_channel(
    leader: Leader, follower: Follower
) -> None:
    """The channel dies alone; it is replaced although fetches are answered all the while."""
    await linked(follower)
    for _ in range(MAX_TIMEOUTS_IN_A_ROW):
        assert await follower.is_linked()
        with pytest.raises(PeerFailureError) as error:
            await follower.transport.call(leader.address, ScriptedNode().vote_request(2, 1), timeout_ms=50)
        assert error.value.failure is Failure.TIMED_OUT
    # The new channel begins without a plain connection.
    assert not await follower.is_linked()


async def test_leader_that_is_gone_is_noticed_at_once(leader: Leader, follower: Follower) -> None:
    """A connection that breaks under a fetch is a refusal, as a broken stream is: an election need not wait."""
    await linked(follower)
    outcome = follower.begin(SILENT_OFFSET)
    assert outcome is not None
    await until(lambda: leader.asked[-1] == SILENT_OFFSET, what="the fetch")
    await leader.close()
    assert failure_of(await outcome) is Failure.REFUSED
    assert failure_of(await follower.fetch(5)) is Failure.REFUSED


async def test_leader_that_stops_says_so_and_closes(leader: Leader, follower: Follower) -> None:
    """Both to a new fetch and to one that waits; the next one goes by gRPC."""
    await linked(follower)
    refused = await follower.fetch(STOPPED_OFFSET)
    assert isinstance(refused, FetchResponse)
    assert refused.refusal is Refusal.UNAVAILABLE
    await linked(follower)
    outcome = follower.begin(SILENT_OFFSET)
    assert outcome is not None
    await until(lambda: leader.asked[-1] == SILENT_OFFSET, what="the fetch")
    leader.answer(StoppedError("stopping"))
    waited = await outcome
    assert isinstance(waited, FetchResponse)
    assert waited.refusal is Refusal.UNAVAILABLE
    assert offset_of(await follower.fetch(5)) == 5


async def test_closed_transport_fails_the_fetch_under_way(leader: Leader, follower: Follower) -> None:
    """A node that stops waits for nobody."""
    await linked(follower)
    outcome = follower.begin(SILENT_OFFSET)
    assert outcome is not None
    await follower.transport.close()
    assert failure_of(await outcome) is Failure.REFUSED


async def test_fetch_that_only_looks_for_the_leader_goes_by_grpc(leader: Leader, follower: Follower) -> None:
    """It is sent to any node, and opens no connection."""
    await linked(follower)
    request = request_at(9, max_wait_ms=0)
    assert not follower.transport.fetch_by_link(
        leader.address, request, timeout_ms=TIMEOUT_MS, on_answer=lambda _: pytest.fail("an answer")
    )


class Stranger:
    """A plain connection to a leader's fetch listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def dial(cls, leader: Leader) -> Stranger:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", leader.service.fetch_port))

    def say(self, data: bytes) -> None:
        """Send."""
        self._writer.write(data)

    async def heard(self) -> bytes:
        """Everything that comes until the connection ends."""
        async with asyncio.timeout(TIMEOUT_MS / 1_000):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""
            finally:
                self._writer.close()


SILENT = frame(
    pb.FetchQuorumRequest(
        cluster_id=CLUSTER_ID,
        quorum_epoch=1,
        replica=pb.ReplicaKey(node_id=2, directory_id=key(2).directory_id),
        fetch_offset=SILENT_OFFSET,
    ).SerializeToString()
)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        GREETING[:5] + b"?",
        GREETING + (fetch_listener.MAX_REQUEST_BYTES + 1).to_bytes(4, "big"),
        GREETING + frame(b"\xff\xff\xff"),
        GREETING + SILENT + SILENT,
    ],
    ids=["another protocol", "a broken greeting", "too long", "no message", "two at once"],
)
async def test_nonsense_ends_the_connection_and_no_other(leader: Leader, follower: Follower, said: bytes) -> None:
    """Whoever says anything but fetches, one at a time, is disconnected."""
    await linked(follower)
    stranger = await Stranger.dial(leader)
    stranger.say(said)
    assert await stranger.heard() == GREETING
    assert await follower.is_linked()


async def test_request_out_of_range_is_refused_and_the_connection_stays(leader: Leader, follower: Follower) -> None:
    """As by gRPC: INVALID_REQUEST."""
    stranger = await Stranger.dial(leader)
    bad = frame(pb.FetchQuorumRequest(max_bytes=-1).SerializeToString())
    refusal = frame(pb.FetchQuorumResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST).SerializeToString())
    # In pieces, as a network may bring it.
    for byte in GREETING + bad:
        stranger.say(bytes([byte]))
        await asyncio.sleep(0)
    stranger.say(bad + b"\xff\xff\xff\xff")
    assert await stranger.heard() == GREETING + refusal + refusal


async def test_connections_are_bounded(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than allowed is closed without a word."""
    monkeypatch.setattr(fetch_listener, "MAX_LINKS", 1)
    first = await Stranger.dial(leader)
    first.say(GREETING + SILENT)
    await until(lambda: leader.asked == [SILENT_OFFSET], what="the first one")
    second = await Stranger.dial(leader)
    assert await second.heard() == b""
    leader.answer(StoppedError("stopping"))
    assert (await first.heard()).startswith(GREETING)


async def test_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose other side is gone without a word would stay for ever."""
    monkeypatch.setattr(fetch_listener, "IDLE_S", 0.05)
    leader = Leader()
    await leader.open()
    stranger = await Stranger.dial(leader)
    assert await stranger.heard() == GREETING
    await leader.close()


async def test_silent_peer_that_does_not_read_gives_its_place_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written to it would be waited for, for ever."""
    monkeypatch.setattr(fetch_listener, "IDLE_S", 0.05)
    monkeypatch.setattr(fetch_listener, "MAX_LINKS", 1)
    leader = Leader()
    await leader.open()
    first = await Stranger.dial(leader)
    first.say(GREETING + SILENT)
    await until(lambda: leader.asked == [SILENT_OFFSET], what="the fetch")
    # More than the buffers of both sides hold.
    leader.answer(replace(answer_to(request_at(SILENT_OFFSET)), batches=bytes(32 * 1024 * 1024)))
    async with asyncio.timeout(TIMEOUT_MS / 1_000):
        while not await (await Stranger.dial(leader)).heard():
            pass
    await first.heard()
    await leader.close()


async def test_attempt_to_connect_is_bounded(
    leader: Leader, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that takes connections and says nothing is given up; a later offer tries again."""
    monkeypatch.setattr(fetch_link, "OPEN_TIMEOUT_S", 0.05)
    monkeypatch.setattr(fetch_link, "RETRY_AFTER_S", 0.1)
    right = leader.service.fetch_port
    with socket.create_server(("127.0.0.1", 0)) as silent:
        leader.service.fetch_port = silent.getsockname()[1]
        assert offset_of(await follower.fetch(1)) == 1
        leader.service.fetch_port = right
        await linked(follower)


def test_frames_are_cut_wherever_they_are_parted() -> None:
    """What comes in pieces is put together; what comes together is parted."""
    sent = GREETING + frame(b"one") + frame(b"") + frame(b"three")
    for step in (1, 3, 7, len(sent)):
        reader = FrameReader(max_bytes=5)
        taken: list[bytes] = []
        for start in range(0, len(sent), step):
            reader.feed(sent[start : start + step])
            while (message := reader.take()) is not None:
                taken.append(message)
        assert taken == [b"one", b"", b"three"]


def test_frame_that_is_too_long_is_refused_by_its_length() -> None:
    """Before any of it is kept."""
    reader = FrameReader(max_bytes=4)
    reader.feed(GREETING + (5).to_bytes(4, "big"))
    with pytest.raises(BadFrameError, match="at most 4"):
        reader.take()

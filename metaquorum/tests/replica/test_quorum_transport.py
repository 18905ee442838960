# SPDX-License-Identifier: Apache-2.0
"""Requests to peers: each answer belongs to its request, failures are named, and a silent connection is closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TypeAlias

import pytest
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.wire.codes import ErrorCode

from metaquorum.net.carrier import Carrier
from metaquorum.net.connection import Limits
from metaquorum.net.frames import GREETING
from metaquorum.net.hello import Identity
from metaquorum.net.link import CallError, ServedCall, Services, Stream
from metaquorum.net.methods import Method
from metaquorum.net.peers import Peers
from metaquorum.net.service import RefusalError
from metaquorum.raft.events import Failure
from metaquorum.raft.messages import FetchResponse, Request, Response
from metaquorum.raft_codec import quorum_codec as codec
from metaquorum.replica.quorum_transport import PeerFailureError, QuorumTransport
from metaquorum.testing.scripted_node import ScriptedNode
from metaquorum.testing.void_server import VoidServer
from metaquorum.tests.quorum_cluster import until

CLUSTER = "transport"
WAIT_S, WAIT_MS, LONG_MS = 30.0, 30_000, 600_000
SHORT_MS = 100
SUSPICIOUS = replace(Limits(), ping_after_ms=LONG_MS, liveness_ms=LONG_MS, suspect_ms=50)
"""Limits under which only an unanswered call makes a connection suspect, and then soon."""

Answer: TypeAlias = "asyncio.Future[Response | PeerFailureError]"

GOODBYE_BYTES = 200
"""Largest size of the reason with which a connection is closed."""

SNAPSHOT = pb.FetchSnapshotRequest(cluster_id=CLUSTER)


def fetched(offset: int) -> bytes:
    """Return an answer that a test can recognize."""
    return pb.FetchQuorumResponse(quorum_epoch=1, log_start_offset=offset).SerializeToString()


class Peer:
    """A voter whose answers the test chooses, and that can stop at once."""

    def __init__(self, cluster_id: str = CLUSTER) -> None:
        self.asked: list[ServedCall] = []
        self.answer: Callable[[ServedCall], None] = lambda call: call.respond(fetched(offset_of(call)))
        self.serve: Callable[[Stream], Awaitable[None]] = never
        self.ended: list[str] = []
        self.connection_count = 0
        self.address = ""
        self._cluster_id = cluster_id
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        own = Identity(cluster_id=self._cluster_id, node_id=2, incarnation_id=bytes(16), address=self.address)
        methods = (Method.PROBE, Method.VOTE, Method.FETCH_QUORUM)
        self._peers = Peers(
            own,
            Services(
                requests=dict.fromkeys(methods, self._ask),
                streams={Method.FETCH_SNAPSHOT: (self._begin, 1_000)},
                unknown=RefusalError(ErrorCode.INVALID_REQUEST, "unknown").encode(),
            ),
        )

    async def close(self) -> None:
        """Stop. Idempotent."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await self._peers.close()

    def _accept(self) -> asyncio.Protocol:
        self.connection_count += 1
        return self._peers.accept()

    def _ask(self, call: ServedCall) -> None:
        self.asked.append(call)
        self.answer(call)

    def _begin(self, stream: Stream) -> None:
        task = asyncio.ensure_future(self._serve(stream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: Stream) -> None:
        try:
            await self.serve(stream)
        except CallError as error:
            self.ended.append(type(error).__name__)
        else:
            stream.end()


def offset_of(call: ServedCall) -> int:
    """The offset that is fetched from."""
    return pb.FetchQuorumRequest.FromString(call.message).fetch_offset


async def never(_: Stream) -> None:
    """Send nothing."""
    await asyncio.Event().wait()


@asynccontextmanager
async def running(peer: Peer) -> AsyncIterator[Peer]:
    """Run a peer."""
    await peer.start()
    try:
        yield peer
    finally:
        await peer.close()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """A peer that answers fetches."""
    async with running(Peer()) as made:
        yield made


@pytest.fixture
async def carrier() -> AsyncIterator[Carrier]:
    """The connections of this node."""
    made = Carrier(cluster_id=CLUSTER, node_id=1, limits=SUSPICIOUS)
    await made.start(None)
    yield made
    await made.close()


@pytest.fixture
def transport(carrier: Carrier) -> QuorumTransport:
    """Requests over them."""
    return QuorumTransport(carrier.peers)


def send(transport: QuorumTransport, address: str, request: Request, *, timeout_ms: int = WAIT_MS) -> Answer:
    """Send a request; a second answer fails the test."""
    answer: Answer = asyncio.get_running_loop().create_future()
    is_sent = False

    def take(outcome: Response | PeerFailureError) -> None:
        assert is_sent, "told before it was sent"
        answer.set_result(outcome)

    transport.send(address, request, timeout_ms=timeout_ms, on_answer=take)
    is_sent = True
    return answer


def fetch(transport: QuorumTransport, address: str, offset: int, *, timeout_ms: int = WAIT_MS) -> Answer:
    """Fetch from an offset."""
    request = ScriptedNode().fetch_request(2, offset=offset, last_epoch=0, epoch=1)
    return send(transport, address, request, timeout_ms=timeout_ms)


async def offset_in(answer: Answer) -> int:
    """Return which answer it is."""
    response = await within(answer)
    assert isinstance(response, FetchResponse), response
    return response.log_start_offset


async def failure_in(answer: Answer) -> PeerFailureError:
    """Return how a request failed."""
    outcome = await within(answer)
    assert isinstance(outcome, PeerFailureError), outcome
    return outcome


async def within(answer: Answer) -> Response | PeerFailureError:
    """Wait for an outcome, with a time limit."""
    async with asyncio.timeout(WAIT_S):
        return await answer


def vote(transport: QuorumTransport, address: str, *, timeout_ms: int = WAIT_MS) -> Answer:
    """Ask for a vote."""
    return send(transport, address, ScriptedNode().vote_request(2, 1), timeout_ms=timeout_ms)


async def download(
    transport: QuorumTransport, address: str, *, timeout_ms: int = WAIT_MS
) -> list[pb.FetchSnapshotResponse]:
    """Fetch a whole snapshot."""
    async with asyncio.timeout(WAIT_S):
        return [piece async for piece in transport.fetch_snapshot(address, SNAPSHOT, timeout_ms=timeout_ms)]


async def download_failure(transport: QuorumTransport, address: str, *, timeout_ms: int = WAIT_MS) -> Failure:
    """Fetch a snapshot, which fails."""
    with pytest.raises(PeerFailureError) as error:
        await download(transport, address, timeout_ms=timeout_ms)
    return error.value.failure


async def test_many_fetches_share_a_connection_and_each_gets_its_own_answer(
    transport: QuorumTransport, peer: Peer
) -> None:
    """The order of the answers does not matter."""
    held: list[ServedCall] = []
    peer.answer = held.append
    answers = [fetch(transport, peer.address, offset) for offset in range(20)]
    await until(lambda: len(held) == 20, what="all fetches")
    for call in reversed(held):
        call.respond(fetched(offset_of(call)))
    assert [await offset_in(answer) for answer in answers] == list(range(20))
    assert peer.connection_count == 1


async def test_late_answer_does_not_count_for_the_next_fetch(transport: QuorumTransport, peer: Peer) -> None:
    """It is dropped, and the connection stays: a slow leader is not a silent one."""
    held: list[ServedCall] = []
    peer.answer = held.append
    late = fetch(transport, peer.address, 1, timeout_ms=SHORT_MS)
    assert (await failure_in(late)).failure is Failure.TIMED_OUT
    again = fetch(transport, peer.address, 2)
    await until(lambda: len(held) == 2, what="the second fetch")
    held[0].respond(fetched(1))
    held[1].respond(fetched(2))
    assert await offset_in(again) == 2
    assert peer.connection_count == 1


async def test_port_without_a_listener_refuses(transport: QuorumTransport) -> None:
    """A dead process is distinguished from a slow one, so that an election need not wait."""
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{gone.getsockname()[1]}"
        assert (await failure_in(vote(transport, address))).failure is Failure.REFUSED
        with pytest.raises(PeerFailureError) as error:
            await transport.probe(address, pb.ProbeRequest(), timeout_ms=WAIT_MS)
        assert error.value.failure is Failure.REFUSED
        assert await download_failure(transport, address) is Failure.REFUSED


async def test_port_that_takes_connections_and_says_nothing_is_slow_at_most(transport: QuorumTransport) -> None:
    """A stopped process does this."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert (await failure_in(vote(transport, address, timeout_ms=SHORT_MS))).failure is Failure.TIMED_OUT
        assert await download_failure(transport, address, timeout_ms=SHORT_MS) is Failure.TIMED_OUT


async def test_silent_peer_times_out_and_gets_a_new_connection(transport: QuorumTransport, carrier: Carrier) -> None:
    """One unanswered call and one unanswered ping; the other calls on that connection then fail early, before their deadlines."""
    async with VoidServer(CLUSTER) as void:
        waiting = fetch(transport, void.address, 1, timeout_ms=LONG_MS)
        link = await carrier.peers.connected(void.address, timeout_ms=WAIT_MS)
        assert (await failure_in(vote(transport, void.address, timeout_ms=SHORT_MS))).failure is Failure.TIMED_OUT
        assert (await failure_in(waiting)).failure is Failure.TIMED_OUT
        await link.closed
        assert void.connection_count == 1
        assert (await failure_in(vote(transport, void.address, timeout_ms=SHORT_MS))).failure is Failure.TIMED_OUT
        assert void.connection_count == 2


async def test_peer_that_dies_under_requests_refuses(transport: QuorumTransport, peer: Peer) -> None:
    """Waiting requests and downloads fail at once."""
    peer.answer = lambda _: None
    answers = [fetch(transport, peer.address, 1, timeout_ms=LONG_MS), vote(transport, peer.address, timeout_ms=LONG_MS)]
    downloading = asyncio.create_task(download(transport, peer.address, timeout_ms=LONG_MS))
    await until(lambda: len(peer.asked) == 2, what="the requests")
    await peer.close()
    for answer in answers:
        assert (await failure_in(answer)).failure is Failure.REFUSED
    with pytest.raises(PeerFailureError) as error:
        await downloading
    assert error.value.failure is Failure.REFUSED
    assert (await failure_in(vote(transport, peer.address))).failure is Failure.REFUSED


def said_first(void: VoidServer) -> int:
    """Size of the greeting and the HELLO on its first connection, from the frame's length."""
    begin = len(GREETING)
    return begin + 4 + int.from_bytes(void.taken[begin : begin + 4], "big")


async def test_connection_that_breaks_is_a_refusal(transport: QuorumTransport) -> None:
    """The other side closes without a goodbye, as after kill -9."""
    async with VoidServer(CLUSTER) as void:
        answer = fetch(transport, void.address, 1, timeout_ms=LONG_MS)
        await until(lambda: len(void.taken) > said_first(void), what="the request")
        void.close()
        assert (await failure_in(answer)).failure is Failure.REFUSED


async def test_server_of_another_cluster_is_told_apart(transport: QuorumTransport) -> None:
    """A first start fails with the reason; requests stay unanswered."""
    async with running(Peer("other")) as stranger:
        failures = [await failure_in(vote(transport, stranger.address))]
        await asyncio.sleep(0.15)
        with pytest.raises(PeerFailureError) as error:
            await transport.probe(stranger.address, pb.ProbeRequest(), timeout_ms=WAIT_MS)
        failures.append(error.value)
        for failure in failures:
            assert failure.is_wrong_cluster
            assert failure.failure is Failure.TIMED_OUT
            assert "other" in str(failure)
        assert stranger.asked == []


async def test_other_program_at_the_port_is_told_nothing(transport: QuorumTransport) -> None:
    """A server that sends no greeting does not count as a peer, and gets no request."""
    async with VoidServer(CLUSTER, says=b"HTTP/1.1 400 Bad Request\r\n\r\n") as other:
        failure = await failure_in(vote(transport, other.address))
        assert failure.failure is Failure.TIMED_OUT
        assert not failure.is_wrong_cluster
        await asyncio.sleep(0.05)
        assert bytes(other.taken).startswith(GREETING)
        assert b"candidate" not in bytes(other.taken)
        assert len(other.taken) <= said_first(other) + GOODBYE_BYTES


@pytest.mark.parametrize(
    "nonsense",
    [b"\xff\xff\xff", pb.FetchQuorumResponse(quorum_epoch=-5).SerializeToString()],
    ids=["no message", "out of range"],
)
async def test_answer_that_is_none_counts_as_lost(transport: QuorumTransport, peer: Peer, nonsense: bytes) -> None:
    """The request may have been handled; the connection and the next request are not affected."""
    peer.answer = lambda call: call.respond(nonsense)
    failure = await failure_in(fetch(transport, peer.address, 1))
    assert failure.failure is Failure.TIMED_OUT
    assert "nonsense" in str(failure)
    peer.answer = lambda call: call.respond(fetched(7))
    assert await offset_in(fetch(transport, peer.address, 2)) == 7
    assert peer.connection_count == 1


async def test_fault_in_the_reading_of_an_answer_is_told_as_a_lost_one(
    transport: QuorumTransport, peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica that never learned the outcome of its fetch would never fetch again."""

    def faulty(_: object) -> FetchResponse:
        raise RuntimeError("a fault of this process")

    with monkeypatch.context() as patch:
        patch.setattr(codec, "decode_fetch_response", faulty)
        assert (await failure_in(fetch(transport, peer.address, 1))).failure is Failure.TIMED_OUT
    assert [record for record in caplog.records if record.exc_info]
    assert await offset_in(fetch(transport, peer.address, 2)) == 2


async def test_probe_answered_with_nonsense_counts_as_lost(transport: QuorumTransport, peer: Peer) -> None:
    """Other requests behave the same."""
    peer.answer = lambda call: call.respond(b"\xff\xff\xff")
    with pytest.raises(PeerFailureError) as error:
        await transport.probe(peer.address, pb.ProbeRequest(), timeout_ms=WAIT_MS)
    assert error.value.failure is Failure.TIMED_OUT


async def test_refusal_of_a_peer_is_one(transport: QuorumTransport, peer: Peer) -> None:
    """From a peer that stops, and from one without such a method."""
    peer.answer = lambda call: call.fail(RefusalError(ErrorCode.SHUTTING_DOWN, "it stops").encode())
    failure = await failure_in(fetch(transport, peer.address, 1))
    assert failure.failure is Failure.REFUSED
    assert "it stops" in str(failure)
    with pytest.raises(PeerFailureError, match="it stops"):
        await transport.probe(peer.address, pb.ProbeRequest(), timeout_ms=WAIT_MS)
    begin = send(transport, peer.address, ScriptedNode().begin_request(2, 1))
    assert (await failure_in(begin)).failure is Failure.REFUSED


async def test_outcome_comes_after_the_request_also_when_nothing_can_be_sent(peer: Peer) -> None:
    """`send` reports later, so that the sending core is not called within its own step."""
    own = Carrier(cluster_id=CLUSTER, node_id=1, limits=replace(Limits(), open_calls=1))
    await own.start(None)
    peer.answer = lambda _: None
    try:
        transport = QuorumTransport(own.peers)
        await own.peers.connected(peer.address, timeout_ms=WAIT_MS)
        first = fetch(transport, peer.address, 1, timeout_ms=LONG_MS)
        second = fetch(transport, peer.address, 2, timeout_ms=LONG_MS)
        assert (await failure_in(second)).failure is Failure.TIMED_OUT
        assert not first.done()
    finally:
        await own.close()
    assert (await failure_in(first)).failure is Failure.REFUSED
    assert (await failure_in(fetch(transport, peer.address, 3))).failure is Failure.TIMED_OUT


def piece_of(data: bytes) -> bytes:
    """A message of a snapshot that has some bytes."""
    return pb.FetchSnapshotResponse(header=pb.SnapshotHeader(voters_record=data)).SerializeToString()


async def pieces(stream: Stream) -> None:
    """Send three."""
    for number in range(3):
        await stream.write(piece_of(b"%d" % number))


async def test_snapshot_comes_in_pieces_to_its_end(transport: QuorumTransport, peer: Peer) -> None:
    """The second download uses the same connection."""
    peer.serve = pieces
    assert [piece.header.voters_record for piece in await download(transport, peer.address)] == [b"0", b"1", b"2"]
    assert [piece.header.voters_record for piece in await download(transport, peer.address)] == [b"0", b"1", b"2"]
    assert peer.connection_count == 1


async def test_silent_snapshot_download_ends_and_costs_nobody_else(transport: QuorumTransport, peer: Peer) -> None:
    """The time limit is per piece. The server's side learns of the end, and the connection carries other requests."""
    may_end = asyncio.Event()

    async def two_and_silence(stream: Stream) -> None:
        for number in range(2):
            await asyncio.sleep(0.1)
            await stream.write(piece_of(b"%d" % number))
        with pytest.raises(CallError):
            await stream.read()
        may_end.set()

    peer.serve = two_and_silence
    async with aclosing(transport.fetch_snapshot(peer.address, SNAPSHOT, timeout_ms=1_000)) as messages:
        assert [(await anext(messages)).header.voters_record for _ in range(2)] == [b"0", b"1"]
        with pytest.raises(PeerFailureError) as error:
            await anext(messages)
    assert error.value.failure is Failure.TIMED_OUT
    async with asyncio.timeout(WAIT_S):
        await may_end.wait()
    assert await offset_in(fetch(transport, peer.address, 4)) == 4
    assert peer.connection_count == 1


async def test_download_that_is_given_up_ends_its_server(transport: QuorumTransport, peer: Peer) -> None:
    """Otherwise it would wait for ever for room to write."""

    async def endless(stream: Stream) -> None:
        while True:
            await stream.write(piece_of(bytes(100_000)))

    peer.serve = endless
    async with aclosing(transport.fetch_snapshot(peer.address, SNAPSHOT, timeout_ms=WAIT_MS)) as messages:
        await anext(messages)
    await until(lambda: peer.ended == ["UnansweredError"], what="the end of the server's part")


async def test_snapshot_of_nonsense_or_with_a_refusal_fails(transport: QuorumTransport, peer: Peer) -> None:
    """Each as a request would."""

    async def nonsense(stream: Stream) -> None:
        await stream.write(b"\xff\xff\xff")

    async def refuse(stream: Stream) -> None:
        stream.fail(RefusalError(ErrorCode.OVERLOADED, "later").encode())

    peer.serve = nonsense
    assert await download_failure(transport, peer.address) is Failure.TIMED_OUT
    peer.serve = refuse
    assert await download_failure(transport, peer.address) is Failure.REFUSED

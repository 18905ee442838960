# SPDX-License-Identifier: Apache-2.0
"""Fetches on one stream: one call for many, an end when no answer comes, plain calls for a peer that knows no stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.raft.events import Failure
from metaquorum.raft.messages import FetchRequest, FetchResponse, Refusal, Request
from metaquorum.raft.types import Offset, QuorumEpoch
from metaquorum.rpc.quorum_service import QuorumServicer
from metaquorum.runtime.driver import Answer, StoppedError
from metaquorum.runtime.transport import GrpcTransport, PeerFailureError
from metaquorum.testing.scripted_node import CLUSTER_ID, key

STOPPED_OFFSET = 1_000
"""A fetch from here on finds a node that is about to stop."""

SILENT_OFFSET = 2_000
"""A fetch from here on is never answered."""


class Peer(QuorumServicer):
    """A node that says in the log start which offset was asked for, and counts calls.

    Attributes:
        stream_count: streams that were opened, and not refused.
        asked: one entry for each fetch that is never answered.
        ended: one entry for each stream that ended.
        calls: offsets that came by calls of their own.
        has_streams: False: a version that knows no streams.
        is_away: True: every call is answered as if nobody listened.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attach(self)
        self.stream_count = 0
        self.asked = asyncio.Queue[None]()
        self.ended = asyncio.Queue[None]()
        self.calls: list[int] = []
        self.has_streams = True
        self.is_away = False
        self.address = ""
        self._server = grpc.aio.server()

    async def open(self) -> None:
        """Listen."""
        self.add_to(self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def close(self) -> None:
        """Stop at once."""
        await self._server.stop(None)

    async def FetchQuorum(
        self,
        request: pb.FetchQuorumRequest,
        context: grpc.aio.ServicerContext[pb.FetchQuorumRequest, pb.FetchQuorumResponse],
    ) -> pb.FetchQuorumResponse:
        """Count it."""
        self.calls.append(request.fetch_offset)
        if self.is_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "nobody is here")
        return await super().FetchQuorum(request, context)

    async def FollowQuorum(
        self,
        request_iterator: AsyncIterator[pb.FollowQuorumRequest],
        context: grpc.aio.ServicerContext[pb.FollowQuorumRequest, pb.FollowQuorumResponse],
    ) -> None:
        """Count it."""
        if not self.has_streams:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "what is that")
        self.stream_count += 1
        try:
            await super().FollowQuorum(request_iterator, context)
        finally:
            self.ended.put_nowait(None)

    async def handle_request(self, request: Request) -> Answer:
        """Answer a fetch."""
        assert isinstance(request, FetchRequest), f"{request} is no fetch"
        if request.fetch_offset >= SILENT_OFFSET:
            self.asked.put_nowait(None)
            await asyncio.get_running_loop().create_future()
        if request.fetch_offset >= STOPPED_OFFSET:
            raise StoppedError("about to stop")
        return Answer(
            response=FetchResponse(
                quorum_epoch=request.quorum_epoch,
                leader_id=None,
                leader_address=None,
                log_start_offset=request.fetch_offset,
            )
        )

    def handle_snapshot(self, request: pb.FetchSnapshotRequest) -> AsyncIterator[pb.FetchSnapshotResponse]:
        """Nobody asks."""
        raise StoppedError("no snapshots")

    def handle_probe(self, request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Nobody asks."""
        raise StoppedError("no probes")


@pytest.fixture
async def transport() -> AsyncIterator[GrpcTransport]:
    """A transport that is closed at the end."""
    made = GrpcTransport()
    yield made
    await made.close()


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """A peer that listens."""
    made = Peer()
    await made.open()
    yield made
    await made.close()


def request_at(offset: int, *, max_wait_ms: int = 400) -> FetchRequest:
    """A fetch."""
    return FetchRequest(
        cluster_id=CLUSTER_ID,
        quorum_epoch=QuorumEpoch(1),
        replica=key(2),
        fetch_offset=Offset(offset),
        last_fetched_epoch=QuorumEpoch(1),
        high_watermark=None,
        max_bytes=1_000,
        max_wait_ms=max_wait_ms,
        replica_address=None,
    )


async def fetch(
    transport: GrpcTransport, peer: Peer, offset: int, *, timeout_ms: int = 10_000, max_wait_ms: int = 400
) -> FetchResponse:
    """Fetch from the peer."""
    request = request_at(offset, max_wait_ms=max_wait_ms)
    response = await transport.call(peer.address, request, timeout_ms=timeout_ms)
    assert isinstance(response, FetchResponse)
    return response


async def failure_of(transport: GrpcTransport, peer: Peer, offset: int, *, timeout_ms: int = 10_000) -> Failure:
    """How a fetch from the peer fails."""
    with pytest.raises(PeerFailureError) as error:
        await fetch(transport, peer, offset, timeout_ms=timeout_ms)
    return error.value.failure


async def test_fetches_share_a_stream(transport: GrpcTransport, peer: Peer) -> None:
    """Any number of fetches costs one call, and each gets its own answer."""
    for offset in range(1, 20):
        assert (await fetch(transport, peer, offset)).log_start_offset == offset
    assert (peer.stream_count, peer.calls) == (1, [])


async def test_fetch_that_does_not_wait_is_a_call(transport: GrpcTransport, peer: Peer) -> None:
    """Looking for the leader leaves no stream behind at everybody who was asked."""
    assert (await fetch(transport, peer, 7, max_wait_ms=0)).log_start_offset == 7
    assert (peer.stream_count, peer.calls) == (0, [7])


async def test_second_fetch_meanwhile_is_a_call(transport: GrpcTransport, peer: Peer) -> None:
    """An answer belongs to the fetch before it, so that nobody else may ask on the stream until it comes."""
    late = asyncio.ensure_future(failure_of(transport, peer, SILENT_OFFSET))
    await peer.asked.get()
    assert (await fetch(transport, peer, 8)).log_start_offset == 8
    assert (peer.stream_count, peer.calls) == (1, [8])
    await peer.close()
    assert await late is Failure.REFUSED


async def test_silence_ends_the_stream(transport: GrpcTransport, peer: Peer) -> None:
    """The answer to a fetch that was given up never counts for the next one."""
    assert await failure_of(transport, peer, SILENT_OFFSET, timeout_ms=200) is Failure.TIMED_OUT
    await peer.ended.get()
    assert (await fetch(transport, peer, 9)).log_start_offset == 9
    assert peer.stream_count == 2


async def test_node_that_stops_ends_the_stream(transport: GrpcTransport, peer: Peer) -> None:
    """It says so first, and need not wait for its followers; the next fetch asks anew."""
    assert (await fetch(transport, peer, STOPPED_OFFSET)).refusal is Refusal.UNAVAILABLE
    await peer.ended.get()
    for offset in (10, 11):
        assert (await fetch(transport, peer, offset)).log_start_offset == offset
    assert peer.stream_count == 2


async def test_nonsense_is_refused_and_the_stream_goes_on(peer: Peer) -> None:
    """A fetch that no correct peer sends is answered at the door."""
    async with grpc.aio.insecure_channel(peer.address) as channel:
        answers = [
            answer.answer.error
            async for answer in channel.stream_stream(
                "/lograft.internal.v1.QuorumService/FollowQuorum",
                request_serializer=pb.FollowQuorumRequest.SerializeToString,
                response_deserializer=pb.FollowQuorumResponse.FromString,
            )([pb.FollowQuorumRequest(), pb.FollowQuorumRequest()])
        ]
    assert answers == [pb.QUORUM_ERROR_INVALID_REQUEST] * 2
    assert peer.stream_count == 1


async def test_peer_that_is_gone_refuses(transport: GrpcTransport, peer: Peer) -> None:
    """As with plain calls: a broken connection is told apart from silence."""
    assert (await fetch(transport, peer, 12)).log_start_offset == 12
    await peer.close()
    assert await failure_of(transport, peer, 13) is Failure.REFUSED


async def test_stream_to_the_former_leader_ends(transport: GrpcTransport, peer: Peer) -> None:
    """A node follows one leader; a stream that nobody uses would hold up the stop of the other one."""
    other = Peer()
    await other.open()
    await fetch(transport, peer, 14)
    await fetch(transport, other, 15)
    await peer.ended.get()
    assert (peer.stream_count, other.stream_count) == (1, 1)
    await other.close()


async def test_older_peer_is_asked_by_calls(transport: GrpcTransport, peer: Peer) -> None:
    """A version without streams answers all the same, and is not asked for one again until it was away."""
    peer.has_streams = False
    for offset in (16, 17):
        assert (await fetch(transport, peer, offset)).log_start_offset == offset
    assert (peer.stream_count, peer.calls) == (0, [16, 17])
    peer.is_away = True
    assert await failure_of(transport, peer, 18) is Failure.REFUSED
    peer.is_away, peer.has_streams = False, True
    assert (await fetch(transport, peer, 19)).log_start_offset == 19
    assert (peer.stream_count, peer.calls) == (1, [16, 17, 18])

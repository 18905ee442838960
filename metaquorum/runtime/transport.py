# SPDX-License-Identifier: Apache-2.0
"""Requests to peers over gRPC: one channel for each address, a deadline for each call, quick redialling.

Owns channels and the mapping of gRPC failures to the two that the core knows. Decides nothing and never retries: the
core does. Fetches that wait at a leader go over a plain connection (`fetch_link`) once it is there, before that and where it
cannot be had over one stream (`fetch_stream`), everything else by a call of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.internal.v1.quorum_pb2_grpc import QuorumServiceStub
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from metaquorum.raft.events import Failure
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    PreVoteRequest,
    Refusal,
    Request,
    Response,
    UpdateVoterRequest,
    VoteRequest,
)
from metaquorum.runtime import quorum_codec as codec
from metaquorum.runtime.fetch_link import Outcome, PeerLink
from metaquorum.runtime.fetch_stream import FetchStream, StreamEndedError
from metaquorum.runtime.wire_fields import InvalidMessageError

if TYPE_CHECKING:
    # A name of the type stubs alone: at run time one class serves both kinds of channel.
    from lograft.internal.v1.quorum_pb2_grpc import QuorumServiceAsyncStub

logger = logging.getLogger(__name__)

MAX_CHANNELS = 64
"""Most open channels; the one used longest ago is closed for a new one."""

MAX_TIMEOUTS_IN_A_ROW = 2
"""A peer that leaves so many requests in a row without an answer gets new connections."""

RESOLVE_MS = 500
"""Milliseconds between two look-ups of the name of a peer that cannot be reached, at least; gRPC's own is 30 seconds."""

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
    # A restarted peer must be found within a fraction of an election; the defaults are 1 s to 2 minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    # One that comes back under another address (a pod does) must be found there as soon.
    ("grpc.dns_min_time_between_resolutions_ms", RESOLVE_MS),
    # A new channel is to be a new connection, not the one of the channel that was given up.
    ("grpc.use_local_subchannel_pool", 1),
    # Peers are named by address; a proxy of the environment must not come between them.
    ("grpc.enable_http_proxy", 0),
)


class PeerFailureError(Exception):
    """A request to a peer got no answer that can be used."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


@dataclass(slots=True)
class _Peer:
    """The ways to one address, and how many requests in a row each has left without an answer.

    An answer on one way says nothing of the other: the count of each way begins anew with its own answers alone.
    """

    channel: grpc.aio.Channel
    stub: QuorumServiceAsyncStub
    fetches: FetchStream
    link: PeerLink
    has_streams: bool = True
    channel_timeouts: int = 0
    link_timeouts: int = 0


class GrpcTransport:
    """Channels to the other nodes of the quorum."""

    def __init__(self) -> None:
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._followed: _Peer | None = None

    async def call(self, address: str, request: Request, *, timeout_ms: int) -> Response:
        """Send a request and wait for its response.

        Raises:
            PeerFailureError: no response, or one that no correct peer sends.
        """
        peer = self._peer(address)
        timeout = timeout_ms / 1_000
        try:
            if isinstance(request, FetchRequest):
                response = await self._fetch(peer, request, timeout)
            else:
                response = await _call(peer.stub, request, timeout)
        except (TimeoutError, StreamEndedError) as error:
            if isinstance(error, StreamEndedError):
                raise PeerFailureError(Failure.REFUSED, f"{address}: {error}") from error
            peer.channel_timeouts += 1
            self._give_up_if_silent(address, peer)
            raise PeerFailureError(Failure.TIMED_OUT, f"{address} did not answer for {timeout_ms} ms") from error
        except grpc.aio.AioRpcError as error:
            raise self._failure(address, peer, error) from error
        except InvalidMessageError as error:
            raise self._nonsense(address, error) from error
        peer.channel_timeouts = 0
        return response

    def fetch_by_link(
        self,
        address: str,
        request: FetchRequest,
        *,
        timeout_ms: int,
        on_answer: Callable[[Response | PeerFailureError], None],
    ) -> bool:
        """Send a fetch over the plain connection to the peer, if it is there; the outcome is told once, later.

        Returns:
            False: it is not there, and nothing was sent; use `call`.
        """
        peer = self._peers.get(address)
        if peer is None or request.max_wait_ms == 0 or not peer.link.is_ready:
            return False
        self._peers.move_to_end(address)
        self._follow(peer)
        # Not needed any more; while a late answer is awaited there, it ends by itself.
        if not peer.fetches.is_busy:
            peer.fetches.close()

        def told(outcome: Outcome) -> None:
            on_answer(self._by_link(address, peer, outcome, timeout_ms))

        message = codec.encode_fetch_request(request).SerializeToString()
        peer.link.send(message, timeout_s=timeout_ms / 1_000, on_answer=told)
        return True

    def _by_link(self, address: str, peer: _Peer, outcome: Outcome, timeout_ms: int) -> Response | PeerFailureError:
        if isinstance(outcome, bytes):
            try:
                response = codec.decode_fetch_response(pb.FetchQuorumResponse.FromString(outcome))
            except (InvalidMessageError, DecodeError) as error:
                peer.link.close()
                return self._nonsense(address, error)
            peer.link_timeouts = 0
            if response.refusal is Refusal.UNAVAILABLE:
                # A node that is about to stop closes its side after it has said so.
                peer.link.close()
            return response
        if isinstance(outcome, TimeoutError):
            peer.link_timeouts += 1
            self._give_up_if_silent(address, peer)
            return PeerFailureError(Failure.TIMED_OUT, f"{address} did not answer for {timeout_ms} ms")
        # As when a stream breaks: the process is gone, or about to stop.
        return PeerFailureError(Failure.REFUSED, f"{address}: {outcome}")

    @staticmethod
    def _nonsense(address: str, error: Exception) -> PeerFailureError:
        logger.error("event=bad_response peer=%s error=%s", address, error)
        return PeerFailureError(Failure.TIMED_OUT, f"{address} answered nonsense: {error}")

    async def _fetch(self, peer: _Peer, request: FetchRequest, timeout: float) -> Response:
        message = codec.encode_fetch_request(request)
        # One that does not wait only looks for the leader. While a late answer is still awaited, the stream is taken.
        if peer.has_streams and request.max_wait_ms > 0 and not peer.fetches.is_busy:
            self._follow(peer)
            try:
                answer = await peer.fetches.fetch(message, timeout_s=timeout)
                if answer.fetch_port and peer is self._followed:
                    peer.link.offer(answer.fetch_port)
                return codec.decode_fetch_response(answer)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                peer.has_streams = False
        return codec.decode_fetch_response(await peer.stub.FetchQuorum(message, timeout=timeout))

    def _follow(self, peer: _Peer) -> None:
        """One stream at a time: a node follows one leader, and the former one must not wait for it when it stops."""
        followed, self._followed = self._followed, peer
        if followed is not None and followed is not peer:
            followed.fetches.close()
            followed.link.close()

    async def probe(self, address: str, request: pb.ProbeRequest, *, timeout_ms: int) -> pb.ProbeResponse:
        """Ask a peer who it is.

        Raises:
            PeerFailureError: no response.
        """
        peer = self._peer(address)
        try:
            return await peer.stub.Probe(request, timeout=timeout_ms / 1_000)
        except grpc.aio.AioRpcError as error:
            raise self._failure(address, peer, error) from error

    async def fetch_snapshot(
        self, address: str, request: pb.FetchSnapshotRequest, *, timeout_ms: int
    ) -> AsyncGenerator[pb.FetchSnapshotResponse]:
        """Ask a peer for a snapshot; `timeout_ms` is for each message.

        Raises:
            PeerFailureError: no message in time, or the stream broke.
        """
        peer = self._peer(address)
        call = peer.stub.FetchSnapshot(request)
        try:
            while True:
                async with asyncio.timeout(timeout_ms / 1_000):
                    message = await call.read()
                if not isinstance(message, pb.FetchSnapshotResponse):
                    return
                peer.channel_timeouts = 0
                yield message
        except TimeoutError as error:
            peer.channel_timeouts += 1
            self._give_up_if_silent(address, peer)
            raise PeerFailureError(Failure.TIMED_OUT, f"{address} sent no piece for {timeout_ms} ms") from error
        except grpc.aio.AioRpcError as error:
            raise self._failure(address, peer, error) from error
        finally:
            call.cancel()

    async def close(self) -> None:
        """Close all channels; calls under way fail."""
        for peer in self._peers.values():
            self._retire(peer)
        self._peers.clear()
        await asyncio.gather(*self._closing)

    def _peer(self, address: str) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            stub = QuorumServiceStub(channel)
            peer = _Peer(channel, stub, FetchStream(stub), PeerLink(address))
            self._peers[address] = peer
            if len(self._peers) > MAX_CHANNELS:
                self._retire(self._peers.popitem(last=False)[1])
        self._peers.move_to_end(address)
        return peer

    def _failure(self, address: str, peer: _Peer, error: grpc.aio.AioRpcError) -> PeerFailureError:
        is_refused = error.code() is grpc.StatusCode.UNAVAILABLE
        if is_refused:
            # Whoever comes back at this address may be of a newer version.
            peer.has_streams = True
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            peer.channel_timeouts += 1
            self._give_up_if_silent(address, peer)
        failure = Failure.REFUSED if is_refused else Failure.TIMED_OUT
        return PeerFailureError(failure, f"{address}: {error.code().name} {error.details()}")

    def _give_up_if_silent(self, address: str, peer: _Peer) -> None:
        """Give a peer's connections up when they only swallow requests.

        After a partition TCP would go on resending into the void for minutes, while a new connection works at once.
        """
        if peer.channel_timeouts + peer.link_timeouts >= MAX_TIMEOUTS_IN_A_ROW and self._peers.get(address) is peer:
            del self._peers[address]
            self._retire(peer)

    def _retire(self, peer: _Peer) -> None:
        peer.link.close()
        task = asyncio.get_running_loop().create_task(peer.channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _call(
    stub: QuorumServiceAsyncStub,
    request: VoteRequest | PreVoteRequest | BeginQuorumEpochRequest | EndQuorumEpochRequest | UpdateVoterRequest,
    timeout: float,
) -> Response:
    match request:
        case VoteRequest() | PreVoteRequest():
            vote = await stub.Vote(codec.encode_vote_request(request), timeout=timeout)
            return codec.decode_vote_response(vote)
        case BeginQuorumEpochRequest():
            begun = await stub.BeginQuorumEpoch(codec.encode_begin_request(request), timeout=timeout)
            return codec.decode_begin_response(begun)
        case EndQuorumEpochRequest():
            ended = await stub.EndQuorumEpoch(codec.encode_end_request(request), timeout=timeout)
            return codec.decode_end_response(ended)
        case UpdateVoterRequest():
            updated = await stub.UpdateVoter(codec.encode_update_request(request), timeout=timeout)
            return codec.decode_update_response(updated)

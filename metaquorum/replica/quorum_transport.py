# SPDX-License-Identifier: Apache-2.0
"""Requests of a quorum node to its peers, over the connections of its process.

Owns the mapping from the outcomes of a call to the two failures that the core knows. Decides nothing and never retries: the core
does.
Source: docs/net.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final

from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.wire.codes import ErrorCode

from metaquorum.net.connection import Loss
from metaquorum.net.link import CallError, Outcome, RefusedByPeerError, UnansweredError
from metaquorum.net.methods import Method
from metaquorum.net.peers import NotSentError, Peers
from metaquorum.net.service import decode_refusal
from metaquorum.raft.events import Failure
from metaquorum.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchRequest,
    PreVoteRequest,
    Request,
    Response,
    UpdateVoterRequest,
    VoteRequest,
)
from metaquorum.raft_codec import quorum_codec as codec
from metaquorum.raft_codec.wire_fields import InvalidMessageError

logger = logging.getLogger(__name__)

SNAPSHOT_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a snapshot that its server may send ahead of the reader."""


class PeerFailureError(Exception):
    """A request to a peer got no usable answer.

    Attributes:
        failure: REFUSED: the process is gone or does not serve; TIMED_OUT: unknown.
        is_wrong_cluster: True if a server of another cluster answers there.
    """

    def __init__(self, failure: Failure, text: str, *, is_wrong_cluster: bool = False) -> None:
        super().__init__(text)
        self.failure = failure
        self.is_wrong_cluster = is_wrong_cluster


OnAnswer = Callable[[Response | PeerFailureError], None]


class QuorumTransport:
    """Sends requests to the other nodes of the quorum.

    Args:
        peers: connections of this process; its owner closes them.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    def send(self, address: str, request: Request, *, timeout_ms: int, on_answer: OnAnswer) -> None:
        """Send a request. `on_answer` runs once, later, with the response or the failure."""
        method, message, decode = _encoded(request)

        def tell(outcome: Outcome) -> None:
            if isinstance(outcome, CallError):
                on_answer(_failure(address, outcome))
                return
            try:
                response = decode(outcome)
            except (InvalidMessageError, DecodeError) as error:
                on_answer(PeerFailureError(Failure.TIMED_OUT, f"{address} answered nonsense: {error}"))
            except Exception as error:
                # A bug in this process; the caller still needs an outcome.
                logger.exception("event=answer_not_read peer=%s", address)
                on_answer(PeerFailureError(Failure.TIMED_OUT, f"the answer of {address} could not be read: {error!r}"))
            else:
                on_answer(response)

        self._peers.request(address, method, message.SerializeToString(), timeout_ms=timeout_ms, on_outcome=tell)

    async def probe(self, address: str, request: pb.ProbeRequest, *, timeout_ms: int) -> pb.ProbeResponse:
        """Ask a peer for its identity and state.

        Raises:
            PeerFailureError: no usable response.
        """
        try:
            answer = await self._peers.ask(address, Method.PROBE, request.SerializeToString(), timeout_ms=timeout_ms)
            return pb.ProbeResponse.FromString(answer)
        except CallError as error:
            raise _failure(address, error) from error
        except DecodeError as error:
            raise PeerFailureError(Failure.TIMED_OUT, f"{address} answered nonsense: {error}") from error

    async def fetch_snapshot(
        self, address: str, request: pb.FetchSnapshotRequest, *, timeout_ms: int
    ) -> AsyncGenerator[pb.FetchSnapshotResponse]:
        """Fetch a snapshot from a peer. Yield its messages; `timeout_ms` is the limit for each.

        Raises:
            PeerFailureError: no message in time, or the stream failed.
        """
        stream = None
        try:
            stream = await self._peers.open(
                address,
                Method.FETCH_SNAPSHOT,
                request.SerializeToString(),
                window_bytes=SNAPSHOT_WINDOW_BYTES,
                timeout_ms=timeout_ms,
            )
            while True:
                async with asyncio.timeout(timeout_ms / 1000):
                    message = await stream.read()
                if message is None:
                    return
                yield pb.FetchSnapshotResponse.FromString(message)
        except TimeoutError as error:
            raise PeerFailureError(Failure.TIMED_OUT, f"{address} sent no piece for {timeout_ms} ms") from error
        except CallError as error:
            raise _failure(address, error) from error
        except DecodeError as error:
            raise PeerFailureError(Failure.TIMED_OUT, f"{address} answered nonsense: {error}") from error
        finally:
            if stream is not None:
                stream.give_up()


def _failure(address: str, error: CallError) -> PeerFailureError:
    match error:
        case NotSentError(is_refused=is_refused, misfit=misfit):
            is_wrong_cluster = misfit is not None and misfit.code is ErrorCode.WRONG_CLUSTER
            failure = Failure.REFUSED if is_refused else Failure.TIMED_OUT
            return PeerFailureError(failure, str(error), is_wrong_cluster=is_wrong_cluster)
        case RefusedByPeerError(failure=failure):
            return PeerFailureError(Failure.REFUSED, f"{address}: {decode_refusal(failure)}")
        case UnansweredError(loss=Loss.LOST):
            # The process is gone, or about to stop.
            return PeerFailureError(Failure.REFUSED, f"{address}: {error}")
        case _:
            return PeerFailureError(Failure.TIMED_OUT, f"{address}: {error}")


def _encoded(request: Request) -> tuple[Method, Message, Callable[[bytes], Response]]:
    """Return the method of a request, its protobuf message, and the decoder of its response."""
    match request:
        case FetchRequest():
            return Method.FETCH_QUORUM, codec.encode_fetch_request(request), _fetched
        case VoteRequest() | PreVoteRequest():
            return Method.VOTE, codec.encode_vote_request(request), _voted
        case BeginQuorumEpochRequest():
            return Method.BEGIN_QUORUM_EPOCH, codec.encode_begin_request(request), _begun
        case EndQuorumEpochRequest():
            return Method.END_QUORUM_EPOCH, codec.encode_end_request(request), _ended
        case UpdateVoterRequest():
            return Method.UPDATE_VOTER, codec.encode_update_request(request), _updated


def _fetched(answer: bytes) -> Response:
    return codec.decode_fetch_response(pb.FetchQuorumResponse.FromString(answer))


def _voted(answer: bytes) -> Response:
    return codec.decode_vote_response(pb.VoteResponse.FromString(answer))


def _begun(answer: bytes) -> Response:
    return codec.decode_begin_response(pb.BeginQuorumEpochResponse.FromString(answer))


def _ended(answer: bytes) -> Response:
    return codec.decode_end_response(pb.EndQuorumEpochResponse.FromString(answer))


def _updated(answer: bytes) -> Response:
    return codec.decode_update_response(pb.UpdateVoterResponse.FromString(answer))

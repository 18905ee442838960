# SPDX-License-Identifier: Apache-2.0
"""gRPC service of the quorum: protobuf to core messages for its target, and back.

    servicer = QuorumServicer()            # answers UNAVAILABLE until a target is attached
    servicer.add_to(grpc_aio_server)
    servicer.attach(first_start)           # answers Probe only
    servicer.attach(quorum_node)           # answers everything
    servicer.detach()

Owns no decision. What no correct peer sends is answered with INVALID_REQUEST and does not reach the core.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol

import grpc
import grpc.aio
from lograft.internal.v1 import quorum_pb2 as pb
from lograft.internal.v1 import quorum_pb2_grpc as pb_grpc

from metaquorum.raft.messages import (
    BeginQuorumEpochResponse,
    EndQuorumEpochResponse,
    FetchResponse,
    Request,
    UpdateVoterResponse,
    VoteResponse,
)
from metaquorum.rpc.decoding import UNDECODABLE, decoding, undecodable_status
from metaquorum.runtime import quorum_codec as codec
from metaquorum.runtime.driver import Answer, StoppedError
from metaquorum.runtime.wire_fields import InvalidMessageError


class QuorumTarget(Protocol):
    """What answers: a `QuorumNode`, or a `FirstStart` before there is one."""

    async def handle_request(self, request: Request) -> Answer:
        """Answer a peer's request; raises StoppedError when it cannot."""
        ...

    def handle_snapshot(self, request: pb.FetchSnapshotRequest) -> AsyncGenerator[pb.FetchSnapshotResponse]:
        """Serve a snapshot; raises StoppedError when it cannot."""
        ...

    def handle_probe(self, request: pb.ProbeRequest) -> pb.ProbeResponse:
        """Answer a peer's question about this node; raises StoppedError when it cannot."""
        ...


class QuorumServicer(pb_grpc.QuorumServiceServicer):
    """Hands requests to its target.

    Attributes:
        fetch_port: port of the fetch listener of this node, which followers hear of; 0: there is none.
    """

    def __init__(self) -> None:
        self.fetch_port = 0
        self._target: QuorumTarget | None = None

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a gRPC server, before it starts."""
        pb_grpc.add_QuorumServiceServicer_to_server(self, decoding(server))

    def attach(self, target: QuorumTarget) -> None:
        """From here on `target` answers."""
        self._target = target

    def detach(self) -> None:
        """From here on every request is answered with UNAVAILABLE."""
        self._target = None

    async def _ask(self, request: Request) -> Answer:
        if self._target is None:
            raise StoppedError("no node is attached")
        return await self._target.handle_request(request)

    async def Probe(
        self, request: pb.ProbeRequest, context: grpc.aio.ServicerContext[pb.ProbeRequest, pb.ProbeResponse]
    ) -> pb.ProbeResponse:
        """Answer who this node is; there is no in-band refusal, so a node that is not ready refuses the call."""
        try:
            if self._target is None:
                raise StoppedError("no node is attached")
            return self._target.handle_probe(request)
        except StoppedError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"ask again: {error}")

    async def Vote(
        self, request: pb.VoteRequest, context: grpc.aio.ServicerContext[pb.VoteRequest, pb.VoteResponse]
    ) -> pb.VoteResponse:
        """Answer a request for a vote or a pre-vote."""
        try:
            answer = await self._ask(codec.decode_vote_request(request))
        except InvalidMessageError:
            return pb.VoteResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST)
        except StoppedError:
            return pb.VoteResponse(error=pb.QUORUM_ERROR_UNAVAILABLE)
        assert isinstance(answer.response, VoteResponse), f"{answer.response} to a vote request"
        return codec.encode_vote_response(answer.response)

    async def BeginQuorumEpoch(
        self,
        request: pb.BeginQuorumEpochRequest,
        context: grpc.aio.ServicerContext[pb.BeginQuorumEpochRequest, pb.BeginQuorumEpochResponse],
    ) -> pb.BeginQuorumEpochResponse:
        """Answer a leader that makes itself known."""
        try:
            answer = await self._ask(codec.decode_begin_request(request))
        except InvalidMessageError:
            return pb.BeginQuorumEpochResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST)
        except StoppedError:
            return pb.BeginQuorumEpochResponse(error=pb.QUORUM_ERROR_UNAVAILABLE)
        assert isinstance(answer.response, BeginQuorumEpochResponse), f"{answer.response} to a begin request"
        return codec.encode_begin_response(answer.response)

    async def EndQuorumEpoch(
        self,
        request: pb.EndQuorumEpochRequest,
        context: grpc.aio.ServicerContext[pb.EndQuorumEpochRequest, pb.EndQuorumEpochResponse],
    ) -> pb.EndQuorumEpochResponse:
        """Answer a leader that resigns."""
        try:
            answer = await self._ask(codec.decode_end_request(request))
        except InvalidMessageError:
            return pb.EndQuorumEpochResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST)
        except StoppedError:
            return pb.EndQuorumEpochResponse(error=pb.QUORUM_ERROR_UNAVAILABLE)
        assert isinstance(answer.response, EndQuorumEpochResponse), f"{answer.response} to an end request"
        return codec.encode_end_response(answer.response)

    async def FetchQuorum(
        self,
        request: pb.FetchQuorumRequest,
        context: grpc.aio.ServicerContext[pb.FetchQuorumRequest, pb.FetchQuorumResponse],
    ) -> pb.FetchQuorumResponse:
        """Answer a fetch, at once or when there is something to send."""
        return await self._fetch(request)

    async def FollowQuorum(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        request_iterator: AsyncIterator[pb.FollowQuorumRequest],
        context: grpc.aio.ServicerContext[pb.FollowQuorumRequest, pb.FollowQuorumResponse],
    ) -> None:
        """Answer fetches one after the other; the stream ends with the answer of a node that stops."""
        # Reads and writes, and no iterators: a fifth less processor time for each message.
        while (request := await context.read()) is not grpc.aio.EOF:
            if request is UNDECODABLE:
                await context.abort_with_status(undecodable_status())
            answer = await self._fetch(request.fetch)
            await context.write(pb.FollowQuorumResponse(answer=answer))
            if answer.error == pb.QUORUM_ERROR_UNAVAILABLE:
                return

    async def _fetch(self, request: pb.FetchQuorumRequest) -> pb.FetchQuorumResponse:
        try:
            answer = await self._ask(codec.decode_fetch_request(request))
        except InvalidMessageError:
            return pb.FetchQuorumResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST)
        except StoppedError:
            return pb.FetchQuorumResponse(error=pb.QUORUM_ERROR_UNAVAILABLE)
        assert isinstance(answer.response, FetchResponse), f"{answer.response} to a fetch request"
        message = codec.encode_fetch_response(answer.response, answer.batches)
        message.fetch_port = self.fetch_port
        return message

    async def UpdateVoter(
        self,
        request: pb.UpdateVoterRequest,
        context: grpc.aio.ServicerContext[pb.UpdateVoterRequest, pb.UpdateVoterResponse],
    ) -> pb.UpdateVoterResponse:
        """Answer a voter that tells its address."""
        try:
            answer = await self._ask(codec.decode_update_request(request))
        except InvalidMessageError:
            return pb.UpdateVoterResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST)
        except StoppedError:
            return pb.UpdateVoterResponse(error=pb.QUORUM_ERROR_UNAVAILABLE)
        assert isinstance(answer.response, UpdateVoterResponse), f"{answer.response} to an update request"
        return codec.encode_update_response(answer.response)

    async def FetchSnapshot(
        self,
        request: pb.FetchSnapshotRequest,
        context: grpc.aio.ServicerContext[pb.FetchSnapshotRequest, pb.FetchSnapshotResponse],
    ) -> AsyncIterator[pb.FetchSnapshotResponse]:
        """Send a snapshot."""
        try:
            if self._target is None:
                raise StoppedError("no node is attached")
            # A stream that is given up ends here, not when it is collected: its place is for others.
            async with aclosing(self._target.handle_snapshot(request)) as messages:
                async for message in messages:
                    yield message
        except InvalidMessageError:
            yield pb.FetchSnapshotResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST)
        except StoppedError:
            yield pb.FetchSnapshotResponse(error=pb.QUORUM_ERROR_UNAVAILABLE)

# SPDX-License-Identifier: Apache-2.0
"""Fetches to one peer, one after the other on one gRPC stream.

Owns the stream: a message on it costs half of what a call of its own costs, and a follower does nothing but fetch. One fetch
is under way at most, so that an answer belongs to the fetch before it. A fetch without an answer in time ends the stream,
for nobody could tell its answer from the next one's. Knows neither the core's messages nor why a fetch is sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from lograft.internal.v1 import quorum_pb2 as pb

if TYPE_CHECKING:
    # A name of the type stubs alone: at run time one class serves both kinds of channel.
    from lograft.internal.v1.quorum_pb2_grpc import QuorumServiceAsyncStub

Call = grpc.aio.StreamStreamCall[pb.FollowQuorumRequest, pb.FollowQuorumResponse]


class StreamEndedError(Exception):
    """The stream ended without an answer and without a reason: the peer stops, or is gone."""


class FetchStream:
    """The stream of fetches to one peer; opened by the first fetch, and again by the first one after its end."""

    def __init__(self, stub: QuorumServiceAsyncStub) -> None:
        self._stub = stub
        self._call: Call | None = None
        self._is_busy = False

    @property
    def is_busy(self) -> bool:
        """Whether a fetch is under way."""
        return self._is_busy

    async def fetch(self, request: pb.FetchQuorumRequest, *, timeout_s: float) -> pb.FetchQuorumResponse:
        """Send a fetch and wait for its answer.

        Raises:
            TimeoutError: no answer in time.
            StreamEndedError: the peer ended the stream.
            grpc.aio.AioRpcError: the call failed; UNIMPLEMENTED: the peer knows no such stream.
        """
        assert not self._is_busy, "one fetch at a time"
        call = self._call
        if call is None or call.done():
            call = self._call = self._stub.FollowQuorum()
        self._is_busy = True
        answer = None
        try:
            async with asyncio.timeout(timeout_s):
                await _send(call, request)
                answer = await call.read()
        finally:
            self._is_busy = False
            # A node that is about to stop ends the stream after it has said so.
            if not isinstance(answer, pb.FollowQuorumResponse) or answer.answer.error == pb.QUORUM_ERROR_UNAVAILABLE:
                self._drop(call)
        if not isinstance(answer, pb.FollowQuorumResponse):
            raise StreamEndedError("the peer ended the stream")
        return answer.answer

    def close(self) -> None:
        """End the stream; a fetch under way fails."""
        if self._call is not None:
            self._drop(self._call)

    def _drop(self, call: Call) -> None:
        call.cancel()
        if self._call is call:
            self._call = None


async def _send(call: Call, request: pb.FetchQuorumRequest) -> None:
    try:
        await call.write(pb.FollowQuorumRequest(fetch=request))
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INTERNAL:
            raise
        # gRPC's word for a stream that broke while nothing was under way on it, before it has heard how.
        raise StreamEndedError("the stream broke") from error

# SPDX-License-Identifier: Apache-2.0
"""`Replicate` streams to other brokers: opening, and the first exchange.

Owns both, with their time limits. Must not know when anybody tries, nor what is said on a stream behind its opening.
Source: docs/replication.md section "The stream"; docs/net.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from google.protobuf.message import DecodeError
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode

from brokerd.limits import REPLICATE_CONNECT_MS, REPLICATE_OPEN_MS, REPLICATE_WINDOW_BYTES
from brokerd.replication.batches_frame import BatchesFrame, decode_replicate_response
from metaquorum.net.link import CallError, RefusedByPeerError, Stream
from metaquorum.net.methods import Method
from metaquorum.net.peers import NotSentError, Peers
from metaquorum.net.service import decode_refusal
from metaquorum.process.settings import Address


class StreamError(Exception):
    """The stream is of no use any more."""


class StreamRefusedError(Exception):
    """The other broker ended it, with a reason.

    Attributes:
        code: the reason.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class LeaderStream:
    """A stream that is open.

    Args:
        stream: of the carrier.

    Attributes:
        opened: what the leader said first.
    """

    def __init__(self, stream: Stream, opened: pb.ReplicateOpened) -> None:
        self._stream = stream
        self.opened = opened

    async def read(self) -> bytes | None:
        """Return the next message; None: the leader has ended the stream.

        Raises:
            StreamError, StreamRefusedError: it broke.
        """
        try:
            return await self._stream.read()
        except CallError as error:
            raise _failure(error) from error

    async def write(self, message: bytes) -> None:
        """Send a message once the leader has room for it.

        Raises:
            StreamError, StreamRefusedError: it broke.
        """
        try:
            await self._stream.write(message)
        except CallError as error:
            raise _failure(error) from error

    def cancel(self) -> None:
        """End it now."""
        self._stream.give_up()


@asynccontextmanager
async def opened_stream(
    peers: Peers, address: Address, message: bytes, *, leader_id: int | None = None
) -> AsyncGenerator[LeaderStream]:
    """Open a stream; it ends with the context.

    Args:
        peers: connections of this process.
        address: internal port of the leader.
        message: the first message.
        leader_id: who must answer there; None: whoever does.

    Raises:
        StreamError: the leader cannot be reached, or says what it must not.
        StreamRefusedError: it refuses.
        TimeoutError: it does not answer.
    """
    try:
        stream = await peers.open(
            str(address),
            Method.REPLICATE,
            message,
            window_bytes=REPLICATE_WINDOW_BYTES,
            timeout_ms=REPLICATE_CONNECT_MS,
            node_id=leader_id,
        )
    except CallError as error:
        raise _failure(error) from error
    try:
        try:
            async with asyncio.timeout(REPLICATE_OPEN_MS / 1000):
                data = await stream.read()
        except CallError as error:
            raise _failure(error) from error
        answer = None if data is None else decode(data)
        if not isinstance(answer, pb.ReplicateResponse) or answer.WhichOneof("part") != "opened":
            raise StreamError("the first answer was not `opened`")
        yield LeaderStream(stream, answer.opened)
    finally:
        stream.give_up()


async def fetch_range(peers: Peers, address: Address, request: pb.FetchRangeRequest) -> pb.FetchRangeResponse:
    """Ask another replica for a range.

    Raises:
        StreamError, StreamRefusedError: as `opened_stream`.
    """
    try:
        answer = await peers.ask(
            str(address), Method.FETCH_RANGE, request.SerializeToString(), timeout_ms=REPLICATE_OPEN_MS
        )
        return pb.FetchRangeResponse.FromString(answer)
    except CallError as error:
        raise _failure(error) from error
    except DecodeError as error:
        raise StreamError("the answer cannot be decoded") from error


def decode(data: bytes) -> BatchesFrame | pb.ReplicateResponse:
    """Decode one message of a leader.

    Raises:
        StreamError: it is none.
    """
    try:
        return decode_replicate_response(data)
    except DecodeError as error:
        raise StreamError("a message cannot be decoded") from error


def _failure(error: CallError) -> StreamError | StreamRefusedError:
    if isinstance(error, RefusedByPeerError):
        refusal = decode_refusal(error.failure)
        return StreamRefusedError(refusal.code, refusal.message)
    if isinstance(error, NotSentError) and error.misfit is not None:
        return StreamRefusedError(error.misfit.code, str(error))
    return StreamError(str(error))

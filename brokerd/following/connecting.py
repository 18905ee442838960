# SPDX-License-Identifier: Apache-2.0
"""Connections to the replication ports of other brokers: dialling, and the first exchange.

Owns both, with their time limits. Must not know when anybody tries, nor what is said on a stream behind its opening.
Source: docs/replication.md section "The stream"; docs/adr/0009-replication-links.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from google.protobuf.message import DecodeError
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.frame_stream import REPLICATE_GREETING, FrameStream
from brokerd.limits import REPLICATE_CONNECT_MS, REPLICATE_OPEN_MS
from brokerd.replication.batches_frame import BatchesFrame, decode_replicate_response
from metaquorum.runtime.frames import BadFrameError
from metaquorum.settings import Address


class StreamError(Exception):
    """The stream is of no use any more."""


class StreamRefusedError(Exception):
    """The other broker ended the connection, with a reason.

    Attributes:
        code: the reason.
    """

    def __init__(self, refused: pb.ReplicateRefused) -> None:
        super().__init__(refused.message)
        self.code = ErrorCode.from_number(refused.code)


@asynccontextmanager
async def opened_stream(address: Address, message: bytes) -> AsyncGenerator[tuple[FrameStream, pb.ReplicateOpened]]:
    """Open a stream; it ends with the context.

    Args:
        address: the replication port.
        message: the first message.

    Raises:
        StreamError: the leader cannot be reached, or says what it must not.
        StreamRefusedError: it refuses.
        TimeoutError: it does not answer.
        OSError, BadFrameError: the connection broke.
    """
    async with _dialled(address) as stream:
        answer = await _asked(stream, message)
        if answer.WhichOneof("part") != "opened":
            raise StreamError("the first answer was not `opened`")
        yield stream, answer.opened


async def fetch_range(address: Address, request: pb.FetchRangeRequest) -> pb.FetchRangeResponse:
    """Ask another replica for a range, over a connection of its own.

    Raises:
        StreamError, StreamRefusedError, TimeoutError, OSError, BadFrameError: as `opened_stream`.
    """
    async with _dialled(address) as stream:
        answer = await _asked(stream, pb.ReplicateRequest(fetch_range=request).SerializeToString())
        if answer.WhichOneof("part") != "range":
            raise StreamError("the answer was not a range")
        return answer.range


def decode(data: bytes) -> BatchesFrame | pb.ReplicateResponse:
    """Decode one message of a leader.

    Raises:
        StreamError: it is none.
    """
    try:
        return decode_replicate_response(data)
    except DecodeError as error:
        raise StreamError("a message cannot be decoded") from error


@asynccontextmanager
async def _dialled(address: Address) -> AsyncGenerator[FrameStream]:
    stream = FrameStream(greeting=REPLICATE_GREETING, max_bytes=MAX_GRPC_MESSAGE_BYTES)
    try:
        try:
            async with asyncio.timeout(REPLICATE_CONNECT_MS / 1000):
                await asyncio.get_running_loop().create_connection(lambda: stream, address.host, address.port)
                await stream.greeted
        except (OSError, BadFrameError) as error:
            raise StreamError(f"{address} cannot be reached: {error!r}") from error
        yield stream
    finally:
        stream.cancel()


async def _asked(stream: FrameStream, message: bytes) -> pb.ReplicateResponse:
    async with asyncio.timeout(REPLICATE_OPEN_MS / 1000):
        await stream.write(message)
        data = await stream.read()
    answer = None if data is None else decode(data)
    if not isinstance(answer, pb.ReplicateResponse):
        raise StreamError("the first answer was none")
    if answer.WhichOneof("part") == "refused":
        raise StreamRefusedError(answer.refused)
    return answer

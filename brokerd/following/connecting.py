# SPDX-License-Identifier: Apache-2.0
"""The ways to one leader: a plain connection where its port is known and answers, else a call of gRPC.

Owns what is known of the plain port, the dialling, and the first exchange of a stream. A leader names its port in its answer over
gRPC; the next stream is then opened over a plain connection. Laws: each attempt tries one way to its end or time; a port that
does not answer is passed over once, and for `PLAIN_RETRY_MS` when gRPC does answer, for then something closes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, Protocol, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from lograft.internal.v1 import replication_pb2 as pb
from lograft.wire.codes import ErrorCode
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from brokerd.clock import monotonic_ms
from brokerd.frame_stream import REPLICATE_GREETING, FrameStream
from brokerd.limits import PLAIN_RETRY_MS, REPLICATE_CONNECT_MS, REPLICATE_OPEN_MS
from brokerd.metadata.peer_channels import is_ready_within
from brokerd.replication.batches_frame import BatchesFrame, decode_replicate_response
from metaquorum.runtime.frames import BadFrameError

METHOD: Final = "/lograft.internal.v1.ReplicationService/Replicate"

logger = logging.getLogger(__name__)

_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_BYTES),
    # A connection of its own: bulk must not hold up calls to the same broker.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class StreamError(Exception):
    """The stream is of no use any more."""


class StreamRefusedError(Exception):
    """The leader ended a stream over a plain connection, with the reason that gRPC would have had.

    Attributes:
        code: the reason.
    """

    def __init__(self, refused: pb.ReplicateRefused) -> None:
        super().__init__(refused.message)
        self.code = ErrorCode.from_number(refused.code)


class MessageStream(Protocol):
    """A stream to a leader, whatever carries it."""

    async def read(self) -> object:
        """Return the next message, or `grpc.aio.EOF`."""
        ...

    async def write(self, request: bytes, /) -> None:
        """Send a message."""
        ...

    def cancel(self) -> object:
        """End the stream now."""
        ...


class LeaderConnections:
    """See the module docstring; for one leader."""

    def __init__(self) -> None:
        # Address of the gRPC listener, and the plain port that was named there.
        self._port: tuple[str, int] | None = None
        # What did not answer, and until when it is left alone.
        self._silent: tuple[str, int] | None = None
        self._silent_until_ms = 0

    @asynccontextmanager
    async def open(self, address: str, message: bytes) -> AsyncGenerator[tuple[MessageStream, pb.ReplicateOpened]]:
        """Open a stream; it ends with the context.

        Args:
            address: `host:port` of the leader's gRPC listener.
            message: the first message.

        Raises:
            StreamError: the leader cannot be reached, or says what it must not.
            StreamRefusedError, grpc.aio.AioRpcError: it refuses.
            TimeoutError: it does not answer.
            OSError, BadFrameError: the plain connection broke.
        """
        if not self._is_plain(address):
            async with self._call(address, message) as (call, opened):
                if not self._learn(address, opened.plain_port):
                    yield call, opened
                    return
        stream = await self._dial(address)
        try:
            yield stream, await _open(stream, message)
        finally:
            stream.cancel()

    def _is_plain(self, address: str) -> bool:
        """Tell whether the next stream is opened over a plain connection."""
        port = self._port
        return port is not None and port[0] == address and port != self._silent

    def _learn(self, address: str, plain_port: int) -> bool:
        """Take note of the port that the leader names; True: try it now."""
        self._port = (address, plain_port) if plain_port else None
        if self._port is None:
            return False
        if self._port != self._silent:
            return True
        now_ms = monotonic_ms()
        if self._silent_until_ms == 0:
            self._silent_until_ms = now_ms + PLAIN_RETRY_MS
            logger.info(
                "plain connections do not pass: address=%s port=%d retry_after_ms=%d",
                address,
                plain_port,
                PLAIN_RETRY_MS,
            )
        if now_ms < self._silent_until_ms:
            return False
        self._silent = None
        return True

    async def _dial(self, address: str) -> FrameStream:
        assert self._port is not None, "no port"
        # host:port, or [address]:port for IPv6.
        host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
        stream = FrameStream(greeting=REPLICATE_GREETING, max_bytes=MAX_GRPC_MESSAGE_BYTES)
        try:
            async with asyncio.timeout(REPLICATE_CONNECT_MS / 1000):
                await asyncio.get_running_loop().create_connection(lambda: stream, host, self._port[1])
                await stream.greeted
        except (OSError, BadFrameError) as error:
            stream.cancel()
            self._silent, self._silent_until_ms = self._port, 0
            raise StreamError(f"port {self._port[1]} of {host} cannot be reached: {error!r}") from error
        except asyncio.CancelledError:
            stream.cancel()
            raise
        return stream

    @asynccontextmanager
    async def _call(self, address: str, message: bytes) -> AsyncGenerator[tuple[MessageStream, pb.ReplicateOpened]]:
        silent = self._silent
        try:
            async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
                if not await is_ready_within(channel, REPLICATE_CONNECT_MS):
                    raise StreamError(f"{address} cannot be reached")
                call = cast("grpc.aio.StreamStreamCall[bytes, bytes]", channel.stream_stream(METHOD)())
                try:
                    yield call, await _open(call, message)
                finally:
                    call.cancel()
        except (StreamError, grpc.aio.AioRpcError, TimeoutError):
            if self._silent is silent and self._silent_until_ms == 0:
                # It is the leader that does not answer, not its port.
                self._silent = None
            raise


async def _open(stream: MessageStream, message: bytes) -> pb.ReplicateOpened:
    async with asyncio.timeout(REPLICATE_OPEN_MS / 1000):
        await stream.write(message)
        data = await stream.read()
    answer = None if data is grpc.aio.EOF else decode(data)
    if isinstance(answer, pb.ReplicateResponse) and answer.WhichOneof("part") == "refused":
        raise StreamRefusedError(answer.refused)
    if not isinstance(answer, pb.ReplicateResponse) or answer.WhichOneof("part") != "opened":
        raise StreamError("the first answer was not `opened`")
    return answer.opened


def decode(data: object) -> BatchesFrame | pb.ReplicateResponse:
    """Decode one message of a leader.

    Raises:
        StreamError: it is none.
    """
    assert isinstance(data, bytes), f"{type(data)} from a stream without deserializer"
    try:
        return decode_replicate_response(data)
    except DecodeError as error:
        raise StreamError("a message cannot be decoded") from error

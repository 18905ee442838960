# SPDX-License-Identifier: Apache-2.0
"""Fetches over plain TCP connections, side of the leader: see `metaquorum.runtime.fetch_link` for the other one.

    listener = FetchListener(quorum_node)
    port = await listener.open("127.0.0.1", 0)
    quorum_servicer.fetch_port = port      # followers hear of it in their gRPC answers

Owns the connections and their limits. A request is a `FetchQuorumRequest`, its answer a `FetchQuorumResponse`: those of the
gRPC service, checked in the same way. Whoever says anything else is disconnected, and nobody else notices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol, cast

from google.protobuf.message import DecodeError
from lograft.internal.v1 import quorum_pb2 as pb

from metaquorum.raft.messages import FetchRequest, FetchResponse
from metaquorum.runtime import quorum_codec as codec
from metaquorum.runtime.driver import Answer, StoppedError
from metaquorum.runtime.frames import GREETING, BadFrameError, FrameReader, frame
from metaquorum.runtime.plain_listener import listening_socket
from metaquorum.runtime.wire_fields import InvalidMessageError

logger = logging.getLogger(__name__)

MAX_LINKS: Final = 1_000
"""Most connections; a further one is closed, and its fetches go by gRPC."""

MAX_REQUEST_BYTES: Final = 64 * 1024
"""Most bytes of one request: a fetch names a few numbers and two texts."""

IDLE_S: Final = 30.0
"""Seconds without a request after which a connection is closed; a follower asks several times a second."""


class FetchTarget(Protocol):
    """What answers: a `QuorumNode`."""

    def take_request(self, request: FetchRequest, on_answer: Callable[[Answer | StoppedError], None]) -> None:
        """Tell the answer once, perhaps at once; raises StoppedError when there will be none."""
        ...


class FetchListener:
    """Takes connections for one target."""

    def __init__(self, target: FetchTarget) -> None:
        self._target = target
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; return the port, which the system chooses for 0.

        Raises:
            OSError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        listening = listening_socket(host, port)
        self._server = await loop.create_server(lambda: _Link(self._target, self._links), sock=listening)
        self._sweep = loop.call_later(IDLE_S, self._close_idle)
        return listening.getsockname()[1]

    async def close(self) -> None:
        """Take no more connections and end those that are there. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        if self._sweep is not None:
            self._sweep.cancel()
        server.close()
        # Nobody is waited for: a peer that does not read would hold up the stop.
        for link in list(self._links):
            link.close()

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        for link in list(self._links):
            if link.idle_since + IDLE_S <= loop.time():
                link.abort()
        self._sweep = loop.call_later(IDLE_S, self._close_idle)


class _Link(asyncio.Protocol):
    """One connection; it answers one request after the other."""

    def __init__(self, target: FetchTarget, links: set[_Link]) -> None:
        self._target = target
        self._links = links
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(max_bytes=MAX_REQUEST_BYTES)
        self._transport: asyncio.WriteTransport | None = None
        self._is_busy = False
        self.idle_since = self._loop.time()

    def close(self) -> None:
        """End the connection once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection now: whoever is silent may not read either."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        if len(self._links) >= MAX_LINKS:
            logger.warning("event=fetch_link_refused error='%d connections are open, no more are taken'", MAX_LINKS)
            self._transport.abort()
            return
        self._links.add(self)
        self._transport.write(GREETING)

    def connection_lost(self, exc: Exception | None) -> None:
        """The follower is gone; an answer that it waits for is dropped."""
        self._links.discard(self)

    def data_received(self, data: bytes) -> None:
        """Take a request to the target."""
        self.idle_since = self._loop.time()
        try:
            self._reader.feed(data)
            while (message := self._reader.take()) is not None:
                if self._is_busy:
                    raise BadFrameError("a request before the answer to the last one")
                self._is_busy = True
                self._ask(pb.FetchQuorumRequest.FromString(message))
        except (BadFrameError, DecodeError) as error:
            logger.warning("event=fetch_link_refused error=%s", error)
            self.close()

    def _ask(self, message: pb.FetchQuorumRequest) -> None:
        try:
            self._target.take_request(codec.decode_fetch_request(message), self._answer)
        except InvalidMessageError:
            self._write(pb.FetchQuorumResponse(error=pb.QUORUM_ERROR_INVALID_REQUEST))
        except StoppedError as error:
            self._answer(error)

    def _answer(self, answer: Answer | StoppedError) -> None:
        if isinstance(answer, StoppedError):
            self._write(pb.FetchQuorumResponse(error=pb.QUORUM_ERROR_UNAVAILABLE))
            self.close()
            return
        assert isinstance(answer.response, FetchResponse), f"{answer.response} to a fetch request"
        self._write(codec.encode_fetch_response(answer.response, answer.batches))

    def _write(self, message: pb.FetchQuorumResponse) -> None:
        self._is_busy = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(message.SerializeToString()))

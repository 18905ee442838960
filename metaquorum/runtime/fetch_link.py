# SPDX-License-Identifier: Apache-2.0
"""Fetches over a plain TCP connection, side of the follower: one for each peer, beside its gRPC channel.

Owns the connection to one peer: when it is opened, what is under way on it, how it ends. A leader names the port of its fetch
listener in its gRPC answers (`FetchQuorumResponse.fetch_port`). Where that port cannot be reached, fetches go on by gRPC.
One fetch is under way at most, so that an answer belongs to the fetch before it; one without an answer in time ends the
connection. Why not gRPC: `docs/adr/0008-fetch-links.md`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

from metaquorum.runtime.frames import GREETING, BadFrameError, FrameReader, frame

logger = logging.getLogger(__name__)

OPEN_TIMEOUT_S: Final = 1.0
"""Seconds in which a connection must be there, greeting included."""

RETRY_AFTER_S: Final = 30.0
"""Seconds after a failed attempt before the next one; fetches go by gRPC meanwhile."""

Outcome = bytes | BaseException
"""The answer, or why there is none: TimeoutError, ConnectionError, BadFrameError."""


class FetchLink(asyncio.Protocol):
    """One open connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(max_bytes=MAX_GRPC_MESSAGE_BYTES)
        self._transport: asyncio.WriteTransport | None = None
        self._on_answer: Callable[[Outcome], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.greeted: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        """Whether it is there and greeted, free or not."""
        return self._transport is not None and not self._transport.is_closing() and self._reader.is_greeted

    @property
    def is_ready(self) -> bool:
        """Whether a fetch can be sent."""
        return self.is_open and self._on_answer is None

    def send(self, message: bytes, *, timeout_s: float, on_answer: Callable[[Outcome], None]) -> None:
        """Send a fetch; its outcome is told once, later."""
        assert self._transport is not None, "no connection"
        assert self._on_answer is None, "one fetch at a time"
        self._on_answer = on_answer
        self._timer = self._loop.call_later(timeout_s, self._end, TimeoutError("no answer in time"))
        self._transport.write(frame(message))

    def close(self) -> None:
        """End the connection; a fetch under way fails."""
        self._end(ConnectionAbortedError("the connection was closed"))

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        """Take the greeting, or an answer."""
        try:
            self._reader.feed(data)
            message = self._reader.take()
        except BadFrameError as error:
            self._end(error)
            return
        if self._reader.is_greeted and not self.greeted.done():
            self.greeted.set_result(None)
        if message is None:
            return
        if self._on_answer is None:
            self._end(BadFrameError("an answer that was not asked for"))
        else:
            self._tell(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self._end(exc or ConnectionResetError("the peer ended the connection"))

    def _end(self, error: BaseException) -> None:
        if self._transport is not None:
            # What was not answered is not worth waiting for.
            self._transport.abort()
        if not self.greeted.done():
            self.greeted.set_exception(error)
            # Whoever opened the connection may have given up.
            self.greeted.exception()
        if self._on_answer is not None:
            self._tell(error)

    def _tell(self, outcome: Outcome) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        assert on_answer is not None, "an outcome without a fetch"
        on_answer(outcome)


class PeerLink:
    """The connection to one peer, if there is one.

    Args:
        address: `host:port` of the peer's gRPC listener; its fetch listener is at another port there.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._link: FetchLink | None = None
        self._opening: asyncio.Task[None] | None = None
        self._retry_at = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether a fetch can be sent."""
        return self._link is not None and self._link.is_ready

    def send(self, message: bytes, *, timeout_s: float, on_answer: Callable[[Outcome], None]) -> None:
        """Send a fetch; only while `is_ready`."""
        assert self._link is not None, "no connection"
        self._link.send(message, timeout_s=timeout_s, on_answer=on_answer)

    def offer(self, port: int) -> None:
        """The peer listens for fetches at this port: connect, unless that is done, under way, or has just failed.

        A connection on which a late answer is awaited stays: the answer counts, or its time ends the connection.
        """
        loop = asyncio.get_running_loop()
        is_open = self._link is not None and self._link.is_open
        if is_open or self._opening is not None or loop.time() < self._retry_at:
            return
        self.close()
        self._retry_at = loop.time() + RETRY_AFTER_S
        self._opening = loop.create_task(self._open(port))

    def close(self) -> None:
        """End the connection, or the attempt; a fetch under way fails."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            # It did not fail: a peer that is followed again may be tried at once.
            self._retry_at = 0.0
        link, self._link = self._link, None
        if link is not None:
            link.close()

    async def _open(self, port: int) -> None:
        link: FetchLink | None = None
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                # host:port, or [address]:port for IPv6.
                host = self._address.rpartition(":")[0].removeprefix("[").removesuffix("]")
                _, link = await asyncio.get_running_loop().create_connection(FetchLink, host, port)
                await link.greeted
        except (OSError, TimeoutError, BadFrameError) as error:
            if link is not None:
                link.close()
            self._opening = None
            logger.info(
                "event=fetch_link_failed peer=%s port=%d retry_after_s=%d error=%r fetches=grpc",
                self._address,
                port,
                RETRY_AFTER_S,
                error,
            )
        except asyncio.CancelledError:
            if link is not None:
                link.close()
            raise
        else:
            # A connection that served may be opened again at once.
            self._link, self._opening, self._retry_at = link, None, 0.0

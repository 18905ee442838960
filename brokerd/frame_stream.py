# SPDX-License-Identifier: Apache-2.0
"""Messages both ways over one plain connection.

Owns the connection, its buffers and their limits. Knows nothing of what a message says. Format: `metaquorum.runtime.frames`,
with a greeting of its own. Why not gRPC: docs/adr/0009-replication-links.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from brokerd.limits import PLAIN_CLOSE_S, PLAIN_READ_BYTES, PLAIN_WRITE_BYTES
from brokerd.wake import Wake
from metaquorum.runtime.frames import LENGTH_BYTES, BadFrameError, FrameReader, frame

REPLICATE_GREETING: Final = b"lograft-replicate-1\n"
"""What both sides of a connection for a `Replicate` stream say first."""

_WHOLE_BYTES: Final = 16 * 1024
"""Up to this size length and message are copied into one piece; it is cheaper than a second one on the way."""


class FrameStream(asyncio.Protocol):
    """One connection, at either side.

    Args:
        greeting: what both sides say first.
        max_bytes: most bytes of a message that comes.
        on_open: told when there is a connection, before anything came.

    Attributes:
        greeted: done when the other side has said its greeting; fails when it says anything else, or nothing any more.
    """

    def __init__(
        self, *, greeting: bytes, max_bytes: int, on_open: Callable[[FrameStream], None] | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._greeting = greeting
        self._frames = FrameReader(max_bytes=max_bytes, greeting=greeting)
        self._on_open = on_open
        self._transport: asyncio.Transport | None = None
        self._messages: deque[bytes] = deque()
        self._queued_bytes = 0
        self._is_reading = True
        self._readable = Wake()
        self._error: Exception | None = None
        self._is_ended = False
        self._is_over = False
        self._drained: asyncio.Future[None] | None = None
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        # Whoever dialled may have given up.
        self.greeted.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def read(self) -> bytes | None:
        """Return the next message, or None when the other side has ended the stream. One reader.

        Raises:
            BadFrameError: the other side does not speak this format.
            OSError: the connection broke.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._is_ended or self._is_over:
                return None
            await self._readable.wait()
        message = self._messages.popleft()
        self._queued_bytes -= len(message)
        if not self._is_reading and self._queued_bytes * 2 <= PLAIN_READ_BYTES and not self._is_over:
            self._is_reading = True
            assert self._transport is not None, "messages without a connection"
            self._transport.resume_reading()
        return message

    async def write(self, message: bytes) -> None:
        """Send a message; waits while the other side does not take what was sent before. One writer.

        Raises:
            ConnectionResetError: there is no connection any more.
        """
        while self._drained is not None:
            await self._drained
        self.write_now(message)

    def write_now(self, message: bytes) -> None:
        """Send a message without a wait.

        Raises:
            ConnectionResetError: there is no connection any more.
        """
        transport = self._transport
        if transport is None or self._is_over or transport.is_closing():
            raise ConnectionResetError("the connection is over")
        if len(message) <= _WHOLE_BYTES:
            transport.write(frame(message))
        else:
            # Not writelines(): that of CPython 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 never pauses the writer (CVE-2024-12254), so that a
            # follower that does not read would cost memory without a bound.
            transport.write(len(message).to_bytes(LENGTH_BYTES, "big"))
            transport.write(message)

    def end_writing(self) -> None:
        """Say that nothing more comes from this side; the other one ends the connection."""
        if self._transport is not None and not self._is_over:
            self._transport.write_eof()

    def cancel(self) -> None:
        """End the connection now; what is under way is lost."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the connection once what was written is sent, or after `PLAIN_CLOSE_S`."""
        if self._transport is not None and not self._is_over:
            self._transport.close()
            self._loop.call_later(PLAIN_CLOSE_S, self._transport.abort)

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=PLAIN_WRITE_BYTES)
        self._transport.write(self._greeting)
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Cut what came into messages."""
        frames = self._frames
        try:
            frames.feed(data)
            while (message := frames.take()) is not None:
                self._messages.append(message)
                self._queued_bytes += len(message)
        except BadFrameError as error:
            self._end(error)
            self.cancel()
            return
        if frames.is_greeted and not self.greeted.done():
            self.greeted.set_result(None)
        if self._messages:
            self._readable.set()
            if self._is_reading and self._queued_bytes > PLAIN_READ_BYTES:
                self._is_reading = False
                assert self._transport is not None, "data without a connection"
                self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The other side says nothing more; it may still listen, so this one closes when it has said all."""
        self._is_ended = True
        self._fail_greeting(None)
        self._readable.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side is gone, or this one has closed."""
        self._end(exc)

    def pause_writing(self) -> None:
        """The buffer is full."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """There is room in the buffer."""
        self._end_wait()

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        if self._error is None:
            self._error = error
        self._fail_greeting(error)
        self._readable.set()
        self._end_wait()

    def _fail_greeting(self, error: Exception | None) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(error or ConnectionResetError("the other side ended the connection"))

    def _end_wait(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

# SPDX-License-Identifier: Apache-2.0
"""The socket of one HTTP/2 connection, for both sides: gives the core (`http2`) its bytes and its time, and pings a silent peer.

A side derives its connection from `Http2Socket` and says what its events mean. An object belongs to one event loop.
Source: ADR 15, ADR 17, ADR 30.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from h2.errors import ErrorCodes

from lograft._grpc import http2

CLOSE_TIMEOUT_S: Final = 1.0
"""Seconds that a closed connection gets to send the bytes written before."""

RECEIVE_BYTES: Final = 64 * 1024
"""Bytes that are read from the socket at once. A message of which at least as many are missing is read to its place instead."""

WRITE_BYTES: Final = 256 * 1024
"""Bytes that go to the socket at once, and that may wait in its buffer before writers wait."""


TURN_BYTES: Final = 1024 * 1024
"""Bytes that all connections of an event loop write in one turn of it, before those with more to write wait for the next turn."""

SHORT_WRITE_BYTES: Final = 16 * 1024
"""Bytes that a connection may still write in a turn in which others have written `TURN_BYTES`. So short messages never wait."""

PING_TIMEOUT: Final = "ping timeout"
"""Why a connection ended on which the peer was silent."""


class StreamUser(Protocol):
    """What a connection does with the call of a stream: one of a client (`PythonCall`), or one of a server (`ServerCall`)."""

    def room(self) -> memoryview:
        """Return where the next bytes of a message go that has come in part; nothing without one, or if it is not wanted."""
        ...

    def on_filled(self, size: int) -> None:
        """Take note of bytes that were read to `room`."""
        ...

    def on_written(self) -> None:
        """All bytes that were to be sent have been passed to the socket."""
        ...


class WriteTurns:
    """Shares out the time of one event loop among its connections, because a write of megabytes takes milliseconds."""

    def __init__(self) -> None:
        self._left_bytes = TURN_BYTES
        self._waiting: dict[Http2Socket[Any, Any], None] = {}
        self._is_due = False

    @property
    def size_bytes(self) -> int:
        """Bytes that a connection may write next."""
        return WRITE_BYTES if self._left_bytes > 0 else SHORT_WRITE_BYTES

    @property
    def is_over(self) -> bool:
        """True if the bytes of this turn are used."""
        return self._left_bytes <= 0

    def note(self, size_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        """Take note of a write."""
        self._left_bytes -= size_bytes
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._begin)

    def wait(self, connection: Http2Socket[Any, Any]) -> None:
        """Let a connection go on in the next turn."""
        self._waiting[connection] = None

    def _begin(self) -> None:
        self._is_due = False
        self._left_bytes = TURN_BYTES
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            if self.is_over:
                self._waiting[connection] = None
            else:
                connection.flush()


CoreT = TypeVar("CoreT", http2.ClientConnection, http2.ServerConnection)
CallT = TypeVar("CallT", bound=StreamUser)


class Http2Socket(asyncio.BufferedProtocol, ABC, Generic[CoreT, CallT]):
    """One connection.

    Args:
        core: of the connection. This object is its only user.
        quiet_s: seconds without a byte from the peer after which it is pinged.
        dead_s: seconds without a byte from the peer, among them those of a ping, after which the connection has failed.
        buffer: where bytes are received, of `RECEIVE_BYTES`. The connections of one event loop may share it.
        turns: of the event loop.

    Attributes:
        core: of the connection.
        calls: by stream. The derived class removes them.
        end_reason: why the connection ended, for people.
    """

    def __init__(self, core: CoreT, *, quiet_s: float, dead_s: float, buffer: bytearray, turns: WriteTurns) -> None:
        self.core: CoreT = core
        self.calls: dict[int, CallT] = {}
        self.end_reason = "Socket closed"
        self._loop = asyncio.get_running_loop()
        self._quiet_s, self._dead_s = quiet_s, dead_s
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(buffer)
        self._turns = turns
        # The call whose message is being read to its place.
        self._filling: CallT | None = None
        self._is_paused = False
        self._heard_s = self._loop.time()
        # Time of a ping that the peer has not answered.
        self._asked_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What the two sides do.

    @abstractmethod
    def on_event(self, event: http2.Event) -> None:
        """Handle what has come."""

    def on_received(self, now_s: float) -> None:
        """Bytes have come, and their events follow."""

    def on_settled(self) -> None:
        """The events of the received bytes have been handled."""

    @abstractmethod
    def on_lost(self) -> None:
        """The connection has ended, see `end_reason`."""

    # What asyncio does.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the peer."""
        # A cast, as the transports of uvloop have the methods of this class, and not the class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BYTES)
        self._watch()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the derived class."""
        if exc is not None:
            self.end_reason = str(exc)
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.on_lost()
        self.core.close()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go: to their place in a long message, or to the buffer."""
        del sizehint
        self._filling = None
        coming = self.core.coming_data()
        if coming is not None:
            call = self.calls.get(coming[0])
            if call is not None:
                room = call.room()[: coming[1]]
                if len(room) >= RECEIVE_BYTES:
                    self._filling = call
                    return room
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were read to where `get_buffer` said."""
        self._heard_s, self._asked_s = self._loop.time(), None
        if self._filling is not None:
            self.core.data_came(nbytes)
            self._filling.on_filled(nbytes)
            return
        self.on_received(self._heard_s)
        try:
            events = self.core.receive(self._buffer[:nbytes])
        except http2.ConnectionFaultError as error:
            self.end_reason = f"the peer broke HTTP/2: {error}"
            self.flush()
            self.abort()
            return
        for event in events:
            self.on_event(event)
        self.flush()
        self.on_settled()

    def pause_writing(self) -> None:
        """Pass nothing more to the socket."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Pass to the socket what waits."""
        self._is_paused = False
        self.flush()

    # What calls do.

    @property
    def is_connected(self) -> bool:
        """True from the first moment of the connection to its last."""
        return self._transport is not None

    @property
    def transport(self) -> Any:
        """The transport; None if the connection has not begun or has ended."""
        return self._transport

    def send(self, stream_id: int, parts: tuple[bytes, ...], *, is_end: bool = False) -> None:
        """Send bytes of a stream. The connection calls the call's `on_written` when they are passed to the socket."""
        self.core.send(stream_id, parts, is_end=is_end)
        self.flush()

    def grant(self, stream_id: int, held_bytes: int) -> None:
        """Tell the core how many received bytes the reader of a stream has not taken yet."""
        self.core.grant(stream_id, held_bytes)
        self.flush()

    def reset(self, stream_id: int, error_code: int = ErrorCodes.CANCEL) -> None:
        """Give up a stream."""
        self.calls.pop(stream_id, None)
        self.core.reset(stream_id, error_code)
        self.flush()

    def flush(self) -> None:
        """Pass to the socket what it takes, as far as it is this connection's turn."""
        transport, turns = self._transport, self._turns
        while transport is not None and not self._is_paused and not transport.is_closing() and self.core.has_output():
            data, drained = self.core.take_output(turns.size_bytes)
            if not data:
                break
            transport.writelines(data)
            turns.note(sum(map(len, data)), self._loop)
            for stream_id in drained:
                call = self.calls.get(stream_id)
                if call is not None:
                    call.on_written()
            if turns.is_over:
                if self.core.has_output():
                    turns.wait(self)
                break

    # Its end.

    def _watch(self) -> None:
        """Ping a silent peer, and abort the connection if it stays silent for the liveness bound."""
        now_s = self._loop.time()
        if self._asked_s is None and now_s - self._heard_s >= self._quiet_s:
            self._asked_s = now_s
            self.core.ping()
            self.flush()
        if self._asked_s is not None and now_s - self._heard_s >= self._dead_s:
            self.end_reason = PING_TIMEOUT
            self.abort()
            return
        due_s = self._heard_s + (self._quiet_s if self._asked_s is None else self._dead_s)
        self._timer = self._loop.call_later(max(due_s - now_s, 0.001), self._watch)

    def close(self) -> None:
        """Close the connection after sending what was written, within `CLOSE_TIMEOUT_S`."""
        if self._transport is not None and not self._transport.is_closing():
            self.flush()
            self._transport.close()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

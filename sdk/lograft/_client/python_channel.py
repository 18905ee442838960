# SPDX-License-Identifier: Apache-2.0
"""Channels like those of `grpc.aio`, in pure Python.

This module owns connection attempts, deadlines and the state of calls. `http2_socket` has the socket and pings, `http2` frames
and windows, `grpc_wire` what gRPC adds. Nothing here touches gRPC's C core, so a forked process can use it, and everything happens on
the caller's event loop.

As far as Lograft uses them, these channels behave as grpcio 1.85 does, oddities included; `test_virtual_grpc` compares the two.
An object belongs to the event loop in which it was made. Source: ADR 17, ADR 30.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
import grpc.aio

from lograft._client.backoff import Backoff
from lograft._client.resolver import resolve
from lograft._grpc import grpc_wire, http2, http2_socket
from lograft._grpc.grpc_wire import MessageError, MessageReader, WireStatus
from lograft._grpc.http2_socket import Http2Socket
from lograft.settings import MAX_RETRY_BACKOFF_MS, RETRY_BACKOFF_MS
from lograft.wire.keepalive import QUIET_SHARE, RECEIVE_WINDOW_BYTES
from lograft.wire.limits import MAX_GRPC_MESSAGE_BYTES

CONNECT_TIMEOUT_S: Final = 20.0
"""Seconds for one connection attempt, until the server's settings arrive."""

USER_AGENT: Final = "lograft-python"

_Multi = Callable[..., "PythonCall"]
"""A method of a channel. Calling it starts a call."""

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_READY, _IDLE, _CONNECTING, _FAILED, _SHUTDOWN = (
    grpc.ChannelConnectivity.READY,
    grpc.ChannelConnectivity.IDLE,
    grpc.ChannelConnectivity.CONNECTING,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)
_LATE: Final = WireStatus(grpc.StatusCode.DEADLINE_EXCEEDED.value[0], "Deadline Exceeded")
_GIVEN_UP: Final = WireStatus(grpc_wire.CANCELLED, "Locally cancelled by application!")
_TORN: Final = WireStatus(grpc_wire.INTERNAL, "Internal error from Core")
"""The status that gRPC gives to a call that ended during a write."""


class _Start(NamedTuple):
    """The beginning of a call. `request` is None when the caller writes messages later."""

    method: str
    metadata: tuple[tuple[str, str], ...]
    timeout_s: float | None
    request: bytes | None


class PythonCall:
    """A call of any kind: unary or streaming, in either direction."""

    def __init__(
        self,
        channel: PythonChannel,
        start: _Start,
        serialize: Callable[[Any], bytes] | None,
        deserialize: Callable[[Any], Any] | None,
        *,
        is_unary: bool,
    ) -> None:
        self._channel = channel
        self._loop = channel.loop
        self._start = start
        self._serialize = serialize
        self._deserialize = deserialize
        self._is_unary = is_unary
        self._reader = MessageReader(MAX_GRPC_MESSAGE_BYTES)
        self._messages: deque[bytes | bytearray] = deque()
        self._held_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._has_headers = False
        self._status: WireStatus | None = None
        # The status that has arrived behind unread messages. The call is not over until they are read.
        self._coming: WireStatus | None = None
        self._is_cancelled = False
        # The call ended while a write waited.
        self._is_torn = False
        self._response: Any = grpc.aio.EOF
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._carried: asyncio.Future[None] = self._loop.create_future()
        self._written: asyncio.Future[bool] | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._is_half_closed = start.request is not None
        self._link: _Link | None = None
        self._stream_id = 0
        self._timer: asyncio.TimerHandle | None = None
        if start.timeout_s is not None:
            self._timer = self._loop.call_later(max(start.timeout_s, 0), self._on_deadline)
        channel.begin(self)

    # What the channel and its connection do.

    def carry(self, link: _Link) -> None:
        """Start on a connection that has room for one more stream."""
        self._link = link
        left_s = self.time_remaining()
        timeout_ms = None if left_s is None else round(left_s * 1000)
        headers = grpc_wire.more_call_headers(timeout_ms=timeout_ms, metadata=self._start.metadata)
        self._stream_id = link.open(self, self._channel.call_block(self._start.method) + http2.header_block(headers))
        request = self._start.request
        if request is not None:
            link.send(self._stream_id, (grpc_wire.message_head(len(request)), request), is_end=True)
        self._carried.set_result(None)

    def on_headers(self, headers: list[tuple[str, str]], *, is_end: bool) -> None:
        """Take headers: those of the response, or the trailers."""
        failure = None if self._has_headers else grpc_wire.status_in_headers(headers)
        self._has_headers = True
        if is_end and (failure is None or "grpc-status" in dict(headers)):
            self._on_status(grpc_wire.status_in_trailers(headers))
        elif failure is not None:
            self._give_up(failure)

    def on_data(self, data: memoryview, *, is_end: bool) -> None:
        """Take bytes of messages."""
        if self.done() or self._coming is not None:
            return
        try:
            messages = self._reader.take(data)
        except MessageError as error:
            self._give_up(error.status)
            return
        self._take(messages)
        if is_end:
            self._on_status(grpc_wire.status_in_trailers(()))

    def room(self) -> memoryview:
        """See `StreamUser`."""
        return memoryview(b"") if self.done() or self._coming is not None else self._reader.room()

    def on_filled(self, size: int) -> None:
        """Take note of bytes that were read to `room`."""
        message = self._reader.filled(size)
        self._take(() if message is None else (message,))

    def _take(self, messages: Sequence[bytes | bytearray]) -> None:
        self._messages.extend(messages)
        self._held_bytes += sum(map(len, messages))
        self._grant()
        if messages:
            self._arrive()

    def on_written(self) -> None:
        """Let the waiting write return: its bytes have been passed to the socket."""
        if self._written is not None and not self._written.done():
            self._written.set_result(True)

    def _on_status(self, status: WireStatus) -> None:
        """Take the server's status. The caller still reads the messages that arrived before it."""
        if self.done() or self._coming is not None:
            return
        if status.code == grpc_wire.OK and (self._reader.is_inside or (self._is_unary and not self._messages)):
            status = WireStatus(grpc_wire.INTERNAL, "the response ended before a whole message")
        if self._is_unary or not self._messages:
            self._finish(status)
        else:
            self._coming = status
            self._arrive()
            self._end_write()

    def fail(self, status: WireStatus) -> None:
        """End the call because its connection broke or none exists. Unread messages are lost unless the server's status is here."""
        if not self.done() and self._coming is None:
            self._drop()
            self._is_torn = self._written is not None
            self._finish(status)

    def _give_up(self, status: WireStatus) -> None:
        """End the call with a status that this side sets."""
        if not self.done():
            self._drop()
            self._finish(status)
            self._reset()

    def _reset(self) -> None:
        if self._link is not None:
            self._link.give_up(self._stream_id)

    def _drop(self) -> None:
        self._messages.clear()
        self._held_bytes = 0

    def _grant(self) -> None:
        if self._link is not None:
            self._link.grant(self._stream_id, 0 if self._is_unary else self._held_bytes)

    def _arrive(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _end_write(self) -> None:
        if self._written is not None and not self._written.done():
            self._written.set_result(False)

    def _finish(self, status: WireStatus) -> None:
        self._status = status
        self._arrive()
        self._end_write()
        self._channel.end(self)
        if self._timer is not None:
            self._timer.cancel()
        for future in (self._ended, self._carried):
            if not future.done():
                future.set_result(None)
        for callback in self._callbacks:
            self._loop.call_soon(callback, self)

    def _on_deadline(self) -> None:
        if not self.done():
            self._is_torn = self._written is not None
            self._give_up(_TORN if self._is_torn else _LATE)

    # What the user does.

    def cancel(self) -> bool:
        """Cancel the call and everything that waits for it. Return False if it is over."""
        if self.done():
            return False
        self._is_cancelled = True
        self._give_up(_GIVEN_UP)
        return True

    def cancelled(self) -> bool:
        """Return whether this side cancelled the call."""
        return self._is_cancelled

    def done(self) -> bool:
        """Return whether the call is over."""
        return self._status is not None

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` when the call is over."""
        if self._status is not None:
            self._loop.call_soon(callback, self)
        else:
            self._callbacks.append(callback)

    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline; None without one."""
        return None if self._timer is None else max(0.0, self._timer.when() - self._loop.time())

    async def code(self) -> grpc.StatusCode:
        """Return the status code when the call is over."""
        return _CODES[(await self._over()).code]

    async def details(self) -> str:
        """Return the text of the status when the call is over."""
        return (await self._over()).details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """Return the metadata of the status when the call is over."""
        return grpc.aio.Metadata(*(await self._over()).trailers)

    async def wait_for_connection(self) -> None:
        """Return when the call has a stream on a connection."""
        await asyncio.shield(self._carried)
        if self.done():
            await self._raise_for_status()

    async def _over(self) -> WireStatus:
        while self._status is None:
            await asyncio.shield(self._ended)
        return self._status

    async def read(self) -> Any:
        """Return the next message, or EOF after an end without error."""
        try:
            while not self._messages and not self.done():
                self._arrival = self._loop.create_future()
                await self._arrival
        except asyncio.CancelledError:
            self.cancel()
            raise
        if not self._messages:
            await self._raise_for_status()
            return grpc.aio.EOF
        message = self._messages.popleft()
        self._held_bytes -= len(message)
        self._grant()
        if self._coming is not None and not self._messages:
            self._finish(self._coming)
        return self._decode(message)

    async def write(self, request: Any) -> None:
        """Send a message. Wait while too many bytes are on their way."""
        if self.done():
            raise asyncio.InvalidStateError("RPC already finished.")
        if self._is_half_closed:
            raise asyncio.InvalidStateError('RPC is half closed after calling "done_writing".')
        if not self._carried.done():
            await self.wait_for_connection()
        message: bytes = request if self._serialize is None else self._serialize(request)
        if self._coming is not None:
            self._drop()
            self._finish(_TORN)
            raise _rpc_error(_TORN)
        assert self._link is not None, "a call that is on its way has a connection"
        assert self._written is None, "one message is written after the other"
        self._written = self._loop.create_future()
        try:
            self._link.send(self._stream_id, (grpc_wire.message_head(len(message)), message))
            await self._written
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self._written = None
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self._is_torn:
            raise _rpc_error(_TORN)

    async def done_writing(self) -> None:
        """End the client's side of the call."""
        if not self.done() and not self._is_half_closed:
            self._is_half_closed = True
            await self.wait_for_connection()
            if self._link is not None:
                self._link.send(self._stream_id, (), is_end=True)

    async def _raise_for_status(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        status = await self._over()
        if status.code != grpc_wire.OK:
            raise _rpc_error(status)

    def _decode(self, message: bytes | bytearray) -> Any:
        return bytes(message) if self._deserialize is None else self._deserialize(message)

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the response of a unary call."""
        return self._respond().__await__()

    async def _respond(self) -> Any:
        try:
            await self._over()
        except asyncio.CancelledError:
            self.cancel()
            raise
        await self._raise_for_status()
        if self._messages:
            self._response = self._decode(self._messages.popleft())
        return self._response

    def __aiter__(self) -> AsyncIterator[Any]:
        """Iterate over the responses of a streaming call."""
        return self._responses()

    async def _responses(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


def _rpc_error(status: WireStatus) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(
        _CODES[status.code], grpc.aio.Metadata(), grpc.aio.Metadata(*status.trailers), status.details
    )


class _Link(Http2Socket[http2.ClientConnection, PythonCall]):
    """One connection of a channel."""

    def __init__(self, channel: PythonChannel, liveness_s: float) -> None:
        core = http2.ClientConnection(RECEIVE_WINDOW_BYTES)
        super().__init__(
            core,
            quiet_s=liveness_s / QUIET_SHARE,
            dead_s=liveness_s,
            buffer=bytearray(http2_socket.RECEIVE_BYTES),
            turns=http2_socket.WriteTurns(),
        )
        self._channel = channel
        self._is_leaving = False
        self.greeted: asyncio.Future[None] = channel.loop.create_future()

    def on_lost(self) -> None:
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(self.end_reason))
            # Mark the exception as retrieved; possibly no task waits for it any more.
            self.greeted.exception()
        status = WireStatus(grpc_wire.UNAVAILABLE, f"Stream removed ({self.end_reason})")
        calls = list(self.calls.values())
        self.calls.clear()
        self._channel.on_link_end(self)
        for call in calls:
            call.fail(status)

    def on_event(self, event: http2.Event) -> None:
        match event:
            case http2.SettingsCame():
                if not self.greeted.done():
                    self.greeted.set_result(None)
                self._channel.on_room(self)
            case http2.GoingAway():
                self._is_leaving = True
                self._channel.leave(self)
            case http2.HeadersCame():
                call = self._end_or_get(event.stream_id, event.is_end)
                if call is not None:
                    call.on_headers(event.headers, is_end=event.is_end)
            case http2.DataCame():
                call = self._end_or_get(event.stream_id, event.is_end)
                if call is not None:
                    call.on_data(event.data, is_end=event.is_end)
            case http2.StreamReset():
                call = self._end_or_get(event.stream_id, is_end=True)
                if call is not None:
                    call.fail(grpc_wire.status_of_reset(event.error_code, is_unseen=event.is_unseen))

    def on_settled(self) -> None:
        if self._is_leaving and not self.calls:
            self.close()

    def _end_or_get(self, stream_id: int, is_end: bool) -> PythonCall | None:
        call = self.calls.pop(stream_id, None) if is_end else self.calls.get(stream_id)
        if is_end:
            self._channel.on_room(self)
        return call

    # What calls do.

    def can_open(self) -> bool:
        """True if the connection can take one more call now."""
        return self.is_connected and not self._is_leaving and self.core.can_open()

    def is_spent(self) -> bool:
        """True if the connection can take no further call, now or later."""
        return not self.is_connected or self._is_leaving or self.core.is_spent()

    def open(self, call: PythonCall, headers: bytes) -> int:
        """Open a stream for a call with a block of headers."""
        stream_id = self.core.open(headers)
        self.calls[stream_id] = call
        self.flush()
        return stream_id

    def give_up(self, stream_id: int) -> None:
        """Cancel a stream."""
        self.reset(stream_id)
        self._channel.on_room(self)
        self.on_settled()

    def close(self) -> None:
        """Close the connection after sending what was written, within `CLOSE_TIMEOUT_S`."""
        self._is_leaving = True
        super().close()


class PythonChannel:
    """A channel. It connects at its first use, and again on request.

    Args:
        address: "host:port".
        liveness_ms: milliseconds without a byte from the broker after which a connection has failed.
    """

    def __init__(self, address: str, *, liveness_ms: int, client_id: str | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.user_agent = USER_AGENT if client_id is None else f"{client_id} {USER_AGENT}"
        self._address = address
        self._liveness_s = liveness_ms / 1000
        self._state = _IDLE
        self._changed: list[asyncio.Future[None]] = []
        self._link: _Link | None = None
        self._links: dict[_Link, None] = {}
        self._pending: dict[PythonCall, None] = {}
        self._calls: dict[PythonCall, None] = {}
        self._dialing: asyncio.Task[None] | None = None
        self._failure = ""
        # By method: as many as the contract has.
        self._call_blocks: dict[str, bytes] = {}

    # Methods.

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Return a method with one request and one response."""
        return partial(self._begin, method, request_serializer, response_deserializer, True, True)

    def unary_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Return a method with one request and many responses."""
        return partial(self._begin, method, request_serializer, response_deserializer, True, False)

    def stream_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Return a method with many requests and one response."""
        return partial(self._begin, method, request_serializer, response_deserializer, False, True)

    def stream_stream(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_others: object
    ) -> _Multi:
        """Return a method with many requests and many responses."""
        return partial(self._begin, method, request_serializer, response_deserializer, False, False)

    def _begin(
        self,
        method: str,
        serialize: Any,
        deserialize: Any,
        takes_one: bool,
        gives_one: bool,
        request: Any = None,
        *,
        timeout: float | None = None,
        metadata: Any = None,
    ) -> PythonCall:
        data = None
        if takes_one:
            data = request if serialize is None else serialize(request)
        return PythonCall(
            self, _Start(method, tuple(metadata or ()), timeout, data), serialize, deserialize, is_unary=gives_one
        )

    # Connectivity.

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state as it is before an attempt that this call starts."""
        state = self._state
        if try_to_connect and state is _IDLE:
            self._set_state(_CONNECTING)
            self._dialing = self.loop.create_task(self._dial())
        return state

    def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> asyncio.Future[None]:
        """Return a future that is done when the state differs. It is no task: Python would report a task left pending at the end."""
        if self._state is _SHUTDOWN:
            raise grpc.aio.UsageError("Channel is closed.")
        changed: asyncio.Future[None] = self.loop.create_future()
        if self._state is last_observed_state:
            self._changed.append(changed)
        else:
            changed.set_result(None)
        return changed

    async def channel_ready(self) -> None:
        """Return when the channel is connected."""
        while self.get_state(try_to_connect=True) is not _READY:
            await self.wait_for_state_change(self._state)

    def begin(self, call: PythonCall) -> None:
        """Carry a call now, or as soon as the channel is connected. A failed connection attempt fails it."""
        if self._state is _SHUTDOWN:
            raise grpc.aio.UsageError("Channel is closed.")
        self._calls[call] = None
        if self._state is _FAILED:
            self.loop.call_soon(call.fail, self._refused())
            return
        self._pending[call] = None
        if self._link is None:
            self.get_state(try_to_connect=True)
        else:
            self.on_room(self._link)

    def call_block(self, method: str) -> bytes:
        """Return the headers that all calls of a method have, as a block."""
        block = self._call_blocks.get(method)
        if block is None:
            headers = grpc_wire.call_headers(method, self._address, user_agent=self.user_agent)
            block = self._call_blocks[method] = http2.header_block(headers)
        return block

    def end(self, call: PythonCall) -> None:
        """Forget a call that is over."""
        self._calls.pop(call, None)
        self._pending.pop(call, None)

    async def close(self, grace: float | None = None) -> None:
        """End every call and the connection."""
        del grace
        dialing = self._dialing
        self.shut_down()
        if dialing is not None and not dialing.done():
            await asyncio.wait((dialing,))
        await asyncio.sleep(0)

    def shut_down(self) -> None:
        """Cancel every call, and close the connection after sending what was written, within `CLOSE_TIMEOUT_S`."""
        if self._state is _SHUTDOWN:
            return
        self._set_state(_SHUTDOWN)
        for call in list(self._calls):
            call.cancel()
        self._link = None
        for link in list(self._links):
            link.close()
        dialing, self._dialing = self._dialing, None
        if dialing is not None:
            dialing.cancel()

    async def __aenter__(self) -> PythonChannel:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def _refused(self) -> WireStatus:
        return WireStatus(grpc_wire.UNAVAILABLE, f"failed to connect to {self._address}; last error: {self._failure}")

    def _set_state(self, state: grpc.ChannelConnectivity) -> None:
        if self._state is state:
            return
        self._state = state
        changed, self._changed = self._changed, []
        for future in changed:
            if not future.done():
                future.set_result(None)

    async def _dial(self) -> None:
        """Try to connect until an attempt succeeds, with pauses."""
        backoff = Backoff(base_ms=RETRY_BACKOFF_MS, limit_ms=MAX_RETRY_BACKOFF_MS, rng=random.Random())
        while (link := await self._try_to_connect()) is None:
            # The state stays like this until an attempt succeeds.
            self._set_state(_FAILED)
            for call in list(self._pending):
                call.fail(self._refused())
            await asyncio.sleep(backoff.next_delay_ms() / 1000)
        self._link = link
        self._set_state(_READY)
        self.on_room(link)

    async def _try_to_connect(self) -> _Link | None:
        host, _, port = self._address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                for each in await resolve(host.strip("[]"), int(port)):
                    with suppress(OSError):
                        return await self._connect_to(each, int(port))
        except (OSError, ValueError) as error:
            self._failure = str(error) or type(error).__name__
        return None

    async def _connect_to(self, host: str, port: int) -> _Link:
        link = _Link(self, self._liveness_s)
        self._links[link] = None
        try:
            await self.loop.create_connection(lambda: link, host, port)
            await link.greeted
        except BaseException as error:
            self._failure = str(error)
            self._links.pop(link, None)
            link.close()
            raise
        return link

    def on_room(self, link: _Link) -> None:
        """Start a waiting call on a connection that may take one more."""
        if self._link is not link:
            return
        while self._pending and link.can_open():
            call = next(iter(self._pending))
            del self._pending[call]
            call.carry(link)
        if link.is_spent():
            self.leave(link)

    def leave(self, link: _Link) -> None:
        """Start no further call on a connection. The calls on it continue."""
        if self._link is link:
            self._link = None
            self._set_state(_IDLE)
            if self._pending:
                self.get_state(try_to_connect=True)

    def on_link_end(self, link: _Link) -> None:
        """Forget a connection that has ended."""
        self._links.pop(link, None)
        if self._state is not _SHUTDOWN:
            self.leave(link)

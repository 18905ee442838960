# SPDX-License-Identifier: Apache-2.0
"""One call at the server: what its handler sees, and how it ends.

This module owns the state of a call. Handlers see what `grpc.aio` shows them, as far as Lograft and the services of gRPC (health,
reflection) use it; `test_virtual_grpc` compares the two.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Final, NoReturn, Protocol

import grpc
import grpc.aio
from lograft._grpc import grpc_wire
from lograft._grpc.grpc_wire import CallStart, MessageError, MessageReader, WireStatus

FIRST_ROOM_BYTES: Final = 256 * 1024
"""Bytes of memory that a message gets when it is announced. It gets more as it comes, and at once if the call has had one as large."""

logger = logging.getLogger(__name__)

Metadata = Sequence[tuple[str, str | bytes]]

_LATE: Final = WireStatus(grpc_wire.DEADLINE_EXCEEDED, "Deadline Exceeded")
_NO_REQUEST: Final = WireStatus(grpc_wire.INTERNAL, "the call ended before a whole request")


class CallLostError(grpc.aio.InternalError):
    """A handler's message cannot be sent: the client has gone, or the call was ended from outside."""


class Connection(Protocol):
    """What a call needs of its connection. This is the border to the socket."""

    @property
    def peer(self) -> str:
        """The name of the client, as gRPC gives it: `ipv4:127.0.0.1:4711`."""
        ...

    def respond(self, stream_id: int, headers: Iterable[tuple[str, str]]) -> None:
        """Send the headers of a response with the next bytes."""
        ...

    def send(self, stream_id: int, parts: tuple[bytes, ...]) -> None:
        """Send bytes of a message; `on_written` follows when they are passed to the socket, perhaps at once."""
        ...

    def end(self, stream_id: int, trailers: Iterable[tuple[str, str]]) -> None:
        """End the response behind what was sent."""
        ...

    def grant(self, stream_id: int, held_bytes: int) -> None:
        """Let the client send more."""
        ...

    def on_call_end(self, call: ServerCall) -> None:
        """The handler of a call has ended."""
        ...


class ServerCall:
    """One call, and the context of its handler (as `grpc.aio.ServicerContext`).

    Args:
        connection: the connection that carries it.
        stream_id: its stream there.
        start: how the client began it.
        handler: of its method.
        max_message_bytes: largest request.
    """

    def __init__(
        self,
        connection: Connection,
        stream_id: int,
        start: CallStart,
        handler: grpc.RpcMethodHandler[Any, Any],
        *,
        max_message_bytes: int,
    ) -> None:
        self.stream_id = stream_id
        self._connection = connection
        self._start = start
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._reader = MessageReader(max_message_bytes, start.encoding, FIRST_ROOM_BYTES)
        self._requests: deque[bytes | bytearray] = deque()
        self._held_bytes = 0
        self._arrival: asyncio.Future[None] | None = None
        self._written: asyncio.Future[None] | None = None
        self._is_half_closed = False
        self._has_headers = False
        self._code: Any = grpc.StatusCode.OK
        self._details = ""
        self._trailing: Metadata = ()
        # The client has gone or was sent away, so nothing can be said.
        self._is_lost = False
        self._is_aborted = False
        self._is_told = False
        self._task: asyncio.Task[None] | None = None
        self._callbacks: list[Callable[[Any], None]] = []
        self._deadline: asyncio.TimerHandle | None = None
        if start.timeout_s is not None:
            self._deadline = self._loop.call_later(start.timeout_s, self._on_deadline)
        if handler.request_streaming:
            self._begin()

    # What the connection does.

    def on_data(self, data: memoryview, *, is_end: bool) -> None:
        """Take bytes of requests."""
        if self.is_over:
            return
        try:
            requests = self._reader.take(data)
        except MessageError as error:
            self._refuse(error.status)
            return
        self._take(requests)
        if is_end:
            self.on_half_close()

    def room(self) -> memoryview:
        """See `StreamUser`."""
        return memoryview(b"") if self.is_over else self._reader.room()

    def on_filled(self, size: int) -> None:
        """See `StreamUser`."""
        try:
            request = self._reader.filled(size)
        except MessageError as error:
            self._refuse(error.status)
            return
        self._take(() if request is None else (request,))

    def on_written(self) -> None:
        """See `StreamUser`."""
        if self._written is not None and not self._written.done():
            self._written.set_result(None)

    def on_half_close(self) -> None:
        """The client sends no more requests."""
        self._is_half_closed = True
        if self._reader.is_inside or (self._task is None and not self._is_told):
            self._refuse(_NO_REQUEST)
        self._arrive()

    def on_lost(self) -> None:
        """The client has given up the call, or its connection is gone: pending reads end, then the handler is cancelled."""
        if self.is_over:
            return
        self._is_lost = True
        self._cut()

    def stop(self, status: WireStatus) -> None:
        """End the call from the server's side."""
        if not self.is_over:
            self._refuse(status)

    @property
    def is_over(self) -> bool:
        """True if the client is gone, or was told how the call ended."""
        return self._is_lost or self._is_told

    @property
    def is_running(self) -> bool:
        """True while the handler runs."""
        return self._task is not None and not self._task.done()

    def _take(self, requests: Sequence[bytes | bytearray]) -> None:
        self._requests.extend(requests)
        self._held_bytes += sum(map(len, requests))
        if self._task is None and requests:
            self._begin()
        if requests:
            self._arrive()
        # A message under way must come to its end, whether or not anybody waits for it. Else the window is the reader's.
        if self._reader.missing_bytes or self._arrival is not None:
            self._connection.grant(self.stream_id, self._held_bytes)

    def _refuse(self, status: WireStatus) -> None:
        """Tell the client a status that no handler set, and cancel the handler."""
        self._tell(status)
        self._is_lost = True
        self._cut()

    def _cut(self) -> None:
        self._requests.clear()
        self._held_bytes = 0
        self._arrive()
        if self._written is not None and not self._written.done():
            self._written.set_exception(CallLostError("the client is gone"))
        if self._deadline is not None:
            self._deadline.cancel()
        if self._task is None:
            self._connection.on_call_end(self)
        else:
            # In a later step of the loop, so that a pending read sees its end first, as with `grpc.aio`.
            self._loop.call_soon(self._task.cancel)

    def _arrive(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _on_deadline(self) -> None:
        if not self.is_over:
            self._refuse(_LATE)

    # The run of the handler.

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._run(), name=f"serve {self._start.method}")
        self._task.add_done_callback(self._on_done)

    async def _run(self) -> None:
        handler: Any = self._handler
        takes_many, gives_many = handler.request_streaming, handler.response_streaming
        request: Any = self._iterate()
        if not takes_many:
            data = self._requests.popleft()
            self._held_bytes -= len(data)
            request = self._decoded(data)
            del data
        method = (
            (handler.stream_stream if takes_many else handler.unary_stream)
            if gives_many
            else (handler.stream_unary if takes_many else handler.unary_unary)
        )
        result = method(request, self)
        del request
        if hasattr(result, "__aiter__"):
            async with aclosing(result):
                async for response in result:
                    await self.write(response)
        else:
            response = await result
            if not gives_many and not self._is_aborted:
                await self.write(response)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if not self.is_over:
            if task.cancelled():
                self._tell(WireStatus(grpc_wire.CANCELLED, "the server gave up the call"))
            elif error is not None:
                logger.error("the handler of %s failed", self._start.method, exc_info=error)
                self._tell(WireStatus(grpc_wire.UNKNOWN, f"Unexpected {type(error)}: {error}"))
            else:
                self._tell(self._status(self._code, self._details, self._trailing))
        if self._deadline is not None:
            self._deadline.cancel()
        for callback in self._callbacks:
            callback(self)
        self._connection.on_call_end(self)

    def _tell(self, status: WireStatus) -> None:
        self._is_told = True
        trailers = grpc_wire.status_trailers(status)
        self._connection.end(
            self.stream_id, trailers if self._has_headers else (*grpc_wire.RESPONSE_HEADERS, *trailers)
        )

    @staticmethod
    def _status(code: Any, details: str, trailing: Metadata) -> WireStatus:
        return WireStatus(code.value[0], details, tuple(trailing))

    # Methods of the handler.

    def invocation_metadata(self) -> Metadata:
        """Return the metadata of the call."""
        return self._start.metadata

    def time_remaining(self) -> float | None:
        """Return the seconds to the deadline; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline.when() - self._loop.time())

    def peer(self) -> str:
        """Return the name of the client."""
        return self._connection.peer

    def cancelled(self) -> bool:
        """Return True if the handler set the status CANCELLED. A client that gave up does not count."""
        return self._code is grpc.StatusCode.CANCELLED

    def done(self) -> bool:
        """Return True if the client was told of the end."""
        return self._is_told

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` at the end of the call."""
        self._callbacks.append(callback)

    async def read(self) -> Any:
        """Return the next request, or EOF."""
        self._require_open()
        while not self._requests and not self._is_half_closed and not self._is_lost:
            self._arrival = self._loop.create_future()
            self._connection.grant(self.stream_id, 0)
            try:
                await self._arrival
            finally:
                self._arrival = None
        if not self._requests:
            return grpc.aio.EOF
        data = self._requests.popleft()
        self._held_bytes -= len(data)
        return self._decoded(data)

    async def write(self, response: Any) -> None:
        """Send a response. Wait while too many bytes are on their way.

        Raises:
            CallLostError: the client has gone.
        """
        self._require_open()
        serialize: Any = self._handler.response_serializer
        data: bytes = response if serialize is None else serialize(response)
        if self._is_lost:
            raise CallLostError("the client is gone")
        self._send_headers(())
        assert self._written is None, "one message is written after the other"
        self._written = self._loop.create_future()
        try:
            self._connection.send(self.stream_id, (grpc_wire.message_head(len(data)), data))
            await self._written
        finally:
            self._written = None

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send the headers of the response, with metadata."""
        self._require_open()
        if not self._is_lost:
            self._send_headers(metadata)

    def _send_headers(self, metadata: Metadata) -> None:
        if not self._has_headers:
            self._has_headers = True
            self._connection.respond(
                self.stream_id, (*grpc_wire.RESPONSE_HEADERS, *grpc_wire.metadata_headers(metadata))
            )

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Set the metadata of the end."""
        self._trailing = tuple(metadata)

    def trailing_metadata(self) -> Metadata:
        """Return the metadata of the end."""
        return self._trailing

    def set_code(self, code: grpc.StatusCode) -> None:
        """Set the status of the end."""
        self._code = code

    def code(self) -> grpc.StatusCode:
        """Return the status of the end."""
        return self._code

    def set_details(self, details: str) -> None:
        """Set the text of the end."""
        self._details = details

    def details(self) -> str:
        """Return the text of the end."""
        return self._details

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the call with a status, which the client gets behind what was written.

        Raises:
            grpc.aio.AbortError: always, unless the call is over: grpc.aio.UsageError, or CallLostError if the client has gone.
        """
        if self._is_aborted:
            raise grpc.aio.UsageError("Abort already called!")
        self._require_open()
        self._is_aborted = True
        if self._is_lost:
            raise CallLostError("the client is gone")
        self._code = code
        self._tell(self._status(code, details, trailing_metadata or self._trailing))
        raise grpc.aio.AbortError("Locally aborted.")

    async def abort_with_status(self, status: Any) -> NoReturn:
        """End the call with a status (see `abort`)."""
        await self.abort(status.code, status.details, status.trailing_metadata or ())

    def _require_open(self) -> None:
        if self._is_aborted:
            raise grpc.aio.AbortError("Locally aborted.")
        if self._is_told and not self._is_lost:
            raise grpc.aio.UsageError("RPC already finished.")

    def _decoded(self, data: bytes | bytearray) -> Any:
        deserialize: Any = self._handler.request_deserializer
        return data if deserialize is None else deserialize(data)

    async def _iterate(self) -> AsyncIterator[Any]:
        while (request := await self.read()) is not grpc.aio.EOF:
            yield request

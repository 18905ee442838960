# SPDX-License-Identifier: Apache-2.0
"""The methods that a server answers on its connections: protobuf in, protobuf out, a typed failure for everything else.

    table = ServiceTable()
    table.add(Method.PROBE, pb.ProbeRequest, answer_probe)          # a function that answers at once
    table.add_waiting(Method.HEARTBEAT, pb.HeartbeatRequest, answer)  # a coroutine function, in a task of its own
    peers = Peers(identity, table.services())

Owns the tasks that answer, and the encoding of failures. Laws: every request gets exactly one final frame; at most `MAX_TASKS` tasks
answer at the same time. A handler that respects the timeout of a call answers within the time that the caller waits.
Source: docs/net.md section "Failures".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message
from lograft.internal.v1 import net_pb2 as pb
from lograft.v1 import errors_pb2
from lograft.v1.errors_pb2 import LeaderHint
from lograft.wire.codes import ErrorCode

from metaquorum.net.link import OnRequest, OnStream, ServedCall, Services, Stream
from metaquorum.net.sparse_log import SparseLog

logger = logging.getLogger(__name__)

MAX_TASKS: Final = 50_000
"""Requests and streams that tasks may be answering at the same time. Further ones are refused with OVERLOADED."""

OVERLOADED_RETRY_MS: Final = 100
"""Milliseconds after which a caller that got OVERLOADED should try again."""

STREAM_GRACE_MS: Final = 1_000
"""Milliseconds in which the handler of a stream must return after the stream has failed; then it is cancelled."""

RequestT = TypeVar("RequestT", bound=Message)

_lines = SparseLog()
"""Limits log lines about events that peers can cause at will to one a second. Belongs to the event loop thread."""


class RefusalError(Exception):
    """A handler refuses a request, or ends a stream, with a reason that the other side learns.

    Attributes:
        code: why.
        message: text for people.
        retry_after_ms: milliseconds to wait before a retry; 0: no advice.
        leader: the server to ask instead; None if unknown.
    """

    def __init__(
        self, code: ErrorCode, message: str, *, retry_after_ms: int = 0, leader: LeaderHint | None = None
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.leader = leader

    def encode(self) -> bytes:
        """Return the body of a FAILURE or RESET frame."""
        return pb.Failure(
            code=errors_pb2.ErrorCode.ValueType(self.code),
            message=self.message,
            retry_after_ms=self.retry_after_ms,
            leader=self.leader,
        ).SerializeToString()


def decode_refusal(body: bytes) -> RefusalError:
    """Return the refusal in the body of a FAILURE or RESET frame. Without a known code, or if undecodable, it is INTERNAL."""
    try:
        failure = pb.Failure.FromString(body)
        code = ErrorCode(failure.code)
    except (DecodeError, ValueError):
        failure, code = pb.Failure(), ErrorCode.UNSPECIFIED
    if code is ErrorCode.UNSPECIFIED:
        # The code is of a later version, or the bytes are no refusal: what the other server did is unknown.
        return RefusalError(ErrorCode.INTERNAL, "the other server refused with a reason that is not understood")
    leader = failure.leader if failure.HasField("leader") else None
    return RefusalError(code, failure.message, retry_after_ms=failure.retry_after_ms, leader=leader)


_FAULT: Final = RefusalError(ErrorCode.INTERNAL, "a fault of the server; its log says more").encode()
_UNKNOWN: Final = RefusalError(
    ErrorCode.INVALID_REQUEST, "this server does not know the method; it may be of another version"
).encode()


class ServiceTable:
    """The handlers of a server, by method. Fill the table before use. Runs on one event loop."""

    def __init__(self) -> None:
        self._requests: dict[int, OnRequest] = {}
        self._streams: dict[int, tuple[OnStream, int]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def add(self, method: int, request_type: type[RequestT], answer: Callable[[RequestT, ServedCall], None]) -> None:
        """Register a function that answers a method. It calls `respond` or `fail`, at once or later.

        A `RefusalError` that it raises becomes the answer.
        """

        def serve(call: ServedCall) -> None:
            try:
                answer(_decoded(request_type, call.message), call)
            except RefusalError as error:
                call.fail(error.encode())

        self._add(method, serve)

    def add_waiting(
        self, method: int, request_type: type[RequestT], answer: Callable[[RequestT, ServedCall], Awaitable[Message]]
    ) -> None:
        """Register a coroutine function that returns the response or raises `RefusalError`.

        It is cancelled when the caller no longer waits for the answer.
        """

        async def serve_in_task(request: RequestT, call: ServedCall) -> None:
            try:
                response = await answer(request, call)
                call.respond(response.SerializeToString())
            except RefusalError as error:
                call.fail(error.encode())
            except Exception:
                logger.exception("event=call_failed method=%d", method)
                call.fail(_FAULT)

        def serve(call: ServedCall) -> None:
            try:
                request = _decoded(request_type, call.message)
                task = self._spawn(serve_in_task(request, call), f"method {method}")
            except RefusalError as error:
                call.fail(error.encode())
            else:
                call.on_abandoned = lambda: _cancel(task)

        self._add(method, serve)

    def add_stream(
        self,
        method: int,
        opening_type: type[RequestT],
        answer: Callable[[RequestT, Stream], Coroutine[Any, Any, None]],
        *,
        window_bytes: int,
    ) -> None:
        """Register a coroutine function that serves a stream. When it returns, this side ends its direction.

        When the other side cancels the stream, or the connection ends, reads and writes raise `CallError`. A handler that has not
        returned `STREAM_GRACE_MS` later is cancelled.

        Args:
            method: number of the method.
            opening_type: message that opens the stream.
            answer: reads and writes the stream; raises `RefusalError` to end it with a reason. Lets `CallError` pass.
            window_bytes: bytes that the other side may send ahead of the reader.
        """

        async def serve_in_task(opening: RequestT, stream: Stream) -> None:
            try:
                await answer(opening, stream)
            except RefusalError as error:
                stream.fail(error.encode())
            except asyncio.CancelledError:
                stream.give_up()
                raise
            except Exception:
                if stream.is_over:
                    # The stream failed while the handler worked, so there is no caller to answer.
                    return
                logger.exception("event=stream_failed method=%d", method)
                stream.fail(_FAULT)
            else:
                stream.end()

        def serve(stream: Stream) -> None:
            try:
                opening = _decoded(opening_type, stream.message)
                task = self._spawn(serve_in_task(opening, stream), f"stream {method}")
            except RefusalError as error:
                stream.fail(error.encode())
            else:
                stream.on_over = lambda: _end_soon(task)

        self._check_new(method)
        self._streams[method] = (serve, window_bytes)

    def services(self) -> Services:
        """Return the handlers in the form that `Peers` needs."""
        return Services(requests=self._requests, streams=self._streams, unknown=_UNKNOWN, fault=_FAULT)

    async def close(self) -> None:
        """Cancel every task that answers. Callers learn of it when the connection ends. Idempotent."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, method: int, serve: OnRequest) -> None:
        self._check_new(method)
        self._requests[method] = serve

    def _check_new(self, method: int) -> None:
        assert method not in {**self._requests, **self._streams}, f"method {method} is served twice"

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        if len(self._tasks) >= MAX_TASKS:
            work.close()
            raise RefusalError(
                ErrorCode.OVERLOADED, f"{MAX_TASKS} requests are being answered", retry_after_ms=OVERLOADED_RETRY_MS
            )
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()


def _end_soon(task: asyncio.Task[None]) -> None:
    timer = task.get_loop().call_later(STREAM_GRACE_MS / 1000, task.cancel)
    task.add_done_callback(lambda _: timer.cancel())


def _decoded(request_type: type[RequestT], message: bytes) -> RequestT:
    try:
        return request_type.FromString(message)
    except DecodeError as error:
        name = request_type.DESCRIPTOR.full_name
        if count := _lines.note("undecodable_request", time.monotonic()):
            logger.warning("event=undecodable_request message=%s count=%d", name, count)
        raise RefusalError(ErrorCode.INVALID_REQUEST, f"the request is not a valid {name}") from error

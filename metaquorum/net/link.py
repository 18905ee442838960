# SPDX-License-Identifier: Apache-2.0
"""One connection between two servers on an event loop: the core of `connection.py` with a transport, a clock and the waiting callers.

Owns the transport, the timer, and the delivery of outcomes to callers. Does not know what a message means, nor who dials.
Everything runs on the event loop.

Laws: each caller gets exactly one outcome; nothing is written while the transport is full; no handler starts for a connection that is
over; an exception of a handler fails only its call, and an exception of one caller costs no other caller its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias, assert_never, cast

from metaquorum.net.connection import (
    Abandoned,
    Answered,
    Connection,
    Ended,
    Failed,
    Greeted,
    Happening,
    Leaving,
    Limits,
    Loss,
    Opened,
    Over,
    Received,
    Requested,
    Writable,
    credit_taken,
)

logger = logging.getLogger(__name__)

WRITE_BYTES: Final = 256 * 1024
"""Bytes that the transport may hold unsent. Small messages can still overtake what waits beyond them."""

JOINED_BYTES: Final = 64 * 1024
"""Frames of up to this size together are joined before they are written. One write of a copy is cheaper than several small writes."""

CLOSE_S: Final = 1.0
"""Seconds in which a closing connection may send what was written; then it is aborted."""


class CallError(Exception):
    """A call got no response."""


class RefusedByPeerError(CallError):
    """The other side refused the call.

    Attributes:
        failure: body of its FAILURE or RESET.
    """

    def __init__(self, failure: bytes) -> None:
        super().__init__(f"refused by the other side ({len(failure)} bytes)")
        self.failure = failure


class UnansweredError(CallError):
    """No answer came; it is unknown whether the other side executed the call.

    Attributes:
        loss: why: for example, the time was up or the connection ended.
    """

    def __init__(self, loss: Loss, reason: str) -> None:
        super().__init__(reason)
        self.loss = loss


Outcome: TypeAlias = bytes | CallError
OnOutcome: TypeAlias = Callable[[Outcome], None]
OnMessages: TypeAlias = Callable[[list[bytes]], None]
OnEnd: TypeAlias = "Callable[[CallError | None], None]"


class ServedCall:
    """A request of the other side. Its handler answers once, with `respond` or `fail`, at once or later.

    Attributes:
        link: connection of the request.
        hello: the other side's HELLO.
        message: the request.
        timeout_ms: how long the caller waits, in milliseconds.
        is_abandoned: True once the caller no longer waits.
        on_abandoned: runs when that happens; the handler may set it.
    """

    __slots__ = ("_call_id", "hello", "is_abandoned", "link", "message", "on_abandoned", "timeout_ms")

    def __init__(self, link: Link, call_id: int, message: bytes, timeout_ms: int) -> None:
        self.link = link
        self._call_id = call_id
        self.hello = link.hello
        self.message = message
        self.timeout_ms = timeout_ms
        self.is_abandoned = False
        self.on_abandoned: Callable[[], None] | None = None

    def respond(self, message: bytes) -> None:
        """Send the response. Has no effect if the caller no longer waits."""
        self.link.finish(self._call_id, message, is_failure=False)

    def fail(self, failure: bytes) -> None:
        """Refuse the request. Has no effect if the caller no longer waits."""
        self.link.finish(self._call_id, failure, is_failure=True)


class Stream:
    """A stream of either side, for one reader and one writer.

    The reader is a task that calls `read`, or two functions that `listen` gets: these run as the messages arrive, which saves a turn of
    the event loop.

    Attributes:
        hello: the other side's HELLO.
        message: the message that opened the stream; empty on the side that opened it.
        on_over: runs once when the stream fails or either side cancels it; the handler may set it.
    """

    def __init__(self, link: Link, call_id: int, message: bytes, window_bytes: int) -> None:
        self._link = link
        self._call_id = call_id
        self._window_bytes = window_bytes
        self._taken_bytes = 0
        self._messages: deque[bytes] = deque()
        self._has_ended = False
        self._error: CallError | None = None
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._on_messages: OnMessages | None = None
        self._on_end: OnEnd | None = None
        self._is_paused = False
        self._is_delivering = False
        self.hello = link.hello
        self.message = message
        self.on_over: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        """True once the stream has failed or either side has cancelled it."""
        return self._error is not None

    @property
    def has_ended(self) -> bool:
        """True once the other side has ended its direction; messages may still be unread."""
        return self._has_ended

    async def read(self) -> bytes | None:
        """Return the next message; None once the other side has ended its direction.

        Raises:
            CallError: the stream is over; all messages that came before have been returned.
        """
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                return None
            self._readable = asyncio.get_running_loop().create_future()
            try:
                await self._readable
            finally:
                self._readable = None
        message = self._messages.popleft()
        self._count(credit_taken(message))
        return message

    def listen(self, on_messages: OnMessages, on_end: OnEnd) -> None:
        """Pass messages on as they arrive, instead of keeping them for `read`. Those that wait are passed on before this returns.

        Args:
            on_messages: gets the messages that arrived together, in order. It may pause, write to, or end the stream. If it raises,
                the stream is given up.
            on_end: runs once, after the last message: with None if the other side has ended its direction, else with the reason why
                the stream is over.
        """
        assert self._readable is None, "a task reads the stream"
        self._on_messages, self._on_end = on_messages, on_end
        self.deliver()

    def pause(self) -> None:
        """Keep the messages until `resume`. The other side stops when the window is used up."""
        self._is_paused = True

    def resume(self) -> None:
        """Pass on what was kept, before this returns, and what comes."""
        self._is_paused = False
        self.deliver()

    async def write(self, message: bytes) -> None:
        """Send a message as soon as the other side has granted credit.

        Raises:
            CallError: the stream is over.
        """
        while not self.try_write(message):
            if self._error is not None:
                raise self._error
            self._writable = asyncio.get_running_loop().create_future()
            try:
                await self._writable
            finally:
                self._writable = None

    def try_write(self, message: bytes) -> bool:
        """Send a message if there is credit and the stream is not over. Return whether it was sent."""
        return self._error is None and self._link.send(self._call_id, message)

    def end(self) -> None:
        """End this side's direction; the other direction continues."""
        self._link.end(self._call_id)

    def fail(self, failure: bytes) -> None:
        """End both directions and tell the other side the reason."""
        self._link.finish(self._call_id, failure, is_failure=True)
        self.lose(UnansweredError(Loss.CANCELLED, "this side ended the stream"))

    def give_up(self) -> None:
        """End both directions without a reason."""
        self._link.give_up(self._call_id)
        self.lose(UnansweredError(Loss.CANCELLED, "this side gave the stream up"))

    # For the link.

    def take(self, message: bytes) -> None:
        """Add a message that arrived. `deliver` follows."""
        self._messages.append(message)

    def take_end(self) -> None:
        """Note that the other side sends nothing more."""
        self._has_ended = True
        self.deliver()

    def deliver(self) -> None:
        """Pass on what has arrived, or wake the task that reads."""
        if self._on_messages is None:
            _wake(self._readable)
            return
        if self._is_delivering:
            return
        self._is_delivering = True
        while self._messages and not self._is_paused:
            messages = list(self._messages)
            self._messages.clear()
            self._count(sum(map(credit_taken, messages)))
            try:
                self._on_messages(messages)
            except Exception:
                logger.exception("event=stream_failed")
                self._messages.clear()
                self.give_up()
        self._is_delivering = False
        is_over = self._error is not None or self._has_ended
        if is_over and not self._messages and self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self._error)

    def take_credit(self) -> None:
        """Wake the writer: the other side has granted credit."""
        _wake(self._writable)

    def lose(self, error: CallError) -> None:
        """Note that the stream is over, and wake its reader and writer."""
        if self._error is None:
            self._error = error
            # What has been kept so far can still be passed on: nobody waits for a pause to end.
            self._is_paused = False
            self.deliver()
            _wake(self._writable)
            if self.on_over is not None:
                self.on_over()

    def _count(self, taken_bytes: int) -> None:
        """Grant the other side what the reader has taken, half a window at a time."""
        self._taken_bytes += taken_bytes
        if self._taken_bytes * 2 >= self._window_bytes:
            taken_bytes, self._taken_bytes = self._taken_bytes, 0
            self._link.grant(self._call_id, taken_bytes)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


OnRequest: TypeAlias = Callable[[ServedCall], None]
OnStream: TypeAlias = Callable[[Stream], None]


class Services:
    """The handlers of this side, by method number.

    Args:
        requests: handlers of requests; each one answers its request.
        streams: handlers of streams, with the bytes that the other side may send ahead of the reader.
        unknown: the failure for a method without a handler.
        fault: the failure for a request whose handler raised.
    """

    def __init__(
        self,
        *,
        requests: Mapping[int, OnRequest],
        streams: Mapping[int, tuple[OnStream, int]],
        unknown: bytes = b"",
        fault: bytes = b"",
    ) -> None:
        self.requests = requests
        self.streams = streams
        self.unknown = unknown
        self.fault = fault


class Link(asyncio.Protocol):
    """One connection as an `asyncio.Protocol`: runs the core, calls the handlers, delivers outcomes to callers.

    Args:
        is_dialler: True on the side that dialled.
        hello: body of this side's HELLO.
        services: handlers of this side.
        check_hello: checks the other side's HELLO; returns the GOODBYE with which to close, or None if it matches.
        on_over: runs once when the connection is over, with the reason.
        limits: bounds.

    Attributes:
        hello: the other side's HELLO; empty before `greeted`.
        greeted: done once the other side's HELLO matches; fails if it does not match or does not come.
        closed: done once the transport is closed.
    """

    def __init__(
        self,
        *,
        is_dialler: bool,
        hello: bytes,
        services: Services,
        check_hello: Callable[[bytes], bytes | None],
        on_over: Callable[[Link, str], None],
        limits: Limits | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._core = Connection(is_dialler=is_dialler, hello=hello, limits=limits or Limits(), now_ms=self._now_ms())
        self._services = services
        self._check_hello = check_hello
        self._on_over = on_over
        self._transport: asyncio.Transport | None = None
        self._is_full = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._waiting: dict[int, OnOutcome] = {}
        self._served: dict[int, ServedCall] = {}
        self._streams: dict[int, Stream] = {}
        self.hello = b""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.greeted: asyncio.Future[None] = self._loop.create_future()
        # Retrieve the exception: the dialler may no longer wait for this future.
        self.greeted.add_done_callback(lambda future: future.cancelled() or future.exception())

    @property
    def is_usable(self) -> bool:
        """True while this side may start calls."""
        return self._transport is not None and self._core.takes_calls

    @property
    def open_count(self) -> int:
        """Number of open calls of both sides."""
        return self._core.open_count

    def request(self, method: int, message: bytes, *, timeout_ms: int, on_outcome: OnOutcome) -> int:
        """Send a request and return its id, for `give_up`. `on_outcome` runs exactly once, after this method has returned.

        Raises:
            BusyError: nothing was sent.
        """
        call_id = self._core.request(method, message, timeout_ms=timeout_ms, now_ms=self._now_ms())
        self._waiting[call_id] = on_outcome
        self._flush()
        self._arm()
        return call_id

    async def ask(self, method: int, message: bytes, *, timeout_ms: int) -> bytes:
        """Send a request and return its response. A caller that is cancelled gives the request up.

        Raises:
            BusyError: nothing was sent.
            RefusedByPeerError: the other side refuses.
            UnansweredError: no answer came.
        """
        future: asyncio.Future[Outcome] = self._loop.create_future()

        def tell(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        call_id = self.request(method, message, timeout_ms=timeout_ms, on_outcome=tell)
        try:
            outcome = await future
        except asyncio.CancelledError:
            self.give_up(call_id)
            raise
        if isinstance(outcome, CallError):
            raise outcome
        return outcome

    def open(self, method: int, message: bytes, *, window_bytes: int) -> Stream:
        """Open a stream; the other side may send `window_bytes` ahead of the reader.

        Raises:
            BusyError: nothing was sent.
        """
        call_id = self._core.open(method, message, credit_bytes=window_bytes)
        stream = self._streams[call_id] = Stream(self, call_id, b"", window_bytes)
        self._flush()
        return stream

    def give_up(self, call_id: int) -> None:
        """Stop waiting for a call; no outcome of it follows."""
        self._waiting.pop(call_id, None)
        self._streams.pop(call_id, None)
        self._core.give_up(call_id)
        self._flush()

    def leave(self, goodbye: bytes) -> None:
        """Take no new calls; open calls continue."""
        self._core.leave(goodbye)
        self._flush()

    def close(self, goodbye: bytes) -> None:
        """Close the connection once the written bytes are sent, or after `CLOSE_S`. Every open call fails."""
        self.leave(goodbye)
        transport = self._transport
        if transport is not None:
            transport.close()
            self._loop.call_later(CLOSE_S, transport.abort)
        self._tell(self._core.lose("this side closed the connection"))

    # For calls and streams.

    def send(self, call_id: int, message: bytes) -> bool:
        """See `Connection.send`."""
        is_sent = self._core.send(call_id, message)
        if is_sent:
            self._flush()
        return is_sent

    def grant(self, call_id: int, credit_bytes: int) -> None:
        """See `Connection.grant`."""
        self._core.grant(call_id, credit_bytes)
        self._flush()

    def end(self, call_id: int) -> None:
        """See `Connection.end`."""
        self._core.end(call_id)
        self._drop_ended(call_id)
        self._flush()

    def finish(self, call_id: int, message: bytes, *, is_failure: bool) -> None:
        """See `Connection.respond` and `Connection.fail`."""
        self._served.pop(call_id, None)
        self._streams.pop(call_id, None)
        (self._core.fail if is_failure else self._core.respond)(call_id, message)
        self._flush()

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface and HELLO."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._core.deadline_ms() is None:
            # `close` ran between the accept and now.
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._flush()
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""
        self._tell(self._core.receive(data, self._now_ms()))
        self._flush()
        self._arm()

    def eof_received(self) -> bool:
        """Let the transport close when the other side closes; nothing is left to send to it."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every open call."""
        if not self.closed.done():
            # The task that waited for it may have been cancelled, which cancels the future, too.
            self.closed.set_result(None)
        self._tell(self._core.lose(f"the connection broke: {exc!r}" if exc else "the other side ended the connection"))

    def pause_writing(self) -> None:
        """Stop writing: the transport is full."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Write again: the transport has room."""
        self._is_full = False
        self._flush()

    # Inside.

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            return
        while not self._is_full and (out := self._core.output(WRITE_BYTES)):
            size_bytes = sum(map(len, out))
            if size_bytes <= JOINED_BYTES:
                out = [b"".join(out)]
            try:
                # Not writelines(): that of CPython 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 never pauses the writer (CVE-2024-12254).
                for data in out:
                    transport.write(data)
            except RuntimeError as error:
                # uvloop raises it after an attempt to connect that was cancelled just before its end: it closes the transport
                # silently.
                self._tell(self._core.lose(f"the connection is closed: {error}"))
                return
            if size_bytes < WRITE_BYTES:
                # Nothing else waits.
                return

    def _arm(self) -> None:
        """Schedule the next `tick` of the core. A timer that fires too early does no harm."""
        due_ms = self._core.deadline_ms()
        if self._timer is not None:
            if due_ms is not None and self._timer_ms <= due_ms:
                return
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer_ms = due_ms
            self._timer = self._loop.call_later(max(0, due_ms - self._now_ms()) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._tell(self._core.tick(self._now_ms()))
        self._flush()
        self._arm()

    def _tell(self, happenings: list[Happening]) -> None:
        # What arrived together on a stream is passed on together.
        arrived: dict[Stream, None] = {}
        for each in happenings:
            match each:
                case Answered(call_id=call_id, message=message):
                    self._outcome(call_id, message)
                case Requested() | Opened() if self._core.is_over:
                    # It came in the same bytes for which the connection ended. No answer could be sent.
                    pass
                case Requested():
                    self._serve(each)
                case Received(call_id=call_id, message=message):
                    stream = self._streams.get(call_id)
                    if stream is not None:
                        stream.take(message)
                        arrived[stream] = None
                case Writable(call_id=call_id):
                    stream = self._streams.get(call_id)
                    if stream is not None:
                        stream.take_credit()
                case Failed():
                    self._fail(each)
                case Opened():
                    self._serve_stream(each)
                case Ended(call_id=call_id):
                    stream = self._streams.get(call_id)
                    if stream is not None:
                        stream.take_end()
                        self._drop_ended(call_id)
                case Abandoned(call_id=call_id):
                    served = self._served.pop(call_id, None)
                    if served is not None:
                        served.is_abandoned = True
                        self._abandon(served)
                case Greeted(hello=hello):
                    self._greet(hello)
                case Leaving():
                    pass
                case Over(reason=reason):
                    self._end(reason)
                case _:
                    assert_never(each)
        for stream in arrived:
            stream.deliver()

    def _drop_ended(self, call_id: int) -> None:
        """Forget a stream that both sides have ended, once its reader knows."""
        stream = self._streams.get(call_id)
        if stream is not None and stream.has_ended and not self._core.is_open(call_id):
            del self._streams[call_id]

    def _abandon(self, served: ServedCall) -> None:
        if served.on_abandoned is None:
            return
        try:
            served.on_abandoned()
        except Exception:
            logger.exception("event=abandoned_call_failed")

    def _greet(self, hello: bytes) -> None:
        self.hello = hello
        refusal = self._check_hello(hello)
        if refusal is None:
            self.greeted.set_result(None)
        else:
            self.close(refusal)

    def _outcome(self, call_id: int, outcome: Outcome) -> None:
        on_outcome = self._waiting.pop(call_id, None)
        if on_outcome is None:
            return
        try:
            on_outcome(outcome)
        except Exception:
            # The callback of one caller failed. The others still get their outcome.
            logger.exception("event=outcome_failed")

    def _fail(self, failed: Failed) -> None:
        error: CallError
        if failed.failure is not None:
            error = RefusedByPeerError(failed.failure)
        else:
            assert failed.loss is not None, f"no reason in {failed}"
            error = UnansweredError(failed.loss, failed.loss.name.lower().replace("_", " "))
        stream = self._streams.pop(failed.call_id, None)
        if stream is not None:
            stream.lose(error)
        else:
            self._outcome(failed.call_id, error)

    def _serve(self, requested: Requested) -> None:
        handler = self._services.requests.get(requested.method)
        if handler is None:
            self._core.fail(requested.call_id, self._services.unknown)
            return
        call = self._served[requested.call_id] = ServedCall(
            self, requested.call_id, requested.message, requested.timeout_ms
        )
        try:
            handler(call)
        except Exception:
            logger.exception("event=call_failed method=%d", requested.method)
            call.fail(self._services.fault)

    def _serve_stream(self, opened: Opened) -> None:
        served = self._services.streams.get(opened.method)
        if served is None:
            self._core.fail(opened.call_id, self._services.unknown)
            return
        handler, window_bytes = served
        stream = self._streams[opened.call_id] = Stream(self, opened.call_id, opened.message, window_bytes)
        self._core.grant(opened.call_id, window_bytes)
        try:
            handler(stream)
        except Exception:
            logger.exception("event=stream_failed method=%d", opened.method)
            stream.fail(self._services.fault)

    def _end(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionError(reason))
        self._on_over(self, reason)

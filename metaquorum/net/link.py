# SPDX-License-Identifier: Apache-2.0
"""One connection between two servers on an event loop: the core of `connection.py` with a transport, a clock, and whoever waits.

Owns the transport, the timer, and who is told what became of a call. Must not know what a message says, nor who dials.
Everything runs on the event loop.

Laws: whoever asks is told exactly once; nothing is written while the transport is full; nothing is begun for a connection that is over;
an exception of a handler fails its call alone, and one of whoever asked costs nobody else an outcome.
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
"""Bytes that are handed to the transport before it must have sent some; what waits beyond can still be overtaken by small messages."""

CLOSE_S: Final = 1.0
"""Seconds that a connection which is closed has to send what was written."""


class CallError(Exception):
    """A call has no response."""


class RefusedByPeerError(CallError):
    """The other side says so.

    Attributes:
        failure: what it says.
    """

    def __init__(self, failure: bytes) -> None:
        super().__init__(f"refused by the other side ({len(failure)} bytes)")
        self.failure = failure


class UnansweredError(CallError):
    """Nobody can say whether it was carried out.

    Attributes:
        loss: whether the time was up, or the connection ended.
    """

    def __init__(self, loss: Loss, reason: str) -> None:
        super().__init__(reason)
        self.loss = loss


Outcome: TypeAlias = bytes | CallError
OnOutcome: TypeAlias = Callable[[Outcome], None]


class ServedCall:
    """A request of the other side: answer it once, with `respond` or `fail`; later, or at once.

    Attributes:
        link: the connection that it came over.
        hello: what the other side said of itself.
        message: the request.
        timeout_ms: how long the other side waits.
        is_abandoned: True once nobody waits for the answer any more.
        on_abandoned: told when that happens; may be set by whoever serves.
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
        """Answer; nothing happens when nobody waits any more."""
        self.link.finish(self._call_id, message, is_failure=False)

    def fail(self, failure: bytes) -> None:
        """Refuse; nothing happens when nobody waits any more."""
        self.link.finish(self._call_id, failure, is_failure=True)


class Stream:
    """A stream of either side. One reader, one writer.

    Attributes:
        hello: what the other side said of itself.
        message: the message that opened it; empty on the side that opened.
        on_over: told once when it fails, or either side gives it up; may be set by whoever serves.
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
        self.hello = link.hello
        self.message = message
        self.on_over: Callable[[], None] | None = None

    @property
    def is_over(self) -> bool:
        """True once it has failed, or either side has given it up."""
        return self._error is not None

    @property
    def has_ended(self) -> bool:
        """True once the other side has ended its direction, whether that was read or not."""
        return self._has_ended

    async def read(self) -> bytes | None:
        """Return the next message; None: the other side has ended its direction.

        Raises:
            CallError: the stream is over; what came before was returned.
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
        self._taken_bytes += credit_taken(message)
        if self._taken_bytes * 2 >= self._window_bytes:
            taken_bytes, self._taken_bytes = self._taken_bytes, 0
            self._link.grant(self._call_id, taken_bytes)
        return message

    async def write(self, message: bytes) -> None:
        """Send a message once the other side has room for it.

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
        """Send a message if the other side has room for it, and the stream is not over."""
        return self._error is None and self._link.send(self._call_id, message)

    def end(self) -> None:
        """Send nothing more; the other direction goes on."""
        self._link.end(self._call_id)

    def fail(self, failure: bytes) -> None:
        """End both directions with a reason."""
        self._link.finish(self._call_id, failure, is_failure=True)
        self.lose(UnansweredError(Loss.CANCELLED, "this side ended the stream"))

    def give_up(self) -> None:
        """End both directions without a reason."""
        self._link.give_up(self._call_id)
        self.lose(UnansweredError(Loss.CANCELLED, "this side gave the stream up"))

    # For the link.

    def take(self, message: bytes) -> None:
        """A message came."""
        self._messages.append(message)
        self._wake_reader()

    def take_end(self) -> None:
        """The other side sends nothing more."""
        self._has_ended = True
        self._wake_reader()

    def take_credit(self) -> None:
        """The other side has more room."""
        _wake(self._writable)

    def lose(self, error: CallError) -> None:
        """It is over."""
        if self._error is None:
            self._error = error
            self._wake_reader()
            _wake(self._writable)
            if self.on_over is not None:
                self.on_over()

    def _wake_reader(self) -> None:
        _wake(self._readable)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


OnRequest: TypeAlias = Callable[[ServedCall], None]
OnStream: TypeAlias = Callable[[Stream], None]


class Services:
    """What this side answers, by the number of the method.

    Args:
        requests: told of a request, which it answers.
        streams: told of a stream, and the bytes that its other side may send ahead.
        unknown: the failure for a method that nobody serves.
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
    """See the module docstring.

    Args:
        is_dialler: True on the side that dialled.
        hello: what this side says of itself.
        services: what it answers.
        check_hello: judges what the other side says of itself; returns the reason for which it is left, or None.
        on_over: told once when the connection is over, with the reason.
        limits: bounds.

    Attributes:
        hello: what the other side said of itself; empty before `greeted`.
        greeted: done when the other side's HELLO fits; fails when it does not, or nothing comes.
        closed: done when there is no connection any more.
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
        # Whoever dialled may have given up.
        self.greeted.add_done_callback(lambda future: future.cancelled() or future.exception())

    @property
    def is_usable(self) -> bool:
        """True while this side may ask."""
        return self._transport is not None and self._core.takes_calls

    @property
    def open_count(self) -> int:
        """Calls of both sides that are open."""
        return self._core.open_count

    def request(self, method: int, message: bytes, *, timeout_ms: int, on_outcome: OnOutcome) -> int:
        """Ask the other side; the outcome is told once, later. Returns the id for `give_up`.

        Raises:
            BusyError: nothing was sent.
        """
        call_id = self._core.request(method, message, timeout_ms=timeout_ms, now_ms=self._now_ms())
        self._waiting[call_id] = on_outcome
        self._flush()
        self._arm()
        return call_id

    async def ask(self, method: int, message: bytes, *, timeout_ms: int) -> bytes:
        """Ask the other side and wait for its response; a caller that is cancelled gives the request up.

        Raises:
            BusyError: nothing was sent.
            RefusedByPeerError: the other side refuses.
            UnansweredError: no answer.
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
        """Wait for a call no longer; nothing more is told of it."""
        self._waiting.pop(call_id, None)
        self._streams.pop(call_id, None)
        self._core.give_up(call_id)
        self._flush()

    def leave(self, goodbye: bytes) -> None:
        """Take no new calls; those that are open go on."""
        self._core.leave(goodbye)
        self._flush()

    def close(self, goodbye: bytes) -> None:
        """End the connection once what was written is sent, or after `CLOSE_S`; every open call fails."""
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
        """Greet."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        if self._core.deadline_ms() is None:
            # It was closed between its acceptance and now.
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._flush()
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._tell(self._core.receive(data, self._now_ms()))
        self._flush()
        self._arm()

    def eof_received(self) -> bool:
        """The other side closes; nothing is left to be said to it."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side is gone, or this one has closed."""
        if not self.closed.done():
            # Whoever waited for it may have been cancelled, and it with them.
            self.closed.set_result(None)
        self._tell(self._core.lose(f"the connection broke: {exc!r}" if exc else "the other side ended the connection"))

    def pause_writing(self) -> None:
        """The transport is full."""
        self._is_full = True

    def resume_writing(self) -> None:
        """The transport has room."""
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
            try:
                transport.write(out[0] if len(out) == 1 else b"".join(out))
            except RuntimeError as error:
                # uvloop's, of an attempt to connect that was cancelled just before its end: it closes the transport and says nothing.
                self._tell(self._core.lose(f"the connection is closed: {error}"))
                return

    def _arm(self) -> None:
        """See to it that the core looks at the clock in time; a timer that comes too early does no harm."""
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
        for each in happenings:
            match each:
                case Answered(call_id=call_id, message=message):
                    self._outcome(call_id, message)
                case Requested() | Opened() if self._core.is_over:
                    # It came with the bytes for which the connection was ended. Nobody would hear of it.
                    pass
                case Requested():
                    self._serve(each)
                case Received(call_id=call_id, message=message):
                    stream = self._streams.get(call_id)
                    if stream is not None:
                        stream.take(message)
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

    def _drop_ended(self, call_id: int) -> None:
        """Forget a stream that both sides have ended, once it has been told so."""
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
            # The fault of one who asked: others are told theirs all the same.
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

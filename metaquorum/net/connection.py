# SPDX-License-Identifier: Apache-2.0
"""The core of one connection between two servers, a pure function of bytes and time: requests with deadlines, streams with credit.

Owns which calls are open, what is sent next, and what the other side may send. Knows no sockets, no clock and no protobuf: bodies are
bytes. `receive` takes received bytes and returns what they mean; `output` returns the bytes to send.
Laws: docs/net.md section "Invariants".
Source: h11 for the form; HTTP/2 (RFC 9113) for ids, credit and GOAWAY.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from typing import Final, TypeAlias

from metaquorum.net.frames import GREETING, MAX_BODY_BYTES, BadFrameError, Frame, FrameReader, Kind, header

MAX_CALL_ID: Final = 2**32 - 1
"""Largest call id. A connection that has used it takes no more calls, and its users dial again."""

MAX_TIMEOUT_MS: Final = 2**31
"""Largest timeout of a request, in milliseconds. Longer ones are cut to it."""

JOINED_BYTES: Final = 16 * 1024
"""Pieces of an incomplete message that are shorter than this are joined as they arrive."""

_METHOD_AND_NUMBER: Final = struct.Struct(">HI")
_CREDIT: Final = struct.Struct(">I")
_PING: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one connection.

    Attributes:
        open_calls: calls that this side may have open at once. The other side may have twice as many here, counting answers that wait
            to be sent.
        queued_bytes: bytes waiting to be sent at which new requests are refused with BUSY; more than one message of any length.
        message_bytes: largest message in bytes.
        partial_bytes: bytes of all messages that have arrived in part. A sender starts a further long message only within half of
            it.
        piece_bytes: bytes of a message that are sent before another call gets its turn.
        greeting_ms: milliseconds in which the other side's HELLO must arrive.
        ping_after_ms: milliseconds of silence after which this side pings the other.
        liveness_ms: milliseconds of silence after which the connection is over.
        suspect_ms: milliseconds of silence after a request timed out, if no byte has come since it was sent; then the connection
            is over.
    """

    open_calls: int = 1_024
    queued_bytes: int = 32 * 1024 * 1024
    message_bytes: int = 17 * 1024 * 1024
    partial_bytes: int = 64 * 1024 * 1024
    piece_bytes: int = MAX_BODY_BYTES
    greeting_ms: int = 2_000
    ping_after_ms: int = 2_500
    liveness_ms: int = 10_000
    suspect_ms: int = 500


class Loss(Enum):
    """Why a call of this side failed although the other side said nothing about it."""

    TIMED_OUT = auto()
    """No answer in time. The other side may have executed the call."""
    LOST = auto()
    """The connection ended. The other side may have executed the call."""
    SILENT = auto()
    """The connection ended because the other side gave no sign of life. It may have executed the call."""
    CANCELLED = auto()
    """The other side cancelled a stream without a reason."""


class BusyError(Exception):
    """Too many calls are open, too many bytes wait, or the connection takes no new calls. Nothing was sent."""


# What `receive`, `tick` and `lose` return.


@dataclass(frozen=True, slots=True)
class Greeted:
    """The other side's HELLO arrived. The caller checks it, and calls `leave` if it does not match."""

    hello: bytes


@dataclass(frozen=True, slots=True)
class Requested:
    """The other side sent a request. The caller owes it `respond` or `fail` within `timeout_ms` milliseconds."""

    call_id: int
    method: int
    message: bytes
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Opened:
    """The other side opened a stream."""

    call_id: int
    method: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """A request of this side got its response."""

    call_id: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """A call of this side failed, or a stream of either side. `failure` has the other side's reason; else `loss` says why."""

    call_id: int
    failure: bytes | None
    loss: Loss | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived on a stream. The receiver may grant its credit again (`credit_taken`)."""

    call_id: int
    message: bytes


@dataclass(frozen=True, slots=True)
class Writable:
    """The other side has granted more credit on a stream."""

    call_id: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The other side has ended its direction of a stream."""

    call_id: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The other side no longer waits for the answer to its request. The work may stop, and `respond` is no longer owed."""

    call_id: int


@dataclass(frozen=True, slots=True)
class Leaving:
    """The other side takes no new calls."""

    goodbye: bytes


@dataclass(frozen=True, slots=True)
class Over:
    """The connection is over, and every open call has failed. The caller closes the transport."""

    reason: str


Happening: TypeAlias = (
    Greeted | Requested | Opened | Answered | Failed | Received | Writable | Ended | Abandoned | Leaving | Over
)


class _Role(Enum):
    ASKED = auto()
    """A request of this side that has no final frame yet."""
    GIVEN_UP = auto()
    """The same, but its caller no longer waits."""
    SERVED = auto()
    """A request of the other side that still needs a final frame."""
    STREAM = auto()
    """A stream of either side."""


@dataclass(slots=True)
class _Call:
    role: _Role
    started_ms: int = 0
    """When this side sent the request."""
    is_begun: bool = True
    """False while the message that begins the call has arrived only in part; no handler knows of the call yet."""
    credit: int = 0
    """Bytes that this side may send; may be negative (see `Connection.send`)."""
    granted: int = 0
    """Bytes that the other side may send; may be negative."""
    sends: bool = True
    """True until this side ends its direction."""
    receives: bool = True
    """True until the other side ends its direction."""
    partial: list[bytes | bytearray] = field(default_factory=list[bytes | bytearray])
    """The pieces of an incomplete message. Small ones are joined, because many would take much more memory than their bytes."""
    partial_bytes: int = 0
    """Bytes of these pieces."""
    partial_kind: Kind | None = None


def credit_taken(message: bytes) -> int:
    """Return how much credit a message on a stream takes, in bytes: its length, or 1 for an empty one."""
    return len(message) or 1


class Connection:
    """One connection of this side: its open calls, its queues of frames, and its timers.

    Args:
        is_dialler: True on the side that dialled.
        hello: body of this side's HELLO.
        limits: bounds.
        now_ms: monotonic time in milliseconds.
    """

    def __init__(self, *, is_dialler: bool, hello: bytes, limits: Limits, now_ms: int) -> None:
        self._limits = limits
        self._reader = FrameReader()
        self._calls: dict[int, _Call] = {}
        self._own_parity = 1 if is_dialler else 0
        self._next_id = 1 if is_dialler else 2
        self._last_other_id = 0
        self._own_open = 0
        self._other_open = 0
        # Calls of the other side whose last frames wait to be sent. They count as open until then; otherwise a peer that does not
        # read could cause any number of queued answers.
        self._unsent: set[int] = set()
        self._deadlines: list[tuple[int, int]] = []
        self._is_greeted = False
        self._is_leaving = False
        self._over: str | None = None
        self._started_ms = now_ms
        self._heard_ms = now_ms
        self._pinged_ms: int | None = None
        # The connection is over at this time if no byte comes before.
        self._suspected_ms: int | None = None
        self._ping_count = 0
        self._pong: bytes | None = None
        self._partial_bytes = 0
        # Frames of the connection are sent first, then those of the calls in turn.
        self._urgent: deque[bytes] = deque((GREETING, header(Kind.HELLO, 0, len(hello)), hello))
        self._queues: dict[int, deque[tuple[Kind, bytes, int]]] = {}
        self._turns: OrderedDict[int, None] = OrderedDict()
        # Calls whose next message is long and must wait for messages that have started: the other side keeps only so many parts.
        self._held: OrderedDict[int, None] = OrderedDict()
        self._begun_bytes = 0
        self._queued_bytes = 0

    @property
    def is_over(self) -> bool:
        """True once the connection has ended."""
        return self._over is not None

    @property
    def takes_calls(self) -> bool:
        """True while this side may start calls."""
        return self._is_greeted and not self._is_leaving and self._over is None and self._next_id <= MAX_CALL_ID

    @property
    def open_count(self) -> int:
        """Number of open calls of both sides."""
        return len(self._calls)

    def is_open(self, call_id: int) -> bool:
        """True while a call of either side is open."""
        return call_id in self._calls

    @property
    def queued_bytes(self) -> int:
        """Bytes of messages that wait to be sent."""
        return self._queued_bytes

    def deadline_ms(self) -> int | None:
        """Return when `tick` must run at the latest, in milliseconds; None if the connection is over."""
        if self._over is not None:
            return None
        if not self._is_greeted:
            return self._started_ms + self._limits.greeting_ms
        due = self._heard_ms + (self._limits.ping_after_ms if self._pinged_ms is None else self._limits.liveness_ms)
        if self._suspected_ms is not None:
            due = min(due, self._suspected_ms)
        deadlines, calls = self._deadlines, self._calls
        while deadlines:
            deadline_ms, call_id = deadlines[0]
            call = calls.get(call_id)
            if call is not None and call.role is _Role.ASKED:
                return min(due, deadline_ms)
            # It was answered, or given up.
            heappop(deadlines)
        return due

    # Calls of this side.

    def request(self, method: int, message: bytes, *, timeout_ms: int, now_ms: int) -> int:
        """Send a request and return its id. One `Answered` or `Failed` for this id follows, unless the caller gives the request up.

        Raises:
            BusyError: nothing was sent.
        """
        call_id = self._new_id()
        timeout_ms = max(1, min(timeout_ms, MAX_TIMEOUT_MS))
        self._calls[call_id] = _Call(_Role.ASKED, started_ms=now_ms)
        heappush(self._deadlines, (now_ms + timeout_ms, call_id))
        self._queue(call_id, Kind.REQUEST, _METHOD_AND_NUMBER.pack(method, timeout_ms) + message)
        return call_id

    def open(self, method: int, message: bytes, *, credit_bytes: int) -> int:
        """Open a stream and return its id. The other side may send `credit_bytes`; this side must wait for credit.

        Raises:
            BusyError: nothing was sent.
        """
        call_id = self._new_id()
        self._calls[call_id] = _Call(_Role.STREAM, granted=credit_bytes)
        self._queue(call_id, Kind.OPEN, _METHOD_AND_NUMBER.pack(method, credit_bytes) + message)
        return call_id

    def give_up(self, call_id: int) -> None:
        """Stop waiting for a request or a stream; no event about it follows. Has no effect on a call that is over."""
        call = self._calls.get(call_id)
        if call is None or call.role is _Role.GIVEN_UP:
            return
        assert call.role is not _Role.SERVED, f"call {call_id} belongs to the other side"
        self._unqueue(call_id)
        self._queue(call_id, Kind.CANCEL, b"")
        if call.role is _Role.ASKED:
            call.role = _Role.GIVEN_UP
        else:
            self._forget(call_id)

    # Answers to the other side.

    def respond(self, call_id: int, message: bytes) -> None:
        """Answer a request. Has no effect if the caller no longer waits."""
        self._finish(call_id, Kind.RESPONSE, message)

    def fail(self, call_id: int, failure: bytes) -> None:
        """Refuse a request, or end a stream with a reason. Has no effect on a call that is over."""
        self._finish(call_id, Kind.FAILURE, failure)

    # Streams of either side.

    def credit(self, call_id: int) -> int:
        """Return how many bytes this side may send on a stream; 0 if it is over."""
        call = self._calls.get(call_id)
        return call.credit if call is not None and call.sends else 0

    def send(self, call_id: int, message: bytes) -> bool:
        """Send a message on a stream. Return False if the stream is over or has no credit.

        A positive credit allows a message of any length; the credit then becomes negative.
        """
        call = self._calls.get(call_id)
        if call is None or not call.sends or call.credit <= 0:
            return False
        call.credit -= credit_taken(message)
        self._queue(call_id, Kind.MESSAGE, message)
        return True

    def grant(self, call_id: int, credit_bytes: int) -> None:
        """Allow the other side to send more bytes on a stream. Has no effect on a stream that is over."""
        call = self._calls.get(call_id)
        if call is not None and call.receives and credit_bytes > 0:
            assert call.role is _Role.STREAM, f"credit for call {call_id}, which is no stream"
            call.granted += credit_bytes
            self._queue(call_id, Kind.CREDIT, _CREDIT.pack(credit_bytes))

    def end(self, call_id: int) -> None:
        """End this side's direction of a stream. Has no effect on a stream that is over."""
        call = self._calls.get(call_id)
        if call is not None and call.sends:
            assert call.role is _Role.STREAM, f"end of call {call_id}, which is no stream"
            call.sends = False
            self._queue(call_id, Kind.END, b"")
            self._forget_if_done(call_id, call)

    # The connection.

    def leave(self, goodbye: bytes) -> None:
        """Take no new calls; open calls continue."""
        if not self._is_leaving and self._over is None:
            self._is_leaving = True
            self._say(Kind.GOODBYE, goodbye)

    def lose(self, reason: str) -> list[Happening]:
        """Record that the transport has ended. Every open call fails once."""
        return [] if self._over is not None else self._end(reason)

    def tick(self, now_ms: int) -> list[Happening]:
        """Let time pass: overdue requests fail, and a silent connection is pinged or ends."""
        if self._over is not None:
            return []
        silent_ms = now_ms - self._heard_ms
        if not self._is_greeted and now_ms - self._started_ms >= self._limits.greeting_ms:
            return self._end("the other side did not say who it is")
        if silent_ms >= self._limits.liveness_ms or (self._suspected_ms is not None and now_ms >= self._suspected_ms):
            return self._end(f"no sign of life for {silent_ms} ms", Loss.SILENT)
        if self._is_greeted and silent_ms >= self._limits.ping_after_ms:
            self._ping(now_ms)
        happenings: list[Happening] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, call_id = heappop(self._deadlines)
            call = self._calls.get(call_id)
            if call is not None and call.role is _Role.ASKED:
                self.give_up(call_id)
                happenings.append(Failed(call_id, None, Loss.TIMED_OUT))
                if call.started_ms >= self._heard_ms and self._suspected_ms is None:
                    # The answer is slow or the connection is dead. A live process answers a ping whatever its handlers do.
                    self._ping(now_ms)
                    self._suspected_ms = now_ms + self._limits.suspect_ms
        return happenings

    def _ping(self, now_ms: int) -> None:
        if self._pinged_ms is None:
            self._pinged_ms = now_ms
            self._ping_count += 1
            self._say(Kind.PING, _PING.pack(self._ping_count))

    def receive(self, data: bytes, now_ms: int) -> list[Happening]:
        """Handle received bytes and return their meaning, in order. Nothing follows after `Over`."""
        if self._over is not None:
            return []
        self._heard_ms = now_ms
        self._pinged_ms = self._suspected_ms = None
        happenings: list[Happening] = []
        try:
            self._reader.feed(data)
            while (frame := self._reader.take()) is not None:
                self._take(frame, happenings)
        except BadFrameError as error:
            happenings += self._end(str(error))
        return happenings

    def output(self, most_bytes: int) -> list[bytes | memoryview]:
        """Return the bytes to send next, about `most_bytes`; an empty list if nothing waits.

        Frames of the connection come first, then one piece of each call in turn: a small message waits for at most one piece of each
        large one. A long message starts only while the messages that have started are short enough together.
        """
        if self._pong is not None:
            self._say(Kind.PONG, self._pong)
            self._pong = None
        out: list[bytes | memoryview] = list(self._urgent)
        self._urgent.clear()
        if not self._is_greeted:
            return out
        size_bytes = 0
        while self._turns and size_bytes < most_bytes:
            call_id = next(iter(self._turns))
            queue = self._queues[call_id]
            kind, message, begin = queue[0]
            end = begin + min(self._limits.piece_bytes, MAX_BODY_BYTES)
            if begin == 0 and end < len(message):
                if self._begun_bytes and self._begun_bytes + len(message) > self._limits.partial_bytes // 2:
                    del self._turns[call_id]
                    self._held[call_id] = None
                    continue
                self._begun_bytes += len(message)
            queue.popleft()
            piece = message if begin == 0 and end >= len(message) else memoryview(message)[begin:end]
            goes_on = end < len(message)
            out += (header(kind, call_id, len(piece), goes_on=goes_on), piece)
            size_bytes += len(piece)
            self._queued_bytes -= len(piece)
            if goes_on:
                queue.appendleft((kind, message, end))
            elif begin > 0:
                self._begun_bytes -= len(message)
                self._turns.update(self._held)
                self._held.clear()
            if queue:
                self._turns.move_to_end(call_id)
            else:
                self._drop_queue(call_id)
                if call_id in self._unsent:
                    self._unsent.remove(call_id)
                    self._other_open -= 1
        return out

    # Sending.

    def _new_id(self) -> int:
        if not self.takes_calls:
            raise BusyError("the connection takes no new calls")
        if self._own_open >= self._limits.open_calls:
            raise BusyError(f"{self._own_open} calls are open")
        if self._queued_bytes >= self._limits.queued_bytes:
            raise BusyError(f"{self._queued_bytes} bytes wait to be sent")
        call_id, self._next_id = self._next_id, self._next_id + 2
        self._own_open += 1
        return call_id

    def _say(self, kind: Kind, body: bytes) -> None:
        self._urgent += (header(kind, 0, len(body)), body)

    def _queue(self, call_id: int, kind: Kind, message: bytes) -> None:
        queue = self._queues.get(call_id)
        if queue is None:
            queue = self._queues[call_id] = deque()
            self._turns[call_id] = None
        assert len(message) <= self._limits.message_bytes + _METHOD_AND_NUMBER.size, (
            f"{kind.name} of {len(message)} bytes"
        )
        queue.append((kind, message, 0))
        self._queued_bytes += len(message)

    def _unqueue(self, call_id: int) -> None:
        """Drop the queued frames of a call. Keep the rest of a message that is sent in part, because the other side waits for it."""
        queue = self._queues.get(call_id)
        if queue is None:
            return
        kept = [each for each in queue if each[2] > 0 or each[0] in (Kind.REQUEST, Kind.OPEN)]
        self._queued_bytes -= sum(len(message) - begin for _, message, begin in queue)
        self._queued_bytes += sum(len(message) - begin for _, message, begin in kept)
        queue.clear()
        queue.extend(kept)
        if not queue:
            self._drop_queue(call_id)

    def _drop_queue(self, call_id: int) -> None:
        del self._queues[call_id]
        self._turns.pop(call_id, None)
        self._held.pop(call_id, None)

    def _finish(self, call_id: int, kind: Kind, message: bytes) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return
        if call.role is _Role.STREAM:
            assert kind is Kind.FAILURE, f"response to stream {call_id}"
            self._unqueue(call_id)
            kind = Kind.RESET
        else:
            assert call.role is _Role.SERVED, f"answer to call {call_id} of this side"
        self._queue(call_id, kind, message)
        self._forget(call_id)

    def _forget(self, call_id: int) -> None:
        call = self._calls.pop(call_id)
        self._partial_bytes -= call.partial_bytes
        if call_id & 1 == self._own_parity:
            self._own_open -= 1
        elif call_id in self._queues:
            self._unsent.add(call_id)
        else:
            self._other_open -= 1

    def _forget_if_done(self, call_id: int, call: _Call) -> None:
        if not call.sends and not call.receives:
            self._forget(call_id)

    def _end(self, reason: str, loss: Loss = Loss.LOST) -> list[Happening]:
        self._over = reason
        happenings: list[Happening] = []
        for call_id, call in self._calls.items():
            if not call.is_begun:
                continue
            if call.role is _Role.SERVED:
                happenings.append(Abandoned(call_id))
            elif call.role is not _Role.GIVEN_UP:
                happenings.append(Failed(call_id, None, loss))
        self._calls.clear()
        self._queues.clear()
        self._turns.clear()
        self._held.clear()
        self._unsent.clear()
        self._deadlines.clear()
        self._queued_bytes = 0
        happenings.append(Over(reason))
        return happenings

    # Receiving.

    def _take(self, frame: Frame, happenings: list[Happening]) -> None:
        if frame.call_id == 0:
            self._take_of_connection(frame, happenings)
            return
        if not self._is_greeted:
            raise BadFrameError("a call before HELLO")
        if frame.kind in (Kind.REQUEST, Kind.OPEN) and frame.call_id > self._last_other_id:
            self._check_new(frame)
        call = self._calls.get(frame.call_id)
        if call is None:
            self._take_of_none(frame)
            return
        message = self._whole(call, frame)
        if message is not None:
            self._take_of_call(frame.kind, frame.call_id, call, message, happenings)

    def _take_of_connection(self, frame: Frame, happenings: list[Happening]) -> None:
        if frame.goes_on:
            raise BadFrameError(f"{frame.kind.name} in pieces")
        if frame.kind is Kind.HELLO:
            if self._is_greeted:
                raise BadFrameError("HELLO twice")
            self._is_greeted = True
            happenings.append(Greeted(frame.body))
        elif frame.kind is Kind.GOODBYE:
            self._is_leaving = True
            happenings.append(Leaving(frame.body))
        elif not self._is_greeted:
            raise BadFrameError(f"{frame.kind.name} before HELLO")
        elif frame.kind is Kind.PING and len(frame.body) == _PING.size:
            # Answer only the last ping: a peer that pings and does not read must not fill the memory.
            self._pong = frame.body
        elif frame.kind is not Kind.PONG or not self._is_own_ping(frame.body):
            raise BadFrameError(f"{frame.kind.name} out of place")

    def _is_own_ping(self, body: bytes) -> bool:
        return len(body) == _PING.size and 0 < _PING.unpack(body)[0] <= self._ping_count

    def _check_new(self, frame: Frame) -> None:
        """Accept a new call of the other side."""
        if frame.call_id & 1 == self._own_parity:
            raise BadFrameError(f"call {frame.call_id} has an id of this side")
        # A stream that the other side cancelled stays open here until its CANCEL arrives, perhaps behind a new call.
        if self._other_open >= 2 * self._limits.open_calls:
            raise BadFrameError(f"more than {2 * self._limits.open_calls} calls are open")
        self._last_other_id = frame.call_id
        self._other_open += 1
        role = _Role.SERVED if frame.kind is Kind.REQUEST else _Role.STREAM
        self._calls[frame.call_id] = _Call(role, is_begun=False)

    def _take_of_none(self, frame: Frame) -> None:
        """Handle a frame of a call that is not open.

        A request of this side stays open until its final frame, so a further final frame is an error. A stream may have been
        cancelled, ended or reset here while frames of the other side were under way; a request of the other side may have been
        answered.
        """
        is_own = frame.call_id & 1 == self._own_parity
        is_known = frame.call_id < self._next_id if is_own else frame.call_id <= self._last_other_id
        if not is_known or frame.kind in (Kind.RESPONSE, Kind.FAILURE, Kind.REQUEST, Kind.OPEN):
            raise BadFrameError(f"{frame.kind.name} for call {frame.call_id}, which is not open")

    def _whole(self, call: _Call, frame: Frame) -> bytes | None:
        """Return the whole message; None while parts are missing.

        Raises:
            BadFrameError: the message is too long, too many bytes have arrived in parts, or another message begins inside it.
        """
        if call.partial_kind is None:
            if not frame.goes_on:
                return frame.body
            call.partial_kind = frame.kind
        elif frame.kind is not call.partial_kind:
            raise BadFrameError(f"{frame.kind.name} in the middle of {call.partial_kind.name}")
        partial, body = call.partial, frame.body
        if len(body) >= JOINED_BYTES:
            partial.append(body)
        elif partial and isinstance(partial[-1], bytearray):
            partial[-1] += body
        else:
            partial.append(bytearray(body))
        call.partial_bytes += len(body)
        self._partial_bytes += len(body)
        if call.partial_bytes > self._limits.message_bytes + _METHOD_AND_NUMBER.size:
            raise BadFrameError(f"a message of more than {self._limits.message_bytes} bytes")
        if self._partial_bytes > self._limits.partial_bytes:
            raise BadFrameError(f"more than {self._limits.partial_bytes} bytes of messages in parts")
        if frame.goes_on:
            return None
        self._partial_bytes -= call.partial_bytes
        call.partial, call.partial_bytes, call.partial_kind = [], 0, None
        return b"".join(partial)

    def _take_of_call(self, kind: Kind, call_id: int, call: _Call, message: bytes, happenings: list[Happening]) -> None:
        if call.role is _Role.STREAM:
            self._take_of_stream(kind, call_id, call, message, happenings)
        elif call.role is _Role.SERVED:
            if kind is Kind.REQUEST and not call.is_begun:
                call.is_begun = True
                method, timeout_ms, message = _split(message)
                happenings.append(Requested(call_id, method, message, timeout_ms))
            elif kind is Kind.CANCEL:
                self._unqueue(call_id)
                self._queue(call_id, Kind.FAILURE, b"")
                self._forget(call_id)
                happenings.append(Abandoned(call_id))
            else:
                raise BadFrameError(f"{kind.name} for request {call_id} of the other side")
        elif kind is Kind.RESPONSE or kind is Kind.FAILURE:
            is_awaited = call.role is _Role.ASKED
            self._forget(call_id)
            if is_awaited:
                happenings.append(Answered(call_id, message) if kind is Kind.RESPONSE else Failed(call_id, message))
        else:
            raise BadFrameError(f"{kind.name} for request {call_id}")

    def _take_of_stream(
        self, kind: Kind, call_id: int, call: _Call, message: bytes, happenings: list[Happening]
    ) -> None:
        if kind is Kind.OPEN and not call.is_begun:
            call.is_begun = True
            method, call.credit, message = _split(message)
            happenings.append(Opened(call_id, method, message))
        elif kind is Kind.MESSAGE:
            if not call.receives:
                raise BadFrameError(f"MESSAGE on stream {call_id} after its end")
            if call.granted <= 0:
                raise BadFrameError(f"MESSAGE on stream {call_id} without credit")
            call.granted -= credit_taken(message)
            happenings.append(Received(call_id, message))
        elif kind is Kind.CREDIT:
            if len(message) != _CREDIT.size:
                raise BadFrameError(f"CREDIT of {len(message)} bytes")
            call.credit += _CREDIT.unpack(message)[0]
            if call.sends and call.credit > 0:
                happenings.append(Writable(call_id))
        elif kind is Kind.END:
            if not call.receives:
                raise BadFrameError(f"END of stream {call_id} twice")
            call.receives = False
            happenings.append(Ended(call_id))
            self._forget_if_done(call_id, call)
        elif kind is Kind.RESET or kind is Kind.CANCEL:
            self._unqueue(call_id)
            self._forget(call_id)
            is_said = kind is Kind.RESET
            happenings.append(Failed(call_id, message if is_said else None, None if is_said else Loss.CANCELLED))
        else:
            raise BadFrameError(f"{kind.name} for stream {call_id}")


def _split(message: bytes) -> tuple[int, int, bytes]:
    """Split the opening message of a call into method, number and message."""
    if len(message) < _METHOD_AND_NUMBER.size:
        raise BadFrameError("a call without a method")
    method, number = _METHOD_AND_NUMBER.unpack_from(message)
    return method, number, message[_METHOD_AND_NUMBER.size :]

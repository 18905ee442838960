# SPDX-License-Identifier: Apache-2.0
"""A carrier client that sends whatever it is told, over a blocking socket, and knows what the server owes it.

    with CarrierClient(host, port) as client:
        client.greet(hello)
        client.request(Method.PROBE, message)
        stays = client.settle()
        client.calls[1].answers

Owns one connection and the promises of the server (docs/net.md): one final frame for each request, no more on a stream than was
granted, nothing for calls that do not exist, and an end of the connection after bytes that are no frame. Does not know the contents
of messages.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from metaquorum.net.frames import GREETING, BadFrameError, Frame, FrameReader, Kind, header

ANSWER_S: Final = 40.0
"""Maximum seconds of a connection. A server waits at most 30 s for anything."""
PIECE_BYTES: Final = 64 * 1024
TIMEOUT_MS: Final = 30_000
WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that the server may send ahead on a stream."""
MAX_MESSAGES: Final = 1_000
"""Messages of a stream after which the client gives it up."""
RECEIVE_BYTES: Final = 1 << 16

_HEADER_BYTES: Final = len(header(Kind.PING, 0, 0))
_CALL: Final = struct.Struct(">HI")
_CREDIT: Final = struct.Struct(">I")
_MARK: Final = b"settled?"
"""Body of the PING after which the server has read everything that was sent before."""


class BrokenPromiseError(Exception):
    """The server did what no server may do."""


def frames(kind: Kind, call_id: int, body: bytes, *, piece_bytes: int = PIECE_BYTES) -> bytes:
    """Return a message as frames, each with one piece of it."""
    pieces = [body[begin : begin + piece_bytes] for begin in range(0, len(body), piece_bytes)] or [b""]
    last = len(pieces) - 1
    return b"".join(
        header(kind, call_id, len(piece), goes_on=number < last) + piece for number, piece in enumerate(pieces)
    )


def request(
    call_id: int, method: int, message: bytes, *, timeout_ms: int = TIMEOUT_MS, piece_bytes: int = PIECE_BYTES
) -> bytes:
    """Return the frames of a request."""
    return frames(Kind.REQUEST, call_id, _CALL.pack(method, timeout_ms) + message, piece_bytes=piece_bytes)


def opening(
    call_id: int, method: int, message: bytes, *, credit_bytes: int = WINDOW_BYTES, piece_bytes: int = PIECE_BYTES
) -> bytes:
    """Return the frames that open a stream."""
    return frames(Kind.OPEN, call_id, _CALL.pack(method, credit_bytes) + message, piece_bytes=piece_bytes)


def credit(call_id: int, credit_bytes: int) -> bytes:
    """Return the frame that lets the server send more."""
    return frames(Kind.CREDIT, call_id, _CREDIT.pack(credit_bytes))


@dataclass(slots=True)
class Call:
    """A call of this side.

    Attributes:
        is_stream: True for a stream.
        method: number of the method.
        answers: the response, or the messages of the stream.
        failure: body of the FAILURE or RESET that ended it.
        is_over: True when the server owes nothing more.
        is_given_up: True after this side has cancelled it.
        has_ended: True after this side has ended its direction of the stream.
        credit: bytes that this side may send.
        granted: bytes that the server may send.
    """

    is_stream: bool
    method: int
    answers: list[bytes] = field(default_factory=list[bytes])
    failure: bytes | None = None
    is_over: bool = False
    is_given_up: bool = False
    has_ended: bool = False
    credit: int = 0
    granted: int = 0


class CarrierClient:
    """One connection to an internal port, and what the server owes on it.

    Args:
        host: address of the server.
        port: its internal port.

    Attributes:
        calls: calls whose first message was sent, by id.
        goodbye: body of the server's GOODBYE.
        hello: body of the server's HELLO.
    """

    def __init__(self, host: str, port: int) -> None:
        self._deadline_s = time.monotonic() + ANSWER_S
        self._socket = socket.create_connection((host, port), timeout=ANSWER_S)
        self._heard = FrameReader()
        # The sent bytes as the server reads them: their number, and how many of them form whole frames.
        self._said = FrameReader()
        self._said_bytes = 0
        self._framed_bytes = len(GREETING)
        self._is_bad = False
        self._begun: set[int] = set()
        self._said_parts: dict[int, list[bytes]] = {}
        self._heard_parts: dict[int, list[bytes]] = {}
        self._is_over = False
        self._is_settled = False
        self._is_end_owed = False
        self._next_id = 1
        self.calls: dict[int, Call] = {}
        self.goodbye: bytes | None = None
        self.hello: bytes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    @property
    def age_s(self) -> float:
        """Seconds since the connection was made."""
        return ANSWER_S - (self._deadline_s - time.monotonic())

    def new_id(self) -> int:
        """Return an id for a new call of this side."""
        call_id, self._next_id = self._next_id, self._next_id + 2
        return call_id

    def greet(self, hello: bytes) -> None:
        """Send the connection preface with a HELLO."""
        self.say(GREETING + frames(Kind.HELLO, 0, hello))

    def request(
        self, method: int, message: bytes, *, timeout_ms: int = TIMEOUT_MS, piece_bytes: int = PIECE_BYTES
    ) -> int:
        """Send a request and return its id."""
        call_id = self.new_id()
        self.say(request(call_id, method, message, timeout_ms=timeout_ms, piece_bytes=piece_bytes))
        return call_id

    def open(
        self, method: int, message: bytes, *, credit_bytes: int = WINDOW_BYTES, piece_bytes: int = PIECE_BYTES
    ) -> int:
        """Open a stream and return its id."""
        call_id = self.new_id()
        self.say(opening(call_id, method, message, credit_bytes=credit_bytes, piece_bytes=piece_bytes))
        return call_id

    def send(self, call_id: int, message: bytes) -> None:
        """Send a message on a stream once there is credit. Does nothing if the stream is over."""
        if self.await_credit(call_id):
            self.calls[call_id].credit -= len(message)
            self.say(frames(Kind.MESSAGE, call_id, message))

    def await_credit(self, call_id: int) -> bool:
        """Wait for credit on a stream. Return False if the stream is over."""
        call = self.calls[call_id]
        while call.credit <= 0 and not call.is_over and self._hear():
            pass
        return call.credit > 0 and not call.is_over and not self._is_over

    def say(self, data: bytes) -> None:
        """Send any bytes. Does nothing if the connection is over."""
        if self._is_over:
            return
        self._note_said(data)
        try:
            self._socket.settimeout(self._left_s())
            self._socket.sendall(data)
        except TimeoutError:
            raise BrokenPromiseError("the other side does not read") from None
        except OSError:
            # The server no longer reads. It may have said why before.
            self.hear_out()

    def settle(self) -> bool:
        """Wait until everything that the server owes has come. Return False if the connection is over.

        Raises:
            BrokenPromiseError: it did not come within `ANSWER_S`, or something came that must not.
        """
        if self._is_bad or self._is_cut:
            self.hear_out()
        self._is_settled = False
        self.say(frames(Kind.PING, 0, _MARK))
        while not self._is_over and (not self._is_settled or self._is_owed):
            self._hear()
        return not self._is_over

    def hear_out(self) -> None:
        """Wait until the server ends the connection.

        Raises:
            BrokenPromiseError: it did not within `ANSWER_S`, or it sent something that it must not.
        """
        self._is_end_owed = True
        if self._is_cut and not self._is_over:
            # Otherwise the server would read later bytes as the rest of the frame.
            self._shut_down()
        while self._hear():
            pass

    # What was sent.

    @property
    def _is_cut(self) -> bool:
        return not self._is_bad and self._said_bytes != self._framed_bytes

    @property
    def _is_owed(self) -> bool:
        return any(not call.is_over and (not call.is_stream or call.has_ended) for call in self.calls.values())

    def _note_said(self, data: bytes) -> None:
        self._said_bytes += len(data)
        if self._is_bad:
            return
        try:
            self._said.feed(data)
            while (frame := self._said.take()) is not None:
                self._framed_bytes += _HEADER_BYTES + len(frame.body)
                self._note_frame(frame)
        except BadFrameError:
            self._is_bad = True

    def _note_frame(self, frame: Frame) -> None:
        call = self.calls.get(frame.call_id)
        match frame.kind:
            case Kind.REQUEST | Kind.OPEN if frame.call_id not in self._begun:
                parts = self._said_parts.setdefault(frame.call_id, [])
                parts.append(frame.body[: _CALL.size])
                beginning = b"".join(parts)[: _CALL.size]
                if frame.goes_on or len(beginning) < _CALL.size:
                    return
                self._begun.add(frame.call_id)
                del self._said_parts[frame.call_id]
                method, number = _CALL.unpack(beginning)
                is_stream = frame.kind is Kind.OPEN
                self.calls[frame.call_id] = Call(is_stream, method, granted=number if is_stream else 0)
            case Kind.CREDIT if call is not None and len(frame.body) == _CREDIT.size:
                call.granted += _CREDIT.unpack(frame.body)[0]
            case Kind.END if call is not None:
                call.has_ended = True
            case Kind.CANCEL | Kind.RESET if call is not None:
                call.is_given_up = True
                call.is_over = call.is_over or call.is_stream
            case _:
                pass

    # What was received.

    def _left_s(self) -> float:
        return max(0.001, self._deadline_s - time.monotonic())

    def _hear(self) -> bool:
        """Handle the next bytes. Return False if the connection is over."""
        if self._is_over:
            return False
        try:
            self._socket.settimeout(self._left_s())
            data = self._socket.recv(RECEIVE_BYTES)
        except TimeoutError:
            open_ids = [call_id for call_id, call in self.calls.items() if not call.is_over]
            raise BrokenPromiseError(
                f"{'no end' if self._is_end_owed else 'no answer'} within {ANSWER_S:.0f} s, open: {open_ids}"
            ) from None
        except OSError:
            # The server closed the connection before it had read everything.
            data = b""
        if not data:
            self._is_over = True
            return False
        try:
            self._heard.feed(data)
            while (frame := self._heard.take()) is not None:
                self._take(frame)
        except BadFrameError as error:
            raise BrokenPromiseError(f"the other side sends what is no frame: {error}") from error
        return True

    def _take(self, frame: Frame) -> None:
        if frame.call_id and frame.call_id % 2 == 0:
            # A call of the server, to the server that this client claims to be. It gets no answer.
            return
        if frame.call_id:
            self._take_of_call(frame)
        elif frame.kind is Kind.HELLO and self.hello is None:
            self.hello = frame.body
        elif frame.kind is Kind.GOODBYE and self.goodbye is None:
            self.goodbye = frame.body
        elif frame.kind is Kind.PING:
            if not self._is_cut:
                self.say(frames(Kind.PONG, 0, frame.body))
        elif frame.kind is Kind.PONG:
            self._is_settled = self._is_settled or frame.body == _MARK
        else:
            raise BrokenPromiseError(f"{frame.kind.name} of the connection, which has no place")

    def _take_of_call(self, frame: Frame) -> None:
        call = self.calls.get(frame.call_id)
        if call is None:
            raise BrokenPromiseError(f"{frame.kind.name} for call {frame.call_id}, which there is none of")
        if call.is_over and call.is_stream and (call.is_given_up or frame.kind is Kind.CREDIT):
            # The frame was under way when this side cancelled.
            return
        if call.is_over:
            raise BrokenPromiseError(f"{frame.kind.name} for call {frame.call_id}, which is over")
        parts = self._heard_parts.setdefault(frame.call_id, [])
        parts.append(frame.body)
        if frame.goes_on:
            return
        message = b"".join(self._heard_parts.pop(frame.call_id))
        if call.is_stream:
            self._take_of_stream(frame.kind, frame.call_id, call, message)
        elif frame.kind is Kind.RESPONSE:
            call.answers.append(message)
            call.is_over = True
        elif frame.kind is Kind.FAILURE:
            call.failure = message
            call.is_over = True
        else:
            raise BrokenPromiseError(f"{frame.kind.name} for a request")

    def _take_of_stream(self, kind: Kind, call_id: int, call: Call, message: bytes) -> None:
        match kind:
            case Kind.MESSAGE:
                if call.granted <= 0:
                    raise BrokenPromiseError(f"a message on stream {call_id} without credit")
                call.granted -= len(message)
                call.answers.append(message)
                if len(call.answers) == MAX_MESSAGES:
                    self.say(frames(Kind.CANCEL, call_id, b""))
                elif message:
                    self.say(credit(call_id, len(message)))
            case Kind.CREDIT:
                call.credit += _CREDIT.unpack(message)[0]
            case Kind.RESET:
                call.failure = message
                call.is_over = True
            case Kind.END | Kind.CANCEL:
                call.is_over = True
            case _:
                raise BrokenPromiseError(f"{kind.name} for a stream")

    def _shut_down(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self._is_over = True

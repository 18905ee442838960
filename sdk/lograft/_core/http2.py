# SPDX-License-Identifier: Apache-2.0
"""The client's side of one HTTP/2 connection, as a core: bytes in, events out, bytes to send.

Owns frames, settings, flow control and which streams are open. Must not know gRPC, sockets or the time.
What a peer can make it hold is bounded: a stream's window, one frame, one header block, `MAX_CONTROL_BYTES` of answers.
What it holds to send is bounded by its user, who writes one message of a stream after the other (`pending_bytes`).
Source: RFC 9113.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from lograft._core.hpack import MAX_HEADERS_BYTES, HeaderError, HeaderReader, encode_headers

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES: Final = 9
FRAME_BYTES: Final = 16_384
"""Most bytes of a frame's payload, both ways: what holds without a word of either side (RFC 9113 section 6.5.2)."""
DEFAULT_WINDOW_BYTES: Final = 65_535
CONNECTION_WINDOW_BYTES: Final = 1 << 30
"""Bytes of all streams together that may come ahead; each stream's own window is the bound that counts."""
MAX_WINDOW_BYTES: Final = 2**31 - 1
MAX_STREAM_ID: Final = 2**31 - 1
MAX_CONTROL_BYTES: Final = 1 << 20
"""Bytes of answers (to pings, settings) that wait to be sent; who makes more of them and reads nothing is cut off."""
PING_BYTES: Final = 8

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM: Final = 1
ACK: Final = 1
END_HEADERS: Final = 4
PADDED: Final = 8
HAS_PRIORITY: Final = 32
_ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_HEADER_LIST = 2, 3, 4, 6

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11


class SettingsCame(NamedTuple):
    """The server speaks HTTP/2: its settings are here."""


class HeadersCame(NamedTuple):
    """Headers or trailers of a stream."""

    stream_id: int
    headers: list[tuple[str, str]]
    is_end: bool


class DataCame(NamedTuple):
    """Bytes of a stream; a view of what was received."""

    stream_id: int
    data: memoryview
    is_end: bool


class StreamReset(NamedTuple):
    """The server ended a stream early; `is_unseen`: it has not begun with it."""

    stream_id: int
    error_code: int
    is_unseen: bool


class GoingAway(NamedTuple):
    """The server takes no further stream on this connection."""

    error_code: int
    text: str


Event = SettingsCame | HeadersCame | DataCame | StreamReset | GoingAway


class ConnectionFaultError(Exception):
    """The peer broke the protocol; the connection is to be closed after what `take_output` still gives."""


class _Stream:
    __slots__ = ("has_ended", "is_ending", "pending_bytes", "queue", "receive_window", "send_window")

    def __init__(self, send_window: int, receive_window: int) -> None:
        self.send_window = send_window
        self.receive_window = receive_window
        self.queue: deque[memoryview] = deque()
        self.pending_bytes = 0
        # The end of our side is to be said, and was said.
        self.is_ending = False
        self.has_ended = False


class Http2Connection:
    """See the module docstring.

    Args:
        stream_window_bytes: bytes of one stream that may come ahead of what its reader has taken, below 2^31.
    """

    def __init__(self, stream_window_bytes: int) -> None:
        self._stream_window_bytes = stream_window_bytes
        self._streams: dict[int, _Stream] = {}
        # Streams with something to send that their own window allows, in turns.
        self._ready: deque[int] = deque()
        self._next_stream_id = 1
        self._max_streams = MAX_STREAM_ID
        self._peer_window_bytes = DEFAULT_WINDOW_BYTES
        self._send_window = DEFAULT_WINDOW_BYTES
        self._receive_window = CONNECTION_WINDOW_BYTES
        self._reader = HeaderReader()
        self._rest = b""
        # A header block whose continuation is to come: stream, flags, what is here.
        self._block: tuple[int, int, bytes] | None = None
        self._is_going_away = False
        settings = ((_ENABLE_PUSH, 0), (_INITIAL_WINDOW, stream_window_bytes), (_MAX_HEADER_LIST, MAX_HEADERS_BYTES))
        payload = b"".join(struct.pack(">HI", *each) for each in settings)
        self._control = bytearray(PREFACE + _frame(SETTINGS, 0, 0, payload))
        self._control += _window_update(0, CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)

    # -- streams

    def can_open(self) -> bool:
        """True if the server takes one more stream now."""
        return not self.is_spent() and len(self._streams) < self._max_streams

    def is_spent(self) -> bool:
        """True if it will never take another one."""
        return self._is_going_away or self._next_stream_id > MAX_STREAM_ID

    def open(self, headers: Iterable[tuple[str, str]]) -> int:
        """Open a stream, and return its number."""
        assert self.can_open(), "the server takes no further stream"
        stream_id = self._next_stream_id
        self._next_stream_id += 2
        self._streams[stream_id] = _Stream(self._peer_window_bytes, self._stream_window_bytes)
        block, kind = encode_headers(headers), HEADERS
        while True:
            piece, block = block[:FRAME_BYTES], block[FRAME_BYTES:]
            self._control += _frame(kind, 0 if block else END_HEADERS, stream_id, piece)
            if not block:
                return stream_id
            kind = CONTINUATION

    def send(self, stream_id: int, parts: Iterable[bytes], *, is_end: bool = False) -> None:
        """Queue bytes of a stream, which must not change until they are sent; nothing happens if it is closed."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        assert not stream.is_ending, "this side of the stream has ended"
        for part in parts:
            if part:
                stream.queue.append(memoryview(part))
                stream.pending_bytes += len(part)
        stream.is_ending = is_end
        self._make_ready(stream_id, stream)

    def pending_bytes(self, stream_id: int) -> int:
        """Return how many bytes of a stream wait to be sent."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.pending_bytes

    def grant(self, stream_id: int, held_bytes: int) -> None:
        """Let the server send on: the reader of a stream has yet to take `held_bytes` of what came."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        room = max(0, self._stream_window_bytes - held_bytes) - stream.receive_window
        if room >= self._stream_window_bytes // 2:
            stream.receive_window += room
            self._answer(_window_update(stream_id, room))

    def reset(self, stream_id: int, error_code: int) -> None:
        """Close a stream, with a word to the server unless both sides have ended."""
        if self._streams.pop(stream_id, None) is not None:
            self._answer(_frame(RST_STREAM, 0, stream_id, error_code.to_bytes(4, "big")))

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._answer(_frame(PING, 0, 0, bytes(PING_BYTES)))

    def take_output(self, limit_bytes: int) -> tuple[bytes, list[int]]:
        """Take what is to be sent.

        Args:
            limit_bytes: about how many bytes of data, from 1 on.

        Returns:
            The bytes, and the streams of which nothing waits any more.
        """
        parts: list[bytes | bytearray | memoryview] = [self._control] if self._control else []
        self._control = bytearray()
        drained: list[int] = []
        while self._ready and limit_bytes > 0:
            stream_id = self._ready.popleft()
            stream = self._streams.get(stream_id)
            if stream is None or stream.has_ended:
                continue
            size = min(FRAME_BYTES, stream.pending_bytes, max(0, stream.send_window), max(0, self._send_window))
            if stream.pending_bytes and not size:
                if stream.send_window > 0:
                    # Only the connection's window is used up: it keeps its turn.
                    self._ready.appendleft(stream_id)
                    break
                continue
            limit_bytes -= size
            stream.send_window -= size
            self._send_window -= size
            stream.pending_bytes -= size
            is_last = stream.is_ending and not stream.pending_bytes
            parts.append(_head(size, DATA, END_STREAM if is_last else 0, stream_id))
            parts += _take(stream.queue, size)
            stream.has_ended = is_last
            if stream.pending_bytes:
                self._ready.append(stream_id)
            else:
                drained.append(stream_id)
        return b"".join(parts), drained

    def has_output(self) -> bool:
        """True if `take_output` may give something."""
        return bool(self._control) or (bool(self._ready) and self._send_window > 0)

    def _make_ready(self, stream_id: int, stream: _Stream) -> None:
        has_work = stream.send_window > 0 if stream.pending_bytes else stream.is_ending and not stream.has_ended
        if has_work and stream_id not in self._ready:
            self._ready.append(stream_id)

    # -- what comes

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the server.

        Raises:
            ConnectionFaultError: it broke the protocol.
        """
        events: list[Event] = []
        if self._rest:
            data, self._rest = self._rest + data, b""
        view, position = memoryview(data), 0
        while len(data) - position >= FRAME_HEAD_BYTES:
            size = int.from_bytes(data[position : position + 3], "big")
            if size > FRAME_BYTES:
                raise self._fault(FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            start = position + FRAME_HEAD_BYTES
            if len(data) < start + size:
                break
            kind, flags = data[position + 3], data[position + 4]
            stream_id = int.from_bytes(data[position + 5 : start], "big") & MAX_STREAM_ID
            position = start + size
            self._take_frame(kind, flags, stream_id, view[start:position], events)
        self._rest = data[position:]
        if len(self._control) > MAX_CONTROL_BYTES:
            raise self._fault(ENHANCE_YOUR_CALM, "more questions than answers are read")
        return events

    def _take_frame(self, kind: int, flags: int, stream_id: int, payload: memoryview, events: list[Event]) -> None:
        if self._block is not None and (kind != CONTINUATION or stream_id != self._block[0]):
            raise self._fault(PROTOCOL_ERROR, "a header block that is not continued")
        match kind:
            case 0:
                self._on_data(flags, stream_id, payload, events)
            case 1:
                body = self._unpadded(flags, payload)
                self._on_block(stream_id, flags, bytes(body[5:] if flags & HAS_PRIORITY else body), events)
            case 9:
                if self._block is None:
                    raise self._fault(PROTOCOL_ERROR, "a continuation of nothing")
                _, first_flags, block = self._block
                self._on_block(stream_id, first_flags | flags & END_HEADERS, block + bytes(payload), events)
            case 3:
                self._expect_size(payload, 4)
                if self._streams.pop(stream_id, None) is not None:
                    code = int.from_bytes(payload, "big")
                    events.append(StreamReset(stream_id, code, is_unseen=code == REFUSED_STREAM))
            case 4:
                self._on_settings(flags, payload, events)
            case 5:
                raise self._fault(PROTOCOL_ERROR, "a push, which was ruled out")
            case 6:
                self._expect_size(payload, PING_BYTES)
                if not flags & ACK:
                    self._answer(_frame(PING, ACK, 0, bytes(payload)))
            case 7:
                self._on_goaway(payload, events)
            case 8:
                self._on_window_update(stream_id, payload)
            case _:
                # Priorities, and whatever was invented since: to be ignored.
                pass

    def _unpadded(self, flags: int, payload: memoryview) -> memoryview:
        if not flags & PADDED:
            return payload
        if not payload or payload[0] >= len(payload):
            raise self._fault(PROTOCOL_ERROR, "padding longer than its frame")
        return payload[1 : len(payload) - payload[0]]

    def _expect_size(self, payload: memoryview, size: int) -> None:
        if len(payload) != size:
            raise self._fault(FRAME_SIZE_ERROR, f"{len(payload)} bytes instead of {size}")

    def _on_data(self, flags: int, stream_id: int, payload: memoryview, events: list[Event]) -> None:
        self._receive_window -= len(payload)
        if self._receive_window < 0:
            raise self._fault(FLOW_CONTROL_ERROR, "more data than the connection takes")
        if self._receive_window < CONNECTION_WINDOW_BYTES // 2:
            self._answer(_window_update(0, CONNECTION_WINDOW_BYTES - self._receive_window))
            self._receive_window = CONNECTION_WINDOW_BYTES
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.receive_window -= len(payload)
        if stream.receive_window < 0:
            raise self._fault(FLOW_CONTROL_ERROR, "more data than the stream takes")
        is_end = flags & END_STREAM != 0
        if is_end:
            self._end_by_peer(stream_id, stream)
        events.append(DataCame(stream_id, self._unpadded(flags, payload), is_end))

    def _on_block(self, stream_id: int, flags: int, block: bytes, events: list[Event]) -> None:
        if len(block) > MAX_HEADERS_BYTES:
            raise self._fault(ENHANCE_YOUR_CALM, f"headers of more than {MAX_HEADERS_BYTES} bytes")
        if not flags & END_HEADERS:
            self._block = (stream_id, flags, block)
            return
        self._block = None
        try:
            headers = self._reader.read(block)
        except HeaderError as error:
            raise self._fault(COMPRESSION_ERROR, str(error)) from None
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        is_end = flags & END_STREAM != 0
        if is_end:
            self._end_by_peer(stream_id, stream)
        events.append(HeadersCame(stream_id, headers, is_end))

    def _end_by_peer(self, stream_id: int, stream: _Stream) -> None:
        """The server has said all: nothing that is sent would be read any more."""
        if stream.has_ended:
            del self._streams[stream_id]
        else:
            self.reset(stream_id, NO_ERROR)

    def _on_settings(self, flags: int, payload: memoryview, events: list[Event]) -> None:
        if flags & ACK:
            return
        if len(payload) % 6:
            raise self._fault(FRAME_SIZE_ERROR, f"settings of {len(payload)} bytes")
        for name, value in struct.iter_unpack(">HI", payload):
            if name == _MAX_STREAMS:
                self._max_streams = value
            elif name == _INITIAL_WINDOW:
                if value > MAX_WINDOW_BYTES:
                    raise self._fault(FLOW_CONTROL_ERROR, f"a window of {value} bytes")
                growth, self._peer_window_bytes = value - self._peer_window_bytes, value
                for stream_id, stream in self._streams.items():
                    stream.send_window += growth
                    self._make_ready(stream_id, stream)
        self._answer(_frame(SETTINGS, ACK, 0, b""))
        events.append(SettingsCame())

    def _on_goaway(self, payload: memoryview, events: list[Event]) -> None:
        if len(payload) < 8:
            raise self._fault(FRAME_SIZE_ERROR, f"a farewell of {len(payload)} bytes")
        last_id, code = struct.unpack_from(">II", payload)
        self._is_going_away = True
        events.append(GoingAway(code, bytes(payload[8:200]).decode("ascii", "replace")))
        for stream_id in [each for each in self._streams if each > last_id & MAX_STREAM_ID]:
            del self._streams[stream_id]
            events.append(StreamReset(stream_id, code, is_unseen=True))

    def _on_window_update(self, stream_id: int, payload: memoryview) -> None:
        self._expect_size(payload, 4)
        growth = int.from_bytes(payload, "big") & MAX_WINDOW_BYTES
        if stream_id == 0:
            self._send_window += growth
            if not growth or self._send_window > MAX_WINDOW_BYTES:
                raise self._fault(FLOW_CONTROL_ERROR, f"the connection's window grows by {growth} bytes")
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.send_window += growth
        if not growth or stream.send_window > MAX_WINDOW_BYTES:
            raise self._fault(FLOW_CONTROL_ERROR, f"a stream's window grows by {growth} bytes")
        self._make_ready(stream_id, stream)

    def _answer(self, frame: bytes) -> None:
        self._control += frame

    def _fault(self, error_code: int, text: str) -> ConnectionFaultError:
        self._answer(_frame(GOAWAY, 0, 0, struct.pack(">II", 0, error_code) + text.encode()))
        return ConnectionFaultError(text)


def _head(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    return struct.pack(">IBI", size << 8 | kind, flags, stream_id)


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return _head(len(payload), kind, flags, stream_id) + payload


def _window_update(stream_id: int, growth: int) -> bytes:
    return _frame(WINDOW_UPDATE, 0, stream_id, growth.to_bytes(4, "big"))


def _take(queue: deque[memoryview], size: int) -> list[memoryview]:
    """Take exactly so many bytes off a queue that has them."""
    taken: list[memoryview] = []
    while size:
        part = queue.popleft()
        if len(part) > size:
            queue.appendleft(part[size:])
            part = part[:size]
        size -= len(part)
        taken.append(part)
    return taken

# SPDX-License-Identifier: Apache-2.0
"""The client side of one HTTP/2 connection, as a core: bytes in, events out, bytes to send.

`h2` provides frames, header blocks, windows and stream states. This module adds what `h2` leaves to its user. It queues data
that waits for a window, and gives each stream one frame in turn. And it bounds what a peer can make the client hold: the window
of each stream, one frame, one header block, and `MAX_CONTROL_BYTES` of answers. The user bounds the data to send: it writes the
messages of a stream one after the other.

It must not know gRPC, sockets or the time. Source: RFC 9113; ADR 17.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple, cast

from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection, H2ConnectionStateMachine
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hpack import NeverIndexedHeaderTuple
from hyperframe.frame import DataFrame, Frame

from lograft.wire.keepalive import MAX_FRAME_BYTES

SEND_FRAME_BYTES: Final = 256 * 1024
"""Largest payload of a frame that is sent, in bytes, if the server takes as much. Streams take turns by frames."""
DEFAULT_WINDOW_BYTES: Final = 65_535
CONNECTION_WINDOW_BYTES: Final = 1 << 30
"""Bytes that all streams together may receive ahead. The window of each stream is the bound that counts."""
MAX_HEADERS_BYTES: Final = 65_536
"""Largest header block in bytes, both encoded and decoded. A larger one is an attack, because few bytes can encode many headers."""
MAX_CONTROL_BYTES: Final = 1 << 20
"""Bytes of answers (to pings and settings) that may wait to be sent. A peer that causes more without reading is disconnected."""

_HEAD: Final = struct.Struct(">IBI")
"""The head of a frame: length (3 bytes) and type (1), flags, stream (RFC 9113 section 4.1). DATA frames have type 0."""
_HEAD_BYTES: Final = _HEAD.size
_END_STREAM: Final = 1
_HEADERS, _PUSH_PROMISE, _CONTINUATION, _END_HEADERS = 1, 5, 9, 4


class SettingsCame(NamedTuple):
    """The server speaks HTTP/2: its settings have arrived."""


class HeadersCame(NamedTuple):
    """Headers or trailers of a stream arrived."""

    stream_id: int
    headers: list[tuple[str, str]]
    is_end: bool


class DataCame(NamedTuple):
    """Bytes of a stream arrived."""

    stream_id: int
    data: bytes
    is_end: bool


class StreamReset(NamedTuple):
    """The stream ended early. With `is_unseen`, the server has not begun to process it."""

    stream_id: int
    error_code: int
    is_unseen: bool


class GoingAway(NamedTuple):
    """The server accepts no further stream on this connection."""

    error_code: int
    text: str


Event = SettingsCame | HeadersCame | DataCame | StreamReset | GoingAway


class ConnectionFaultError(Exception):
    """The peer broke the protocol. The user sends what `take_output` still returns and closes the connection."""


class _LastingStates(H2ConnectionStateMachine):
    """A state machine in which GOAWAY ends no connection, because open streams continue (RFC 9113 section 6.8).

    `h2` accepts nothing more after it.
    """

    def process_input(self, input_: ConnectionInputs) -> list[h2_events.Event]:
        return [] if input_ is ConnectionInputs.RECV_GOAWAY else super().process_input(input_)


class _QuietDataFrame(DataFrame):
    """A received DATA frame with a short `repr`. `h2` makes one of each frame for its log; the bytes in hex took most of its time."""

    def _body_repr(self) -> str:
        return f"{len(self.data)} bytes"


class _Connection(H2Connection):
    """`h2`'s connection, but one that goes on after GOAWAY, and that does not copy data on its way out.

    Attributes:
        output: bytes to send, in pieces. They follow what `data_to_send` returns, which is only the beginning of the connection.
    """

    def __init__(self, stream_window_bytes: int) -> None:
        # Latin-1 decodes any bytes. The headers of a peer need not be valid in another encoding.
        super().__init__(H2Configuration(client_side=True, header_encoding="latin-1"))
        self.state_machine = _LastingStates()
        self.decoder.max_header_list_size = MAX_HEADERS_BYTES
        self.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: stream_window_bytes,
                SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS_BYTES,
            },
        )
        self.max_inbound_frame_size = MAX_FRAME_BYTES
        handlers = cast("dict[type[Frame], object]", vars(self)["_frame_dispatch_table"])
        handlers[_QuietDataFrame] = handlers[DataFrame]
        self.output: list[bytes] = []

    def _prepare_for_sending(self, frames: list[Frame]) -> None:
        for frame in frames:
            if type(frame) is DataFrame:
                assert len(frame.data) <= self.max_outbound_frame_size, f"a frame of {len(frame.data)} bytes"
                flags = _END_STREAM if "END_STREAM" in frame.flags else 0
                self.output += (_HEAD.pack(len(frame.data) << 8, flags, frame.stream_id), frame.data)
            else:
                self.output.append(frame.serialize())

    def _receive_frame(self, frame: Frame) -> list[h2_events.Event]:
        if type(frame) is DataFrame:
            frame.__class__ = _QuietDataFrame
        return super()._receive_frame(frame)

    def clear_outbound_data_buffer(self) -> None:
        """Keep the bytes to send, which `h2` would drop at GOAWAY."""


class _FrameHeads:
    """Checks frames by their headers. `h2` checks a frame only when all of it has arrived, and limits header blocks by frame count."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left_bytes = 0
        self._block_bytes = 0

    def fault_in(self, data: bytes) -> tuple[ErrorCodes, str] | None:
        """Walk over received bytes and return the first violation in them; None if they have none."""
        position = 0
        while position < len(data):
            if self._left_bytes:
                step = min(self._left_bytes, len(data) - position)
                self._left_bytes -= step
                position += step
                continue
            piece = data[position : position + _HEAD_BYTES - len(self._head)]
            self._head += piece
            position += len(piece)
            if len(self._head) == _HEAD_BYTES and (fault := self._fault_of_head()):
                return fault
        return None

    def _fault_of_head(self) -> tuple[ErrorCodes, str] | None:
        size, kind, flags = int.from_bytes(self._head[:3], "big"), self._head[3], self._head[4]
        self._head.clear()
        self._left_bytes = size
        if size > MAX_FRAME_BYTES:
            return ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {size} bytes"
        if kind in (_HEADERS, _PUSH_PROMISE, _CONTINUATION):
            self._block_bytes += size
            if self._block_bytes > MAX_HEADERS_BYTES:
                return ErrorCodes.ENHANCE_YOUR_CALM, f"headers of more than {MAX_HEADERS_BYTES} bytes"
            if flags & _END_HEADERS:
                self._block_bytes = 0
        return None


class _Stream:
    __slots__ = ("has_ended", "is_ending", "pending_bytes", "queue")

    def __init__(self) -> None:
        self.queue: deque[memoryview] = deque()
        self.pending_bytes = 0
        # Whether our side is to end the stream, and whether it has.
        self.is_ending = False
        self.has_ended = False


class Http2Connection:
    """Turns received bytes into events and queues the bytes to send, for one connection.

    Args:
        stream_window_bytes: bytes of one stream that may arrive before its reader has taken them, below 2^31.
    """

    def __init__(self, stream_window_bytes: int) -> None:
        self._stream_window_bytes = stream_window_bytes
        self._streams: dict[int, _Stream] = {}
        # Streams that have data and room in their own window. Each gets its turn.
        self._ready: deque[int] = deque()
        self._heads = _FrameHeads()
        self._is_going_away = False
        self._is_broken = False
        self._h2 = _Connection(stream_window_bytes)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)

    # -- streams

    def can_open(self) -> bool:
        """True if the server accepts one more stream now."""
        return not self.is_spent() and len(self._streams) < self._h2.remote_settings.max_concurrent_streams

    def is_spent(self) -> bool:
        """True if the connection will never take another stream."""
        if self._is_going_away or self._is_broken:
            return True
        return self._h2.highest_outbound_stream_id >= self._h2.HIGHEST_ALLOWED_STREAM_ID

    def open(self, headers: Iterable[tuple[str, str]]) -> int:
        """Open a stream and return its number."""
        assert self.can_open(), "the server takes no further stream"
        stream_id = self._h2.get_next_available_stream_id()
        # The server chooses the size of the header table that both sides remember. So nothing is put into it.
        self._h2.send_headers(stream_id, [NeverIndexedHeaderTuple(*each) for each in headers])
        self._streams[stream_id] = _Stream()
        return stream_id

    def send(self, stream_id: int, parts: Iterable[bytes], *, is_end: bool = False) -> None:
        """Queue bytes of a stream. They must not change until they are sent. A closed stream ignores them."""
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

    def grant(self, stream_id: int, held_bytes: int) -> None:
        """Let the server send more: the reader of a stream has `held_bytes` of the received bytes still to take."""
        if stream_id not in self._streams:
            return
        room = max(0, self._stream_window_bytes - held_bytes) - self._h2.remote_flow_control_window(stream_id)
        if room >= self._stream_window_bytes // 2:
            self._h2.increment_flow_control_window(room, stream_id)

    def reset(self, stream_id: int, error_code: int) -> None:
        """Close a stream, and tell the server unless both sides have ended it."""
        if self._streams.pop(stream_id, None) is not None:
            # The server may have closed it in bytes that this side has not processed yet.
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream_id, error_code)

    def ping(self) -> None:
        """Ping the server."""
        if not self._is_broken:
            self._h2.ping(bytes(8))

    def take_output(self, limit_bytes: int) -> tuple[list[bytes], list[int]]:
        """Take bytes to send.

        Args:
            limit_bytes: approximate limit for the bytes of data, at least 1.

        Returns:
            The bytes in pieces, and the streams that have no more data waiting.
        """
        drained: list[int] = []
        while self._can_send() and limit_bytes > 0:
            stream_id = self._ready.popleft()
            stream = self._streams.get(stream_id)
            if stream is None or stream.has_ended:
                continue
            room = max(0, self._h2.local_flow_control_window(stream_id))
            size = min(SEND_FRAME_BYTES, self._h2.max_outbound_frame_size, stream.pending_bytes, room)
            if stream.pending_bytes and not size:
                continue
            limit_bytes -= size
            stream.pending_bytes -= size
            stream.has_ended = stream.is_ending and not stream.pending_bytes
            self._h2.send_data(stream_id, b"".join(_take(stream.queue, size)), end_stream=stream.has_ended)
            if stream.pending_bytes:
                self._ready.append(stream_id)
            else:
                drained.append(stream_id)
        self._take_beginning()
        output, self._h2.output = self._h2.output, []
        return output, drained

    def has_output(self) -> bool:
        """True if `take_output` may return bytes."""
        self._take_beginning()
        return bool(self._h2.output) or self._can_send()

    def _take_beginning(self) -> None:
        beginning = self._h2.data_to_send()
        if beginning:
            self._h2.output.insert(0, beginning)

    def _can_send(self) -> bool:
        return bool(self._ready) and self._h2.outbound_flow_control_window > 0

    def _make_ready(self, stream_id: int, stream: _Stream) -> None:
        if (stream.pending_bytes or (stream.is_ending and not stream.has_ended)) and stream_id not in self._ready:
            self._ready.append(stream_id)

    # -- what comes

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes from the server and return the events in them.

        Raises:
            ConnectionFaultError: the server broke the protocol.
        """
        fault = self._heads.fault_in(data)
        if fault is not None:
            raise self._fault(*fault)
        events: list[Event] = []
        try:
            for event in self._h2.receive_data(data):
                self._take_event(event, events)
        except ProtocolError as error:
            # `h2` has queued the GOAWAY frame itself.
            raise self._broken(f"{type(error).__name__}: {error}") from None
        self._top_up()
        if sum(map(len, self._h2.output)) > MAX_CONTROL_BYTES:
            raise self._fault(ErrorCodes.ENHANCE_YOUR_CALM, "more questions than answers are read")
        return events

    def _take_event(self, event: h2_events.Event, events: list[Event]) -> None:
        match event:
            case h2_events.DataReceived():
                self._on_part(DataCame(event.stream_id, event.data, event.stream_ended is not None), events)
            case h2_events.ResponseReceived() | h2_events.TrailersReceived():
                headers = [(str(name), str(value)) for name, value in event.headers]
                self._on_part(HeadersCame(event.stream_id, headers, event.stream_ended is not None), events)
            case h2_events.StreamReset():
                if self._streams.pop(event.stream_id, None) is not None:
                    code = int(event.error_code)
                    events.append(StreamReset(event.stream_id, code, is_unseen=code == ErrorCodes.REFUSED_STREAM))
            case h2_events.RemoteSettingsChanged():
                for stream_id, stream in self._streams.items():
                    self._make_ready(stream_id, stream)
                events.append(SettingsCame())
            case h2_events.WindowUpdated():
                stream = self._streams.get(event.stream_id)
                if stream is not None:
                    self._make_ready(event.stream_id, stream)
            case h2_events.ConnectionTerminated():
                self._on_goaway(event, events)
            case _:
                pass

    def _on_part(self, part: HeadersCame | DataCame, events: list[Event]) -> None:
        stream = self._streams.get(part.stream_id)
        if stream is None:
            return
        events.append(part)
        if not part.is_end:
            return
        if stream.has_ended:
            del self._streams[part.stream_id]
        else:
            # The server has sent its whole response and would not read further data.
            self.reset(part.stream_id, ErrorCodes.NO_ERROR)

    def _top_up(self) -> None:
        """Keep the connection's window wide. Bytes of abandoned streams count too."""
        window_bytes = self._h2.inbound_flow_control_window
        if window_bytes < CONNECTION_WINDOW_BYTES // 2:
            self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - window_bytes)

    def _on_goaway(self, event: h2_events.ConnectionTerminated, events: list[Event]) -> None:
        code, last_id = int(event.error_code or 0), event.last_stream_id or 0
        self._is_going_away = True
        events.append(GoingAway(code, (event.additional_data or b"")[:192].decode("ascii", "replace")))
        for stream_id in [each for each in self._streams if each > last_id]:
            del self._streams[stream_id]
            events.append(StreamReset(stream_id, code, is_unseen=True))

    def _fault(self, error_code: ErrorCodes, text: str) -> ConnectionFaultError:
        self._h2.close_connection(error_code, text.encode())
        return self._broken(text)

    def _broken(self, text: str) -> ConnectionFaultError:
        """Return the error of a broken connection. From now on, only bytes that are already queued are sent."""
        self._is_broken = True
        self._streams.clear()
        self._ready.clear()
        return ConnectionFaultError(text)


def _take(queue: deque[memoryview], size: int) -> list[memoryview]:
    """Take exactly `size` bytes from a queue that has them."""
    taken: list[memoryview] = []
    while size:
        part = queue.popleft()
        if len(part) > size:
            queue.appendleft(part[size:])
            part = part[:size]
        size -= len(part)
        taken.append(part)
    return taken

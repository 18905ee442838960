# SPDX-License-Identifier: Apache-2.0
"""The client side of one HTTP/2 connection, as a core: bytes in, events out, bytes to send.

`h2` provides header blocks, settings and stream states. This module owns the two frames that come with each message, DATA and
WINDOW_UPDATE, and the windows that they move, because `h2` makes several objects of each frame and copies its bytes more than
once (figures in ADR 17). It queues data that waits for a window, and gives each stream one frame in turn. And it bounds what a
peer can make the client hold: the window of each stream, one frame of another kind or with padding, one header block, and
`MAX_CONTROL_BYTES` of answers. The user bounds the data to send: it writes the messages of a stream one after the other.

It must not know gRPC, sockets or the time. Source: RFC 9113; ADR 17.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

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
_END_STREAM, _END_HEADERS, _PADDED = 1, 4, 8
_DATA, _HEADERS, _PUSH_PROMISE, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 5, 8, 9
_MAX_WINDOW_BYTES: Final = (1 << 31) - 1
_WITHOUT_RESERVED_BIT: Final = (1 << 31) - 1
_GROWTH: Final = struct.Struct(">I")


class SettingsCame(NamedTuple):
    """The server speaks HTTP/2: its settings have arrived."""


class HeadersCame(NamedTuple):
    """Headers or trailers of a stream arrived."""

    stream_id: int
    headers: list[tuple[str, str]]
    is_end: bool


class DataCame(NamedTuple):
    """Bytes of a stream arrived. They lie in the received bytes, so the user copies what it keeps."""

    stream_id: int
    data: memoryview
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


class _Connection(H2Connection):
    """`h2`'s connection, but one that goes on after GOAWAY, and that leaves DATA frames to its user.

    Attributes:
        output: bytes to send, in pieces.
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
        self.output: list[bytes | memoryview] = []
        self.initiate_connection()
        self.output.insert(0, self.data_to_send())

    def _prepare_for_sending(self, frames: list[Frame]) -> None:
        # The user has written the DATA frames; `h2` only learns that the stream has ended.
        self.output += (frame.serialize() for frame in frames if type(frame) is not DataFrame)

    def clear_outbound_data_buffer(self) -> None:
        """Keep the bytes to send, which `h2` would drop at GOAWAY."""


class _Frames:
    """The frame under way, by its header, and the checks that `h2` makes too late or not at all.

    `h2` checks the size of a frame only when all of it has arrived, limits header blocks by frame count, and sees no DATA.

    Attributes:
        kind, flags, stream_id: of the frame under way.
        left_bytes: bytes of its payload that have not arrived. `begin` sets it, the connection counts it down.
        head: bytes of the next header that have arrived. The connection writes it.
    """

    def __init__(self) -> None:
        self.kind = self.flags = self.stream_id = self.left_bytes = 0
        self.head = b""
        self._block_bytes = 0
        self._block_stream_id = 0

    def begin(self) -> tuple[ErrorCodes, str] | None:
        """Begin the frame of the header that has arrived. Return a violation, or None."""
        size_and_kind, self.flags, stream_id = _HEAD.unpack(self.head)
        kind = self.kind = size_and_kind & 0xFF
        size = self.left_bytes = size_and_kind >> 8
        self.stream_id = stream_id & _WITHOUT_RESERVED_BIT
        if size > MAX_FRAME_BYTES:
            return ErrorCodes.FRAME_SIZE_ERROR, f"a frame of {size} bytes"
        if self._block_stream_id and (kind != _CONTINUATION or self.stream_id != self._block_stream_id):
            return ErrorCodes.PROTOCOL_ERROR, "another frame inside a header block"
        if kind in (_HEADERS, _PUSH_PROMISE, _CONTINUATION):
            self._block_bytes += size
            if self._block_bytes > MAX_HEADERS_BYTES:
                return ErrorCodes.ENHANCE_YOUR_CALM, f"headers of more than {MAX_HEADERS_BYTES} bytes"
            self._block_stream_id = 0 if self.flags & _END_HEADERS else self.stream_id
            if self.flags & _END_HEADERS:
                self._block_bytes = 0
        return None


class _Stream:
    __slots__ = ("has_ended", "has_headers", "is_ending", "own_room", "pending_bytes", "queue", "room")

    def __init__(self, room: int, own_room: int) -> None:
        # Bytes that may be sent, and that the server may send. Settings can make the first one negative.
        self.room = room
        self.own_room = own_room
        self.queue: deque[memoryview] = deque()
        self.pending_bytes = 0
        self.has_headers = False
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
        self._frames = _Frames()
        # The frame under way with its header, if it is collected before anything is done with it.
        self._collected: bytearray | None = None
        self._room = DEFAULT_WINDOW_BYTES
        self._own_room = CONNECTION_WINDOW_BYTES
        self._is_going_away = False
        self._is_broken = False
        self._h2 = _Connection(stream_window_bytes)
        self._update_window(0, CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)

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
        self._streams[stream_id] = _Stream(self._h2.remote_settings.initial_window_size, self._stream_window_bytes)
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
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        growth = max(0, self._stream_window_bytes - held_bytes) - stream.own_room
        if growth >= self._stream_window_bytes // 2:
            stream.own_room += growth
            self._update_window(stream_id, growth)

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

    def take_output(self, limit_bytes: int) -> tuple[list[bytes | memoryview], list[int]]:
        """Take bytes to send.

        Args:
            limit_bytes: approximate limit for the bytes of data, at least 1.

        Returns:
            The bytes in pieces, and the streams that have no more data waiting.
        """
        drained: list[int] = []
        output = self._h2.output
        while self._ready and self._room > 0 and limit_bytes > 0:
            stream_id = self._ready.popleft()
            stream = self._streams.get(stream_id)
            if stream is None or stream.has_ended:
                continue
            size = min(SEND_FRAME_BYTES, self._h2.max_outbound_frame_size, stream.pending_bytes, self._room)
            size = min(size, max(0, stream.room))
            if stream.pending_bytes and not size:
                continue
            limit_bytes -= size
            self._room -= size
            stream.room -= size
            stream.pending_bytes -= size
            stream.has_ended = stream.is_ending and not stream.pending_bytes
            output.append(_HEAD.pack(size << 8, _END_STREAM if stream.has_ended else 0, stream_id))
            output += _take(stream.queue, size)
            if stream.has_ended:
                self._h2.end_stream(stream_id)
            if stream.pending_bytes:
                self._ready.append(stream_id)
            else:
                drained.append(stream_id)
        self._h2.output = []
        return output, drained

    def has_output(self) -> bool:
        """True if `take_output` may return bytes."""
        return bool(self._h2.output) or (bool(self._ready) and self._room > 0)

    def _make_ready(self, stream_id: int, stream: _Stream) -> None:
        if (stream.pending_bytes or (stream.is_ending and not stream.has_ended)) and stream_id not in self._ready:
            self._ready.append(stream_id)

    def _update_window(self, stream_id: int, growth: int) -> None:
        self._h2.output.append(_HEAD.pack(_GROWTH.size << 8 | _WINDOW_UPDATE, 0, stream_id) + _GROWTH.pack(growth))

    # -- what comes

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Take bytes from the server and return the events in them. The bytes of `DataCame` lie in `data`.

        Raises:
            ConnectionFaultError: the server broke the protocol.
        """
        events: list[Event] = []
        frames, view, position = self._frames, memoryview(data), 0
        while position < len(view):
            if frames.left_bytes:
                piece = view[position : position + frames.left_bytes]
                position += len(piece)
                frames.left_bytes -= len(piece)
                self._on_payload(piece, events)
                continue
            head = frames.head + view[position : position + _HEAD_BYTES - len(frames.head)]
            position += len(head) - len(frames.head)
            frames.head = head
            if len(head) == _HEAD_BYTES:
                self._begin_frame(events)
                frames.head = b""
        self._end_receipt()
        return events

    def coming_data(self) -> tuple[int, int] | None:
        """Return the open stream to which the next bytes belong as they are, and how many those are; None if they are something else.

        The user may read so many bytes to wherever it keeps them, and then calls `data_came` instead of `receive`.
        """
        frames = self._frames
        if not frames.left_bytes or self._collected is not None or frames.stream_id not in self._streams:
            return None
        # The last byte of a stream goes the usual way.
        size = frames.left_bytes - (frames.flags & _END_STREAM)
        return (frames.stream_id, size) if size else None

    def data_came(self, size: int) -> None:
        """Take note of bytes of `coming_data` that the user has read itself."""
        self._frames.left_bytes -= size

    def _end_receipt(self) -> None:
        """Keep the connection's window wide, and the answers bounded. Bytes of abandoned streams count too."""
        if self._own_room < CONNECTION_WINDOW_BYTES // 2:
            self._update_window(0, CONNECTION_WINDOW_BYTES - self._own_room)
            self._own_room = CONNECTION_WINDOW_BYTES
        if self._h2.output and sum(map(len, self._h2.output)) > MAX_CONTROL_BYTES:
            raise self._fault(ErrorCodes.ENHANCE_YOUR_CALM, "more questions than answers are read")

    def _begin_frame(self, events: list[Event]) -> None:
        frames = self._frames
        fault = frames.begin()
        if fault is None and frames.kind == _DATA:
            fault = self._begin_data(frames.stream_id, frames.left_bytes)
        if fault is not None:
            raise self._fault(*fault)
        self._collected = None
        if frames.kind != _DATA or frames.flags & _PADDED:
            self._collected = bytearray(frames.head)
        if not frames.left_bytes:
            self._on_payload(memoryview(b""), events)

    def _begin_data(self, stream_id: int, size: int) -> tuple[ErrorCodes, str] | None:
        self._own_room -= size
        if self._own_room < 0:
            return ErrorCodes.FLOW_CONTROL_ERROR, "more data than the window of the connection"
        if self._is_idle(stream_id):
            return ErrorCodes.PROTOCOL_ERROR, f"data of stream {stream_id}, which was never opened"
        stream = self._streams.get(stream_id)
        if stream is None:
            return None
        if not stream.has_headers:
            return ErrorCodes.PROTOCOL_ERROR, "data before headers"
        stream.own_room -= size
        if stream.own_room < 0:
            return ErrorCodes.FLOW_CONTROL_ERROR, "more data than the window of the stream"
        return None

    def _is_idle(self, stream_id: int) -> bool:
        return not stream_id & 1 or stream_id > self._h2.highest_outbound_stream_id

    def _on_payload(self, piece: memoryview, events: list[Event]) -> None:
        """Take the next bytes of the frame under way, perhaps the last ones."""
        frames = self._frames
        if self._collected is None:
            self._on_data(piece, events)
            return
        self._collected += piece
        if frames.left_bytes:
            return
        collected, self._collected = self._collected, None
        if frames.kind == _DATA:
            payload = memoryview(collected)[_HEAD_BYTES:]
            if not payload or payload[0] >= len(payload):
                raise self._fault(ErrorCodes.PROTOCOL_ERROR, "more padding than payload")
            self._on_data(payload[1 : len(payload) - payload[0]], events)
        elif frames.kind == _WINDOW_UPDATE:
            self._on_window_update(collected, events)
        else:
            self._pass_on(collected, events)

    def _on_data(self, piece: memoryview, events: list[Event]) -> None:
        frames = self._frames
        is_end = bool(frames.flags & _END_STREAM) and not frames.left_bytes
        if is_end:
            # An empty frame in place of the one that `h2` does not see.
            self._pass_on(_HEAD.pack(_DATA, _END_STREAM, frames.stream_id), events)
        if piece or is_end:
            self._on_part(DataCame(frames.stream_id, piece, is_end), events)

    def _on_window_update(self, frame: bytearray, events: list[Event]) -> None:
        stream_id = self._frames.stream_id
        if len(frame) != _HEAD_BYTES + _GROWTH.size:
            raise self._fault(ErrorCodes.FRAME_SIZE_ERROR, "a window update of another size")
        growth = _GROWTH.unpack_from(frame, _HEAD_BYTES)[0] & _WITHOUT_RESERVED_BIT
        error = None if growth else ErrorCodes.PROTOCOL_ERROR
        if not stream_id:
            self._room += growth
            if self._room > _MAX_WINDOW_BYTES:
                error = ErrorCodes.FLOW_CONTROL_ERROR
            if error is not None:
                raise self._fault(error, f"a window update of {growth} bytes")
            return
        if self._is_idle(stream_id):
            raise self._fault(ErrorCodes.PROTOCOL_ERROR, f"a window of stream {stream_id}, which was never opened")
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.room += growth
        if stream.room > _MAX_WINDOW_BYTES:
            error = ErrorCodes.FLOW_CONTROL_ERROR
        if error is not None:
            self.reset(stream_id, error)
            events.append(StreamReset(stream_id, error, is_unseen=False))
        else:
            self._make_ready(stream_id, stream)

    def _pass_on(self, frame: bytes | bytearray, events: list[Event]) -> None:
        """Give a frame to `h2`."""
        try:
            for event in self._h2.receive_data(bytes(frame)):
                self._take_event(event, events)
        except ProtocolError as error:
            # `h2` has queued the GOAWAY frame itself.
            raise self._broken(f"{type(error).__name__}: {error}") from None

    def _take_event(self, event: h2_events.Event, events: list[Event]) -> None:
        match event:
            case h2_events.ResponseReceived() | h2_events.TrailersReceived():
                stream = self._streams.get(event.stream_id)
                if stream is not None and not stream.has_headers:
                    stream.has_headers = True
                    # `h2` would compare it with data that it does not see.
                    vars(self._h2.streams[event.stream_id])["_expected_content_length"] = None
                headers = [(str(name), str(value)) for name, value in event.headers]
                self._on_part(HeadersCame(event.stream_id, headers, event.stream_ended is not None), events)
            case h2_events.StreamReset():
                if self._streams.pop(event.stream_id, None) is not None:
                    code = int(event.error_code)
                    events.append(StreamReset(event.stream_id, code, is_unseen=code == ErrorCodes.REFUSED_STREAM))
            case h2_events.RemoteSettingsChanged():
                self._on_settings(event)
                events.append(SettingsCame())
            case h2_events.ConnectionTerminated():
                self._on_goaway(event, events)
            case _:
                pass

    def _on_settings(self, event: h2_events.RemoteSettingsChanged) -> None:
        change = event.changed_settings.get(SettingCodes.INITIAL_WINDOW_SIZE)
        growth = 0 if change is None else change.new_value - (change.original_value or 0)
        for stream_id, stream in self._streams.items():
            stream.room += growth
            if stream.room > _MAX_WINDOW_BYTES:
                raise self._fault(ErrorCodes.FLOW_CONTROL_ERROR, "settings that make a window too large")
            self._make_ready(stream_id, stream)

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

# SPDX-License-Identifier: Apache-2.0
"""The client's side of one HTTP/2 connection, as a core: bytes in, events out, bytes to send.

Frames, header blocks, windows and the states of streams are those of `h2`. Added here is what it leaves to its user: data that waits
for a window, in turns of a frame for each stream, and bounds of what a peer can make us hold: a stream's window, one frame, one header
block, `MAX_CONTROL_BYTES` of answers. What waits to be sent is bounded by the user, who writes one message of a stream after the other.
Must not know gRPC, sockets or the time.
Source: RFC 9113; ADR 17.
"""

from __future__ import annotations

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

FRAME_BYTES: Final = 16_384
"""Most bytes of a frame's payload, both ways: what holds without a word of either side (RFC 9113 section 6.5.2)."""
DEFAULT_WINDOW_BYTES: Final = 65_535
CONNECTION_WINDOW_BYTES: Final = 1 << 30
"""Bytes of all streams together that may come ahead; each stream's own window is the bound that counts."""
MAX_HEADERS_BYTES: Final = 65_536
"""Most bytes of one header block, as it comes and as it is read; more is an attack, for references make much of little."""
MAX_CONTROL_BYTES: Final = 1 << 20
"""Bytes of answers (to pings, settings) that wait to be sent; who makes more of them and reads nothing is cut off."""

_HEAD_BYTES: Final = 9
_HEADERS, _PUSH_PROMISE, _CONTINUATION, _END_HEADERS = 1, 5, 9, 4


class SettingsCame(NamedTuple):
    """The server speaks HTTP/2: its settings are here."""


class HeadersCame(NamedTuple):
    """Headers or trailers of a stream."""

    stream_id: int
    headers: list[tuple[str, str]]
    is_end: bool


class DataCame(NamedTuple):
    """Bytes of a stream."""

    stream_id: int
    data: bytes
    is_end: bool


class StreamReset(NamedTuple):
    """The stream ended early; `is_unseen`: the server has not begun with it."""

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


class _LastingStates(H2ConnectionStateMachine):
    """A farewell ends no connection: what the server has begun goes on (RFC 9113 section 6.8). `h2` takes nothing more after it."""

    def process_input(self, input_: ConnectionInputs) -> list[h2_events.Event]:
        return [] if input_ is ConnectionInputs.RECV_GOAWAY else super().process_input(input_)


class _Connection(H2Connection):
    """`h2`'s, which a farewell leaves as it is."""

    def __init__(self, stream_window_bytes: int) -> None:
        # Every text is Latin-1, and nothing else is sure to be.
        super().__init__(H2Configuration(client_side=True, header_encoding="latin-1"))
        self.state_machine = _LastingStates()
        self.decoder.max_header_list_size = MAX_HEADERS_BYTES
        self.local_settings = Settings(
            client=True,
            initial_values={
                SettingCodes.ENABLE_PUSH: 0,
                SettingCodes.INITIAL_WINDOW_SIZE: stream_window_bytes,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS_BYTES,
            },
        )

    def clear_outbound_data_buffer(self) -> None:
        """Keep what is to be sent, against `h2`, which drops it at a farewell."""


class _FrameHeads:
    """Judges frames by their heads: `h2` does only when all of a frame is here, and bounds a header block by its number of frames."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left_bytes = 0
        self._block_bytes = 0

    def fault_in(self, data: bytes) -> tuple[ErrorCodes, str] | None:
        """Pass over bytes that came, and return what is wrong with them."""
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
        if size > FRAME_BYTES:
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
        self._heads = _FrameHeads()
        self._is_going_away = False
        self._is_broken = False
        self._control = bytearray()
        self._h2 = _Connection(stream_window_bytes)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)

    # -- streams

    def can_open(self) -> bool:
        """True if the server takes one more stream now."""
        return not self.is_spent() and len(self._streams) < self._h2.remote_settings.max_concurrent_streams

    def is_spent(self) -> bool:
        """True if it will never take another one."""
        if self._is_going_away or self._is_broken:
            return True
        return self._h2.highest_outbound_stream_id >= self._h2.HIGHEST_ALLOWED_STREAM_ID

    def open(self, headers: Iterable[tuple[str, str]]) -> int:
        """Open a stream, and return its number."""
        assert self.can_open(), "the server takes no further stream"
        stream_id = self._h2.get_next_available_stream_id()
        # The size of the table of headers that both sides remember is the server's to choose: nothing enters it.
        self._h2.send_headers(stream_id, [NeverIndexedHeaderTuple(*each) for each in headers])
        self._streams[stream_id] = _Stream()
        return stream_id

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

    def grant(self, stream_id: int, held_bytes: int) -> None:
        """Let the server send on: the reader of a stream has yet to take `held_bytes` of what came."""
        if stream_id not in self._streams:
            return
        room = max(0, self._stream_window_bytes - held_bytes) - self._h2.remote_flow_control_window(stream_id)
        if room >= self._stream_window_bytes // 2:
            self._h2.increment_flow_control_window(room, stream_id)

    def reset(self, stream_id: int, error_code: int) -> None:
        """Close a stream, with a word to the server unless both sides have ended."""
        if self._streams.pop(stream_id, None) is not None:
            # The server may have closed it behind what is being read.
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream_id, error_code)

    def ping(self) -> None:
        """Ask for a sign of life."""
        if not self._is_broken:
            self._h2.ping(bytes(8))

    def take_output(self, limit_bytes: int) -> tuple[bytes, list[int]]:
        """Take what is to be sent.

        Args:
            limit_bytes: about how many bytes of data, from 1 on.

        Returns:
            The bytes, and the streams of which nothing waits any more.
        """
        drained: list[int] = []
        while self._can_send() and limit_bytes > 0:
            stream_id = self._ready.popleft()
            stream = self._streams.get(stream_id)
            if stream is None or stream.has_ended:
                continue
            size = min(FRAME_BYTES, stream.pending_bytes, max(0, self._h2.local_flow_control_window(stream_id)))
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
        self._control += self._h2.data_to_send()
        output, self._control = bytes(self._control), bytearray()
        return output, drained

    def has_output(self) -> bool:
        """True if `take_output` may give something."""
        self._control += self._h2.data_to_send()
        return bool(self._control) or self._can_send()

    def _can_send(self) -> bool:
        return bool(self._ready) and self._h2.outbound_flow_control_window > 0

    def _make_ready(self, stream_id: int, stream: _Stream) -> None:
        if (stream.pending_bytes or (stream.is_ending and not stream.has_ended)) and stream_id not in self._ready:
            self._ready.append(stream_id)

    # -- what comes

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes of the server.

        Raises:
            ConnectionFaultError: it broke the protocol.
        """
        fault = self._heads.fault_in(data)
        if fault is not None:
            raise self._fault(*fault)
        events: list[Event] = []
        try:
            for event in self._h2.receive_data(data):
                self._take_event(event, events)
        except ProtocolError as error:
            # It has written the farewell itself.
            raise self._broken(f"{type(error).__name__}: {error}") from None
        self._top_up()
        self._control += self._h2.data_to_send()
        if len(self._control) > MAX_CONTROL_BYTES:
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
            # The server has said all: nothing that is sent would be read any more.
            self.reset(part.stream_id, ErrorCodes.NO_ERROR)

    def _top_up(self) -> None:
        """Keep the connection's window wide, also by what comes for streams that were given up."""
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
        """Nothing is sent any more but what was written."""
        self._is_broken = True
        self._streams.clear()
        self._ready.clear()
        return ConnectionFaultError(text)


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

# SPDX-License-Identifier: Apache-2.0
"""Either side of one HTTP/2 connection, as a core: bytes in, events out, bytes to send.

`h2` reads header blocks, and keeps settings and stream states. This module writes header blocks, and owns the two frames
that come with each message, DATA and WINDOW_UPDATE, and the windows that they move, because `h2` makes several objects of each
frame and copies its bytes more than once (figures in ADR 17). It queues data that waits for a window, and gives each stream one
frame in turn. And it bounds what a peer can make this side hold: the window of each stream, one frame of another kind or with
padding, one header block, and `MAX_CONTROL_BYTES` of answers. A server also bounds the work that frames without a use can cause
(`_Patience`). The user bounds the data to send: it writes the messages of a stream one after the other.

It must not know gRPC or sockets, and no clock: who has one passes the time. Source: RFC 9113; ADR 17, ADR 30.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection, H2ConnectionStateMachine
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from hpack import Encoder
from hyperframe.frame import DataFrame, Frame

from lograft.wire.keepalive import MAX_FRAME_BYTES

SEND_FRAME_BYTES: Final = 256 * 1024
"""Largest payload of a frame that is sent, in bytes, if the peer takes as much. Streams take turns by frames."""
DEFAULT_WINDOW_BYTES: Final = 65_535
CONNECTION_WINDOW_BYTES: Final = 1 << 30
"""Bytes that all streams together may receive ahead. The window of each stream is the bound that counts."""
MAX_HEADERS_BYTES: Final = 65_536
"""Largest header block in bytes, both encoded and decoded. A larger one is an attack, because few bytes can encode many headers."""
MAX_CONTROL_BYTES: Final = 1 << 20
"""Bytes of answers (to pings and settings) that may wait to be sent. A peer that causes more without reading is disconnected."""
PATIENCE: Final = 10_000
"""Useless frames of a client that a server takes at once: pings and empty frames, settings, and the like. A reset counts as ten."""
PATIENCE_PER_S: Final = 1_000
"""Useless frames a second that a server takes for as long as a client likes."""
SHORT_FRAME_BYTES: Final = 256
"""Bytes of a DATA frame below which a server counts it as useless work if only the client's window made it so short."""
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first (RFC 9113 section 3.4)."""

_HEAD: Final = struct.Struct(">IBI")
"""The head of a frame: length (3 bytes) and type (1), flags, stream (RFC 9113 section 4.1). DATA frames have type 0."""
_HEAD_BYTES: Final = _HEAD.size
_ACK, _END_STREAM, _END_HEADERS, _PADDED = 1, 1, 4, 8
_DATA, _HEADERS, _RST_STREAM, _PUSH_PROMISE, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 5, 6, 7, 8, 9
_PING_BYTES: Final = 8
_RESET_COST: Final = 10
_MAX_WINDOW_BYTES: Final = (1 << 31) - 1
_WITHOUT_RESERVED_BIT: Final = (1 << 31) - 1
_NEVER_INDEXED: Final = 0x10
"""First byte of a literal header with a literal name."""
_NO_TABLE: Final = b"\x20"
"""The instruction that the table of headers is empty from now on (RFC 7541 section 6.3)."""
_SHORT_TEXT: Final = 0x7F
_GROWTH: Final = struct.Struct(">I")
_FAREWELL: Final = struct.Struct(">II")
"""Payload of GOAWAY: the largest number of a stream that is served, error code."""


def header_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return headers as a block of literals without compression, which enters no table (RFC 7541 section 6.2.3).

    Names and values are Latin-1 text. A table would save some hundred bytes a call, and cost the processor time of both sides.
    """
    block = bytearray()
    for name, value in headers:
        block.append(_NEVER_INDEXED)
        for text in (name, value):
            _append_text(block, text.encode("latin-1"))
    return bytes(block)


def _append_text(block: bytearray, text: bytes) -> None:
    """Append a string: its length in at least seven bits, and its bytes (RFC 7541 sections 5.1 and 5.2)."""
    size = len(text)
    if size < _SHORT_TEXT:
        block.append(size)
    else:
        block.append(_SHORT_TEXT)
        size -= _SHORT_TEXT
        while size > 0x7F:
            block.append(size & 0x7F | 0x80)
            size >>= 7
        block.append(size)
    block += text


class SettingsCame(NamedTuple):
    """The peer speaks HTTP/2: its settings have arrived."""


class HeadersCame(NamedTuple):
    """Headers or trailers of a stream arrived. At a server the first ones open the stream."""

    stream_id: int
    headers: list[tuple[str, str]]
    is_end: bool


class DataCame(NamedTuple):
    """Bytes of a stream arrived. They lie in the received bytes, so the user copies what it keeps."""

    stream_id: int
    data: memoryview
    is_end: bool


class StreamReset(NamedTuple):
    """The stream ended early. With `is_unseen`, the server has not begun to process it. At a server: the client gave it up."""

    stream_id: int
    error_code: int
    is_unseen: bool


class GoingAway(NamedTuple):
    """The peer accepts no further stream on this connection."""

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


class _EncodedBlocks(Encoder):
    """Takes blocks of headers that are encoded already, so that `h2` only keeps the states of streams.

    Attributes:
        next: the block that is sent next.
    """

    def __init__(self) -> None:
        super().__init__()
        self.next = b""
        # The peer chooses how large the table of headers may be that both sides remember. This side needs none, and says so first.
        self._start = _NO_TABLE

    def encode(self, headers: Iterable[object], huffman: bool = True) -> bytes:
        """Return the next block."""
        del headers, huffman
        start, self._start = self._start, b""
        return start + self.next


class _Connection(H2Connection):
    """`h2`'s connection, but one that goes on after GOAWAY, and that leaves DATA frames to its user.

    Attributes:
        output: bytes to send, in pieces.
    """

    def __init__(self, settings: Mapping[SettingCodes, int], *, is_client: bool) -> None:
        config = H2Configuration(
            client_side=is_client,
            header_encoding=None,
            normalize_inbound_headers=False,
            # What is sent comes from this side's own code, encoded.
            normalize_outbound_headers=False,
            validate_outbound_headers=False,
        )
        super().__init__(config)
        self.state_machine = _LastingStates()
        self.encoder = self._blocks = _EncodedBlocks()
        self.decoder.max_header_list_size = MAX_HEADERS_BYTES
        common = {SettingCodes.MAX_FRAME_SIZE: MAX_FRAME_BYTES, SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADERS_BYTES}
        self.local_settings = Settings(client=is_client, initial_values=common | dict(settings))
        self.max_inbound_frame_size = MAX_FRAME_BYTES
        self.output: list[bytes | memoryview] = []
        self.initiate_connection()
        self.output.insert(0, self.data_to_send())

    def send_block(self, stream_id: int, block: bytes, *, is_end: bool = False) -> None:
        """Send a block of headers that `header_block` has made."""
        self._blocks.next = block
        self.send_headers(stream_id, (), end_stream=is_end)

    def _prepare_for_sending(self, frames: list[Frame]) -> None:
        # The user has written the DATA frames; `h2` only learns that the stream has ended.
        self.output += (frame.serialize() for frame in frames if type(frame) is not DataFrame)

    def clear_outbound_data_buffer(self) -> None:
        """Keep the bytes to send, which `h2` would drop at GOAWAY."""

    @property
    def open_inbound_streams(self) -> int:
        """0: `ServerConnection` counts. For `h2`, one stream more than allowed is the end of the connection.

        The property forgets streams that are closed, as in `h2`.
        """
        _ = super().open_inbound_streams
        return 0


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
    __slots__ = (
        "has_ended",
        "has_headers",
        "has_peer_ended",
        "is_ending",
        "own_room",
        "pending_bytes",
        "queue",
        "room",
        "trailers",
    )

    def __init__(self, room: int, own_room: int) -> None:
        # Bytes that may be sent, and that the peer may send. Settings can make the first one negative.
        self.room = room
        self.own_room = own_room
        self.queue: deque[memoryview] = deque()
        self.pending_bytes = 0
        # The block of headers that ends our side behind the queue. Without any, the last frame of data ends it.
        self.trailers: bytes | None = None
        # Whether the peer's first headers have come, and whether it has ended its side.
        self.has_headers = False
        self.has_peer_ended = False
        # Whether our side is to end the stream, and whether it has.
        self.is_ending = False
        self.has_ended = False


class _Patience:
    """How many useless frames a peer may still send: `PATIENCE` at once, and `PATIENCE_PER_S` for good.

    Each costs this side more work than it costs the peer, and none of them is limited by a window or by the number of streams
    (CVE-2019-9511 to 9518, CVE-2023-44487, CVE-2025-8671).
    """

    def __init__(self) -> None:
        self._left = float(PATIENCE)
        self._now_s: float | None = None

    def tick(self, now_s: float) -> None:
        """Take note of the time."""
        if self._now_s is not None:
            self._left = min(PATIENCE, self._left + (now_s - self._now_s) * PATIENCE_PER_S)
        self._now_s = now_s

    def is_over(self, cost: int) -> bool:
        """Count a useless frame; True if it is one too many."""
        self._left -= cost
        return self._left < 0


class _Http2Connection(ABC):
    """Turns received bytes into events and queues the bytes to send, for one connection."""

    def __init__(self, settings: Mapping[SettingCodes, int], *, is_client: bool, stream_window_bytes: int) -> None:
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
        self._h2 = _Connection(settings, is_client=is_client)
        self._update_window(0, CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES)

    def close(self) -> None:
        """Take note that the connection has ended. It sends and takes nothing more."""
        self._is_broken = True
        self._streams.clear()
        self._ready.clear()
        # It refers to itself by its methods. Emptied, its memory is free at once, and does not wait for the garbage collector.
        vars(self._h2).clear()

    # -- streams

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
        """Let the peer send more: the reader of a stream has `held_bytes` of the received bytes still to take."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.has_peer_ended:
            return
        growth = max(0, self._stream_window_bytes - held_bytes) - stream.own_room
        if growth >= self._stream_window_bytes // 2:
            stream.own_room += growth
            self._update_window(stream_id, growth)

    def reset(self, stream_id: int, error_code: int) -> None:
        """Close a stream, and tell the peer unless both sides have ended it."""
        if self._streams.pop(stream_id, None) is not None:
            # The peer may have closed it in bytes that this side has not processed yet.
            with suppress(StreamClosedError):
                self._h2.reset_stream(stream_id, error_code)

    def ping(self) -> None:
        """Ping the peer."""
        if not self._is_broken:
            self._ping(0, bytes(_PING_BYTES))

    def _ping(self, flags: int, payload: bytes) -> None:
        self._h2.output.append(_HEAD.pack(_PING_BYTES << 8 | _PING, flags, 0) + payload)

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
            is_end = stream.has_ended and stream.trailers is None
            if size or is_end:
                output.append(_HEAD.pack(size << 8, _END_STREAM if is_end else 0, stream_id))
                output += _take(stream.queue, size)
            if stream.pending_bytes:
                self._ready.append(stream_id)
                self._note_frame(size)
                continue
            drained.append(stream_id)
            if stream.has_ended:
                self._end_own_side(stream_id, stream)
        self._h2.output = []
        return output, drained

    def _end_own_side(self, stream_id: int, stream: _Stream) -> None:
        if stream.trailers is not None:
            self._h2.send_block(stream_id, stream.trailers, is_end=True)
        else:
            self._h2.end_stream(stream_id)
        if stream.has_peer_ended:
            del self._streams[stream_id]

    @abstractmethod
    def _note_frame(self, size: int) -> None:
        """Take note of a frame that left data of its stream behind."""

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
        """Take bytes from the peer and return the events in them. The bytes of `DataCame` lie in `data`.

        Raises:
            ConnectionFaultError: the peer broke the protocol.
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
        if stream.has_peer_ended:
            return ErrorCodes.STREAM_CLOSED, f"data behind the end of stream {stream_id}"
        stream.own_room -= size
        if stream.own_room < 0:
            return ErrorCodes.FLOW_CONTROL_ERROR, "more data than the window of the stream"
        return None

    @abstractmethod
    def _is_idle(self, stream_id: int) -> bool:
        """Return whether no stream of this number was ever opened. Clients number theirs odd, and servers open none."""

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
        elif frames.kind == _PING:
            self._on_ping(collected)
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

    def _on_ping(self, frame: bytearray) -> None:
        if len(frame) != _HEAD_BYTES + _PING_BYTES:
            raise self._fault(ErrorCodes.FRAME_SIZE_ERROR, "a ping of another size")
        if self._frames.stream_id:
            raise self._fault(ErrorCodes.PROTOCOL_ERROR, f"a ping of stream {self._frames.stream_id}")
        if not self._frames.flags & _ACK:
            self._ping(_ACK, bytes(frame[_HEAD_BYTES:]))

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
            self._note_stream_fault()
            self.reset(stream_id, error)
            events.append(StreamReset(stream_id, error, is_unseen=False))
        else:
            self._make_ready(stream_id, stream)

    @abstractmethod
    def _note_stream_fault(self) -> None:
        """Take note of a violation that costs one stream."""

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
            case h2_events.RequestReceived() | h2_events.ResponseReceived() | h2_events.TrailersReceived():
                if type(event) is not h2_events.TrailersReceived and self._begin_message(event.stream_id):
                    # `h2` would compare it with data that it does not see.
                    vars(self._h2.streams[event.stream_id])["_expected_content_length"] = None
                # Latin-1 decodes any bytes. The headers of a peer need not be valid in another encoding.
                headers = [(str(name, "latin-1"), str(value, "latin-1")) for name, value in event.headers]
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

    @abstractmethod
    def _begin_message(self, stream_id: int) -> bool:
        """Take note of the first headers of the peer; False if this side has given up the stream."""

    def _on_part(self, part: HeadersCame | DataCame, events: list[Event]) -> None:
        stream = self._streams.get(part.stream_id)
        if stream is None:
            return
        events.append(part)
        if part.is_end:
            stream.has_peer_ended = True
            if stream.has_ended:
                del self._streams[part.stream_id]
            else:
                self._on_peer_end(part.stream_id)

    @abstractmethod
    def _on_peer_end(self, stream_id: int) -> None:
        """The peer has ended its side of a stream, and this side goes on."""

    def _on_goaway(self, event: h2_events.ConnectionTerminated, events: list[Event]) -> None:
        self._is_going_away = True
        text = (event.additional_data or b"")[:192].decode("ascii", "replace")
        events.append(GoingAway(int(event.error_code or 0), text))

    def _fault(self, error_code: ErrorCodes, text: str) -> ConnectionFaultError:
        self._h2.close_connection(error_code, text.encode())
        return self._broken(text)

    def _broken(self, text: str) -> ConnectionFaultError:
        """Return the error of a broken connection. From now on, only bytes that are already queued are sent."""
        self._is_broken = True
        self._streams.clear()
        self._ready.clear()
        return ConnectionFaultError(text)


class ClientConnection(_Http2Connection):
    """The client's side of a connection.

    Args:
        stream_window_bytes: bytes of one stream that may arrive before its reader has taken them, below 2^31.
    """

    def __init__(self, stream_window_bytes: int) -> None:
        settings = {SettingCodes.ENABLE_PUSH: 0, SettingCodes.INITIAL_WINDOW_SIZE: stream_window_bytes}
        super().__init__(settings, is_client=True, stream_window_bytes=stream_window_bytes)

    def can_open(self) -> bool:
        """True if the server accepts one more stream now."""
        return not self.is_spent() and len(self._streams) < self._h2.remote_settings.max_concurrent_streams

    def is_spent(self) -> bool:
        """True if the connection will never take another stream."""
        if self._is_going_away or self._is_broken:
            return True
        return self._h2.highest_outbound_stream_id >= self._h2.HIGHEST_ALLOWED_STREAM_ID

    def open(self, headers: bytes) -> int:
        """Open a stream with a block of headers, and return its number."""
        assert self.can_open(), "the server takes no further stream"
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_block(stream_id, headers)
        self._streams[stream_id] = _Stream(self._h2.remote_settings.initial_window_size, self._stream_window_bytes)
        return stream_id

    def _is_idle(self, stream_id: int) -> bool:
        return not stream_id & 1 or stream_id > self._h2.highest_outbound_stream_id

    def _begin_message(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        if stream is None:
            return False
        stream.has_headers = True
        return True

    def _on_peer_end(self, stream_id: int) -> None:
        # The server has sent its whole response and would not read further data.
        self.reset(stream_id, ErrorCodes.NO_ERROR)

    def _note_frame(self, size: int) -> None:
        """A client does not count what a server makes it do."""

    def _note_stream_fault(self) -> None:
        """A client does not count what a server makes it do."""

    def _on_goaway(self, event: h2_events.ConnectionTerminated, events: list[Event]) -> None:
        super()._on_goaway(event, events)
        code, last_id = int(event.error_code or 0), event.last_stream_id or 0
        for stream_id in [each for each in self._streams if each > last_id]:
            del self._streams[stream_id]
            events.append(StreamReset(stream_id, code, is_unseen=True))


class ServerConnection(_Http2Connection):
    """The server's side of a connection.

    A client may send 64 KiB on a new stream. `grant` lets it send more, so it cannot fill memory that no handler reads.

    Args:
        stream_window_bytes: bytes of one stream that may arrive before its reader has taken them, below 2^31.
        max_streams: streams that may be open at the same time. One more is refused.
    """

    def __init__(self, stream_window_bytes: int, max_streams: int) -> None:
        settings = {
            SettingCodes.MAX_CONCURRENT_STREAMS: max_streams,
            SettingCodes.INITIAL_WINDOW_SIZE: DEFAULT_WINDOW_BYTES,
        }
        super().__init__(settings, is_client=False, stream_window_bytes=stream_window_bytes)
        self._max_streams = max_streams
        self._preface = b""
        self._patience = _Patience()
        # Whether the last useful frame is behind the last ping. A program that pings while data flows measures the way.
        self._has_traffic = False
        # Largest number of a stream that is served after `go_away`.
        self._last_id = self._h2.HIGHEST_ALLOWED_STREAM_ID

    def tick(self, now_s: float) -> None:
        """Take note of the time, in seconds of a clock that never goes back. It limits the rate of useless frames."""
        self._patience.tick(now_s)

    def respond(self, stream_id: int, headers: bytes) -> None:
        """Send the headers of a response, a block. A closed stream ignores them."""
        if stream_id in self._streams:
            self._h2.send_block(stream_id, headers)

    def end(self, stream_id: int, trailers: bytes) -> None:
        """End a stream with trailers, a block, behind the data that waits. A closed stream ignores them.

        If `respond` was not called, they are the headers of the response as well, and begin with its status.
        """
        stream = self._streams.get(stream_id)
        if stream is not None:
            assert not stream.is_ending, "this side of the stream has ended"
            stream.trailers = trailers
            stream.is_ending = True
            self._make_ready(stream_id, stream)

    def go_away(self) -> None:
        """Tell the client that no further stream will be served. The open ones continue, others are refused."""
        if not self._is_broken:
            self._last_id = self._h2.highest_inbound_stream_id
            payload = _FAREWELL.pack(self._last_id, ErrorCodes.NO_ERROR)
            self._h2.output.append(_HEAD.pack(len(payload) << 8 | _GOAWAY, 0, 0) + payload)

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """See `_Http2Connection.receive`."""
        missing = len(PREFACE) - len(self._preface)
        if missing:
            self._preface += bytes(data[:missing])
            if not PREFACE.startswith(self._preface):
                raise self._fault(ErrorCodes.PROTOCOL_ERROR, "no HTTP/2")
            if len(self._preface) < len(PREFACE):
                return []
            self._h2.receive_data(PREFACE)
            data = data[missing:]
        return super().receive(data)

    def _is_idle(self, stream_id: int) -> bool:
        return not stream_id & 1 or stream_id > self._h2.highest_inbound_stream_id

    def _begin_frame(self, events: list[Event]) -> None:
        _, flags, _ = _HEAD.unpack(self._frames.head)
        size, kind = int.from_bytes(self._frames.head[:3], "big"), self._frames.head[3]
        cost = 0
        if (kind == _DATA and size) or kind == _HEADERS:
            self._has_traffic = True
        elif kind == _PING:
            cost = 0 if self._has_traffic or flags & _ACK else 1
            self._has_traffic = False
        elif kind == _DATA:
            cost = 0 if flags & _END_STREAM else 1
        elif kind == _RST_STREAM:
            cost = _RESET_COST
        elif kind != _WINDOW_UPDATE:
            cost = 1
        self._spend(cost)
        super()._begin_frame(events)

    def _note_frame(self, size: int) -> None:
        # The window that made it so short came from the client, so the fault is raised when the client says something again.
        if size < SHORT_FRAME_BYTES:
            self._patience.is_over(1)

    def _note_stream_fault(self) -> None:
        self._spend(_RESET_COST)

    def _spend(self, cost: int) -> None:
        if self._patience.is_over(cost):
            raise self._fault(ErrorCodes.ENHANCE_YOUR_CALM, "too many frames without use")

    def _begin_message(self, stream_id: int) -> bool:
        is_too_many = len(self._streams) >= self._max_streams
        if is_too_many:
            self._note_stream_fault()
        if is_too_many or stream_id > self._last_id:
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return False
        stream = _Stream(self._h2.remote_settings.initial_window_size, DEFAULT_WINDOW_BYTES)
        stream.has_headers = True
        self._streams[stream_id] = stream
        return True

    def _end_own_side(self, stream_id: int, stream: _Stream) -> None:
        super()._end_own_side(stream_id, stream)
        if not stream.has_peer_ended:
            # The response is complete, so the server asks the client to send no more (RFC 9113 section 8.1).
            self.reset(stream_id, ErrorCodes.NO_ERROR)

    def _on_peer_end(self, stream_id: int) -> None:
        """The response may go on."""


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

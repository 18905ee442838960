# SPDX-License-Identifier: Apache-2.0
"""The client side of HTTP/2 respects the windows of both sides, and a peer cannot make it hold much."""

from __future__ import annotations

import random
import struct
from contextlib import suppress

import pytest
from h2 import events as h2_events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st
from lograft._grpc import http2
from lograft._grpc.http2 import (
    SEND_FRAME_BYTES,
    ClientConnection,
    ConnectionFaultError,
    DataCame,
    GoingAway,
    HeadersCame,
    StreamReset,
    header_block,
)
from lograft.wire.keepalive import MAX_FRAME_BYTES
from tests.grpc_python.http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    encode_headers,
    frame,
)

WINDOW = 1 << 20
LATIN_1 = st.characters(max_codepoint=255)
CALL = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b"), (":authority", "localhost"), ("te", "trailers")]
START = [(":status", "200"), ("content-type", "application/grpc")]


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found: list[tuple[int, int, int, bytes]] = []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def settings(**values: int) -> bytes:
    names = {"table": 1, "streams": 3, "window": 4, "frame": 5}
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", names[name], value) for name, value in values.items()))


def update(stream_id: int, growth: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, growth.to_bytes(4, "big"))


def answer(stream_id: int) -> bytes:
    return frame(HEADERS, END_HEADERS, stream_id, encode_headers(START))


def end(stream_id: int) -> bytes:
    return frame(HEADERS, END_HEADERS | END_STREAM, stream_id, encode_headers([("grpc-status", "0")]))


def taken(connection: ClientConnection, limit_bytes: int) -> tuple[bytes, list[int]]:
    """Return what the connection sends now, in one piece, and the streams that have no more data waiting."""
    pieces, drained = connection.take_output(limit_bytes)
    return b"".join(pieces), drained


def connected(**values: int) -> ClientConnection:
    connection = ClientConnection(WINDOW)
    taken(connection, 1)
    connection.receive(settings(**values))
    taken(connection, 1)
    return connection


def sent(connection: ClientConnection, stream_id: int) -> int:
    """Return the bytes of a stream's data that are sent now."""
    data, _ = taken(connection, 1 << 30)
    return sum(len(each[3]) for each in frames(data) if each[0] == DATA and each[2] == stream_id)


def test_greeting_is_preface_settings_and_a_wide_window() -> None:
    """The greeting is sent before anything comes from the server."""
    data, drained = taken(ClientConnection(WINDOW), 1)
    assert data.startswith(PREFACE)
    assert not drained
    assert [each[0] for each in frames(data[len(PREFACE) :])] == [SETTINGS, WINDOW_UPDATE]


def test_data_waits_for_the_windows_of_stream_and_connection() -> None:
    """Sending continues when the windows open. The user learns when all data has been passed on."""
    connection = connected(window=100)
    first, second = connection.open(header_block(CALL)), connection.open(header_block(CALL))
    connection.send(first, (b"a" * 150,))
    connection.send(second, (b"b" * 100_000,), is_end=True)
    assert sent(connection, first) == 100
    connection.receive(update(first, 50))
    data, drained = taken(connection, 1 << 30)
    assert drained == [first]
    connection.receive(update(second, 200_000))
    assert sent(connection, second) == 65_535 - 150 - 100
    assert not connection.has_output()
    connection.receive(update(0, 100_000))
    data, drained = taken(connection, 1 << 30)
    assert drained == [second]
    assert [each[1] for each in frames(data) if each[0] == DATA][-1] == END_STREAM


def test_settings_change_the_windows_of_open_streams() -> None:
    """A window may also become negative, when the server changes its settings."""
    connection = connected(window=100)
    stream = connection.open(header_block(CALL))
    connection.send(stream, (b"a" * 300,))
    assert sent(connection, stream) == 100
    connection.receive(settings(window=50))
    connection.receive(update(stream, 50))
    assert sent(connection, stream) == 0
    connection.receive(settings(window=200))
    assert sent(connection, stream) == 150


def test_streams_take_turns() -> None:
    """Each stream sends one frame in turn, regardless of the queue lengths."""
    connection = connected()
    streams = [connection.open(header_block(CALL)) for _ in range(3)]
    for stream in streams:
        connection.send(stream, (b"x" * 20_000,))
    data, _ = taken(connection, 1 << 30)
    assert [each[2] for each in frames(data) if each[0] == DATA] == [1, 3, 5] * 2


@pytest.mark.parametrize(("accepted", "largest"), [(None, 16_384), (20_000, 20_000), (1 << 24, SEND_FRAME_BYTES)])
def test_frames_are_as_large_as_the_server_takes(accepted: int | None, largest: int) -> None:
    """Up to a limit of our own, so that streams take turns. Without a word of the server it is HTTP/2's default."""
    values = {} if accepted is None else {"frame": min(accepted, (1 << 24) - 1)}
    connection = connected(window=1 << 30, **values)
    connection.receive(update(0, 1 << 24))
    stream = connection.open(header_block(CALL))
    content = random.Random(1).randbytes(600_000)
    connection.send(stream, (content[:5], content[5:]), is_end=True)
    data, drained = taken(connection, 1 << 30)
    found = [each for each in frames(data) if each[0] == DATA]
    assert drained == [stream]
    assert max(len(each[3]) for each in found) == largest
    assert b"".join(each[3] for each in found) == content
    assert [each[1] for each in found] == [0] * (len(found) - 1) + [END_STREAM]


def test_large_frame_is_read_in_pieces_and_never_formatted(monkeypatch: pytest.MonkeyPatch) -> None:
    """`h2` logs each frame with its bytes in hex, which takes longer than to read them. Padding is not part of the data."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    connection.receive(answer(stream))

    def refuse(*_: object) -> bytes:
        raise AssertionError("a frame was formatted")

    monkeypatch.setattr("hyperframe.frame.binascii.hexlify", refuse)
    content = random.Random(1).randbytes(MAX_FRAME_BYTES - 4)
    whole = frame(DATA, PADDED, stream, b"\x03" + content + bytes(3))
    events = [event for at in range(0, len(whole), 100_000) for event in connection.receive(whole[at : at + 100_000])]
    assert events == [DataCame(stream, content, False)]
    monkeypatch.undo()
    with pytest.raises(ConnectionFaultError):
        connection.receive(frame(DATA, 0, stream, bytes(MAX_FRAME_BYTES + 1))[:9])


def test_long_data_may_be_read_to_its_place() -> None:
    """The core says how many bytes of which stream come next as they are. Ends, padding and other frames go the usual way."""
    connection = connected()
    stream, other = connection.open(header_block(CALL)), connection.open(header_block(CALL))
    assert connection.coming_data() is None
    connection.receive(answer(stream) + frame(DATA, 0, stream, bytes(1_000))[:109])
    assert connection.coming_data() == (stream, 900)
    connection.data_came(400)
    assert connection.coming_data() == (stream, 500)
    assert connection.receive(bytes(500)) == [DataCame(stream, memoryview(bytes(500)), False)]
    assert connection.coming_data() is None
    connection.receive(frame(DATA, END_STREAM, stream, bytes(10))[:12])
    assert connection.coming_data() == (stream, 6)
    connection.data_came(6)
    assert connection.coming_data() is None
    assert connection.receive(b"x") == [DataCame(stream, memoryview(b"x"), True)]
    connection.receive(answer(other) + frame(DATA, PADDED, other, b"\x01abc\0")[:-2])
    assert connection.coming_data() is None
    assert connection.receive(b"c\0" + frame(PING, 0, 0, b"12345678")[:-1]) == [
        DataCame(other, memoryview(b"abc"), False)
    ]
    assert connection.coming_data() is None
    connection.receive(b"8" + frame(DATA, 0, other, bytes(10))[:12])
    connection.reset(other, ErrorCodes.CANCEL)
    assert connection.coming_data() is None
    assert connection.receive(bytes(7)) == []


def test_bytes_read_to_their_place_count_in_the_windows() -> None:
    """They are granted again, and more than was granted is refused."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    connection.receive(answer(stream))
    taken(connection, 1)
    head = frame(DATA, 0, stream, bytes(WINDOW))[:9]
    connection.receive(head)
    connection.data_came(WINDOW)
    connection.grant(stream, 0)
    assert frames(taken(connection, 1)[0]) == [(WINDOW_UPDATE, 0, stream, WINDOW.to_bytes(4, "big"))]
    connection.receive(head)
    connection.data_came(WINDOW)
    with pytest.raises(ConnectionFaultError):
        connection.receive(frame(DATA, 0, stream, b"x"))


def test_length_that_the_server_states_is_not_compared_with_its_data() -> None:
    """The page of a proxy has one. Its end is the end of the stream alone."""
    connection = connected()
    page, call = connection.open(header_block(CALL)), connection.open(header_block(CALL))
    block = encode_headers([(":status", "502"), ("content-length", "5")])
    data = frame(HEADERS, END_HEADERS, page, block) + frame(DATA, END_STREAM, page, b"pages")
    assert connection.receive(data)[1:] == [DataCame(page, memoryview(b"pages"), True)]
    assert connection.receive(answer(call)) == [HeadersCame(call, START, False)]


def test_window_of_a_stream_that_grows_by_nothing_costs_the_stream() -> None:
    """Of the connection it costs the connection (RFC 9113 section 6.9)."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    assert connection.receive(update(stream, 0)) == [StreamReset(stream, ErrorCodes.PROTOCOL_ERROR, False)]
    assert connection.receive(update(stream, 1)) == []


def test_server_may_send_as_much_as_the_reader_takes() -> None:
    """The server sends at most one window ahead. Consumed bytes are granted again."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    connection.receive(answer(stream))
    taken(connection, 1)
    piece = frame(DATA, 0, stream, bytes(16_384))
    for _ in range(WINDOW // 16_384):
        connection.receive(piece)
    connection.grant(stream, WINDOW)
    assert not connection.has_output()
    connection.grant(stream, 0)
    assert frames(taken(connection, 1)[0]) == [(WINDOW_UPDATE, 0, stream, WINDOW.to_bytes(4, "big"))]
    for _ in range(WINDOW // 16_384):
        connection.receive(piece)
    with pytest.raises(ConnectionFaultError):
        connection.receive(piece)


def test_connection_takes_more_than_its_window() -> None:
    """The connection window is reopened half-way, also by data of an abandoned stream."""
    connection = connected()
    stream, other = connection.open(header_block(CALL)), connection.open(header_block(CALL))
    connection.receive(answer(stream) + answer(other))
    connection.reset(other, ErrorCodes.CANCEL)
    taken(connection, 1)
    pieces = [frame(DATA, 0, each, bytes(16_384)) * 32 for each in (stream, other)]
    opened_bytes = 0
    for number in range(http2.CONNECTION_WINDOW_BYTES // 2 // len(pieces[0]) + 2):
        connection.receive(pieces[number % 2])
        connection.grant(stream, 0)
        opened = [each for each in frames(taken(connection, 1)[0]) if each[0] == WINDOW_UPDATE and each[2] == 0]
        opened_bytes += sum(int.from_bytes(each[3], "big") for each in opened)
    assert opened_bytes > http2.CONNECTION_WINDOW_BYTES // 2


def test_bytes_may_come_one_by_one() -> None:
    """Headers in pieces, data with padding, and the end are read."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    block = encode_headers(START)
    data = frame(HEADERS, 0, stream, block[:5]) + frame(CONTINUATION, END_HEADERS, stream, block[5:])
    data += frame(DATA, PADDED, stream, b"\x03abc\0\0\0") + frame(99, 255, stream, b"new")
    data += frame(HEADERS, END_HEADERS | END_STREAM, stream, encode_headers([("grpc-status", "0")]))
    events = [event for number in range(len(data)) for event in connection.receive(data[number : number + 1])]
    assert events == [
        HeadersCame(stream, START, False),
        DataCame(stream, b"abc", False),
        HeadersCame(stream, [("grpc-status", "0")], True),
    ]
    assert [each[0] for each in frames(taken(connection, 1)[0])] == [HEADERS, RST_STREAM]


def test_server_that_leaves_says_which_calls_it_has_not_seen() -> None:
    """The user may repeat those calls elsewhere. The other calls continue."""
    connection = connected()
    first, second = connection.open(header_block(CALL)), connection.open(header_block(CALL))
    connection.receive(answer(first))
    farewell = frame(GOAWAY, 0, 0, struct.pack(">II", first, 0) + b"bye")
    assert connection.receive(farewell) == [GoingAway(0, "bye"), StreamReset(second, 0, True)]
    assert connection.is_spent()
    assert connection.receive(frame(DATA, 0, first, b"x")) == [DataCame(first, b"x", False)]


def test_no_more_streams_than_the_server_takes() -> None:
    """A stream that ends makes room for another."""
    connection = connected(streams=1)
    stream = connection.open(header_block(CALL))
    assert not connection.can_open()
    assert connection.receive(frame(RST_STREAM, 0, stream, struct.pack(">I", 7))) == [StreamReset(stream, 7, True)]
    assert connection.can_open()


def test_what_comes_for_a_stream_that_was_given_up_is_passed_over() -> None:
    """Its headers are still decoded, because later headers may refer to them."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    connection.reset(stream, ErrorCodes.CANCEL)
    data = frame(HEADERS, END_HEADERS, stream, b"\x88\x40\x01a\x01b") + frame(DATA, 0, stream, b"x")
    assert connection.receive(data) == []
    other = connection.open(header_block(CALL))
    events = connection.receive(frame(HEADERS, END_HEADERS, other, b"\x88\xbe"))
    assert events == [HeadersCame(other, [(":status", "200"), ("a", "b")], False)]


def test_farewell_takes_nothing_from_what_goes_on() -> None:
    """Data written before GOAWAY is sent. Data that follows it in the same bytes is read and answered."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    farewell = frame(GOAWAY, 0, 0, struct.pack(">II", (1 << 31) - 1, 0))
    events = connection.receive(farewell + frame(PING, 0, 0, b"12345678") + answer(stream))
    assert events == [GoingAway(0, ""), HeadersCame(stream, START, False)]
    connection.send(stream, (b"x",), is_end=True)
    assert [each[0] for each in frames(taken(connection, 1)[0])] == [HEADERS, PING, DATA]
    assert connection.receive(end(stream)) == [HeadersCame(stream, [("grpc-status", "0")], True)]


def test_server_may_end_a_stream_twice() -> None:
    """Servers of gRPC send trailers and a reset together when the client has not ended its side."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    events = connection.receive(answer(stream) + end(stream) + frame(RST_STREAM, 0, stream, bytes(4)))
    assert [each for each in events if isinstance(each, HeadersCame)][-1].is_end
    assert not any(isinstance(each, StreamReset) for each in events)
    assert connection.receive(frame(DATA, 0, stream, b"x")) == []


def test_window_that_grows_too_far_costs_the_stream() -> None:
    """The other streams continue."""
    connection = connected()
    first, second = connection.open(header_block(CALL)), connection.open(header_block(CALL))
    assert connection.receive(update(first, (1 << 31) - 1)) == [
        StreamReset(first, ErrorCodes.FLOW_CONTROL_ERROR, False)
    ]
    assert connection.receive(answer(second)) == [HeadersCame(second, START, False)]


def test_server_chooses_no_memory_of_headers() -> None:
    """Each call begins with the same bytes, for any table size that the server offers: nothing enters the table."""
    connection = connected(table=1 << 30)
    blocks = set[bytes]()
    connection.open(header_block(CALL))
    taken(connection, 1)
    for _ in range(3):
        connection.open(header_block([*CALL, ("grpc-timeout", "5m")]))
        blocks.update(each[3] for each in frames(taken(connection, 1)[0]))
    assert len(blocks) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(DATA, PADDED, 1, b"\x05abc"),
        frame(PING, 0, 0, b"short"),
        frame(RST_STREAM, 0, 1, b"abc"),
        frame(SETTINGS, 0, 0, b"abc"),
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)),
        frame(GOAWAY, 0, 0, b"abc"),
        frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2\x88"),
        frame(PUSH_PROMISE, 0, 1, b"\0\0\0\2" + b"\0" * 16_000) + frame(CONTINUATION, 0, 1, b"\0" * 16_384) * 4,
        frame(DATA, PADDED, 1, b""),
        frame(DATA, 0, 1, b"before headers"),
        frame(DATA, 0, 0, b""),
        frame(DATA, 0, 2, b""),
        frame(DATA, 0, 3, b"never opened"),
        b"\xff" * 9,
        frame(HEADERS, END_HEADERS, 1, b"\x88\x40\x01a\x7f\xa1\x1e" + b"b" * 4_000 + b"\xbe" * 20),
        frame(CONTINUATION, 0, 1, b""),
        frame(HEADERS, 0, 1, b"") + frame(DATA, 0, 1, b""),
        frame(HEADERS, 0, 1, b"") + update(1, 1),
        answer(1) + frame(HEADERS, END_STREAM, 1, b"") + frame(DATA, 0, 1, b""),
        frame(WINDOW_UPDATE, 0, 1, b"abc"),
        update(3, 1),
        update(1, (1 << 31) - 1 - 65_535) + settings(window=65_536),
        frame(HEADERS, END_HEADERS, 1, b"\x80"),
        update(0, 0),
        update(0, (1 << 31) - 1),
        frame(HEADERS, 0, 1, b"\0" * 16_000) + frame(CONTINUATION, 0, 1, b"\0" * 16_384) * 4,
        frame(PING, 0, 0, b"12345678") * 70_000,
    ],
)
def test_broken_protocol_ends_the_connection_with_a_word(data: bytes) -> None:
    """For every kind of violation, little is held, and the server learns the reason."""
    connection = connected()
    stream = connection.open(header_block(CALL))
    connection.send(stream, (b"x" * 100_000,))
    with pytest.raises(ConnectionFaultError):
        connection.receive(data)
    assert frames(taken(connection, 1)[0])[-1][0] == GOAWAY
    connection.send(stream, (b"x",))
    connection.grant(stream, 0)
    connection.reset(stream, ErrorCodes.CANCEL)
    connection.ping()
    assert connection.is_spent()
    assert not connection.has_output()


PLAIN_FRAMES = st.one_of(
    st.builds(lambda stream: answer(stream), st.sampled_from((1, 3))),
    st.builds(lambda stream: end(stream), st.sampled_from((1, 3))),
    st.builds(
        frame,
        st.just(DATA),
        st.sampled_from((0, END_STREAM, PADDED)),
        st.sampled_from((1, 3, 5)),
        st.binary(max_size=9),
    ),
    st.builds(update, st.sampled_from((0, 1, 3, 5)), st.integers(1, 3)),
    st.just(frame(PING, 0, 0, b"12345678")),
)


@given(st.lists(PLAIN_FRAMES, max_size=12))
def test_data_means_what_it_means_to_h2(pieces: list[bytes]) -> None:
    """`h2` alone finds the same bytes in each stream, the same ends, and the same first violation of the connection."""
    connection, reference = connected(), H2Connection(H2Configuration(client_side=True, header_encoding="latin-1"))
    reference.initiate_connection()
    reference.receive_data(settings())
    for number in (1, 3):
        connection.open(header_block(CALL))
        reference.send_headers(number, CALL)
    found, expected = dict[int, bytes](), dict[int, bytes]()
    ends, expected_ends = set[int](), set[int]()
    for piece in pieces:
        try:
            theirs = reference.receive_data(piece)
        except ProtocolError:
            with pytest.raises(ConnectionFaultError):
                connection.receive(piece)
            break
        for event in theirs:
            if isinstance(event, h2_events.DataReceived):
                expected[event.stream_id] = expected.get(event.stream_id, b"") + (event.data or b"")
            elif isinstance(event, h2_events.StreamEnded):
                expected_ends.add(event.stream_id)
        for each in connection.receive(piece):
            if isinstance(each, DataCame):
                found[each.stream_id] = found.get(each.stream_id, b"") + each.data
            if isinstance(each, DataCame | HeadersCame) and each.is_end:
                ends.add(each.stream_id)
    assert ({key: value for key, value in found.items() if value}, ends) == (
        {key: value for key, value in expected.items() if value},
        expected_ends,
    )


BLOCKS = st.sampled_from(
    [encode_headers(START), encode_headers([("grpc-status", "0")]), b"\x88\x40\x01a\x01b", b"\x88\xbe"]
)
FRAMES = st.builds(frame, st.integers(0, 11), st.integers(0, 63), st.integers(0, 5), BLOCKS | st.binary(max_size=12))


@given(st.lists(FRAMES, max_size=8))
def test_whatever_comes_is_taken_or_refused(pieces: list[bytes]) -> None:
    """No other error leaves the core, and calls of the user during and after it raise none."""
    connection = connected()
    streams = [connection.open(header_block(CALL)), connection.open(header_block(CALL))]
    connection.send(streams[0], (b"x" * 100_000,), is_end=True)
    with suppress(ConnectionFaultError):
        for piece in pieces:
            connection.receive(piece)
            taken(connection, 10_000)
            connection.grant(streams[0], 0)
    for stream in streams:
        connection.grant(stream, WINDOW)
        connection.reset(stream, ErrorCodes.CANCEL)
    connection.ping()
    taken(connection, 1 << 30)


@given(
    st.lists(
        st.tuples(st.text(LATIN_1, min_size=1, max_size=300), st.text(LATIN_1, max_size=40_000)),
        max_size=4,
    )
)
def test_block_of_headers_is_read_as_it_was_written(headers: list[tuple[str, str]]) -> None:
    """Lengths of one, two and three bytes, and any characters of Latin-1. The block uses no table."""
    decoder = Decoder()
    decoder.max_header_list_size = 1 << 30
    found = decoder.decode(header_block(headers), raw=True)
    assert [(str(name, "latin-1"), str(value, "latin-1")) for name, value in found] == headers
    assert not decoder.header_table.dynamic_entries


def test_first_block_empties_the_table_however_small_the_peer_wants_it() -> None:
    """A peer that lowers its table must be told a size before the next headers (RFC 7541 section 4.2); later blocks say nothing."""
    connection = connected(table=0)
    connection.open(header_block(CALL))
    connection.open(header_block(CALL))
    blocks = [payload for kind, _, _, payload in frames(taken(connection, 1)[0]) if kind == HEADERS]
    assert blocks == [b"\x20" + header_block(CALL), header_block(CALL)]

# SPDX-License-Identifier: Apache-2.0
"""The client's side of HTTP/2 keeps to the windows of both sides, and a peer cannot make it hold much."""

from __future__ import annotations

import struct

import pytest
from lograft._core import http2
from lograft._core.hpack import encode_headers
from lograft._core.http2 import ConnectionFaultError, DataCame, GoingAway, HeadersCame, Http2Connection, StreamReset

WINDOW = 1 << 20
START = [(":status", "200"), ("content-type", "application/grpc")]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found: list[tuple[int, int, int, bytes]] = []
    while data:
        size = int.from_bytes(data[:3], "big")
        found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def settings(**values: int) -> bytes:
    names = {"streams": 3, "window": 4}
    return frame(
        http2.SETTINGS, 0, 0, b"".join(struct.pack(">HI", names[name], value) for name, value in values.items())
    )


def update(stream_id: int, growth: int) -> bytes:
    return frame(http2.WINDOW_UPDATE, 0, stream_id, growth.to_bytes(4, "big"))


def connected(**values: int) -> Http2Connection:
    connection = Http2Connection(WINDOW)
    connection.take_output(1)
    connection.receive(settings(**values))
    connection.take_output(1)
    return connection


def sent(connection: Http2Connection, stream_id: int) -> int:
    """Bytes of data of a stream that go now."""
    data, _ = connection.take_output(1 << 30)
    return sum(len(each[3]) for each in frames(data) if each[0] == http2.DATA and each[2] == stream_id)


def test_greeting_is_preface_settings_and_a_wide_window() -> None:
    """Before anything came from the server."""
    data, drained = Http2Connection(WINDOW).take_output(1)
    assert data.startswith(http2.PREFACE)
    assert not drained
    assert [each[0] for each in frames(data[len(http2.PREFACE) :])] == [http2.SETTINGS, http2.WINDOW_UPDATE]


def test_data_waits_for_the_windows_of_stream_and_connection() -> None:
    """And goes on when they are opened; the user hears when all of it is on its way."""
    connection = connected(window=100)
    first, second = connection.open(START), connection.open(START)
    connection.send(first, (b"a" * 150,))
    connection.send(second, (b"b" * 100_000,), is_end=True)
    assert sent(connection, first) == 100
    connection.receive(update(first, 50))
    data, drained = connection.take_output(1 << 30)
    assert (drained, connection.pending_bytes(first), connection.pending_bytes(second)) == ([first], 0, 99_900)
    connection.receive(update(second, 200_000))
    assert sent(connection, second) == 65_535 - 150 - 100
    assert not connection.has_output()
    connection.receive(update(0, 100_000))
    data, drained = connection.take_output(1 << 30)
    assert drained == [second]
    assert [each[1] for each in frames(data) if each[0] == http2.DATA][-1] == http2.END_STREAM


def test_settings_change_the_windows_of_open_streams() -> None:
    """Below zero too, as after a server's change of mind."""
    connection = connected(window=100)
    stream = connection.open(START)
    connection.send(stream, (b"a" * 300,))
    assert sent(connection, stream) == 100
    connection.receive(settings(window=50))
    connection.receive(update(stream, 50))
    assert sent(connection, stream) == 0
    connection.receive(settings(window=200))
    assert sent(connection, stream) == 150


def test_streams_take_turns() -> None:
    """One frame each, however much waits."""
    connection = connected()
    streams = [connection.open(START) for _ in range(3)]
    for stream in streams:
        connection.send(stream, (b"x" * 20_000,))
    data, _ = connection.take_output(1 << 30)
    assert [each[2] for each in frames(data) if each[0] == http2.DATA] == [1, 3, 5] * 2


def test_server_may_send_as_much_as_the_reader_takes() -> None:
    """No more than the window comes ahead; what was taken is granted again."""
    connection = connected()
    stream = connection.open(START)
    connection.take_output(1)
    piece = frame(http2.DATA, 0, stream, bytes(16_384))
    for _ in range(WINDOW // 16_384):
        connection.receive(piece)
    connection.grant(stream, WINDOW)
    assert not connection.has_output()
    connection.grant(stream, 0)
    assert frames(connection.take_output(1)[0]) == [(http2.WINDOW_UPDATE, 0, stream, WINDOW.to_bytes(4, "big"))]
    for _ in range(WINDOW // 16_384):
        connection.receive(piece)
    with pytest.raises(ConnectionFaultError):
        connection.receive(piece)


def test_bytes_may_come_one_by_one() -> None:
    """Headers in pieces, data with padding, and the end."""
    connection = connected()
    stream = connection.open(START)
    block = encode_headers(START)
    data = frame(http2.HEADERS, 0, stream, block[:5]) + frame(http2.CONTINUATION, http2.END_HEADERS, stream, block[5:])
    data += frame(http2.DATA, http2.PADDED, stream, b"\x03abc\0\0\0") + frame(99, 255, stream, b"new")
    data += frame(http2.HEADERS, http2.END_HEADERS | http2.END_STREAM, stream, encode_headers([("grpc-status", "0")]))
    events = [event for number in range(len(data)) for event in connection.receive(data[number : number + 1])]
    assert events == [
        HeadersCame(stream, START, False),
        DataCame(stream, memoryview(b"abc"), False),
        HeadersCame(stream, [("grpc-status", "0")], True),
    ]
    assert [each[0] for each in frames(connection.take_output(1)[0])] == [http2.HEADERS, http2.RST_STREAM]


def test_server_that_leaves_says_which_calls_it_has_not_seen() -> None:
    """Those may be made again elsewhere; the others go on."""
    connection = connected()
    first, second = connection.open(START), connection.open(START)
    farewell = frame(http2.GOAWAY, 0, 0, struct.pack(">II", first, 0) + b"bye")
    assert connection.receive(farewell) == [GoingAway(0, "bye"), StreamReset(second, 0, True)]
    assert connection.is_spent()
    assert connection.receive(frame(http2.DATA, 0, first, b"x")) == [DataCame(first, memoryview(b"x"), False)]


def test_no_more_streams_than_the_server_takes() -> None:
    """One that ends makes room."""
    connection = connected(streams=1)
    stream = connection.open(START)
    assert not connection.can_open()
    assert connection.receive(frame(http2.RST_STREAM, 0, stream, struct.pack(">I", 7))) == [
        StreamReset(stream, 7, True)
    ]
    assert connection.can_open()


def test_what_comes_for_a_stream_that_was_given_up_is_passed_over() -> None:
    """Its headers are read all the same: others may refer to them."""
    connection = connected()
    stream = connection.open(START)
    connection.reset(stream, http2.CANCEL)
    data = frame(http2.HEADERS, http2.END_HEADERS, stream, b"\x40\x01a\x01b") + frame(http2.DATA, 0, stream, b"x")
    assert connection.receive(data) == []
    other = connection.open(START)
    events = connection.receive(frame(http2.HEADERS, http2.END_HEADERS, other, b"\xbe"))
    assert events == [HeadersCame(other, [("a", "b")], False)]


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(http2.DATA, http2.PADDED, 1, b"\x05abc"),
        frame(http2.PING, 0, 0, b"short"),
        frame(http2.RST_STREAM, 0, 1, b"abc"),
        frame(http2.SETTINGS, 0, 0, b"abc"),
        frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)),
        frame(http2.GOAWAY, 0, 0, b"abc"),
        frame(http2.PUSH_PROMISE, 0, 1, b"abcd"),
        frame(http2.CONTINUATION, 0, 1, b""),
        frame(http2.HEADERS, 0, 1, b"") + frame(http2.DATA, 0, 1, b""),
        frame(http2.HEADERS, http2.END_HEADERS, 1, b"\x80"),
        update(0, 0),
        update(0, (1 << 31) - 1),
        update(1, (1 << 31) - 1),
        frame(http2.HEADERS, 0, 1, b"\0" * 16_000) + frame(http2.CONTINUATION, 0, 1, b"\0" * 16_384) * 4,
        frame(http2.PING, 0, 0, b"12345678") * 70_000,
    ],
)
def test_broken_protocol_ends_the_connection_with_a_word(data: bytes) -> None:
    """Of whatever kind: nothing is held for long, and the server hears why."""
    connection = connected()
    connection.open(START)
    with pytest.raises(ConnectionFaultError):
        connection.receive(data)
    assert frames(connection.take_output(1)[0])[-1][0] == http2.GOAWAY

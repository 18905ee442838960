# SPDX-License-Identifier: Apache-2.0
"""The server's side of HTTP/2: requests and responses, ends in every order, and clients that want to wear it out."""

from __future__ import annotations

from contextlib import suppress

import pytest
from h2.errors import ErrorCodes
from hypothesis import given
from hypothesis import strategies as st
from lograft._grpc import http2
from lograft._grpc.http2 import (
    PATIENCE,
    PATIENCE_PER_S,
    ClientConnection,
    ConnectionFaultError,
    DataCame,
    Event,
    GoingAway,
    HeadersCame,
    ServerConnection,
    SettingsCame,
    StreamReset,
    header_block,
)
from tests.grpc_python.http2_frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    encode_headers,
    frame,
)

WINDOW = 1 << 20
STREAMS = 3
CALL = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b"), (":authority", "localhost"), ("te", "trailers")]
START = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0"), ("tail", "1")]
ACK = 1


class Pair:
    """A client and a server that are connected."""

    def __init__(self) -> None:
        self.client = ClientConnection(WINDOW)
        self.server = ServerConnection(WINDOW, STREAMS)
        self.server.tick(0)
        self.exchange()

    def exchange(self) -> tuple[list[Event], list[Event]]:
        """Carry bytes until nothing is left to say. Return what came to the client and to the server."""
        to_client, to_server = list[Event](), list[Event]()
        while True:
            up, _ = self.client.take_output(1 << 30)
            down, _ = self.server.take_output(1 << 30)
            if not up and not down:
                return to_client, to_server
            to_server += map(_kept, self.server.receive(b"".join(up)))
            to_client += map(_kept, self.client.receive(b"".join(down)))


def _kept(event: Event) -> Event:
    return event._replace(data=memoryview(bytes(event.data))) if isinstance(event, DataCame) else event


def raw() -> ServerConnection:
    """Return a server whose client has greeted it."""
    server = ServerConnection(WINDOW, STREAMS)
    server.tick(0)
    assert server.receive(PREFACE + frame(SETTINGS, 0, 0)) == [SettingsCame()]
    server.take_output(1)
    return server


def call(stream_id: int, flags: int = END_STREAM) -> bytes:
    return frame(HEADERS, flags | END_HEADERS, stream_id, encode_headers(CALL))


def test_call_goes_both_ways() -> None:
    """Request with data, response with data and trailers; then both sides have forgotten the stream."""
    pair = Pair()
    stream = pair.client.open(header_block(CALL))
    pair.client.send(stream, (b"question",), is_end=True)
    assert pair.exchange() == (
        [],
        [HeadersCame(stream, CALL, is_end=False), DataCame(stream, memoryview(b"question"), is_end=True)],
    )
    pair.server.respond(stream, header_block(START))
    pair.server.send(stream, (b"answer",))
    pair.server.end(stream, header_block(TRAILERS))
    assert pair.exchange() == (
        [
            HeadersCame(stream, START, is_end=False),
            DataCame(stream, memoryview(b"answer"), is_end=False),
            HeadersCame(stream, TRAILERS, is_end=True),
        ],
        [],
    )
    pair.server.respond(stream, header_block(START))
    pair.server.end(stream, header_block(TRAILERS))
    pair.server.reset(stream, ErrorCodes.CANCEL)
    assert not pair.server.has_output()


def test_answer_may_be_headers_alone() -> None:
    """A refusal is one block of headers, which ends the stream."""
    pair = Pair()
    stream = pair.client.open(header_block(CALL))
    pair.client.send(stream, (), is_end=True)
    pair.exchange()
    pair.server.end(stream, header_block([*START, *TRAILERS]))
    assert pair.exchange()[0] == [HeadersCame(stream, [*START, *TRAILERS], is_end=True)]


def test_trailers_wait_behind_data() -> None:
    """They come when the client's window has let the data through, and take no room themselves."""
    server = raw()
    server.receive(call(1))
    server.respond(1, header_block(START))
    server.send(1, (b"x" * 70_000,))
    server.end(1, header_block(TRAILERS))
    output, drained = server.take_output(1 << 30)
    assert (_kinds(output), drained) == ([HEADERS, *[DATA] * 4], [])
    server.receive(frame(WINDOW_UPDATE, 0, 0, (100_000).to_bytes(4, "big")))
    assert not server.take_output(1 << 30)[0]
    server.receive(frame(WINDOW_UPDATE, 0, 1, (4_465).to_bytes(4, "big")))
    output, drained = server.take_output(1 << 30)
    assert (_kinds(output), drained) == ([DATA, HEADERS], [1])


def test_early_response_ends_the_request() -> None:
    """The server resets the stream (RFC 9113 section 8.1) and drops what the client has sent since."""
    pair = Pair()
    stream = pair.client.open(header_block(CALL))
    pair.client.send(stream, (b"a",))
    pair.exchange()
    pair.server.end(stream, header_block([*START, *TRAILERS]))
    output, _ = pair.server.take_output(1 << 30)
    assert _kinds(output) == [HEADERS, RST_STREAM]
    pair.client.send(stream, (b"b",), is_end=True)
    up, _ = pair.client.take_output(1 << 30)
    assert pair.server.receive(b"".join(up)) == []
    assert pair.client.receive(b"".join(output)) == [HeadersCame(stream, [*START, *TRAILERS], is_end=True)]


def test_window_opens_only_for_readers() -> None:
    """The client may send 64 KiB before a handler reads. Then it may send a whole window."""
    pair = Pair()
    stream = pair.client.open(header_block(CALL))
    pair.client.send(stream, (b"x" * (4 * WINDOW),))
    assert _data_bytes(pair.exchange()[1]) == http2.DEFAULT_WINDOW_BYTES
    pair.server.grant(stream, 1_000)
    assert _data_bytes(pair.exchange()[1]) == WINDOW - 1_000
    pair.server.grant(stream, WINDOW)
    assert _data_bytes(pair.exchange()[1]) == 0


def test_too_many_streams_are_refused_one_by_one() -> None:
    """The connection and the streams that are open continue, and a free place is taken again."""
    server = raw()
    assert len(server.receive(b"".join(call(each, 0) for each in (1, 3, 5, 7)))) == STREAMS
    assert server.take_output(1)[0] == [_reset(7, ErrorCodes.REFUSED_STREAM)]
    assert server.receive(_reset(3)) == [StreamReset(3, ErrorCodes.CANCEL, is_unseen=False)]
    assert len(server.receive(call(9))) == 1


def test_farewell_leaves_what_goes_on() -> None:
    """Open streams continue to their ends. Later ones are unseen for the client, which may try them elsewhere."""
    pair = Pair()
    first = pair.client.open(header_block(CALL))
    pair.client.send(first, (), is_end=True)
    pair.exchange()
    second = pair.client.open(header_block(CALL))
    pair.server.go_away()
    to_client, to_server = pair.exchange()
    assert to_client == [GoingAway(0, ""), StreamReset(second, 0, is_unseen=True)]
    assert to_server == []
    pair.server.end(first, header_block([*START, *TRAILERS]))
    assert pair.exchange()[0] == [HeadersCame(first, [*START, *TRAILERS], is_end=True)]


def test_trailers_of_a_client_end_its_side() -> None:
    """GRPC's clients send none, but HTTP/2 allows them."""
    server = raw()
    server.receive(call(1, 0))
    assert server.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, encode_headers([("a", "b")]))) == [
        HeadersCame(1, [("a", "b")], is_end=True)
    ]


def test_bytes_may_come_one_by_one() -> None:
    """The preface, heads and payloads in any pieces give the same events."""
    data = PREFACE + frame(SETTINGS, 0, 0) + call(1, 0) + frame(DATA, END_STREAM, 1, b"ab")
    server, found = ServerConnection(WINDOW, STREAMS), list[Event]()
    server.tick(0)
    for start in range(len(data)):
        found += map(_kept, server.receive(data[start : start + 1]))
    assert found == [
        SettingsCame(),
        HeadersCame(1, CALL, is_end=False),
        DataCame(1, memoryview(b"a"), is_end=False),
        DataCame(1, memoryview(b"b"), is_end=True),
    ]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", PREFACE[:-1] + b"x"])
def test_anything_but_http2_is_refused(data: bytes) -> None:
    """Such as HTTP/1.1 and TLS. The answer is one GOAWAY."""
    server = ServerConnection(WINDOW, STREAMS)
    server.tick(0)
    with pytest.raises(ConnectionFaultError):
        server.receive(data)
    assert _kinds(server.take_output(1)[0])[-1] == GOAWAY


@pytest.mark.parametrize(
    "data",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0),
        frame(PRIORITY, 0, 1, b"\0\0\0\0\1"),
        frame(DATA, 0, 1),
        frame(0x42, 0, 0, b"?"),
    ],
    ids=["pings", "settings", "priorities", "empty data", "unknown frames"],
)
def test_frames_without_use_are_taken_at_a_rate(data: bytes) -> None:
    """The server disconnects a client that exceeds the rate, with ENHANCE_YOUR_CALM, and serves one that keeps to it."""
    server = raw()
    server.receive(call(1, 0))
    server.receive(data * 2)
    for second in range(1, 4):
        server.tick(second)
        server.receive(data * PATIENCE_PER_S)
        server.take_output(1 << 30)
    assert 44 <= _count_taken(server, [data * (PATIENCE // 50)] * 100) <= 50
    goaway = b"".join(server.take_output(1)[0])[9:]
    assert int.from_bytes(goaway[4:8], "big") == ErrorCodes.ENHANCE_YOUR_CALM


def test_pings_between_data_are_free() -> None:
    """Some clients measure the way with them while data flows."""
    server = raw()
    server.receive(call(1, 0))
    for _ in range(2 * PATIENCE):
        server.receive(frame(PING, 0, 0, b"12345678") + frame(DATA, 0, 1, b"a"))
        server.grant(1, 0)
        server.take_output(1 << 30)


def test_streams_that_are_opened_and_reset_are_taken_at_a_rate() -> None:
    """The rapid reset (CVE-2023-44487): each frees its place at once, so the number of open streams bounds nothing."""
    server = raw()
    taken = _count_taken(server, [call(each) + _reset(each) for each in range(1, PATIENCE, 2)])
    assert PATIENCE // 20 < taken <= PATIENCE // 10


def test_windows_of_a_few_bytes_are_served_at_a_rate() -> None:
    """A client that lets a long answer through in crumbs (CVE-2019-9511) loses its connection."""
    server = raw()
    server.receive(frame(SETTINGS, 0, 0, b"\0\4\0\0\0\0") + call(1))
    server.respond(1, header_block(START))
    server.send(1, (b"x" * 10_000_000,))
    taken = _count_taken(server, [frame(WINDOW_UPDATE, 0, 1, b"\0\0\0\1")] * 2 * PATIENCE)
    assert PATIENCE - 2 <= taken <= PATIENCE + 1


BLOCKS = st.sampled_from([encode_headers(CALL), encode_headers([("a", "b")]), b"\x88\x40\x01a\x01b", b"\x88\xbe"])
FRAMES = st.builds(frame, st.integers(0, 11), st.integers(0, 63), st.integers(0, 5), BLOCKS | st.binary(max_size=12))


@given(st.lists(FRAMES | st.sampled_from([call(1, 0), call(3), call(5, 0)]), max_size=10))
def test_whatever_comes_is_taken_or_refused(pieces: list[bytes]) -> None:
    """No other error leaves the core, and calls of the user during and after it raise none."""
    server = raw()
    with suppress(ConnectionFaultError):
        for piece in pieces:
            for event in server.receive(piece):
                if isinstance(event, HeadersCame) and event.headers == CALL:
                    server.respond(event.stream_id, header_block(START))
                    server.send(event.stream_id, (b"x" * 50_000,))
                    server.end(event.stream_id, header_block(TRAILERS))
            server.take_output(10_000)
            for stream in (1, 3, 5):
                server.grant(stream, 0)
    for stream in (1, 3, 5):
        server.grant(stream, WINDOW)
        server.reset(stream, ErrorCodes.CANCEL)
    server.ping()
    server.go_away()
    server.take_output(1 << 30)


def test_header_block_has_a_limit() -> None:
    """In bytes as they come, and in frames that continue it."""
    for data in (
        frame(HEADERS, 0, 1, b"\0" * 16_000) + frame(CONTINUATION, 0, 1, b"\0" * 16_384) * 4,
        frame(HEADERS, 0, 1, b"") + frame(CONTINUATION, 0, 1, b"") * 70,
        frame(HEADERS, END_HEADERS, 1, b"\x40\x7f\xff\xff\xff\x0f"),
    ):
        with pytest.raises(ConnectionFaultError):
            raw().receive(data)


def _count_taken(server: ServerConnection, pieces: list[bytes]) -> int:
    """Give pieces to a server until it has had enough. Return how many it has taken; all of them are a failure."""
    for taken, piece in enumerate(pieces):
        try:
            server.receive(piece)
        except ConnectionFaultError:
            return taken
        server.take_output(1 << 30)
    raise AssertionError(f"all {len(pieces)} pieces were taken")


def _reset(stream_id: int, code: int = ErrorCodes.CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream_id, int(code).to_bytes(4, "big"))


def _kinds(output: list[bytes | memoryview]) -> list[int]:
    data, kinds = b"".join(output), list[int]()
    while data:
        kinds.append(data[3])
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return kinds


def _data_bytes(events: list[Event]) -> int:
    return sum(len(each.data) for each in events if isinstance(each, DataCame))

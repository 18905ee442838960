# SPDX-License-Identifier: Apache-2.0
"""gRPC messages and statuses are read in any pieces, and anything else gets a status."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft._grpc import grpc_wire
from lograft._grpc.grpc_wire import MessageError, MessageReader, WireStatus

LIMIT = 1_000


@pytest.mark.parametrize("step", [1, 2, 7, 5_000])
def test_messages_come_in_pieces_of_any_size(step: int) -> None:
    """Also empty messages, the largest allowed one, and several in one piece."""
    messages = [b"", b"a" * LIMIT, b"", b"b", b"c" * 999]
    data = b"".join(grpc_wire.message_head(len(each)) + each for each in messages)
    reader, found = MessageReader(LIMIT), list[bytes]()
    for start in range(0, len(data), step):
        found += reader.take(data[start : start + step])
    assert (found, reader.is_inside) == (messages, False)


def test_end_inside_a_message_is_seen() -> None:
    """The end comes after a part of the prefix, and after a part of the message."""
    reader = MessageReader(LIMIT)
    reader.take(b"\0\0")
    assert reader.is_inside
    reader.take(b"\0\0\x02a")
    assert reader.is_inside
    assert reader.take(b"b") == [b"ab"]
    assert not reader.is_inside


@pytest.mark.parametrize(
    ("head", "code"),
    [(b"\1\0\0\0\1", grpc_wire.INTERNAL), (grpc_wire.message_head(LIMIT + 1), grpc_wire.RESOURCE_EXHAUSTED)],
)
def test_messages_that_may_not_be_read_have_a_status(head: bytes, code: int) -> None:
    """The status comes before their bytes are taken."""
    with pytest.raises(MessageError) as caught:
        MessageReader(LIMIT).take(head)
    assert caught.value.status.code == code


def test_status_is_read_from_trailers() -> None:
    """Text is percent-encoded UTF-8, binary values are base64 with and without padding."""
    trailers = [("grpc-status", "14"), ("grpc-message", "n%C3%B6 100% %zz"), ("x-bin", "YQ,YWI=,!"), ("key", "v")]
    expected = WireStatus(14, "nö 100% %zz", (("x-bin", b"a"), ("x-bin", b"ab"), ("key", "v")))
    assert grpc_wire.status_in_trailers(trailers) == expected


@pytest.mark.parametrize("value", ["", "x", "99", "-1"])
def test_status_that_is_none_is_unknown(value: str) -> None:
    """Real gRPC does the same."""
    assert grpc_wire.status_in_trailers([("grpc-status", value)]).code == grpc_wire.UNKNOWN
    assert grpc_wire.status_in_trailers([]).code == grpc_wire.UNKNOWN


def test_answers_of_no_grpc_server_have_a_status() -> None:
    """The HTTP status decides, then the content type."""
    kind = ("content-type", "application/grpc+proto")
    assert grpc_wire.status_in_headers([(":status", "200"), kind]) is None
    for status, code in (("404", grpc_wire.UNIMPLEMENTED), ("503", grpc_wire.UNAVAILABLE), ("302", grpc_wire.UNKNOWN)):
        found = grpc_wire.status_in_headers([(":status", status), kind])
        assert found is not None
        assert found.code == code
    assert grpc_wire.status_in_headers([(":status", "200"), ("content-type", "text/html")]) is not None


def test_timeout_of_a_call_fits_its_header() -> None:
    """The header has at least a millisecond and at most eight digits; without a limit it is absent."""

    def stated(timeout_ms: int | None) -> str | None:
        return dict(grpc_wire.more_call_headers(timeout_ms=timeout_ms)).get("grpc-timeout")

    assert [stated(each) for each in (None, 0, 1_500, 10**12)] == [None, "1m", "1500m", "99999999m"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("step", [3, 5_000])
def test_compressed_messages_are_inflated(encoding: grpc_wire.Encoding, step: int) -> None:
    """Beside plain ones, up to the limit."""
    bits = {"gzip": 31, "deflate": 15}[encoding]
    deflate = zlib.compressobj(wbits=bits)
    packed = deflate.compress(b"a" * LIMIT) + deflate.flush()
    data = b"\1" + len(packed).to_bytes(4, "big") + packed + grpc_wire.message_head(1) + b"b"
    reader, found = MessageReader(LIMIT, encoding), list[bytes]()
    for start in range(0, len(data), step):
        found += reader.take(data[start : start + step])
    assert found == [b"a" * LIMIT, b"b"]


@pytest.mark.parametrize(
    ("packed", "code"),
    [
        (gzip.compress(b"a" * (LIMIT + 1)), grpc_wire.RESOURCE_EXHAUSTED),
        (gzip.compress(b"a" * 10_000_000)[:900], grpc_wire.RESOURCE_EXHAUSTED),
        (gzip.compress(b"abc")[:-3], grpc_wire.INTERNAL),
        (b"not gzip", grpc_wire.INTERNAL),
        (b"", grpc_wire.INTERNAL),
    ],
    ids=["too long", "a bomb", "cut", "something else", "nothing"],
)
def test_compressed_messages_that_cannot_be_inflated_have_a_status(packed: bytes, code: int) -> None:
    """Nothing beyond the limit is inflated."""
    with pytest.raises(MessageError) as caught:
        MessageReader(LIMIT, "gzip").take(b"\1" + len(packed).to_bytes(4, "big") + packed)
    assert caught.value.status.code == code


def test_announced_message_takes_memory_as_it_comes() -> None:
    """A message gets more room when it has filled what it has. One as large as an earlier one gets all at once."""
    reader = MessageReader(1 << 24, None, 1_000)
    reader.take(memoryview(grpc_wire.message_head(5_000)))
    rooms = list[int]()
    for each in range(2):
        while (room := len(reader.room())) > 0:
            rooms.append(room)
            reader.room()[:] = bytes([each]) * room
            whole = reader.filled(room)
        assert whole == bytes([each]) * 5_000
        reader.take(memoryview(grpc_wire.message_head(5_000)))
    assert rooms == [1_000, 1_000, 2_000, 1_000, 5_000]
    assert reader.missing_bytes == 5_000


def test_call_is_read_from_its_headers() -> None:
    """Method, time limit in each unit, compression, and the metadata that the handler sees."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", "/s/m"), (":authority", "h"), ("te", "trailers")]
    headers += [("content-type", "application/grpc+proto"), ("grpc-encoding", "gzip"), ("grpc-timeout", "1500m")]
    headers += [("grpc-accept-encoding", "gzip"), ("user-agent", "x"), ("key", "v"), ("k-bin", "YQ,YWI=,!")]
    metadata = (("user-agent", "x"), ("key", "v"), ("k-bin", b"a"), ("k-bin", b"ab"))
    assert grpc_wire.read_call(headers) == grpc_wire.CallStart("/s/m", metadata, 1.5, "gzip")
    for text, seconds in (("2H", 7_200), ("3M", 180), ("4S", 4), ("5000000u", 5), ("99999999n", 0.099999999)):
        plain = [each for each in headers if each[0] != "grpc-timeout"]
        assert grpc_wire.read_call([*plain, ("grpc-timeout", text)]).timeout_s == pytest.approx(seconds)
    assert grpc_wire.read_call(headers[:6]) == grpc_wire.CallStart("/s/m", (), None, "identity")


@pytest.mark.parametrize(
    ("changed", "status", "grpc_status"),
    [
        ((":method", "GET"), "405", None),
        (("content-type", "text/html"), "415", None),
        (("content-type", "application/grpc-web"), "415", None),
        (("grpc-encoding", "br"), "200", "12"),
        (("grpc-timeout", "123456789S"), "200", "13"),
        (("grpc-timeout", "-1S"), "200", "13"),
        (("grpc-timeout", "1"), "200", "13"),
        (("grpc-timeout", ""), "200", "13"),
    ],
)
def test_what_is_no_call_has_an_answer(changed: tuple[str, str], status: str, grpc_status: str | None) -> None:
    """HTTP statuses for what is no gRPC, statuses of gRPC for the rest."""
    headers = dict([(":method", "POST"), (":path", "/s/m"), ("content-type", "application/grpc"), changed])
    with pytest.raises(grpc_wire.NoCallError) as caught:
        grpc_wire.read_call(headers.items())
    answer = dict(caught.value.headers)
    assert (answer[":status"], answer.get("grpc-status")) == (status, grpc_status)


@given(st.text(max_size=40), st.binary(max_size=20))
def test_status_survives_its_trailers(text: str, value: bytes) -> None:
    """Any text, and bytes under names that end with `-bin`."""
    status = WireStatus(5, text.encode(errors="replace").decode(), (("a-bin", value), ("b", "c")))
    trailers = grpc_wire.status_trailers(status)
    assert all(each.isascii() and each.isprintable() for _, each in trailers)
    assert grpc_wire.status_in_trailers(trailers) == status

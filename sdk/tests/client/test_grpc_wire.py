# SPDX-License-Identifier: Apache-2.0
"""gRPC messages and statuses are read in any pieces, and anything else gets a status."""

from __future__ import annotations

import pytest
from lograft._client import grpc_wire
from lograft._client.grpc_wire import MessageError, MessageReader, WireStatus

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
        headers = grpc_wire.call_headers("/a/b", "h:1", timeout_ms=timeout_ms, user_agent="x")
        return dict(headers).get("grpc-timeout")

    assert [stated(each) for each in (None, 0, 1_500, 10**12)] == [None, "1m", "1500m", "99999999m"]

# SPDX-License-Identifier: Apache-2.0
"""What gRPC adds to HTTP/2: the headers of a call, the framing of messages, and the status in trailers.

Pure. Source: gRPC's doc/PROTOCOL-HTTP2.md and doc/http-grpc-status-mapping.md.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from typing import Final, NamedTuple

from h2.errors import ErrorCodes

Header = tuple[str, str]
"""Name and value of a header."""

MESSAGE_HEAD_BYTES: Final = 5
"""Bytes before each message: one flag for compression and four for the length."""

MAX_TIMEOUT_MS: Final = 99_999_999
"""Longest timeout of a call in milliseconds. gRPC allows eight digits."""

OK, CANCELLED, UNKNOWN, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 1, 2, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16
_LAST_CODE: Final = 16

_BY_HTTP_STATUS: Final = {
    "400": INTERNAL,
    "401": UNAUTHENTICATED,
    "403": PERMISSION_DENIED,
    "404": UNIMPLEMENTED,
    "429": UNAVAILABLE,
    "502": UNAVAILABLE,
    "503": UNAVAILABLE,
    "504": UNAVAILABLE,
}
_BY_RESET: Final[dict[int, int]] = {
    ErrorCodes.REFUSED_STREAM: UNAVAILABLE,
    ErrorCodes.CANCEL: CANCELLED,
    ErrorCodes.ENHANCE_YOUR_CALM: RESOURCE_EXHAUSTED,
}


class WireStatus(NamedTuple):
    """The status of a call: its code as a number, a message for people, and the other trailers."""

    code: int
    details: str
    trailers: tuple[tuple[str, str | bytes], ...] = ()


class MessageError(Exception):
    """The received bytes are not a message that may be read. `status` is the status of the failed call."""

    def __init__(self, status: WireStatus) -> None:
        super().__init__(status.details)
        self.status = status


def call_headers(
    method: str, authority: str, *, timeout_ms: int | None, user_agent: str, metadata: Iterable[tuple[str, str]] = ()
) -> list[Header]:
    """Return the headers that begin a call. `metadata` is ASCII text."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", authority)]
    headers += [("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", user_agent)]
    if timeout_ms is not None:
        headers.append(("grpc-timeout", f"{min(max(timeout_ms, 1), MAX_TIMEOUT_MS)}m"))
    return [*headers, *metadata]


def message_head(size: int) -> bytes:
    """Return the prefix of a message of `size` bytes."""
    return b"\0" + size.to_bytes(4, "big")


class MessageReader:
    """Splits the bytes of a stream into messages.

    Args:
        limit_bytes: largest allowed message, in bytes.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._head = b""
        # The message under way, with room for all of it, and how much of it is there.
        self._message: bytearray | None = None
        self._have_bytes = 0

    @property
    def is_inside(self) -> bool:
        """True between the first and the last byte of a message."""
        return bool(self._head) or self._message is not None

    def take(self, data: memoryview) -> list[bytes | bytearray]:
        """Take bytes and return the messages that they complete.

        Raises:
            MessageError: a message is too large, or is compressed, which the client did not offer.
        """
        messages: list[bytes | bytearray] = []
        position = 0
        while position < len(data):
            if self._message is None:
                piece = data[position : position + MESSAGE_HEAD_BYTES - len(self._head)]
                position += len(piece)
                self._head += piece
                if len(self._head) == MESSAGE_HEAD_BYTES:
                    size, self._head = self._read_head(self._head), b""
                    if size <= len(data) - position:
                        messages.append(bytes(data[position : position + size]))
                        position += size
                    else:
                        self._message, self._have_bytes = bytearray(size), 0
                continue
            rest = self.room()
            piece = data[position : position + len(rest)]
            position += len(piece)
            rest[: len(piece)] = piece
            message = self.filled(len(piece))
            if message is not None:
                messages.append(message)
        return messages

    def room(self) -> memoryview:
        """Return where the next bytes of the message under way go, all that are missing; nothing if none is under way."""
        return memoryview(self._message or b"")[self._have_bytes :]

    def filled(self, size: int) -> bytearray | None:
        """Take note that the first `size` bytes of `room` are there. Return the message if it is complete."""
        message = self._message
        self._have_bytes += size
        if message is None or self._have_bytes < len(message):
            return None
        self._message, self._have_bytes = None, 0
        return message

    def _read_head(self, head: bytes) -> int:
        size = int.from_bytes(head[1:], "big")
        if head[0]:
            raise MessageError(WireStatus(INTERNAL, "a compressed message, which was not asked for"))
        if size > self._limit_bytes:
            raise MessageError(
                WireStatus(RESOURCE_EXHAUSTED, f"Received message larger than max ({size} vs. {self._limit_bytes})")
            )
        return size


def status_in_headers(headers: Iterable[Header]) -> WireStatus | None:
    """Return the failure that the first headers of a response report; None if the response continues."""
    found = dict(headers)
    http_status, content_type = found.get(":status", ""), found.get("content-type", "")
    if http_status != "200":
        return WireStatus(
            _BY_HTTP_STATUS.get(http_status, UNKNOWN), f"the server answered with HTTP status {http_status}"
        )
    if not content_type.startswith("application/grpc"):
        return WireStatus(UNKNOWN, f"the server answered with {content_type or 'nothing'} instead of gRPC")
    return None


def status_in_trailers(trailers: Iterable[Header]) -> WireStatus:
    """Return the status in trailers."""
    code, details, others = "", "", list[tuple[str, str | bytes]]()
    for name, value in trailers:
        if name == "grpc-status":
            code = value
        elif name == "grpc-message":
            details = _unescaped(value)
        elif name.startswith(":") or name in ("content-type", "grpc-encoding", "grpc-accept-encoding"):
            continue
        elif name.endswith("-bin"):
            others += [(name, each) for each in map(_from_base64, value.split(",")) if each is not None]
        else:
            others.append((name, value))
    if not code.isdecimal():
        return WireStatus(UNKNOWN, "the server ended the call without a status", tuple(others))
    number = int(code)
    return WireStatus(number if number <= _LAST_CODE else UNKNOWN, details, tuple(others))


def status_of_reset(error_code: int, *, is_unseen: bool) -> WireStatus:
    """Return the status of a call whose stream the server reset."""
    if is_unseen:
        return WireStatus(UNAVAILABLE, "the server takes no further call over this connection")
    return WireStatus(_BY_RESET.get(error_code, INTERNAL), f"RST_STREAM with error code {error_code}")


def _unescaped(text: str) -> str:
    """Decode percent encoding. Malformed escapes stay as they are."""
    out, position = bytearray(), 0
    while position < len(text):
        digits = text[position + 1 : position + 3]
        if text[position] == "%" and len(digits) == 2 and all(each in "0123456789abcdefABCDEF" for each in digits):
            out.append(int(digits, 16))
            position += 3
        else:
            out += text[position].encode("latin-1")
            position += 1
    return out.decode(errors="replace")


def _from_base64(text: str) -> bytes | None:
    """Decode a base64 value, with or without padding; None if it is not valid."""
    try:
        return binascii.a2b_base64(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), strict_mode=True)
    except ValueError:
        return None

# SPDX-License-Identifier: Apache-2.0
"""What gRPC adds to HTTP/2, for both sides: the headers of a call, the framing of messages, and the status in trailers.

Pure. Source: gRPC's doc/PROTOCOL-HTTP2.md, doc/http-grpc-status-mapping.md and doc/compression.md.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from h2.errors import ErrorCodes

Header = tuple[str, str]
"""Name and value of a header."""

MESSAGE_HEAD_BYTES: Final = 5
"""Bytes before each message: one flag for compression and four for the length."""

MAX_TIMEOUT_MS: Final = 99_999_999
"""Longest timeout of a call in milliseconds. gRPC allows eight digits."""

OK, CANCELLED, UNKNOWN, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 0, 1, 2, 7, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 12, 13, 14, 16
DEADLINE_EXCEEDED: Final = 4
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


Encoding = Literal["identity", "gzip", "deflate"]
"""How messages of a call are compressed. gRPC's `deflate` is the format of zlib (RFC 1950)."""

ACCEPTED_ENCODINGS: Final = "identity,deflate,gzip"
"""What a server takes. It answers without compression: the batches of Lograft are compressed by their own codec."""

_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}

RESPONSE_HEADERS: Final = (
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-accept-encoding", ACCEPTED_ENCODINGS),
)
"""The headers that begin a response."""

_TIMEOUT_UNITS_S: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MAX_TIMEOUT_DIGITS: Final = 8
_HIDDEN: Final = frozenset(("te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding"))
"""Headers that are not metadata of the call."""


class CallStart(NamedTuple):
    """What the headers of a call say: method as `/service/name`, metadata, time limit in seconds (None: no limit), encoding."""

    method: str
    metadata: tuple[tuple[str, str | bytes], ...]
    timeout_s: float | None
    encoding: Encoding


class NoCallError(Exception):
    """The headers begin no call.

    Attributes:
        headers: the whole answer, headers and trailers in one.
    """

    def __init__(self, headers: list[Header]) -> None:
        super().__init__(str(headers))
        self.headers = headers


def read_call(headers: Iterable[Header]) -> CallStart:
    """Read the headers that begin a call.

    Raises:
        NoCallError: they are of no gRPC call, or of one that cannot be served.
    """
    found, metadata = dict[str, str](), list[tuple[str, str | bytes]]()
    for name, value in headers:
        if name[:1] == ":" or name in _HIDDEN:
            found[name] = value
        elif name.endswith("-bin"):
            metadata += [(name, each) for each in map(_from_base64, value.split(",")) if each is not None]
        else:
            metadata.append((name, value))
    if found.get(":method") != "POST":
        raise NoCallError([(":status", "405"), ("allow", "POST")])
    kind = found.get("content-type", "")
    if kind != "application/grpc" and not kind.startswith(("application/grpc+", "application/grpc;")):
        raise NoCallError([(":status", "415")])
    encoding = found.get("grpc-encoding", "identity")
    if encoding not in ("identity", "gzip", "deflate"):
        status = WireStatus(UNIMPLEMENTED, f"no messages in encoding {encoding[:64]!r}, only {ACCEPTED_ENCODINGS}")
        raise NoCallError([*RESPONSE_HEADERS, *status_trailers(status)])
    timeout_s, text = None, found.get("grpc-timeout")
    if text is not None:
        timeout_s = _read_timeout(text)
        if timeout_s is None:
            raise NoCallError(
                [*RESPONSE_HEADERS, *status_trailers(WireStatus(INTERNAL, f"bad grpc-timeout {text[:64]!r}"))]
            )
    return CallStart(found.get(":path", ""), tuple(metadata), timeout_s, encoding)


def status_trailers(status: WireStatus) -> list[Header]:
    """Return a status as trailers."""
    trailers = [("grpc-status", str(int(status.code)))]
    if status.details:
        trailers.append(("grpc-message", _escaped(status.details)))
    return [*trailers, *metadata_headers(status.trailers)]


def metadata_headers(metadata: Iterable[tuple[str, str | bytes]]) -> list[Header]:
    """Return metadata as headers: bytes in base64."""
    return [
        (name, value if isinstance(value, str) else binascii.b2a_base64(value, newline=False).decode())
        for name, value in metadata
    ]


def call_headers(method: str, authority: str, *, user_agent: str) -> list[Header]:
    """Return the headers that begin every call of a method."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", authority)]
    return [*headers, ("te", "trailers"), ("content-type", "application/grpc"), ("user-agent", user_agent)]


def more_call_headers(*, timeout_ms: int | None, metadata: Iterable[tuple[str, str]] = ()) -> list[Header]:
    """Return the headers that follow those: of one call. `metadata` is ASCII text."""
    timeout = [] if timeout_ms is None else [("grpc-timeout", f"{min(max(timeout_ms, 1), MAX_TIMEOUT_MS)}m")]
    return [*timeout, *metadata]


def message_head(size: int) -> bytes:
    """Return the prefix of a message of `size` bytes."""
    return b"\0" + size.to_bytes(4, "big")


class MessageReader:
    """Splits the bytes of a stream into messages.

    Args:
        limit_bytes: largest allowed message, in bytes, compressed or not.
        encoding: of messages that say that they are compressed. None: there may be none.
        first_room_bytes: bytes of room that a message gets when it begins, unless one as large has been whole. It gets more when
            that is full, so that announcing large messages takes no memory. None: all that the message takes.
    """

    def __init__(self, limit_bytes: int, encoding: Encoding | None = None, first_room_bytes: int | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._encoding = encoding
        self._room_bytes = limit_bytes if first_room_bytes is None else first_room_bytes
        self._head = b""
        self._is_compressed = False
        # The message under way, with room for the next bytes, its length, and how much of it is there.
        self._message: bytearray | None = None
        self._size = 0
        self._have_bytes = 0

    @property
    def is_inside(self) -> bool:
        """True between the first and the last byte of a message."""
        return bool(self._head) or self._message is not None

    @property
    def missing_bytes(self) -> int:
        """Bytes of the message under way that have not come; 0 if its length is not known either."""
        return 0 if self._message is None else self._size - self._have_bytes

    def take(self, data: memoryview) -> list[bytes | bytearray]:
        """Take bytes and return the messages that they complete.

        Raises:
            MessageError: a message is too large, or is compressed in a way that was not offered.
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
                        messages.append(self._whole(bytes(data[position : position + size])))
                        position += size
                    else:
                        self._message, self._size, self._have_bytes = bytearray(min(size, self._room_bytes)), size, 0
                continue
            rest = self.room()
            piece = data[position : position + len(rest)]
            position += len(piece)
            rest[: len(piece)] = piece
            rest.release()
            message = self.filled(len(piece))
            if message is not None:
                messages.append(message)
        return messages

    def room(self) -> memoryview:
        """Return where the next bytes of the message under way go; nothing if none is under way.

        Release the view before the next call.
        """
        message = self._message
        if message is None:
            return memoryview(b"")
        if self._have_bytes == len(message):
            message.extend(bytes(min(self._size - len(message), len(message))))
        return memoryview(message)[self._have_bytes :]

    def filled(self, size: int) -> bytes | bytearray | None:
        """Take note that the first `size` bytes of `room` are there. Return the message if it is complete.

        Raises:
            MessageError: the complete message is compressed, and cannot be inflated within the limit.
        """
        message = self._message
        self._have_bytes += size
        if message is None or self._have_bytes < self._size:
            return None
        self._message, self._have_bytes = None, 0
        self._room_bytes = max(self._room_bytes, self._size)
        return self._whole(message)

    def _whole(self, message: bytes | bytearray) -> bytes | bytearray:
        return self._inflated(message) if self._is_compressed else message

    def _inflated(self, message: bytes | bytearray) -> bytes:
        assert self._encoding is not None, "checked when the message began"
        inflater = zlib.decompressobj(_WINDOW_BITS[self._encoding])
        try:
            whole = inflater.decompress(message, self._limit_bytes)
        except zlib.error as error:
            raise MessageError(WireStatus(INTERNAL, f"a message that is not in {self._encoding}: {error}")) from None
        if inflater.unconsumed_tail:
            raise MessageError(WireStatus(RESOURCE_EXHAUSTED, f"a message of more than {self._limit_bytes} bytes"))
        if not inflater.eof:
            raise MessageError(WireStatus(INTERNAL, "a compressed message that ends too early"))
        return whole

    def _read_head(self, head: bytes) -> int:
        size = int.from_bytes(head[1:], "big")
        self._is_compressed = bool(head[0])
        if head[0] > 1 or (head[0] and self._encoding not in _WINDOW_BITS):
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


def _read_timeout(text: str) -> float | None:
    digits, unit = text[:-1], _TIMEOUT_UNITS_S.get(text[-1:])
    if unit is None or not digits.isascii() or not digits.isdecimal() or len(digits) > _MAX_TIMEOUT_DIGITS:
        return None
    return int(digits) * unit


def _escaped(text: str) -> str:
    """Encode what is not printable ASCII, and the percent sign, in percent encoding."""
    return "".join(
        chr(each) if 0x20 <= each <= 0x7E and each != 0x25 else f"%{each:02X}" for each in text.encode(errors="replace")
    )


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

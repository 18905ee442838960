# SPDX-License-Identifier: Apache-2.0
"""The bytes of a connection between servers: a preface, then frames.

Owns the format and its limits. Knows neither calls nor sockets.
Format: docs/net.md section "Bytes".
"""

from __future__ import annotations

import struct
from collections import deque
from enum import IntEnum
from typing import Final, NamedTuple

GREETING: Final = b"lograft-net-1\n"
"""The connection preface: both sides send it first. A different program that now has the port cannot mistake it for a request."""

MAX_BODY_BYTES: Final = 320 * 1024
"""Largest body of one frame in bytes. A batch of the default size and its fields fit; longer messages take several frames."""

MORE: Final = 1
"""Flag: the message continues in the next frame of this id and kind."""

_LENGTH: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">IBBI")
_REST: Final = struct.Struct(">BBI")

MAX_PIECES: Final = 256
"""Received pieces that the reader keeps unjoined at most. Each one costs more memory than its bytes."""


class Kind(IntEnum):
    """The kind of a frame; docs/net.md has the body of each."""

    HELLO = 1
    GOODBYE = 2
    PING = 3
    PONG = 4
    REQUEST = 5
    OPEN = 6
    RESPONSE = 7
    FAILURE = 8
    MESSAGE = 9
    CREDIT = 10
    END = 11
    CANCEL = 12
    RESET = 13


_KINDS: Final = {kind.value: kind for kind in Kind}


class BadFrameError(Exception):
    """The other side broke the format or the protocol. The connection must end."""


class Frame(NamedTuple):
    """A received frame.

    Attributes:
        kind: kind of the frame.
        goes_on: True if the message continues in the next frame of this id and kind.
        call_id: id of the call; 0: the frame is about the connection.
        body: bytes of the frame after its header.
    """

    kind: Kind
    goes_on: bool
    call_id: int
    body: bytes


def header(kind: Kind, call_id: int, body_bytes: int, *, goes_on: bool = False) -> bytes:
    """Return the bytes of a frame before its body."""
    return _HEADER.pack(body_bytes + _REST.size, kind, MORE if goes_on else 0, call_id)


class FrameReader:
    """Cuts received bytes into frames. Copies each byte of a frame once."""

    __slots__ = ("_begin", "_greeting", "_pieces", "_size_bytes", "_wanted_bytes")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        # Where the first piece begins; how many bytes are left from there; the length of the next frame, None before it is known.
        self._begin = 0
        self._size_bytes = 0
        self._wanted_bytes: int | None = None
        self._greeting = GREETING

    def feed(self, data: bytes) -> None:
        """Add received bytes.

        Raises:
            BadFrameError: the connection does not begin with the preface.
        """
        if data:
            self._pieces.append(data)
            self._size_bytes += len(data)
            if len(self._pieces) > MAX_PIECES:
                whole = b"".join(self._pieces)[self._begin :]
                self._pieces, self._begin = deque((whole,)), 0
        if self._greeting:
            begin = self._pull(min(self._size_bytes, len(self._greeting)))
            if not self._greeting.startswith(begin):
                raise BadFrameError("no greeting")
            self._greeting = self._greeting[len(begin) :]

    def take(self) -> Frame | None:
        """Return the next whole frame; None if no frame is complete yet.

        Raises:
            BadFrameError: the frame is longer or shorter than allowed, has an unknown kind, or has unknown flags.
        """
        if self._greeting:
            return None
        wanted_bytes = self._wanted_bytes
        if wanted_bytes is None:
            if self._size_bytes < _LENGTH.size:
                return None
            wanted_bytes = int.from_bytes(self._pull(_LENGTH.size), "big")
            if not _REST.size <= wanted_bytes <= _REST.size + MAX_BODY_BYTES:
                raise BadFrameError(f"a frame of {wanted_bytes} bytes")
            self._wanted_bytes = wanted_bytes
        if self._size_bytes < wanted_bytes:
            return None
        self._wanted_bytes = None
        number, flags, call_id = _REST.unpack(self._pull(_REST.size))
        kind = _KINDS.get(number)
        if kind is None or flags not in (0, MORE):
            raise BadFrameError(f"a frame of kind {number} with flags {flags}")
        return Frame(kind, flags == MORE, call_id, self._pull(wanted_bytes - _REST.size))

    def _pull(self, size_bytes: int) -> bytes:
        """Remove and return the first `size_bytes` bytes. The caller has checked that they are there."""
        if not size_bytes:
            return b""
        self._size_bytes -= size_bytes
        pieces, begin = self._pieces, self._begin
        end = begin + size_bytes
        if end < len(pieces[0]):
            self._begin = end
            return pieces[0][begin:end]
        # Views, so that the join makes the only copy.
        parts: list[memoryview] = []
        while size_bytes:
            part = memoryview(pieces[0])[begin : begin + size_bytes]
            parts.append(part)
            size_bytes -= len(part)
            begin += len(part)
            if begin == len(pieces[0]):
                pieces.popleft()
                begin = 0
        self._begin = begin
        return b"".join(parts)

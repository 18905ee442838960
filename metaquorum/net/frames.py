# SPDX-License-Identifier: Apache-2.0
"""The bytes of a connection between servers: a greeting, then frames.

Owns the format and its limits. Knows neither calls nor sockets.
Format: docs/net.md section "Bytes".
"""

from __future__ import annotations

import struct
from collections import deque
from enum import IntEnum
from typing import Final, NamedTuple

GREETING: Final = b"lograft-net-1\n"
"""What both sides say first. Whoever dials a port that another program has by now says nothing that it could take for a request."""

MAX_BODY_BYTES: Final = 256 * 1024
"""Bytes of the body of one frame; longer messages take several."""

MORE: Final = 1
"""Flag: the message goes on in the next frame of this id and kind."""

_LENGTH: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">IBBI")
_REST: Final = struct.Struct(">BBI")

MAX_PIECES: Final = 256
"""Most pieces of one frame that are kept as they came: each costs more than a byte."""


class Kind(IntEnum):
    """What a frame is."""

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
    """The other side does not speak this format, or says what the state does not allow; the connection is of no more use."""


class Frame(NamedTuple):
    """A frame that came.

    Attributes:
        kind: what it is.
        goes_on: True if the message goes on in the next frame of this id and kind.
        call_id: id of the call; 0: the connection itself.
        body: bytes.
    """

    kind: Kind
    goes_on: bool
    call_id: int
    body: bytes


def header(kind: Kind, call_id: int, body_bytes: int, *, goes_on: bool = False) -> bytes:
    """Return the bytes before the body of a frame."""
    return _HEADER.pack(body_bytes + _REST.size, kind, MORE if goes_on else 0, call_id)


class FrameReader:
    """Cuts what arrives into frames; each byte of them is copied once."""

    __slots__ = ("_begin", "_greeting", "_pieces", "_size_bytes", "_wanted_bytes")

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        # Where the first piece begins, what is there from there on, and how much the next frame has: None before its length.
        self._begin = 0
        self._size_bytes = 0
        self._wanted_bytes: int | None = None
        self._greeting = GREETING

    def feed(self, data: bytes) -> None:
        """Take what has arrived.

        Raises:
            BadFrameError: it does not begin with the greeting.
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
        """Return the next whole frame, None while there is none.

        Raises:
            BadFrameError: it is longer or shorter than a frame may be, of no known kind, or has unknown flags.
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
        """Take so many bytes off the front; they are there."""
        self._size_bytes -= size_bytes
        pieces, parts = self._pieces, list[bytes]()
        while size_bytes:
            piece, begin = pieces[0], self._begin
            end = begin + size_bytes
            if end < len(piece):
                parts.append(piece[begin:end])
                self._begin = end
                break
            parts.append(piece[begin:] if begin else piece)
            size_bytes -= len(piece) - begin
            pieces.popleft()
            self._begin = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

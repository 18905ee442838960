# SPDX-License-Identifier: Apache-2.0
"""Messages on a plain connection: a greeting, then frames of a length (4 bytes, big-endian) and so many bytes.

Owns the format and its limits. Knows neither what a message says nor the connection.
"""

from __future__ import annotations

from collections import deque
from typing import Final

GREETING: Final = b"lograft-fetch-1\n"
"""What both sides of a connection for fetches of the quorum say first: who dials a port that another program has by now must hear
nothing that it could take for an answer."""

LENGTH_BYTES: Final = 4
"""Bytes of the length before each message."""

MAX_PIECES: Final = 256
"""Most pieces of one message that are kept as they came: each costs more than a byte."""


class BadFrameError(Exception):
    """The other side does not speak this format, or says more than it may; the connection is of no more use."""


def frame(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


class FrameReader:
    """Cuts what arrives into messages; each byte of them is copied once.

    Args:
        max_bytes: most bytes of one message.
        greeting: what the other side has to say first.
    """

    __slots__ = ("_begin", "_greeting", "_max_bytes", "_pieces", "_size_bytes", "_wanted_bytes", "is_greeted")

    def __init__(self, *, max_bytes: int, greeting: bytes = GREETING) -> None:
        self._pieces: deque[bytes] = deque()
        # Where the first piece begins, what is there from there on, and how much the next message has: None before its length.
        self._begin = 0
        self._size_bytes = 0
        self._wanted_bytes: int | None = None
        self._max_bytes = max_bytes
        self._greeting = greeting
        self.is_greeted = False

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
        if not self.is_greeted:
            begin = self._pull(min(self._size_bytes, len(self._greeting)))
            if not self._greeting.startswith(begin):
                raise BadFrameError("no greeting")
            self._greeting = self._greeting[len(begin) :]
            self.is_greeted = not self._greeting

    def take(self) -> bytes | None:
        """Return the next whole message, None while there is none.

        Raises:
            BadFrameError: it is longer than a message may be.
        """
        if not self.is_greeted:
            return None
        if self._wanted_bytes is None:
            if self._size_bytes < LENGTH_BYTES:
                return None
            wanted_bytes = int.from_bytes(self._pull(LENGTH_BYTES), "big")
            if wanted_bytes > self._max_bytes:
                raise BadFrameError(f"a message of {wanted_bytes} bytes, at most {self._max_bytes} are allowed")
            self._wanted_bytes = wanted_bytes
        if self._size_bytes < self._wanted_bytes:
            return None
        message = self._pull(self._wanted_bytes)
        self._wanted_bytes = None
        return message

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

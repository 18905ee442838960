# SPDX-License-Identifier: Apache-2.0
"""Messages on a plain connection: a greeting, then frames of a length (4 bytes, big-endian) and so many bytes.

Owns the format and its limits. Knows neither what a message says nor the connection.
"""

from __future__ import annotations

from typing import Final

GREETING: Final = b"lograft-fetch-1\n"
"""What both sides say first: who dials a port that another program has by now must hear nothing that it could take for an answer."""

LENGTH_BYTES: Final = 4
"""Bytes of the length before each message."""


class BadFrameError(Exception):
    """The other side does not speak this format, or says more than it may; the connection is of no more use."""


def frame(message: bytes) -> bytes:
    """Return a message as it is sent."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


class FrameReader:
    """Cuts what arrives into messages.

    Args:
        max_bytes: most bytes of one message.
    """

    __slots__ = ("_buffer", "_max_bytes", "is_greeted")

    def __init__(self, *, max_bytes: int) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes
        self.is_greeted = False

    def feed(self, data: bytes) -> None:
        """Take what has arrived.

        Raises:
            BadFrameError: it does not begin with the greeting.
        """
        self._buffer += data
        if not self.is_greeted:
            size = min(len(self._buffer), len(GREETING))
            if not GREETING.startswith(self._buffer[:size]):
                raise BadFrameError("no greeting")
            if size == len(GREETING):
                del self._buffer[:size]
                self.is_greeted = True

    def take(self) -> bytes | None:
        """Return the next whole message, None while there is none.

        Raises:
            BadFrameError: it is longer than a message may be.
        """
        buffer = self._buffer
        if not self.is_greeted or len(buffer) < LENGTH_BYTES:
            return None
        size = int.from_bytes(buffer[:LENGTH_BYTES], "big")
        if size > self._max_bytes:
            raise BadFrameError(f"a message of {size} bytes, at most {self._max_bytes} are allowed")
        end = LENGTH_BYTES + size
        if len(buffer) < end:
            return None
        message = bytes(buffer[LENGTH_BYTES:end])
        del buffer[:end]
        return message

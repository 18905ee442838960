# SPDX-License-Identifier: Apache-2.0
"""The part of HTTP/2 that a hostile client needs: frames by hand on plain sockets, which no library would send.

Source: RFC 9113 (frames), RFC 7541 section 6.2.2 (literal header fields without indexing).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
WINDOW_MAX = 2**31 - 1
DEFAULT_WINDOW = 65_535


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def header_block(fields: list[tuple[str, str]]) -> bytes:
    """Encode header fields, each shorter than 127 bytes, as literals without indexing."""
    block = b""
    for name, value in fields:
        block += b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block


def grpc_call(method: str, authority: str, message: bytes) -> bytes:
    """Return the frames that open stream 1 with a gRPC call and its first message, shorter than 16 KiB."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", authority)]
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    prefixed = b"\x00" + struct.pack(">I", len(message)) + message
    return frame(HEADERS, END_HEADERS, 1, header_block(fields)) + frame(DATA, 0, 1, prefixed)


def greeting(*, window: int = DEFAULT_WINDOW) -> bytes:
    """Return the connection preface of a client. `window` is how many unread bytes each stream and the connection may carry to it."""
    settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, window)
    update = struct.pack(">I", window - DEFAULT_WINDOW)
    return (
        PREFACE
        + frame(SETTINGS, 0, 0, settings)
        + (frame(WINDOW_UPDATE, 0, 0, update) if window > DEFAULT_WINDOW else b"")
    )


class Connection:
    """A connection that is kept alive: it answers pings and settings, and sends no requests."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.sendall(greeting())
        self.socket.setblocking(False)
        self._received = bytearray()

    def on_readable(self) -> bool:
        """Read the available data. Return False if the server has closed the connection."""
        try:
            data = self.socket.recv(65_536)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self._received += data
        for kind, flags, payload in self._frames():
            if kind in (SETTINGS, PING) and not flags & ACK:
                self.socket.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
        return True

    def _frames(self) -> Iterator[tuple[int, int, bytes]]:
        received = self._received
        while len(received) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(received[:3], "big")
            if len(received) < end:
                return
            yield received[3], received[4], bytes(received[HEADER_BYTES:end])
            del received[:end]

# SPDX-License-Identifier: Apache-2.0
"""Frames of HTTP/2, right or wrong, and the bytes of header blocks."""

from __future__ import annotations

import struct

from hpack import Encoder, NeverIndexedHeaderTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED = 1, 4, 8


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream_id) + payload


def encode_headers(headers: list[tuple[str, str]]) -> bytes:
    """Return a block that neither uses nor changes the table."""
    return Encoder().encode([NeverIndexedHeaderTuple(*each) for each in headers])

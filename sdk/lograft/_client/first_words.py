# SPDX-License-Identifier: Apache-2.0
"""Names what answers at an address instead of a broker, from its first bytes.

Pure. It owns the texts for each case and the advice. Source: RFC 9113, section 3.4 (a server begins with SETTINGS); RFC 8446,
section 5.1.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

FIRST_WORDS_BYTES: Final = 9
"""Bytes that are enough to tell: the header of one HTTP/2 frame."""

_SETTINGS: Final = 4
_TLS_TYPES: Final = (0x15, 0x16)
_SHOWN_BYTES: Final = 24


class Seen(Enum):
    """What the probe saw at an address. Each value continues a sentence that begins with the address."""

    NOTHING = "has not answered yet; is it running?"
    UNKNOWN_NAME = "cannot be resolved; check the host name"
    REFUSED = "refuses connections: no process listens there; is it running?"
    UNREACHABLE = "cannot be reached; check the address, and what is between"
    SILENT = "accepts connections and says nothing; is it a Lograft broker, or does it hang?"
    CLOSED = "closes connections without a word; is it a Lograft broker?"
    TLS = "speaks TLS, and Lograft speaks plaintext; give the address of the plaintext port"
    HTTP1 = "is an HTTP server, not a Lograft broker; check the port"
    HTTP2 = "speaks gRPC, but was not ready in time; is it overloaded?"
    OTHER = "speaks another protocol, so it is no Lograft broker; check the port"


def judge(words: bytes) -> Seen:
    """Return what a server is, from its answer to the beginning of an HTTP/2 connection.

    Args:
        words: the first bytes, at least `FIRST_WORDS_BYTES` if the server sent as many; empty if it closed the connection.
    """
    if not words:
        return Seen.CLOSED
    if words[0] in _TLS_TYPES and words[1:2] == b"\x03":
        return Seen.TLS
    # A server that does not know the HTTP version may omit the status line (HTTP/0.9).
    if words.startswith(b"HTTP/") or words.lower().startswith((b"<!doctype", b"<html")):
        return Seen.HTTP1
    if len(words) >= FIRST_WORDS_BYTES and words[3] == _SETTINGS and words[5:9] == bytes(4):
        return Seen.HTTP2
    return Seen.OTHER


def say(address: str, seen: Seen, words: bytes = b"") -> str:
    """Return a sentence about what the probe saw at an address, with advice."""
    shown = f" (it began with {words[:_SHOWN_BYTES]!r})" if seen is Seen.OTHER else ""
    return f"{address} {seen.value}{shown}"

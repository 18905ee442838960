# SPDX-License-Identifier: Apache-2.0
"""Values of a load of records: a name that is sent once, and a body computed from it, so that a changed value is detected. Pure."""

from __future__ import annotations

import hashlib

SEPARATOR = b" "


def encode_value(name: str, size_bytes: int = 0) -> bytes:
    """Return the value of a name without spaces, padded with a body to a size. If the size is too small, the value is the name."""
    head = name.encode()
    room_bytes = size_bytes - len(head) - len(SEPARATOR)
    return head + SEPARATOR + _body(head, room_bytes) if room_bytes > 0 else head


def decode_value(value: bytes | None) -> str:
    """Return the name of a value. For a changed value return a text that is no name; a checker then reports a value never sent."""
    head, separator, body = (value or b"").partition(SEPARATOR)
    if separator and body != _body(head, len(body)):
        return f"{head.decode(errors='replace')} with a changed body of {len(body)} bytes"
    return head.decode(errors="replace")


def _body(head: bytes, size_bytes: int) -> bytes:
    # The size is part of the input, so a shorter body is not a prefix of a longer one.
    return hashlib.shake_128(b"%d " % size_bytes + head).digest(size_bytes)

# SPDX-License-Identifier: Apache-2.0
"""Values of a load of records: a name that is sent once, and a body that follows from it, so that a changed value is noticed. Pure."""

from __future__ import annotations

import hashlib

SEPARATOR = b" "


def encode_value(name: str, size_bytes: int = 0) -> bytes:
    """Return the value of a name without spaces, filled up with a body to a size; the name alone when there is no room."""
    head = name.encode()
    room_bytes = size_bytes - len(head) - len(SEPARATOR)
    return head + SEPARATOR + _body(head, room_bytes) if room_bytes > 0 else head


def decode_value(value: bytes | None) -> str:
    """Return the name of a value; of a changed one a text that is no name, which a checker takes for a value that was not sent."""
    head, separator, body = (value or b"").partition(SEPARATOR)
    if separator and body != _body(head, len(body)):
        return f"{head.decode(errors='replace')} with a changed body of {len(body)} bytes"
    return head.decode(errors="replace")


def _body(head: bytes, size_bytes: int) -> bytes:
    # The size is in it: a shorter body is not a part of a longer one.
    return hashlib.shake_128(b"%d " % size_bytes + head).digest(size_bytes)

# SPDX-License-Identifier: Apache-2.0
"""Base-128 varints of the protobuf wire format, for the few places that read or write them by hand.

It reads a strict subset of what generated parsers accept: at most 9 bytes, so no negative numbers. A caller that meets another
varint falls back to the generated parser.
Source: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from lograft.wire.checksum import BytesLike

MAX_NUMBER_BYTES = 9
"""Longest varint of a number: 0 to 2**63 - 1."""

MAX_LENGTH_BYTES = 4
"""Longest varint of a length: 0 to 2**28 - 1, far above every message limit."""


def encode_varint(number: int) -> bytes:
    """Encode a number of at least 0."""
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def read_varint(buffer: BytesLike, position: int, max_bytes: int = MAX_NUMBER_BYTES) -> tuple[int, int]:
    """Read one varint.

    Returns:
        (number, position after it).

    Raises:
        IndexError: the buffer ends inside the varint.
        ValueError: the varint is longer than `max_bytes`.
    """
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    number = byte & 0x7F
    shift = 7
    for at in range(position + 1, position + max_bytes):
        byte = buffer[at]
        if byte < 0x80:
            return number | byte << shift, at + 1
        number |= (byte & 0x7F) << shift
        shift += 7
    raise ValueError(f"a varint takes more than {max_bytes} bytes")


_ONE_BYTE = [bytes([number]) for number in range(0x80)]

# SPDX-License-Identifier: Apache-2.0
"""The layout of the bulk messages: one message inside another, first small numbers, then a large body as field 15.

The encoder writes the same bytes as the generated code. The slicer accepts only the usual layout: fields ascending, each at
most once, the body present and last. It returns None for any other layout, and its caller uses the generated parser. This
module must not know the messages; `lograft.wire.frames` and the servers know them. Source:
protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from lograft.wire.checksum import BytesLike
from lograft.wire.varint import MAX_LENGTH_BYTES, encode_varint, read_varint

BODY_FIELD = 15
"""Field number of the body: the largest one with a tag of a single byte."""

_BODY_TAG = bytes([BODY_FIELD << 3 | 2])
_BODY_TAG_BYTE = _BODY_TAG[0]
_NUMBER_TAGS = [bytes([field << 3]) for field in range(BODY_FIELD)]
_MAX_INT32 = 2**31 - 1


def encode_frame(outer_tag: bytes, numbers: tuple[int, ...], body: tuple[BytesLike, ...]) -> bytes:
    """Write one frame. As in proto3, a number of 0 and an empty body are left out.

    Args:
        outer_tag: tag of the field of the outer message.
        numbers: fields 1, 2, ... of the inner message, each at least 0.
        body: the body in pieces.
    """
    inner = b"".join(
        [_NUMBER_TAGS[field] + encode_varint(number) for field, number in enumerate(numbers, start=1) if number]
    )
    body_bytes = sum(map(len, body))
    if body_bytes:
        inner += _BODY_TAG + encode_varint(body_bytes)
    return b"".join((outer_tag, encode_varint(len(inner) + body_bytes), inner, *body))


def slice_frame(
    data: bytes | bytearray, outer_tag: int, number_fields: int, int32_fields: tuple[int, ...]
) -> tuple[list[int], memoryview] | None:
    """Take the usual layout apart. Return None for any other layout.

    Args:
        data: the outer message.
        outer_tag: tag byte of the field of the outer message.
        number_fields: how many numbers the inner message has.
        int32_fields: the fields that are int32 or an enum; the others are int64.

    Returns:
        (numbers by field, 0 where absent; body).
    """
    end = len(data)
    try:
        if data[0] != outer_tag:
            return None
        length, position = read_varint(data, 1, MAX_LENGTH_BYTES)
        if position + length != end:
            return None
        numbers = [0] * (number_fields + 1)
        previous = 0
        while (tag := data[position]) != _BODY_TAG_BYTE:
            field = tag >> 3
            if tag & 7 or not previous < field <= number_fields:
                return None
            numbers[field], position = read_varint(data, position + 1)
            previous = field
        length, position = read_varint(data, position + 1, MAX_LENGTH_BYTES)
    except (IndexError, ValueError):
        return None
    if position + length != end:
        return None
    for field in int32_fields:
        if numbers[field] > _MAX_INT32:
            return None
    return numbers, memoryview(data)[position:]

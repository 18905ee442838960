# SPDX-License-Identifier: Apache-2.0
"""The four small messages of google.rpc in `grpc-status-details-bin`: Status, Any, ErrorInfo, RetryInfo.

They are written by hand so that the SDK does not need googleapis-common-protos. The decoders accept what any language sends,
and skip fields that they do not know. Source: google/rpc/status.proto, google/rpc/error_details.proto,
google/protobuf/{any,duration}.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from lograft.wire.checksum import BytesLike
from lograft.wire.varint import MAX_LENGTH_BYTES, encode_varint, read_varint

ERROR_INFO_TYPE = "google.rpc.ErrorInfo"
RETRY_INFO_TYPE = "google.rpc.RetryInfo"

_TYPE_URL_PREFIX = "type.googleapis.com/"
_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}


class Detail(NamedTuple):
    """A packed message: google.protobuf.Any.

    Attributes:
        type_name: full name of the message, without the URL before it.
        value: bytes of the message.
    """

    type_name: str
    value: bytes


class PackedStatus(NamedTuple):
    """google.rpc.Status."""

    code: int
    message: str
    details: list[Detail]


class ErrorInfo(NamedTuple):
    """google.rpc.ErrorInfo."""

    reason: str
    domain: str
    metadata: dict[str, str]


def encode_status(code: int, message: str, details: list[Detail]) -> bytes:
    """Encode a google.rpc.Status. `code` is the number of the gRPC status code."""
    packed = [
        _bytes_field(3, _text_field(1, _TYPE_URL_PREFIX + detail.type_name) + _bytes_field(2, detail.value))
        for detail in details
    ]
    return _number_field(1, code) + _text_field(2, message) + b"".join(packed)


def decode_status(data: bytes) -> PackedStatus:
    """Decode a google.rpc.Status.

    Raises:
        ValueError: the bytes are not such a message.
    """
    code = 0
    message = ""
    details: list[Detail] = []
    for field, content in _fields(data):
        if field == 1 and isinstance(content, int):
            code = content
        elif field == 2:
            message = _text(content)
        elif field == 3 and not isinstance(content, int):
            details.append(_decode_any(content))
    return PackedStatus(code, message, details)


def encode_error_info(reason: str, domain: str, metadata: Mapping[str, str]) -> bytes:
    """Encode a google.rpc.ErrorInfo."""
    entries = [_bytes_field(3, _text_field(1, key) + _text_field(2, value)) for key, value in metadata.items()]
    return _text_field(1, reason) + _text_field(2, domain) + b"".join(entries)


def decode_error_info(data: bytes) -> ErrorInfo:
    """Decode a google.rpc.ErrorInfo.

    Raises:
        ValueError: the bytes are not such a message.
    """
    texts = {1: "", 2: ""}
    metadata: dict[str, str] = {}
    for field, content in _fields(data):
        if field in texts:
            texts[field] = _text(content)
        elif field == 3 and not isinstance(content, int):
            entry = {1: "", 2: ""}
            entry.update((number, _text(text)) for number, text in _fields(content) if number in entry)
            metadata[entry[1]] = entry[2]
    return ErrorInfo(texts[1], texts[2], metadata)


def encode_retry_info(retry_after_ms: int) -> bytes:
    """Encode a google.rpc.RetryInfo. `retry_after_ms` is at least 0."""
    seconds, rest_ms = divmod(retry_after_ms, 1000)
    return _bytes_field(1, _number_field(1, seconds) + _number_field(2, rest_ms * 1_000_000))


def decode_retry_info(data: bytes) -> int:
    """Decode a google.rpc.RetryInfo to milliseconds, at least 0.

    Raises:
        ValueError: the bytes are not such a message.
    """
    duration = {1: 0, 2: 0}
    for field, content in _fields(data):
        if field == 1 and not isinstance(content, int):
            duration.update((part, number) for part, number in _fields(content) if isinstance(number, int))
    return duration[1] * 1000 + duration[2] // 1_000_000


def _decode_any(data: bytes) -> Detail:
    type_url = ""
    value = b""
    for field, content in _fields(data):
        if field == 1:
            type_url = _text(content)
        elif field == 2 and not isinstance(content, int):
            value = content
    return Detail(type_url.rpartition("/")[2], value)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message as (number, varint or bytes). Fields of fixed size are skipped.

    Raises:
        ValueError: the message is malformed.
    """
    position = 0
    try:
        while position < len(data):
            tag, position = read_varint(data, position, MAX_LENGTH_BYTES)
            field, wire_type = divmod(tag, 8)
            if wire_type == _VARINT:
                number, position = read_varint(data, position)
                yield field, number
            elif wire_type == _BYTES:
                length, position = read_varint(data, position, MAX_LENGTH_BYTES)
                if position + length > len(data):
                    raise ValueError("a field is cut off")
                yield field, data[position : position + length]
                position += length
            elif wire_type in _FIXED_BYTES:
                position += _FIXED_BYTES[wire_type]
            else:
                raise ValueError(f"wire type {wire_type} is not supported")
    except IndexError:
        raise ValueError("a field is cut off") from None


def _text(content: int | bytes) -> str:
    return content.decode("utf-8", "replace") if isinstance(content, bytes) else ""


def _number_field(field: int, number: int) -> bytes:
    return encode_varint(field << 3 | _VARINT) + encode_varint(number) if number else b""


def _text_field(field: int, text: str) -> bytes:
    return _bytes_field(field, text.encode("utf-8", "replace"))


def _bytes_field(field: int, content: BytesLike) -> bytes:
    return encode_varint(field << 3 | _BYTES) + encode_varint(len(content)) + content

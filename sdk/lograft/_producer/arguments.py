# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of `send` and `send_many`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from lograft._producer.bulk import LoosePiece
from lograft.errors import UsageError
from lograft.types import Headers
from lograft.wire.limits import MAX_TIMESTAMP_MS


def check_record(
    value: object, key: object, timestamp_ms: object, headers: object
) -> tuple[bytes | None, bytes | None, int | None, Headers | None]:
    """Check one record as the caller gave it. Copy bytearrays and memoryviews to bytes.

    Raises:
        UsageError: a field has the wrong type or range.
    """
    return (
        _check_bytes("value", value),
        _check_bytes("key", key),
        _check_timestamp(timestamp_ms),
        _check_headers(headers),
    )


def _check_bytes(name: str, value: object) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, memoryview):
        return value.tobytes()
    hint = "; encode it first" if isinstance(value, str) else ""
    raise UsageError(f"{name} is bytes or None, not {type(value).__name__}{hint}")


def _check_timestamp(timestamp_ms: object) -> int | None:
    if timestamp_ms is None:
        return None
    if isinstance(timestamp_ms, bool) or not isinstance(timestamp_ms, int):
        raise UsageError(f"timestamp_ms is a whole number of milliseconds since 1970, not {timestamp_ms!r}")
    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise UsageError(f"timestamp_ms is {timestamp_ms}; it must be between 0 and {MAX_TIMESTAMP_MS}")
    return timestamp_ms


def _check_headers(headers: object) -> Headers | None:
    if headers is None:
        return None
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise UsageError(f"headers is a list of (name, value) pairs, not {type(headers).__name__}")
    checked: list[tuple[str, bytes | None]] = []
    for pair in cast("Sequence[object]", headers):
        fields = cast("Sequence[object]", pair) if isinstance(pair, tuple | list) else ()
        if len(fields) != 2:
            raise UsageError(f"a header is a (name, value) pair, not {pair!r}")
        name, value = fields
        if not isinstance(name, str):
            raise UsageError(f"the name of a header is text, not {name!r}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"the name of a header is no valid Unicode: {error}") from None
        checked.append((name, _check_bytes(f"value of header {name!r}", value)))
    return checked or None


def check_columns(
    values: Sequence[bytes], keys: Sequence[bytes | None] | None, timestamps_ms: Sequence[int] | None
) -> None:
    """Check that the columns have the same length and that timestamps are in range.

    Raises:
        UsageError: the lengths differ, or a timestamp is out of range.
    """
    for name, column in (("keys", keys), ("timestamps_ms", timestamps_ms)):
        if column is not None and len(column) != len(values):
            raise UsageError(f"{len(column)} {name} for {len(values)} values")
    if timestamps_ms:
        try:
            ends = min(timestamps_ms), max(timestamps_ms)
        except TypeError as error:
            raise UsageError(f"timestamps_ms are whole numbers of milliseconds since 1970: {error}") from None
        for timestamp_ms in ends:
            _check_timestamp(timestamp_ms)


def is_plain(piece: LoosePiece) -> bool:
    """True when values are bytes, keys are bytes or None, and timestamps are int. Such a piece needs no check for each record."""
    if set(map(type, piece.values)) - {bytes}:
        return False
    if piece.timestamps_ms is not None and set(map(type, piece.timestamps_ms)) - {int}:
        return False
    return piece.keys is None or not set(map(type, piece.keys)) - {bytes, type(None)}

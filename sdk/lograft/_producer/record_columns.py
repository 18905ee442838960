# SPDX-License-Identifier: Apache-2.0
"""Sizes of records as the accumulator counts them, and the columns it keeps them in. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lograft.types import Headers

RECORD_OVERHEAD_BYTES: Final = 16
"""Bytes counted for a record beside value and key: two lengths, a null index, a timestamp delta, a header count."""
NULL_BYTES: Final = 3
"""Bytes counted for a null value: its index in the list of nulls."""
TIMESTAMP_BYTES: Final = 10
"""Bytes counted for a timestamp of its own: the longest varint."""
HEADER_OVERHEAD_BYTES: Final = 12
"""Bytes counted for a record header beside its name and value."""


def no_headers(count: int) -> list[Headers]:
    """Empty headers for `count` records."""
    return [()] * count


def record_size(value: bytes | None, key: bytes | None, timestamp_ms: int | None, headers: Headers | None) -> int:
    """Bytes that a record takes at most in an encoded batch."""
    size = RECORD_OVERHEAD_BYTES + (NULL_BYTES if value is None else len(value)) + (0 if key is None else len(key))
    if timestamp_ms is not None:
        size += TIMESTAMP_BYTES
    if headers:
        for name, data in headers:
            # A character takes at most four bytes of UTF-8.
            size += HEADER_OVERHEAD_BYTES + 4 * len(name) + (len(data) if data is not None else 0)
    return size


def interleave(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> list[bytes | None]:
    """Values and keys in turns; without keys, None in their places."""
    flat: list[bytes | None] = [None] * (2 * len(values))
    flat[::2] = values
    if keys is not None:
        flat[1::2] = keys
    return flat


def expand(marks: Sequence[tuple[int, int]], count: int) -> list[int]:
    """One timestamp for each of `count` records out of (records before, timestamp) marks."""
    expanded: list[int] = []
    ends = [start for start, _ in marks[1:]] + [count]
    for (start, timestamp_ms), end in zip(marks, ends, strict=True):
        expanded += [timestamp_ms] * (end - start)
    return expanded

# SPDX-License-Identifier: Apache-2.0
"""Sizes of records as the accumulator counts them, and the columns in which it keeps records. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lograft.types import Headers

RECORD_OVERHEAD_BYTES: Final = 16
"""Bytes counted for a record besides value and key: two lengths, a null index, a timestamp delta, a header count."""
NULL_BYTES: Final = 3
"""Bytes counted for a null value: its index in the list of nulls."""
TIMESTAMP_BYTES: Final = 10
"""Bytes counted for a timestamp that the caller gave: the longest varint."""
HEADER_OVERHEAD_BYTES: Final = 12
"""Bytes counted for a record header besides its name and value."""


def no_headers(count: int) -> list[Headers]:
    """Return empty headers for `count` records."""
    return [()] * count


def record_size(value: bytes | None, key: bytes | None, timestamp_ms: int | None, headers: Headers | None) -> int:
    """Return the most bytes that a record takes in an encoded batch."""
    size = RECORD_OVERHEAD_BYTES + (NULL_BYTES if value is None else len(value)) + (0 if key is None else len(key))
    if timestamp_ms is not None:
        size += TIMESTAMP_BYTES
    if headers:
        for name, data in headers:
            # A character takes at most four bytes of UTF-8.
            size += HEADER_OVERHEAD_BYTES + 4 * len(name) + (len(data) if data is not None else 0)
    return size


def interleave(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None) -> list[bytes | None]:
    """Return values and keys alternately; without keys, None in their positions."""
    flat: list[bytes | None] = [None] * (2 * len(values))
    flat[::2] = values
    if keys is not None:
        flat[1::2] = keys
    return flat


def expand(marks: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Return one timestamp for each of `count` records from (records before, timestamp) marks."""
    expanded: list[int] = []
    ends = [start for start, _ in marks[1:]] + [count]
    for (start, timestamp_ms), end in zip(marks, ends, strict=True):
        expanded += [timestamp_ms] * (end - start)
    return expanded

# SPDX-License-Identifier: Apache-2.0
"""The offset index of one segment."""

from __future__ import annotations

import sys
from array import array

import pytest

from storage.segment.offset_index import OffsetIndex, to_big_endian
from storage.types import Boundary


def filled() -> OffsetIndex:
    index = OffsetIndex(100)
    for offset, position in ((110, 500), (120, 1_000), (150, 9_000)):
        index.add(offset, position)
    return index


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(0, (100, 0)), (100, (100, 0)), (109, (100, 0)), (110, (110, 500)), (149, (120, 1_000)), (10_000, (150, 9_000))],
)
def test_floor_offset(offset: int, expected: tuple[int, int]) -> None:
    """The last entry at or below an offset is found; the segment's start before the first entry."""
    assert filled().floor_offset(offset) == Boundary(*expected)


@pytest.mark.parametrize(
    ("position", "expected"),
    [(0, (100, 0)), (499, (100, 0)), (500, (110, 500)), (8_999, (120, 1_000)), (10**9, (150, 9_000))],
)
def test_floor_position(position: int, expected: tuple[int, int]) -> None:
    """The last entry at or below a byte position is found."""
    assert filled().floor_position(position) == Boundary(*expected)


@pytest.mark.parametrize(("position", "left"), [(0, 0), (500, 0), (501, 1), (9_000, 2), (9_001, 3)])
def test_truncate_drops_entries_at_and_after_the_cut(position: int, left: int) -> None:
    """Batches that start at the new end or beyond lose their entries."""
    index = filled()
    index.truncate(position)
    assert len(index) == left
    assert index.entry_bytes == left * 8


@pytest.mark.parametrize(("offset", "position"), [(150, 9_500), (160, 9_000), (99, 9_500), (100 + 2**31, 9_500)])
def test_entries_must_increase(offset: int, position: int) -> None:
    """An entry that does not increase, or does not fit, is a programmer error."""
    with pytest.raises(AssertionError):
        filled().add(offset, position)


def test_round_trip() -> None:
    """A decoded index answers like the encoded one."""
    data = filled().encode(log_bytes=12_345, end_offset=160)
    index = OffsetIndex.decode(data, base_offset=100, log_bytes=12_345, end_offset=160)
    assert index is not None
    assert [index.floor_offset(offset) for offset in range(100, 160)] == [
        filled().floor_offset(offset) for offset in range(100, 160)
    ]
    empty = OffsetIndex(7).encode(log_bytes=1, end_offset=8)
    assert OffsetIndex.decode(empty, base_offset=7, log_bytes=1, end_offset=8) is not None


def test_stale_or_damaged_file_is_not_used() -> None:
    """A file of another log size or end, truncated, lengthened or with a flipped bit, is refused."""
    data = filled().encode(log_bytes=12_345, end_offset=160)
    assert OffsetIndex.decode(data, base_offset=100, log_bytes=12_346, end_offset=160) is None
    assert OffsetIndex.decode(data, base_offset=100, log_bytes=12_345, end_offset=161) is None
    for size in range(len(data)):
        assert OffsetIndex.decode(data[:size], base_offset=100, log_bytes=12_345, end_offset=160) is None
    assert OffsetIndex.decode(bytes(8) + data, base_offset=100, log_bytes=12_345, end_offset=160) is None
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert OffsetIndex.decode(bytes(flipped), base_offset=100, log_bytes=12_345, end_offset=160) is None


def test_byte_order_of_the_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A big-endian machine writes numbers as they are; this one swaps them."""
    values = array("I", [1])
    monkeypatch.setattr(sys, "byteorder", "big")
    to_big_endian(values)
    assert values[0] == 1
    monkeypatch.setattr(sys, "byteorder", "little")
    to_big_endian(values)
    assert values[0] == 1 << 24

# SPDX-License-Identifier: Apache-2.0
"""The time index of one segment."""

from __future__ import annotations

import pytest

from storage.segment.time_index import TimeIndex


def filled() -> TimeIndex:
    index = TimeIndex(100)
    for timestamp_ms, offset in ((1_000, 110), (2_000, 120), (2_000, 130), (5_000, 150)):
        index.note(timestamp_ms, offset)
    return index


@pytest.mark.parametrize(
    ("timestamp_ms", "offset"), [(0, None), (1_000, None), (1_001, 110), (2_000, 110), (2_001, 130), (9_000, 150)]
)
def test_skip_to_passes_only_earlier_batches(timestamp_ms: int, offset: int | None) -> None:
    """Batches are skipped only if everything in them is earlier than the timestamp."""
    assert filled().skip_to(timestamp_ms) == offset


def test_same_timestamp_reaches_further_without_a_new_entry() -> None:
    """Timestamps of entries increase strictly; a repeated one extends the last entry."""
    assert len(filled()) == 3
    assert filled().entry_bytes == 36


def test_timestamp_must_not_go_back() -> None:
    """The largest timestamp so far never decreases, and offsets must fit."""
    with pytest.raises(AssertionError):
        filled().note(4_999, 160)
    with pytest.raises(AssertionError):
        filled().note(6_000, 99)


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (110, 0), (111, 1), (150, 2), (151, 3)])
def test_truncate_drops_entries_that_count_later_batches(offset: int, left: int) -> None:
    """Entries that cover a batch beyond the new end are dropped."""
    index = filled()
    index.truncate(offset)
    assert len(index) == left


def test_round_trip() -> None:
    """A decoded index answers like the encoded one."""
    data = filled().encode(log_bytes=77, first_timestamp_ms=900, max_timestamp_ms=5_000)
    decoded = TimeIndex.decode(data, base_offset=100, log_bytes=77)
    assert decoded is not None
    assert (decoded.first_timestamp_ms, decoded.max_timestamp_ms) == (900, 5_000)
    assert [decoded.index.skip_to(ms) for ms in range(0, 6_000, 100)] == [
        filled().skip_to(ms) for ms in range(0, 6_000, 100)
    ]


def test_stale_or_damaged_file_is_not_used() -> None:
    """A file of another log size, truncated, lengthened or with a flipped bit, is refused."""
    data = filled().encode(log_bytes=77, first_timestamp_ms=900, max_timestamp_ms=5_000)
    assert TimeIndex.decode(data, base_offset=100, log_bytes=78) is None
    for size in range(len(data)):
        assert TimeIndex.decode(data[:size], base_offset=100, log_bytes=77) is None
    assert TimeIndex.decode(bytes(12) + data, base_offset=100, log_bytes=77) is None
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert TimeIndex.decode(bytes(flipped), base_offset=100, log_bytes=77) is None

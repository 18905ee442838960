# SPDX-License-Identifier: Apache-2.0
"""Estimates of where the bytes of a partition are, against logs whose sizes are known."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.spark.record_sizes import (
    WINDOW_BYTES,
    WINDOW_RECORDS,
    ByteWalk,
    Profile,
    Window,
    byte_shares,
    shares,
    walked,
    window_offsets,
    windows_per_range,
)

SIZES = st.dictionaries(st.integers(0, 400), st.integers(0, 50_000), max_size=120)


def look(log: Mapping[int, int], offset: int, end: int) -> Window:
    """Read a window of a log, as the brokers do: sizes by offset, with holes; `end` is the high watermark."""
    ends: list[int] = []
    sizes: list[int] = []
    for at in sorted(log):
        if at < offset or at >= end:
            continue
        if len(ends) == WINDOW_RECORDS or sum(sizes) >= WINDOW_BYTES:
            return Window(offset, tuple(ends), tuple(sizes), ends[-1])
        ends.append(at + 1)
        sizes.append(log[at])
    return Window(offset, tuple(ends), tuple(sizes), max(end, offset))


def profile(log: Mapping[int, int], start: int, end: int, count: int) -> Profile:
    return Profile(start, end, [look(log, offset, end) for offset in window_offsets(start, end, count)])


def walk(log: Mapping[int, int], start: int, end: int, limit: int) -> ByteWalk:
    walking = ByteWalk(start, end, limit, expected_end=end)
    while not walking.is_done:
        walking.take(look(log, walking.position, end))
    return walking


def test_windows_begin_at_the_start_and_are_spread_evenly() -> None:
    """A short range has a window at every offset at most."""
    assert window_offsets(10, 90, 4) == [10, 30, 50, 70]
    assert window_offsets(10, 12, 16) == [10, 11]
    assert window_offsets(10, 10, 4) == []
    assert [windows_per_range(count, 16, 4_096) for count in (0, 1, 512, 100_000)] == [16, 16, 8, 1]


def test_profile_finds_the_heavy_end_of_an_uneven_log() -> None:
    """A part at the heavy end has few offsets, one at the light end many."""
    log = {offset: 10 if offset < 900 else 10_000 for offset in range(1_000)}
    found = profile(log, 0, 1_000, 16)
    edges = found.parts(4)
    weights = [sum(log[offset] for offset in range(start, end)) for start, end in itertools.pairwise(edges)]
    assert edges[1] > 800
    assert max(weights) < 2 * sum(log.values()) / 4


def test_profile_without_windows_weighs_offsets_equally() -> None:
    """Where nothing is known, parts have equally many offsets."""
    found = Profile(100, 200, ())
    assert found.total_bytes == 100
    assert found.parts(4) == [100, 125, 150, 175, 200]


@settings(deadline=None)
@given(
    log=SIZES, start=st.integers(0, 200), size=st.integers(1, 200), count=st.integers(1, 16), parts=st.integers(1, 40)
)
def test_parts_of_a_profile_are_not_empty_and_cover_the_range(
    log: dict[int, int], start: int, size: int, count: int, parts: int
) -> None:
    """Whatever the sizes and the holes are, parts ascend from the start to the end."""
    end = start + size
    parts = min(parts, size)
    found = profile(log, start, end, count)
    edges = found.parts(parts)
    assert (edges[0], edges[-1], len(edges)) == (start, end, parts + 1)
    assert all(one < other for one, other in itertools.pairwise(edges))
    assert found.total_bytes >= size


@settings(deadline=None)
@given(log=SIZES, start=st.integers(0, 300), size=st.integers(0, 200), limit=st.integers(0, 400_000))
def test_walk_is_exact_where_every_record_is_seen(log: dict[int, int], start: int, size: int, limit: int) -> None:
    """Logs that fit into a few windows are walked record by record: all that fits, and no more."""
    end = start + size
    walking = walk({offset: each for offset, each in log.items() if offset < end}, start, end, limit * 16)
    inside = sum(each for offset, each in log.items() if start <= offset < walking.position)
    assert start <= walking.position <= max(start, end)
    assert inside <= limit * 16
    if walking.position < end:
        following = min((offset for offset in log if offset >= walking.position), default=None)
        assert following is not None
        assert inside + log[following] > limit * 16


@pytest.mark.parametrize("period", [1, 7, 5_000, 60_000])
def test_walk_over_a_large_log_is_near_the_limit(period: int) -> None:
    """Sizes that change slowly or quickly are estimated within a quarter, with a few dozen looks."""
    sizes = [100 if (offset // period) % 2 else 2_000 for offset in range(200_000)]
    log_ends = list(range(1, len(sizes) + 1))
    limit = 20_000_000
    # As if the records had been found to have half of their mean size.
    walking, looks = ByteWalk(0, len(sizes), limit, expected_end=2 * limit // 1_050), 0
    while not walking.is_done:
        at = bisect_left(log_ends, walking.position + 1)
        ends, window = log_ends[at : at + WINDOW_RECORDS], sizes[at : at + WINDOW_RECORDS]
        while sum(window) > WINDOW_BYTES + max(window):
            ends, window = ends[:-1], window[:-1]
        walking.take(Window(walking.position, tuple(ends), tuple(window), ends[-1]))
        looks += 1
    assert 0.75 * limit < sum(sizes[: walking.position]) < 1.25 * limit
    assert looks <= 64


@given(limit=st.integers(0, 1_000), wanted=st.lists(st.integers(0, 300), max_size=12), turn=st.integers(0, 2**32 - 1))
def test_shares_give_the_whole_limit_and_nobody_too_much(limit: int, wanted: list[int], turn: int) -> None:
    """All is given that is wanted, or the whole limit. Nobody goes without if there is one for each."""
    given_shares = shares(limit, wanted, turn)
    assert sum(given_shares) == min(limit, sum(wanted))
    assert all(0 <= share <= each for share, each in zip(given_shares, wanted, strict=True))
    if limit >= sum(each > 0 for each in wanted):
        assert all(share > 0 for share, each in zip(given_shares, wanted, strict=True) if each > 0)


def test_shares_are_in_proportion() -> None:
    """A partition with ten times as much to read gets ten times as much of a limit."""
    assert shares(110, [1_000, 100, 0], 0) == [100, 10, 0]


def test_partitions_take_turns_when_the_limit_is_too_small_for_all() -> None:
    """Over all turns each partition gets the same."""
    total = [sum(each) for each in zip(*(shares(2, [5, 5, 5], turn) for turn in range(3)), strict=True)]
    assert total == [2, 2, 2]


def test_bytes_that_are_left_are_shared_because_sizes_are_estimates() -> None:
    """If everything seems to fit, each share is larger than the estimate."""
    assert byte_shares(400, [100, 100], 0) == [200, 200]
    assert byte_shares(100, [100, 100], 0) == [50, 50]
    assert byte_shares(100, [], 0) == []


def test_record_larger_than_its_share_comes_in_turn() -> None:
    """A micro-batch always advances, and what others leave is used."""

    def stuck(size: int) -> ByteWalk:
        return walk({0: size, 1: size}, 0, 2, 10)

    assert walked([stuck(100), stuck(100)], 20, 0) == [1, 0]
    assert walked([stuck(100), stuck(100)], 20, 1) == [0, 1]
    assert walked([stuck(15), stuck(15)], 31, 0) == [1, 1]
    assert walked([walk({0: 5}, 0, 1, 10), stuck(15)], 20, 0) == [1, 1]
    assert walked([walk({0: 5}, 0, 1, 10), stuck(16)], 20, 0) == [1, 0]

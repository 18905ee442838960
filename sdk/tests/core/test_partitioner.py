# SPDX-License-Identifier: Apache-2.0
"""Partitions of keys, and the cutting of many records into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lograft._bulk import cut
from lograft._core.partitioner import group_by_partition, partition_by_keys
from lograft.wire.partitioner import partition_for_key


@given(keys=st.lists(st.none() | st.binary(max_size=20)), count=st.integers(1, 50))
def test_keys_go_where_the_brokers_append_puts_them(keys: list[bytes | None], count: int) -> None:
    """A key has the same partition in the producer as in the shared rule; a missing key gets the given one."""
    expected = [-1 if key is None else partition_for_key(key, count) for key in keys]
    assert partition_by_keys(keys, count, keyless=-1) == expected


@given(partitions=st.lists(st.integers(-1, 5)))
def test_groups_hold_every_index_once_in_order(partitions: list[int]) -> None:
    """Grouping loses and repeats nothing, and keeps the order within a partition."""
    groups = group_by_partition(partitions)
    assert sorted(index for group in groups.values() for index in group) == list(range(len(partitions)))
    for partition, group in groups.items():
        assert group == sorted(group)
        assert all(partitions[index] == partition for index in group)


@given(
    rows=st.lists(st.tuples(st.binary(max_size=300), st.none() | st.binary(max_size=5), st.integers(0, 99))),
    with_keys=st.booleans(),
    with_times=st.booleans(),
    partition=st.none() | st.integers(0, 2),
    batch_bytes=st.integers(8, 5_000),
)
def test_pieces_hold_every_record_once_in_order_and_within_size(
    rows: list[tuple[bytes, bytes | None, int]],
    with_keys: bool,
    with_times: bool,
    partition: int | None,
    batch_bytes: int,
) -> None:
    """Pieces of a partition, put together, are its records in order; only a single record may be over the size."""
    keys = [row[1] for row in rows] if with_keys else None
    times = [row[2] for row in rows] if with_times else None
    found: dict[int | None, list[tuple[bytes, bytes | None, int | None]]] = {}
    for piece in cut(
        [row[0] for row in rows], keys, times, partition=partition, partition_count=3, batch_bytes=batch_bytes
    ):
        some_keys = piece.keys or [None] * len(piece.values)
        some_times = piece.timestamps_ms or [None] * len(piece.values)
        assert piece.size_bytes == sum(map(len, piece.values)) + sum(len(key) for key in some_keys if key)
        assert piece.size_bytes <= max(1, batch_bytes // 8) or len(piece.values) == 1
        found.setdefault(piece.partition, []).extend(zip(piece.values, some_keys, some_times, strict=True))
    expected: dict[int | None, list[tuple[bytes, bytes | None, int | None]]] = {}
    for value, key, time_ms in rows:
        used = key if with_keys else None
        place = partition if partition is not None or used is None else partition_for_key(used, 3)
        expected.setdefault(place, []).append((value, used, time_ms if with_times else None))
    assert found == expected

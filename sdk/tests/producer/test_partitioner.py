# SPDX-License-Identifier: Apache-2.0
"""Partitions of keys, and the cutting of many records into pieces."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lograft._producer.arguments import is_plain
from lograft._producer.bulk import LoosePiece, cut
from lograft._producer.partitioner import group_by_partition, partition_by_keys
from lograft.wire.batch import Codec, RecordBatch
from lograft.wire.limits import MAX_BATCH_BYTES
from lograft.wire.partitioner import partition_for_key


@given(keys=st.lists(st.none() | st.binary(max_size=20)), count=st.integers(1, 50))
def test_keys_go_where_the_brokers_append_puts_them(keys: list[bytes | None], count: int) -> None:
    """A key has the same partition in the producer as in the shared rule. A missing key gets the given partition."""
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
    uniform=st.booleans(),
    partition=st.none() | st.integers(0, 2),
    batch_bytes=st.integers(8, 5_000),
    codec=st.sampled_from(Codec),
)
def test_pieces_hold_every_record_once_in_order_and_within_size(
    rows: list[tuple[bytes, bytes | None, int]],
    with_keys: bool,
    with_times: bool,
    uniform: bool,
    partition: int | None,
    batch_bytes: int,
    codec: Codec,
) -> None:
    """The pieces of a partition together are its records in order. Only a single record may exceed the size."""
    values = [(row[0] * 3 + bytes(8))[:8] if uniform else row[0] for row in rows]
    keys = [row[1] for row in rows] if with_keys else None
    times = [row[2] for row in rows] if with_times else None
    found: dict[int | None, list[tuple[bytes, bytes | None, int]]] = {}
    for piece in cut(
        values,
        keys,
        times,
        partition=partition,
        partition_count=3,
        batch_bytes=batch_bytes,
        codec=codec,
        wall_clock_ms=lambda: 7,
    ):
        some = found.setdefault(piece.partition, [])
        if isinstance(piece, LoosePiece):
            some_keys = piece.keys or [None] * len(piece.values)
            some_times = piece.timestamps_ms or [7] * len(piece.values)
            some.extend(zip(piece.values, some_keys, some_times, strict=True))
            size = sum(map(len, piece.values)) + sum(len(key) for key in some_keys if key)
            assert size * 2 < batch_bytes
            continue
        assert len(piece.body) <= batch_bytes or piece.record_count == 1
        records = RecordBatch(piece.body.join())
        assert records.record_count == piece.record_count
        some.extend((bytes(record.value or b""), record.key, record.timestamp_ms) for record in records.records())
    expected: dict[int | None, list[tuple[bytes, bytes | None, int]]] = {}
    for value, (_, key, time_ms) in zip(values, rows, strict=True):
        used = key if with_keys else None
        place = partition if partition is not None or used is None else partition_for_key(used, 3)
        expected.setdefault(place, []).append((value, used, time_ms if with_times else 7))
    assert found == expected


def test_records_of_a_topic_of_one_partition_keep_their_order() -> None:
    """Also between records with a key and records without one."""
    keys = [None if index % 3 else b"key-%d" % index for index in range(100)]
    values = [b"value-%d" % index for index in range(100)]
    found: list[tuple[bytes | None, bytes | None]] = []
    for piece in cut(
        values,
        keys,
        None,
        partition=None,
        partition_count=1,
        batch_bytes=400,
        codec=Codec.NONE,
        wall_clock_ms=lambda: 7,
    ):
        if isinstance(piece, LoosePiece):
            found.extend(zip(piece.keys or [None] * len(piece.values), piece.values, strict=True))
        else:
            found.extend((record.key, record.value) for record in RecordBatch(piece.body.join()).records())
    assert found == list(zip(keys, values, strict=True))


BAD_COLUMNS: dict[str, tuple[list[Any], list[Any] | None]] = {
    "a null": ([bytes(3_000), None], None),
    "text": ([bytes(3_000), "a" * 3_000], None),
    "a number": ([bytes(3_000), 7], None),
    "wide items": ([bytes(3_000), memoryview(array("I", [1] * 700))], None),
    "a key of text": ([bytes(3_000)] * 2, [b"a", "b" * 9]),
    "a key of a number": ([bytes(3_000)] * 2, [b"a", 7]),
}


@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_what_is_not_bytes_is_left_to_the_way_of_single_records(name: str, partition: int | None) -> None:
    """Cutting refuses nothing: a record that is not bytes ends up in a loose piece. No record is lost or wrongly encoded."""
    values, keys = BAD_COLUMNS[name]
    pieces = list(
        cut(
            values,
            keys,
            None,
            partition=partition,
            partition_count=3,
            batch_bytes=4_000,
            codec=Codec.NONE,
            wall_clock_ms=lambda: 7,
        )
    )
    assert sum(len(p.values) if isinstance(p, LoosePiece) else p.record_count for p in pieces) == 2
    assert any(isinstance(p, LoosePiece) and not is_plain(p) for p in pieces)


def test_a_record_that_no_batch_can_hold_is_left_to_the_way_of_single_records() -> None:
    """A value over the limit of the format does not stop the other records."""
    values = [b"a", bytes(MAX_BATCH_BYTES), b"c"]
    pieces = list(
        cut(
            values,
            None,
            None,
            partition=0,
            partition_count=1,
            batch_bytes=MAX_BATCH_BYTES,
            codec=Codec.NONE,
            wall_clock_ms=lambda: 7,
        )
    )
    assert [len(p.values) if isinstance(p, LoosePiece) else p.record_count for p in pieces] == [1, 1, 1]
    assert isinstance(pieces[1], LoosePiece)

# SPDX-License-Identifier: Apache-2.0
"""Arrow rows on their way into batches: the partitions of whole columns of keys, gathered rows, and whose memory batches hold."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft._producer import arrow, key_columns
from lograft._producer.arrow import encode_rows
from lograft._producer.key_columns import MAX_EQUAL_KEY_BYTES, MAX_KEY_BYTES, group_rows
from lograft._producer.partitioner import CRC32C, MURMUR2, KeyRule, partition_by_keys
from lograft.wire.batch import Codec, RecordBatch

np: Any = pytest.importorskip("numpy")

KINDS = (pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.binary()))
LONG = MAX_EQUAL_KEY_BYTES + 2


def equal_keys(length: int) -> st.SearchStrategy[list[bytes | None]]:
    """Keys of one length, some missing."""
    return st.lists(st.none() | st.binary(min_size=length, max_size=length), min_size=1)


def partitions_of(keys: list[bytes | None], count: int, rule: KeyRule) -> list[int]:
    """The partition of each key, by the step for each record."""
    return partition_by_keys(keys, count, keyless=-1, rule=rule, topic="t")


@settings(deadline=None)  # the first array of a process loads pandas
@given(
    keys=st.one_of(
        st.lists(st.none() | st.binary(max_size=MAX_KEY_BYTES), min_size=1),
        st.lists(st.none() | st.binary(max_size=LONG), min_size=1),
        st.integers(0, LONG).flatmap(equal_keys),
    ),
    count=st.integers(1, 50) | st.sampled_from((32_767, 32_768, 100_000)),
    skip=st.integers(0, 3),
    kind=st.sampled_from(KINDS),
    rule=st.sampled_from((CRC32C, MURMUR2, KeyRule(function=lambda topic, key, count: len(topic + str(key)) % count))),
)
def test_columns_have_the_partitions_of_their_keys(
    keys: list[bytes | None], count: int, skip: int, kind: pa.DataType, rule: KeyRule
) -> None:
    """Each row is in the group of its key's partition, once, in order. It does not matter which memory a slice shows."""
    column = pa.array([b"other"] * skip + keys, pa.binary()).cast(kind).slice(skip)
    grouping = group_rows(column, count, rule=rule, topic="t")
    assert grouping is not None
    order = list(range(len(keys))) if grouping.order is None else grouping.order.tolist()
    found = {row: number for number, first, end in grouping.groups for row in order[first:end]}
    expected = partitions_of(keys, count, rule)
    assert [found[row] for row in range(len(keys))] == [None if each < 0 else each for each in expected]
    for _, first, end in grouping.groups:
        assert order[first:end] == sorted(order[first:end])
    assert sorted(order) == list(range(len(keys)))


def test_strings_are_keys_of_their_bytes() -> None:
    """Text has the partitions of its UTF-8."""
    keys = ["", "a", "grün", "a", None]
    grouping = group_rows(pa.array(keys, pa.string()), 5, rule=CRC32C, topic="t")
    assert grouping is not None
    encoded = [None if key is None else key.encode() for key in keys]
    found = {row: number for number, first, end in grouping.groups for row in grouping.order[first:end].tolist()}
    assert [found[row] for row in range(len(keys))] == [None if p < 0 else p for p in partitions_of(encoded, 5, CRC32C)]


def pieces(rows: pa.RecordBatch, **changed: Any) -> dict[int | None, list[tuple[bytes | None, bytes | None]]]:
    """The (key, value) pairs of each partition, in the order of their batches."""
    given: dict[str, Any] = {
        "partition": None,
        "partition_count": 4,
        "rule": CRC32C,
        "topic": "t",
        "batch_bytes": 400,
        "codec": Codec.NONE,
        "wall_ms": 7,
    }
    found: dict[int | None, list[tuple[bytes | None, bytes | None]]] = {}
    for piece in encode_rows(rows, **{**given, **changed}):
        batch = RecordBatch(piece.body.join())
        assert batch.record_count == piece.record_count
        found.setdefault(piece.partition, []).extend(zip(batch.keys(), batch.values(), strict=True))
    return found


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("step_rows", [1, 7, 1 << 16])
def test_gathered_rows_are_those_of_the_step_for_each_record(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, step_rows: int
) -> None:
    """With and without numpy, for any size of a step, a partition has the same records in the same order."""
    count = 300
    keys = [None if index % 7 == 0 else b"key-%d" % (index * index) for index in range(count)]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array([b"value-%d" % index for index in range(count)], pa.binary())],
        names=["key", "value"],
    )
    monkeypatch.setattr(arrow, "STEP_ROWS", step_rows)
    found = pieces(rows, codec=codec)
    expected: dict[int | None, list[tuple[bytes | None, bytes | None]]] = {}
    for row, number in enumerate(partitions_of(keys, 4, CRC32C)):
        expected.setdefault(None if number < 0 else number, []).append((keys[row], b"value-%d" % row))
    assert found == expected
    monkeypatch.setattr(key_columns, "load_numpy", lambda: None)
    assert pieces(rows, codec=codec) == expected


def test_rows_of_a_topic_of_one_partition_keep_their_order() -> None:
    """Also between rows with a key and rows without one."""
    keys = [None if index % 3 else b"key-%d" % index for index in range(100)]
    values = [b"value-%d" % index for index in range(100)]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=["key", "value"]
    )
    found = [pair for pairs in pieces(rows, partition_count=1).values() for pair in pairs]
    assert found == list(zip(keys, values, strict=True))


@pytest.mark.parametrize("partition", [None, 1])
@pytest.mark.parametrize("is_keyed", [False, True])
def test_batches_do_not_change_with_the_callers_memory(partition: int | None, is_keyed: bool) -> None:
    """A program may reuse the memory of its rows once the call has returned."""
    memory = np.frombuffer(bytearray(b"0123456789" * 20), np.uint8)
    offsets = pa.py_buffer(np.arange(0, 201, 10, dtype=np.int32))
    values = pa.Array.from_buffers(pa.binary(), 20, [None, offsets, pa.py_buffer(memory)])
    columns = {"value": values}
    if is_keyed:
        columns["key"] = pa.array([b"%d" % index for index in range(20)], pa.binary())
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    encoded = list(
        encode_rows(
            rows,
            partition=partition,
            partition_count=4,
            rule=CRC32C,
            topic="t",
            batch_bytes=10_000,
            codec=Codec.NONE,
            wall_ms=7,
        )
    )
    memory[:] = ord("x")
    found = [value for piece in encoded for value in RecordBatch(piece.body.join()).values()]
    assert found == [b"0123456789"] * 20


def test_batches_of_gathered_rows_hold_no_memory_of_others() -> None:
    """What a batch keeps until it is acknowledged is what the producer's buffer counts for it, with rows of any sizes."""
    count = 400
    values = [bytes(2_000 if index < 20 else 10) for index in range(count)]
    rows = pa.RecordBatch.from_arrays(
        [pa.array([b"%d" % index for index in range(count)], pa.binary()), pa.array(values, pa.binary())],
        names=["key", "value"],
    )
    before = pa.total_allocated_bytes()
    encoded = list(
        encode_rows(
            rows,
            partition=None,
            partition_count=4,
            rule=CRC32C,
            topic="t",
            batch_bytes=3_000,
            codec=Codec.NONE,
            wall_ms=7,
        )
    )
    assert len(encoded) > 20
    encoded = encoded[::5]
    kept_bytes = pa.total_allocated_bytes() - before
    # Arrow rounds its buffers up to 64 bytes; a batch has keys and values with their offsets.
    assert kept_bytes <= sum(len(piece.body) + 8 * piece.record_count + 6 * 64 for piece in encoded)

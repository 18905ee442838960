# SPDX-License-Identifier: Apache-2.0
"""Fetched batches as rows for Spark. No Spark session is needed."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from lograft.fetched import FetchedBatch
from lograft.spark import arrow_rows
from lograft.spark.arrow_rows import arrow_schema, joined, rows_of, rows_of_range
from lograft.spark.conditions import ALL_ROWS, RowConditions
from lograft.spark.schema import row_schema
from lograft.spark.settings import COLUMNS, HEADERS_COLUMN
from lograft.types import TopicPartition
from lograft.wire.batch import Codec, RecordBatch, encode_batch
from lograft.wire.checksum import crc32c
from lograft.wire.header import read_header, write_header
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

ZERO = TopicPartition("t", 0)
SEVEN = TopicPartition("orders", 7)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


WITH_HEADERS = (*COLUMNS, HEADERS_COLUMN)


def fetched(batch: bytearray, *, skip: int = 0, partition: TopicPartition = ZERO) -> FetchedBatch:
    return FetchedBatch(partition.topic, partition.partition, RecordBatch(batch), skip=skip)


@pytest.mark.parametrize("columns", [COLUMNS, WITH_HEADERS, ("offset", "key"), *((name,) for name in WITH_HEADERS)])
def test_schema_is_the_one_that_spark_expects(columns: tuple[str, ...]) -> None:
    """Spark compares the first batch with its own schema, and trusts the others."""
    as_sent = StructType.fromJson(row_schema(columns).jsonValue())
    assert arrow_schema(columns).equals(to_arrow_schema(as_sent, timezone="UTC"))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("include_headers", [False, True])
def test_rows_carry_every_field(codec: Codec, include_headers: bool) -> None:
    """Key, value, partition, offset, time and headers come out as they went in, including nulls."""
    batch = encode_batch(
        [b"a", None, b""],
        keys=[b"k", b"", None],
        timestamps_ms=[5, 0, 86_400_001],
        headers=[[("x", b"1"), ("x", None)], [], [("y", b"")]],
        codec=codec,
        base_offset=100,
    )
    rows = rows_of(
        fetched(batch, partition=SEVEN), SEVEN, end_offset=1000, columns=WITH_HEADERS if include_headers else COLUMNS
    )
    assert rows is not None
    assert rows.schema.equals(arrow_schema(WITH_HEADERS if include_headers else COLUMNS))
    rows.validate(full=True)
    expected = {
        "key": [b"k", b"", None],
        "value": [b"a", None, b""],
        "topic": ["orders"] * 3,
        "partition": [7] * 3,
        "offset": [100, 101, 102],
        "timestamp": [EPOCH + timedelta(milliseconds=each) for each in (5, 0, 86_400_001)],
        "timestampType": [0] * 3,
    }
    if include_headers:
        expected["headers"] = [
            [{"key": "x", "value": b"1"}, {"key": "x", "value": None}],
            None,
            [{"key": "y", "value": b""}],
        ]
    assert rows.to_pydict() == expected


def test_batch_without_headers_still_has_the_column() -> None:
    """The schema does not depend on the batch."""
    rows = rows_of(fetched(encode_batch([b"a"])), ZERO, end_offset=10, columns=WITH_HEADERS)
    assert rows is not None
    assert rows.schema.equals(arrow_schema(WITH_HEADERS))
    assert rows.column("headers").to_pylist() == [None]


def test_only_the_asked_columns_are_built() -> None:
    """In the order asked for. Columns that say where a record is need no column of the batch at all."""
    batch = encode_batch([b"a", None], keys=[b"k", b"l"], base_offset=4, timestamps_ms=[1, 2])
    rows = rows_of(fetched(batch, partition=SEVEN), SEVEN, end_offset=10, columns=("offset", "key"))
    assert rows is not None
    assert (rows.schema.names, rows.to_pydict()) == (["offset", "key"], {"offset": [4, 5], "key": [b"k", b"l"]})
    rows = rows_of(fetched(batch, skip=1, partition=SEVEN), SEVEN, end_offset=10, columns=("partition", "topic"))
    assert rows is not None
    assert rows.to_pydict() == {"partition": [7], "topic": ["orders"]}


def test_conditions_choose_rows_inside_the_range() -> None:
    """Records before the position and after the end do not count, whatever they are like."""
    batch = encode_batch([b"a", b"b", b"c", None, b"e"], keys=[b"k", b"k", None, b"k", b"k"], base_offset=10)
    conditions = RowConditions(keys=(b"j", b"k"), value_is_null=False)
    rows = rows_of(fetched(batch, skip=1), ZERO, end_offset=14, columns=("value", "offset"), conditions=conditions)
    assert rows is not None
    assert rows.to_pydict() == {"value": [b"b"], "offset": [11]}
    none = RowConditions(keys=(b"x",))
    assert rows_of(fetched(batch), ZERO, end_offset=14, columns=COLUMNS, conditions=none) is None
    every = RowConditions(first_ms=0)
    rows = rows_of(fetched(batch), ZERO, end_offset=14, columns=("offset",), conditions=every)
    assert rows is not None
    assert rows.column("offset").to_pylist() == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("skip", "end_offset", "offsets"), [(0, 99, [10, 11, 12]), (1, 99, [11, 12]), (1, 12, [11]), (0, 10, None)]
)
def test_range_cuts_batches(skip: int, end_offset: int, offsets: Sequence[int] | None) -> None:
    """Records before the position, and at or after the end, are left out. The result is None if none remains."""
    batch = encode_batch([b"a", b"b", b"c"], base_offset=10)
    rows = rows_of(fetched(batch, skip=skip), ZERO, end_offset=end_offset, columns=COLUMNS)
    assert (None if rows is None else rows.column("offset").to_pylist()) == offsets


def test_small_batches_are_joined_and_long_ones_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any sizes, rows keep their order and no batch has too many rows."""
    monkeypatch.setattr(arrow_rows, "MAX_ROWS", 4)
    batches = [pa.record_batch({"n": numbers}) for numbers in ([1], [2, 3], [4, 5, 6, 7, 8, 9], [10])]
    sizes = [batch.to_pydict()["n"] for batch in joined(iter(batches))]
    assert sizes == [[1, 2, 3, 4], [5, 6, 7, 8], [9], [10]]
    assert list(joined(iter([]))) == []


def test_join_stops_at_the_target_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is large enough is passed on alone."""
    monkeypatch.setattr(arrow_rows, "TARGET_BYTES", 16)
    batches = [pa.record_batch({"n": [1, 2]}), pa.record_batch({"n": [3]}), pa.record_batch({"n": [4]})]
    assert [batch.num_rows for batch in joined(iter(batches))] == [2, 2]


@pytest.mark.parametrize("columns", [COLUMNS, WITH_HEADERS, ("topic", "offset"), ("partition",)])
@pytest.mark.parametrize("conditions", [ALL_ROWS, RowConditions(first_ms=2)])
@pytest.mark.parametrize("target_bytes", [1, 300, 1 << 20])
def test_range_has_the_rows_of_its_batches(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], conditions: RowConditions, target_bytes: int
) -> None:
    """Batches that are built together give the rows that each gives alone: cut, of both kinds of time, compressed, compacted."""
    monkeypatch.setattr(arrow_rows, "TARGET_BYTES", target_bytes)
    batches = [
        fetched(encode_batch([b"a", b"b", b"c"], base_offset=10, timestamps_ms=1), skip=1),
        fetched(encode_batch([b"d"], keys=[b"k"], base_offset=13, timestamps_ms=2)),
        fetched(encode_batch([None, b"ff"], keys=[None, b"k"], base_offset=14, timestamps_ms=[3, 1], codec=Codec.ZSTD)),
        fetched(stamped(encode_batch([b"g", b"h"], base_offset=16, timestamps_ms=4))),
        fetched(encode_batch([b"i", b"jj"], base_offset=18, offset_deltas=[2, 5], timestamps_ms=5)),
        *(fetched(encode_batch([b"%d" % number], base_offset=number, timestamps_ms=6)) for number in range(24, 40)),
        fetched(encode_batch([b"y", b"z"], base_offset=40, timestamps_ms=7)),
    ]
    arguments = {"end_offset": 41, "columns": columns, "conditions": conditions}
    alone = [rows_of(batch, ZERO, **arguments) for batch in batches]
    expected = pa.Table.from_batches([rows for rows in alone if rows is not None])
    found = list(rows_of_range(iter(batches), ZERO, **arguments))
    assert all(rows.schema.equals(arrow_schema(columns)) for rows in found)
    for rows in found:
        rows.validate(full=True)
    assert pa.Table.from_batches(found).to_pylist() == expected.to_pylist()
    # Batches with another kind of time, or cut ones, end a run of batches that are built together.
    assert target_bytes < 1 << 20 or len(found) <= 5
    assert list(rows_of_range(iter([]), ZERO, **arguments)) == []


def stamped(batch: bytearray) -> bytearray:
    """Return the batch as a topic with log append time has it."""
    header = read_header(batch)
    write_header(batch, header._replace(attributes=header.attributes | 1 << 3))
    return bytearray().join([batch[:17], struct.pack(">I", crc32c(bytes(batch[21:]))), batch[21:]])


def test_rows_load_no_pandas() -> None:
    """Loading pandas would cost each of Spark's workers a third of a second before its first row."""
    program = """
import sys
from lograft.fetched import FetchedBatch
from lograft.spark.arrow_rows import joined, rows_of
from lograft.spark.settings import COLUMNS
from lograft.types import TopicPartition
from lograft.wire.batch import RecordBatch, encode_batch

batches = [encode_batch([b"a", None], keys=[b"k", None], timestamps_ms=times) for times in (5, [6, 7])]
rows = [
    rows_of(FetchedBatch("t", 0, RecordBatch(batch)), TopicPartition("t", 0), end_offset=9, columns=COLUMNS)
    for batch in batches
]
assert sum(batch.num_rows for batch in joined(rows)) == 4
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

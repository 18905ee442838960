# SPDX-License-Identifier: Apache-2.0
"""Filters that a read takes over: the result is that of a filter over a full read. No Spark session is needed."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lograft.fetched import FetchedBatch
from lograft.spark.arrow_rows import rows_of
from lograft.spark.conditions import ALL_ROWS, Offsets, RowConditions
from lograft.spark.options import parse_read_options
from lograft.spark.pushdown import NOTHING_PUSHED, PLANNER, Pushed, push
from lograft.spark.settings import COLUMNS
from lograft.spark.source import BatchReader, FilteringReader, new_reader
from lograft.types import TopicPartition
from lograft.wire.batch import RecordBatch, encode_batch
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

READ = {"kafka.bootstrap.servers": "127.0.0.1:9640", "subscribe": "t"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def passes(each: Filter, row: Row) -> bool | None:
    """What Spark says: None stands for null, which a WHERE drops as it drops false."""
    if isinstance(each, Not):
        inner = passes(each.child, row)
        return None if inner is None else not inner
    own = row[each.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(each, IsNull):
        return own is None
    if isinstance(each, IsNotNull):
        return own is not None
    value = each.value  # type: ignore[attr-defined]
    if isinstance(each, EqualNullSafe):
        return own == value
    if isinstance(each, In):
        return None if own is None else True if own in value else None if None in value else False
    if own is None or value is None:
        return None
    answers = {
        EqualTo: lambda: own == value,
        GreaterThan: lambda: own > value,
        GreaterThanOrEqual: lambda: own >= value,
        LessThan: lambda: own < value,
        LessThanOrEqual: lambda: own <= value,
        StringStartsWith: lambda: own.startswith(value),
        StringEndsWith: lambda: own.endswith(value),
        StringContains: lambda: value in own,
    }
    return answers[type(each)]()


def rows_from(pushed: Pushed, partition: TopicPartition, rows: Sequence[Row]) -> list[int]:
    """The offsets that a read yields from one batch of rows."""
    if not pushed.has(partition):
        return []
    first, end = pushed.offsets.cut(rows[0]["offset"], rows[-1]["offset"] + 1)
    if first >= end:
        return []
    batch = RecordBatch(
        encode_batch(
            [row["value"] for row in rows],
            keys=[row["key"] for row in rows],
            timestamps_ms=[int((row["timestamp"] - EPOCH) / timedelta(milliseconds=1)) for row in rows],
            base_offset=rows[0]["offset"],
        )
    )
    fetched = FetchedBatch(partition.topic, partition.partition, batch, skip=first - rows[0]["offset"])
    found = rows_of(fetched, partition, end_offset=end, columns=COLUMNS, conditions=pushed.rows)
    if found is None:
        return []
    columns = ("key", "value", "topic", "partition", "offset", "timestamp")
    by_offset = {row["offset"]: row for row in rows}
    for row in found.to_pylist():
        assert {name: row[name] for name in columns} == {name: by_offset[row["offset"]][name] for name in columns}
    offsets: list[int] = found.column("offset").to_pylist()
    return offsets


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["t", "ta", "u", ""]),
    "partition": st.integers(-1, 3),
    "offset": st.integers(-2, 14),
    "timestamp": st.integers(-1_500, 12_500).map(moment),
    "key": st.sampled_from([b"", b"a", b"b", b"c"]),
    "value": st.sampled_from([b"", b"x"]),
}
COMPARED = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@st.composite
def some_filter(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[column]
    kinds = [
        *(st.builds(kind, st.just((column,)), values) for kind in COMPARED),
        st.builds(EqualNullSafe, st.just((column,)), st.none()),
        st.builds(In, st.just((column,)), st.lists(values | st.none(), min_size=1, max_size=3).map(tuple)),
        st.builds(IsNull, st.just((column,))),
        st.builds(IsNotNull, st.just((column,))),
    ]
    if column == "topic":
        kinds += [
            st.builds(kind, st.just((column,)), st.sampled_from(["t", "a", ""]))
            for kind in (StringStartsWith, StringEndsWith, StringContains)
        ]
    found: Filter = draw(st.one_of(kinds))
    return Not(found) if draw(st.booleans()) else found


@settings(deadline=None, max_examples=300)
@given(
    filters=st.lists(some_filter(), max_size=4),
    partition=st.sampled_from([TopicPartition("t", 0), TopicPartition("ta", 2)]),
    records=st.lists(
        st.tuples(st.sampled_from([None, b"", b"a", b"b"]), st.sampled_from([None, b"x"]), st.integers(0, 12)),
        min_size=1,
        max_size=12,
    ),
)
def test_result_is_that_of_a_filter_over_a_full_read(
    filters: list[Filter], partition: TopicPartition, records: list[tuple[bytes | None, bytes | None, int]]
) -> None:
    """For any AND-ed filters and records, in time order or not: what the read takes over, and what is left, is all of it."""
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": 2 + index,
            "timestamp": moment(1_000 * timestamp_ms),
            "key": key,
            "value": value,
        }
        for index, (key, value, timestamp_ms) in enumerate(records)
    ]
    pushed, left = push(filters)
    by_offset = {row["offset"]: row for row in rows}
    found = [
        offset
        for offset in rows_from(pushed, partition, rows)
        if all(passes(each, by_offset[offset]) is True for each in left)
    ]
    assert found == [row["offset"] for row in rows if all(passes(each, row) is True for each in filters)]
    assert all(any(each is given_filter for given_filter in filters) for each in left)


def test_filters_of_a_replay_are_all_taken_over() -> None:
    """Partition, offsets, time range and key, as Spark gives them, leave nothing to Spark."""
    filters: list[Filter] = [
        IsNotNull(("partition",)),
        IsNotNull(("offset",)),
        IsNotNull(("timestamp",)),
        IsNotNull(("key",)),
        EqualTo(("partition",), 1),
        GreaterThanOrEqual(("offset",), 3),
        LessThan(("offset",), 90),
        GreaterThanOrEqual(("timestamp",), moment(5_000_001)),
        LessThan(("timestamp",), moment(9_000_000)),
        EqualTo(("key",), b"k"),
    ]
    pushed, left = push(filters)
    assert left == []
    assert pushed.offsets == Offsets(first=3, end=90)
    assert pushed.rows == RowConditions(keys=(b"k",), key_is_null=False, first_ms=5_001, end_ms=9_000)
    assert (pushed.has(TopicPartition("t", 1)), pushed.has(TopicPartition("t", 0))) == (True, False)
    assert pushed.rows.columns == ("key", "timestamp")


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("headers", "key"), "a"),
        EqualTo(("timestampType",), 0),
        GreaterThan(("key",), b"a"),
        EqualTo(("value",), b"a"),
        EqualTo(("offset",), True),
        EqualTo(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001
        Not(EqualTo(("offset",), 1)),
        EqualTo(("topic",), None),
        EqualTo(("partition",), "1"),
        StringStartsWith(("partition",), "1"),
    ],
)
def test_what_is_not_understood_stays_with_spark(each: Filter) -> None:
    """Other columns, other types and null narrow nothing."""
    assert push([each]) == (NOTHING_PUSHED, [each])


def test_coarse_filters_narrow_and_stay_with_spark() -> None:
    """IN on offsets is read as the range from the smallest to the largest."""
    each = In(("offset",), (9, 3))
    assert push([each]) == (Pushed(offsets=Offsets(first=3, end=10)), [each])


def test_impossible_conditions_read_nothing() -> None:
    """A contradiction needs no task."""
    assert not push([EqualTo(("key",), b"a"), EqualTo(("key",), b"b")])[0].has(TopicPartition("t", 0))
    assert not push([EqualTo(("timestamp",), moment(1))])[0].has(TopicPartition("t", 0))
    assert not ALL_ROWS.is_impossible


def test_batches_that_are_too_old_are_not_opened() -> None:
    """The header says the latest create time, so that the payload is left alone."""
    batch = RecordBatch(encode_batch([b"a"], timestamps_ms=[5]))
    fetched = FetchedBatch("t", 0, batch)
    partition = TopicPartition("t", 0)
    assert rows_of(fetched, partition, end_offset=9, columns=COLUMNS, conditions=RowConditions(first_ms=6)) is None
    assert batch._payload is None


def test_reader_takes_filters_only_where_spark_pushes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark fails a query whose reader has pushFilters while the push-down is off. So the reader looks who makes it."""
    monkeypatch.delitem(sys.modules, PLANNER, raising=False)
    assert type(new_reader(parse_read_options(READ))) is BatchReader
    assert type(new_reader(parse_read_options({**READ, "pushdown": "true"}))) is FilteringReader
    monkeypatch.setitem(sys.modules, PLANNER, ModuleType(PLANNER))
    reader = new_reader(parse_read_options(READ))
    assert type(reader) is FilteringReader
    assert type(new_reader(parse_read_options({**READ, "pushdown": "false"}))) is BatchReader
    assert list(reader.pushFilters([EqualTo(("partition",), 1), EqualTo(("value",), b"a")])) == [
        EqualTo(("value",), b"a")
    ]
    assert pickle.loads(pickle.dumps(reader)).pushed == reader.pushed  # noqa: S301


def test_spark_offers_python_sources_no_push_down_of_limits_or_columns() -> None:
    """Both would be taken over. The test fails with the first PySpark that offers one of them."""
    offered = {name for name in dir(DataSourceReader) if not name.startswith("_")}
    assert offered == {"partitions", "pushFilters", "read"}
    assert not [name for name in dir(datasource) if "limit" in name.lower() and name not in ("ReadLimit",)]

# SPDX-License-Identifier: Apache-2.0
"""Turns fetched batches into Arrow batches with exactly the columns of a read.

This module does the Arrow work of a read, without a Python step for each record. It loads pyarrow, so it runs only in tasks.

Law: every batch has the Arrow schema that Spark derives from `schema.row_schema` (a test compares them). Spark checks only the
first batch of a task, and passes the buffers of the others to the JVM unchecked.

pyarrow has no type stubs. Here and in `arrow_routes`, `Any` stands for its objects; no other module of the Spark side uses it
so.
"""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from lograft.spark.conditions import ALL_ROWS, RowConditions
from lograft.types import TopicPartition
from lograft.wire.arrow import joined_to_arrow

if TYPE_CHECKING:
    from lograft.fetched import FetchedBatch

pa: Any = importlib.import_module("pyarrow")
pc: Any = importlib.import_module("pyarrow.compute")

ArrowBatch: TypeAlias = Any
"""A `pyarrow.RecordBatch`."""

MAX_ROWS: Final = 65_536
"""Most rows in one batch for Spark."""
TARGET_BYTES: Final = 1024 * 1024
"""Size to which small fetched batches are joined. One Arrow batch costs the JVM about as much as thousands of rows."""
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
ROW_BYTES: Final = 40
"""Bytes of a row besides key and value."""
CONSTANT_ROWS: Final = 16_384
"""Rows for which columns with a single value are kept, for the batches that follow: 4 MiB with the longest topic name. Longer batches
get columns of their own."""
CONSTANT_COLUMNS: Final = 8
"""Most such columns that a process keeps."""
_TIMESTAMP_TYPE_BIT: Final = 1 << 3
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")

_TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
}
_FETCHED: Final = {
    "key": "key",
    "value": "value",
    "offset": "offset",
    "timestamp": "timestamp_ms",
    "headers": "headers",
}
"""Columns that come from the records, and their names in a fetched batch. The others are the same for all records of a batch."""


def arrow_schema(columns: Sequence[str]) -> Any:
    """Return `schema.row_schema` as an Arrow schema."""
    return _schema(tuple(columns))


@cache
def _schema(columns: tuple[str, ...]) -> Any:
    return pa.schema([pa.field(name, _TYPES[name]) for name in columns])


def rows_of(
    fetched: FetchedBatch,
    partition: TopicPartition,
    *,
    end_offset: int,
    columns: Sequence[str],
    conditions: RowConditions = ALL_ROWS,
) -> ArrowBatch | None:
    """Turn a fetched batch into rows, without the records from `end_offset` on. Return None if none is left.

    Args:
        fetched: the batch.
        partition: its partition.
        end_offset: first offset that is left out.
        columns: columns of the rows, in order. Others are not built.
        conditions: what a record must be like. Where a batch has none, no other column is built.
    """
    if conditions.first_ms is not None and fetched.batch.header.max_timestamp_ms < conditions.first_ms:
        return None
    # Offsets ascend, so only the last records can be at or after the end.
    count = fetched.batch.index_of(end_offset) - fetched.skip
    if count <= 0:
        return None
    mask: Any = None
    if conditions != ALL_ROWS:
        mask = _matching(fetched, count, conditions)
        found: int = pc.sum(mask).as_py() or 0
        if not found:
            return None
        count, mask = found, None if found == count else mask
    wanted = [_FETCHED[name] for name in columns if name in _FETCHED]
    built: Any = _columns(fetched, wanted) if wanted else None
    if built is not None:
        built = built.slice(0, count) if mask is None else built.slice(0, len(mask)).filter(mask)
    arrays = [_column(name, built, fetched, partition, count) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def rows_of_range(
    batches: Iterable[FetchedBatch],
    partition: TopicPartition,
    *,
    end_offset: int,
    columns: Sequence[str],
    conditions: RowConditions = ALL_ROWS,
) -> Iterator[ArrowBatch]:
    """Turn the fetched batches of a range into Arrow batches of a good size for Spark. Arguments are those of `rows_of`.

    Whole batches without conditions and headers are built together, many at once: what Arrow takes for one batch is as much as
    for thousands of records.
    """
    if conditions != ALL_ROWS or "headers" in columns:
        found = (
            rows_of(each, partition, end_offset=end_offset, columns=columns, conditions=conditions) for each in batches
        )
        yield from joined(rows for rows in found if rows is not None)
        return
    run: list[FetchedBatch] = []
    row_count = size_bytes = 0
    for fetched in batches:
        is_whole = not fetched.skip and fetched.next_offset <= end_offset and fetched.record_count
        if run and (not is_whole or _timestamp_type(fetched) != _timestamp_type(run[0])):
            yield from _built(run, partition, columns)
            run, row_count, size_bytes = [], 0, 0
        if not is_whole:
            rows = rows_of(fetched, partition, end_offset=end_offset, columns=columns)
            if rows is not None:
                yield from _flushed([rows])
            continue
        run.append(fetched)
        payload = fetched.batch.payload
        row_count += payload.record_count
        size_bytes += len(payload.values.blob) + (0 if payload.keys is None else len(payload.keys.blob))
        if size_bytes + row_count * ROW_BYTES >= TARGET_BYTES or row_count >= MAX_ROWS:
            yield from _built(run, partition, columns)
            run, row_count, size_bytes = [], 0, 0
    if run:
        yield from _built(run, partition, columns)


def _built(run: Sequence[FetchedBatch], partition: TopicPartition, columns: Sequence[str]) -> Iterator[ArrowBatch]:
    wanted = [_FETCHED[name] for name in columns if name in _FETCHED]
    built = (
        joined_to_arrow([(each.batch.header, each.batch.payload) for each in run], columns=wanted) if wanted else None
    )
    count = sum(each.record_count for each in run)
    arrays = [_column(name, built, run[0], partition, count) for name in columns]
    yield from _flushed([pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))])


def _columns(fetched: FetchedBatch, names: Sequence[str]) -> Any:
    return cast("Any", fetched).to_arrow(include_headers="headers" in names, columns=names)


def _column(name: str, built: Any, fetched: FetchedBatch, partition: TopicPartition, count: int) -> Any:
    if name in _FETCHED:
        column = built.column(_FETCHED[name])
        if name == "timestamp":
            return column.view(_MILLISECONDS).cast(_TYPES[name])
        return _headers(column) if name == "headers" else column
    value: str | int
    if name == "topic":
        value = partition.topic
    elif name == "partition":
        value = partition.partition
    else:
        value = _timestamp_type(fetched)
    return _constant(name, value).slice(0, count) if count <= CONSTANT_ROWS else _repeated(name, value, count)


def _timestamp_type(fetched: FetchedBatch) -> int:
    return LOG_APPEND_TIME if fetched.batch.header.attributes & _TIMESTAMP_TYPE_BIT else CREATE_TIME


@lru_cache(maxsize=CONSTANT_COLUMNS)
def _constant(name: str, value: str | int) -> Any:
    return _repeated(name, value, CONSTANT_ROWS)


def _repeated(name: str, value: str | int, count: int) -> Any:
    """Return a column of one value. `pa.scalar` would load pandas, a third of a second in each of Spark's workers."""
    buffers: list[Any] = [None]
    if isinstance(value, str):
        text = value.encode()
        buffers.append(pa.py_buffer(array("i", range(0, (count + 1) * len(text), len(text)))))
        buffers.append(pa.py_buffer(text * count))
    else:
        buffers.append(pa.py_buffer(value.to_bytes(4, "little") * count))
    return pa.Array.from_buffers(_TYPES[name], count, buffers)


def _matching(fetched: FetchedBatch, count: int, conditions: RowConditions) -> Any:
    """Return a boolean for each of the first `count` records. It has no nulls."""
    built: Any = _columns(fetched, [_FETCHED[name] for name in conditions.columns]).slice(0, count)
    masks: list[Any] = []
    if conditions.keys is not None:
        masks.append(pc.is_in(built.column("key"), value_set=pa.array(conditions.keys, pa.binary())))
    if conditions.key_is_null is not None:
        masks.append(_null_mask(built.column("key"), conditions.key_is_null))
    if conditions.value_is_null is not None:
        masks.append(_null_mask(built.column("value"), conditions.value_is_null))
    if conditions.first_ms is not None:
        masks.append(pc.greater_equal(built.column("timestamp_ms"), conditions.first_ms))
    if conditions.end_ms is not None:
        masks.append(pc.less(built.column("timestamp_ms"), conditions.end_ms))
    mask = masks[0]
    for each in masks[1:]:
        mask = pc.and_(mask, each)
    return mask


def _null_mask(column: Any, is_null: bool) -> Any:
    return pc.is_null(column) if is_null else pc.is_valid(column)


def joined(batches: Iterable[ArrowBatch]) -> Iterator[ArrowBatch]:
    """Join small batches and cut long ones. Rows keep their order.

    It yields a batch when it has gathered `TARGET_BYTES` or `MAX_ROWS`, and at the end.
    """
    gathered: list[Any] = []
    row_count = size_bytes = 0
    for batch in batches:
        gathered.append(batch)
        row_count += batch.num_rows
        size_bytes += batch.nbytes
        if size_bytes >= TARGET_BYTES or row_count >= MAX_ROWS:
            yield from _flushed(gathered)
            gathered, row_count, size_bytes = [], 0, 0
    if gathered:
        yield from _flushed(gathered)


def _flushed(gathered: list[Any]) -> Iterator[ArrowBatch]:
    whole: Any = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
    for start in range(0, whole.num_rows, MAX_ROWS):
        yield whole.slice(start, MAX_ROWS)


def _headers(column: Any) -> Any:
    kind = _TYPES["headers"]
    found: Any = column.cast(kind)
    # As in the Kafka connector, a record without headers has null and not an empty array.
    return pc.if_else(pc.greater(pc.list_value_length(found), 0), found, pa.scalar(None, kind))

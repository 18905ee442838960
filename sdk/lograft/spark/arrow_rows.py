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
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from lograft.types import TopicPartition

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
_TIMESTAMP_TYPE_BIT: Final = 1 << 3


def arrow_schema(include_headers: bool) -> Any:
    """Return `schema.row_schema` as an Arrow schema."""
    fields = [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
    ]
    return pa.schema([*fields, pa.field("headers", _headers_type())] if include_headers else fields)


def rows_of(
    fetched: FetchedBatch, partition: TopicPartition, *, end_offset: int, include_headers: bool
) -> ArrowBatch | None:
    """Turn a fetched batch into rows, without the records from `end_offset` on. Return None if none is left."""
    columns = cast("Any", fetched).to_arrow(include_headers=include_headers)
    offsets: Any = columns.column("offset")
    # Offsets ascend, so only the last records can be at or after the end.
    keep: int = pc.sum(pc.less(offsets, end_offset)).as_py() or 0
    if not keep:
        return None
    columns = columns.slice(0, keep)
    timestamp_type = LOG_APPEND_TIME if fetched.batch.header.attributes & _TIMESTAMP_TYPE_BIT else CREATE_TIME
    timestamps: Any = columns.column("timestamp_ms").cast(pa.timestamp("ms", tz="UTC"))
    rows: list[Any] = [
        columns.column("key"),
        columns.column("value"),
        pa.repeat(pa.scalar(partition.topic, pa.string()), keep),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), keep),
        columns.column("offset"),
        timestamps.cast(pa.timestamp("us", tz="UTC")),
        pa.repeat(pa.scalar(timestamp_type, pa.int32()), keep),
    ]
    if include_headers:
        rows.append(_headers(columns.column("headers")))
    return pa.RecordBatch.from_arrays(rows, schema=arrow_schema(include_headers))


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


def _headers_type() -> Any:
    return pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))


def _headers(column: Any) -> Any:
    kind = _headers_type()
    found: Any = column.cast(kind)
    # As in the Kafka connector, a record without headers has null and not an empty array.
    return pc.if_else(pc.greater(pc.list_value_length(found), 0), found, pa.scalar(None, kind))

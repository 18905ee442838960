# SPDX-License-Identifier: Apache-2.0
"""Fetched batches to Arrow batches with exactly the columns of a read.

Owns the read side's Arrow work; no Python step for each record. Runs in tasks only: it loads pyarrow.

Law: every batch has the same Arrow schema, the one that Spark derives from `schema.row_schema` (a test compares them).
Spark checks the first batch of a task only, and hands the buffers of the others to the JVM unchecked.

pyarrow carries no types: `Any` stands for its objects here and in `arrow_routes`, nowhere else on the Spark side.
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
"""Small fetched batches are joined until they have about so many bytes: each Arrow batch costs the JVM about as much as
thousands of rows."""
CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
_TIMESTAMP_TYPE_BIT: Final = 1 << 3


def arrow_schema(include_headers: bool) -> Any:
    """Arrow's form of `schema.row_schema`."""
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
    """Turn a fetched batch into rows, without the records at or after `end_offset`; None: nothing is left."""
    columns = cast("Any", fetched).to_arrow(include_headers=include_headers)
    offsets: Any = columns.column("offset")
    # Offsets ascend, so the records to leave out are the last ones.
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
    """Join small batches and cut long ones; rows keep their order.

    A batch is given out once `TARGET_BYTES` or `MAX_ROWS` are gathered, and at the end.
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
    # As the Kafka connector: a record without headers has null, not an empty array.
    return pc.if_else(pc.greater(pc.list_value_length(found), 0), found, pa.scalar(None, kind))

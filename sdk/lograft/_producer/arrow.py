# SPDX-License-Identifier: Apache-2.0
"""Encodes Arrow tables into batches for the partitions of a topic.

This module gathers the rows of each partition, and cuts them to batch size. It must not wait or send. It imports no pyarrow at
module level: the caller's objects have already loaded it.

Rows that were gathered here are a copy for one batch, which keeps views of it until it is sent. Batches of rows as the caller gave
them are copied: the caller's memory may change after the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from lograft._producer.bulk import EncodedPiece
from lograft._producer.key_columns import group_rows
from lograft._producer.partitioner import KeyRule, group_by_partition, partition_by_keys
from lograft.errors import UsageError
from lograft.wire.arrow import COLUMN_NAMES, compose_arrow
from lograft.wire.batch import Codec, EncodedBatch
from lograft.wire.errors import BatchError, BatchTooLargeError
from lograft.wire.limits import MAX_RECORDS_PER_BATCH

STEP_ROWS: Final = 65_536
"""Rows whose partitions are computed in one step: enough for full batches, and few enough to bound memory."""

EXTRA_COLUMNS: Final = ("refuse", "ignore", "headers")
"""What may become of columns that records do not have."""

Rows = Any
"""A `pyarrow.RecordBatch`; pyarrow ships no types."""


def encode_rows(
    data: Rows,
    *,
    partition: int | None,
    partition_count: int,
    rule: KeyRule,
    topic: str,
    batch_bytes: int,
    codec: Codec,
    wall_ms: int,
    extra_columns: str = "refuse",
) -> Iterator[EncodedPiece]:
    """Encode a `pyarrow.RecordBatch` or `Table` into batches, in row order for each partition.

    Args:
        data: rows with a column `value` and, if wanted, `key`, `timestamp` (or `timestamp_ms`) and `headers`.
        partition: partition of all rows. With None, the keys decide; rows without a key go to the sticky partition.
        partition_count: number of partitions of the topic.
        rule: how keys decide.
        topic: topic name.
        batch_bytes: size that a batch should not exceed, inclusive.
        codec: compression of the batches.
        wall_ms: timestamp of the rows if the table has no timestamps, in milliseconds since 1970-01-01 UTC.
        extra_columns: "refuse", "ignore" or "headers"; see `lograft.Producer.send_arrow`.

    Raises:
        UsageError: a column is missing, unknown or of another type, or a row exceeds the limit of the format.
    """
    for attribute in ("schema", "num_rows"):
        if not hasattr(data, attribute):
            raise UsageError(f"send_arrow takes a pyarrow.RecordBatch or Table, not {type(data).__name__}")
    if extra_columns not in EXTRA_COLUMNS:
        raise UsageError(f'extra_columns is "refuse", "ignore" or "headers", not {extra_columns!r}')
    batches = data.to_batches() if hasattr(data, "to_batches") else [data]
    for batch in batches:
        for start in range(0, batch.num_rows, STEP_ROWS):
            rows = _without_extra(batch.slice(start, STEP_ROWS), extra_columns)
            for number, indexes in _group(rows, partition, partition_count, rule, topic):
                yield from _encode(rows, indexes, number, batch_bytes, codec, wall_ms)


def _without_extra(rows: Rows, extra_columns: str) -> Rows:
    """Return the rows without the columns that records do not have."""
    names: list[str] = list(rows.schema.names)
    extra = [name for name in names if name not in COLUMN_NAMES]
    if not extra or extra_columns == "refuse":
        return rows
    pa: Any = import_module("pyarrow")
    # By position: a name may be there twice, which the encoder refuses.
    kept = {
        index: name
        for index, name in enumerate(names)
        if name in COLUMN_NAMES and (name != "headers" or extra_columns == "ignore")
    }
    columns = [rows.column(index) for index in kept]
    kept_names = list(kept.values())
    if extra_columns == "headers":
        columns.append(_headers(pa, rows, extra))
        kept_names.append("headers")
    return pa.RecordBatch.from_arrays(columns, names=kept_names)


def _headers(pa: Any, rows: Rows, extra: list[str]) -> Any:
    """Return the column of headers with one more for each extra column."""
    if len(set(extra)) < len(extra) or rows.schema.names.count("headers") > 1:
        raise UsageError(f"a column is there twice: {', '.join(rows.schema.names)}")
    count: int = rows.num_rows
    values = [_header_values(pa, name, rows.column(name)) for name in extra]
    kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    if "headers" in rows.schema.names:
        given: list[list[dict[str, object]] | None] = rows.column("headers").to_pylist()
        columns = [column.to_pylist() for column in values]
        merged = [
            (given[row] or [])
            + [{"key": name, "value": column[row]} for name, column in zip(extra, columns, strict=True)]
            for row in range(count)
        ]
        return pa.array(merged, kind)
    # Column after column, then row by row.
    width = len(extra)
    order = pa.array([column * count + row for row in range(count) for column in range(width)], pa.int64())
    pairs = pa.StructArray.from_arrays(
        [pa.array(extra * count, pa.string()), pa.concat_arrays(values).take(order)], names=["key", "value"]
    )
    return pa.ListArray.from_arrays(pa.array(range(0, width * count + 1, width), pa.int32()), pairs)


def _header_values(pa: Any, name: str, column: Any) -> Any:
    kind = column.type
    try:
        if pa.types.is_dictionary(kind):
            column = column.dictionary_decode()
            kind = column.type
        is_binary = any(
            check(kind) for check in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
        )
        return column.cast(pa.binary()) if is_binary else column.cast(pa.string()).cast(pa.binary())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"the column {name!r} of type {kind} cannot be a header: {error}") from error


def _group(
    rows: Rows, partition: int | None, partition_count: int, rule: KeyRule, topic: str
) -> Iterator[tuple[int | None, Any]]:
    """Yield each partition with the indexes of its rows, a list or a numpy array; None stands for all rows."""
    names: list[str] = rows.schema.names
    # A topic of one partition keeps the order of all rows, also between those with and without a key.
    if partition is not None or "key" not in names or rule.decides_nothing(partition_count):
        yield partition, None
        return
    column = rows.column("key")
    grouping = group_rows(column, partition_count, rule=rule, topic=topic)
    if grouping is not None:
        order = grouping.order
        for number, first, end in grouping.groups:
            yield number, None if order is None else order[first:end]
        return
    keys = [key.encode() if isinstance(key, str) else key for key in column.to_pylist()]
    # Within this function -1 stands for the sticky partition.
    groups = group_by_partition(partition_by_keys(keys, partition_count, keyless=-1, rule=rule, topic=topic))
    for number, indexes in groups.items():
        yield (None if number < 0 else number), (None if len(groups) == 1 else indexes)


def _index_array(indexes: Any) -> Rows:
    """Return row numbers as an Arrow array: a list of them, or a numpy array of 64-bit integers."""
    # pyarrow has no type stubs, so import it as Any.
    pa: Any = import_module("pyarrow")
    if isinstance(indexes, list):
        return pa.array(indexes, pa.int64())
    return pa.Array.from_buffers(pa.int64(), len(indexes), [None, pa.py_buffer(indexes)])


def _encode(
    rows: Rows, indexes: Any, partition: int | None, batch_bytes: int, codec: Codec, wall_ms: int
) -> Iterator[EncodedPiece]:
    """Encode the rows with these indexes, or all rows."""
    row_bytes = max(1, rows.nbytes // max(1, rows.num_rows))
    # With compression a batch could hold more rows, but by how much is not known in advance.
    step = min(max(1, batch_bytes * 15 // 16 // row_bytes), MAX_RECORDS_PER_BATCH)
    for start in range(0, rows.num_rows if indexes is None else len(indexes), step):
        if indexes is None:
            part = rows.slice(start, step)
        else:
            part = rows.take(_index_array(indexes[start : start + step]))
        yield from _encode_slice(part, partition, batch_bytes, codec, wall_ms, is_own=indexes is not None)


def _encode_slice(
    rows: Rows, partition: int | None, batch_bytes: int, codec: Codec, wall_ms: int, *, is_own: bool
) -> Iterator[EncodedPiece]:
    count: int = rows.num_rows
    has_times = not {"timestamp", "timestamp_ms"}.isdisjoint(rows.schema.names)
    try:
        body = compose_arrow(rows, timestamp_ms=None if has_times else wall_ms, codec=codec)
    except BatchTooLargeError as error:
        if count == 1:
            raise UsageError(f"a row cannot be sent: {error}", code=error.code) from error
        body = None
    except BatchError as error:
        raise UsageError(f"the rows cannot be sent: {error}", code=error.code) from error
    if body is not None and (len(body) <= batch_bytes or count == 1):
        own = body if is_own or codec is not Codec.NONE else EncodedBatch.wrap(body.join())
        yield EncodedPiece(partition=partition, body=own, record_count=count)
        return
    middle = count // 2
    for half in (rows.slice(0, middle), rows.slice(middle)):
        # A view of a half would keep the memory of the other one as well.
        yield from _encode_slice(half, partition, batch_bytes, codec, wall_ms, is_own=False)

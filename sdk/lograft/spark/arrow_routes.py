# SPDX-License-Identifier: Apache-2.0
"""Arrow batches from Spark to pieces that a producer takes.

Owns the write side's Arrow work; no Python step for each record. Runs in tasks only: it loads pyarrow.

Laws: every row is in exactly one piece; rows of one topic and one wanted partition keep their order; a piece is not
larger than `MAX_PIECE_BYTES` unless it is a single row.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from lograft.spark.schema import SinkColumns
from lograft.spark.values import OptionError

pa: Any = importlib.import_module("pyarrow")
pc: Any = importlib.import_module("pyarrow.compute")

ArrowBatch: TypeAlias = Any
"""A `pyarrow.RecordBatch`."""

GATHER_BYTES: Final = 4 * 1024 * 1024
"""Spark's batches are joined up to about so many bytes: the producer makes at least one record batch for each partition
out of what it is handed at once, and small record batches are slow ones."""
MAX_PIECE_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of rows that are handed to the producer at once, which bounds what is copied at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows for one topic. `partition` None: by the key of each row.

    `rows` has the columns value and, if the job has them, key, timestamp and headers.
    """

    topic: str
    partition: int | None
    rows: ArrowBatch


def gathered(batches: Iterable[ArrowBatch]) -> Iterator[ArrowBatch]:
    """Join batches of the same columns until `GATHER_BYTES` are together, and at the end; rows keep their order."""
    waiting: list[Any] = []
    size_bytes = 0
    for batch in batches:
        waiting.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= GATHER_BYTES:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, size_bytes = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


def pieces_of(batch: ArrowBatch, columns: SinkColumns, *, topic: str | None, now_ms: int) -> Iterator[Piece]:
    """Split a batch of a write by topic, by wanted partition, and by size.

    Args:
        batch: rows from Spark, in the columns of the job.
        columns: which columns there are.
        topic: topic of every row, over the column; None: the column says.
        now_ms: timestamp for rows whose timestamp is null, in milliseconds since 1970-01-01 UTC.

    Raises:
        OptionError: a row has no topic, or its partition is below 0.
    """
    if not batch.num_rows:
        return
    used = _used_columns(batch, columns, now_ms)
    content = [name for name in used.schema.names if name not in ("topic", "partition")]
    for name, of_topic in _by_topic(used, topic):
        for partition, of_partition in _by_partition(of_topic):
            for rows in _by_size(of_partition.select(content)):
                yield Piece(topic=name, partition=partition, rows=rows)


def _used_columns(batch: ArrowBatch, columns: SinkColumns, now_ms: int) -> ArrowBatch:
    used: dict[str, Any] = {}
    for index, spelling in enumerate(batch.schema.names):
        if (name := spelling.lower()) not in columns.unused:
            used[name] = batch.column(index)
    timestamps = used.get("timestamp")
    if timestamps is not None and timestamps.null_count:
        # The producer would stamp a whole batch or nothing of it.
        used["timestamp"] = timestamps.fill_null(pa.scalar(now_ms * 1000, pa.int64()).cast(timestamps.type))
    return pa.RecordBatch.from_arrays(list(used.values()), names=list(used))


def _by_topic(batch: ArrowBatch, topic: str | None) -> Iterator[tuple[str, ArrowBatch]]:
    if topic is not None:
        yield topic, batch
        return
    missing: int = batch.column("topic").null_count
    if missing:
        raise OptionError("topic", f"{missing} rows have no topic; fill the column or give the option topic")
    yield from _split(batch, "topic")


def _by_partition(batch: ArrowBatch) -> Iterator[tuple[int | None, ArrowBatch]]:
    if "partition" not in batch.schema.names:
        yield None, batch
        return
    for partition, rows in _split(batch, "partition"):
        if partition is not None and partition < 0:
            raise OptionError("columns", f"partition {partition}: partitions count from 0; null means by the key")
        yield partition, rows


def _split(batch: ArrowBatch, name: str) -> Iterator[tuple[Any, ArrowBatch]]:
    """Each distinct value of a column, in order of appearance, with its rows."""
    column = batch.column(name)
    distinct = pc.unique(column).to_pylist()
    if len(distinct) == 1:
        yield distinct[0], batch
        return
    for value in distinct:
        # A comparison with null is null, and filter() drops rows where the mask is null.
        yield value, batch.filter(column.is_null() if value is None else pc.equal(column, value))


def _by_size(rows: ArrowBatch) -> Iterator[ArrowBatch]:
    row_count, size_bytes = rows.num_rows, rows.nbytes
    step = max(1, row_count * MAX_PIECE_BYTES // max(1, size_bytes))
    start = 0
    while start < row_count:
        piece = rows.slice(start, step)
        # Rows differ in size: halve a piece that came out too large.
        while piece.num_rows > 1 and piece.nbytes > MAX_PIECE_BYTES:
            piece = piece.slice(0, piece.num_rows // 2)
        yield piece
        start += piece.num_rows

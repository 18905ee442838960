# SPDX-License-Identifier: Apache-2.0
"""Turns Arrow batches from Spark into pieces that a producer takes.

This module does the Arrow work of a write, without a Python step for each record. It loads pyarrow, so it runs only in tasks.

Laws: each row is in exactly one piece. Rows of the same topic and partition keep their order. A piece is not larger than
`MAX_PIECE_BYTES` unless it is a single row.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lograft.spark.schema import SinkColumns
from lograft.spark.settings import WriteOptions
from lograft.spark.values import OptionError

if TYPE_CHECKING:
    from lograft.ingest import Attempt
    from lograft.producer import Producer

pa: Any = importlib.import_module("pyarrow")
pc: Any = importlib.import_module("pyarrow.compute")

ArrowBatch: TypeAlias = Any
"""A `pyarrow.RecordBatch`."""

GATHER_BYTES: Final = 4 * 1024 * 1024
"""Size to which Spark's batches are joined. From each piece, the producer makes at least one record batch for every partition, and
small record batches are slow."""
MAX_PIECE_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of rows that the producer gets at once. It bounds the memory for copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows for one topic. With `partition` None, the key of each row decides.

    `rows` has the columns value and, if the job has them, key, timestamp and headers.
    """

    topic: str
    partition: int | None
    rows: ArrowBatch


def send_rows(
    target: Producer | Attempt, batches: Iterable[ArrowBatch], options: WriteOptions, columns: SinkColumns
) -> int:
    """Send all rows of a task, in their order, and return how many there were.

    Args:
        target: takes the rows.
        batches: rows from Spark.
        options: settings of the write.
        columns: the optional columns that the rows have.

    Raises:
        OptionError: a row has no topic, or one that `ingest.topics` does not name, or its partition is negative.
        LograftError: the target refuses a row.
    """
    row_count = 0
    for batch in gathered(batches):
        row_count += batch.num_rows
        now_ms = time.time_ns() // 1_000_000
        for piece in pieces_of(batch, columns, topic=options.topic, now_ms=now_ms):
            if options.ingest_topics and piece.topic not in options.ingest_topics:
                raise OptionError(
                    "ingest.topics", f"does not name {piece.topic}, which the column topic has; name it too"
                )
            target.send_arrow(piece.topic, piece.rows, partition=piece.partition)
    return row_count


def gathered(batches: Iterable[ArrowBatch]) -> Iterator[ArrowBatch]:
    """Join batches with the same columns until they have `GATHER_BYTES`. Rows keep their order."""
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
    """Split a batch of a write by topic, by partition, and by size.

    Args:
        batch: rows from Spark, with the columns of the job.
        columns: the optional columns that the job has.
        topic: topic of every row, which overrides the column; None uses the column.
        now_ms: timestamp for rows with a null timestamp, in milliseconds since 1970-01-01 UTC.

    Raises:
        OptionError: a row has no topic, or its partition is negative.
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
        # The producer fills in timestamps only for a batch in which no row has one.
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
    """Yield each distinct value of a column, in order of appearance, with its rows."""
    column = batch.column(name)
    distinct = pc.unique(column).to_pylist()
    if len(distinct) == 1:
        yield distinct[0], batch
        return
    for value in distinct:
        # A comparison with null gives null, and filter() drops rows where the mask is null.
        yield value, batch.filter(column.is_null() if value is None else pc.equal(column, value))


def _by_size(rows: ArrowBatch) -> Iterator[ArrowBatch]:
    row_count = rows.num_rows
    # Equal pieces: a small rest would become a small record batch in every partition.
    piece_count = max(1, -(-rows.nbytes // MAX_PIECE_BYTES))
    step = max(1, -(-row_count // piece_count))
    start = 0
    while start < row_count:
        piece = rows.slice(start, step)
        # Rows differ in size, so the piece may be too large. Halve it until it fits.
        while piece.num_rows > 1 and piece.nbytes > MAX_PIECE_BYTES:
            piece = piece.slice(0, piece.num_rows // 2)
        yield piece
        start += piece.num_rows

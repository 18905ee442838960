# SPDX-License-Identifier: Apache-2.0
"""Files to a topic, exactly once: the Spark part of `lograft ingest`.

One write of one DataFrame with an ingest id. All records become readable together at its end, or none. A job that fails, and is run
again with the same id, adds what it would have added; one that had succeeded adds nothing.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as sql

from lograft.errors import UsageError
from lograft.spark.jobs.expressions import LINE, fields_schemas, json_columns, record_columns
from lograft.spark.jobs.local_files import absolute_url
from lograft.spark.jobs.plan import IngestPlan, InputFormat
from lograft.wire.partitioner import partition_for_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE_LINES: Final = 1_000
"""Lines of JSON whose fields are known as columns."""

_CSV_OPTIONS: Final = {
    "header": "true",
    # A row that does not fit ends the job; nothing is published then.
    "mode": "FAILFAST",
    # Headers of the files must be the same; else columns of a second file would be taken by their place.
    "enforceSchema": "false",
    # A quote in a quoted field is doubled (RFC 4180).
    "escape": '"',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The cluster and how to write to it.

    Attributes:
        bootstrap: brokers to ask first.
        cluster_id: the id that the cluster must have; None accepts any.
        options: further options of the sink.
    """

    bootstrap: str
    cluster_id: str | None
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the rows of a job are, all together.

    Attributes:
        records: number of records.
        size_bytes: bytes of keys and values.
        first_ms: smallest create time, in milliseconds since 1970-01-01 UTC; None: the job gives none.
        last_ms: largest create time.
    """

    records: int
    size_bytes: int
    first_ms: int | None
    last_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a dry run has found.

    Attributes:
        columns: columns of the files, with their types.
        counts: what would be written.
        partitions: records by partition; under None those that no key and no column sends anywhere.
        sample: the first records, as the sink would get them, with `timestamp_ms` in milliseconds since 1970-01-01 UTC.
    """

    columns: Mapping[str, str]
    counts: Counts
    partitions: Mapping[int | None, int]
    sample: Sequence[Mapping[str, Any]]


def read_records(spark: SparkSession, plan: IngestPlan) -> tuple[DataFrame, dict[str, str]]:
    """Return the records of the files as the sink takes them, and the columns of the files with their types.

    Raises:
        UsageError: a column is missing or cannot be what it is to become.
        Exception: what Spark says of the files; see `failures`.
    """
    paths = [absolute_url(path) for path in plan.paths]
    reader = spark.read.options(**plan.options)
    match plan.format:
        case InputFormat.PARQUET:
            rows = reader.parquet(*paths)
            columns = dict(rows.dtypes)
        case InputFormat.CSV:
            rows = spark.read.options(**{**_CSV_OPTIONS, **plan.options}).csv(paths)
            columns = dict(rows.dtypes)
        case InputFormat.TEXT:
            rows = reader.text(paths).select(sql.col("value").alias(LINE))
            columns = {LINE: "string"}
        case InputFormat.JSON:
            rows = reader.text(paths).select(sql.col("value").alias(LINE)).where(sql.trim(LINE) != "")
            columns = _json_columns(rows, plan)
            for name, schema in fields_schemas(plan).items():
                rows = rows.withColumn(name, sql.from_json(LINE, schema, {"mode": "FAILFAST"}))
    if len(columns) < len(rows.columns) and plan.format is not InputFormat.JSON:
        raise UsageError("the files have several columns with one name; give other names to them")
    records = rows.selectExpr(*(f"{text} AS {name}" for name, text in record_columns(plan, columns).items()))
    if plan.is_ordered:
        # Spark gives each task a range of times, later tasks later ones, and records are published in the order of the tasks.
        records = records.orderBy("timestamp")
    return records, columns


def rehearse(spark: SparkSession, plan: IngestPlan, *, partition_count: int, sample_rows: int) -> Rehearsal:
    """Read everything and write nothing. It reads the files twice.

    Args:
        spark: the session.
        plan: the plan.
        partition_count: partitions of the topic.
        sample_rows: records of the sample.
    """
    records, columns = read_records(spark, replace(plan, is_ordered=False))
    found = records.agg(*_aggregates(records)).collect()[0].asDict()
    first = records
    if "timestamp" in records.columns:
        first = records.withColumn("timestamp_ms", sql.unix_millis("timestamp")).drop("timestamp")
    return Rehearsal(
        columns=columns,
        counts=_counts(found),
        partitions=_by_partition(records, partition_count),
        sample=[row.asDict(recursive=True) for row in first.limit(sample_rows).collect()],
    )


def write(spark: SparkSession, plan: IngestPlan, target: Target) -> Counts:
    """Write the records. When this returns, everything is published.

    Raises:
        UsageError: see `read_records`.
        Exception: what Spark says; see `failures`.
    """
    records, _ = read_records(spark, plan)
    observation = Observation("lograft")
    # Spark counts while it writes. A stage that runs again may count its rows twice, so the number of records is the ingest's.
    observed = records.observe(observation, *_aggregates(records))
    writer = observed.write.format("lograft").mode("append").option("kafka.bootstrap.servers", target.bootstrap)
    if target.cluster_id is not None:
        writer = writer.option("kafka.cluster.id", target.cluster_id)
    writer = writer.option("topic", plan.topic).option("ingest.id", plan.ingest_id)
    writer.options(**target.options).save()
    return _counts(observation.get)


def _json_columns(rows: DataFrame, plan: IngestPlan) -> dict[str, str]:
    if not plan.columns:
        return {LINE: "string"}
    lines = rows.select(sql.col(LINE).cast("binary").alias(LINE)).limit(SAMPLE_LINES).collect()
    return json_columns(bytes(row[LINE]) for row in lines)


def _by_partition(records: DataFrame, partition_count: int) -> dict[int | None, int]:
    """Return how many records each partition would get."""
    if "key" not in records.columns and "partition" not in records.columns:
        return {None: records.count()}
    names = [name for name in ("partition", "key") if name in records.columns]
    chosen = records.select(*(sql.col(name).cast("int" if name == "partition" else "binary") for name in names))

    def count(batches: Iterable[Any]) -> Iterator[Any]:
        pa: Any = importlib.import_module("pyarrow")
        found: Counter[int | None] = Counter()
        for batch in batches:
            found.update(_partitions_of(batch.to_pydict(), partition_count))
        columns = [pa.array(list(found), pa.int32()), pa.array(list(found.values()), pa.int64())]
        yield pa.RecordBatch.from_arrays(columns, names=["partition", "records"])

    total: Counter[int | None] = Counter()
    for row in cast("Any", chosen).mapInArrow(count, "partition int, records bigint").collect():
        total[row["partition"]] += row["records"]
    return dict(sorted(total.items(), key=lambda each: -1 if each[0] is None else each[0]))


def _partitions_of(columns: Mapping[str, Sequence[Any]], partition_count: int) -> Iterator[int | None]:
    """Yield the partition of each row by the rules of the sink: its column, else its key, else none."""
    keys = columns.get("key")
    places = columns.get("partition")
    for number in range(len(keys or places or ())):
        place = None if places is None else places[number]
        key = None if keys is None else keys[number]
        yield place if place is not None or key is None else partition_for_key(key, partition_count)


def _aggregates(records: DataFrame) -> list[Any]:
    sizes = [sql.coalesce(sql.octet_length(name), sql.lit(0)) for name in ("key", "value") if name in records.columns]
    total = sizes[0] if len(sizes) == 1 else sizes[0] + sizes[1]
    found = [sql.count(sql.lit(1)).alias("records"), sql.coalesce(sql.sum(total), sql.lit(0)).alias("size_bytes")]
    if "timestamp" in records.columns:
        times = sql.unix_millis("timestamp")
        found += [sql.min(times).alias("first_ms"), sql.max(times).alias("last_ms")]
    return found


def _counts(found: Mapping[str, Any]) -> Counts:
    return Counts(
        records=int(found["records"]),
        size_bytes=int(found["size_bytes"]),
        first_ms=found.get("first_ms"),
        last_ms=found.get("last_ms"),
    )

# SPDX-License-Identifier: Apache-2.0
"""A topic to files, or to the caller: the Spark part of `lograft replay`.

Offsets are resolved once, before Spark starts. So what is shown is what is read, whatever arrives in the meantime.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as sql

from lograft.admin import Admin
from lograft.consumer import Consumer
from lograft.errors import OffsetOutOfRangeError, UsageError
from lograft.spark.jobs.expressions import replay_columns
from lograft.spark.jobs.local_files import absolute_url
from lograft.spark.jobs.plan import OutputFormat, ReplayPlan, offsets_of
from lograft.types import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The offsets of a partition that are read: start inclusive, end exclusive."""

    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The cluster, and how to read from it.

    Attributes:
        bootstrap: brokers to ask first.
        cluster_id: the id that the cluster must have; None accepts any.
        timeout_ms: milliseconds that a call of the planning may take.
        options: further options of the source.
    """

    bootstrap: str
    cluster_id: str | None
    timeout_ms: int
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a replay has written: records, and the bytes of their keys and values."""

    records: int
    size_bytes: int


def spans_of(plan: ReplayPlan, source: Source) -> list[Span]:
    """Return the offsets of each partition that the plan reads, by partition.

    Raises:
        UnknownTopicError: the topic does not exist.
        UsageError: a partition does not exist.
        OffsetOutOfRangeError: offsets that the plan names are not there.
    """
    with Admin(source.bootstrap, cluster_id=source.cluster_id, request_timeout_ms=source.timeout_ms) as admin:
        count = admin.describe_topic(plan.topic).partition_count
    if unknown := [each for each in plan.partitions if each >= count]:
        raise UsageError(f"topic {plan.topic} has no partition {unknown[0]}, only 0 to {count - 1}")
    partitions = plan.partitions or tuple(range(count))
    tps = {TopicPartition(plan.topic, each): each for each in partitions}
    with Consumer(source.bootstrap, cluster_id=source.cluster_id, request_timeout_ms=source.timeout_ms) as consumer:
        # The end first: what arrives between the two is beyond it.
        ends = {tps[tp]: offset for tp, offset in consumer.end_offsets(list(tps)).items()}
        begins = {tps[tp]: offset for tp, offset in consumer.beginning_offsets(list(tps)).items()}
        starts, stops = dict(begins), dict(ends)
        if plan.from_ms is not None:
            found = consumer.offsets_for_times(dict.fromkeys(tps, plan.from_ms))
            starts = {tps[tp]: ends[tps[tp]] if offset is None else offset for tp, offset in found.items()}
        if plan.until_ms is not None:
            found = consumer.offsets_for_times(dict.fromkeys(tps, plan.until_ms))
            stops = {tps[tp]: ends[tps[tp]] if offset is None else offset for tp, offset in found.items()}
    starts |= offsets_of(plan.from_offsets, partitions, "--from-offset")
    stops |= offsets_of(plan.until_offsets, partitions, "--until-offset")
    for each in partitions:
        for option, offset in (("--from-offset", starts[each]), ("--until-offset", stops[each])):
            if not begins[each] <= offset <= ends[each]:
                raise OffsetOutOfRangeError(
                    f"{option} {each}:{offset}: partition {each} has offsets from {begins[each]} up to {ends[each]} "
                    "(exclusive)"
                )
    return [
        Span(partition=each, start_offset=min(starts[each], ends[each]), end_offset=max(starts[each], stops[each]))
        for each in sorted(partitions)
    ]


def read(spark: SparkSession, plan: ReplayPlan, source: Source, spans: Sequence[Span]) -> DataFrame:
    """Return the records of the spans that the plan wants."""
    chosen = [each for each in spans if each.end_offset > each.start_offset]
    named = [each.partition for each in chosen or spans[:1]]
    reader = spark.read.format("lograft").option("kafka.bootstrap.servers", source.bootstrap)
    if source.cluster_id is not None:
        reader = reader.option("kafka.cluster.id", source.cluster_id)
    starts = {str(each.partition): each.start_offset for each in chosen or spans[:1]}
    ends = {str(each.partition): each.end_offset for each in chosen or spans[:1]}
    reader = (
        reader.option("includeHeaders", "true")
        .options(**source.options)
        .option("assign", json.dumps({plan.topic: named}))
        .option("startingOffsets", json.dumps({plan.topic: starts}))
        .option("endingOffsets", json.dumps({plan.topic: ends}))
    )
    rows = reader.load()
    if plan.key is not None:
        rows = rows.where(sql.col("key") == sql.lit(plan.key))
    return rows if plan.limit is None else rows.limit(plan.limit)


def write(spark: SparkSession, plan: ReplayPlan, source: Source, spans: Sequence[Span]) -> Written:
    """Write the records to the plan's target.

    Raises:
        Exception: what Spark says; see `failures`.
    """
    assert plan.target is not None, "a console is not written to by Spark"
    observation = Observation("lograft")
    sizes = sql.coalesce(sql.octet_length("key"), sql.lit(0)) + sql.coalesce(sql.octet_length("value"), sql.lit(0))
    rows = read(spark, plan, source, spans).observe(
        observation,
        sql.count(sql.lit(1)).alias("records"),
        sql.coalesce(sql.sum(sizes), sql.lit(0)).alias("size_bytes"),
    )
    if plan.format is OutputFormat.JSON:
        columns = replay_columns(has_headers=True)
        rows = rows.selectExpr(*(f"{text} AS {name}" for name, text in columns.items()))
    writer = rows.write.mode("overwrite" if plan.is_overwriting else "errorifexists").options(**plan.options)
    writer.format(plan.format.value).save(absolute_url(plan.target))
    found = observation.get
    return Written(records=int(found["records"]), size_bytes=int(found["size_bytes"]))


def records(spark: SparkSession, plan: ReplayPlan, source: Source, spans: Sequence[Span]) -> Iterator[ConsumerRecord]:
    """Yield the records one by one, by partition and offset. Those of one read task are in memory at a time."""
    columns = ("topic", "partition", "offset", "unix_millis(timestamp) AS timestamp_ms", "key", "value", "headers")
    for row in read(spark, plan, source, spans).selectExpr(*columns).toLocalIterator(prefetchPartitions=True):
        yield ConsumerRecord(
            topic=row["topic"],
            partition=row["partition"],
            offset=row["offset"],
            timestamp_ms=row["timestamp_ms"],
            key=_bytes(row["key"]),
            value=_bytes(row["value"]),
            headers=tuple((each["key"], _bytes(each["value"])) for each in row["headers"] or ()),
        )


def _bytes(found: Any) -> bytes | None:
    return None if found is None else bytes(found)

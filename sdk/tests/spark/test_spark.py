# SPDX-License-Identifier: Apache-2.0
"""format("lograft") in a real Spark session against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from lograft import Consumer, Producer, TopicPartition
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MakeTopic = Callable[..., str]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ROWS = 3_000
APPEND = {"delivery.guarantee": "at-least-once"}


def moment(timestamp_ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=timestamp_ms)


def table(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """Rows as tuples, ascending by topic, partition and offset."""
    ordered = rows.orderBy("topic", "partition", "offset").select(*columns).toArrow()
    return list(zip(*(column.to_pylist() for column in ordered.columns), strict=True))


def produce(bootstrap: str, topic: str, partition: int, count: int, *, start_ms: int = 1_000) -> None:
    """Put `count` records into one partition, a millisecond apart."""
    with Producer(bootstrap) as producer:
        values = [b"%d" % number for number in range(count)]
        timestamps = [start_ms + number for number in range(count)]
        producer.send_many(topic, values, partition=partition, timestamps_ms=timestamps)


def test_round_trip_keeps_keys_values_times_and_places(
    spark: SparkSession,
    load: Callable[..., DataFrame],
    save: Callable[..., None],
    make_topic: MakeTopic,
    bootstrap: str,
) -> None:
    """Each written record is read back once, in the partition of its key, with contiguous offsets."""
    topic = make_topic(3)
    source = spark.range(ROWS, numPartitions=4).selectExpr(
        "CASE WHEN id % 10 > 0 THEN encode(concat('key ', id % 97), 'utf-8') END AS key",
        "CASE WHEN id % 7 > 0 THEN encode(concat('value ', id), 'utf-8') END AS value",
        "timestamp_millis(1700000000000 + id) AS timestamp",
    )
    save(source, topic=topic)
    rows = load(subscribe=topic).cache()
    assert rows.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    found = table(rows, "key", "value", "timestamp", "partition", "offset", "topic", "timestampType")
    expected = [
        (
            None if number % 10 == 0 else b"key %d" % (number % 97),
            None if number % 7 == 0 else b"value %d" % number,
            moment(1_700_000_000_000 + number),
        )
        for number in range(ROWS)
    ]
    assert sorted((row[:3] for row in found), key=lambda row: row[2]) == expected
    assert all(row[3] == crc32c(row[0]) % 3 for row in found if row[0] is not None)
    assert {row[5:] for row in found} == {(topic, 0)}
    with Consumer(bootstrap) as consumer:
        ends = consumer.end_offsets([TopicPartition(topic, number) for number in range(3)])
    assert [(row[3], row[4]) for row in found] == [
        (each.partition, offset) for each, end in sorted(ends.items()) for offset in range(end)
    ]


def test_string_columns_are_written_as_utf8(
    spark: SparkSession, load: Callable[..., DataFrame], save: Callable[..., None], make_topic: MakeTopic
) -> None:
    """Key and value may be strings, and column names are not case-sensitive."""
    topic = make_topic(1)
    save(spark.createDataFrame([("ä", "ö€"), (None, "")], "KEY string, Value string"), topic=topic)
    assert sorted(table(load(subscribe=topic), "key", "value"), key=str) == sorted(
        [("ä".encode(), "ö€".encode()), (None, b"")], key=str
    )


def test_headers_make_the_round_trip(
    spark: SparkSession, load: Callable[..., DataFrame], save: Callable[..., None], make_topic: MakeTopic
) -> None:
    """`includeHeaders` adds a column, which is null for a record without headers."""
    topic = make_topic(1)
    schema = "value string, headers array<struct<key: string, value: binary>>"
    headers = [{"key": "a", "value": bytearray(b"1")}, {"key": "a", "value": None}]
    save(spark.createDataFrame([("x", headers), ("y", []), ("z", None)], schema).coalesce(1), topic=topic)
    rows = load(subscribe=topic, includeHeaders="true")
    assert rows.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
    assert table(rows, "value", "headers") == [
        (b"x", [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]),
        (b"y", None),
        (b"z", None),
    ]
    assert "headers" not in load(subscribe=topic).columns


def test_topic_and_partition_columns_choose_the_place(
    spark: SparkSession, load: Callable[..., DataFrame], save: Callable[..., None], make_topic: MakeTopic
) -> None:
    """Rows go to the topic and partition in their columns. A pattern reads both topics back."""
    one, two = make_topic(3, prefix="pattern"), make_topic(3, prefix="pattern")
    source = spark.range(600, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value",
        f"IF(id % 2 = 0, '{one}', '{two}') AS topic",
        "CAST(id % 3 AS INT) AS partition",
    )
    save(source, ingest_topics=f"{one},{two}")
    found = table(load(subscribePattern="pattern-[0-9a-f]{32}"), "topic", "partition", "value")
    assert sorted(int(row[2]) for row in found) == list(range(600))
    assert all(row[0] == (one, two)[int(row[2]) % 2] and row[1] == int(row[2]) % 3 for row in found)


def test_min_partitions_splits_without_loss(
    load: Callable[..., DataFrame], make_topic: MakeTopic, bootstrap: str
) -> None:
    """More read tasks than partitions read the same records. An empty partition needs no task."""
    topic = make_topic(3)
    produce(bootstrap, topic, 0, 1_000)
    produce(bootstrap, topic, 2, 10)
    assert load(subscribe=topic).rdd.getNumPartitions() == 2
    rows = load(subscribe=topic, minPartitions=7)
    assert rows.rdd.getNumPartitions() == 7
    expected = [(0, b"%d" % number) for number in range(1_000)] + [(2, b"%d" % number) for number in range(10)]
    assert table(rows, "partition", "value") == expected


def test_time_range_is_half_open(load: Callable[..., DataFrame], make_topic: MakeTopic, bootstrap: str) -> None:
    """The range goes from the first record at the start to the last one before the end, in every partition."""
    topic = make_topic(2)
    produce(bootstrap, topic, 0, 1_000, start_ms=1_000)
    produce(bootstrap, topic, 1, 1_000, start_ms=1_900)
    rows = load(subscribe=topic, startingTimestamp=1_500, endingTimestamp=2_000)
    times = [row[0] for row in table(rows, "timestamp")]
    assert times == [moment(each) for each in (*range(1_500, 2_000), *range(1_900, 2_000))]
    late = {"subscribe": topic, "startingTimestamp": 2_500}
    with pytest.raises(PySparkException, match=f"{topic}-0 has no record at or after it"):
        load(**late).count()
    assert load(**late, startingOffsetsByTimestampStrategy="latest").count() == 400


def test_assign_reads_given_offsets_of_given_partitions(
    load: Callable[..., DataFrame], make_topic: MakeTopic, bootstrap: str
) -> None:
    """`assign` with startingOffsets and endingOffsets reads exactly that range."""
    topic = make_topic(3)
    for partition in range(3):
        produce(bootstrap, topic, partition, 100)
    rows = load(
        assign=json.dumps({topic: [0, 2]}),
        startingOffsets=json.dumps({topic: {"0": 90, "2": -2}}),
        endingOffsets=json.dumps({topic: {"0": -1, "2": 3}}),
    )
    assert table(rows, "partition", "offset") == [*((0, offset) for offset in range(90, 100)), (2, 0), (2, 1), (2, 2)]
    with pytest.raises(PySparkException, match="startingOffsets: must name every partition that is read; missing"):
        load(assign=json.dumps({topic: [0, 2]}), startingOffsets=json.dumps({topic: {"0": 1}})).count()
    with pytest.raises(PySparkException, match="has no partition 9, only 0 to 2"):
        load(assign=json.dumps({topic: [9]})).count()


def test_empty_topic_gives_no_rows(load: Callable[..., DataFrame], make_topic: MakeTopic) -> None:
    """Spark then passes the reader a partition without a range."""
    assert load(subscribe=make_topic(2)).collect() == []
    assert load(subscribePattern="no-such-topic-.*").collect() == []


def test_no_rows_are_written_well(
    spark: SparkSession, load: Callable[..., DataFrame], save: Callable[..., None], make_topic: MakeTopic
) -> None:
    """A job without rows commits."""
    topic = make_topic(1)
    save(spark.range(0).selectExpr("CAST(id AS STRING) AS value"), topic=topic)
    assert load(subscribe=topic).count() == 0


def test_copy_of_a_topic_keeps_create_times(
    load: Callable[..., DataFrame], save: Callable[..., None], make_topic: MakeTopic, bootstrap: str
) -> None:
    """The rows of a read can be written unchanged."""
    one, two = make_topic(2), make_topic(2)
    produce(bootstrap, one, 1, 500)
    save(load(subscribe=one), topic=two)
    columns = ("partition", "offset", "key", "value", "timestamp")
    assert table(load(subscribe=two), *columns) == table(load(subscribe=one), *columns)


def test_offsets_that_are_not_there_follow_fail_on_data_loss(
    load: Callable[..., DataFrame], make_topic: MakeTopic, bootstrap: str
) -> None:
    """An end beyond the log is an error, or the read returns the existing records."""
    topic = make_topic(1)
    produce(bootstrap, topic, 0, 10)
    beyond = {"subscribe": topic, "endingOffsets": json.dumps({topic: {"0": 99}})}
    with pytest.raises(PySparkException, match="ends at offset 10; asked for 99"):
        load(**beyond).count()
    assert load(**beyond, failOnDataLoss="false").count() == 10


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"subscribe": "t", "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({}, "exactly one of subscribe, subscribePattern, assign"),
        ({"subscribe": "t", "kafka.security.protocol": "SSL"}, "PLAINTEXT only"),
    ],
)
def test_bad_read_is_a_clear_error(load: Callable[..., DataFrame], options: dict[str, str], problem: str) -> None:
    """The error names the option or the topic."""
    with pytest.raises(PySparkException, match=problem):
        load(**options).count()


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ("'a' AS value", {"topic": "no-such-topic"}, "no-such-topic"),
        ("'a' AS value, 'no-such-topic' AS topic", {"ingest.topics": "no-such-topic"}, "no-such-topic"),
        ("'a' AS value, 'no-such-topic' AS topic", APPEND, "no-such-topic"),
        ("'a' AS value, 't' AS topic", {}, r"option ingest\.topics: is required"),
        ("'a' AS value, CAST(NULL AS STRING) AS topic", APPEND, "rows have no topic"),
        ("'a' AS value", {}, "option topic: is required when there is no column topic"),
        ("1 AS value", {"topic": "t"}, "column value must be string or binary, not int"),
        ("'a' AS value", {"topic": "t", "kafka.acks": "0"}, "at-least-once"),
    ],
)
def test_bad_write_is_a_clear_error(
    spark: SparkSession, save: Callable[..., None], columns: str, options: dict[str, str], problem: str
) -> None:
    """The error names the option, the column or the topic."""
    with pytest.raises(PySparkException, match=problem):
        save(spark.range(1).selectExpr(*columns.split(", ")), **options)


def test_overwrite_is_refused(spark: SparkSession, bootstrap: str) -> None:
    """A write never replaces records of a log."""
    writer = spark.range(1).selectExpr("'a' AS value").write.format("lograft").mode("overwrite")
    with pytest.raises(PySparkException, match="a log is only appended to"):
        writer.option("kafka.bootstrap.servers", bootstrap).option("topic", "t").save()


def test_given_schema_is_refused(spark: SparkSession, bootstrap: str) -> None:
    """The columns are fixed, like those of the Kafka connector."""
    reader = spark.read.format("lograft").schema("value string").option("kafka.bootstrap.servers", bootstrap)
    with pytest.raises(PySparkException, match="the columns are fixed"):
        reader.option("subscribe", "t").load().count()


def test_streaming_read_says_that_it_is_batch_only(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    """The error is one sentence with an alternative. It was once about a missing method of the data source."""
    stream = spark.readStream.format("lograft").option("kafka.bootstrap.servers", bootstrap).option("subscribe", "t")
    sink = {"checkpointLocation": str(tmp_path / "read")}
    with pytest.raises(PySparkException, match=r"batch only for now, without Structured Streaming: use spark\.read"):
        stream.load().writeStream.format("noop").options(**sink).start().awaitTermination(60)


def test_record_over_the_limit_fails_the_job(
    spark: SparkSession, save: Callable[..., None], make_topic: MakeTopic
) -> None:
    """A row that the topic refuses is an error, not a gap."""
    with pytest.raises(PySparkException, match="takes at most 1048576"):
        save(spark.range(1).selectExpr("repeat('x', 3000000) AS value"), topic=make_topic(1))


def test_failed_job_leaves_whole_tasks_and_a_rerun_repeats_them(
    spark: SparkSession, load: Callable[..., DataFrame], save: Callable[..., None], make_topic: MakeTopic
) -> None:
    """At least once: after a failure and a second run every row is there, some of them twice."""
    topic = make_topic(1)
    source = spark.range(2_000, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(PySparkException, match="broken on purpose"):
        save(source.mapInArrow(break_second_half, "value string"), topic=topic, **APPEND)
    save(source, topic=topic, **APPEND)
    found = sorted(int(row[0]) for row in table(load(subscribe=topic), "value"))
    assert set(found) == set(range(2_000))
    assert all(found.count(number) == 1 for number in range(1_500, 2_000))


def break_second_half(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.column(0)[0].as_py() == "1500":
            raise ValueError("broken on purpose")
        yield batch

# SPDX-License-Identifier: Apache-2.0
"""Streaming reads and filter push-down in a real Spark session against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from lograft import Admin, Producer
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

pytestmark = pytest.mark.spark

MakeTopic = Callable[..., str]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
QUERY_TIMEOUT_S = 300
STARTS = 6
NOT_STARTED = "Python worker failed to connect back"
T = TypeVar("T")


@pytest.fixture
def put(bootstrap: str) -> Iterator[Callable[..., None]]:
    """Append numbers to a partition: `put(topic, 0, range(10))`."""
    with Producer(bootstrap) as producer:

        def write(topic: str, partition: int, numbers: range, *, size: int = 0) -> None:
            values = [b"%d" % number + bytes(size) for number in numbers]
            keys = [b"%d" % (number % 5) for number in numbers]
            times = [1_000 + number for number in numbers]
            producer.send_many(topic, values, keys=keys, partition=partition, timestamps_ms=times)
            producer.flush()

        yield write


@pytest.fixture
def stream(spark: SparkSession, bootstrap: str) -> Callable[..., DataFrame]:
    """Read a stream with options: `stream(subscribe=topic, maxOffsetsPerTrigger=5)`."""

    def load(**options: object) -> DataFrame:
        given = {"startingOffsets": "earliest", **options}
        reader = spark.readStream.format("lograft").option("kafka.bootstrap.servers", bootstrap)
        return reader.options(**{name: str(value) for name, value in given.items()}).load()

    return load


@pytest.fixture
def run(tmp_path: Path) -> Callable[[DataFrame], list[int]]:
    """Run a stream with AvailableNow into Parquet files, from the checkpoint of the test. Return the rows of each micro-batch."""

    def start(rows: DataFrame) -> list[int]:
        return finish(
            rows.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )

    return start


def finish(writer: DataStreamWriter) -> list[int]:
    def run() -> list[int]:
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        return counts(query)

    return patiently(run)


def counts(query: StreamingQuery) -> list[int]:
    """The rows of each micro-batch that had any."""
    return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]


def patiently(run: Callable[[], T]) -> T:
    """Run a query, again if it could not begin: Spark gives its Python process 10 seconds to start, which a busy machine may miss."""
    for _ in range(STARTS - 1):
        try:
            return run()
        except PySparkException as error:
            if NOT_STARTED not in str(error):
                raise
    return run()


def table(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    found = rows.select(*columns).toArrow()
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_restart_from_a_checkpoint_reads_each_record_once(
    spark: SparkSession,
    stream: Callable[..., DataFrame],
    run: Callable[[DataFrame], list[int]],
    make_topic: MakeTopic,
    put: Callable[..., None],
    admin: Admin,
    tmp_path: Path,
) -> None:
    """Two runs with one checkpoint. The limit by records holds, and a partition that came between is read from its beginning."""
    topic = make_topic(2)
    put(topic, 0, range(60))
    put(topic, 1, range(40))
    assert run(stream(subscribe=topic, maxRecordsPerTrigger=50)) == [50, 50]
    put(topic, 0, range(60, 70))
    admin.create_partitions(topic, 3)
    put(topic, 2, range(7))
    assert sum(run(stream(subscribe=topic, maxRecordsPerTrigger=50))) == 17
    assert run(stream(subscribe=topic)) == []
    expected = [
        *((0, number) for number in range(70)),
        *((1, number) for number in range(40)),
        *((2, number) for number in range(7)),
    ]
    written = spark.read.parquet(str(tmp_path / "out"))
    assert table(written, "partition", "offset") == expected


def test_running_query_reads_what_arrives_with_columns_and_a_limit_by_bytes(
    spark: SparkSession,
    stream: Callable[..., DataFrame],
    make_topic: MakeTopic,
    put: Callable[..., None],
    tmp_path: Path,
) -> None:
    """A query that goes on: its micro-batches are cut by bytes, and it reports where the logs end."""
    topic = make_topic(1)
    put(topic, 0, range(40), size=1_000)
    rows = stream(subscribe=topic, columns="offset,value", maxBytesPerTrigger=11_000)
    assert rows.dtypes == [("offset", "bigint"), ("value", "binary")]

    def run() -> list[int]:
        query = rows.writeStream.format("memory").queryName("arriving").start()
        try:
            query.processAllAvailable()
            put(topic, 0, range(40, 45), size=1_000)
            query.processAllAvailable()
            assert topic in query.recentProgress[-1]["sources"][0]["latestOffset"]
            return counts(query)
        finally:
            query.stop()

    found = patiently(run)
    assert sum(found) == 45
    assert max(found) == 10
    assert table(spark.table("arriving"), "offset") == [(number,) for number in range(45)]


def test_recreated_topic_ends_the_query_with_advice(
    stream: Callable[..., DataFrame],
    run: Callable[[DataFrame], list[int]],
    make_topic: MakeTopic,
    put: Callable[..., None],
    admin: Admin,
) -> None:
    """The user reads which topic it is and what to do, not a stack of offsets."""
    topic = make_topic(1)
    put(topic, 0, range(5))
    assert run(stream(subscribe=topic)) == [5]
    admin.delete_topic(topic)
    admin.create_topic(topic, partition_count=1, configs={"retention.ms": "-1"})
    put(topic, 0, range(9))
    with pytest.raises(PySparkException, match=f"topic {topic} was deleted and created again"):
        run(stream(subscribe=topic))
    assert run(stream(subscribe=topic, failOnDataLoss="false")) == [9]


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def test_filters_are_pushed_where_spark_pushes_them(
    spark: SparkSession, bootstrap: str, make_topic: MakeTopic, put: Callable[..., None]
) -> None:
    """The result is the same with and without. With it, fewer tasks read, and Spark filters less."""
    topic = make_topic(3)
    for partition in range(3):
        put(topic, partition, range(200))

    def load(**options: str) -> DataFrame:
        reader = spark.read.format("lograft").option("kafka.bootstrap.servers", bootstrap)
        return reader.options(subscribe=topic, **options).load()

    replays = [
        "partition = 1 AND offset >= 20 AND offset < 30",
        "timestamp >= timestamp_millis(1050) AND timestamp < timestamp_millis(1070)",
        "key = X'33'",
        "key IN (X'33', X'31') AND offset IN (1, 3, 8) AND value IS NOT NULL",
        f"topic = '{topic}' AND partition IN (0, 2) AND offset > 197",
        "topic LIKE 'nothing%'",
        "partition = 0 OR offset = 3",
    ]
    without = [table(load().where(each), "partition", "offset", "key", "value") for each in replays]
    assert load().where(replays[0]).rdd.getNumPartitions() == 3
    with setting(spark, PUSHDOWN, "true"):
        assert [table(load().where(each), "partition", "offset", "key", "value") for each in replays] == without
        assert load().where(replays[0]).rdd.getNumPartitions() == 1
        assert load(pushdown="false").where(replays[0]).rdd.getNumPartitions() == 3
        assert load(pushdown="true").where(replays[0]).count() == 10
        assert load(columns="offset").where("offset >= 190").count() == 30
    assert [len(each) for each in without] == [10, 60, 120, 9, 4, 0, 202]
    with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        load(pushdown="true").where(replays[0]).count()

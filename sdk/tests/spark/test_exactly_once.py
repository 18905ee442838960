# SPDX-License-Identifier: Apache-2.0
"""Exactly-once writes in a real Spark session, whose tasks fail, against a real broker."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from lograft import Admin, IngestState
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MakeTopic = Callable[..., str]
Save = Callable[..., None]
Load = Callable[..., "DataFrame"]
ROWS = 6_000
SCHEMA = "key string, value string"


def numbers(spark: SparkSession) -> DataFrame:
    """Return rows with a key, in four tasks of several batches each."""
    return spark.range(ROWS, numPartitions=4).selectExpr(
        "CAST(id % 97 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )


def found(load: Load, topic: str) -> list[int]:
    """Return the values of a topic, sorted."""
    return sorted(int(row[0]) for row in load(subscribe=topic).select("value").collect())


def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass rows on; in the first try of a task, fail after some."""
    context = TaskContext.get()
    assert context is not None
    for count, batch in enumerate(batches):
        if context.attemptNumber() == 0 and count == 1:
            raise ValueError("first try fails")
        yield batch


def fail_first_in_another_order(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """As `fail_first`, but each try has its rows in another order."""
    context = TaskContext.get()
    assert context is not None
    table = pa.Table.from_batches(list(batches))
    order = list(range(table.num_rows))
    random.Random(context.attemptNumber()).shuffle(order)
    yield from fail_first(iter(table.take(order).combine_chunks().to_batches(500)))


def always_fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Pass some rows on, then fail."""
    for count, batch in enumerate(batches):
        if count == 1:
            raise ValueError("every try fails")
        yield batch


@pytest.mark.parametrize("failing", [fail_first, fail_first_in_another_order])
def test_each_row_is_there_once_although_every_first_try_fails(
    spark: SparkSession, load: Load, save: Save, make_topic: MakeTopic, admin: Admin, failing: Callable[..., object]
) -> None:
    """Rows that a failed try has staged are not published, whatever the order of the next try."""
    topic, ingest_id = make_topic(3), f"job/{uuid.uuid4()}"
    save(numbers(spark).mapInArrow(failing, SCHEMA), topic=topic, ingest_id=ingest_id)
    assert found(load, topic) == list(range(ROWS))
    ingest = admin.describe_ingest(ingest_id)
    assert ingest.result is not None
    assert (ingest.state, ingest.result.records, ingest.result.dropped_attempts) == (IngestState.COMMITTED, ROWS, 4)


def test_failed_job_publishes_nothing_and_its_rerun_everything(
    spark: SparkSession, load: Load, save: Save, make_topic: MakeTopic, admin: Admin
) -> None:
    """The id is free again at once, and used up after the rerun: a third run writes nothing and takes no row."""
    topic, ingest_id = make_topic(2), f"job/{uuid.uuid4()}"
    with pytest.raises(PySparkException, match="every try fails"):
        save(numbers(spark).mapInArrow(always_fail, SCHEMA), topic=topic, ingest_id=ingest_id)
    assert found(load, topic) == []
    assert admin.describe_ingest(ingest_id).state is IngestState.ABORTED
    save(numbers(spark), topic=topic, ingest_id=ingest_id)
    assert found(load, topic) == list(range(ROWS))
    # More than the pipe between Spark and its Python holds, of which the tasks take nothing.
    many = spark.range(400_000, numPartitions=2).selectExpr("repeat('x', 100) AS value")
    save(many, topic=topic, ingest_id=ingest_id)
    assert found(load, topic) == list(range(ROWS))


def test_frames_without_rows_or_partitions(
    spark: SparkSession, load: Load, save: Save, make_topic: MakeTopic, admin: Admin
) -> None:
    """Both commit, and use up their id."""
    topic = make_topic(2)
    schema = StructType([StructField("value", StringType())])
    without_partitions = spark.createDataFrame(spark.sparkContext.emptyRDD(), schema)
    assert without_partitions.rdd.getNumPartitions() == 0
    for rows in (without_partitions, spark.range(0).selectExpr("CAST(id AS STRING) AS value")):
        ingest_id = f"job/{uuid.uuid4()}"
        save(rows, topic=topic, ingest_id=ingest_id)
        assert admin.describe_ingest(ingest_id).state is IngestState.COMMITTED
    assert found(load, topic) == []


class Query:
    """A streaming query from files with one number in each line to a topic, one file in each micro-batch."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
        self.spark = spark
        self.options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
        self.source = directory / "source"
        self.checkpoint = directory / "checkpoint"
        self.source.mkdir()

    def put(self, name: str, numbers: range) -> None:
        """Add a file."""
        hidden = self.source / f".{name}"
        hidden.write_text("".join(f"{number}\n" for number in numbers), encoding="utf-8")
        hidden.rename(self.source / name)

    def run(self, failing: Callable[..., object] | None = None, *, checkpoint: Path | None = None) -> None:
        """Run until everything that is there is written."""
        rows = self.spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(self.source))
        rows = rows.repartition(2)
        if failing is not None:
            rows = rows.mapInArrow(failing, "value string")
        writer = rows.writeStream.format("lograft").options(**self.options).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint or self.checkpoint)).start()
        assert query.awaitTermination(120)

    @property
    def query_id(self) -> str:
        """Id that the checkpoint keeps."""
        found: str = json.loads((self.checkpoint / "metadata").read_text(encoding="utf-8"))["id"]
        return found

    def forget_commit(self, batch_id: int) -> None:
        """Leave the checkpoint as a driver that died before it had noted the end of a micro-batch."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


def test_stream_writes_each_row_once(
    spark: SparkSession, load: Load, make_topic: MakeTopic, bootstrap: str, admin: Admin, tmp_path: Path
) -> None:
    """Through failed tries, a restart, and a micro-batch that Spark repeats after it was committed."""
    topic = make_topic(3)
    query = Query(spark, bootstrap, topic, tmp_path)
    for number in range(3):
        query.put(f"{number}.txt", range(2_000 * number, 2_000 * (number + 1)))
    query.run(fail_first)
    assert found(load, topic) == list(range(6_000))
    query.forget_commit(2)
    query.put("3.txt", range(6_000, 6_500))
    query.run()
    assert found(load, topic) == list(range(6_500))
    # Nothing new: the query starts, and ends without a row.
    query.run()
    assert found(load, topic) == list(range(6_500))
    for batch_id in range(4):
        assert admin.describe_ingest(f"{query.query_id}/{batch_id}").state is IngestState.COMMITTED
    query.run(checkpoint=tmp_path / "fresh")
    assert found(load, topic) == sorted([*range(6_500), *range(6_500)])


def test_stream_that_fails_publishes_no_part_of_its_micro_batch(
    spark: SparkSession, load: Load, make_topic: MakeTopic, bootstrap: str, tmp_path: Path
) -> None:
    """The restarted query writes all of it."""
    topic = make_topic(2)
    query = Query(spark, bootstrap, topic, tmp_path)
    query.put("0.txt", range(4_000))
    with pytest.raises(PySparkException, match="every try fails"):
        query.run(always_fail)
    assert found(load, topic) == []
    query.run()
    assert found(load, topic) == list(range(4_000))


def test_stream_without_rows(
    spark: SparkSession, load: Load, make_topic: MakeTopic, bootstrap: str, tmp_path: Path
) -> None:
    """A micro-batch whose rows are all filtered out commits."""
    topic = make_topic(1)
    query = Query(spark, bootstrap, topic, tmp_path)
    query.put("0.txt", range(0))
    query.run()
    query.put("1.txt", range(10))
    query.run()
    assert found(load, topic) == list(range(10))

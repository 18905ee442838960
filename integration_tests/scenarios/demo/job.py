# SPDX-License-Identifier: Apache-2.0
"""The two halves of the job in PySpark: ingest, and replay to tallies.

Owns the Spark side of the demo. Python workers tally the rows of a replay with the hash of `facts`, from the rows that Spark returns.
So everything between the source file and a user's DataFrame is under test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from integration_tests.scenarios.demo.facts import MODULUS, Tally, hash_record
from integration_tests.scenarios.demo.faults import hold

TALLY_COLUMNS = "partition int, records bigint, checksum string"


def ingest(
    spark: SparkSession,
    staged: Path,
    *,
    bootstrap: str,
    topic: str,
    ingest_id: str,
    has_keyless: bool,
    gate: Path | None = None,
) -> None:
    """Write the staged records to a topic exactly once, in time order within each partition.

    Only then does a time range of the log hold exactly the records of that time. A range is read from the first record at or after its
    start to the first record at or after its end, wherever other records are.

    With a gate, each task stops at it in the middle: see `faults`.
    """
    # Each task gets a range of times, later tasks later ones. Lograft publishes in the order of the tasks.
    rows = spark.read.parquet(str(staged)).orderBy("timestamp")
    if gate is not None:
        rows = rows.mapInArrow(lambda batches: hold(batches, gate), rows.schema)
    # Lograft finds the partition of a key by itself, and the comparison shows whether it is right. Without keys Lograft would choose
    # partitions freely, and would not keep the time order between records with and without a key.
    placed = rows.withColumnRenamed("place", "partition") if has_keyless else rows.drop("place")
    writer = placed.write.format("lograft").mode("append")
    writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).option("ingest.id", ingest_id).save()


def replay(spark: SparkSession, *, bootstrap: str, topic: str, options: Mapping[str, str] | None = None) -> DataFrame:
    """Read a topic back: all of it, or what `options` select."""
    reader = spark.read.format("lograft").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**(options or {})).load()


def time_range(start_ms: int, end_ms: int) -> dict[str, str]:
    """Return the options of a replay from `start_ms` (inclusive) to `end_ms` (exclusive)."""
    return {
        "startingTimestamp": str(start_ms),
        "endingTimestamp": str(end_ms),
        # A partition may have no record that late.
        "startingOffsetsByTimestampStrategy": "latest",
    }


def tally(rows: DataFrame) -> dict[int, Tally]:
    """Tally the rows of a replay by partition."""
    found: dict[int, Tally] = {}
    for part in rows.mapInArrow(_tally_batches, TALLY_COLUMNS).collect():
        some = Tally(count=part["records"], checksum=int(part["checksum"]))
        found[part["partition"]] = found.get(part["partition"], Tally()) + some
    return found


def _tally_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    counts: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("partition", "key", "value"))
        timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for partition, key, value, timestamp_us in zip(*columns, timestamps, strict=True):
            counts[partition] += 1
            sums[partition] += hash_record(key, value, timestamp_us // 1000)
    for partition, count in counts.items():
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([partition], pa.int32()),
                pa.array([count], pa.int64()),
                pa.array([str(sums[partition] % MODULUS)], pa.string()),
            ],
            names=["partition", "records", "checksum"],
        )

# SPDX-License-Identifier: Apache-2.0
"""`make replay-memory RECORDS=10000000`: the memory of a Spark replay does not grow with the log.

    python -m integration_tests.scenarios.replay_memory --records 10000000 --value-bytes 100 --partitions 4

A `lograft dev` process has the records. A Spark session with two tasks at a time replays one record, then a tenth of the log, then
all of it. Meanwhile the resident memory of Spark's Python workers is sampled. Two things must hold: a task needs at most
`TASK_BYTES` more than a worker that has read one record, and the whole log needs no more than `FLAT_BYTES` above its tenth.

Exit status: 0 both hold; 1 not so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
from lograft import Admin, Producer
from lograft.spark import local_session

from integration_tests.harness.cluster import DevServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS: Final = 10_000_000
VALUE_BYTES: Final = 100
PARTITIONS: Final = 4
TASK_BYTES: Final = 128 * 1024 * 1024
"""Bytes that a read task may need in addition to an idle worker, with the default options (docs/spark.md says what they are for)."""
FLAT_BYTES: Final = 24 * 1024 * 1024
"""Bytes by which the peak of the whole log may exceed that of its tenth."""
MIB: Final = 1024 * 1024
SAMPLE_S: Final = 0.1
BATCH_RECORDS: Final = 10_000
WORKER: Final = "pyspark.daemon"
TOPIC: Final = "replay"


@dataclass(slots=True)
class Peak:
    """The largest resident memory of one Python worker, in bytes, and the number of samples."""

    worker_bytes: int = 0
    samples: int = 0


def workers() -> Iterator[psutil.Process]:
    """Yield the Python workers of this process's Spark: the children of Spark's daemon."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            parent = process.parent()
            if WORKER in process.cmdline() and parent is not None and WORKER in parent.cmdline():
                yield process


@contextmanager
def sampled() -> Generator[Peak]:
    """Sample the workers while the block runs."""
    peak, done = Peak(), threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            for worker in workers():
                with suppress(psutil.Error):
                    peak.worker_bytes = max(peak.worker_bytes, worker.memory_info().rss)
                    peak.samples += 1

    thread = threading.Thread(target=sample, name="sampler")
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def fill(bootstrap: str, records: int, value_bytes: int, partitions: int) -> list[int]:
    """Write the records, about the same number to each partition. Return how many each has."""
    offsets = [0] * partitions
    with Admin(bootstrap) as admin:
        admin.create_topic(TOPIC, partition_count=partitions, configs={"retention.ms": "-1"})
    with Producer(bootstrap) as producer:
        values = [bytes(value_bytes)] * BATCH_RECORDS
        keys = [b"%08d" % number for number in range(BATCH_RECORDS)]
        for number, first in enumerate(range(0, records, BATCH_RECORDS)):
            count = min(BATCH_RECORDS, records - first)
            producer.send_many(TOPIC, values[:count], keys=keys[:count], partition=number % partitions)
            offsets[number % partitions] += count
        producer.flush()
    return offsets


def replay(spark: SparkSession, bootstrap: str, offsets: Sequence[int]) -> tuple[int, Peak, float]:
    """Read the first offsets of each partition. Return the number of records, the peak and the seconds."""
    ends = json.dumps({TOPIC: {str(partition): end for partition, end in enumerate(offsets)}})
    reader = spark.read.format("lograft").option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC)
    rows = reader.option("endingOffsets", ends).load()
    started_s = time.monotonic()
    with sampled() as peak:
        (found,) = rows.selectExpr("count(*) AS records", "sum(length(key) + length(value)) AS size").collect()
    return int(found["records"]), peak, time.monotonic() - started_s


def check(bootstrap: str, offsets: Sequence[int]) -> list[str]:
    """Replay one record of each partition, a tenth, and all, and return what is wrong."""
    spark = local_session("replay memory", threads=2, log_level="off")
    problems: list[str] = []
    peaks: list[int] = []
    try:
        for share in ([1] * len(offsets), [max(1, each // 10) for each in offsets], offsets):
            count, peak, seconds = replay(spark, bootstrap, share)
            peaks.append(peak.worker_bytes)
            print(
                f"{count:>12,} records {seconds:>8.1f} s   largest worker {peak.worker_bytes / MIB:>6.0f} MiB   "
                f"{peak.samples} samples",
                flush=True,
            )
            if count != sum(share):
                problems.append(f"{count} records were read of {sum(share)}")
            if not peak.samples:
                problems.append("no worker was sampled: take more records")
    finally:
        spark.stop()
    idle, tenth, whole = peaks
    if whole - idle > TASK_BYTES:
        problems.append(f"a task needs {(whole - idle) / MIB:.0f} MiB, more than {TASK_BYTES / MIB:.0f} MiB")
    if whole - tenth > FLAT_BYTES:
        problems.append(f"the whole log needs {(whole - tenth) / MIB:.0f} MiB more than its tenth")
    return problems


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(prog="replay_memory")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--value-bytes", type=int, default=VALUE_BYTES)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lograft-replay-") as folder, DevServer(Path(folder)) as server:
        offsets = fill(server.bootstrap, chosen.records, chosen.value_bytes, chosen.partitions)
        problems = check(server.bootstrap, offsets)
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

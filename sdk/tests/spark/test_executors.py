# SPDX-License-Identifier: Apache-2.0
"""Executors of a standalone cluster get the packages with the job, and write exactly once.

One master and two workers on loopback, from the scripts of the PySpark wheel. Their Python is that of a node, and Lograft comes
from the archive that the job sends along.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest
from lograft.spark import ensure_java
from lograft.spark.staging import SPECULATION_COST

pytestmark = pytest.mark.spark

SDK = Path(__file__).parents[2]
START_S = 120
JOB_S = 300
STOP_S = 20

JOB = """
import json
import sys

from pyspark.sql import SparkSession

master, archive, bootstrap, topic, ingest_id = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "512m")
    .config("spark.archives", archive + "#packages")
    .config("spark.executorEnv.PYTHONPATH", "packages")
    .config("spark.speculation", "true")
    # How often Spark looks whether both executors are there, for the barrier below.
    .config("spark.scheduler.barrier.maxConcurrentTasksCheck.interval", "1s")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")


def where(batches):
    import socket

    import lograft
    import pyarrow
    from pyspark import SparkFiles

    for batch in batches:
        pass
    yield pyarrow.record_batch({"file": [lograft.__file__], "root": [SparkFiles.getRootDirectory()]})


# A barrier starts its tasks together, so each executor, of one core, gets one of the two.
places = spark.range(8, numPartitions=2).mapInArrow(where, "file string, root string", barrier=True).collect()
print("PLACES", json.dumps([[each["file"], each["root"]] for each in places]))


def fail_first(batches):
    from pyspark import TaskContext

    for batch in batches:
        yield batch
        if TaskContext.get().attemptNumber() == 0 and TaskContext.get().partitionId() == 1:
            raise ValueError("first try fails")


rows = spark.range(4000, numPartitions=4).selectExpr("CAST(id AS STRING) AS value").mapInArrow(fail_first, "value string")
writer = rows.write.format("lograft").mode("append").option("kafka.bootstrap.servers", bootstrap)
writer.option("topic", topic).option("ingest.id", ingest_id).save()
read = spark.read.format("lograft").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
values = sorted(int(bytes(each["value"])) for each in read.select("value").collect())
print("ONCE", values == list(range(4000)))
spark.stop()
"""


class Daemon:
    """A master or a worker, and what it logs."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        self.process = subprocess.Popen(
            [str(script), *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def logged(self, pattern: str) -> str:
        """Wait for a line, and return the first group."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s and self.process.poll() is None:
            for line in list(self.lines):
                if (match := re.search(pattern, line)) is not None:
                    return match.group(1)
            threading.Event().wait(0.1)
        raise AssertionError("".join(self.lines[-40:]))

    def stop(self) -> None:
        """End it with all its executors."""
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        # The reader ends with the last process that has the pipe.
        self._reader.join(STOP_S)
        assert self.process.stderr is not None
        self.process.stderr.close()


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Start a master and two workers. Yield the address of the master."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ensure_java(environment)
    environment |= {"SPARK_LOCAL_DIRS": str(directory / "local"), "SPARK_NO_DAEMONIZE": "1"}
    with ExitStack() as stack:
        home = "org.apache.spark.deploy"
        addresses = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = Daemon([f"{home}.master.Master", *addresses], environment)
        stack.callback(master.stop)
        url = master.logged(r"Starting Spark master at (spark://\S+)")
        workers: list[Daemon] = []
        for number in (2, 3):
            arguments = [
                f"{home}.worker.Worker",
                *(
                    "--host",
                    f"127.0.0.{number}",
                    "--port",
                    "0",
                    "--webui-port",
                    "0",
                    "--cores",
                    "1",
                    "--memory",
                    "600m",
                ),
                *("--work-dir", str(directory / f"worker{number}"), url),
            ]
            worker = Daemon(arguments, environment)
            stack.callback(worker.stop)
            workers.append(worker)
        for worker in workers:
            worker.logged(r"Successfully (registered) with master")
        yield url


def test_packages_reach_the_executors_and_rows_are_written_once(
    bootstrap: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Each executor runs Lograft from the archive of the job. One warning says what speculation costs."""
    archive = tmp_path / "packages.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as packed:
        for package in ("lograft", "pyspark_lograft"):
            packed.add(SDK / package, package, filter=lambda each: None if "__pycache__" in each.name else each)
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    topic = make_topic(2)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    ensure_java(environment)
    with standalone(tmp_path) as url:
        done = subprocess.run(
            [sys.executable, str(job), url, str(archive), bootstrap, topic, f"job/{topic}"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=JOB_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-8_000:]
    assert "ONCE True" in done.stdout
    places = re.search(r"PLACES (.*)", done.stdout)
    assert places is not None
    for number in (2, 3):
        assert str(tmp_path / f"worker{number}") in places.group(1), "a worker that had no task"
    assert str(SDK) not in places.group(1)
    assert done.stderr.count(SPECULATION_COST) == 1, done.stderr[-8_000:]

# SPDX-License-Identifier: Apache-2.0
"""What `spark_run` measures with: one Spark session, its data, the two peers, and where the processor time of a job goes.

Spark runs with `local[2]` in this process, so its executor is the driver's JVM. Its Python workers are children of the JVM. The
servers are processes of their own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from lograft import Admin, OffsetQuery, Position
from lograft.spark import local_session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.kafka_server import KafkaServers
from benchmarks.spark_ceiling import Ceiling
from integration_tests.harness.wait import wait_for

THREADS = 2
PARTITIONS = 6
READABLE_TIMEOUT_S = 120.0
ADMIN_TIMEOUT_MS = 30_000
HEX_DIGITS_OF_MD5 = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement. Times are seconds; `jvm_s`, `workers_s` and `servers_s` are processor time.

    `others` is what everything else on the machine used meanwhile, in cores.
    """

    records: int
    seconds: float
    jvm_s: float
    workers_s: float
    servers_s: float
    others: float

    @property
    def rate(self) -> float:
        """Thousands of records per second."""
        return self.records / self.seconds / 1e3


class Peer(Protocol):
    """A system that Spark writes to and reads from."""

    format: str
    """Name for `DataFrameReader.format` and `DataFrameWriter.format`."""

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses."""
        ...

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of its servers."""
        ...

    def create_topic(self, topic: str, *, is_flushed: bool) -> None:
        """Create a topic of `PARTITIONS` partitions; `is_flushed`: fsync before each acknowledgement."""
        ...

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        ...

    def record_count(self, topic: str) -> int:
        """Return the number of records that consumers can read now."""
        ...


class LograftPeer:
    """Lograft servers, and an administrator of them."""

    format = "lograft"

    def __init__(self, bootstrap: str, pids: Sequence[int], *, replicas: int) -> None:
        self.bootstrap, self.pids, self._replicas = bootstrap, pids, replicas
        self._admin = Admin(bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS)

    def create_topic(self, topic: str, *, is_flushed: bool) -> None:
        """Create a topic."""
        configs = {"flush.policy": "ack" if is_flushed else "none"}
        if self._replicas > 1:
            configs["min.insync.replicas"] = "2"
        self._admin.create_topic(topic, partition_count=PARTITIONS, replication_factor=self._replicas, configs=configs)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self._admin.delete_topic(topic)

    def record_count(self, topic: str) -> int:
        """Return the sum of the ends of the partitions; no offset is skipped."""
        queries = [
            OffsetQuery(topic=topic, partition=partition, position=Position.LATEST) for partition in range(PARTITIONS)
        ]
        return sum(answer.offset or 0 for answer in self._admin.list_offsets(queries))

    def close(self) -> None:
        """Close the administrator."""
        self._admin.close()


class KafkaPeer:
    """Kafka servers. The administrator is Kafka's own, in Spark's JVM, where the connector's jars are."""

    format = "kafka"

    def __init__(self, servers: KafkaServers, spark: SparkSession, *, replicas: int) -> None:
        self._servers, self._replicas = servers, replicas
        self._jvm: Any = spark._jvm
        self._kafka: Any = self._jvm.org.apache.kafka
        properties = self._jvm.java.util.Properties()
        properties.put("bootstrap.servers", servers.bootstrap)
        self._admin = self._kafka.clients.admin.AdminClient.create(properties)

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses."""
        return self._servers.bootstrap

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of the servers."""
        return self._servers.pids

    def create_topic(self, topic: str, *, is_flushed: bool) -> None:
        """Create a topic, and wait until all of its partitions answer."""
        java = self._jvm.java.util
        assignment = java.HashMap()
        for partition in range(PARTITIONS):
            nodes = java.ArrayList()
            for step in range(self._replicas):
                nodes.add((partition + step) % self._replicas + 1)
            assignment.put(partition, nodes)
        configs = java.HashMap()
        if is_flushed:
            configs.put("flush.messages", "1")
        if self._replicas > 1:
            configs.put("min.insync.replicas", "2")
        new = self._kafka.clients.admin.NewTopic(topic, assignment).configs(configs)
        self._admin.createTopics(java.Collections.singleton(new)).all().get()
        self.record_count(topic)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        self._admin.deleteTopics(self._jvm.java.util.Collections.singleton(topic)).all().get()

    def record_count(self, topic: str) -> int:
        """Return the sum of the ends of the partitions. Nothing here makes control records."""
        queries = self._jvm.java.util.HashMap()
        partitions = [self._kafka.common.TopicPartition(topic, number) for number in range(PARTITIONS)]
        for partition in partitions:
            queries.put(partition, self._kafka.clients.admin.OffsetSpec.latest())
        found = self._admin.listOffsets(queries).all().get()
        return sum(found.get(partition).offset() for partition in partitions)

    def close(self) -> None:
        """Close the administrator."""
        self._admin.close()


class SparkSide:
    """The session, and the processes behind it.

    Args:
        directory: directory for Spark's files.
        jars: jars for the class path of the driver.
        driver_memory: heap of the JVM, such as `4g`.
    """

    def __init__(self, directory: Path, jars: Sequence[Path], *, driver_memory: str) -> None:
        # Workers import the data sources from here, and so does the process that looks for data sources.
        root = str(Path(__file__).resolve().parents[1])
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        directory.mkdir()
        # `local_session` sets the JVM up for short jobs; these take seconds, so the JVM compiles and collects as it does by default.
        self.session = local_session(
            "bench-spark",
            threads=THREADS,
            directory=directory,
            settings={
                "spark.driver.memory": driver_memory,
                "spark.driver.extraClassPath": os.pathsep.join(map(str, jars)),
                "spark.driver.extraJavaOptions": (
                    f"-Djava.io.tmpdir={directory} -Dlog4j2.configurationFile={directory / 'log4j2.properties'}"
                ),
            },
        )
        self.session.dataSource.register(Ceiling)
        gateway: Any = self.session.sparkContext._gateway
        self._jvm = psutil.Process(gateway.proc.pid)
        self._driver = psutil.Process()
        self._workers_s = self._lost_s = 0.0

    @property
    def java_version(self) -> str:
        """Version of the Java that Spark runs on."""
        jvm: Any = self.session._jvm
        return str(jvm.java.lang.System.getProperty("java.vm.version"))

    def frame(self, records: int, value_bytes: int) -> DataFrame:
        """Return a cached frame of keys (the row's number as text) and values of random letters, in two partitions."""
        pieces = -(-value_bytes // HEX_DIGITS_OF_MD5)
        number = F.col("id").cast("string")
        letters = F.concat(*[F.md5(F.concat(number, F.lit(f"-{piece}"))) for piece in range(pieces)])
        frame = self.session.range(0, records, 1, THREADS).select(
            number.cast("binary").alias("key"), F.substring(letters, 1, value_bytes).cast("binary").alias("value")
        )
        frame = frame.persist()
        frame.count()
        return frame

    def measure(self, records: int, peer: Peer | None, work: Callable[[], None]) -> Sample:
        """Run a job, and return what it took."""
        servers = [psutil.Process(pid) for pid in peer.pids] if peer is not None else []
        before, busy_before, started = self._usage(servers), _busy_s(), time.perf_counter()
        work()
        seconds = time.perf_counter() - started
        after, busy = self._usage(servers), _busy_s() - busy_before
        jvm_s, workers_s, servers_s, driver_s = (now - old for now, old in zip(after, before, strict=True))
        return Sample(
            records=records,
            seconds=seconds,
            jvm_s=jvm_s,
            workers_s=workers_s,
            servers_s=servers_s,
            others=max(0.0, busy - jvm_s - workers_s - servers_s - driver_s) / seconds,
        )

    def _usage(self, servers: Sequence[psutil.Process]) -> tuple[float, float, float, float]:
        """Return the processor seconds of the JVM, of the Python workers, of servers, and of this process."""
        times = self._jvm.cpu_times()
        # Workers that have ended are counted by their parents.
        workers_s = times.children_user + times.children_system
        for child in self._jvm.children(recursive=True):
            try:
                used = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            workers_s += used.user + used.system + used.children_user + used.children_system
        # A worker whose daemon has ended is reaped by nobody who counts it. What it had used by then still counts.
        self._lost_s += max(0.0, self._workers_s - self._lost_s - workers_s)
        self._workers_s = workers_s + self._lost_s
        return times.user + times.system, self._workers_s, sum(map(_cpu_s, servers)), _cpu_s(self._driver)


def ingest(frame: DataFrame, peer: Peer, topic: str, options: Mapping[str, str], records: int) -> None:
    """Write a frame to a topic, and wait until consumers can read all of it."""
    writer = frame.write.format(peer.format).mode("append")
    writer.options(**{"kafka.bootstrap.servers": peer.bootstrap, "topic": topic, **options}).save()
    wait_for(
        lambda: peer.record_count(topic) >= records, timeout_s=READABLE_TIMEOUT_S, what=f"{records} records to read"
    )


def read(spark: SparkSession, peer: Peer, topic: str) -> DataFrame:
    """Return the frame of a whole topic."""
    reader = spark.read.format(peer.format)
    return reader.options(**{"kafka.bootstrap.servers": peer.bootstrap, "subscribe": topic}).load()


def drain(frame: DataFrame) -> None:
    """Run a frame, and drop its rows in the JVM."""
    frame.write.format("noop").mode("overwrite").save()


def check(frame: DataFrame, records: int, value_bytes: int) -> None:
    """Check the number of the rows, their distinct keys, and the bytes of their values.

    Raises:
        RuntimeError: something is missing or doubled.
    """
    row = frame.select(F.count("value"), F.sum(F.length("value")), F.approx_count_distinct("key")).collect()[0]
    if (row[0], row[1]) != (records, records * value_bytes):
        raise RuntimeError(f"{row[0]} records of {row[1]} bytes came back instead of {records} of {value_bytes} each")


def pause(peer: Peer) -> None:
    """Stop the servers of a peer for a while (SIGSTOP)."""
    for pid in peer.pids:
        os.kill(pid, signal.SIGSTOP)


def resume(peer: Peer) -> None:
    """Let the servers of a peer go on."""
    for pid in peer.pids:
        os.kill(pid, signal.SIGCONT)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _busy_s() -> float:
    """Return the processor seconds that the whole machine has used."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq

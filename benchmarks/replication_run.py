# SPDX-License-Identifier: Apache-2.0
"""`make bench-replication`: three brokers with every record on each of them, beside three bare processes that do the same.

One producer, one partition of three replicas, acks=all, 256 KB batches; rounds are taken in turns. The bare processes
(`replica_ceiling`) send the same bytes to the same disk over the same gRPC. Then the time from `send` to the acknowledgement at
1,000 records a second, of acks=all beside acks=leader.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import lograft.aio
import psutil
import uvloop
from lograft import Admin, BatchReceipt, OffsetQuery, Position
from lograft.wire.batch import encode_batch

from benchmarks import ceiling_client, lograft_client, replica_ceiling
from benchmarks.processes import ServerProcess
from benchmarks.results_table import Result, absolute, compare, markdown, write
from integration_tests.harness.cluster import ADMIN_TIMEOUT_MS, Cluster
from integration_tests.harness.wait import wait_for

BATCH_BYTES = 256 * 1024
MB = 1_000_000
PRODUCE_BYTES = 128 * MB
"""Bytes of one round."""

LATENCY_RECORDS = 3_000
LATENCY_RATE = 1_000
"""Number of records of one round of latencies, and also their rate per second."""

IDLE_TOPIC_PARTITIONS = 1_000
IDLE_WAIT_S = 300.0
IDLE_PERCENT = 10.0
IDLE_LOOK_S = 60.0
"""Settings of the rows of idle partitions: partitions of one topic; seconds until they must have leaders; share of a core below which a
broker is idle; seconds of the measurement: in a minute each log is looked through once for what is due (retention, compaction)."""

POLICIES = {"none": 0.45, "ack": 0.35}
"""Flush policies, with the demanded share of the ceiling."""


@contextmanager
def ceiling(directory: Path, *, is_flushed: bool) -> Generator[str]:
    """Run the three bare processes. Yields the address of the leader."""
    running: list[ServerProcess] = []
    flags = ["--flush"] if is_flushed else []
    try:
        for name in ("second", "third"):
            arguments = ["-m", "benchmarks.replica_ceiling", "--file", str(directory / f"{name}.log"), *flags]
            running.append(ServerProcess(arguments, directory / f"{name}.err"))
        followers = [server.address for server in running]
        arguments = ["-m", "benchmarks.replica_ceiling", "--file", str(directory / "first.log"), *flags]
        running.append(ServerProcess([*arguments, "--followers", *followers], directory / "first.err"))
        yield running[-1].address
    finally:
        for server in running:
            server.stop()


class Run:
    """One cluster and its measurements."""

    def __init__(self, cluster: Cluster, directory: Path, rounds: int) -> None:
        self._cluster = cluster
        self._directory = directory
        self._rounds = rounds
        self._numbers = count()
        self.results: list[Result] = []

    def _topic(self, policy: str) -> str:
        topic = f"t{next(self._numbers)}"
        with Admin(self._cluster.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            admin.create_topic(topic, replication_factor=3, configs={"flush.policy": policy})
        return topic

    def produce(self, policy: str, value_bytes: int) -> None:
        """Produce with acks=all beside the bare processes."""
        values = [os.urandom(value_bytes) for _ in range(BATCH_BYTES // (value_bytes + 1))]
        message = bytes(encode_batch(values, timestamps_ms=1))
        batches = PRODUCE_BYTES // BATCH_BYTES
        megabytes = batches * len(message) / MB
        ours: list[float] = []
        theirs: list[float] = []
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        with ceiling(directory, is_flushed=policy == "ack") as address:
            for _ in range(self._rounds + 1):
                seconds = lograft_client.produce(self._cluster.bootstrap, self._topic(policy), [values] * batches)
                ours.append(megabytes / seconds)
                bare = ceiling_client.produce(
                    address, message, batches, method="Produce", service=replica_ceiling.SERVICE
                )
                theirs.append(megabytes / uvloop.run(bare))
        name = f"produce, 3 replicas, {policy}, {value_bytes} B"
        self.results.append(compare(name, "MB/s", ours[1:], theirs[1:], at_least=POLICIES[policy]))

    def latency(self, policy: str) -> None:
        """Measure the time to the acknowledgement, with acks=all and with acks=leader."""
        topic = self._topic(policy)
        added: list[float] = []
        for _ in range(self._rounds):
            everywhere, leader = (
                statistics.median(asyncio.run(ack_times_ms(self._cluster.bootstrap, topic, acks)))
                for acks in ("all", "leader")
            )
            added.append(everywhere - leader)
        name = f"added latency of acks=all, p50, {policy}"
        self.results.append(absolute(name, "ms", added, at_most=1.0))

    def _partition_counts(self) -> list[int]:
        """Return for each broker how many partition directories it has made."""
        directories = (self._cluster.data_directory(each) / "partitions" for each in self._cluster.brokers.values())
        return [sum(1 for _ in directory.glob("*-*")) for directory in directories]

    def idle(self, partition_count: int) -> None:
        """Create idle partitions of three replicas, and report what they cost each broker."""
        brokers = [psutil.Process(broker.pid) for broker in self._cluster.brokers.values()]
        before = [process.memory_info().rss for process in brokers]
        counts = self._partition_counts()
        with Admin(self._cluster.bootstrap, request_timeout_ms=int(IDLE_WAIT_S * 1000)) as admin:
            names = [f"idle{number}" for number in range(-(-partition_count // IDLE_TOPIC_PARTITIONS))]
            for name in names:
                admin.create_topic(name, partition_count=IDLE_TOPIC_PARTITIONS, replication_factor=3)

            queries = [
                OffsetQuery(topic=name, partition=partition, position=Position.LATEST)
                for name in names
                for partition in range(IDLE_TOPIC_PARTITIONS)
            ]

            def are_led() -> bool:
                return all(answer.error is None for answer in admin.list_offsets(queries))

            wait_for(are_led, timeout_s=IDLE_WAIT_S, what="idle partitions")

            def are_open() -> bool:
                # Opening waits for the disk and takes little of the processor, so a quiet broker may not have finished.
                return all(now >= old + len(queries) for now, old in zip(self._partition_counts(), counts, strict=True))

            wait_for(are_open, timeout_s=IDLE_WAIT_S, what="brokers that have made all logs")

            def are_idle() -> bool:
                return all(process.cpu_percent(1.0) < IDLE_PERCENT for process in brokers)

            wait_for(are_idle, timeout_s=IDLE_WAIT_S, what="brokers that do nothing")
        count = len(names) * IDLE_TOPIC_PARTITIONS
        grown = [process.memory_info().rss - old for process, old in zip(brokers, before, strict=True)]
        self.results.append(absolute(f"{count} idle partitions: memory of one", "B", [each / count for each in grown]))
        used = [cpu_s(process) for process in brokers]
        switches = [process.num_ctx_switches().voluntary for process in brokers]
        threading.Event().wait(IDLE_LOOK_S)
        cpu = [100 * (cpu_s(process) - old) / IDLE_LOOK_S for process, old in zip(brokers, used, strict=True)]
        woken = [
            (process.num_ctx_switches().voluntary - old) / IDLE_LOOK_S
            for process, old in zip(brokers, switches, strict=True)
        ]
        note = f"{statistics.median(woken):.0f} wake-ups a second"
        self.results.append(absolute(f"{count} idle partitions: processor", "% of a core", cpu, note=note))


def cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds (user and system) that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


async def ack_times_ms(bootstrap: str, topic: str, acks: str) -> list[float]:
    """Send records at a steady rate. Return for each the milliseconds until it was acknowledged."""
    sent: list[float] = []
    times: list[float] = []

    def on_batch(receipt: BatchReceipt) -> None:
        if receipt.error is not None:
            raise receipt.error
        now = time.perf_counter()
        first = len(times)
        times.extend([(now - sent_s) * 1e3 for sent_s in sent[first : first + receipt.record_count]])

    value = os.urandom(100)
    async with lograft.aio.Producer(bootstrap, acks=acks, linger_ms=0, on_batch=on_batch) as producer:
        started = time.perf_counter()
        for index in range(LATENCY_RECORDS):
            delay_s = started + index / LATENCY_RATE - time.perf_counter()
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            sent.append(time.perf_counter())
            await producer.send(topic, value, partition=0)
        await producer.flush()
    return times[LATENCY_RATE // 10 :]


def main() -> int:
    """Run everything. Return 1 if a demand was not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=["none", "ack", "latency", "idle"])
    parser.add_argument("--partitions", type=int, default=10_000, help="idle partitions of three replicas")
    parser.add_argument("--write", type=Path, help="directory for the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lograft-replication-") as name:
        directory = Path(name)
        (directory / "cluster").mkdir()
        with Cluster(directory / "cluster", voter_count=1, broker_count=3) as cluster:
            run = Run(cluster, directory, arguments.rounds)
            for policy in POLICIES:
                if policy in arguments.only:
                    for value_bytes in (100, 1_000):
                        run.produce(policy, value_bytes)
                if "latency" in arguments.only:
                    run.latency(policy)
            if "idle" in arguments.only:
                run.idle(arguments.partitions)
    if arguments.write is not None:
        write(run.results, arguments.write, "replication")
    print(markdown(run.results))
    return 0 if all(result.met for result in run.results) else 1


if __name__ == "__main__":
    sys.exit(main())

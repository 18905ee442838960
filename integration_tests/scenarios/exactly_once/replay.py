# SPDX-License-Identifier: Apache-2.0
"""Replays by time range and by key equal a filter over a full read, and a replay of many records needs no more memory than a short one.

The sender knows the answers as well, so that two wrong reads that agree are found.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from lograft import Producer

from integration_tests.harness.background import Repeated
from integration_tests.harness.outcome import Outcome
from integration_tests.scenarios.exactly_once.drivers import Driver, local_driver
from integration_tests.scenarios.exactly_once.processes import READ
from integration_tests.scenarios.exactly_once.scene import Scene, running_scene

DEFAULT_RECORDS: Final = 200_000
DEFAULT_MANY: Final = 10_000_000
PARTITIONS: Final = 6
KEYS: Final = 1_000
TASKS: Final = 2
VALUE_BYTES: Final = 100
CHUNK_RECORDS: Final = 10_000
FIRST_MS: Final = 1_767_225_600_000
STEP_MS: Final = 10
JOB_TIMEOUT_S: Final = 3_600.0
SAMPLE_INTERVAL_S: Final = 0.5
TASK_BYTES_MAX: Final = 128 * 1024 * 1024
"""Most bytes that a task may need beyond a Python worker that has read one record of each partition (docs/spark.md says what for)."""
FLAT_BYTES_MAX: Final = 24 * 1024 * 1024
"""Most bytes that a task over everything may need beyond one over a tenth."""
BROKER_GROWTH_MAX: Final = 128 * 1024 * 1024
"""Most bytes that a broker may need while everything is read, beyond what it needed for a tenth."""
MIB: Final = 1024 * 1024


@dataclass(slots=True)
class Sum:
    """Number of records, and the sum of their values' CRC-32, as `spark_program.DIGEST` begins."""

    count: int = 0
    crcs: int = 0

    def add(self, value: bytes) -> None:
        """Add a record."""
        self.count += 1
        self.crcs += zlib.crc32(value)

    @property
    def pair(self) -> list[int]:
        """Both numbers."""
        return [self.count, self.crcs]


def value_of(number: int) -> bytes:
    """Return the value of a record."""
    return (b"%d " % number).ljust(VALUE_BYTES, b".")


@dataclass(slots=True, kw_only=True)
class Reader:
    """Asks a driver for the digest of reads."""

    scene: Scene
    driver: Driver

    def digest(
        self, topic: str, options: Mapping[str, str] | None = None, *, where: str = "", pushdown: bool = False
    ) -> list[int]:
        """Read, and return the digest. Raises RuntimeError if the job fails."""
        given = {"kafka.bootstrap.servers": self.scene.bootstrap, "subscribe": topic, **(options or {})}
        self.driver.submit({"kind": READ, "options": given, "filter": where, "pushdown": pushdown})
        answer = self.driver.answer(JOB_TIMEOUT_S)
        if answer is None or answer.error is not None:
            raise RuntimeError(f"a replay failed: {answer and answer.error} {self.driver.program.log_tail()}")
        return list(map(int, json.loads(answer.found)))


def check_filters(scene: Scene, driver: Driver, outcome: Outcome, *, records: int) -> None:
    """Compare replays by time range and by key with filters over everything, and with what was sent."""
    topic = "replayed"
    scene.create_topic(topic, partitions=PARTITIONS, configs={"retention.ms": "-1"})
    low, high = records // 3, records * 2 // 3
    low_ms, high_ms = FIRST_MS + low * STEP_MS, FIRST_MS + high * STEP_MS
    everything, in_time, of_key = Sum(), Sum(), Sum()
    with Producer(scene.bootstrap) as producer:
        for number in range(records):
            value = value_of(number)
            producer.send(topic, value, key=b"key-%d" % (number % KEYS), timestamp_ms=FIRST_MS + number * STEP_MS)
            everything.add(value)
            if low <= number < high:
                in_time.add(value)
            if number % KEYS == 7:
                of_key.add(value)
    reader = Reader(scene=scene, driver=driver)
    times = {
        "startingTimestamp": str(low_ms),
        "endingTimestamp": str(high_ms),
        "startingOffsetsByTimestampStrategy": "latest",
    }
    in_range = f"timestamp >= timestamp_millis({low_ms}) and timestamp < timestamp_millis({high_ms})"
    key = b"key-7".hex()
    reads = {
        "everything": (everything, reader.digest(topic), reader.digest(topic, pushdown=True)),
        "time range": (in_time, reader.digest(topic, times), reader.digest(topic, where=in_range)),
        "time range, pushed down": (
            in_time,
            reader.digest(topic, where=in_range, pushdown=True),
            reader.digest(topic, where=in_range),
        ),
        "key": (
            of_key,
            reader.digest(topic, where=f"key = X'{key}'", pushdown=True),
            reader.digest(topic, where=f"key = X'{key}'"),
        ),
        "key and time range": (
            None,
            reader.digest(topic, times, where=f"key = X'{key}'", pushdown=True),
            reader.digest(topic, where=f"key = X'{key}' and {in_range}"),
        ),
    }
    outcome.problems += differences(reads)
    outcome.figures["filtered"] = {name: replayed[0] for name, (_, replayed, _) in reads.items()}


def differences(reads: Mapping[str, tuple[Sum | None, list[int], list[int]]]) -> list[str]:
    """Return which replays differ from the filter over a full read, or from what was sent."""
    found: list[str] = []
    for name, (sent, replayed, filtered) in reads.items():
        if replayed != filtered:
            found.append(f"{name}: the replay is {replayed}, the filter over everything {filtered}")
        if sent is not None and replayed[:2] != sent.pair:
            found.append(f"{name}: the replay is {replayed[:2]}, {sent.pair} was sent")
    return found


@dataclass(slots=True, kw_only=True)
class Memory:
    """Resident bytes over time: of the largest Python worker, of Spark's JVM, and of the largest broker. Its thread writes it."""

    driver: Driver
    brokers: list[psutil.Process]
    workers_bytes: list[int] = field(default_factory=list[int])
    jvm_bytes: list[int] = field(default_factory=list[int])
    brokers_bytes: list[int] = field(default_factory=list[int])

    def sample(self) -> None:
        """Note what is needed now."""
        workers, jvm = [0], 0
        # The first process is the driver itself, which reads nothing.
        for each in self.driver.program.tree()[1:]:
            try:
                size_bytes = each.memory_info().rss
                if each.name() == "java":
                    jvm = max(jvm, size_bytes)
                else:
                    workers.append(size_bytes)
            except psutil.NoSuchProcess:
                continue
        self.workers_bytes.append(max(workers))
        self.jvm_bytes.append(jvm)
        self.brokers_bytes.append(max(each.memory_info().rss for each in self.brokers))

    def peaks(self) -> dict[str, int]:
        """Return the largest bytes of each kind of process."""
        samples = {"worker": self.workers_bytes, "jvm": self.jvm_bytes, "broker": self.brokers_bytes}
        return {name: max(values, default=0) for name, values in samples.items()}


def check_memory(scene: Scene, driver: Driver, outcome: Outcome, *, records: int) -> None:
    """Replay one record of each partition, a tenth, and everything; compare with what was sent, and bound the growth of memory.

    The driver's workers must be new: what they needed once they keep.
    """
    topic = "many"
    scene.create_topic(topic, partitions=PARTITIONS)
    sent = Sum()
    ends = [0] * PARTITIONS
    with Producer(scene.bootstrap) as producer:
        for start in range(0, records, CHUNK_RECORDS):
            values = [value_of(number) for number in range(start, min(records, start + CHUNK_RECORDS))]
            partition = start // CHUNK_RECORDS % PARTITIONS
            producer.send_many(topic, values, partition=partition)
            ends[partition] += len(values)
            for value in values:
                sent.add(value)
    brokers = [psutil.Process(each.pid) for each in scene.cluster.brokers.values()]
    reader = Reader(scene=scene, driver=driver)
    shares = {"one": [1] * PARTITIONS, "tenth": [each // 10 for each in ends], "all": ends}
    peaks: dict[str, dict[str, int]] = {}
    for name, share in shares.items():
        memory = Memory(driver=driver, brokers=brokers)
        options = {"endingOffsets": json.dumps({topic: {str(number): end for number, end in enumerate(share)}})}
        watch = Repeated("memory", memory.sample, SAMPLE_INTERVAL_S)
        watch.start()
        began_s = time.monotonic()
        try:
            found = reader.digest(topic, options)
        finally:
            watch.join()
        peaks[name] = memory.peaks()
        if found[0] != sum(share):
            outcome.problems.append(f"{name}: {found[0]} records were read of {sum(share)}")
        outcome.figures[name] = {
            "records": found[0],
            "s": round(time.monotonic() - began_s, 1),
            **{f"{process}_mib": size_bytes // MIB for process, size_bytes in peaks[name].items()},
        }
        if name == "all":
            outcome.problems += differences({"many": (sent, found, found)})
            outcome.figures["worker_mib"] = [each // MIB for each in spread(memory.workers_bytes)]
    outcome.problems += growths(peaks)


def growths(peaks: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return which process has grown by too much, from the largest bytes of each process for each share."""
    limits = (
        ("worker", "one", TASK_BYTES_MAX),
        ("worker", "tenth", FLAT_BYTES_MAX),
        ("broker", "tenth", BROKER_GROWTH_MAX),
    )
    found: list[str] = []
    for process, before, limit in limits:
        grown = peaks["all"][process] - peaks[before][process]
        if grown > limit:
            found.append(f"all: the {process} needs {grown // MIB} MiB more than for {before}, over {limit // MIB}")
    return found


def spread(values: list[int], count: int = 12) -> list[int]:
    """Return so many of the values, evenly spread."""
    return [values[index * (len(values) - 1) // (count - 1)] for index in range(count)] if values else []


def prove(directory: Path, *, records: int, many: int, seed: int) -> Outcome:
    """Run both checks.

    Args:
        directory: directory for everything.
        records: records of the comparison with filters.
        many: records of the replay whose memory is watched; 0: leave it out.
        seed: seed of all random choices.
    """
    outcome = Outcome(proof="replay", figures={"records": records, "seed": seed})
    with running_scene(directory, seed=seed) as scene:
        driver = local_driver(directory, "reader", tasks=TASKS)
        driver.start()
        try:
            if many:
                check_memory(scene, driver, outcome, records=many)
            check_filters(scene, driver, outcome, records=records)
        finally:
            driver.close()
    return outcome

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
WARM_SHARE: Final = 0.25
"""Share of the samples in which everything has been loaded and the caches are filled."""
WORKER_GROWTH_MAX: Final = 64 * 1024 * 1024
"""Most bytes that a Python worker may need after that beyond what it needed before."""
BROKER_GROWTH_MAX: Final = 128 * 1024 * 1024
"""The same for a broker."""
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


def growth_bytes(samples: list[int]) -> int:
    """Return by how much the samples exceed those of the first quarter at most."""
    warm = max(1, int(len(samples) * WARM_SHARE))
    return max(samples[warm:], default=0) - max(samples[:warm], default=0)


def check_memory(scene: Scene, driver: Driver, outcome: Outcome, *, records: int) -> None:
    """Replay many records, compare them with what was sent, and bound the growth of memory."""
    topic = "many"
    scene.create_topic(topic, partitions=PARTITIONS)
    sent = Sum()
    with Producer(scene.bootstrap) as producer:
        for start in range(0, records, CHUNK_RECORDS):
            values = [value_of(number) for number in range(start, min(records, start + CHUNK_RECORDS))]
            producer.send_many(topic, values, partition=start // CHUNK_RECORDS % PARTITIONS)
            for value in values:
                sent.add(value)
    brokers = [psutil.Process(each.pid) for each in scene.cluster.brokers.values()]
    memory = Memory(driver=driver, brokers=brokers)
    watch = Repeated("memory", memory.sample, SAMPLE_INTERVAL_S)
    watch.start()
    began_s = time.monotonic()
    try:
        found = Reader(scene=scene, driver=driver).digest(topic)
    finally:
        watch.join()
    took_s = time.monotonic() - began_s
    outcome.problems += differences({"many": (sent, found, found)})
    samples = {"worker": memory.workers_bytes, "jvm": memory.jvm_bytes, "broker": memory.brokers_bytes}
    for name, values in samples.items():
        outcome.figures[f"{name}_mib"] = [each // MIB for each in spread(values)]
        outcome.figures[f"{name}_growth_mib"] = growth_bytes(values) // MIB
    outcome.figures |= {"many_records": found[0], "many_s": round(took_s, 1), "samples": len(memory.workers_bytes)}
    for name, limit in (("worker", WORKER_GROWTH_MAX), ("broker", BROKER_GROWTH_MAX)):
        grown = growth_bytes(samples[name])
        if grown > limit:
            outcome.problems.append(
                f"the {name} grew by {grown // MIB} MiB after the first quarter, over {limit // MIB}"
            )


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
            check_filters(scene, driver, outcome, records=records)
            if many:
                check_memory(scene, driver, outcome, records=many)
        finally:
            driver.close()
    return outcome

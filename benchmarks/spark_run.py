# SPDX-License-Identifier: Apache-2.0
"""`make bench-spark`: ingest and replay through Spark, Lograft beside Spark's own Kafka connector and Spark's ceilings.

One Spark session (`local[2]`), one Kafka and one Lograft; what is not measured is stopped (SIGSTOP, with one replica). All cells
of a size are measured in turns, in each round in another order, after a warm-up round with a fifth of the records, which does not
count and checks what comes back. A cell is the median of its rounds, a ratio the median of the ratios within each round.

Both systems keep the same promise: acks=all, idempotent producers, and either the page cache or an fsync before each
acknowledgement (`flush.policy=ack`; `flush.messages=1`). The connector runs with Kafka's defaults and with 256 KiB batches; the
better of the two counts. An ingest ends when consumers can read every record. Records have keys, topics six partitions.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from lograft.spark import ensure_java
from pyspark.sql import DataFrame

from benchmarks.kafka_server import KAFKA_VERSION, connector_jars, kafka_servers
from benchmarks.pages import recycle_pages
from benchmarks.processes import lograft_server
from benchmarks.spark_ceiling import NAME as CEILING
from benchmarks.spark_cells import (
    PARTITIONS,
    THREADS,
    KafkaPeer,
    LograftPeer,
    Peer,
    Sample,
    SparkSide,
    check,
    drain,
    ingest,
    pause,
    read,
    resume,
)
from integration_tests.harness.cluster import CombinedCluster

SIZES = ("1x100", "5000000x100", "1000000x1024")
"""A job of one record shows what every job costs: planning, Python processes, connections."""
FEW_RECORDS = 1_000
"""Sizes below this have no rates, and so no ratios."""
WARM_UP_SHARE = 5
ROW_OVERHEAD_BYTES = 32
"""Bytes of a key and of what a log adds to a record, for the pages that are recycled."""
EXACTLY_ONCE, APPEND = "Lograft, exactly-once", "Lograft, append"
KAFKA, KAFKA_256 = "Kafka connector", "Kafka connector, 256 KiB batches"
DROP, REPEAT, REPEAT_VALUES, NOOP = (
    "ceiling: a Python sink that drops",
    "ceiling: a Python source that repeats a batch",
    "ceiling: the same, values alone",
    "the JVM alone (noop)",
)
WRITERS: Mapping[str, Mapping[str, str]] = {
    EXACTLY_ONCE: {},
    APPEND: {"delivery.guarantee": "at-least-once"},
    KAFKA: {},
    KAFKA_256: {"kafka.batch.size": "262144", "kafka.linger.ms": "5", "kafka.buffer.memory": "67108864"},
}
POLICIES = {"cache": False, "fsync": True}
"""What an acknowledgement waits for: the page cache of the servers, or an fsync. The value: whether topics flush."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Records of one size."""

    records: int
    value_bytes: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Return the size of a text like `5000000x100`."""
        records, value_bytes = text.split("x")
        return cls(records=int(records), value_bytes=int(value_bytes))

    def __str__(self) -> str:
        return f"{self.records:,} x {self.value_bytes:,} B"

    @property
    def stored_bytes(self) -> int:
        """About what a log holds of them."""
        return self.records * (self.value_bytes + ROW_OVERHEAD_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Cell:
    """What was measured: a size, a policy, `ingest` or `replay`, and who did it."""

    size: str
    policy: str
    what: str
    who: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A row of the first table. `demanded` is the bound for exactly-once ingest, `wanted` the later one for speed."""

    name: str
    ours: float
    other: float
    ratios: tuple[float, ...]
    demanded: str
    wanted: str

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    def verdict(self, bound: str) -> str:
        """Return the bound, and whether it is met."""
        if not bound:
            return ""
        sign, number = bound.split()
        met = self.ratio >= float(number) if sign == ">=" else self.ratio <= float(number)
        return f"{bound} {'yes' if met else 'NO'}"


class Run:
    """The measurements of one run."""

    def __init__(self, side: SparkSide, lograft: LograftPeer, kafka: KafkaPeer, directory: Path, replicas: int) -> None:
        self._side, self._lograft, self._kafka = side, lograft, kafka
        self._directory, self._replicas = directory, replicas
        self._topic_count = 0
        self.samples: dict[Cell, list[Sample]] = {}

    def measure(self, size: Size, policy: str, rounds: int, only: str) -> None:
        """Measure all cells of a size and a policy whose writer's name has `only` in it."""
        warm_up = Size(records=max(1, size.records // WARM_UP_SHARE), value_bytes=size.value_bytes)
        for used, count in ((warm_up, 1), (size, rounds)):
            frame = self._side.frame(used.records, used.value_bytes)
            for number in range(count):
                steps = [(name, step) for name, step in self._steps(used, policy, frame) if only in name]
                turn = number % len(steps)
                for name, step in steps[turn:] + steps[:turn]:
                    found = step(used is warm_up)
                    for what, sample in found.items():
                        if used is size:
                            cell = Cell(size=str(size), policy=policy, what=what, who=name)
                            self.samples.setdefault(cell, []).append(sample)
                        print(_line(used, policy, what, name, sample), flush=True)
            frame.unpersist()

    def _steps(
        self, size: Size, policy: str, frame: DataFrame
    ) -> Iterator[tuple[str, Callable[[bool], Mapping[str, Sample]]]]:
        """Yield the steps of a round: each measures one writer, and what can be read after it."""
        for name, options in WRITERS.items():
            peer: Peer = self._lograft if name in (EXACTLY_ONCE, APPEND) else self._kafka
            yield (
                name,
                lambda is_warm_up, peer=peer, options=options: self._peer(
                    size, policy, frame, peer, options, is_checked=is_warm_up
                ),
            )
        if policy == "fsync":
            return
        session = self._side.session
        given = {"records": str(size.records), "bytes": str(size.value_bytes), "partitions": str(PARTITIONS)}
        repeat = session.read.format(CEILING).options(**given, rows="all").load()
        values = session.read.format(CEILING).options(**given, rows="value").load()
        ceilings: dict[str, tuple[str, Callable[[], None]]] = {
            DROP: ("ingest", lambda: frame.write.format(CEILING).mode("append").save()),
            REPEAT: ("replay", lambda: drain(repeat)),
            REPEAT_VALUES: ("replay", lambda: drain(values)),
            NOOP: ("ingest", lambda: drain(frame)),
        }
        for name, (what, work) in ceilings.items():
            yield name, lambda _, what=what, work=work: {what: self._side.measure(size.records, None, work)}

    def _peer(
        self, size: Size, policy: str, frame: DataFrame, peer: Peer, options: Mapping[str, str], *, is_checked: bool
    ) -> Mapping[str, Sample]:
        self._topic_count += 1
        topic = f"spark-{self._topic_count}"
        self._only(peer)
        peer.create_topic(topic, is_flushed=POLICIES[policy])
        # What is written exactly once is staged, and published: two copies, most of them at the same time.
        recycle_pages(self._directory, 2 * size.stored_bytes)
        found = {
            "ingest": self._side.measure(size.records, peer, lambda: ingest(frame, peer, topic, options, size.records))
        }
        if (count := peer.record_count(topic)) != size.records:
            raise RuntimeError(f"{count} records in the topic instead of {size.records}")
        rows = read(self._side.session, peer, topic)
        if is_checked:
            check(rows, size.records, size.value_bytes)
        if policy != "fsync":
            found["replay"] = self._side.measure(size.records, peer, lambda: drain(rows))
        peer.delete_topic(topic)
        os.sync()
        return found

    def _only(self, peer: Peer) -> None:
        if self._replicas > 1:
            # A quorum whose servers were stopped would first have to find together again.
            return
        pause(self._kafka if peer is self._lograft else self._lograft)
        resume(peer)


def _line(size: Size, policy: str, what: str, name: str, sample: Sample) -> str:
    used = f"{sample.jvm_s:.1f} + {sample.workers_s:.1f} + {sample.servers_s:.1f} s"
    rate = f"{sample.seconds:.2f} s, {sample.rate:,.0f} k/s"
    return f"{size}, {policy}: {what}, {name}: {rate}, processor {used}, others {sample.others:.2f} cores"


def comparisons(samples: Mapping[Cell, Sequence[Sample]], size: Size) -> list[Comparison]:
    """Return the rows of one size that the samples are enough for."""
    is_small = size.value_bytes < 500
    rows: list[Comparison] = []

    def rates(policy: str, what: str, who: str) -> list[float]:
        found = samples.get(Cell(size=str(size), policy=policy, what=what, who=who), ())
        return [sample.rate for sample in found]

    def add(name: str, ours: list[float], other: list[float], demanded: str = "", wanted: str = "") -> None:
        if ours and other:
            pairs = tuple(mine / theirs for mine, theirs in zip(ours, other, strict=True))
            medians = statistics.median(ours), statistics.median(other)
            rows.append(
                Comparison(
                    name=f"{size.value_bytes:,} B: {name}",
                    ours=medians[0],
                    other=medians[1],
                    ratios=pairs,
                    demanded=demanded,
                    wanted=wanted,
                )
            )

    def better(policy: str, what: str) -> tuple[str, list[float]]:
        found = [(who, rates(policy, what, who)) for who in (KAFKA, KAFKA_256)]
        return max(found, key=lambda each: statistics.median(each[1]) if each[1] else 0.0)

    for policy in POLICIES:
        who, theirs = better(policy, "ingest")
        fast = ">= 2.0" if policy == "fsync" else ">= 1.5" if is_small else ">= 1.3"
        exactly_once, append = rates(policy, "ingest", EXACTLY_ONCE), rates(policy, "ingest", APPEND)
        add(f"ingest, {policy}, exactly-once : {who}", exactly_once, theirs, ">= 2.0", fast)
        add(f"ingest, {policy}, append : {who}", append, theirs)
        # The ratio of times is the inverse of that of rates.
        add(f"ingest, {policy}, time of exactly-once : append", append, exactly_once, "<= 1.3")
    exactly_once, append = rates("cache", "ingest", EXACTLY_ONCE), rates("cache", "ingest", APPEND)
    drop = rates("cache", "ingest", DROP)
    add(f"ingest, exactly-once : {DROP}", exactly_once, drop, ">= 0.6", ">= 0.7")
    add(f"ingest, append : {DROP}", append, drop)
    who, theirs = better("cache", "replay")
    replay = rates("cache", "replay", EXACTLY_ONCE) or rates("cache", "replay", APPEND)
    add(f"replay : {who}", replay, theirs, ">= 3.0", ">= 3.0" if is_small else ">= 2.5")
    add(f"replay : {REPEAT}", replay, rates("cache", "replay", REPEAT), ">= 0.6")
    add(f"replay : {REPEAT_VALUES}", replay, rates("cache", "replay", REPEAT_VALUES), "", ">= 0.7")
    return rows


def page(rows: Sequence[Comparison], samples: Mapping[Cell, Sequence[Sample]], facts: Sequence[str]) -> str:
    """Return the page of results."""
    description = (__doc__ or "").split("\n\n", 1)[1]
    lines = ["# Spark: ingest and replay", "", *description.strip().split("\n"), ""]
    lines += [f"* {fact}" for fact in facts]
    lines += [
        "",
        "## Ratios",
        "",
        "Rates in thousands of records per second. `demanded` is the bound for exactly-once ingest, `wanted` the later one for speed.",
        "",
        "| | ours | other | ratio | of the rounds | demanded | wanted |",
        "|---|---:|---:|---:|---|---|---|",
    ]
    for row in rows:
        spread = f"{min(row.ratios):.2f} to {max(row.ratios):.2f}"
        figures = f"{row.ours:,.0f} | {row.other:,.0f} | {row.ratio:.2f} | {spread}"
        lines.append(f"| {row.name} | {figures} | {row.verdict(row.demanded)} | {row.verdict(row.wanted)} |")
    lines += [
        "",
        "## Where the time goes",
        "",
        "Processor seconds for a million records: the JVM (driver and executor), Spark's Python workers, the servers. `others` is what "
        "the rest of the machine used meanwhile, in cores.",
        "",
        "| records | acknowledged from | | by | k records/s | of the rounds | MB/s | JVM | workers | servers | all | others |",
        "|---|---|---|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_rate_row(cell, found) for cell, found in samples.items() if found[0].records >= FEW_RECORDS]
    small = [(cell, found) for cell, found in samples.items() if found[0].records < FEW_RECORDS]
    if small:
        lines += [
            "",
            "## What every job costs",
            "",
            "Jobs of one record: seconds, and processor seconds of the JVM, the workers and the servers.",
            "",
            "| acknowledged from | | by | s | of the rounds | JVM | workers | servers |",
            "|---|---|---|---:|---|---:|---:|---:|",
        ]
        lines += [_job_row(cell, found) for cell, found in small]
    return "\n".join(lines) + "\n"


def _median(found: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    return statistics.median(map(value, found))


def _rate_row(cell: Cell, found: Sequence[Sample]) -> str:
    rates = [sample.rate for sample in found]
    value_bytes = int(cell.size.split(" x ")[1].removesuffix(" B").replace(",", ""))
    used = [
        _median(found, lambda sample, part=part: getattr(sample, part) / sample.records * 1e6)
        for part in ("jvm_s", "workers_s", "servers_s")
    ]
    rate = statistics.median(rates)
    costs = " | ".join(f"{each:.2f}" for each in (*used, sum(used)))
    return (
        f"| {cell.size} | {cell.policy} | {cell.what} | {cell.who} | {rate:,.0f} | {min(rates):,.0f} to {max(rates):,.0f} "
        f"| {rate * value_bytes / 1e3:,.0f} | {costs} | {_median(found, lambda sample: sample.others):.2f} |"
    )


def _job_row(cell: Cell, found: Sequence[Sample]) -> str:
    seconds = [sample.seconds for sample in found]
    used = [
        _median(found, lambda sample, part=part: getattr(sample, part)) for part in ("jvm_s", "workers_s", "servers_s")
    ]
    costs = " | ".join(f"{each:.2f}" for each in used)
    spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
    return f"| {cell.policy} | {cell.what} | {cell.who} | {statistics.median(seconds):.2f} | {spread} | {costs} |"


def machine() -> str:
    """Return what the machine is, and how busy it was before the run."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory = psutil.virtual_memory().total / 1024**3
    load = os.getloadavg()[0]
    return (
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC: {psutil.cpu_count()} cores ({model}), {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}; load before the run {load:.1f}"
    )


def versions(side: SparkSide, connector: str) -> str:
    """Return the versions of what took part."""
    named = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("pyspark", "pyarrow", "grpcio"))
    return f"Python {platform.python_version()}, {named}, Java {side.java_version}, Apache Kafka {KAFKA_VERSION}, connector {connector}"


def main() -> int:
    """Measure, print the tables, and write them. Return 1 if a demand was not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), help="RECORDSxBYTES")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (default 3)")
    parser.add_argument("--policies", nargs="*", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--replicas", type=int, choices=(1, 3), default=1)
    parser.add_argument("--only", default="", help="part of a writer's or a ceiling's name")
    parser.add_argument("--driver-memory", default="4g", help="heap of Spark's JVM (default 4g)")
    parser.add_argument("--write", type=Path, help="directory for spark.json and spark.md")
    arguments = parser.parse_args()
    # So that the servers end with a run that is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sizes = [Size.parse(text) for text in arguments.sizes]
    java = ensure_java()
    connector, jars = connector_jars(importlib.metadata.version("pyspark"))
    facts = [machine()]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-spark-")))
        # Spark forks to start its JVM, so it comes before the first client.
        side = SparkSide(directory / "spark", jars, driver_memory=arguments.driver_memory)
        stack.callback(side.session.stop)
        facts.append(versions(side, connector))
        facts.append(
            f"Spark `local[{THREADS}]`, {arguments.replicas} replica{'s' * (arguments.replicas > 1)}, {arguments.rounds} rounds"
        )
        kafka = stack.enter_context(
            kafka_servers(directory / "kafka", java.home / "bin" / "java", count=arguments.replicas)
        )
        if arguments.replicas == 1:
            server = stack.enter_context(lograft_server(directory))
            lograft_peer = LograftPeer(server.address, [server.pid], replicas=1)
        else:
            (directory / "cluster").mkdir()
            cluster = stack.enter_context(CombinedCluster(directory / "cluster", count=arguments.replicas))
            pids = [process.pid for process in cluster.processes.values()]
            lograft_peer = LograftPeer(cluster.bootstrap, pids, replicas=arguments.replicas)
        stack.callback(lograft_peer.close)
        kafka_peer = KafkaPeer(kafka, side.session, replicas=arguments.replicas)
        stack.callback(kafka_peer.close)
        # Whatever happens, no server stays stopped: a stopped one does not end.
        stack.callback(resume, lograft_peer)
        stack.callback(resume, kafka_peer)
        run = Run(side, lograft_peer, kafka_peer, directory, arguments.replicas)
        for size in sizes:
            for policy in arguments.policies:
                run.measure(size, policy, arguments.rounds, arguments.only)
    rows = [row for size in sizes if size.records >= FEW_RECORDS for row in comparisons(run.samples, size)]
    text = page(rows, run.samples, facts)
    print(text)
    if arguments.write is not None:
        arguments.write.mkdir(parents=True, exist_ok=True)
        name = "spark" if arguments.replicas == 1 else f"spark-{arguments.replicas}-replicas"
        stored = [{**asdict(cell), "samples": list(map(asdict, found))} for cell, found in run.samples.items()]
        (arguments.write / f"{name}.json").write_text(json.dumps(stored, indent=1) + "\n")
        (arguments.write / f"{name}.md").write_text(text)
    return 1 if any("NO" in row.verdict(row.demanded) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

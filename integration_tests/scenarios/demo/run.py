# SPDX-License-Identifier: Apache-2.0
"""The demo from start to end: Spark, cluster, ingest, the same ingest again, replay, comparison.

Owns the order of the steps and the output during them. Spark starts before the cluster, because it forks, and gRPC does not support
forks well.

Without faults the cluster runs in this process and Spark in one beside it. With faults there are three brokers in processes of their
own, and two executors.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lograft import Admin, Consumer, TopicPartition
from lograft.spark import ensure_java
from lograft.spark.jobs.phases import Moments, phases
from lograft.spark.jobs.session import job_session
from lograft.spark.jobs.watching import IngestWatch
from lograft.testing import ProcessCluster
from lograft.types import IngestDescription
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from brokerd.embedded import EmbeddedCluster
from integration_tests.scenarios.demo.facts import Comparison, SourceFacts, SourceRecord, compare
from integration_tests.scenarios.demo.faults import Killer
from integration_tests.scenarios.demo.job import ingest, replay, tally, time_range
from integration_tests.scenarios.demo.report import comparison_table, moment, print_verdict, time_table
from integration_tests.scenarios.demo.sources import SourceError
from integration_tests.scenarios.demo.staging import stage

PARTITION_COUNT = 6
TOPIC = "jar-entries"
LOCAL = "local[2,4]"
"""Spark in one process, two tasks at a time, each with four attempts."""
EXECUTORS = "local-cluster[2,1,1024]"
"""Two executors in processes of their own, with one core and 1,024 MiB each."""
FAULT_SETTINGS = {
    # Several tasks, one after another, so that something is left to do when an executor and a broker are dead.
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.shuffle.partitions": "6",
    # Many batches, so that a task can stop in its middle.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What to ingest, its name, and where to show progress.

    Attributes:
        records: the source.
        expected_count: known number of records in the source; None: not known.
        title: name of the source for people.
        topic: topic to create.
        console: where everything is printed.
        has_faults: an executor and a broker are killed on the way.
    """

    records: Iterable[SourceRecord]
    expected_count: int | None
    title: str
    topic: str
    console: Console
    has_faults: bool = False


class DemoFailedError(Exception):
    """The demo could not show what it is to show."""


def run(demo: Demo) -> bool:
    """Run the whole job in a fresh temporary directory.

    Returns:
        True if the replays equal the source, and the second ingest has added nothing.

    Raises:
        DemoFailedError: the faults came too late.
    """
    started_s = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lograft-demo-")))
        progress = stack.enter_context(_progress(demo.console))
        facts = _stage(demo, directory / "source.parquet", progress)
        asked_s = time.monotonic()
        spark = _start_spark(demo, progress, directory)
        start_s = time.monotonic() - asked_s
        stack.callback(spark.stop)
        cluster = _start_cluster(demo, stack, directory, progress)
        bootstrap = cluster.bootstrap
        with Admin(bootstrap) as admin:
            # Records have their own times, which may be years old. Retention would remove them.
            configs = {"retention.ms": "-1"} | ({"min.insync.replicas": "2"} if demo.has_faults else {})
            admin.create_topic(
                demo.topic,
                partition_count=PARTITION_COUNT,
                replication_factor=3 if demo.has_faults else 1,
                configs=configs,
            )
        ingesting = _Ingest(demo, spark, directory / "source.parquet", bootstrap, facts, progress)
        killer = Killer(cluster, demo.topic, directory / "gate") if isinstance(cluster, ProcessCluster) else None
        ingesting.run_first(start_s, killer, directory / "gate")
        has_added = ingesting.run_again()
        everything, some = verify(demo, spark, bootstrap, facts, progress)
        is_equal = print_verdict(
            demo.console, [*everything, *some], record_count=len(facts), seconds=time.monotonic() - started_s
        )
        return is_equal and not has_added


def verify(
    demo: Demo, spark: SparkSession, bootstrap: str, facts: SourceFacts, progress: Progress
) -> tuple[list[Comparison], list[Comparison]]:
    """Replay everything and one time range, and compare both with the source."""
    with _phase(progress, "replaying everything"):
        found = tally(replay(spark, bootstrap=bootstrap, topic=demo.topic))
    everything = compare(facts.tally(), found, PARTITION_COUNT)
    demo.console.print(comparison_table(f"{demo.title}: everything", everything))
    start_ms, end_ms = facts.middle_range()
    with _phase(progress, "replaying a time range"):
        found = tally(replay(spark, bootstrap=bootstrap, topic=demo.topic, options=time_range(start_ms, end_ms)))
    some = compare(facts.tally(start_ms, end_ms), found, PARTITION_COUNT)
    demo.console.print(comparison_table(f"{demo.title}: from {moment(start_ms)} up to {moment(end_ms)}", some))
    return everything, some


def _stage(demo: Demo, path: Path, progress: Progress) -> SourceFacts:
    task = progress.add_task("reading the source", total=demo.expected_count)
    facts = stage(
        demo.records,
        path,
        partition_count=PARTITION_COUNT,
        on_progress=lambda count: progress.update(task, completed=count),
    )
    if not len(facts):
        raise SourceError(f"{demo.title} holds no record")
    if demo.expected_count not in (None, len(facts)):
        raise SourceError(f"{demo.title}: {len(facts):,} records were read, there are {demo.expected_count:,}")
    progress.update(task, total=len(facts))
    _say(demo.console, f"{demo.title}: {len(facts):,} records, {facts.size_bytes / 1e6:.1f} MB of keys and values")
    return facts


def _start_spark(demo: Demo, progress: Progress, directory: Path) -> SparkSession:
    with _phase(progress, "starting Spark"):
        java = ensure_java()
        _say(demo.console, f"Java {java.version} from {java.origin}")
        return job_session(
            "lograft demo",
            master=EXECUTORS if demo.has_faults else LOCAL,
            settings=FAULT_SETTINGS if demo.has_faults else {"spark.sql.shuffle.partitions": "2"},
            log_level="off" if demo.has_faults else "error",
            directory=directory,
        )


def _start_cluster(
    demo: Demo, stack: ExitStack, directory: Path, progress: Progress
) -> EmbeddedCluster | ProcessCluster:
    if demo.has_faults:
        with _phase(progress, "starting three brokers"):
            return stack.enter_context(ProcessCluster(directory / "cluster"))
    with _phase(progress, "starting the embedded cluster"):
        return stack.enter_context(EmbeddedCluster(directory / "cluster"))


class _Ingest:
    """The ingest, and the same one again."""

    def __init__(
        self,
        demo: Demo,
        spark: SparkSession,
        staged: Path,
        bootstrap: str,
        facts: SourceFacts,
        progress: Progress,
    ) -> None:
        self._demo = demo
        self._spark = spark
        self._staged = staged
        self._bootstrap = bootstrap
        self._facts = facts
        self._progress = progress
        self._ingest_id = f"demo/{demo.topic}"

    def run_first(self, start_s: float, killer: Killer | None, gate: Path) -> None:
        """Ingest, under the eyes of the coordinator and perhaps of a killer, and say where the time went.

        Args:
            start_s: seconds that the start of Spark took.
            killer: kills an executor and a broker; None: nobody does.
            gate: directory of the killer's gate.
        """
        task = self._progress.add_task("ingesting with PySpark", total=len(self._facts))

        def see(status: IngestDescription) -> None:
            self._progress.update(task, completed=status.sealed_records)
            if killer is not None:
                killer.see(status)

        begun = time.monotonic()
        moments = Moments(asked=begun - start_s, ready=begun)
        with ExitStack() as stack:
            if killer is not None:
                stack.enter_context(killer)
            watch = stack.enter_context(IngestWatch(self._bootstrap, self._ingest_id, moments, on_status=see))
            self._run(gate=None if killer is None else gate)
            ended = time.monotonic()
        self._progress.update(task, completed=len(self._facts))
        result = None if watch.last is None else watch.last.result
        dropped = 0 if result is None else result.dropped_attempts
        _say(
            self._demo.console,
            f"ingested {0 if result is None else result.records:,} records as {self._ingest_id} in {ended - begun:.1f} s "
            f"({len(self._facts) / (ended - begun):,.0f} records/s); attempts that do not count: {dropped}",
        )
        for line in () if killer is None else killer.told:
            _say(self._demo.console, line)
        self._demo.console.print(time_table(phases(replace(watch.moments, ended=ended)), len(self._facts)))
        if killer is not None:
            if not killer.has_killed_executor or killer.fault is None:
                raise DemoFailedError("the ingest had ended before an executor and a broker were killed")
            killer.fault.heal()

    def run_again(self) -> bool:
        """Run the same ingest with the same id, and return whether anything was added, which is wrong."""
        before = self._ends()
        started_s = time.monotonic()
        with _phase(self._progress, "the same ingest again"):
            self._run(gate=None)
        added = sum(self._ends().values()) - sum(before.values())
        _say(
            self._demo.console,
            f"the same ingest again: {added:,} records added, in {time.monotonic() - started_s:.1f} s",
        )
        return added != 0

    def _run(self, *, gate: Path | None) -> None:
        ingest(
            self._spark,
            self._staged,
            bootstrap=self._bootstrap,
            topic=self._demo.topic,
            ingest_id=self._ingest_id,
            has_keyless=self._facts.keyless_count > 0,
            gate=gate,
        )

    def _ends(self) -> dict[TopicPartition, int]:
        with Consumer(self._bootstrap) as consumer:
            partitions = [TopicPartition(self._demo.topic, number) for number in range(PARTITION_COUNT)]
            return dict(consumer.end_offsets(partitions))


@contextmanager
def _phase(progress: Progress, what: str) -> Iterator[None]:
    """Show a line with a spinner, which becomes a full bar if the block ends well."""
    task = progress.add_task(what, total=None)
    yield
    progress.update(task, total=1, completed=1)


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _say(console: Console, text: str) -> None:
    # A line stays one line, whatever the width of the terminal is.
    console.print(text, soft_wrap=True, markup=False)

# SPDX-License-Identifier: Apache-2.0
"""The demo from start to end: Spark, cluster, ingest, replay, comparison.

Owns the order of the steps and the output during them. Spark starts before the cluster, because it forks, and gRPC does not support
forks well.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lograft import Admin, Consumer, TopicPartition
from lograft.spark import ensure_java, local_session
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from brokerd.embedded import EmbeddedCluster
from integration_tests.scenarios.demo.facts import Comparison, SourceFacts, SourceRecord, compare
from integration_tests.scenarios.demo.job import ingest, replay, tally, time_range
from integration_tests.scenarios.demo.report import comparison_table, moment, print_verdict
from integration_tests.scenarios.demo.sources import SourceError
from integration_tests.scenarios.demo.staging import stage

PARTITION_COUNT = 6
TOPIC = "jar-entries"
POLL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What to ingest, its name, and where to show progress.

    Attributes:
        records: the source.
        expected_count: known number of records in the source; None: not known.
        title: name of the source for people.
        topic: topic to create.
        console: where everything is printed.
    """

    records: Iterable[SourceRecord]
    expected_count: int | None
    title: str
    topic: str
    console: Console


def run(demo: Demo) -> bool:
    """Run the whole job in a fresh temporary directory.

    Returns:
        True if the replays equal the source.
    """
    started_s = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lograft-demo-")))
        progress = stack.enter_context(_progress(demo.console))
        facts = _stage(demo, directory / "source.parquet", progress)
        spark = _start_spark(demo.console, progress, directory)
        stack.callback(spark.stop)
        with _phase(progress, "starting the embedded cluster"):
            cluster = stack.enter_context(EmbeddedCluster(directory / "cluster"))
        bootstrap = cluster.bootstrap
        with Admin(bootstrap) as admin:
            # Records have their own times, which may be years old. Retention would remove them.
            admin.create_topic(demo.topic, partition_count=PARTITION_COUNT, configs={"retention.ms": "-1"})
        _ingest(demo, spark, directory / "source.parquet", bootstrap, facts, progress)
        everything, some = verify(demo, spark, bootstrap, facts, progress)
        return print_verdict(
            demo.console, [*everything, *some], record_count=len(facts), seconds=time.monotonic() - started_s
        )


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


def _start_spark(console: Console, progress: Progress, directory: Path) -> SparkSession:
    with _phase(progress, "starting Spark"):
        java = ensure_java()
        _say(console, f"Java {java.version} from {java.origin}")
        return local_session("lograft demo", directory=directory)


def _ingest(
    demo: Demo, spark: SparkSession, staged: Path, bootstrap: str, facts: SourceFacts, progress: Progress
) -> None:
    task = progress.add_task("ingesting with PySpark", total=len(facts))
    partitions = [TopicPartition(demo.topic, number) for number in range(PARTITION_COUNT)]
    started_s = time.monotonic()
    with Consumer(bootstrap) as consumer:

        def look() -> None:
            progress.update(task, completed=sum(consumer.end_offsets(partitions).values()))

        with _now_and_then(look):
            ingest(spark, staged, bootstrap=bootstrap, topic=demo.topic, has_keyless=facts.keyless_count > 0)
    seconds = time.monotonic() - started_s
    _say(demo.console, f"ingested {len(facts):,} records in {seconds:.1f} s ({len(facts) / seconds:,.0f} records/s)")


@contextmanager
def _now_and_then(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` repeatedly from its own thread while the block runs, and once after it.

    The block stays in the calling thread, because Spark finds Python data sources through the session of the thread.
    """
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_INTERVAL_S):
            look()

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    look()


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

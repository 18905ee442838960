# SPDX-License-Identifier: Apache-2.0
"""`make bench-peers`: Lograft beside Apache Kafka 4.3 with confluent-kafka, in turns, and beside an older Lograft.

Every measurement is a client process of its own against servers on loopback, and prints what it measured. The measurements of a turn
follow each other, in each round in another order; the ratio of a cell is the median of the ratios within the rounds. Kafka's JVM
stays warm: an uncounted round comes first, with a fifth of the records, or three times all of them where latencies are measured.
With one replica, the servers that are not measured are stopped (SIGSTOP); with three, all are up and idle. Before each measurement
the machine is given some seconds to be quiet.

Both systems keep the same promise: acks=all, idempotent producers, and either the page cache or an fsync before each acknowledgement
(`flush.policy=ack`; `flush.messages=1`); three replicas have min ISR 2. Each write goes to a fresh topic, which some records warm,
and onto pages that the machine has just used. Rates are from the first record handed over to the last acknowledgement, or from the
assignment to the last value in hand, from partitions that were filled right before with batches of 1 MiB. confluent-kafka's
producers have its defaults, its consumer is tuned (`queued.min.messages`, `fetch.queue.backoff.ms`). `send` is beside its `produce`,
both with keys; `send_many` beside `produce_batch`, both without; `poll` and `values` beside `consume`, and all look at each value.
`lists` is `values()` with nothing done. Values are random letters, 1 KB are 1,000 bytes.

Latencies at a steady rate are from the send to the value in the consumer's hand, in one process, without linger. The prototype is a
bare gRPC stream to a server that checks, appends and pushes what has gathered, on uvloop. The crowd is 60 processes that send one
record each at the same moment, as far as they can be told to begin at the same moment, beside 60 idle readers.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import psutil
from lograft.spark import ensure_java

from benchmarks.kafka_server import KAFKA_VERSION
from benchmarks.pages import recycle_pages
from benchmarks.peers_cells import CELLS, LATENCIES, READS, Cell, Measure, Row, Side, Step, Work, chosen, rows, turns
from benchmarks.peers_crowd import measure_crowd
from benchmarks.peers_page import missed, page
from benchmarks.peers_sides import (
    ROOT,
    Checkout,
    Client,
    System,
    confluent_client,
    kafka_system,
    lograft_system,
    prototype_system,
)
from benchmarks.peers_spark import RESULTS, stored_results
from benchmarks.peers_task import Sample, Task
from benchmarks.spark_run import machine

RECORDS_MIN = 100
LIST_RECORDS = 10_000
"""Large counts are multiples of a list."""
WARM_UP_SHARE = 0.2
"""Share of the records in the round that does not count."""
LATENCY_WARM_UPS = 3
"""Where latencies are measured, that round has all records, so many times: single records are many requests, and a JVM compiles by
their number. The first run has a median of 60 ms at 10,000 records per second, the third one of 4 ms."""
ROW_OVERHEAD_BYTES = 32
"""Bytes of a key and of what a log adds to a record, for the pages that are recycled."""
QUIET_CORES = 0.4
QUIET_TIMEOUT_S = 3.0
QUIET_MOMENT_S = 0.4
FAILURE_CHARACTERS_MAX = 400


@dataclass(slots=True, kw_only=True)
class Results:
    """What a run has measured: samples by step and round, and the measurements that failed."""

    samples: dict[Step, dict[int, Sample]] = field(default_factory=dict[Step, dict[int, Sample]])
    failures: list[str] = field(default_factory=list[str])


class Run:
    """The measurements on one set of servers.

    Args:
        systems: the servers of each side, all with the same number of nodes.
        directory: directory on the disk of the servers.
        scale: share of the record counts.
        results: where samples go.
    """

    def __init__(self, systems: dict[Side, System], directory: Path, scale: float, results: Results) -> None:
        self._systems, self._directory, self._scale, self._results = systems, directory, scale, results
        self._topic_count = 0

    def warm_up(self, steps: Sequence[Step]) -> None:
        """Run what Kafka's JVM must have compiled. Other servers have nothing to compile."""
        for measure, side in steps:
            if side is Side.PEER and measure.work is not Work.CROWD and not measure.is_flushed:
                is_latency = measure.work in LATENCIES
                share, times = (1.0, LATENCY_WARM_UPS) if is_latency else (WARM_UP_SHARE, 1)
                for _ in range(times):
                    self._turn([(measure, side)], None, self._scale * share)

    def round(self, number: int, steps: Sequence[Step]) -> None:
        """Measure the steps of a turn, beginning with another side in each round."""
        sides = list(dict.fromkeys(side for _, side in steps))
        first = number % len(sides)
        order = [*sides[first:], *sides[:first]]
        self._turn(sorted(steps, key=lambda step: order.index(step[1])), number, self._scale)

    def _turn(self, steps: Sequence[Step], number: int | None, scale: float) -> None:
        """Measure steps. Reads of one side share a topic, which is filled for them."""
        filled: dict[Side, str] = {}
        for measure, side in steps:
            system = self._only(side)
            name = f"{measure}, {side}"
            try:
                sample = self._measured(system, measure, scale, filled)
            except (RuntimeError, TimeoutError) as error:
                self._failed(name, error)
                continue
            print(f"{'warm-up' if number is None else f'round {number}'}: {name}: {_line(measure, sample)}", flush=True)
            if number is not None:
                self._results.samples.setdefault((measure, side), {})[number] = sample
        for side, topic in filled.items():
            try:
                self._delete(self._only(side), topic)
            except (RuntimeError, TimeoutError) as error:
                self._failed(f"end of {topic}, {side}", error)

    def _failed(self, name: str, error: Exception) -> None:
        text = " ".join(str(error).split())
        print(f"FAILED {name}: {text}", flush=True)
        self._results.failures.append(f"{name}: {text[-FAILURE_CHARACTERS_MAX:]}")

    def _measured(self, system: System, measure: Measure, scale: float, filled: dict[Side, str]) -> Sample:
        task = self._task(system, measure, scale)
        if measure.work in READS:
            if system.side not in filled:
                topic = self._created(system, task)
                # Some more than are read: a client that asks for many at a time would wait for those that are missing at the end.
                system.client.run(replace(task, do="fill", topic=topic, records=task.records + LIST_RECORDS))
                filled[system.side] = topic
            return _on_quiet_machine(system, replace(task, topic=filled[system.side]))
        if system.side is Side.PROTOTYPE:
            return _on_quiet_machine(system, task)
        topic = self._created(system, task)
        try:
            if measure.work is Work.CROWD:
                quiet_topic = self._created(system, task)
                try:
                    load, others = _wait_for_quiet()
                    return replace(
                        measure_crowd(system, replace(task, topic=topic), quiet_topic), load=load, others=others
                    )
                finally:
                    self._delete(system, quiet_topic)
            return _on_quiet_machine(system, replace(task, topic=topic))
        finally:
            self._delete(system, topic)

    def _task(self, system: System, measure: Measure, scale: float) -> Task:
        records = max(RECORDS_MIN, int(measure.records * scale))
        if records > LIST_RECORDS:
            records -= records % LIST_RECORDS
        return Task(
            do=measure.work,
            bootstrap=system.bootstrap,
            records=records,
            value_bytes=measure.value_bytes,
            partitions=measure.partitions,
            replicas=measure.replicas,
            is_flushed=measure.is_flushed,
            rate=measure.rate,
            pids=system.pids,
        )

    def _created(self, system: System, task: Task) -> str:
        self._topic_count += 1
        topic = f"peers-{self._topic_count}"
        system.client.run(replace(task, do="create", topic=topic))
        recycle_pages(self._directory, task.replicas * task.records * (task.value_bytes + ROW_OVERHEAD_BYTES))
        return topic

    def _delete(self, system: System, topic: str) -> None:
        system.client.run(Task(do="delete", bootstrap=system.bootstrap, topic=topic))
        # So that nothing of one measurement is written back in the next one.
        os.sync()

    def _only(self, side: Side) -> System:
        """Stop all servers but those of one side. Quorums stay up."""
        wanted = self._systems[side]
        for system in self._systems.values():
            if system is not wanted and not system.is_quorum:
                system.pause()
        wanted.resume()
        return wanted


def _on_quiet_machine(system: System, task: Task) -> Sample:
    load, others = _wait_for_quiet()
    return replace(system.measure(task), load=load, others=others)


def _wait_for_quiet() -> tuple[float, float]:
    """Wait for a moment in which the machine is quiet, but not for long. Return its load, and its busy cores in that moment."""
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    while True:
        before, began = _busy_s(), time.monotonic()
        threading.Event().wait(QUIET_MOMENT_S)
        busy_cores = (_busy_s() - before) / (time.monotonic() - began)
        if busy_cores < QUIET_CORES or time.monotonic() >= deadline:
            return os.getloadavg()[0], busy_cores


def _busy_s() -> float:
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq


def _line(measure: Measure, sample: Sample) -> str:
    latencies = "" if sample.p50_ms is None else f", p50 {sample.p50_ms:.2f} ms, p99 {sample.p99_ms:.2f} ms"
    costs = f"processor {sample.client_us:.2f} + {sample.server_us:.2f} us"
    return f"{sample.rate:,.1f} k/s{latencies}, {costs}, others {sample.others:.2f} cores"


def run_cells(
    cells: Sequence[Cell], java: Path, before: Checkout | None, *, rounds: int, scale: float, results: Results
) -> None:
    """Measure cells: all with one replica, then all with three."""
    for count in (1, 3):
        steps_of_turns = turns([cell for cell in cells if cell.ours.replicas == count], has_before=before is not None)
        sides = {side for steps in steps_of_turns for _, side in steps}
        if not sides:
            continue
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-peers-")))
            systems: dict[Side, System] = {}
            if Side.PEER in sides:
                systems[Side.PEER] = stack.enter_context(kafka_system(directory / "kafka", java, count=count))
            for side, checkout in ((Side.OURS, Checkout.here()), (Side.BEFORE, before)):
                if checkout is not None and side in sides:
                    systems[side] = stack.enter_context(
                        lograft_system(directory / side.name.lower(), side, checkout, count=count)
                    )
            if Side.PROTOTYPE in sides:
                systems[Side.PROTOTYPE] = stack.enter_context(prototype_system(directory / "prototype"))
            run = Run(systems, directory, scale, results)
            for steps in steps_of_turns:
                run.warm_up(steps)
            for number in range(1, rounds + 1):
                for steps in steps_of_turns:
                    run.round(number, steps)


def facts_of(java: Path, before: Checkout | None, *, rounds: int, scale: float) -> list[str]:
    """Return what the machine, the versions and the run are."""
    here = Checkout.here()
    java_text = subprocess.run([str(java), "-version"], check=True, capture_output=True, text=True).stderr
    version = re.search(r'version "([^"]+)"', java_text)
    facts = [machine(), f"{rounds} round{'s' * (rounds > 1)}, {scale:g} of the records"]
    facts.append(f"Lograft {here.version}: {_versions(here.client())}")
    if before is not None:
        facts.append(f"before, Lograft {before.version}: {_versions(before.client())}")
    facts.append(
        f"Apache Kafka {KAFKA_VERSION}, Java {version[1] if version else 'unknown'}: {_versions(confluent_client())}"
    )
    return facts


def _versions(client: Client) -> str:
    return ", ".join(f"{name} {version}" for name, version in client.run(Task(do="versions")).items())


def _table(found: Sequence[Row]) -> list[dict[str, object]]:
    """Return the rows as JSON stores them."""
    return [
        {
            "cell": row.cell.name,
            "figure": row.cell.figure,
            "ours": row.ours,
            "others": row.others,
            "before": row.pairs_before,
            "bound": row.cell.bound,
            "is_met": row.is_met,
            "has_fallen": row.has_fallen,
        }
        for row in found
    ]


def _stored_samples(results: Results) -> list[dict[str, object]]:
    return [
        {**asdict(measure), "side": side, "samples": {number: asdict(sample) for number, sample in by_round.items()}}
        for (measure, side), by_round in results.samples.items()
    ]


def main() -> int:
    """Measure, print the page, and write it. Return 1 if a cell misses its bound or has fallen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the record counts (default 1)")
    parser.add_argument("--only", default="", help="part of a cell's name")
    parser.add_argument(
        "--before", type=Path, help="checkout of an older Lograft with its own .venv, measured in the same turns"
    )
    parser.add_argument(
        "--spark", action="store_true", help="run `bench-spark` first; else its stored results are shown"
    )
    parser.add_argument("--write", type=Path, help="directory for peers.json and peers.md")
    arguments = parser.parse_args()
    # So that the servers end with a run that is asked to end.
    signal.signal(signal.SIGTERM, _end)
    cells = chosen(CELLS, arguments.only)
    if not cells:
        parser.error(f"no cell has {arguments.only!r} in its name: {', '.join(cell.name for cell in CELLS)}")
    before = Checkout.at(arguments.before.resolve()) if arguments.before is not None else None
    java = ensure_java().home / "bin" / "java"
    spark_directory: Path = arguments.write or RESULTS
    if arguments.spark:
        # Its bounds are judged below.
        subprocess.run([sys.executable, "-m", "benchmarks.spark_run", "--write", str(spark_directory)], cwd=ROOT)
    facts = facts_of(java, before, rounds=arguments.rounds, scale=arguments.scale)
    results = Results()
    try:
        run_cells(cells, java, before, rounds=arguments.rounds, scale=arguments.scale, results=results)
    except BaseException as error:
        results.failures.append(f"the run ended before its end: {error!r}")
        raise
    finally:
        found = rows(cells, results.samples)
        spark = None if arguments.only else stored_results(spark_directory) or stored_results(RESULTS)
        text = page(
            (__doc__ or "").split("\n\n", 1)[1],
            found,
            results.samples,
            facts=facts,
            spark=spark.rows if spark is not None else (),
            spark_facts=spark.facts if spark is not None else (),
            failures=results.failures,
        )
        print(text)
        if arguments.write is not None:
            arguments.write.mkdir(parents=True, exist_ok=True)
            stored = {"facts": facts, "cells": _table(found), "samples": _stored_samples(results)}
            (arguments.write / "peers.json").write_text(json.dumps(stored, indent=1) + "\n")
            (arguments.write / "peers.md").write_text(text)
    misses = missed(found, spark.rows if spark is not None else ())
    for name in misses:
        print(f"missed: {name}")
    return 1 if misses or results.failures else 0


def _end(*_: object) -> None:
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())

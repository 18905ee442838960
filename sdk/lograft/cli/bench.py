# SPDX-License-Identifier: Apache-2.0
"""`lograft bench`: how fast a cluster takes and gives records, with every record checked by a hash chain."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import typer

from lograft.admin import Admin
from lograft.cli.hash_chain import MIN_VALUE_BYTES, ChainEnd, ChainError, ChainReader, ChainWriter, sent_ns
from lograft.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_MS,
    Bootstrap,
    ClusterId,
    Json,
    TimeoutMs,
    parse_pairs,
)
from lograft.cli.output import GREEN, counted, format_size, print_error, print_json, styled
from lograft.cli.progress import Meter
from lograft.consumer import Consumer
from lograft.delivery import Delivery
from lograft.errors import LograftError, RequestTimeoutError, UnreachableError
from lograft.fetched import FetchedBatch
from lograft.producer import Producer
from lograft.types import TopicPartition
from lograft.wire.partitioner import partition_for_key

SAMPLE_EVERY: Final = 101
"""One of so many records has the time until its acknowledgement measured. A prime: not always the same place in a batch."""

STEP_RECORDS: Final = 1_000
"""Records between two updates of the progress bar."""

POLL_MS: Final = 1_000
"""Milliseconds of one poll."""

PATIENCE_S: Final = 60.0
"""Seconds without any record after which the records that are still expected count as lost."""

MAX_VALUE_BYTES: Final = 1_000_000
"""Bytes of the largest value; the default of `max.message.bytes` is a little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Percentiles of measured times, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    def text(self) -> str:
        """Return them on one line."""
        return (
            f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, p99.9 {self.p999_ms:.1f} ms, max {self.max_ms:.1f} ms"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Records and bytes of values in a time."""

    records: int
    size_bytes: int
    seconds: float

    def text(self) -> str:
        """Return them on one line."""
        return (
            f"{self.records:,} records in {self.seconds:.2f} s: {self.records / self.seconds:,.0f} records/s, "
            f"{format_size(int(self.size_bytes / self.seconds))}/s"
        )


class _Sender:
    """Chooses keys and makes values: one chain for each partition."""

    def __init__(self, run: bytes, partition_count: int, value_bytes: int, key_count: int, seed: int) -> None:
        self.writers = [ChainWriter(run, partition, value_bytes, seed) for partition in range(partition_count)]
        self._rng = random.Random(seed)
        keys = [b"key-%d" % number for number in range(key_count)]
        self._keys = [(key, self.writers[partition_for_key(key, partition_count)]) for key in keys]

    def send(self, producer: Producer, topic: str) -> Delivery:
        key, writer = self._keys[int(self._rng.random() * len(self._keys))]
        return producer.send(topic, writer.next(time.monotonic_ns()), key)

    def ends(self) -> list[ChainEnd]:
        return [writer.end() for writer in self.writers]


def bench(
    topic: Annotated[
        str | None,
        typer.Argument(help="A new topic that is kept; default: one of its own that is deleted.", show_default=False),
    ] = None,
    records: Annotated[int, typer.Option("--records", "-n", min=1, max=10**9, help="Records to send.")] = 500_000,
    size: Annotated[
        int, typer.Option("--size", "-s", min=MIN_VALUE_BYTES, max=MAX_VALUE_BYTES, help="Bytes of each value.")
    ] = 100,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, max=1_000, help="Partitions.")] = 6,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", min=1, max=100, help="Replicas of each.")
    ] = 1,
    rate: Annotated[
        int, typer.Option("--rate", min=0, help="Records per second to send at most; 0: as fast as it goes.")
    ] = 0,
    keys: Annotated[
        int, typer.Option("--keys", min=1, max=1_000_000, help="Keys to choose from, each as often as the others.")
    ] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of keys and contents.")] = 1,
    acks: Annotated[str, typer.Option("--acks", help='"all", "leader" or "none".')] = "all",
    codec: Annotated[str, typer.Option("--codec", help='"none" or "zstd"; the contents do not compress.')] = "none",
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", help="name=value of the topic; may be repeated.")
    ] = None,
    latency_records: Annotated[
        int, typer.Option("--latency-records", min=0, max=10**7, help="Records for the times from end to end; 0: none.")
    ] = 2_000,
    latency_rate: Annotated[
        int, typer.Option("--latency-rate", min=1, max=100_000, help="Records per second of them.")
    ] = 1_000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    cluster_id: ClusterId = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: Json = False,
) -> None:
    """Measure a cluster, and check every record while it is measured; the exit status is 1 if one is wrong.

    First it sends, then it reads everything back, then it measures the way of single records from end to end.
    """
    run = os.urandom(8)
    name = topic or f"bench-{run.hex()}"
    configs = dict(parse_pairs(config or [], "--config"))
    facts: dict[str, object] = {"topic": name, "records": records, "value_bytes": size, "seed": seed}
    with Admin(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as admin:
        admin.create_topic(name, partition_count=partitions, replication_factor=replication_factor, configs=configs)
        try:
            sender = _Sender(run, partitions, size, keys, seed)
            readers = [ChainReader(run, partition) for partition in range(partitions)]
            tps = [TopicPartition(name, partition) for partition in range(partitions)]
            tell = _Teller(as_json=as_json)
            tell.line(
                f"{name}: {counted(partitions, 'partition')}, {counted(replication_factor, 'replica')}, acks={acks}, "
                f"values of {counted(size, 'byte')}, {counted(keys, 'key')}, seed {seed}"
            )
            with Producer(bootstrap, cluster_id=cluster_id, acks=acks, codec=codec) as producer:
                sent, acknowledged = _produce(producer, sender, name, records, size, rate)
                facts |= {"produce": asdict(sent), "acknowledged": acknowledged and asdict(acknowledged)}
                tell.line(f"produce     {sent.text()}")
                if acknowledged is not None:
                    tell.line(f"            acknowledged after {acknowledged.text()}")
                with Consumer(bootstrap, cluster_id=cluster_id, request_timeout_ms=timeout_ms) as consumer:
                    consumer.assign(tps, start="earliest")
                    got = _consume(consumer, readers, records, size)
                    facts["consume"] = asdict(got)
                    tell.line(f"consume     {got.text()}")
                    if latency_records:
                        whole = _end_to_end(producer, consumer, sender, readers, name, latency_records, latency_rate)
                        facts["end_to_end"] = {"rate": latency_rate, **asdict(whole)}
                        tell.line(f"end to end  {whole.count:,} records at {latency_rate:,}/s: {whole.text()}")
            for reader, end in zip(readers, sender.ends(), strict=True):
                reader.check_end(end)
        except (ChainError, RequestTimeoutError) as error:
            facts |= {"verified": False, "problem": str(error)}
            if as_json:
                print_json(facts)
            print_error(f"verification failed: {error}; the topic {name} is kept")
            raise typer.Exit(1) from None
        except BaseException:
            _delete(admin, name, keep=topic is not None)
            raise
        _delete(admin, name, keep=topic is not None)
    facts["verified"] = True
    if as_json:
        print_json(facts)
    else:
        total = records + latency_records
        typer.echo(
            f"{styled('verified', GREEN)}    {total:,} records in {counted(partitions, 'partition')}: each once, in order, "
            "unchanged"
        )


def _produce(
    producer: Producer, sender: _Sender, topic: str, count: int, size: int, rate: int
) -> tuple[Rate, Times | None]:
    times_ms: list[float] = []

    def measure(delivery: Delivery) -> None:
        begun_s = time.monotonic()
        delivery.add_done_callback(lambda _: times_ms.append((time.monotonic() - begun_s) * 1000))

    pause = threading.Event()
    started_s = time.monotonic()
    with Meter("produce", count) as meter:
        for number in range(count):
            if rate and (ahead_s := number / rate - (time.monotonic() - started_s)) > 0:
                pause.wait(ahead_s)
            delivery = sender.send(producer, topic)
            if number % SAMPLE_EVERY == 0:
                measure(delivery)
            if number % STEP_RECORDS == 0:
                meter.add(STEP_RECORDS, STEP_RECORDS * size)
        producer.flush()
    return Rate(records=count, size_bytes=count * size, seconds=time.monotonic() - started_s), _times(times_ms)


def _consume(consumer: Consumer, readers: Sequence[ChainReader], count: int, size: int) -> Rate:
    started_s = time.monotonic()
    with Meter("consume", count) as meter:
        patience = _Patience(count)
        while meter.records < count:
            batch = _poll(consumer, patience, meter.records)
            if batch is not None:
                readers[batch.partition].take(batch.values(), batch.base_offset)
                meter.add(batch.record_count, batch.record_count * size)
    return Rate(records=meter.records, size_bytes=meter.size_bytes, seconds=time.monotonic() - started_s)


def _end_to_end(
    producer: Producer,
    consumer: Consumer,
    sender: _Sender,
    readers: Sequence[ChainReader],
    topic: str,
    count: int,
    rate: int,
) -> Times:
    failures: list[BaseException] = []

    def send_all() -> None:
        try:
            pause = threading.Event()
            started_s = time.monotonic()
            for number in range(count):
                if (ahead_s := number / rate - (time.monotonic() - started_s)) > 0:
                    pause.wait(ahead_s)
                sender.send(producer, topic)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=send_all, daemon=True)
    thread.start()
    times_ms: list[float] = []
    patience = _Patience(count)
    while len(times_ms) < count and not failures:
        batch = _poll(consumer, patience, len(times_ms))
        if batch is not None:
            now_ns = time.monotonic_ns()
            values = batch.values()
            readers[batch.partition].take(values, batch.base_offset)
            times_ms += [(now_ns - sent_ns(value)) / 1e6 for value in values if value is not None]
    thread.join()
    if failures:
        raise failures[0]
    times = _times(times_ms)
    assert times is not None, "no record was measured"
    return times


class _Patience:
    """Gives up when nothing comes for too long."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._last_s = time.monotonic()

    def note(self, has_come: bool, come: int) -> None:
        """Note whether something came.

        Raises:
            RequestTimeoutError: nothing came for `PATIENCE_S`.
        """
        now_s = time.monotonic()
        if has_come:
            self._last_s = now_s
        elif now_s - self._last_s > PATIENCE_S:
            raise RequestTimeoutError(f"only {come} of {self._count} records came, then none for {PATIENCE_S:.0f} s")


def _poll(consumer: Consumer, patience: _Patience, come: int) -> FetchedBatch | None:
    try:
        batch = consumer.poll_batch(POLL_MS)
    except UnreachableError:
        batch = None
    patience.note(batch is not None, come)
    return batch


def _times(times_ms: list[float]) -> Times | None:
    if not times_ms:
        return None
    ordered = sorted(times_ms)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Times(count=len(ordered), p50_ms=at(0.5), p99_ms=at(0.99), p999_ms=at(0.999), max_ms=ordered[-1])


def _delete(admin: Admin, topic: str, *, keep: bool) -> None:
    if keep:
        return
    try:
        admin.delete_topic(topic)
    except LograftError as error:
        print_error(f"topic {topic} is not deleted: {error.message}")


class _Teller:
    """Prints lines as the results come, unless all of them go into one JSON object at the end."""

    def __init__(self, *, as_json: bool) -> None:
        self._is_quiet = as_json

    def line(self, text: str) -> None:
        if not self._is_quiet:
            typer.echo(text)

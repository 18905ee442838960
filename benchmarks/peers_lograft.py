# SPDX-License-Identifier: Apache-2.0
"""A client process of Lograft in `make bench-peers`: one task, one line of JSON.

It runs with the SDK of this checkout and with that of an older one, and so uses only what both have. Seconds are from the first
record handed over to the last one acknowledged, or from the assignment to the last value in hand. The topic is warm for writes.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, cast

import lograft.aio
import uvloop
from lograft import Admin, Consumer, LograftError, Producer, TopicPartition

from benchmarks.peers_crowd_member import crowd_reads, crowd_sends
from benchmarks.peers_task import KEYS, VALUE_COUNT, Latencies, Meter, Pace, Sample, Task, do_task, values_of

ADMIN_TIMEOUT_MS = 30_000
CREATE_TIMEOUT_S = 60.0
"""Servers that were stopped, or that have just started, may refuse a topic for so long."""
CREATE_RETRY_S = 0.5
POLL_TIMEOUT_MS = 1_000
POLL_RECORDS_MAX = 10_000
LIST_REPEATS = 10
"""A call of `send_many` has so many times all values."""
LIST_RECORDS = LIST_REPEATS * VALUE_COUNT


def create(task: Task) -> None:
    """Create a topic, with patience for servers that find together."""
    configs = {"flush.policy": "ack" if task.is_flushed else "none"}
    if task.replicas > 1:
        configs["min.insync.replicas"] = "2"
    patience = Pace(1 / CREATE_RETRY_S)
    attempts = int(CREATE_TIMEOUT_S / CREATE_RETRY_S)
    with Admin(task.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        for attempt in range(1, attempts + 1):
            try:
                admin.create_topic(
                    task.topic, partition_count=task.partitions, replication_factor=task.replicas, configs=configs
                )
                return
            except LograftError:
                if attempt == attempts:
                    raise
                patience.wait(attempt)


def delete(task: Task) -> None:
    """Delete a topic."""
    with Admin(task.bootstrap, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
        admin.delete_topic(task.topic)


def fill(task: Task) -> None:
    """Write the records that are read afterwards."""
    values = values_of(task.value_bytes) * LIST_REPEATS
    with Producer(task.bootstrap) as producer:
        for _ in range(0, task.records, LIST_RECORDS):
            producer.send_many(task.topic, values)
        producer.flush()


def send(task: Task) -> Sample:
    """One call of `send` for each record, with a key."""
    values, keys, topic = values_of(task.value_bytes), KEYS, task.topic
    with Producer(task.bootstrap) as producer:
        one = producer.send

        def all_of(count: int) -> None:
            for index in range(count):
                which = index % VALUE_COUNT
                one(topic, values[which], keys[which])
            producer.flush()

        return _produced(task, all_of)


def send_many(task: Task) -> Sample:
    """Lists of values."""
    values = values_of(task.value_bytes) * LIST_REPEATS
    with Producer(task.bootstrap) as producer:

        def all_of(count: int) -> None:
            for first in range(0, count, LIST_RECORDS):
                producer.send_many(task.topic, values[: count - first])
            producer.flush()

        return _produced(task, all_of)


def _produced(task: Task, all_of: Callable[[int], None]) -> Sample:
    all_of(task.warm_up)
    with Meter(task.pids) as meter:
        all_of(task.records)
    with Consumer(task.bootstrap) as consumer:
        stored = sum(consumer.end_offsets(_partitions(task)).values())
    if stored != task.warm_up + task.records:
        raise RuntimeError(f"{stored} records in {task.topic} instead of {task.warm_up + task.records}")
    return meter.sample(task.records)


def poll(task: Task) -> Sample:
    """Records as objects."""

    def read(consumer: Consumer) -> tuple[int, int]:
        records = consumer.poll(POLL_RECORDS_MAX, POLL_TIMEOUT_MS)
        size_bytes = 0
        for record in cast("Sequence[Any]", records):
            size_bytes += len(record.value)
        return len(records), size_bytes

    return _consumed(task, read)


def values(task: Task) -> Sample:
    """Lists of values, each of which is looked at."""

    def read(consumer: Consumer) -> tuple[int, int]:
        fetched = consumer.poll_batch(POLL_TIMEOUT_MS)
        found = cast("Sequence[bytes]", fetched.values() if fetched is not None else ())
        size_bytes = 0
        for value in found:
            size_bytes += len(value)
        return len(found), size_bytes

    return _consumed(task, read)


def lists(task: Task) -> Sample:
    """Lists of values, and nothing done with them."""

    def read(consumer: Consumer) -> tuple[int, int]:
        fetched = consumer.poll_batch(POLL_TIMEOUT_MS)
        count = len(fetched.values()) if fetched is not None else 0
        return count, count * task.value_bytes

    return _consumed(task, read)


def to_arrow(task: Task) -> Sample:
    """Arrow batches. pyarrow is loaded before, and what it loads itself at its first scalar."""
    import_module("pyarrow.compute")
    import_module("pyarrow").scalar(1)

    def read(consumer: Consumer) -> tuple[int, int]:
        fetched = consumer.poll_batch(POLL_TIMEOUT_MS)
        if fetched is None:
            return 0, 0
        batch: Any = fetched.to_arrow()
        return batch.num_rows, batch.num_rows * task.value_bytes

    return _consumed(task, read)


def _consumed(task: Task, read: Callable[[Consumer], tuple[int, int]]) -> Sample:
    count = size_bytes = 0
    with Consumer(task.bootstrap) as consumer:
        with Meter(task.pids) as meter:
            consumer.assign(_partitions(task))
            while count < task.records:
                more, more_bytes = read(consumer)
                count += more
                size_bytes += more_bytes
        if size_bytes != count * task.value_bytes:
            raise RuntimeError(f"{size_bytes} bytes in {count} values of {task.value_bytes} bytes")
    return meter.sample(count)


def latency_blocking(task: Task) -> Sample:
    """From send to the value in hand: one thread sends, another one receives."""
    value, partition = values_of(task.value_bytes)[0], TopicPartition(task.topic, 0)
    meter = Meter(task.pids)
    with Producer(task.bootstrap, linger_ms=0) as producer, Consumer(task.bootstrap) as consumer:
        producer.send(task.topic, value, partition=0)
        producer.flush()
        consumer.assign([partition])
        first = consumer.poll_batch(ADMIN_TIMEOUT_MS)
        assert first is not None
        latencies = Latencies(meter, warm_up=task.paced_warm_up, records=task.records)

        def receive() -> None:
            while not latencies.is_complete:
                fetched = consumer.poll_batch(POLL_TIMEOUT_MS)
                if fetched is not None:
                    latencies.receive(len(fetched.values()))

        with ThreadPoolExecutor(1) as executor:
            receiving = executor.submit(receive)
            pace = Pace(task.rate)
            for index in range(latencies.total):
                pace.wait(index)
                latencies.send()
                producer.send(task.topic, value, partition=0)
            receiving.result()
        meter.stop()
    return meter.sample(task.records, latencies.counted_ms)


async def _latency_on_loop(task: Task) -> Sample:
    value, partition = values_of(task.value_bytes)[0], TopicPartition(task.topic, 0)
    meter = Meter(task.pids)
    async with (
        lograft.aio.Producer(task.bootstrap, linger_ms=0) as producer,
        lograft.aio.Consumer(task.bootstrap) as consumer,
    ):
        await producer.send(task.topic, value, partition=0)
        await producer.flush()
        await consumer.assign([partition])
        first = await consumer.poll_batch(ADMIN_TIMEOUT_MS)
        assert first is not None
        latencies = Latencies(meter, warm_up=task.paced_warm_up, records=task.records)

        async def receive() -> None:
            while not latencies.is_complete:
                fetched = await consumer.poll_batch(POLL_TIMEOUT_MS)
                if fetched is not None:
                    latencies.receive(len(fetched.values()))

        receiving = asyncio.create_task(receive())
        pace = Pace(task.rate)
        for index in range(latencies.total):
            delay_s = pace.delay_s(index)
            if delay_s > 0:
                await asyncio.sleep(delay_s)
            latencies.send()
            await producer.send(task.topic, value, partition=0)
        await receiving
        meter.stop()
    return meter.sample(task.records, latencies.counted_ms)


def latency_asyncio(task: Task) -> Sample:
    """The same in one event loop of asyncio."""
    return asyncio.run(_latency_on_loop(task))


def latency_uvloop(task: Task) -> Sample:
    """The same in one event loop of uvloop."""
    work: Coroutine[Any, Any, Sample] = _latency_on_loop(task)
    return uvloop.run(work)


def one_by_one(task: Task) -> Sample:
    """One record sent and waited for, again and again."""
    value = values_of(task.value_bytes)[0]
    latencies_ms: list[float] = []
    with Producer(task.bootstrap, linger_ms=0) as producer:

        def one() -> None:
            producer.send(task.topic, value)
            producer.flush()

        for _ in range(task.warm_up):
            one()
        with Meter(task.pids) as meter:
            for _ in range(task.records):
                started = time.perf_counter()
                one()
                latencies_ms.append((time.perf_counter() - started) * 1e3)
    return meter.sample(task.records, latencies_ms)


def crowd_writer(task: Task) -> None:
    """A member of the crowd that sends at the same moment as all others."""
    value = values_of(task.value_bytes)[0]
    with Producer(task.bootstrap, linger_ms=0) as producer:

        def one() -> None:
            producer.send(task.topic, value)
            producer.flush()

        crowd_sends(task, one)


def crowd_reader(task: Task) -> None:
    """A member of the crowd that waits for records that never come."""
    with Consumer(task.bootstrap) as consumer:
        consumer.assign([TopicPartition(task.topic, 0)])
        crowd_reads(lambda: consumer.poll_batch(POLL_TIMEOUT_MS))


def versions(_task: Task) -> None:
    """Print the versions that matter."""
    named = {name: importlib.metadata.version(name) for name in ("grpcio", "protobuf", "pyarrow", "uvloop")}
    print(json.dumps({"Python": platform.python_version(), **named}))


def _partitions(task: Task) -> list[TopicPartition]:
    return [TopicPartition(task.topic, number) for number in range(task.partitions)]


WORKS: Mapping[str, Callable[[Task], Sample | None]] = {
    "create": create,
    "delete": delete,
    "fill": fill,
    "send": send,
    "send_many": send_many,
    "poll": poll,
    "values": values,
    "lists": lists,
    "to_arrow": to_arrow,
    "latency, blocking": latency_blocking,
    "latency, asyncio": latency_asyncio,
    "latency, uvloop": latency_uvloop,
    "one by one": one_by_one,
    "crowd writer": crowd_writer,
    "crowd reader": crowd_reader,
    "versions": versions,
}


if __name__ == "__main__":
    sys.exit(do_task(WORKS))

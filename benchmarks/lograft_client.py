# SPDX-License-Identifier: Apache-2.0
"""Lograft side of the benchmarks: the public SDK against `lograft dev`, with the same bytes as the ceiling."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import lograft.aio
from lograft import Admin, Consumer, Producer, TopicPartition

from benchmarks.bare_call import bare_calls_s
from benchmarks.processes import ServerProcess

POLL_TIMEOUT_MS = 10_000
SEALED_LAPS = 5
BATCH_BYTES = 256 * 1024
"""Size of a batch where the pipelines are filled: with larger ones they would take the whole buffer."""
PIPELINE_RECORDS = 130_000
"""Records of 100 B that fill the pipelines to six partitions: eight batches of `BATCH_BYTES` for each."""
SETTLE_S = 0.2
"""Seconds after which the producer has sent all that it may."""


def create_topic(address: str, topic: str, *, flush_policy: str, partition_count: int = 1) -> None:
    """Create a topic with one flush policy."""
    with Admin(address) as admin:
        admin.create_topic(topic, partition_count=partition_count, configs={"flush.policy": flush_policy})


def produce(address: str, topic: str, batches: Sequence[Sequence[bytes]]) -> float:
    """Produce lists of values with `send_many` until all are acknowledged, and return the seconds."""
    with Producer(address, linger_ms=5) as producer:
        producer.send_many(topic, batches[0][:1], partition=0)
        producer.flush()
        started = time.perf_counter()
        for values in batches:
            producer.send_many(topic, values, partition=0)
        producer.flush()
        return time.perf_counter() - started


def send_keyed(
    address: str,
    topic: str,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    server: ServerProcess,
    partition_count: int,
) -> tuple[float, float, float]:
    """Call `send` once per record with a key.

    Returns:
        (seconds until the last record is in a sealed batch, in laps that fit into the producer's usual buffer, without the first
        lap; seconds of bare calls for the same records, each lap right after one of `send`; seconds of a second round of `send`
        until all are acknowledged)

    The first figure has only `send` and the sealing. During a lap the server is stopped (SIGSTOP) and the pipelines to it are full.
    So the producer's event loop, which would sometimes hold the interpreter lock, has nothing to do.
    """
    with Producer(address, linger_ms=5, batch_bytes=BATCH_BYTES) as producer:
        producer.send(topic, values[0], key=keys[0])
        producer.flush()
        sealed_s = bare_s = 0.0
        for lap in range(SEALED_LAPS + 1):
            part = slice(max(0, lap - 1) * len(keys) // SEALED_LAPS, max(1, lap) * len(keys) // SEALED_LAPS)
            with server.paused():
                _send_all(producer, topic, keys[:PIPELINE_RECORDS], values[:PIPELINE_RECORDS])
                threading.Event().wait(SETTLE_S)
                lap_s = _send_all(producer, topic, keys[part], values[part])
                bare_lap_s = bare_calls_s(keys[part], values[part], partition_count)
            producer.flush()
            if lap:
                sealed_s += lap_s
                bare_s += bare_lap_s
        started = time.perf_counter()
        _send_all(producer, topic, keys, values)
        producer.flush()
        return sealed_s, bare_s, time.perf_counter() - started


def _send_all(producer: Producer, topic: str, keys: Sequence[bytes], values: Sequence[bytes]) -> float:
    send = producer.send
    started = time.perf_counter()
    for key, value in zip(keys, values, strict=True):
        send(topic, value, key=key)
    return time.perf_counter() - started


def fetch_batches(address: str, topic: str, limit_offset: int) -> tuple[float, int]:
    """Fetch raw batches up to an offset, and return the seconds and the bytes."""
    with Consumer(address) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        started = time.perf_counter()
        size_bytes = 0
        next_offset = 0
        while next_offset < limit_offset:
            fetched = consumer.poll_batch(POLL_TIMEOUT_MS)
            if fetched is None:
                raise RuntimeError(f"no batch of {topic} at offset {next_offset} within {POLL_TIMEOUT_MS} ms")
            size_bytes += fetched.batch.header.size_bytes
            next_offset = fetched.next_offset
        return time.perf_counter() - started, size_bytes


def consume_lists(address: str, topic: str, limit_offset: int) -> float:
    """Fetch and decode to lists of values up to an offset, and return the seconds."""
    with Consumer(address) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        started = time.perf_counter()
        count = 0
        while count < limit_offset:
            fetched = consumer.poll_batch(POLL_TIMEOUT_MS)
            if fetched is None:
                raise RuntimeError(f"no batch of {topic} after {count} records within {POLL_TIMEOUT_MS} ms")
            count += len(fetched.values())
        return time.perf_counter() - started


async def latencies_ms(address: str, topic: str, value: bytes, count: int, rate: int) -> list[float]:
    """Send `count` records at `rate` per second. Return for each the milliseconds until the consumer had it."""
    async with lograft.aio.Producer(address, linger_ms=0) as producer, lograft.aio.Consumer(address) as consumer:
        await producer.send(topic, value, partition=0)
        await producer.flush()
        await consumer.assign([TopicPartition(topic, 0)])
        received = 0
        while received < 1:
            fetched = await consumer.poll_batch(POLL_TIMEOUT_MS)
            received += 0 if fetched is None else len(fetched.values())
        sent: list[float] = []
        latencies: list[float] = []

        async def receive() -> None:
            while len(latencies) < count:
                fetched = await consumer.poll_batch(POLL_TIMEOUT_MS)
                if fetched is None:
                    raise RuntimeError(f"no record within {POLL_TIMEOUT_MS} ms after {len(latencies)} of {count}")
                now = time.perf_counter()
                for _ in fetched.values():
                    latencies.append((now - sent[len(latencies)]) * 1e3)

        receiving = asyncio.create_task(receive())
        started = time.perf_counter()
        for index in range(count):
            delay = started + index / rate - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            sent.append(time.perf_counter())
            await producer.send(topic, value, partition=0)
        await receiving
        return latencies

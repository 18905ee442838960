# SPDX-License-Identifier: Apache-2.0
"""A client process of confluent-kafka (librdkafka) in `make bench-peers`: the tasks of `peers_lograft`, against Apache Kafka.

Producers are idempotent, with acks=all; everything else is as by default, except where a cell needs no linger. The consumer is tuned:
with its defaults librdkafka rests for a second whenever its queue is full, and reads half as fast. The module runs in an environment
of its own (`benchmarks.confluent_venv`), so confluent-kafka has no types here.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from benchmarks.peers_crowd_member import crowd_reads, crowd_sends
from benchmarks.peers_task import KEYS, VALUE_COUNT, Latencies, Meter, Pace, Sample, Task, do_task, values_of

confluent: Any = import_module("confluent_kafka")
administration: Any = import_module("confluent_kafka.admin")

ADMIN_TIMEOUT_S = 30.0
CREATE_TIMEOUT_S = 60.0
"""Brokers that have just started may not all be registered for so long."""
CREATE_RETRY_S = 0.5
FULL_WAIT_S = 0.01
"""How long a producer whose queue is full waits for room before it tries again."""
FULL_WAIT_OF_BATCH_S = 0.005
FLUSH_TIMEOUT_S = 120.0
POLL_TIMEOUT_S = 1.0
POLL_RECORDS_MAX = 10_000
NO_LINGER = {"linger.ms": 0}
FILLING = {"batch.size": 1_048_576, "linger.ms": 5}
"""The batches of topics that are read have the size of Lograft's."""
TUNED = {"queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 2}


def _producer(task: Task, settings: Mapping[str, object] | None = None) -> Any:
    given = {"bootstrap.servers": task.bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0}
    return confluent.Producer({**given, **(settings or {})})


def _consumer(task: Task, settings: Mapping[str, object] | None = None) -> Any:
    given = {"bootstrap.servers": task.bootstrap, "group.id": "peers", "enable.auto.commit": False, "log_level": 0}
    return confluent.Consumer({**given, **(settings or {})})


def _admin(task: Task) -> Any:
    return administration.AdminClient({"bootstrap.servers": task.bootstrap, "log_level": 0})


def create(task: Task) -> None:
    """Create a topic, and wait until each partition has its leader and all replicas in sync."""
    configs = {"flush.messages": "1"} if task.is_flushed else {}
    if task.replicas > 1:
        configs["min.insync.replicas"] = "2"
    admin = _admin(task)
    new = administration.NewTopic(task.topic, task.partitions, task.replicas, config=configs)
    patience = Pace(1 / CREATE_RETRY_S)
    attempts = int(CREATE_TIMEOUT_S / CREATE_RETRY_S)
    is_created = False
    for attempt in range(1, attempts + 1):
        try:
            if not is_created:
                admin.create_topics([new])[task.topic].result(ADMIN_TIMEOUT_S)
                is_created = True
            if _is_complete(admin, task):
                return
        except confluent.KafkaException as error:
            if attempt == attempts:
                raise
            is_created = error.args[0].code() == confluent.KafkaError.TOPIC_ALREADY_EXISTS
        patience.wait(attempt)
    raise TimeoutError(f"{task.topic} has not all replicas after {CREATE_TIMEOUT_S} s")


def _is_complete(admin: Any, task: Task) -> bool:
    found = admin.list_topics(task.topic, timeout=ADMIN_TIMEOUT_S).topics[task.topic]
    partitions = list(found.partitions.values())
    return (
        found.error is None
        and len(partitions) == task.partitions
        and all(each.leader >= 0 and len(each.isrs) == task.replicas for each in partitions)
    )


def delete(task: Task) -> None:
    """Delete a topic."""
    admin = _admin(task)
    admin.delete_topics([task.topic])[task.topic].result(ADMIN_TIMEOUT_S)


def fill(task: Task) -> None:
    """Write the records that are read afterwards, in batches of 1 MiB."""
    _send_batches(_producer(task, FILLING), task, task.records)


def send(task: Task) -> Sample:
    """One call of `produce` for each record, with a key."""
    producer, topic = _producer(task), task.topic
    values, keys = values_of(task.value_bytes), KEYS
    one = producer.produce

    def all_of(count: int) -> None:
        for index in range(count):
            which = index % VALUE_COUNT
            while True:
                try:
                    one(topic, values[which], keys[which])
                    break
                except BufferError:
                    producer.poll(FULL_WAIT_S)
            if not which:
                producer.poll(0)
        _flush(producer)

    return _produced(task, all_of)


def send_many(task: Task) -> Sample:
    """Lists of values, by `produce_batch`."""
    producer = _producer(task)
    return _produced(task, lambda count: _send_batches(producer, task, count))


def _send_batches(producer: Any, task: Task, count: int) -> None:
    values = values_of(task.value_bytes)
    for first in range(0, count, VALUE_COUNT):
        # The call marks its dictionaries where a record does not fit, so they are new each time.
        messages: list[dict[str, Any]] = [{"value": value} for value in values[: count - first]]
        while producer.produce_batch(task.topic, messages) < len(messages):
            producer.poll(FULL_WAIT_OF_BATCH_S)
            messages = [{"value": message["value"]} for message in messages if "_error" in message]
    _flush(producer)


def _flush(producer: Any) -> None:
    left = producer.flush(FLUSH_TIMEOUT_S)
    if left:
        raise TimeoutError(f"{left} records are not acknowledged after {FLUSH_TIMEOUT_S} s")


def _produced(task: Task, all_of: Callable[[int], None]) -> Sample:
    all_of(task.warm_up)
    with Meter(task.pids) as meter:
        all_of(task.records)
    wanted = dict.fromkeys(_partitions(task), administration.OffsetSpec.latest())
    admin = _admin(task)
    answers = admin.list_offsets(wanted).values()
    stored = sum(answer.result(ADMIN_TIMEOUT_S).offset for answer in answers)
    if stored != task.warm_up + task.records:
        raise RuntimeError(f"{stored} records in {task.topic} instead of {task.warm_up + task.records}")
    return meter.sample(task.records)


def consume(task: Task) -> Sample:
    """Records as objects, whose values are looked at: `consume` has nothing else."""
    consumer = _consumer(task, TUNED)
    count = size_bytes = 0
    with Meter(task.pids) as meter:
        consumer.assign(_partitions(task, offset=0))
        while count < task.records:
            messages = consumer.consume(POLL_RECORDS_MAX, POLL_TIMEOUT_S)
            for message in messages:
                size_bytes += len(message.value())
            count += len(messages)
    consumer.close()
    if size_bytes != count * task.value_bytes:
        raise RuntimeError(f"{size_bytes} bytes in {count} values of {task.value_bytes} bytes")
    return meter.sample(count)


def latency(task: Task) -> Sample:
    """From send to the value in hand: one thread sends, another one receives one record at a time, as `poll` gives them."""
    value = values_of(task.value_bytes)[0]
    producer, consumer = _producer(task, NO_LINGER), _consumer(task)
    producer.produce(task.topic, value, partition=0)
    _flush(producer)
    consumer.assign(_partitions(task, offset=0))
    if consumer.poll(ADMIN_TIMEOUT_S) is None:
        raise TimeoutError(f"no first record within {ADMIN_TIMEOUT_S} s")
    meter = Meter(task.pids)
    latencies = Latencies(meter, warm_up=task.paced_warm_up, records=task.records)

    def receive() -> None:
        while not latencies.is_complete:
            if consumer.poll(POLL_TIMEOUT_S) is not None:
                latencies.receive(1)

    with ThreadPoolExecutor(1) as executor:
        receiving = executor.submit(receive)
        pace = Pace(task.rate)
        for index in range(latencies.total):
            pace.wait(index)
            latencies.send()
            producer.produce(task.topic, value, partition=0)
            producer.poll(0)
        receiving.result()
    meter.stop()
    _flush(producer)
    consumer.close()
    return meter.sample(task.records, latencies.counted_ms)


def one_by_one(task: Task) -> Sample:
    """One record sent and waited for, again and again."""
    value, topic = values_of(task.value_bytes)[0], task.topic
    producer = _producer(task, NO_LINGER)
    latencies_ms: list[float] = []

    def one() -> None:
        producer.produce(topic, value)
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
    value, topic = values_of(task.value_bytes)[0], task.topic
    producer = _producer(task, NO_LINGER)

    def one() -> None:
        producer.produce(topic, value)
        producer.flush()

    crowd_sends(task, one)


def crowd_reader(task: Task) -> None:
    """A member of the crowd that waits for records that never come."""
    consumer = _consumer(task)
    consumer.assign([confluent.TopicPartition(task.topic, 0, 0)])
    crowd_reads(lambda: consumer.poll(POLL_TIMEOUT_S))


def versions(_task: Task) -> None:
    """Print the versions that matter."""
    print(
        json.dumps(
            {
                "Python": platform.python_version(),
                "confluent-kafka": confluent.version(),
                "librdkafka": confluent.libversion()[0],
            }
        )
    )


def _partitions(task: Task, **offset: int) -> list[Any]:
    return [confluent.TopicPartition(task.topic, number, **offset) for number in range(task.partitions)]


WORKS: Mapping[str, Callable[[Task], Sample | None]] = {
    "create": create,
    "delete": delete,
    "fill": fill,
    "send": send,
    "send_many": send_many,
    "poll": consume,
    "latency, blocking": latency,
    "one by one": one_by_one,
    "crowd writer": crowd_writer,
    "crowd reader": crowd_reader,
    "versions": versions,
}


if __name__ == "__main__":
    sys.exit(do_task(WORKS))

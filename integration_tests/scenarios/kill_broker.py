# SPDX-License-Identifier: Apache-2.0
"""`make kill-broker`: kill -9 of the broker under a producer with acks=all.

One voter, one broker, one idempotent producer that lives through all rounds. Every acknowledged record must be there once, at the
offset of its receipt; a record without an acknowledgement at most once. The end compares each partition with what the producer
noted: value by value and by checksum.

kill -9 keeps the page cache: this shows recovery, deduplication and resends, not power loss (the simulated disk shows that).
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c
from lograft import Admin, BatchReceipt, Consumer, Producer, TopicPartition

from integration_tests.harness.cluster import BROKER_ID_FIRST, START_TIMEOUT_S, Cluster
from integration_tests.harness.wait import wait_for

TOPIC = "kill"
PARTITION_COUNT = 3
RECORD_BYTES = 200
RECORDS_BEFORE_KILL = 2_000
DELIVERY_TIMEOUT_MS = 120_000
BUFFER_BYTES = 8 * 1024 * 1024
"""Bounds how long a record waits for those before it: on a slow machine a full buffer of 64 MiB took longer than the timeout."""
POLL_TIMEOUT_MS = 10_000
PROGRESS_TIMEOUT_S = 60.0


@dataclass(slots=True)
class History:
    """What was sent and acknowledged, by partition; written by the sending thread and by receipts."""

    sent: list[list[bytes]] = field(default_factory=lambda: [[] for _ in range(PARTITION_COUNT)])
    waiting: list[deque[bytes]] = field(default_factory=lambda: [deque[bytes]() for _ in range(PARTITION_COUNT)])
    acknowledged: list[dict[int, bytes]] = field(default_factory=lambda: [{} for _ in range(PARTITION_COUNT)])
    conflicts: list[str] = field(default_factory=list[str])
    acknowledged_count: int = 0
    duplicates: int = 0
    stopped: bool = False
    failure: BaseException | None = None

    def on_receipt(self, receipt: BatchReceipt) -> None:
        """Give the oldest unacknowledged records of the partition the offsets of the receipt."""
        waiting, acknowledged = self.waiting[receipt.partition], self.acknowledged[receipt.partition]
        for offset in range(receipt.base_offset, receipt.base_offset + receipt.record_count):
            if offset in acknowledged:
                self.conflicts.append(f"partition {receipt.partition}: offset {offset} acknowledged twice")
            acknowledged[offset] = waiting.popleft()
        self.duplicates += 1 if receipt.duplicate else 0
        self.acknowledged_count += receipt.record_count


def send_records(bootstrap: str, history: History, seed: int) -> None:
    """Send records to all partitions in turn until told to stop."""
    rng = random.Random(seed)
    try:
        with Producer(
            bootstrap, acks="all", linger_ms=2, batch_bytes=16_384, buffer_bytes=BUFFER_BYTES,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS, on_batch=history.on_receipt,
        ) as producer:  # fmt: skip
            number = 0
            while not history.stopped:
                for partition in range(PARTITION_COUNT):
                    value = b"%012d:" % number + rng.randbytes(RECORD_BYTES)
                    history.sent[partition].append(value)
                    history.waiting[partition].append(value)
                    producer.send(TOPIC, value, partition=partition)
                    number += 1
                if number % 300 == 0:
                    threading.Event().wait(0.002)
            producer.flush()
    except BaseException as error:
        history.failure = error
        raise


def acknowledged_more(history: History, count: int) -> bool:
    """True when `count` records are acknowledged; raises what the sending thread raised."""
    if history.failure is not None:
        raise history.failure
    return history.acknowledged_count >= count


def read_all(bootstrap: str, partition: int) -> list[tuple[int, bytes]]:
    """Return (offset, value) of every record of the partition."""
    tp = TopicPartition(TOPIC, partition)
    found: list[tuple[int, bytes]] = []
    with Consumer(bootstrap) as consumer:
        end = consumer.end_offsets([tp])[tp]
        consumer.assign([tp])
        while consumer.position(tp) < end:
            records = consumer.poll(10_000, POLL_TIMEOUT_MS)
            found += [(record.offset, record.value or b"") for record in records]
    return found


def compare(history: History, partition: int, found: list[tuple[int, bytes]]) -> list[str]:
    """Return what is wrong with a partition: lost, moved, repeated, foreign or reordered records."""
    problems: list[str] = []
    at_offset = dict(found)
    for offset, value in history.acknowledged[partition].items():
        if at_offset.get(offset) != value:
            problems.append(f"partition {partition}: acknowledged record at offset {offset} is not there")
    values = [value for _, value in found]
    if len(set(values)) != len(values):
        problems.append(f"partition {partition}: {len(values) - len(set(values))} records are there twice")
    sent = history.sent[partition]
    if values != sent[: len(values)]:
        problems.append(f"partition {partition}: the records are not those sent, in order")
    expected = checksum([history.acknowledged[partition][o] for o in sorted(history.acknowledged[partition])])
    acknowledged_there = [value for offset, value in found if offset in history.acknowledged[partition]]
    if checksum(acknowledged_there) != expected:
        problems.append(f"partition {partition}: checksum of the acknowledged records differs")
    return problems


def checksum(values: list[bytes]) -> int:
    """CRC-32C over all values in order."""
    state = 0
    for value in values:
        state = crc32c(value, state)
    return state


def run(directory: Path, rounds: int, seed: int) -> tuple[History, list[str], list[float]]:
    """Kill and restart the broker `rounds` times under load; return the history, the problems and the restart times."""
    history = History()
    rng = random.Random(seed)
    recoveries_s: list[float] = []
    with Cluster(directory, voter_count=1, broker_count=1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partition_count=PARTITION_COUNT, configs={"segment.bytes": str(1024 * 1024)})
        broker = cluster.brokers[BROKER_ID_FIRST]
        sending = threading.Thread(target=send_records, args=(cluster.bootstrap, history, seed), daemon=True)
        sending.start()
        for _ in range(rounds):
            goal = history.acknowledged_count + RECORDS_BEFORE_KILL + rng.randrange(RECORDS_BEFORE_KILL)
            wait_for(lambda goal=goal: acknowledged_more(history, goal), timeout_s=PROGRESS_TIMEOUT_S, what="receipts")
            broker.kill()
            killed_s = time.monotonic()
            before = history.acknowledged_count
            broker.start()
            wait_for(
                lambda before=before: acknowledged_more(history, before + 1),
                timeout_s=START_TIMEOUT_S,
                what="receipts after a restart",
            )
            recoveries_s.append(time.monotonic() - killed_s)
        history.stopped = True
        sending.join()
        if history.failure is not None:
            raise history.failure
        problems = list(history.conflicts)
        for partition in range(PARTITION_COUNT):
            problems += compare(history, partition, read_all(cluster.bootstrap, partition))
    return history, problems, recoveries_s


def main() -> int:
    """Print the summary; 1 when a record is lost, moved or repeated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lograft-kill-broker-") as name:
        history, problems, recoveries_s = run(Path(name), arguments.rounds, arguments.seed)
    recoveries_s.sort()
    print(
        f"{arguments.rounds} rounds, {history.acknowledged_count} records acknowledged, {history.duplicates} batches deduplicated; "
        f"kill to next receipt p50 {recoveries_s[len(recoveries_s) // 2]:.2f} s, max {recoveries_s[-1]:.2f} s; "
        f"{len(problems)} problems"
    )
    for problem in problems[:20]:
        print(f"PROBLEM {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

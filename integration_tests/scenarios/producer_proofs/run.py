# SPDX-License-Identifier: Apache-2.0
"""`make producer-proofs KILLS=50`: producers with eight batches in flight through kills of leaders.

    python -m integration_tests.scenarios.producer_proofs.run --kills 50

Exit status: 0 passed; 1 a record is lost, doubled or out of order, a handle has no result, or memory grows.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from lograft import Admin, Consumer, TopicPartition

from integration_tests.harness.background import Repeated
from integration_tests.harness.cluster import Cluster
from integration_tests.harness.load.readers import read_to_end
from integration_tests.harness.metadata import are_in_sync, partitions_of
from integration_tests.harness.outcome import Outcome, median_and_max, run_in_directory
from integration_tests.harness.wait import wait_for
from integration_tests.scenarios.producer_proofs.senders import (
    BATCH_BYTES,
    BUFFER_BYTES,
    MAX_IN_FLIGHT,
    AioSender,
    BlockingSender,
)
from integration_tests.scenarios.producer_proofs.sent import LoggedRecord, Sent

BROKERS = 3
REPLICAS = 3
PARTITIONS = 6
KEYS = 40
DOUBLE_EVERY = 5
"""Every so-manyth round kills the next leader as well."""
TOPIC_TIMEOUT_MS = 60_000
FULL_TIMEOUT_S = 60.0
HEAL_TIMEOUT_S = 240.0
CHECK_INTERVAL_S = 0.05
FULL_CHECK_INTERVAL_S = 0.001
READ_TIMEOUT_S = 600.0
MEMORY_INTERVAL_S = 1.0
GROWTH_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes by which the process of the producers may grow after the first kill."""
WAITING_BYTES_MAX = BUFFER_BYTES * 5 // 4
"""Most bytes of records without a result. The proof notes a result a moment after the producer has freed the record."""
FULL_BYTES = MAX_IN_FLIGHT * BATCH_BYTES * 3 // 4
"""Bytes without a result in a partition that fill its pipeline: batches are not quite full."""


@dataclass(slots=True, kw_only=True)
class Proof:
    """The cluster, both producers, and what a round needs."""

    cluster: Cluster
    admin: Admin
    senders: dict[str, BlockingSender | AioSender]
    sent: dict[str, Sent]
    rng: random.Random
    failovers_s: list[float] = field(default_factory=list[float])
    waiting_bytes: list[int] = field(default_factory=list[int])

    def check(self) -> None:
        """Raise the error that ended a producer, if any."""
        for sender in self.senders.values():
            sender.check()

    def leader(self, topic: str, partition: int, *, but: int | None = None) -> int:
        """Wait for the leader of a partition that is another broker than `but`."""

        def found() -> int | None:
            self.check()
            partitions = partitions_of(self.admin, topic)
            leader_id = None if partitions is None else partitions[partition].leader_id
            return None if leader_id in (None, but) else leader_id

        return wait_for(
            found, timeout_s=HEAL_TIMEOUT_S, what=f"a leader of {topic}-{partition}", interval_s=CHECK_INTERVAL_S
        )

    def wait_full(self, topic: str, partition: int) -> None:
        """Wait until the pipeline of a partition is full."""
        sent = self.sent[topic]

        def is_full() -> bool:
            self.check()
            return sent.waiting_in(partition) >= FULL_BYTES

        wait_for(is_full, timeout_s=FULL_TIMEOUT_S, what="a full pipeline", interval_s=FULL_CHECK_INTERVAL_S)

    def wait_in_sync(self) -> None:
        """Wait until all replicas are in sync."""

        def is_whole() -> bool:
            self.check()
            found = [partitions_of(self.admin, topic) for topic in self.sent]
            return all(each is not None and are_in_sync(each) for each in found)

        wait_for(is_whole, timeout_s=HEAL_TIMEOUT_S, what="all replicas in sync", interval_s=CHECK_INTERVAL_S)

    def wait_resolved(self, marks: dict[str, list[int]]) -> None:
        """Wait until everything sent before the marks has a result."""

        def are_resolved() -> bool:
            self.check()
            return all(sent.are_resolved(marks[topic]) for topic, sent in self.sent.items())

        wait_for(are_resolved, timeout_s=HEAL_TIMEOUT_S, what="results", interval_s=CHECK_INTERVAL_S)

    def kill_round(self, number: int) -> str:
        """Kill a leader whose pipeline is full, in some rounds the next one too, and start them again."""
        topic = list(self.sent)[number % len(self.sent)]
        partition = self.rng.randrange(PARTITIONS)
        broker_id = self.leader(topic, partition)
        self.wait_full(topic, partition)
        self.cluster.brokers[broker_id].kill()
        killed_s, marks = time.monotonic(), {name: sent.marks() for name, sent in self.sent.items()}
        self.waiting_bytes.append(self.sent[topic].waiting_in(partition))
        killed = [broker_id]
        next_id = self.leader(topic, partition, but=broker_id)
        led_s = time.monotonic()
        if number % DOUBLE_EVERY == DOUBLE_EVERY - 1:
            # Two of three replicas are needed, so the partitions wait for a restart.
            self.cluster.brokers[next_id].kill()
            killed.append(next_id)
            self.cluster.brokers[broker_id].start()
        wait_for(
            lambda: self.sent[topic].resolved_after(partition, led_s),
            timeout_s=HEAL_TIMEOUT_S,
            what="an acknowledgement from the next leader",
            interval_s=FULL_CHECK_INTERVAL_S,
        )
        took_s = time.monotonic() - killed_s
        if len(killed) == 1:
            self.failovers_s.append(took_s)
        self.wait_resolved(marks)
        for each in killed:
            if not self.cluster.brokers[each].running:
                self.cluster.brokers[each].start()
        self.wait_in_sync()
        return f"{topic}-{partition}: killed {killed} with {self.waiting_bytes[-1]} bytes under way, {took_s:.2f} s"


def prove(directory: Path, *, kills: int, seed: int) -> Outcome:
    """Kill leaders `kills` times under both producers, and judge the logs and handles."""
    outcome = Outcome(proof="producer-proofs", figures={"kills": kills, "seed": seed})
    cluster = Cluster(directory, voter_count=1, broker_count=BROKERS)
    memory = psutil.Process().memory_info
    with cluster, Admin(cluster.bootstrap, request_timeout_ms=TOPIC_TIMEOUT_MS) as admin:
        topics = ("blocking", "aio")
        for topic in topics:
            admin.create_topic(
                topic,
                partition_count=PARTITIONS,
                replication_factor=REPLICAS,
                configs={"min.insync.replicas": str(REPLICAS - 1)},
            )
        sent = {topic: Sent(topic, keys=KEYS, partition_count=PARTITIONS) for topic in topics}
        senders: dict[str, BlockingSender | AioSender] = {
            topic: kind(cluster.bootstrap, topic, sent[topic], keys=KEYS, seed=seed + number)
            for number, (topic, kind) in enumerate(zip(topics, (BlockingSender, AioSender), strict=True))
        }
        proof = Proof(cluster=cluster, admin=admin, senders=senders, sent=sent, rng=random.Random(seed))
        rss_bytes: list[int] = []
        watch = Repeated("memory", lambda: rss_bytes.append(memory().rss), MEMORY_INTERVAL_S)
        try:
            for sender in senders.values():
                sender.start()
            proof.wait_in_sync()
            for number in range(kills):
                if number == 1:
                    # The first round has loaded everything and filled the buffers once.
                    rss_bytes.append(memory().rss)
                    watch.start()
                print(f"  kill {number + 1:3d}: {proof.kill_round(number)}", flush=True)
        finally:
            watch.ask_to_stop()
            for sender in senders.values():
                sender.ask_to_stop()
        for sender in senders.values():
            sender.join()
        growth_bytes = max(rss_bytes) - rss_bytes[0] if rss_bytes else 0
        for topic, each in sent.items():
            outcome.problems += each.compare(read_topic(cluster.bootstrap, topic))
            outcome.figures[f"{topic}_records"] = each.sent_count
            outcome.figures[f"{topic}_waiting_bytes_max"] = each.waiting_bytes_max
            if each.waiting_bytes_max > WAITING_BYTES_MAX:
                outcome.problems.append(f"{topic}: {each.waiting_bytes_max} bytes waited, over {WAITING_BYTES_MAX}")
    outcome.figures |= median_and_max("kill_to_receipt", proof.failovers_s)
    outcome.figures |= {
        "waiting_at_kill_min_bytes": min(proof.waiting_bytes, default=0),
        "memory_growth_mib": round(growth_bytes / 1024 / 1024, 1),
    }
    if growth_bytes > GROWTH_BYTES_MAX:
        outcome.problems.append(f"the process grew by {growth_bytes} bytes, over {GROWTH_BYTES_MAX}")
    return outcome


def read_topic(bootstrap: str, topic: str) -> Iterator[LoggedRecord]:
    """Yield all records of a topic, each partition in the order of its offsets."""
    for number in range(PARTITIONS):
        with Consumer(bootstrap) as consumer:
            records, _ = read_to_end(consumer, [TopicPartition(topic, number)], time.monotonic() + READ_TIMEOUT_S)
        for record in records:
            yield LoggedRecord(record.partition, record.offset, record.key, record.value)


def main() -> int:
    """Run the command line and print the outcome."""
    parser = argparse.ArgumentParser(description="producers with full pipelines through kills of leaders")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    outcome = run_in_directory(
        "producer-proofs", lambda directory: prove(directory, kills=arguments.kills, seed=arguments.seed)
    )
    outcome.print()
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())

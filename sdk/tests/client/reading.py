# SPDX-License-Identifier: Apache-2.0
"""Reads whole topics, for tests."""

from __future__ import annotations

from lograft import Consumer, ConsumerRecord, TopicPartition

DEADLINE_MS = 20_000
"""Milliseconds after which a test that waits for records has failed."""


def read_all(bootstrap: str, topic: str, partition_count: int = 1) -> list[ConsumerRecord]:
    """Return all readable records, partition by partition in offset order."""
    tps = [TopicPartition(topic, number) for number in range(partition_count)]
    with Consumer(bootstrap) as consumer:
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        found: list[ConsumerRecord] = []
        while any(consumer.position(tp) < ends[tp] for tp in tps):
            records = consumer.poll(10_000, timeout_ms=DEADLINE_MS)
            assert records, "nothing came"
            found += records
    return sorted(found, key=lambda record: (record.partition, record.offset))

# SPDX-License-Identifier: Apache-2.0
"""Brokers that die and come back while clients use them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from lograft import Admin, BatchReceipt, Consumer, Producer, TopicPartition
from tests.client.processes import DevProcess
from tests.client.reading import DEADLINE_MS, read_all

pytestmark = pytest.mark.process

PARTITIONS = 3


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_nothing_is_lost_or_doubled_when_the_broker_restarts_under_a_producer(tmp_path: Path, how: str) -> None:
    """Two kills (or stops) of the broker lose nothing: each record is there once, in order, at the offset of its receipt."""
    receipts: list[BatchReceipt] = []
    acknowledged = threading.Semaphore(0)

    def note(receipt: BatchReceipt) -> None:
        receipts.append(receipt)
        acknowledged.release()

    with DevProcess(tmp_path / "data") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("topic", partition_count=PARTITIONS)
        with Producer(broker.bootstrap, batch_bytes=2_048, linger_ms=1, on_batch=note) as producer:
            number = 0
            for _ in range(2):
                before = len(receipts)
                while len(receipts) < before + 50:
                    for _ in range(100):
                        producer.send("topic", b"%d" % number, key=b"k%d" % (number % 10))
                        number += 1
                    assert acknowledged.acquire(timeout=DEADLINE_MS / 1000)
                # Batches are under way now. Some are in the log, but their receipts have not arrived.
                getattr(broker, how)()
                for _ in range(2_000):
                    producer.send("topic", b"%d" % number, key=b"k%d" % (number % 10))
                    number += 1
                broker.start()
            producer.flush(timeout_ms=60_000)
        records = read_all(broker.bootstrap, "topic", PARTITIONS)
    assert len(records) == number
    for digit in range(10):
        mine = [int(record.value or b"") for record in records if record.key == b"k%d" % digit]
        assert mine == list(range(digit, number, 10))
    ranges = sorted((receipt.partition, receipt.base_offset or 0, receipt.record_count) for receipt in receipts)
    assert all(receipt.error is None for receipt in receipts)
    for partition in range(PARTITIONS):
        offset = 0
        for _, base_offset, count in (each for each in ranges if each[0] == partition):
            assert base_offset == offset
            offset += count


def test_consumer_goes_on_where_it_was_when_the_broker_restarts(tmp_path: Path) -> None:
    """A consumer gets every record once over two restarts of the broker, without any extra call."""
    tp = TopicPartition("topic", 0)
    with DevProcess(tmp_path / "data") as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("topic")
        seen: list[bytes | None] = []
        with Producer(broker.bootstrap, linger_ms=0) as producer, Consumer(broker.bootstrap) as consumer:
            consumer.assign([tp])
            for start in (0, 100, 200):
                for number in range(start, start + 100):
                    producer.send("topic", b"%d" % number)
                producer.flush(timeout_ms=60_000)
                while len(seen) < start + 100:
                    records = consumer.poll(30, timeout_ms=DEADLINE_MS)
                    assert records, f"only {len(seen)} came"
                    seen += [record.value for record in records]
                if start < 200:
                    broker.kill()
                    broker.start()
    assert seen == [b"%d" % number for number in range(300)]

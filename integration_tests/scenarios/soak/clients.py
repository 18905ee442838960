# SPDX-License-Identifier: Apache-2.0
"""The producer of a soak, which sends as fast as it can, and the consumer, which reads along and checks.

Owns their threads. Retention removes old records whether they were read or not. So the producer waits while the consumer is too far
behind, and the time of these waits is reported.
"""

from __future__ import annotations

import time

from lograft import BatchReceipt, Consumer, Producer, TopicPartition

from integration_tests.harness.background import Background
from integration_tests.scenarios.soak.ledger import Ledger

CHUNK_RECORDS = 100
"""Records that are given to the producer at once."""
BUFFER_BYTES = 8 * 1024 * 1024
"""Buffer of the producer. Records wait in it too."""
HELD_CHECK_S = 0.005
POLL_TIMEOUT_MS = 200
FLUSH_TIMEOUT_MS = 120_000
JOIN_TIMEOUT_S = 180.0


class Clients:
    """One producer and one consumer, from `start` to `stop`.

    Args:
        bootstrap: addresses of brokers.
        topic: a topic without records.
        ledger: gets all results.
        unread_records_max: maximum records of a partition that are acknowledged and not yet read.
    """

    def __init__(self, bootstrap: str, topic: str, ledger: Ledger, *, unread_records_max: int) -> None:
        self.held_s = 0.0
        self.duplicate_batches = 0
        self._bootstrap, self._topic, self._ledger = bootstrap, topic, ledger
        self._unread_records_max = unread_records_max
        self._sending = Background("sender", self._send, join_timeout_s=JOIN_TIMEOUT_S)
        self._reading = Background("reader", self._read, join_timeout_s=JOIN_TIMEOUT_S)

    def start(self) -> None:
        """Begin to send and to read."""
        self._reading.start()
        self._sending.start()

    @property
    def are_well(self) -> bool:
        """False after one of them has ended by itself."""
        return self._sending.is_alive and self._reading.is_alive

    def stop(self) -> None:
        """Stop sending, wait until everything is acknowledged and read, and end."""
        for thread in (self._sending, self._reading):
            try:
                thread.join()
            except (TimeoutError, RuntimeError) as error:
                self._ledger.note(f"{error}: {thread.broken!r}")

    def _send(self) -> None:
        ledger = self._ledger
        numbers = range(len(ledger.partitions))
        with Producer(self._bootstrap, acks="all", buffer_bytes=BUFFER_BYTES, on_batch=self._on_batch) as producer:
            while not self._sending.stopping.is_set():
                for partition in numbers:
                    if ledger.unread(partition) < self._unread_records_max:
                        values = ledger.send(partition, CHUNK_RECORDS, time.monotonic())
                        producer.send_many(self._topic, values, partition=partition)
                if any(ledger.unread(partition) >= self._unread_records_max for partition in numbers):
                    self._sending.stopping.wait(HELD_CHECK_S)
                    self.held_s += HELD_CHECK_S
            producer.flush(FLUSH_TIMEOUT_MS)

    def _on_batch(self, receipt: BatchReceipt) -> None:
        if receipt.error is not None or receipt.base_offset is None:
            text = f"{receipt.record_count} records were not acknowledged: {receipt.error!r}"
            self._ledger.note(f"partition {receipt.partition}: {text}")
            return
        self.duplicate_batches += receipt.duplicate
        self._ledger.take_receipt(receipt.partition, receipt.base_offset, receipt.record_count, time.monotonic())

    def _read(self) -> None:
        ledger = self._ledger
        with Consumer(self._bootstrap) as consumer:
            consumer.assign(
                [TopicPartition(self._topic, number) for number in range(len(ledger.partitions))], start="earliest"
            )
            give_up_s = None
            while not (self._reading.stopping.is_set() and ledger.is_all_read):
                if self._reading.stopping.is_set():
                    give_up_s = give_up_s or time.monotonic() + JOIN_TIMEOUT_S / 2
                    if time.monotonic() > give_up_s:
                        return
                batch = consumer.poll_batch(POLL_TIMEOUT_MS)
                if batch is not None:
                    ledger.take_read(batch.partition, batch.base_offset, batch.values())

# SPDX-License-Identifier: Apache-2.0
"""The producer of a group proof, and the questions about committed offsets. Both write into journals.

Owns their threads. Record n of a partition says so in its value, and must get offset n: only this producer sends to the topic, and each
record is in the log once.
"""

from __future__ import annotations

import time
from pathlib import Path

from lograft import BatchReceipt, Consumer, Producer, TopicPartition
from lograft.errors import LograftError

from integration_tests.harness.background import Background, Repeated
from integration_tests.harness.load.pace import Pace
from integration_tests.harness.load.times import quantile
from integration_tests.harness.load.values import encode_value
from integration_tests.scenarios.group_proofs.journal import Journal, Kind
from integration_tests.scenarios.group_proofs.member import GROUP, TOPIC, value_of

LINGER_MS = 2
DELIVERY_TIMEOUT_MS = 120_000
CLOSE_TIMEOUT_MS = 120_000
JOIN_TIMEOUT_S = 180.0
ASK_INTERVAL_S = 1.0
ASK_TIMEOUT_MS = 20_000


class Load(Background):
    """Sends records to all partitions in turn, at a steady pace, until it is stopped.

    Attributes:
        sent: number of records sent to each partition, which is the offset of the next one.
        acknowledged: number of records acknowledged in each partition.
        problems: records that failed or got another offset.
    """

    def __init__(
        self, bootstrap: str, directory: Path, *, partition_count: int, rate_per_s: float, value_bytes: int
    ) -> None:
        super().__init__("the load", self._produce, join_timeout_s=JOIN_TIMEOUT_S)
        self.sent = [0] * partition_count
        self.acknowledged = [0] * partition_count
        self.problems: list[str] = []
        self._bootstrap = bootstrap
        self._journal = Journal(directory, "load")
        self._pace = Pace(rate_per_s)
        self._value_bytes = value_bytes
        self._lateness_s: list[float] = []
        self._turn = 0

    @property
    def tick_late_p99_s(self) -> float:
        """Seconds by which a tick of the load's own clock comes too late, p99: how busy the machine is."""
        return quantile(sorted(self._lateness_s), 0.99)

    def _produce(self) -> None:
        pace = self._pace
        with Producer(
            self._bootstrap,
            linger_ms=LINGER_MS,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            on_batch=self._on_batch,
        ) as producer:
            pace.start(time.monotonic())
            while not self.stopping.wait(max(0.0, pace.next_s - time.monotonic())):
                now_s = time.monotonic()
                self._lateness_s.append(max(0.0, now_s - pace.next_s))
                before = len(pace.standstills)
                for _ in range(pace.due(now_s)):
                    partition = self._turn % len(self.sent)
                    self._turn += 1
                    value = encode_value(value_of(partition, self.sent[partition]), self._value_bytes)
                    self.sent[partition] += 1
                    producer.send(TOPIC, value, partition=partition)
                for began_s, ended_s in pace.standstills[before:]:
                    self._journal.write(Kind.STANDSTILL, int(ended_s * 1e9), began_ns=int(began_s * 1e9))
                pace.rest(time.monotonic())
            producer.flush(CLOSE_TIMEOUT_MS)

    def _on_batch(self, receipt: BatchReceipt) -> None:
        time_ns = time.monotonic_ns()
        expected = self.acknowledged[receipt.partition]
        if receipt.error is not None or receipt.base_offset != expected:
            self.problems.append(f"{receipt.partition}: a batch is not at {expected}: {receipt}")
            return
        self.acknowledged[receipt.partition] += receipt.record_count
        self._journal.write(
            Kind.ACKED, time_ns, partition=receipt.partition, base=receipt.base_offset, count=receipt.record_count
        )


class Questions(Repeated):
    """Asks once a second for all committed offsets of the group.

    Attributes:
        committed: the last answer, by partition.
        unanswered: questions without an answer.
    """

    def __init__(self, bootstrap: str, directory: Path, *, partition_count: int) -> None:
        super().__init__("the questions", self.ask, ASK_INTERVAL_S)
        self.committed: dict[int, int] = {}
        self.unanswered = 0
        self._tps = [TopicPartition(TOPIC, number) for number in range(partition_count)]
        self._journal = Journal(directory, "questions")
        self._consumer = Consumer(bootstrap, group=GROUP, request_timeout_ms=ASK_TIMEOUT_MS)

    def ask(self) -> None:
        """Ask once."""
        self._journal.write(Kind.ASKING)
        try:
            found = self._consumer.committed(self._tps)
        except LograftError:
            self.unanswered += 1
            return
        offsets = {tp.partition: 0 if each is None else each.offset for tp, each in found.items()}
        self._journal.write(Kind.TOLD, offsets=offsets)
        self.committed = offsets

    def close(self) -> None:
        """Stop asking."""
        self.join()
        self._consumer.close()

# SPDX-License-Identifier: Apache-2.0
"""Producers at a steady pace: each value is sent once, and its result goes into the history when it is known.

Owns one thread and one idempotent `lograft.Producer` (acks=all) for each sender, the times of acknowledgements of each partition, and
the detection of process pauses. While a partition has too much under way, due values are held back and counted.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from typing import NamedTuple

from lograft import BatchReceipt, Producer
from lograft.errors import DeliveryError, LograftError
from lograft.wire.codes import ErrorCode

from integration_tests.harness.background import Background
from integration_tests.harness.history.events import HistoryFile, Kind, Type
from integration_tests.harness.load.pace import Pace
from integration_tests.harness.load.times import Span, Wait, gaps_s
from integration_tests.harness.load.values import encode_value

DEFINITE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC,
        ErrorCode.UNKNOWN_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.CORRUPT_BATCH,
        ErrorCode.INVALID_BATCH,
        ErrorCode.UNSUPPORTED_FORMAT,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_ACKS,
        ErrorCode.WRONG_CLUSTER,
    }
)
"""Errors that certainly came before any append."""
WAITING_MAX = 1_000
"""Maximum values of one sender and partition without a known result; further ones are held back."""
LINGER_MS = 2
CLOSE_TIMEOUT_MS = 60_000
JOIN_TIMEOUT_S = 90.0


def outcome_of(receipt: BatchReceipt) -> Type:
    """Return what the result of a batch means for each of its values. In doubt it is unknown."""
    if receipt.error is None:
        return Type.OK
    return Type.FAIL if receipt.error.code in DEFINITE else Type.INFO


class Acknowledgements:
    """Monotonic times of acknowledgements by partition. Receipts append to it; any thread may read it.

    Attributes:
        times_s: when each batch was acknowledged, by partition.
        waits: how long each acknowledged value waited, in the order of the receipts.
    """

    def __init__(self, partition_count: int) -> None:
        self.times_s: list[list[float]] = [[] for _ in range(partition_count)]
        self.waits: list[Wait] = []

    @property
    def count(self) -> int:
        """Return the number of receipts so far."""
        return sum(map(len, self.times_s))

    def is_newer(self, partition: int, after_s: float) -> bool:
        """Return True if a partition has an acknowledgement after a given time."""
        times = self.times_s[partition]
        return bool(times) and times[-1] > after_s

    def longest_gap_s(self, partition: int, start_s: float, end_s: float) -> float:
        """Return the longest time without an acknowledgement in a partition that touches the given span."""
        return max(self.gaps_s(partition, start_s, end_s))

    def gaps_s(self, partition: int, start_s: float, end_s: float) -> list[float]:
        """Return the times between acknowledgements that touch the span, from the last one before it to its end."""
        return gaps_s(self.times_s[partition], start_s, end_s)


class Acknowledged(NamedTuple):
    """The last acknowledged value of a partition: the monotonic time of its `send()`, and its offset."""

    sent_s: float
    offset: int


class Sender(Background):
    """Sends to all partitions in turn until stopped.

    Args:
        bootstrap: addresses of brokers.
        name: process in the history; values are `name:number`.
        topic: topic to send to.
        partitions: partitions of the topic to send to.
        rate_per_s: values per second, all partitions together.
        delivery_timeout_ms: delivery timeout of the producer.
        history: gets every send.
        acknowledgements: gets every receipt.
        value_bytes: size of each value; 0: as short as possible.
        first: index of the first partition. Senders in step would all send to the same partition at the same time.

    Attributes:
        latest: last acknowledged value by partition; written by the SDK's thread.
    """

    def __init__(
        self,
        bootstrap: str,
        name: str,
        *,
        topic: str,
        partitions: list[int],
        rate_per_s: float,
        delivery_timeout_ms: int,
        history: HistoryFile,
        acknowledgements: Acknowledgements | None = None,
        value_bytes: int = 0,
        first: int = 0,
    ) -> None:
        super().__init__(name, self._produce, join_timeout_s=JOIN_TIMEOUT_S)
        self.latest: dict[int, Acknowledged] = {}
        self.failures: Counter[str] = Counter()
        self.acknowledged_count = 0
        self.duplicate_batches = 0
        self.held_back = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = [*partitions[first:], *partitions[:first]]
        self._pace = Pace(rate_per_s)
        self._delivery_timeout_ms = delivery_timeout_ms
        self._history = history
        self._acknowledgements = acknowledgements
        self._value_bytes = value_bytes
        # Operation and time of `send()` of each value without a known result, in the order of sending.
        self._waiting: dict[int, deque[tuple[int, float]]] = {partition: deque() for partition in partitions}
        self._number = 0

    @property
    def standstills(self) -> list[Span]:
        """Spans in which this process did not run."""
        return self._pace.standstills

    # -- in the thread of the sender

    def _produce(self) -> None:
        """Send until asked to stop, and wait for the results of everything under way."""
        producer = Producer(
            self._bootstrap,
            acks="all",
            linger_ms=LINGER_MS,
            delivery_timeout_ms=self._delivery_timeout_ms,
            on_batch=self._on_batch,
        )
        try:
            self._send_at_pace(producer)
        finally:
            self._close(producer)

    def _send_at_pace(self, producer: Producer) -> None:
        pace = self._pace
        pace.start(time.monotonic())
        while not self.stopping.wait(max(0.0, pace.next_s - time.monotonic())):
            for _ in range(pace.due(time.monotonic())):
                self._send(producer)
            pace.rest(time.monotonic())

    def _send(self, producer: Producer) -> None:
        partition = self._partitions[self._number % len(self._partitions)]
        value = f"{self.name}:{self._number}"
        self._number += 1
        waiting = self._waiting[partition]
        if len(waiting) >= WAITING_MAX:
            self.held_back += 1
            return
        op = self._history.begin(self.name, Kind.SEND, partition=f"{self._topic}-{partition}", values=[value])
        waiting.append((op, time.monotonic()))
        try:
            producer.send(self._topic, encode_value(value, self._value_bytes), partition=partition)
        except LograftError as error:
            # The producer did not accept the value.
            waiting.pop()
            self.failures[f"{type(error).__name__}: {error.code.name}"] += 1
            self._history.end(op, self.name, Type.FAIL, Kind.SEND, text=str(error))

    def _close(self, producer: Producer) -> None:
        # `_on_batch` has already been told about each failed batch.
        with contextlib.suppress(DeliveryError):
            producer.close(CLOSE_TIMEOUT_MS)

    # -- in the thread of the SDK

    def _on_batch(self, receipt: BatchReceipt) -> None:
        """Assign a result to the oldest waiting values of the partition: results come in the order of sending."""
        try:
            self._take(receipt)
        except BaseException as error:
            self.broken = error

    def _take(self, receipt: BatchReceipt) -> None:
        waiting = self._waiting[receipt.partition]
        error = receipt.error
        if error is None:
            assert receipt.base_offset is not None, "an acknowledged batch has an offset"
            self.duplicate_batches += receipt.duplicate
            now_s = time.monotonic()
            acknowledgements = self._acknowledgements
            for offset in range(receipt.base_offset, receipt.base_offset + receipt.record_count):
                op, sent_s = waiting.popleft()
                self.latest[receipt.partition] = Acknowledged(sent_s, offset)
                self._history.end(op, self.name, Type.OK, Kind.SEND, offsets=[offset])
                if acknowledgements is not None:
                    acknowledgements.waits.append(Wait(receipt.partition, sent_s, now_s))
            self.acknowledged_count += receipt.record_count
            if acknowledgements is not None:
                acknowledgements.times_s[receipt.partition].append(now_s)
            return
        self.failures[f"{type(error).__name__}: {error.code.name}"] += receipt.record_count
        outcome = outcome_of(receipt)
        for _ in range(receipt.record_count):
            op, _ = waiting.popleft()
            self._history.end(op, self.name, outcome, Kind.SEND, text=str(error))

# SPDX-License-Identifier: Apache-2.0
"""Producers at a steady pace: every value is sent once, and its fate goes into the history as it becomes known.

Owns one thread and one idempotent `lograft.Producer` (acks=all) for each sender, the times of acknowledgements of each
partition, and the noticing of standstills. What is due while a partition has too much under way is held back and counted.
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
"""Refusals before anything was appended."""
WAITING_MAX = 1_000
"""Values of one sender and partition without a known fate; more are held back."""
LINGER_MS = 2
CLOSE_TIMEOUT_MS = 60_000
JOIN_TIMEOUT_S = 90.0


def outcome_of(receipt: BatchReceipt) -> Type:
    """What the fate of a batch says of each of its values. When in doubt: unknown."""
    if receipt.error is None:
        return Type.OK
    return Type.FAIL if receipt.error.code in DEFINITE else Type.INFO


class Acknowledgements:
    """Times of acknowledgements by partition, of the monotonic clock; appended to by receipts, read by anybody.

    Attributes:
        times_s: when each batch was acknowledged, by partition.
        waits: how long each acknowledged value waited, in the order of the receipts.
    """

    def __init__(self, partition_count: int) -> None:
        self.times_s: list[list[float]] = [[] for _ in range(partition_count)]
        self.waits: list[Wait] = []

    @property
    def count(self) -> int:
        """Receipts so far."""
        return sum(map(len, self.times_s))

    def is_newer(self, partition: int, after_s: float) -> bool:
        """Whether something was acknowledged in a partition after a time."""
        times = self.times_s[partition]
        return bool(times) and times[-1] > after_s

    def longest_gap_s(self, partition: int, start_s: float, end_s: float) -> float:
        """Longest time without an acknowledgement in a partition that touches the given span."""
        return max(self.gaps_s(partition, start_s, end_s))

    def gaps_s(self, partition: int, start_s: float, end_s: float) -> list[float]:
        """Times between acknowledgements that touch the given span, the last one before it and its end included."""
        return gaps_s(self.times_s[partition], start_s, end_s)


class Acknowledged(NamedTuple):
    """The last value of a partition that was acknowledged: when it was given to `send()`, on the monotonic clock, and its offset."""

    sent_s: float
    offset: int


class Sender(Background):
    """Sends to all partitions in turn until stopped.

    Args:
        bootstrap: addresses of brokers.
        name: process of the history; values are `name:number`.
        topic: topic to send to.
        partitions: its partitions to send to.
        rate_per_s: values a second, all partitions together.
        delivery_timeout_ms: of the producer.
        history: gets every send.
        acknowledgements: gets every receipt.
        value_bytes: size of each value; 0: as short as can be.
        first: index of the partition to begin with: senders in step would reach a partition together, and leave it alone together.

    Attributes:
        latest: by partition; written by the thread of the SDK.
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
        # Operation and time of `send()` of each value without a known fate, in the order of sending.
        self._waiting: dict[int, deque[tuple[int, float]]] = {partition: deque() for partition in partitions}
        self._number = 0

    @property
    def standstills(self) -> list[Span]:
        """Spans in which this process did not get to run."""
        return self._pace.standstills

    # -- in the thread of the sender

    def _produce(self) -> None:
        """Send until asked to stop, and wait for the fates of what is under way."""
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
            # The producer did not take it.
            waiting.pop()
            self.failures[f"{type(error).__name__}: {error.code.name}"] += 1
            self._history.end(op, self.name, Type.FAIL, Kind.SEND, text=str(error))

    def _close(self, producer: Producer) -> None:
        # Each failed batch was told to `_on_batch`.
        with contextlib.suppress(DeliveryError):
            producer.close(CLOSE_TIMEOUT_MS)

    # -- in the thread of the SDK

    def _on_batch(self, receipt: BatchReceipt) -> None:
        """Give the oldest values of the partition without a fate theirs: fates come in the order of sending."""
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

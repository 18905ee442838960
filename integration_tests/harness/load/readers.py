# SPDX-License-Identifier: Apache-2.0
"""Consumers of a load: some read along, one asks for ends, and at the end everything is read once more.

Owns their threads and what they write into the history. After an error the operation has an unknown outcome, and a new consumer starts
at the position of the old one. It must continue from there without a gap.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Sequence

from lograft import Consumer, TopicPartition
from lograft.errors import LograftError
from lograft.types import ConsumerRecord

from integration_tests.harness.background import Background
from integration_tests.harness.history.events import HistoryFile, Kind, Type
from integration_tests.harness.load.values import decode_value

POLL_TIMEOUT_MS = 200
POLL_RECORDS = 500
POLL_INTERVAL_S = 0.05
"""Seconds between two polls. Without the pause every record would be a poll of its own."""
END_INTERVAL_S = 0.5
REQUEST_TIMEOUT_MS = 5_000
AFTER_ERROR_S = 0.2
REOPEN_S = (10.0, 30.0)
"""Shortest and longest life of a consumer in seconds; it is random between the two."""
REREAD_MAX = 50
"""Maximum number of offsets by which a new consumer begins before the position of the old one."""
JOIN_TIMEOUT_S = 60.0
FINAL_POLL_RECORDS = 10_000
FINAL_TIMEOUT_S = 200.0
"""Seconds for one partition, after all faults."""


class Poller(Background):
    """Reads all given partitions as records arrive.

    Attributes:
        reached: end (exclusive) of everything ever read from each partition.
    """

    def __init__(
        self,
        bootstrap: str,
        name: str,
        tps: list[TopicPartition],
        *,
        history: HistoryFile,
        seed: int,
        reopen_s: tuple[float, float] | None = REOPEN_S,
    ) -> None:
        super().__init__(name, self._poll, join_timeout_s=JOIN_TIMEOUT_S)
        self.reached = dict.fromkeys((tp.partition for tp in tps), 0)
        self._reopen_s = reopen_s
        self._bootstrap = bootstrap
        self._history = history
        self._rng = random.Random(seed)
        self._positions = dict.fromkeys(tps, 0)

    def _poll(self) -> None:
        while not self.stopping.is_set():
            with Consumer(self._bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as consumer:
                if not self._assign(consumer) or not self._poll_for_a_while(consumer):
                    self.stopping.wait(AFTER_ERROR_S)

    def _assign(self, consumer: Consumer) -> bool:
        op = self._history.begin(self.name, Kind.ASSIGN)
        try:
            consumer.assign(list(self._positions), offsets=self._positions)
        except LograftError as error:
            self._history.end(op, self.name, Type.INFO, Kind.ASSIGN, text=repr(error))
            return False
        positions = {str(tp): offset for tp, offset in self._positions.items()}
        self._history.end(op, self.name, Type.OK, Kind.ASSIGN, offsets_by_partition=positions)
        return True

    def _poll_for_a_while(self, consumer: Consumer) -> bool:
        """Poll until an error or the end of this consumer's life. Return True if there was no error."""
        until_s = math.inf if self._reopen_s is None else time.monotonic() + self._rng.uniform(*self._reopen_s)
        while time.monotonic() < until_s and not self.stopping.wait(POLL_INTERVAL_S):
            op = self._history.begin(self.name, Kind.POLL)
            try:
                records = consumer.poll(POLL_RECORDS, POLL_TIMEOUT_MS)
            except LograftError as error:
                self._history.end(op, self.name, Type.INFO, Kind.POLL, text=repr(error))
                return False
            found: dict[str, list[tuple[int, str]]] = {}
            for record in records:
                found.setdefault(f"{record.topic}-{record.partition}", []).append(
                    (record.offset, decode_value(record.value))
                )
                self._positions[TopicPartition(record.topic, record.partition)] = record.offset + 1
                self.reached[record.partition] = max(self.reached[record.partition], record.offset + 1)
            self._history.end(op, self.name, Type.OK, Kind.POLL, records=found)
        for tp, position in self._positions.items():
            self._positions[tp] = max(0, position - self._rng.randrange(REREAD_MAX))
        return True


class EndReader(Background):
    """Asks for the ends of all given partitions at intervals.

    Attributes:
        asked_s: monotonic time of the last question that got an answer.
    """

    def __init__(self, bootstrap: str, name: str, tps: list[TopicPartition], *, history: HistoryFile) -> None:
        super().__init__(name, self._ask, join_timeout_s=JOIN_TIMEOUT_S)
        self.asked_s = 0.0
        self._bootstrap = bootstrap
        self._history = history
        self._tps = tps

    def _ask(self) -> None:
        with Consumer(self._bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as consumer:
            while not self.stopping.wait(END_INTERVAL_S):
                op = self._history.begin(self.name, Kind.END)
                asked_s = time.monotonic()
                try:
                    ends = consumer.end_offsets(self._tps)
                except LograftError as error:
                    self._history.end(op, self.name, Type.INFO, Kind.END, text=repr(error))
                    continue
                self.asked_s = asked_s
                found = {str(tp): end for tp, end in ends.items()}
                self._history.end(op, self.name, Type.OK, Kind.END, offsets_by_partition=found)


def read_to_end(
    consumer: Consumer, tps: Sequence[TopicPartition], deadline_s: float
) -> tuple[list[ConsumerRecord], dict[TopicPartition, int]]:
    """Read partitions from their starts to their present ends.

    Args:
        consumer: a consumer; its assignment is replaced.
        tps: partitions.
        deadline_s: time of the monotonic clock.

    Returns:
        All records below the ends, in the order of arrival, and the ends, exclusive.

    Raises:
        TimeoutError: it took too long.
    """
    ends = consumer.end_offsets(tps)
    records: list[ConsumerRecord] = []
    consumer.assign(tps)
    while any(consumer.position(tp) < ends[tp] for tp in tps):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"read up to {[consumer.position(tp) for tp in tps]} of {ends}")
        records += consumer.poll(FINAL_POLL_RECORDS, POLL_TIMEOUT_MS)
    # Records that others append during the read are beyond these ends.
    return [each for each in records if each.offset < ends[TopicPartition(each.topic, each.partition)]], ends


def read_partitions(
    bootstrap: str, tps: Sequence[TopicPartition], *, timeout_s: float = FINAL_TIMEOUT_S
) -> list[ConsumerRecord]:
    """Read all records that partitions have now. Raises TimeoutError if that takes too long."""
    with Consumer(bootstrap) as consumer:
        return read_to_end(consumer, tps, time.monotonic() + timeout_s)[0]


def read_everything(bootstrap: str, tps: list[TopicPartition], history: HistoryFile) -> list[str]:
    """Read each partition from start to end into the history, and return the problems."""
    return [problem for tp in tps if (problem := _read_partition(bootstrap, tp, history))]


def _read_partition(bootstrap: str, tp: TopicPartition, history: HistoryFile) -> str:
    deadline_s = time.monotonic() + FINAL_TIMEOUT_S
    problem = "no time"
    while time.monotonic() < deadline_s:
        op = history.begin("final", Kind.READ, partition=str(tp))
        try:
            with Consumer(bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as consumer:
                records, ends = read_to_end(consumer, [tp], deadline_s)
        except (LograftError, TimeoutError) as error:
            problem = repr(error)
            history.end(op, "final", Type.INFO, Kind.READ, partition=str(tp), text=problem)
            threading.Event().wait(AFTER_ERROR_S)
            continue
        history.end(
            op,
            "final",
            Type.OK,
            Kind.READ,
            partition=str(tp),
            records={str(tp): [(record.offset, decode_value(record.value)) for record in records]},
            offsets_by_partition={str(tp): ends[tp]},
        )
        return ""
    return f"{tp} could not be read within {FINAL_TIMEOUT_S} s: {problem}"

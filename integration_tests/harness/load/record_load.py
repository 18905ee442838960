# SPDX-License-Identifier: Apache-2.0
"""Producers and consumers on one topic of a cluster, and the judgement of what they saw.

Owns their number and the questions about all of them: pace, gaps between acknowledgements, process pauses.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lograft import TopicPartition

from integration_tests.harness.background import Background
from integration_tests.harness.history.checker import STALE_END_S_MAX, Verdict, check
from integration_tests.harness.history.events import HISTORY_FILE, HistoryFile, read_history
from integration_tests.harness.load.pace import touches
from integration_tests.harness.load.readers import REOPEN_S, EndReader, Poller, read_everything
from integration_tests.harness.load.senders import Acknowledgements, Sender
from integration_tests.harness.wait import wait_for

WAIT_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLoadSettings:
    """How much the load sends and reads.

    Attributes:
        topic: topic, which exists.
        partition_count: number of its partitions.
        senders: number of producers; each sends to all partitions.
        pollers: number of consumers; each reads all partitions and is replaced by a new one now and then.
        lasting_pollers: number of further consumers that are replaced only after an error.
        rate_per_s: values per second of all senders together.
        delivery_timeout_ms: delivery timeout of the producers.
        value_bytes: size of each value; 0: as short as possible.
    """

    topic: str
    partition_count: int
    senders: int = 3
    pollers: int = 2
    lasting_pollers: int = 0
    rate_per_s: float = 150.0
    delivery_timeout_ms: int = 120_000
    value_bytes: int = 0


class RecordLoad:
    """A load of records; a context manager. It runs from the first acknowledgement in every partition until `stop`."""

    def __init__(self, bootstrap: str, directory: Path, settings: RecordLoadSettings, *, seed: int = 0) -> None:
        self.settings = settings
        self.tps = [TopicPartition(settings.topic, number) for number in range(settings.partition_count)]
        self.history = HistoryFile(directory / HISTORY_FILE)
        self.acknowledgements = Acknowledgements(settings.partition_count)
        self._bootstrap = bootstrap
        self._guests: list[Sender] = []
        self.senders = [self._sender(bootstrap, number) for number in range(settings.senders)]
        self.pollers = [
            Poller(
                bootstrap,
                f"c{number}",
                self.tps,
                history=self.history,
                seed=seed * 1_000 + number,
                reopen_s=REOPEN_S if number < settings.pollers else None,
            )
            for number in range(settings.pollers + settings.lasting_pollers)
        ]
        self.end_reader = EndReader(bootstrap, "e0", self.tps, history=self.history)
        self._readers: list[Background] = [*self.pollers, self.end_reader]
        self._is_stopped = False
        self.started_s = 0.0

    def _sender(self, bootstrap: str, number: int) -> Sender:
        settings = self.settings
        return Sender(
            bootstrap,
            f"s{number}",
            topic=settings.topic,
            partitions=list(range(settings.partition_count)),
            rate_per_s=settings.rate_per_s / settings.senders,
            delivery_timeout_ms=settings.delivery_timeout_ms,
            history=self.history,
            acknowledgements=self.acknowledgements,
            value_bytes=settings.value_bytes,
            first=number * settings.partition_count // settings.senders,
        )

    def __enter__(self) -> Self:
        for each in (*self.senders, *self._readers):
            each.start()
        try:
            self.wait_acknowledged(range(len(self.tps)), time.monotonic())
        except BaseException:
            self.stop()
            raise
        self.started_s = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self.history.close()

    def check_alive(self) -> None:
        """Raise the error that ended a client of the load, if any."""
        for each in (*self.senders, *self._readers):
            each.check()

    def stop(self) -> None:
        """Stop all clients, senders first, and wait for the results of everything under way. Idempotent."""
        if self._is_stopped:
            return
        self._is_stopped = True
        clients = (*self.senders, *self._guests, *self._readers)
        for each in (*self.senders, *self._guests):
            each.ask_to_stop()
        for each in clients:
            each.join()

    def add_guest(self, bootstrap: str, name: str, partitions: list[int], *, delivery_timeout_ms: int) -> Sender:
        """Start one more sender, which asks other brokers first. Its receipts appear only in the history."""
        guest = Sender(
            bootstrap,
            name,
            topic=self.settings.topic,
            partitions=partitions,
            rate_per_s=2.0 * len(partitions),
            delivery_timeout_ms=delivery_timeout_ms,
            history=self.history,
        )
        self._guests.append(guest)
        guest.start()
        return guest

    def wait_acknowledged(
        self, partitions: Iterable[int], after_s: float, *, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Wait until each of the partitions has an acknowledgement after a given time."""
        waiting = set(partitions)

        def are_all_newer() -> bool:
            self.check_alive()
            waiting.difference_update([each for each in waiting if self.acknowledgements.is_newer(each, after_s)])
            return not waiting

        try:
            wait_for(are_all_newer, timeout_s=timeout_s, what="acknowledgements")
        except TimeoutError as error:
            raise TimeoutError(f"{error} in partitions {sorted(waiting)}") from None

    def hold(self, until_s: float) -> None:
        """Let the load run until a time of the monotonic clock."""

        def is_over() -> bool:
            self.check_alive()
            return time.monotonic() >= until_s

        wait_for(is_over, timeout_s=until_s - time.monotonic() + WAIT_TIMEOUT_S, what="the end of a fault")

    def longest_gaps_s(self, partitions: Iterable[int], start_s: float, end_s: float) -> list[float]:
        """Return, for each of the partitions, the longest time without an acknowledgement that touches the span."""
        return [self.acknowledgements.longest_gap_s(each, start_s, end_s) for each in partitions]

    def stood_still(self, start_s: float, end_s: float) -> bool:
        """Return True if a pause of this process touches the span."""
        return any(touches(sender.standstills, start_s, end_s) for sender in self.senders)

    def failures(self) -> Counter[str]:
        """Return the number of values without an acknowledgement, by error."""
        return sum((sender.failures for sender in self.senders), Counter[str]())

    @property
    def acknowledged_count(self) -> int:
        """Number of values acknowledged so far."""
        return sum(sender.acknowledged_count for sender in self.senders)

    @property
    def duplicate_batches(self) -> int:
        """Number of batches that brokers recognised as duplicates."""
        return sum(sender.duplicate_batches for sender in self.senders)

    def figures(self) -> dict[str, str | int | float | dict[str, int] | list[int]]:
        """Return the figures of the load for a summary."""
        took_s = time.monotonic() - self.started_s
        acknowledged = self.acknowledged_count
        return {
            "acknowledged": acknowledged,
            "failed_or_unknown": self.failures().total(),
            "held_back": sum(sender.held_back for sender in self.senders),
            "deduplicated_batches": self.duplicate_batches,
            "reached_per_s": round(acknowledged / took_s, 1),
        }

    def judge(self, *, stale_end_s_max: float = STALE_END_S_MAX) -> tuple[Verdict, list[str]]:
        """Stop, read everything and check the history. Return the verdict and the problems of the read."""
        self.stop()
        problems = read_everything(self._bootstrap, self.tps, self.history)
        self.history.close()
        return check(read_history(self.history.path), stale_end_s_max=stale_end_s_max), problems

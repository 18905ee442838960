# SPDX-License-Identifier: Apache-2.0
"""Offsets on their way to the coordinator: what is sent next, what is under way, and whose commit is done.

It owns the numbers of commits and the pauses between attempts. It has no clock and sends nothing.

Theory of operation. One request is under way at a time. It carries the newest offset of each partition that some commit still waits
for, so commits that come while a request is under way travel together. A request without an answer is not repeated as it was: the
next one has a higher number and the offsets that are newest by then. So a late copy moves nothing back (docs/groups.md). A newer
offset that was sent may be stored although its commit was cancelled meanwhile, so an older one that still waits is replaced by it.

A partition that the member gives up takes its commits with it (`drop`). If they waited on, they could be stored after the member has
got the partition again and has looked up where to begin.

Laws: a commit ends once, when every partition of it has a result, or when it is cancelled. Once an offset was sent, none that was
given earlier for the same partition is sent. Two attempts are at least `COMMIT_RETRY_FLOOR_MS` apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from lograft._client.backoff import Backoff, Rng
from lograft._groups.steps import Partition
from lograft.errors import LograftError
from lograft.types import OffsetAndMetadata

COMMIT_RETRY_FLOOR_MS: Final = 100
"""Least milliseconds between two attempts."""

COMMIT_RETRY_LIMIT_MS: Final = 2_000
"""Most milliseconds between two attempts."""

MAX_OFFSETS: Final = 4_000
"""Offsets of one request."""

MAX_REQUEST_BYTES: Final = 512 * 1024
"""Bytes of metadata and fixed fields of one request, about; the coordinator takes 768 KiB of records."""

_FIXED_BYTES: Final = 96
"""Bytes that an offset without metadata counts for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """Offsets to send under a number that rises."""

    number: int
    offsets: Mapping[Partition, OffsetAndMetadata]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDone:
    """A commit has ended: `errors` has the partitions that failed; empty: all are stored."""

    ticket: int
    errors: Mapping[Partition, LograftError]


@dataclass(slots=True)
class _Waiting:
    order: int
    offsets: dict[Partition, OffsetAndMetadata]
    errors: dict[Partition, LograftError]


class Commits:
    """The commits of one consumer in one group. Only the member's shell writes it."""

    def __init__(self, rng: Rng) -> None:
        """Start without commits; `rng` draws the jitter of pauses."""
        # Its delays lie in [half the base, limit].
        self._backoff = Backoff(base_ms=2 * COMMIT_RETRY_FLOOR_MS, limit_ms=COMMIT_RETRY_LIMIT_MS, rng=rng)
        self._last_ticket = 0
        self._last_order = 0
        self._last_number = 0
        self._not_before_ms = 0
        # By ticket, the earliest first.
        self._waiting: dict[int, _Waiting] = {}
        self._under_way: CommitRequest | None = None
        # What was sent last of each partition, with its place in the order in which the application gave offsets.
        self._newest: dict[Partition, tuple[int, OffsetAndMetadata]] = {}
        # The tickets that get the results of the request under way, by partition.
        self._sent: dict[Partition, list[int]] = {}

    @property
    def is_idle(self) -> bool:
        """True if no commit waits for a result."""
        return not self._waiting

    def take_number(self) -> int:
        """Return the number of a commit that travels another way, with the decision of an ingest."""
        self._last_number += 1
        return self._last_number

    def order(self) -> int:
        """Return the place of a commit that the application asks for now, but whose offsets are added later."""
        self._last_order += 1
        return self._last_order

    def add(self, offsets: Mapping[Partition, OffsetAndMetadata], order: int | None = None) -> int:
        """Take a commit of at least one offset, and return its ticket; `order` None: the application asks for it now."""
        assert offsets, "a commit without offsets"
        self._last_ticket += 1
        self._waiting[self._last_ticket] = _Waiting(self.order() if order is None else order, dict(offsets), {})
        return self._last_ticket

    def cancel(self, ticket: int) -> None:
        """Forget a commit that nobody waits for any more. What was sent may take effect all the same."""
        self._waiting.pop(ticket, None)

    def request(self, now_ms: int) -> CommitRequest | None:
        """Return what must be sent now; None: nothing."""
        if self._under_way is not None or not self._waiting or now_ms < self._not_before_ms:
            return None
        newest: dict[Partition, tuple[int, OffsetAndMetadata]] = {}
        tickets: dict[Partition, list[int]] = {}
        size_bytes = 0
        for ticket, waiting in self._waiting.items():
            for partition, offset in waiting.offsets.items():
                is_new = partition not in newest
                more_bytes = _FIXED_BYTES + 4 * len(offset.metadata)
                if is_new and newest and (len(newest) >= MAX_OFFSETS or size_bytes + more_bytes > MAX_REQUEST_BYTES):
                    continue
                size_bytes += more_bytes
                known = newest.get(partition) or self._newest.get(partition)
                newest[partition] = (waiting.order, offset) if known is None or known[0] < waiting.order else known
                tickets.setdefault(partition, []).append(ticket)
        self._last_number += 1
        self._sent = tickets
        self._newest |= newest
        offsets = {partition: offset for partition, (_, offset) in newest.items()}
        self._under_way = CommitRequest(number=self._last_number, offsets=offsets)
        return self._under_way

    def wait_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until `request` has something; None: not before something happens."""
        if self._under_way is not None or not self._waiting:
            return None
        return max(0, self._not_before_ms - now_ms)

    def answered(self, number: int, errors: Mapping[Partition, LograftError], now_ms: int) -> list[CommitDone]:
        """Take the result of each partition (no error: stored), and return the commits that have ended.

        Partitions whose error is retriable are sent again after a pause.
        """
        request = self._under_way
        if request is None or request.number != number:
            return []
        self._under_way = None
        if any(error.code.retriable for error in errors.values()):
            self._pause(now_ms, 0)
        else:
            self._backoff.reset()
        done: list[CommitDone] = []
        for partition, tickets in self._sent.items():
            error = errors.get(partition)
            if error is not None and not error.code.retriable:
                self._newest.pop(partition, None)
            for ticket in tickets:
                waiting = self._waiting.get(ticket)
                if waiting is None or (error is not None and error.code.retriable):
                    continue
                done += self._end_partition(ticket, waiting, partition, error)
        return done

    def unanswered(self, number: int, now_ms: int, retry_after_ms: int = 0) -> None:
        """Note that a request failed without a result. What it carried is sent again after a pause, with a higher number."""
        if self._under_way is not None and self._under_way.number == number:
            self._under_way = None
            self._pause(now_ms, retry_after_ms)

    def waiting_for(self, partitions: Collection[Partition]) -> list[int]:
        """Return the tickets of the commits that wait for the result of one of these partitions."""
        return [
            ticket for ticket, waiting in self._waiting.items() if not waiting.offsets.keys().isdisjoint(partitions)
        ]

    def drop(self, partitions: Collection[Partition], error: LograftError) -> list[CommitDone]:
        """End the commits of partitions that the member has given up with an error, and return the commits that have ended.

        The other partitions of a commit wait on. What is under way may take effect all the same, but is not repeated.
        """
        done: list[CommitDone] = []
        for partition in partitions:
            self._newest.pop(partition, None)
            self._sent.pop(partition, None)
            for ticket, waiting in list(self._waiting.items()):
                if partition in waiting.offsets:
                    done += self._end_partition(ticket, waiting, partition, error)
        return done

    def fail(self, error: LograftError) -> list[CommitDone]:
        """End every commit with an error, because none of them can be stored any more."""
        ended = [
            CommitDone(ticket=ticket, errors={**waiting.errors, **dict.fromkeys(waiting.offsets, error)})
            for ticket, waiting in self._waiting.items()
        ]
        self._waiting.clear()
        self._newest.clear()
        self._under_way = None
        return ended

    def _end_partition(
        self, ticket: int, waiting: _Waiting, partition: Partition, error: LograftError | None
    ) -> list[CommitDone]:
        del waiting.offsets[partition]
        if error is not None:
            waiting.errors[partition] = error
        if waiting.offsets:
            return []
        del self._waiting[ticket]
        return [CommitDone(ticket=ticket, errors=waiting.errors)]

    def _pause(self, now_ms: int, advice_ms: int) -> None:
        delay_ms = max(COMMIT_RETRY_FLOOR_MS, self._backoff.next_delay_ms(at_least_ms=advice_ms))
        self._not_before_ms = now_ms + delay_ms

# SPDX-License-Identifier: Apache-2.0
"""Delayed fetches: a leader keeps them waiting for something to send.

Owns them by replica (a newer fetch of a replica replaces its older one), and their deadlines. Decides nothing about answers. Bounded
by `RaftConfig.max_parked_fetches`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace

from metaquorum.raft.messages import FetchRequest
from metaquorum.raft.types import ReplicaKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedFetch:
    """A fetch that waits for its answer until `deadline_ms`."""

    token: int
    request: FetchRequest
    deadline_ms: int


class ParkedFetches:
    """At most one delayed fetch for each replica."""

    __slots__ = ("_by_replica", "_heap")

    def __init__(self) -> None:
        self._by_replica: dict[ReplicaKey, ParkedFetch] = {}
        self._heap: list[tuple[int, int, ReplicaKey]] = []

    def __len__(self) -> int:
        return len(self._by_replica)

    def __iter__(self) -> Iterator[ParkedFetch]:
        """Iterate over all fetches in the order of arrival. The caller may remove fetches during the iteration."""
        return iter(list(self._by_replica.values()))

    def put(self, fetch: ParkedFetch) -> ParkedFetch | None:
        """Delay a fetch.

        Returns:
            The older fetch of the same replica, which is removed and needs an answer; or None.
        """
        older = self.remove(fetch.request.replica)
        self._by_replica[fetch.request.replica] = fetch
        heapq.heappush(self._heap, (fetch.deadline_ms, fetch.token, fetch.request.replica))
        return older

    def hasten(self, fetch: ParkedFetch, *, deadline_ms: int) -> None:
        """Shorten the wait of a delayed fetch to this time, if it would wait longer."""
        if deadline_ms < self._by_replica[fetch.request.replica].deadline_ms:
            self._by_replica[fetch.request.replica] = replace(fetch, deadline_ms=deadline_ms)
            # The entry of the old deadline stays in the heap and is skipped later.
            heapq.heappush(self._heap, (deadline_ms, fetch.token, fetch.request.replica))

    def remove(self, replica: ReplicaKey) -> ParkedFetch | None:
        """Remove and return the fetch of this replica, or None."""
        return self._by_replica.pop(replica, None)

    def token_of(self, replica: ReplicaKey) -> int | None:
        """Return the token of this replica's fetch; None if it has none."""
        fetch = self._by_replica.get(replica)
        return None if fetch is None else fetch.token

    def deadline_ms(self) -> int | None:
        """Return the earliest deadline; None without a fetch."""
        while self._heap:
            deadline_ms, token, replica = self._heap[0]
            fetch = self._by_replica.get(replica)
            if fetch is not None and fetch.token == token:
                return deadline_ms
            heapq.heappop(self._heap)
        return None

    def pop_expired(self, now_ms: int) -> list[ParkedFetch]:
        """Remove and return every fetch whose deadline has come."""
        expired: list[ParkedFetch] = []
        while (deadline_ms := self.deadline_ms()) is not None and deadline_ms <= now_ms:
            fetch = self._by_replica.pop(heapq.heappop(self._heap)[2])
            expired.append(fetch)
        return expired

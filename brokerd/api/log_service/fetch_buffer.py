# SPDX-License-Identifier: Apache-2.0
"""The memory of chunks that fetch streams have read and their clients have not taken yet.

A stream has one chunk under way. The transport keeps it while the client's flow control has no room, for as long as the client
likes. So a chunk counts from the read of the log to the end of its write, and three rules keep a reader that never takes its chunk
from holding up the others:

* A chunk of at most `UNCOUNTED_CHUNK_BYTES` does not count: the number of streams bounds these, and new records reach their readers
  whatever the others do.
* The more chunks are held, the smaller is the next one (`chunk_bytes`). A batch is never cut, though: where it does not fit, its
  stream waits in turn.
* While streams wait, the broker ends the connections of clients that have not taken their chunk within `FETCH_TAKE_MS`.

Owns the gate of the budget, and who has held what since when. Must not read logs or write to streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from brokerd.limits import FETCH_BUFFER_WAIT_MS, FETCH_TAKE_MS, UNCOUNTED_CHUNK_BYTES
from brokerd.memory.budget import Grant, MemoryBudget, MemoryGate

logger = logging.getLogger(__name__)

COPIES: Final = 2
"""Times that a chunk is in memory while it is written: as a message of this process, and as the transport's copy."""

SHARE: Final = 8
"""The n-th chunk held gets at most the n-th part of the budget divided by this: 200 chunks together six parts of these eight."""

TIMER_EARLY_S: Final = 0.001
"""Seconds by which an event loop may call a timer too early, at most: uvloop rounds to milliseconds."""


class FetchBuffer:
    """The chunks of all fetch streams of one broker, on one event loop.

    Args:
        max_bytes: most bytes of counted chunks, copies included.
        end_connections: ends the connections of these peers, as gRPC names them; called in a thread.
    """

    def __init__(self, max_bytes: int, *, end_connections: Callable[[Collection[str]], int]) -> None:
        self._gate = MemoryGate("fetched chunks", max_bytes)
        self._end_connections = end_connections
        self._since_s: dict[Grant, tuple[float, str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self.ended_connections = 0

    @property
    def budget(self) -> MemoryBudget:
        """The bytes that are held."""
        return self._gate.budget

    def chunk_bytes(self, wanted_bytes: int) -> int:
        """Return how many bytes the next chunk may have, unless its first batch is larger: what is wanted, or less."""
        budget = self._gate.budget
        held_bytes = budget.held_bytes
        if not held_bytes and wanted_bytes * (COPIES * SHARE) <= budget.limit_bytes:
            return wanted_bytes
        if budget.waiter_count:
            return min(wanted_bytes, UNCOUNTED_CHUNK_BYTES)
        share_bytes = budget.limit_bytes // (SHARE * (budget.holder_count + 1))
        fair_bytes = min(share_bytes, budget.limit_bytes - held_bytes) // COPIES
        return min(wanted_bytes, max(fair_bytes, UNCOUNTED_CHUNK_BYTES))

    def try_hold(self, chunk_bytes: int, peer: str) -> Grant | None:
        """Count a chunk that was read for a peer, if there is room and no other stream waits; None otherwise."""
        grant = self._gate.try_take(chunk_bytes * COPIES)
        return None if grant is None else self._held(grant, peer)

    async def hold(self, chunk_bytes: int, peer: str) -> Grant:
        """Wait in turn until a chunk may be read for a peer.

        Raises:
            RefusedError: OVERLOADED, not within `FETCH_BUFFER_WAIT_MS`.
        """
        if self._timer is None:
            self._arm()
        return self._held(await self._gate.take(chunk_bytes * COPIES, timeout_ms=FETCH_BUFFER_WAIT_MS), peer)

    def give_back(self, grant: Grant) -> None:
        """The chunk is taken, or will never be."""
        del self._since_s[grant]
        self._gate.give_back(grant)

    def close(self) -> None:
        """End no more connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _held(self, grant: Grant, peer: str) -> Grant:
        self._since_s[grant] = (asyncio.get_running_loop().time(), peer)
        return grant

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        # In the order in which they were granted, so the first one has held its chunk the longest.
        oldest_s = next(iter(self._since_s.values()))[0] if self._since_s else loop.time()
        self._timer = loop.call_at(oldest_s + FETCH_TAKE_MS / 1000, self._look)

    def _look(self) -> None:
        """End the connections that have taken nothing for too long, if somebody waits for what they hold."""
        self._timer = None
        if not self._gate.budget.waiter_count:
            return
        loop = asyncio.get_running_loop()
        # A timer that came a little early would otherwise be armed for the same moment, again and again.
        until_s = loop.time() - FETCH_TAKE_MS / 1000 + TIMER_EARLY_S
        stuck = [grant for grant, (since_s, _) in self._since_s.items() if since_s <= until_s]
        if stuck:
            peers = {self._since_s[grant][1] for grant in stuck}
            task = loop.create_task(self._end(peers), name="end of connections that take nothing")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            # Looked at again after as long, should the connection still be there.
            for grant in stuck:
                peer = self._since_s.pop(grant)[1]
                self._held(grant, peer)
        self._arm()

    async def _end(self, peers: Collection[str]) -> None:
        ended = await asyncio.to_thread(self._end_connections, peers)
        self.ended_connections += ended
        logger.warning(
            "event=connections_ended reason=%r count=%d waiting_streams=%d",
            f"they took nothing of a fetched chunk for {FETCH_TAKE_MS} ms, and others wait for its memory",
            ended,
            self._gate.budget.waiter_count,
        )

# SPDX-License-Identifier: Apache-2.0
"""The memory of chunks that fetch streams have read and whose clients have not yet taken them.

A stream has one chunk under way. The connection keeps it while the client's flow control has no room, and the client decides how long
that is. So a chunk counts from the read of the log to the end of its write. Three rules keep a slow reader from blocking the others:

* A chunk of at most `UNCOUNTED_CHUNK_BYTES` does not count. The number of streams bounds such chunks, and new records always reach
  their readers.
* The more chunks are held, the smaller is the next one (`chunk_bytes`). A batch is never split, though. If it does not fit, its stream
  waits in a queue.
* While streams wait, the broker ends the connections of clients that have not taken their chunk within `FETCH_TAKE_MS`.

Owns the gate of the budget, and since when each peer has held memory. Does not read logs or write to streams.
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
"""Copies of a chunk in memory while it is written: the message, and as much of it as is on its way to the socket."""

SHARE: Final = 8
"""The n-th held chunk gets at most budget / (n * `SHARE`). So 200 chunks together get about 6/8 of the budget."""

TIMER_EARLY_S: Final = 0.001
"""Maximum seconds by which an event loop may call a timer too early: uvloop rounds to milliseconds."""


class FetchBuffer:
    """The chunks of all fetch streams of one broker. Belongs to one event loop.

    Args:
        max_bytes: maximum bytes of counted chunks, copies included.
        end_connections: ends the connections of these peers, named as `context.peer()` names them, and returns how many were found.
    """

    def __init__(self, max_bytes: int, *, end_connections: Callable[[Collection[str]], int]) -> None:
        self._gate = MemoryGate("fetched chunks", max_bytes)
        self._end_connections = end_connections
        self._since_s: dict[Grant, tuple[float, str]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.ended_connections = 0

    @property
    def budget(self) -> MemoryBudget:
        """The budget with the bytes that chunks hold."""
        return self._gate.budget

    def chunk_bytes(self, wanted_bytes: int) -> int:
        """Return how many bytes the next chunk may have: `wanted_bytes` or fewer. A larger first batch is still sent."""
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
        """Count a chunk that was read for a peer, if it fits and no other stream waits. Otherwise return None."""
        grant = self._gate.try_take(chunk_bytes * COPIES)
        return None if grant is None else self._held(grant, peer)

    async def hold(self, chunk_bytes: int, peer: str) -> Grant:
        """Wait in the queue until a chunk may be read for a peer.

        Raises:
            RefusedError: OVERLOADED, no memory became free within `FETCH_BUFFER_WAIT_MS`.
        """
        if self._timer is None:
            self._arm()
        return self._held(await self._gate.take(chunk_bytes * COPIES, timeout_ms=FETCH_BUFFER_WAIT_MS), peer)

    def give_back(self, grant: Grant) -> None:
        """Return the memory of a chunk: its write has ended."""
        del self._since_s[grant]
        self._gate.give_back(grant)

    def close(self) -> None:
        """Stop ending connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _held(self, grant: Grant, peer: str) -> Grant:
        self._since_s[grant] = (asyncio.get_running_loop().time(), peer)
        return grant

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        # The dictionary has the order of the grants, so its first chunk has been held the longest.
        oldest_s = next(iter(self._since_s.values()))[0] if self._since_s else loop.time()
        self._timer = loop.call_at(oldest_s + FETCH_TAKE_MS / 1000, self._look)

    def _look(self) -> None:
        """End the connections that have taken nothing for too long, if a stream waits for their memory."""
        self._timer = None
        if not self._gate.budget.waiter_count:
            return
        loop = asyncio.get_running_loop()
        # Otherwise a timer that comes a little early would be set to the same moment again and again.
        until_s = loop.time() - FETCH_TAKE_MS / 1000 + TIMER_EARLY_S
        stuck = [grant for grant, (since_s, _) in self._since_s.items() if since_s <= until_s]
        if stuck:
            self._end({self._since_s[grant][1] for grant in stuck})
            # Checked again after the same time if the connection still exists.
            for grant in stuck:
                peer = self._since_s.pop(grant)[1]
                self._held(grant, peer)
        self._arm()

    def _end(self, peers: Collection[str]) -> None:
        ended = self._end_connections(peers)
        self.ended_connections += ended
        logger.warning(
            "event=connections_ended reason=%r count=%d waiting_streams=%d",
            f"they took nothing of a fetched chunk for {FETCH_TAKE_MS} ms, and others wait for its memory",
            ended,
            self._gate.budget.waiter_count,
        )

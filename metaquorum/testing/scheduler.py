# SPDX-License-Identifier: Apache-2.0
"""Virtual time: a heap of actions, named random streams, and a digest of everything that happened.

Owns order and time of the simulation. Two actions of the same millisecond run in the order in which they were scheduled, so a run
depends only on its seed.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable


class Scheduler:
    """Runs actions in virtual time.

    Args:
        seed: seed of the run. Every random stream derives from it by name, so a draw in one place does not shift another.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ms = 0
        self.event_count = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._trace = hashlib.blake2b(digest_size=16)

    def rng(self, name: str) -> random.Random:
        """Return a separate random stream, seeded by a text, so independent of PYTHONHASHSEED."""
        return random.Random(f"{self.seed}/{name}")

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run the action in `delay_ms` milliseconds (at least 0)."""
        assert delay_ms >= 0, f"{delay_ms} ms is in the past"
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, action))

    def run_next(self) -> bool:
        """Run the next action. Return False if there is none."""
        if not self._heap:
            return False
        self.now_ms, _, action = heapq.heappop(self._heap)
        action()
        return True

    def clear(self) -> None:
        """Drop all scheduled actions."""
        self._heap.clear()

    def trace(self, line: str) -> None:
        """Add a line to the digest, and count an event."""
        self.event_count += 1
        self._trace.update(line.encode())
        self._trace.update(b"\n")

    def digest(self) -> str:
        """Return the digest of all lines so far, in hexadecimal."""
        return self._trace.hexdigest()

# SPDX-License-Identifier: Apache-2.0
"""Virtual time: a heap of actions, named streams of chance, and a digest of everything that happened.

Owns order and time of the simulation. Two actions of the same millisecond run in the order in which they were
scheduled, so a run depends on its seed alone.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable


class Scheduler:
    """Runs actions in virtual time.

    Args:
        seed: names the run; every stream of chance derives from it by name, so that a draw in one place shifts no
            other.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ms = 0
        self.event_count = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._trace = hashlib.blake2b(digest_size=16)

    def rng(self, name: str) -> random.Random:
        """A stream of chance of its own; seeded by text, which does not depend on PYTHONHASHSEED."""
        return random.Random(f"{self.seed}/{name}")

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Run the action in delay_ms (at least 0)."""
        assert delay_ms >= 0, f"{delay_ms} ms is in the past"
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, action))

    def run_next(self) -> bool:
        """Run the next action; False when there is none."""
        if not self._heap:
            return False
        self.now_ms, _, action = heapq.heappop(self._heap)
        action()
        return True

    def clear(self) -> None:
        """Forget everything that was to come."""
        self._heap.clear()

    def trace(self, line: str) -> None:
        """Add a line to the digest and count an event."""
        self.event_count += 1
        self._trace.update(line.encode())
        self._trace.update(b"\n")

    def digest(self) -> str:
        """Digest of all lines so far, hexadecimal."""
        return self._trace.hexdigest()

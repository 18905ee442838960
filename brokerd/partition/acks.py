# SPDX-License-Identifier: Apache-2.0
"""The acknowledgements of one partition replica that wait for an offset.

They are in a heap, not in a queue: a duplicate waits for the offset of its original, which is below offsets that came
earlier. Law: each token is returned once, or dropped.
"""

from __future__ import annotations

from heapq import heappop, heappush


class PendingAcks:
    """Acknowledgements whose offsets are not reached yet."""

    __slots__ = ("_dropped", "_heap", "_pending")

    def __init__(self) -> None:
        # (next_offset, token), smallest first.
        self._heap: list[tuple[int, int]] = []
        self._pending: set[int] = set()
        self._dropped: set[int] = set()

    def __len__(self) -> int:
        """Return the number of waiting acknowledgements."""
        return len(self._pending)

    def add(self, token: int, next_offset: int) -> None:
        """Make a token wait for an offset (exclusive end of its records)."""
        self._pending.add(token)
        heappush(self._heap, (next_offset, token))

    def drop(self, token: int) -> None:
        """Forget a token; does nothing if it does not wait."""
        # The heap entry stays until its offset is reached; the set keeps it from completing.
        if token in self._pending:
            self._pending.discard(token)
            self._dropped.add(token)

    def take_reached(self, offset: int) -> list[tuple[int, int]]:
        """Remove and return the entries at `offset` or below: (next offset, token), lowest first."""
        reached: list[tuple[int, int]] = []
        heap = self._heap
        while heap and heap[0][0] <= offset:
            entry = heappop(heap)
            if entry[1] in self._dropped:
                self._dropped.discard(entry[1])
                continue
            self._pending.discard(entry[1])
            reached.append(entry)
        return reached

    def take_all(self) -> list[int]:
        """Remove and return all tokens, lowest offset first."""
        tokens = [token for _, token in sorted(self._heap) if token not in self._dropped]
        self._heap.clear()
        self._pending.clear()
        self._dropped.clear()
        return tokens
